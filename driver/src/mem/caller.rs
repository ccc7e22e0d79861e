//! Memory that the program brings: mapped where it lies, never moved, never freed here.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{DmaError, DmaSpace};
use crate::function::HostPages;

/// A piece of memory of the program.
#[derive(Clone, Copy, Debug)]
pub struct CallerMemory<'a> {
    /// Address of the first byte; need not be a page's.
    pub va: NonNull<u8>,
    /// Length in bytes.
    pub len: usize,
    /// The file that is mapped there, and the offset of the first byte in it. Required where the device is another
    /// process or an object in this one (vfio-user, in-process); not needed for VFIO.
    pub file: Option<(BorrowedFd<'a>, u64)>,
}

/// A piece of the program's memory as the device sees it. Dropping takes the device's access away, with the last piece
/// of those that were mapped as one.
pub struct CallerMapping {
    iova: u64,
    len: usize,
    va: NonNull<u8>,
    map: Arc<CallerMap>,
}

// SAFETY: the address is given out, never dereferenced.
unsafe impl Send for CallerMapping {}
// SAFETY: as for Send.
unsafe impl Sync for CallerMapping {}

/// One IOMMU map over adjacent pieces.
struct CallerMap {
    iova: u64,
    len: u64,
    retire: AtomicBool,
    space: Arc<DmaSpace>,
}

impl fmt::Debug for CallerMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CallerMapping {{ iova: {:#x}, len: {:#x}, va: {:p} }}",
            self.iova, self.len, self.va
        )
    }
}

impl CallerMapping {
    /// I/O virtual address of the first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an empty piece is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte in this process.
    pub fn va(&self) -> NonNull<u8> {
        self.va
    }

    /// The device may go on to use these addresses after the mapping (with all that were merged with it) is dropped. Its
    /// access to the memory is then taken away as always, but the addresses are never given to other memory.
    pub fn retire_on_drop(&self) {
        self.map.retire.store(true, Relaxed);
    }

    /// The space that it is mapped in.
    pub fn space(&self) -> &Arc<DmaSpace> {
        &self.map.space
    }
}

impl Drop for CallerMap {
    fn drop(&mut self) {
        let retire = *self.retire.get_mut();
        self.space.unmap_caller(self.iova, self.len, retire);
    }
}

/// Whole pages of adjacent pieces, to be mapped as one.
struct Group<'a> {
    start: usize,
    end: usize,
    file: Option<(BorrowedFd<'a>, u64)>,
}

impl<'a> Group<'a> {
    fn new(piece: &CallerMemory<'a>, page: u64) -> Result<Group<'a>, DmaError> {
        let (va, len) = (piece.va.as_ptr() as usize, piece.len);
        let size = page as usize;
        let start = va / size * size;
        let end = va
            .checked_add(len)
            .and_then(|end| end.checked_next_multiple_of(size));
        let end = end.ok_or(DmaError::TooLong { len: len as u64 })?;
        let file = match piece.file {
            // The file's page has to be the memory's page.
            Some((fd, offset)) => match offset.checked_sub((va - start) as u64) {
                Some(first) if first.is_multiple_of(page) => Some((fd, first)),
                _ => return Err(DmaError::NotPages { va, len, page }),
            },
            None => None,
        };
        Ok(Group { start, end, file })
    }

    /// Takes `next` in if it goes on where this ends (or within the last page), in memory and in the file.
    fn merge(&mut self, next: &Group<'a>) -> bool {
        let adjacent = next.start >= self.start && next.start <= self.end;
        let same_file = match (&self.file, &next.file) {
            (None, None) => true,
            (Some((fd, first)), Some((other, other_first))) => {
                let distance = next.start.wrapping_sub(self.start) as u64;
                fd.as_raw_fd() == other.as_raw_fd() && first.checked_add(distance) == Some(*other_first)
            }
            _ => false,
        };
        if adjacent && same_file {
            self.end = self.end.max(next.end);
        }
        adjacent && same_file
    }
}

impl DmaSpace {
    /// Maps memory that the program brings. Pieces that follow each other in memory (and file) cost one IOMMU map
    /// together; give them in ascending order, in one call. One mapping is given back for each piece, in order.
    ///
    /// The IOMMU knows whole pages only, so the device can reach everything in the pages that a piece touches; what
    /// lies beside it in its first and last page is protected by mkeys alone.
    ///
    /// # Safety
    /// For each piece, until its [`CallerMapping`] (and those of all pieces that were merged with it) is dropped. Where the
    /// device's access is then not known to be taken away, or was not known to be given (an error here), which
    /// [`DmaSpace::leaked_bytes`] tells by growing by it, until the function's last reference is dropped and the process that
    /// serves the function (vfio-user), if there is one, has ended:
    /// - all pages that it touches stay mapped at `va`, with the same content behind them (not unmapped, remapped or
    ///   given `MADV_DONTNEED`); a `file` is not shortened, and is what is mapped (shared) at `va`;
    /// - the program reads or writes those bytes only in ways that allow for a change at any time (volatile, atomic,
    ///   copies by foreign code), never through `&[u8]` or `&mut [u8]`, unless it knows that no operation that could
    ///   touch them, of this side or of a peer, is under way;
    /// - no secrets lie in the rest of the pages that the device should not see.
    ///
    /// A child made by `fork` gets copies of pinned anonymous pages (Linux 5.12 and later; before that, the parent's
    /// next write may move the page away from the device, which `MADV_DONTFORK` on the memory prevents).
    ///
    /// # Errors
    /// [`DmaError::ZeroLength`], [`DmaError::NotPages`] where a file's offset doesn't fit the address,
    /// [`DmaError::MappingLimit`], [`DmaError::IovaExhausted`], or what the function says (such as
    /// [`FunctionError::NeedsFd`](crate::function::FunctionError::NeedsFd)). Nothing stays mapped then that
    /// [`DmaSpace::leaked_bytes`] does not tell of, as it does of
    /// [`FunctionError::MapUnknown`](crate::function::FunctionError::MapUnknown).
    pub unsafe fn map_caller(
        self: &Arc<Self>,
        pieces: &[CallerMemory<'_>],
    ) -> Result<Vec<CallerMapping>, DmaError> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut group_of = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if piece.len == 0 {
                return Err(DmaError::ZeroLength);
            }
            let group = Group::new(piece, self.granule())?;
            if !groups.last_mut().is_some_and(|last| last.merge(&group)) {
                groups.push(group);
            }
            group_of.push(groups.len() - 1);
        }
        // An error drops those that are done, which unmaps them.
        let maps = groups
            .iter()
            .map(|group| self.map_group(group))
            .collect::<Result<Vec<_>, _>>()?;
        let mapping = |(piece, group): (&CallerMemory<'_>, usize)| {
            let map = maps.get(group)?.clone();
            let distance = piece.va.as_ptr() as usize - groups.get(group)?.start;
            Some(CallerMapping {
                iova: map.iova + distance as u64,
                len: piece.len,
                va: piece.va,
                map,
            })
        };
        Ok(pieces.iter().zip(group_of).filter_map(mapping).collect())
    }

    fn map_group(self: &Arc<Self>, group: &Group<'_>) -> Result<Arc<CallerMap>, DmaError> {
        let len = (group.end - group.start) as u64;
        let va = NonNull::new(group.start as *mut u8).ok_or(DmaError::NotPages {
            va: group.start,
            len: len as usize,
            page: self.granule(),
        })?;
        // SAFETY: promised by the caller of `map_caller`.
        let memory = unsafe { HostPages::new(va, len, group.file) };
        let iova = self.map_pages(&memory)?;
        Ok(Arc::new(CallerMap {
            iova,
            len,
            retire: AtomicBool::new(false),
            space: self.clone(),
        }))
    }
}
