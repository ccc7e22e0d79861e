//! The unreliable connection transport as a sans-IO state machine (IBTA vol. 1, 9.8.2).
//!
//! Messages leave as they are posted and are complete when their last packet has left: nothing is acknowledged
//! and nothing is sent again. Who receives drops what does not fit together: a gap in the PSNs, a missing first
//! or last packet, a key that does not permit it, a receive that is not there. It says nothing about it to the
//! sender, and the next first (or only) packet starts anew. A receive that a dropped message had taken serves
//! the next one.
//!
//! A message that is longer than its receive ends the receive with a local length error and breaks the QP, as verbs
//! have it for all services (IBTA vol. 1, 11.6.2, and 10.3.1 for what a failed receive does to a QP). Linux rxe drops
//! such a message and goes on. The same holds for datagrams.
//!
//! Work, memory, events and attributes are those of [`crate::rc`].

mod requester;
mod responder;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::psn::Psn;
use crate::rc::accepts_partition;
use crate::rc::types::{
    AsyncEvent, Event, QpConfig, QpCounters, QpMemory, QpState, SendCompletion, SendKind, SendWork,
};
use crate::wire::opcode::{self, Transport};
use crate::wire::packet::{Bth, Packet};

use requester::Requester;
use responder::{Receiver, Responder};

/// Sends that the transport holds at most before [`UcQp::send_room`] says 0.
const SEND_DEPTH: usize = 64;
/// Sends that may be handed over at a time while they are only flushed.
const FLUSH_BATCH: usize = 256;

/// What a half reports when the QP can't go on as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
enum Health {
    Good,
    /// A send failed: the send queue stops, receives go on (IBTA vol. 1, 10.3.1: SQEr).
    SendsBroken,
    /// A receive failed.
    Broken,
}

/// One UC queue pair's transport, from RTR on.
///
/// After any call that takes `&mut self`, ask [`UcQp::poll_event`] until it has nothing, and
/// [`UcQp::poll_transmit`] as far as the link takes packets.
#[derive(Debug)]
pub struct UcQp {
    config: QpConfig,
    state: QpState,
    events: VecDeque<Event>,
    counters: QpCounters,
    requester: Requester,
    responder: Responder,
    established: bool,
}

impl UcQp {
    /// A QP in RTR. Of `config` the attributes of the receive side count.
    pub fn new(config: QpConfig) -> UcQp {
        let config = config.with_valid_mtu();
        UcQp {
            state: QpState::Rtr,
            events: VecDeque::new(),
            counters: QpCounters::default(),
            requester: Requester::new(config.send_psn),
            responder: Responder::new(config.recv_psn),
            established: false,
            config,
        }
    }

    /// RTR to RTS: `config`, whole, is the QP's from now on, but the receive side's PSN goes on as it is. In
    /// other states nothing happens.
    pub fn to_rts(&mut self, config: QpConfig) {
        if self.state == QpState::Rtr {
            self.config = config.with_valid_mtu();
            self.requester = Requester::new(self.config.send_psn);
            self.state = QpState::Rts;
            self.established = true;
        }
    }

    /// New permissions without a change of state. PSNs, MTU and the peer's QPN stay.
    pub fn modify(&mut self, config: QpConfig) {
        self.config = QpConfig {
            path_mtu: self.config.path_mtu,
            dest_qpn: self.config.dest_qpn,
            send_psn: self.config.send_psn,
            recv_psn: self.config.recv_psn,
            ..config
        };
    }

    /// SQEr to RTS. In other states nothing happens.
    pub fn sqe_to_rts(&mut self) {
        if self.state == QpState::Sqe {
            self.state = QpState::Rts;
        }
    }

    /// To the error state on the engine's wish: flushes the sends and the receive that are held. Gives no
    /// [`Event::EnteredError`].
    pub fn to_error(&mut self) {
        self.state = QpState::Err;
        self.requester.flush(&mut self.events);
        self.responder.abort(&mut self.events);
    }

    /// The state: RTR, RTS, SQEr or Error.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// What was counted so far.
    pub fn counters(&self) -> &QpCounters {
        &self.counters
    }

    /// Messages dropped since no receive was posted.
    pub fn out_of_buffer(&self) -> u32 {
        self.responder.out_of_buffer
    }

    /// The PSN that the peer has to send next.
    pub fn next_recv_psn(&self) -> Psn {
        self.responder.expected
    }

    /// How many sends may be posted now. In states that don't send they are flushed.
    pub fn send_room(&self) -> usize {
        match self.state {
            QpState::Rts => SEND_DEPTH.saturating_sub(self.requester.held()),
            QpState::Err | QpState::Sqe => FLUSH_BATCH,
            _ => 0,
        }
    }

    /// Whether the service has the operation.
    pub fn supports(kind: SendKind) -> bool {
        matches!(
            kind,
            SendKind::Nop | SendKind::Send | SendKind::SendImm | SendKind::Write | SendKind::WriteImm
        )
    }

    /// Takes a send work request. It never fails: work that can't be done completes in error in its turn, and in
    /// a state that does not send it is flushed.
    pub fn post_send(&mut self, work: SendWork) {
        if self.state == QpState::Rts {
            self.requester.post(work);
        } else {
            self.flush_send(work.id, work.op.kind());
        }
    }

    /// Reports a send as flushed.
    fn flush_send(&mut self, id: u64, kind: SendKind) {
        self.events.push_back(requester::flushed(id, kind));
    }

    /// Takes a packet that came for this QP.
    pub fn handle_packet<M: QpMemory + ?Sized>(&mut self, packet: &Packet, mem: &mut M) {
        self.counters.packets_received += 1;
        let takes = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqe);
        let info = opcode::info(packet.bth.opcode).filter(|info| info.transport == Transport::Uc);
        let good = packet.bth.tver == 0 && accepts_partition(packet.bth.pkey, self.config.pkey);
        let Some(info) = info.filter(|_| takes && good) else {
            self.counters.dropped += 1;
            return;
        };
        if self.state == QpState::Rtr && !self.established {
            self.established = true;
            self.events
                .push_back(Event::Async(AsyncEvent::CommunicationEstablished));
        }
        let mut receiver = Receiver {
            config: &self.config,
            counters: &mut self.counters,
            events: &mut self.events,
        };
        let health = self.responder.handle(info, packet, &mut receiver, mem);
        self.act_on(health);
    }

    /// The next packet to send, if there is one; also gives events.
    pub fn poll_transmit<M: QpMemory + ?Sized>(&mut self, mem: &mut M) -> Option<Packet> {
        if self.state != QpState::Rts {
            return None;
        }
        let mut health = Health::Good;
        let packet = self
            .requester
            .poll_transmit(&self.config, &mut self.events, mem, &mut health);
        self.counters.packets_sent += u64::from(packet.is_some());
        self.act_on(health);
        packet
    }

    /// The oldest event not yet taken.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn act_on(&mut self, health: Health) {
        match health {
            Health::Good => {}
            Health::SendsBroken => {
                self.state = QpState::Sqe;
                self.requester.flush(&mut self.events);
            }
            Health::Broken => {
                self.to_error();
                self.events.push_back(Event::EnteredError);
            }
        }
    }
}

/// A base transport header to the peer.
fn bth(config: &QpConfig, opcode: u8, psn: Psn) -> Bth {
    Bth {
        opcode,
        mig_req: true,
        pkey: config.pkey,
        dest_qp: config.dest_qpn,
        psn,
        ..Bth::default()
    }
}

/// The completion of a send.
fn sent(work: &SendWork, byte_len: u32, status: crate::rc::types::CompletionStatus) -> Event {
    Event::Send(SendCompletion {
        id: work.id,
        status,
        kind: work.op.kind(),
        byte_len,
        signaled: work.signaled,
    })
}
