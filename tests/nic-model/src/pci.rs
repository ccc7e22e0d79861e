//! The NIC's PCI configuration space.
//!
//! ```text
//!   0x000  type 0 header: ids, command, BAR 0 (64-bit, prefetchable)
//!   0x040  power management
//!   0x060  PCI Express endpoint, with function level reset
//!   0x09c  MSI-X: table and pending bits in BAR 0, below the first UAR that is given out
//!   0x0b0  vendor-specific (not on virtual functions): see [`vsc`]
//!   0x100  no extended capability
//! ```
//!
//! Only the bits that PCI makes writable change on a write. Sources: PCI Local Bus Specification 3.0, sections
//! 6.1, 6.2.5 and 6.8; PCI Express Base Specification 3.0, section 7.8.

mod vsc;

use crate::bar::{MSIX_PBA_OFFSET, MSIX_TABLE_OFFSET};
use crate::profile::Profile;

/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 4096;

/// Vendor id of the ConnectX family.
pub const VENDOR_ID: u16 = 0x15b3;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const PM: usize = 0x40;
const EXPRESS: usize = 0x60;
const DEVICE_CONTROL: usize = EXPRESS + 0x08;
const MSIX: usize = 0x9c;
const MSIX_CONTROL: usize = MSIX + 0x02;
const VENDOR: usize = 0xb0;

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
/// Device Control: initiate function level reset; always reads 0.
const INITIATE_FLR: u16 = 1 << 15;

/// What a write to configuration space asks of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigAction {
    /// Nothing more than the changed registers.
    None,
    /// A function level reset, which has already reset the configuration space.
    FunctionReset,
}

/// An access that is not inside of the configuration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("configuration access of {len} bytes at {offset:#x} is outside of the 4 KiB space")]
pub struct ConfigOutOfRange {
    /// First byte.
    pub offset: u16,
    /// Bytes.
    pub len: usize,
}

/// The configuration space with its writable bits.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_BYTES]>,
    writable: Box<[u8; CONFIG_BYTES]>,
    pristine: Box<[u8; CONFIG_BYTES]>,
    /// Behind the vendor-specific capability, where it is there.
    gateway: Option<vsc::Gateway>,
}

impl ConfigSpace {
    /// The space of that NIC, as after a reset.
    pub fn new(profile: &Profile) -> ConfigSpace {
        let mut space = ConfigSpace {
            bytes: Box::new([0; CONFIG_BYTES]),
            writable: Box::new([0; CONFIG_BYTES]),
            pristine: Box::new([0; CONFIG_BYTES]),
            gateway: (!profile.is_vf).then(vsc::Gateway::default),
        };
        space.header(profile);
        space.power_management();
        space.express(profile);
        space.msix(profile);
        space.pristine = space.bytes.clone();
        space
    }

    fn put16(&mut self, at: usize, value: u16, writable: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 2].copy_from_slice(&writable.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32, writable: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 4].copy_from_slice(&writable.to_le_bytes());
    }

    fn header(&mut self, profile: &Profile) {
        self.put16(0x00, VENDOR_ID, 0);
        self.put16(0x02, profile.device_id, 0);
        // Memory space, bus master, parity, SERR, INTx disable.
        self.put16(COMMAND, 0, 1 << 1 | 1 << 2 | 1 << 6 | 1 << 8 | 1 << 10);
        self.put16(0x06, 1 << 4, 0); // Status: there is a capability list.
        self.put32(0x08, 0x0200_0000, 0); // Ethernet controller, revision 0.
        self.put32(0x0c, 0, 0xff); // The cache line size has no effect; header type 0.
        let sizing = !(profile.bar_bytes() - 1);
        self.put32(BAR0, 0xc, sizing as u32 & !0xf); // Memory, 64-bit, prefetchable.
        self.put32(BAR0 + 4, 0, (sizing >> 32) as u32);
        self.put16(0x2c, VENDOR_ID, 0);
        self.put16(0x2e, profile.subsystem_id, 0);
        self.bytes[0x34] = PM as u8;
        self.writable[0x3c] = 0xff; // Interrupt line: software's own.
        self.bytes[0x3d] = u8::from(!profile.is_vf); // INTA is there and never used.
    }

    fn power_management(&mut self) {
        self.put16(PM, 0x01 | (EXPRESS as u16) << 8, 0);
        self.put16(PM + 2, 3, 0); // Version 3 of the specification, D0 and D3hot.
        self.put16(PM + 4, 1 << 3, 3); // No soft reset; power state.
    }

    fn express(&mut self, profile: &Profile) {
        self.put16(EXPRESS, 0x10 | (MSIX as u16) << 8, 0);
        self.put16(EXPRESS + 2, 2, 0); // Version 2, endpoint.
        // Device Capabilities: payload up to 512, extended tags, role-based errors, function level reset.
        let reset = u32::from(profile.function_reset) << 28;
        self.put32(EXPRESS + 4, 2 | 1 << 5 | 1 << 15 | reset, 0);
        // Device Control: relaxed ordering, no snoop and a 512-byte read request at reset.
        self.put16(DEVICE_CONTROL, 0x2810, 0x7fff);
        self.put32(EXPRESS + 0x0c, 3 | 16 << 4, 0); // Link Capabilities: 8 GT/s, 16 lanes.
        self.put16(EXPRESS + 0x10, 0, 0x0fd3); // Link Control.
        self.put16(EXPRESS + 0x12, 3 | 16 << 4, 0); // Link Status: as wide and fast as can be.
        self.put32(EXPRESS + 0x24, 1 << 4 | 0xf, 0); // Device Capabilities 2: completion timeouts.
        self.put16(EXPRESS + 0x28, 0, 0x1f);
        self.put32(EXPRESS + 0x2c, 0b111 << 1, 0); // Link Capabilities 2: 2.5, 5 and 8 GT/s.
        self.put16(EXPRESS + 0x30, 3, 0xf); // Link Control 2: target speed.
    }

    fn msix(&mut self, profile: &Profile) {
        let next = if profile.is_vf { 0 } else { VENDOR as u16 };
        self.put16(MSIX, 0x11 | next << 8, 0);
        if !profile.is_vf {
            self.put16(VENDOR, 0x09, 0); // Last in the list.
            self.put16(VENDOR + 2, vsc::BYTES as u16, 0);
        }
        let table_size = profile.msix_vectors.clamp(1, 2048) - 1;
        self.put16(MSIX_CONTROL, table_size, 1 << 15 | 1 << 14); // Enable, mask all.
        self.put32(MSIX + 4, MSIX_TABLE_OFFSET as u32, 0); // BAR 0.
        self.put32(MSIX + 8, MSIX_PBA_OFFSET as u32, 0);
    }

    fn range(offset: u16, len: usize) -> Result<std::ops::Range<usize>, ConfigOutOfRange> {
        let start = usize::from(offset);
        if len == 0 || start + len > CONFIG_BYTES {
            return Err(ConfigOutOfRange { offset, len });
        }
        Ok(start..start + len)
    }

    /// Reads `data.len()` bytes at `offset`.
    ///
    /// # Errors
    /// Not inside of the space, or nothing to read.
    pub fn read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), ConfigOutOfRange> {
        let range = Self::range(offset, data.len())?;
        if let (Some(gateway), Some(at)) = (&mut self.gateway, gateway_offset(&range)) {
            data.copy_from_slice(&gateway.read(at).to_le_bytes());
            return Ok(());
        }
        data.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    /// Writes what is writable of `data` at `offset`, and says what follows from it.
    ///
    /// # Errors
    /// Not inside of the space, or nothing to write.
    pub fn write(&mut self, offset: u16, data: &[u8]) -> Result<ConfigAction, ConfigOutOfRange> {
        let range = Self::range(offset, data.len())?;
        if let (Some(gateway), Some(at)) = (&mut self.gateway, gateway_offset(&range)) {
            let mut value = [0; 4];
            value.copy_from_slice(data);
            gateway.write(at, u32::from_le_bytes(value));
            return Ok(ConfigAction::None);
        }
        let mut reset = false;
        for (at, value) in range.zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | value & mask;
            reset |= at == DEVICE_CONTROL + 1 && value & (INITIATE_FLR >> 8) as u8 != 0;
        }
        if reset && self.resets() {
            self.reset();
            return Ok(ConfigAction::FunctionReset);
        }
        Ok(ConfigAction::None)
    }

    /// Puts all registers back to what they are after a reset.
    pub fn reset(&mut self) {
        self.bytes = self.pristine.clone();
    }

    /// Whether a function level reset is offered.
    pub fn resets(&self) -> bool {
        self.bytes[EXPRESS + 7] & 1 << 4 != 0
    }

    /// The user is gone, and nothing resets the device for it: no memory, no DMA, no interrupts, as a host leaves a
    /// function that nobody owns.
    pub fn disown(&mut self) {
        self.bytes[COMMAND] &= !((COMMAND_MEMORY | COMMAND_MASTER) as u8);
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes([self.bytes[COMMAND], self.bytes[COMMAND + 1]])
    }

    /// Whether the device may access host memory and interrupt.
    pub fn bus_master(&self) -> bool {
        self.command() & COMMAND_MASTER != 0
    }

    /// Whether the device answers at its BAR.
    pub fn memory_enabled(&self) -> bool {
        self.command() & COMMAND_MEMORY != 0
    }
}

/// Offset of a register of the gateway, if that is what is accessed: whole dwords only.
fn gateway_offset(range: &std::ops::Range<usize>) -> Option<usize> {
    let offset = range.start.checked_sub(VENDOR)?;
    let register = (4..vsc::BYTES).contains(&offset) && offset.is_multiple_of(4);
    (register && range.len() == 4).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read32(space: &mut ConfigSpace, at: u16) -> u32 {
        let mut b = [0; 4];
        space.read(at, &mut b).unwrap();
        u32::from_le_bytes(b)
    }

    #[test]
    fn bar0_shows_its_size_and_keeps_its_type() {
        let mut space = ConfigSpace::new(&Profile::connectx4());
        space.write(0x10, &[0xff; 8]).unwrap();
        assert_eq!(read32(&mut space, 0x10), !((32 << 20) - 1) | 0xc);
        assert_eq!(read32(&mut space, 0x14), u32::MAX);
        space.write(0x10, &0xfe00_0000u32.to_le_bytes()).unwrap();
        assert_eq!(read32(&mut space, 0x10), 0xfe00_000c);
        assert_eq!(read32(&mut space, 0x18), 0, "no BAR 2");
    }

    #[test]
    fn ids_and_reserved_bits_stay() {
        let mut space = ConfigSpace::new(&Profile::connectx4());
        let before = space.clone();
        for at in (0..CONFIG_BYTES as u16).step_by(4) {
            if (at..at + 4).contains(&(DEVICE_CONTROL as u16)) {
                continue; // It would be a reset.
            }
            space.write(at, &[0xff; 4]).unwrap();
        }
        assert_eq!(read32(&mut space, 0), 0x1013_15b3);
        assert_eq!(read32(&mut space, 0x08), 0x0200_0000);
        assert_eq!(read32(&mut space, 0x04) & 0xffff, 0x546);
        space.reset();
        assert_eq!(space.bytes, before.bytes);
    }

    #[test]
    fn the_capability_list_ends_and_holds_msix() {
        let mut space = ConfigSpace::new(&Profile::connectx4());
        let mut at = space.bytes[0x34];
        let mut ids = Vec::new();
        while at != 0 && ids.len() < 48 {
            ids.push(space.bytes[at as usize]);
            at = space.bytes[at as usize + 1];
        }
        assert_eq!(ids, [0x01, 0x10, 0x11, 0x09]);
        assert_eq!(read32(&mut space, MSIX as u16) >> 16, 63);
        assert_eq!(read32(&mut space, 0x100), 0);
    }

    #[test]
    fn function_level_reset_takes_the_command_register_back() {
        let mut space = ConfigSpace::new(&Profile::vf());
        assert_eq!(space.write(0x04, &[6, 0]).unwrap(), ConfigAction::None);
        assert!(space.bus_master() && space.memory_enabled());
        let control = (0x2810u16 | INITIATE_FLR).to_le_bytes();
        assert_eq!(
            space.write(DEVICE_CONTROL as u16, &control).unwrap(),
            ConfigAction::FunctionReset
        );
        assert!(!space.bus_master() && !space.memory_enabled());
    }

    #[test]
    fn a_function_without_reset_does_not_offer_it_and_ignores_it() {
        let mut space = ConfigSpace::new(&Profile::connectx4().without_reset());
        assert_eq!(read32(&mut space, EXPRESS as u16 + 4) >> 28 & 1, 0);
        space.write(0x04, &[6, 0]).unwrap();
        let control = (0x2810u16 | INITIATE_FLR).to_le_bytes();
        let action = space.write(DEVICE_CONTROL as u16, &control).unwrap();
        assert!(action == ConfigAction::None && space.bus_master());
        space.disown();
        assert!(!space.bus_master() && !space.memory_enabled());
    }

    #[test]
    fn the_gateway_answers_to_dwords() {
        let mut space = ConfigSpace::new(&Profile::connectx4());
        assert_eq!(read32(&mut space, VENDOR as u16), 0x18_0009);
        let counter = read32(&mut space, VENDOR as u16 + 8);
        space.write(VENDOR as u16 + 0xc, &counter.to_le_bytes()).unwrap();
        assert_eq!(read32(&mut space, VENDOR as u16 + 0xc), counter);
        let mut other = ConfigSpace::new(&Profile::vf());
        assert_eq!(read32(&mut other, VENDOR as u16), 0, "not on a virtual function");
    }

    #[test]
    fn accesses_past_the_end_are_refused() {
        let mut space = ConfigSpace::new(&Profile::minimal());
        assert!(space.read(4093, &mut [0; 4]).is_err());
        assert!(space.write(u16::MAX, &[0; 8]).is_err());
        assert!(space.read(0, &mut []).is_err());
        assert!(space.read(4092, &mut [0; 4]).is_ok());
    }
}
