//! Frames to packets. Nothing in a frame is trusted.

use super::emit::{check_payload, form};
use super::encap::{
    ETH_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, ETHERTYPE_VLAN, IPV4_BYTES, IPV6_BYTES,
    NEXT_HEADER_BTH, PROTOCOL_UDP, UDP_BYTES, VLAN_BYTES, checksum,
};
use super::opcode::{self, OpcodeInfo};
use super::packet::{BTH_BYTES, Packet};
use super::{Encap, Frame, ICRC_BYTES, Icrc, Ipv4, Ipv6, L3, UDP_PORT, Udp, Vlan, WireError};
use super::{headers, icrc};
use crate::payload::Payload;

/// A RoCE frame taken apart.
#[derive(Clone, Debug)]
pub struct RoceFrame {
    /// All before the BTH.
    pub encap: Encap,
    /// BTH, extended headers and payload.
    pub packet: Packet,
    /// The opcode's row of the table.
    pub info: &'static OpcodeInfo,
    /// Bytes from BTH to ICRC.
    l4_len: usize,
}

impl RoceFrame {
    /// The 40 bytes that a UD receiver finds before the payload: GRH or IPv6 header, or 20 zero bytes and the
    /// IPv4 header (IBTA A17.4.5.1).
    pub fn grh_area(&self) -> [u8; 40] {
        // The header came from a frame, so that all its fields fit.
        self.encap.grh_area(self.l4_len).unwrap_or([0; 40])
    }
}

/// Takes a frame apart and, with [`Icrc::On`], checks its ICRC.
///
/// Bytes behind the end that the network header names are ignored: short frames are padded by Ethernet.
///
/// # Errors
/// [`WireError::NotRoce`] for all other traffic; any other kind for a frame that must be dropped.
pub fn parse(frame: &Frame, mode: Icrc) -> Result<RoceFrame, WireError> {
    if !frame.header().is_empty() {
        let head = Head::parse(frame.header(), frame.len())?;
        let in_parts = head.header_len == frame.header().len()
            && head.payload_len() == frame.payload().len()
            && head.end == frame.len();
        if in_parts {
            let (pad, icrc) = frame.trailer().split_at(head.pad());
            return head.finish(frame.header(), frame.payload().clone(), pad, icrc, mode);
        }
    }
    let flat = frame.flatten()?;
    let payload = flat.payload();
    let Some(bytes) = payload.as_slice() else {
        return Err(truncated("Ethernet header", ETH_BYTES, 0));
    };
    let head = Head::parse(bytes, bytes.len())?;
    let end = head.header_len + head.payload_len();
    let data = payload.slice(head.header_len..end).unwrap_or_default();
    let (pad, icrc) = bytes[end..head.end].split_at(head.pad());
    head.finish(bytes, data, pad, icrc, mode)
}

fn truncated(what: &'static str, need: usize, have: usize) -> WireError {
    WireError::Truncated { what, need, have }
}

/// `N` bytes from `at` on.
fn take<'a, const N: usize>(
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
) -> Result<&'a [u8; N], WireError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(truncated(what, at + N, bytes.len()))
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// All headers of a frame.
///
/// # Invariants
/// `header_len + packet.bth.pad_count + ICRC_BYTES <= end`, and `end` is inside the frame.
struct Head {
    encap: Encap,
    packet: Packet,
    info: &'static OpcodeInfo,
    /// Where the network header begins.
    l3_at: usize,
    /// Where the BTH begins.
    bth_at: usize,
    /// Where the payload begins.
    header_len: usize,
    /// Where the ICRC ends.
    end: usize,
}

impl Head {
    /// Reads the headers at the start of `bytes`, of a frame of `frame_len` bytes.
    fn parse(bytes: &[u8], frame_len: usize) -> Result<Head, WireError> {
        let eth: &[u8; ETH_BYTES] = take(bytes, 0, "Ethernet header")?;
        let mut ethertype = be16(eth, 12);
        let (mut l3_at, mut vlan) = (ETH_BYTES, None);
        if ethertype == ETHERTYPE_VLAN {
            let tag: &[u8; VLAN_BYTES] = take(bytes, ETH_BYTES, "VLAN tag")?;
            let tci = be16(tag, 0);
            vlan = Some(Vlan {
                vid: tci & 0xfff,
                pcp: (tci >> 13) as u8,
                dei: tci & 0x1000 != 0,
            });
            ethertype = be16(tag, 2);
            l3_at += VLAN_BYTES;
        }
        let (l3, bth_at, end) = match ethertype {
            ETHERTYPE_ROCE_V1 => parse_grh(bytes, l3_at)?,
            ETHERTYPE_IPV4 => parse_ipv4(bytes, l3_at)?,
            ETHERTYPE_IPV6 => parse_ipv6(bytes, l3_at)?,
            _ => return Err(WireError::NotRoce { ethertype }),
        };
        if end > frame_len {
            return Err(truncated("packet", end, frame_len));
        }
        let mut packet = Packet {
            bth: headers::parse_bth(take::<BTH_BYTES>(bytes, bth_at, "BTH")?),
            ..Packet::default()
        };
        let tver = packet.bth.tver;
        if tver != 0 {
            return Err(WireError::Unsupported {
                what: "transport header version",
                value: u32::from(tver),
            });
        }
        let info = opcode::info(packet.bth.opcode).ok_or(WireError::Opcode(packet.bth.opcode))?;
        let header_len = bth_at + info.header_bytes();
        headers::parse_extended(info.headers, &bytes[bth_at + BTH_BYTES..], &mut packet).ok_or(truncated(
            "extended headers",
            header_len,
            bytes.len(),
        ))?;
        let head = Head {
            encap: Encap {
                dst: *take(bytes, 0, "Ethernet header")?,
                src: *take(bytes, 6, "Ethernet header")?,
                vlan,
                l3,
            },
            packet,
            info,
            l3_at,
            bth_at,
            header_len,
            end,
        };
        head.check_length()?;
        Ok(head)
    }

    /// Establishes the invariant, and that payload and pad bytes make whole words (IBTA 9.2.5).
    fn check_length(&self) -> Result<(), WireError> {
        let need = self.header_len + self.pad() + ICRC_BYTES;
        if need > self.end {
            return Err(truncated("ICRC", need, self.end));
        }
        let padded = self.payload_len() + self.pad();
        if !padded.is_multiple_of(4) {
            return Err(WireError::Length {
                what: "pad count",
                says: self.pad(),
                have: padded,
            });
        }
        check_payload(self.info, self.payload_len())
    }

    fn pad(&self) -> usize {
        usize::from(self.packet.bth.pad_count)
    }

    fn payload_len(&self) -> usize {
        self.end - self.header_len - self.pad() - ICRC_BYTES
    }

    /// Checks the ICRC and puts all together.
    fn finish(
        mut self,
        bytes: &[u8],
        payload: Payload,
        pad: &[u8],
        icrc: &[u8],
        mode: Icrc,
    ) -> Result<RoceFrame, WireError> {
        self.packet.payload = match mode {
            Icrc::Off => payload,
            Icrc::On => {
                let mut crc = icrc::start(form(&self.encap.l3), &bytes[self.l3_at..self.header_len]);
                let payload = payload.snapshot(&mut crc)?;
                crc.update(pad);
                let computed = crc.finalize();
                let found = u32::from_le_bytes(*take(icrc, 0, "ICRC")?);
                if found != computed {
                    return Err(WireError::Icrc { found, computed });
                }
                payload
            }
        };
        Ok(RoceFrame {
            encap: self.encap,
            packet: self.packet,
            info: self.info,
            l4_len: self.end - self.bth_at,
        })
    }
}

/// Network header, where the BTH begins, and where the packet ends.
type Parsed = (L3, usize, usize);

fn ipv6_fields(h: &[u8; IPV6_BYTES], what: &'static str) -> Result<(Ipv6, u8, usize), WireError> {
    let first = u32::from_be_bytes([h[0], h[1], h[2], h[3]]);
    if first >> 28 != 6 {
        return Err(WireError::Unsupported {
            what,
            value: first >> 28,
        });
    }
    let ip = Ipv6 {
        traffic_class: (first >> 20) as u8,
        flow_label: first & 0xf_ffff,
        hop_limit: h[7],
        src: *take(h, 8, what)?,
        dst: *take(h, 24, what)?,
    };
    Ok((ip, h[6], usize::from(be16(h, 4))))
}

fn parse_grh(bytes: &[u8], at: usize) -> Result<Parsed, WireError> {
    let (grh, next_header, len) = ipv6_fields(take(bytes, at, "GRH")?, "GRH version")?;
    if next_header != NEXT_HEADER_BTH {
        return Err(WireError::Unsupported {
            what: "GRH next header",
            value: u32::from(next_header),
        });
    }
    let bth_at = at + IPV6_BYTES;
    Ok((L3::V1(grh), bth_at, bth_at + len))
}

fn parse_ipv6(bytes: &[u8], at: usize) -> Result<Parsed, WireError> {
    let (ip, next_header, len) = ipv6_fields(take(bytes, at, "IPv6 header")?, "IPv6 version")?;
    let not_roce = WireError::NotRoce {
        ethertype: ETHERTYPE_IPV6,
    };
    if next_header != PROTOCOL_UDP {
        return Err(not_roce);
    }
    let udp = parse_udp(bytes, at + IPV6_BYTES, len)?.ok_or(not_roce)?;
    let bth_at = at + IPV6_BYTES + UDP_BYTES;
    Ok((L3::V2Ipv6(ip, udp), bth_at, at + IPV6_BYTES + len))
}

fn parse_ipv4(bytes: &[u8], at: usize) -> Result<Parsed, WireError> {
    let h: &[u8; IPV4_BYTES] = take(bytes, at, "IPv4 header")?;
    let not_roce = WireError::NotRoce {
        ethertype: ETHERTYPE_IPV4,
    };
    if h[0] >> 4 != 4 {
        return Err(WireError::Unsupported {
            what: "IPv4 version",
            value: u32::from(h[0] >> 4),
        });
    }
    let fragment = be16(h, 6);
    // Only a first fragment has a UDP header to judge by.
    if h[9] != PROTOCOL_UDP || fragment & 0x1fff != 0 {
        return Err(not_roce);
    }
    let header_len = usize::from(h[0] & 0xf) * 4;
    let total = usize::from(be16(h, 2));
    let len = total.checked_sub(header_len).ok_or(WireError::Length {
        what: "IPv4 total length",
        says: total,
        have: header_len,
    })?;
    if header_len < IPV4_BYTES {
        return Err(WireError::Length {
            what: "IPv4 header length",
            says: header_len,
            have: IPV4_BYTES,
        });
    }
    let udp = parse_udp(bytes, at + header_len, len)?.ok_or(not_roce)?;
    if header_len != IPV4_BYTES {
        return Err(WireError::Unsupported {
            what: "IPv4 header length",
            value: header_len as u32,
        });
    }
    // More fragments, or the reserved bit.
    if fragment & 0xa000 != 0 {
        return Err(WireError::Unsupported {
            what: "IPv4 flags and fragment offset",
            value: u32::from(fragment),
        });
    }
    if checksum(h) != 0 {
        return Err(WireError::Ipv4Checksum { found: be16(h, 10) });
    }
    let ip = Ipv4 {
        tos: h[1],
        identification: be16(h, 4),
        dont_fragment: fragment & 0x4000 != 0,
        ttl: h[8],
        src: *take(h, 12, "IPv4 header")?,
        dst: *take(h, 16, "IPv4 header")?,
    };
    Ok((L3::V2Ipv4(ip, udp), at + IPV4_BYTES + UDP_BYTES, at + total))
}

/// The UDP header at `at`, of an IP payload of `len` bytes; `None` when it goes to another port.
fn parse_udp(bytes: &[u8], at: usize, len: usize) -> Result<Option<Udp>, WireError> {
    let h: &[u8; UDP_BYTES] = take(bytes, at, "UDP header")?;
    if be16(h, 2) != UDP_PORT {
        return Ok(None);
    }
    let says = usize::from(be16(h, 4));
    if says != len {
        return Err(WireError::Length {
            what: "UDP length",
            says,
            have: len,
        });
    }
    Ok(Some(Udp {
        src_port: be16(h, 0),
        checksum: be16(h, 6),
    }))
}
