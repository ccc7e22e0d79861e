//! Doorbell records: 8 bytes in host memory that hold the truth about a queue's indices.
//!
//! | queue | word 0 | word 1 |
//! | --- | --- | --- |
//! | QP | receive WQEs posted, 16 bits that wrap | send WQEBBs posted, 16 bits that wrap |
//! | CQ | consumer index, 24 bits that wrap | arm: see [`cq_arm`] |
//! | SRQ | receive WQEs posted | |

/// Bytes of a record.
pub const BYTES: usize = 8;
/// Byte offset of a QP's receive counter.
pub const QP_RCV: usize = 0;
/// Byte offset of a QP's send counter.
pub const QP_SND: usize = 4;
/// Byte offset of a CQ's consumer index.
pub const CQ_CI: usize = 0;
/// Byte offset of a CQ's arm word.
pub const CQ_ARM: usize = 4;

/// The arm word's bit that asks for solicited completions only.
pub const CQ_ARM_SOLICITED: u32 = 1 << 24;

/// The arm word: sequence number (2 bits, stepped with each event), whether only solicited completions count,
/// and the consumer index.
pub const fn cq_arm(sequence: u8, solicited_only: bool, consumer_index: u32) -> u32 {
    (sequence as u32 & 3) << 28
        | if solicited_only { CQ_ARM_SOLICITED } else { 0 }
        | (consumer_index & 0xff_ffff)
}
