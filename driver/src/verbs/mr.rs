//! Memory regions: memory that work requests name, and peers may reach.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ferroce_firmware_iface::command::Command;
use ferroce_hw_regs::ids::Mkey;

use super::atomics::AtomicOrder;
use super::error::{CreateError, DestroyError, made};
use super::mkey::{self, Access, KeyKind};
use super::pd::Pd;
use crate::mem::{AllocOptions, CallerMapping, CallerMemory, DmaBuffer, DmaError};
use crate::reaper::Destroy;
use crate::ring::{Lkey, PostError, RemoteAddr, Sge};

/// What both kinds of region are.
struct Region {
    key: Mkey,
    start: u64,
    len: usize,
    access: Access,
    /// Firmware has the key no more.
    gone: bool,
    pd: Pd,
}

impl Region {
    fn sge(&self, range: Range<usize>) -> Result<Sge, PostError> {
        let (start, end, len) = (range.start as u64, range.end as u64, self.len as u64);
        let outside = PostError::OutOfBuffer { start, end, len };
        if start > end || end > len {
            return Err(outside);
        }
        // PANIC: none; `create` chose the low byte so that this is a region's key.
        let lkey = Lkey::new(self.key.0).ok_or(outside)?;
        let bytes = u32::try_from(end - start);
        let bytes = bytes.map_err(|_| PostError::MessageTooLong {
            asked: end - start,
            max: u32::MAX.into(),
        })?;
        Ok(Sge::new(self.start + start, bytes, lkey))
    }

    fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr {
            addr: self.start.wrapping_add(offset as u64),
            rkey: self.key.0,
        }
    }

    fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("start", &format_args!("{:#x}", self.start))
            .field("len", &format_args!("{:#x}", self.len))
            .field("key", &format_args!("{:#x}", self.key.0))
            .field("access", &self.access)
            .finish()
    }
}

macro_rules! region_methods {
    () => {
        /// Address of the first byte, as work requests of both sides count it. It is no virtual address of this process.
        pub fn addr(&self) -> u64 {
            self.region.start
        }

        /// Length in bytes.
        pub fn len(&self) -> usize {
            self.region.len
        }

        /// Never true: there are no empty regions.
        pub fn is_empty(&self) -> bool {
            self.region.len == 0
        }

        /// What it may be used for.
        pub fn access(&self) -> Access {
            self.region.access
        }

        /// Key for this side's own requests; [`Sge`]s made by `sge` hold it already.
        pub fn lkey(&self) -> u32 {
            self.region.key.0
        }

        /// Key for the peer's requests. What they may do is up to the region's [`Access`].
        pub fn rkey(&self) -> u32 {
            self.region.key.0
        }

        /// The protection domain.
        pub fn pd(&self) -> &Pd {
            &self.region.pd
        }

        /// The scatter/gather element for a part of the region.
        ///
        /// # Errors
        /// [`PostError::OutOfBuffer`], or [`PostError::MessageTooLong`] from 4 GiB on.
        pub fn sge(&self, range: Range<usize>) -> Result<Sge, PostError> {
            self.region.sge(range)
        }

        /// What a peer has to be told to reach the byte at `offset`.
        pub fn remote(&self, offset: usize) -> RemoteAddr {
            self.region.remote(offset)
        }
    };
}

/// A memory region in memory of the driver's.
///
/// The NIC, and with remote access a peer, may read and write it at any time, so its bytes are copied in and out, and
/// never shown as a slice. For data of this side only, [`LocalBuffer`](super::LocalBuffer) does without the copies.
///
/// Dropping ends the key first and takes the device's access to the memory away after that; a request that still names
/// the region fails with a protection error. So no request needs to hold the region.
///
/// ```compile_fail
/// # use ferroce::verbs::{Access, Mr, Pd};
/// # fn typed_regions_do_not_exist(pd: &Pd) {
/// // A region holds bytes; a peer could write anything into a `bool`, a reference or a `Vec`.
/// let region: Mr<Vec<u8>> = Mr::alloc(pd, 4096, Access::all()).unwrap();
/// # }
/// ```
pub struct Mr {
    region: Region,
    buffer: Arc<DmaBuffer>,
}

impl Mr {
    /// Allocates `len` bytes, zeroed, and registers them.
    ///
    /// # Errors
    /// [`CreateError::ZeroLength`], [`CreateError::Limit`] above the device's `log_max_mrw_sz`,
    /// [`CreateError::NeedsLocalWrite`], [`CreateError::Capability`] for atomics that the device doesn't do, or what memory
    /// or firmware say. Nothing stays allocated then.
    pub fn alloc(pd: &Pd, len: usize, access: Access) -> Result<Mr, CreateError> {
        Mr::alloc_with(pd, len, access, &AllocOptions::default())
    }

    /// As [`Mr::alloc`], with options for the memory, such as huge pages.
    ///
    /// # Errors
    /// As [`Mr::alloc`].
    pub fn alloc_with(
        pd: &Pd,
        len: usize,
        access: Access,
        options: &AllocOptions,
    ) -> Result<Mr, CreateError> {
        Mr::make(pd, len, access, options, KeyKind::Region)
    }

    /// As [`Mr::alloc`], a region whose key a peer may end, by a SEND with invalidate
    /// ([`SendOp::SendInvalidate`](super::SendOp::SendInvalidate)). Requests of both sides that name the region fail from
    /// then on; the memory can still be read and written here.
    ///
    /// # Errors
    /// As [`Mr::alloc`].
    pub fn alloc_invalidatable(pd: &Pd, len: usize, access: Access) -> Result<Mr, CreateError> {
        Mr::make(pd, len, access, &AllocOptions::default(), KeyKind::Invalidatable)
    }

    fn make(
        pd: &Pd,
        len: usize,
        access: Access,
        options: &AllocOptions,
        kind: KeyKind,
    ) -> Result<Mr, CreateError> {
        mkey::check_len(pd, len)?;
        let buffer = Arc::new(pd.context().dma().alloc_with(len, options)?);
        let start = buffer.iova();
        let key = mkey::create(pd, start, len, access, kind);
        let key = made(key, || buffer.leak_on_drop())?;
        Ok(Mr {
            region: Region {
                key,
                start,
                len,
                access,
                gone: false,
                pd: pd.clone(),
            },
            buffer,
        })
    }

    region_methods!();

    /// Copies `to.len()` bytes at `offset` out. What the device or a peer writes at the same time may be seen in part.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`].
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), DmaError> {
        self.buffer.read(offset, to)
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), DmaError> {
        self.buffer.write(offset, from)
    }

    /// Sets `len` bytes at `offset` to `value`.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`].
    pub fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), DmaError> {
        self.buffer.fill(offset, len, value)
    }

    /// Reads the aligned 8 bytes at `offset` by one access, as the number that atomics of peers work on (host order).
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`] or [`DmaError::Misaligned`].
    pub fn read_u64(&self, offset: usize) -> Result<u64, DmaError> {
        Ok(u64::from_ne_bytes(self.buffer.read_be64(offset)?.to_be_bytes()))
    }

    /// Writes the aligned 8 bytes at `offset` by one access, as the number that atomics of peers work on (host order).
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`] or [`DmaError::Misaligned`].
    pub fn write_u64(&self, offset: usize, value: u64) -> Result<(), DmaError> {
        self.buffer
            .write_be64(offset, u64::from_be_bytes(value.to_ne_bytes()))
    }

    /// The result of an atomic of this side that went to the aligned 8 bytes at `offset`, in host order. The NIC may write
    /// it in another order than the host's, so [`Mr::read_u64`] is not the same.
    ///
    /// # Errors
    /// [`DmaError::OutOfRange`] or [`DmaError::Misaligned`].
    pub fn atomic_result(&self, offset: usize) -> Result<u64, DmaError> {
        let bytes = self.buffer.read_be64(offset)?.to_be_bytes();
        Ok(AtomicOrder::of(self.region.pd.context().caps()).decode(bytes))
    }

    /// Ends the registration and frees the memory, and says whether that worked.
    ///
    /// # Errors
    /// [`DestroyError::Command`]; the memory stays allocated then.
    pub fn dereg(mut self) -> Result<(), DestroyError> {
        self.region.gone = true;
        let done = self.region.pd.context().exec(&mkey::destroy(self.region.key));
        if done.is_err() {
            self.buffer.leak_on_drop();
        }
        Ok(done?)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.region.gone {
            return;
        }
        let what = self.region.key.to_string();
        let commands = mkey::destroy(self.region.key).encode().into_iter().collect();
        let memory = vec![self.buffer.clone()];
        self.region.pd.context().reaper().submit(Destroy {
            what,
            commands,
            memory,
            keep: None,
            done: None,
        });
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.describe("Mr", f)
    }
}

/// A memory region in memory that the program brings.
///
/// The program accesses the memory itself; the contract is at [`CallerMr::register`]. Dropping waits for firmware to end
/// the key, and takes the device's access away.
pub struct CallerMr {
    region: Region,
    mapping: CallerMapping,
}

impl CallerMr {
    /// Registers `memory`.
    ///
    /// Only whole pages can be kept from the device by the IOMMU; what lies beside the memory in its first and last page
    /// is kept from it by the key alone.
    ///
    /// # Safety
    /// The contract of [`DmaSpace::map_caller`](crate::mem::DmaSpace::map_caller), from the call until the region is
    /// dropped or [`CallerMr::dereg`] has returned. In short: the pages stay mapped where they are, and are not
    /// accessed through Rust references while a request of this side or of a peer may use them.
    ///
    /// # Errors
    /// As [`Mr::alloc`], and what the way to the device asks of memory (a file behind it where the device is another
    /// process).
    #[allow(unsafe_code)] // Hands the caller's promise on.
    pub unsafe fn register(
        pd: &Pd,
        memory: &CallerMemory<'_>,
        access: Access,
    ) -> Result<CallerMr, CreateError> {
        mkey::check_len(pd, memory.len)?;
        // SAFETY: the caller keeps the contract until the region is dropped, which drops the mapping.
        let mut mappings = unsafe { pd.context().dma().map_caller(std::slice::from_ref(memory)) }?;
        // PANIC: none; one mapping comes back for one piece.
        let mapping = mappings.pop().ok_or(DmaError::ZeroLength)?;
        let (start, len) = (mapping.iova(), mapping.len());
        let key = mkey::create(pd, start, len, access, KeyKind::Region);
        let key = made(key, || mapping.retire_on_drop())?;
        Ok(CallerMr {
            region: Region {
                key,
                start,
                len,
                access,
                gone: false,
                pd: pd.clone(),
            },
            mapping,
        })
    }

    region_methods!();

    /// Ends the registration, and says whether that worked.
    ///
    /// # Errors
    /// [`DestroyError::Command`]; the device keeps a key that leads nowhere, since its access to the memory is taken away
    /// all the same.
    pub fn dereg(mut self) -> Result<(), DestroyError> {
        Ok(self.end()?)
    }

    fn end(&mut self) -> Result<(), crate::error::CommandError> {
        self.region.gone = true;
        let done = self.region.pd.context().exec(&mkey::destroy(self.region.key));
        if done.is_err() {
            // The device's access goes with the IOMMU's map; a key that lives on leads nowhere.
            self.mapping.retire_on_drop();
        }
        done
    }
}

impl Drop for CallerMr {
    fn drop(&mut self) {
        // Not by the reaper: the program may free the memory as soon as this returns.
        if !self.region.gone
            && let Err(error) = self.end()
        {
            log::error!(
                "{} over the program's memory could not be destroyed: {error}",
                self.region.key
            );
        }
    }
}

impl fmt::Debug for CallerMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.describe("CallerMr", f)
    }
}
