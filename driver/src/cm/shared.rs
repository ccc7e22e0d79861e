//! What the manager, its thread and the program's objects have in common.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::cell::Cell;
use super::dispatch::Core;
use super::error::Stopped;
use super::gsi::Received;
use super::machine::{
    Accepted, CommId, DisconnectCause, Failure, Machine, Requested, SidrAnswer, SidrFailure, SidrRequested,
};
use super::mad::IpHeader;
use super::manager::ManagerConfig;
use super::resolver::{ResolveError, Resolver};
use crate::cmdq::lock;
use crate::context::Context;
use crate::gid::{Gid, RoceVersion};
use crate::port::MacAddress;
use crate::verbs::{GlobalHeader, NetworkType, Path, Qp};

/// How long a way that the resolver had to wait for is taken for granted.
const PATH_LIFE: Duration = Duration::from_secs(10);
/// Ways that are remembered.
const MAX_PATHS: usize = 4096;
/// Addresses that are being resolved at a time.
const MAX_RESOLVING: usize = 64;
/// Datagrams that wait for the way back to their sender.
const MAX_WAITING: usize = 64;
/// How long a datagram waits for that.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);

/// News for a connection.
#[derive(Debug)]
pub(super) enum News {
    Resolved(Result<Path, ResolveError>),
    Accepted(Box<Accepted>),
    Established,
    Failed(Failure),
    Disconnected(DisconnectCause),
    PathLost(PathChange),
    Answered(Result<SidrAnswer, SidrFailure>),
    Stopped(Stopped),
}

/// The way to a connection's peer is not what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathChange {
    /// The peer's address.
    pub address: IpAddr,
    /// The MAC address that the queue pair sends to.
    pub was: MacAddress,
    /// The one that the peer has now; `None` if nobody answers for the address.
    pub now: Option<MacAddress>,
}

/// A request that waits for the program.
#[derive(Debug)]
pub(super) enum Incoming {
    Connection {
        id: CommId,
        cell: Arc<Cell<News>>,
        requested: Box<Requested>,
        addresses: IpHeader,
    },
    Datagram {
        id: CommId,
        requested: Box<SidrRequested>,
        addresses: IpHeader,
    },
    Stopped(Stopped),
}

/// Who waits for the way to an address.
enum Waiter {
    Connecting(Arc<Cell<News>>),
    Datagram(Box<Received>),
}

/// What all have in common.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) config: ManagerConfig,
    pub(super) vector: usize,
    resolver: Arc<dyn Resolver>,
    core: Mutex<Core>,
    /// There is something for the thread to look at.
    pub(super) wake: AtomicBool,
    /// The thread is to end.
    pub(super) stop: AtomicBool,
    /// Which thread that is, once it runs.
    pub(super) thread: OnceLock<ThreadId>,
    ended: Arc<Ended>,
    /// Who waits for which address, and until when.
    resolving: Mutex<HashMap<IpAddr, Vec<(Waiter, Instant)>>>,
    paths: Mutex<HashMap<IpAddr, (Path, Instant)>>,
    /// Keyed by the system's randomness, so that what it makes of a counter can't be guessed.
    random: RandomState,
    drawn: AtomicU64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("machine", &self.core().machine)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(
        context: &Arc<Context>,
        resolver: Arc<dyn Resolver>,
        config: ManagerConfig,
        vector: usize,
        machine: Machine,
    ) -> Self {
        Self {
            context: context.clone(),
            config,
            vector,
            resolver,
            core: Mutex::new(Core::new(machine)),
            wake: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: OnceLock::new(),
            ended: Arc::default(),
            resolving: Mutex::default(),
            paths: Mutex::default(),
            random: RandomState::new(),
            drawn: AtomicU64::new(0),
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// The state, unless the manager has ended.
    pub(super) fn running(&self) -> Result<MutexGuard<'_, Core>, Stopped> {
        let core = self.core();
        match &core.stopped {
            Some(stopped) => Err(stopped.clone()),
            None => Ok(core),
        }
    }

    /// Whether this is the manager's thread.
    pub(super) fn in_thread(&self) -> bool {
        self.thread.get() == Some(&std::thread::current().id())
    }

    /// 24 bits that can't be guessed.
    pub(super) fn random_psn(&self) -> u32 {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        self.random.hash_one(n) as u32 & 0xff_ffff
    }

    /// Lets the thread look at what has changed.
    pub(super) fn wake(&self) {
        self.wake.store(true, Ordering::Release);
        self.context.wake(self.vector);
    }

    /// Lets go of a connection, and keeps its queue pair for as long as its number must not be used again.
    pub(super) fn abandon(&self, id: CommId, qp: Option<Qp>) {
        let mut core = self.core();
        core.cells.remove(&id);
        let waits = core.machine.abandon(Instant::now(), id);
        match qp {
            Some(qp) if waits && core.stopped.is_none() => core.to_pen.push((id, qp)),
            qp => {
                // Not under the lock: without a service thread of the context, firmware is asked at once.
                drop(core);
                drop(qp);
                return self.wake();
            }
        }
        drop(core);
        self.wake();
    }

    /// The way to an address, if it is known without waiting.
    pub(super) fn known_path(&self, address: IpAddr) -> Option<Path> {
        if let Some(path) = self.resolver.lookup(address) {
            return Some(path);
        }
        let paths = lock(&self.paths);
        let (path, at) = paths.get(&address)?;
        (at.elapsed() < PATH_LIFE).then_some(*path)
    }

    /// Finds the way to an address for a connection that is being made.
    pub(super) fn resolve(self: &Arc<Self>, address: IpAddr, cell: &Arc<Cell<News>>, deadline: Instant) {
        match self.known_path(address) {
            Some(path) => drop(cell.push(News::Resolved(Ok(path)))),
            None => self.resolve_slowly(address, Waiter::Connecting(cell.clone()), deadline),
        }
    }

    /// Asks the resolver in a thread of its own, once for all that want the same address; again for those that joined and
    /// have more time than it was given.
    fn resolve_slowly(self: &Arc<Self>, address: IpAddr, waiter: Waiter, deadline: Instant) {
        let mut resolving = lock(&self.resolving);
        // Anybody can send from any address: that leaves room for this side's own wishes.
        let most = match waiter {
            Waiter::Connecting(_) => MAX_RESOLVING,
            Waiter::Datagram(_) => MAX_RESOLVING / 2,
        };
        let busy = resolving.len() >= most;
        match resolving.get_mut(&address) {
            Some(waiters) if waiters.len() < MAX_WAITING || matches!(waiter, Waiter::Connecting(_)) => {
                waiters.push((waiter, deadline));
                return;
            }
            Some(_) => return,
            None if busy => {
                drop(resolving);
                let reason = format!("{most} other addresses are being resolved");
                return self.resolved(
                    address,
                    vec![waiter],
                    Err(ResolveError::Other { address, reason }),
                );
            }
            None => resolving.insert(address, vec![(waiter, deadline)]),
        };
        drop(resolving);
        // A resolver that takes its time keeps neither the manager nor its device.
        let (shared, resolver) = (Arc::downgrade(self), self.resolver.clone());
        let spawned = std::thread::Builder::new()
            .name("ferroce-resolve".into())
            .spawn(move || {
                let mut next = Some(deadline);
                while let Some(deadline) = next {
                    let found = resolver.resolve(address, deadline);
                    next = shared
                        .upgrade()
                        .and_then(|shared| shared.settle(address, deadline, found));
                }
            });
        if let Err(error) = spawned {
            let waiters = lock(&self.resolving).remove(&address).unwrap_or_default();
            let waiters = waiters.into_iter().map(|(waiter, _)| waiter).collect();
            let reason = format!("no thread to resolve it in: {error}");
            self.resolved(address, waiters, Err(ResolveError::Other { address, reason }));
        }
    }

    /// Tells those who wait for an address what the resolver has found by `deadline`. A failure is not for those who have time
    /// left: the latest of their deadlines, by which it is to try again.
    fn settle(
        &self,
        address: IpAddr,
        deadline: Instant,
        found: Result<Path, ResolveError>,
    ) -> Option<Instant> {
        let mut resolving = lock(&self.resolving);
        let waiters = resolving.remove(&address).unwrap_or_default();
        let (told, left): (Vec<_>, Vec<_>) = waiters
            .into_iter()
            .partition(|(_, until)| found.is_ok() || *until <= deadline);
        let next = left.iter().map(|(_, until)| *until).max();
        if next.is_some() {
            resolving.insert(address, left);
        }
        drop(resolving);
        let told = told.into_iter().map(|(waiter, _)| waiter).collect();
        self.resolved(address, told, found);
        next
    }

    fn resolved(&self, address: IpAddr, waiters: Vec<Waiter>, found: Result<Path, ResolveError>) {
        if let Ok(path) = &found {
            let mut paths = lock(&self.paths);
            if paths.len() >= MAX_PATHS {
                paths.clear();
            }
            paths.insert(address, (*path, Instant::now()));
        }
        for waiter in waiters {
            match waiter {
                Waiter::Connecting(cell) => drop(cell.push(News::Resolved(found.clone()))),
                Waiter::Datagram(received) => match &found {
                    Ok(path) => {
                        let from = self.way_back(path, &received.header);
                        if let Some(from) = from {
                            self.core()
                                .machine
                                .handle_mad(Instant::now(), &from, &received.mad);
                        }
                    }
                    Err(error) => log::debug!("a datagram can't be answered: {error}"),
                },
            }
        }
        self.wake();
    }

    /// A datagram has come in: finds the way back to its sender, and gives both to the machine.
    pub(super) fn take_in(self: &Arc<Self>, now: Instant, received: &Received) {
        let source = received.header.source;
        match self.known_path(source) {
            Some(path) => {
                if let Some(from) = self.way_back(&path, &received.header) {
                    self.core().machine.handle_mad(now, &from, &received.mad);
                }
            }
            None => {
                let waiter = Waiter::Datagram(Box::new(*received));
                self.resolve_slowly(source, waiter, now + ANSWER_PATIENCE);
            }
        }
    }

    /// The way to a station, from the address that it has sent to.
    fn way_back(&self, path: &Path, header: &GlobalHeader) -> Option<Path> {
        let version = match header.network {
            NetworkType::RoceV1 => RoceVersion::V1,
            _ => RoceVersion::V2,
        };
        let destination = header.dgid();
        let vlan = self
            .context
            .gids()
            .get(path.sgid_index)
            .and_then(|entry| entry.vlan);
        let fits = |vlan_too: bool| {
            self.context.gids().find(|entry| {
                entry.gid == destination && entry.version == version && (!vlan_too || entry.vlan == vlan)
            })
        };
        let sgid_index = fits(true).or_else(|| fits(false))?;
        let dgid = header.sgid();
        Some(Path {
            sgid_index,
            dgid,
            ..*path
        })
    }

    /// A neighbour's MAC address has changed, or nobody answers for it any more: tells the connections that use it.
    pub(super) fn neighbour_changed(&self, address: IpAddr, now: Option<MacAddress>) {
        lock(&self.paths).remove(&address);
        // Dropped after the lock.
        let mut wakes = Vec::new();
        let core = self.core();
        let affected = core.machine.in_use_with(Gid::from_ip(address));
        for (id, was) in affected {
            if now != Some(was)
                && let Some(cell) = core.cells.get(&id)
            {
                // The latest is what counts, and nobody may be reading.
                let news = News::PathLost(PathChange { address, was, now });
                wakes.push(cell.push_in_place_of(news, |old| matches!(old, News::PathLost(_))));
            }
        }
    }

    pub(super) fn watch_neighbours(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        self.resolver.watch(Arc::new(move |address, mac| {
            if let Some(shared) = shared.upgrade() {
                shared.neighbour_changed(address, mac);
            }
        }));
    }

    /// The thread has ended; all who wait are told.
    pub(super) fn end(&self, reason: String) {
        let stopped = Stopped { reason };
        let (pen, to_pen);
        let mut wakes = Vec::new();
        {
            let mut core = self.core();
            core.stopped = Some(stopped.clone());
            for cell in core.cells.values() {
                wakes.push(cell.push(News::Stopped(stopped.clone())));
            }
            for listening in core.listeners.values() {
                wakes.push(listening.cell.push(Incoming::Stopped(stopped.clone())));
            }
            pen = std::mem::take(&mut core.pen);
            to_pen = std::mem::take(&mut core.to_pen);
        }
        drop((pen, to_pen, wakes));
    }

    /// What tells of the thread's end.
    pub(super) fn ended(&self) -> &Arc<Ended> {
        &self.ended
    }
}

/// A connection with a peer, of which the resolver is told for as long as this lives.
pub(super) struct Tie {
    resolver: Arc<dyn Resolver>,
    address: IpAddr,
}

impl Tie {
    /// Tells of a connection on that way.
    pub(super) fn new(shared: &Shared, path: &Path) -> Tie {
        let (resolver, address) = (shared.resolver.clone(), path.dgid.to_ip());
        resolver.connected(address);
        Tie { resolver, address }
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        self.resolver.disconnected(self.address);
    }
}

/// Tells that the manager's thread is gone, and with it QP 1 and its hold on the context.
#[derive(Debug, Default)]
pub(super) struct Ended {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    pub(super) fn set(&self) {
        *lock(&self.ended) = true;
        self.changed.notify_all();
    }

    /// Waits for the thread's end: whether it came.
    pub(super) fn wait(&self, deadline: Instant) -> bool {
        let mut ended = lock(&self.ended);
        while !*ended {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return false;
            };
            let waited = self.changed.wait_timeout(ended, left);
            ended = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        true
    }
}
