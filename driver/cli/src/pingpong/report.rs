//! What is said at the end.

use ferroce::verbs::Counters;
use serde::Serialize;

use super::args::PingpongArgs;
use super::game::Outcome;
use crate::error::CliError;
use crate::exchange::Destination;
use crate::output::{print, say};

/// Packets that the NIC missed or sent again.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Losses {
    retransmissions: u32,
    out_of_sequence: u32,
    duplicate_requests: u32,
    without_receive: u32,
}

impl Losses {
    /// From the NIC's counters.
    pub fn of(c: &Counters) -> Losses {
        Losses {
            retransmissions: c
                .packet_seq_err
                .wrapping_add(c.implied_nak_seq_err)
                .wrapping_add(c.local_ack_timeout_err),
            out_of_sequence: c.out_of_sequence,
            duplicate_requests: c.duplicate_request,
            without_receive: c.out_of_buffer,
        }
    }
}

/// The result.
#[derive(Debug, Serialize)]
pub struct Report {
    ok: bool,
    role: &'static str,
    local: Vec<Address>,
    remote: Vec<Address>,
    size: u64,
    iters: u32,
    checked: bool,
    bytes: u64,
    seconds: f64,
    mbit_per_second: f64,
    usec_per_iter: f64,
    losses: Losses,
}

#[derive(Debug, Serialize)]
struct Address {
    qpn: u32,
    psn: u32,
    gid: String,
}

impl Report {
    pub fn new(
        args: &PingpongArgs,
        local: Vec<Destination>,
        remote: Vec<Destination>,
        outcome: &Outcome,
        losses: Losses,
    ) -> Report {
        let seconds = outcome.took.as_secs_f64();
        let bytes = args.size() * u64::from(args.iters) * 2;
        let addresses = |list: Vec<Destination>| {
            list.into_iter()
                .map(|d| Address {
                    qpn: d.qpn.get(),
                    psn: d.psn,
                    gid: d.gid.to_string(),
                })
                .collect()
        };
        Report {
            ok: true,
            role: if args.is_client() { "client" } else { "server" },
            local: addresses(local),
            remote: addresses(remote),
            size: args.size(),
            iters: args.iters,
            checked: args.check,
            bytes,
            seconds,
            mbit_per_second: bytes as f64 * 8.0 / 1e6 / seconds,
            usec_per_iter: seconds * 1e6 / f64::from(args.iters),
            losses,
        }
    }

    /// Prints it: the two lines of `ibv_*_pingpong`, or JSON.
    pub fn print(&self, json: bool) -> Result<(), CliError> {
        if json {
            let text = serde_json::to_string(self).map_err(|e| CliError::Other(e.to_string()))?;
            return print(&format!("{text}\n"));
        }
        say!(
            "{} bytes in {:.2} seconds = {:.2} Mbit/sec",
            self.bytes,
            self.seconds,
            self.mbit_per_second
        );
        say!(
            "{} iters in {:.2} seconds = {:.2} usec/iter",
            self.iters,
            self.seconds,
            self.usec_per_iter
        );
        Ok(())
    }
}
