//! How a tool is told which NIC to use.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use ferroce::function::FunctionAddress;
use ferroce::port::MacAddress;

use super::GidChoice;
use crate::args::{FaultArgs, Profile, Wire, own_mac};
use crate::error::CliError;

/// The NIC of a tool.
#[derive(Clone, Debug, Args)]
pub struct NicArgs {
    /// The NIC: `0000:3b:00.0`, `vfio-user:PATH`, or `model:dgram:LOCAL,REMOTE` for a NIC model in this process, whose wire
    /// is a pair of unix datagram sockets (one Ethernet frame each, as QEMU's `-netdev dgram`).
    #[arg(short, long, value_name = "DEV")]
    pub device: Device,

    /// An IP address of the NIC, with the length of its network's prefix, such as 10.9.0.1/24 or fd00:9::1/64. Can be
    /// given more than once. Beside these it has the link-local address of its MAC address.
    #[arg(long = "address", value_name = "IP/PREFIX")]
    pub addresses: Vec<IpPrefix>,

    /// Which of the NIC's GIDs to use: roce-v2-ipv4, roce-v2-ipv6, roce-v2-link-local, roce-v1, or an index of its table. By
    /// default one of RoCE v2 that fits the peer's, and IPv4 if the peer's is not known.
    #[arg(short, long, value_name = "GID")]
    pub gid: Option<GidChoice>,

    /// VLAN of the NIC's addresses, 0 to 4094. By default frames have no tag.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(0..=4094))]
    pub vlan: Option<u16>,

    /// Ethernet priority of the connection's frames, 0 to 7.
    #[arg(long, value_name = "PRIORITY", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub priority: u8,

    /// Traffic class of the connection's packets: DSCP in the upper 6 bits, ECN in the lower 2.
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    pub traffic_class: u8,

    /// MAC address of the NIC, in place of its own.
    #[arg(long, value_name = "MAC", value_parser = own_mac)]
    pub mac: Option<MacAddress>,

    /// MAC address of the peer, or of the router to it. A link-local address tells it by itself.
    #[arg(long, value_name = "MAC", value_parser = own_mac)]
    pub peer_mac: Option<MacAddress>,

    /// Which NIC the model is.
    #[arg(long, value_enum, default_value_t = Profile::Connectx4)]
    pub profile: Profile,

    /// Write the frames of the model's wire to this file.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// How the model's wire misbehaves: what this side sends.
    #[command(flatten)]
    pub faults: FaultArgs,
}

impl NicArgs {
    /// Whether the options go together.
    ///
    /// # Errors
    /// Names the option that is for models only.
    pub fn check(&self) -> Result<(), CliError> {
        if matches!(self.device, Device::Model(_)) {
            return Ok(());
        }
        let faults = self.faults;
        let given = [
            ("--pcap", self.pcap.is_some()),
            ("--loss", faults.loss != 0.0),
            ("--reorder", faults.reorder != 0.0),
            ("--duplicate", faults.duplicate != 0.0),
            ("--corrupt", faults.corrupt != 0.0),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(CliError::Other(format!(
                "{option} is for a NIC model in this process (--device model:dgram:LOCAL,REMOTE), not for {}",
                self.device
            ))),
            None => Ok(()),
        }
    }
}

/// Which NIC a tool uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// One that is there.
    Function(FunctionAddress),
    /// A model in this process, on that wire.
    Model(Wire),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        match text.strip_prefix("model:") {
            Some(wire) => wire.parse().map(Device::Model),
            None if text == "model" => {
                Err("a model needs a wire to its peer: model:dgram:LOCAL,REMOTE".to_string())
            }
            None => text
                .parse()
                .map(Device::Function)
                .map_err(|error: <FunctionAddress as FromStr>::Err| {
                    format!("{error}, or model:dgram:LOCAL,REMOTE for a model in this process")
                }),
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Function(address) => address.fmt(f),
            Device::Model(_) => f.write_str("model"),
        }
    }
}

/// An address in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPrefix {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network's prefix in bits.
    pub prefix: u8,
}

impl IpPrefix {
    /// Whether `other` is in the same network.
    pub fn covers(&self, other: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| {
            let shift = width.saturating_sub(self.prefix.into());
            a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
        };
        match (self.ip, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(u32::from(a).into(), u32::from(b).into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.into(), b.into(), 128),
            _ => false,
        }
    }
}

impl FromStr for IpPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<IpPrefix, String> {
        let (address, prefix) = text
            .split_once('/')
            .ok_or_else(|| format!("{text:?} has no prefix; write {text}/24 or the like"))?;
        let ip: IpAddr = address
            .parse()
            .map_err(|_| format!("{address:?} is not an IP address"))?;
        let width = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix
            .parse()
            .ok()
            .filter(|prefix| *prefix <= width)
            .ok_or_else(|| format!("{prefix:?} is not a prefix length from 0 to {width}"))?;
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("{ip} is not an address of a port"));
        }
        Ok(IpPrefix { ip, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        let wire = Wire::Dgram {
            local: "/a".into(),
            remote: "/b".into(),
        };
        assert_eq!("model:dgram:/a,/b".parse(), Ok(Device::Model(wire)));
        assert!(matches!(
            "3b:00.0".parse(),
            Ok(Device::Function(FunctionAddress::Pci(_)))
        ));
        assert!(matches!(
            "vfio-user:/x".parse(),
            Ok(Device::Function(FunctionAddress::VfioUser(_)))
        ));
        assert!("model".parse::<Device>().unwrap_err().contains("dgram"));
        assert!("eth0".parse::<Device>().unwrap_err().contains("model:"));
    }

    #[test]
    fn prefixes_have_bounds_and_cover_networks() {
        let v4: IpPrefix = "10.9.0.1/24".parse().unwrap();
        assert!(v4.covers("10.9.0.77".parse().unwrap()));
        assert!(!v4.covers("10.9.1.1".parse().unwrap()));
        assert!(!v4.covers("fd00::1".parse().unwrap()));
        let v6: IpPrefix = "fd00:9::1/64".parse().unwrap();
        assert!(v6.covers("fd00:9::abcd".parse().unwrap()));
        assert!(!v6.covers("fd00:a::1".parse().unwrap()));
        let any: IpPrefix = "10.9.0.1/0".parse().unwrap();
        assert!(any.covers("192.0.2.1".parse().unwrap()));
        for bad in [
            "10.9.0.1",
            "10.9.0.1/33",
            "fd00::/129",
            "x/8",
            "0.0.0.0/8",
            "ff02::1/16",
            "10.0.0.1/-1",
        ] {
            assert!(bad.parse::<IpPrefix>().is_err(), "{bad}");
        }
    }
}
