//! How a device is to be opened.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cmdq::CommandTracer;
use crate::gid::RoceVersion;
use crate::port::{MacAddress, PortNumber};

/// How long firmware may be initializing. Source: Linux mlx5.
const FIRMWARE_READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Pages of 4 KiB that firmware may have: 1 GiB. A real card asks for 50 MiB.
const FIRMWARE_PAGES_LIMIT: usize = (1 << 30) / 4096;
/// The longest time that anything is waited for: further than that, a deadline is not to be relied on to exist.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Most completion vectors by default.
const MAX_VECTORS: usize = 64;

/// How a device is to be opened; the default suits most programs, but for the addresses.
///
/// ```
/// # use ferroce::context::OpenConfig;
/// let config = OpenConfig::new().address("10.9.0.1".parse()?).address("fd00:9::1".parse()?);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone)]
pub struct OpenConfig {
    pub(crate) addresses: Vec<(PortNumber, IpAddr)>,
    pub(crate) roce_versions: Vec<RoceVersion>,
    pub(crate) link_local_gid: bool,
    pub(crate) vlan: Option<u16>,
    pub(crate) mac: Option<MacAddress>,
    pub(crate) mtu: Option<u16>,
    pub(crate) completion_vectors: Option<usize>,
    pub(crate) completion_eq_log_size: u8,
    pub(crate) interrupts: bool,
    pub(crate) service_thread: Option<bool>,
    pub(crate) firmware_ready_timeout: Duration,
    pub(crate) command_timeout: Option<Duration>,
    pub(crate) firmware_pages_limit: usize,
    pub(crate) huge_pages: bool,
    pub(crate) tracer: Option<Arc<dyn CommandTracer>>,
}

impl fmt::Debug for OpenConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenConfig")
            .field("addresses", &self.addresses)
            .field("mac", &self.mac)
            .field("mtu", &self.mtu)
            .field("interrupts", &self.interrupts)
            .finish_non_exhaustive()
    }
}

impl Default for OpenConfig {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            roce_versions: vec![RoceVersion::V1, RoceVersion::V2],
            link_local_gid: true,
            vlan: None,
            mac: None,
            mtu: None,
            completion_vectors: None,
            completion_eq_log_size: 11,
            interrupts: true,
            service_thread: None,
            firmware_ready_timeout: FIRMWARE_READY_TIMEOUT,
            command_timeout: None,
            firmware_pages_limit: FIRMWARE_PAGES_LIMIT,
            huge_pages: false,
            tracer: None,
        }
    }
}

impl OpenConfig {
    /// The default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an IP address of the (first) port: it gets GIDs in each version of RoCE that is in use.
    #[must_use]
    pub fn address(self, address: IpAddr) -> Self {
        self.address_on(PortNumber::FIRST, address)
    }

    /// Adds an IP address of a port. Opening fails where the NIC has no such port, or the port no GID table.
    #[must_use]
    pub fn address_on(mut self, port: PortNumber, address: IpAddr) -> Self {
        self.addresses.push((port, address));
        self
    }

    /// Versions of RoCE that addresses get GIDs for, in this order. By default both; what the device lacks is left out.
    #[must_use]
    pub fn roce_versions(mut self, versions: impl IntoIterator<Item = RoceVersion>) -> Self {
        self.roce_versions = versions.into_iter().collect();
        self
    }

    /// Whether the link-local address of the MAC gets GIDs too, before all others. On by default, as in Linux.
    #[must_use]
    pub fn link_local_gid(mut self, on: bool) -> Self {
        self.link_local_gid = on;
        self
    }

    /// VLAN id (1..=4094) of the addresses' packets. By default they are untagged.
    #[must_use]
    pub fn vlan(mut self, vlan: u16) -> Self {
        self.vlan = Some(vlan);
        self
    }

    /// The port's MAC, in place of the one that firmware has.
    #[must_use]
    pub fn mac(mut self, mac: MacAddress) -> Self {
        self.mac = Some(mac);
        self
    }

    /// Largest IP packet in bytes. By default enough for a path MTU of 4096 bytes, or what the port can.
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Completion vectors, beside the one for asynchronous events; at least 1. By default one for each CPU. It is cut to
    /// the MSI-X vectors that the device has.
    #[must_use]
    pub fn completion_vectors(mut self, vectors: usize) -> Self {
        self.completion_vectors = Some(vectors.clamp(1, 1024));
        self
    }

    pub(crate) fn vectors(&self) -> usize {
        let cpus = || {
            std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(MAX_VECTORS)
        };
        self.completion_vectors.unwrap_or_else(cpus)
    }

    /// Entries of a completion vector's event queue, rounded up to a power of two, 64 to 65536; 2048 by default. There
    /// must be one for each CQ that is armed at a time.
    #[must_use]
    pub fn completion_eq_entries(mut self, entries: u32) -> Self {
        self.completion_eq_log_size = entries.clamp(64, 1 << 16).next_power_of_two().ilog2() as u8;
        self
    }

    /// Whether MSI-X is used (the default). Without it, everything is polled, and [`Self::service_thread`] is off unless
    /// asked for.
    #[must_use]
    pub fn interrupts(mut self, on: bool) -> Self {
        self.interrupts = on;
        self
    }

    /// Whether a thread answers page requests, watches the device's health, takes events in and destroys what was
    /// dropped, when no other thread is waiting. Without it the program calls
    /// [`Context::process_events`](super::context::Context::process_events) often enough.
    #[must_use]
    pub fn service_thread(mut self, on: bool) -> Self {
        self.service_thread = Some(on);
        self
    }

    /// How long firmware may be initializing; 120 s by default.
    #[must_use]
    pub fn firmware_ready_timeout(mut self, timeout: Duration) -> Self {
        self.firmware_ready_timeout = timeout;
        self
    }

    /// How long a command may take, a year at most. By default what the device says (`cmd_exec_to`), or 60 s.
    #[must_use]
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = Some(timeout.min(LONGEST_WAIT));
        self
    }

    /// Most pages of 4 KiB that firmware may have; 1 GiB by default.
    #[must_use]
    pub fn firmware_pages_limit(mut self, pages: usize) -> Self {
        self.firmware_pages_limit = pages;
        self
    }

    /// Whether firmware's pages come from the system's reserved huge pages of 2 MiB where there are enough of them. Off by
    /// default: the pool then has normal pages, or transparent huge ones.
    #[must_use]
    pub fn huge_pages(mut self, on: bool) -> Self {
        self.huge_pages = on;
        self
    }

    /// Shows each firmware command to `tracer`.
    #[must_use]
    pub fn tracer(mut self, tracer: Arc<dyn CommandTracer>) -> Self {
        self.tracer = Some(tracer);
        self
    }
}
