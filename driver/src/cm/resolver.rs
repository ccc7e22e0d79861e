//! From an IP address to the way there.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::cmdq::lock;
use crate::context::Context;
use crate::gid::{Gid, RoceVersion};
use crate::port::MacAddress;
use crate::verbs::Path;

/// Why there is no way to an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// No GID of this NIC can talk to it.
    #[error(
        "no address of this NIC goes with {address}: open it with an address of the same kind and network"
    )]
    NoSource {
        /// The address.
        address: IpAddr,
    },
    /// Nobody is known at the address.
    #[error("{address} is not known: it has no MAC address in the table")]
    Unknown {
        /// The address.
        address: IpAddr,
    },
    /// Nobody answers for the address.
    #[error("nobody answered for {address} within {waited:.1?}")]
    NoAnswer {
        /// The address.
        address: IpAddr,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Another reason.
    #[error("{address}: {reason}")]
    Other {
        /// The address.
        address: IpAddr,
        /// The reason.
        reason: String,
    },
}

/// What is called when a station's MAC address changes, or (with `None`) when nobody answers for its address any more.
pub type NeighbourHandler = Arc<dyn Fn(IpAddr, Option<MacAddress>) + Send + Sync>;

/// Finds the way to IP addresses: which GID of ours, which next hop.
pub trait Resolver: Send + Sync {
    /// The way to an address. May wait, for example for an ARP reply, until the deadline.
    ///
    /// # Errors
    /// [`ResolveError`] says why there is none.
    fn resolve(&self, address: IpAddr, deadline: Instant) -> Result<Path, ResolveError>;

    /// The way to an address if it is known without waiting.
    fn lookup(&self, address: IpAddr) -> Option<Path> {
        let _ = address;
        None
    }

    /// Calls `handler` from now on for each change of a neighbour. One that knows of no changes does nothing.
    fn watch(&self, handler: NeighbourHandler) {
        let _ = handler;
    }

    /// A connection with the peer at an address is being made: changes on the way to it are to be told of, until
    /// [`Self::disconnected`] has been called as often as this. Called without locks; must not wait.
    fn connected(&self, address: IpAddr) {
        let _ = address;
    }

    /// A connection with the peer at an address is no more.
    fn disconnected(&self, address: IpAddr) {
        let _ = address;
    }
}

impl<R: Resolver + ?Sized> Resolver for Arc<R> {
    fn resolve(&self, address: IpAddr, deadline: Instant) -> Result<Path, ResolveError> {
        (**self).resolve(address, deadline)
    }

    fn lookup(&self, address: IpAddr) -> Option<Path> {
        (**self).lookup(address)
    }

    fn watch(&self, handler: NeighbourHandler) {
        (**self).watch(handler);
    }

    fn connected(&self, address: IpAddr) {
        (**self).connected(address);
    }

    fn disconnected(&self, address: IpAddr) {
        (**self).disconnected(address);
    }
}

/// A table of MAC addresses that the program keeps: no ARP, no neighbour discovery.
///
/// The source is the first RoCE v2 GID of the address's kind; for a link-local IPv6 address a link-local one.
pub struct StaticTable {
    context: std::sync::Weak<Context>,
    table: Mutex<HashMap<IpAddr, MacAddress>>,
    handlers: Mutex<Vec<NeighbourHandler>>,
}

impl fmt::Debug for StaticTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StaticTable").field(&lock(&self.table)).finish()
    }
}

impl StaticTable {
    /// An empty table.
    #[must_use]
    pub fn new(context: &Arc<Context>) -> Self {
        Self {
            context: Arc::downgrade(context),
            table: Mutex::default(),
            handlers: Mutex::default(),
        }
    }

    /// The table with another station.
    #[must_use]
    pub fn with(self, address: IpAddr, mac: MacAddress) -> Self {
        self.insert(address, mac);
        self
    }

    /// Adds a station, or changes its MAC address: connections to it are told of the change.
    pub fn insert(&self, address: IpAddr, mac: MacAddress) {
        let before = lock(&self.table).insert(address, mac);
        if before.is_some_and(|before| before != mac) {
            self.changed(address, Some(mac));
        }
    }

    /// Takes a station out: connections to it are told.
    pub fn remove(&self, address: IpAddr) {
        if lock(&self.table).remove(&address).is_some() {
            self.changed(address, None);
        }
    }

    fn changed(&self, address: IpAddr, mac: Option<MacAddress>) {
        let handlers = lock(&self.handlers).clone();
        handlers.iter().for_each(|handler| handler(address, mac));
    }

    fn path(&self, address: IpAddr) -> Result<Path, ResolveError> {
        let mac = lock(&self.table).get(&address).copied();
        let mac = mac.ok_or(ResolveError::Unknown { address })?;
        let no_source = ResolveError::NoSource { address };
        let Some(context) = self.context.upgrade() else {
            return Err(no_source);
        };
        let source = source_gid(&context, address).ok_or(no_source)?;
        Ok(Path::to_ip(source, address, mac))
    }
}

impl Resolver for StaticTable {
    fn resolve(&self, address: IpAddr, _deadline: Instant) -> Result<Path, ResolveError> {
        self.path(address)
    }

    fn lookup(&self, address: IpAddr) -> Option<Path> {
        self.path(address).ok()
    }

    fn watch(&self, handler: NeighbourHandler) {
        lock(&self.handlers).push(handler);
    }
}

fn is_link_local(gid: Gid) -> bool {
    gid.0[0] == 0xfe && gid.0[1] & 0xc0 == 0x80
}

/// Index of the first RoCE v2 GID that is of the same kind as an address.
fn source_gid(context: &Context, address: IpAddr) -> Option<u16> {
    let wanted = Gid::from_ip(address);
    context.gids().find(|entry| {
        entry.version == RoceVersion::V2
            && entry.gid.to_ipv4().is_some() == wanted.to_ipv4().is_some()
            && is_link_local(entry.gid) == is_link_local(wanted)
    })
}
