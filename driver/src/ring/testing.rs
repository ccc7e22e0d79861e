//! A queue's other side for the ring tests: DMA memory that no device uses, and a doorbell that remembers.

use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::slots::Lent;
use crate::function::{DmaLimits, FunctionAddress, FunctionError, GoneReason, HostPages, Leave, PciFunction};
use crate::mem::{DmaRing, DmaSpace};
use crate::mmio::{BarAccess, Doorbell, Mmio};

/// Doorbell writes in the order they came.
#[derive(Debug, Default)]
pub(super) struct Rings(Mutex<Vec<(u64, Vec<u8>)>>);

impl Rings {
    /// A doorbell at `offset` of a UAR page that ends up here.
    pub(super) fn doorbell(self: &Arc<Self>, offset: u64) -> Doorbell {
        Mmio::trapped(4096, self.clone()).doorbell(offset).unwrap()
    }

    /// Takes what was written so far.
    pub(super) fn take(&self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl BarAccess for Rings {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), FunctionError> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        self.0.lock().unwrap().push((offset, data.to_vec()));
        Ok(())
    }
}

impl Lent for String {
    fn come_back(&self) {}
}

/// A function that does nothing.
#[derive(Debug)]
struct NoDevice {
    address: FunctionAddress,
    limits: DmaLimits,
    has_space: AtomicBool,
}

/// DMA memory that no device uses.
pub(super) fn dma() -> Arc<DmaSpace> {
    let address = FunctionAddress::InProcess("none".into());
    let limits = DmaLimits {
        iova_ranges: vec![0..=u64::MAX >> 16],
        page_sizes: 4096,
        max_mappings: None,
    };
    let has_space = AtomicBool::new(false);
    let device = NoDevice {
        address,
        limits,
        has_space,
    };
    DmaSpace::new(Arc::new(device)).unwrap()
}

/// A doorbell record.
pub(super) fn record(dma: &Arc<DmaSpace>) -> DmaRing<8> {
    DmaRing::new(Arc::new(dma.alloc(64).unwrap()), 0, 1).unwrap()
}

impl PciFunction for NoDevice {
    fn address(&self) -> &FunctionAddress {
        &self.address
    }

    fn config_read(&self, _: u16, _: &mut [u8]) -> Result<(), FunctionError> {
        Ok(())
    }

    fn config_write(&self, _: u16, _: &[u8], _: Leave) -> Result<(), FunctionError> {
        Ok(())
    }

    fn bar0(&self) -> Result<Mmio, FunctionError> {
        Ok(Mmio::trapped(0, Arc::new(Rings::default())))
    }

    fn msix_vectors(&self) -> u16 {
        0
    }

    fn set_msix(&self, _: u16, _: &[Option<BorrowedFd<'_>>]) -> Result<(), FunctionError> {
        Ok(())
    }

    fn dma_limits(&self) -> &DmaLimits {
        &self.limits
    }

    fn dma_map(&self, _: u64, _: &HostPages<'_>, _: Leave) -> Result<(), FunctionError> {
        Ok(())
    }

    fn dma_unmap(&self, _: u64, _: u64, _: Leave) -> Result<(), FunctionError> {
        Ok(())
    }

    fn has_space(&self, _: Leave) -> &AtomicBool {
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
