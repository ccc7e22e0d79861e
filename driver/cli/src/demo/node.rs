//! One side of the demo: an open NIC.

use std::net::IpAddr;
use std::sync::Arc;

use ferroce::context::{CloseReport, Context, OpenConfig};
use ferroce::function::PciFunction;
use ferroce::gid::Gid;

use crate::error::{CliError, chain};
use crate::nic::{self, GidChoice};

/// Addresses of the two sides: of networks that are set aside for documentation.
const ADDRESSES: [[&str; 2]; 2] = [["192.0.2.1", "2001:db8::1"], ["192.0.2.2", "2001:db8::2"]];

/// An open NIC.
pub struct Node {
    pub name: String,
    pub context: Arc<Context>,
}

impl Node {
    /// Brings a NIC up with the addresses of side `index`, 0 or 1.
    pub fn open(function: Arc<dyn PciFunction>, index: usize) -> Result<Node, CliError> {
        let device = function.address().clone();
        let mut config = OpenConfig::new();
        for address in ADDRESSES[index] {
            // PANIC: the texts are constants of this file.
            let address: IpAddr = address.parse().expect("an address");
            config = config.address(address);
        }
        let context = Context::open(function, config).map_err(|source| CliError::Open {
            device: device.clone(),
            source: Box::new(source),
        })?;
        Ok(Node {
            name: device.to_string(),
            context,
        })
    }

    /// Index and value of the GID that is to be used.
    pub fn gid(&self, choice: GidChoice) -> Result<(u16, Gid), CliError> {
        let found = nic::choose_gid(&self.context.gids().entries(), Some(choice), None);
        let found = found.map_err(|reason| CliError::Other(format!("{}: {reason}", self.name)))?;
        Ok((found.index, found.entry.gid))
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
