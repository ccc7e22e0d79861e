//! A queue in DMA memory: entries of one size, found by a free-running index.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{DmaBuffer, DmaError};

/// A power of two of entries of `STRIDE` bytes (a power of two, 8 at least) in a buffer.
///
/// An index counts up for ever and is reduced here, so every access is in range by construction; offsets within an entry
/// are checked when the program is compiled. Each access is one load or store that the compiler neither splits
/// nor repeats. Order between accesses is the caller's business, see [`crate::barrier`].
///
/// Several rings may lie in one buffer, as a QP's receive and send queues do.
pub struct DmaRing<const STRIDE: usize> {
    base: NonNull<u8>,
    mask: u32,
    iova: u64,
    buffer: Arc<DmaBuffer>,
}

// SAFETY: `base` points into `buffer`, which is `Sync`; all access is atomic.
unsafe impl<const STRIDE: usize> Send for DmaRing<STRIDE> {}
// SAFETY: as for Send.
unsafe impl<const STRIDE: usize> Sync for DmaRing<STRIDE> {}

impl<const STRIDE: usize> fmt::Debug for DmaRing<STRIDE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DmaRing<{STRIDE}> {{ iova: {:#x}, entries: {} }}",
            self.iova,
            self.entries()
        )
    }
}

impl<const STRIDE: usize> DmaRing<STRIDE> {
    /// The `entries * STRIDE` bytes at `offset` (a multiple of `STRIDE` or of 64) of `buffer` as a ring.
    ///
    /// # Errors
    /// [`DmaError::BadRing`] where `entries` is not a power of two, or the ring is not aligned or leaves the buffer.
    pub fn new(buffer: Arc<DmaBuffer>, offset: usize, entries: u32) -> Result<DmaRing<STRIDE>, DmaError> {
        const { assert!(STRIDE.is_power_of_two() && STRIDE >= 8) };
        let end = STRIDE
            .checked_mul(entries as usize)
            .and_then(|bytes| offset.checked_add(bytes));
        let fits = end.is_some_and(|end| end <= buffer.len());
        if !entries.is_power_of_two() || !fits || !offset.is_multiple_of(STRIDE.min(64)) {
            return Err(DmaError::BadRing {
                entries,
                stride: STRIDE,
                offset,
                limit: buffer.len(),
            });
        }
        // SAFETY: `offset` is within the buffer, as just checked.
        let base = unsafe { buffer.as_ptr().add(offset) };
        Ok(DmaRing {
            base,
            mask: entries - 1,
            iova: buffer.iova() + offset as u64,
            buffer,
        })
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// I/O virtual address of entry 0.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// The buffer that holds the ring.
    pub fn buffer(&self) -> &Arc<DmaBuffer> {
        &self.buffer
    }

    /// Reads the byte at `OFFSET` of an entry.
    #[inline(always)]
    pub fn load_u8<const OFFSET: usize>(&self, index: u32) -> u8 {
        // SAFETY: `at` gives an address of 1 byte within the buffer.
        unsafe { AtomicU8::from_ptr(self.at::<OFFSET, 1>(index)) }.load(Relaxed)
    }

    /// Reads the big-endian word of 32 bits at `OFFSET` of an entry.
    #[inline(always)]
    pub fn load_be32<const OFFSET: usize>(&self, index: u32) -> u32 {
        // SAFETY: `at` gives an address of 4 bytes within the buffer, aligned.
        u32::from_be(unsafe { AtomicU32::from_ptr(self.at::<OFFSET, 4>(index).cast()) }.load(Relaxed))
    }

    /// Reads the big-endian word of 64 bits at `OFFSET` of an entry.
    #[inline(always)]
    pub fn load_be64<const OFFSET: usize>(&self, index: u32) -> u64 {
        // SAFETY: `at` gives an address of 8 bytes within the buffer, aligned.
        u64::from_be(unsafe { AtomicU64::from_ptr(self.at::<OFFSET, 8>(index).cast()) }.load(Relaxed))
    }

    /// Copies a whole entry out, 8 bytes at a time.
    #[inline(always)]
    pub fn load(&self, index: u32) -> [u8; STRIDE] {
        let from = self.at::<0, 8>(index);
        let mut entry = [0; STRIDE];
        for (i, word) in entry.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: the entry's STRIDE bytes lie within the buffer, aligned to 8.
            *word = unsafe { AtomicU64::from_ptr(from.add(i * 8).cast()) }
                .load(Relaxed)
                .to_ne_bytes();
        }
        entry
    }

    /// Writes the byte at `OFFSET` of an entry.
    #[inline(always)]
    pub fn store_u8<const OFFSET: usize>(&mut self, index: u32, value: u8) {
        // SAFETY: `at` gives an address of 1 byte within the buffer.
        unsafe { AtomicU8::from_ptr(self.at::<OFFSET, 1>(index)) }.store(value, Relaxed);
    }

    /// Writes a big-endian word of 32 bits at `OFFSET` of an entry.
    #[inline(always)]
    pub fn store_be32<const OFFSET: usize>(&mut self, index: u32, value: u32) {
        // SAFETY: `at` gives an address of 4 bytes within the buffer, aligned.
        unsafe { AtomicU32::from_ptr(self.at::<OFFSET, 4>(index).cast()) }.store(value.to_be(), Relaxed);
    }

    /// Writes a big-endian word of 64 bits at `OFFSET` of an entry.
    #[inline(always)]
    pub fn store_be64<const OFFSET: usize>(&mut self, index: u32, value: u64) {
        // SAFETY: `at` gives an address of 8 bytes within the buffer, aligned.
        unsafe { AtomicU64::from_ptr(self.at::<OFFSET, 8>(index).cast()) }.store(value.to_be(), Relaxed);
    }

    /// Copies `bytes`, a multiple of 8, to `OFFSET` of an entry.
    #[inline(always)]
    pub fn store<const OFFSET: usize, const LEN: usize>(&mut self, index: u32, bytes: &[u8; LEN]) {
        const { assert!(LEN.is_multiple_of(8) && OFFSET.is_multiple_of(8) && OFFSET + LEN <= STRIDE) };
        let to = self.at::<OFFSET, 0>(index);
        for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: OFFSET + LEN bytes of the entry lie within the buffer, aligned to 8, as checked when compiled.
            unsafe { AtomicU64::from_ptr(to.add(i * 8).cast()) }.store(u64::from_ne_bytes(*word), Relaxed);
        }
    }

    /// The entry that `index` means, to be read by several accesses: its place is found once.
    #[inline(always)]
    pub fn entry(&self, index: u32) -> RingEntry<'_, STRIDE> {
        RingEntry {
            at: self.at::<0, 0>(index),
            ring: PhantomData,
        }
    }

    /// The entries, to be read one after the other: what finds them is kept where a loop has it at hand.
    #[inline(always)]
    pub fn entries_view(&self) -> RingView<'_, STRIDE> {
        RingView {
            base: self.base,
            mask: self.mask,
            ring: PhantomData,
        }
    }

    /// The entries from the one that `index` means on, to be written; where the ring ends it goes on at the start.
    #[inline(always)]
    pub fn run(&mut self, index: u32) -> RingRun<'_, STRIDE> {
        RingRun {
            first: self.at::<0, 0>(index),
            index,
            ring: self,
        }
    }

    /// The address of `WIDTH` bytes at `OFFSET` of the entry that `index` means.
    #[inline(always)]
    fn at<const OFFSET: usize, const WIDTH: usize>(&self, index: u32) -> *mut u8 {
        const { assert!(OFFSET + WIDTH <= STRIDE && (WIDTH == 0 || OFFSET.is_multiple_of(WIDTH))) };
        let entry = (index & self.mask) as usize * STRIDE;
        // SAFETY: the entry is one of the ring's, all of which lie within the buffer (`new`); OFFSET is within it.
        unsafe { self.base.as_ptr().add(entry + OFFSET) }
    }
}

/// A ring's entries, for reading.
#[derive(Clone, Copy)]
pub struct RingView<'a, const STRIDE: usize> {
    /// The ring's.
    base: NonNull<u8>,
    /// The ring's.
    mask: u32,
    ring: PhantomData<&'a DmaRing<STRIDE>>,
}

impl<'a, const STRIDE: usize> RingView<'a, STRIDE> {
    /// The entry that `index` means.
    #[inline(always)]
    pub fn entry(self, index: u32) -> RingEntry<'a, STRIDE> {
        let entry = (index & self.mask) as usize * STRIDE;
        RingEntry {
            // SAFETY: the entry is one of the ring's, all of which lie within its buffer, which the ring keeps.
            at: unsafe { self.base.as_ptr().add(entry) },
            ring: PhantomData,
        }
    }
}

/// One entry of a ring, for reading.
pub struct RingEntry<'a, const STRIDE: usize> {
    /// Of an entry of the ring, so followed by `STRIDE` bytes of its buffer.
    at: *mut u8,
    ring: PhantomData<&'a DmaRing<STRIDE>>,
}

impl<const STRIDE: usize> RingEntry<'_, STRIDE> {
    /// Reads the byte at `OFFSET`.
    #[inline(always)]
    pub fn load_u8<const OFFSET: usize>(&self) -> u8 {
        // SAFETY: `field` gives an address of 1 byte within the buffer, which the ring keeps.
        unsafe { AtomicU8::from_ptr(self.field::<OFFSET, 1>()) }.load(Relaxed)
    }

    /// Reads the big-endian word of 16 bits at `OFFSET`.
    #[inline(always)]
    pub fn load_be16<const OFFSET: usize>(&self) -> u16 {
        // SAFETY: as in `load_u8`, of 2 bytes, aligned.
        u16::from_be(unsafe { AtomicU16::from_ptr(self.field::<OFFSET, 2>().cast()) }.load(Relaxed))
    }

    /// Reads the byte at `OFFSET`, if it is used: other loads are made in any case, since the compiler takes each for
    /// something that others see.
    #[inline(always)]
    pub fn used_u8<const OFFSET: usize>(&self) -> u8 {
        // SAFETY: `field` gives an address of 1 byte within the buffer, which the ring keeps.
        unsafe { used::load_u8(self.field::<OFFSET, 1>()) }
    }

    /// Reads the big-endian word of 32 bits at `OFFSET`, if it is used.
    #[inline(always)]
    pub fn used_be32<const OFFSET: usize>(&self) -> u32 {
        // SAFETY: as in `used_u8`, of 4 bytes, aligned.
        u32::from_be(unsafe { used::load_u32(self.field::<OFFSET, 4>()) })
    }

    /// Reads the big-endian word of 64 bits at `OFFSET`, if it is used.
    #[inline(always)]
    pub fn used_be64<const OFFSET: usize>(&self) -> u64 {
        // SAFETY: as in `used_u8`, of 8 bytes, aligned.
        u64::from_be(unsafe { used::load_u64(self.field::<OFFSET, 8>()) })
    }

    /// Reads the big-endian word of 32 bits at `OFFSET`.
    #[inline(always)]
    pub fn load_be32<const OFFSET: usize>(&self) -> u32 {
        // SAFETY: as in `load_u8`, of 4 bytes, aligned.
        u32::from_be(unsafe { AtomicU32::from_ptr(self.field::<OFFSET, 4>().cast()) }.load(Relaxed))
    }

    /// Reads the big-endian word of 64 bits at `OFFSET`.
    #[inline(always)]
    pub fn load_be64<const OFFSET: usize>(&self) -> u64 {
        // SAFETY: as in `load_u8`, of 8 bytes, aligned.
        u64::from_be(unsafe { AtomicU64::from_ptr(self.field::<OFFSET, 8>().cast()) }.load(Relaxed))
    }

    #[inline(always)]
    fn field<const OFFSET: usize, const WIDTH: usize>(&self) -> *mut u8 {
        const { assert!(OFFSET + WIDTH <= STRIDE && OFFSET.is_multiple_of(WIDTH)) };
        // SAFETY: OFFSET is within the entry.
        unsafe { self.at.add(OFFSET) }
    }
}

/// Loads that the compiler may leave out where their value is not used, which it does with no atomic one. Each is one
/// instruction; none is moved over a barrier or a store, both of which may change memory.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod used {
    use std::arch::asm;

    macro_rules! load {
        ($name:ident, $type:ty, $class:ident, $instruction:literal) => {
            /// # Safety
            /// `at` must be aligned and valid for reads; others may write there meanwhile.
            #[inline(always)]
            pub(super) unsafe fn $name(at: *mut u8) -> $type {
                let value: $type;
                // SAFETY: the caller vouches for the address; nothing but the output is changed.
                unsafe {
                    asm!($instruction, out($class) value, in(reg) at,
                        options(pure, readonly, nostack, preserves_flags));
                }
                value
            }
        };
    }
    load!(load_u8, u8, reg_byte, "mov {0}, byte ptr [{1}]");
    load!(load_u32, u32, reg, "mov {0:e}, dword ptr [{1}]");
    load!(load_u64, u64, reg, "mov {0}, qword ptr [{1}]");
}

/// The same as atomic loads.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod used {
    use super::{AtomicU8, AtomicU32, AtomicU64, Relaxed};

    macro_rules! load {
        ($name:ident, $type:ty, $atomic:ty) => {
            /// # Safety
            /// `at` must be aligned and valid for atomic reads.
            #[inline(always)]
            pub(super) unsafe fn $name(at: *mut u8) -> $type {
                // SAFETY: the caller vouches for the address.
                unsafe { <$atomic>::from_ptr(at.cast()) }.load(Relaxed)
            }
        };
    }
    load!(load_u8, u8, AtomicU8);
    load!(load_u32, u32, AtomicU32);
    load!(load_u64, u64, AtomicU64);
}

/// Consecutive entries of a ring, for writing.
pub struct RingRun<'a, const STRIDE: usize> {
    /// Of the entry that `index` means, so followed by `STRIDE` bytes of the ring's buffer.
    first: *mut u8,
    index: u32,
    ring: &'a mut DmaRing<STRIDE>,
}

impl<const STRIDE: usize> RingRun<'_, STRIDE> {
    /// Copies `bytes`, a multiple of 8, to `OFFSET` of the first entry.
    #[inline(always)]
    pub fn store<const OFFSET: usize, const LEN: usize>(&mut self, bytes: &[u8; LEN]) {
        const { assert!(LEN.is_multiple_of(8) && OFFSET.is_multiple_of(8) && OFFSET + LEN <= STRIDE) };
        // SAFETY: OFFSET + LEN bytes of the entry lie within the buffer, aligned to 8, as checked when compiled.
        unsafe { store_words(self.first.add(OFFSET), bytes) }
    }

    /// Copies `bytes` (a multiple of 8, and a divisor of the entry's size) to the `part`th piece of that size, counted
    /// from the start of the first entry on.
    #[inline(always)]
    pub fn store_part<const LEN: usize>(&mut self, part: u32, bytes: &[u8; LEN]) {
        const { assert!(LEN.is_multiple_of(8) && STRIDE.is_multiple_of(LEN)) };
        let parts = const { (STRIDE / LEN) as u32 };
        let to = if part < parts {
            self.first
        } else {
            self.ring.at::<0, 0>(self.index.wrapping_add(part / parts))
        };
        // SAFETY: the part is one of the entry's, which lies within the buffer.
        unsafe { store_words(to.add((part % parts) as usize * LEN), bytes) }
    }
}

/// # Safety
/// `to` must be aligned to 8 and valid for atomic writes of `LEN` bytes, a multiple of 8.
#[inline(always)]
unsafe fn store_words<const LEN: usize>(to: *mut u8, bytes: &[u8; LEN]) {
    for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
        // SAFETY: the caller vouches for all words.
        unsafe { AtomicU64::from_ptr(to.add(i * 8).cast()) }.store(u64::from_ne_bytes(*word), Relaxed);
    }
}
