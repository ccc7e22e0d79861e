//! What stands before the BTH: Ethernet, VLAN tag, GRH or IP and UDP.

use super::frame::HeaderBytes;
use super::{UDP_PORT, WireError};

/// A MAC address.
pub type Mac = [u8; 6];

pub(super) const ETH_BYTES: usize = 14;
pub(super) const VLAN_BYTES: usize = 4;
pub(super) const IPV4_BYTES: usize = 20;
pub(super) const IPV6_BYTES: usize = 40;
pub(super) const UDP_BYTES: usize = 8;

/// Ethertype of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Ethertype of RoCE v1 (IBTA A16.4.1).
pub const ETHERTYPE_ROCE_V1: u16 = 0x8915;
/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

pub(super) const PROTOCOL_UDP: u8 = 17;
/// "Next header" of a GRH: a BTH follows (IBTA 8.3.4).
pub(super) const NEXT_HEADER_BTH: u8 = 0x1b;

/// An 802.1Q tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Vlan {
    /// VLAN id, 12 bits; 0 carries a priority only.
    pub vid: u16,
    /// Priority code point, 3 bits.
    pub pcp: u8,
    /// Drop eligible.
    pub dei: bool,
}

/// An IPv4 header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ipv4 {
    /// DSCP in the high 6 bits, ECN in the low 2.
    pub tos: u8,
    /// Identification.
    pub identification: u16,
    /// Routers may not fragment it.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}

/// An IPv6 header or a GRH: they have one form (IBTA 8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ipv6 {
    /// DSCP in the high 6 bits, ECN in the low 2.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address or GID.
    pub src: [u8; 16],
    /// Destination address or GID.
    pub dst: [u8; 16],
}

/// A UDP header to port 4791.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Udp {
    /// Source port: entropy for load balancing, the same for all packets of a QP.
    pub src_port: u16,
    /// Checksum as it stands in the header; 0 for none, which is what RoCE v2 senders put (the ICRC covers
    /// more). It is not verified.
    pub checksum: u16,
}

/// The network header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum L3 {
    /// RoCE v1: a GRH.
    V1(Ipv6),
    /// RoCE v2 over IPv4.
    V2Ipv4(Ipv4, Udp),
    /// RoCE v2 over IPv6.
    V2Ipv6(Ipv6, Udp),
}

/// The ECN field of an IP header (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Ecn {
    /// The sender does not take part.
    NotEct,
    /// ECN-capable, ECT(0).
    Ect0,
    /// ECN-capable, ECT(1).
    Ect1,
    /// Congestion experienced.
    Ce,
}

/// All that stands before the BTH; lengths and checksums are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Encap {
    /// Destination MAC address.
    pub dst: Mac,
    /// Source MAC address.
    pub src: Mac,
    /// VLAN tag, if there is one.
    pub vlan: Option<Vlan>,
    /// Network header.
    pub l3: L3,
}

/// An IPv4 address as a GID: `::ffff:a.b.c.d` (IBTA A17.4.5.2).
fn mapped(v4: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10] = 0xff;
    gid[11] = 0xff;
    gid[12..].copy_from_slice(&v4);
    gid
}

impl Encap {
    /// Source GID; an IPv4 address is mapped to `::ffff:a.b.c.d`.
    pub fn src_gid(&self) -> [u8; 16] {
        match &self.l3 {
            L3::V1(ip) | L3::V2Ipv6(ip, _) => ip.src,
            L3::V2Ipv4(ip, _) => mapped(ip.src),
        }
    }

    /// Destination GID; an IPv4 address is mapped to `::ffff:a.b.c.d`.
    pub fn dst_gid(&self) -> [u8; 16] {
        match &self.l3 {
            L3::V1(ip) | L3::V2Ipv6(ip, _) => ip.dst,
            L3::V2Ipv4(ip, _) => mapped(ip.dst),
        }
    }

    /// IPv4's TOS or IPv6's traffic class: DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        match &self.l3 {
            L3::V1(ip) | L3::V2Ipv6(ip, _) => ip.traffic_class,
            L3::V2Ipv4(ip, _) => ip.tos,
        }
    }

    /// Whether it has an IP header, and so a traffic class that switches and routers look at.
    pub fn is_routable(&self) -> bool {
        !matches!(self.l3, L3::V1(_))
    }

    /// Sets DSCP and ECN.
    pub fn set_traffic_class(&mut self, class: u8) {
        *self.traffic_class_mut() = class;
    }

    fn traffic_class_mut(&mut self) -> &mut u8 {
        match &mut self.l3 {
            L3::V1(ip) | L3::V2Ipv6(ip, _) => &mut ip.traffic_class,
            L3::V2Ipv4(ip, _) => &mut ip.tos,
        }
    }

    /// Differentiated services code point, 6 bits.
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// The ECN field. In RoCE v1 it means nothing.
    pub fn ecn(&self) -> Ecn {
        match self.traffic_class() & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Sets the ECN field, which the ICRC does not cover.
    pub fn set_ecn(&mut self, ecn: Ecn) {
        let bits = match ecn {
            Ecn::NotEct => 0,
            Ecn::Ect1 => 1,
            Ecn::Ect0 => 2,
            Ecn::Ce => 3,
        };
        let class = self.traffic_class_mut();
        *class = (*class & !3) | bits;
    }

    /// The way back: addresses exchanged, all else kept.
    #[must_use]
    pub fn reply(&self) -> Encap {
        let mut back = *self;
        std::mem::swap(&mut back.dst, &mut back.src);
        match &mut back.l3 {
            L3::V1(ip) | L3::V2Ipv6(ip, _) => std::mem::swap(&mut ip.src, &mut ip.dst),
            L3::V2Ipv4(ip, _) => std::mem::swap(&mut ip.src, &mut ip.dst),
        }
        back
    }

    /// Bytes before the BTH.
    pub fn header_bytes(&self) -> usize {
        let l2 = ETH_BYTES + if self.vlan.is_some() { VLAN_BYTES } else { 0 };
        l2 + match self.l3 {
            L3::V1(_) => IPV6_BYTES,
            L3::V2Ipv4(..) => IPV4_BYTES + UDP_BYTES,
            L3::V2Ipv6(..) => IPV6_BYTES + UDP_BYTES,
        }
    }

    /// The 40 bytes that stand before a UD packet's payload in the receiver's buffer: the GRH or IPv6 header,
    /// or 20 zero bytes and the IPv4 header (IBTA A17.4.5.1). `l4_len` is as for [`Encap::push_l3`].
    pub(super) fn grh_area(&self, l4_len: usize) -> Result<[u8; 40], WireError> {
        let mut header = HeaderBytes::new();
        self.push_l3(l4_len, &mut header)?;
        let mut out = [0; 40];
        match self.l3 {
            L3::V2Ipv4(..) => out[20..].copy_from_slice(&header[..IPV4_BYTES]),
            L3::V1(_) | L3::V2Ipv6(..) => out.copy_from_slice(&header[..IPV6_BYTES]),
        }
        Ok(out)
    }

    /// Appends all headers; `l4_len` as for [`Encap::push_l3`].
    pub(super) fn push(&self, l4_len: usize, out: &mut HeaderBytes) -> Result<(), WireError> {
        out.push(&self.dst);
        out.push(&self.src);
        if let Some(vlan) = self.vlan {
            fits("VLAN id", u32::from(vlan.vid), 12)?;
            fits("VLAN priority", u32::from(vlan.pcp), 3)?;
            let tci = (u16::from(vlan.pcp) << 13) | (u16::from(vlan.dei) << 12) | vlan.vid;
            out.push(&ETHERTYPE_VLAN.to_be_bytes());
            out.push(&tci.to_be_bytes());
        }
        let ethertype = match self.l3 {
            L3::V1(_) => ETHERTYPE_ROCE_V1,
            L3::V2Ipv4(..) => ETHERTYPE_IPV4,
            L3::V2Ipv6(..) => ETHERTYPE_IPV6,
        };
        out.push(&ethertype.to_be_bytes());
        self.push_l3(l4_len, out)
    }

    /// Appends network header and UDP header; `l4_len` is the number of bytes from BTH to ICRC.
    fn push_l3(&self, l4_len: usize, out: &mut HeaderBytes) -> Result<(), WireError> {
        match &self.l3 {
            L3::V1(grh) => push_ipv6(grh, NEXT_HEADER_BTH, length("GRH payload", l4_len)?, out),
            L3::V2Ipv6(ip, udp) => {
                let len = length("IPv6 payload", l4_len + UDP_BYTES)?;
                push_ipv6(ip, PROTOCOL_UDP, len, out)?;
                push_udp(udp, len, out);
                Ok(())
            }
            L3::V2Ipv4(ip, udp) => {
                let total = length("IPv4 total length", l4_len + UDP_BYTES + IPV4_BYTES)?;
                push_ipv4(ip, total, out);
                push_udp(udp, total - IPV4_BYTES as u16, out);
                Ok(())
            }
        }
    }
}

fn length(what: &'static str, len: usize) -> Result<u16, WireError> {
    u16::try_from(len).map_err(|_| WireError::Length {
        what,
        says: usize::from(u16::MAX),
        have: len,
    })
}

/// Checks that `value` fits a field of `bits` bits.
pub(super) fn fits(what: &'static str, value: u32, bits: u32) -> Result<(), WireError> {
    if value >> bits == 0 {
        return Ok(());
    }
    Err(WireError::TooWide { what, value, bits })
}

fn push_ipv6(ip: &Ipv6, next_header: u8, len: u16, out: &mut HeaderBytes) -> Result<(), WireError> {
    fits("flow label", ip.flow_label, 20)?;
    let first = (6 << 28) | (u32::from(ip.traffic_class) << 20) | ip.flow_label;
    out.push(&first.to_be_bytes());
    out.push(&len.to_be_bytes());
    out.push(&[next_header, ip.hop_limit]);
    out.push(&ip.src);
    out.push(&ip.dst);
    Ok(())
}

fn push_ipv4(ip: &Ipv4, total: u16, out: &mut HeaderBytes) {
    let mut h = [0; IPV4_BYTES];
    h[0] = 0x45;
    h[1] = ip.tos;
    h[2..4].copy_from_slice(&total.to_be_bytes());
    h[4..6].copy_from_slice(&ip.identification.to_be_bytes());
    h[6] = if ip.dont_fragment { 0x40 } else { 0 };
    h[8] = ip.ttl;
    h[9] = PROTOCOL_UDP;
    h[12..16].copy_from_slice(&ip.src);
    h[16..20].copy_from_slice(&ip.dst);
    let sum = checksum(&h);
    h[10..12].copy_from_slice(&sum.to_be_bytes());
    out.push(&h);
}

fn push_udp(udp: &Udp, len: u16, out: &mut HeaderBytes) {
    for word in [udp.src_port, UDP_PORT, len, udp.checksum] {
        out.push(&word.to_be_bytes());
    }
}

/// The Internet checksum (RFC 1071) of an IPv4 header; 0 over a header that holds its own right checksum.
pub(super) fn checksum(header: &[u8; IPV4_BYTES]) -> u16 {
    let mut sum: u32 = header
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_ecn_and_the_way_back() {
        let mut encap = Encap {
            dst: [1; 6],
            src: [2; 6],
            vlan: None,
            l3: L3::V2Ipv4(
                Ipv4 {
                    tos: 26 << 2,
                    identification: 0,
                    dont_fragment: true,
                    ttl: 64,
                    src: [10, 9, 0, 1],
                    dst: [10, 9, 0, 2],
                },
                Udp {
                    src_port: 50_000,
                    checksum: 0,
                },
            ),
        };
        assert_eq!(encap.src_gid()[10..], [0xff, 0xff, 10, 9, 0, 1]);
        assert_eq!(encap.ecn(), Ecn::NotEct);
        for ecn in [Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            encap.set_ecn(ecn);
            assert_eq!(encap.ecn(), ecn);
            assert_eq!(encap.dscp(), 26);
        }
        let back = encap.reply();
        assert_eq!((back.src, back.dst), (encap.dst, encap.src));
        assert_eq!(
            (back.src_gid(), back.dst_gid()),
            (encap.dst_gid(), encap.src_gid())
        );
        assert_eq!(back.reply(), encap);
    }

    #[test]
    fn the_grh_area_of_ipv4_has_the_header_in_its_second_half() {
        let encap = Encap {
            dst: [0; 6],
            src: [0; 6],
            vlan: None,
            l3: L3::V2Ipv4(
                Ipv4 {
                    tos: 0,
                    identification: 7,
                    dont_fragment: false,
                    ttl: 1,
                    src: [1, 2, 3, 4],
                    dst: [5, 6, 7, 8],
                },
                Udp {
                    src_port: 1,
                    checksum: 0,
                },
            ),
        };
        let area = encap.grh_area(100).unwrap();
        assert_eq!(area[..20], [0; 20]);
        assert_eq!(area[20..24], [0x45, 0, 0, 128]);
        assert_eq!(area[36..], [5, 6, 7, 8]);
        assert!(matches!(encap.grh_area(65_536), Err(WireError::Length { .. })));
    }
}
