//! What the program asks of the machine.

use std::time::Instant;

use super::build::{self, Mad};
use super::conn::{Conn, State};
use super::types::{
    AcceptReply, CommId, ConnectRequest, DisconnectCause, MachineError, MachineEvent, TimeCode,
};
use super::{ListenEntry, Machine};
use crate::cm::mad::{RejectReason, ServiceId};

impl Machine {
    /// Takes requests for a service from now on, at most `backlog` unanswered ones at a time: the rest is dropped, and the
    /// peers ask again.
    ///
    /// # Errors
    /// [`MachineError::InUse`].
    pub fn listen(&mut self, service: ServiceId, backlog: usize) -> Result<(), MachineError> {
        if self.listeners.contains_key(&service) {
            return Err(MachineError::InUse(service.0));
        }
        self.listeners
            .insert(service, ListenEntry { backlog, waiting: 0 });
        Ok(())
    }

    /// Whether a service is listened on.
    #[must_use]
    pub fn is_listening(&self, service: ServiceId) -> bool {
        self.listeners.contains_key(&service)
    }

    /// Takes no more requests for a service. Those that were told of remain.
    pub fn unlisten(&mut self, service: ServiceId) {
        self.listeners.remove(&service);
    }

    /// Asks a peer for a connection. [`MachineEvent::Accepted`] or [`MachineEvent::Failed`] will follow.
    ///
    /// # Errors
    /// [`MachineError`] if a value doesn't fit the message, or there are too many connections.
    pub fn connect(&mut self, now: Instant, ask: &ConnectRequest) -> Result<CommId, MachineError> {
        self.check_room()?;
        let (id, transaction_id) = (self.fresh_id(), self.fresh_transaction());
        let mad = build::req(&self.config, id, transaction_id, ask)?;
        let conn = Conn {
            state: State::ReqSent,
            path: ask.path,
            remote: None,
            remote_guid: 0,
            remote_qpn: 0,
            remote_psn: 0,
            local_qpn: ask.qpn,
            transaction_id,
            unanswered: None,
            answer: None,
            interval: self.config.response_timeout.duration(),
            tries: 0,
            max_tries: self.config.max_retries,
            repeats: 0,
            timer: None,
            deadline: ask.deadline,
            scheduled: None,
            time_wait: time_wait(ask.ack_timeout),
            alternate: false,
            orphan: false,
            waits_at: None,
        };
        self.conns.insert(id, conn);
        self.send_until_answered(now, id, mad);
        self.schedule(id);
        Ok(id)
    }

    pub(super) fn check_room(&self) -> Result<(), MachineError> {
        let max = self.config.max_connections;
        if self.conns.len() >= max {
            return Err(MachineError::Full {
                what: "connections",
                max,
            });
        }
        Ok(())
    }

    /// The connection, if it is in one of these states.
    fn in_state(
        &mut self,
        id: CommId,
        action: &'static str,
        states: &[State],
    ) -> Result<&mut Conn, MachineError> {
        let conn = self.conns.get_mut(&id).ok_or(MachineError::Unknown(id.0))?;
        if !states.contains(&conn.state) {
            let state = conn.state.name();
            return Err(MachineError::State { action, state });
        }
        Ok(conn)
    }

    /// Accepts a request; the queue pair is in RTS by now. [`MachineEvent::Established`] or [`MachineEvent::Failed`] will
    /// follow.
    ///
    /// # Errors
    /// [`MachineError`]; nothing was sent.
    pub fn accept(&mut self, now: Instant, id: CommId, with: &AcceptReply) -> Result<(), MachineError> {
        self.in_state(id, "accept", &[State::ReqRcvd, State::MraReqSent])?;
        let Some(conn) = self.conns.get(&id) else {
            return Err(MachineError::Unknown(id.0));
        };
        let mad = build::rep(&self.config, id, conn, with)?;
        self.leave_listener(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = State::RepSent;
            conn.local_qpn = with.qpn;
            conn.deadline = with.deadline;
            conn.answer = None;
        }
        self.send_until_answered(now, id, mad);
        self.schedule(id);
        Ok(())
    }

    /// The request counts no longer among the unanswered ones of its listener.
    fn leave_listener(&mut self, id: CommId) {
        if let Some(service) = self.conns.get_mut(&id).and_then(|conn| conn.waits_at.take())
            && let Some(listener) = self.listeners.get_mut(&service)
        {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    /// Confirms that the connection is in use; the queue pair is in RTS by now.
    ///
    /// # Errors
    /// [`MachineError`]; nothing was sent.
    pub fn confirm(&mut self, id: CommId) -> Result<(), MachineError> {
        let conn = self.in_state(id, "confirm", &[State::RepRcvd, State::MraRepSent])?;
        conn.quiet();
        conn.state = State::Established;
        let mad = build::rtu(id, conn);
        // Sent again whenever the REP comes again.
        conn.answer = Some(mad.clone());
        self.send(id, mad);
        self.schedule(id);
        Ok(())
    }

    /// The queue pair has received something: the connection is established, though no RTU has come yet (IBTA vol. 1,
    /// 12.9). Nothing happens if it was known.
    pub fn communication_established(&mut self, id: CommId) {
        if self.in_state(id, "be established", &[State::RepSent]).is_ok() {
            self.established(id);
        }
    }

    pub(super) fn established(&mut self, id: CommId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.quiet();
            conn.state = State::Established;
        }
        self.tell(id, MachineEvent::Established(id));
        self.schedule(id);
    }

    /// Tells the peer that the answer takes longer, at most that time.
    ///
    /// # Errors
    /// [`MachineError`]; nothing was sent.
    pub fn ask_for_time(&mut self, now: Instant, id: CommId, time: TimeCode) -> Result<(), MachineError> {
        let states = [
            State::ReqRcvd,
            State::MraReqSent,
            State::RepRcvd,
            State::MraRepSent,
        ];
        let conn = self.in_state(id, "ask for time", &states)?;
        let (of, state) = match conn.state {
            State::ReqRcvd | State::MraReqSent => (build::OF_REQ, State::MraReqSent),
            _ => (build::OF_REP, State::MraRepSent),
        };
        let mad = build::mra(id, conn, of, time)?;
        conn.state = state;
        conn.answer = Some(mad.clone());
        if state == State::MraReqSent {
            conn.timer = Some(now + time.duration());
        }
        self.send(id, mad);
        self.schedule(id);
        Ok(())
    }

    /// Rejects a request, or an acceptance. The connection is forgotten.
    ///
    /// # Errors
    /// [`MachineError`]; nothing was sent.
    pub fn reject(
        &mut self,
        id: CommId,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), MachineError> {
        let states = [
            State::ReqRcvd,
            State::MraReqSent,
            State::RepRcvd,
            State::MraRepSent,
        ];
        self.in_state(id, "be rejected", &states)?;
        for (message, data, max) in [("cm_rej", private_data, 148), ("cm_rej (info)", info, 72)] {
            if data.len() > max {
                let asked = data.len();
                return Err(MachineError::PrivateData { message, asked, max });
            }
        }
        self.send_rej(id, reason, info, private_data);
        self.forget(id, None);
        Ok(())
    }

    /// Ends a connection. [`MachineEvent::Disconnected`] will follow, at the deadline at the latest.
    ///
    /// # Errors
    /// [`MachineError`]; nothing was sent.
    pub fn disconnect(
        &mut self,
        now: Instant,
        id: CommId,
        private_data: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(), MachineError> {
        self.in_state(id, "be disconnected", &[State::Established])?;
        let mad = self.build_dreq(id, private_data)?;
        self.send_dreq(now, id, mad, deadline);
        Ok(())
    }

    fn build_dreq(&mut self, id: CommId, private_data: &[u8]) -> Result<Mad, MachineError> {
        let transaction_id = self.fresh_transaction();
        let conn = self.conns.get(&id).ok_or(MachineError::Unknown(id.0))?;
        build::dreq(id, conn, transaction_id, private_data)
    }

    fn send_dreq(&mut self, now: Instant, id: CommId, mad: Mad, deadline: Option<Instant>) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.quiet();
            conn.state = State::DreqSent;
            conn.deadline = deadline;
            conn.answer = None;
        }
        self.send_until_answered(now, id, mad);
        self.schedule(id);
    }

    /// How long a peer is asked for the end of a connection that the program has let go of. The peer has chosen the time
    /// between two tries and their number, which may be hours together.
    fn unattended(&self, now: Instant) -> Option<Instant> {
        Some(now + self.config.service_timeout.duration())
    }

    /// Ends whatever a connection is at, on behalf of a peer that has started afresh.
    pub(super) fn end_stale(&mut self, now: Instant, id: CommId) {
        self.counters.stale += 1;
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        match conn.state {
            // The peer, which knows nothing of it, answers at once; by that we know that it is there.
            State::Established => {
                self.tell(id, MachineEvent::Disconnected(id, DisconnectCause::Stale));
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.orphan = true;
                }
                let until = self.unattended(now);
                match self.build_dreq(id, &[]) {
                    Ok(mad) => self.send_dreq(now, id, mad, until),
                    Err(_) => self.enter_time_wait(now, id),
                }
            }
            State::ReqRcvd | State::MraReqSent | State::RepSent | State::RepRcvd | State::MraRepSent => {
                self.fail(now, id, super::Failure::Stale)
            }
            // The end is near already; a connection without an answer has no peer yet.
            State::DreqSent | State::TimeWait | State::ReqSent => {}
        }
    }

    /// The program lets go of a connection, whatever it is at: the peer is told, and no event follows but
    /// [`MachineEvent::Gone`], if it goes through time-wait. Whether it does.
    pub fn abandon(&mut self, now: Instant, id: CommId) -> bool {
        let until = self.unattended(now);
        let Some(conn) = self.conns.get_mut(&id) else {
            return false;
        };
        conn.orphan = true;
        match conn.state {
            State::ReqSent => {
                self.send_rej(id, RejectReason::Timeout, &[], &[]);
                self.forget(id, None);
                false
            }
            State::ReqRcvd | State::MraReqSent => {
                self.send_rej(id, RejectReason::Consumer, &[], &[]);
                self.forget(id, None);
                false
            }
            State::RepSent | State::RepRcvd | State::MraRepSent => {
                self.send_rej(id, RejectReason::Consumer, &[], &[]);
                self.enter_time_wait(now, id);
                true
            }
            State::Established => {
                match self.build_dreq(id, &[]) {
                    Ok(mad) => self.send_dreq(now, id, mad, until),
                    Err(_) => self.enter_time_wait(now, id),
                }
                true
            }
            State::DreqSent => {
                // With the program's own deadline gone, the peer gets the time that there is without one.
                conn.deadline = until;
                self.schedule(id);
                true
            }
            State::TimeWait => true,
        }
    }
}

/// How long a connection's packets may still be under way: twice the time in which an acknowledgement comes.
pub(super) fn time_wait(ack_timeout: TimeCode) -> std::time::Duration {
    ack_timeout.min(TimeCode::MAX_ACK_TIMEOUT).duration() * 2
}
