//! Both ends of the vfio-user protocol, for device processes and the drivers that use them.
//!
//! vfio-user carries what the kernel's VFIO interface offers (regions, interrupts, DMA maps, reset) over a
//! unix stream socket, so that a PCI device can be a process and its driver needs neither a kernel module nor
//! root. Memory is shared by passing file descriptors.
//!
//! [`device::PciDevice`] is the device's side of the seam: whoever implements it can be served to other
//! processes, or be handed to a driver in the same process.

pub mod device;
