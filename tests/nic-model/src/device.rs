//! A NIC of the model as a PCI device, for a driver in the same process or for a vfio-user server.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_vfio_user::device::{DeviceError, DmaMap, DmaMessages, PciDevice};

use crate::runner::{PIECE, PostedWrite, Shared};

/// One NIC of a [`Runner`](crate::runner::Runner), callable from any thread. Keeps the NIC alive, but not the
/// engine that drives it.
#[derive(Debug)]
pub struct ModelDevice {
    shared: Arc<Shared>,
    index: usize,
    bar_bytes: u64,
    msix_vectors: u16,
}

/// Longest write to BAR 0 that is taken: a page of write-combined stores.
const MAX_BURST: usize = 4096;

impl ModelDevice {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> ModelDevice {
        let facts = |nic: &mut crate::nic::Nic, _| (nic.bar_bytes(), nic.data_plane.interrupts.count());
        let (bar_bytes, msix_vectors) = shared.with(index, facts);
        ModelDevice {
            shared,
            index,
            bar_bytes,
            msix_vectors,
        }
    }

    fn check_bar(&self, bar: u8, offset: u64, len: usize) -> Result<(), DeviceError> {
        if bar != 0 {
            return Err(DeviceError::NoSuch {
                what: "BAR",
                index: u64::from(bar),
            });
        }
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.bar_bytes) {
            return Err(DeviceError::OutOfRange {
                what: "BAR 0",
                offset,
                len: len as u64,
                limit: self.bar_bytes,
            });
        }
        if len > MAX_BURST {
            return Err(DeviceError::BadWidth {
                what: "BAR 0",
                offset,
                len: len as u64,
            });
        }
        Ok(())
    }
}

impl PciDevice for ModelDevice {
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), DeviceError> {
        self.shared
            .with(self.index, |nic, _| nic.config_read(offset, data))
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), DeviceError> {
        self.shared
            .with(self.index, |nic, now| nic.config_write(now, offset, data))
    }

    fn bar_size(&self, bar: u8) -> u64 {
        if bar == 0 { self.bar_bytes } else { 0 }
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        self.check_bar(bar, offset, data.len())?;
        self.shared
            .with(self.index, |nic, now| nic.bar_read(now, offset, data))
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check_bar(bar, offset, data.len())?;
        for (i, part) in data.chunks(PIECE).enumerate() {
            let mut bytes = [0; PIECE];
            bytes[..part.len()].copy_from_slice(part);
            let write = PostedWrite {
                offset: offset + (PIECE * i) as u64,
                len: part.len() as u8,
                bytes,
            };
            self.shared.post(self.index, write);
        }
        Ok(())
    }

    fn msix_vectors(&self) -> u16 {
        self.msix_vectors
    }

    fn set_msix(&self, first: u16, eventfds: Vec<Option<OwnedFd>>) -> Result<(), DeviceError> {
        self.shared
            .with(self.index, |nic, _| nic.set_msix(first, eventfds))
    }

    fn set_request_notifier(&self, eventfd: Option<OwnedFd>) -> Result<(), DeviceError> {
        self.shared
            .with(self.index, |nic, _| nic.set_request_notifier(eventfd));
        Ok(())
    }

    fn dma_map(&self, map: DmaMap) -> Result<(), DeviceError> {
        self.shared.with(self.index, |nic, _| nic.dma_map(map))
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError> {
        self.shared.with(self.index, |nic, _| nic.dma_unmap(iova, len))
    }

    fn resettable(&self) -> bool {
        self.shared.with(self.index, |nic, _| nic.resets())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.shared.with(self.index, |nic, now| {
            if !nic.resets() {
                return Err(DeviceError::Unsupported {
                    what: "function reset",
                });
            }
            nic.reset(now);
            Ok(())
        })
    }

    fn attached(&self, host: Option<Arc<dyn DmaMessages>>) {
        self.shared.with(self.index, |nic, _| nic.set_messages(host));
    }

    fn detached(&self) {
        self.shared.with(self.index, |nic, now| nic.detach(now));
    }
}
