//! Arenas: stretches of DMA memory that buffers are cut from.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::ranges::RangeSet;
use super::{DmaError, SharedMapping};

/// Buffers are cut from arenas in units of the device's page, also where the host's pages are larger.
pub(super) const UNIT: u64 = 4096;
/// An arena for small buffers: one huge page.
pub(super) const ARENA: u64 = 2 << 20;
/// Buffers from this size on get an arena of their own, as long as there are maps enough.
pub(super) const LARGE: u64 = 1 << 20;
/// The largest alignment that is worth having: the largest page of the CPUs and IOMMUs we know.
pub(super) const MOST_ALIGNMENT: u64 = 1 << 30;

/// Pages of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageKind {
    /// Normal pages, transparent huge pages where the kernel gives them.
    #[default]
    Normal,
    /// Reserved huge pages of 2 MiB. The buffer is [`AllocOptions::dedicated`](super::AllocOptions::dedicated).
    Huge2M,
    /// Reserved huge pages of 1 GiB. The buffer is [`AllocOptions::dedicated`](super::AllocOptions::dedicated).
    Huge1G,
}

impl PageKind {
    pub(super) fn huge_size(self) -> Option<u64> {
        match self {
            PageKind::Normal => None,
            PageKind::Huge2M => Some(2 << 20),
            PageKind::Huge1G => Some(1 << 30),
        }
    }
}

pub(super) struct ArenaState {
    pub(super) arena: Arc<Arena>,
    /// By offset in the arena.
    pub(super) free: RangeSet,
    /// From this offset on nothing was ever used, so it is still zero.
    pub(super) fresh: u64,
    pub(super) kind: ArenaKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ArenaKind {
    /// For any buffers; goes when empty.
    Shared,
    /// For any buffers; stays.
    Reserved,
    /// One buffer.
    Dedicated,
    /// Could not be unmapped; never used again.
    Stuck,
}

/// One memfd, mapped here and for the device.
pub(super) struct Arena {
    pub(super) iova: u64,
    pub(super) memory: SharedMapping,
    pub(super) fd: OwnedFd,
}

impl Arena {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn len(&self) -> u64 {
        self.memory.len() as u64
    }
}

impl ArenaState {
    pub(super) fn is_empty(&self) -> bool {
        self.free.is_exactly(0, self.arena.len() - 1)
    }

    fn alignment(span: u64) -> u64 {
        span.next_power_of_two().min(MOST_ALIGNMENT)
    }

    /// Whether a shared buffer of `span` bytes can be cut from this.
    pub(super) fn fits(&mut self, span: u64) -> bool {
        if !matches!(self.kind, ArenaKind::Shared | ArenaKind::Reserved) || self.free.largest() < span {
            return false;
        }
        match self.take(span) {
            Some(offset) => self.free.give(offset, span),
            None => false,
        }
    }

    pub(super) fn take(&mut self, span: u64) -> Option<u64> {
        // An arena that was made for an odd size has no place at the full alignment except its beginning.
        self.free.take(span, Self::alignment(span), 0)
    }
}

/// Makes DMA memory: a memfd of `len` bytes, sealed, mapped at a multiple of `align`.
pub(super) fn make_memory(
    len: u64,
    pages: PageKind,
    align: u64,
) -> Result<(OwnedFd, SharedMapping), DmaError> {
    let memory = |what| {
        move |e: rustix::io::Errno| DmaError::Memory {
            what,
            len,
            source: e.into(),
        }
    };
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match pages {
        PageKind::Normal => {}
        PageKind::Huge2M => flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        PageKind::Huge1G => flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
    }
    let huge_error = |source: std::io::Error| match pages.huge_size() {
        Some(page) => DmaError::NoHugePages { len, page, source },
        None => DmaError::Memory {
            what: "mapping of memory",
            len,
            source,
        },
    };
    let fd = memfd_create("ferroce-dma", flags).map_err(|e| huge_error(e.into()))?;
    ftruncate(&fd, len).map_err(memory("sizing of memory"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&fd, seals).map_err(memory("sealing of memory"))?;
    let size = usize::try_from(len).map_err(|_| DmaError::TooLong { len })?;
    let align = align.max(pages.huge_size().unwrap_or(0)) as usize;
    let mapping = SharedMapping::new(fd.as_fd(), 0, size, align).map_err(huge_error)?;
    if pages == PageKind::Normal && len >= ARENA {
        mapping.want_huge_pages();
    }
    Ok((fd, mapping))
}
