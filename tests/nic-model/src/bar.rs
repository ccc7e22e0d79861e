//! BAR 0: what lies where.
//!
//! ```text
//!   0x00000  initialization segment, three pages (UAR indices 0 to 2 overlay it and are never given out)
//!   0x04000  MSI-X table, 16 bytes for each of up to 2048 vectors
//!   0x0c000  MSI-X pending bits
//!   0x10000  UAR 0x10, the first that ALLOC_UAR gives; UAR n is the page at n * 4096
//! ```
//!
//! The real ConnectX-4 also gives 0x10 as its first UAR. Where its MSI-X table lies does not matter to a driver,
//! since the bus driver reads it from the capability.

/// Bytes of the initialization segment that can be accessed.
pub const INIT_SEGMENT_BYTES: u64 = 0x3000;
/// Where the MSI-X table starts.
pub const MSIX_TABLE_OFFSET: u64 = 0x4000;
/// Where the MSI-X pending bits start.
pub const MSIX_PBA_OFFSET: u64 = 0xc000;
/// Bytes of a UAR page.
pub const UAR_BYTES: u64 = 0x1000;
/// First UAR that lies behind everything else.
pub const FIRST_UAR: u32 = 0x10;

/// What an access to BAR 0 meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BarTarget {
    /// The initialization segment, at this offset.
    InitSegment(u64),
    /// The MSI-X table or its pending bits: the bus driver's, so that reads give 0 here and writes do nothing.
    Msix,
    /// A UAR page.
    Uar {
        /// Its index.
        index: u32,
        /// Offset in the page.
        offset: u16,
    },
    /// Not in the BAR, or across the border of two parts.
    Outside,
}

/// What an access of `len` bytes at `offset` of a BAR of `bar_bytes` meets.
pub fn decode(bar_bytes: u64, offset: u64, len: usize) -> BarTarget {
    let Some(end) = offset.checked_add(len as u64) else {
        return BarTarget::Outside;
    };
    if len == 0 || end > bar_bytes {
        return BarTarget::Outside;
    }
    if end <= INIT_SEGMENT_BYTES {
        return BarTarget::InitSegment(offset);
    }
    if end <= u64::from(FIRST_UAR) * UAR_BYTES && offset >= INIT_SEGMENT_BYTES {
        return BarTarget::Msix;
    }
    let index = offset / UAR_BYTES;
    if index < u64::from(FIRST_UAR) || (end - 1) / UAR_BYTES != index {
        return BarTarget::Outside;
    }
    BarTarget::Uar {
        index: index as u32,
        offset: (offset % UAR_BYTES) as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_and_borders_are_not_crossed() {
        let bar = 1 << 25;
        assert_eq!(decode(bar, 0x14, 4), BarTarget::InitSegment(0x14));
        assert_eq!(decode(bar, 0x2ffc, 8), BarTarget::Outside);
        assert_eq!(decode(bar, 0x4000, 4), BarTarget::Msix);
        assert_eq!(
            decode(bar, 0x10_800, 8),
            BarTarget::Uar {
                index: 0x10,
                offset: 0x800
            }
        );
        assert_eq!(decode(bar, 0x10_ffc, 8), BarTarget::Outside);
        assert_eq!(decode(bar, 0xfffc, 8), BarTarget::Outside);
        assert_eq!(decode(bar, bar - 4, 8), BarTarget::Outside);
        assert_eq!(decode(bar, u64::MAX, 4), BarTarget::Outside);
        assert_eq!(decode(bar, 0, 0), BarTarget::Outside);
    }
}
