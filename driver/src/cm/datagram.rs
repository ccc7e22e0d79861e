//! Datagram services: where their queue pairs are found (SIDR), from both sides.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use ferroce_hw_regs::ids::Qpn;

use super::cell::{Cell, late};
use super::dispatch::{after_header, remote_address};
use super::error::{ListenError, LookupError, PrivateDataError, Stopped, WaitError};
use super::machine::{CommId, SidrAnswer, SidrRequested};
use super::mad::{IpHeader, PortSpace, ServiceId, SidrStatus};
use super::manager::Manager;
use super::place::Place;
use super::resolver::ResolveError;
use super::shared::{Incoming, News};
use crate::verbs::Path;

/// User bytes of a request's private data: 216, less the RDMA CM header's 36.
const REQ_DATA: usize = 180;
/// Bytes of an answer's private data.
const REP_DATA: usize = 136;

/// A datagram service's queue pair, and the way to it: what a SEND needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramPeer {
    /// The way, for [`Ah::new`](crate::verbs::Ah::new).
    pub path: Path,
    /// The queue pair.
    pub qpn: Qpn,
    /// The Q_Key that it takes.
    pub qkey: u32,
    /// What the service's program says: always 136 bytes, with zeros after what it gave.
    pub private_data: Box<[u8]>,
}

impl Manager {
    /// Asks for the queue pair of the datagram service at an address. `private_data` has at most 180 bytes.
    ///
    /// # Errors
    /// [`LookupError`] says why it is not known.
    pub fn connect_datagram(
        &self,
        address: SocketAddr,
        private_data: &[u8],
        deadline: Instant,
    ) -> Result<DatagramPeer, LookupError> {
        self.start_connect_datagram(address, private_data, deadline)?
            .wait()
    }

    /// As [`Self::connect_datagram`], without waiting.
    ///
    /// # Errors
    /// [`LookupError`] if the parameters will not do.
    pub fn start_connect_datagram(
        &self,
        address: SocketAddr,
        private_data: &[u8],
        deadline: Instant,
    ) -> Result<ConnectingDatagram, LookupError> {
        let shared = &self.inner.shared;
        drop(shared.running()?);
        PrivateDataError::check(private_data, REQ_DATA, "a request for a datagram service")?;
        let cell = Arc::new(Cell::default());
        shared.resolve(address.ip(), &cell, deadline);
        Ok(ConnectingDatagram {
            manager: self.clone(),
            cell,
            address,
            private_data: private_data.into(),
            deadline,
            asked: None,
        })
    }
}

/// A datagram service's queue pair that is being asked for. Dropping it gives it up.
pub struct ConnectingDatagram {
    manager: Manager,
    cell: Arc<Cell<News>>,
    address: SocketAddr,
    private_data: Box<[u8]>,
    deadline: Instant,
    asked: Option<(CommId, Path)>,
}

impl fmt::Debug for ConnectingDatagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectingDatagram")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl ConnectingDatagram {
    /// Waits for the answer.
    ///
    /// # Errors
    /// [`LookupError`] says why there is none.
    pub fn wait(mut self) -> Result<DatagramPeer, LookupError> {
        loop {
            let until = if self.asked.is_some() {
                late(self.deadline)
            } else {
                self.deadline
            };
            let news = self.cell.wait(Some(until)).ok_or(LookupError::Deadline)?;
            if let Some(done) = self.advance(news) {
                return done;
            }
        }
    }

    /// The answer, or why there is none, once it is known.
    pub fn try_finish(&mut self) -> Option<Result<DatagramPeer, LookupError>> {
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

    fn advance(&mut self, news: News) -> Option<Result<DatagramPeer, LookupError>> {
        match news {
            News::Resolved(Ok(path)) => self.ask(path).err().map(Err),
            News::Resolved(Err(error)) => Some(Err(error.into())),
            News::Answered(answer) => {
                let (_, path) = self.asked.take()?;
                Some(answer.map_err(LookupError::from).map(|answer| DatagramPeer {
                    path,
                    qpn: Qpn::from_low_bits(answer.qpn),
                    qkey: answer.qkey,
                    private_data: answer.private_data,
                }))
            }
            News::Stopped(stopped) => Some(Err(stopped.into())),
            _ => None,
        }
    }

    fn ask(&mut self, path: Path) -> Result<(), LookupError> {
        let shared = &self.manager.inner.shared;
        let (address, port) = (self.address.ip(), self.address.port());
        let source = shared.context.gids().get(path.sgid_index);
        let local = source.ok_or(ResolveError::NoSource { address })?.gid.to_ip();
        let header = IpHeader {
            source: SocketAddr::new(local, 0),
            destination: path.dgid.to_ip(),
        };
        let mut private_data = header.emit().to_vec();
        private_data.extend_from_slice(&self.private_data);
        let service = ServiceId::of_port(PortSpace::Udp, port);
        let mut core = shared.running()?;
        let (now, deadline) = (Instant::now(), Some(self.deadline));
        let id = core
            .machine
            .sidr_request(now, &path, service, &private_data, deadline)?;
        core.cells.insert(id, self.cell.clone());
        drop(core);
        self.asked = Some((id, path));
        shared.wake();
        Ok(())
    }
}

impl Drop for ConnectingDatagram {
    fn drop(&mut self) {
        if let Some((id, _)) = self.asked {
            let mut core = self.manager.inner.shared.core();
            core.machine.sidr_abandon(id);
            core.cells.remove(&id);
        }
    }
}

/// Takes requests for a datagram service's queue pair at a port. Dropping it frees the port.
pub struct DatagramListener {
    place: Place,
}

impl fmt::Debug for DatagramListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramListener")
            .field("address", &self.place.address())
            .finish_non_exhaustive()
    }
}

impl DatagramListener {
    /// Listens at an address, as [`Listener::bind`](super::Listener::bind) does.
    ///
    /// # Errors
    /// [`ListenError::InUse`] if somebody listens at the port.
    pub fn bind(manager: &Manager, address: SocketAddr) -> Result<Self, ListenError> {
        // How many wait is bounded for all services together.
        let place = Place::take(manager, PortSpace::Udp, address, usize::MAX)?;
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
    pub fn next_request(&mut self, deadline: Instant) -> Result<DatagramRequest, WaitError> {
        self.place.wait_for(deadline, request)
    }

    /// The next request, if there is one.
    ///
    /// # Errors
    /// The manager has ended.
    pub fn try_next(&mut self) -> Result<Option<DatagramRequest>, Stopped> {
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

fn request(manager: &Manager, incoming: Incoming) -> Option<DatagramRequest> {
    let Incoming::Datagram {
        id,
        requested,
        addresses,
    } = incoming
    else {
        return None;
    };
    Some(DatagramRequest {
        manager: manager.clone(),
        id,
        requested,
        addresses,
        answered: false,
    })
}

/// A peer's request for a datagram service's queue pair. Dropping it rejects it.
pub struct DatagramRequest {
    manager: Manager,
    id: CommId,
    requested: Box<SidrRequested>,
    addresses: IpHeader,
    answered: bool,
}

impl fmt::Debug for DatagramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramRequest")
            .field("from", &self.remote_address())
            .finish_non_exhaustive()
    }
}

impl DatagramRequest {
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

    /// What the peer's program says: always 180 bytes, with zeros after what it gave.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        after_header(&self.requested.private_data)
    }

    /// The way to the peer.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.requested.path
    }

    /// Tells the peer a queue pair and its Q_Key. `private_data` has at most 136 bytes. The answer is repeated for as long as
    /// the peer may ask again.
    ///
    /// # Errors
    /// [`LookupError`] if there is too much private data, or the request has expired.
    pub fn accept(mut self, qpn: Qpn, qkey: u32, private_data: &[u8]) -> Result<(), LookupError> {
        PrivateDataError::check(private_data, REP_DATA, "an answer of a datagram service")?;
        let answer = SidrAnswer {
            qpn: qpn.get(),
            qkey,
            private_data: private_data.into(),
        };
        self.answer(Ok(&answer))
    }

    /// Rejects.
    pub fn reject(self) {
        // As dropping does.
    }

    fn answer(&mut self, answer: Result<&SidrAnswer, SidrStatus>) -> Result<(), LookupError> {
        self.answered = true;
        let shared = &self.manager.inner.shared;
        shared
            .running()?
            .machine
            .sidr_reply(Instant::now(), self.id, answer)?;
        shared.wake();
        Ok(())
    }
}

impl Drop for DatagramRequest {
    fn drop(&mut self) {
        if !self.answered
            && let Err(error) = self.answer(Err(SidrStatus::Rejected))
        {
            log::debug!("a request for a datagram service is not rejected: {error}");
        }
    }
}
