//! How an agent is to work.

use super::super::address::{Gateway, InterfaceAddress};
use super::super::interface::DuplicateDetection;
use super::super::stack::StackConfig;
use super::super::timing::Timing;
use crate::ethernet::EthernetConfig;
use crate::gid::RoceVersion;
use crate::port::MacAddress;

/// How an agent is to work; the default takes over the addresses that the NIC was opened with.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    pub(super) addresses: Vec<InterfaceAddress>,
    pub(super) gateways: Vec<Gateway>,
    pub(super) detection: DuplicateDetection,
    pub(super) roce_versions: Vec<RoceVersion>,
    pub(super) ethernet: EthernetConfig,
    pub(super) timing: Timing,
    pub(super) max_neighbours: usize,
    pub(super) echo_rate: (u32, u32),
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
