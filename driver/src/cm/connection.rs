//! Connections, and those that are being made by this side.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_hw_regs::ids::Qpn;

use super::cell::Cell;
use super::error::{ConnectError, DisconnectError, PrivateDataError, Stopped, WaitError};
use super::machine::{Accepted, CommId, ConnectRequest, DisconnectCause, TimeCode, Transport};
use super::mad::{IpHeader, PortSpace, RejectReason, ServiceId};
use super::manager::Manager;
use super::params::Params;
use super::resolver::ResolveError;
use super::shared::{News, PathChange, Shared};
use crate::context::Context;
use crate::verbs::{Mtu, Path, Qp, QpState, QpType, ToInit, ToRtr, ToRts};

/// User bytes of a request's private data: 92, less the RDMA CM header's 36.
pub(super) const REQ_DATA: usize = 56;
/// How long after a deadline the machine's word on it is waited for.
const GRACE: Duration = Duration::from_secs(1);

/// What happened to a connection.
///
/// | event | what may follow |
/// | --- | --- |
/// | `PathLost` | anything; the queue pair's requests may fail with "retry exceeded" |
/// | `Disconnected` | `PathLost` no more, `Stopped` perhaps |
/// | `Stopped` | nothing |
///
/// There is nothing to acknowledge.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The connection has ended. The queue pair is in ERR: what was outstanding is flushed.
    Disconnected(DisconnectCause),
    /// The peer's MAC address has changed, or nobody answers for its address any more. The connection stays, and may even
    /// work where the change was told too early; a queue pair can't be told of a new way, so that it has to be connected
    /// anew to follow.
    PathLost(PathChange),
    /// The manager has ended, and knows no more of the connection.
    Stopped(Stopped),
}

/// A connection, and its queue pair.
///
/// Dropping it ends it: the peer is told, and the queue pair is taken back without waiting. What its queues still
/// had outstanding does not complete then; [`Connection::disconnect`] and draining the queue pair come before.
pub struct Connection {
    id: CommId,
    cell: Arc<Cell<News>>,
    /// Taken out when dropped.
    qp: Option<Qp>,
    path: Path,
    remote: SocketAddr,
    private_data: Box<[u8]>,
    ended: Option<DisconnectCause>,
    stopped: Option<Stopped>,
    manager: Manager,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id)
            .field("remote", &self.remote)
            .field("qp", &self.qp)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// What a connection is made of.
pub(super) struct Parts {
    pub(super) manager: Manager,
    pub(super) id: CommId,
    pub(super) cell: Arc<Cell<News>>,
    pub(super) qp: Qp,
    pub(super) path: Path,
    pub(super) remote: SocketAddr,
    pub(super) private_data: Box<[u8]>,
}

impl Connection {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            manager,
            id,
            cell,
            qp,
            path,
            remote,
            private_data,
        } = parts;
        Self {
            id,
            cell,
            qp: Some(qp),
            path,
            remote,
            private_data,
            ended: None,
            stopped: None,
            manager,
        }
    }

    /// The queue pair.
    ///
    /// # Panics
    /// Never: it is there as long as the connection is.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        // PANIC: taken out in `drop` only.
        self.qp.as_ref().unwrap_or_else(|| unreachable!())
    }

    /// The queue pair, to post to it.
    ///
    /// # Panics
    /// Never: it is there as long as the connection is.
    #[must_use]
    pub fn qp_mut(&mut self) -> &mut Qp {
        // PANIC: taken out in `drop` only.
        self.qp.as_mut().unwrap_or_else(|| unreachable!())
    }

    /// The peer's address, and the port that it uses or says that it uses.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.remote
    }

    /// This side's address.
    #[must_use]
    pub fn local_address(&self) -> Option<IpAddr> {
        let entry = self.manager.context().gids().get(self.path.sgid_index)?;
        Some(entry.gid.to_ip())
    }

    /// The way to the peer.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the peer's program has said: always the whole area of the message (56 bytes of a request, 196 of an acceptance),
    /// with zeros after what it gave. The wire does not tell how many it gave; programs that need it say it within.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// How the connection has ended, if it is known to have.
    #[must_use]
    pub fn ended(&self) -> Option<DisconnectCause> {
        self.ended
    }

    /// The next event, if there is one. With [`Event::Disconnected`] the queue pair goes to ERR.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let news = self.cell.pop()?;
            if let Some(event) = self.event(news) {
                return Some(event);
            }
        }
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`WaitError::Deadline`].
    pub fn wait_event(&mut self, deadline: Instant) -> Result<Event, WaitError> {
        if let Some(stopped) = &self.stopped {
            return Err(stopped.clone().into());
        }
        loop {
            let news = self.cell.wait(Some(deadline)).ok_or(WaitError::Deadline)?;
            if let Some(event) = self.event(news) {
                return Ok(event);
            }
        }
    }

    /// What is readable while there are events, for any event loop. Not to be read from. Made when it is first asked for.
    ///
    /// # Errors
    /// The system has no more file descriptors.
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.cell.fd()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn cell(&self) -> &Cell<News> {
        &self.cell
    }

    fn event(&mut self, news: News) -> Option<Event> {
        match news {
            News::Disconnected(cause) => {
                self.ended = Some(cause);
                let qp = self.qp_mut();
                if qp.state() != QpState::Err
                    && let Err(error) = qp.modify_to_err()
                {
                    log::debug!("{}: {error}", qp.qpn());
                }
                Some(Event::Disconnected(cause))
            }
            News::PathLost(change) => Some(Event::PathLost(change)),
            News::Stopped(stopped) => {
                self.stopped = Some(stopped.clone());
                Some(Event::Stopped(stopped))
            }
            // Of the time before the connection.
            _ => None,
        }
    }

    /// Ends the connection without waiting for the peer: brings the queue pair to ERR and tells the peer. An
    /// [`Event::Disconnected`] will follow, at the deadline at the latest. Nothing happens if it has ended.
    ///
    /// # Errors
    /// [`DisconnectError`]; the peer is told in any case.
    pub fn start_disconnect(&mut self, deadline: Instant) -> Result<(), DisconnectError> {
        let qp = self.qp_mut();
        let modified = if qp.state() == QpState::Err {
            Ok(())
        } else {
            qp.modify_to_err()
        };
        let shared = &self.manager.inner.shared;
        let told = shared.running().map(|mut core| {
            // An error means that the peer was first.
            core.machine
                .disconnect(Instant::now(), self.id, &[], Some(deadline))
        });
        shared.wake();
        if let Err(error) = told? {
            log::debug!("{error}");
        }
        Ok(modified?)
    }

    /// Ends the connection: brings the queue pair to ERR, tells the peer, and waits until it knows. What was outstanding is
    /// flushed; poll the completion queues, or call [`Qp::drain`], to get buffers back before the connection is dropped.
    ///
    /// # Errors
    /// [`DisconnectError::NoAnswer`] if the peer did not answer; this side's connection is over all the same.
    pub fn disconnect(&mut self, deadline: Instant) -> Result<(), DisconnectError> {
        if self.ended.is_none() {
            self.start_disconnect(deadline)?;
        }
        while self.ended.is_none() {
            match self.wait_event(deadline + GRACE) {
                Ok(Event::Stopped(stopped)) | Err(WaitError::Stopped(stopped)) => return Err(stopped.into()),
                Ok(_) => {}
                Err(WaitError::Deadline) => return Err(DisconnectError::NoAnswer),
            }
        }
        match self.ended {
            Some(DisconnectCause::NoAnswer) => Err(DisconnectError::NoAnswer),
            _ => Ok(()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.manager.inner.shared.abandon(self.id, self.qp.take());
    }
}

/// What a queue pair must be to be connected.
pub(super) fn check_qp(qp: &Qp, context: &Arc<Context>) -> Result<Transport, ConnectError> {
    if !Arc::ptr_eq(qp.pd().context(), context) {
        return Err(ConnectError::OtherDevice);
    }
    let transport = match qp.qp_type() {
        QpType::Rc => Transport::Rc,
        QpType::Uc => Transport::Uc,
        qp_type => return Err(ConnectError::QpType { qp_type }),
    };
    match qp.state() {
        QpState::Reset | QpState::Init => Ok(transport),
        state => Err(ConnectError::QpState { state }),
    }
}

/// Brings a queue pair to INIT, if it isn't there.
pub(super) fn to_init(qp: &mut Qp, params: &Params) -> Result<(), ConnectError> {
    if qp.state() == QpState::Reset {
        let access = params.access;
        qp.modify_to_init(&ToInit {
            access,
            ..ToInit::default()
        })?;
    }
    Ok(())
}

/// Most READs and atomics at a time, within what the device can: (answered, asked).
pub(super) fn depths(params: &Params, context: &Context) -> (u8, u8) {
    let general = context.caps().general();
    let most = |log: u8| 1u8 << log.min(7);
    (
        params.responder_resources.min(most(general.log_max_ra_res_qp())),
        params.initiator_depth.min(most(general.log_max_ra_req_qp())),
    )
}

/// What both sides have agreed on, for the queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    pub(super) path: Path,
    pub(super) mtu: Mtu,
    pub(super) remote_qpn: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) ack_timeout: TimeCode,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer: u8,
}

/// Brings a queue pair from INIT to RTS.
pub(super) fn to_rts(qp: &mut Qp, agreed: &Agreed) -> Result<(), ConnectError> {
    let remote = Qpn::from_low_bits(agreed.remote_qpn);
    let (mut rtr, mut rts) = if qp.qp_type() == QpType::Uc {
        (
            ToRtr::uc(agreed.path, remote, agreed.rq_psn),
            ToRts::uc(agreed.sq_psn),
        )
    } else {
        let rtr = ToRtr {
            max_dest_rd_atomic: agreed.responder_resources,
            min_rnr_timer: agreed.rnr_timer,
            ..ToRtr::new(agreed.path, remote, agreed.rq_psn)
        };
        (rtr, ToRts::new(agreed.sq_psn))
    };
    rtr.mtu = agreed.mtu;
    if qp.qp_type() != QpType::Uc {
        rts.timeout = agreed.ack_timeout.code();
        rts.retry_count = agreed.retry_count;
        rts.rnr_retry = agreed.rnr_retry;
        rts.max_rd_atomic = agreed.initiator_depth;
    }
    qp.modify_to_rtr(&rtr)?;
    qp.modify_to_rts(&rts)?;
    Ok(())
}

/// How far a connection is.
#[derive(Clone, Copy, Debug)]
enum Step {
    Resolving,
    Asked {
        id: CommId,
        path: Path,
        psn: u32,
        mtu: Mtu,
    },
    Done,
}

/// A connection that is being made. Dropping it gives it up: the peer is told, and an acceptance that comes too late is
/// rejected.
pub struct Connecting {
    manager: Manager,
    cell: Arc<Cell<News>>,
    qp: Option<Qp>,
    transport: Transport,
    remote: SocketAddr,
    params: Params,
    step: Step,
    started: Instant,
    deadline: Instant,
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting")
            .field("remote", &self.remote)
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}

impl Connecting {
    pub(super) fn start(
        manager: &Manager,
        qp: Qp,
        remote: SocketAddr,
        params: &Params,
        deadline: Instant,
    ) -> Result<Self, ConnectError> {
        let shared = &manager.inner.shared;
        drop(shared.running()?);
        PrivateDataError::check(&params.private_data, REQ_DATA, "a connection request")?;
        let transport = check_qp(&qp, &shared.context)?;
        let cell = Arc::new(Cell::default());
        shared.resolve(remote.ip(), &cell, deadline);
        Ok(Self {
            manager: manager.clone(),
            cell,
            qp: Some(qp),
            transport,
            remote,
            params: params.clone(),
            step: Step::Resolving,
            started: Instant::now(),
            deadline,
        })
    }

    /// Waits for the connection.
    ///
    /// # Errors
    /// [`ConnectError`] says why there is none.
    pub fn wait(mut self) -> Result<Connection, ConnectError> {
        loop {
            // What was asked of the peer is ended by the machine, which tells it.
            let until = match self.step {
                Step::Resolving => self.deadline,
                _ => self.deadline + GRACE,
            };
            let Some(news) = self.cell.wait(Some(until)) else {
                let waited = self.started.elapsed();
                return Err(ConnectError::Deadline { waited });
            };
            if let Some(done) = self.advance(news) {
                return done;
            }
        }
    }

    /// Goes as far as it can without waiting: the connection, or why there is none, once it is known. It executes firmware
    /// commands on the way.
    pub fn try_finish(&mut self) -> Option<Result<Connection, ConnectError>> {
        loop {
            let news = self.cell.pop()?;
            if let Some(done) = self.advance(news) {
                return Some(done);
            }
        }
    }

    /// What is readable when [`Self::try_finish`] has something to do, for any event loop. Not to be read from.
    ///
    /// # Errors
    /// The system has no more file descriptors.
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.cell.fd()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn cell(&self) -> &Cell<News> {
        &self.cell
    }

    fn advance(&mut self, news: News) -> Option<Result<Connection, ConnectError>> {
        let done = match news {
            News::Resolved(Ok(path)) => match self.ask(path) {
                Ok(()) => return None,
                Err(error) => Err(error),
            },
            News::Resolved(Err(error)) => Err(error.into()),
            News::Accepted(accepted) => self.complete(&accepted),
            News::Failed(failure) => Err(ConnectError::of(failure, self.started.elapsed())),
            News::Disconnected(_) => Err(ConnectError::Ended),
            News::Stopped(stopped) => Err(stopped.into()),
            News::Established | News::PathLost(_) | News::Answered(_) => return None,
        };
        if done.is_err() {
            self.give_up();
        }
        Some(done)
    }

    /// Sends the request.
    fn ask(&mut self, path: Path) -> Result<(), ConnectError> {
        let (shared, params) = (&self.manager.inner.shared, &self.params);
        let Some(qp) = &mut self.qp else {
            return Ok(());
        };
        let path = Path {
            traffic_class: params.traffic_class.unwrap_or(path.traffic_class),
            priority: params.priority.unwrap_or(path.priority),
            ..path
        };
        let address = self.remote.ip();
        let source = shared.context.gids().get(path.sgid_index);
        let local_gid = source.ok_or(ResolveError::NoSource { address })?.gid;
        to_init(qp, params)?;
        let (psn, mtu) = (shared.random_psn(), mtu(params, shared)?);
        let header = IpHeader {
            source: SocketAddr::new(local_gid.to_ip(), params.source_port),
            destination: path.dgid.to_ip(),
        };
        let mut private_data = header.emit().to_vec();
        private_data.extend_from_slice(&params.private_data);
        let (responder_resources, initiator_depth) = depths(params, &shared.context);
        let request = ConnectRequest {
            path,
            local_gid,
            service_id: ServiceId::of_port(PortSpace::Tcp, self.remote.port()),
            transport: self.transport,
            qpn: qp.qpn().get(),
            psn,
            mtu,
            responder_resources,
            initiator_depth,
            ack_timeout: params.ack_code(),
            retry_count: params.retry_count,
            rnr_retry: params.rnr_retry,
            srq: qp.is_on_srq(),
            private_data,
            deadline: Some(self.deadline),
        };
        let id = {
            let mut core = shared.running()?;
            let id = core.machine.connect(Instant::now(), &request)?;
            core.cells.insert(id, self.cell.clone());
            id
        };
        self.step = Step::Asked { id, path, psn, mtu };
        shared.wake();
        Ok(())
    }

    /// The peer has accepted.
    fn complete(&mut self, accepted: &Accepted) -> Result<Connection, ConnectError> {
        let (Step::Asked { id, path, psn, mtu }, Some(mut qp)) = (self.step, self.qp.take()) else {
            return Err(ConnectError::Ended);
        };
        let shared = &self.manager.inner.shared;
        let (responder_resources, initiator_depth) = depths(&self.params, &shared.context);
        let agreed = Agreed {
            path,
            mtu,
            remote_qpn: accepted.remote_qpn,
            rq_psn: psn,
            sq_psn: accepted.psn,
            responder_resources: responder_resources.min(accepted.initiator_depth),
            initiator_depth: initiator_depth.min(accepted.responder_resources),
            ack_timeout: self.params.ack_code(),
            retry_count: self.params.retry_count,
            rnr_retry: accepted.rnr_retry,
            rnr_timer: self.params.rnr_code(),
        };
        if let Err(error) = to_rts(&mut qp, &agreed) {
            let mut core = shared.core();
            // It may have ended meanwhile: then there is nobody to tell.
            let _ = core.machine.reject(id, RejectReason::NoResources, &[], &[]);
            return Err(error);
        }
        let confirmed = shared.running()?.machine.confirm(id);
        shared.wake();
        self.qp = Some(qp);
        if let Err(error) = confirmed {
            // It has ended meanwhile, and the cell says how.
            return match self.cell.pop() {
                Some(News::Failed(failure)) => Err(ConnectError::of(failure, self.started.elapsed())),
                Some(News::Disconnected(_)) => Err(ConnectError::Ended),
                _ => Err(error.into()),
            };
        }
        self.step = Step::Done;
        let Some(qp) = self.qp.take() else {
            return Err(ConnectError::Ended);
        };
        Ok(Connection::new(Parts {
            manager: self.manager.clone(),
            id,
            cell: self.cell.clone(),
            qp,
            path,
            remote: self.remote,
            private_data: accepted.private_data.clone(),
        }))
    }

    fn give_up(&mut self) {
        if let Step::Asked { id, .. } = std::mem::replace(&mut self.step, Step::Done) {
            self.manager.inner.shared.abandon(id, self.qp.take());
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The path MTU that is asked for.
fn mtu(params: &Params, shared: &Shared) -> Result<Mtu, ConnectError> {
    if let Some(mtu) = params.mtu {
        return Ok(mtu);
    }
    let active = shared
        .context
        .active_path_mtu()
        .map_err(crate::verbs::ModifyError::from)?;
    let fitting = Mtu::ALL
        .into_iter()
        .rev()
        .find(|mtu| mtu.bytes() <= active.into());
    Ok(fitting.unwrap_or(Mtu::Mtu256))
}
