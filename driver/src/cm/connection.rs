//! Connections.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::cell::{Cell, late};
use super::error::{DisconnectError, Stopped, WaitError};
use super::machine::{CommId, DisconnectCause};
use super::manager::Manager;
use super::shared::{News, PathChange, Tie};
use crate::verbs::{Path, Qp, QpState};

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
    /// Its neighbour is watched until it is dropped.
    _tie: Tie,
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
    pub(super) tie: Tie,
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
            tie,
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
            _tie: tie,
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
            match self.wait_event(late(deadline)) {
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
