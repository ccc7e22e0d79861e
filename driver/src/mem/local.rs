//! Whole pages for local use: plain slices while the CPU owns them, nothing while the device does.

use std::fmt;
use std::sync::Arc;

use super::{AllocOptions, DmaBuffer, DmaError, DmaSpace};

/// Whole pages that are never given to peers: the memory of a [`LocalBuffer`](crate::verbs::LocalBuffer).
///
/// Their bytes are plain slices. Whoever has them hands them to the device in no other way than by moving what holds them into
/// the request, and has called [`LocalPages::leak_on_drop`] by then. They may be registered for local access only; memory that
/// peers may reach is a [`DmaBuffer`].
///
/// The mkey and the device's honesty keep the device away while the CPU has the pages; their IOMMU map stands until they are
/// dropped.
pub(crate) struct LocalPages {
    buffer: DmaBuffer,
}

impl fmt::Debug for LocalPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LocalPages {{ iova: {:#x}, len: {:#x} }}",
            self.iova(),
            self.len()
        )
    }
}

impl LocalPages {
    /// I/O virtual address of the first byte.
    pub(crate) fn iova(&self) -> u64 {
        self.buffer.iova()
    }

    /// Length in bytes, as asked for.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The content.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialized bytes that this value owns, as nobody else has the `DmaBuffer`; the device has no operation
        // on them, since what holds this value moves into the request.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().as_ptr(), self.len()) }
    }

    /// The content, to change.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.as_ptr().as_ptr(), self.len()) }
    }

    /// Makes the drop a leak (see [`DmaBuffer::leak`]): the device may still use the buffer, for its mkey could not be
    /// destroyed.
    pub(crate) fn leak_on_drop(&self) {
        self.buffer.leak_on_drop();
    }

    /// Takes a [`LocalPages::leak_on_drop`] back. Only for code that knows that the device is done with the buffer.
    pub(crate) fn free_on_drop(&self) {
        self.buffer.free_on_drop();
    }
}

impl DmaSpace {
    /// Zeroed pages for local use, of at least `len` bytes, that hold nothing else.
    ///
    /// # Errors
    /// As [`DmaSpace::alloc`].
    pub(crate) fn alloc_local(self: &Arc<Self>, len: usize) -> Result<LocalPages, DmaError> {
        Ok(LocalPages {
            buffer: self.alloc_units(len, self.granule(), &AllocOptions::default())?,
        })
    }
}
