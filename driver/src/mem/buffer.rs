//! A piece of DMA memory, accessed by copies and single words only.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::arena::Arena;
use super::{DmaError, DmaSpace, copy};

/// Memory that the device may read and write for as long as this lives.
///
/// The device, a peer by way of it, and other threads may change the content at any time, so there are no slices: bytes
/// move by copy ([`DmaBuffer::read`], [`DmaBuffer::write`]) and words by one access each. Words are big-endian in
/// memory and in host order here.
///
/// Dropping takes the device's access away, then frees. Where the device may still be busy with the memory (its
/// firmware object could not be destroyed), [`DmaBuffer::leak`] it.
pub struct DmaBuffer {
    base: NonNull<u8>,
    len: usize,
    /// Offset in the arena, and the bytes taken there.
    offset: u64,
    span: u64,
    leak: AtomicBool,
    arena: Arc<Arena>,
    space: Arc<DmaSpace>,
}

// SAFETY: the memory belongs to the arena, which is kept alive; it is accessed only atomically or by `copy`, so that
// accesses of several threads don't race.
unsafe impl Send for DmaBuffer {}
// SAFETY: as for Send.
unsafe impl Sync for DmaBuffer {}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DmaBuffer {{ iova: {:#x}, len: {:#x} }}",
            self.iova(),
            self.len
        )
    }
}

impl DmaBuffer {
    /// `offset + span` must lie within the arena.
    pub(super) fn new(
        space: Arc<DmaSpace>,
        arena: Arc<Arena>,
        offset: u64,
        span: u64,
        len: usize,
    ) -> DmaBuffer {
        assert!(offset + span <= arena.memory.len() as u64 && len as u64 <= span); // PANIC: the space's own arithmetic
        // SAFETY: within the mapping, as just checked.
        let base = unsafe { arena.memory.as_ptr().add(offset as usize) };
        DmaBuffer {
            base,
            len,
            offset,
            span,
            leak: AtomicBool::new(false),
            arena,
            space,
        }
    }

    /// I/O virtual address of the first byte: what the device is told. Aligned to 4096 at least.
    pub fn iova(&self) -> u64 {
        self.arena.iova + self.offset
    }

    /// Length in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an empty buffer can't be made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Virtual address of the first byte. For foreign code; who dereferences it must expect changes at any time.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// The memfd that holds the buffer, and the offset of its first byte there.
    ///
    /// # Safety
    /// The file holds other buffers too, among them [`LocalBuffer`](crate::verbs::LocalBuffer)s that are slices of this process.
    /// Whoever is given it must keep to this buffer's [`len`](Self::len) bytes for as long as this lives.
    pub unsafe fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.arena.fd(), self.offset)
    }

    /// The space that the buffer lies in.
    pub fn space(&self) -> &Arc<DmaSpace> {
        &self.space
    }

    /// Copies `to.len()` bytes at `offset` out.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`].
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), DmaError> {
        let from = self.at(offset, to.len())?;
        // SAFETY: in range, and all access to the memory is by `copy` or atomic.
        unsafe { copy::copy_out(from.as_ptr(), to) };
        Ok(())
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), DmaError> {
        let to = self.at(offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { copy::copy_in(from, to.as_ptr()) };
        Ok(())
    }

    /// Sets `len` bytes at `offset` to `value`.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`].
    pub fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), DmaError> {
        let to = self.at(offset, len)?;
        // SAFETY: as in `read`.
        unsafe { copy::fill(to.as_ptr(), len, value) };
        Ok(())
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`].
    pub fn read_u8(&self, offset: usize) -> Result<u8, DmaError> {
        let at = self.at(offset, 1)?;
        // SAFETY: in range.
        Ok(unsafe { AtomicU8::from_ptr(at.as_ptr()) }.load(Relaxed))
    }

    /// Writes one byte.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`].
    pub fn write_u8(&self, offset: usize, value: u8) -> Result<(), DmaError> {
        let at = self.at(offset, 1)?;
        // SAFETY: in range.
        unsafe { AtomicU8::from_ptr(at.as_ptr()) }.store(value, Relaxed);
        Ok(())
    }

    /// Reads an aligned big-endian word of 32 bits by one access.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`] or [`DmaError::Misaligned`].
    pub fn read_be32(&self, offset: usize) -> Result<u32, DmaError> {
        let at = self.aligned(offset, 4)?;
        // SAFETY: in range and aligned.
        Ok(u32::from_be(
            unsafe { AtomicU32::from_ptr(at.cast().as_ptr()) }.load(Relaxed),
        ))
    }

    /// Writes an aligned big-endian word of 32 bits by one access.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`] or [`DmaError::Misaligned`].
    pub fn write_be32(&self, offset: usize, value: u32) -> Result<(), DmaError> {
        let at = self.aligned(offset, 4)?;
        // SAFETY: in range and aligned.
        unsafe { AtomicU32::from_ptr(at.cast().as_ptr()) }.store(value.to_be(), Relaxed);
        Ok(())
    }

    /// Reads an aligned big-endian word of 64 bits by one access.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`] or [`DmaError::Misaligned`].
    pub fn read_be64(&self, offset: usize) -> Result<u64, DmaError> {
        let at = self.aligned(offset, 8)?;
        // SAFETY: in range and aligned.
        Ok(u64::from_be(
            unsafe { AtomicU64::from_ptr(at.cast().as_ptr()) }.load(Relaxed),
        ))
    }

    /// Writes an aligned big-endian word of 64 bits by one access.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`] or [`DmaError::Misaligned`].
    pub fn write_be64(&self, offset: usize, value: u64) -> Result<(), DmaError> {
        let at = self.aligned(offset, 8)?;
        // SAFETY: in range and aligned.
        unsafe { AtomicU64::from_ptr(at.cast().as_ptr()) }.store(value.to_be(), Relaxed);
        Ok(())
    }

    /// Gives the buffer up without taking the device's access away, since the device may still use it. The memory stays
    /// as it is until the [`DmaSpace`] goes, and is counted in [`DmaSpace::leaked_bytes`].
    pub fn leak(self) {
        self.leak_on_drop();
    }

    /// Makes the last drop of a shared buffer a [`DmaBuffer::leak`].
    pub fn leak_on_drop(&self) {
        self.leak.store(true, Relaxed);
    }

    /// Takes a [`DmaBuffer::leak_on_drop`] back: the device is known to be done with the memory.
    pub fn free_on_drop(&self) {
        self.leak.store(false, Relaxed);
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<NonNull<u8>, DmaError> {
        match offset.checked_add(len) {
            // SAFETY: within the buffer, as just checked.
            Some(end) if end <= self.len => Ok(unsafe { self.base.add(offset) }),
            _ => Err(DmaError::OutOfRange {
                offset,
                len,
                limit: self.len,
            }),
        }
    }

    #[inline]
    fn aligned(&self, offset: usize, width: usize) -> Result<NonNull<u8>, DmaError> {
        if !offset.is_multiple_of(width) {
            return Err(DmaError::Misaligned { offset, width });
        }
        self.at(offset, width)
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        self.space
            .release(&self.arena, self.offset, self.span, *self.leak.get_mut());
    }
}
