//! The agent: a stack on a NIC's raw Ethernet queues, with a thread that sleeps until a frame comes or a timer is due.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::address::{AddressError, Gateway, InterfaceAddress, is_link_local, width};
use super::error::{LinkError, ResolveError};
use super::interface::{AddressState, DuplicateDetection};
use super::neighbour::{Lookup, Neighbour, NeighbourKey};
use super::resolver::Followed;
use super::route::{self, Route, RouteError, RouteQuery, RouteTables};
use super::stack::{LinkCounters, LinkEvent, Stack, StackConfig};
use super::timing::Timing;
use crate::cmdq::lock;
use crate::context::Context;
use crate::ethernet::{EthernetConfig, EthernetCounters, EthernetQueues, SendError};
use crate::gid::{Gid, GidEntry, RoceVersion};
use crate::port::MacAddress;

/// Events that wait for the thread to tell of them.
const MAX_EVENTS: usize = 1024;
/// Frames that wait for room in the send queue.
const MAX_BACKLOG: usize = 256;
/// How long it is waited before queues that have failed are made anew.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// How an agent is to work; the default takes over the addresses that the NIC was opened with.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    addresses: Vec<InterfaceAddress>,
    gateways: Vec<Gateway>,
    detection: DuplicateDetection,
    roce_versions: Vec<RoceVersion>,
    ethernet: EthernetConfig,
    timing: Timing,
    max_neighbours: usize,
    echo_rate: (u32, u32),
}

impl Default for AgentConfig {
    fn default() -> AgentConfig {
        let stack = StackConfig::new(MacAddress::default());
        AgentConfig {
            addresses: Vec::new(),
            gateways: Vec::new(),
            detection: DuplicateDetection::default(),
            roce_versions: vec![RoceVersion::V1, RoceVersion::V2],
            ethernet: EthernetConfig::default(),
            timing: stack.timing,
            max_neighbours: stack.max_neighbours,
            echo_rate: stack.echo_rate,
        }
    }
}

impl AgentConfig {
    /// The default.
    #[must_use]
    pub fn new() -> AgentConfig {
        AgentConfig::default()
    }

    /// Adds an address of the NIC: it is looked for duplicates, gets GIDs, and is answered for. One that the NIC was opened
    /// with ([`OpenConfig::address`](crate::context::OpenConfig::address)) gets its prefix here.
    #[must_use]
    pub fn address(mut self, address: InterfaceAddress) -> AgentConfig {
        self.addresses.push(address);
        self
    }

    /// Adds a way through a router.
    #[must_use]
    pub fn gateway(mut self, gateway: Gateway) -> AgentConfig {
        self.gateways.push(gateway);
        self
    }

    /// Whether addresses are looked for duplicates: by default before they are used. Addresses that the NIC was opened with
    /// are in use already; they are looked for as [`DuplicateDetection::Optimistic`] ones.
    #[must_use]
    pub fn duplicate_detection(mut self, detection: DuplicateDetection) -> AgentConfig {
        self.detection = detection;
        self
    }

    /// Versions of RoCE that addresses get GIDs for, in this order. By default both; what the device lacks is left out.
    #[must_use]
    pub fn roce_versions(mut self, versions: impl IntoIterator<Item = RoceVersion>) -> AgentConfig {
        self.roce_versions = versions.into_iter().collect();
        self
    }

    /// Sizes of the raw Ethernet queues.
    #[must_use]
    pub fn ethernet(mut self, ethernet: EthernetConfig) -> AgentConfig {
        self.ethernet = ethernet;
        self
    }

    /// Timers, in place of the standards'.
    #[must_use]
    pub fn timing(mut self, timing: Timing) -> AgentConfig {
        self.timing = timing;
        self
    }

    /// Neighbours that are remembered at a time; 1024 by default.
    #[must_use]
    pub fn max_neighbours(mut self, max: usize) -> AgentConfig {
        self.max_neighbours = max;
        self
    }

    /// Echo requests that are answered in a second, and in a burst; 1000 and 200 by default.
    #[must_use]
    pub fn echo_rate(mut self, per_second: u32, burst: u32) -> AgentConfig {
        self.echo_rate = (per_second, burst);
        self
    }
}

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

type Handler = Arc<dyn Fn(&LinkEvent) + Send + Sync>;

/// What is behind the lock.
struct Inner {
    stack: Stack,
    /// `None` between a failure and the next attempt.
    queues: Option<EthernetQueues>,
    gateways: Vec<Gateway>,
    roce_versions: Vec<RoceVersion>,
    detection: DuplicateDetection,
    /// GID indices of each address.
    gids: BTreeMap<(Option<u16>, IpAddr), Vec<u16>>,
    multicast: Vec<MacAddress>,
    backlog: VecDeque<Vec<u8>>,
    /// For the thread to tell of.
    events: VecDeque<LinkEvent>,
    ended: Option<String>,
    counters: AgentCounters,
}

struct Shared {
    inner: Mutex<Inner>,
    /// Neighbours, addresses, or the end.
    changed: Condvar,
    /// The thread is to look again.
    woken: AtomicBool,
    stop: AtomicBool,
    handlers: Mutex<Vec<(u64, Handler)>>,
    next_handler: AtomicU64,
    /// Peers of the connection manager.
    followed: Arc<Mutex<Followed>>,
    config: AgentConfig,
    context: Arc<Context>,
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
            followed: Arc::default(),
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

    pub(super) fn with_followed<R>(&self, act: impl FnOnce(&mut Followed) -> R) -> R {
        act(&mut lock(&self.shared.followed))
    }

    /// Watches one neighbour and no longer the other, without guards.
    pub(super) fn rewatch(&self, (watch, unwatch): (Option<NeighbourKey>, Option<NeighbourKey>)) {
        if watch.is_none() && unwatch.is_none() {
            return;
        }
        let mut inner = self.shared.lock();
        if let Some(neighbour) = watch
            && !inner.stack.watch(Instant::now(), neighbour)
        {
            log::warn!("the neighbour {} is not watched: the cache is full", neighbour.ip);
        }
        if let Some(neighbour) = unwatch {
            inner.stack.unwatch(neighbour);
        }
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

impl Inner {
    /// Takes the addresses over that the GID table has.
    fn adopt(&mut self, context: &Context, configured: &[InterfaceAddress]) -> Result<(), LinkError> {
        let detection = match self.detection {
            DuplicateDetection::BeforeUse => DuplicateDetection::Optimistic,
            other => other,
        };
        for (index, entry) in context.gids().entries() {
            let (ip, vlan) = (entry.gid.to_ip(), entry.vlan.filter(|vlan| *vlan != 0));
            let known = self.gids.entry((vlan, ip)).or_default();
            known.push(index);
            if known.len() > 1 {
                continue;
            }
            let of_config = configured
                .iter()
                .find(|address| address.ip == ip && address.vlan == vlan);
            let address = of_config.copied().unwrap_or(InterfaceAddress {
                ip,
                prefix_len: if ip.is_ipv6() && is_link_local(ip) {
                    64
                } else {
                    width(ip)
                },
                vlan,
            });
            match self.stack.add_address(Instant::now(), address, detection) {
                Ok(()) => {}
                Err(error) => log::warn!("GID {index} is not answered for: {error}"),
            }
        }
        self.settle(context);
        Ok(())
    }

    fn add(
        &mut self,
        context: &Context,
        address: InterfaceAddress,
        detection: DuplicateDetection,
    ) -> Result<(), LinkError> {
        let now = Instant::now();
        self.stack.add_address(now, address, detection)?;
        // An interface with IPv6 has a link-local address (RFC 4291, 2.1). The untagged one got it when the NIC was opened.
        let link_local = InterfaceAddress::link_local(self.stack.mac(), address.vlan);
        let has = self
            .stack
            .addresses()
            .iter()
            .any(|(have, _)| have.vlan == address.vlan && have.ip.is_ipv6() && is_link_local(have.ip));
        if address.ip.is_ipv6() && address.vlan.is_some() && !has {
            self.stack.add_address(now, link_local, detection)?;
        }
        self.settle(context);
        Ok(())
    }

    fn remove(&mut self, context: &Context, ip: IpAddr, vlan: Option<u16>) -> Result<(), LinkError> {
        self.stack.remove_address(ip, vlan)?;
        let result = self.remove_gids(context, ip, vlan);
        self.settle(context);
        Ok(result?)
    }

    fn add_gids(&mut self, context: &Context, address: &InterfaceAddress) {
        let indices = self.gids.entry((address.vlan, address.ip)).or_default();
        if !indices.is_empty() {
            return;
        }
        for version in self.roce_versions.iter().copied() {
            let entry = GidEntry {
                gid: Gid::from_ip(address.ip),
                version,
                mac: self.stack.mac(),
                vlan: address.vlan,
            };
            if !context.gids().supports(&entry) {
                continue;
            }
            match context.add_gid(entry) {
                Ok(index) => indices.push(index),
                Err(error) => log::error!("{address} gets no GID for {version}: {error}"),
            }
        }
    }

    fn remove_gids(
        &mut self,
        context: &Context,
        ip: IpAddr,
        vlan: Option<u16>,
    ) -> Result<(), crate::error::StepError> {
        for index in self.gids.remove(&(vlan, ip)).unwrap_or_default() {
            context.remove_gid(index)?;
        }
        Ok(())
    }

    /// Does what the stack wants done: frames, GIDs, groups; keeps its events for the thread.
    fn settle(&mut self, context: &Context) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                LinkEvent::AddressUsable { address } => self.add_gids(context, &address),
                LinkEvent::AddressDuplicate { address, mac } => {
                    log::error!("{address} is not used: the station {mac} has it");
                    if let Err(error) = self.remove_gids(context, address.ip, address.vlan) {
                        log::error!("GIDs of {address} stay: {error}");
                    }
                }
                LinkEvent::AddressConflict { address, mac } => {
                    log::error!("the station {mac} claims {address}, which is ours; both will lose packets");
                }
                _ => log::debug!("{event:?}"),
            }
            if self.events.len() >= MAX_EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
        let multicast = self.stack.multicast();
        if multicast != self.multicast
            && let Some(queues) = &mut self.queues
        {
            match queues.set_multicast(&multicast) {
                Ok(()) => self.multicast = multicast,
                Err(error) => log::error!("neighbours can't find all addresses: {error}"),
            }
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        while let Some(frame) = self.stack.poll_transmit() {
            if self.backlog.len() < MAX_BACKLOG {
                self.backlog.push_back(frame);
            }
        }
        let Some(queues) = &mut self.queues else { return };
        while let Some(frame) = self.backlog.front() {
            match queues.send(frame) {
                Ok(()) => {}
                Err(SendError::Full { .. } | SendError::Failed { .. }) => return,
                Err(error) => log::warn!("{error}"),
            }
            self.backlog.pop_front();
        }
    }

    /// Takes frames in and does what is due.
    fn pump(&mut self, context: &Context) {
        let now = Instant::now();
        if let Some(queues) = &mut self.queues {
            let stack = &mut self.stack;
            queues.poll(|frame| stack.handle_frame(now, frame));
        }
        self.stack.handle_timeout(now);
        self.settle(context);
    }

    fn route(&self, context: &Context, query: &RouteQuery) -> Result<Route, RouteError> {
        route::choose(
            query,
            &RouteTables {
                gids: &context.gids().entries(),
                addresses: &self.stack.addresses(),
                gateways: &self.gateways,
            },
        )
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Makes the thread look again.
    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.context.wake(self.config.ethernet.vector);
    }

    /// After a call that changed something: sends, tells those who wait, and lets the thread see to its timers.
    fn after_call(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.settle(&self.context);
        drop(inner);
        self.changed.notify_all();
        self.wake();
    }

    /// Waits for a change. `None` once the deadline has come.
    fn wait<'a>(&self, inner: MutexGuard<'a, Inner>, deadline: Instant) -> Option<MutexGuard<'a, Inner>> {
        let left = deadline
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())?;
        let waited = self.changed.wait_timeout(inner, left);
        Some(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn resolve(&self, key: NeighbourKey, deadline: Instant) -> Result<MacAddress, ResolveError> {
        let NeighbourKey { vlan, ip } = key;
        let started = Instant::now();
        let mut inner = self.lock();
        loop {
            if let Some(reason) = &inner.ended {
                return Err(ResolveError::Ended {
                    reason: reason.clone(),
                });
            }
            if !ip.is_multicast() && !inner.stack.can_ask(key) {
                return Err(ResolveError::NoInterface { ip, vlan });
            }
            let waited = || started.elapsed();
            match inner.stack.look_up(Instant::now(), key) {
                Lookup::Found(mac) => {
                    inner.settle(&self.context);
                    return Ok(mac);
                }
                Lookup::Failed => {
                    return Err(ResolveError::NoAnswer {
                        ip,
                        vlan,
                        waited: waited(),
                    });
                }
                Lookup::Full => {
                    let max = self.config.max_neighbours;
                    return Err(ResolveError::Full { ip, max });
                }
                Lookup::Pending => {}
            }
            inner.settle(&self.context);
            self.wake();
            inner = self.wait(inner, deadline).ok_or_else(|| ResolveError::Deadline {
                ip,
                vlan,
                waited: waited(),
            })?;
        }
    }

    /// The way to an address; waits for addresses that are being looked for duplicates where there is none else.
    fn route_when_ready(&self, query: &RouteQuery, deadline: Instant) -> Result<Route, ResolveError> {
        let mut inner = self.lock();
        loop {
            let error = match inner.route(&self.context, query) {
                Ok(route) => return Ok(route),
                Err(error) => error,
            };
            let tentative = |inner: &Inner| {
                inner
                    .stack
                    .addresses()
                    .iter()
                    .any(|(_, state)| *state == AddressState::Tentative)
            };
            let may_change = matches!(
                error,
                RouteError::NoGid { .. } | RouteError::EmptyGid { .. } | RouteError::WrongGid { .. }
            );
            if inner.ended.is_some() || !may_change || !tentative(&inner) {
                return Err(error.into());
            }
            inner = self.wait(inner, deadline).ok_or(error)?;
        }
    }

    /// The thread.
    fn run(&self) {
        let mut waiter = None;
        let mut reopen_at = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            self.woken.store(false, Ordering::Release);
            let mut inner = self.lock();
            inner.counters.wakes += 1;
            inner.pump(&self.context);
            if inner
                .queues
                .as_ref()
                .is_none_or(|queues| queues.failure().is_some())
            {
                waiter = None;
                self.reopen(&mut inner, &mut reopen_at);
            }
            let mut seen = 0;
            if let Some(queues) = &mut inner.queues {
                let waiter = waiter.get_or_insert_with(|| queues.waiter());
                // The counter first, then the arming, then another look: so no frame is missed.
                seen = waiter.events();
                queues.arm();
            }
            inner.pump(&self.context);
            let mut deadline = inner.stack.poll_timeout();
            if inner.queues.is_none() {
                deadline = Some(deadline.map_or(reopen_at, |deadline| deadline.min(reopen_at)));
            }
            let events = std::mem::take(&mut inner.events);
            drop(inner);
            self.changed.notify_all();
            self.tell(events);
            let mut woken = || self.woken.load(Ordering::Acquire);
            let waited = match &waiter {
                Some(waiter) => waiter.wait(seen, deadline, &mut woken),
                None => self
                    .context
                    .wait_until(self.config.ethernet.vector, deadline, &mut woken),
            };
            if let Err(failure) = waited {
                self.lock().ended = Some(failure.to_string());
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Makes queues anew that have failed.
    fn reopen(&self, inner: &mut Inner, at: &mut Instant) {
        let now = Instant::now();
        if let Some(queues) = inner.queues.take() {
            inner.counters.ethernet = queues.counters();
            drop(queues);
            *at = now + REOPEN_AFTER;
            return;
        }
        if now < *at {
            return;
        }
        *at = now + REOPEN_AFTER;
        self.context.process_events();
        match EthernetQueues::open(&self.context, &self.config.ethernet) {
            Ok(queues) => {
                inner.queues = Some(queues);
                inner.multicast.clear();
                inner.counters.reopened += 1;
                inner.settle(&self.context);
            }
            Err(error) => log::error!("the Ethernet queues can't be made anew: {error}"),
        }
    }

    fn tell(&self, events: VecDeque<LinkEvent>) {
        if events.is_empty() {
            return;
        }
        let handlers = lock(&self.handlers).clone();
        for event in &events {
            for (_, handler) in &handlers {
                handler(event);
            }
        }
    }
}
