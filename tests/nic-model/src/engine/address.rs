//! GIDs, and the addresses that a QP's packets carry: source from the GID table, destination from the QP's path.

use ferroce_firmware_iface::layouts::{Ads, RoceAddrLayout};

use crate::wire::Encap;

/// Which frames a GID stands for (`roce_version`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RoceVersion {
    /// Ethernet type 0x8915 and a GRH.
    V1,
    /// UDP port 4791.
    V2,
}

/// An entry of the GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gid {
    /// The GID; an IPv4 address as ::ffff:a.b.c.d.
    pub address: [u8; 16],
    /// Source MAC.
    pub mac: [u8; 6],
    /// VLAN ID.
    pub vlan: Option<u16>,
    /// The L3 header of RoCE v2 is IPv4.
    pub ipv4: bool,
    /// Which frames.
    pub version: RoceVersion,
}

impl Gid {
    /// Decodes an entry; `None` for one that takes the entry away (all-zero address and MAC), or whose RoCE
    /// version does not exist.
    pub fn decode(entry: &RoceAddrLayout) -> Option<Gid> {
        let mut address = [0; 16];
        for (i, byte) in address.iter_mut().enumerate() {
            *byte = entry.source_l3_address(i);
        }
        let mac = mac_of(entry.source_mac_47_32(), entry.source_mac_31_0());
        if address == [0; 16] && mac == [0; 6] {
            return None;
        }
        Some(Gid {
            address,
            mac,
            vlan: entry.vlan_valid().then(|| entry.vlan_id()),
            ipv4: entry.roce_l3_type() == 0,
            version: match entry.roce_version() {
                0 => RoceVersion::V1,
                2 => RoceVersion::V2,
                _ => return None,
            },
        })
    }
}

/// A MAC address of its two fields.
pub fn mac_of(high: u16, low: u32) -> [u8; 6] {
    let [a, b] = high.to_be_bytes();
    let [c, d, e, f] = low.to_be_bytes();
    [a, b, c, d, e, f]
}

/// How a QP's packets are addressed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// Our side.
    pub gid: Gid,
    /// Destination MAC.
    pub dmac: [u8; 6],
    /// Destination GID; an IPv4 address as ::ffff:a.b.c.d.
    pub dgid: [u8; 16],
    /// Hop limit or TTL.
    pub hop_limit: u8,
    /// Traffic class or TOS: DSCP and ECN.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// UDP source port.
    pub udp_sport: u16,
    /// Ethernet priority, 3 bits.
    pub priority: u8,
}

/// A path with its headers made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// The addresses.
    pub addresses: Addresses,
    /// All that stands before the BTH.
    pub encap: Encap,
}

/// UDP source port of a path that gives none: the lowest of the range that RoCE v2 recommends.
const DEFAULT_UDP_SPORT: u16 = 0xc000;

/// The UDP source port of what a path says; 0 is none.
pub(super) fn udp_source(port: u16) -> u16 {
    if port == 0 { DEFAULT_UDP_SPORT } else { port }
}

impl Path {
    /// The path that `ads` describes, from an entry of the GID table.
    pub fn new(ads: &Ads, gid: Gid) -> Path {
        let addresses = Addresses::new(ads, gid);
        Path {
            encap: addresses.encap(),
            addresses,
        }
    }
}

impl Addresses {
    fn new(ads: &Ads, gid: Gid) -> Addresses {
        let mut dgid = [0; 16];
        for (i, byte) in dgid.iter_mut().enumerate() {
            *byte = ads.rgid_rip(i);
        }
        Addresses {
            gid,
            dmac: mac_of(ads.rmac_47_32(), ads.rmac_31_0()),
            dgid,
            hop_limit: ads.hop_limit(),
            tclass: ads.tclass(),
            flow_label: ads.flow_label(),
            udp_sport: udp_source(ads.udp_sport()),
            priority: ads.eth_prio(),
        }
    }
}

/// The last four bytes of a GID: its IPv4 address.
pub fn ipv4_of(gid: &[u8; 16]) -> [u8; 4] {
    [gid[12], gid[13], gid[14], gid[15]]
}
