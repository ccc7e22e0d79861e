//! What the machine does with the datagrams that peers send. Nothing in them is trusted.

use std::time::Instant;

use super::Machine;
use super::build::{self, OF_REP, OF_REQ, Rejection, mtu_from};
use super::calls::time_wait;
use super::conn::{Conn, State};
use super::types::{
    Accepted, CommId, DisconnectCause, Failure, MachineEvent, Requested, TimeCode, Transmit, Transport,
};
use crate::cm::mad::{
    self, CmMessage, DrepMsg, DreqMsg, LapMsg, Message, MraMsg, RejMsg, RejectReason, RepMsg, ReqMsg, RtuMsg,
    ServiceId,
};
use crate::verbs::Path;

impl Machine {
    /// A datagram has come to QP 1. `from` is the way back to its sender.
    pub fn handle_mad(&mut self, now: Instant, from: &Path, bytes: &[u8]) {
        self.counters.received += 1;
        let message = match mad::parse(bytes) {
            Ok(message) => message,
            Err(error) => {
                self.counters.malformed += 1;
                log::debug!("from {}: {error}", from.dgid);
                return;
            }
        };
        log::trace!("{} from {}", message.name(), from.dgid);
        match message {
            Message::Req(req) => self.req(now, from, req),
            Message::Mra(mra) => self.mra(now, from, mra),
            Message::Rej(rej) => self.rej(now, from, rej),
            Message::Rep(rep) => self.rep(now, from, rep),
            Message::Rtu(rtu) => self.rtu(from, rtu),
            Message::Dreq(dreq) => self.dreq(now, from, dreq),
            Message::Drep(drep) => self.drep(now, from, drep),
            Message::SidrReq(req) => self.sidr_req(now, from, req),
            Message::SidrRep(rep) => self.sidr_rep(now, from, rep),
            Message::Lap(lap) => self.lap(from, lap),
            // We send no LAP.
            Message::Apr(_) => self.counters.strangers += 1,
        }
    }

    /// The connection that a message is for: of that id, with that peer's address and, where it is known, its id.
    fn find(&mut self, from: &Path, local: u32, remote: Option<u32>) -> Option<CommId> {
        let id = CommId(local);
        let found = self.conns.get(&id).is_some_and(|conn| {
            conn.path.dgid == from.dgid && remote.is_none_or(|remote| conn.remote == Some(CommId(remote)))
        });
        if !found {
            self.counters.strangers += 1;
        }
        found.then_some(id)
    }

    fn answer_again(&mut self, id: CommId) {
        self.counters.duplicates += 1;
        if let Some(mad) = self.conns.get(&id).and_then(|conn| conn.answer.clone()) {
            self.send(id, mad);
        }
    }

    // REQ.

    fn req(&mut self, now: Instant, from: &Path, req: &ReqMsg) {
        let (guid, remote) = (req.local_ca_guid(), CommId(req.local_comm_id()));
        let stale = match self.by_remote_id.get(&(guid, remote)).copied() {
            Some(id) if self.is_of(id, req) => return self.req_again(now, id),
            known => self.stale(known, guid, req.local_qpn()),
        };
        if stale != [None; 2] {
            log::info!(
                "{}: queue pair {:#x} or id {:#x} has started afresh",
                from.dgid,
                req.local_qpn(),
                remote.0
            );
            self.reject_req(from, req, RejectReason::StaleConnection, &[]);
            return stale.into_iter().flatten().for_each(|id| self.end_stale(now, id));
        }
        let service = ServiceId(req.service_id());
        let Some(listener) = self.listeners.get(&service).copied() else {
            return self.reject_req(from, req, RejectReason::InvalidServiceId, &[]);
        };
        if listener.waiting >= listener.backlog || self.check_room().is_err() {
            // The peer will ask again.
            self.counters.dropped += 1;
            return;
        }
        match requested(from, req) {
            Ok(requested) => self.add_requested(now, req, requested),
            Err(reason) => self.reject_req(from, req, reason, &[]),
        }
    }

    /// Whether a connection was asked for by this very REQ. A peer that was started anew may use an id again, by chance or
    /// since it counts; not all of these are then the same (IBTA vol. 1, 12.9.8.3.1).
    fn is_of(&self, id: CommId, req: &ReqMsg) -> bool {
        let asked = (
            req.mad_header().transaction_id(),
            req.local_qpn(),
            req.starting_psn(),
        );
        self.conns
            .get(&id)
            .is_some_and(|conn| (conn.transaction_id, conn.remote_qpn, conn.remote_psn) == asked)
    }

    /// The connections that can be no more, since their peer has begun another with the same id (`known`) or queue pair.
    fn stale(&self, known: Option<CommId>, guid: u64, qpn: u32) -> [Option<CommId>; 2] {
        let joined = self.by_remote_qpn.get(&(guid, qpn)).copied();
        [known, joined.filter(|id| known != Some(*id))]
    }

    fn add_requested(&mut self, now: Instant, req: &ReqMsg, requested: Requested) {
        let id = self.fresh_id();
        let remote = CommId(req.local_comm_id());
        let conn = Conn {
            state: State::ReqRcvd,
            path: requested.path,
            remote: Some(remote),
            remote_guid: requested.remote_guid,
            remote_qpn: requested.remote_qpn,
            remote_psn: requested.psn,
            local_qpn: 0,
            transaction_id: req.mad_header().transaction_id(),
            unanswered: None,
            answer: None,
            interval: TimeCode::new(req.local_cm_response_timeout())
                .duration()
                .max(self.config.response_timeout.duration() / 8)
                .min(self.config.patience),
            tries: 0,
            max_tries: req.max_cm_retries(),
            repeats: 0,
            timer: Some(now + self.config.service_timeout.duration()),
            deadline: None,
            scheduled: None,
            time_wait: time_wait(requested.ack_timeout),
            alternate: req.alternate_local_port_gid() != 0 || req.alternate_local_port_lid() != 0,
            orphan: false,
            waits_at: Some(requested.service_id),
        };
        if let Some(listener) = self.listeners.get_mut(&requested.service_id) {
            listener.waiting += 1;
        }
        self.by_remote_id.insert((conn.remote_guid, remote), id);
        self.by_remote_qpn.insert((conn.remote_guid, conn.remote_qpn), id);
        self.conns.insert(id, conn);
        self.schedule(id);
        self.tell(id, MachineEvent::Requested(id, Box::new(requested)));
    }

    fn req_again(&mut self, now: Instant, id: CommId) {
        match self.conns.get(&id).map(|conn| conn.state) {
            Some(State::ReqRcvd) => {
                let tries = self.conns.get(&id).map_or(0, |conn| conn.max_tries);
                self.ask_for_time_in_time(now, id, tries);
            }
            Some(State::MraReqSent) => self.answer_again(id),
            // A REP is being repeated anyway, or has been answered.
            _ => self.counters.duplicates += 1,
        }
    }

    /// The peer has repeated what the program is at: asks it for more time when half of its tries are used up. Not before,
    /// for it is patient then: an RTU or REJ that got lost would not be missed for long.
    fn ask_for_time_in_time(&mut self, now: Instant, id: CommId, tries: u8) {
        self.counters.duplicates += 1;
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.repeats = conn.repeats.saturating_add(1);
        if conn.repeats >= tries.div_ceil(2) {
            let asked = self.ask_for_time(now, id, self.config.service_timeout);
            debug_assert!(asked.is_ok(), "{asked:?}");
        }
    }

    /// Rejects a REQ for which there is no connection here.
    fn reject_req(&mut self, from: &Path, req: &ReqMsg, reason: RejectReason, info: &[u8]) {
        let transaction_id = req.mad_header().transaction_id();
        self.reject_with(
            from,
            transaction_id,
            (0, req.local_comm_id()),
            OF_REQ,
            reason,
            info,
        );
    }

    fn reject_with(
        &mut self,
        to: &Path,
        transaction_id: u64,
        (local, remote): (u32, u32),
        of: u8,
        reason: RejectReason,
        info: &[u8],
    ) {
        let rejection = Rejection {
            transaction_id,
            local,
            remote,
            of,
            reason,
            info,
            private_data: &[],
        };
        if let Ok(mad) = build::rej(&rejection) {
            self.transmit(Transmit { path: *to, mad });
        }
    }

    // REP and RTU.

    fn rep(&mut self, now: Instant, from: &Path, rep: &RepMsg) {
        let ids = (rep.remote_comm_id(), rep.local_comm_id());
        let transaction_id = rep.mad_header().transaction_id();
        let Some(id) = self.find(from, ids.0, None) else {
            // Whoever has accepted must not wait for us (IBTA vol. 1, 12.6.7.2: 6).
            let reason = RejectReason::InvalidCommunicationId;
            return self.reject_with(from, transaction_id, ids, OF_REP, reason, &[]);
        };
        let remote = CommId(ids.1);
        match self.conns.get(&id).map(|conn| (conn.state, conn.remote)) {
            Some((State::ReqSent, _)) => self.rep_first(now, from, id, rep),
            // The peer repeats it as often as our REQ has said.
            Some((State::RepRcvd, Some(known))) if known == remote => {
                self.ask_for_time_in_time(now, id, self.config.max_retries);
            }
            // An RTU or MRA was lost.
            Some((State::MraRepSent | State::Established, Some(known))) if known == remote => {
                self.answer_again(id);
            }
            _ => self.counters.duplicates += 1,
        }
    }

    fn rep_first(&mut self, now: Instant, from: &Path, id: CommId, rep: &RepMsg) {
        let (guid, remote, qpn) = (rep.local_ca_guid(), CommId(rep.local_comm_id()), rep.local_qpn());
        // A REP that comes again names an id of ours that has had it: what the peer's id means here is an older life's.
        let known = self.by_remote_id.get(&(guid, remote)).copied();
        let stale = self.stale(known, guid, qpn);
        if stale != [None; 2] {
            log::info!(
                "{}: queue pair {qpn:#x} or id {:#x} has started afresh",
                from.dgid,
                remote.0
            );
            // Our REQ is repeated, and accepted anew when the old connection is gone.
            let transaction_id = rep.mad_header().transaction_id();
            let reason = RejectReason::StaleConnection;
            self.reject_with(from, transaction_id, (id.0, remote.0), OF_REP, reason, &[]);
            return stale
                .into_iter()
                .flatten()
                .for_each(|old| self.end_stale(now, old));
        }
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let deadline = conn.deadline;
        conn.quiet();
        conn.deadline = deadline;
        conn.state = State::RepRcvd;
        (conn.remote, conn.remote_guid, conn.remote_qpn) = (Some(remote), guid, qpn);
        conn.remote_psn = rep.starting_psn();
        // The program that was told of the acceptance is not waited for forever.
        conn.timer = Some(now + self.config.service_timeout.duration());
        self.by_remote_id.insert((guid, remote), id);
        self.by_remote_qpn.insert((guid, qpn), id);
        self.schedule(id);
        let accepted = Accepted {
            remote_qpn: qpn,
            psn: rep.starting_psn(),
            responder_resources: rep.responder_resources(),
            initiator_depth: rep.initiator_depth(),
            rnr_retry: rep.rnr_retry_count(),
            ack_delay: TimeCode::new(rep.target_ack_delay()),
            srq: rep.srq(),
            private_data: rep.private().into(),
        };
        self.tell(id, MachineEvent::Accepted(id, Box::new(accepted)));
    }

    fn rtu(&mut self, from: &Path, rtu: &RtuMsg) {
        let Some(id) = self.find(from, rtu.remote_comm_id(), Some(rtu.local_comm_id())) else {
            return;
        };
        match self.conns.get(&id).map(|conn| conn.state) {
            Some(State::RepSent) => self.established(id),
            _ => self.counters.duplicates += 1,
        }
    }

    // MRA and REJ.

    fn mra(&mut self, now: Instant, from: &Path, mra: &MraMsg) {
        let remote = (mra.message_mraed() != OF_REQ).then_some(mra.local_comm_id());
        let Some(id) = self.find(from, mra.remote_comm_id(), remote) else {
            return;
        };
        let patience = self.config.patience;
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if let (State::ReqSent, OF_REQ) | (State::RepSent, OF_REP) = (conn.state, mra.message_mraed()) {
            let time = TimeCode::new(mra.service_timeout()).duration() + conn.interval;
            conn.timer = Some(now + time.min(patience));
            self.schedule(id);
        } else {
            self.counters.duplicates += 1;
        }
    }

    fn rej(&mut self, now: Instant, from: &Path, rej: &RejMsg) {
        let reason = RejectReason::from_code(rej.reason());
        let Some(id) = self.find_rejected(from, rej, reason) else {
            return;
        };
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let rejected = |rej: &RejMsg| Failure::Rejected {
            reason,
            info: (0..usize::from(rej.rejected_info_length()).min(72))
                .map(|i| rej.ari(i))
                .collect(),
            private_data: rej.private().into(),
        };
        match conn.state {
            State::ReqSent
            | State::RepSent
            | State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent => self.fail(now, id, rejected(rej)),
            State::Established => self.disconnected(now, id, DisconnectCause::Rejected(reason)),
            State::DreqSent => self.disconnected(now, id, DisconnectCause::Local),
            State::TimeWait => self.counters.duplicates += 1,
        }
    }

    /// The connection that is rejected. A peer that gave up may not know our id (IBTA vol. 1, 12.6.7.2: 4).
    fn find_rejected(&mut self, from: &Path, rej: &RejMsg, reason: RejectReason) -> Option<CommId> {
        let (local, remote) = (rej.remote_comm_id(), rej.local_comm_id());
        if reason == RejectReason::Timeout && rej.rejected_info_length() >= 8 {
            let guid = u64::from_be_bytes(std::array::from_fn(|i| rej.ari(i)));
            let id = self.by_remote_id.get(&(guid, CommId(remote))).copied();
            if let Some(id) = id {
                return self.find(from, id.0, Some(remote));
            }
        }
        // What rejects a REQ has no id of its own to be told.
        let remote = (rej.message_rejected() != OF_REQ).then_some(remote);
        let id = self.find(from, local, None)?;
        let known = self.conns.get(&id)?.remote;
        // Before the REP there is no id to compare with.
        let fits = match (remote, known) {
            (Some(remote), Some(known)) => CommId(remote) == known,
            _ => true,
        };
        if !fits {
            self.counters.strangers += 1;
        }
        fits.then_some(id)
    }

    // DREQ and DREP.

    fn dreq(&mut self, now: Instant, from: &Path, dreq: &DreqMsg) {
        let (local, remote) = (dreq.remote_comm_id(), dreq.local_comm_id());
        let transaction_id = dreq.mad_header().transaction_id();
        let mad = build::drep(local, remote, transaction_id);
        let Some(id) = self.find(from, local, Some(remote)) else {
            // Whoever ends a connection that is not here must not wait for us.
            return self.transmit(Transmit { path: *from, mad });
        };
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        if conn.local_qpn != dreq.remote_qpn_eecn() {
            self.counters.strangers += 1;
            return;
        }
        let state = conn.state;
        match state {
            State::Established | State::RepSent | State::DreqSent => {
                conn.answer = Some(mad.clone());
                self.send(id, mad);
                if state == State::RepSent {
                    // The peer took the connection for established and has ended it: so it was.
                    self.established(id);
                }
                let cause = if state == State::DreqSent {
                    DisconnectCause::Local
                } else {
                    DisconnectCause::Peer
                };
                self.disconnected(now, id, cause);
            }
            State::TimeWait => {
                self.counters.duplicates += 1;
                self.send(id, mad);
            }
            // It can't end what was not confirmed.
            _ => self.counters.strangers += 1,
        }
    }

    fn drep(&mut self, now: Instant, from: &Path, drep: &DrepMsg) {
        let Some(id) = self.find(from, drep.remote_comm_id(), Some(drep.local_comm_id())) else {
            return;
        };
        match self.conns.get(&id).map(|conn| conn.state) {
            Some(State::DreqSent) => self.disconnected(now, id, DisconnectCause::Local),
            _ => self.counters.duplicates += 1,
        }
    }

    /// Alternate paths are not offered; Linux has none for RoCE either, but does not say so.
    fn lap(&mut self, from: &Path, lap: &LapMsg) {
        let (local, remote) = (lap.remote_comm_id(), lap.local_comm_id());
        let status = match self.find(from, local, Some(remote)) {
            Some(_) => build::APR_UNSUPPORTED,
            None => build::APR_INVALID_COMM_ID,
        };
        let mad = build::apr(local, remote, lap.mad_header().transaction_id(), status);
        self.transmit(Transmit { path: *from, mad });
    }
}

/// What a REQ asks for, or why it can't be had.
fn requested(from: &Path, req: &ReqMsg) -> Result<Requested, RejectReason> {
    let transport = Transport::from_code(req.transport_service_type())
        .ok_or(RejectReason::InvalidTransportServiceType)?;
    let mtu = mtu_from(req.path_packet_payload_mtu()).ok_or(RejectReason::InvalidMtu)?;
    // Whoever sends from one address and connects from another would let a third party be connected.
    if req.primary_local_port_gid().to_be_bytes() != from.dgid.0 {
        return Err(RejectReason::PrimaryGid);
    }
    let mut private_data = [0; 92];
    private_data.copy_from_slice(req.private());
    let path = Path {
        traffic_class: req.primary_traffic_class(),
        flow_label: req.primary_flow_label(),
        priority: req.primary_sl().min(7),
        ..*from
    };
    Ok(Requested {
        service_id: ServiceId(req.service_id()),
        path,
        transport,
        remote_guid: req.local_ca_guid(),
        remote_qpn: req.local_qpn(),
        psn: req.starting_psn(),
        mtu,
        responder_resources: req.responder_resources(),
        initiator_depth: req.initiator_depth(),
        ack_timeout: TimeCode::new(req.primary_local_ack_timeout()),
        retry_count: req.retry_count(),
        rnr_retry: req.rnr_retry_count(),
        srq: req.srq(),
        private_data,
    })
}
