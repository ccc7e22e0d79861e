//! Listeners, and requests for connections.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agreed::{Agreed, check_qp, depths, to_init, to_rts};
use super::cell::{Cell, late};
use super::connecting::REQ_DATA;
use super::connection::{Connection, Parts};
use super::dispatch::{after_header, remote_address};
use super::error::{ConnectError, ListenError, PrivateDataError, Stopped, WaitError};
use super::machine::{AcceptReply, CommId, Requested, Transport};
use super::mad::{IpHeader, PortSpace, RejectReason};
use super::manager::Manager;
use super::params::Params;
use super::place::Place;
use super::shared::{Incoming, News, Tie};
use crate::verbs::{Mtu, Path, Qp};

/// Bytes of an acceptance's private data.
const REP_DATA: usize = 196;
/// Bytes of a rejection's private data.
const REJ_DATA: usize = 148;
/// Requests that may wait by default.
const BACKLOG: usize = 1024;

/// Takes requests for connections at a port.
///
/// Dropping it frees the port and rejects the requests that were not taken out; connections that it has given remain.
pub struct Listener {
    place: Place,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("address", &self.place.address())
            .finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens at an address: that of one of the NIC's GIDs, or the unspecified one (`0.0.0.0`, `::`) for all of both
    /// kinds. Port 0 is one that is free.
    ///
    /// # Errors
    /// [`ListenError::InUse`] if somebody listens at the port.
    pub fn bind(manager: &Manager, address: SocketAddr) -> Result<Self, ListenError> {
        Self::with_backlog(manager, address, BACKLOG)
    }

    /// As [`Self::bind`], with at most so many requests that are not answered yet. More are dropped; their senders ask
    /// again.
    ///
    /// # Errors
    /// [`ListenError::InUse`] if somebody listens at the port.
    pub fn with_backlog(manager: &Manager, address: SocketAddr, backlog: usize) -> Result<Self, ListenError> {
        let place = Place::take(manager, PortSpace::Tcp, address, backlog)?;
        Ok(Self { place })
    }

    /// The address, with the port that was chosen.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.place.address()
    }

    /// The next request, waiting for it.
    ///
    /// # Errors
    /// [`WaitError::Deadline`], or the manager has ended.
    pub fn next_request(&mut self, deadline: Instant) -> Result<Request, WaitError> {
        self.place.wait_for(deadline, request)
    }

    /// The next request, if there is one.
    ///
    /// # Errors
    /// The manager has ended.
    pub fn try_next(&mut self) -> Result<Option<Request>, Stopped> {
        self.place.try_take(request)
    }

    /// What is readable while there are requests, for any event loop. Not to be read from.
    ///
    /// # Errors
    /// The system has no more file descriptors.
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.place.cell().fd()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn cell(&self) -> &Cell<Incoming> {
        self.place.cell()
    }
}

/// A request, unless its sender has given up meanwhile.
fn request(manager: &Manager, incoming: Incoming) -> Option<Request> {
    let Incoming::Connection {
        id,
        cell,
        requested,
        addresses,
    } = incoming
    else {
        return None;
    };
    let mut passed = VecDeque::new();
    while let Some(news) = cell.pop() {
        passed.push_back(news);
    }
    if passed.iter().any(|news| matches!(news, News::Failed(_))) {
        manager.inner.shared.abandon(id, None);
        return None;
    }
    Some(Request {
        manager: manager.clone(),
        id,
        cell,
        requested,
        addresses,
        answered: false,
    })
}

/// A peer's request for a connection. Dropping it rejects it.
pub struct Request {
    manager: Manager,
    id: CommId,
    cell: Arc<Cell<News>>,
    requested: Box<Requested>,
    addresses: IpHeader,
    answered: bool,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("from", &self.remote_address())
            .field("requested", &self.requested)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// Where it comes from: the address that it was sent from, and the port that its sender tells.
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        remote_address(&self.requested.path, &self.addresses)
    }

    /// The address of this side that it asks for.
    #[must_use]
    pub fn local_address(&self) -> IpAddr {
        self.addresses.destination
    }

    /// What the peer's program says: always 56 bytes, with zeros after what it gave. The wire does not tell how many it
    /// gave.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        after_header(&self.requested.private_data)
    }

    /// The kind of queue pair that is asked for.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.requested.transport
    }

    /// Path MTU.
    #[must_use]
    pub fn mtu(&self) -> Mtu {
        self.requested.mtu
    }

    /// Most READs and atomics at a time: those that the peer answers, and those that it has in progress.
    #[must_use]
    pub fn depths(&self) -> (u8, u8) {
        (self.requested.responder_resources, self.requested.initiator_depth)
    }

    /// The way to the peer.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.requested.path
    }

    /// Accepts with a queue pair, and waits for the peer's confirmation. The queue pair is in RESET, or in INIT with
    /// receives posted; it is in RTS afterwards, and part of the connection.
    ///
    /// # Errors
    /// [`ConnectError`] says why there is no connection; the peer is told.
    pub fn accept(self, qp: Qp, params: &Params, deadline: Instant) -> Result<Connection, ConnectError> {
        self.start_accept(qp, params, deadline)?.wait()
    }

    /// As [`Self::accept`], without waiting. It executes firmware commands.
    ///
    /// # Errors
    /// [`ConnectError`] if the queue pair or the parameters will not do, or the peer has given up.
    pub fn start_accept(
        mut self,
        mut qp: Qp,
        params: &Params,
        deadline: Instant,
    ) -> Result<Accepting, ConnectError> {
        let shared = &self.manager.inner.shared;
        PrivateDataError::check(&params.private_data, REP_DATA, "an acceptance")?;
        if check_qp(&qp, &shared.context)? != self.requested.transport {
            let qp_type = qp.qp_type();
            return Err(ConnectError::QpType { qp_type });
        }
        to_init(&mut qp, params)?;
        let requested = &self.requested;
        let (responder_resources, initiator_depth) = depths(params, &shared.context);
        let agreed = Agreed {
            path: requested.path,
            mtu: requested.mtu,
            remote_qpn: requested.remote_qpn,
            rq_psn: shared.random_psn(),
            sq_psn: requested.psn,
            responder_resources: responder_resources.min(requested.initiator_depth),
            initiator_depth: initiator_depth.min(requested.responder_resources),
            ack_timeout: if requested.ack_timeout.code() == 0 {
                params.ack_code()
            } else {
                requested.ack_timeout
            },
            retry_count: requested.retry_count,
            rnr_retry: requested.rnr_retry,
            rnr_timer: params.rnr_code(),
        };
        to_rts(&mut qp, &agreed)?;
        let reply = AcceptReply {
            qpn: qp.qpn().get(),
            psn: agreed.rq_psn,
            responder_resources: agreed.responder_resources,
            initiator_depth: agreed.initiator_depth,
            rnr_retry: params.rnr_retry,
            srq: qp.is_on_srq(),
            private_data: params.private_data.clone(),
            deadline: Some(deadline),
        };
        let accepted = shared.running()?.machine.accept(Instant::now(), self.id, &reply);
        if let Err(error) = accepted {
            return match self.cell.pop() {
                Some(News::Failed(failure)) => Err(ConnectError::of(failure, Duration::ZERO)),
                _ => Err(error.into()),
            };
        }
        self.answered = true;
        shared.wake();
        Ok(Accepting {
            manager: self.manager.clone(),
            id: self.id,
            cell: self.cell.clone(),
            qp: Some(qp),
            tie: Some(Tie::new(shared, &self.requested.path)),
            path: self.requested.path,
            remote: self.remote_address(),
            private_data: self.private_data().into(),
            started: Instant::now(),
            deadline,
        })
    }

    /// Rejects on behalf of the program. `private_data` has at most 148 bytes.
    ///
    /// # Errors
    /// [`PrivateDataError`]; the request is rejected without private data then.
    pub fn reject(self, private_data: &[u8]) -> Result<(), PrivateDataError> {
        self.reject_because(RejectReason::Consumer, private_data)
    }

    /// Rejects for a reason of the standard. `private_data` has at most 148 bytes.
    ///
    /// # Errors
    /// [`PrivateDataError`]; the request is rejected without private data then.
    pub fn reject_because(
        mut self,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), PrivateDataError> {
        PrivateDataError::check(private_data, REJ_DATA, "a rejection")?;
        self.answered = true;
        let shared = &self.manager.inner.shared;
        {
            let mut core = shared.core();
            // An error means that the peer has given up.
            if let Err(error) = core.machine.reject(self.id, reason, &[], private_data) {
                log::debug!("{error}");
            }
            core.cells.remove(&self.id);
        }
        shared.wake();
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered {
            self.manager.inner.shared.abandon(self.id, None);
        }
    }
}

/// A connection that was accepted, and waits for the peer's confirmation. Dropping it ends it.
pub struct Accepting {
    manager: Manager,
    id: CommId,
    cell: Arc<Cell<News>>,
    qp: Option<Qp>,
    /// Until the connection has it.
    tie: Option<Tie>,
    path: Path,
    remote: SocketAddr,
    private_data: Box<[u8]>,
    started: Instant,
    deadline: Instant,
}

impl fmt::Debug for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepting")
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

impl Accepting {
    /// Waits for the peer's confirmation.
    ///
    /// # Errors
    /// [`ConnectError`] says why there is no connection.
    pub fn wait(mut self) -> Result<Connection, ConnectError> {
        loop {
            let Some(news) = self.cell.wait(Some(late(self.deadline))) else {
                let waited = self.started.elapsed();
                return Err(ConnectError::Deadline { waited });
            };
            if let Some(done) = self.advance(news) {
                return done;
            }
        }
    }

    /// The connection, or why there is none, once it is known.
    pub fn try_finish(&mut self) -> Option<Result<Connection, ConnectError>> {
        loop {
            let news = self.cell.pop()?;
            if let Some(done) = self.advance(news) {
                return Some(done);
            }
        }
    }

    /// Tells that something has been received on the queue pair: the peer uses the connection, so that its confirmation must
    /// have been lost on the way. Without this the connection is known to be made a little later, when the peer has been
    /// asked again.
    pub fn communication_established(&self) {
        let shared = &self.manager.inner.shared;
        shared.core().machine.communication_established(self.id);
        shared.wake();
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
        Some(match news {
            News::Established => {
                let (qp, tie) = (self.qp.take()?, self.tie.take()?);
                Ok(Connection::new(Parts {
                    manager: self.manager.clone(),
                    id: self.id,
                    cell: self.cell.clone(),
                    qp,
                    tie,
                    path: self.path,
                    remote: self.remote,
                    private_data: self.private_data.clone(),
                }))
            }
            News::Failed(failure) => Err(ConnectError::of(failure, self.started.elapsed())),
            News::Disconnected(_) => Err(ConnectError::Ended),
            News::Stopped(stopped) => Err(stopped.into()),
            News::Resolved(_) | News::Accepted(_) | News::PathLost(_) | News::Answered(_) => return None,
        })
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        if let Some(qp) = self.qp.take() {
            self.manager.inner.shared.abandon(self.id, Some(qp));
        }
    }
}

const _: () = assert!(REQ_DATA + super::mad::IP_HEADER_BYTES == 92);
