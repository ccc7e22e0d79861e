//! What producer and consumer of one work queue share: a slot for each position of the ring, and how far the
//! consumer has got.
//!
//! ```text
//!   Qp (one thread)                        CqPoller (maybe another thread)
//!   SqProducer / RqProducer  --- slot --->  WqConsumer
//!            ^------- released (atomic) ----------'
//! ```
//!
//! The producer fills a slot before it rings, the consumer reads it after the device has completed the request; the
//! device lies in between, so that no lock is needed. Slots are atomics, since a device that lies may complete
//! what was never posted: then the consumer sees an old slot, finds that its number is not one that can complete
//! now, and drops the completion. A buffer that was moved into a request rests in its slot until the completion gives
//! it back. When both halves are gone, it goes with the slots (and is leaked, if the device may still write to it, which is
//! the buffer's own business).
#![allow(unsafe_code)] // A box in an atomic pointer, see `Cell`.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The request's buffer rests in the slot's cell.
pub(crate) const META_BUFFER: u32 = 1;
/// The request is the driver's own; its completion is not shown.
pub(crate) const META_INTERNAL: u32 = 2;

/// What the consumer has to know about one posted work request.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The caller's name for it.
    pub(crate) wr_id: AtomicU64,
    /// Its number in the order of posting, modulo 2^32.
    pub(crate) number: AtomicU32,
    /// `META_*`; 0 on the usual path.
    pub(crate) meta: AtomicU32,
}

/// A cell that holds one owned box, or none; whoever takes it owns it.
struct Cell<T> {
    content: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

impl<T> Cell<T> {
    fn empty() -> Cell<T> {
        Cell {
            content: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    fn replace(&self, content: Option<Box<T>>) -> Option<Box<T>> {
        let new = content.map_or(ptr::null_mut(), Box::into_raw);
        let old = self.content.swap(new, Ordering::AcqRel);
        // SAFETY: each non-null pointer in the cell came from `Box::into_raw`, and the swap took it out: nobody else
        // can make a box of it again.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for Cell<T> {
    fn drop(&mut self) {
        drop(self.replace(None));
    }
}

/// On a cache line of its own, since one side spins on it while the other works beside it.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Line(AtomicU32);

/// The shared part of a work queue; `T` is what may be moved into a request.
pub(crate) struct WqShared<T> {
    slots: Box<[Slot]>,
    cells: Box<[Cell<T>]>,
    /// `slots.len() - 1`.
    mask: u32,
    /// Requests that have completed, modulo 2^32.
    released: Line,
}

impl<T> WqShared<T> {
    /// Slots for a ring of `positions` (rounded up to a power of two, at least 1).
    pub(crate) fn new(positions: u32) -> Arc<WqShared<T>> {
        let positions = positions.max(1).next_power_of_two();
        // No request has a number yet; `u32::MAX` is as far as can be from those that come first.
        let slot = |_| Slot {
            number: AtomicU32::new(u32::MAX),
            ..Slot::default()
        };
        Arc::new(WqShared {
            slots: (0..positions).map(slot).collect(),
            cells: (0..positions).map(|_| Cell::empty()).collect(),
            mask: positions - 1,
            released: Line::default(),
        })
    }

    /// Positions of the ring.
    pub(crate) fn positions(&self) -> u32 {
        self.mask + 1
    }

    /// The slot of ring position `position`, modulo the ring's size.
    #[inline(always)]
    pub(crate) fn slot(&self, position: u32) -> &Slot {
        // PANIC: never: the mask is one less than the number of slots, which is a power of two.
        &self.slots[(position & self.mask) as usize]
    }

    /// Moves a buffer into a slot. Gives back the one that a lying device left there.
    pub(crate) fn put(&self, position: u32, buffer: Box<T>) -> Option<Box<T>> {
        self.cells[(position & self.mask) as usize].replace(Some(buffer))
    }

    /// Takes the buffer out of a slot.
    pub(crate) fn take(&self, position: u32) -> Option<Box<T>> {
        self.cells[(position & self.mask) as usize].replace(None)
    }

    /// Takes all buffers out. Only once the device can't reach them any more.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Box<T>> {
        self.cells.iter().filter_map(|cell| cell.replace(None))
    }

    /// Number of requests that have completed, modulo 2^32.
    #[inline(always)]
    pub(crate) fn released(&self) -> u32 {
        self.released.0.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(crate) fn release(&self, count: u32) {
        self.released.0.store(count, Ordering::Release);
    }
}

impl<T> fmt::Debug for WqShared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WqShared")
            .field("positions", &self.slots.len())
            .field("released", &self.released())
            .finish_non_exhaustive()
    }
}

/// The consumer half of a work queue: releases slots as completions come. The CQ's poller owns it.
#[derive(Debug)]
pub(crate) struct WqConsumer<T> {
    shared: Arc<WqShared<T>>,
    /// Number of the next request to be released.
    tail: u32,
    /// Most requests that can be outstanding.
    capacity: u32,
}

/// What a slot said about a completed request.
#[derive(Debug)]
pub(crate) struct Released<T> {
    pub(crate) wr_id: u64,
    pub(crate) buffer: Option<Box<T>>,
    pub(crate) internal: bool,
}

impl<T> WqConsumer<T> {
    /// The consumer of a queue that allows `capacity` outstanding requests.
    pub(crate) fn new(shared: Arc<WqShared<T>>, capacity: u32) -> WqConsumer<T> {
        let tail = shared.released();
        WqConsumer {
            shared,
            tail,
            capacity,
        }
    }

    /// Releases the send request whose first block is at `position`, and all before it. `None` if none is outstanding
    /// there: the device is wrong.
    #[inline(always)]
    pub(crate) fn release_at(&mut self, position: u32) -> Option<Released<T>> {
        let slot = self.shared.slot(position);
        let number = slot.number.load(Ordering::Relaxed);
        if number.wrapping_sub(self.tail) >= self.capacity {
            return None;
        }
        self.released(position, number)
    }

    /// Releases the oldest receive request. `None` if none is outstanding: the device is wrong.
    #[inline(always)]
    pub(crate) fn release_next(&mut self) -> Option<Released<T>> {
        let position = self.tail;
        if self.shared.slot(position).number.load(Ordering::Relaxed) != position {
            return None;
        }
        self.released(position, position)
    }

    #[inline(always)]
    fn released(&mut self, position: u32, number: u32) -> Option<Released<T>> {
        let slot = self.shared.slot(position);
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        let meta = slot.meta.load(Ordering::Relaxed);
        let mut released = Released {
            wr_id,
            buffer: None,
            internal: false,
        };
        if meta != 0 {
            self.take_special(position, meta, &mut released);
        }
        self.tail = number.wrapping_add(1);
        self.shared.release(self.tail);
        Some(released)
    }

    #[cold]
    fn take_special(&self, position: u32, meta: u32, released: &mut Released<T>) {
        if meta & META_BUFFER != 0 {
            released.buffer = self.shared.take(position);
        }
        released.internal = meta & META_INTERNAL != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(shared: &WqShared<String>, position: u32, number: u32, wr_id: u64) {
        let slot = shared.slot(position);
        slot.wr_id.store(wr_id, Ordering::Relaxed);
        slot.number.store(number, Ordering::Relaxed);
        slot.meta.store(0, Ordering::Relaxed);
    }

    #[test]
    fn completion_of_what_was_never_posted_is_refused() {
        let shared = WqShared::<String>::new(4);
        let mut consumer = WqConsumer::new(shared.clone(), 4);
        assert!(consumer.release_next().is_none());
        for position in 0..8 {
            assert!(consumer.release_at(position).is_none());
        }
        post(&shared, 1, 0, 9);
        assert_eq!(consumer.release_at(1).unwrap().wr_id, 9);
        assert!(consumer.release_at(1).is_none(), "twice");
        assert_eq!(shared.released(), 1);
    }

    #[test]
    fn one_send_completion_releases_those_before_it() {
        let shared = WqShared::<String>::new(8);
        let mut consumer = WqConsumer::new(shared.clone(), 8);
        for i in 0..5 {
            post(&shared, i, i, 100 + u64::from(i));
        }
        assert_eq!(consumer.release_at(3).unwrap().wr_id, 103);
        assert_eq!(shared.released(), 4);
        assert!(consumer.release_at(2).is_none(), "released already");
    }

    #[test]
    fn buffers_go_with_the_slots() {
        let shared = WqShared::<Arc<()>>::new(2);
        let witness = Arc::new(());
        assert!(shared.put(0, Box::new(witness.clone())).is_none());
        drop(shared);
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
