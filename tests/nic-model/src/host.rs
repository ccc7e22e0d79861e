//! The host's memory as the NIC reaches it: by I/O virtual address, inside what the host has mapped.
//!
//! ```text
//!   IOVA ──▶ map (span, rights) ──▶ file mapping + offset      host memory given as a file descriptor
//!                               └─▶ messages to the host       host memory given without one
//! ```
//! Each file is mapped once and whole, however many DMA maps point into it: QEMU with an IOMMU sends one map
//! per 4 KiB page, all with the same memfd.
//!
//! The host may change the bytes at any moment. All accesses copy, or are single aligned words: no reference
//! into host memory exists (see `host/shared.rs`, the model's only unsafe code).

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, Weak};

use ferroce_vfio_user::device::{DeviceError, DmaFd, DmaMap, DmaMessages, Sealing};
use smallvec::SmallVec;

mod shared;
mod slice;
mod words;

pub use slice::HostSlice;

use shared::FileMap;
use slice::{Backing, Region};

/// Most DMA maps at a time; as many as VFIO's type1 takes by default.
pub const MAX_MAPS: u32 = 65_535;
/// Most files that are mapped at a time, well below the kernel's own limit on mappings of a process.
pub const MAX_FILES: usize = 16_384;
/// Most address space of this process that the mapped files take together, in bytes: a quarter of what an
/// x86-64 process has, so that a host with huge sparse files does not starve the rest of it.
pub const MAX_MAPPED_BYTES: u64 = 32 << 40;
/// Events kept in the log of maps.
const LOG_EVENTS: usize = 4096;

/// What an access wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read host memory.
    Read,
    /// Write host memory.
    Write,
    /// Both, in one atomic operation.
    ReadWrite,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::ReadWrite => "read and write",
        })
    }
}

/// Why an access to host memory failed: what an IOMMU or the PCIe bus would refuse.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No DMA map there (any more).
    #[error("the host has not mapped {iova:#x} + {len:#x} for DMA")]
    Unmapped {
        /// First address that is not mapped.
        iova: u64,
        /// Bytes that were wanted from there on.
        len: u64,
    },
    /// The span passes the end of the address space.
    #[error("DMA of {len:#x} bytes at {iova:#x} passes 2^64")]
    Wraps {
        /// First address.
        iova: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The map's rights do not allow it.
    #[error("the host's DMA map {iova:#x} + {len:#x} does not allow the device to {access} it")]
    Denied {
        /// The map's first address.
        iova: u64,
        /// The map's length in bytes.
        len: u64,
        /// What was wanted.
        access: Access,
    },
    /// A word that does not lie at a multiple of its size.
    #[error("a word of {size} bytes at {iova:#x} is not aligned to its size")]
    Misaligned {
        /// Address of the word.
        iova: u64,
        /// Its size in bytes.
        size: u64,
    },
    /// An access past the end of a slice.
    #[error("access of {len} bytes at {at} leaves a host slice of {slice} bytes")]
    OutOfSlice {
        /// Offset in the slice.
        at: usize,
        /// Length of the access in bytes.
        len: usize,
        /// Length of the slice in bytes.
        slice: usize,
    },
    /// Memory without a file descriptor, and a host that serves no DMA messages.
    #[error("the DMA map at {iova:#x} has no file descriptor and the host serves no DMA messages")]
    NoMessages {
        /// The map's first address.
        iova: u64,
    },
    /// A DMA message failed.
    #[error("DMA by message failed")]
    Message(#[from] DeviceError),
}

/// One DMA map, for tests and diagnosis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapInfo {
    /// First IOVA.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// The device may read it.
    pub readable: bool,
    /// The device may write it.
    pub writable: bool,
    /// It came with a file descriptor.
    pub has_fd: bool,
}

/// What happened to the set of maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapEvent {
    /// A map was made.
    Mapped(MapInfo),
    /// A map was taken away.
    Unmapped(MapInfo),
    /// All maps were taken away.
    Cleared,
}

/// Counters of what was mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapCounters {
    /// Maps made.
    pub maps: u64,
    /// Maps taken away, one by one or all at once.
    pub unmaps: u64,
    /// Maps and unmaps that were refused.
    pub refused: u64,
    /// Most maps at a time.
    pub peak_maps: u64,
    /// Bytes mapped now.
    pub mapped_bytes: u64,
    /// Times a file was mapped into this process.
    pub files_mapped: u64,
    /// Maps of files that their owner can shrink (see [`Sealing::Shrinkable`]).
    pub shrinkable: u64,
}

/// A list of slices; short ones need no allocation.
pub type HostSlices = SmallVec<[HostSlice; 2]>;

/// What identifies a file's mapping: device, inode, and whether it is mapped writable.
type FileKey = (u64, u64, bool);

/// The host's memory.
///
/// Maps change through `&mut self`, accesses take `&self`; whoever shares it puts it behind one lock. Slices
/// that were handed out stay safe to use without the lock, and fail once their map is gone.
#[derive(Default)]
pub struct HostMemory {
    regions: BTreeMap<u64, Arc<Region>>,
    /// The region found last: descriptors of one queue lie together.
    last: RefCell<Option<Arc<Region>>>,
    files: HashMap<FileKey, Weak<FileMap>>,
    /// Address space taken by the mappings that are alive, also those that only slices hold.
    file_bytes: Arc<AtomicU64>,
    messages: Option<Arc<dyn DmaMessages>>,
    counters: MapCounters,
    log: VecDeque<MapEvent>,
}

impl HostMemory {
    /// Memory of which nothing is mapped.
    pub fn new() -> HostMemory {
        HostMemory::default()
    }

    /// Says who serves maps that come without a file descriptor. Holds for maps made from now on.
    pub fn set_messages(&mut self, messages: Option<Arc<dyn DmaMessages>>) {
        self.messages = messages;
    }

    /// Gives the device access to a span.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] (empty, or wraps), [`DeviceError::Overlaps`], [`DeviceError::TooManyMaps`],
    /// what [`DmaFd::check`] says of the file, [`DeviceError::Os`] when it can't be mapped. Nothing changes
    /// then.
    pub fn map(&mut self, map: DmaMap) -> Result<(), DeviceError> {
        let made = self.try_map(map);
        match made {
            Ok(info) => {
                self.counters.maps += 1;
                self.counters.mapped_bytes += info.len;
                self.counters.peak_maps = self.counters.peak_maps.max(self.regions.len() as u64);
                log::trace!("DMA map {:#x} + {:#x}", info.iova, info.len);
                self.record(MapEvent::Mapped(info));
                Ok(())
            }
            Err(e) => {
                self.counters.refused += 1;
                log::debug!("DMA map refused: {e}");
                Err(e)
            }
        }
    }

    fn try_map(&mut self, map: DmaMap) -> Result<MapInfo, DeviceError> {
        let DmaMap { iova, len, .. } = map;
        let last = len.checked_sub(1).and_then(|n| iova.checked_add(n));
        let last = last.ok_or(DeviceError::BadRange {
            what: "DMA map",
            start: iova,
            len,
        })?;
        if let Some(other) = self.first_overlap(iova, last) {
            return Err(DeviceError::Overlaps {
                iova,
                len,
                other_iova: other.iova,
                other_len: other.len,
            });
        }
        if self.regions.len() >= MAX_MAPS as usize {
            return Err(DeviceError::TooManyMaps { limit: MAX_MAPS });
        }
        let backing = match map.memory {
            Some(memory) => self.file_backing(memory, len, map.writable)?,
            None => Backing::Messages(self.messages.clone()),
        };
        let region = Region {
            iova,
            len,
            readable: map.readable,
            writable: map.writable,
            backing,
            live: RwLock::new(true),
        };
        let info = info_of(&region);
        self.regions.insert(iova, Arc::new(region));
        Ok(info)
    }

    /// Takes a map away; when it returns nobody touches its memory any more.
    ///
    /// # Errors
    /// [`DeviceError::NotMapped`] when nothing is there, [`DeviceError::PartialUnmap`] when the span is not
    /// exactly that of one map. Nothing changes then.
    pub fn unmap(&mut self, iova: u64, len: u64) -> Result<(), DeviceError> {
        if let Some(region) = self.regions.get(&iova).filter(|r| r.len == len) {
            let region = Arc::clone(region);
            self.regions.remove(&iova);
            *self.last.get_mut() = None;
            region.kill();
            log::trace!("DMA unmap {iova:#x} + {len:#x}");
            self.counters.unmaps += 1;
            self.counters.mapped_bytes -= len;
            self.record(MapEvent::Unmapped(info_of(&region)));
            return Ok(());
        }
        self.counters.refused += 1;
        let last = iova.saturating_add(len.saturating_sub(1));
        Err(match self.first_overlap(iova, last) {
            Some(other) => DeviceError::PartialUnmap {
                iova,
                len,
                map_iova: other.iova,
                map_len: other.len,
            },
            None => DeviceError::NotMapped { iova, len },
        })
    }

    /// Takes all maps away, as when the user is gone.
    pub fn clear(&mut self) {
        *self.last.get_mut() = None;
        for region in std::mem::take(&mut self.regions).into_values() {
            region.kill();
            self.counters.unmaps += 1;
        }
        log::trace!("DMA maps all gone");
        self.counters.mapped_bytes = 0;
        self.files.clear();
        self.record(MapEvent::Cleared);
    }

    /// The counters.
    pub fn counters(&self) -> MapCounters {
        self.counters
    }

    /// What is mapped now, by ascending address.
    pub fn maps(&self) -> Vec<MapInfo> {
        self.regions.values().map(|r| info_of(r)).collect()
    }

    /// The last few thousand changes, oldest first.
    pub fn log(&self) -> impl Iterator<Item = &MapEvent> {
        self.log.iter()
    }

    /// The slices that make up `len` bytes at `iova`, in order; none for a length of 0.
    ///
    /// # Errors
    /// [`HostError::Wraps`], [`HostError::Unmapped`] where a part is not mapped, [`HostError::Denied`].
    pub fn slices(&self, iova: u64, len: usize, access: Access) -> Result<HostSlices, HostError> {
        let mut out = HostSlices::new();
        self.slices_into(iova, len, access, &mut out)?;
        Ok(out)
    }

    /// As [`HostMemory::slices`], appending to `out`: for memory that an mkey makes of several pieces.
    ///
    /// # Errors
    /// As there; `out` may have grown then.
    pub fn slices_into(
        &self,
        iova: u64,
        len: usize,
        access: Access,
        out: &mut HostSlices,
    ) -> Result<(), HostError> {
        self.walk(iova, len, |region, offset, _, n| {
            region.check(access)?;
            out.push(HostSlice {
                region: Arc::clone(region),
                offset,
                len: n,
            });
            Ok(())
        })
    }

    /// Reads `out.len()` bytes at `iova`, in no order among them.
    ///
    /// # Errors
    /// As for [`HostMemory::slices`]; a DMA message failed.
    pub fn read(&self, iova: u64, out: &mut [u8]) -> Result<(), HostError> {
        self.walk(iova, out.len(), |region, offset, done, n| {
            region.read(offset, &mut out[done..done + n])
        })
    }

    /// Writes `bytes` at `iova`, in no order among them.
    ///
    /// # Errors
    /// As for [`HostMemory::read`]; what lies before the refused part has been written then.
    pub fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), HostError> {
        self.walk(iova, bytes.len(), |region, offset, done, n| {
            region.write(offset, &bytes[done..done + n])
        })
    }

    /// Calls `f(region, offset in it, bytes done, bytes)` for each piece of the span.
    fn walk(
        &self,
        iova: u64,
        len: usize,
        mut f: impl FnMut(&Arc<Region>, u64, usize, usize) -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        if len == 0 {
            return Ok(());
        }
        if iova.checked_add(len as u64 - 1).is_none() {
            return Err(HostError::Wraps {
                iova,
                len: len as u64,
            });
        }
        let mut done = 0;
        while done < len {
            let at = iova + done as u64;
            let n = self.with_region(at, (len - done) as u64, |region, offset| {
                let here = region.len - offset;
                let n = usize::try_from(here).map_or(len - done, |here| here.min(len - done));
                f(region, offset, done, n)?;
                Ok(n)
            })?;
            done += n;
        }
        Ok(())
    }

    /// Calls `f` with the region that holds `iova` and the offset in it. `len` is for the error.
    fn with_region<R>(
        &self,
        iova: u64,
        len: u64,
        f: impl FnOnce(&Arc<Region>, u64) -> Result<R, HostError>,
    ) -> Result<R, HostError> {
        if let Some(region) = self.last.borrow().as_ref()
            && (region.iova..=region.last()).contains(&iova)
        {
            return f(region, iova - region.iova);
        }
        let below = self.regions.range(..=iova).next_back().map(|(_, r)| r);
        let region = below
            .filter(|r| iova <= r.last())
            .ok_or(HostError::Unmapped { iova, len })?;
        // Only a cache: not worth a panic if `f` of an outer call has come back here.
        if let Ok(mut last) = self.last.try_borrow_mut() {
            *last = Some(Arc::clone(region));
        }
        f(region, iova - region.iova)
    }

    fn first_overlap(&self, iova: u64, last: u64) -> Option<&Region> {
        // Regions don't overlap each other, so that the lowest one that reaches into the span is either the
        // one that starts before it or the first that starts in it.
        let before = self.regions.range(..=iova).next_back().map(|(_, r)| r);
        let before = before.filter(|r| r.last() >= iova);
        let inside = || self.regions.range(iova..=last).next().map(|(_, r)| r);
        before.or_else(inside).map(|r| r.as_ref())
    }

    /// The mapping of the file behind `memory`, shared with other maps of the same file.
    fn file_backing(&mut self, memory: DmaFd, len: u64, writable: bool) -> Result<Backing, DeviceError> {
        if memory.check(len)? == Sealing::Shrinkable {
            self.counters.shrinkable += 1;
            if self.counters.shrinkable == 1 {
                log::warn!("the host's memory can be shrunk by its owner, which would end this process");
            }
        }
        let os = |what| move |e: std::io::Error| DeviceError::os(what, e);
        let offset = usize::try_from(memory.offset);
        let offset = offset.map_err(|_| DeviceError::BadRange {
            what: "offset in the DMA file",
            start: memory.offset,
            len,
        })?;
        let file = File::from(memory.fd);
        let meta = file.metadata().map_err(os("fstat of the DMA file"))?;
        // While a mapping lives its inode does too, so that the key can't name another file meanwhile.
        let key = (meta.dev(), meta.ino(), writable);
        let end = memory.offset + len;
        if let Some(map) = self.files.get(&key).and_then(Weak::upgrade)
            && map.len() as u64 >= end
        {
            return Ok(Backing::File { map, offset });
        }
        if self.files.len() >= MAX_FILES {
            self.files.retain(|_, map| map.strong_count() > 0);
            if self.files.len() >= MAX_FILES {
                return Err(DeviceError::Unsupported {
                    what: "DMA memory in more than 16384 files",
                });
            }
        }
        let taken = self.file_bytes.load(Ordering::Relaxed);
        if meta.len() > MAX_MAPPED_BYTES - taken.min(MAX_MAPPED_BYTES) {
            return Err(DeviceError::Unsupported {
                what: "more than 32 TiB of DMA memory in files",
            });
        }
        let map = FileMap::new(&file, meta.len(), writable, &self.file_bytes)
            .map_err(os("mmap of the DMA file"))?;
        let map = Arc::new(map);
        self.counters.files_mapped += 1;
        self.files.insert(key, Arc::downgrade(&map));
        Ok(Backing::File { map, offset })
    }

    fn record(&mut self, event: MapEvent) {
        if self.log.len() == LOG_EVENTS {
            self.log.pop_front();
        }
        self.log.push_back(event);
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory")
            .field("maps", &self.regions.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.clear();
    }
}

fn info_of(region: &Region) -> MapInfo {
    MapInfo {
        iova: region.iova,
        len: region.len,
        readable: region.readable,
        writable: region.writable,
        has_fd: matches!(region.backing, Backing::File { .. }),
    }
}

/// Host memory for unit tests.
#[cfg(test)]
pub(crate) mod test_support {
    use ferroce_vfio_user::device::{DmaFd, DmaMap};
    use rustix::fs::MemfdFlags;

    use super::HostMemory;

    /// `len` zeroed bytes, mapped for reading and writing at `iova`.
    pub(crate) fn host_memory(iova: u64, len: u64) -> HostMemory {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let fd = rustix::fs::memfd_create("host", flags).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        let mut host = HostMemory::new();
        let memory = Some(DmaFd { fd, offset: 0 });
        host.map(DmaMap {
            iova,
            len,
            readable: true,
            writable: true,
            memory,
        })
        .unwrap();
        host
    }
}

#[cfg(test)]
mod tests;
