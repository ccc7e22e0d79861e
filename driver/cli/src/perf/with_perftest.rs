//! A peer that is perftest: which of its exchanges come when (`perftest::talk` has their shape), by test.
//!
//! ```text
//! hello
//! keys, one more time for latency but send-lat's; then for each queue pair      and each side connects
//! keys for each queue pair, and one more time
//!     for each size: keys before SEND; the work; with -a, keys after send-bw
//! keys and reports, for write-bw and read-bw
//! keys, but for write-lat: the end, and each hangs up
//! ```

use std::net::TcpStream;
use std::time::Duration;

use super::args::{PerfArgs, Test};
use super::ends::{Ends, Peer};
use super::report::Row;
use crate::error::CliError;
use crate::nic::{self, LocalGid, Nic};
use crate::perftest::talk::{Keys, Talk};

/// Largest memory that a peer may ask for.
const MOST_BYTES: usize = 64 << 20;
/// READs and atomics of the peer's at a time.
const OUT_READS: u8 = 16;

/// The connection to perftest.
pub struct Exchange {
    talk: Talk,
    /// What is told to keep step.
    own: Keys,
    test: Test,
    all: bool,
    patience: Duration,
}

/// Meets perftest, and connects the queue pairs to its.
///
/// # Errors
/// The peer is not perftest, or does something else, or can't be reached.
pub fn meet(args: &PerfArgs, nic: &Nic, stream: TcpStream) -> Result<(Ends, Peer, Exchange), CliError> {
    let mut talk = Talk::new(stream, args.is_client());
    let (cycle, mtu) = talk.hello(nic::mtu(args.mtu)?)?;
    if cycle as usize > MOST_BYTES {
        return Err(CliError::Other(format!(
            "the peer wants a buffer of {cycle} bytes; {MOST_BYTES} is the most that it gets"
        )));
    }
    let mut ends = Ends::new(args, nic, cycle as usize)?;
    let mut gid = None;
    let first = talk.first_keys(|client| {
        let chosen = nic.gid(client.map(|client| client.gid))?;
        let keys = keys(&ends, &chosen, 0);
        gid = Some(chosen);
        keys
    })?;
    let gid = gid.ok_or_else(|| CliError::Other("no GID was chosen".to_string()))?;
    let own: Vec<Keys> = (0..ends.lines.len())
        .map(|qp| keys(&ends, &gid, qp))
        .collect::<Result<_, _>>()?;
    let mut peers = vec![first];
    // The first has been told; where perftest tells it twice, all are still to come.
    for own in own.iter().skip(usize::from(!waits_for_connection(args.test))) {
        peers.push(talk.keys(own)?);
    }
    let peers = &peers[peers.len() - own.len()..];
    let peer = Peer {
        gid: first.gid,
        memory: first.memory,
        mtu,
        qps: peers.iter().map(|keys| (keys.qpn, keys.psn)).collect(),
    };
    ends.connect(args, nic, &gid, &peer)?;
    let mut exchange = Exchange {
        talk,
        own: keys(&ends, &gid, 0)?,
        test: args.test,
        all: args.all,
        patience: args.patience(),
    };
    for own in &own {
        exchange.talk.keys(own)?;
    }
    exchange.step()?;
    Ok((ends, peer, exchange))
}

/// Whether its keys are told once before those of each queue pair.
fn waits_for_connection(test: Test) -> bool {
    matches!(test, Test::WriteLat | Test::ReadLat | Test::AtomicLat)
}

fn keys(ends: &Ends, gid: &LocalGid, qp: usize) -> Result<Keys, CliError> {
    let place = ends.qps().nth(qp);
    let (qpn, psn) = place.ok_or_else(|| CliError::Other(format!("there is no queue pair {qp}")))?;
    Ok(Keys {
        qpn,
        psn,
        out_reads: OUT_READS,
        memory: ends.remote.remote(0),
        gid: gid.entry.gid,
    })
}

impl Exchange {
    /// Tells the keys again, which says no more than "here".
    fn step(&mut self) -> Result<(), CliError> {
        self.talk.keys(&self.own).map(|_| ())
    }

    /// Before each size.
    pub fn begin(&mut self) -> Result<(), CliError> {
        if self.test.is_send() { self.step() } else { Ok(()) }
    }

    /// After each size.
    pub fn end(&mut self) -> Result<(), CliError> {
        if self.test == Test::SendBw && self.all {
            self.step()
        } else {
            Ok(())
        }
    }

    /// At the end.
    pub fn part(&mut self, last: Option<&Row>) -> Result<(), CliError> {
        if matches!(self.test, Test::WriteBw | Test::ReadBw) {
            self.step()?;
            // perftest prints the client's at the server.
            let own = last.map(Row::for_perftest).unwrap_or_default();
            let peer = self.talk.reports(&own)?;
            log::info!("the peer measured {} MiB/s", peer.bandwidth);
        }
        if self.test != Test::WriteLat {
            self.step()?;
        }
        self.talk.part(self.patience);
        Ok(())
    }
}
