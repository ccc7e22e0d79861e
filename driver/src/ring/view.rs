//! A look at a completion queue from outside its poller.

use std::sync::Arc;

use ferroce_hw_regs::cqe::{Cqe64, OP_OWN_OFFSET, opcode};
use ferroce_hw_regs::dbr::CQ_CI;

use super::cq::{CqRing, is_written};
use super::slots::Lent;
use crate::mem::{DmaBuffer, DmaRing};

/// Positions are told to the device modulo 2^24.
const INDEX_MASK: u32 = 0xff_ffff;
/// How often the poller may get ahead of a look before the look settles for an upper bound.
const TRIES: u32 = 16;

/// Entries that the device has written and the poller has not passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    /// A position (24 bits) that all of them lie before.
    pub(crate) end: u32,
    /// How many there are at most.
    pub(crate) most: u32,
}

/// The rings of a completion queue and its doorbell record, to be read only.
#[derive(Debug)]
pub(crate) struct View {
    ring: DmaRing<64>,
    /// The ring that the device was told to go on in.
    next: Option<DmaRing<64>>,
    record: DmaRing<8>,
}

impl View {
    pub(crate) fn new(ring: DmaRing<64>, record: DmaRing<8>) -> View {
        View {
            ring,
            next: None,
            record,
        }
    }

    /// The device is about to be told to go on in `next`.
    pub(crate) fn move_to(&mut self, next: DmaRing<64>) {
        self.next = Some(next);
    }

    /// The device does not go on in another ring after all.
    pub(crate) fn stay(&mut self) {
        self.next = None;
    }

    /// The poller has followed the device to the other ring: the record is told so here, in one with the view, since a look at
    /// the old ring from a position that lies in the other one finds nothing.
    pub(crate) fn moved<T: Lent>(&mut self, cq: &mut CqRing<T>) {
        if let Some(next) = self.next.take() {
            self.ring = next;
        }
        cq.publish();
    }

    /// The memory that the device may write completions to.
    pub(crate) fn buffers(&self) -> Vec<Arc<DmaBuffer>> {
        [Some(&self.ring), self.next.as_ref()]
            .into_iter()
            .flatten()
            .map(|ring| ring.buffer().clone())
            .collect()
    }

    /// What the device has written by now and the poller has not passed. It may pass some of that meanwhile.
    pub(crate) fn written(&self) -> Unread {
        for _ in 0..TRIES {
            let start = self.consumed();
            let (_, passed) = follow(&self.ring, self.next.as_ref(), start);
            // An entry of which the device has begun another lap looks unwritten; then the poller has passed it.
            if self.consumed().wrapping_sub(start) & INDEX_MASK <= passed {
                let end = start.wrapping_add(passed) & INDEX_MASK;
                return Unread { end, most: passed };
            }
        }
        // No more than the rings hold can lie before the poller.
        let most = self.ring.entries() + self.next.as_ref().map_or(0, DmaRing::entries);
        let end = self.consumed().wrapping_add(most) & INDEX_MASK;
        Unread { end, most }
    }

    /// How far the poller says that it has read.
    fn consumed(&self) -> u32 {
        self.record.load_be32::<CQ_CI>(0) & INDEX_MASK
    }
}

/// Follows what the device has written from `start` (of which 24 bits count) on, into `next` behind the entry that says
/// that the queue goes on there: completions, and entries passed in all.
pub(super) fn follow(ring: &DmaRing<64>, next: Option<&DmaRing<64>>, start: u32) -> (u32, u32) {
    let mut passed = 0;
    let mut moves = 0;
    for ring in [Some(ring), next].into_iter().flatten() {
        let mut left = ring.entries();
        loop {
            let at = start.wrapping_add(passed) & INDEX_MASK;
            if left == 0 || !is_written(ring, at) {
                return (passed - moves, passed);
            }
            passed += 1;
            left -= 1;
            let opcode = Cqe64::opcode(ring.load_u8::<OP_OWN_OFFSET>(at));
            if opcode == opcode::RESIZE_CQ && next.is_some() && moves == 0 {
                moves = 1;
                break;
            }
        }
    }
    (passed - moves, passed)
}
