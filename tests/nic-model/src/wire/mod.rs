//! Frames on the wire: headers, their order in a packet, and the ICRC.

pub mod opcode;
pub mod packet;
