//! User access region: a 4 KiB page of BAR 0 in which doorbells are rung.
//!
//! ```text
//!   0x020  CQ arm         8 bytes: doorbell record's arm word, then the CQN
//!   0x040  EQ update+arm  4 bytes: eqn << 24 | consumer index
//!   0x048  EQ update      4 bytes: the same, without arming
//!   0x800  SQ doorbells   8 bytes: first 8 bytes of the WQE's control segment; four registers (BlueFlame),
//!                         `1 << log_bf_reg_size` bytes apart, each of two halves (slots); a slot also takes a WQE
//!                         from its control segment on, in whole pieces of 64 bytes in order
//! ```

use crate::ids::Eqn;

/// Bytes of a UAR page.
pub const PAGE_BYTES: u64 = 4096;
/// CQ arm doorbell, 64 bits.
pub const CQ_DOORBELL: u64 = 0x20;
/// EQ doorbell that updates the consumer index and arms, 32 bits.
pub const EQ_ARM: u64 = 0x40;
/// EQ doorbell that only updates the consumer index, 32 bits.
pub const EQ_UPDATE: u64 = 0x48;
/// First send doorbell (BlueFlame register), 64 bits.
pub const BF_OFFSET: u64 = 0x800;
/// Send doorbell registers of a page: two regular, two for low latency.
pub const BF_REGS: u64 = 4;
/// Bytes of the pieces in which a WQE is written to a BlueFlame slot.
pub const PIECE_BYTES: usize = 64;
/// The first UAR pages overlay the initialization segment and are never given out.
pub const FIRST_UAR_PAGE: u32 = 3;

/// The value for [`EQ_ARM`] and [`EQ_UPDATE`].
pub const fn eq_doorbell(eqn: Eqn, consumer_index: u32) -> u32 {
    eqn.get() << 24 | (consumer_index & 0xff_ffff)
}

/// The value for [`CQ_DOORBELL`]: `arm` is the doorbell record's second word (see [`crate::dbr`]).
pub const fn cq_doorbell(arm: u32, cqn: u32) -> u64 {
    (arm as u64) << 32 | (cqn & 0xff_ffff) as u64
}
