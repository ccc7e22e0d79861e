//! Memory that is mapped shared from a file: DMA memory, and mapped parts of BARs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::function::Owner;

/// A shared, read-write mapping of a part of a file, kept out of children, unmapped when dropped.
///
/// Others may change its content at any time, so it gives no references, only its address.
#[derive(Debug)]
pub struct SharedMapping {
    ptr: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: the mapping belongs to the process, not to a thread; who accesses it through `as_ptr` answers for that.
unsafe impl Send for SharedMapping {}
// SAFETY: as for Send.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes at `offset` of `fd`; the address is a multiple of `align` (a power of two, at least a page).
    ///
    /// # Errors
    /// What `mmap` or `madvise` says; EINVAL for a length of 0 or an unaligned offset.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        align: usize,
    ) -> io::Result<SharedMapping> {
        let page = rustix::param::page_size();
        let align = align.max(page);
        let span = len
            .checked_next_multiple_of(page)
            .and_then(|l| l.checked_add(align - page));
        let span = span
            .filter(|_| len != 0 && align.is_power_of_two())
            .ok_or(rustix::io::Errno::INVAL)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice; it only reserves address space.
        let reserved =
            unsafe { mmap_anonymous(std::ptr::null_mut(), span, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let start = (reserved as usize).next_multiple_of(align) - reserved as usize;
        let reservation = Reservation {
            start: reserved.cast(),
            len: span,
        };
        // SAFETY: `start + len` is within the reservation, of which nobody else knows.
        let mapped = unsafe {
            let at = reserved.cast::<u8>().add(start).cast();
            mmap(
                at,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                offset,
            )
        }?;
        let ptr = NonNull::new(mapped.cast::<u8>()).ok_or(rustix::io::Errno::INVAL)?;
        reservation.keep(start, len.next_multiple_of(page));
        let mapping = SharedMapping {
            ptr,
            len,
            owner: Owner::here(),
        };
        // SAFETY: the range is our own mapping.
        unsafe { madvise(mapped, len, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an empty mapping can't be made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Asks for transparent huge pages; a wish, which the kernel's settings may deny.
    pub(crate) fn want_huge_pages(&self) {
        // SAFETY: the range is our own mapping; the advice changes no content.
        let result = unsafe { madvise(self.ptr.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
        if let Err(error) = result {
            log::debug!("no transparent huge pages for shared memory: {error}");
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // A child never had the mapping; something else may be there.
        if !self.owner.is_here() {
            return;
        }
        // SAFETY: made by `mmap` in `new`, and nobody may use the address after this.
        let result = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
        if let Err(error) = result {
            log::error!("munmap of {:p} + {:#x} failed: {error}", self.ptr, self.len);
        }
    }
}

/// Address space that is held until the mapping stands in it.
struct Reservation {
    start: *mut u8,
    len: usize,
}

impl Reservation {
    /// Gives back all but `len` bytes at `offset`.
    fn keep(self, offset: usize, len: usize) {
        let (start, span) = (self.start, self.len);
        std::mem::forget(self);
        drop(Reservation { start, len: offset });
        drop(Reservation {
            start: start.wrapping_add(offset + len),
            len: span - offset - len,
        });
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: address space that was reserved here and holds nothing that is in use.
            let _ = unsafe { munmap(self.start.cast(), self.len) };
        }
    }
}

/// Maps a whole BAR area or file part; a helper for callers that own the descriptor.
pub(crate) fn map_fd(fd: &impl AsFd, offset: u64, len: u64) -> io::Result<SharedMapping> {
    let len = usize::try_from(len).map_err(|_| rustix::io::Errno::INVAL)?;
    SharedMapping::new(fd.as_fd(), offset, len, rustix::param::page_size())
}
