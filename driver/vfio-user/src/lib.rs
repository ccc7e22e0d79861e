//! Both ends of the vfio-user protocol, for device processes and the drivers that use them.
//!
//! vfio-user carries what the kernel's VFIO interface offers (regions, interrupts, DMA maps, reset) over a
//! unix stream socket, so that a PCI device can be a process and its driver needs neither a kernel module nor
//! root. Memory is shared by passing file descriptors.
//!
//! - [`device::PciDevice`] is the device's side of the seam: whoever implements it can be served to other
//!   processes, or be handed to a driver in the same process.
//! - [`server`] serves a device on a socket; QEMU's `vfio-user-pci` can use it.
//! - [`client`] uses a device that another process serves.
//! - [`protocol`] and [`version`] are the messages.
//!
//! Each end takes the other for hostile: lengths, counts, offsets and descriptors are checked, memory is never
//! allocated at the other's word, all waits have deadlines or end when the other side goes.
//!
//! Left out: live migration, ioeventfds, twin sockets, INTx and MSI.
#![forbid(unsafe_code)]

pub mod client;
pub mod device;
pub mod protocol;
pub mod server;
pub mod version;

mod channel;
mod socket;

pub use socket::{CloseReason, ProtocolError};
