//! The agent: a stack on a NIC's raw Ethernet queues, with a thread that sleeps until a frame comes or a timer is due.

mod config;
mod inner;
mod thread;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

pub use self::config::AgentConfig;
use self::inner::Inner;
use self::thread::Shared;
use super::address::{AddressError, Gateway, InterfaceAddress};
use super::error::{LinkError, ResolveError};
use super::interface::AddressState;
use super::neighbour::{Lookup, Neighbour, NeighbourKey};
use super::resolver::Followed;
use super::route::{Route, RouteError, RouteQuery};
use super::stack::{LinkCounters, LinkEvent, Stack, StackConfig};
use crate::cmdq::lock;
use crate::context::Context;
use crate::ethernet::{EthernetCounters, EthernetQueues};
use crate::port::MacAddress;

/// What an agent has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AgentCounters {
    /// The stack's.
    pub link: LinkCounters,
    /// The queues'.
    pub ethernet: EthernetCounters,
    /// How often the thread woke.
    pub wakes: u64,
    /// How often the queues had failed and were made anew.
    pub reopened: u64,
}

/// Answers for the addresses of one NIC, and finds the MACs of others.
///
/// There is one for a [`Context`]. It holds the context; dropping it ends its thread and its queues, and leaves the
/// GIDs as they are.
pub struct Agent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts the agent: it takes over the addresses that the GID table has, adds those of `config`, and answers.
    /// Returns at once; [`Agent::wait_ready`] waits until the addresses have been looked for duplicates.
    ///
    /// # Errors
    /// [`LinkError::Queues`] where the device has no raw Ethernet queues or flow tables for this function, and what else
    /// goes wrong.
    pub fn start(context: &Arc<Context>, config: AgentConfig) -> Result<Agent, LinkError> {
        // What was dropped before has to be gone from the flow tables.
        context.process_events();
        let queues = EthernetQueues::open(context, &config.ethernet).map_err(LinkError::Queues)?;
        let mac = context.port_attributes()?.mac;
        let mut stack = StackConfig::new(mac);
        stack.timing = config.timing.clone();
        stack.max_neighbours = config.max_neighbours;
        stack.echo_rate = config.echo_rate;
        stack.seed = seed(mac);
        let mut inner = Inner {
            stack: Stack::new(&stack),
            queues: Some(queues),
            gateways: Vec::new(),
            roce_versions: config.roce_versions.clone(),
            detection: config.detection,
            gids: BTreeMap::new(),
            multicast: Vec::new(),
            backlog: VecDeque::new(),
            events: VecDeque::new(),
            ended: None,
            counters: AgentCounters::default(),
        };
        for gateway in &config.gateways {
            gateway.check()?;
            inner.gateways.push(*gateway);
        }
        inner.adopt(context, &config.addresses)?;
        for address in &config.addresses {
            match inner.add(context, *address, config.detection) {
                // It is one that the NIC was opened with.
                Ok(()) | Err(LinkError::Address(AddressError::Exists { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            woken: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            handlers: Mutex::default(),
            next_handler: AtomicU64::new(0),
            followed: Arc::new(Mutex::new(Followed::new(config.max_neighbours))),
            config,
            context: context.clone(),
        });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new().name("ferroce-link".into());
        let thread = thread
            .spawn(move || for_thread.run())
            .map_err(LinkError::Thread)?;
        Ok(Agent {
            shared,
            thread: Some(thread),
        })
    }

    /// The NIC.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    /// The port's MAC.
    #[must_use]
    pub fn mac(&self) -> MacAddress {
        self.shared.lock().stack.mac()
    }

    /// Waits until no address is being looked for duplicates any more.
    ///
    /// # Errors
    /// [`LinkError::Duplicate`] if another station has one of them, [`LinkError::Deadline`].
    pub fn wait_ready(&self, deadline: Instant) -> Result<(), LinkError> {
        let started = Instant::now();
        let mut inner = self.shared.lock();
        loop {
            let addresses = inner.stack.addresses();
            let of = |wanted| addresses.iter().find(|(_, state)| *state == wanted);
            if let Some((address, _)) = of(AddressState::Duplicate) {
                return Err(LinkError::Duplicate { ip: address.ip });
            }
            if of(AddressState::Tentative).is_none() {
                return Ok(());
            }
            inner = match self.shared.wait(inner, deadline) {
                Some(inner) => inner,
                None => {
                    return Err(LinkError::Deadline {
                        waited: started.elapsed(),
                    });
                }
            };
        }
    }

    /// Gives the NIC another address. GIDs follow once it can be used, at once unless it is looked for duplicates first.
    ///
    /// # Errors
    /// [`LinkError::Address`], or [`LinkError::Device`] if the GID table is full or a command failed.
    pub fn add_address(&self, address: InterfaceAddress) -> Result<(), LinkError> {
        let mut inner = self.shared.lock();
        let detection = inner.detection;
        let added = inner.add(&self.shared.context, address, detection);
        self.shared.after_call(inner);
        added
    }

    /// Takes an address and its GIDs away. QPs that use them stop working.
    ///
    /// # Errors
    /// [`LinkError::Address`] if it is not there, [`LinkError::Device`] if a command failed.
    pub fn remove_address(&self, ip: IpAddr, vlan: Option<u16>) -> Result<(), LinkError> {
        let mut inner = self.shared.lock();
        let removed = inner.remove(&self.shared.context, ip, vlan);
        self.shared.after_call(inner);
        removed
    }

    /// All addresses with their states.
    #[must_use]
    pub fn addresses(&self) -> Vec<(InterfaceAddress, AddressState)> {
        self.shared.lock().stack.addresses()
    }

    /// Adds a way through a router.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn add_gateway(&self, gateway: Gateway) -> Result<(), AddressError> {
        gateway.check()?;
        let mut inner = self.shared.lock();
        if !inner.gateways.contains(&gateway) {
            inner.gateways.push(gateway);
        }
        Ok(())
    }

    /// Takes a way through a router away; one that is not there already is fine.
    pub fn remove_gateway(&self, gateway: &Gateway) {
        self.shared.lock().gateways.retain(|have| have != gateway);
    }

    /// Ways through routers.
    #[must_use]
    pub fn gateways(&self) -> Vec<Gateway> {
        self.shared.lock().gateways.clone()
    }

    /// The neighbours that are known.
    #[must_use]
    pub fn neighbours(&self) -> Vec<Neighbour> {
        self.shared.lock().stack.neighbours()
    }

    /// Finds the MAC of a station on the link, asking for it where needed.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub fn resolve(
        &self,
        ip: IpAddr,
        vlan: Option<u16>,
        deadline: Instant,
    ) -> Result<MacAddress, ResolveError> {
        self.shared.resolve(NeighbourKey { vlan, ip }, deadline)
    }

    /// Which GID a connection to an address would use, through which next hop, and why; without asking anybody.
    ///
    /// # Errors
    /// [`RouteError`] says what is missing.
    pub fn route(&self, query: impl Into<RouteQuery>) -> Result<Route, RouteError> {
        let inner = self.shared.lock();
        inner.route(&self.shared.context, &query.into())
    }

    /// As [`Agent::route`], and finds the next hop's MAC. Where an address is still being looked for duplicates it waits for
    /// that.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub fn route_to(&self, query: impl Into<RouteQuery>, deadline: Instant) -> Result<Route, ResolveError> {
        let query = query.into();
        let mut route = self.shared.route_when_ready(&query, deadline)?;
        route.dmac = Some(self.shared.resolve(route.neighbour(), deadline)?);
        Ok(route)
    }

    /// Keeps a neighbour for as long as the guard lives: it is asked before its MAC grows old, so that handlers
    /// ([`Agent::on_event`]) hear when the MAC changes or nobody answers any more.
    ///
    /// # Errors
    /// [`ResolveError::Full`].
    pub fn watch(&self, neighbour: NeighbourKey) -> Result<Watch, ResolveError> {
        let mut inner = self.shared.lock();
        if !inner.stack.watch(Instant::now(), neighbour) {
            return Err(ResolveError::Full {
                ip: neighbour.ip,
                max: self.shared.config.max_neighbours,
            });
        }
        self.shared.after_call(inner);
        Ok(Watch {
            shared: self.shared.clone(),
            neighbour,
        })
    }

    /// Tells the agent that a neighbour was heard of by other means, such as an answer on a connection to it: it need not
    /// be asked for a while.
    pub fn confirm(&self, neighbour: NeighbourKey) {
        self.shared.lock().stack.confirm(Instant::now(), neighbour);
    }

    /// Calls `handler` for each event, in the agent's thread and without a lock, until the guard is dropped. It must not
    /// wait.
    #[must_use]
    pub fn on_event(&self, handler: impl Fn(&LinkEvent) + Send + Sync + 'static) -> HandlerGuard {
        let id = self.shared.next_handler.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.handlers).push((id, Arc::new(handler)));
        HandlerGuard {
            shared: self.shared.clone(),
            id,
        }
    }

    /// As [`Agent::on_event`], without an end.
    pub(super) fn handle_always(&self, handler: impl Fn(&LinkEvent) + Send + Sync + 'static) {
        let id = self.shared.next_handler.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.handlers).push((id, Arc::new(handler)));
    }

    pub(super) fn followed(&self) -> Arc<Mutex<Followed>> {
        self.shared.followed.clone()
    }

    /// Changes who is followed, and with it which neighbours are watched.
    pub(super) fn with_followed(&self, act: impl FnOnce(&mut Followed, &mut Stack)) {
        // Always in this order.
        let mut followed = lock(&self.shared.followed);
        let mut inner = self.shared.lock();
        act(&mut followed, &mut inner.stack);
        drop(followed);
        self.shared.after_call(inner);
    }

    /// The way to an address if it is known without waiting; it is asked for if not.
    pub(super) fn route_now(&self, destination: IpAddr) -> Option<Route> {
        let mut inner = self.shared.lock();
        let mut route = inner.route(&self.shared.context, &destination.into()).ok()?;
        if let Lookup::Found(mac) = inner.stack.look_up(Instant::now(), route.neighbour()) {
            route.dmac = Some(mac);
            inner.settle(&self.shared.context);
        } else {
            self.shared.after_call(inner);
        }
        Some(route)
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> AgentCounters {
        let inner = self.shared.lock();
        let ethernet = inner
            .queues
            .as_ref()
            .map_or(inner.counters.ethernet, EthernetQueues::counters);
        AgentCounters {
            link: inner.stack.counters(),
            ethernet,
            ..inner.counters
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        let Some(thread) = self.thread.take() else { return };
        // A handler may hold the last one; the thread then ends on its own.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            log::error!("the link agent's thread panicked");
        }
        let mut inner = self.shared.lock();
        inner.ended.get_or_insert_with(|| "it was dropped".into());
        inner.queues = None;
        drop(inner);
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}

/// A neighbour that is kept, see [`Agent::watch`].
pub struct Watch {
    shared: Arc<Shared>,
    neighbour: NeighbourKey,
}

impl Watch {
    /// Which.
    #[must_use]
    pub fn neighbour(&self) -> NeighbourKey {
        self.neighbour
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.lock().stack.unwatch(self.neighbour);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.neighbour).finish()
    }
}

/// Ends the calls of a handler when dropped, see [`Agent::on_event`].
pub struct HandlerGuard {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        lock(&self.shared.handlers).retain(|(id, _)| *id != self.id);
    }
}

impl fmt::Debug for HandlerGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerGuard").finish_non_exhaustive()
    }
}

/// A seed that differs between NICs and between starts, so that stations don't probe in step.
fn seed(mac: MacAddress) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(mac)
}
