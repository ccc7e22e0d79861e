//! The way to the peer: what a queue pair's packets are addressed with.

use std::net::IpAddr;

use ferroce_firmware_iface::layout::ValueTooWide;
use ferroce_firmware_iface::layouts::{Ads, RoceCap};
use ferroce_hw_regs::wqe::{AV_GRH, AV_SGID_INDEX_SHIFT, Av};

use super::error::PathError;
use crate::context::Context;
use crate::gid::{Gid, GidEntry, RoceVersion};
use crate::port::{MacAddress, PortNumber};

/// The path MTU: bytes of payload in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl Mtu {
    /// All of them, ascending.
    pub const ALL: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

    /// Bytes of payload.
    pub fn bytes(self) -> u32 {
        128 << self.code()
    }

    /// `qpc.mtu`, which is also how the IBTA counts them: 1 is 256 bytes, 5 is 4096.
    pub(super) fn code(self) -> u8 {
        match self {
            Mtu::Mtu256 => 1,
            Mtu::Mtu512 => 2,
            Mtu::Mtu1024 => 3,
            Mtu::Mtu2048 => 4,
            Mtu::Mtu4096 => 5,
        }
    }

    /// The one with that code.
    pub(super) fn from_code(code: u8) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The largest whose packets fit an Ethernet MTU (bytes of an Ethernet frame's payload), with the longest headers that
    /// RoCE has. `None` below 256 bytes and those headers.
    pub fn fitting(ethernet_mtu: u32) -> Option<Mtu> {
        // IPv6 40, UDP 8, BTH 12, atomic or remote address header 28, immediate data 4, ICRC 4.
        const HEADERS: u32 = 96;
        Mtu::ALL
            .into_iter()
            .rev()
            .find(|mtu| mtu.bytes() + HEADERS <= ethernet_mtu)
    }
}

/// The way to the peer, from the port of who uses it.
///
/// On Ethernet each packet has a global header, so that a path is always between GIDs. Source MAC, VLAN, IP version
/// and RoCE version come from the GID table's entry at `sgid_index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer's GID; for an IP address [`Gid::from_ip`].
    pub dgid: Gid,
    /// Index of this side's GID in the device's table.
    pub sgid_index: u16,
    /// MAC address of the next hop: the peer's, or a router's; of a multicast group, the group's.
    pub dmac: MacAddress,
    /// Routers that packets may pass, at least 1 (IPv4 time to live).
    pub hop_limit: u8,
    /// Traffic class: DSCP in the upper 6 bits, ECN in the lower 2.
    pub traffic_class: u8,
    /// IPv6 flow label (20 bits).
    pub flow_label: u32,
    /// UDP source port, by which switches spread flows; `None` lets the driver choose by flow label and QPNs. Not used by
    /// RoCE v1.
    pub udp_sport: Option<u16>,
    /// Ethernet priority, 0 to 7: on the wire only in VLAN tags, but it also chooses the NIC's queue.
    pub priority: u8,
}

impl Path {
    /// A path to a station, with the usual values elsewhere: hop limit 64, the rest 0.
    pub fn new(sgid_index: u16, dgid: Gid, dmac: MacAddress) -> Path {
        Path {
            dgid,
            sgid_index,
            dmac,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            udp_sport: None,
            priority: 0,
        }
    }

    /// A path to an IP address.
    pub fn to_ip(sgid_index: u16, address: IpAddr, dmac: MacAddress) -> Path {
        Path::new(sgid_index, Gid::from_ip(address), dmac)
    }

    /// A path to a multicast group, for an address handle: its MAC address follows from it.
    pub fn to_group(sgid_index: u16, group: IpAddr) -> Path {
        let group = Gid::from_ip(group);
        Path::new(sgid_index, group, group.group_mac().unwrap_or_default())
    }

    /// Checks the path of a connection; the source GID's entry.
    pub(super) fn check(&self, context: &Context, port: PortNumber) -> Result<GidEntry, PathError> {
        if self.dgid.is_multicast() {
            let dgid = self.dgid.to_ip().to_string();
            return Err(PathError::Multicast { dgid });
        }
        self.check_any(context, port)
    }

    /// Checks the path, which may lead to a multicast group; the source GID's entry.
    pub(super) fn check_any(&self, context: &Context, port: PortNumber) -> Result<GidEntry, PathError> {
        let gids = context.gids_of(port).ok_or(PathError::NoSuchPort { port })?;
        let (index, entries) = (self.sgid_index, gids.size() as u16);
        if index >= entries {
            return Err(PathError::NoSuchIndex { index, entries });
        }
        let entry = gids.get(index).ok_or(PathError::EmptyEntry { index })?;
        self.check_with(&entry, context.caps().roce())?;
        Ok(entry)
    }

    fn check_with(&self, source: &GidEntry, cap: Option<&RoceCap>) -> Result<(), PathError> {
        if self.dgid.is_unspecified() {
            return Err(PathError::NoDestination);
        }
        if self.dgid.to_ipv4().is_some() != source.gid.to_ipv4().is_some() {
            let (dgid, sgid) = (self.dgid.to_ip().to_string(), source.gid.to_ip().to_string());
            return Err(PathError::OtherFamily {
                dgid,
                sgid,
                index: self.sgid_index,
            });
        }
        self.check_mac()?;
        if self.hop_limit == 0 {
            return Err(PathError::HopLimit);
        }
        if self.flow_label >> 20 != 0 {
            return Err(PathError::FlowLabel {
                label: self.flow_label,
            });
        }
        if self.priority > 7 {
            return Err(PathError::Priority {
                priority: self.priority,
            });
        }
        if let Some(port) = self.udp_sport {
            let (min, max) = udp_ports(cap);
            if !(min..=max).contains(&port) {
                return Err(PathError::UdpPort { port, min, max });
            }
        }
        Ok(())
    }

    fn check_mac(&self) -> Result<(), PathError> {
        let dmac = self.dmac.to_string();
        match self.dgid.group_mac() {
            Some(group) if group == self.dmac => Ok(()),
            Some(group) => Err(PathError::GroupMac {
                dmac,
                expected: group.to_string(),
                dgid: self.dgid.to_ip().to_string(),
            }),
            None if self.dmac.is_unicast() => Ok(()),
            None => Err(PathError::BadMac { dmac }),
        }
    }

    /// Writes the path into an address vector, without Q_Key and QPN.
    pub(super) fn to_vector(self, source: &GidEntry, cap: Option<&RoceCap>) -> Av {
        // The source's index was checked to be within the table, which has at most 256 entries.
        let grh =
            AV_GRH | u32::from(self.sgid_index as u8) << AV_SGID_INDEX_SHIFT | self.flow_label & 0xf_ffff;
        let sport = match source.version {
            RoceVersion::V2 => self
                .udp_sport
                .unwrap_or_else(|| choose_port(self.flow_label, (0, 0), cap)),
            RoceVersion::V1 => 0,
        };
        Av {
            // Ethernet priority, where InfiniBand has the service level. Source: Linux mlx5_ib.
            stat_rate_sl: (self.priority & 7) << 1,
            rlid_udp_sport: sport.into(),
            rmac: self.dmac.0,
            tclass: self.traffic_class,
            hop_limit: self.hop_limit,
            grh_gid_fl: grh.into(),
            rgid: self.dgid.0,
            ..Av::default()
        }
    }

    /// Writes the path into a context.
    pub(super) fn encode(
        &self,
        ads: &mut Ads,
        source: &GidEntry,
        cap: Option<&RoceCap>,
        qpns: (u32, u32),
    ) -> Result<(), ValueTooWide> {
        let [a, b, c, d, e, f] = self.dmac.0;
        ads.set_rmac_47_32(u16::from_be_bytes([a, b]));
        ads.set_rmac_31_0(u32::from_be_bytes([c, d, e, f]));
        // Checked to be within the table, which has at most 256 entries.
        ads.set_src_addr_index(self.sgid_index as u8);
        for (i, byte) in self.dgid.0.into_iter().enumerate() {
            ads.set_rgid_rip(i, byte);
        }
        ads.set_hop_limit(self.hop_limit);
        ads.set_tclass(self.traffic_class);
        ads.set_dscp(self.traffic_class >> 2)?;
        ads.set_flow_label(self.flow_label)?;
        ads.set_eth_prio(self.priority)?;
        ads.set_sl(self.priority)?;
        if source.version == RoceVersion::V2 {
            ads.set_udp_sport(
                self.udp_sport
                    .unwrap_or_else(|| choose_port(self.flow_label, qpns, cap)),
            );
        }
        Ok(())
    }

    /// Reads a path from a context.
    pub(super) fn decode(ads: &Ads) -> Path {
        let mut dgid = [0; 16];
        for (i, byte) in dgid.iter_mut().enumerate() {
            *byte = ads.rgid_rip(i);
        }
        let ([a, b], [c, d, e, f]) = (ads.rmac_47_32().to_be_bytes(), ads.rmac_31_0().to_be_bytes());
        Path {
            dgid: Gid(dgid),
            sgid_index: ads.src_addr_index().into(),
            dmac: MacAddress([a, b, c, d, e, f]),
            hop_limit: ads.hop_limit(),
            traffic_class: ads.tclass(),
            flow_label: ads.flow_label(),
            udp_sport: Some(ads.udp_sport()).filter(|port| *port != 0),
            priority: ads.eth_prio(),
        }
    }
}

/// UDP source ports that the device takes: what it says, or the dynamic ones (IBTA annex A17 leaves the choice open).
fn udp_ports(cap: Option<&RoceCap>) -> (u16, u16) {
    match cap.map(|cap| (cap.r_roce_min_src_udp_port(), cap.r_roce_max_src_udp_port())) {
        Some((min, max)) if min != 0 && min <= max => (min, max),
        _ => (0xc000, 0xffff),
    }
}

/// A port that spreads flows: from the flow label, or else from the two QPNs, like the same flow's everywhere.
fn choose_port(flow_label: u32, (local, remote): (u32, u32), cap: Option<&RoceCap>) -> u16 {
    let (min, max) = udp_ports(cap);
    let seed = if flow_label != 0 {
        flow_label
    } else {
        local.wrapping_mul(31) ^ remote
    };
    let spread = seed.wrapping_mul(0x9e37_79b1) >> 16;
    let count = u32::from(max - min) + 1;
    min + (spread % count) as u16
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn source(address: &str) -> GidEntry {
        let gid = Gid::from_ip(address.parse().unwrap());
        GidEntry {
            gid,
            version: RoceVersion::V2,
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            vlan: None,
        }
    }

    fn path() -> Path {
        Path::to_ip(
            3,
            "10.9.0.2".parse().unwrap(),
            MacAddress([0x52, 0x54, 0, 9, 0, 2]),
        )
    }

    #[test]
    fn g07_each_fault_has_its_name() {
        let v4 = source("10.9.0.1");
        path().check_with(&v4, None).unwrap();
        let bad = |path: Path| path.check_with(&v4, None).unwrap_err();
        assert_eq!(
            bad(Path {
                dgid: Gid([0; 16]),
                ..path()
            }),
            PathError::NoDestination
        );
        assert_eq!(
            bad(Path {
                hop_limit: 0,
                ..path()
            }),
            PathError::HopLimit
        );
        assert_eq!(
            bad(Path {
                flow_label: 1 << 20,
                ..path()
            }),
            PathError::FlowLabel { label: 1 << 20 }
        );
        assert_eq!(
            bad(Path {
                priority: 8,
                ..path()
            }),
            PathError::Priority { priority: 8 }
        );
        assert!(matches!(
            bad(Path {
                dmac: MacAddress([0; 6]),
                ..path()
            }),
            PathError::BadMac { .. }
        ));
        assert!(matches!(
            bad(Path {
                dmac: MacAddress([1, 0, 0x5e, 0, 0, 1]),
                ..path()
            }),
            PathError::BadMac { .. }
        ));
        let port = PathError::UdpPort {
            port: 4791,
            min: 0xc000,
            max: 0xffff,
        };
        assert_eq!(
            bad(Path {
                udp_sport: Some(4791),
                ..path()
            }),
            port
        );
        let v6 = path().check_with(&source("fd00:9::1"), None).unwrap_err();
        assert_eq!(
            v6.to_string(),
            "path: dgid 10.9.0.2 is not of the same kind as the source GID fd00:9::1 at sgid_index 3"
        );
    }

    #[test]
    fn a_group_has_its_own_mac_and_no_other() {
        let v4 = source("10.9.0.1");
        let group = Path::to_group(3, "239.1.2.3".parse().unwrap());
        group.check_with(&v4, None).unwrap();
        assert_eq!(group.dmac.to_string(), "01:00:5e:01:02:03");
        let other = Path {
            dmac: MacAddress([0x33, 0x33, 0, 0, 0, 1]),
            ..group
        };
        assert!(matches!(
            other.check_with(&v4, None),
            Err(PathError::GroupMac { .. })
        ));
        let station = Path {
            dmac: path().dmac,
            ..group
        };
        assert!(station.check_with(&v4, None).is_err());
        let no_group = Path::to_group(3, "10.9.0.2".parse().unwrap());
        assert!(matches!(
            no_group.check_with(&v4, None),
            Err(PathError::BadMac { .. })
        ));
    }

    #[test]
    fn an_address_vector_has_the_bytes_that_the_prm_shows() {
        let path = Path {
            traffic_class: 0x6a,
            flow_label: 0x12345,
            priority: 5,
            udp_sport: Some(0xd123),
            hop_limit: 7,
            ..path()
        };
        let vector = path.to_vector(&source("10.9.0.1"), None);
        #[rustfmt::skip]
        assert_eq!(vector.as_bytes(), [
            0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,  0x0a, 0, 0xd1, 0x23,
            0, 0, 0, 0,  0x52, 0x54, 0, 9, 0, 2,  0x6a, 7,  0x40, 0x31, 0x23, 0x45,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 2,
        ]);
        let mut v1 = source("fe80::1");
        v1.version = RoceVersion::V1;
        assert_eq!(
            path.to_vector(&v1, None).rlid_udp_sport.get(),
            0,
            "RoCE v1 has no UDP"
        );
    }

    #[test]
    fn a_path_survives_its_context() {
        let path = Path {
            traffic_class: 0x6a,
            flow_label: 0x12345,
            priority: 5,
            udp_sport: Some(0xd123),
            ..path()
        };
        let mut ads = Ads::default();
        path.encode(&mut ads, &source("10.9.0.1"), None, (1, 2)).unwrap();
        assert_eq!(Path::decode(&ads), path);
        assert_eq!((ads.dscp(), ads.sl(), ads.grh()), (0x1a, 5, false));
        let mut v1 = source("fe80::1");
        v1.version = RoceVersion::V1;
        let mut ads = Ads::default();
        path.encode(&mut ads, &v1, None, (1, 2)).unwrap();
        assert_eq!(ads.udp_sport(), 0, "RoCE v1 has no UDP");
    }

    #[test]
    fn chosen_ports_are_allowed_and_spread() {
        let mut cap = RoceCap::default();
        cap.set_r_roce_min_src_udp_port(50_000);
        cap.set_r_roce_max_src_udp_port(50_099);
        let ports: std::collections::HashSet<u16> =
            (0..1000).map(|i| choose_port(0, (i, 7), Some(&cap))).collect();
        assert!(ports.iter().all(|port| (50_000..50_100).contains(port)));
        assert!(ports.len() > 90, "{}", ports.len());
    }

    #[test]
    fn mtus_fit_frames() {
        assert_eq!(Mtu::fitting(1500), Some(Mtu::Mtu1024));
        assert_eq!(Mtu::fitting(9000), Some(Mtu::Mtu4096));
        assert_eq!(Mtu::fitting(300), None);
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
    }
}
