//! The neighbour cache: which MAC an address on the link has, and how sure that is.
//!
//! ```text
//!                 answer                  30 s             looked up          5 s
//!  INCOMPLETE ───────────▶ REACHABLE ───────────▶ STALE ───────────▶ DELAY ───────▶ PROBE
//!    │ 3 × 1 s                 ▲  ◀──────────────── answer ───────────┴───────────────┤
//!    ▼                         │                                                      │ 3 × 1 s
//!  FAILED ◀────────────────────┼──────────────────────────────────────────────────────┘
//! ```
//! ARP and neighbour discovery go the same way (RFC 4861, 7.3.2; RFC 826 has no states of its own). What the wire says
//! is not trusted: it can change entries that there are, but makes no more than there is room for, and never pushes out
//! one that somebody watches or waits for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::timing::{Random, Timing};
use crate::port::MacAddress;

/// How sure the MAC of a neighbour is. Names and meanings are those of RFC 4861, 7.3.2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NeighbourState {
    /// It was asked for and has not answered yet.
    Incomplete,
    /// It has answered lately.
    Reachable,
    /// It was known once, and is to be asked when it is used next.
    Stale,
    /// It is in use, and is asked in a moment if nothing confirms it.
    Delay,
    /// It is being asked at the MAC that it had.
    Probe,
    /// It does not answer.
    Failed,
}

/// Where a neighbour is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NeighbourKey {
    /// VLAN of the interface.
    pub vlan: Option<u16>,
    /// Its address.
    pub ip: IpAddr,
}

/// A neighbour, as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Address and VLAN.
    pub key: NeighbourKey,
    /// Its MAC, once it is known.
    pub mac: Option<MacAddress>,
    /// How sure that is.
    pub state: NeighbourState,
    /// Whether somebody wants to hear of changes.
    pub watched: bool,
}

/// What a look-up found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The MAC.
    Found(MacAddress),
    /// It is being asked for.
    Pending,
    /// It does not answer.
    Failed,
    /// There is no room for one more neighbour: all are in use.
    Full,
}

/// How a message speaks of its sender's MAC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// It asked us: we may need its MAC to answer. The entry is made if there is none.
    Asked,
    /// It answered us.
    Answered {
        /// A MAC that differs counts too (always so in ARP).
        overrides: bool,
    },
    /// It told all.
    Announced {
        /// A MAC that differs counts too (always so in ARP).
        overrides: bool,
    },
}

/// What the cache wants sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Solicit {
    pub(super) key: NeighbourKey,
    /// To that MAC, or to all.
    pub(super) to: Option<MacAddress>,
}

/// What happened to a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Mac { old: MacAddress, new: MacAddress },
    Reachable(MacAddress),
    Unreachable,
}

#[derive(Clone, Debug)]
struct Entry {
    state: NeighbourState,
    mac: Option<MacAddress>,
    /// When something happens by itself.
    deadline: Instant,
    /// Solicitations since the last answer.
    sent: u8,
    watchers: u32,
    /// It was told of as unreachable.
    lost: bool,
    used: Instant,
}

/// The cache.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    entries: HashMap<NeighbourKey, Entry>,
    limit: usize,
    timing: Timing,
    random: Random,
    pub(super) solicits: Vec<Solicit>,
    pub(super) changes: Vec<(NeighbourKey, Change)>,
}

impl Cache {
    pub(super) fn new(limit: usize, timing: Timing, random: Random) -> Cache {
        Cache {
            entries: HashMap::new(),
            limit,
            timing,
            random,
            solicits: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// All neighbours, in order.
    pub(super) fn list(&self) -> Vec<Neighbour> {
        let mut list: Vec<Neighbour> = self
            .entries
            .iter()
            .map(|(key, entry)| Neighbour {
                key: *key,
                mac: entry.mac,
                state: entry.state,
                watched: entry.watchers > 0,
            })
            .collect();
        list.sort_by_key(|neighbour| neighbour.key);
        list
    }

    /// The MAC of a neighbour that is to be sent to; asks for it where needed.
    pub(super) fn look_up(&mut self, now: Instant, key: NeighbourKey) -> Lookup {
        let Some(entry) = self.entries.get_mut(&key) else {
            if !self.make_room() {
                return Lookup::Full;
            }
            self.ask_anew(now, key, 0);
            return Lookup::Pending;
        };
        entry.used = now;
        match (entry.state, entry.mac) {
            (NeighbourState::Incomplete, _) | (_, None) if entry.state != NeighbourState::Failed => {
                Lookup::Pending
            }
            (NeighbourState::Failed, _) if now < entry.deadline => Lookup::Failed,
            (NeighbourState::Failed, _) | (_, None) => {
                let watchers = entry.watchers;
                self.ask_anew(now, key, watchers);
                Lookup::Pending
            }
            (NeighbourState::Stale, Some(mac)) => {
                entry.state = NeighbourState::Delay;
                entry.deadline = now + self.timing.delay_first_probe;
                Lookup::Found(mac)
            }
            (_, Some(mac)) => Lookup::Found(mac),
        }
    }

    fn ask_anew(&mut self, now: Instant, key: NeighbourKey, watchers: u32) {
        let before = self.entries.get(&key);
        let entry = Entry {
            state: NeighbourState::Incomplete,
            mac: None,
            deadline: now + self.timing.retransmit,
            sent: 1,
            watchers,
            lost: before.is_some_and(|entry| entry.lost),
            used: now,
        };
        self.entries.insert(key, entry);
        self.solicits.push(Solicit { key, to: None });
    }

    /// From now on the neighbour is kept, and asked before its MAC grows old. False where there is no room.
    pub(super) fn watch(&mut self, now: Instant, key: NeighbourKey) -> bool {
        if self.look_up(now, key) == Lookup::Full {
            return false;
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.watchers += 1;
        }
        true
    }

    /// Takes one [`Cache::watch`] back.
    pub(super) fn unwatch(&mut self, key: NeighbourKey) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.watchers = entry.watchers.saturating_sub(1);
        }
    }

    /// Something that the wire can't forge without more (an answer on a connection) came from the neighbour.
    pub(super) fn confirm(&mut self, now: Instant, key: NeighbourKey) {
        let deadline = self.reachable_until(now);
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.mac.is_some()
            && entry.state != NeighbourState::Failed
        {
            entry.state = NeighbourState::Reachable;
            entry.sent = 0;
            entry.deadline = deadline;
        }
    }

    fn reachable_until(&mut self, now: Instant) -> Instant {
        // MIN_RANDOM_FACTOR and MAX_RANDOM_FACTOR of RFC 4861, 10.
        let base = self.timing.reachable;
        now + self.random.between(base / 2, base + base / 2)
    }

    /// A message told the MAC of a neighbour.
    pub(super) fn heard(&mut self, now: Instant, key: NeighbourKey, mac: MacAddress, how: Heard) {
        let reachable = self.reachable_until(now);
        let Some(entry) = self.entries.get_mut(&key) else {
            if how == Heard::Asked && self.make_room() {
                self.entries.insert(key, self.stale(now, mac));
            }
            return;
        };
        let waiting = matches!(entry.state, NeighbourState::Incomplete | NeighbourState::Failed);
        let old = entry.mac.filter(|_| !waiting);
        let differs = old.is_some_and(|old| old != mac);
        let (overrides, answered) = match how {
            Heard::Asked => (true, false),
            Heard::Announced { overrides } => (overrides, false),
            Heard::Answered { overrides } => (overrides, true),
        };
        if differs && !overrides {
            // RFC 4861, 7.2.5: not taken, but what we had is in doubt.
            if entry.state == NeighbourState::Reachable {
                entry.state = NeighbourState::Stale;
                entry.deadline = now + self.timing.stale;
            }
            return;
        }
        entry.mac = Some(mac);
        if answered {
            entry.state = NeighbourState::Reachable;
            entry.deadline = reachable;
            entry.sent = 0;
        } else if waiting || differs {
            entry.state = NeighbourState::Stale;
            entry.deadline = now + self.timing.stale;
            entry.sent = 0;
        }
        if let Some(old) = old.filter(|old| *old != mac) {
            self.changes.push((key, Change::Mac { old, new: mac }));
            if entry.watchers > 0 && !answered {
                // In use: whoever said so has to prove it at once.
                entry.state = NeighbourState::Probe;
                entry.sent = 1;
                entry.deadline = now + self.timing.retransmit;
                self.solicits.push(Solicit { key, to: Some(mac) });
            }
        } else if waiting {
            entry.lost = false;
            self.changes.push((key, Change::Reachable(mac)));
        }
    }

    fn stale(&self, now: Instant, mac: MacAddress) -> Entry {
        Entry {
            state: NeighbourState::Stale,
            mac: Some(mac),
            deadline: now + self.timing.stale,
            sent: 0,
            watchers: 0,
            lost: false,
            used: now,
        }
    }

    /// When [`Cache::expire`] has something to do next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.entries.values().map(|entry| entry.deadline).min()
    }

    /// Does what is due.
    pub(super) fn expire(&mut self, now: Instant) {
        let due = self.entries.iter().filter(|(_, entry)| entry.deadline <= now);
        let due: Vec<NeighbourKey> = due.map(|(key, _)| *key).collect();
        for key in due {
            self.expire_one(now, key);
        }
    }

    fn expire_one(&mut self, now: Instant, key: NeighbourKey) {
        let (timing, hold) = (self.timing.clone(), self.timing.failed_hold);
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        let watched = entry.watchers > 0;
        let max = match entry.state {
            NeighbourState::Incomplete => timing.max_multicast_solicit,
            _ => timing.max_unicast_solicit,
        };
        match entry.state {
            NeighbourState::Incomplete | NeighbourState::Probe if entry.sent >= max => {
                entry.state = NeighbourState::Failed;
                entry.mac = None;
                entry.deadline = now + hold;
                if !std::mem::replace(&mut entry.lost, true) {
                    self.changes.push((key, Change::Unreachable));
                }
            }
            NeighbourState::Incomplete => self.solicit(now, key, None),
            NeighbourState::Probe | NeighbourState::Delay => {
                entry.state = NeighbourState::Probe;
                let mac = entry.mac;
                self.solicit(now, key, mac);
            }
            NeighbourState::Reachable if watched => {
                entry.state = NeighbourState::Probe;
                entry.sent = 0;
                let mac = entry.mac;
                self.solicit(now, key, mac);
            }
            NeighbourState::Reachable => {
                entry.state = NeighbourState::Stale;
                entry.deadline = now + timing.stale;
            }
            NeighbourState::Stale if watched => {
                entry.state = NeighbourState::Probe;
                let mac = entry.mac;
                self.solicit(now, key, mac);
            }
            NeighbourState::Failed if watched => {
                let watchers = entry.watchers;
                self.ask_anew(now, key, watchers);
            }
            NeighbourState::Failed | NeighbourState::Stale => {
                self.entries.remove(&key);
            }
        }
    }

    fn solicit(&mut self, now: Instant, key: NeighbourKey, to: Option<MacAddress>) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.sent = entry.sent.saturating_add(1);
            entry.deadline = now + self.timing.retransmit;
        }
        self.solicits.push(Solicit { key, to });
    }

    /// Forgets the neighbours of an interface that is gone.
    pub(super) fn forget(&mut self, vlan: Option<u16>) {
        self.entries.retain(|key, _| key.vlan != vlan);
    }

    /// Makes room for one more. False if all that are there are needed.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < self.limit {
            return true;
        }
        let idle = self.entries.iter().filter(|(_, entry)| {
            entry.watchers == 0 && !matches!(entry.state, NeighbourState::Incomplete | NeighbourState::Probe)
        });
        let oldest = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
        oldest.is_some_and(|key| self.entries.remove(&key).is_some())
    }

    /// How long until a look-up that is pending is given up at the latest.
    pub(super) fn patience(&self) -> Duration {
        self.timing.retransmit * u32::from(self.timing.max_multicast_solicit)
    }
}

#[cfg(test)]
#[path = "neighbour_tests.rs"]
mod tests;
