//! Frames on the wire: headers, their order in a packet, and the ICRC.
//!
//! ```text
//!   RoCE v1:  Ethernet (0x8915)         | GRH           | BTH | extended headers | payload | pad | ICRC
//!   RoCE v2:  Ethernet (0x0800, 0x86dd) | IP | UDP 4791 | BTH | extended headers | payload | pad | ICRC
//! ```
//! Either with an 802.1Q tag or without. [`emit`] makes a [`Frame`] of an [`Encap`] and a
//! [`Packet`](packet::Packet); [`parse`] takes it apart. A frame that [`parse`] accepts is emitted again bit for
//! bit, unless a sender has set bits that the standard reserves, or has padded the frame behind its end.
//!
//! Sources: IBTA vol. 1, chapters 8 and 9, annexes A16 (RoCE) and A17 (RoCE v2); RFC 791, 768, 8200; IEEE
//! 802.1Q. Left out: IPv4 options, IPv6 extension headers, fragments, double VLAN tags, RD and XRC.

mod emit;
pub mod encap;
mod frame;
mod headers;
mod icrc;
pub mod opcode;
pub mod packet;
mod parse;

pub use emit::{emit, emit_owned};
pub use encap::{Ecn, Encap, Ipv4, Ipv6, L3, Mac, Udp, Vlan};
pub use frame::Frame;
pub use parse::{RoceFrame, parse, parse_owned};

use crate::host::HostError;

/// UDP destination port of RoCE v2 (IBTA A17.3.1).
pub const UDP_PORT: u16 = 4791;
/// Largest payload of a packet: the largest path MTU.
pub const MAX_PAYLOAD: usize = 4096;
/// Reserved bytes that a CNP carries behind its BTH (IBTA A17.9.3).
pub const CNP_RESERVED_BYTES: usize = 16;
/// Length of an ICRC in bytes.
const ICRC_BYTES: usize = 4;

/// Whether ICRCs are made and checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Icrc {
    /// Made when emitting, checked when parsing.
    #[default]
    On,
    /// Zero when emitting, not looked at when parsing: to measure what they cost. Both ends must agree. The
    /// payload then stays in host memory until the receiver copies it.
    Off,
}

/// Why a frame was not accepted, or a packet could not be emitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Something else than RoCE: for the raw Ethernet path.
    #[error("not a RoCE frame (ethertype {ethertype:#06x})")]
    NotRoce {
        /// Ethertype behind the VLAN tag, if there is one.
        ethertype: u16,
    },
    /// The frame ends inside a header.
    #[error("frame of {have} bytes ends inside its {what}, which ends at {need}")]
    Truncated {
        /// Which header.
        what: &'static str,
        /// Bytes that it would take up to that header's end.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// A length field that contradicts the frame or another field.
    #[error("{what} says {says} bytes, but there are {have}")]
    Length {
        /// Which field.
        what: &'static str,
        /// Its value.
        says: usize,
        /// What it was compared with.
        have: usize,
    },
    /// A field with a value that is not supported.
    #[error("{what} is {value:#x}, which is not supported")]
    Unsupported {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// A number that does not fit its field.
    #[error("{what} is {value:#x}, its field has {bits} bits")]
    TooWide {
        /// Which field.
        what: &'static str,
        /// The value.
        value: u32,
        /// Width of the field.
        bits: u32,
    },
    /// The IPv4 header's checksum is wrong.
    #[error("IPv4 header checksum {found:#06x} is wrong")]
    Ipv4Checksum {
        /// The value in the header.
        found: u16,
    },
    /// The opcode is not in the table.
    #[error("opcode {0:#04x} is reserved or of a transport that is not supported")]
    Opcode(u8),
    /// A packet to emit has other extended headers than its opcode asks for.
    #[error("{name} takes the headers {expected:?}, the packet has {found:?}")]
    Headers {
        /// Name of the opcode.
        name: &'static str,
        /// What the table says.
        expected: opcode::Headers,
        /// What is in the packet.
        found: opcode::Headers,
    },
    /// A payload that the opcode does not allow, or that is over the largest MTU.
    #[error("{name} with a payload of {len} bytes; at most {limit} are allowed")]
    Payload {
        /// Name of the opcode.
        name: &'static str,
        /// Length of the payload in bytes.
        len: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The ICRC does not match: the frame was changed on its way.
    #[error("ICRC is {found:#010x}, computed {computed:#010x}")]
    Icrc {
        /// In the frame.
        found: u32,
        /// What it should be.
        computed: u32,
    },
    /// Host memory that a payload refers to can't be read (any more).
    #[error("the payload's host memory can't be read")]
    Host(#[from] HostError),
}

#[cfg(test)]
mod tests;
