//! Two NICs of two ports each, every port joined with the same port of the other NIC.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ferroce::context::{Context, OpenConfig, Port};
use ferroce::gid::{Gid, RoceVersion};
use ferroce::port::{MacAddress, PortNumber};
use ferroce_nic_model::clock::RealClock;
use ferroce_nic_model::link::cable::{CableControl, cable};
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::runner::{Drive, Runner};

use crate::nics::Nics;

/// Frames that a cable holds in each direction.
const CABLE_DEPTH: usize = 4096;

/// The second port.
pub const SECOND: PortNumber = match PortNumber::new(2) {
    Some(port) => port,
    None => PortNumber::FIRST,
};

/// The NICs and their cables.
#[derive(Debug)]
pub struct TwoPorts {
    /// The NICs.
    pub nics: Nics,
    cables: [CableControl; 2],
}

impl TwoPorts {
    /// Two NICs of that kind, with MACs that end in 1 and 2.
    pub fn new(profile: Profile) -> TwoPorts {
        let [a, b, c, d, e, _] = profile.mac;
        let wires = [cable(CABLE_DEPTH), cable(CABLE_DEPTH)];
        let cables = [wires[0].0.control(), wires[1].0.control()];
        let [(a1, b1), (a2, b2)] = wires;
        let profile = profile.with_ports(2);
        let nics = vec![
            Nic::with_wires(
                profile.clone().with_mac([a, b, c, d, e, 1]),
                vec![Box::new(a1), Box::new(a2)],
            ),
            Nic::with_wires(
                profile.with_mac([a, b, c, d, e, 2]),
                vec![Box::new(b1), Box::new(b2)],
            ),
        ];
        let runner = Runner::new(nics, Arc::new(RealClock::new()), Drive::default()).expect("an engine");
        TwoPorts {
            nics: Nics { runner },
            cables,
        }
    }

    /// Pulls the cable of a port out, or puts it back in.
    pub fn set_cable(&self, port: PortNumber, up: bool) {
        self.cables[usize::from(port.get() - 1)].set_up(up);
        // The NICs look at their ports when something calls them.
        for index in 0..2 {
            self.nics.runner.with_nic(index, |_| ());
        }
    }

    /// The address of a NIC's port.
    pub fn address(index: usize, port: PortNumber) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 9, port.get(), 1 + index as u8))
    }

    /// The MAC address of a NIC.
    pub fn mac(&self, index: usize) -> MacAddress {
        MacAddress(self.nics.firmware(index, |fw| fw.mac()))
    }

    /// Brings a NIC up, with an address on each port.
    pub fn open(&self, index: usize) -> Arc<Context> {
        let config = [PortNumber::FIRST, SECOND]
            .into_iter()
            .fold(OpenConfig::new(), |config, port| {
                config.address_on(port, TwoPorts::address(index, port))
            });
        Context::open(self.nics.function(index), config).expect("the NIC comes up")
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
