//! What an agent has behind its lock: the stack, the queues, and the GIDs of each address.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use super::super::address::{Gateway, InterfaceAddress, is_link_local, width};
use super::super::error::LinkError;
use super::super::interface::DuplicateDetection;
use super::super::route::{self, Route, RouteError, RouteQuery, RouteTables};
use super::super::stack::{LinkEvent, Stack};
use super::AgentCounters;
use crate::context::Context;
use crate::error::StepError;
use crate::ethernet::{EthernetQueues, SendError};
use crate::gid::{Gid, GidEntry, RoceVersion};
use crate::port::MacAddress;

/// Events that wait for the thread to tell of them.
const MAX_EVENTS: usize = 1024;
/// Frames that wait for room in the send queue.
const MAX_BACKLOG: usize = 256;

/// What is behind the lock.
pub(super) struct Inner {
    pub(super) stack: Stack,
    /// `None` between a failure and the next attempt.
    pub(super) queues: Option<EthernetQueues>,
    pub(super) gateways: Vec<Gateway>,
    pub(super) roce_versions: Vec<RoceVersion>,
    pub(super) detection: DuplicateDetection,
    /// GID indices of each address.
    pub(super) gids: BTreeMap<(Option<u16>, IpAddr), Vec<u16>>,
    pub(super) multicast: Vec<MacAddress>,
    pub(super) backlog: VecDeque<Vec<u8>>,
    /// For the thread to tell of.
    pub(super) events: VecDeque<LinkEvent>,
    pub(super) ended: Option<String>,
    pub(super) counters: AgentCounters,
}

impl Inner {
    /// Takes the addresses over that the GID table has.
    pub(super) fn adopt(
        &mut self,
        context: &Context,
        configured: &[InterfaceAddress],
    ) -> Result<(), LinkError> {
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

    pub(super) fn add(
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

    pub(super) fn remove(
        &mut self,
        context: &Context,
        ip: IpAddr,
        vlan: Option<u16>,
    ) -> Result<(), LinkError> {
        self.stack.remove_address(ip, vlan)?;
        let result = self.remove_gids(context, ip, vlan);
        self.settle(context);
        Ok(result?)
    }

    pub(super) fn add_gids(&mut self, context: &Context, address: &InterfaceAddress) {
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

    pub(super) fn remove_gids(
        &mut self,
        context: &Context,
        ip: IpAddr,
        vlan: Option<u16>,
    ) -> Result<(), StepError> {
        for index in self.gids.remove(&(vlan, ip)).unwrap_or_default() {
            context.remove_gid(index)?;
        }
        Ok(())
    }

    /// Does what the stack wants done: frames, GIDs, groups; keeps its events for the thread.
    pub(super) fn settle(&mut self, context: &Context) {
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

    pub(super) fn transmit(&mut self) {
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
    pub(super) fn pump(&mut self, context: &Context) {
        let now = Instant::now();
        if let Some(queues) = &mut self.queues {
            let stack = &mut self.stack;
            queues.poll(|frame| stack.handle_frame(now, frame));
        }
        self.stack.handle_timeout(now);
        self.settle(context);
    }

    pub(super) fn route(&self, context: &Context, query: &RouteQuery) -> Result<Route, RouteError> {
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
