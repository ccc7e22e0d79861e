//! An interface (the untagged one, or a VLAN) and its addresses: from probe to use, and their defence.
//!
//! ```text
//!  IPv4 (RFC 5227): wait 0..1 s, 3 probes 1..2 s apart, wait 2 s ──▶ usable, 2 announcements 2 s apart
//!  IPv6 (RFC 4862): wait 0..1 s, 1 solicitation, wait 1 s        ──▶ usable, 2 unsolicited advertisements
//! ```

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use super::address::{InterfaceAddress, is_link_local};
use super::frame::solicited_node;
use super::timing::{Random, Timing};

/// Whether it is looked for other stations with an address before it is used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DuplicateDetection {
    /// The address is used once nobody has objected: after 4 to 9 s for IPv4 (RFC 5227), 1 to 2 s for IPv6 (RFC 4862).
    #[default]
    BeforeUse,
    /// The address is used at once and looked for meanwhile; where somebody objects, it is given up again. In the spirit
    /// of RFC 4429.
    Optimistic,
    /// The address is used and announced.
    Off,
}

/// What an address of an interface is good for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AddressState {
    /// It is being looked for, and not used.
    Tentative,
    /// It is being looked for, and used meanwhile.
    Optimistic,
    /// It is used.
    Usable,
    /// Another station has it. It is not used.
    Duplicate,
}

impl AddressState {
    /// Whether packets may come from it and go to it.
    #[must_use]
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Optimistic | Self::Usable)
    }
}

/// What an address has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Probe; so many are left.
    Probe(u8),
    /// Become usable.
    Use,
    /// Announce; so many are left.
    Announce(u8),
    Rest,
}

/// What the stack is to send for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Act {
    Probe,
    Announce,
    /// It has become usable.
    Ready,
}

#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) config: InterfaceAddress,
    pub(super) state: AddressState,
    step: Step,
    deadline: Option<Instant>,
    defended: Option<Instant>,
}

impl Address {
    pub(super) fn new(
        now: Instant,
        config: InterfaceAddress,
        detection: DuplicateDetection,
        timing: &Timing,
        random: &mut Random,
    ) -> Address {
        let probes = match config.ip {
            IpAddr::V4(_) => timing.arp_probes,
            IpAddr::V6(_) => timing.dad_transmits,
        };
        let off = detection == DuplicateDetection::Off || probes == 0;
        let state = match detection {
            _ if off => AddressState::Tentative,
            DuplicateDetection::BeforeUse => AddressState::Tentative,
            _ => AddressState::Optimistic,
        };
        let wait = random.between(std::time::Duration::ZERO, timing.probe_wait);
        Address {
            config,
            state,
            step: if off { Step::Use } else { Step::Probe(probes) },
            deadline: Some(if off { now } else { now + wait }),
            defended: None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Does the step that is due, if one is; what is to be sent.
    pub(super) fn advance(&mut self, now: Instant, timing: &Timing, random: &mut Random) -> Option<Act> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        let v4 = self.config.ip.is_ipv4();
        let (act, step, wait) = match self.step {
            Step::Probe(left) if left > 1 => {
                let wait = if v4 {
                    random.between(timing.probe_min, timing.probe_min * 2)
                } else {
                    timing.retransmit
                };
                (Act::Probe, Step::Probe(left - 1), wait)
            }
            Step::Probe(_) => {
                let wait = if v4 {
                    timing.announce_wait
                } else {
                    timing.retransmit
                };
                (Act::Probe, Step::Use, wait)
            }
            Step::Use => {
                self.state = AddressState::Usable;
                (
                    Act::Ready,
                    Step::Announce(timing.announcements),
                    std::time::Duration::ZERO,
                )
            }
            Step::Announce(left) if left > 0 => {
                (Act::Announce, Step::Announce(left - 1), timing.announce_interval)
            }
            Step::Announce(_) | Step::Rest => {
                self.step = Step::Rest;
                self.deadline = None;
                return None;
            }
        };
        self.step = step;
        self.deadline = match step {
            Step::Announce(0) => None,
            _ => Some(now + wait),
        };
        Some(act)
    }

    /// Whether others are still asked about it.
    pub(super) fn is_probing(&self) -> bool {
        matches!(self.step, Step::Probe(_) | Step::Use) && self.state != AddressState::Duplicate
    }

    /// Another station has it: it is not used any more.
    pub(super) fn give_up(&mut self) {
        self.state = AddressState::Duplicate;
        self.step = Step::Rest;
        self.deadline = None;
    }

    /// Whether it may be defended now: not more often than the standard allows.
    pub(super) fn may_defend(&mut self, now: Instant, timing: &Timing) -> bool {
        let early = |at: Instant| now.saturating_duration_since(at) < timing.defend_interval;
        if self.defended.is_some_and(early) {
            return false;
        }
        self.defended = Some(now);
        true
    }
}

/// One interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Interface {
    pub(super) addresses: Vec<Address>,
    /// When the groups are to be reported, and whether since a querier asked for it.
    pub(super) report: Option<Instant>,
}

impl Interface {
    pub(super) fn find(&self, ip: IpAddr) -> Option<&Address> {
        self.addresses.iter().find(|address| address.config.ip == ip)
    }

    pub(super) fn find_mut(&mut self, ip: IpAddr) -> Option<&mut Address> {
        self.addresses.iter_mut().find(|address| address.config.ip == ip)
    }

    /// Addresses in use.
    pub(super) fn usable(&self) -> impl Iterator<Item = &InterfaceAddress> {
        let usable = self.addresses.iter().filter(|address| address.state.is_usable());
        usable.map(|address| &address.config)
    }

    /// Whether an address is on the link of one of ours.
    pub(super) fn is_on_link(&self, ip: IpAddr) -> bool {
        self.usable().any(|own| own.prefix().contains(ip)) || (ip.is_ipv6() && is_link_local(ip))
    }

    /// The address of ours from which `ip` is best asked: in the same prefix, or else of the same kind.
    pub(super) fn source_for(&self, ip: IpAddr) -> Option<IpAddr> {
        let family = || self.usable().filter(|own| own.ip.is_ipv4() == ip.is_ipv4());
        family()
            .filter(|own| own.prefix().contains(ip))
            .max_by_key(|own| own.prefix_len)
            .or_else(|| family().find(|own| is_link_local(own.ip)))
            .or_else(|| family().next())
            .map(|own| own.ip)
    }

    /// The groups in which our addresses are asked for, each once.
    pub(super) fn groups(&self) -> Vec<Ipv6Addr> {
        let mut groups = Vec::new();
        for address in &self.addresses {
            if let (IpAddr::V6(ip), true) = (address.config.ip, address.state != AddressState::Duplicate) {
                let group = solicited_node(ip);
                if !groups.contains(&group) {
                    groups.push(group);
                }
            }
        }
        groups
    }

    /// The link-local address from which groups are reported; unspecified where there is none (RFC 3810, 5.2.13).
    pub(super) fn link_local(&self) -> Ipv6Addr {
        let link_local = self.usable().find_map(|own| match own.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(ip),
            _ => None,
        });
        link_local.unwrap_or(Ipv6Addr::UNSPECIFIED)
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let addresses = self.addresses.iter().filter_map(Address::deadline);
        addresses.chain(self.report).min()
    }
}
