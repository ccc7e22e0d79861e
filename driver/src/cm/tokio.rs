//! Connections as futures, with tokio's timers for their deadlines (feature `tokio`).
//!
//! Each future may be dropped at any time. One that makes a connection gives it up then: the peer is told, and an
//! acceptance that comes too late is rejected. One that waits for a request or an event loses none of them.
//!
//! The manager's thread wakes the tasks itself: no file descriptor is needed. Queue pairs are brought to their states by
//! firmware commands, which the futures wait for in place: fractions of a millisecond on a NIC.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Instant;

use super::cell::{Cell, late};
use super::connection::{Connection, Event};
use super::datagram::{DatagramListener, DatagramPeer, DatagramRequest};
use super::error::{ConnectError, DisconnectError, LookupError, Stopped};
use super::listener::{Listener, Request};
use super::machine::DisconnectCause;
use super::manager::Manager;
use super::params::Params;
use crate::verbs::Qp;

/// What `take` finds in something that waits on a cell, as soon as it finds something.
async fn until<O, T, R>(owner: &mut O, cell: fn(&O) -> &Cell<T>, take: fn(&mut O) -> Option<R>) -> R {
    poll_fn(|context| {
        if let Some(found) = take(owner) {
            return Poll::Ready(found);
        }
        cell(owner).wake_at_news(context.waker());
        // What has come in between has woken nobody.
        take(owner).map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// As the future, but not after the deadline and some.
async fn until_late<R>(deadline: Instant, future: impl Future<Output = R>) -> Option<R> {
    let late = tokio::time::Instant::from_std(late(deadline));
    tokio::time::timeout_at(late, future).await.ok()
}

/// [`Manager::connect`] as a future.
///
/// # Errors
/// [`ConnectError`] says why there is no connection.
pub async fn connect(
    manager: &Manager,
    qp: Qp,
    address: SocketAddr,
    params: &Params,
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let started = Instant::now();
    let mut connecting = manager.start_connect(qp, address, params, deadline)?;
    let done = until(&mut connecting, |c| c.cell(), |c| c.try_finish());
    until_late(deadline, done).await.unwrap_or_else(|| {
        let waited = started.elapsed();
        Err(ConnectError::Deadline { waited })
    })
}

/// [`Request::accept`] as a future.
///
/// # Errors
/// [`ConnectError`] says why there is no connection.
pub async fn accept(
    request: Request,
    qp: Qp,
    params: &Params,
    deadline: Instant,
) -> Result<Connection, ConnectError> {
    let started = Instant::now();
    let mut accepting = request.start_accept(qp, params, deadline)?;
    let done = until(&mut accepting, |a| a.cell(), |a| a.try_finish());
    until_late(deadline, done).await.unwrap_or_else(|| {
        let waited = started.elapsed();
        Err(ConnectError::Deadline { waited })
    })
}

/// The next request of a listener. A future that is dropped loses none.
///
/// # Errors
/// The manager has ended.
pub async fn next_request(listener: &mut Listener) -> Result<Request, Stopped> {
    until(listener, |l| l.cell(), |l| l.try_next().transpose()).await
}

/// The next event of a connection. A future that is dropped loses none. After [`Event::Stopped`] there are no more.
pub async fn next_event(connection: &mut Connection) -> Event {
    until(connection, |c| c.cell(), Connection::next_event).await
}

/// [`Connection::disconnect`] as a future. One that is dropped leaves the connection ending.
///
/// # Errors
/// [`DisconnectError`]; this side's connection is over all the same.
pub async fn disconnect(connection: &mut Connection, deadline: Instant) -> Result<(), DisconnectError> {
    if connection.ended().is_none() {
        connection.start_disconnect(deadline)?;
    }
    while connection.ended().is_none() {
        match until_late(deadline, next_event(connection)).await {
            Some(Event::Stopped(stopped)) => return Err(stopped.into()),
            Some(_) => {}
            None => return Err(DisconnectError::NoAnswer),
        }
    }
    match connection.ended() {
        Some(DisconnectCause::NoAnswer) => Err(DisconnectError::NoAnswer),
        _ => Ok(()),
    }
}

/// [`Manager::connect_datagram`] as a future.
///
/// # Errors
/// [`LookupError`] says why the service's queue pair is not known.
pub async fn connect_datagram(
    manager: &Manager,
    address: SocketAddr,
    private_data: &[u8],
    deadline: Instant,
) -> Result<DatagramPeer, LookupError> {
    let mut connecting = manager.start_connect_datagram(address, private_data, deadline)?;
    let done = until(&mut connecting, |c| c.cell(), |c| c.try_finish());
    until_late(deadline, done)
        .await
        .unwrap_or(Err(LookupError::Deadline))
}

/// The next request of a datagram service. A future that is dropped loses none.
///
/// # Errors
/// The manager has ended.
pub async fn next_datagram_request(listener: &mut DatagramListener) -> Result<DatagramRequest, Stopped> {
    until(listener, |l| l.cell(), |l| l.try_next().transpose()).await
}
