//! The transport of a connected queue pair, reliable or not.

use crate::clock::Nanos;
use crate::rc::RcQp;
use crate::rc::types::{Event, QpConfig, QpCounters, QpMemory, QpState, SendKind, SendWork};
use crate::uc::UcQp;
use crate::wire::packet::Packet;

/// One of the connected services. What each function does is said at those of the two.
#[derive(Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc(Box<RcQp>),
    /// Unreliable connection.
    Uc(Box<UcQp>),
}

impl Transport {
    /// The state.
    pub fn state(&self) -> QpState {
        match self {
            Transport::Rc(qp) => qp.state(),
            Transport::Uc(qp) => qp.state(),
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> &QpCounters {
        match self {
            Transport::Rc(qp) => qp.counters(),
            Transport::Uc(qp) => qp.counters(),
        }
    }

    /// Messages dropped since no receive was posted: those of an RC QP are asked for again.
    pub fn out_of_buffer(&self) -> u32 {
        match self {
            Transport::Rc(_) => 0,
            Transport::Uc(qp) => qp.out_of_buffer(),
        }
    }

    /// RTR to RTS.
    pub fn to_rts(&mut self, config: QpConfig) {
        match self {
            Transport::Rc(qp) => qp.to_rts(config),
            Transport::Uc(qp) => qp.to_rts(config),
        }
    }

    /// New attributes without a change of state.
    pub fn modify(&mut self, config: QpConfig) {
        match self {
            Transport::Rc(qp) => qp.modify(config),
            Transport::Uc(qp) => qp.modify(config),
        }
    }

    /// From SQD or SQEr to RTS.
    pub fn resume(&mut self) {
        match self {
            Transport::Rc(qp) => qp.sqd_to_rts(),
            Transport::Uc(qp) => qp.sqe_to_rts(),
        }
    }

    /// To the error state.
    pub fn to_error(&mut self) {
        match self {
            Transport::Rc(qp) => qp.to_error(),
            Transport::Uc(qp) => qp.to_error(),
        }
    }

    /// How many sends may be posted now.
    pub fn send_room(&self) -> usize {
        match self {
            Transport::Rc(qp) => qp.send_room(),
            Transport::Uc(qp) => qp.send_room(),
        }
    }

    /// Whether the service has the operation.
    pub fn supports(&self, kind: SendKind) -> bool {
        match self {
            Transport::Rc(_) => true,
            Transport::Uc(_) => UcQp::supports(kind),
        }
    }

    /// Takes a send.
    pub fn post_send(&mut self, work: SendWork) {
        match self {
            Transport::Rc(qp) => qp.post_send(work),
            Transport::Uc(qp) => qp.post_send(work),
        }
    }

    /// Takes a packet.
    pub fn handle_packet<M: QpMemory + ?Sized>(&mut self, now: Nanos, packet: &Packet, mem: &mut M) {
        match self {
            Transport::Rc(qp) => qp.handle_packet(now, packet, mem),
            Transport::Uc(qp) => qp.handle_packet(packet, mem),
        }
    }

    /// The next packet to send.
    pub fn poll_transmit<M: QpMemory + ?Sized>(&mut self, now: Nanos, mem: &mut M) -> Option<Packet> {
        match self {
            Transport::Rc(qp) => qp.poll_transmit(now, mem),
            Transport::Uc(qp) => qp.poll_transmit(mem),
        }
    }

    /// The oldest event not yet taken.
    pub fn poll_event(&mut self) -> Option<Event> {
        match self {
            Transport::Rc(qp) => qp.poll_event(),
            Transport::Uc(qp) => qp.poll_event(),
        }
    }

    /// When to call [`Transport::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Nanos> {
        match self {
            Transport::Rc(qp) => qp.poll_timeout(),
            Transport::Uc(_) => None,
        }
    }

    /// Lets expired timers act.
    pub fn handle_timeout(&mut self, now: Nanos) {
        if let Transport::Rc(qp) = self {
            qp.handle_timeout(now);
        }
    }
}
