//! What the hardware of a ConnectX-class RoCE NIC looks like, as data: registers, doorbells and the
//! descriptors that driver and device exchange in host memory.
//!
//! Nothing here allocates, does I/O or has a policy. Two kinds of thing are described:
//!
//! * **Registers** ([`init_seg`], [`health`], [`uar`]): blocks of volatile cells, whose bits have
//!   tock-registers names. A register is read once, into a `LocalRegisterCopy`, and decoded from there. On the
//!   bus they are big-endian; who reads them converts once.
//! * **Descriptors** ([`wqe`], [`cqe`], [`eqe`], [`dbr`]): zerocopy types of big-endian fields without padding.
//!
//! Numbers are those of the published programming interface (PRM) of the ConnectX-4 to ConnectX-7 family.
//! Bits are named as the PRM's figures do: `[high:low]` of a big-endian dword.

#![no_std]
#![forbid(unsafe_code)]

pub mod cqe;
pub mod dbr;
pub mod eqe;
pub mod health;
pub mod ids;
pub mod init_seg;
pub mod pci;
pub mod uar;
pub mod wqe;
