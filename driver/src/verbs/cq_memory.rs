//! The memory of a completion queue's ring, and moving to another one.

use std::sync::Arc;

use ferroce_firmware_iface::cmds::ResizeCq;
use ferroce_firmware_iface::layouts::Cqc;

use super::error::{CreateError, LimitError, made};
use super::local::LocalInner;
use super::pages::{self, PageList};
use super::poller::CqPoller;
use crate::cmdq::lock;
use crate::context::Context;
use crate::mem::{DmaBuffer, DmaError, DmaRing};
use crate::ring::{CQ_SPARE, CQE_BYTES, CqRing};

/// The memory of a ring that the device does not know of yet.
#[derive(Debug)]
pub(super) struct RingMemory {
    pub(super) buffer: Arc<DmaBuffer>,
    /// Entries, a power of two.
    entries: u32,
    list: PageList,
}

impl RingMemory {
    /// Memory for `entries` completions at least, all of whose entries are the device's.
    pub(super) fn new(context: &Context, entries: u32) -> Result<RingMemory, CreateError> {
        let largest = 1u64 << context.caps().general().log_max_cq_sz().min(31);
        let max = largest.saturating_sub(CQ_SPARE.into());
        let reason = "is the device's limit (log_max_cq_sz, of which 17 entries are the driver's)";
        LimitError::check("CQ", "entries", entries.into(), 1..=max, reason)?;
        let entries = (entries + CQ_SPARE).next_power_of_two();
        let bytes = entries as usize * CQE_BYTES as usize;
        let buffer = Arc::new(context.dma().alloc(bytes)?);
        CqRing::<LocalInner>::prepare(&mut DmaRing::new(buffer.clone(), 0, entries)?);
        let list = pages::of_queue(buffer.iova(), bytes as u64);
        Ok(RingMemory {
            buffer,
            entries,
            list,
        })
    }

    /// Completions that it holds.
    pub(super) fn capacity(&self) -> u32 {
        self.entries - CQ_SPARE
    }

    pub(super) fn ring(&self) -> Result<DmaRing<64>, DmaError> {
        DmaRing::new(self.buffer.clone(), 0, self.entries)
    }

    /// What a context says of it.
    pub(super) fn describe(&self) -> Result<Cqc, CreateError> {
        let mut cqc = Cqc::default();
        cqc.set_log_cq_size(self.entries.ilog2() as u8)?;
        cqc.set_log_page_size(pages::queue_log_page_size(&self.list))?;
        Ok(cqc)
    }

    pub(super) fn pages(&self) -> &[u64] {
        &self.list.pages
    }
}

impl CqPoller {
    /// Moves the queue to a ring that holds `entries` completions at least (as [`CqConfig::entries`](super::CqConfig::entries)). What
    /// has completed and was not polled stays, in its order; traffic may go on meanwhile.
    ///
    /// # Errors
    /// [`CreateError::Limit`] as for [`Cq::create`](super::Cq::create), and if fewer than the completions that wait to be
    /// polled are asked for, or an earlier resize is not finished (poll first); [`CreateError::CqTooSmall`] if the queue
    /// pairs' outstanding requests exceed it; [`CreateError::Capability`] if the device can't resize; or what memory or
    /// firmware say. Nothing has changed then, but where firmware did not answer, the queue may be in either ring, and holds what
    /// the smaller one does.
    pub fn resize(&mut self, entries: u32) -> Result<(), CreateError> {
        let shared = self.shared.clone();
        let context = &shared.context;
        if !context.caps().general().cq_resize() {
            return Err(CreateError::Capability {
                what: "it can't resize completion queues (cq_resize)",
            });
        }
        if self.ring.is_moving() {
            let reason = "are to be polled before the queue can be resized again";
            LimitError::check("CQ", "resizes under way", 1, 0..=0, reason)?;
        }
        let memory = RingMemory::new(context, entries)?;
        let cqc = memory.describe()?;
        let (ring, look) = (memory.ring()?, memory.ring()?);
        let waiting = self.ring.waiting();
        let reason = "has to hold the completions that wait to be polled";
        LimitError::check(
            "CQ",
            "entries",
            memory.capacity().into(),
            waiting.into()..=u64::MAX,
            reason,
        )?;
        let before = {
            let mut capacity = lock(&shared.capacity);
            if capacity.reserved > memory.capacity() && !capacity.overcommit {
                return Err(CreateError::CqTooSmall {
                    queue: "smaller",
                    capacity: memory.capacity(),
                    reserved: capacity.reserved,
                    asked: 0,
                });
            }
            // A smaller one holds for queue pairs that come now; a larger one only once it is there.
            let before = capacity.entries;
            capacity.entries = before.min(memory.capacity());
            before
        };
        // From now on the device may write to either ring.
        lock(&shared.view).move_to(look);
        let done = context.exec(&ResizeCq {
            cqn: shared.cqn,
            cqc: &cqc,
            pages: memory.pages(),
        });
        let mut uncertain = false;
        let result = made(done, || uncertain = true);
        if result.is_ok() || uncertain {
            // Where firmware has not said so, the entry in the old ring will, if it comes.
            self.ring.move_to(ring);
        } else {
            lock(&shared.view).stay();
        }
        lock(&shared.capacity).entries = match (&result, uncertain) {
            (Ok(()), _) => memory.capacity(),
            // It may be in either.
            (Err(_), true) => before.min(memory.capacity()),
            (Err(_), false) => before,
        };
        result
    }
}
