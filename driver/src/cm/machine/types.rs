//! What goes into the machine and what comes out of it.

use std::time::{Duration, Instant};

use super::super::mad::{MAD_BYTES, RejectReason, ServiceId, SidrStatus};
use crate::gid::Gid;
use crate::verbs::{Mtu, Path};

/// A communication id: the name by which one side knows a connection. Ours are random, and never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommId(pub u32);

/// The kind of queue pair that is connected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
}

impl Transport {
    /// `transport_service_type` of a REQ (IBTA vol. 1, 12.7).
    pub(super) fn code(self) -> u8 {
        match self {
            Transport::Rc => 0,
            Transport::Uc => 1,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Transport::Rc),
            1 => Some(Transport::Uc),
            _ => None,
        }
    }
}

/// Times of the connection manager's fields: 4.096 µs * 2^code, codes of 5 bits (IBTA vol. 1, 12.7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimeCode(u8);

impl TimeCode {
    /// The longest acknowledgement timeout that counts (17 s): a peer may name any, up to hours.
    pub(crate) const MAX_ACK_TIMEOUT: Self = Self(22);

    /// The code; bits above the 5 that there are must be 0.
    pub(crate) const fn new(code: u8) -> Self {
        Self(if code > 31 { 31 } else { code })
    }

    /// The least code whose time is not shorter; 31 (2.4 hours) for all that is longer.
    #[must_use]
    pub fn covering(time: Duration) -> Self {
        (0..31)
            .map(Self)
            .find(|code| code.duration() >= time)
            .unwrap_or(Self(31))
    }

    /// The sum of two times, as near as a code comes: the greater one, or twice that if the other is at least half of it.
    pub(crate) fn plus(self, other: Self) -> Self {
        let (less, greater) = (self.0.min(other.0), self.0.max(other.0));
        Self::new(greater + u8::from(greater - less <= 1))
    }

    /// The time.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        self.0
    }
}

/// What the machine keeps to.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// GUID of this NIC: with a queue pair's number it tells peers which connection is an old one.
    pub ca_guid: u64,
    /// How long an answer is waited for before a message is repeated, and how long peers are told to wait.
    pub response_timeout: TimeCode,
    /// How often a message is repeated (0..=15).
    pub max_retries: u8,
    /// How long the program may take to answer a request. Peers are told when they keep asking.
    pub service_timeout: TimeCode,
    /// The longest that a peer can put us off at a time, by MRA or by the response timeout of its REQ.
    pub patience: Duration,
    /// Most connections at a time, those in time-wait included.
    pub max_connections: usize,
    /// Most requests for a datagram service's queue pair at a time: of this side, and as many of peers.
    pub max_sidr: usize,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            ca_guid: 0,
            // 268 ms: a message that is repeated too early costs a datagram, one that is repeated too late costs time.
            response_timeout: TimeCode(16),
            // What Linux uses, and the most that the field holds.
            max_retries: 15,
            // 69 s: what Linux's RDMA CM uses.
            service_timeout: TimeCode(24),
            patience: Duration::from_secs(300),
            max_connections: 1 << 17,
            max_sidr: 4096,
        }
    }
}

/// What a connection shall be, asked by this side.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// The way to the peer.
    pub path: Path,
    /// GID of this side, which `path` names by its index.
    pub local_gid: Gid,
    /// The service that the peer listens on.
    pub service_id: ServiceId,
    /// The queue pair's kind.
    pub transport: Transport,
    /// The queue pair (24 bits).
    pub qpn: u32,
    /// PSN that the peer shall begin with (24 bits): what this side's receive queue expects (IBTA vol. 1, 12.7).
    pub psn: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Most READs and atomics of the peer that this side answers at a time.
    pub responder_resources: u8,
    /// Most READs and atomics that this side has in progress at a time.
    pub initiator_depth: u8,
    /// How long the peer shall wait for acknowledgements.
    pub ack_timeout: TimeCode,
    /// How often the peer shall repeat what is not acknowledged (3 bits).
    pub retry_count: u8,
    /// How often the peer shall repeat what finds no receive posted here (3 bits, 7 is for ever).
    pub rnr_retry: u8,
    /// Whether receives come from a shared queue.
    pub srq: bool,
    /// Private data, the RDMA CM header included; at most 92 bytes.
    pub private_data: Vec<u8>,
    /// When to give up.
    pub deadline: Option<Instant>,
}

/// A peer asks for a connection.
#[derive(Clone, Debug)]
pub struct Requested {
    /// The service that it asks for.
    pub service_id: ServiceId,
    /// The way to the peer, for the answer and for the queue pair.
    pub path: Path,
    /// The queue pair's kind.
    pub transport: Transport,
    /// GUID of the peer's NIC.
    pub remote_guid: u64,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// PSN that this side shall begin with.
    pub psn: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Most READs and atomics that the peer answers at a time.
    pub responder_resources: u8,
    /// Most READs and atomics that the peer has in progress at a time.
    pub initiator_depth: u8,
    /// How long this side shall wait for acknowledgements.
    pub ack_timeout: TimeCode,
    /// How often this side shall repeat what is not acknowledged.
    pub retry_count: u8,
    /// How often this side shall repeat what finds no receive posted there.
    pub rnr_retry: u8,
    /// Whether the peer's receives come from a shared queue.
    pub srq: bool,
    /// All 92 bytes of private data.
    pub private_data: [u8; 92],
}

/// What this side accepts with.
#[derive(Clone, Debug)]
pub struct AcceptReply {
    /// The queue pair (24 bits).
    pub qpn: u32,
    /// PSN that the peer shall begin with (24 bits).
    pub psn: u32,
    /// Most READs and atomics of the peer that this side answers at a time.
    pub responder_resources: u8,
    /// Most READs and atomics that this side has in progress at a time.
    pub initiator_depth: u8,
    /// How often the peer shall repeat what finds no receive posted here (3 bits, 7 is for ever).
    pub rnr_retry: u8,
    /// Whether receives come from a shared queue.
    pub srq: bool,
    /// At most 196 bytes.
    pub private_data: Vec<u8>,
    /// When to give up.
    pub deadline: Option<Instant>,
}

/// What the peer accepts with.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// PSN that this side shall begin with.
    pub psn: u32,
    /// Most READs and atomics that the peer answers at a time.
    pub responder_resources: u8,
    /// Most READs and atomics that the peer has in progress at a time.
    pub initiator_depth: u8,
    /// How often this side shall repeat what finds no receive posted there.
    pub rnr_retry: u8,
    /// How long the peer's NIC may take to acknowledge, on top of the way (IBTA vol. 1, 12.7: target ACK delay).
    pub ack_delay: TimeCode,
    /// Whether the peer's receives come from a shared queue.
    pub srq: bool,
    /// All 196 bytes of private data.
    pub private_data: Box<[u8]>,
}

/// Why there is no connection.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The peer said no.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// What it says of that, where the reason calls for something.
        info: Box<[u8]>,
        /// All 148 bytes of private data.
        private_data: Box<[u8]>,
    },
    /// The peer did not answer, as often as was tried.
    NoAnswer {
        /// How often it was tried.
        tries: u8,
    },
    /// The deadline came first.
    Deadline,
    /// The peer's queue pair has begun a new life meanwhile.
    Stale,
}

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DisconnectCause {
    /// The peer ended it.
    Peer,
    /// This side ended it, and the peer knows.
    Local,
    /// This side ended it; the peer did not answer.
    NoAnswer,
    /// The peer rejected the connection after it was established.
    Rejected(RejectReason),
    /// The peer asked for a new connection of the same queue pair: it has started afresh, and this one is no more.
    Stale,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum MachineEvent {
    /// A peer asks for a connection: answer with [`Machine::accept`](super::Machine::accept) or
    /// [`Machine::reject`](super::Machine::reject).
    Requested(CommId, Box<Requested>),
    /// The peer accepts: bring the queue pair to RTS and call [`Machine::confirm`](super::Machine::confirm), or reject.
    Accepted(CommId, Box<Accepted>),
    /// The peer has confirmed that the connection is in use.
    Established(CommId),
    /// There will be no connection. It is forgotten, unless [`Machine::in_time_wait`](super::Machine::in_time_wait).
    Failed(CommId, Failure),
    /// The connection has ended; its queue pair's number must not be used again before [`MachineEvent::Gone`].
    Disconnected(CommId, DisconnectCause),
    /// Time-wait is over, the connection is forgotten.
    Gone(CommId),
    /// A peer asks for a datagram service's queue pair: answer with
    /// [`Machine::sidr_reply`](super::Machine::sidr_reply).
    SidrRequested(CommId, Box<SidrRequested>),
    /// The answer to a [`Machine::sidr_request`](super::Machine::sidr_request).
    SidrAnswered(CommId, Result<SidrAnswer, SidrFailure>),
}

/// A peer asks for a datagram service's queue pair.
#[derive(Clone, Debug)]
pub struct SidrRequested {
    /// The service.
    pub service_id: ServiceId,
    /// The way to the peer.
    pub path: Path,
    /// All 216 bytes of private data.
    pub private_data: Box<[u8]>,
}

/// A datagram service's queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrAnswer {
    /// Its number.
    pub qpn: u32,
    /// The Q_Key that it takes.
    pub qkey: u32,
    /// All 136 bytes of private data.
    pub private_data: Box<[u8]>,
}

/// Why a datagram service's queue pair is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SidrFailure {
    /// The peer said no.
    Refused {
        /// Why.
        status: SidrStatus,
        /// All 136 bytes of private data.
        private_data: Box<[u8]>,
    },
    /// The peer did not answer, as often as was tried.
    NoAnswer {
        /// How often it was tried.
        tries: u8,
    },
    /// The deadline came first.
    Deadline,
}

/// A datagram to be sent from QP 1 to the peer's QP 1.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// The way.
    pub path: Path,
    /// The bytes.
    pub mad: Box<[u8; MAD_BYTES]>,
}

/// Why the machine doesn't do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// There is no such connection (any more).
    #[error("connection {0:#010x} is not there (any more)")]
    Unknown(u32),
    /// The connection is not in a state for that.
    #[error("a connection in state {state} can't {action}")]
    State {
        /// What was asked.
        action: &'static str,
        /// The state.
        state: &'static str,
    },
    /// More private data than the message holds.
    #[error("{asked} bytes of private data; {message} holds {max}")]
    PrivateData {
        /// The message.
        message: &'static str,
        /// Bytes given.
        asked: usize,
        /// The most there may be.
        max: usize,
    },
    /// A number that its field doesn't hold.
    #[error(transparent)]
    Value(#[from] ferroce_firmware_iface::layout::ValueTooWide),
    /// The tables are full.
    #[error("{max} {what} at a time, and all are in use; raise the limit in the configuration")]
    Full {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// Somebody listens there already.
    #[error("service {0:#018x} is listened on already")]
    InUse(u64),
}

/// What was seen, for diagnosis.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct MachineCounters {
    /// Datagrams taken in.
    pub received: u64,
    /// Datagrams given out.
    pub sent: u64,
    /// Of them repeated since no answer came.
    pub retries: u64,
    /// Datagrams that were no messages of the connection manager.
    pub malformed: u64,
    /// Messages that came again.
    pub duplicates: u64,
    /// Messages for connections that are not there, or from another address than the peer's.
    pub strangers: u64,
    /// Requests dropped since a table was full: the peer will ask again.
    pub dropped: u64,
    /// Connections found stale.
    pub stale: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_codes_cover_the_times_they_are_made_for() {
        assert_eq!(TimeCode::covering(Duration::ZERO).code(), 0);
        assert_eq!(TimeCode::covering(Duration::from_nanos(4097)).code(), 1);
        assert_eq!(
            TimeCode(16).duration(),
            Duration::from_micros(268_435) + Duration::from_nanos(456)
        );
        assert_eq!(TimeCode::covering(Duration::from_secs(1_000_000)).code(), 31);
        for code in 0..=31 {
            assert_eq!(TimeCode::covering(TimeCode(code).duration()), TimeCode(code));
        }
    }
}
