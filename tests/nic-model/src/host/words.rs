//! Single words of host memory, where order or atomicity matters.

use ferroce_vfio_user::device::DmaMessages;

use super::shared::FileMap;
use super::{Access, HostError, HostMemory};

impl HostMemory {
    /// One access of `size` bytes, by `file` to mapped memory or by `other` through messages.
    fn word<R>(
        &self,
        iova: u64,
        size: u64,
        access: Access,
        file: impl FnOnce(&FileMap, usize) -> Option<R>,
        other: impl FnOnce(&dyn DmaMessages, u64) -> Result<R, HostError>,
    ) -> Result<R, HostError> {
        self.with_region(iova, size, |region, offset| {
            region.word(offset, size, access, file, other)
        })
    }

    /// Writes an entry whose last byte says that it is valid (CQE, EQE, command queue entry): whoever sees
    /// the new last byte sees the rest too.
    ///
    /// # Errors
    /// As for [`HostMemory::write`].
    pub fn publish(&self, iova: u64, entry: &[u8]) -> Result<(), HostError> {
        let Some((&owner, body)) = entry.split_last() else {
            return Ok(());
        };
        self.write(iova, body)?;
        // `write` has refused a span that wraps, but not for the byte after it.
        let at = iova.checked_add(body.len() as u64);
        let at = at.ok_or(HostError::Wraps {
            iova,
            len: entry.len() as u64,
        })?;
        self.write_u8_release(at, owner)
    }

    /// Reads one byte; reads after it see what its writer wrote before it.
    ///
    /// # Errors
    /// As for [`HostMemory::read`].
    pub fn read_u8_acquire(&self, iova: u64) -> Result<u8, HostError> {
        self.word(iova, 1, Access::Read, FileMap::load_u8, |link, iova| {
            let mut b = [0];
            link.read(iova, &mut b)?;
            Ok(b[0])
        })
    }

    /// Writes one byte; whoever sees it sees all that was written before.
    ///
    /// # Errors
    /// As for [`HostMemory::write`].
    pub fn write_u8_release(&self, iova: u64, value: u8) -> Result<(), HostError> {
        let store = |map: &FileMap, at| map.store_u8(at, value);
        self.word(iova, 1, Access::Write, store, |link, iova| {
            Ok(link.write(iova, &[value])?)
        })
    }

    /// Reads an aligned big-endian 32-bit word in one access, with acquire order.
    ///
    /// # Errors
    /// As for [`HostMemory::read`]; [`HostError::Misaligned`].
    pub fn read_be32(&self, iova: u64) -> Result<u32, HostError> {
        let load = |map: &FileMap, at| map.load_u32(at).map(u32::from_be);
        self.word(iova, 4, Access::Read, load, |link, iova| {
            let mut b = [0; 4];
            link.read(iova, &mut b)?;
            Ok(u32::from_be_bytes(b))
        })
    }

    /// Writes an aligned big-endian 32-bit word in one access, with release order.
    ///
    /// # Errors
    /// As for [`HostMemory::write`]; [`HostError::Misaligned`].
    pub fn write_be32(&self, iova: u64, value: u32) -> Result<(), HostError> {
        let store = |map: &FileMap, at| map.store_u32(at, value.to_be());
        self.word(iova, 4, Access::Write, store, |link, iova| {
            Ok(link.write(iova, &value.to_be_bytes())?)
        })
    }

    /// Reads an aligned big-endian 64-bit word in one access, with acquire order.
    ///
    /// # Errors
    /// As for [`HostMemory::read`]; [`HostError::Misaligned`].
    pub fn read_be64(&self, iova: u64) -> Result<u64, HostError> {
        let load = |map: &FileMap, at| map.load_u64(at).map(u64::from_be);
        self.word(iova, 8, Access::Read, load, |link, iova| {
            let mut b = [0; 8];
            link.read(iova, &mut b)?;
            Ok(u64::from_be_bytes(b))
        })
    }

    /// Writes an aligned big-endian 64-bit word in one access, with release order.
    ///
    /// # Errors
    /// As for [`HostMemory::write`]; [`HostError::Misaligned`].
    pub fn write_be64(&self, iova: u64, value: u64) -> Result<(), HostError> {
        let store = |map: &FileMap, at| map.store_u64(at, value.to_be());
        self.word(iova, 8, Access::Write, store, |link, iova| {
            Ok(link.write(iova, &value.to_be_bytes())?)
        })
    }

    /// Adds to the aligned 64-bit word at `iova`, in the host's own byte order, wrapping; gives the value
    /// before. Atomic also against the host's CPUs, but not over DMA messages.
    ///
    /// # Errors
    /// As for [`HostMemory::read`] and [`HostMemory::write`]; [`HostError::Misaligned`].
    pub fn fetch_add(&self, iova: u64, add: u64) -> Result<u64, HostError> {
        self.update(iova, |old| old.wrapping_add(add))
    }

    /// Replaces the aligned 64-bit word at `iova`, in the host's own byte order, by `swap` if it is `compare`;
    /// gives the value before. Atomic as [`HostMemory::fetch_add`] is.
    ///
    /// # Errors
    /// As for [`HostMemory::fetch_add`].
    pub fn compare_swap(&self, iova: u64, compare: u64, swap: u64) -> Result<u64, HostError> {
        self.update(iova, |old| if old == compare { swap } else { old })
    }

    /// Replaces the aligned 64-bit word at `iova`, in the host's own byte order, by `f` of it (called once or
    /// more); gives the value before. Atomic as [`HostMemory::fetch_add`] is.
    ///
    /// # Errors
    /// As for [`HostMemory::fetch_add`].
    pub fn update(&self, iova: u64, f: impl Fn(u64) -> u64) -> Result<u64, HostError> {
        let in_file = |map: &FileMap, at| map.update_u64(at, &f);
        self.word(iova, 8, Access::ReadWrite, in_file, |link, iova| {
            let mut b = [0; 8];
            link.read(iova, &mut b)?;
            let old = u64::from_ne_bytes(b);
            link.write(iova, &f(old).to_ne_bytes())?;
            Ok(old)
        })
    }
}
