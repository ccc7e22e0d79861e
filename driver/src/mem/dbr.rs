//! Doorbell records: two big-endian words in host memory that say how far a queue has got.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::{DmaBuffer, DmaError, DmaSpace};

/// Records stand a cache line apart, so that queues of different threads don't share one.
const SPACING: usize = 64;
/// Bytes of a page of records, one bit of a `u64` each.
const PAGE: usize = SPACING * 64;

/// A page of records, shared by queues.
pub(super) struct DbrPage {
    buffer: DmaBuffer,
    used: Mutex<u64>,
}

/// A doorbell record of 8 bytes, 64 away from any other. Dropping gives it back.
///
/// Word 0 is a QP's receive counter or a CQ's consumer index, word 1 a QP's send counter or a CQ's arm state
/// (PRM "Doorbell Record"). Both are zero at first.
pub struct DoorbellRecord {
    words: NonNull<u32>,
    slot: u32,
    page: Arc<DbrPage>,
}

// SAFETY: `words` points into `page`, whose buffer is `Sync`; all access is atomic.
unsafe impl Send for DoorbellRecord {}
// SAFETY: as for Send.
unsafe impl Sync for DoorbellRecord {}

impl fmt::Debug for DoorbellRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DoorbellRecord {{ iova: {:#x} }}", self.iova())
    }
}

impl DoorbellRecord {
    /// I/O virtual address of word 0, a multiple of 64.
    pub fn iova(&self) -> u64 {
        self.page.buffer.iova() + u64::from(self.slot) * SPACING as u64
    }

    /// Writes word `WORD`, 0 or 1.
    #[inline(always)]
    pub fn store<const WORD: usize>(&mut self, value: u32) {
        const { assert!(WORD < 2) };
        // SAFETY: a record has two aligned words within its page.
        unsafe { AtomicU32::from_ptr(self.words.as_ptr().add(WORD)) }.store(value.to_be(), Relaxed);
    }

    /// Reads word `WORD`, 0 or 1.
    #[inline(always)]
    pub fn load<const WORD: usize>(&self) -> u32 {
        const { assert!(WORD < 2) };
        // SAFETY: a record has two aligned words within its page.
        u32::from_be(unsafe { AtomicU32::from_ptr(self.words.as_ptr().add(WORD)) }.load(Relaxed))
    }

    /// Gives the record up for good: the device may still read it. Its page is then leaked, see [`DmaBuffer::leak`].
    pub fn leak(self) {
        self.page.buffer.leak_on_drop();
        // The slot stays taken.
        let record = std::mem::ManuallyDrop::new(self);
        // SAFETY: the page is read out once, and the record is not used or dropped again.
        drop(unsafe { std::ptr::read(&record.page) });
    }

    fn take(page: &Arc<DbrPage>) -> Option<DoorbellRecord> {
        let mut used = page.used.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = used.trailing_ones();
        if slot >= u64::BITS {
            return None;
        }
        *used |= 1 << slot;
        // SAFETY: `slot` < 64, so the record lies within the page of 64 records.
        let words = unsafe { page.buffer.as_ptr().add(slot as usize * SPACING) }.cast();
        let mut record = DoorbellRecord {
            words,
            slot,
            page: page.clone(),
        };
        record.store::<0>(0);
        record.store::<1>(0);
        Some(record)
    }
}

impl Drop for DoorbellRecord {
    fn drop(&mut self) {
        *self.page.used.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.slot);
    }
}

impl DmaSpace {
    /// A doorbell record, zeroed.
    ///
    /// # Errors
    /// As [`DmaSpace::alloc`], where a new page of records is needed.
    pub fn alloc_dbr(self: &Arc<Self>) -> Result<DoorbellRecord, DmaError> {
        let mut pages = self.dbr_pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|page| page.strong_count() != 0);
        // Upgrade outside the search: dropping the last reference of a page must not happen in the middle of it.
        let live: Vec<_> = pages.iter().filter_map(|page| page.upgrade()).collect();
        if let Some(record) = live.iter().find_map(DoorbellRecord::take) {
            return Ok(record);
        }
        let page = Arc::new(DbrPage {
            buffer: self.alloc(PAGE)?,
            used: Mutex::new(0),
        });
        pages.push(Arc::downgrade(&page));
        let full = DmaError::IovaExhausted {
            len: PAGE as u64,
            ranges: 1,
            largest: 0,
        };
        DoorbellRecord::take(&page).ok_or(full)
    }
}
