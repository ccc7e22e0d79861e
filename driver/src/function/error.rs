//! What can go wrong between the driver and a PCI function, in words that say what to do.

use std::io;
use std::path::PathBuf;

use ferroce_vfio_user::client::ClientError;
use ferroce_vfio_user::device::DeviceError;

/// Why a function can't be opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// The text is not an address of a function.
    #[error(
        "'{text}' is not a device address (0000:3b:00.0, with group: or iommufd: before it for one way through VFIO, or \
         vfio-user:PATH): {reason}"
    )]
    BadAddress {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is no PCI function at the address.
    #[error("no PCI device {address}; `lspci -D -d 15b3:` lists the NICs of this machine")]
    NoSuchDevice {
        /// The function.
        address: String,
    },
    /// The function belongs to another driver, or to none.
    #[error(
        "{address} is not bound to vfio-pci but to {}; bind it: `ferroce bind {address}`, or by hand: `echo vfio-pci > \
         /sys/bus/pci/devices/{address}/driver_override`, unbind its driver, then `echo {address} > \
         /sys/bus/pci/drivers_probe`",
        driver.as_deref().unwrap_or("no driver")
    )]
    NotBound {
        /// The function.
        address: String,
        /// The driver that has it.
        driver: Option<String>,
    },
    /// The function is not behind an IOMMU.
    #[error(
        "{address} has no IOMMU group: enable the IOMMU in the firmware set-up (VT-d, AMD-Vi, SMMU) and, on Intel, \
         boot with intel_iommu=on"
    )]
    NoIommu {
        /// The function.
        address: String,
    },
    /// Other functions of the IOMMU group belong to kernel drivers.
    #[error(
        "IOMMU group {group} of {address} is not viable: bind these to vfio-pci too, or unbind them: {}",
        others.join(", ")
    )]
    GroupNotViable {
        /// The function.
        address: String,
        /// The group's number.
        group: u32,
        /// The functions in the way, each with its driver.
        others: Vec<String>,
    },
    /// A device file may not be opened by this user.
    #[error("no permission for {}: run as its owner, or change that, for example `chown $USER {}`", path.display(), path.display())]
    Permission {
        /// The device file.
        path: PathBuf,
    },
    /// Somebody else has the function open.
    #[error("{address} is in use by another process: {} is busy", path.display())]
    Busy {
        /// The function.
        address: String,
        /// The device file that is open elsewhere.
        path: PathBuf,
    },
    /// This process has the function open already: a [`Context`](crate::context::Context), or DMA memory of one.
    #[error("{address} is in use by this process: close its context, and drop what was made from it, first")]
    Taken {
        /// The function.
        address: String,
    },
    /// The kernel part of VFIO is missing.
    #[error("{} does not exist: load the vfio-pci module (`modprobe vfio-pci`)", path.display())]
    NoVfio {
        /// The device file.
        path: PathBuf,
    },
    /// An access that leaves its region.
    #[error("{what}: access of {len} bytes at {offset:#x} leaves the {limit:#x} bytes there are")]
    OutOfRange {
        /// The region.
        what: &'static str,
        /// Offset of the access in bytes.
        offset: u64,
        /// Length of the access in bytes.
        len: u64,
        /// Length of the region in bytes.
        limit: u64,
    },
    /// The function has no BAR 0 that could be used.
    #[error("{address} has no BAR 0 (memory)")]
    NoBar {
        /// The function.
        address: String,
    },
    /// More MSI-X vectors are asked for than there are.
    #[error("{address}: MSI-X vectors {first} to {} asked for, there are {vectors}", u32::from(*first) + count - 1)]
    NoSuchVector {
        /// The function.
        address: String,
        /// First vector of the request.
        first: u16,
        /// Number of vectors in the request.
        count: u32,
        /// Number of vectors of the function.
        vectors: u16,
    },
    /// The limit on locked memory forbids the map: VFIO pins what the device may reach.
    #[error(
        "mapping {needed} bytes for DMA passes the limit on locked memory, {}: raise it with `ulimit -l`, \
         LimitMEMLOCK= in the service's unit, or memlock in /etc/security/limits.conf",
        allowed.map_or("which is unlimited; the machine may be out of memory".to_owned(), |b| format!("{b} bytes"))
    )]
    MemoryLock {
        /// Bytes that this map would lock.
        needed: u64,
        /// RLIMIT_MEMLOCK in bytes; `None` is unlimited.
        allowed: Option<u64>,
    },
    /// The IOMMU driver keeps no more maps.
    #[error(
        "the limit of {limit} DMA mappings is reached: map fewer, larger regions, or raise the kernel's \
         vfio_iommu_type1.dma_entry_limit"
    )]
    MappingLimit {
        /// Number of mappings allowed.
        limit: u32,
    },
    /// The map was refused for another reason.
    #[error("mapping {len} bytes at IOVA {iova:#x} for DMA failed")]
    Map {
        /// First IOVA.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The device process did not answer a map: it may have the memory until it ends.
    #[error(
        "{address}: mapping {len} bytes for DMA was not answered; the device process may have them until it ends"
    )]
    MapUnknown {
        /// The function.
        address: String,
        /// Length in bytes.
        len: u64,
        /// How it went.
        #[source]
        source: ClientError,
    },
    /// The unmap was refused; the device may still reach the memory.
    #[error("unmapping {len} bytes at IOVA {iova:#x} failed")]
    Unmap {
        /// First IOVA.
        iova: u64,
        /// Length in bytes.
        len: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Only memory with a file descriptor can be shared with a device process.
    #[error(
        "{address} is reached by file descriptors: memory for it must be a memfd (or another file), given with its \
         descriptor and offset"
    )]
    NeedsFd {
        /// The function.
        address: String,
    },
    /// The function, or the way to it, can't be reset.
    #[error("{address} can't be reset: {why}")]
    NoReset {
        /// The function.
        address: String,
        /// Why.
        why: &'static str,
    },
    /// The function is gone. One whose device process hangs ([`GoneReason::PeerHung`]) or broke the protocol may still touch
    /// the memory that it has.
    #[error("{address} is gone: {reason}")]
    Gone {
        /// The function.
        address: String,
        /// How that is known.
        reason: GoneReason,
    },
    /// A child made by `fork` tried to use its parent's function.
    #[error("{address} belongs to process {owner}; a child made by fork can't use it, open it there anew")]
    Forked {
        /// The function.
        address: String,
        /// The process that opened it.
        owner: u32,
    },
    /// Something else is not as it must be.
    #[error("{address}: {what}")]
    Unusable {
        /// The function.
        address: String,
        /// What was found.
        what: String,
    },
    /// A system call failed.
    #[error("{what} failed")]
    Io {
        /// What was tried, and on what.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is no device process at a socket, or none that can be used.
    #[error(transparent)]
    Connect(ClientError),
    /// The device process refused a request, or did not answer it.
    #[error("{address}: {what} failed")]
    VfioUser {
        /// The function.
        address: String,
        /// What was asked.
        what: &'static str,
        /// How it went.
        #[source]
        source: ClientError,
    },
    /// The device, or the way to it, refused a request.
    #[error("{address}: {what} failed")]
    Device {
        /// The function.
        address: String,
        /// What was asked.
        what: &'static str,
        /// Its answer.
        #[source]
        source: DeviceError,
    },
}

/// How the driver knows that a function is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GoneReason {
    /// The host wants it back (VFIO's device-request interrupt): close it soon.
    #[error("the host asks for it back")]
    Requested,
    /// The kernel reports an uncorrectable PCI error (VFIO's error interrupt).
    #[error("an uncorrectable PCI error was reported")]
    PciError,
    /// The device process at the other end of the socket has closed it or died.
    #[error("the device process closed the connection")]
    PeerClosed,
    /// The device process no longer answers.
    #[error("the device process does not answer")]
    PeerHung,
    /// The device process sent what the protocol does not allow.
    #[error("the device process broke the protocol")]
    PeerConfused,
    /// Registers read as all ones: the function is off the bus.
    #[error("its registers read all ones")]
    AllOnes,
}

impl FunctionError {
    /// A failed system call on the way to a function.
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> FunctionError {
        FunctionError::Io {
            what: what.into(),
            source: source.into(),
        }
    }
}
