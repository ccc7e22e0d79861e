//! The headers of an Ethernet frame, as flow tables, hashes and checksums see them. Lengths in a frame are
//! untrusted: what does not fit the frame is not there.

use ferroce_firmware_iface::layout::{Layout, ValueTooWide};
use ferroce_firmware_iface::layouts::FteMatchSetLyr24;
use zerocopy::IntoBytes;

use crate::objects::flow::MatchBytes;

const ETHERTYPE_AT: usize = 12;
const C_VLAN: u16 = 0x8100;
const S_VLAN: u16 = 0x88a8;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6_HEADER: usize = 40;

/// TCP or UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transport {
    /// TCP, or else UDP.
    pub tcp: bool,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Where its header starts in the frame.
    pub at: usize,
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    /// IPv6, or else IPv4.
    pub v6: bool,
    /// Where its header starts.
    pub at: usize,
    /// Where the packet ends; what follows in the frame is padding.
    pub end: usize,
    /// Where its payload starts.
    pub payload: usize,
    /// Protocol of the payload.
    pub protocol: u8,
    /// It is a piece of a packet.
    pub fragment: bool,
}

/// A frame with its headers found.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The frame, without FCS.
    pub bytes: &'a [u8],
    /// Its first VLAN tag: whether of a service provider, and the tag.
    pub vlan: Option<(bool, u16)>,
    /// Type of what follows the tags.
    pub ethertype: u16,
    /// The IP header.
    pub network: Option<Network>,
    /// The TCP or UDP header.
    pub transport: Option<Transport>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Packet<'a> {
    /// Finds the headers; `None` for what is shorter than an Ethernet header.
    pub fn parse(bytes: &'a [u8]) -> Option<Packet<'a>> {
        let mut at = ETHERTYPE_AT;
        let mut ethertype = be16(bytes, at)?;
        let mut vlan = None;
        while matches!(ethertype, C_VLAN | S_VLAN) {
            let Some((tag, inner)) = be16(bytes, at + 2).zip(be16(bytes, at + 4)) else {
                break;
            };
            if vlan.is_none() {
                vlan = Some((ethertype == S_VLAN, tag));
            }
            ethertype = inner;
            at += 4;
        }
        let network = match ethertype {
            IPV4 => ipv4(bytes, at + 2),
            IPV6 => ipv6(bytes, at + 2),
            _ => None,
        };
        let transport = network.and_then(|n| transport(bytes, &n));
        Some(Packet {
            bytes,
            vlan,
            ethertype,
            network,
            transport,
        })
    }

    /// Source and destination address of IP; empty without.
    pub fn addresses(&self) -> (&'a [u8], &'a [u8]) {
        let bytes = |from: usize, len: usize| self.bytes.get(from..from + len).unwrap_or_default();
        match self.network {
            Some(n) if n.v6 => (bytes(n.at + 8, 16), bytes(n.at + 24, 16)),
            Some(n) => (bytes(n.at + 12, 4), bytes(n.at + 16, 4)),
            None => (&[], &[]),
        }
    }

    /// The frame as `fte_match_param`: outer headers only.
    pub fn match_bytes(&self) -> MatchBytes {
        let mut fields = FteMatchSetLyr24::zeroed();
        // The values come out of fields of the same width.
        let filled = self.fill(&mut fields);
        debug_assert!(filled.is_ok());
        MatchBytes::new(fields.as_bytes())
    }

    fn fill(&self, out: &mut FteMatchSetLyr24) -> Result<(), ValueTooWide> {
        let b = self.bytes;
        let be32 =
            |at: usize| u32::from(be16(b, at).unwrap_or(0)) << 16 | u32::from(be16(b, at + 2).unwrap_or(0));
        out.set_dmac_47_16(be32(0));
        out.set_dmac_15_0(be16(b, 4).unwrap_or(0));
        out.set_smac_47_16(be32(6));
        out.set_smac_15_0(be16(b, 10).unwrap_or(0));
        out.set_ethertype(self.ethertype);
        if let Some((service, tag)) = self.vlan {
            out.set_svlan_tag(service);
            out.set_cvlan_tag(!service);
            out.set_first_prio((tag >> 13) as u8)?;
            out.set_first_cfi(tag >> 12 & 1 != 0);
            out.set_first_vid(tag & 0xfff)?;
        }
        if let Some(n) = self.network {
            self.fill_network(&n, out)?;
        }
        if let Some(t) = self.transport {
            if t.tcp {
                out.set_tcp_sport(t.sport);
                out.set_tcp_dport(t.dport);
                out.set_tcp_flags(be16(b, t.at + 12).unwrap_or(0) & 0x1ff)?;
                out.set_l4_type(1)?;
            } else {
                out.set_udp_sport(t.sport);
                out.set_udp_dport(t.dport);
                out.set_l4_type(2)?;
            }
        }
        Ok(())
    }

    fn fill_network(&self, n: &Network, out: &mut FteMatchSetLyr24) -> Result<(), ValueTooWide> {
        let first = be16(self.bytes, n.at).unwrap_or(0);
        let (class, ttl_at) = if n.v6 {
            (first >> 4 & 0xff, n.at + 7)
        } else {
            out.set_ipv4_ihl((first >> 8 & 0xf) as u8)?;
            (first & 0xff, n.at + 8)
        };
        out.set_ip_version(if n.v6 { 6 } else { 4 })?;
        out.set_ip_protocol(n.protocol);
        out.set_ip_dscp((class >> 2) as u8)?;
        out.set_ip_ecn((class & 3) as u8)?;
        out.set_frag(n.fragment);
        out.set_ttl_hoplimit(self.bytes.get(ttl_at).copied().unwrap_or(0));
        let (src, dst) = self.addresses();
        // Addresses end at the end of their 16 bytes.
        let all = out.as_mut_bytes();
        for (address, end) in [(src, 0x30), (dst, 0x40)] {
            all[end - address.len()..end].copy_from_slice(address);
        }
        Ok(())
    }
}

fn ipv4(bytes: &[u8], at: usize) -> Option<Network> {
    let header = bytes.get(at..at + 20)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(be16(header, 2)?);
    if header[0] >> 4 != 4 || header_len < 20 || total < header_len || at + total > bytes.len() {
        return None;
    }
    Some(Network {
        v6: false,
        at,
        end: at + total,
        payload: at + header_len,
        protocol: header[9],
        // More fragments, or an offset.
        fragment: be16(header, 6)? & 0x3fff != 0,
    })
}

fn ipv6(bytes: &[u8], at: usize) -> Option<Network> {
    let header = bytes.get(at..at + IPV6_HEADER)?;
    let end = at + IPV6_HEADER + usize::from(be16(header, 4)?);
    (header[0] >> 4 == 6 && end <= bytes.len()).then_some(Network {
        v6: true,
        at,
        end,
        payload: at + IPV6_HEADER,
        protocol: header[6],
        fragment: header[6] == 44,
    })
}

fn transport(bytes: &[u8], network: &Network) -> Option<Transport> {
    let at = network.payload;
    let least = match network.protocol {
        TCP => 20,
        UDP => 8,
        _ => return None,
    };
    if network.fragment || at + least > network.end {
        return None;
    }
    Some(Transport {
        tcp: network.protocol == TCP,
        sport: be16(bytes, at)?,
        dport: be16(bytes, at + 2)?,
        at,
    })
}

/// The ones' complement sum of `bytes` on top of `sum`, folded (RFC 1071).
pub fn ones_sum(sum: u16, bytes: &[u8]) -> u16 {
    let mut total = u64::from(sum);
    let pairs = bytes.chunks_exact(2);
    let odd = pairs.remainder().first().map_or(0, |b| u64::from(*b) << 8);
    total += pairs
        .map(|p| u64::from(u16::from_be_bytes([p[0], p[1]])))
        .sum::<u64>()
        + odd;
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// Sets the IPv4 header's checksum, and the one of TCP or UDP, as the send WQE asks.
pub fn set_checksums(bytes: &mut [u8], l3: bool, l4: bool) {
    let Some((network, transport, pseudo)) = Packet::parse(bytes).and_then(|p| {
        let network = p.network?;
        let (src, dst) = p.addresses();
        let length = (network.end - network.payload) as u32;
        let sum = ones_sum(ones_sum(0, src), dst);
        let sum = ones_sum(sum, &length.to_be_bytes());
        Some((network, p.transport, ones_sum(sum, &[0, network.protocol])))
    }) else {
        return;
    };
    if l3 && !network.v6 {
        bytes[network.at + 10..network.at + 12].fill(0);
        let sum = !ones_sum(0, &bytes[network.at..network.payload]);
        bytes[network.at + 10..network.at + 12].copy_from_slice(&sum.to_be_bytes());
    }
    if let Some(t) = transport
        && l4
    {
        let field = t.at + if t.tcp { 16 } else { 6 };
        bytes[field..field + 2].fill(0);
        let sum = match !ones_sum(pseudo, &bytes[t.at..network.end]) {
            // 0 says that a UDP packet has no checksum.
            0 if !t.tcp => 0xffff,
            sum => sum,
        };
        bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Whether the checksums of IPv4's header and of TCP or UDP are right; `None` where there is none to check.
pub fn checksums_good(packet: &Packet<'_>) -> (Option<bool>, Option<bool>) {
    let Some(n) = packet.network else {
        return (None, None);
    };
    let l3 = if n.v6 {
        true
    } else {
        ones_sum(0, &packet.bytes[n.at..n.payload]) == 0xffff
    };
    let l4 = packet.transport.map(|t| {
        let (src, dst) = packet.addresses();
        let length = (n.end - n.payload) as u32;
        let sum = ones_sum(ones_sum(0, src), dst);
        let sum = ones_sum(ones_sum(sum, &length.to_be_bytes()), &[0, n.protocol]);
        ones_sum(sum, &packet.bytes[t.at..n.end]) == 0xffff
    });
    (Some(l3), l4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp_frame(vlan: bool) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if vlan {
            frame.extend_from_slice(&[0x81, 0, 0x60, 5]);
        }
        frame.extend_from_slice(&[8, 0]);
        frame.extend_from_slice(&[
            0x45, 0, 0, 31, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.extend_from_slice(&[0x10, 0, 0x20, 0, 0, 11, 0, 0, 1, 2, 3]);
        frame.resize(64, 0);
        frame
    }

    #[test]
    fn headers_are_found_behind_a_tag() {
        let frame = udp_frame(true);
        let packet = Packet::parse(&frame).unwrap();
        assert_eq!(packet.vlan, Some((false, 0x6005)));
        assert_eq!(packet.network.map(|n| (n.at, n.end)), Some((18, 49)));
        assert_eq!(
            packet.transport.map(|t| (t.tcp, t.sport, t.dport)),
            Some((false, 0x1000, 0x2000))
        );
    }

    #[test]
    fn checksums_that_were_set_are_good() {
        for vlan in [false, true] {
            let mut frame = udp_frame(vlan);
            set_checksums(&mut frame, true, true);
            assert_eq!(
                checksums_good(&Packet::parse(&frame).unwrap()),
                (Some(true), Some(true))
            );
            frame[50 - usize::from(!vlan) * 4 - 4] ^= 1;
            assert_eq!(
                checksums_good(&Packet::parse(&frame).unwrap()),
                (Some(true), Some(false))
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), v6: bool) {
            let mut bytes = bytes;
            if bytes.len() > 15 {
                let (ethertype, first) = if v6 { (IPV6, 0x60) } else { (IPV4, 0x45) };
                bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
                bytes[14] = first;
            }
            if let Some(packet) = Packet::parse(&bytes) {
                packet.match_bytes();
                checksums_good(&packet);
            }
            set_checksums(&mut bytes, true, true);
        }
    }
}
