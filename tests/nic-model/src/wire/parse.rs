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
    parse_owned(&mut frame.clone(), mode)
}

/// As [`parse`], of a frame that is not needed any more if this succeeds: its payload may move into the packet. With
/// [`WireError::NotRoce`] the frame is as it was.
///
/// # Errors
/// As [`parse`].
pub fn parse_owned(frame: &mut Frame, mode: Icrc) -> Result<RoceFrame, WireError> {
    // Filled in place: moving it about would cost as much as the parsing.
    let mut out = RoceFrame::blank();
    if !frame.header().is_empty() {
        let at = out.parse_headers(frame.header(), frame.len())?;
        let in_parts = at.payload == frame.header().len()
            && at.pad - at.payload == frame.payload().len()
            && at.end == frame.len();
        if in_parts {
            out.packet.payload = frame.take_payload();
            let (pad, icrc) = frame.trailer().split_at(at.icrc - at.pad);
            out.check_icrc(at, frame.header(), pad, icrc, mode)?;
            return Ok(out);
        }
        out = RoceFrame::blank();
    }
    let flat = frame.flatten()?;
    let Some(bytes) = flat.payload().as_slice() else {
        return Err(truncated("Ethernet header", ETH_BYTES, 0));
    };
    let at = out.parse_headers(bytes, bytes.len())?;
    out.packet.payload = flat.payload().slice(at.payload..at.pad).unwrap_or_default();
    out.check_icrc(at, bytes, &bytes[at.pad..at.icrc], &bytes[at.icrc..at.end], mode)?;
    Ok(out)
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

/// Where the parts of a frame begin.
///
/// # Invariants
/// In ascending order, and `end` is inside the frame; the ICRC has 4 bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    l3: usize,
    payload: usize,
    pad: usize,
    icrc: usize,
    end: usize,
}

impl RoceFrame {
    /// To be filled in.
    fn blank() -> RoceFrame {
        const NOWHERE: Ipv6 = Ipv6 {
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
            src: [0; 16],
            dst: [0; 16],
        };
        RoceFrame {
            encap: Encap {
                dst: [0; 6],
                src: [0; 6],
                vlan: None,
                l3: L3::V1(NOWHERE),
            },
            packet: Packet::default(),
            info: &opcode::TABLE[0],
            l4_len: 0,
        }
    }

    /// Reads the headers at the start of `bytes`, of a frame of `frame_len` bytes.
    fn parse_headers(&mut self, bytes: &[u8], frame_len: usize) -> Result<Layout, WireError> {
        let (l3_at, ethertype) = self.parse_ethernet(bytes)?;
        let (l3, bth_at, end) = match ethertype {
            ETHERTYPE_ROCE_V1 => parse_grh(bytes, l3_at)?,
            ETHERTYPE_IPV4 => parse_ipv4(bytes, l3_at)?,
            ETHERTYPE_IPV6 => parse_ipv6(bytes, l3_at)?,
            _ => return Err(WireError::NotRoce { ethertype }),
        };
        self.encap.l3 = l3;
        if end > frame_len {
            return Err(truncated("packet", end, frame_len));
        }
        let bth = headers::parse_bth(take::<BTH_BYTES>(bytes, bth_at, "BTH")?);
        self.packet.bth = bth;
        if bth.tver != 0 {
            return Err(WireError::Unsupported {
                what: "transport header version",
                value: u32::from(bth.tver),
            });
        }
        self.info = opcode::info(bth.opcode).ok_or(WireError::Opcode(bth.opcode))?;
        let payload = bth_at + self.info.header_bytes();
        headers::parse_extended(self.info.headers, &bytes[bth_at + BTH_BYTES..], &mut self.packet)
            .ok_or(truncated("extended headers", payload, bytes.len()))?;
        self.l4_len = end - bth_at;
        self.lay_out(l3_at, payload, end)
    }

    /// Reads Ethernet header and VLAN tag; gives where they end, and the ethertype.
    fn parse_ethernet(&mut self, bytes: &[u8]) -> Result<(usize, u16), WireError> {
        let eth: &[u8; ETH_BYTES] = take(bytes, 0, "Ethernet header")?;
        self.encap.dst = *take(eth, 0, "Ethernet header")?;
        self.encap.src = *take(eth, 6, "Ethernet header")?;
        let ethertype = be16(eth, 12);
        if ethertype != ETHERTYPE_VLAN {
            return Ok((ETH_BYTES, ethertype));
        }
        let tag: &[u8; VLAN_BYTES] = take(bytes, ETH_BYTES, "VLAN tag")?;
        let tci = be16(tag, 0);
        self.encap.vlan = Some(Vlan {
            vid: tci & 0xfff,
            pcp: (tci >> 13) as u8,
            dei: tci & 0x1000 != 0,
        });
        Ok((ETH_BYTES + VLAN_BYTES, be16(tag, 2)))
    }

    /// Establishes the layout's invariants, and that payload and pad bytes make whole words (IBTA 9.2.5).
    fn lay_out(&self, l3: usize, payload: usize, end: usize) -> Result<Layout, WireError> {
        let pad_count = usize::from(self.packet.bth.pad_count);
        let need = payload + pad_count + ICRC_BYTES;
        if need > end {
            return Err(truncated("ICRC", need, end));
        }
        let icrc = end - ICRC_BYTES;
        let padded = icrc - payload;
        if !padded.is_multiple_of(4) {
            return Err(WireError::Length {
                what: "pad count",
                says: pad_count,
                have: padded,
            });
        }
        check_payload(self.info, padded - pad_count)?;
        let pad = icrc - pad_count;
        Ok(Layout {
            l3,
            payload,
            pad,
            icrc,
            end,
        })
    }

    /// Checks the ICRC over all headers in `bytes`, the payload and `pad`; the payload is ours then.
    fn check_icrc(
        &mut self,
        at: Layout,
        bytes: &[u8],
        pad: &[u8],
        icrc: &[u8],
        mode: Icrc,
    ) -> Result<(), WireError> {
        if mode == Icrc::Off {
            return Ok(());
        }
        let mut crc = icrc::start(form(&self.encap.l3), &bytes[at.l3..at.payload]);
        if let Some(own) = self.packet.payload.snapshot_host(&mut crc)? {
            self.packet.payload = own;
        }
        crc.update(pad);
        let computed = crc.finalize();
        let found = u32::from_le_bytes(*take(icrc, 0, "ICRC")?);
        if found != computed {
            return Err(WireError::Icrc { found, computed });
        }
        Ok(())
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
