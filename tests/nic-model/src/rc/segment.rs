//! How messages become packets: counts, positions and opcodes.

use super::types::{SendKind, SendOp};
use crate::wire::opcode::{self, Position};

/// Packets that a message of `len` bytes takes: one when it is empty.
pub(crate) fn packets(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

/// Where packet `index` of `count` stands.
pub(crate) fn position(index: u32, count: u32) -> Position {
    match (index == 0, index + 1 == count) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// Opcode of a request packet; `None` for work that has no packets.
pub(crate) fn request_opcode(kind: SendKind, position: Position) -> Option<u8> {
    use Position::{First, Last, Middle, Only};
    use SendKind as K;
    Some(match (kind, position) {
        (K::Nop, _) => return None,
        (K::Send | K::SendImm | K::SendInvalidate, First) => opcode::RC_SEND_FIRST,
        (K::Send | K::SendImm | K::SendInvalidate, Middle) => opcode::RC_SEND_MIDDLE,
        (K::Send, Last) => opcode::RC_SEND_LAST,
        (K::Send, Only) => opcode::RC_SEND_ONLY,
        (K::SendImm, Last) => opcode::RC_SEND_LAST_IMM,
        (K::SendImm, Only) => opcode::RC_SEND_ONLY_IMM,
        (K::SendInvalidate, Last) => opcode::RC_SEND_LAST_INV,
        (K::SendInvalidate, Only) => opcode::RC_SEND_ONLY_INV,
        (K::Write | K::WriteImm, First) => opcode::RC_WRITE_FIRST,
        (K::Write | K::WriteImm, Middle) => opcode::RC_WRITE_MIDDLE,
        (K::Write, Last) => opcode::RC_WRITE_LAST,
        (K::Write, Only) => opcode::RC_WRITE_ONLY,
        (K::WriteImm, Last) => opcode::RC_WRITE_LAST_IMM,
        (K::WriteImm, Only) => opcode::RC_WRITE_ONLY_IMM,
        (K::Read, _) => opcode::RC_READ_REQUEST,
        (K::CompareSwap, _) => opcode::RC_COMPARE_SWAP,
        (K::FetchAdd, _) => opcode::RC_FETCH_ADD,
    })
}

/// Opcode of a READ response packet.
pub(crate) fn read_response_opcode(position: Position) -> u8 {
    match position {
        Position::First => opcode::RC_READ_RESPONSE_FIRST,
        Position::Middle => opcode::RC_READ_RESPONSE_MIDDLE,
        Position::Last => opcode::RC_READ_RESPONSE_LAST,
        Position::Only => opcode::RC_READ_RESPONSE_ONLY,
    }
}

/// How the requester treats an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// No packets.
    Local,
    /// The message goes out, an acknowledgement comes back.
    Outbound,
    /// One request packet, the answer takes as many PSNs as it has packets.
    Fetch,
}

/// The class of an operation.
pub(crate) fn class(op: &SendOp) -> Class {
    match op {
        SendOp::Nop => Class::Local,
        SendOp::Send
        | SendOp::SendImm { .. }
        | SendOp::SendInvalidate { .. }
        | SendOp::Write { .. }
        | SendOp::WriteImm { .. } => Class::Outbound,
        SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Class::Fetch,
    }
}

/// Whether an operation takes a receive at the responder.
pub(crate) fn consumes_receive(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send | SendOp::SendImm { .. } | SendOp::SendInvalidate { .. } | SendOp::WriteImm { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t07_packet_counts_around_the_mtu() {
        for mtu in [256, 512, 1024, 2048, 4096] {
            let counts = [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 1].map(|len| packets(len, mtu));
            assert_eq!(counts, [1, 1, 1, 1, 2, 2, 3]);
        }
        assert_eq!(packets(1 << 31, 256), 1 << 23);
    }

    #[test]
    fn opcodes_agree_with_the_table_on_position() {
        for position in [Position::First, Position::Middle, Position::Last, Position::Only] {
            for kind in [
                SendKind::Send,
                SendKind::SendInvalidate,
                SendKind::WriteImm,
                SendKind::Write,
            ] {
                let info = request_opcode(kind, position).and_then(opcode::info);
                assert_eq!(info.map(|i| i.position), Some(position), "{kind:?}");
            }
            let info = opcode::info(read_response_opcode(position));
            assert_eq!(info.map(|i| i.position), Some(position));
        }
    }
}
