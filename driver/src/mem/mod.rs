//! Memory that the device may touch: IOVA space, and buffers in it.
//!
//! ```text
//! DmaSpace ── owns ──> arenas: one memfd, one shared mapping, one IOMMU map, one IOVA range each
//!    └─ DmaBuffer      a part of an arena, or all of one      copies and volatile words only
//!         ├─ DmaRing        entries of a queue, index masked       the fast path
//!         ├─ DoorbellRecord 8 of 64 bytes of a shared page         the fast path
//!         └─ LocalPages     whole pages, plain slices while the CPU owns them
//!    └─ CallerMapping  memory that the program brings         unsafe, contract in `DmaSpace::map_caller`
//! ```
//!
//! Small buffers share arenas, so that thousands of them cost few of the IOMMU driver's limited maps; large ones get an
//! arena of their own and are unmapped when dropped. IOVA and virtual address of a buffer agree modulo the largest
//! power of two that its length fills (up to 1 GiB), so that an mkey over it needs few translations, also where the
//! host's pages are small. Memory is a memfd sealed against resizing, so that a device process can share it and nobody
//! can take pages away from under us; it is kept out of children.
//!
//! The IOMMU protects whole pages: what shares a page (or an arena) with a buffer is protected from the device by
//! mkeys alone. A buffer that must not share is made with [`AllocOptions::dedicated`].
//!
//! `unsafe` is allowed here, for mappings and for the access to memory that others may change: see `copy`.
#![allow(unsafe_code)]

mod arena;
mod buffer;
mod caller;
mod copy;
mod dbr;
mod error;
mod local;
mod mapping;
mod ranges;
mod ring;
mod space;
#[cfg(test)]
mod tests;

pub use arena::PageKind;
pub use buffer::DmaBuffer;
pub use caller::{CallerMapping, CallerMemory};
pub use dbr::DoorbellRecord;
pub use error::DmaError;
pub(crate) use local::LocalPages;
pub use mapping::SharedMapping;
pub(crate) use mapping::map_fd;
pub use ring::{DmaRing, RingEntry, RingRun, RingView};
pub(crate) use space::check_unused;
pub use space::{AllocOptions, DmaSpace};
