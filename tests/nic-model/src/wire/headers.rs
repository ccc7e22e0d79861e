//! BTH and extended headers, to bytes and back.

use super::WireError;
use super::encap::fits;
use super::frame::HeaderBytes;
use super::opcode::{Headers, OpcodeInfo};
use super::packet::{Aeth, AtomicEth, BTH_BYTES, Bth, Deth, Packet, Reth};
use crate::psn::Psn;

/// Appends the BTH with `pad_count` pad bytes.
pub(super) fn push_bth(bth: &Bth, pad_count: u8, out: &mut HeaderBytes) -> Result<(), WireError> {
    fits("destination QP", bth.dest_qp, 24)?;
    fits("transport header version", u32::from(bth.tver), 4)?;
    let flags = (u8::from(bth.solicited) << 7) | (u8::from(bth.mig_req) << 6) | (pad_count << 4) | bth.tver;
    out.push(&[bth.opcode, flags]);
    out.push(&bth.pkey.to_be_bytes());
    let congestion = (u32::from(bth.fecn) << 31) | (u32::from(bth.becn) << 30);
    out.push(&(congestion | bth.dest_qp).to_be_bytes());
    out.push(&((u32::from(bth.ack_req) << 31) | bth.psn.get()).to_be_bytes());
    Ok(())
}

/// Takes a BTH apart. Reserved bits are ignored (IBTA 9.2).
pub(super) fn parse_bth(b: &[u8; BTH_BYTES]) -> Bth {
    Bth {
        opcode: b[0],
        solicited: b[1] & 0x80 != 0,
        mig_req: b[1] & 0x40 != 0,
        pad_count: (b[1] >> 4) & 3,
        tver: b[1] & 0xf,
        pkey: u16::from_be_bytes([b[2], b[3]]),
        fecn: b[4] & 0x80 != 0,
        becn: b[4] & 0x40 != 0,
        dest_qp: u32::from_be_bytes([0, b[5], b[6], b[7]]),
        ack_req: b[8] & 0x80 != 0,
        psn: Psn::from_low_bits(u32::from_be_bytes([0, b[9], b[10], b[11]])),
    }
}

/// The extended headers that `packet` holds.
fn present(packet: &Packet) -> Headers {
    let mut found = Headers::empty();
    found.set(Headers::DETH, packet.deth.is_some());
    found.set(Headers::RETH, packet.reth.is_some());
    found.set(Headers::ATOMIC_ETH, packet.atomic_eth.is_some());
    found.set(Headers::AETH, packet.aeth.is_some());
    found.set(Headers::ATOMIC_ACK_ETH, packet.atomic_ack.is_some());
    found.set(Headers::IMMDT, packet.immediate.is_some());
    found.set(Headers::IETH, packet.invalidate_rkey.is_some());
    found
}

/// Appends the extended headers, which must be those of the opcode.
pub(super) fn push_extended(
    packet: &Packet,
    info: &OpcodeInfo,
    out: &mut HeaderBytes,
) -> Result<(), WireError> {
    let found = present(packet);
    if found != info.headers {
        return Err(WireError::Headers {
            name: info.name,
            expected: info.headers,
            found,
        });
    }
    if let Some(h) = packet.deth {
        fits("source QP", h.src_qp, 24)?;
        out.push(&h.qkey.to_be_bytes());
        out.push(&h.src_qp.to_be_bytes());
    }
    if let Some(h) = packet.reth {
        out.push(&h.va.to_be_bytes());
        out.push(&h.rkey.to_be_bytes());
        out.push(&h.dma_len.to_be_bytes());
    }
    if let Some(h) = packet.atomic_eth {
        out.push(&h.va.to_be_bytes());
        out.push(&h.rkey.to_be_bytes());
        out.push(&h.swap_add.to_be_bytes());
        out.push(&h.compare.to_be_bytes());
    }
    if let Some(h) = packet.aeth {
        fits("message sequence number", h.msn, 24)?;
        out.push(&((u32::from(h.syndrome) << 24) | h.msn).to_be_bytes());
    }
    if let Some(original) = packet.atomic_ack {
        out.push(&original.to_be_bytes());
    }
    if let Some(immediate) = packet.immediate {
        out.push(&immediate.to_be_bytes());
    }
    if let Some(rkey) = packet.invalidate_rkey {
        out.push(&rkey.to_be_bytes());
    }
    Ok(())
}

/// Reads big-endian numbers one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*head))
    }

    fn u64(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*head))
    }
}

/// Takes the extended headers of `headers` from the start of `bytes` into `packet`; `None` when the bytes end
/// before them.
pub(super) fn parse_extended(headers: Headers, bytes: &[u8], packet: &mut Packet) -> Option<()> {
    let mut r = Reader(bytes);
    if headers.contains(Headers::DETH) {
        packet.deth = Some(Deth {
            qkey: r.u32()?,
            src_qp: r.u32()? & 0xff_ffff,
        });
    }
    if headers.contains(Headers::RETH) {
        packet.reth = Some(Reth {
            va: r.u64()?,
            rkey: r.u32()?,
            dma_len: r.u32()?,
        });
    }
    if headers.contains(Headers::ATOMIC_ETH) {
        packet.atomic_eth = Some(AtomicEth {
            va: r.u64()?,
            rkey: r.u32()?,
            swap_add: r.u64()?,
            compare: r.u64()?,
        });
    }
    if headers.contains(Headers::AETH) {
        let word = r.u32()?;
        packet.aeth = Some(Aeth {
            syndrome: (word >> 24) as u8,
            msn: word & 0xff_ffff,
        });
    }
    if headers.contains(Headers::ATOMIC_ACK_ETH) {
        packet.atomic_ack = Some(r.u64()?);
    }
    if headers.contains(Headers::IMMDT) {
        packet.immediate = Some(r.u32()?);
    }
    if headers.contains(Headers::IETH) {
        packet.invalidate_rkey = Some(r.u32()?);
    }
    Some(())
}
