//! The agent's thread, and what calls of others share with it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::super::error::ResolveError;
use super::super::interface::AddressState;
use super::super::neighbour::{Lookup, NeighbourKey};
use super::super::resolver::Followed;
use super::super::route::{Route, RouteError, RouteQuery};
use super::super::stack::LinkEvent;
use super::config::AgentConfig;
use super::inner::Inner;
use crate::cmdq::lock;
use crate::context::Context;
use crate::ethernet::EthernetQueues;
use crate::port::MacAddress;

/// How long it is waited before queues that have failed are made anew.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

pub(super) type Handler = Arc<dyn Fn(&LinkEvent) + Send + Sync>;

pub(super) struct Shared {
    pub(super) inner: Mutex<Inner>,
    /// Neighbours, addresses, or the end.
    pub(super) changed: Condvar,
    /// The thread is to look again.
    pub(super) woken: AtomicBool,
    pub(super) stop: AtomicBool,
    pub(super) handlers: Mutex<Vec<(u64, Handler)>>,
    pub(super) next_handler: AtomicU64,
    /// Peers of the connection manager.
    pub(super) followed: Arc<Mutex<Followed>>,
    pub(super) config: AgentConfig,
    pub(super) context: Arc<Context>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Makes the thread look again.
    pub(super) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.context.wake(self.config.ethernet.vector);
    }

    /// After a call that changed something: sends, tells those who wait, and lets the thread see to its timers.
    pub(super) fn after_call(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.settle(&self.context);
        drop(inner);
        self.changed.notify_all();
        self.wake();
    }

    /// Waits for a change. `None` once the deadline has come.
    pub(super) fn wait<'a>(
        &self,
        inner: MutexGuard<'a, Inner>,
        deadline: Instant,
    ) -> Option<MutexGuard<'a, Inner>> {
        let left = deadline
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())?;
        let waited = self.changed.wait_timeout(inner, left);
        Some(waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    pub(super) fn resolve(&self, key: NeighbourKey, deadline: Instant) -> Result<MacAddress, ResolveError> {
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
    pub(super) fn route_when_ready(
        &self,
        query: &RouteQuery,
        deadline: Instant,
    ) -> Result<Route, ResolveError> {
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
    pub(super) fn run(&self) {
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
    pub(super) fn reopen(&self, inner: &mut Inner, at: &mut Instant) {
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

    pub(super) fn tell(&self, events: VecDeque<LinkEvent>) {
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
