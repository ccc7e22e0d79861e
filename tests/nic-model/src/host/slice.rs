//! A run of host memory that can be held while a frame is under way.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use ferroce_vfio_user::device::DmaMessages;

use super::shared::FileMap;
use super::{Access, HostError};

/// One DMA map: a span of IOVA and the memory behind it.
///
/// `live` is read-locked during each access and write-locked by unmap, so that after unmap returns nothing
/// touches the memory any more, whoever still holds a [`HostSlice`].
pub(super) struct Region {
    pub iova: u64,
    pub len: u64,
    pub readable: bool,
    pub writable: bool,
    pub backing: Backing,
    pub live: RwLock<bool>,
}

/// Where a region's bytes are.
pub(super) enum Backing {
    /// In a mapped file, from `offset` on.
    File { map: Arc<FileMap>, offset: usize },
    /// At the other end of the connection; each access is a message.
    Messages(Option<Arc<dyn DmaMessages>>),
}

impl Region {
    /// Last byte's IOVA. A region is never empty, and never wraps.
    pub fn last(&self) -> u64 {
        self.iova + (self.len - 1)
    }

    /// Refuses what the map does not allow.
    pub fn check(&self, access: Access) -> Result<(), HostError> {
        let allowed = match access {
            Access::Read => self.readable,
            Access::Write => self.writable,
            Access::ReadWrite => self.readable && self.writable,
        };
        if allowed {
            return Ok(());
        }
        Err(HostError::Denied {
            iova: self.iova,
            len: self.len,
            access,
        })
    }

    /// Ends all access.
    pub fn kill(&self) {
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Runs `f` while the region cannot be unmapped.
    fn with_live<R>(&self, f: impl FnOnce() -> Result<R, HostError>) -> Result<R, HostError> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        if !*live {
            return Err(self.unmapped(0, self.len));
        }
        f()
    }

    fn unmapped(&self, offset: u64, len: u64) -> HostError {
        HostError::Unmapped {
            iova: self.iova.saturating_add(offset),
            len,
        }
    }

    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), HostError> {
        self.check(Access::Read)?;
        self.with_live(|| match &self.backing {
            Backing::File { map, offset: base } => file_offset(*base, offset)
                .and_then(|at| map.read(at, out))
                .ok_or_else(|| self.unmapped(offset, out.len() as u64)),
            Backing::Messages(link) => Ok(messages(link, self)?.read(self.iova + offset, out)?),
        })
    }

    pub fn append_to(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<(), HostError> {
        self.check(Access::Read)?;
        self.with_live(|| match &self.backing {
            Backing::File { map, offset: base } => file_offset(*base, offset)
                .and_then(|at| map.append_to(at, len, out))
                .ok_or_else(|| self.unmapped(offset, len as u64)),
            Backing::Messages(link) => {
                let start = out.len();
                out.resize(start + len, 0);
                Ok(messages(link, self)?.read(self.iova + offset, &mut out[start..])?)
            }
        })
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), HostError> {
        self.check(Access::Write)?;
        self.with_live(|| match &self.backing {
            Backing::File { map, offset: base } => file_offset(*base, offset)
                .and_then(|at| map.write(at, bytes))
                .ok_or_else(|| self.unmapped(offset, bytes.len() as u64)),
            Backing::Messages(link) => Ok(messages(link, self)?.write(self.iova + offset, bytes)?),
        })
    }

    /// One access of `size` bytes to file memory by `file`, or by messages with `other`.
    ///
    /// # Errors
    /// [`HostError::Misaligned`] when the word does not lie at a multiple of its size.
    pub fn word<R>(
        &self,
        offset: u64,
        size: u64,
        access: Access,
        file: impl FnOnce(&FileMap, usize) -> Option<R>,
        other: impl FnOnce(&dyn DmaMessages, u64) -> Result<R, HostError>,
    ) -> Result<R, HostError> {
        self.check(access)?;
        let iova = self.iova + offset;
        if !iova.is_multiple_of(size) {
            return Err(HostError::Misaligned { iova, size });
        }
        self.with_live(|| match &self.backing {
            Backing::File { map, offset: base } => {
                // A file offset that is not congruent to the IOVA misaligns the word too.
                let at = file_offset(*base, offset).ok_or_else(|| self.unmapped(offset, size))?;
                if !(at as u64).is_multiple_of(size) {
                    return Err(HostError::Misaligned { iova, size });
                }
                file(map, at).ok_or_else(|| self.unmapped(offset, size))
            }
            Backing::Messages(link) => other(messages(link, self)?.as_ref(), iova),
        })
    }
}

fn file_offset(base: usize, offset: u64) -> Option<usize> {
    base.checked_add(usize::try_from(offset).ok()?)
}

fn messages<'a>(
    link: &'a Option<Arc<dyn DmaMessages>>,
    region: &Region,
) -> Result<&'a Arc<dyn DmaMessages>, HostError> {
    link.as_ref().ok_or(HostError::NoMessages { iova: region.iova })
}

/// A run of host memory inside one DMA map: cheap to clone, and safe to keep after the host has unmapped the
/// memory (every access then fails with [`HostError::Unmapped`]).
#[derive(Clone)]
pub struct HostSlice {
    pub(super) region: Arc<Region>,
    pub(super) offset: u64,
    pub(super) len: usize,
}

impl HostSlice {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// IOVA of the first byte.
    pub fn iova(&self) -> u64 {
        self.region.iova + self.offset
    }

    /// The part `range` of it; `None` when `range` is not inside.
    pub fn slice(&self, range: Range<usize>) -> Option<HostSlice> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        Some(HostSlice {
            region: Arc::clone(&self.region),
            offset: self.offset + range.start as u64,
            len: range.end - range.start,
        })
    }

    /// Copies `out.len()` bytes from `at` on out of host memory.
    ///
    /// # Errors
    /// [`HostError::OutOfSlice`]; the host has unmapped the memory; it may not be read; a message failed.
    pub fn copy_to(&self, at: usize, out: &mut [u8]) -> Result<(), HostError> {
        self.inside(at, out.len())?;
        self.region.read(self.offset + at as u64, out)
    }

    /// Appends `len` bytes from `at` on to `out`.
    ///
    /// # Errors
    /// As for [`HostSlice::copy_to`]; what `out` holds behind its old end is unspecified then.
    pub fn append_to(&self, at: usize, len: usize, out: &mut Vec<u8>) -> Result<(), HostError> {
        self.inside(at, len)?;
        self.region.append_to(self.offset + at as u64, len, out)
    }

    /// Copies `bytes` into host memory from `at` on.
    ///
    /// # Errors
    /// As for [`HostSlice::copy_to`], with "written" for "read".
    pub fn copy_from(&self, at: usize, bytes: &[u8]) -> Result<(), HostError> {
        self.inside(at, bytes.len())?;
        self.region.write(self.offset + at as u64, bytes)
    }

    /// Copies `len` bytes from `source` into this slice, in one pass where both are mapped.
    ///
    /// # Errors
    /// As for [`HostSlice::copy_to`] on `source` and [`HostSlice::copy_from`] on `self`.
    pub fn copy_from_slice(
        &self,
        at: usize,
        source: &HostSlice,
        source_at: usize,
        len: usize,
    ) -> Result<(), HostError> {
        self.inside(at, len)?;
        source.inside(source_at, len)?;
        if let (
            Backing::File { .. },
            Backing::File {
                map: from,
                offset: from_base,
            },
        ) = (&self.region.backing, &source.region.backing)
        {
            return self.copy_mapped(at, source, from, *from_base, source_at, len);
        }
        let mut chunk = [0; 4096];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(chunk.len());
            source.copy_to(source_at + done, &mut chunk[..n])?;
            self.copy_from(at + done, &chunk[..n])?;
            done += n;
        }
        Ok(())
    }

    fn copy_mapped(
        &self,
        at: usize,
        source: &HostSlice,
        from: &FileMap,
        from_base: usize,
        source_at: usize,
        len: usize,
    ) -> Result<(), HostError> {
        self.region.check(Access::Write)?;
        source.region.check(Access::Read)?;
        let copy = || {
            let Backing::File { map, offset } = &self.region.backing else {
                return None;
            };
            let to_at = file_offset(*offset, self.offset + at as u64)?;
            let from_at = file_offset(from_base, source.offset + source_at as u64)?;
            map.copy_from(to_at, from, from_at, len)
        };
        let checked = || copy().ok_or_else(|| self.region.unmapped(self.offset, len as u64));
        // A second read lock on one region could wait for ever behind a waiting unmap. Two threads that lock
        // two regions in opposite order cannot: both take read locks, and unmap takes only one.
        if Arc::ptr_eq(&self.region, &source.region) {
            return self.region.with_live(checked);
        }
        let (a, b) = if Arc::as_ptr(&self.region) < Arc::as_ptr(&source.region) {
            (&self.region, &source.region)
        } else {
            (&source.region, &self.region)
        };
        a.with_live(|| b.with_live(checked))
    }

    fn inside(&self, at: usize, len: usize) -> Result<(), HostError> {
        if at.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        Err(HostError::OutOfSlice {
            at,
            len,
            slice: self.len,
        })
    }
}

impl fmt::Debug for HostSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostSlice({:#x}, {} bytes)", self.iova(), self.len)
    }
}
