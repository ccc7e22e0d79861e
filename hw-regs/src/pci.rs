//! PCI identities of the family, and the few configuration registers that a driver touches.
//!
//! Source: PCI Express Base Specification (configuration space); the device ids are those that Linux's mlx5_core
//! (6.12 and later) binds to, but those of Connect-IB, which has no Ethernet.

/// PCI vendor id.
pub const VENDOR_ID: u16 = 0x15b3;

/// What a device id stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceId {
    /// PCI device id.
    pub id: u16,
    /// Product name.
    pub product: &'static str,
    /// Whether it is a virtual function.
    pub virtual_function: bool,
}

const fn pf(id: u16, product: &'static str) -> DeviceId {
    DeviceId {
        id,
        product,
        virtual_function: false,
    }
}

const fn vf(id: u16, product: &'static str) -> DeviceId {
    DeviceId {
        id,
        product,
        virtual_function: true,
    }
}

/// The devices that speak this interface and that ferroce drives.
pub const DEVICES: &[DeviceId] = &[
    pf(0x1013, "ConnectX-4"),
    vf(0x1014, "ConnectX-4 Virtual Function"),
    pf(0x1015, "ConnectX-4 Lx"),
    vf(0x1016, "ConnectX-4 Lx Virtual Function"),
    pf(0x1017, "ConnectX-5"),
    vf(0x1018, "ConnectX-5 Virtual Function"),
    pf(0x1019, "ConnectX-5 Ex"),
    vf(0x101a, "ConnectX-5 Ex Virtual Function"),
    pf(0x101b, "ConnectX-6"),
    vf(0x101c, "ConnectX-6 Virtual Function"),
    pf(0x101d, "ConnectX-6 Dx"),
    vf(0x101e, "ConnectX Family mlx5Gen Virtual Function"),
    pf(0x101f, "ConnectX-6 Lx"),
    pf(0x1021, "ConnectX-7"),
    pf(0x1023, "ConnectX-8"),
    pf(0x1025, "ConnectX-9"),
    pf(0x1027, "ConnectX-10"),
    pf(0x2101, "ConnectX-10 NVLink-C2C"),
    pf(0xa2d2, "BlueField (ConnectX-5)"),
    vf(0xa2d3, "BlueField (ConnectX-5) Virtual Function"),
    pf(0xa2d6, "BlueField-2 (ConnectX-6 Dx)"),
    pf(0xa2dc, "BlueField-3 (ConnectX-7)"),
    pf(0xa2df, "BlueField-4 (ConnectX-8)"),
];

/// The device of a vendor and device id; `None` when it is not one that ferroce drives.
pub fn device(vendor: u16, id: u16) -> Option<&'static DeviceId> {
    if vendor != VENDOR_ID {
        return None;
    }
    DEVICES.iter().find(|d| d.id == id)
}

/// Configuration space offsets (type 0 header and capability list).
pub mod config {
    /// Vendor id, 16 bits.
    pub const VENDOR_ID: u16 = 0x00;
    /// Device id, 16 bits.
    pub const DEVICE_ID: u16 = 0x02;
    /// Command register, 16 bits.
    pub const COMMAND: u16 = 0x04;
    /// Command register: respond to memory accesses.
    pub const COMMAND_MEMORY: u16 = 1 << 1;
    /// Command register: may start DMA and send MSI-X.
    pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
    /// Command register: INTx off.
    pub const COMMAND_INTX_DISABLE: u16 = 1 << 10;
    /// Status register, 16 bits.
    pub const STATUS: u16 = 0x06;
    /// Status register: there is a capability list.
    pub const STATUS_CAP_LIST: u16 = 1 << 4;
    /// Revision id, 8 bits.
    pub const REVISION_ID: u16 = 0x08;
    /// Class code, 24 bits.
    pub const CLASS_CODE: u16 = 0x09;
    /// Header type, 8 bits.
    pub const HEADER_TYPE: u16 = 0x0e;
    /// BAR 0, 32 bits; the others follow.
    pub const BAR0: u16 = 0x10;
    /// Subsystem vendor id, 16 bits.
    pub const SUBSYSTEM_VENDOR_ID: u16 = 0x2c;
    /// Subsystem id, 16 bits.
    pub const SUBSYSTEM_ID: u16 = 0x2e;
    /// Offset of the first capability, 8 bits.
    pub const CAPABILITIES: u16 = 0x34;
    /// Interrupt pin, 8 bits.
    pub const INTERRUPT_PIN: u16 = 0x3d;
    /// Capability id: power management.
    pub const CAP_PM: u8 = 0x01;
    /// Capability id: vendor specific.
    pub const CAP_VENDOR: u8 = 0x09;
    /// Capability id: PCI Express.
    pub const CAP_EXPRESS: u8 = 0x10;
    /// Capability id: MSI-X.
    pub const CAP_MSIX: u8 = 0x11;
    /// PCI Express capability: device capabilities, 32 bits, from the start of the capability.
    pub const EXP_DEVCAP: u16 = 0x04;
    /// Device capabilities: function-level reset.
    pub const EXP_DEVCAP_FLR: u32 = 1 << 28;
    /// PCI Express capability: device control, 16 bits.
    pub const EXP_DEVCTL: u16 = 0x08;
    /// Device control: start a function-level reset.
    pub const EXP_DEVCTL_FLR: u16 = 1 << 15;
    /// MSI-X capability: message control, 16 bits.
    pub const MSIX_CONTROL: u16 = 0x02;
    /// Message control: number of vectors less one.
    pub const MSIX_CONTROL_SIZE: u16 = 0x7ff;
    /// Message control: all vectors masked.
    pub const MSIX_CONTROL_MASK_ALL: u16 = 1 << 14;
    /// Message control: MSI-X on.
    pub const MSIX_CONTROL_ENABLE: u16 = 1 << 15;
    /// MSI-X capability: table offset and BAR, 32 bits.
    pub const MSIX_TABLE: u16 = 0x04;
    /// MSI-X capability: pending bits offset and BAR, 32 bits.
    pub const MSIX_PBA: u16 = 0x08;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_is_listed_once() {
        for (place, device) in DEVICES.iter().enumerate() {
            let first = DEVICES.iter().position(|other| other.id == device.id);
            assert_eq!(first, Some(place), "{:#06x}", device.id);
        }
    }

    #[test]
    fn cards_newer_than_those_that_the_prm_names_are_known_too() {
        for (id, product) in [
            (0x1023, "ConnectX-8"),
            (0xa2d6, "BlueField-2"),
            (0xa2dc, "BlueField-3"),
        ] {
            let device = device(VENDOR_ID, id).expect(product);
            assert!(device.product.starts_with(product) && !device.virtual_function);
        }
        // Connect-IB, and another vendor's.
        assert!(device(VENDOR_ID, 0x1011).is_none() && device(0x8086, 0x1023).is_none());
    }
}
