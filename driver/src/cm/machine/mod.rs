//! The connection manager as a state machine: datagrams, calls and time in; datagrams, events and timers out.
//!
//! ```text
//!    active          passive                                      either
//!   connect                                                     disconnect
//!      │ ──REQ──▶ Requested                                          │ ──DREQ──▶ Disconnected(Peer)
//!      │          accept                                             │ ◀──DREP──     │ time-wait
//!  Accepted ◀──REP── │                                          Disconnected(Local)  │
//!   confirm          │                                               │ time-wait     │
//!      │ ──RTU──▶ Established                                       Gone            Gone
//! ```
//! It does as IBTA vol. 1, 12.9 says, and as Linux does where that leaves a choice. Both sides' tables are hash tables:
//! by communication id of ours, by the peer's NIC and id (a REQ that comes again), and by the peer's NIC and queue
//! pair (a stale connection).
//!
//! It has no clock, thread, socket or randomness of its own. After each call: take [`Machine::poll_transmit`] and
//! [`Machine::poll_event`] until they give nothing, and call [`Machine::handle_timeout`] when
//! [`Machine::poll_timeout`] has come.

mod build;
mod calls;
mod conn;
mod receive;
mod sidr;
mod types;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::Instant;

pub use types::{
    AcceptReply, Accepted, CommId, ConnectRequest, DisconnectCause, Failure, MachineConfig, MachineCounters,
    MachineError, MachineEvent, Requested, SidrAnswer, SidrFailure, SidrRequested, TimeCode, Transmit,
    Transport,
};

use super::mad::{RejectReason, ServiceId};
use crate::gid::Gid;
use crate::port::MacAddress;
use build::{Mad, OF_OTHER, OF_REP, OF_REQ, Rejection};
use conn::{Conn, State};
use sidr::Sidr;

/// Datagrams that wait to be sent; the oldest go when the wire doesn't keep up, as on a wire that loses them.
const MAX_TRANSMITS: usize = 1 << 16;

/// A service that is listened on.
#[derive(Clone, Copy, Debug)]
struct ListenEntry {
    backlog: usize,
    waiting: usize,
}

/// The connection manager without I/O.
pub struct Machine {
    config: MachineConfig,
    random: Box<dyn FnMut() -> u32 + Send>,
    conns: HashMap<CommId, Conn>,
    by_remote_id: HashMap<(u64, CommId), CommId>,
    by_remote_qpn: HashMap<(u64, u32), CommId>,
    listeners: HashMap<ServiceId, ListenEntry>,
    sidr: Sidr,
    timers: BTreeSet<(Instant, CommId)>,
    transmits: VecDeque<Transmit>,
    events: VecDeque<MachineEvent>,
    counters: MachineCounters,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("connections", &self.conns.len())
            .field("listeners", &self.listeners.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// A machine without connections. `random` gives numbers that peers can't guess: communication and transaction ids
    /// come from it.
    pub fn new(config: MachineConfig, random: impl FnMut() -> u32 + Send + 'static) -> Self {
        Self {
            config,
            random: Box::new(random),
            conns: HashMap::new(),
            by_remote_id: HashMap::new(),
            by_remote_qpn: HashMap::new(),
            listeners: HashMap::new(),
            sidr: Sidr::default(),
            timers: BTreeSet::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: MachineCounters::default(),
        }
    }

    /// What was seen.
    #[must_use]
    pub fn counters(&self) -> MachineCounters {
        self.counters
    }

    /// Whether a connection is over, but its queue pair's number must not be used again yet:
    /// [`MachineEvent::Gone`] will follow.
    #[must_use]
    pub fn in_time_wait(&self, id: CommId) -> bool {
        self.conns
            .get(&id)
            .is_some_and(|conn| conn.state == State::TimeWait)
    }

    /// Whether there is such a connection.
    #[must_use]
    pub fn knows(&self, id: CommId) -> bool {
        self.conns.contains_key(&id)
    }

    /// Whether a peer waits for the program's answer to that request.
    #[must_use]
    pub fn is_requested(&self, id: CommId) -> bool {
        let waits = |conn: &Conn| matches!(conn.state, State::ReqRcvd | State::MraReqSent);
        self.conns.get(&id).is_some_and(waits) || self.sidr.is_asked(id)
    }

    /// Connections that are in use with the peer at an address, and the MAC address that each sends to.
    #[must_use]
    pub fn in_use_with(&self, gid: Gid) -> Vec<(CommId, MacAddress)> {
        let with = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.state == State::Established && conn.path.dgid == gid);
        with.map(|(id, conn)| (*id, conn.path.dmac)).collect()
    }

    /// Connections that there are, those in time-wait included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Whether nothing is left in any table but listeners.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.conns.is_empty()
            && self.by_remote_id.is_empty()
            && self.by_remote_qpn.is_empty()
            && self.timers.is_empty()
            && self.sidr.is_empty()
            && self.listeners.values().all(|listener| listener.waiting == 0)
    }

    /// The next datagram to send. Worth asking after each other call.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        let transmit = self.transmits.pop_front()?;
        self.counters.sent += 1;
        Some(transmit)
    }

    /// What happened. Worth asking after each other call.
    pub fn poll_event(&mut self) -> Option<MachineEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] is to be called next. It changes with each other call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Time has come to `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.scheduled = None;
                self.conn_timeout(now, id);
                self.schedule(id);
            } else {
                self.sidr_timeout(now, id);
            }
        }
    }

    fn conn_timeout(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let late = conn.deadline.is_some_and(|deadline| deadline <= now);
        match conn.state {
            State::TimeWait => self.forget(id, Some(MachineEvent::Gone(id))),
            // Nobody waits for it.
            State::Established => conn.quiet(),
            State::DreqSent if late => self.disconnected(now, id, DisconnectCause::NoAnswer),
            State::ReqSent | State::RepSent | State::DreqSent if !late && conn.tries < conn.max_tries => {
                conn.tries += 1;
                conn.timer = Some(now + conn.interval);
                if let Some(mad) = conn.unanswered.clone() {
                    let path = conn.path;
                    self.counters.retries += 1;
                    self.transmit(Transmit { path, mad });
                }
            }
            State::DreqSent => self.disconnected(now, id, DisconnectCause::NoAnswer),
            State::ReqSent | State::RepSent | State::RepRcvd | State::MraRepSent => {
                let tries = conn.tries + 1;
                self.send_rej(id, RejectReason::Timeout, &[], &[]);
                let failure = if late {
                    Failure::Deadline
                } else {
                    Failure::NoAnswer { tries }
                };
                self.fail(now, id, failure);
            }
            // The program did not answer the request in the time that we promised to the peer. Not "timeout", which is known by
            // the sender's id (IBTA vol. 1, 12.6.7.2: 4): the peer has not been told ours yet, and Linux would miss it.
            State::ReqRcvd | State::MraReqSent => {
                self.send_rej(id, RejectReason::Consumer, &[], &[]);
                self.fail(now, id, Failure::Deadline);
            }
        }
    }

    /// Puts the connection's next timeout into the table.
    fn schedule(&mut self, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let next = conn.next_timeout();
        if conn.scheduled == next {
            return;
        }
        if let Some(at) = conn.scheduled.take() {
            self.timers.remove(&(at, id));
        }
        if let Some(at) = next {
            self.timers.insert((at, id));
        }
        conn.scheduled = next;
    }

    fn transmit(&mut self, transmit: Transmit) {
        if self.transmits.len() >= MAX_TRANSMITS {
            self.transmits.pop_front();
        }
        self.transmits.push_back(transmit);
    }

    /// Sends to a connection's peer.
    fn send(&mut self, id: CommId, mad: Mad) {
        if let Some(conn) = self.conns.get(&id) {
            let path = conn.path;
            self.transmit(Transmit { path, mad });
        }
    }

    /// Sends what needs an answer, again and again.
    fn send_until_answered(&mut self, now: Instant, id: CommId, mad: Mad) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.unanswered = Some(mad.clone());
            conn.tries = 0;
            conn.timer = Some(now + conn.interval);
        }
        self.send(id, mad);
    }

    /// Tells the program of a connection that it has not let go of.
    fn tell(&mut self, id: CommId, event: MachineEvent) {
        if self.conns.get(&id).is_some_and(|conn| !conn.orphan) {
            self.events.push_back(event);
        }
    }

    /// An unused communication id.
    fn fresh_id(&mut self) -> CommId {
        loop {
            let id = CommId((self.random)());
            if id.0 != 0 && !self.conns.contains_key(&id) && !self.sidr.has(id) {
                return id;
            }
        }
    }

    fn fresh_transaction(&mut self) -> u64 {
        u64::from((self.random)()) << 32 | u64::from((self.random)())
    }

    /// Rejects what the peer of a connection waits for.
    fn send_rej(&mut self, id: CommId, reason: RejectReason, info: &[u8], private_data: &[u8]) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        // The peer may not know our id yet: our GUID with its id tells it what is meant (IBTA vol. 1, 12.6.7.2).
        let guid = self.config.ca_guid.to_be_bytes();
        let timeout = reason == RejectReason::Timeout;
        let info = if timeout { &guid[..] } else { info };
        let of = match conn.state {
            State::ReqRcvd | State::MraReqSent => OF_REQ,
            State::RepRcvd | State::MraRepSent => OF_REP,
            _ => OF_OTHER,
        };
        let rejection = Rejection {
            transaction_id: conn.transaction_id,
            // A REQ that is rejected has been given no id of ours yet.
            local: if of == OF_REQ { 0 } else { id.0 },
            remote: conn.remote.map_or(0, |id| id.0),
            of,
            reason,
            info,
            private_data,
        };
        match build::rej(&rejection) {
            Ok(mad) => self.send(id, mad),
            Err(error) => log::debug!("a REJ was not sent: {error}"),
        }
    }

    /// Ends a connection that was not to be. Where the queue pairs may be joined already, packets may be under way.
    fn fail(&mut self, now: Instant, id: CommId, failure: Failure) {
        self.tell(id, MachineEvent::Failed(id, failure));
        let state = self.conns.get(&id).map(|conn| conn.state);
        if let Some(State::RepSent | State::RepRcvd | State::MraRepSent) = state {
            self.enter_time_wait(now, id);
        } else {
            self.forget(id, None);
        }
    }

    /// The connection is over; packets may still be under way.
    fn disconnected(&mut self, now: Instant, id: CommId, cause: DisconnectCause) {
        self.tell(id, MachineEvent::Disconnected(id, cause));
        self.enter_time_wait(now, id);
    }

    fn enter_time_wait(&mut self, now: Instant, id: CommId) {
        self.unlist(id);
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.quiet();
            conn.state = State::TimeWait;
            conn.timer = Some(now + conn.time_wait);
        }
        self.schedule(id);
    }

    /// Takes a connection out of the tables by which a peer's new one is recognised as old.
    fn unlist(&mut self, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if let Some(service) = conn.waits_at.take()
            && let Some(listener) = self.listeners.get_mut(&service)
        {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
        if let Some(remote) = conn.remote {
            remove_own(&mut self.by_remote_id, (conn.remote_guid, remote), id);
        }
        remove_own(&mut self.by_remote_qpn, (conn.remote_guid, conn.remote_qpn), id);
    }

    fn forget(&mut self, id: CommId, event: Option<MachineEvent>) {
        self.unlist(id);
        if let Some(conn) = self.conns.remove(&id)
            && let Some(at) = conn.scheduled
        {
            self.timers.remove(&(at, id));
        }
        self.events.extend(event);
    }
}

/// Removes an entry, unless it is another connection's by now.
fn remove_own<K: std::hash::Hash + Eq>(table: &mut HashMap<K, CommId>, key: K, id: CommId) {
    if table.get(&key) == Some(&id) {
        table.remove(&key);
    }
}

#[cfg(test)]
mod tests;
