//! How the two sides keep step: over TCP, as perftest does, or over a connection of the connection manager's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::control::Control;
use super::report::Row;
use super::with_perftest::Exchange;
use crate::error::CliError;

/// Longest line that a side says.
const LINE: u64 = 1 << 20;

/// What the sides talk over.
pub enum Talk {
    Tcp(Lines),
    Cm(Box<Control>),
    Perftest(Box<Exchange>),
}

impl Talk {
    /// Returns when both sides are ready for the next size.
    pub fn begin(&mut self) -> Result<(), CliError> {
        match self {
            Talk::Tcp(lines) => lines.meet(),
            Talk::Cm(control) => control.meet(),
            Talk::Perftest(exchange) => exchange.begin(),
        }
    }

    /// Returns when both sides are done with a size.
    pub fn end(&mut self) -> Result<(), CliError> {
        match self {
            Talk::Tcp(lines) => lines.meet(),
            Talk::Cm(control) => control.meet(),
            Talk::Perftest(exchange) => exchange.end(),
        }
    }

    /// The last meeting: neither side's queue pairs go while the other may still need an answer.
    /// `last` is what was measured last.
    pub fn part(&mut self, is_client: bool, last: Option<&Row>) -> Result<(), CliError> {
        match self {
            Talk::Tcp(lines) => lines.meet(),
            Talk::Cm(control) => control.part(is_client),
            Talk::Perftest(exchange) => exchange.part(last),
        }
    }
}

/// A TCP connection: one JSON value a line.
pub struct Lines {
    lines: BufReader<TcpStream>,
    out: TcpStream,
}

impl Lines {
    pub fn new(stream: TcpStream) -> Result<Lines, CliError> {
        let out = stream
            .try_clone()
            .map_err(|e| CliError::System("can't share a connection", e))?;
        Ok(Lines {
            lines: BufReader::new(stream),
            out,
        })
    }

    pub fn say(&mut self, what: &Value) -> Result<(), CliError> {
        writeln!(self.out, "{what}").map_err(|e| crate::exchange::silent("can't talk to the peer", e))
    }

    pub fn hear(&mut self) -> Result<Value, CliError> {
        let mut line = String::new();
        let read = self.lines.by_ref().take(LINE).read_line(&mut line);
        read.map_err(|e| crate::exchange::silent("the peer does not answer", e))?;
        let value: Value = serde_json::from_str(&line).map_err(|_| {
            CliError::Other("the peer has ended, or is not `ferroce perf`; see what it says".to_string())
        })?;
        match value.get("error").and_then(Value::as_str) {
            Some(error) => Err(told(error)),
            None => Ok(value),
        }
    }

    fn meet(&mut self) -> Result<(), CliError> {
        self.say(&json!("here"))?;
        self.hear().map(|_| ())
    }
}

/// The peer's reason, which must do nothing to a terminal.
pub fn told(reason: &str) -> CliError {
    let reason = reason.replace(char::is_control, "?");
    CliError::Other(format!("the peer says: {reason}"))
}
