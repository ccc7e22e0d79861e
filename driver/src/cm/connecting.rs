//! Connections that are being made by this side.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::agreed::{Agreed, check_qp, depths, mtu, to_init, to_rts};
use super::cell::{Cell, late};
use super::connection::{Connection, Parts};
use super::error::{ConnectError, PrivateDataError};
use super::machine::{Accepted, CommId, ConnectRequest, Transport};
use super::mad::{IpHeader, PortSpace, RejectReason, ServiceId};
use super::manager::Manager;
use super::params::Params;
use super::resolver::ResolveError;
use super::shared::{News, Tie};
use crate::verbs::{Mtu, Path, Qp};

/// User bytes of a request's private data: 92, less the RDMA CM header's 36.
pub(super) const REQ_DATA: usize = 56;

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
    /// Once the way is known.
    tie: Option<Tie>,
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
            tie: None,
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
                _ => late(self.deadline),
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
        let (psn, mtu) = (shared.random_psn(), mtu(params, &shared.context)?);
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
        self.tie = Some(Tie::new(shared, &path));
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
            ack_timeout: self.params.ack_code_with(accepted.ack_delay),
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
        let (Some(qp), Some(tie)) = (self.qp.take(), self.tie.take()) else {
            return Err(ConnectError::Ended);
        };
        Ok(Connection::new(Parts {
            manager: self.manager.clone(),
            id,
            cell: self.cell.clone(),
            qp,
            tie,
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
