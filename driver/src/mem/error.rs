//! What can go wrong with DMA memory.

use std::io;

use crate::function::FunctionError;

/// Why DMA memory can't be had or accessed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DmaError {
    /// A length of 0.
    #[error("a DMA buffer of length 0 was asked for; the least is 1 byte")]
    ZeroLength,
    /// A length that no address space has.
    #[error("a DMA buffer of {len} bytes was asked for; the address space does not hold that")]
    TooLong {
        /// Bytes asked for.
        len: u64,
    },
    /// No room in the IOVA ranges that the IOMMU offers.
    #[error(
        "no {len} contiguous bytes of IOVA space are free; the IOMMU offers {ranges} range(s), the largest free part \
         has {largest} bytes"
    )]
    IovaExhausted {
        /// Bytes asked for.
        len: u64,
        /// Number of ranges that the IOMMU offers.
        ranges: usize,
        /// The largest free part, in bytes.
        largest: u64,
    },
    /// All mappings that the IOMMU driver allows are in use.
    #[error(
        "all {limit} DMA mappings are in use: register fewer, larger regions (adjacent ones in one call), or raise the \
         kernel's vfio_iommu_type1.dma_entry_limit"
    )]
    MappingLimit {
        /// Number of mappings allowed.
        limit: u32,
    },
    /// An access that leaves its buffer.
    #[error("access of {len} bytes at {offset:#x} leaves a DMA buffer of {limit:#x} bytes")]
    OutOfRange {
        /// Offset of the access in bytes.
        offset: usize,
        /// Length of the access in bytes.
        len: usize,
        /// Length of the buffer in bytes.
        limit: usize,
    },
    /// A word access at an offset that is no multiple of its width.
    #[error("access at {offset:#x} of a DMA buffer is not aligned to its {width} bytes")]
    Misaligned {
        /// Offset of the access in bytes.
        offset: usize,
        /// Its width in bytes.
        width: usize,
    },
    /// Memory of the caller that doesn't fit the IOMMU's pages.
    #[error("caller's memory at {va:#x} + {len:#x} does not begin and end at a page of {page:#x} bytes")]
    NotPages {
        /// Virtual address.
        va: usize,
        /// Length in bytes.
        len: usize,
        /// The page size in bytes.
        page: u64,
    },
    /// A ring that is not a power of two, or does not fit its buffer.
    #[error(
        "a ring of {entries} entries of {stride} bytes at {offset:#x} does not fit a buffer of {limit:#x} bytes, \
             or is not a power of two, or not aligned"
    )]
    BadRing {
        /// Number of entries.
        entries: u32,
        /// Bytes of each.
        stride: usize,
        /// Offset of the first in the buffer.
        offset: usize,
        /// Length of the buffer in bytes.
        limit: usize,
    },
    /// No huge pages of the size asked for.
    #[error(
        "{len} bytes of {} MiB huge pages are not free; reserve them: \
         /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
        page >> 20, page >> 10
    )]
    NoHugePages {
        /// Bytes asked for.
        len: u64,
        /// The page size in bytes.
        page: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The system gives no memory.
    #[error("{what} of {len} bytes for DMA failed")]
    Memory {
        /// What was tried.
        what: &'static str,
        /// Bytes.
        len: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The function can't map or unmap the memory.
    #[error(transparent)]
    Function(#[from] FunctionError),
}
