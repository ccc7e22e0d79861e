//! The scripted NIC as a PCI device.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_hw_regs::init_seg::offset;
use ferroce_vfio_user::device::{DeviceError, DmaMap, DmaMessages, PciDevice};

use super::{CMDQ_GEOMETRY, FakeNic, UAR};

const BAR_BYTES: u64 = 0x2_0000;
const VECTORS: u16 = 4;

impl PciDevice for FakeNic {
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), DeviceError> {
        let at = usize::from(offset);
        data.copy_from_slice(&self.state().config[at..at + data.len()]);
        Ok(())
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), DeviceError> {
        let at = usize::from(offset);
        self.state().config[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn bar_size(&self, bar: u8) -> u64 {
        if bar == 0 { BAR_BYTES } else { 0 }
    }

    fn bar_read(&self, _bar: u8, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        let state = self.state();
        let value = if state.dead {
            u32::MAX
        } else {
            state.registers.get(&offset).copied().unwrap_or(0)
        };
        data.fill(0);
        let len = data.len().min(4);
        data[..len].copy_from_slice(&value.to_be_bytes()[..len]);
        Ok(())
    }

    fn bar_write(&self, _bar: u8, at: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.state();
        let mut word = [0; 4];
        let len = data.len().min(4);
        word[..len].copy_from_slice(&data[..len]);
        let value = u32::from_be_bytes(word);
        let uar = u64::from(UAR) * 4096;
        match at {
            _ if state.dead => {}
            offset::CMD_DBELL => state.doorbell(value),
            offset::CMDQ_ADDR_L_SZ => {
                state.registers.insert(at, value | CMDQ_GEOMETRY);
            }
            _ if at == uar + 0x40 => state.eq_doorbell(value, true),
            _ if at == uar + 0x48 => state.eq_doorbell(value, false),
            _ => {
                state.registers.insert(at, value);
            }
        }
        Ok(())
    }

    fn msix_vectors(&self) -> u16 {
        VECTORS
    }

    fn set_msix(&self, first: u16, eventfds: Vec<Option<OwnedFd>>) -> Result<(), DeviceError> {
        let mut state = self.state();
        for (vector, fd) in (first..).zip(eventfds) {
            match fd {
                Some(fd) => state.eventfds.insert(vector, File::from(fd)),
                None => state.eventfds.remove(&vector),
            };
        }
        Ok(())
    }

    fn set_request_notifier(&self, eventfd: Option<OwnedFd>) -> Result<(), DeviceError> {
        self.state().request = eventfd.map(File::from);
        Ok(())
    }

    fn dma_map(&self, map: DmaMap) -> Result<(), DeviceError> {
        let memory = map.memory.expect("memory of the driver has a descriptor");
        self.state()
            .maps
            .push((map.iova, map.len, File::from(memory.fd), memory.offset));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        let at = state
            .maps
            .iter()
            .position(|(start, size, ..)| (*start, *size) == (iova, len));
        at.map(|at| drop(state.maps.remove(at)))
            .ok_or(DeviceError::NotMapped { iova, len })
    }

    fn reset(&self) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.resets += 1;
        state.reset();
        Ok(())
    }

    fn attached(&self, _host: Option<Arc<dyn DmaMessages>>) {
        self.state().attached = true;
    }

    fn detached(&self) {
        let mut state = self.state();
        state.reset();
        state.attached = false;
        state.maps.clear();
        state.eventfds.clear();
        state.request = None;
    }
}
