//! `ferroce perf`: bandwidth and latency between two sides, with the habits of perftest. Both sides are this program.

mod args;
mod ends;
mod measure;
mod report;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;

use serde_json::{Value, json};

pub use self::args::PerfArgs;
use self::ends::Ends;
use self::report::{Report, warnings};
use crate::error::{CliError, chain};
use crate::exchange;
use crate::nic::Nic;
use crate::output::say;

/// Longest line that a side says.
const LINE: u64 = 1 << 20;

pub fn run(args: &PerfArgs) -> Result<ExitCode, CliError> {
    args.check()?;
    let listener = match &args.server {
        None => Some(exchange::listen(args.port)?),
        Some(_) => None,
    };
    let nic = Nic::open(&args.nic)?;
    let measured = meet(args, &nic, listener);
    let closed = nic.close();
    let report = measured.inspect_err(|_| {
        if let Err(error) = &closed {
            log::warn!("{}", chain(error));
        }
    })?;
    closed?;
    report.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn meet(args: &PerfArgs, nic: &Nic, listener: Option<std::net::TcpListener>) -> Result<Report, CliError> {
    let stream = match (&listener, &args.server) {
        (Some(listener), _) => {
            if args.port == 0
                && let Ok(address) = listener.local_addr()
                && !args.json
            {
                say!("  listening at TCP port {}", address.port());
            }
            exchange::accept(listener, args.patience())?
        }
        (None, Some(host)) => exchange::connect(host, args.port, args.patience())?,
        (None, None) => return Err(CliError::Other("neither a server nor a client".to_string())),
    };
    let mut talk = Talk::new(stream)?;
    let mut ends = Ends::new(args, nic)?;
    // The client's GID first: the server's is one that fits it.
    let peer = if args.is_client() {
        let gid = nic.gid(None)?;
        talk.say(&ends.describe(args, &gid))?;
        let peer = ends::Peer::read(&talk.hear()?, args)?;
        ends.connect(args, nic, &gid, &peer)?;
        peer
    } else {
        let said = talk.hear()?;
        // The client is told why, too.
        let peer = ends::Peer::read(&said, args).inspect_err(|error| {
            let _ = talk.say(&json!({ "error": chain(error) }));
        })?;
        let gid = nic.gid(Some(peer.gid))?;
        ends.connect(args, nic, &gid, &peer)?;
        talk.say(&ends.describe(args, &gid))?;
        peer
    };
    let mut report = Report::new(args, warnings(args));
    for size in args.sizes() {
        let row = measure::size(args, &mut ends, &peer, &mut talk, size)?;
        report.rows.push(row);
    }
    // Neither side's queue pairs go while the other may still need an answer.
    talk.meet()?;
    ends.close()?;
    Ok(report)
}

/// The TCP connection: one JSON value a line.
pub struct Talk {
    lines: BufReader<TcpStream>,
    out: TcpStream,
}

impl Talk {
    fn new(stream: TcpStream) -> Result<Talk, CliError> {
        let out = stream
            .try_clone()
            .map_err(|e| CliError::System("can't share a connection", e))?;
        Ok(Talk {
            lines: BufReader::new(stream),
            out,
        })
    }

    fn say(&mut self, what: &Value) -> Result<(), CliError> {
        writeln!(self.out, "{what}").map_err(|e| CliError::System("can't talk to the peer", e))
    }

    fn hear(&mut self) -> Result<Value, CliError> {
        let mut line = String::new();
        let read = self.lines.by_ref().take(LINE).read_line(&mut line);
        read.map_err(|e| CliError::System("the peer does not answer", e))?;
        let value: Value = serde_json::from_str(&line).map_err(|_| {
            CliError::Other("the peer has ended, or is not `ferroce perf`; see what it says".to_string())
        })?;
        match value.get("error").and_then(Value::as_str) {
            Some(error) => Err(CliError::Other(format!("the peer says: {error}"))),
            None => Ok(value),
        }
    }

    /// Returns when both sides are here.
    pub fn meet(&mut self) -> Result<(), CliError> {
        self.say(&json!("here"))?;
        self.hear().map(|_| ())
    }
}
