//! Turns: which QP works when, and what the transport's answers become.

use std::cmp::Reverse;
use std::time::Duration;

use ferroce_hw_regs::cqe::opcode as cqe_opcode;

use super::completion::Completion;
use super::events::{Event, event_type};
use super::memory::Memory;
use super::recv::RecvSource;
use super::send::{SendId, SendSource};
use super::violation::Violation;
use super::{Counters, DataPlane};
use crate::clock::Nanos;
use crate::objects::Qp;
use crate::objects::qp::{ReceiveFrom, Service};
use crate::rc::RcQp;
use crate::rc::types::{
    AsyncEvent, CompletionStatus, Event as RcEvent, QpState, RecvCompletion, RecvKind, SendCompletion,
};

/// Packets that a QP may send before the next one gets its turn.
const BURST: usize = 64;
/// Sends that a QP may fetch before it sends again.
const FETCH: usize = 32;
/// Frames made before the port gets them: with many QPs at work a cable must not overflow.
const FRAMES_AHEAD: usize = 512;
/// First interval at which a QP in error looks for new receives, which no doorbell announces.
const FLUSH_POLL: Duration = Duration::from_micros(100);
/// The interval doubles up to this one.
const FLUSH_POLL_MAX: Duration = Duration::from_millis(10);

impl DataPlane {
    /// Puts a QP into the run queue.
    pub(super) fn wake(&mut self, qpn: u32) {
        if let Some(qp) = self.objects.qps.get_mut(qpn)
            && !qp.queued
        {
            qp.queued = true;
            self.run_queue.push_back(qpn);
        }
    }

    /// Serves timers that are due, then gives each QP that has something to do one turn. True when there was
    /// anything; call it again then. Frames go to [`DataPlane::take_frame`].
    pub fn run(&mut self, now: Nanos) -> bool {
        self.now = now;
        let mut worked = self.serve_timers(now) | self.receive_loopback(now);
        for _ in 0..self.run_queue.len() {
            worked = true;
            if self.outgoing.len() + self.loopback.len() >= FRAMES_AHEAD {
                break;
            }
            let Some(qpn) = self.run_queue.pop_front() else {
                break;
            };
            self.turn(qpn);
        }
        worked |= self.run_sqs();
        while let Some(cqn) = self.broken_cqs.pop() {
            self.fail_qps_of(cqn);
            worked = true;
        }
        worked
    }

    /// When [`DataPlane::run`] is to be called again even if nothing arrives; `None`: never.
    pub fn next_timeout(&mut self) -> Option<Nanos> {
        if !self.run_queue.is_empty() || !self.sq_queue.is_empty() {
            return Some(self.now);
        }
        while let Some(Reverse((at, qpn))) = self.timers.peek().copied() {
            if self
                .objects
                .qps
                .get(qpn)
                .is_some_and(|qp| qp.timer_at == Some(at))
            {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    fn serve_timers(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        while let Some(Reverse((at, qpn))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            let Some(qp) = self.objects.qps.get_mut(qpn).filter(|qp| qp.timer_at == Some(at)) else {
                continue;
            };
            qp.timer_at = None;
            let mut due = false;
            if let Some(rc) = &mut qp.rc
                && rc.poll_timeout().is_some_and(|t| t <= now)
            {
                rc.handle_timeout(now);
                due = true;
            }
            due |= qp.flush_poll.is_some_and(|(t, _)| t <= now);
            if due {
                self.wake(qpn);
                worked = true;
            } else {
                self.set_timer(qpn);
            }
        }
        worked
    }

    /// Makes sure that the timer queue wakes the QP in time. An entry that is too early stays: it finds nothing
    /// due and asks again, which is cheaper than taking it out for each packet.
    pub(super) fn set_timer(&mut self, qpn: u32) {
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return;
        };
        let transport = qp.rc.as_ref().and_then(RcQp::poll_timeout);
        let poll = qp.flush_poll.map(|(at, _)| at);
        let Some(at) = transport.into_iter().chain(poll).min() else {
            return;
        };
        if at != Nanos::NEVER && qp.timer_at.is_none_or(|before| at < before) {
            qp.timer_at = Some(at);
            self.timers.push(Reverse((at, qpn)));
        }
    }

    fn turn(&mut self, qpn: u32) {
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return;
        };
        qp.queued = false;
        let state = qp.state();
        let has_transport = qp.rc.is_some();
        let mut budget = BURST;
        loop {
            let fetched = match state {
                QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Err if has_transport => {
                    self.fetch_sends(qpn)
                }
                QpState::Rts | QpState::Err => self.do_without_transport(qpn),
                _ => false,
            };
            let sent = self.transmit(qpn, &mut budget);
            let told = self.drain_events(qpn);
            if budget == 0 {
                self.wake(qpn);
                break;
            }
            if !(fetched || sent || told) {
                break;
            }
        }
        if self
            .objects
            .qps
            .get(qpn)
            .is_some_and(|qp| qp.state() == QpState::Err)
        {
            self.flush_receives(qpn);
        }
        self.set_timer(qpn);
    }

    /// Gives the transport as many sends as it has room for.
    fn fetch_sends(&mut self, qpn: u32) -> bool {
        let DataPlane {
            objects,
            host,
            violations,
            counters,
            ..
        } = self;
        let Some(qp) = objects.qps.get_mut(qpn) else {
            return false;
        };
        let Some(rc) = &mut qp.rc else {
            return false;
        };
        let room = rc.send_room().min(FETCH);
        if room == 0 || qp.sq.wqebbs == 0 || qp.sq.stuck {
            return false;
        }
        let Ok(pi) = host.read_be32(qp.dbr.wrapping_add(4)) else {
            violations.note(Violation::HostMemory, format_args!("record of QP {qpn:#x}"));
            return false;
        };
        let flush = rc.state() == QpState::Err;
        let mut source = SendSource {
            qpn,
            ring: &mut qp.sq,
            buffer: &qp.buffer,
            host,
            violations,
        };
        let mut fetched = false;
        for _ in 0..room {
            let Some(work) = source.next(pi as u16, flush) else {
                break;
            };
            counters.send_wqes += 1;
            rc.post_send(work);
            fetched = true;
        }
        fetched
    }

    /// Sends of a QP that has no transport: a NOP succeeds, all else fails; in error all are flushed.
    fn do_without_transport(&mut self, qpn: u32) -> bool {
        let DataPlane {
            objects,
            host,
            violations,
            ..
        } = self;
        let Some(qp) = objects.qps.get_mut(qpn) else {
            return false;
        };
        if qp.service == Service::RegUmr {
            return self.run_umr(qpn);
        }
        let flush = qp.state == QpState::Err;
        if qp.sq.wqebbs == 0 || qp.sq.stuck || (!flush && qp.service == Service::Rc) {
            return false;
        }
        let Ok(pi) = host.read_be32(qp.dbr.wrapping_add(4)) else {
            violations.note(Violation::HostMemory, format_args!("record of QP {qpn:#x}"));
            return false;
        };
        let mut source = SendSource {
            qpn,
            ring: &mut qp.sq,
            buffer: &qp.buffer,
            host,
            violations,
        };
        let Some(work) = source.next(pi as u16, flush) else {
            return false;
        };
        let status = match work.op.kind() {
            _ if flush => CompletionStatus::Flushed,
            crate::rc::types::SendKind::Nop => CompletionStatus::Success,
            _ => CompletionStatus::LocalQpOperation,
        };
        if status == CompletionStatus::LocalQpOperation {
            qp.state = QpState::Err;
        }
        let done = SendCompletion {
            id: work.id,
            status,
            kind: work.op.kind(),
            byte_len: 0,
            signaled: work.signaled,
        };
        if work.signaled || status != CompletionStatus::Success {
            self.send_done(qpn, &done);
        }
        true
    }

    /// Lets the transport send up to `budget` packets.
    fn transmit(&mut self, qpn: u32, budget: &mut usize) -> bool {
        let now = self.now;
        let mut packets = std::mem::take(&mut self.packet_scratch);
        self.with_transport(qpn, |rc, memory| {
            while packets.len() < *budget
                && let Some(packet) = rc.poll_transmit(now, memory)
            {
                packets.push(packet);
            }
        });
        let sent = !packets.is_empty();
        *budget -= packets.len().min(*budget);
        self.send_packets(qpn, packets.drain(..));
        self.packet_scratch = packets;
        sent
    }

    /// Calls `f` with a QP's transport and the memory that it may reach; `None` when it has no transport.
    pub(super) fn with_transport<R>(
        &mut self,
        qpn: u32,
        f: impl FnOnce(&mut RcQp, &mut Memory<'_>) -> R,
    ) -> Option<R> {
        let mut limit_reached = Vec::new();
        let result = {
            let DataPlane {
                objects,
                host,
                violations,
                counters,
                ..
            } = self;
            let qp = objects.qps.get_mut(qpn)?;
            let Qp { rc, rq, buffer, .. } = qp;
            let rc = rc.as_mut()?;
            let mut memory = Memory {
                host,
                mkeys: &mut objects.mkeys,
                pd: qp.pd,
                qpn,
                recv: RecvSource {
                    from: qp.receive_from,
                    ring: rq,
                    buffer,
                    dbr: qp.dbr,
                    srqs: &mut objects.srqs,
                    limit_reached: &mut limit_reached,
                },
                violations,
                counters,
                local_refusals: 0.into(),
                remote_refusals: 0.into(),
                atomics_in_host_order: self.atomics_in_host_order,
            };
            let result = f(rc, &mut memory);
            let (local, remote) = (memory.local_refusals.get(), memory.remote_refusals.get());
            let counters: &mut Counters = memory.counters;
            counters.local_refusals += local;
            counters.remote_refusals += remote;
            result
        };
        for srqn in limit_reached {
            self.raise(Event::Queue {
                event_type: event_type::SRQ_LIMIT,
                number: srqn,
            });
        }
        Some(result)
    }

    /// Turns what the transport tells into CQEs and EQEs.
    pub(super) fn drain_events(&mut self, qpn: u32) -> bool {
        let mut events = std::mem::take(&mut self.event_scratch);
        if let Some(rc) = self.objects.qps.get_mut(qpn).and_then(|qp| qp.rc.as_mut()) {
            while let Some(event) = rc.poll_event() {
                events.push(event);
            }
        }
        let told = !events.is_empty();
        for event in events.drain(..) {
            match event {
                RcEvent::Send(done) => self.send_done(qpn, &done),
                RcEvent::Recv(done) => self.recv_done(qpn, &done),
                RcEvent::Async(event) => self.raise_async(qpn, event),
                RcEvent::EnteredError => self.entered_error(qpn),
            }
        }
        self.event_scratch = events;
        told
    }

    fn send_done(&mut self, qpn: u32, done: &SendCompletion) {
        let Some(qp) = self.objects.qps.get(qpn) else {
            return;
        };
        let id = SendId::unpack(done.id);
        let (cqn, user_index) = (qp.cqn_snd, qp.user_index);
        let misunderstood = id.bad != 0 && done.status == CompletionStatus::Success;
        let syndrome = if misunderstood {
            id.bad
        } else {
            done.status.syndrome()
        };
        let completion = Completion {
            opcode: if syndrome == 0 {
                cqe_opcode::REQ
            } else {
                cqe_opcode::REQ_ERR
            },
            qpn,
            send_opcode: id.opcode,
            user_index,
            byte_cnt: done.byte_len,
            wqe_counter: id.wqe_index,
            syndrome,
            ..Completion::default()
        };
        if syndrome != 0
            && let Some(qp) = self.objects.qps.get_mut(qpn)
        {
            qp.counts.send_failed(syndrome);
        }
        self.complete(cqn, &completion);
        if misunderstood {
            self.fail_qp(qpn);
        }
    }

    fn recv_done(&mut self, qpn: u32, done: &RecvCompletion) {
        let Some(qp) = self.objects.qps.get(qpn) else {
            return;
        };
        let failed = done.status != CompletionStatus::Success;
        let completion = Completion {
            opcode: match done.kind {
                _ if failed => cqe_opcode::RESP_ERR,
                RecvKind::Send => cqe_opcode::RESP_SEND,
                RecvKind::SendImm => cqe_opcode::RESP_SEND_IMM,
                RecvKind::SendInvalidate => cqe_opcode::RESP_SEND_INV,
                RecvKind::WriteImm => cqe_opcode::RESP_WR_IMM,
            },
            qpn,
            user_index: qp.user_index,
            immediate: done.imm.or(done.invalidated_rkey).unwrap_or(0),
            byte_cnt: done.byte_len,
            wqe_counter: done.id as u16,
            solicited: done.solicited,
            flags_rqpn: qp.context.remote_qpn(),
            syndrome: done.status.syndrome(),
            ..Completion::default()
        };
        let cqn = qp.cqn_rcv;
        if failed && let Some(qp) = self.objects.qps.get_mut(qpn) {
            qp.counts.recv_failed(done.status.syndrome());
        }
        self.complete(cqn, &completion);
    }

    fn raise_async(&mut self, qpn: u32, event: AsyncEvent) {
        let event_type = match event {
            AsyncEvent::CommunicationEstablished => event_type::COMM_ESTABLISHED,
            AsyncEvent::SendQueueDrained => event_type::SQ_DRAINED,
            AsyncEvent::InvalidRequest => event_type::WQ_INVALID_REQUEST,
            AsyncEvent::AccessError => event_type::WQ_ACCESS_ERROR,
            AsyncEvent::Catastrophic => event_type::WQ_CATASTROPHIC,
        };
        self.raise(Event::Queue {
            event_type,
            number: qpn,
        });
    }

    /// Moves a QP to error, of the engine's or the host's own will.
    pub(super) fn fail_qp(&mut self, qpn: u32) {
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return;
        };
        match &mut qp.rc {
            Some(rc) => rc.to_error(),
            None => qp.state = QpState::Err,
        }
        self.entered_error(qpn);
    }

    /// A QP is in error now: what is in its rings is to be flushed.
    fn entered_error(&mut self, qpn: u32) {
        let now = self.now;
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return;
        };
        if qp.receive_from == ReceiveFrom::Own {
            qp.flush_poll = Some((now + FLUSH_POLL, FLUSH_POLL.as_nanos() as u64));
        }
        let on_srq = matches!(qp.receive_from, ReceiveFrom::Srq(_));
        // What follows a WQE that could not be understood is flushed too.
        qp.sq.stuck = false;
        self.wake(qpn);
        if on_srq {
            self.raise(Event::Queue {
                event_type: event_type::SRQ_LAST_WQE,
                number: qpn,
            });
        }
    }

    fn flush_receives(&mut self, qpn: u32) {
        let now = self.now;
        loop {
            let DataPlane {
                objects,
                host,
                violations,
                ..
            } = self;
            let Some(qp) = objects.qps.get_mut(qpn) else {
                return;
            };
            if qp.receive_from != ReceiveFrom::Own {
                return;
            }
            let mut source = RecvSource {
                from: qp.receive_from,
                ring: &mut qp.rq,
                buffer: &qp.buffer,
                dbr: qp.dbr,
                srqs: &mut objects.srqs,
                limit_reached: &mut Vec::new(),
            };
            match source.take(host) {
                Ok(Some(work)) => {
                    qp.flush_poll = Some((now, FLUSH_POLL.as_nanos() as u64));
                    let done = RecvCompletion {
                        id: work.id,
                        status: CompletionStatus::Flushed,
                        kind: RecvKind::Send,
                        byte_len: 0,
                        imm: None,
                        invalidated_rkey: None,
                        solicited: false,
                    };
                    self.recv_done(qpn, &done);
                }
                Ok(None) => {
                    if let Some((at, interval)) = &mut qp.flush_poll
                        && *at <= now
                    {
                        *at = now + Duration::from_nanos(*interval);
                        *interval = (*interval * 2).min(FLUSH_POLL_MAX.as_nanos() as u64);
                    }
                    return;
                }
                Err(error) => {
                    let what = format_args!("receive queue of QP {qpn:#x}: {error}");
                    violations.note(Violation::HostMemory, what);
                    qp.flush_poll = None;
                    return;
                }
            }
        }
    }

    /// A CQ broke: what reports to it can't go on (IBTA vol. 1, 10.10.2.3).
    fn fail_qps_of(&mut self, cqn: u32) {
        let users = self
            .objects
            .qps
            .iter()
            .filter(|(_, qp)| qp.cqn_snd == cqn || qp.cqn_rcv == cqn);
        let users: Vec<u32> = users.map(|(qpn, _)| qpn).collect();
        for qpn in users {
            let state = self.objects.qps.get(qpn).map(Qp::state);
            if !matches!(state, None | Some(QpState::Reset | QpState::Err)) {
                self.fail_qp(qpn);
                self.raise(Event::Queue {
                    event_type: event_type::WQ_CATASTROPHIC,
                    number: qpn,
                });
            }
        }
    }
}
