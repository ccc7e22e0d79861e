//! One connection's state.

use std::time::{Duration, Instant};

use super::super::mad::{MAD_BYTES, ServiceId};
use super::types::CommId;
use crate::verbs::Path;

/// The states of IBTA vol. 1, 12.9.7 (active) and 12.9.8 (passive), those with an MRA in their own names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Asked, no answer yet.
    ReqSent,
    /// The peer has accepted; the program is at it.
    RepRcvd,
    /// As `RepRcvd`, and the peer knows that it takes longer.
    MraRepSent,
    /// The peer has asked; the program is at it.
    ReqRcvd,
    /// As `ReqRcvd`, and the peer knows that it takes longer.
    MraReqSent,
    /// Accepted, not confirmed yet.
    RepSent,
    /// In use.
    Established,
    /// We have asked for the end.
    DreqSent,
    /// Over, but packets may still be under way.
    TimeWait,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::ReqSent => "REQ sent",
            State::RepRcvd => "REP received",
            State::MraRepSent => "MRA (REP) sent",
            State::ReqRcvd => "REQ received",
            State::MraReqSent => "MRA (REQ) sent",
            State::RepSent => "REP sent",
            State::Established => "established",
            State::DreqSent => "DREQ sent",
            State::TimeWait => "time-wait",
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) state: State,
    pub(super) path: Path,
    /// The peer's communication id, once it is known.
    pub(super) remote: Option<CommId>,
    /// GUID of the peer's NIC.
    pub(super) remote_guid: u64,
    pub(super) remote_qpn: u32,
    /// PSN that the peer has told this side to begin with.
    pub(super) remote_psn: u32,
    pub(super) local_qpn: u32,
    pub(super) transaction_id: u64,
    /// What is repeated until an answer comes.
    pub(super) unanswered: Option<Box<[u8; MAD_BYTES]>>,
    /// What answers a message of the peer that comes again.
    pub(super) answer: Option<Box<[u8; MAD_BYTES]>>,
    pub(super) interval: Duration,
    pub(super) tries: u8,
    pub(super) max_tries: u8,
    /// How often the peer has repeated what the program is at.
    pub(super) repeats: u8,
    /// When to repeat, to expire, or to leave time-wait.
    pub(super) timer: Option<Instant>,
    /// When the program wants an end of it.
    pub(super) deadline: Option<Instant>,
    /// What is in the table of timers.
    pub(super) scheduled: Option<Instant>,
    pub(super) time_wait: Duration,
    /// The peer has named an alternate path, which is not taken.
    pub(super) alternate: bool,
    /// The program has let go of it: no more events but the last.
    pub(super) orphan: bool,
    /// The listener among whose waiting requests it counts.
    pub(super) waits_at: Option<ServiceId>,
}

impl Conn {
    /// The earlier of timer and deadline.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        match (self.timer, self.deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Nothing is waited for any more.
    pub(super) fn quiet(&mut self) {
        self.unanswered = None;
        self.timer = None;
        self.deadline = None;
        self.tries = 0;
    }
}
