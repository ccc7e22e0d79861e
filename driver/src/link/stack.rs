//! The stack: frames and time in, frames and events out. No clock, thread or device inside.
//!
//! ```text
//!   handle_frame ──▶ ┌ interfaces: addresses, their probes and defence ┐ ──▶ poll_transmit
//!   handle_timeout ─▶│ neighbours: who has which MAC                    │ ──▶ poll_event
//!   look_up, watch ─▶└ ARP, neighbour discovery, echo                   ┘ ──▶ poll_timeout
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::address::{AddressError, InterfaceAddress};
use super::frame::{
    self, ALL_MLDV2_ROUTERS, ALL_NODES, Arp, BROADCAST, Ipv6Way, ND_HOP_LIMIT, multicast_mac,
    multicast_mac_v4, solicited_node,
};
use super::interface::{Act, Address, AddressState, DuplicateDetection, Interface};
use super::neighbour::{Cache, Change, Lookup, Neighbour, NeighbourKey, Solicit};
use super::timing::{Random, RateLimit, Timing};
use crate::port::MacAddress;

/// Addresses of all interfaces together.
const MAX_ADDRESSES: usize = 256;
/// Frames that wait to be sent, and events that wait to be read.
const MAX_WAITING: usize = 1024;

/// What a stack is made with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackConfig {
    /// The port's MAC.
    pub mac: MacAddress,
    /// Neighbours that are remembered at a time; 1024 by default.
    pub max_neighbours: usize,
    /// Echo requests that are answered in a second, and in a burst; 1000 and 200 by default.
    pub echo_rate: (u32, u32),
    /// Timers.
    pub timing: Timing,
    /// Seed of the random waits.
    pub seed: u64,
}

impl StackConfig {
    /// The usual values.
    #[must_use]
    pub fn new(mac: MacAddress) -> StackConfig {
        StackConfig {
            mac,
            max_neighbours: 1024,
            echo_rate: (1000, 200),
            timing: Timing::default(),
            seed: 1,
        }
    }
}

/// Something that happened on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LinkEvent {
    /// An address can be used from now on.
    AddressUsable {
        /// Which.
        address: InterfaceAddress,
    },
    /// Another station has an address of ours; it is not used, or not any more.
    AddressDuplicate {
        /// Which.
        address: InterfaceAddress,
        /// The other station.
        mac: MacAddress,
    },
    /// Another station claims an address that we use. We keep it, and say so to all at most every 10 s (RFC 5227, 2.4 c).
    AddressConflict {
        /// Which.
        address: InterfaceAddress,
        /// The other station.
        mac: MacAddress,
    },
    /// The MAC of a neighbour is another one now: what was connected by the old one has lost its path.
    NeighbourChanged {
        /// Which.
        neighbour: NeighbourKey,
        /// The MAC that it had.
        old: MacAddress,
        /// The MAC that it has.
        new: MacAddress,
    },
    /// A neighbour's MAC is known, for the first time or again.
    NeighbourReachable {
        /// Which.
        neighbour: NeighbourKey,
        /// Its MAC.
        mac: MacAddress,
    },
    /// A neighbour does not answer, or not any more.
    NeighbourUnreachable {
        /// Which.
        neighbour: NeighbourKey,
    },
}

/// What a stack has seen and done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Frames that came.
    pub frames_in: u64,
    /// Of them malformed: cut short, wrong checksum, fields that there can't be.
    pub malformed: u64,
    /// Of them for other stations, other VLANs or of other protocols.
    pub ignored: u64,
    /// Frames that were sent.
    pub frames_out: u64,
    /// Frames that were not sent, for too many were waiting.
    pub frames_dropped: u64,
    /// Echo requests that were answered.
    pub echo_replies: u64,
    /// Echo requests that were not, for there were too many.
    pub echo_limited: u64,
    /// ARP requests and neighbour solicitations that were answered.
    pub resolutions_answered: u64,
    /// Times that another station claimed an address of ours.
    pub conflicts: u64,
    /// Events that went since nobody read them.
    pub events_lost: u64,
}

/// Address resolution, duplicate detection and echo for the addresses of one port.
///
/// After each call that takes the time, [`Stack::poll_transmit`] and [`Stack::poll_event`] may have something;
/// [`Stack::poll_timeout`] says when [`Stack::handle_timeout`] is to be called next.
#[derive(Debug)]
pub struct Stack {
    pub(super) mac: MacAddress,
    pub(super) interfaces: BTreeMap<Option<u16>, Interface>,
    pub(super) neighbours: Cache,
    pub(super) timing: Timing,
    pub(super) random: Random,
    pub(super) echo: RateLimit,
    pub(super) counters: LinkCounters,
    out: VecDeque<Vec<u8>>,
    events: VecDeque<LinkEvent>,
}

impl Stack {
    /// A stack without addresses.
    #[must_use]
    pub fn new(config: &StackConfig) -> Stack {
        let random = Random::new(config.seed);
        let timing = config.timing.clone().bounded();
        let cache = Cache::new(
            config.max_neighbours.max(1),
            timing.clone(),
            Random::new(!config.seed),
        );
        Stack {
            mac: config.mac,
            interfaces: BTreeMap::new(),
            neighbours: cache,
            timing,
            random,
            echo: RateLimit::new(config.echo_rate.0, config.echo_rate.1),
            counters: LinkCounters::default(),
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The port's MAC.
    #[must_use]
    pub fn mac(&self) -> MacAddress {
        self.mac
    }

    /// Gives an interface an address. The interface is made if there is none for that VLAN.
    ///
    /// # Errors
    /// [`AddressError`]: it can't be one, it is there already, or there are too many.
    pub fn add_address(
        &mut self,
        now: Instant,
        config: InterfaceAddress,
        detection: DuplicateDetection,
    ) -> Result<(), AddressError> {
        config.check()?;
        let count: usize = self
            .interfaces
            .values()
            .map(|interface| interface.addresses.len())
            .sum();
        if count >= MAX_ADDRESSES {
            return Err(AddressError::TooMany { max: MAX_ADDRESSES });
        }
        let interface = self.interfaces.entry(config.vlan).or_default();
        if interface.find(config.ip).is_some() {
            return Err(AddressError::Exists { ip: config.ip });
        }
        let address = Address::new(now, config, detection, &self.timing, &mut self.random);
        let at_once = address.state.is_usable();
        interface.addresses.push(address);
        if config.ip.is_ipv6() {
            // RFC 4862, 5.4.2: the group is joined before the address is asked for.
            interface.report = Some(now);
        }
        if at_once {
            self.event(LinkEvent::AddressUsable { address: config });
        }
        self.handle_timeout(now);
        Ok(())
    }

    /// Takes an address away; an interface without addresses is none.
    ///
    /// # Errors
    /// [`AddressError::Unknown`].
    pub fn remove_address(
        &mut self,
        ip: IpAddr,
        vlan: Option<u16>,
    ) -> Result<InterfaceAddress, AddressError> {
        let unknown = AddressError::Unknown { ip };
        let interface = self.interfaces.get_mut(&vlan).ok_or(unknown.clone())?;
        let at = interface
            .addresses
            .iter()
            .position(|address| address.config.ip == ip)
            .ok_or(unknown)?;
        let removed = interface.addresses.remove(at).config;
        if interface.addresses.is_empty() {
            self.interfaces.remove(&vlan);
            self.neighbours.forget(vlan);
        }
        Ok(removed)
    }

    /// All addresses with their states.
    #[must_use]
    pub fn addresses(&self) -> Vec<(InterfaceAddress, AddressState)> {
        let all = self
            .interfaces
            .values()
            .flat_map(|interface| &interface.addresses);
        all.map(|address| (address.config, address.state)).collect()
    }

    /// The MAC of a station on the link; asks for it where needed. A group's and our own are known without.
    pub fn look_up(&mut self, now: Instant, key: NeighbourKey) -> Lookup {
        match key.ip {
            IpAddr::V4(ip) if ip.is_multicast() => return Lookup::Found(multicast_mac_v4(ip)),
            IpAddr::V6(ip) if ip.is_multicast() => return Lookup::Found(multicast_mac(ip)),
            _ => {}
        }
        if self
            .interfaces
            .get(&key.vlan)
            .is_some_and(|interface| interface.find(key.ip).is_some())
        {
            return Lookup::Found(self.mac);
        }
        let found = self.neighbours.look_up(now, key);
        self.flush_neighbours();
        found
    }

    /// Whether there is an address of ours from which a neighbour can be asked for.
    #[must_use]
    pub fn can_ask(&self, key: NeighbourKey) -> bool {
        self.interfaces
            .get(&key.vlan)
            .is_some_and(|interface| interface.source_for(key.ip).is_some())
    }

    /// Keeps a neighbour, asks it before its MAC grows old, and tells of changes by events, until
    /// [`Stack::unwatch`]. False where there is no room for one more.
    pub fn watch(&mut self, now: Instant, key: NeighbourKey) -> bool {
        let own = self
            .interfaces
            .get(&key.vlan)
            .is_some_and(|interface| interface.find(key.ip).is_some());
        if own || key.ip.is_multicast() {
            // Neither ever changes.
            return true;
        }
        let watched = self.neighbours.watch(now, key);
        self.flush_neighbours();
        watched
    }

    /// Takes one [`Stack::watch`] back.
    pub fn unwatch(&mut self, key: NeighbourKey) {
        self.neighbours.unwatch(key);
    }

    /// Something else has shown that a neighbour is where it was: an answer on a connection to it.
    pub fn confirm(&mut self, now: Instant, key: NeighbourKey) {
        self.neighbours.confirm(now, key);
    }

    /// The neighbours.
    #[must_use]
    pub fn neighbours(&self) -> Vec<Neighbour> {
        self.neighbours.list()
    }

    /// How long a look-up is pending at the most.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.neighbours.patience()
    }

    /// MACs of the groups whose frames have to reach the stack.
    #[must_use]
    pub fn multicast(&self) -> Vec<MacAddress> {
        let groups = self
            .interfaces
            .values()
            .flat_map(Interface::groups)
            .map(multicast_mac);
        let mut macs: Vec<MacAddress> = groups.collect();
        if !macs.is_empty() {
            macs.push(multicast_mac(ALL_NODES));
        }
        macs.sort_unstable();
        macs.dedup();
        macs
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let vlans: Vec<Option<u16>> = self.interfaces.keys().copied().collect();
        for vlan in vlans {
            self.advance_addresses(now, vlan);
            self.report_groups(now, vlan);
        }
        self.neighbours.expire(now);
        self.flush_neighbours();
    }

    /// When something is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let interfaces = self.interfaces.values().filter_map(Interface::next_deadline);
        interfaces.chain(self.neighbours.next_deadline()).min()
    }

    /// The next frame to send, without FCS, at least 60 bytes.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    pub(super) fn event(&mut self, event: LinkEvent) {
        if self.events.len() >= MAX_WAITING {
            self.events.pop_front();
            self.counters.events_lost += 1;
        }
        self.events.push_back(event);
    }

    pub(super) fn send(&mut self, frame: Vec<u8>) {
        if self.out.len() >= MAX_WAITING {
            self.counters.frames_dropped += 1;
            return;
        }
        self.counters.frames_out += 1;
        self.out.push_back(frame);
    }

    fn advance_addresses(&mut self, now: Instant, vlan: Option<u16>) {
        let mut acts = Vec::new();
        if let Some(interface) = self.interfaces.get_mut(&vlan) {
            for address in &mut interface.addresses {
                let before = address.state;
                while let Some(act) = address.advance(now, &self.timing, &mut self.random) {
                    acts.push((address.config, before, act));
                }
            }
        }
        for (address, before, act) in acts {
            match act {
                Act::Probe => self.probe(&address),
                Act::Announce => self.announce(&address),
                Act::Ready if before == AddressState::Tentative => {
                    self.event(LinkEvent::AddressUsable { address })
                }
                Act::Ready => {}
            }
        }
    }

    /// Asks whether somebody has the address.
    fn probe(&mut self, address: &InterfaceAddress) {
        let frame = match address.ip {
            IpAddr::V4(ip) => self.arp(
                (true, BROADCAST),
                address.vlan,
                Ipv4Addr::UNSPECIFIED,
                (MacAddress([0; 6]), ip),
            ),
            IpAddr::V6(ip) => {
                let way = self.way(address.vlan, Ipv6Addr::UNSPECIFIED, solicited_node(ip));
                frame::solicitation(&way, ip, None)
            }
        };
        self.send(frame);
    }

    /// Tells all that the address is ours.
    pub(super) fn announce(&mut self, address: &InterfaceAddress) {
        let frame = match address.ip {
            // RFC 5227, 3: a request, which old stations understand too.
            IpAddr::V4(ip) => self.arp((true, BROADCAST), address.vlan, ip, (MacAddress([0; 6]), ip)),
            IpAddr::V6(ip) => {
                let way = self.way(address.vlan, ip, ALL_NODES);
                frame::advertisement(&way, ip, self.mac, (false, true))
            }
        };
        self.send(frame);
    }

    pub(super) fn arp(
        &self,
        (request, to): (bool, MacAddress),
        vlan: Option<u16>,
        from: Ipv4Addr,
        target: (MacAddress, Ipv4Addr),
    ) -> Vec<u8> {
        let arp = Arp {
            request,
            sender: (self.mac, from),
            target,
        };
        arp.frame(to, vlan)
    }

    /// The way of a message of neighbour discovery to a group.
    pub(super) fn way(&self, vlan: Option<u16>, src: Ipv6Addr, group: Ipv6Addr) -> Ipv6Way {
        Ipv6Way {
            macs: (self.mac, multicast_mac(group)),
            vlan,
            src,
            dst: group,
            hop_limit: ND_HOP_LIMIT,
        }
    }

    fn report_groups(&mut self, now: Instant, vlan: Option<u16>) {
        let Some(interface) = self.interfaces.get_mut(&vlan) else {
            return;
        };
        if interface.report.is_none_or(|at| at > now) {
            return;
        }
        interface.report = None;
        let (groups, src) = (interface.groups(), interface.link_local());
        // At most what fits the smallest link that IPv6 has.
        for groups in groups.chunks(60) {
            let way = Ipv6Way {
                hop_limit: 1,
                ..self.way(vlan, src, ALL_MLDV2_ROUTERS)
            };
            let frame = frame::mld_report(&way, groups, true);
            self.send(frame);
        }
    }

    /// Sends and tells what the cache wants.
    pub(super) fn flush_neighbours(&mut self) {
        for solicit in std::mem::take(&mut self.neighbours.solicits) {
            self.solicit(&solicit);
        }
        for (neighbour, change) in std::mem::take(&mut self.neighbours.changes) {
            self.event(match change {
                Change::Mac { old, new } => LinkEvent::NeighbourChanged { neighbour, old, new },
                Change::Reachable(mac) => LinkEvent::NeighbourReachable { neighbour, mac },
                Change::Unreachable => LinkEvent::NeighbourUnreachable { neighbour },
            });
        }
    }

    fn solicit(&mut self, solicit: &Solicit) {
        let NeighbourKey { vlan, ip } = solicit.key;
        let source = self
            .interfaces
            .get(&vlan)
            .and_then(|interface| interface.source_for(ip));
        let frame = match (ip, source) {
            (IpAddr::V4(ip), Some(IpAddr::V4(from))) => {
                let to = solicit.to.unwrap_or(BROADCAST);
                self.arp((true, to), vlan, from, (MacAddress([0; 6]), ip))
            }
            (IpAddr::V6(ip), Some(IpAddr::V6(from))) => {
                let mut way = self.way(vlan, from, solicited_node(ip));
                if let Some(mac) = solicit.to {
                    (way.macs.1, way.dst) = (mac, ip);
                }
                frame::solicitation(&way, ip, Some(self.mac))
            }
            // Without an address of ours there is nobody to answer to; the look-up fails in time.
            _ => return,
        };
        self.send(frame);
    }
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
