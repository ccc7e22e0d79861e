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
//! it back ([`Lent`]). When both halves are gone, it goes with the slots (and is leaked, if the device may still write to it, which
//! is the buffer's own business).
#![allow(unsafe_code)] // A box in an atomic pointer, see `Cell`, and the unchecked look-up of `Slots`.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The request's buffer rests in the slot's cell.
pub(crate) const META_BUFFER: u32 = 1;
/// The request is the driver's own; its completion is not shown.
pub(crate) const META_INTERNAL: u32 = 2;

/// What may be moved into a request.
pub(crate) trait Lent {
    /// The device has completed the request: it is done with this, whatever becomes of it now.
    fn come_back(&self);
}

impl Lent for () {
    fn come_back(&self) {}
}

/// What the consumer has to know about one posted work request.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The caller's name for it.
    wr_id: AtomicU64,
    /// Below, its number in the order of posting, modulo 2^32; above, `META_*`, 0 on the usual path. One word, so that one
    /// comparison tells a usual request that can complete now from all else.
    tag: AtomicU64,
}

impl Slot {
    /// Says what was posted.
    #[inline(always)]
    pub(crate) fn fill(&self, wr_id: u64, number: u32, meta: u32) {
        self.wr_id.store(wr_id, Ordering::Relaxed);
        self.tag
            .store(u64::from(meta) << 32 | u64::from(number), Ordering::Relaxed);
    }
}

/// A power of two of slots, found by ring position.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    all: Arc<[Slot]>,
    /// `all.len() - 1`.
    mask: u32,
}

impl Slots {
    fn new(positions: u32) -> Slots {
        let count = positions.max(1).next_power_of_two();
        // No request has a number yet; `u32::MAX` is as far as can be from those that come first.
        let slot = |_| Slot {
            wr_id: AtomicU64::new(0),
            tag: AtomicU64::new(u32::MAX.into()),
        };
        Slots {
            all: (0..count).map(slot).collect(),
            mask: count - 1,
        }
    }

    /// The slot of ring position `position`, modulo their number.
    #[inline(always)]
    pub(crate) fn at(&self, position: u32) -> &Slot {
        // SAFETY: the mask is one less than the number of slots, a power of two, which never changes.
        unsafe { self.all.get_unchecked((position & self.mask) as usize) }
    }
}

/// A cell that holds one owned box, or none; whoever takes it owns it.
pub(super) struct Cell<T> {
    content: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

impl<T> Cell<T> {
    pub(super) fn empty() -> Cell<T> {
        Cell {
            content: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    pub(super) fn replace(&self, content: Option<Box<T>>) -> Option<Box<T>> {
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
    slots: Slots,
    cells: Box<[Cell<T>]>,
    /// Requests that have completed, modulo 2^32.
    released: Line,
}

impl<T> WqShared<T> {
    /// Slots for a ring of `positions` (rounded up to a power of two, at least 1).
    pub(crate) fn new(positions: u32) -> Arc<WqShared<T>> {
        let slots = Slots::new(positions);
        Arc::new(WqShared {
            cells: slots.all.iter().map(|_| Cell::empty()).collect(),
            slots,
            released: Line::default(),
        })
    }

    /// Positions of the ring.
    pub(crate) fn positions(&self) -> u32 {
        self.slots.mask + 1
    }

    /// The slots.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Moves a buffer into a slot. Gives back the one that a lying device left there.
    pub(crate) fn put(&self, position: u32, buffer: Box<T>) -> Option<Box<T>> {
        self.cells[(position & self.slots.mask) as usize].replace(Some(buffer))
    }

    /// Takes the buffer out of a slot.
    pub(crate) fn take(&self, position: u32) -> Option<Box<T>> {
        self.cells[(position & self.slots.mask) as usize].replace(None)
    }

    /// Lets no request complete any more, so that a consumer that has not heard of a reset takes no completion of the
    /// time after it for one of before.
    pub(crate) fn retire(&self) {
        // Farther from any request that can complete than the largest ring.
        let never = self.released().wrapping_add(1 << 31);
        for slot in self.slots.all.iter() {
            slot.tag.store(never.into(), Ordering::Relaxed);
        }
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
            .field("positions", &self.positions())
            .field("released", &self.released())
            .finish_non_exhaustive()
    }
}

/// The consumer half of a work queue: releases slots as completions come. The CQ's poller owns it.
#[derive(Debug)]
pub(crate) struct WqConsumer<T> {
    shared: Arc<WqShared<T>>,
    /// Those of `shared`, without the detour.
    slots: Slots,
    /// Number of the next request to be released.
    tail: u32,
    /// Most requests that can be outstanding.
    capacity: u32,
}

/// Releases of usual send requests, one after the other. The consumer knows of them when it goes.
pub(crate) struct SendRun<'a> {
    /// A power of two of them.
    slots: &'a [Slot],
    /// `slots.len() - 1`.
    mask: u32,
    released: &'a AtomicU32,
    tail: u32,
    capacity: u32,
    back: &'a mut u32,
}

impl SendRun<'_> {
    /// Releases the send request whose first block is at `position`, and all before it, and gives its name, if it
    /// is a usual one: [`WqConsumer::release_at`] knows the others.
    #[inline(always)]
    pub(crate) fn release_usual_at(&mut self, position: u32) -> Option<u64> {
        // SAFETY: the mask is one less than the number of slots (`Slots::new`), a power of two, which never changes.
        let slot = unsafe { self.slots.get_unchecked((position & self.mask) as usize) };
        let tag = slot.tag.load(Ordering::Relaxed);
        // Not so either where the numbers wrap, in one request of 2^32 of `capacity`.
        if tag.wrapping_sub(self.tail.into()) >= self.capacity.into() {
            return None;
        }
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        self.tail = (tag as u32).wrapping_add(1);
        // Now and not at the end: who is told of the completion may post in its place.
        self.released.store(self.tail, Ordering::Release);
        Some(wr_id)
    }
}

impl Drop for SendRun<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.back = self.tail;
    }
}

/// What a slot said about a completed request.
#[derive(Debug)]
pub(crate) struct Released<T> {
    pub(crate) wr_id: u64,
    pub(crate) buffer: Option<Box<T>>,
    pub(crate) internal: bool,
}

impl<T: Lent> WqConsumer<T> {
    /// The consumer of a queue that allows `capacity` outstanding requests.
    pub(crate) fn new(shared: Arc<WqShared<T>>, capacity: u32) -> WqConsumer<T> {
        WqConsumer {
            slots: shared.slots().clone(),
            tail: shared.released(),
            capacity,
            shared,
        }
    }

    /// Counts `count` requests as outstanding that are none of this queue's, until the first of its own is released or the
    /// consumer settles. Before anything is posted.
    pub(crate) fn hold(&self, count: u32) {
        self.shared.release(self.tail.wrapping_sub(count));
    }

    /// Ends a [`WqConsumer::hold`].
    pub(crate) fn settle(&self) {
        self.shared.release(self.tail);
    }

    /// The consumer, for several releases in a row.
    #[inline(always)]
    pub(crate) fn run(&mut self) -> SendRun<'_> {
        SendRun {
            slots: &self.slots.all,
            mask: self.slots.mask,
            released: &self.shared.released.0,
            tail: self.tail,
            capacity: self.capacity,
            back: &mut self.tail,
        }
    }

    /// Releases the send request whose first block is at `position`, and all before it. `None` if none is outstanding
    /// there: the device is wrong.
    pub(crate) fn release_at(&mut self, position: u32) -> Option<Released<T>> {
        let number = self.slots.at(position).tag.load(Ordering::Relaxed) as u32;
        if number.wrapping_sub(self.tail) >= self.capacity {
            return None;
        }
        Some(self.released(position, number))
    }

    /// Releases the oldest receive request and gives its name, if it is a usual one.
    #[inline(always)]
    pub(crate) fn release_usual_next(&mut self) -> Option<u64> {
        let slot = self.slots.at(self.tail);
        if slot.tag.load(Ordering::Relaxed) != u64::from(self.tail) {
            return None;
        }
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        self.release(self.tail);
        Some(wr_id)
    }

    /// Releases the oldest receive request. `None` if none is outstanding: the device is wrong.
    pub(crate) fn release_next(&mut self) -> Option<Released<T>> {
        let position = self.tail;
        if self.slots.at(position).tag.load(Ordering::Relaxed) as u32 != position {
            return None;
        }
        Some(self.released(position, position))
    }

    fn released(&mut self, position: u32, number: u32) -> Released<T> {
        let slot = self.slots.at(position);
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        let meta = (slot.tag.load(Ordering::Relaxed) >> 32) as u32;
        let buffer = if meta & META_BUFFER != 0 {
            self.shared.take(position)
        } else {
            None
        };
        buffer.iter().for_each(|buffer| buffer.come_back());
        self.release(number);
        Released {
            wr_id,
            buffer,
            internal: meta & META_INTERNAL != 0,
        }
    }

    #[inline(always)]
    fn release(&mut self, number: u32) {
        self.tail = number.wrapping_add(1);
        self.shared.release(self.tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(shared: &WqShared<String>, position: u32, number: u32, wr_id: u64) {
        shared.slots().at(position).fill(wr_id, number, 0);
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
    fn usual_requests_are_told_from_others() {
        let shared = WqShared::<String>::new(4);
        let mut consumer = WqConsumer::new(shared.clone(), 4);
        assert!(consumer.run().release_usual_at(0).is_none() && consumer.release_usual_next().is_none());
        post(&shared, 0, 0, 5);
        post(&shared, 1, 1, 6);
        assert_eq!(consumer.run().release_usual_at(0), Some(5));
        assert!(consumer.run().release_usual_at(0).is_none(), "twice");
        assert_eq!(consumer.release_usual_next(), Some(6));
        shared.slots().at(2).fill(7, 2, META_INTERNAL);
        assert!(consumer.run().release_usual_at(2).is_none() && consumer.release_usual_next().is_none());
        assert!(consumer.release_at(2).unwrap().internal);
        assert_eq!(shared.released(), 3);
    }

    #[test]
    fn what_is_held_counts_until_it_is_settled_or_something_completes() {
        for settled in [true, false] {
            let shared = WqShared::<String>::new(4);
            let mut consumer = WqConsumer::new(shared.clone(), 4);
            consumer.hold(3);
            assert_eq!(0u32.wrapping_sub(shared.released()), 3);
            post(&shared, 0, 0, 5);
            if settled {
                consumer.settle();
                assert_eq!(shared.released(), 0);
            }
            assert_eq!(consumer.run().release_usual_at(0), Some(5));
            assert_eq!(shared.released(), 1);
        }
    }

    #[test]
    fn numbers_wrap() {
        let shared = WqShared::<String>::new(4);
        shared.release(u32::MAX);
        let mut consumer = WqConsumer::new(shared.clone(), 4);
        post(&shared, 2, u32::MAX, 8);
        post(&shared, 3, 0, 9);
        assert!(consumer.run().release_usual_at(3).is_none());
        assert_eq!(consumer.release_at(3).unwrap().wr_id, 9);
        assert_eq!(shared.released(), 1);
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
