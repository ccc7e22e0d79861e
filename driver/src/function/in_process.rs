//! A device that is an object in this process, such as a device model.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ferroce_vfio_user::device::{DeviceError, DmaFd, DmaMap, PciDevice};
use rustix::event::{EventfdFlags, eventfd};

use super::{
    CONFIG_SPACE_BYTES, Command, DmaLimits, FunctionAddress, FunctionError, GoneReason, HostPages, Leave,
    PciFunction, check_range, check_vectors, readable, set_command, software,
};
use crate::mmio::{BarAccess, Mmio};

/// A [`PciDevice`] of this process as a [`PciFunction`].
pub struct InProcess {
    address: FunctionAddress,
    device: Arc<dyn PciDevice>,
    vectors: u16,
    limits: DmaLimits,
    bar0: Mmio,
    /// The device signals it when it wants to be let go.
    request: OwnedFd,
    has_space: AtomicBool,
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
        let limits = software::limits(software::MAX_MAPPINGS, 4096);
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
        let areas = match device.bar_memory(0) {
            Some(memory) => software::map_areas(&memory.fd, memory.offset, &memory.areas, len)?,
            None => Vec::new(),
        };
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
            has_space: AtomicBool::new(false),
        };
        function.device.attached(None);
        let notifier = function
            .request
            .try_clone()
            .map_err(|e| FunctionError::io("duplicating an eventfd", e))?;
        match function.device.set_request_notifier(Some(notifier)) {
            // A device that never asks is as good.
            Ok(()) | Err(DeviceError::Unsupported { .. }) => {}
            Err(error) => return Err(function.error("setting the request notifier", error)),
        }
        set_command(&function, Command::Own)?;
        Ok(function)
    }

    fn error(&self, what: &'static str, source: DeviceError) -> FunctionError {
        device_error(&self.address.to_string(), what, source)
    }
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

    fn config_write(&self, offset: u16, data: &[u8], _leave: Leave) -> Result<(), FunctionError> {
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

    fn dma_map(&self, iova: u64, memory: &HostPages<'_>, _leave: Leave) -> Result<(), FunctionError> {
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

    fn dma_unmap(&self, iova: u64, len: u64, _leave: Leave) -> Result<(), FunctionError> {
        match self.device.dma_unmap(iova, len) {
            // A device that is gone does no DMA; what it mapped is the file, never this process's addresses.
            Ok(()) | Err(DeviceError::Gone { .. }) => Ok(()),
            Err(error) => Err(self.error("unmapping of memory", error)),
        }
    }

    fn has_space(&self, _leave: Leave) -> &AtomicBool {
        &self.has_space
    }

    fn reset(&self) -> Result<(), FunctionError> {
        self.device.reset().map_err(|e| self.error("function reset", e))?;
        set_command(self, Command::Own)
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
        if let Err(error) = set_command(self, Command::LetGo) {
            log::debug!("{}: bus mastering stays on: {error}", self.address);
        }
        self.device.detached();
    }
}

#[cfg(test)]
mod tests {
    use super::super::LEAVE;
    use super::super::fake::{FakeDevice, signal};
    use super::*;
    use crate::mem::{CallerMemory, DmaSpace, map_fd};
    use std::ptr::NonNull;
    use std::sync::atomic::Ordering::SeqCst;

    fn function() -> (Arc<FakeDevice>, Arc<dyn PciFunction>) {
        let device = FakeDevice::new();
        let function = InProcess::new("fake0", device.clone()).expect("opens");
        (device, Arc::new(function))
    }

    #[test]
    fn registers_are_big_endian_and_checked() {
        let (device, function) = function();
        let bar = function.bar0().expect("BAR 0");
        bar.write32(0x10, 0x0102_0304);
        bar.doorbell(0x18).expect("aligned").ring(0x0102_0304_0506_0708);
        assert_eq!(bar.read32(0x1c), 0x0506_0708);
        let page = bar.subregion(0x1000, 0x1000).expect("inside");
        page.doorbell(0x800).expect("aligned").ring(0xaabb_ccdd_0000_0001);
        page.doorbell(0x800)
            .expect("aligned")
            .ring_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            *device.bar_writes.lock().unwrap(),
            [
                (0x10, vec![1, 2, 3, 4]),
                (0x18, vec![1, 2, 3, 4, 5, 6, 7, 8]),
                (0x1800, vec![0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 1]),
                (0x1800, vec![1, 2, 3, 4, 5, 6, 7, 8]),
            ]
        );
        for offset in [0xffd, 0x1000, 2, u64::MAX, u64::MAX - 3] {
            page.write32(offset, 0);
            assert_eq!(page.read32(offset), u32::MAX);
        }
        assert_eq!(device.bar_writes.lock().unwrap().len(), 4);
        assert!(bar.subregion(0xf000, 0x1001).is_err());
        assert!(bar.subregion(u64::MAX, 2).is_err());
        assert!(page.doorbell(0x804).is_err());
        assert!(page.doorbell(0xffc).is_err());
    }

    #[test]
    fn a_bar_may_be_mapped_in_part() {
        let device = FakeDevice::new();
        let file = rustix::fs::memfd_create("bar", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("memfd");
        let half = host_page_size() as u64 * 2;
        rustix::fs::ftruncate(&file, half).expect("ftruncate");
        let view = map_fd(&file, 0, half).expect("map");
        *device.mappable.lock().unwrap() = Some((file, half));
        let function = InProcess::new("fake0", device.clone()).expect("opens");
        let bar = function.bar0().expect("BAR 0");
        assert!(!bar.is_mapped());
        assert!(bar.subregion(0, half).expect("inside").is_mapped());
        let doorbell = bar.doorbell(half - 8).expect("inside");
        bar.write32(0x20, 0x0102_0304);
        doorbell.ring(0x1122_3344_5566_7788);
        assert!(
            device.bar_writes.lock().unwrap().is_empty(),
            "mapped registers are not trapped"
        );
        assert_eq!(bar.read32(0x20), 0x0102_0304);
        // SAFETY: the mapping is `half` bytes long.
        let last = unsafe {
            view.as_ptr()
                .add(half as usize - 8)
                .cast::<[u8; 8]>()
                .read_volatile()
        };
        assert_eq!(last, [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        bar.write32(half, 5);
        assert_eq!(device.bar_writes.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_bar_that_can_shrink_is_trapped() {
        let device = FakeDevice::new();
        let file = rustix::fs::memfd_create("bar", rustix::fs::MemfdFlags::empty()).expect("memfd");
        rustix::fs::ftruncate(&file, 0x10000).expect("ftruncate");
        *device.mappable.lock().unwrap() = Some((file, 0x10000));
        let function = InProcess::new("fake0", device).expect("opens");
        assert!(!function.bar0().expect("BAR 0").is_mapped());
    }

    #[test]
    fn v04_512_vectors_are_set_and_the_last_arrives() {
        let (device, function) = function();
        let fds: Vec<OwnedFd> = (0..512)
            .map(|_| eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd"))
            .collect();
        for count in [1, 33, 256, 512] {
            let vectors: Vec<_> = fds[..count].iter().map(|fd| Some(fd.as_fd())).collect();
            function.set_msix(0, &vectors).expect("vectors");
            device.interrupt(count as u16 - 1);
            assert!(readable(fds[count - 1].as_fd()));
        }
        let error = function
            .set_msix(500, &[None; 13])
            .expect_err("past the last")
            .to_string();
        assert_eq!(
            error,
            "in-process:fake0: MSI-X vectors 500 to 512 asked for, there are 512"
        );
        function.set_msix(0, &[None; 512]).expect("taken away");
        assert!(device.vectors.lock().unwrap().is_empty());
        function.set_msix(u16::MAX, &[]).expect("nothing asked");
    }

    #[test]
    fn the_device_sees_what_the_driver_writes_and_back() {
        let (device, function) = function();
        let space = DmaSpace::new(function).expect("space");
        let buffer = space.alloc(10_000).expect("buffer");
        buffer.write(9_990, b"0123456789").expect("inside");
        assert_eq!(device.dma_read(buffer.iova() + 9_990, 10), b"0123456789");
        device.dma_write(buffer.iova() + 4_096, &[0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(buffer.read_be32(4_096).expect("inside"), 0xdead_beef);
        drop(buffer);
        drop(space);
        assert!(device.maps.lock().unwrap().is_empty());
    }

    #[test]
    fn memory_without_a_file_is_refused_and_nothing_stays() {
        let (device, function) = function();
        let space = DmaSpace::new(function).expect("space");
        let page = host_page_size();
        let memory = vec![0u8; page];
        let va = NonNull::from(&memory[0]);
        // SAFETY: refused, so never mapped.
        let error = unsafe {
            space.map_caller(&[CallerMemory {
                va,
                len: page,
                file: None,
            }])
        };
        assert!(
            error
                .expect_err("no file")
                .to_string()
                .contains("must be a memfd")
        );
        assert_eq!((space.mappings(), device.maps.lock().unwrap().len()), (0, 0));
    }

    #[test]
    fn going_is_noticed_and_unmapping_from_the_gone_is_no_leak() {
        let (device, function) = function();
        assert_eq!(function.gone(), None);
        let space = DmaSpace::new(function.clone()).expect("space");
        let buffer = space.alloc(2 << 20).expect("buffer");
        signal(device.request.lock().unwrap().as_ref().expect("notifier").as_fd());
        assert_eq!(function.gone(), Some(GoneReason::Requested));
        assert!(readable(function.gone_fd().expect("fd")));
        device.gone.store(true, SeqCst);
        assert!(matches!(function.reset(), Err(FunctionError::Gone { .. })));
        assert_eq!(function.bar0().expect("BAR 0").read32(0), u32::MAX);
        assert!(space.alloc(1 << 20).is_err());
        drop(buffer);
        assert_eq!((space.leaked_bytes(), space.mappings()), (0, 0));
    }

    #[test]
    fn attaching_and_detaching_are_told() {
        let (device, function) = function();
        assert!(device.attached.load(SeqCst));
        let mut id = [0; 2];
        function.config_read(2, &mut id).expect("inside");
        assert_eq!(id, [2, 3]);
        assert!(function.config_read(4095, &mut id).is_err());
        assert!(function.config_write(u16::MAX, &id, LEAVE).is_err());
        function.reset().expect("resets");
        assert_eq!(device.resets.load(SeqCst), 1);
        let command = || {
            let config = device.config.lock().unwrap();
            u16::from_le_bytes([config[4], config[5]])
        };
        assert_eq!(
            command() & 0x406,
            0x406,
            "decodes memory, is bus master, raises no INTx"
        );
        drop(function);
        assert!(!device.attached.load(SeqCst));
        assert_eq!(command() & 4, 0, "bus master only while owned");
    }

    use super::super::host_page_size;
}
