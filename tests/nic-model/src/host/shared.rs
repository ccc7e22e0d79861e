//! Memory that another process may change at any moment: mapped files, and the one copy primitive for them.
//!
//! This is the model's only module with `unsafe`. Rust's rules forbid a `&[u8]` on bytes that somebody else
//! writes, and call a plain read that races with a write undefined. So no reference to these bytes is ever
//! made, and they are moved in two ways only:
//!
//! - in bulk, by [`copy`], with volatile accesses or one string instruction: the compiler may neither repeat,
//!   split into a second read, nor invent such an access, so what arrives is some mix of old and new bytes
//!   and nothing worse;
//! - as single aligned words, by atomics, where order or atomicity matters.
//!
//! What cannot be excluded here: a file whose pages cannot be supplied (tmpfs or hugetlbfs full) raises SIGBUS
//! at the first touch, as it would for its owner. Shrinking is excluded by a seal where the file takes one, see
//! [`FileMap::new`].
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A whole file mapped shared.
///
/// # Invariants
/// `base` points to `len` bytes of a `MAP_SHARED` mapping that lives until drop.
#[derive(Debug)]
pub(super) struct FileMap {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// What all mappings of one host take together; this one's length is in it.
    total: Arc<AtomicU64>,
}

// SAFETY: the mapping is memory that other processes change anyway; all accesses go through volatile or
// atomic operations (see the module's head), so that it makes no difference which thread makes them.
unsafe impl Send for FileMap {}
// SAFETY: as for `Send`; no method hands out a reference into the mapping.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps the first `len` bytes of `file`, which should not be able to shrink below that (the caller has
    /// asked [`DmaFd::check`](ferroce_vfio_user::device::DmaFd::check)): access to pages that a file has lost
    /// is not undefined, but ends the process by SIGBUS.
    pub fn new(file: &File, len: u64, writable: bool, total: &Arc<AtomicU64>) -> io::Result<FileMap> {
        let len_bytes = len;
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let prot = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing; the arguments are
        // plain integers and an open descriptor. Failure is checked below.
        let addr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                prot,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if addr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(addr.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: exactly the range that was mapped above. The advice only keeps the memory out of children;
        // its failure changes nothing here.
        unsafe { libc::madvise(addr, len, libc::MADV_DONTFORK) };
        total.fetch_add(len_bytes, Ordering::Relaxed);
        Ok(FileMap {
            base,
            len,
            writable,
            total: Arc::clone(total),
        })
    }

    /// Length of the mapping in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A pointer to `len` bytes at `offset`; `None` when they are not all inside.
    fn span(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        // The sum cannot leave the mapping, so `add`'s condition would hold too; `wrapping_add` needs none.
        (end <= self.len).then(|| self.base.as_ptr().wrapping_add(offset))
    }

    /// As [`FileMap::span`], for an access that writes.
    fn span_mut(&self, offset: usize, len: usize) -> Option<*mut u8> {
        self.span(offset, len).filter(|_| self.writable)
    }

    /// A pointer for one aligned access of `size` bytes.
    fn word(&self, offset: usize, size: usize) -> Option<*mut u8> {
        self.span(offset, size).filter(|p| p.addr().is_multiple_of(size))
    }

    /// Copies bytes out; `None` when they are not all inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Option<()> {
        let src = self.span(offset, out.len())?;
        // SAFETY: `src` is valid for reads of `out.len()` bytes by `span`; `out` is ours alone.
        unsafe { copy(out.as_mut_ptr(), src, out.len()) };
        Some(())
    }

    /// Appends `len` bytes to `out`; `None`, and nothing appended, when they are not all inside.
    pub fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Option<()> {
        let src = self.span(offset, len)?;
        out.reserve(len);
        let spare = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `src` is valid for reads of `len` bytes by `span`; `reserve` has made room for `len` bytes,
        // which are ours alone and are all written before they count as initialized.
        unsafe {
            copy(spare, src, len);
            out.set_len(out.len() + len);
        }
        Some(())
    }

    /// Copies bytes in; `None` when they don't fit or the mapping is read-only.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Option<()> {
        let dst = self.span_mut(offset, bytes.len())?;
        // SAFETY: `dst` is valid for writes of `bytes.len()` bytes by `span_mut`; `bytes` is valid for reads.
        unsafe { copy(dst, bytes.as_ptr(), bytes.len()) };
        Some(())
    }

    /// Copies from one mapping into another (or the same), without a stop in between.
    pub fn copy_from(&self, offset: usize, from: &FileMap, from_offset: usize, len: usize) -> Option<()> {
        let dst = self.span_mut(offset, len)?;
        let src = from.span(from_offset, len)?;
        // SAFETY: both are valid for `len` bytes by `span`. They may overlap: `copy` allows it.
        unsafe { copy(dst, src, len) };
        Some(())
    }

    /// One byte, with acquire order: what its writer wrote before it is seen by later reads.
    pub fn load_u8(&self, offset: usize) -> Option<u8> {
        let p = self.word(offset, 1)?;
        // SAFETY: `p` is valid and aligned by `word`, and single words are only accessed so.
        Some(unsafe { AtomicU8::from_ptr(p) }.load(Ordering::Acquire))
    }

    /// One byte, with release order: whoever sees it sees what was written before.
    pub fn store_u8(&self, offset: usize, value: u8) -> Option<()> {
        let p = self.word(offset, 1).filter(|_| self.writable)?;
        // SAFETY: as for `load_u8`, and the mapping is writable.
        unsafe { AtomicU8::from_ptr(p) }.store(value, Ordering::Release);
        Some(())
    }

    /// One aligned 32-bit word in native byte order, with acquire order.
    pub fn load_u32(&self, offset: usize) -> Option<u32> {
        let p = self.word(offset, 4)?;
        // SAFETY: `p` is valid and aligned by `word`.
        Some(unsafe { AtomicU32::from_ptr(p.cast()) }.load(Ordering::Acquire))
    }

    /// One aligned 32-bit word in native byte order, with release order.
    pub fn store_u32(&self, offset: usize, value: u32) -> Option<()> {
        let p = self.word(offset, 4).filter(|_| self.writable)?;
        // SAFETY: `p` is valid and aligned by `word`, and the mapping is writable.
        unsafe { AtomicU32::from_ptr(p.cast()) }.store(value, Ordering::Release);
        Some(())
    }

    /// One aligned 64-bit word in native byte order, with acquire order.
    pub fn load_u64(&self, offset: usize) -> Option<u64> {
        let p = self.word(offset, 8)?;
        // SAFETY: `p` is valid and aligned by `word`.
        Some(unsafe { AtomicU64::from_ptr(p.cast()) }.load(Ordering::Acquire))
    }

    /// One aligned 64-bit word in native byte order, with release order.
    pub fn store_u64(&self, offset: usize, value: u64) -> Option<()> {
        let p = self.word(offset, 8).filter(|_| self.writable)?;
        // SAFETY: `p` is valid and aligned by `word`, and the mapping is writable.
        unsafe { AtomicU64::from_ptr(p.cast()) }.store(value, Ordering::Release);
        Some(())
    }

    /// Replaces the aligned 64-bit word by `f` of it, atomically also against other processes; gives the
    /// value before. `f` may be called several times.
    pub fn update_u64(&self, offset: usize, mut f: impl FnMut(u64) -> u64) -> Option<u64> {
        let p = self.word(offset, 8).filter(|_| self.writable)?;
        // SAFETY: `p` is valid and aligned by `word`, and the mapping is writable.
        let cell = unsafe { AtomicU64::from_ptr(p.cast()) };
        let (Ok(old) | Err(old)) = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, |v| Some(f(v)));
        Some(old)
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: by the invariant this is a whole mapping of ours, and nobody holds a pointer into it, since
        // none is ever handed out.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        self.total.fetch_sub(self.len as u64, Ordering::Relaxed);
    }
}

/// Below this length words are copied one by one: a string instruction has a start-up cost.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_COPY_MIN: usize = 256;

/// Copies `len` bytes between memory of which either side may be changed by others meanwhile.
///
/// The bytes that arrive are each an old or a new value; there is no order among them. If the ranges overlap,
/// the bytes in the overlap are unspecified.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `len` bytes, either for the whole call. A side that
/// is Rust memory (not a mapping) must not be accessed by anybody else during the call.
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= STRING_COPY_MIN {
        // SAFETY: the caller vouches for both ranges. The compiler knows nothing of what the block reads, so
        // a race cannot mislead it; the direction flag is clear on entry by the ABI.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") src => _,
                inout("rdi") dst => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    // SAFETY: the same conditions.
    unsafe { copy_words(dst, src, len) }
}

/// [`copy`] by volatile accesses of 8 bytes, then of 1.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_words(dst: *mut u8, src: *const u8, len: usize) {
    /// Packed, so that a volatile access needs no alignment; one scalar, so that it is one machine access
    /// where the machine can.
    #[repr(C, packed)]
    #[derive(Clone, Copy)]
    struct Word(u64);

    let mut at = 0;
    while len - at >= size_of::<Word>() {
        // SAFETY: `at + 8 <= len`, so that both stay inside what the caller vouches for; alignment is 1.
        unsafe {
            let word = src.add(at).cast::<Word>().read_volatile();
            dst.add(at).cast::<Word>().write_volatile(word);
        }
        at += size_of::<Word>();
    }
    while at < len {
        // SAFETY: `at < len`.
        unsafe { dst.add(at).write_volatile(src.add(at).read_volatile()) };
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_all_small_lengths_and_alignments_are_exact() {
        let src: Vec<u8> = (0..700u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in (0..70).chain([255, 256, 257, 600]) {
            for from in 0..9 {
                let mut dst = vec![0xa5; len + 16];
                // SAFETY: both vectors hold at least the bytes copied.
                unsafe { copy(dst.as_mut_ptr().add(from), src.as_ptr().add(from), len) };
                assert_eq!(&dst[from..from + len], &src[from..from + len]);
                assert!(dst[..from].iter().chain(&dst[from + len..]).all(|&b| b == 0xa5));
                // SAFETY: as above.
                unsafe { copy_words(dst.as_mut_ptr(), src.as_ptr().add(from), len) };
                assert_eq!(&dst[..len], &src[from..from + len]);
            }
        }
    }
}
