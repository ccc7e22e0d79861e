//! One side of the demo: an open NIC.

use std::net::IpAddr;
use std::sync::Arc;

use ferroce::context::{CloseReport, Context, OpenConfig};
use ferroce::function::PciFunction;
use ferroce::gid::{Gid, RoceVersion};

use crate::args::GidKind;
use crate::error::{CliError, chain};

/// Addresses of the two sides: of networks that are set aside for documentation.
const ADDRESSES: [[&str; 2]; 2] = [["192.0.2.1", "2001:db8::1"], ["192.0.2.2", "2001:db8::2"]];

/// An open NIC and its addresses.
pub struct Node {
    pub name: String,
    pub context: Arc<Context>,
    pub addresses: [IpAddr; 2],
}

impl Node {
    /// Brings a NIC up with the addresses of side `index`, 0 or 1.
    pub fn open(function: Arc<dyn PciFunction>, index: usize) -> Result<Node, CliError> {
        let device = function.address().clone();
        let mut addresses = [IpAddr::from([0, 0, 0, 0]); 2];
        let mut config = OpenConfig::new();
        for (address, text) in addresses.iter_mut().zip(ADDRESSES[index]) {
            // PANIC: the texts are constants of this file.
            *address = text.parse().expect("an address");
            config = config.address(*address);
        }
        let context = Context::open(function, config).map_err(|source| CliError::Open {
            device: device.clone(),
            source: Box::new(source),
        })?;
        Ok(Node {
            name: device.to_string(),
            context,
            addresses,
        })
    }

    /// Index and value of the GID of that kind.
    pub fn gid(&self, kind: GidKind) -> Result<(u16, Gid), CliError> {
        let (address, version) = match kind {
            GidKind::RoceV2Ipv4 => (self.addresses[0], RoceVersion::V2),
            GidKind::RoceV2Ipv6 => (self.addresses[1], RoceVersion::V2),
            GidKind::RoceV1 => (self.addresses[1], RoceVersion::V1),
        };
        let gid = Gid::from_ip(address);
        let index = self
            .context
            .gids()
            .find(|entry| entry.gid == gid && entry.version == version);
        match index {
            Some(index) => Ok((index, gid)),
            None => Err(CliError::Other(format!(
                "{} has no GID {gid} of {version}",
                self.name
            ))),
        }
    }

    /// Shuts the NIC down.
    pub fn close(self) -> Result<CloseReport, CliError> {
        self.context.close().map_err(|source| CliError::Close {
            device: self.name,
            source: Box::new(source),
        })
    }

    /// The port's MAC address.
    pub fn mac(&self) -> Result<ferroce::port::MacAddress, CliError> {
        let port = self
            .context
            .port_attributes()
            .map_err(|e| CliError::Other(chain(&e)))?;
        Ok(port.mac)
    }
}
