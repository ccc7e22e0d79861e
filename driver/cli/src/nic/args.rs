//! How a tool is told which NIC to use.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use ferroce::cm::Params;
use ferroce::function::FunctionAddress;
use ferroce::link::{AddressError, Gateway, InterfaceAddress, split_vlan};
use ferroce::port::MacAddress;

use super::GidChoice;
use crate::args::{FaultArgs, FaultsOn, Profile, Wire, own_mac};
use crate::error::CliError;

/// The NIC of a tool.
#[derive(Clone, Debug, Args)]
pub struct NicArgs {
    /// The NIC: `0000:3b:00.0` (`group:` or `iommufd:` before it chooses the way through VFIO), `vfio-user:PATH`, or
    /// `model:dgram:LOCAL,REMOTE` for a NIC model in this process, whose wire is a pair of unix datagram sockets (one Ethernet
    /// frame each, as QEMU's `-netdev dgram`).
    #[arg(short, long, value_name = "DEV")]
    pub device: Device,

    /// An IP address of the NIC, with the length of its network's prefix, such as 10.9.0.1/24 or fd00:9::1/64; with its
    /// VLAN, if it is another than --vlan: 10.9.7.1/24@7, @0 for none. Can be given more than once. Beside these the NIC has
    /// the link-local address of its MAC address.
    #[arg(long = "address", value_name = "IP/PREFIX")]
    pub addresses: Vec<Placed<InterfaceAddress>>,

    /// A router: 10.9.0.254, or 192.0.2.0/24 via 10.9.0.254 for one to that network only; with its VLAN, if it is another
    /// than --vlan. Can be given more than once.
    #[arg(long = "gateway", value_name = "IP")]
    pub gateways: Vec<Placed<Gateway>>,

    /// Which of the NIC's GIDs to use: roce-v2-ipv4, roce-v2-ipv6, roce-v2-link-local, roce-v1, or an index of its table. By
    /// default the one that `ferroce route` says, and the first of RoCE v2 and IPv4 if the peer's is not known.
    #[arg(short, long, value_name = "GID")]
    pub gid: Option<GidChoice>,

    /// VLAN of the NIC's addresses and routers, 1 to 4094. By default frames have no tag.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,

    /// Ethernet priority of the connection's frames, 0 to 7. The client's is for both sides where the connection manager
    /// connects them.
    #[arg(long, value_name = "PRIORITY", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub priority: u8,

    /// Traffic class of the connection's packets: DSCP in the upper 6 bits, ECN in the lower 2. The client's is for both
    /// sides where the connection manager connects them.
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    pub traffic_class: u8,

    /// DSCP of the CNPs with which the port answers marked packets, 0 to 63. It holds for all who use the port. By default
    /// what its firmware has.
    #[arg(long, value_name = "DSCP", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub cnp_dscp: Option<u8>,

    /// MAC address of the NIC, in place of its own. Models at both ends of a wire have different ones by themselves.
    #[arg(long, value_name = "MAC", value_parser = own_mac)]
    pub mac: Option<MacAddress>,

    /// Largest IP packet of the port in bytes. By default enough for a path MTU of 4096 bytes.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1280..=9978))]
    pub port_mtu: Option<u16>,

    /// MAC address of the peer, or of the router to it. By default the peer is asked for it (ARP, neighbour discovery).
    #[arg(long, value_name = "MAC", value_parser = own_mac)]
    pub peer_mac: Option<MacAddress>,

    /// Which NIC the model is; connectx4 by default.
    #[arg(long, value_enum)]
    pub profile: Option<Profile>,

    /// Write the frames of the model's wire to this file.
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// How the model's wire misbehaves.
    #[command(flatten)]
    pub faults: FaultArgs,

    /// Which frames of the model's wire misbehave.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    pub faults_on: FaultsOn,
}

impl NicArgs {
    /// The addresses with their VLANs.
    pub fn interface_addresses(&self) -> impl Iterator<Item = InterfaceAddress> {
        self.addresses.iter().map(|address| InterfaceAddress {
            vlan: if address.said { address.of.vlan } else { self.vlan },
            ..address.of
        })
    }

    /// The routers with their VLANs.
    pub fn interface_gateways(&self) -> impl Iterator<Item = Gateway> {
        self.gateways.iter().map(|gateway| Gateway {
            vlan: if gateway.said { gateway.of.vlan } else { self.vlan },
            ..gateway.of
        })
    }

    /// The same for a tool that has random data of its own: --seed is for these, too, whatever the NIC is.
    pub fn with_data_of_seed(&self) -> NicArgs {
        let mut args = self.clone();
        if matches!(args.device, Device::Function(_)) {
            args.faults.seed = None;
        }
        args
    }

    /// Whether the options go together.
    ///
    /// # Errors
    /// Names the option that is for models only, or that others contradict.
    pub fn check(&self) -> Result<(), CliError> {
        self.check_networks()?;
        if matches!(self.device, Device::Model(_)) {
            return Ok(());
        }
        let faults = self.faults;
        let given = [
            ("--profile", self.profile.is_some()),
            ("--pcap", self.pcap.is_some()),
            ("--seed", faults.seed.is_some()),
            ("--loss", faults.loss != 0.0),
            ("--reorder", faults.reorder != 0.0),
            ("--duplicate", faults.duplicate != 0.0),
            ("--corrupt", faults.corrupt != 0.0),
            ("--mark", faults.mark != 0.0),
            ("--faults-on", self.faults_on != FaultsOn::Sent),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(CliError::Other(format!(
                "{option} is for a NIC model in this process (--device model:dgram:LOCAL,REMOTE), not for {}",
                self.device
            ))),
            None => Ok(()),
        }
    }

    /// `params` with the priority and the traffic class that the options ask for.
    pub fn params(&self, params: Params) -> Params {
        Params {
            traffic_class: Some(self.traffic_class).filter(|class| *class != 0),
            priority: Some(self.priority).filter(|priority| *priority != 0),
            ..params
        }
    }

    /// Whether the options have a meaning where the connection manager connects. `accepts`: this side takes what the client
    /// has chosen for both.
    ///
    /// # Errors
    /// Names the option that has none.
    pub fn check_managed(&self, accepts: bool) -> Result<(), CliError> {
        let clients = "the client's is used for both sides";
        let given = [
            (
                "--gid",
                self.gid.is_some(),
                "the peer's IP address decides on the GIDs",
            ),
            ("--peer-mac", self.peer_mac.is_some(), "the peer is asked for it"),
            ("--priority", accepts && self.priority != 0, clients),
            ("--traffic-class", accepts && self.traffic_class != 0, clients),
        ];
        match given.iter().find(|(_, given, _)| *given) {
            Some((option, _, why)) => Err(CliError::Other(format!(
                "{option} has no meaning here, where the connection manager connects: {why}; leave it out"
            ))),
            None => Ok(()),
        }
    }

    /// Whether each address is given once, and each router is in a network of the NIC's.
    fn check_networks(&self) -> Result<(), CliError> {
        let own: Vec<_> = self.interface_addresses().collect();
        for (place, one) in own.iter().enumerate() {
            if let Some(other) = own[..place]
                .iter()
                .find(|o| (o.ip, o.vlan) == (one.ip, one.vlan) && o != &one)
            {
                return Err(CliError::Other(format!(
                    "--address {one} and --address {other} are the same address with different prefixes; give one of them"
                )));
            }
        }
        for gateway in self.interface_gateways() {
            let here = |address: &InterfaceAddress| {
                address.vlan == gateway.vlan && address.prefix().contains(gateway.via)
            };
            let on_link = matches!(gateway.via, IpAddr::V6(ip) if ip.is_unicast_link_local());
            if !on_link && !own.iter().any(here) {
                return Err(CliError::Other(format!(
                    "--gateway {gateway}: no --address has a network that {} is in, so that it can't be reached",
                    gateway.via
                )));
            }
        }
        Ok(())
    }
}

/// An address or a router, and whether its text says in which network it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    of: T,
    said: bool,
}

impl<T: FromStr<Err = AddressError>> FromStr for Placed<T> {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Placed<T>, AddressError> {
        let said = split_vlan(text)?.1.is_some();
        Ok(Placed {
            of: text.parse()?,
            said,
        })
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

impl Device {
    /// Whether no hardware is behind it: a model in this process, or one that another process serves.
    pub fn is_software(&self) -> bool {
        matches!(
            self,
            Device::Model(_) | Device::Function(FunctionAddress::VfioUser(_))
        )
    }
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
                    format!("{error}; a model in this process is model:dgram:LOCAL,REMOTE")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_the_vlan_that_is_said_last() {
        #[derive(Debug, clap::Parser)]
        struct Tool {
            #[command(flatten)]
            nic: NicArgs,
        }
        let nic = |options: &[&str]| {
            let args = ["tool", "-d", "model:none"].iter().chain(options);
            <Tool as clap::Parser>::parse_from(args).nic
        };
        let addresses = ["10.9.0.1/24", "10.9.1.1/24@0", "10.9.2.1/24@9"];
        let given: Vec<_> = addresses.iter().flat_map(|text| ["--address", *text]).collect();
        let vlans = |nic: NicArgs| nic.interface_addresses().map(|a| a.vlan).collect::<Vec<_>>();
        assert_eq!(vlans(nic(&given)), [None, None, Some(9)]);
        assert_eq!(
            vlans(nic(&[&given[..], &["--vlan", "7"]].concat())),
            [Some(7), None, Some(9)]
        );
        let routers = nic(&[
            "--vlan",
            "7",
            "--gateway",
            "10.9.0.254",
            "--gateway",
            "10.9.1.254@0",
        ]);
        let vlans: Vec<_> = routers.interface_gateways().map(|g| g.vlan).collect();
        assert_eq!(vlans, [Some(7), None]);
    }

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
        for (text, software) in [("model:none", true), ("vfio-user:/x", true), ("3b:00.0", false)] {
            assert_eq!(
                text.parse::<Device>().map(|device| device.is_software()),
                Ok(software)
            );
        }
        assert!("model".parse::<Device>().unwrap_err().contains("dgram"));
        assert!("eth0".parse::<Device>().unwrap_err().contains("model:"));
    }
}
