//! Whole pages for local use: plain slices while the CPU owns them, nothing while the device does.

use std::fmt;
use std::sync::Arc;

use super::{AllocOptions, DmaBuffer, DmaError, DmaSpace};

/// A buffer of whole pages that is never given to peers: an operation's local end.
///
/// While the program holds it no operation uses it, and its bytes are plain slices. Posting it turns it into a
/// [`LentBuffer`], and its completion turns it back. It may be registered for local access only; memory that peers may
/// reach is a [`DmaBuffer`].
///
/// The mkey and the device's honesty keep the device away while the CPU owns the buffer; its IOMMU map stands until it is
/// dropped.
pub struct LocalBuffer {
    buffer: DmaBuffer,
}

/// A [`LocalBuffer`] that an operation of the device is using.
///
/// Dropped without having come back, it is leaked (see [`DmaBuffer::leak`]), since the device may still write there.
pub struct LentBuffer {
    buffer: DmaBuffer,
}

impl fmt::Debug for LocalBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LocalBuffer {{ iova: {:#x}, len: {:#x} }}",
            self.iova(),
            self.len()
        )
    }
}

impl fmt::Debug for LentBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LentBuffer {{ iova: {:#x}, len: {:#x} }}",
            self.iova(),
            self.len()
        )
    }
}

impl LocalBuffer {
    /// I/O virtual address of the first byte.
    pub fn iova(&self) -> u64 {
        self.buffer.iova()
    }

    /// Length in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Never true: an empty buffer can't be made.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The content.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialized bytes that this value owns; the device has no operation on them while it is not
        // lent, and nobody else has the `DmaBuffer`.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().as_ptr(), self.len()) }
    }

    /// The content, to change.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.as_ptr().as_ptr(), self.len()) }
    }

    /// Makes the drop a leak (see [`DmaBuffer::leak`]): the device may still use the buffer, for its mkey could not be
    /// destroyed.
    pub fn leak_on_drop(&self) {
        self.buffer.leak_on_drop();
    }

    /// Takes a [`LocalBuffer::leak_on_drop`] back. Only for code that knows that the device is done with the buffer.
    #[allow(dead_code)] // For the verbs.
    pub(crate) fn free_on_drop(&self) {
        self.buffer.free_on_drop();
    }

    /// Hands the buffer to the device: what posting does.
    pub fn lend(self) -> LentBuffer {
        self.buffer.leak_on_drop();
        LentBuffer { buffer: self.buffer }
    }
}

impl LentBuffer {
    /// I/O virtual address of the first byte.
    pub fn iova(&self) -> u64 {
        self.buffer.iova()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Never true: an empty buffer can't be made.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Takes the buffer back from the device.
    ///
    /// Only for code that knows that no operation uses it any more: it has completed, was never made visible to the
    /// device, or its queue is destroyed. The poller has issued [`after_ownership`](crate::barrier::after_ownership).
    #[allow(dead_code)] // For the verbs.
    pub(crate) fn reclaim(self) -> LocalBuffer {
        self.buffer.free_on_drop();
        LocalBuffer { buffer: self.buffer }
    }
}

impl DmaSpace {
    /// A zeroed buffer for local use, of at least `len` bytes in whole pages that hold nothing else.
    ///
    /// # Errors
    /// As [`DmaSpace::alloc`].
    pub fn alloc_local(self: &Arc<Self>, len: usize) -> Result<LocalBuffer, DmaError> {
        self.alloc_local_with(len, &AllocOptions::default())
    }

    /// As [`DmaSpace::alloc_local`], with options.
    ///
    /// # Errors
    /// As [`DmaSpace::alloc_with`].
    pub fn alloc_local_with(
        self: &Arc<Self>,
        len: usize,
        options: &AllocOptions,
    ) -> Result<LocalBuffer, DmaError> {
        Ok(LocalBuffer {
            buffer: self.alloc_units(len, self.granule(), options)?,
        })
    }
}
