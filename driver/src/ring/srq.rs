//! Shared receive queues: one producer, as many consumers as there are pollers.
//!
//! ```text
//!   Srq (one thread)                       CqPollers (many threads)
//!   SrqProducer ---- slot ---- device ---> CQE names the slot ---> SrqShared::release
//!        ^------------ chain of free slots (lock-free) -----------------'
//! ```
//!
//! The ring is a linked list: each WQE begins with a segment that names the one that comes after it, and the device
//! follows those. So a WQE can be shown to the device only when it is known which slot comes next; the producer always has
//! one free slot in reserve, and the ring has one more than the requests that it takes.
//!
//! The receives of one queue complete in the completion queues of all queue pairs on it, in any order and by any thread. A
//! slot belongs to
//! 1. the producer, until it marks the slot as posted;
//! 2. the device, until a CQE names it;
//! 3. the poller that takes the mark off. Of several, as a device that lies may cause, one succeeds: it alone reads the
//!    request's name and buffer, and then puts the slot on the chain of free ones;
//! 4. the producer again, once it has taken the chain.
//!
//! The chain is pushed to by a compare-and-swap of its head and taken whole by a swap, never popped from: a pusher whose
//! head has come back meanwhile links to just what the chain is then, so there is no ABA problem. All indices that come from the
//! device are reduced to the ring; none is used before the mark says that the slot was posted.
//!
//! Source: PRM notes, section 8.4; layouts in `ferroce_hw_regs::wqe`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferroce_hw_regs::dbr::QP_RCV;

use super::PostError;
use super::rq::RqLimits;
use super::seg;
use super::slots::{Cell, Lent, Released};
use super::wr::{RecvWr, check_len};
use crate::barrier;
use crate::mem::DmaRing;

/// No slot: the end of the chain.
const NONE: u32 = u32::MAX;

/// The slot is not the device's.
const FREE: u32 = 0;
/// It is, and the request is a usual one.
const POSTED: u32 = 1;
/// It is, and the request's buffer rests in the slot's cell.
const POSTED_BUFFER: u32 = 2;

/// Shape of a shared receive ring that can hold what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqShape {
    /// Entries in the ring, a power of two, more than can be posted.
    pub(crate) entries: u32,
    /// Bytes of an entry, a power of two.
    pub(crate) stride: u32,
}

impl SrqShape {
    /// The shape for `max_wr` requests of up to `max_sge` elements. `None` where it overflows.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Option<SrqShape> {
        // The link, and the elements.
        let segments = max_sge.max(1).checked_add(1)?;
        let stride = segments.checked_mul(seg::BYTES)?.checked_next_power_of_two()?;
        let entries = max_wr.max(1).checked_add(1)?.checked_next_power_of_two()?;
        entries.checked_mul(stride)?;
        Some(SrqShape { entries, stride })
    }
}

/// What is known of one slot.
struct Slot<T> {
    wr_id: AtomicU64,
    /// `FREE` or one of `POSTED*`.
    mark: AtomicU32,
    /// The slot behind it on the chain.
    next: AtomicU32,
    buffer: Cell<T>,
}

/// A request whose completion was not shown, since its queue pair was gone or had been reset.
#[derive(Debug)]
pub(crate) struct Abandoned<T> {
    pub(crate) wr_id: u64,
    pub(crate) buffer: Option<Box<T>>,
}

/// What the producer and all pollers share; `T` is what may be moved into a request.
pub(crate) struct SrqShared<T> {
    slots: Box<[Slot<T>]>,
    /// First slot of the chain of those that pollers have freed, or `NONE`.
    freed: AtomicU32,
    /// There is something in `abandoned`.
    has_abandoned: AtomicBool,
    /// Touched only where completions are dropped. As many as there are slots at most; the oldest go.
    abandoned: Mutex<VecDeque<Abandoned<T>>>,
}

impl<T: Lent> SrqShared<T> {
    /// Slots for a ring of `entries`.
    pub(crate) fn new(entries: u32) -> Arc<SrqShared<T>> {
        let slot = |_| Slot {
            wr_id: AtomicU64::new(0),
            mark: AtomicU32::new(FREE),
            next: AtomicU32::new(NONE),
            buffer: Cell::empty(),
        };
        Arc::new(SrqShared {
            slots: (0..entries).map(slot).collect(),
            freed: AtomicU32::new(NONE),
            has_abandoned: AtomicBool::new(false),
            abandoned: Mutex::default(),
        })
    }

    /// Ends a usual request and gives its name; [`SrqShared::release`] knows the others.
    #[inline(always)]
    pub(crate) fn release_usual(&self, at: u16) -> Option<u64> {
        let slot = self.slots.get(usize::from(at))?;
        if !claim(slot, POSTED) {
            return None;
        }
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        self.free(slot, at.into());
        Some(wr_id)
    }

    /// Ends the request in slot `at`. `None` if none is posted there: the device is wrong.
    pub(crate) fn release(&self, at: u16) -> Option<Released<T>> {
        let slot = self.slots.get(usize::from(at))?;
        let buffer = if claim(slot, POSTED) {
            None
        } else if claim(slot, POSTED_BUFFER) {
            slot.buffer.replace(None)
        } else {
            return None;
        };
        buffer.iter().for_each(|buffer| buffer.come_back());
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        self.free(slot, at.into());
        Some(Released {
            wr_id,
            buffer,
            internal: false,
        })
    }

    /// Ends the request in slot `at`, whose completion nobody will see: its name and buffer are kept for the
    /// queue's owner. Whether one was posted there.
    #[cold]
    pub(crate) fn abandon(&self, at: u16) -> bool {
        let Some(Released { wr_id, buffer, .. }) = self.release(at) else {
            return false;
        };
        let mut abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if abandoned.len() >= self.slots.len() {
            abandoned.pop_front()
        } else {
            None
        };
        abandoned.push_back(Abandoned { wr_id, buffer });
        self.has_abandoned.store(true, Ordering::Release);
        drop(abandoned);
        // Its buffer's end may take a lock of its own.
        drop(oldest);
        true
    }

    /// Takes the oldest request whose completion was not shown.
    pub(crate) fn take_abandoned(&self) -> Option<Abandoned<T>> {
        if !self.has_abandoned.load(Ordering::Acquire) {
            return None;
        }
        let mut abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = abandoned.pop_front();
        self.has_abandoned.store(!abandoned.is_empty(), Ordering::Release);
        oldest
    }

    /// Takes the buffers of all requests that will not complete. Only once the device can't reach them any more.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Box<T>> {
        let posted = self.slots.iter().filter_map(|slot| slot.buffer.replace(None));
        let abandoned = std::iter::from_fn(|| self.take_abandoned()).filter_map(|gone| gone.buffer);
        posted.chain(abandoned)
    }

    /// Requests that are posted and have not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        let posted = |slot: &&Slot<T>| slot.mark.load(Ordering::Relaxed) != FREE;
        self.slots.iter().filter(posted).count() as u32
    }

    /// Puts a slot whose mark this thread has taken off on the chain.
    #[inline(always)]
    fn free(&self, slot: &Slot<T>, at: u32) {
        let mut head = self.freed.load(Ordering::Relaxed);
        loop {
            slot.next.store(head, Ordering::Relaxed);
            // Release: what this thread has read of the slot is read before the producer writes there again.
            match self
                .freed
                .compare_exchange_weak(head, at, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// Takes the mark off, if it is `mark`: the slot is this thread's alone then.
#[inline(always)]
fn claim<T>(slot: &Slot<T>, mark: u32) -> bool {
    slot.mark
        .compare_exchange(mark, FREE, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

impl<T> fmt::Debug for SrqShared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqShared")
            .field("slots", &self.slots.len())
            .finish_non_exhaustive()
    }
}

/// The producer half of a shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqProducer<T> {
    /// The ring, in segments.
    mem: DmaRing<16>,
    record: DmaRing<8>,
    shared: Arc<SrqShared<T>>,
    limits: RqLimits,
    /// Segments of an entry.
    stride: u32,
    /// The slot that the next request goes to: free, and the WQE before it names it.
    head: u32,
    /// First slot of this side's own chain of free ones, or `NONE`.
    free: u32,
    /// Requests posted, modulo 2^16.
    number: u32,
}

impl<T> SrqProducer<T> {
    /// A producer over `mem` with entries of `stride` bytes (a power of two). `shared` has a slot for each entry, more of them
    /// than `limits.max_wr`.
    pub(crate) fn new(
        mem: DmaRing<16>,
        record: DmaRing<8>,
        shared: Arc<SrqShared<T>>,
        limits: RqLimits,
        stride: u32,
    ) -> SrqProducer<T> {
        let last = limits.max_wr.min(shared.slots.len().saturating_sub(1) as u32);
        for (at, slot) in (0u32..).zip(shared.slots.iter()) {
            let next = if at < last { at + 1 } else { NONE };
            slot.next.store(next, Ordering::Relaxed);
        }
        SrqProducer {
            mem,
            record,
            shared,
            limits,
            stride: stride / seg::BYTES,
            // The device begins with slot 0.
            head: 0,
            free: if last == 0 { NONE } else { 1 },
            number: 0,
        }
    }

    /// Writes a request to the ring. The device doesn't see it before [`SrqProducer::ring`].
    ///
    /// # Errors
    /// [`PostError`]; nothing is posted then.
    #[inline]
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let next = self.describe(wr)?;
        self.count_in(wr.wr_id, next, POSTED);
        Ok(())
    }

    /// Posts a request together with the buffer that its elements name.
    ///
    /// # Errors
    /// [`PostError`] and the buffer.
    pub(crate) fn post_owned(&mut self, wr: &RecvWr<'_>, buffer: Box<T>) -> Result<(), (PostError, Box<T>)> {
        match self.describe(wr) {
            Ok(next) => {
                if let Some(slot) = self.shared.slots.get(self.head as usize) {
                    drop(slot.buffer.replace(Some(buffer)));
                }
                self.count_in(wr.wr_id, next, POSTED_BUFFER);
                Ok(())
            }
            Err(error) => Err((error, buffer)),
        }
    }

    /// Writes the WQE of `head`; the slot that comes after it, which is on no chain any more.
    #[inline(always)]
    fn describe(&mut self, wr: &RecvWr<'_>) -> Result<u32, PostError> {
        if wr.sges.len() > self.limits.max_sge as usize {
            return Err(PostError::TooManySges {
                asked: wr.sges.len(),
                max: self.limits.max_sge,
            });
        }
        check_len(wr.sges, self.limits.max_msg)?;
        let next = self.take_free()?;
        let start = self.head.wrapping_mul(self.stride);
        self.mem.store::<0, 16>(start, &seg::link(next as u16));
        let mut segs = 1;
        for sge in wr.sges {
            if sge.len != 0 {
                self.mem.store::<0, 16>(start.wrapping_add(segs), &seg::data(sge));
                segs += 1;
            }
        }
        if segs < self.stride {
            self.mem
                .store::<0, 16>(start.wrapping_add(segs), &seg::list_end());
        }
        Ok(next)
    }

    /// Counts the request of `head` in.
    #[inline(always)]
    fn count_in(&mut self, wr_id: u64, next: u32, mark: u32) {
        if let Some(slot) = self.shared.slots.get(self.head as usize) {
            slot.wr_id.store(wr_id, Ordering::Relaxed);
            // Release: the name and the buffer are there for whoever takes the mark off.
            slot.mark.store(mark, Ordering::Release);
        }
        self.head = next;
        self.number = self.number.wrapping_add(1);
    }

    /// Takes a slot off the chain.
    #[inline(always)]
    fn take_free(&mut self) -> Result<u32, PostError> {
        if self.free == NONE {
            // Acquire: pollers are done with these.
            self.free = self.shared.freed.swap(NONE, Ordering::Acquire);
        }
        let Some(slot) = self.shared.slots.get(self.free as usize) else {
            return Err(PostError::QueueFull {
                queue: "shared receive",
                max_wr: self.limits.max_wr,
            });
        };
        let taken = self.free;
        self.free = slot.next.load(Ordering::Relaxed);
        Ok(taken)
    }

    /// Shows the device what was posted since the last call.
    #[inline]
    pub(crate) fn ring(&mut self) {
        barrier::before_doorbell_record();
        self.record.store_be32::<QP_RCV>(0, self.number & 0xffff);
    }
}

#[cfg(test)]
#[path = "srq_tests.rs"]
mod tests;
