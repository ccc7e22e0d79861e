//! The one seam to the hardware: a PCI function.
//!
//! ```text
//!                    dyn PciFunction
//!        +-----------------+-----------------+
//!   vfio (kernel)     vfio_user (socket)   in_process (object)
//! ```
//!
//! The rest of the driver sees config space, BAR 0, MSI-X as eventfds, DMA maps, reset, and whether the function is
//! gone. It does not know which of the three it has.
//!
//! `unsafe` is allowed here for system calls that take addresses (maps of BARs and of DMA memory).
#![allow(unsafe_code)]

mod address;
mod error;
#[cfg(test)]
pub(crate) mod fake;
mod in_process;
mod owner;
mod software;
mod vfio;
mod vfio_user;

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use address::{FunctionAddress, PciAddress};
pub use error::{FunctionError, GoneReason};
pub use in_process::InProcess;
pub(crate) use owner::Owner;
pub use vfio::Vfio;
pub(crate) use vfio::{Roots, VFIO_DRIVERS, link_name};
pub use vfio_user::VfioUser;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::mmio::Mmio;

/// Bytes of a PCI Express function's configuration space.
pub const CONFIG_SPACE_BYTES: u16 = 4096;

mod leave {
    /// Leave to do what decides which memory a function reaches. Nobody outside of this crate has it, or can name it.
    #[derive(Clone, Copy, Debug)]
    pub struct Leave(pub(crate) ());
}
pub(crate) use leave::Leave;

/// This driver's leave to do to its functions what no program may.
pub(crate) const LEAVE: Leave = Leave(());

/// A PCI function in the hands of this driver.
///
/// All methods may be called from any thread. Dropping the last reference gives the function back: bus mastering is
/// turned off and DMA maps go.
///
/// Programs see what a function is, and whether it is there. Which memory it reaches is the business of the
/// [`DmaSpace`](crate::mem::DmaSpace) alone, of which there is one: an address that was taken from a map and given to
/// other memory would let the device, and through it a peer, write to that. So the methods that ask for a `Leave` can't be
/// called, and the trait can't be implemented, by others than this driver.
///
/// ```compile_fail,E0061
/// fn take_away(context: &ferroce::context::Context, iova: u64) {
///     let _ = context.function().dma_unmap(iova, 2 << 20);
/// }
/// ```
/// ```compile_fail,E0624
/// fn second(context: &ferroce::context::Context) {
///     let _ = ferroce::mem::DmaSpace::new(context.function().clone());
/// }
/// ```
/// ```
/// fn is_there(context: &ferroce::context::Context) -> bool {
///     context.function().gone().is_none()
/// }
/// ```
pub trait PciFunction: Send + Sync + fmt::Debug {
    /// The name it was opened by.
    fn address(&self) -> &FunctionAddress;

    /// Reads `data.len()` bytes of configuration space at `offset`; the bytes are little-endian as on the bus.
    ///
    /// # Errors
    /// [`FunctionError::OutOfRange`], or what the way to the function says.
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError>;

    /// Writes configuration space.
    ///
    /// # Errors
    /// As [`PciFunction::config_read`].
    fn config_write(&self, offset: u16, data: &[u8], leave: Leave) -> Result<(), FunctionError>;

    /// A handle on the whole of BAR 0.
    ///
    /// # Errors
    /// [`FunctionError::NoBar`], or a map that failed.
    fn bar0(&self) -> Result<Mmio, FunctionError>;

    /// Number of MSI-X vectors, at most 2048.
    fn msix_vectors(&self) -> u16;

    /// Gives vectors `first`, `first + 1`, ... these eventfds; `None` takes a vector's eventfd away. May be given any
    /// number of vectors; it is split into batches where the way to the function has a limit.
    ///
    /// # Errors
    /// [`FunctionError::NoSuchVector`], or what the way to the function says. Earlier batches stay set then.
    fn set_msix(&self, first: u16, eventfds: &[Option<BorrowedFd<'_>>]) -> Result<(), FunctionError>;

    /// What the IOMMU (or whatever stands in its place) can map.
    fn dma_limits(&self) -> &DmaLimits;

    /// Lets the device read and write `memory` at `iova`.
    ///
    /// # Errors
    /// [`FunctionError::MemoryLock`], [`FunctionError::MappingLimit`], [`FunctionError::NeedsFd`],
    /// [`FunctionError::Map`], [`FunctionError::Gone`] or [`FunctionError::Device`]: nothing is mapped then.
    /// [`FunctionError::MapUnknown`]: the device process may have the memory until it ends.
    fn dma_map(&self, iova: u64, memory: &HostPages<'_>, leave: Leave) -> Result<(), FunctionError>;

    /// Takes the access away; `iova` and `len` are those of one earlier map. On success the device no longer touches
    /// the memory, also where it has left.
    ///
    /// # Errors
    /// [`FunctionError::Unmap`] or [`FunctionError::Device`]: the device may still touch the memory.
    /// [`FunctionError::Gone`]: so may its process, until it ends; but what that has is the file that was mapped, so that
    /// memory whose file is nobody else's may go all the same.
    fn dma_unmap(&self, iova: u64, len: u64, leave: Leave) -> Result<(), FunctionError>;

    /// Whether there is a [`DmaSpace`](crate::mem::DmaSpace) of this function.
    fn has_space(&self, leave: Leave) -> &AtomicBool;

    /// Resets the function. DMA maps and eventfds stay.
    ///
    /// # Errors
    /// [`FunctionError::NoReset`], or what the way to the function says.
    fn reset(&self) -> Result<(), FunctionError>;

    /// Whether the function is gone, as far as that is known without asking it. Cheap: two `poll`s at
    /// most.
    fn gone(&self) -> Option<GoneReason>;

    /// A descriptor that becomes readable when [`PciFunction::gone`] may have changed; for `poll` beside the
    /// interrupts' eventfds. Not to be read from.
    fn gone_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// Limits on a function's DMA maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaLimits {
    /// IOVA ranges that may be used, both ends included, ascending and disjoint. Holes are for example the MSI window.
    pub iova_ranges: Vec<RangeInclusive<u64>>,
    /// Page sizes as a bit mask: bit 12 is 4 KiB. The lowest bit is the granule of each map.
    pub page_sizes: u64,
    /// Most maps at a time, `None` where there is no limit.
    pub max_mappings: Option<u32>,
}

/// Memory of this process that a device may be given access to.
#[derive(Debug)]
pub struct HostPages<'a> {
    va: NonNull<u8>,
    len: u64,
    file: Option<(BorrowedFd<'a>, u64)>,
    pages: PhantomData<&'a [u8]>,
}

impl<'a> HostPages<'a> {
    /// Describes `len` bytes at `va`. `file` is the descriptor whose content the memory is and the offset of its first
    /// byte there; without it the memory can't be shared with a device process.
    ///
    /// # Safety
    /// The memory must stay mapped, and must not be accessed as a Rust reference or value, from the moment that it is
    /// given to [`PciFunction::dma_map`] until [`PciFunction::dma_unmap`] has returned success, or the function's last
    /// reference is dropped and its device process, if it has one, has ended: the device may read and write it at any
    /// time. `file`, if given, must be what is mapped at `va`, and not become shorter in that time.
    pub unsafe fn new(va: NonNull<u8>, len: u64, file: Option<(BorrowedFd<'a>, u64)>) -> HostPages<'a> {
        HostPages {
            va,
            len,
            file,
            pages: PhantomData,
        }
    }

    /// Virtual address of the first byte.
    pub fn va(&self) -> NonNull<u8> {
        self.va
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file behind the memory, and the offset in it.
    pub fn file(&self) -> Option<(BorrowedFd<'a>, u64)> {
        self.file
    }
}

/// Opens a function by its address.
///
/// # Errors
/// Why it can't be opened, and what to do: [`FunctionError::NoSuchDevice`], [`FunctionError::NotBound`] and others.
pub fn open(address: &FunctionAddress) -> Result<Arc<dyn PciFunction>, FunctionError> {
    match address {
        FunctionAddress::Pci(pci) => Ok(Arc::new(Vfio::open(*pci)?)),
        FunctionAddress::Group(pci) => Ok(Arc::new(Vfio::open_group(*pci)?)),
        FunctionAddress::Iommufd(pci) => Ok(Arc::new(Vfio::open_iommufd(*pci)?)),
        FunctionAddress::VfioUser(path) => Ok(Arc::new(VfioUser::open(path)?)),
        FunctionAddress::InProcess(_) => Err(FunctionError::BadAddress {
            text: address.to_string(),
            reason: "an in-process device is handed over as an object; it can't be opened by name",
        }),
    }
}

/// What a function's PCI command register is to say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Command {
    /// Decode memory, be bus master (DMA and MSI-X), no INTx.
    Own,
    /// No more bus master.
    LetGo,
}

/// Sets a function's PCI command register (PCI Local Bus 3.0, 6.2.2).
fn set_command(function: &dyn PciFunction, command: Command) -> Result<(), FunctionError> {
    const COMMAND: u16 = 0x04;
    const MEMORY: u16 = 1 << 1;
    const BUS_MASTER: u16 = 1 << 2;
    const NO_INTX: u16 = 1 << 10;
    let mut bytes = [0; 2];
    function.config_read(COMMAND, &mut bytes)?;
    let old = u16::from_le_bytes(bytes);
    let new = match command {
        Command::Own => old | MEMORY | BUS_MASTER | NO_INTX,
        Command::LetGo => old & !BUS_MASTER,
    };
    if new != old {
        function.config_write(COMMAND, &new.to_le_bytes(), LEAVE)?;
    }
    Ok(())
}

/// Whether a descriptor is readable now.
fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    matches!(
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0
            })
        ),
        Ok(1)
    )
}

/// Checks that an access of `len` bytes at `offset` stays within `limit` bytes.
pub(crate) fn check_range(
    what: &'static str,
    offset: u64,
    len: u64,
    limit: u64,
) -> Result<(), FunctionError> {
    match offset.checked_add(len) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(FunctionError::OutOfRange {
            what,
            offset,
            len,
            limit,
        }),
    }
}

/// Checks a range of MSI-X vectors.
fn check_vectors(
    address: &FunctionAddress,
    first: u16,
    count: usize,
    vectors: u16,
) -> Result<(), FunctionError> {
    if count == 0 || usize::from(first) + count <= usize::from(vectors) {
        return Ok(());
    }
    let count = u32::try_from(count).unwrap_or(u32::MAX - u32::from(u16::MAX));
    Err(FunctionError::NoSuchVector {
        address: address.to_string(),
        first,
        count,
        vectors,
    })
}

/// The largest smallest page that a function may have for its DMA maps: all memory is mapped in multiples of it, and no
/// IOMMU asks for more than a huge page.
const MOST_GRANULE: u64 = 2 << 20;

/// Checks the smallest page of a function's DMA maps, in bytes, which a device process may say what it likes of.
///
/// # Errors
/// [`FunctionError::Unusable`] above 2 MiB.
pub(crate) fn check_granule(address: &FunctionAddress, page: u64) -> Result<(), FunctionError> {
    if page <= MOST_GRANULE {
        return Ok(());
    }
    Err(FunctionError::Unusable {
        address: address.to_string(),
        what: format!("its smallest page for DMA has {page} bytes; {MOST_GRANULE} at most are of use"),
    })
}

/// The bytes of one page of the host.
pub fn host_page_size() -> usize {
    rustix::param::page_size()
}
