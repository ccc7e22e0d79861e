//! GIDs: the addresses by which RoCE peers know a port, and the device's table of them.
//!
//! An entry ties a GID to the RoCE version, source MAC and VLAN of the packets that use it. A QP names its entry by
//! index, so that entries stay where they are; the table may have holes.
//!
//! Source: IBTA annexes A16 and A17 (RoCE v1, v2); PRM "SET_ROCE_ADDRESS"; Linux's rdma core for which entries an
//! address gets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;

use ferroce_firmware_iface::cmds::{SetRoceAddress, roce_l3_type, roce_version};
use ferroce_firmware_iface::layouts::{RoceAddrLayout, RoceCap};

use crate::cmdq::lock;
use crate::error::StepError;
use crate::hca::Hca;
use crate::link::check_vlan;
use crate::port::{MacAddress, PortNumber};

/// Entries that queue pairs can name: `ads.src_addr_index` and an address vector's index have 8 bits.
const MAX_ENTRIES: usize = 256;
/// `roce_cap.l3_type` bit: IPv4.
const CAP_L3_IPV4: u8 = 1 << 1;
/// `roce_cap.l3_type` bit: IPv6.
const CAP_L3_IPV6: u8 = 1 << 2;

/// A 128-bit address in network byte order: an IPv6 address, or an IPv4 address mapped to one (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address. Source: IBTA annex A17.
    #[must_use]
    pub fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The link-local GID that goes with a MAC (modified EUI-64). Source: RFC 4291, appendix A.
    #[must_use]
    pub fn link_local(mac: MacAddress) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 0x02, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The IPv4 address that is mapped to this GID, if one is.
    #[must_use]
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// The IP address: IPv4 if one is mapped.
    #[must_use]
    pub fn to_ip(self) -> IpAddr {
        self.to_ipv4()
            .map_or_else(|| IpAddr::V6(Ipv6Addr::from(self.0)), IpAddr::V4)
    }

    /// Whether it is a multicast group's: an IPv6 multicast address, or an IPv4 one that is mapped.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }

    /// The Ethernet address of a multicast group; `None` if it isn't one's. Source: RFC 1112, 6.4; RFC 2464, 7.
    #[must_use]
    pub fn group_mac(self) -> Option<MacAddress> {
        let [.., a, b, c, d] = self.0;
        if !self.is_multicast() {
            None
        } else if self.to_ipv4().is_some() {
            Some(MacAddress([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        } else {
            Some(MacAddress([0x33, 0x33, a, b, c, d]))
        }
    }

    /// Whether all bits are 0: no address.
    #[must_use]
    pub fn is_unspecified(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The version of RoCE that packets of a GID use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum RoceVersion {
    /// RoCE v1: a GRH right after the Ethernet header, not routable.
    V1,
    /// RoCE v2: in UDP over IPv4 or IPv6.
    V2,
}

impl RoceVersion {
    /// `roce_version` in `roce_addr_layout`, which is also the bit's number in `roce_cap.roce_version`. Source: PRM.
    const fn code(self) -> u8 {
        match self {
            Self::V1 => roce_version::V1,
            Self::V2 => roce_version::V2,
        }
    }
}

impl fmt::Display for RoceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "RoCE v1",
            Self::V2 => "RoCE v2",
        })
    }
}

/// An entry of the GID table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// The version of RoCE.
    pub version: RoceVersion,
    /// Source MAC of the packets.
    pub mac: MacAddress,
    /// VLAN id (1..=4094), for tagged packets.
    pub vlan: Option<u16>,
}

impl GidEntry {
    fn layout(&self) -> Result<RoceAddrLayout, StepError> {
        let mut layout = RoceAddrLayout::default();
        layout.set_gid(self.gid.0);
        check_vlan(self.vlan)?;
        if let Some(vlan) = self.vlan {
            layout.set_vlan_valid(true);
            layout.set_vlan_id(vlan)?;
        }
        layout.set_source_mac(self.mac.0);
        layout.set_roce_version(self.version.code());
        // Only v2 has a choice.
        if self.version == RoceVersion::V2 {
            layout.set_roce_l3_type(if self.gid.to_ipv4().is_some() {
                roce_l3_type::IPV4
            } else {
                roce_l3_type::IPV6
            })?;
        }
        Ok(layout)
    }

    /// Whether a device with these capabilities can have the entry.
    fn supported(&self, cap: &RoceCap) -> bool {
        let l3 = if self.gid.to_ipv4().is_some() {
            CAP_L3_IPV4
        } else {
            CAP_L3_IPV6
        };
        let version = cap.roce_version() >> self.version.code() & 1 != 0;
        version && (self.version == RoceVersion::V1 || cap.l3_type() & l3 != 0)
    }
}

/// The GID table of a port, as the driver has programmed it.
#[derive(Debug)]
pub struct GidTable {
    cap: Box<RoceCap>,
    port: PortNumber,
    /// What commands call the port: 0 where the device has one table.
    vhca_port: u8,
    entries: Mutex<Vec<Option<GidEntry>>>,
}

impl GidTable {
    /// An empty table of the size that the device has; of none where the device has tables for `tables` ports only.
    pub(crate) fn new(cap: Box<RoceCap>, port: PortNumber, tables: u8) -> Self {
        let there = port.get() <= tables.max(PortNumber::FIRST.get());
        let size = if there { cap.roce_address_table_size() } else { 0 };
        let size = usize::from(size).min(MAX_ENTRIES);
        Self {
            cap,
            port,
            vhca_port: if tables == 0 { 0 } else { port.get() },
            entries: Mutex::new(vec![None; size]),
        }
    }

    /// Whose table it is.
    #[must_use]
    pub fn port(&self) -> PortNumber {
        self.port
    }

    /// Entries that there may be.
    #[must_use]
    pub fn size(&self) -> usize {
        lock(&self.entries).len()
    }

    /// The entry at `index`.
    #[must_use]
    pub fn get(&self, index: u16) -> Option<GidEntry> {
        lock(&self.entries).get(usize::from(index)).copied().flatten()
    }

    /// All entries with their indices, in ascending order.
    #[must_use]
    pub fn entries(&self) -> Vec<(u16, GidEntry)> {
        let entries = lock(&self.entries);
        entries
            .iter()
            .enumerate()
            .filter_map(|(i, entry)| Some((i as u16, (*entry)?)))
            .collect()
    }

    /// The index of the first entry for which `matches` holds.
    pub fn find(&self, mut matches: impl FnMut(&GidEntry) -> bool) -> Option<u16> {
        lock(&self.entries)
            .iter()
            .position(|e| e.as_ref().is_some_and(&mut matches))
            .map(|i| i as u16)
    }

    /// Whether the device can have such an entry: its RoCE version, its kind of address.
    #[must_use]
    pub fn supports(&self, entry: &GidEntry) -> bool {
        entry.supported(&self.cap)
    }

    /// Programs an entry into the first free place: which, and that it is new. An entry that is there already is found and not
    /// added again.
    pub(crate) fn add(&self, hca: &Hca, entry: GidEntry) -> Result<(u16, bool), StepError> {
        if entry.gid.is_unspecified() {
            return Err(StepError::Unsupported("the unspecified address as a GID".into()));
        }
        if !self.supports(&entry) {
            return Err(StepError::Unsupported(format!(
                "{} with GID {}",
                entry.version, entry.gid
            )));
        }
        let layout = entry.layout()?;
        // Held over the command, so that two threads can't take the same place.
        let mut entries = lock(&self.entries);
        if let Some(index) = entries.iter().position(|have| *have == Some(entry)) {
            return Ok((index as u16, false));
        }
        let Some(index) = entries.iter().position(Option::is_none) else {
            return Err(StepError::GidTableFull {
                asked: entries.len() + 1,
                size: entries.len(),
            });
        };
        let place = index as u16;
        hca.exec(&SetRoceAddress {
            index: place,
            port: self.vhca_port,
            address: &layout,
        })?;
        entries[index] = Some(entry);
        Ok((place, true))
    }

    /// Clears an entry, and says that there was one. One that is free already is left alone.
    pub(crate) fn remove(&self, hca: &Hca, index: u16) -> Result<bool, StepError> {
        let mut entries = lock(&self.entries);
        let Some(entry) = entries
            .get_mut(usize::from(index))
            .filter(|entry| entry.is_some())
        else {
            return Ok(false);
        };
        hca.exec(&SetRoceAddress {
            index,
            port: self.vhca_port,
            address: &RoceAddrLayout::default(),
        })?;
        *entry = None;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    const MAC: MacAddress = MacAddress([0x00, 0x02, 0xc9, 0x12, 0x34, 0x56]);

    fn entry(ip: &str, version: RoceVersion) -> GidEntry {
        GidEntry {
            gid: Gid::from_ip(ip.parse().unwrap()),
            version,
            mac: MAC,
            vlan: None,
        }
    }

    #[test]
    fn gids_come_from_addresses() {
        assert_eq!(
            Gid::from_ip("10.9.0.1".parse().unwrap()).to_string(),
            "::ffff:10.9.0.1"
        );
        assert_eq!(
            Gid::from_ip("10.9.0.1".parse().unwrap()).to_ip().to_string(),
            "10.9.0.1"
        );
        assert_eq!(Gid::link_local(MAC).to_string(), "fe80::202:c9ff:fe12:3456");
        assert_eq!(Gid::link_local(MAC).to_ipv4(), None);
    }

    #[test]
    fn groups_have_their_ethernet_addresses() {
        let mac = |ip: &str| {
            Gid::from_ip(ip.parse().unwrap())
                .group_mac()
                .map(|mac| mac.to_string())
        };
        assert_eq!(mac("239.129.2.3").as_deref(), Some("01:00:5e:01:02:03"));
        assert_eq!(mac("ff0e::1234:5678").as_deref(), Some("33:33:12:34:56:78"));
        assert_eq!((mac("10.9.0.1"), mac("fe80::1"), mac("::")), (None, None, None));
    }

    #[test]
    fn an_entry_is_laid_out_as_the_prm_says() {
        let mut e = entry("10.9.0.1", RoceVersion::V2);
        e.vlan = Some(0x123);
        let layout = e.layout().unwrap();
        let mut expected = [0u8; 32];
        expected[10..16].copy_from_slice(&[0xff, 0xff, 10, 9, 0, 1]);
        expected[16..24].copy_from_slice(&[0x11, 0x23, 0x00, 0x02, 0xc9, 0x12, 0x34, 0x56]);
        expected[24..28].copy_from_slice(&[0, 0, 0x00, 0x02]);
        assert_eq!(layout.as_bytes(), expected);
        let layout = entry("fd00:9::1", RoceVersion::V2).layout().unwrap();
        assert_eq!((layout.roce_l3_type(), layout.roce_version()), (1, 2));
        let layout = entry("fe80::1", RoceVersion::V1).layout().unwrap();
        assert_eq!((layout.roce_l3_type(), layout.roce_version()), (0, 0));
        for bad in [0, 4095, 4096] {
            e.vlan = Some(bad);
            let error = e.layout().unwrap_err().to_string();
            assert_eq!(error, format!("VLAN {bad}: ids are 1 to 4094"));
        }
    }

    #[test]
    fn a_table_has_no_entries_that_a_queue_pair_could_not_name() {
        for (says, size) in [(0, 0), (16, 16), (256, 256), (257, 256), (u16::MAX, 256)] {
            let mut cap = Box::new(RoceCap::default());
            cap.set_roce_address_table_size(says);
            let table =
                |port, tables| GidTable::new(cap.clone(), PortNumber::new(port).unwrap(), tables).size();
            assert_eq!([table(1, 0), table(1, 2), table(2, 2)], [size; 3]);
            assert_eq!(
                [table(2, 0), table(2, 1), table(3, 2)],
                [0; 3],
                "there are tables for fewer ports"
            );
        }
    }

    #[test]
    fn capabilities_decide_which_entries_there_may_be() {
        let mut cap = RoceCap::default();
        cap.set_roce_version(1 << 2);
        cap.set_l3_type(CAP_L3_IPV4).unwrap();
        assert!(entry("10.0.0.1", RoceVersion::V2).supported(&cap));
        assert!(!entry("10.0.0.1", RoceVersion::V1).supported(&cap));
        assert!(!entry("fd00::1", RoceVersion::V2).supported(&cap));
        cap.set_roce_version(0x7);
        assert!(entry("fd00::1", RoceVersion::V1).supported(&cap));
    }
}
