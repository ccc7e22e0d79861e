//! A device that is an object in this process, such as a device model.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ferroce_vfio_user::device::{DeviceError, DmaFd, DmaMap, PciDevice, Sealing, check_dma_fd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{
    CONFIG_SPACE_BYTES, DmaLimits, FunctionAddress, FunctionError, GoneReason, HostPages, PciFunction,
    check_range, check_vectors,
};
use crate::mem::{SharedMapping, map_fd};
use crate::mmio::{BarAccess, MappedArea, Mmio};

/// Most DMA maps at a time: what Linux's type1 IOMMU driver has by default.
const MAX_MAPPINGS: u32 = 65535;

/// A [`PciDevice`] of this process as a [`PciFunction`].
pub struct InProcess {
    address: FunctionAddress,
    device: Arc<dyn PciDevice>,
    vectors: u16,
    limits: DmaLimits,
    bar0: Mmio,
    /// The device signals it when it wants to be let go.
    request: OwnedFd,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InProcess({})", self.address)
    }
}

impl InProcess {
    /// Takes `device` into use. `name` is for messages.
    ///
    /// # Errors
    /// [`FunctionError::NoBar`], or a map or eventfd that failed.
    pub fn new(name: &str, device: Arc<dyn PciDevice>) -> Result<InProcess, FunctionError> {
        // The address space of a server with an IOMMU, its MSI window left out as hardware would.
        let limits = DmaLimits {
            iova_ranges: vec![0..=0xfedf_ffff, 0xfef0_0000..=(1 << 48) - 1],
            page_sizes: !0xfff,
            max_mappings: Some(MAX_MAPPINGS),
        };
        InProcess::with_limits(name, device, limits)
    }

    /// As [`InProcess::new`], with DMA limits as some other host might have them.
    ///
    /// # Errors
    /// As [`InProcess::new`].
    pub fn with_limits(
        name: &str,
        device: Arc<dyn PciDevice>,
        limits: DmaLimits,
    ) -> Result<InProcess, FunctionError> {
        let address = FunctionAddress::InProcess(name.to_owned());
        let len = device.bar_size(0);
        if len == 0 {
            return Err(FunctionError::NoBar {
                address: address.to_string(),
            });
        }
        let request = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| FunctionError::io("making an eventfd", e))?;
        let areas = mapped_areas(&*device, len)?;
        let trapped = Trapped {
            device: device.clone(),
            address: address.to_string(),
        };
        let bar0 = Mmio::new(len, areas, Arc::new(trapped));
        let vectors = device.msix_vectors();
        let function = InProcess {
            address,
            device,
            vectors,
            limits,
            bar0,
            request,
        };
        function.device.attached(None);
        let notifier = function
            .request
            .try_clone()
            .map_err(|e| FunctionError::io("duplicating an eventfd", e))?;
        match function.device.set_request_notifier(Some(notifier)) {
            // A device that never asks is as good.
            Ok(()) | Err(DeviceError::Unsupported { .. }) => Ok(function),
            Err(error) => Err(function.error("setting the request notifier", error)),
        }
    }

    fn error(&self, what: &'static str, source: DeviceError) -> FunctionError {
        device_error(&self.address.to_string(), what, source)
    }
}

/// The parts of BAR 0 that the device offers as memory and that can't be taken away from under us.
fn mapped_areas(device: &dyn PciDevice, bar_len: u64) -> Result<Vec<MappedArea>, FunctionError> {
    let Some(memory) = device.bar_memory(0) else {
        return Ok(Vec::new());
    };
    let mut areas = Vec::new();
    for area in &memory.areas {
        check_range("mappable area of BAR 0", area.offset, area.len, bar_len)?;
        let at = memory
            .offset
            .checked_add(area.offset)
            .ok_or(FunctionError::OutOfRange {
                what: "file of BAR 0",
                offset: memory.offset,
                len: area.offset,
                limit: u64::MAX,
            })?;
        match check_dma_fd(memory.fd.as_fd(), at, area.len) {
            Ok(Sealing::Sealed) => {
                let mapping: SharedMapping = map_fd(&memory.fd, at, area.len)
                    .map_err(|e| FunctionError::io("mapping a part of BAR 0", e))?;
                areas.push(MappedArea {
                    offset: area.offset,
                    memory: mapping,
                });
            }
            // Trapped access works too, and can't raise SIGBUS.
            other => log::warn!("a part of BAR 0 at {:#x} is not mapped: {other:?}", area.offset),
        }
    }
    Ok(areas)
}

fn device_error(address: &str, what: &'static str, source: DeviceError) -> FunctionError {
    match source {
        DeviceError::Gone { .. } => FunctionError::Gone {
            address: address.to_owned(),
            reason: GoneReason::PeerClosed,
        },
        DeviceError::TooManyMaps { limit } => FunctionError::MappingLimit { limit },
        source => FunctionError::Device {
            address: address.to_owned(),
            what,
            source,
        },
    }
}

struct Trapped {
    device: Arc<dyn PciDevice>,
    address: String,
}

impl BarAccess for Trapped {
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        self.device
            .bar_read(0, offset, data)
            .map_err(|e| device_error(&self.address, "read of a register", e))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        self.device
            .bar_write(0, offset, data)
            .map_err(|e| device_error(&self.address, "write of a register", e))
    }
}

impl PciFunction for InProcess {
    fn address(&self) -> &FunctionAddress {
        &self.address
    }

    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        check_range(
            "configuration space",
            offset.into(),
            data.len() as u64,
            CONFIG_SPACE_BYTES.into(),
        )?;
        self.device
            .config_read(offset, data)
            .map_err(|e| self.error("read of configuration space", e))
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), FunctionError> {
        check_range(
            "configuration space",
            offset.into(),
            data.len() as u64,
            CONFIG_SPACE_BYTES.into(),
        )?;
        self.device
            .config_write(offset, data)
            .map_err(|e| self.error("write of configuration space", e))
    }

    fn bar0(&self) -> Result<Mmio, FunctionError> {
        Ok(self.bar0.clone())
    }

    fn msix_vectors(&self) -> u16 {
        self.vectors
    }

    fn set_msix(&self, first: u16, eventfds: &[Option<BorrowedFd<'_>>]) -> Result<(), FunctionError> {
        check_vectors(&self.address, first, eventfds.len(), self.vectors)?;
        let own = |fd: &Option<BorrowedFd<'_>>| fd.map(|fd| fd.try_clone_to_owned()).transpose();
        let owned: Result<Vec<_>, _> = eventfds.iter().map(own).collect();
        let owned = owned.map_err(|e| FunctionError::io("duplicating an eventfd", e))?;
        self.device
            .set_msix(first, owned)
            .map_err(|e| self.error("setting of MSI-X vectors", e))
    }

    fn dma_limits(&self) -> &DmaLimits {
        &self.limits
    }

    fn dma_map(&self, iova: u64, memory: &HostPages<'_>) -> Result<(), FunctionError> {
        let (fd, offset) = memory.file().ok_or_else(|| FunctionError::NeedsFd {
            address: self.address.to_string(),
        })?;
        let fd = fd
            .try_clone_to_owned()
            .map_err(|e| FunctionError::io("duplicating a memory descriptor", e))?;
        let memory_fd = Some(DmaFd { fd, offset });
        let map = DmaMap {
            iova,
            len: memory.len(),
            readable: true,
            writable: true,
            memory: memory_fd,
        };
        self.device
            .dma_map(map)
            .map_err(|e| self.error("mapping of memory for DMA", e))
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), FunctionError> {
        match self.device.dma_unmap(iova, len) {
            // A device that is gone does no DMA; what it mapped is the file, never this process's addresses.
            Ok(()) | Err(DeviceError::Gone { .. }) => Ok(()),
            Err(error) => Err(self.error("unmapping of memory", error)),
        }
    }

    fn reset(&self) -> Result<(), FunctionError> {
        self.device.reset().map_err(|e| self.error("function reset", e))
    }

    fn gone(&self) -> Option<GoneReason> {
        readable(self.request.as_fd()).then_some(GoneReason::Requested)
    }

    fn gone_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.request.as_fd())
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.device.detached();
    }
}

/// Whether a descriptor is readable now.
pub(super) fn readable(fd: BorrowedFd<'_>) -> bool {
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
