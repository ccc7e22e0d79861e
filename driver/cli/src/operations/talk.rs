//! What is said to the peer over TCP: one JSON object a line, and one back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use ferroce::gid::Gid;
use ferroce::ids::Qpn;
use ferroce::verbs::RemoteAddr;
use serde_json::{Value, json};

use super::plan::{Kind, Op};
use crate::error::CliError;

/// Longest line.
const LINE: u64 = 1 << 20;

/// Where the peer is.
pub struct Peer {
    pub qpn: Qpn,
    pub psn: u32,
    pub gid: Gid,
    pub memory: RemoteAddr,
}

/// The connection.
pub struct Talk {
    lines: BufReader<TcpStream>,
    out: TcpStream,
}

impl Talk {
    pub fn new(stream: TcpStream) -> Result<Talk, CliError> {
        let out = stream
            .try_clone()
            .map_err(|e| CliError::System("can't share a connection", e))?;
        Ok(Talk {
            lines: BufReader::new(stream),
            out,
        })
    }

    fn ask(&mut self, what: &Value) -> Result<Value, CliError> {
        let said = writeln!(self.out, "{what}");
        said.map_err(|e| CliError::System("can't talk to the peer", e))?;
        let mut line = String::new();
        let read = self.lines.by_ref().take(LINE).read_line(&mut line);
        read.map_err(|e| crate::exchange::silent("the peer does not answer", e))?;
        let value: Value = serde_json::from_str(&line)
            .map_err(|e| CliError::Other(format!("the peer said {line:?}: {e}")))?;
        match value.get("error") {
            Some(error) => Err(CliError::Other(format!("the peer says: {error}"))),
            None => Ok(value),
        }
    }

    /// Tells who this side is; who the peer is.
    pub fn hello(&mut self, own: &Value) -> Result<Peer, CliError> {
        let peer = self.ask(own)?;
        let number = |name: &str| {
            let value = peer[name].as_u64();
            value.ok_or_else(|| CliError::Other(format!("the peer's {name} is no number")))
        };
        let gid = peer["gid"].as_str().and_then(|gid| gid.parse().ok());
        let gid = gid.ok_or_else(|| CliError::Other(format!("the peer's GID {} is none", peer["gid"])))?;
        Ok(Peer {
            qpn: Qpn::from_low_bits(number("qpn")? as u32),
            psn: number("psn")? as u32,
            gid: Gid::from_ip(gid),
            memory: RemoteAddr {
                addr: number("addr")?,
                rkey: number("rkey")? as u32,
            },
        })
    }

    /// Lets the peer prepare for operations of this side; the keys that may be ended, where one is needed.
    pub fn target(&mut self, ops: &[Op]) -> Result<Vec<Option<u32>>, CliError> {
        let receives = ops.iter().filter(|op| op.kind.takes_receive()).count();
        let windows = ops.iter().filter(|op| op.kind == Kind::SendInvalidate).count();
        let answer = self.ask(&json!({ "target": { "receives": receives, "windows": windows } }))?;
        let mut keys = answer["keys"].as_array().into_iter().flatten().map(Value::as_u64);
        ops.iter()
            .map(|op| match op.kind {
                Kind::SendInvalidate => match keys.next().flatten() {
                    Some(key) => Ok(Some(key as u32)),
                    None => Err(CliError::Other("the peer gave too few keys".to_string())),
                },
                _ => Ok(None),
            })
            .collect()
    }

    /// Lets the peer do the operations.
    pub fn initiate(&mut self, ops: &[Op], keys: &[Option<u32>]) -> Result<(), CliError> {
        let ops: Vec<Value> = ops.iter().zip(keys).map(|(op, key)| op.as_json(*key)).collect();
        self.ask(&json!({ "initiate": ops })).map(|_| ())
    }

    /// What became of the batch at the peer.
    pub fn report(&mut self) -> Result<Value, CliError> {
        self.ask(&json!({ "report": true }))
    }

    /// Lets the peer go.
    pub fn end(&mut self) -> Result<(), CliError> {
        self.ask(&json!({ "end": true })).map(|_| ())
    }
}
