//! The vendor-specific capability of a ConnectX physical function: a gateway to address spaces behind the PCI ones.
//!
//! ```text
//!   +0x04  control: space [15:0]; read: size_valid 28, status [31:29] (0: no such space)
//!   +0x08  counter: another value at each read
//!   +0x0c  semaphore of the gateway: 0 is free; takes a value only while free, and 0 from anybody
//!   +0x10  address [29:0]; flag 31: written 1 = write, 0 = read; it is the other value when that is done
//!   +0x14  data
//! ```
//!
//! Two spaces are there: 7, the registers that a dump of the device walks through (here so many zeros), and 10, the
//! semaphores by which functions of one card agree who resets it. Source: Linux mlx5 `lib/pci_vsc.c`, `diag/crdump.c`.

/// Bytes of the capability.
pub(super) const BYTES: usize = 0x18;

const CONTROL: usize = 0x04;
const COUNTER: usize = 0x08;
const SEMAPHORE: usize = 0x0c;
const ADDRESS: usize = 0x10;
const DATA: usize = 0x14;

const FLAG: u32 = 1 << 31;
const SIZE_VALID: u32 = 1 << 28;
const STATUS_OK: u32 = 1 << 29;

const SPACE_DUMP: u16 = 7;
const SPACE_SEMAPHORES: u16 = 10;
/// Bytes of the space that a dump walks through. A real card has a thousand times as many.
const DUMP_BYTES: u32 = 0x400;
/// The semaphore of software resets.
const SEMAPHORE_SW_RESET: u32 = 0x20;

/// The gateway's state.
#[derive(Clone, Debug, Default)]
pub(super) struct Gateway {
    space: u16,
    counter: u32,
    semaphore: u32,
    address: u32,
    data: u32,
    sw_reset: u32,
}

impl Gateway {
    /// Reads the dword at `offset` of the capability.
    pub(super) fn read(&mut self, offset: usize) -> u32 {
        match offset {
            CONTROL => {
                u32::from(self.space)
                    | match self.space {
                        SPACE_DUMP => STATUS_OK | SIZE_VALID,
                        SPACE_SEMAPHORES => STATUS_OK,
                        _ => 0,
                    }
            }
            COUNTER => {
                // Never 0, which would free the semaphore.
                self.counter = self.counter.checked_add(1).unwrap_or(1);
                self.counter
            }
            SEMAPHORE => self.semaphore,
            ADDRESS => self.address,
            DATA => self.data,
            _ => 0,
        }
    }

    /// Writes it.
    pub(super) fn write(&mut self, offset: usize, value: u32) {
        match offset {
            CONTROL => {
                self.space = value as u16;
                // Where the space has an end, the address says it until it is written.
                self.address = if self.space == SPACE_DUMP { DUMP_BYTES } else { 0 };
            }
            SEMAPHORE if value == 0 || self.semaphore == 0 => self.semaphore = value,
            ADDRESS if value & FLAG != 0 => self.store(value & !FLAG),
            ADDRESS => self.load(value),
            DATA => self.data = value,
            _ => {}
        }
    }

    fn store(&mut self, address: u32) {
        let free = self.data == 0 || self.sw_reset == 0;
        if (self.space, address) == (SPACE_SEMAPHORES, SEMAPHORE_SW_RESET) && free {
            self.sw_reset = self.data;
        }
        self.address = address;
    }

    fn load(&mut self, address: u32) {
        self.data = match (self.space, address) {
            (SPACE_SEMAPHORES, SEMAPHORE_SW_RESET) => self.sw_reset,
            _ => 0,
        };
        // A dump reads on from where the address stands then.
        let next = if self.space == SPACE_DUMP {
            address.saturating_add(4)
        } else {
            address
        };
        self.address = next & !FLAG | FLAG;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_semaphore_has_one_owner() {
        let mut gateway = Gateway::default();
        let first = gateway.read(COUNTER);
        let second = gateway.read(COUNTER);
        assert!(first != 0 && first != second);
        gateway.write(SEMAPHORE, first);
        gateway.write(SEMAPHORE, second);
        assert_eq!(gateway.read(SEMAPHORE), first);
        gateway.write(SEMAPHORE, 0);
        gateway.write(SEMAPHORE, second);
        assert_eq!(gateway.read(SEMAPHORE), second);
    }

    #[test]
    fn a_dump_walks_to_the_end_of_its_space() {
        let mut gateway = Gateway::default();
        gateway.write(CONTROL, SPACE_DUMP.into());
        assert_eq!(gateway.read(CONTROL) >> 28, 0b011, "status 1, size valid");
        let size = gateway.read(ADDRESS);
        let mut at = 0;
        while at < size {
            gateway.write(ADDRESS, at);
            assert_eq!(gateway.read(ADDRESS) & FLAG, FLAG, "read");
            assert_eq!(gateway.read(DATA), 0);
            at = gateway.read(ADDRESS) & !FLAG;
        }
        assert_eq!(at, size);
    }

    #[test]
    fn software_resets_are_locked_by_a_semaphore_of_their_own() {
        let mut gateway = Gateway::default();
        gateway.write(CONTROL, SPACE_SEMAPHORES.into());
        assert_eq!(gateway.read(CONTROL) >> 28, 0b010, "status 1, no size");
        for (written, kept) in [(7, 7), (8, 7), (0, 0), (8, 8)] {
            gateway.write(DATA, written);
            gateway.write(ADDRESS, SEMAPHORE_SW_RESET | FLAG);
            assert_eq!(gateway.read(ADDRESS) & FLAG, 0, "written");
            gateway.write(ADDRESS, SEMAPHORE_SW_RESET);
            assert_eq!(gateway.read(DATA), kept);
        }
    }

    #[test]
    fn other_spaces_say_that_they_are_not_there() {
        let mut gateway = Gateway::default();
        gateway.write(CONTROL, 3);
        assert_eq!(gateway.read(CONTROL), 3);
    }
}
