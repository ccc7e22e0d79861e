//! Packets to frames.

use super::encap::{ETH_BYTES, VLAN_BYTES};
use super::frame::{Frame, HeaderBytes, TrailerBytes};
use super::icrc::Form;
use super::packet::Packet;
use super::{CNP_RESERVED_BYTES, Encap, ICRC_BYTES, Icrc, L3, MAX_PAYLOAD, WireError};
use super::{headers, icrc, opcode};

/// Bytes that bring `len` to a multiple of 4.
fn pad_for(len: usize) -> usize {
    len.wrapping_neg() % 4
}

/// Makes a frame of a packet. The BTH's `pad_count` is computed, not taken from it.
///
/// With [`Icrc::On`] the payload is copied out of host memory once, and its CRC is made on the way. With
/// [`Icrc::Off`] the frame refers to it where it is.
///
/// # Errors
/// [`WireError::Opcode`], [`WireError::Headers`], [`WireError::Payload`] when the packet contradicts its opcode;
/// [`WireError::TooWide`]; [`WireError::Host`] when the payload can't be read.
pub fn emit(encap: &Encap, packet: &Packet, mode: Icrc) -> Result<Frame, WireError> {
    emit_owned(encap, packet.clone(), mode)
}

/// As [`emit`], of a packet that is not needed any more: its payload moves into the frame.
///
/// # Errors
/// As [`emit`].
pub fn emit_owned(encap: &Encap, packet: Packet, mode: Icrc) -> Result<Frame, WireError> {
    let info = opcode::info(packet.bth.opcode).ok_or(WireError::Opcode(packet.bth.opcode))?;
    let len = packet.payload.len();
    check_payload(info, len)?;
    let pad = pad_for(len);
    let l4_len = info.header_bytes() + len + pad + ICRC_BYTES;
    let mut header = HeaderBytes::new();
    encap.push(l4_len, &mut header)?;
    // At most 3.
    headers::push_bth(&packet.bth, pad as u8, &mut header)?;
    headers::push_extended(&packet, info, &mut header)?;

    let mut trailer = TrailerBytes::new();
    trailer.push_zeros(pad);
    let payload = match mode {
        Icrc::Off => {
            trailer.push(&[0; ICRC_BYTES]);
            packet.payload
        }
        Icrc::On => {
            let l2 = ETH_BYTES + if encap.vlan.is_some() { VLAN_BYTES } else { 0 };
            let mut crc = icrc::start(form(&encap.l3), &header[l2..]);
            let payload = match packet.payload.snapshot_host(&mut crc)? {
                Some(own) => own,
                None => packet.payload,
            };
            crc.update(&trailer);
            trailer.push(&crc.finalize().to_le_bytes());
            payload
        }
    };
    Ok(Frame::from_parts(header, payload, trailer))
}

pub(super) fn form(l3: &L3) -> Form {
    match l3 {
        L3::V1(_) => Form::V1,
        L3::V2Ipv4(..) => Form::V2Ipv4,
        L3::V2Ipv6(..) => Form::V2Ipv6,
    }
}

/// Holds a payload's length against what the opcode allows.
pub(super) fn check_payload(info: &opcode::OpcodeInfo, len: usize) -> Result<(), WireError> {
    let limit = match info.kind {
        opcode::Kind::Cnp => CNP_RESERVED_BYTES,
        kind if kind.has_payload() => MAX_PAYLOAD,
        _ => 0,
    };
    let short_cnp = info.kind == opcode::Kind::Cnp && len < limit;
    if len > limit || short_cnp {
        return Err(WireError::Payload {
            name: info.name,
            len,
            limit,
        });
    }
    Ok(())
}
