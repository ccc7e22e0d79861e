//! Functions bound to vfio-pci, by the kernel's VFIO interface.
//!
//! `vfio-ioctls` opens groups and containers and maps memory; [`raw`] has what it lacks: region information with mmap,
//! IOVA ranges, resets that report, interrupts beside MSI-X, and iommufd (which the crate ties to KVM). Both ways to a
//! device are here: by group and container, and by the device's own file and iommufd.
//!
//! Bus mastering is on only while a [`Vfio`] exists. vfio-pci turns it off too when the device's file is closed, also
//! by a kill, so that no DMA outlives its owner.

mod info;
mod iommu;
mod msix;
mod raw;
mod sysfs;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, epoll, eventfd};
use vfio_bindings::bindings::vfio as abi;

use super::{
    CONFIG_SPACE_BYTES, Command, DmaLimits, FunctionAddress, FunctionError, GoneReason, HostPages, Leave,
    Owner, PciAddress, PciFunction, check_range, check_vectors, host_page_size, readable, set_command,
};
use crate::mem::map_fd;
use crate::mmio::{BarAccess, MappedArea, Mmio};
use info::RegionInfo;
use iommu::Iommu;
use msix::Msix;
use sysfs::Found;
pub(crate) use sysfs::{Roots, VFIO_DRIVERS, link_name};

/// A function bound to vfio-pci, open.
pub struct Vfio {
    address: FunctionAddress,
    limits: DmaLimits,
    config: RegionInfo,
    resettable: bool,
    owner: Owner,
    vectors: u16,
    msix: Mutex<Msix>,
    /// Signalled when the host wants the function back.
    request: OwnedFd,
    /// Signalled on an uncorrectable error.
    pci_error: OwnedFd,
    /// Readable when either of them is.
    going: OwnedFd,
    has_space: AtomicBool,
    // Mappings go before the device's file, else its group stays busy.
    bar0: Mmio,
    device: Arc<Iommu>,
}

impl fmt::Debug for Vfio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match *self.device {
            Iommu::Group(_) => "group",
            Iommu::Cdev(_) => "iommufd",
        };
        write!(f, "Vfio({}, {way})", self.address)
    }
}

impl Vfio {
    /// Opens a function by its group, or by iommufd where the group's files are not there or not permitted.
    ///
    /// # Errors
    /// What is wrong, and what to do: [`FunctionError::NoSuchDevice`], [`FunctionError::NotBound`],
    /// [`FunctionError::NoIommu`], [`FunctionError::GroupNotViable`], [`FunctionError::Permission`],
    /// [`FunctionError::Busy`], [`FunctionError::NoVfio`] and others.
    pub fn open(address: PciAddress) -> Result<Vfio, FunctionError> {
        let roots = Roots::default();
        let found = roots.find(address)?;
        let error = match Vfio::by_group(address, &found, &roots) {
            Err(error @ (FunctionError::NoVfio { .. } | FunctionError::Permission { .. })) => error,
            done => return done,
        };
        if found.cdev.is_none() {
            return Err(error);
        }
        log::debug!("{address}: {error}; trying iommufd");
        // The group is what people set up; its error helps more than that of a file that is missing too.
        Vfio::by_cdev(address, &found, &roots).map_err(|second| match second {
            FunctionError::NoVfio { .. } => error,
            second => second,
        })
    }

    /// Opens a function by its group and a container (/dev/vfio/GROUP).
    ///
    /// # Errors
    /// As [`Vfio::open`].
    pub fn open_group(address: PciAddress) -> Result<Vfio, FunctionError> {
        let roots = Roots::default();
        Vfio::by_group(address, &roots.find(address)?, &roots)
    }

    /// Opens a function by its own device file and iommufd (/dev/vfio/devices/vfioN, /dev/iommu).
    ///
    /// # Errors
    /// As [`Vfio::open`].
    pub fn open_iommufd(address: PciAddress) -> Result<Vfio, FunctionError> {
        let roots = Roots::default();
        Vfio::by_cdev(address, &roots.find(address)?, &roots)
    }

    fn by_group(address: PciAddress, found: &Found, roots: &Roots) -> Result<Vfio, FunctionError> {
        Vfio::start(address, Iommu::open_group(&address.to_string(), found, roots)?)
    }

    fn by_cdev(address: PciAddress, found: &Found, roots: &Roots) -> Result<Vfio, FunctionError> {
        Vfio::start(address, Iommu::open_cdev(&address.to_string(), found, roots)?)
    }

    fn start(address: PciAddress, device: Iommu) -> Result<Vfio, FunctionError> {
        let name = address.to_string();
        let failed = |what: &str| {
            let what = format!("{name}: {what}");
            move |e: io::Error| FunctionError::io(what, e)
        };
        let device = Arc::new(device);
        let fd = device.device();
        let flags = raw::device_info(fd)
            .and_then(|b| info::device_flags(&b))
            .map_err(failed("device information"))?;
        if flags & abi::VFIO_DEVICE_FLAGS_PCI == 0 {
            return Err(FunctionError::Unusable {
                address: name,
                what: "it is not a PCI device".into(),
            });
        }
        let region = |index| raw::region_info(fd, index).and_then(|b| info::region(&b));
        let config = region(abi::VFIO_PCI_CONFIG_REGION_INDEX).map_err(failed("configuration space"))?;
        let bar0 = region(abi::VFIO_PCI_BAR0_REGION_INDEX).map_err(failed("BAR 0"))?;
        let irqs = raw::irq_info(fd, abi::VFIO_PCI_MSIX_IRQ_INDEX).and_then(|b| info::irq(&b));
        let irqs = irqs.map_err(failed("MSI-X information"))?;
        // PCI Express Base 7.7.2: 2048 at most.
        let vectors = irqs.count.min(2048) as u16;
        let new_event =
            || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let request = new_event().map_err(failed("making an eventfd"))?;
        let pci_error = new_event().map_err(failed("making an eventfd"))?;
        let going = watch([&request, &pci_error]).map_err(failed("watching eventfds"))?;
        // Neither is there on all kernels and devices, and the driver does without.
        for (what, index, event) in [
            ("device requests", abi::VFIO_PCI_REQ_IRQ_INDEX, &request),
            ("PCI errors", abi::VFIO_PCI_ERR_IRQ_INDEX, &pci_error),
        ] {
            if let Err(error) = raw::set_irqs(fd, index, 0, &[event.as_raw_fd()]) {
                log::debug!("{name}: no notice of {what}: {error}");
            }
        }
        let function = Vfio {
            address: FunctionAddress::Pci(address),
            limits: device.limits()?,
            config,
            resettable: flags & abi::VFIO_DEVICE_FLAGS_RESET != 0,
            owner: Owner::here(),
            vectors,
            msix: Mutex::new(Msix::new(vectors, irqs.flags & abi::VFIO_IRQ_INFO_NORESIZE == 0)),
            request,
            pci_error,
            going,
            has_space: AtomicBool::new(false),
            bar0: map_bar(FunctionAddress::Pci(address), &device, bar0)?,
            device: device.clone(),
        };
        set_command(&function, Command::Own)?;
        Ok(function)
    }

    /// The device's file, in the process that opened it.
    fn device_fd(&self) -> Result<BorrowedFd<'_>, FunctionError> {
        self.owner.check(&self.address)?;
        Ok(self.device.device())
    }
}

/// BAR 0: mapped where the kernel allows it, trapped elsewhere.
fn map_bar(address: FunctionAddress, device: &Arc<Iommu>, region: RegionInfo) -> Result<Mmio, FunctionError> {
    if region.size == 0 {
        return Err(FunctionError::NoBar {
            address: address.to_string(),
        });
    }
    let mut areas = Vec::new();
    for (offset, len) in info::mappable(&region, host_page_size() as u64) {
        match map_fd(&device.device(), region.offset.saturating_add(offset), len) {
            Ok(memory) => areas.push(MappedArea { offset, memory }),
            // Trapped access is slow but right.
            Err(error) => log::warn!("{address}: BAR 0 at {offset:#x} + {len:#x} can't be mapped: {error}"),
        }
    }
    let len = region.size;
    Ok(Mmio::new(
        len,
        areas,
        Arc::new(Bar {
            address,
            owner: Owner::here(),
            device: device.clone(),
            region,
        }),
    ))
}

/// An epoll instance that is readable when one of the descriptors is.
fn watch(fds: [&OwnedFd; 2]) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (i, fd) in (0..).zip(fds) {
        epoll::add(&epoll, fd, epoll::EventData::new_u64(i), epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

/// Reads all of `data` from a region of a device's file.
fn read_region(device: BorrowedFd<'_>, region: &RegionInfo, offset: u64, data: &mut [u8]) -> io::Result<()> {
    match rustix::io::pread(device, &mut *data, region.offset.saturating_add(offset))? {
        count if count == data.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Writes all of `data` to a region of a device's file.
fn write_region(device: BorrowedFd<'_>, region: &RegionInfo, offset: u64, data: &[u8]) -> io::Result<()> {
    match rustix::io::pwrite(device, data, region.offset.saturating_add(offset))? {
        count if count == data.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// BAR 0 by the device's file. Keeps the device open for as long as a register may be accessed.
struct Bar {
    address: FunctionAddress,
    owner: Owner,
    device: Arc<Iommu>,
    region: RegionInfo,
}

impl Bar {
    fn device(&self) -> Result<BorrowedFd<'_>, FunctionError> {
        self.owner.check(&self.address)?;
        Ok(self.device.device())
    }
}

impl BarAccess for Bar {
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        read_region(self.device()?, &self.region, offset, data)
            .map_err(|e| FunctionError::io("read of a register", e))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        write_region(self.device()?, &self.region, offset, data)
            .map_err(|e| FunctionError::io("write of a register", e))
    }
}

impl PciFunction for Vfio {
    fn address(&self) -> &FunctionAddress {
        &self.address
    }

    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        let limit = self.config.size.min(CONFIG_SPACE_BYTES.into());
        check_range("configuration space", offset.into(), data.len() as u64, limit)?;
        read_region(self.device_fd()?, &self.config, offset.into(), data)
            .map_err(|e| FunctionError::io(format!("{}: read of configuration space", self.address), e))
    }

    fn config_write(&self, offset: u16, data: &[u8], _leave: Leave) -> Result<(), FunctionError> {
        let limit = self.config.size.min(CONFIG_SPACE_BYTES.into());
        check_range("configuration space", offset.into(), data.len() as u64, limit)?;
        write_region(self.device_fd()?, &self.config, offset.into(), data)
            .map_err(|e| FunctionError::io(format!("{}: write of configuration space", self.address), e))
    }

    fn bar0(&self) -> Result<Mmio, FunctionError> {
        Ok(self.bar0.clone())
    }

    fn msix_vectors(&self) -> u16 {
        self.vectors
    }

    fn set_msix(&self, first: u16, eventfds: &[Option<BorrowedFd<'_>>]) -> Result<(), FunctionError> {
        check_vectors(&self.address, first, eventfds.len(), self.vectors)?;
        let fd = self.device_fd()?;
        let set = |start, fds: &[i32]| raw::set_irqs(fd, abi::VFIO_PCI_MSIX_IRQ_INDEX, u32::from(start), fds);
        let mut msix = self.msix.lock().unwrap_or_else(PoisonError::into_inner);
        msix.set(first, eventfds, set)
            .map_err(|e| FunctionError::io(format!("{}: setting of MSI-X vectors", self.address), e))
    }

    fn dma_limits(&self) -> &DmaLimits {
        &self.limits
    }

    fn dma_map(&self, iova: u64, memory: &HostPages<'_>, _leave: Leave) -> Result<(), FunctionError> {
        self.owner.check(&self.address)?;
        let error = |e| iommu::map_error(e, iova, memory.len(), self.limits.max_mappings);
        self.device.map(iova, memory).map_err(error)
    }

    fn dma_unmap(&self, iova: u64, len: u64, _leave: Leave) -> Result<(), FunctionError> {
        self.owner.check(&self.address)?;
        self.device
            .unmap(iova, len)
            .map_err(|source| FunctionError::Unmap { iova, len, source })
    }

    fn has_space(&self, _leave: Leave) -> &AtomicBool {
        &self.has_space
    }

    fn reset(&self) -> Result<(), FunctionError> {
        let address = || self.address.to_string();
        if !self.resettable {
            let why = "it supports no function reset, and its bus is shared with other functions";
            return Err(FunctionError::NoReset {
                address: address(),
                why,
            });
        }
        raw::device_reset(self.device_fd()?)
            .map_err(|e| FunctionError::io(format!("{}: reset", address()), e))?;
        set_command(self, Command::Own)
    }

    fn gone(&self) -> Option<GoneReason> {
        if readable(self.pci_error.as_fd()) {
            return Some(GoneReason::PciError);
        }
        readable(self.request.as_fd()).then_some(GoneReason::Requested)
    }

    fn gone_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.going.as_fd())
    }
}

impl Drop for Vfio {
    fn drop(&mut self) {
        if self.owner.is_here()
            && let Err(error) = set_command(self, Command::LetGo)
        {
            log::debug!(
                "{}: bus mastering stays on until the file is closed: {error}",
                self.address
            );
        }
    }
}
