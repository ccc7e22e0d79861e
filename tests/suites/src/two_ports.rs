//! Two NICs of two ports each, every port joined with the same port of the other NIC.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ferroce::context::{Context, OpenConfig, Port};
use ferroce::function::InProcess;
use ferroce::gid::{Gid, RoceVersion};
use ferroce::port::PortNumber;
use ferroce_firmware_iface::event::PortChange;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};

/// The second port.
pub const SECOND: PortNumber = match PortNumber::new(2) {
    Some(port) => port,
    None => PortNumber::FIRST,
};

/// The NICs and their cables.
#[derive(Debug)]
pub struct TwoPorts {
    /// The NICs and their cables.
    pub testbed: Testbed,
}

impl Default for TwoPorts {
    fn default() -> Self {
        TwoPorts::new()
    }
}

impl TwoPorts {
    /// Two NICs of the default kind.
    pub fn new() -> TwoPorts {
        let TestbedConfig { profiles, .. } = TestbedConfig::default();
        let config = TestbedConfig {
            profiles: profiles.map(|profile| profile.with_ports(2)),
            ..TestbedConfig::default()
        };
        TwoPorts {
            testbed: Testbed::new(config).expect("a testbed"),
        }
    }

    /// Pulls the cable of a port out, or puts it back in.
    pub fn set_cable(&self, port: PortNumber, up: bool) {
        self.testbed.set_cable_of(port.get(), up);
    }

    /// Has a NIC's firmware tell of a change of a port.
    pub fn announce(&self, index: usize, port: PortNumber, change: PortChange) {
        self.testbed
            .with_nic(index, |nic| nic.firmware().announce(port.get(), change));
    }

    /// Whether the drivers kept to the rules of both NICs.
    ///
    /// # Panics
    /// If a NIC has counted a violation.
    pub fn assert_clean(&self) {
        for index in 0..2 {
            let stats = self.testbed.stats(index).expect("a NIC");
            let broken = (stats.data_path_violations, stats.firmware_violations);
            assert_eq!(broken, (0, 0), "NIC {index}: {stats:?}");
        }
    }

    /// The address of a NIC's port.
    pub fn address(index: usize, port: PortNumber) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 9, port.get(), 1 + index as u8))
    }

    /// Brings a NIC up, with an address on each port.
    pub fn open(&self, index: usize) -> Arc<Context> {
        let config = [PortNumber::FIRST, SECOND]
            .into_iter()
            .fold(OpenConfig::new(), |config, port| {
                config.address_on(port, TwoPorts::address(index, port))
            });
        let device = self.testbed.device(index).expect("a NIC");
        let function = InProcess::new(&format!("nic{index}"), device).expect("an in-process function");
        Context::open(Arc::new(function), config).expect("the NIC comes up")
    }

    /// The index of the RoCE v2 GID of a port's IPv4 address.
    pub fn gid_index(index: usize, port: &Port) -> u16 {
        let gid = Gid::from_ip(TwoPorts::address(index, port.number()));
        let found = port
            .gids()
            .find(|entry| entry.gid == gid && entry.version == RoceVersion::V2);
        found.expect("the GID is in the port's table")
    }
}
