//! BlueFlame: a send queue that hands the device its WQE in the doorbell write, so that it need not fetch it.
//!
//! A BlueFlame register is two slots, `1 << log_bf_reg_size` bytes together. What is written to a slot is a WQE from its
//! control segment on, in whole pieces of 64 bytes in order; or 8 bytes, which are a doorbell as elsewhere. The sequence:
//!
//! ```text
//!   WQE in the ring ─ barrier ─ doorbell record ─ fence ─▶ slot: WQE, or 8 bytes ─ flush ─ the other slot is next
//! ```
//!
//! The device may take the WQE from the slot or from the ring, whichever it likes, so both have to hold it, and the record
//! has to count it before. The fence keeps the record in front of write-combining stores, which no other barrier orders;
//! the flush sends them off, and keeps those of the next turn from being combined with them or from passing them. The slots
//! alternate, so that the device still has the last one in peace.
//!
//! Doorbells of the usual kind go to another register meanwhile, whose slots need not alternate: the two fences keep the
//! order between them.
//!
//! A register is one queue's alone: the stores of two threads to one slot would mix, and a lock is nothing for the fast path.
//!
//! Source: PRM notes, section 8.1; the order as in rdma-core's mlx5 provider.

use ferroce_hw_regs::dbr::QP_SND;
use ferroce_hw_regs::uar::PIECE_BYTES;

use super::sq::SqProducer;
use crate::barrier;
use crate::mmio::Burst;

/// The BlueFlame register of one send queue.
#[derive(Debug)]
pub(crate) struct BlueFlame {
    slots: [Burst; 2],
    /// Most pieces that a slot takes.
    pieces: u16,
    /// The slot that is next.
    next: usize,
}

impl BlueFlame {
    /// A register of these two slots.
    pub(crate) fn new(slots: [Burst; 2]) -> BlueFlame {
        let bytes = slots[0].len().min(slots[1].len());
        BlueFlame {
            slots,
            pieces: u16::try_from(bytes / PIECE_BYTES).unwrap_or(u16::MAX),
            next: 0,
        }
    }
}

impl<T> SqProducer<T> {
    /// Shows the device what was posted since the last call, if anything: a single WQE that fits a slot as itself, all else
    /// by a doorbell.
    pub(crate) fn ring_blueflame(&mut self, register: &mut BlueFlame) {
        if self.rung == self.pi {
            return;
        }
        barrier::before_doorbell_record();
        self.record.store_be32::<QP_SND>(0, self.pi.into());
        barrier::before_write_combining();
        let [_, high, low, ..] = self.last_ctrl;
        let is_single = u16::from_be_bytes([high, low]) == self.rung;
        let pieces = self.pi.wrapping_sub(self.rung);
        // PANIC: none; `next` is 0 or 1.
        let slot = &register.slots[register.next & 1];
        if is_single && pieces <= register.pieces {
            for piece in 0..pieces {
                let block = self.mem.load(self.rung.wrapping_add(piece).into());
                slot.write(usize::from(piece), &block);
            }
        } else {
            slot.ring_bytes(self.last_ctrl);
        }
        barrier::flush_write_combining();
        register.next ^= 1;
        self.rung = self.pi;
    }
}

#[cfg(test)]
#[path = "blueflame_tests.rs"]
mod tests;
