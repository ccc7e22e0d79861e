//! A kernel-bypass driver for RoCE NICs of the ConnectX family (mlx5), in user space.
//!
//! ```text
//!   verbs        PD, MR, CQ, QP: what programs use
//!   cm           connections by IP address and port, as Linux's RDMA CM makes them
//!   link         the NIC's addresses: ARP, neighbour discovery, echo; which GID reaches whom
//!   ethernet     raw Ethernet queues and the rules that fill them
//!   ring         send, receive and completion queues: the fast path
//!   bring-up     firmware commands, pages, event queues, health          clock   the device's, and time stamps
//!   mem          IOVA space, DMA memory          mmio, barrier   registers and the order of stores
//!   function     one PCI function: VFIO, vfio-user socket, or an object in this process
//! ```
//!
//! A NIC is opened by its address, [`function::FunctionAddress`], through [`function::open`], or handed over as an
//! object, [`function::InProcess`].
//!
//! Only `function`, `mem`, `mmio`, `barrier` and one file of `ring` contain `unsafe` code of their own, each with a note why.
//! Two functions besides are `unsafe` to call: [`verbs::CallerMr::register`] hands its caller's promise on to `mem`,
//! [`context::Context::exec_raw`] has one of its own. All that a device, its firmware, a peer or the host says is checked.
#![deny(unsafe_code)]

pub mod barrier;
pub mod function;
pub mod mem;
pub mod mmio;

mod bringup;
pub mod caps;
pub mod clock;
pub mod cm;
pub mod cmdq;
mod config;
pub mod context;
mod eq;
pub mod error;
pub mod ethernet;
pub mod events;
mod fd;
pub mod gid;
mod hca;
pub mod health;
pub mod host;
pub mod link;
pub mod pages;
pub mod port;
pub mod reaper;
mod ring;
pub mod uar;
pub mod verbs;

/// What [`barrier`] takes its fence from; `tests/orders` puts another there.
pub(crate) use core::sync;

/// Numbers of the device's objects, as the verbs give and take them.
pub use ferroce_hw_regs::ids;
