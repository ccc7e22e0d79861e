//! The connection manager: RDMA CM, as Linux's `rdma_cm` speaks it on RoCE.
//!
//! ```text
//!   Manager ── thread ── QP 1 ── machine (no I/O, no clock) ── datagrams (mad)
//!      ├── connect ─▶ Connecting ─▶ Connection ── Qp in RTS ── events
//!      └── Listener ─▶ Request ─ accept ─▶ Accepting ─▶ Connection
//! ```
//! A connection is asked for by IP address and port, and gives a queue pair that both sides have brought to RTS with the
//! parameters that they agreed on. There are no indices to choose, and no events to acknowledge.
//!
//! Each call that waits has a deadline, and a form that doesn't wait, with an fd for any event loop.
//!
//! Sources: IBTA vol. 1, chapter 12 and annex A11; where Linux does otherwise, `docs/connections.md` says so.

mod agreed;
mod cell;
mod connecting;
mod connection;
mod datagram;
mod dispatch;
mod error;
mod gsi;
mod listener;
pub mod machine;
pub mod mad;
mod manager;
mod params;
mod place;
mod resolver;
mod service;
mod shared;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use connecting::Connecting;
pub use connection::{Connection, Event};
pub use datagram::{ConnectingDatagram, DatagramListener, DatagramPeer, DatagramRequest};
pub use error::{
    ConnectError, DisconnectError, ListenError, LookupError, PrivateDataError, StartError, Stopped, WaitError,
};
pub use listener::{Accepting, Listener, Request};
pub use machine::{DisconnectCause, Transport};
pub use mad::RejectReason;
pub use manager::{Manager, ManagerConfig, ManagerCounters};
pub use params::Params;
pub use resolver::{NeighbourHandler, ResolveError, Resolver, StaticTable};
pub use shared::PathChange;
