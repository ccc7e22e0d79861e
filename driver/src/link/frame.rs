//! Ethernet frames: their headers in, whole frames out.

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Ipv4Packet, Ipv6Packet,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::port::MacAddress;

/// Shortest frame on a wire, without FCS (IEEE 802.3, 3.2.8).
pub(super) const MIN_FRAME: usize = 60;
/// Addresses and type.
pub(super) const HEADER: usize = 14;
const TAG: usize = 4;
pub(super) const BROADCAST: MacAddress = MacAddress([0xff; 6]);

pub(super) mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const C_VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
}

/// IPv6 next headers.
pub(super) mod next_header {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMPV6: u8 = 58;
}

/// ICMPv6 types (RFC 4443, 4861, 3810).
pub(super) mod icmpv6 {
    pub const ECHO_REPLY: u8 = 129;
    pub const MLD_QUERY: u8 = 130;
    pub const MLDV2_REPORT: u8 = 143;
}

/// Hop limit of neighbour discovery: what has been routed has less (RFC 4861, 3.1).
pub(super) const ND_HOP_LIMIT: u8 = 255;
/// Hop limit of echo replies.
pub(super) const HOP_LIMIT: u8 = 64;
/// Where multicast listeners report (RFC 3810, 5.2.14).
pub(super) const ALL_MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The group that an address is asked for in (RFC 4291, 2.7.1).
pub(super) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from_be_bytes([b, c]),
    )
}

/// The MAC of an IPv6 group (RFC 2464, 7).
pub(super) fn multicast_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    MacAddress([0x33, 0x33, a, b, c, d])
}

/// The MAC of an IPv4 group (RFC 1112, 6.4).
pub(super) fn multicast_mac_v4(group: Ipv4Addr) -> MacAddress {
    let [_, b, c, d] = group.octets();
    MacAddress([0x01, 0x00, 0x5e, b & 0x7f, c, d])
}

/// A received frame, its headers found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    pub(super) dst: MacAddress,
    pub(super) src: MacAddress,
    /// The tag's id, where there is a tag with one.
    pub(super) vlan: Option<u16>,
    pub(super) ethertype: u16,
    pub(super) payload: &'a [u8],
}

impl<'a> Incoming<'a> {
    /// `None` for what is no frame of ours to look at: too short, a second tag, the reserved VLAN id.
    pub(super) fn parse(frame: &'a [u8]) -> Option<Incoming<'a>> {
        let (dst, rest) = frame.split_first_chunk::<6>()?;
        let (src, rest) = rest.split_first_chunk::<6>()?;
        let (kind, mut payload) = rest.split_first_chunk::<2>()?;
        let (mut kind, mut vlan) = (u16::from_be_bytes(*kind), None);
        if kind == ethertype::C_VLAN {
            let (tag, rest) = payload.split_first_chunk::<2>()?;
            let (inner, rest) = rest.split_first_chunk::<2>()?;
            let id = u16::from_be_bytes(*tag) & 0xfff;
            (kind, payload) = (u16::from_be_bytes(*inner), rest);
            // IEEE 802.1Q: id 0 only carries a priority, 4095 is reserved.
            vlan = Some(id).filter(|id| *id != 0);
            if id == 0xfff || kind == ethertype::C_VLAN {
                return None;
            }
        }
        Some(Incoming {
            dst: MacAddress(*dst),
            src: MacAddress(*src),
            vlan,
            ethertype: kind,
            payload,
        })
    }
}

/// A frame that is being made: the headers are there, the payload is zero.
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    payload: usize,
}

impl Outgoing {
    pub(super) fn new(
        (src, dst): (MacAddress, MacAddress),
        vlan: Option<u16>,
        ethertype: u16,
        payload: usize,
    ) -> Outgoing {
        let start = HEADER + if vlan.is_some() { TAG } else { 0 };
        let mut bytes = Vec::with_capacity((start + payload).max(MIN_FRAME));
        bytes.extend_from_slice(&dst.0);
        bytes.extend_from_slice(&src.0);
        if let Some(vlan) = vlan {
            bytes.extend_from_slice(&ethertype::C_VLAN.to_be_bytes());
            bytes.extend_from_slice(&(vlan & 0xfff).to_be_bytes());
        }
        bytes.extend_from_slice(&ethertype.to_be_bytes());
        bytes.resize((start + payload).max(MIN_FRAME), 0);
        Outgoing {
            bytes,
            payload: payload.min(usize::from(u16::MAX)),
        }
    }

    /// The payload, without what pads the frame.
    pub(super) fn payload(&mut self) -> &mut [u8] {
        // The frame is at least as long as its header and payload.
        let start = if self.bytes[12..14] == ethertype::C_VLAN.to_be_bytes() {
            HEADER + TAG
        } else {
            HEADER
        };
        &mut self.bytes[start..start + self.payload]
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

pub(super) fn ethernet(mac: MacAddress) -> EthernetAddress {
    EthernetAddress(mac.0)
}

/// The MAC in an option of neighbour discovery.
pub(super) fn option_mac(option: Option<RawHardwareAddress>) -> Option<MacAddress> {
    let mac = MacAddress(option?.as_bytes().try_into().ok()?);
    mac.is_unicast().then_some(mac)
}

/// An ARP message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arp {
    pub(super) request: bool,
    pub(super) sender: (MacAddress, Ipv4Addr),
    pub(super) target: (MacAddress, Ipv4Addr),
}

impl Arp {
    /// `None` for what is no ARP of Ethernet and IPv4, no request and no reply, or from no station.
    pub(super) fn parse(payload: &[u8]) -> Option<Arp> {
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_hardware_addr,
            target_protocol_addr,
        } = ArpRepr::parse(&ArpPacket::new_checked(payload).ok()?).ok()?
        else {
            return None;
        };
        let request = match operation {
            ArpOperation::Request => true,
            ArpOperation::Reply => false,
            ArpOperation::Unknown(_) => return None,
        };
        let mac = MacAddress(source_hardware_addr.0);
        mac.is_unicast().then_some(Arp {
            request,
            sender: (mac, source_protocol_addr),
            target: (MacAddress(target_hardware_addr.0), target_protocol_addr),
        })
    }

    pub(super) fn frame(&self, to: MacAddress, vlan: Option<u16>) -> Vec<u8> {
        let repr = ArpRepr::EthernetIpv4 {
            operation: if self.request {
                ArpOperation::Request
            } else {
                ArpOperation::Reply
            },
            source_hardware_addr: ethernet(self.sender.0),
            source_protocol_addr: self.sender.1,
            target_hardware_addr: ethernet(self.target.0),
            target_protocol_addr: self.target.1,
        };
        let mut out = Outgoing::new((self.sender.0, to), vlan, ethertype::ARP, repr.buffer_len());
        repr.emit(&mut ArpPacket::new_unchecked(out.payload()));
        out.finish()
    }
}

/// Addresses of an IPv6 packet on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv6Way {
    pub(super) macs: (MacAddress, MacAddress),
    pub(super) vlan: Option<u16>,
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
    pub(super) hop_limit: u8,
}

/// A frame with an IPv6 packet whose payload `fill` writes.
pub(super) fn ipv6_frame(
    way: &Ipv6Way,
    next_header: u8,
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let mut out = Outgoing::new(way.macs, way.vlan, ethertype::IPV6, 40 + len);
    let mut packet = Ipv6Packet::new_unchecked(out.payload());
    packet.set_version(6);
    packet.set_payload_len(len as u16);
    packet.set_next_header(next_header.into());
    packet.set_hop_limit(way.hop_limit);
    packet.set_src_addr(way.src);
    packet.set_dst_addr(way.dst);
    fill(packet.payload_mut());
    out.finish()
}

/// A frame with a message of neighbour discovery.
pub(super) fn ndisc_frame(way: &Ipv6Way, message: &NdiscRepr<'_>) -> Vec<u8> {
    ipv6_frame(way, next_header::ICMPV6, message.buffer_len(), |bytes| {
        let mut packet = Icmpv6Packet::new_unchecked(bytes);
        message.emit(&mut packet);
        packet.fill_checksum(&way.src, &way.dst);
    })
}

/// Asks for the MAC of an address; without `lladdr` where our own address is still in doubt.
pub(super) fn solicitation(way: &Ipv6Way, target: Ipv6Addr, lladdr: Option<MacAddress>) -> Vec<u8> {
    let lladdr = lladdr.map(|mac| RawHardwareAddress::from_bytes(&mac.0));
    ndisc_frame(
        way,
        &NdiscRepr::NeighborSolicit {
            target_addr: target,
            lladdr,
        },
    )
}

/// Tells the MAC of an address.
pub(super) fn advertisement(
    way: &Ipv6Way,
    target: Ipv6Addr,
    mac: MacAddress,
    (solicited, overrides): (bool, bool),
) -> Vec<u8> {
    let mut flags = NdiscNeighborFlags::empty();
    flags.set(NdiscNeighborFlags::SOLICITED, solicited);
    flags.set(NdiscNeighborFlags::OVERRIDE, overrides);
    ndisc_frame(
        way,
        &NdiscRepr::NeighborAdvert {
            flags,
            target_addr: target,
            lladdr: Some(RawHardwareAddress::from_bytes(&mac.0)),
        },
    )
}

/// Reports to routers and switches which groups we listen to (MLDv2: RFC 3810, 5.2), with the router alert that it has to
/// have. `change`: we have just begun to listen.
pub(super) fn mld_report(way: &Ipv6Way, groups: &[Ipv6Addr], change: bool) -> Vec<u8> {
    // Hop-by-hop header: router alert (RFC 2711) of value 0 for MLD, padded to 8 bytes.
    const HOP_BY_HOP: [u8; 8] = [next_header::ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    // MODE_IS_EXCLUDE and CHANGE_TO_EXCLUDE_MODE, of no source.
    let record = if change { 4 } else { 2 };
    let len = HOP_BY_HOP.len() + 8 + groups.len() * 20;
    ipv6_frame(way, next_header::HOP_BY_HOP, len, |bytes| {
        bytes[..8].copy_from_slice(&HOP_BY_HOP);
        let report = &mut bytes[8..];
        report[0] = icmpv6::MLDV2_REPORT;
        report[6..8].copy_from_slice(&(groups.len() as u16).to_be_bytes());
        for (group, at) in groups.iter().zip((8..).step_by(20)) {
            report[at] = record;
            report[at + 4..at + 20].copy_from_slice(&group.octets());
        }
        Icmpv6Packet::new_unchecked(report).fill_checksum(&way.src, &way.dst);
    })
}

/// A frame with an IPv4 packet without options whose payload `fill` writes.
pub(super) fn ipv4_frame(
    macs: (MacAddress, MacAddress),
    vlan: Option<u16>,
    (src, dst): (Ipv4Addr, Ipv4Addr),
    (protocol, tos): (u8, u8),
    len: usize,
    fill: impl FnOnce(&mut [u8]),
) -> Vec<u8> {
    let mut out = Outgoing::new(macs, vlan, ethertype::IPV4, 20 + len);
    let mut packet = Ipv4Packet::new_unchecked(out.payload());
    packet.set_version(4);
    packet.set_header_len(20);
    packet.set_dscp(tos >> 2);
    packet.set_ecn(tos & 3);
    packet.set_total_len((20 + len) as u16);
    packet.clear_flags();
    packet.set_dont_frag(true);
    packet.set_hop_limit(HOP_LIMIT);
    packet.set_next_header(protocol.into());
    packet.set_src_addr(src);
    packet.set_dst_addr(dst);
    fill(packet.payload_mut());
    packet.fill_checksum();
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_their_macs() {
        let group = solicited_node("fd00:9::ab12:3456".parse().unwrap());
        assert_eq!(group.to_string(), "ff02::1:ff12:3456");
        assert_eq!(multicast_mac(group).to_string(), "33:33:ff:12:34:56");
        assert_eq!(
            multicast_mac_v4("239.129.2.3".parse().unwrap()).to_string(),
            "01:00:5e:01:02:03"
        );
    }

    #[test]
    fn tags_are_found_and_bad_ones_refused() {
        let (src, dst) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));
        let frame = Outgoing::new((src, dst), Some(100), 0x0806, 4).finish();
        assert_eq!(frame.len(), MIN_FRAME);
        let seen = Incoming::parse(&frame).unwrap();
        assert_eq!((seen.vlan, seen.ethertype, seen.src), (Some(100), 0x0806, src));
        let with = |tag: [u8; 2]| {
            let mut frame = frame.clone();
            frame[14..16].copy_from_slice(&tag);
            Incoming::parse(&frame).map(|seen| seen.vlan)
        };
        // Priority 3 and no id; the reserved id; id 5 with priority 7.
        assert_eq!(
            [with([0x60, 0]), with([0x0f, 0xff]), with([0xe0, 5])],
            [Some(None), None, Some(Some(5))]
        );
        for len in 0..18 {
            assert!(Incoming::parse(&frame[..len]).is_none());
        }
    }
}
