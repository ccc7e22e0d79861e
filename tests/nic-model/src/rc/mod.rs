//! The reliable connection transport as a sans-IO state machine (IBTA vol. 1, chapter 9).
//!
//! ```text
//!   post_send ──▶ ┌───────────┐ ──▶ requests ──▶ ┐
//!                 │ requester │                  ├─▶ poll_transmit
//!   responses ──▶ └───────────┘     responses ─▶ ┘
//!   requests  ──▶ ┌───────────┐ ──▶    ▲
//!                 │ responder │ ───────┘         events of both ──▶ poll_event
//!                 └───────────┘                  next wake-up   ──▶ poll_timeout
//! ```
//!
//! The two halves know nothing of each other: a [`RcQp`] joins them. Time, packets, work and memory come in as
//! arguments; there is no clock, thread, socket or randomness here.
//!
//! Requests are regenerated from their work requests when they must be sent again, and retransmission goes
//! back to the first unacknowledged packet. Not here: path migration, XRC, end-to-end error detection, and
//! congestion control (the place for a rate limit is `Requester::may_send`, that for a CNP
//! [`RcQp::poll_transmit`]).

pub mod aeth;
mod requester;
mod responder;
pub(crate) mod segment;
pub mod testing;
#[cfg(test)]
mod tests;
pub mod timer;
pub mod types;

use std::collections::VecDeque;

use crate::clock::Nanos;
use crate::psn::Psn;
use crate::wire::opcode::{self, OpcodeInfo, Transport};
use crate::wire::packet::{Bth, Packet};

use requester::Requester;
use responder::Responder;
use types::{
    AsyncEvent, CompletionStatus, Event, QpConfig, QpCounters, QpMemory, QpState, RecvCompletion, RecvKind,
    RecvWork, SendCompletion, SendKind, SendWork,
};

/// Sends that the transport holds at most before [`RcQp::send_room`] says 0.
pub const SEND_DEPTH: usize = 256;

/// Sends that may be handed over at a time while they are only flushed.
const FLUSH_BATCH: usize = 256;

/// What requester and responder both use.
#[derive(Debug)]
pub(crate) struct Shared {
    config: QpConfig,
    state: QpState,
    events: VecDeque<Event>,
    counters: QpCounters,
}

impl Shared {
    fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Completion of a receive that did not succeed.
    fn emit_failed_recv(&mut self, recv: &RecvWork, kind: RecvKind, status: CompletionStatus) {
        self.emit(Event::Recv(RecvCompletion {
            id: recv.id,
            status,
            kind,
            byte_len: 0,
            imm: None,
            invalidated_rkey: None,
            solicited: false,
        }));
    }

    /// A base transport header to the peer; `pad_count` makes the payload a multiple of 4.
    fn bth(&self, opcode: u8, psn: Psn, payload_len: usize) -> Bth {
        Bth {
            opcode,
            mig_req: true,
            pad_count: ((4 - payload_len % 4) % 4) as u8,
            pkey: self.config.pkey,
            dest_qp: self.config.dest_qpn,
            psn,
            ..Bth::default()
        }
    }
}

/// Who broke, when a half reports that the QP must go to the error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
enum Health {
    Good,
    Broken,
}

/// Whether a packet with `pkey` may come to a QP with `ours`: the same partition, and one of the two a full
/// member (IBTA vol. 1, 10.9.3).
pub(crate) fn accepts_partition(pkey: u16, ours: u16) -> bool {
    const FULL_MEMBER: u16 = 0x8000;
    (pkey ^ ours) & !FULL_MEMBER == 0 && (pkey | ours) & FULL_MEMBER != 0
}

/// One RC queue pair's transport, from RTR on.
///
/// After any call that takes `&mut self`, ask [`RcQp::poll_event`] until it has nothing, [`RcQp::poll_transmit`]
/// as far as the link takes packets, and [`RcQp::poll_timeout`] for the next wake-up.
#[derive(Debug)]
pub struct RcQp {
    shared: Shared,
    requester: Requester,
    responder: Responder,
    /// Whose turn it is when both halves have packets.
    responder_first: bool,
    established: bool,
}

impl RcQp {
    /// A QP in RTR. Of `config` the attributes of the receive side count.
    pub fn new(config: QpConfig) -> RcQp {
        let config = config.with_valid_mtu();
        RcQp {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            shared: Shared {
                config,
                state: QpState::Rtr,
                events: VecDeque::new(),
                counters: QpCounters::default(),
            },
            responder_first: true,
            established: false,
        }
    }

    /// RTR to RTS: `config`, whole, is the QP's from now on, but the receive side's PSN goes on as it is.
    /// In other states nothing happens.
    pub fn to_rts(&mut self, config: QpConfig) {
        if self.shared.state == QpState::Rtr {
            self.shared.config = config.with_valid_mtu();
            self.requester = Requester::new(&self.shared.config);
            self.shared.state = QpState::Rts;
            self.established = true;
        }
    }

    /// New attributes without a change of state: permissions, timers, retry counts, partition, limits. PSNs,
    /// MTU and the peer's QPN stay.
    pub fn modify(&mut self, config: QpConfig) {
        let old = &self.shared.config;
        self.shared.config = QpConfig {
            path_mtu: old.path_mtu,
            dest_qpn: old.dest_qpn,
            send_psn: old.send_psn,
            recv_psn: old.recv_psn,
            ..config
        };
        self.requester.reset_retries(&self.shared.config);
    }

    /// RTS to SQD: no new message is started; [`AsyncEvent::SendQueueDrained`] comes when those that were are
    /// complete. In other states nothing happens.
    pub fn to_sqd(&mut self) {
        if self.shared.state == QpState::Rts {
            self.shared.state = QpState::Sqd;
            self.requester.start_drain(&mut self.shared);
        }
    }

    /// SQD to RTS. In other states nothing happens. Worth a [`RcQp::poll_transmit`].
    pub fn sqd_to_rts(&mut self) {
        if self.shared.state == QpState::Sqd {
            self.shared.state = QpState::Rts;
        }
    }

    /// To the error state on the engine's wish: flushes all sends that are held and the receive in progress,
    /// forgets what was to be transmitted. Gives no [`Event::EnteredError`].
    pub fn to_error(&mut self) {
        self.shared.state = QpState::Err;
        self.requester.flush(&mut self.shared);
        self.responder.abort(&mut self.shared);
        self.responder.forget_replies();
    }

    /// The state: RTR, RTS, SQD or Error.
    pub fn state(&self) -> QpState {
        self.shared.state
    }

    /// The attributes in force.
    pub fn config(&self) -> &QpConfig {
        &self.shared.config
    }

    /// What was counted so far.
    pub fn counters(&self) -> &QpCounters {
        &self.shared.counters
    }

    /// The first PSN that was never sent.
    pub fn next_send_psn(&self) -> Psn {
        self.requester.next_psn()
    }

    /// The last PSN of ours that the peer acknowledged.
    pub fn last_acked_psn(&self) -> Psn {
        self.requester.last_acked_psn()
    }

    /// The PSN that the peer has to send next.
    pub fn next_recv_psn(&self) -> Psn {
        self.responder.expected_psn()
    }

    /// Messages completed for the peer, 24 bits.
    pub fn recv_msn(&self) -> u32 {
        self.responder.msn()
    }

    /// How many sends may be posted now; grows with each send completed. In the error state they are flushed.
    pub fn send_room(&self) -> usize {
        match self.shared.state {
            QpState::Rts | QpState::Sqd => SEND_DEPTH.saturating_sub(self.requester.held()),
            QpState::Err => FLUSH_BATCH,
            QpState::Reset | QpState::Init | QpState::Rtr | QpState::Sqe => 0,
        }
    }

    /// Sends that were posted and are not complete.
    pub fn sends_held(&self) -> usize {
        self.requester.held()
    }

    /// Takes a send work request. Worth a [`RcQp::poll_transmit`].
    ///
    /// It never fails: work that can't be done completes in error in its turn, and in a state that does not
    /// send it is flushed. More than [`RcQp::send_room`] is taken too.
    pub fn post_send(&mut self, work: SendWork) {
        if !matches!(self.shared.state, QpState::Rts | QpState::Sqd) {
            return self.flush_send(work.id, work.op.kind());
        }
        let health = self.requester.post(work, &mut self.shared);
        self.act_on(health, false);
    }

    /// Reports a send as flushed that never came here: what was left in the send queue when the QP broke.
    pub fn flush_send(&mut self, id: u64, kind: SendKind) {
        self.shared.emit(Event::Send(SendCompletion {
            id,
            status: CompletionStatus::Flushed,
            kind,
            byte_len: 0,
            signaled: true,
        }));
    }

    /// Takes up to `max` receives and reports them as flushed, in order; returns how many there were. For a
    /// QP in error with its own RQ (receives in an SRQ belong to others).
    pub fn flush_receives<M: QpMemory + ?Sized>(&mut self, mem: &mut M, max: usize) -> usize {
        for n in 0..max {
            match mem.take_recv() {
                Ok(Some(recv)) => {
                    self.shared
                        .emit_failed_recv(&recv, RecvKind::Send, CompletionStatus::Flushed);
                }
                Ok(None) => return n,
                Err(fault) => {
                    log::debug!("flush of receives stopped: {fault}");
                    return n;
                }
            }
        }
        max
    }

    /// Takes a packet that came for this QP.
    pub fn handle_packet<M: QpMemory + ?Sized>(&mut self, now: Nanos, packet: &Packet, mem: &mut M) {
        self.shared.counters.packets_received += 1;
        if !self.accepts(&packet.bth) {
            self.shared.counters.dropped += 1;
            return;
        }
        match opcode::info(packet.bth.opcode) {
            Some(info) if info.transport != Transport::Rc => self.shared.counters.dropped += 1,
            Some(info) if info.kind.is_response() => self.handle_response(now, info, packet, mem),
            info => self.handle_request(info, packet, mem),
        }
    }

    /// Lets expired timers act. Calling it early does no harm.
    pub fn handle_timeout(&mut self, now: Nanos) {
        let health = self.requester.handle_timeout(now, &mut self.shared);
        self.act_on(health, false);
    }

    /// The next packet to send, if there is one; also gives events (local memory that can't be read). Becomes
    /// worth calling again after any `handle_*`, `post_send` or change of state.
    pub fn poll_transmit<M: QpMemory + ?Sized>(&mut self, now: Nanos, mem: &mut M) -> Option<Packet> {
        for _ in 0..2 {
            let mut health = Health::Good;
            let responding = self.responder_first;
            // Turns, so that neither a long READ response nor a queue of WRITEs starves the other half.
            self.responder_first = !responding;
            let packet = if responding {
                self.responder.poll_transmit(&mut self.shared, mem, &mut health)
            } else {
                self.requester
                    .poll_transmit(now, &mut self.shared, mem, &mut health)
            };
            self.act_on(health, responding);
            if packet.is_some() {
                self.shared.counters.packets_sent += 1;
                return packet;
            }
        }
        None
    }

    /// The oldest event not yet taken.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// When to call [`RcQp::handle_timeout`]; `None` when no timer runs. Changes with any other call.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.requester.poll_timeout()
    }

    /// Version and partition, as IBTA vol. 1, 9.6.1 wants a packet's header; the QPN was the engine's to check.
    fn accepts(&self, bth: &Bth) -> bool {
        bth.tver == 0 && accepts_partition(bth.pkey, self.shared.config.pkey)
    }

    fn handle_response<M: QpMemory + ?Sized>(
        &mut self,
        now: Nanos,
        info: &OpcodeInfo,
        packet: &Packet,
        mem: &mut M,
    ) {
        if !matches!(self.shared.state, QpState::Rts | QpState::Sqd) {
            self.shared.counters.dropped += 1;
            return;
        }
        let health = self
            .requester
            .handle_response(now, info, packet, &mut self.shared, mem);
        self.act_on(health, false);
    }

    fn handle_request<M: QpMemory + ?Sized>(
        &mut self,
        info: Option<&OpcodeInfo>,
        packet: &Packet,
        mem: &mut M,
    ) {
        if !matches!(self.shared.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            self.shared.counters.dropped += 1;
            return;
        }
        if self.shared.state == QpState::Rtr && !self.established {
            self.established = true;
            self.shared
                .emit(Event::Async(AsyncEvent::CommunicationEstablished));
        }
        let health = self.responder.handle_request(info, packet, &mut self.shared, mem);
        self.act_on(health, true);
    }

    /// Carries a half's failure over to the whole QP. A responder that failed still has its NAK to send.
    fn act_on(&mut self, health: Health, by_responder: bool) {
        if health == Health::Good || self.shared.state == QpState::Err {
            return;
        }
        self.shared.state = QpState::Err;
        self.requester.flush(&mut self.shared);
        self.responder.abort(&mut self.shared);
        if !by_responder {
            self.responder.forget_replies();
        }
        self.shared.emit(Event::EnteredError);
    }
}
