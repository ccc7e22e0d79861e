//! The NIC that a tool works with: one that is there, or a model in this process with a wire to its peer.

mod args;
mod gids;

use std::path::PathBuf;
use std::sync::Arc;

use ferroce::context::{Context, OpenConfig};
use ferroce::function::{self, FunctionAddress, InProcess, PciFunction};
use ferroce::gid::Gid;
use ferroce::port::MacAddress;
use ferroce::verbs::Path;
use ferroce_nic_model::link::pcap::PcapFile;
use ferroce_nic_model::runner::Runner;

pub use self::args::{Device, IpPrefix, NicArgs};
pub use self::gids::{GidChoice, LocalGid};
use crate::error::{CliError, failed};
use crate::model::{self, SingleNic};

/// An open NIC.
pub struct Nic {
    context: Arc<Context>,
    name: String,
    addresses: Vec<IpPrefix>,
    choice: Option<GidChoice>,
    peer_mac: Option<MacAddress>,
    priority: u8,
    traffic_class: u8,
    /// Goes after the context.
    model: Option<Model>,
}

/// The model behind it, if it is one.
struct Model {
    runner: Runner,
    pcap: Option<(PcapFile, PathBuf)>,
}

impl Nic {
    /// Starts the model, if it is to be one, and brings the NIC up.
    ///
    /// # Errors
    /// Options that don't go together, and whatever keeps the NIC from coming up.
    pub fn open(args: &NicArgs) -> Result<Nic, CliError> {
        args.check()?;
        let (function, model) = function(args)?;
        let device = function.address().clone();
        let mut config = OpenConfig::new();
        for address in &args.addresses {
            config = config.address(address.ip);
        }
        if let Some(vlan) = args.vlan {
            config = config.vlan(vlan);
        }
        if let Some(mac) = args.mac {
            config = config.mac(mac);
        }
        let context = Context::open(function, config).map_err(|source| CliError::Open {
            device: device.clone(),
            source: Box::new(source),
        })?;
        Ok(Nic {
            context,
            name: device.to_string(),
            addresses: args.addresses.clone(),
            choice: args.gid,
            peer_mac: args.peer_mac,
            priority: args.priority,
            traffic_class: args.traffic_class,
            model,
        })
    }

    /// What verbs objects are made from.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The GID for a connection to `peer`, or for one to a peer that is not known yet.
    ///
    /// # Errors
    /// There is none that fits; the error says what there is.
    pub fn gid(&self, peer: Option<Gid>) -> Result<LocalGid, CliError> {
        gids::choose(&self.context.gids().entries(), self.choice, peer, &self.addresses)
            .map_err(|reason| CliError::Other(format!("{}: {reason}", self.name)))
    }

    /// The way to a peer.
    ///
    /// # Errors
    /// Its MAC address is not known.
    pub fn path(&self, local: &LocalGid, peer: Gid) -> Result<Path, CliError> {
        let mac = match self.peer_mac.or_else(|| mac_of(peer)) {
            Some(mac) => mac,
            None => {
                return Err(CliError::Other(format!(
                    "the MAC address of {} is not known; give it with --peer-mac",
                    peer.to_ip()
                )));
            }
        };
        let mut path = Path::new(local.index, peer, mac);
        path.priority = self.priority;
        path.traffic_class = self.traffic_class;
        Ok(path)
    }

    /// Shuts the NIC down, and ends the model so that its capture is whole.
    ///
    /// # Errors
    /// The NIC did not go down in order, or the capture could not be written.
    pub fn close(self) -> Result<(), CliError> {
        let Nic {
            context, name, model, ..
        } = self;
        let closed = context.close().map_err(|source| CliError::Close {
            device: name,
            source: Box::new(source),
        });
        if let Some(mut model) = model {
            model.runner.stop();
            if let Some((pcap, path)) = &model.pcap {
                pcap.flush().map_err(CliError::file("can't write", path))?;
            }
        }
        closed.map(|_| ())
    }
}

/// The PCI function, and the model that it belongs to.
fn function(args: &NicArgs) -> Result<(Arc<dyn PciFunction>, Option<Model>), CliError> {
    let wire = match &args.device {
        Device::Function(address) => {
            let function = function::open(address).map_err(|source| CliError::Function {
                device: address.clone(),
                source: Box::new(source),
            })?;
            return Ok((function, None));
        }
        Device::Model(wire) => wire,
    };
    let pcap = args.pcap.as_deref().map(model::create_pcap).transpose()?;
    let runner = model::single(&SingleNic {
        profile: args.profile,
        no_reset: false,
        mac: args.mac.unwrap_or(MacAddress(model::DEFAULT_MAC)),
        wire,
        faults: &args.faults,
        pcap: pcap.clone(),
    })?;
    let device = runner
        .device(0)
        .ok_or_else(|| CliError::Other("the model has no NIC".to_string()))?;
    let function = InProcess::new("model", device).map_err(|source| CliError::Function {
        device: FunctionAddress::InProcess("model".to_string()),
        source: Box::new(source),
    })?;
    let pcap = pcap.zip(args.pcap.clone());
    Ok((Arc::new(function), Some(Model { runner, pcap })))
}

/// The MAC address that a link-local address was made of, if it was made so (RFC 4291, appendix A).
fn mac_of(gid: Gid) -> Option<MacAddress> {
    let bytes = &gid.0[8..];
    let mac = MacAddress([bytes[0] ^ 2, bytes[1], bytes[2], bytes[5], bytes[6], bytes[7]]);
    (Gid::link_local(mac) == gid && mac.is_unicast()).then_some(mac)
}

/// The path MTU of that many bytes.
///
/// # Errors
/// It is none.
pub fn mtu(bytes: u16) -> Result<ferroce::verbs::Mtu, CliError> {
    let found = ferroce::verbs::Mtu::ALL
        .into_iter()
        .find(|mtu| mtu.bytes() == u32::from(bytes));
    found.ok_or_else(|| failed("path MTU")(MtuError(bytes)))
}

#[derive(Debug, thiserror::Error)]
#[error("{0} bytes is none of 256, 512, 1024, 2048 and 4096")]
struct MtuError(u16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_addresses_tell_their_mac() {
        let mac = MacAddress([0x52, 0x54, 0, 9, 0, 2]);
        assert_eq!(mac_of(Gid::link_local(mac)), Some(mac));
        let other = Gid::from_ip("fe80::1".parse().unwrap());
        assert_eq!(mac_of(other), None, "made of no MAC");
        let global = Gid::from_ip("fd00::5054:ff:fe09:2".parse().unwrap());
        assert_eq!(mac_of(global), None, "of another scope");
    }
}
