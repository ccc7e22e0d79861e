//! Raw Ethernet queues: frames in and out of the NIC beside RDMA.
//!
//! ```text
//!   send ─▶ SQ ─▶ TIS ─▶ wire ─▶ flow table (ARP, neighbour discovery, echo; nothing else) ─▶ TIR ─▶ RQ ─▶ poll
//! ```
//! Once the kernel has lost the NIC nobody else answers for its addresses; [`link`](crate::link) does so through these.
//! They are made for few and short frames, not for speed: frames are copied in and out.
//!
//! Source: PRM; which states and rules: Linux mlx5e, as `linux-bringup.md` of the project's PRM notes has it.

mod firmware;
mod make;
mod queues;
mod send;
mod steering;

pub use queues::{EthernetConfig, EthernetCounters, EthernetQueues, SendError};
