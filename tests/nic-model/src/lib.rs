//! A device model of a ConnectX-class RoCE NIC: firmware, packet engine and wire.
//!
//! The model knows nothing of who drives it. Its host side is a PCI device
//! ([`ferroce_vfio_user::device::PciDevice`]): configuration space, BAR 0, MSI-X and DMA by IOVA. Its wire
//! side sends and receives Ethernet frames.
#![deny(unsafe_code)]

pub mod bar;
pub mod clock;
pub mod device;
pub mod engine;
pub mod fw;
pub mod host;
pub mod link;
pub mod mkey;
pub mod nic;
pub mod objects;
pub mod payload;
pub mod pci;
pub mod profile;
pub mod psn;
pub mod rc;
pub mod record;
pub mod runner;
pub mod serve;
pub mod testbed;
pub mod trace;
pub mod transport;
pub mod uc;
pub mod wire;
