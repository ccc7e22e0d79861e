//! Devices and functions for unit tests: they remember what they are told, and refuse when they are told to.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ferroce_vfio_user::device::{BarArea, BarMemory, DeviceError, DmaMap, DmaMessages, PciDevice};

use super::{DmaLimits, FunctionAddress, FunctionError, GoneReason, HostPages, Leave, PciFunction};
use crate::mmio::{BarAccess, Mmio};

/// A device with a BAR 0 of 64 KiB that is plain memory, 512 vectors, and real DMA maps.
#[derive(Default)]
pub(crate) struct FakeDevice {
    pub config: Mutex<Vec<u8>>,
    pub bar: Mutex<Vec<u8>>,
    pub bar_writes: Mutex<Vec<(u64, Vec<u8>)>>,
    /// The first pages of BAR 0 can be mapped: a file, and how many bytes.
    pub mappable: Mutex<Option<(OwnedFd, u64)>>,
    pub maps: Mutex<BTreeMap<u64, DmaMap>>,
    pub vectors: Mutex<BTreeMap<u16, OwnedFd>>,
    pub request: Mutex<Option<OwnedFd>>,
    pub attached: AtomicBool,
    pub resets: AtomicU64,
    pub gone: AtomicBool,
}

impl FakeDevice {
    pub const BAR_LEN: u64 = 0x10000;
    pub const VECTORS: u16 = 512;

    pub fn new() -> Arc<FakeDevice> {
        let device = FakeDevice::default();
        *device.config.lock().unwrap() = (0..4096).map(|i| i as u8).collect();
        *device.bar.lock().unwrap() = vec![0; Self::BAR_LEN as usize];
        Arc::new(device)
    }

    /// Writes to the user's memory as a device does, by IOVA.
    pub fn dma_write(&self, iova: u64, data: &[u8]) {
        let maps = self.maps.lock().unwrap();
        let (start, map) = maps.range(..=iova).next_back().expect("mapped");
        assert!(iova + data.len() as u64 <= start + map.len, "outside the map");
        let memory = map.memory.as_ref().expect("a file");
        let file = std::fs::File::from(memory.fd.try_clone().unwrap());
        file.write_all_at(data, memory.offset + (iova - start)).unwrap();
    }

    /// Reads the user's memory as a device does, by IOVA.
    pub fn dma_read(&self, iova: u64, len: usize) -> Vec<u8> {
        let maps = self.maps.lock().unwrap();
        let (start, map) = maps.range(..=iova).next_back().expect("mapped");
        let memory = map.memory.as_ref().expect("a file");
        let file = std::fs::File::from(memory.fd.try_clone().unwrap());
        let mut data = vec![0; len];
        file.read_exact_at(&mut data, memory.offset + (iova - start))
            .unwrap();
        data
    }

    /// Raises a vector.
    pub fn interrupt(&self, vector: u16) {
        let vectors = self.vectors.lock().unwrap();
        signal(vectors.get(&vector).expect("a vector that is set").as_fd());
    }

    fn alive(&self) -> Result<(), DeviceError> {
        if self.gone.load(SeqCst) {
            Err(DeviceError::Gone { what: "the fake" })
        } else {
            Ok(())
        }
    }
}

/// Signals an eventfd.
pub(crate) fn signal(fd: BorrowedFd<'_>) {
    let mut file = std::fs::File::from(fd.try_clone_to_owned().unwrap());
    file.write_all(&1u64.to_ne_bytes()).unwrap();
}

impl PciDevice for FakeDevice {
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), DeviceError> {
        self.alive()?;
        let offset = usize::from(offset);
        data.copy_from_slice(&self.config.lock().unwrap()[offset..offset + data.len()]);
        Ok(())
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), DeviceError> {
        self.alive()?;
        let offset = usize::from(offset);
        self.config.lock().unwrap()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn bar_size(&self, bar: u8) -> u64 {
        if bar == 0 {
            self.bar.lock().unwrap().len() as u64
        } else {
            0
        }
    }

    fn bar_read(&self, _bar: u8, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        self.alive()?;
        let offset = offset as usize;
        data.copy_from_slice(&self.bar.lock().unwrap()[offset..offset + data.len()]);
        Ok(())
    }

    fn bar_write(&self, _bar: u8, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.alive()?;
        self.bar_writes.lock().unwrap().push((offset, data.to_vec()));
        let offset = offset as usize;
        self.bar.lock().unwrap()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn bar_memory(&self, _bar: u8) -> Option<BarMemory> {
        let mappable = self.mappable.lock().unwrap();
        let (fd, len) = mappable.as_ref()?;
        let areas = vec![BarArea { offset: 0, len: *len }];
        Some(BarMemory {
            fd: fd.try_clone().unwrap(),
            offset: 0,
            areas,
        })
    }

    fn msix_vectors(&self) -> u16 {
        Self::VECTORS
    }

    fn set_msix(&self, first: u16, eventfds: Vec<Option<OwnedFd>>) -> Result<(), DeviceError> {
        let mut vectors = self.vectors.lock().unwrap();
        for (vector, fd) in (first..=u16::MAX).zip(eventfds) {
            match fd {
                Some(fd) => vectors.insert(vector, fd),
                None => vectors.remove(&vector),
            };
        }
        Ok(())
    }

    fn set_request_notifier(&self, eventfd: Option<OwnedFd>) -> Result<(), DeviceError> {
        *self.request.lock().unwrap() = eventfd;
        Ok(())
    }

    fn dma_map(&self, map: DmaMap) -> Result<(), DeviceError> {
        self.alive()?;
        let mut maps = self.maps.lock().unwrap();
        let last = map.iova + (map.len - 1);
        if let Some((_, other)) = maps.range(..=last).next_back()
            && other.iova + (other.len - 1) >= map.iova
        {
            let (other_iova, other_len) = (other.iova, other.len);
            return Err(DeviceError::Overlaps {
                iova: map.iova,
                len: map.len,
                other_iova,
                other_len,
            });
        }
        maps.insert(map.iova, map);
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError> {
        self.alive()?;
        let mut maps = self.maps.lock().unwrap();
        match maps.get(&iova) {
            Some(map) if map.len == len => {
                maps.remove(&iova);
                Ok(())
            }
            _ => Err(DeviceError::NotMapped { iova, len }),
        }
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.alive()?;
        self.resets.fetch_add(1, SeqCst);
        Ok(())
    }

    fn attached(&self, _host: Option<Arc<dyn DmaMessages>>) {
        self.attached.store(true, SeqCst);
    }

    fn detached(&self) {
        self.attached.store(false, SeqCst);
        self.maps.lock().unwrap().clear();
    }
}

/// A function that only keeps account of DMA maps, with limits as the test wants them.
#[derive(Debug)]
pub(crate) struct FakeFunction {
    address: FunctionAddress,
    limits: DmaLimits,
    /// Bytes that may be locked, as RLIMIT_MEMLOCK would have it.
    pub memlock: AtomicU64,
    /// Unmaps fail.
    pub refuse_unmap: AtomicBool,
    /// IOVA to (virtual address, length).
    pub maps: Mutex<BTreeMap<u64, (u64, u64)>>,
    has_space: AtomicBool,
}

impl FakeFunction {
    pub fn new(limits: DmaLimits) -> Arc<FakeFunction> {
        Arc::new(FakeFunction {
            address: FunctionAddress::InProcess("fake".into()),
            limits,
            memlock: AtomicU64::new(u64::MAX),
            refuse_unmap: AtomicBool::new(false),
            maps: Mutex::default(),
            has_space: AtomicBool::new(false),
        })
    }

    /// Any address, 4 KiB pages, at most `most` maps.
    pub fn with_maps(most: u32) -> Arc<FakeFunction> {
        FakeFunction::new(DmaLimits {
            iova_ranges: vec![0..=(1 << 47) - 1],
            page_sizes: !0xfff,
            max_mappings: Some(most),
        })
    }

    pub fn mapped(&self) -> u64 {
        self.maps.lock().unwrap().values().map(|(_, len)| len).sum()
    }
}

impl PciFunction for FakeFunction {
    fn address(&self) -> &FunctionAddress {
        &self.address
    }

    fn config_read(&self, _offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        data.fill(0xff);
        Ok(())
    }

    fn config_write(&self, _offset: u16, _data: &[u8], _leave: Leave) -> Result<(), FunctionError> {
        Ok(())
    }

    fn bar0(&self) -> Result<Mmio, FunctionError> {
        struct Nothing;
        impl BarAccess for Nothing {
            fn read(&self, _offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
                data.fill(0xff);
                Ok(())
            }
            fn write(&self, _offset: u64, _data: &[u8]) -> Result<(), FunctionError> {
                Ok(())
            }
        }
        Ok(Mmio::trapped(4096, Arc::new(Nothing)))
    }

    fn msix_vectors(&self) -> u16 {
        0
    }

    fn set_msix(&self, _first: u16, _eventfds: &[Option<BorrowedFd<'_>>]) -> Result<(), FunctionError> {
        Ok(())
    }

    fn dma_limits(&self) -> &DmaLimits {
        &self.limits
    }

    fn dma_map(&self, iova: u64, memory: &HostPages<'_>, _leave: Leave) -> Result<(), FunctionError> {
        let (va, len, last) = (
            memory.va().as_ptr() as u64,
            memory.len(),
            iova + (memory.len() - 1),
        );
        let allowed = self.memlock.load(SeqCst);
        if self.mapped() + len > allowed {
            return Err(FunctionError::MemoryLock {
                needed: len,
                allowed: Some(allowed),
            });
        }
        assert!(
            self.limits
                .iova_ranges
                .iter()
                .any(|r| r.contains(&iova) && r.contains(&last)),
            "{iova:#x}"
        );
        let page = self.limits.page_sizes & self.limits.page_sizes.wrapping_neg();
        assert!(iova.is_multiple_of(page) && va.is_multiple_of(page) && len.is_multiple_of(page));
        let mut maps = self.maps.lock().unwrap();
        assert!(
            maps.iter().all(|(at, (_, l))| last < *at || iova > at + (l - 1)),
            "overlap at {iova:#x}"
        );
        maps.insert(iova, (va, len));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64, _leave: Leave) -> Result<(), FunctionError> {
        let source = std::io::Error::from_raw_os_error(libc::EINVAL);
        if self.refuse_unmap.load(SeqCst) {
            return Err(FunctionError::Unmap { iova, len, source });
        }
        match self.maps.lock().unwrap().remove(&iova) {
            Some((_, mapped)) if mapped == len => Ok(()),
            other => panic!("unmap of {iova:#x} + {len:#x}, mapped is {other:x?}"),
        }
    }

    fn has_space(&self, _leave: Leave) -> &AtomicBool {
        &self.has_space
    }

    fn reset(&self) -> Result<(), FunctionError> {
        Ok(())
    }

    fn gone(&self) -> Option<GoneReason> {
        None
    }

    fn gone_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
