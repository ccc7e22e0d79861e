//! What becomes of work: CQEs and EQEs of what ended, and queue pairs that break.

use std::time::Duration;

use ferroce_hw_regs::cqe::opcode as cqe_opcode;

use super::DataPlane;
use super::completion::Completion;
use super::events::{Event, event_type};
use super::recv::RecvSource;
use super::send::SendId;
use super::violation::Violation;
use crate::objects::Qp;
use crate::objects::qp::ReceiveFrom;
use crate::rc::types::{AsyncEvent, CompletionStatus, QpState, RecvCompletion, RecvKind, SendCompletion};

/// First interval at which a QP in error looks for new receives, which no doorbell announces.
const FLUSH_POLL: Duration = Duration::from_micros(100);
/// The interval doubles up to this one.
const FLUSH_POLL_MAX: Duration = Duration::from_millis(10);

impl DataPlane {
    pub(super) fn send_done(&mut self, qpn: u32, done: &SendCompletion) {
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

    pub(super) fn recv_done(&mut self, qpn: u32, done: &RecvCompletion) {
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

    pub(super) fn raise_async(&mut self, qpn: u32, event: AsyncEvent) {
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
        match &mut qp.transport {
            Some(transport) => transport.to_error(),
            None => qp.state = QpState::Err,
        }
        self.entered_error(qpn);
    }

    /// A QP is in error now: what is in its rings is to be flushed.
    pub(super) fn entered_error(&mut self, qpn: u32) {
        let now = self.now;
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return;
        };
        if qp.receive_from == ReceiveFrom::Own {
            qp.flush_poll = Some((now + FLUSH_POLL, FLUSH_POLL.as_nanos() as u64));
        }
        qp.last_wqe_due = matches!(qp.receive_from, ReceiveFrom::Srq(_));
        // What follows a WQE that could not be understood is flushed too.
        qp.sq.stuck = false;
        self.wake(qpn);
    }

    /// Tells that a QP in error takes no more from its SRQ, once all that it took is complete.
    pub(super) fn tell_last_wqe(&mut self, qpn: u32) {
        let due = self.objects.qps.get_mut(qpn).map(|qp| &mut qp.last_wqe_due);
        if due.is_some_and(std::mem::take) {
            self.raise(Event::Queue {
                event_type: event_type::SRQ_LAST_WQE,
                number: qpn,
            });
        }
    }

    pub(super) fn flush_receives(&mut self, qpn: u32) {
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
                srq_events: &mut Vec::new(),
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
    pub(super) fn fail_qps_of(&mut self, cqn: u32) {
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
