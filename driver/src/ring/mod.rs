//! The fast path: send, receive and completion queues as the device sees them.
//!
//! ```text
//!            post                    CQE                    poll
//!   Qp ---> SqProducer ---ring---> device ---ring---> CqRing ---> completions
//!      ---> RqProducer                                  | releases slots
//!               '------------ WqShared (slots) <--------'
//!   Srq ---> SrqProducer ------ SrqShared (slots) <------' and other pollers
//! ```
//!
//! A leaf: indices, ring memory and a doorbell; no lock, allocation, dynamic dispatch, panic or formatting on
//! the usual path. Access to ring memory is [`DmaRing`](crate::mem::DmaRing)'s, whose masked indices can't leave it; the
//! only `unsafe` here is in `slots`: a box in an atomic cell, and a masked index.

mod ah;
mod blueflame;
mod cq;
mod rq;
mod seg;
mod slots;
mod sq;
mod sq_limits;
mod srq;
mod table;
#[cfg(test)]
mod testing;
mod view;
mod wr;

pub use ah::Ah;
pub(crate) use blueflame::BlueFlame;
pub(crate) use cq::{CQ_SPARE, CQE_BYTES, CqRing, DATAGRAM, Kind, Next, RawWc};
pub(crate) use rq::{RqLimits, RqProducer, RqShape};
pub(crate) use slots::{Lent, WqConsumer, WqShared};
pub(crate) use sq::{MAX_WQE_BYTES, SqProducer, SqShape, WQEBB_BYTES};
pub(crate) use sq_limits::SqLimits;
pub(crate) use srq::{SrqProducer, SrqShape, SrqShared};
pub(crate) use table::{Entry, Filter};
pub(crate) use view::{Unread, View};
pub(crate) use wr::OWNED_KEY_BIT;
pub use wr::{Lkey, Payload, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge};

use std::fmt;

use crate::port::PortNumber;

pub use ferroce_firmware_iface::cmds::QpState;

/// The transport service of a queue pair (IBTA vol. 1, 9.3 and table 35).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection: all operations, acknowledged and in order.
    #[default]
    Rc,
    /// Unreliable connection: SEND and WRITE; what is lost is lost, a message arrives whole or not at all.
    Uc,
    /// Unreliable datagram: SENDs of one packet to any such queue pair.
    Ud,
    /// The port's QP 1, by which connections are managed: datagrams with the Q_Key
    /// [`GSI_QKEY`](crate::verbs::GSI_QKEY).
    Gsi,
}

impl QpType {
    /// Whether it sends datagrams, each with an address of its own.
    #[must_use]
    pub fn is_datagram(self) -> bool {
        matches!(self, QpType::Ud | QpType::Gsi)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
            QpType::Gsi => "GSI",
        })
    }
}

/// Whether send requests are taken in that state (in ERR they are flushed). IBTA vol. 1, 10.3.1.
fn can_post_send(state: QpState) -> bool {
    matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err)
}

/// Whether receive requests are taken in that state (in ERR they are flushed). IBTA vol. 1, 10.3.1.
fn can_post_recv(state: QpState) -> bool {
    !matches!(state, QpState::Reset | QpState::Unknown(_))
}

/// Why a work request was not posted. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// All places are taken by requests that have not completed: poll the completion queue.
    #[error("the {queue} queue is full: {max_wr} work requests are outstanding; poll its completion queue")]
    QueueFull {
        /// "send", "receive" or "shared receive".
        queue: &'static str,
        /// How many it takes.
        max_wr: u32,
    },
    /// The queue pair's state forbids it.
    #[error("the {queue} queue takes no work requests in state {state}")]
    State {
        /// "send" or "receive".
        queue: &'static str,
        /// The state.
        state: QpState,
    },
    /// The queue pair was made without that queue.
    #[error(
        "the queue pair has no {queue} queue of its own: it was made for 0 of its work requests, or takes its receives \
         from a shared receive queue"
    )]
    NoQueue {
        /// "send" or "receive".
        queue: &'static str,
    },
    /// More scatter/gather elements than the queue was made for.
    #[error("{asked} scatter/gather elements; the queue was made for {max}")]
    TooManySges {
        /// How many there are.
        asked: usize,
        /// How many there may be.
        max: u32,
    },
    /// More inline data than the queue was made for.
    #[error("{asked} bytes of inline data; the queue was made for max_inline_data {max}")]
    InlineTooLong {
        /// How many bytes there are.
        asked: usize,
        /// How many there may be.
        max: u32,
    },
    /// The message is longer than the device takes.
    #[error("a message of {asked} bytes; the device takes {max}")]
    MessageTooLong {
        /// Its length.
        asked: u64,
        /// The greatest length.
        max: u64,
    },
    /// The element for an atomic's result is not 8 bytes.
    #[error("the element for an atomic's result has {asked} bytes instead of 8")]
    AtomicLength {
        /// Its length.
        asked: u32,
    },
    /// The queue pair's transport service has no such operation (IBTA vol. 1, table 36).
    #[error("a {qp_type} queue pair has no {operation}; {hint}")]
    Operation {
        /// Such as "RDMA READ".
        operation: &'static str,
        /// The queue pair's transport service.
        qp_type: QpType,
        /// What to do instead.
        hint: &'static str,
    },
    /// The device does no atomics.
    #[error("the device does no atomic operations")]
    NoAtomics,
    /// The buffer or address handle is of another protection domain than the queue.
    #[error("the buffer or address handle belongs to another protection domain than the queue")]
    OtherPd,
    /// The address handle is for another port than the queue's.
    #[error(
        "the address handle is for port {handle}, the queue pair is on port {queue}; make one with Ah::on_port"
    )]
    OtherPort {
        /// The handle's port.
        handle: PortNumber,
        /// The queue pair's.
        queue: PortNumber,
    },
    /// A part of a buffer that is not in it.
    #[error("bytes {start}..{end} are not all within a buffer of {len}")]
    OutOfBuffer {
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
        /// Length of the buffer.
        len: u64,
    },
}
