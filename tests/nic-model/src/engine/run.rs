//! Turns: which QP works when, and what the transport's answers become.

use std::cmp::Reverse;

use super::events::Event;
use super::memory::Memory;
use super::recv::RecvSource;
use super::send::SendSource;
use super::violation::Violation;
use super::{Counters, DataPlane};
use crate::clock::Nanos;
use crate::objects::Qp;
use crate::objects::qp::Service;
use crate::rc::types::{CompletionStatus, Event as RcEvent, QpState, SendCompletion};
use crate::transport::Transport;

/// Packets that a QP may send before the next one gets its turn.
const BURST: usize = 64;
/// Sends that a QP may fetch before it sends again.
const FETCH: usize = 32;
/// Frames made before the port gets them: with many QPs at work a cable must not overflow.
const FRAMES_AHEAD: usize = 512;

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
            if self.waiting_frames() + self.loopback.len() >= FRAMES_AHEAD {
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
            if let Some(transport) = &mut qp.transport
                && transport.poll_timeout().is_some_and(|t| t <= now)
            {
                transport.handle_timeout(now);
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
        let transport = qp.transport.as_ref().and_then(Transport::poll_timeout);
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
        let has_transport = qp.transport.is_some();
        let mut budget = BURST;
        loop {
            let fetched = match state {
                QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err if has_transport => {
                    self.fetch_sends(qpn)
                }
                QpState::Rts | QpState::Err | QpState::Sqe => self.do_without_transport(qpn),
                _ => false,
            };
            if fetched && !has_transport {
                budget -= 1;
            }
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
            self.tell_last_wqe(qpn);
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
        let Some(transport) = &mut qp.transport else {
            return false;
        };
        let room = transport.send_room().min(FETCH);
        if room == 0 || qp.sq.wqebbs == 0 || qp.sq.stuck {
            return false;
        }
        let Ok(pi) = host.read_be32(qp.dbr.wrapping_add(4)) else {
            violations.note(Violation::HostMemory, format_args!("record of QP {qpn:#x}"));
            return false;
        };
        let flush = matches!(transport.state(), QpState::Err | QpState::Sqe);
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
            if !flush && !transport.supports(work.op.kind()) {
                let what = format_args!("QP {qpn:#x} has no {:?}", work.op.kind());
                source.violations.note(Violation::BadWqe, what);
            }
            transport.post_send(work);
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
        match qp.service {
            Service::RegUmr => return self.run_umr(qpn),
            Service::Ud | Service::Gsi => return self.run_datagram(qpn),
            _ => {}
        }
        let flush = qp.state == QpState::Err;
        if qp.sq.wqebbs == 0 || qp.sq.stuck || (!flush && matches!(qp.service, Service::Rc | Service::Uc)) {
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
        self.with_transport(qpn, |transport, memory| {
            while packets.len() < *budget
                && let Some(packet) = transport.poll_transmit(now, memory)
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
        f: impl FnOnce(&mut Transport, &mut Memory<'_>) -> R,
    ) -> Option<R> {
        self.with_memory(qpn, |transport, memory| Some(f(transport.as_mut()?, memory)))?
    }

    /// Calls `f` with a QP's transport, if it has one, and the memory that it may reach; `None` when there is no
    /// such QP.
    pub(super) fn with_memory<R>(
        &mut self,
        qpn: u32,
        f: impl FnOnce(&mut Option<Transport>, &mut Memory<'_>) -> R,
    ) -> Option<R> {
        let mut srq_events = Vec::new();
        let result = {
            let DataPlane {
                objects,
                host,
                violations,
                counters,
                ..
            } = self;
            let qp = objects.qps.get_mut(qpn)?;
            let Qp {
                transport,
                rq,
                buffer,
                ..
            } = qp;
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
                    srq_events: &mut srq_events,
                },
                violations,
                counters,
                local_refusals: 0.into(),
                remote_refusals: 0.into(),
                atomics_in_host_order: self.atomics_in_host_order,
            };
            let result = f(transport, &mut memory);
            let (local, remote) = (memory.local_refusals.get(), memory.remote_refusals.get());
            let counters: &mut Counters = memory.counters;
            counters.local_refusals += local;
            counters.remote_refusals += remote;
            result
        };
        for (event_type, number) in srq_events {
            self.raise(Event::Queue { event_type, number });
        }
        Some(result)
    }

    /// Turns what the transport tells into CQEs and EQEs.
    pub(super) fn drain_events(&mut self, qpn: u32) -> bool {
        let mut events = std::mem::take(&mut self.event_scratch);
        if let Some(transport) = self.objects.qps.get_mut(qpn).and_then(|qp| qp.transport.as_mut()) {
            while let Some(event) = transport.poll_event() {
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
}
