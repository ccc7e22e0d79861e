//! The syndrome byte of the ACK extended transport header (IBTA vol. 1, 9.3.5.1 and tables 44 to 46).

use super::types::{CompletionStatus, MemoryFault};

/// Receives that each 5-bit credit code stands for (IBTA vol. 1, table 47); code 31 carries no count.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];
const NO_CREDITS: u8 = 0x1f;
const LOW_BITS: u8 = 0x1f;
const KIND_ACK: u8 = 0b000;
const KIND_RNR: u8 = 0b001;
const KIND_NAK: u8 = 0b011;

/// Why a request is refused: the NAK codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet before this one is missing.
    Sequence = 0,
    /// The request makes no sense or is not supported.
    InvalidRequest = 1,
    /// The memory key does not allow it.
    RemoteAccess = 2,
    /// The responder can't carry it out.
    RemoteOperation = 3,
}

impl NakCode {
    /// How the requester's work request ends; `None` for a sequence error, after which it tries again.
    pub const fn status(self) -> Option<CompletionStatus> {
        match self {
            NakCode::Sequence => None,
            NakCode::InvalidRequest => Some(CompletionStatus::RemoteInvalidRequest),
            NakCode::RemoteAccess => Some(CompletionStatus::RemoteAccess),
            NakCode::RemoteOperation => Some(CompletionStatus::RemoteOperation),
        }
    }

    /// What a peer is told when its access to our memory failed.
    pub const fn of_fault(fault: MemoryFault) -> NakCode {
        match fault {
            MemoryFault::Protection { .. } => NakCode::RemoteAccess,
            MemoryFault::Host { .. } => NakCode::RemoteOperation,
        }
    }
}

/// A syndrome, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Syndrome {
    /// Acknowledged, with the number of receives that are posted if the responder says so.
    Ack {
        /// Receives posted; `None` when not said.
        credits: Option<u32>,
    },
    /// Receiver not ready.
    Rnr {
        /// 5-bit timer code ([`super::timer::rnr_delay`]).
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A value that IBTA reserves.
    Reserved(u8),
}

impl Syndrome {
    /// From the byte in the header.
    pub fn decode(byte: u8) -> Syndrome {
        let low = byte & LOW_BITS;
        match (byte >> 5, low) {
            (KIND_ACK, _) => Syndrome::Ack {
                credits: CREDITS.get(usize::from(low)).copied(),
            },
            (KIND_RNR, timer) => Syndrome::Rnr { timer },
            (KIND_NAK, 0) => Syndrome::Nak(NakCode::Sequence),
            (KIND_NAK, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (KIND_NAK, 2) => Syndrome::Nak(NakCode::RemoteAccess),
            (KIND_NAK, 3) => Syndrome::Nak(NakCode::RemoteOperation),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// To the byte in the header. A credit count between two codes becomes the lower one.
    pub fn encode(self) -> u8 {
        match self {
            Syndrome::Ack { credits: None } => NO_CREDITS,
            Syndrome::Ack { credits: Some(n) } => {
                // The table starts at 0, so at least one entry is not above `n`.
                (CREDITS.partition_point(|&c| c <= n) - 1) as u8
            }
            Syndrome::Rnr { timer } => KIND_RNR << 5 | timer & LOW_BITS,
            Syndrome::Nak(code) => KIND_NAK << 5 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_decode_and_encode() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::decode(byte).encode(), byte, "{byte:#04x}");
        }
    }

    #[test]
    fn credit_counts_round_down_to_a_code() {
        let code = |n| Syndrome::Ack { credits: Some(n) }.encode();
        assert_eq!((code(0), code(4), code(5), code(6)), (0, 4, 4, 5));
        assert_eq!((code(32767), code(32768), code(u32::MAX)), (29, 30, 30));
        assert_eq!(Syndrome::decode(0x1f), Syndrome::Ack { credits: None });
    }

    #[test]
    fn syndromes_have_the_bytes_of_the_standard() {
        assert_eq!(Syndrome::Nak(NakCode::Sequence).encode(), 0x60);
        assert_eq!(Syndrome::Nak(NakCode::RemoteOperation).encode(), 0x63);
        assert_eq!(Syndrome::Rnr { timer: 12 }.encode(), 0x2c);
        assert_eq!(Syndrome::decode(0x64), Syndrome::Reserved(0x64));
        assert_eq!(Syndrome::decode(0x40), Syndrome::Reserved(0x40));
    }
}
