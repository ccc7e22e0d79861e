//! Where a datagram service's queue pair is found: SIDR (IBTA vol. 1, 12.11).

use std::collections::HashMap;
use std::time::Instant;

use super::Machine;
use super::build::{self, Mad};
use super::types::{CommId, MachineError, MachineEvent, SidrAnswer, SidrFailure, SidrRequested, Transmit};
use crate::cm::mad::{CmMessage, ServiceId, SidrRepMsg, SidrReqMsg, SidrStatus};
use crate::gid::Gid;
use crate::verbs::Path;

/// What this side has asked, and what it was asked.
#[derive(Debug, Default)]
pub(super) struct Sidr {
    asked: HashMap<CommId, Asked>,
    requests: HashMap<CommId, Request>,
    /// By the peer's address and request id.
    by_remote: HashMap<(Gid, u32), CommId>,
}

#[derive(Debug)]
struct Asked {
    path: Path,
    mad: Mad,
    tries: u8,
    at: Instant,
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Request {
    path: Path,
    remote: u32,
    transaction_id: u64,
    service_id: ServiceId,
    /// Kept for a while, for the request may come again.
    answer: Option<Mad>,
    expires: Instant,
}

impl Sidr {
    pub(super) fn has(&self, id: CommId) -> bool {
        self.asked.contains_key(&id) || self.requests.contains_key(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.requests.is_empty() && self.by_remote.is_empty()
    }

    /// Whether a peer waits for that answer.
    pub(super) fn is_asked(&self, id: CommId) -> bool {
        self.requests.contains_key(&id)
    }
}

impl Machine {
    /// Asks a peer for a datagram service's queue pair. [`MachineEvent::SidrAnswered`] will follow.
    ///
    /// # Errors
    /// [`MachineError`]; nothing was sent.
    pub fn sidr_request(
        &mut self,
        now: Instant,
        path: &Path,
        service: ServiceId,
        private_data: &[u8],
        deadline: Option<Instant>,
    ) -> Result<CommId, MachineError> {
        self.check_sidr_room(self.sidr.asked.len())?;
        let (id, transaction_id) = (self.fresh_id(), self.fresh_transaction());
        let mad = build::sidr_req(id, transaction_id, service.0, private_data)?;
        let at = now + self.config.response_timeout.duration();
        let asked = Asked {
            path: *path,
            mad: mad.clone(),
            tries: 0,
            at: deadline.map_or(at, |deadline| at.min(deadline)),
            deadline,
        };
        self.timers.insert((asked.at, id));
        self.sidr.asked.insert(id, asked);
        self.transmit(Transmit { path: *path, mad });
        Ok(id)
    }

    /// Peers' requests and this side's own have room of their own: nobody else can use up ours.
    fn check_sidr_room(&self, have: usize) -> Result<(), MachineError> {
        let max = self.config.max_sidr;
        if have >= max {
            let what = "requests for datagram services";
            return Err(MachineError::Full { what, max });
        }
        Ok(())
    }

    /// Answers a peer that asks for a datagram service's queue pair.
    ///
    /// # Errors
    /// [`MachineError::Unknown`] if the request has expired, or a value doesn't fit.
    pub fn sidr_reply(
        &mut self,
        now: Instant,
        id: CommId,
        answer: Result<&SidrAnswer, SidrStatus>,
    ) -> Result<(), MachineError> {
        let Some(request) = self.sidr.requests.get_mut(&id) else {
            return Err(MachineError::Unknown(id.0));
        };
        let mad = build::sidr_rep(
            request.remote,
            request.transaction_id,
            request.service_id.0,
            answer,
        )?;
        request.answer = Some(mad.clone());
        // As long as the peer may ask again.
        let path = request.path;
        self.timers.remove(&(request.expires, id));
        request.expires = now + self.config.response_timeout.duration() * 4;
        self.timers.insert((request.expires, id));
        self.transmit(Transmit { path, mad });
        Ok(())
    }

    /// The program no longer wants an answer.
    pub fn sidr_abandon(&mut self, id: CommId) {
        if let Some(asked) = self.sidr.asked.remove(&id) {
            self.timers.remove(&(asked.at, id));
        }
    }

    pub(super) fn sidr_req(&mut self, now: Instant, from: &Path, req: &SidrReqMsg) {
        let (remote, service_id) = (req.request_id(), ServiceId(req.service_id()));
        let transaction_id = req.mad_header().transaction_id();
        if let Some(id) = self.sidr.by_remote.get(&(from.dgid, remote)) {
            self.counters.duplicates += 1;
            let known = self.sidr.requests.get(id);
            if let Some((path, mad)) = known.and_then(|known| Some((known.path, known.answer.clone()?))) {
                self.transmit(Transmit { path, mad });
            }
            return;
        }
        if !self.listeners.contains_key(&service_id) {
            let status = SidrStatus::ServiceIdNotSupported;
            if let Ok(mad) = build::sidr_rep(remote, transaction_id, service_id.0, Err(status)) {
                self.transmit(Transmit { path: *from, mad });
            }
            return;
        }
        if self.check_sidr_room(self.sidr.requests.len()).is_err() {
            self.counters.dropped += 1;
            return;
        }
        let id = self.fresh_id();
        let request = Request {
            path: *from,
            remote,
            transaction_id,
            service_id,
            answer: None,
            expires: now + self.config.service_timeout.duration(),
        };
        self.timers.insert((request.expires, id));
        self.sidr.requests.insert(id, request);
        self.sidr.by_remote.insert((from.dgid, remote), id);
        let requested = SidrRequested {
            service_id,
            path: *from,
            private_data: req.private().into(),
        };
        self.events
            .push_back(MachineEvent::SidrRequested(id, Box::new(requested)));
    }

    pub(super) fn sidr_rep(&mut self, _now: Instant, from: &Path, rep: &SidrRepMsg) {
        let id = CommId(rep.request_id());
        let ours = self
            .sidr
            .asked
            .get(&id)
            .is_some_and(|asked| asked.path.dgid == from.dgid);
        if !ours {
            self.counters.strangers += 1;
            return;
        }
        self.sidr_abandon(id);
        let private_data = rep.private().into();
        let answer = match SidrStatus::from_code(rep.status()) {
            SidrStatus::Valid => Ok(SidrAnswer {
                qpn: rep.qpn(),
                qkey: rep.q_key(),
                private_data,
            }),
            status => Err(SidrFailure::Refused { status, private_data }),
        };
        self.events.push_back(MachineEvent::SidrAnswered(id, answer));
    }

    pub(super) fn sidr_timeout(&mut self, now: Instant, id: CommId) {
        if let Some(request) = self.sidr.requests.remove(&id) {
            self.sidr.by_remote.remove(&(request.path.dgid, request.remote));
            return;
        }
        let Some(asked) = self.sidr.asked.get_mut(&id) else {
            return;
        };
        let late = asked.deadline.is_some_and(|deadline| deadline <= now);
        if late || asked.tries >= self.config.max_retries {
            let tries = asked.tries + 1;
            let failure = if late {
                SidrFailure::Deadline
            } else {
                SidrFailure::NoAnswer { tries }
            };
            self.sidr.asked.remove(&id);
            self.events
                .push_back(MachineEvent::SidrAnswered(id, Err(failure)));
            return;
        }
        asked.tries += 1;
        let at = now + self.config.response_timeout.duration();
        asked.at = asked.deadline.map_or(at, |deadline| at.min(deadline));
        self.timers.insert((asked.at, id));
        let (path, mad) = (asked.path, asked.mad.clone());
        self.counters.retries += 1;
        self.transmit(Transmit { path, mad });
    }
}
