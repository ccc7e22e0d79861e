//! A PCI device as its user sees it: config space, BARs, MSI-X, DMA maps, reset.
//!
//! This is the seam between a device model and whatever brings it to its user: the vfio-user server of this
//! crate, or a driver in the same process that calls the trait directly. Nothing here knows about sockets.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;
use rustix::io::Errno;

/// Size of a PCI Express function's configuration space in bytes.
pub const CONFIG_SPACE_LEN: u16 = 4096;

/// Number of base address registers of a type 0 function.
pub const BARS: u8 = 6;

/// A PCI device as its device process (or an in-process user) serves it.
///
/// All methods may be called from any thread and at the same time; implementations lock. Offsets, lengths and
/// addresses are the user's word and are to be checked. Data is in the byte order of the bus (little-endian
/// config space; BAR contents as the device defines them), never converted on the way.
pub trait PciDevice: Send + Sync {
    /// Reads `data.len()` bytes of configuration space at `offset`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] where the access leaves the 4 KiB space.
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data` to configuration space at `offset`; read-only bits keep their value.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] where the access leaves the 4 KiB space.
    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), DeviceError>;

    /// Size of a BAR in bytes, a power of two; 0 where the device has no such BAR (also for the upper half of
    /// a 64-bit BAR, and for `bar` past 5).
    fn bar_size(&self, bar: u8) -> u64;

    /// Reads `data.len()` bytes at `offset` in a BAR.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] where the access leaves the BAR, [`DeviceError::BadWidth`] where the
    /// device does not answer accesses of that width.
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data` at `offset` in a BAR. Posted: may return before the write takes effect, but writes of one
    /// thread take effect in order, and before a later read returns.
    ///
    /// # Errors
    /// As [`PciDevice::bar_read`].
    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// Memory behind (parts of) a BAR that its user may map instead of trapping each access; `None` where all
    /// accesses go through [`PciDevice::bar_read`] and [`PciDevice::bar_write`].
    fn bar_memory(&self, bar: u8) -> Option<BarMemory> {
        let _ = bar;
        None
    }

    /// Number of MSI-X vectors, 0 to 2048 (what PCI's MSI-X capability can say).
    fn msix_vectors(&self) -> u16;

    /// Vectors `first`, `first + 1`, … get these eventfds; `None` takes a vector's eventfd away.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchVector`]; no vector changes then.
    fn set_msix(&self, first: u16, eventfds: Vec<Option<OwnedFd>>) -> Result<(), DeviceError>;

    /// Sets or takes away the eventfd that the device signals when it wants its user to let go of it (VFIO's
    /// device-request interrupt).
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device never asks.
    fn set_request_notifier(&self, eventfd: Option<OwnedFd>) -> Result<(), DeviceError>;

    /// Gives the device access to a range of its user's memory.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`], [`DeviceError::Overlaps`], [`DeviceError::TooManyMaps`] or what
    /// [`DmaFd::check`] says of the memory. Nothing is mapped then.
    fn dma_map(&self, map: DmaMap) -> Result<(), DeviceError>;

    /// Takes the access away again. The span must be exactly that of one map: a part, or several maps at once,
    /// is refused. When this returns the device no longer touches the memory.
    ///
    /// # Errors
    /// [`DeviceError::NotMapped`] or [`DeviceError::PartialUnmap`]; nothing changes then. [`DeviceError::Gone`] where the
    /// device has ended, and touches no memory any more.
    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError>;

    /// Whether [`PciDevice::reset`] works. Where it does not, what a user leaves behind is there for the next.
    fn resettable(&self) -> bool {
        true
    }

    /// Function level reset. Registers and all that was built through them go back to their initial state; DMA
    /// maps and eventfds stay, since they are the user's and not the function's.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] where the device can't be brought back, [`DeviceError::Unsupported`] where it has no reset.
    fn reset(&self) -> Result<(), DeviceError>;

    /// A user is there. `host` serves DMA to maps that came without a file descriptor; `None` where the user
    /// only maps memory that has one.
    fn attached(&self, host: Option<Arc<dyn DmaMessages>>);

    /// The user is gone (it left, or it died): forget its DMA maps and eventfds, stop all DMA, and reset where it can.
    fn detached(&self);
}

/// A range of the user's memory that the device may access.
#[derive(Debug)]
pub struct DmaMap {
    /// First I/O virtual address of the range.
    pub iova: u64,
    /// Length of the range in bytes; never 0, and `iova + len` does not pass 2^64.
    pub len: u64,
    /// The device may read the range.
    pub readable: bool,
    /// The device may write the range.
    pub writable: bool,
    /// The memory itself. `None`: only reachable by [`DmaMessages`].
    pub memory: Option<DmaFd>,
}

/// A file descriptor whose contents are DMA memory, and where in it the memory starts.
#[derive(Debug)]
pub struct DmaFd {
    /// A memfd or another file that can be mapped.
    pub fd: OwnedFd,
    /// Offset in bytes of the range's first byte in the file.
    pub offset: u64,
}

impl DmaFd {
    /// Checks that the file holds `len` bytes from [`DmaFd::offset`] on, see [`check_dma_fd`].
    ///
    /// # Errors
    /// As [`check_dma_fd`].
    pub fn check(&self, len: u64) -> Result<Sealing, DeviceError> {
        check_dma_fd(self.fd.as_fd(), self.offset, len)
    }
}

/// Whether the owner of a DMA file can still take pages away from under those who map it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealing {
    /// Sealed against shrinking: a range that was once inside the file stays inside it.
    Sealed,
    /// Not sealed, and this process can't seal it: an `ftruncate` by the owner makes each access to the lost
    /// pages raise SIGBUS, which by default ends the process.
    Shrinkable,
}

/// Checks that a file is fit to be mapped as DMA memory: `len` bytes from `offset` on lie inside it.
///
/// The check only means something for later where the file can't shrink. So F_SEAL_SHRINK is put on the file
/// if its owner left that open (memfd with MFD_ALLOW_SEALING); otherwise the result says
/// [`Sealing::Shrinkable`] and the caller decides whether it trusts the owner. The vfio-user server's decision
/// is [`UnsealedMemory`](crate::server::UnsealedMemory).
///
/// # Errors
/// [`DeviceError::BadRange`] where `offset + len` overflows, [`DeviceError::MemoryTooShort`],
/// [`DeviceError::NotMemory`] for a file that has no contents to map (a socket, a pipe, a directory), and
/// [`DeviceError::Os`] where the kernel refuses `fstat`.
pub fn check_dma_fd(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Sealing, DeviceError> {
    let end = offset.checked_add(len).filter(|_| len != 0);
    let end = end.ok_or(DeviceError::BadRange {
        what: "offset in the DMA file",
        start: offset,
        len,
    })?;
    // Seal first: a size that was read before the seal could be stale.
    let sealing = seal_against_shrinking(fd);
    let stat = rustix::fs::fstat(fd).map_err(|e| DeviceError::os("fstat of the DMA file", e))?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    if kind != rustix::fs::FileType::RegularFile {
        return Err(DeviceError::NotMemory {
            kind: format!("{kind:?}"),
        });
    }
    let file_len = u64::try_from(stat.st_size).unwrap_or(0);
    if end > file_len {
        return Err(DeviceError::MemoryTooShort {
            offset,
            len,
            file_len,
        });
    }
    Ok(sealing)
}

/// Puts F_SEAL_SHRINK on a file unless it is there already.
fn seal_against_shrinking(fd: BorrowedFd<'_>) -> Sealing {
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => Sealing::Sealed,
        Ok(seals) if !seals.contains(SealFlags::SEAL) => {
            match rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK) {
                Ok(()) => Sealing::Sealed,
                // EPERM: the descriptor is not open for writing.
                Err(_) => Sealing::Shrinkable,
            }
        }
        // EINVAL: a file system that has no seals.
        _ => Sealing::Shrinkable,
    }
}

/// Parts of a BAR that its user may map.
#[derive(Debug)]
pub struct BarMemory {
    /// The file to map.
    pub fd: OwnedFd,
    /// Offset in the file of the BAR's first byte.
    pub offset: u64,
    /// The ranges of the BAR that may be mapped, by ascending offset, page aligned and without overlap. All
    /// else is trapped.
    pub areas: Vec<BarArea>,
}

/// A range of a BAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BarArea {
    /// Offset in the BAR, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// DMA by messages: how a device reaches memory that was mapped without a file descriptor.
///
/// Slow (a round trip for each access) and may fail at any time, since it asks the other process.
pub trait DmaMessages: Send + Sync {
    /// Reads `data.len()` bytes at `iova`.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] where the user left, [`DeviceError::TimedOut`], or what the user answered.
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data` at `iova`. When it returns the user has the data.
    ///
    /// # Errors
    /// As [`DmaMessages::read`].
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DeviceError>;
}

/// What a device refuses, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// An access that leaves its region.
    #[error("access of {len} bytes at {offset:#x} leaves {what}, which is {limit:#x} bytes long")]
    OutOfRange {
        /// What was accessed, such as "configuration space" or "BAR 0".
        what: &'static str,
        /// Offset of the access.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The region's length in bytes.
        limit: u64,
    },
    /// A region, BAR or interrupt that the device does not have.
    #[error("the device has no {what} {index}")]
    NoSuch {
        /// What was asked for, such as "BAR".
        what: &'static str,
        /// Its number.
        index: u64,
    },
    /// An access of a width or alignment that the register does not answer.
    #[error("{what} at {offset:#x} does not take accesses of {len} bytes there")]
    BadWidth {
        /// What was accessed.
        what: &'static str,
        /// Offset of the access.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// MSI-X vectors past the last.
    #[error("MSI-X vectors {first} to {first} + {count} asked for, the device has {vectors}")]
    NoSuchVector {
        /// First vector of the request.
        first: u32,
        /// Number of vectors in the request.
        count: u32,
        /// Number of vectors of the device.
        vectors: u16,
    },
    /// A range that is empty or passes the end of the address space.
    #[error("{what} {start:#x} + {len:#x} is empty or passes 2^64")]
    BadRange {
        /// What kind of range.
        what: &'static str,
        /// Its start.
        start: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// An address, offset or length that is not a multiple of the page size.
    #[error("{what} {value:#x} is not a multiple of {alignment:#x}")]
    Misaligned {
        /// What value.
        what: &'static str,
        /// The value.
        value: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// A new map that overlaps one that exists.
    #[error(
        "DMA map {iova:#x} + {len:#x} overlaps the map {other_iova:#x} + {other_len:#x}; unmap that first"
    )]
    Overlaps {
        /// The new map.
        iova: u64,
        /// Its length in bytes.
        len: u64,
        /// The map that exists.
        other_iova: u64,
        /// Its length in bytes.
        other_len: u64,
    },
    /// More maps than the device keeps.
    #[error("the device keeps at most {limit} DMA maps at a time")]
    TooManyMaps {
        /// The limit.
        limit: u32,
    },
    /// An access or unmap where nothing is mapped.
    #[error("nothing is mapped for DMA at {iova:#x} + {len:#x}")]
    NotMapped {
        /// First address.
        iova: u64,
        /// Length in bytes.
        len: u64,
    },
    /// An unmap whose span is not that of one map.
    #[error(
        "unmap of {iova:#x} + {len:#x} is not the whole of one DMA map; the map there is {map_iova:#x} + {map_len:#x}"
    )]
    PartialUnmap {
        /// First address of the unmap.
        iova: u64,
        /// Its length in bytes.
        len: u64,
        /// The first map that it touches.
        map_iova: u64,
        /// That map's length in bytes.
        map_len: u64,
    },
    /// DMA against the map's access rights.
    #[error("DMA map at {iova:#x} does not allow the device to {access} it")]
    NotAllowed {
        /// Address of the access.
        iova: u64,
        /// "read" or "write".
        access: &'static str,
    },
    /// A file that is shorter than the memory said to be in it.
    #[error(
        "DMA memory {offset:#x} + {len:#x} passes the end of its file, which is {file_len:#x} bytes long"
    )]
    MemoryTooShort {
        /// Offset in the file.
        offset: u64,
        /// Length of the memory in bytes.
        len: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// A file descriptor with nothing to map behind it.
    #[error("DMA memory must be a memfd or a regular file, not a {kind}")]
    NotMemory {
        /// What it is.
        kind: String,
    },
    /// Memory whose owner can shrink it.
    #[error(
        "the DMA memory's owner can shrink it; create its memfd with MFD_ALLOW_SEALING (QEMU: memory-backend-memfd)"
    )]
    Shrinkable,
    /// Something that the device does not do.
    #[error("the device does not support {what}")]
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// The other side is not there any more.
    #[error("{what} is gone")]
    Gone {
        /// Who.
        what: &'static str,
    },
    /// No answer in time.
    #[error("{what} did not answer within {millis} ms")]
    TimedOut {
        /// Who or what.
        what: &'static str,
        /// The deadline, in milliseconds.
        millis: u64,
    },
    /// The other side answered with an error.
    #[error("{what} was refused by the other side: {}", ErrnoText(*.errno))]
    Refused {
        /// What was asked.
        what: &'static str,
        /// The error number of the answer (Linux numbering).
        errno: u32,
    },
    /// The operating system refused something.
    #[error("{what} failed")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl DeviceError {
    /// An error of the operating system during `what`.
    pub fn os(what: &'static str, source: impl Into<std::io::Error>) -> DeviceError {
        DeviceError::Os {
            what,
            source: source.into(),
        }
    }

    /// The Linux error number that tells a remote user about this.
    pub fn errno(&self) -> u32 {
        let errno = match self {
            DeviceError::OutOfRange { .. }
            | DeviceError::NoSuch { .. }
            | DeviceError::BadWidth { .. }
            | DeviceError::NoSuchVector { .. }
            | DeviceError::BadRange { .. }
            | DeviceError::Misaligned { .. }
            | DeviceError::PartialUnmap { .. }
            | DeviceError::MemoryTooShort { .. }
            | DeviceError::NotMemory { .. } => Errno::INVAL,
            DeviceError::Overlaps { .. } => Errno::EXIST,
            DeviceError::TooManyMaps { .. } => Errno::NOSPC,
            DeviceError::NotMapped { .. } => Errno::NOENT,
            DeviceError::NotAllowed { .. } => Errno::ACCESS,
            DeviceError::Shrinkable => Errno::PERM,
            DeviceError::Unsupported { .. } => Errno::OPNOTSUPP,
            DeviceError::Gone { .. } => Errno::NODEV,
            DeviceError::TimedOut { .. } => Errno::TIMEDOUT,
            DeviceError::Refused { errno, .. } => return *errno,
            DeviceError::Os { source, .. } => {
                return source
                    .raw_os_error()
                    .and_then(|e| u32::try_from(e).ok())
                    .unwrap_or(5);
            }
        };
        errno.raw_os_error().unsigned_abs()
    }
}

/// An error number as the system words it.
pub(crate) struct ErrnoText(pub u32);

impl fmt::Display for ErrnoText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match i32::try_from(self.0) {
            Ok(0) => f.write_str("no error number was given"),
            Ok(errno) => std::io::Error::from_raw_os_error(errno).fmt(f),
            Err(_) => write!(f, "error number {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn memfd(flags: MemfdFlags, len: u64) -> OwnedFd {
        let fd = memfd_create("test", flags | MemfdFlags::CLOEXEC).expect("memfd_create");
        ftruncate(&fd, len).expect("ftruncate");
        fd
    }

    #[test]
    fn sealable_memory_is_sealed_by_the_check() {
        let fd = memfd(MemfdFlags::ALLOW_SEALING, 0x2000);
        assert_eq!(
            check_dma_fd(fd.as_fd(), 0x1000, 0x1000).expect("fits"),
            Sealing::Sealed
        );
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
        assert_eq!(
            check_dma_fd(fd.as_fd(), 0, 0x2000).expect("fits"),
            Sealing::Sealed
        );
    }

    #[test]
    fn unsealable_memory_is_told() {
        let fd = memfd(MemfdFlags::empty(), 0x1000);
        assert_eq!(
            check_dma_fd(fd.as_fd(), 0, 0x1000).expect("fits"),
            Sealing::Shrinkable
        );
    }

    #[test]
    fn short_files_and_bad_ranges_are_refused() {
        let fd = memfd(MemfdFlags::ALLOW_SEALING, 0x1000);
        let check = |offset, len| check_dma_fd(fd.as_fd(), offset, len).expect_err("must be refused");
        assert!(matches!(
            check(0, 0x1001),
            DeviceError::MemoryTooShort { file_len: 0x1000, .. }
        ));
        assert!(matches!(check(0x1000, 1), DeviceError::MemoryTooShort { .. }));
        assert!(matches!(check(0, 0), DeviceError::BadRange { .. }));
        assert!(matches!(check(1, u64::MAX), DeviceError::BadRange { .. }));
        let (read, _write) = rustix::pipe::pipe().expect("pipe");
        assert!(matches!(
            check_dma_fd(read.as_fd(), 0, 1),
            Err(DeviceError::NotMemory { .. })
        ));
    }

    #[test]
    fn errors_name_what_was_wrong() {
        let e = DeviceError::OutOfRange {
            what: "BAR 0",
            offset: 0x2000,
            len: 4,
            limit: 0x1000,
        };
        assert_eq!(
            e.to_string(),
            "access of 4 bytes at 0x2000 leaves BAR 0, which is 0x1000 bytes long"
        );
        assert_eq!(e.errno(), 22);
        assert_eq!(
            DeviceError::Refused {
                what: "DMA read",
                errno: 14
            }
            .errno(),
            14
        );
        assert!(
            DeviceError::Refused {
                what: "DMA read",
                errno: u32::MAX
            }
            .to_string()
            .contains("4294967295")
        );
    }
}
