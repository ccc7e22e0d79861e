//! The command queue's formats: the 64-byte entry, the 576-byte mailbox block, tokens and signatures.
//!
//! ```text
//!   entry (64 bytes)                          mailbox blocks (576 bytes each)
//!   +------+------+---------------+           +----------------------+     +---------
//!   | type | inlen| in_ptr        |---------->| 512 bytes of data    |  +->|
//!   | first 16 bytes of input     |           | next, number, token  |--+  |
//!   | first 16 bytes of output    |           +----------------------+     +---------
//!   | out_ptr      | outlen | token, sig, status_own
//!   +------+------+---------------+
//! ```
//!
//! Source: PRM "Command interface"; the offsets are those of `cmd_layout` and `cmd_prot_block`.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::status::DeliveryStatus;

/// `type` of an entry: a command delivered over PCIe.
pub const TYPE_PCIE: u8 = 0x07;
/// Input and output bytes that stand in the entry itself.
pub const INLINE_BYTES: usize = 16;
/// Data bytes of a mailbox block.
pub const BLOCK_DATA: usize = 512;
/// Bytes of a mailbox block.
pub const BLOCK_BYTES: usize = 576;
/// Alignment that a mailbox block needs: the low bits of its address are reserved.
pub const BLOCK_ALIGN: usize = 1024;
/// Most entries that a command queue can have: the doorbell has a bit for each.
pub const MAX_SLOTS: usize = 32;

/// One entry of the command queue (`cmd_layout`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Entry {
    /// Transport: [`TYPE_PCIE`].
    pub ty: u8,
    /// Reserved.
    pub rsvd1: [u8; 3],
    /// Length of the input in bytes, the inline part included.
    pub input_length: U32,
    /// Address of the first input mailbox block: what is beyond the first 16 bytes.
    pub input_mailbox: U64,
    /// First 16 bytes of the input.
    pub input: [u8; INLINE_BYTES],
    /// First 16 bytes of the output.
    pub output: [u8; INLINE_BYTES],
    /// Address of the first output mailbox block.
    pub output_mailbox: U64,
    /// Length of the output in bytes, the inline part included.
    pub output_length: U32,
    /// Ties the entry to its mailbox blocks.
    pub token: u8,
    /// See [`Entry::sign`].
    pub signature: u8,
    /// Reserved.
    pub rsvd2: u8,
    /// Bit 0: owner, 1 while the entry is the device's. Bits 7:1: delivery status.
    pub status_own: u8,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// Byte offset of [`Entry::status_own`]: written last by either side.
pub const STATUS_OWN_OFFSET: usize = 0x3f;
/// Byte offset of [`Entry::output`].
pub const OUTPUT_OFFSET: usize = 0x20;

impl Entry {
    /// Bit 0 of `status_own` while the device owns the entry.
    pub const OWNER_HW: u8 = 1;

    /// Whether the device still owns the entry.
    pub fn owned_by_device(&self) -> bool {
        self.status_own & Self::OWNER_HW != 0
    }

    /// The delivery status; it means something once the device has given the entry back.
    pub fn delivery_status(&self) -> DeliveryStatus {
        DeliveryStatus(self.status_own >> 1)
    }

    /// `status_own` of an entry that goes back to the host with `status`.
    pub const fn completed(status: DeliveryStatus) -> u8 {
        status.0 << 1
    }

    /// Sets the signature, so that the exclusive or of all 64 bytes is 0xff. Do it last.
    pub fn sign(&mut self) {
        self.signature = 0;
        self.signature = !xor(self.as_bytes());
    }

    /// Whether the signature fits the entry.
    pub fn signature_ok(&self) -> bool {
        xor(self.as_bytes()) == 0xff
    }
}

/// One mailbox block (`cmd_prot_block`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Block {
    /// The next 512 bytes of the input or the output.
    pub data: [u8; BLOCK_DATA],
    /// Reserved.
    pub rsvd0: [u8; 48],
    /// Address of the next block; 0 in the last.
    pub next: U64,
    /// Number of the block in its chain, from 0.
    pub block_num: U32,
    /// Reserved.
    pub rsvd1: u8,
    /// The entry's token.
    pub token: u8,
    /// Signature of the control part: bytes 0x230 to 0x23e.
    pub ctrl_sig: u8,
    /// Signature of the whole block.
    pub sig: u8,
}

const _: () = assert!(size_of::<Block>() == BLOCK_BYTES);

/// Byte offset of [`Block::next`], from which on the control part lies.
pub const BLOCK_CTRL_OFFSET: usize = 0x230;

impl Block {
    /// A block of zeros with its place in the chain.
    pub fn new(block_num: u32, next: u64, token: u8) -> Block {
        let mut block = Block::new_zeroed();
        block.block_num = block_num.into();
        block.next = next.into();
        block.token = token;
        block
    }

    /// Sets both signatures. The control signature covers the control part up to itself, the other the whole
    /// block.
    pub fn sign(&mut self) {
        self.ctrl_sig = 0;
        self.sig = 0;
        self.ctrl_sig = !xor(&self.as_bytes()[BLOCK_CTRL_OFFSET..BLOCK_BYTES - 1]);
        self.sig = !xor(self.as_bytes());
    }

    /// Whether both signatures fit.
    pub fn signatures_ok(&self) -> bool {
        xor(&self.as_bytes()[BLOCK_CTRL_OFFSET..BLOCK_BYTES - 1]) == 0xff && xor(self.as_bytes()) == 0xff
    }
}

/// Number of mailbox blocks that `length` bytes of input or output need beside the inline part.
pub const fn blocks_for(length: usize) -> usize {
    length.saturating_sub(INLINE_BYTES).div_ceil(BLOCK_DATA)
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |x, b| x ^ b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn offsets_are_those_of_the_prm() {
        assert_eq!(offset_of!(Entry, input_length), 0x4);
        assert_eq!(offset_of!(Entry, input_mailbox), 0x8);
        assert_eq!(offset_of!(Entry, input), 0x10);
        assert_eq!(offset_of!(Entry, output), OUTPUT_OFFSET);
        assert_eq!(offset_of!(Entry, output_mailbox), 0x30);
        assert_eq!(offset_of!(Entry, output_length), 0x38);
        assert_eq!(offset_of!(Entry, token), 0x3c);
        assert_eq!(offset_of!(Entry, signature), 0x3d);
        assert_eq!(offset_of!(Entry, status_own), STATUS_OWN_OFFSET);
        assert_eq!(offset_of!(Block, next), BLOCK_CTRL_OFFSET);
        assert_eq!(offset_of!(Block, block_num), 0x238);
        assert_eq!(offset_of!(Block, token), 0x23d);
        assert_eq!(offset_of!(Block, ctrl_sig), 0x23e);
        assert_eq!(offset_of!(Block, sig), 0x23f);
    }

    #[test]
    fn signatures_notice_a_changed_byte() {
        let mut entry = Entry::new_zeroed();
        entry.ty = TYPE_PCIE;
        entry.input_length = 16.into();
        entry.sign();
        assert!(entry.signature_ok());
        entry.token ^= 4;
        assert!(!entry.signature_ok());

        let mut block = Block::new(3, 0x1000, 9);
        block.data[7] = 1;
        block.sign();
        assert!(block.signatures_ok());
        block.data[8] = 1;
        assert!(!block.signatures_ok());
    }

    #[test]
    fn the_real_cards_page_command_needs_202_blocks() {
        // 12,868 pages: 16 bytes of header and 8 bytes for each.
        assert_eq!(blocks_for(16 + 8 * 12_868), 202);
        assert_eq!(blocks_for(16), 0);
        assert_eq!(blocks_for(17), 1);
        assert_eq!(blocks_for(16 + 512), 1);
    }
}
