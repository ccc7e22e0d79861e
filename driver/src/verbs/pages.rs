//! Page lists: how firmware is told where a queue or a region lies.
//!
//! DMA memory is contiguous for the device (in IOVA), whatever the host's pages are, so that a list may use any page
//! size that the addresses allow; larger pages make shorter lists.

use ferroce_firmware_iface::cmds::MTT_PRESENT;

/// log2 of the smallest page that firmware knows.
const LOG_MIN_PAGE: u32 = 12;
/// log2 of the largest page of an mkey. Source: rdma-core's VFIO provider, see the PRM notes, section 9.
const LOG_MAX_PAGE: u32 = 31;

/// A list of equal pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageList {
    /// log2 of their size in bytes.
    pub(crate) log_page_bytes: u32,
    /// Their addresses.
    pub(crate) pages: Vec<u64>,
}

/// The pages of a queue of `bytes` at `iova`, which is a multiple of 4096: the fewest that begin with the queue.
pub(crate) fn of_queue(iova: u64, bytes: u64) -> PageList {
    let bytes = bytes.max(1);
    let covering = bytes.next_power_of_two().trailing_zeros();
    let log_page_bytes = iova
        .trailing_zeros()
        .min(covering)
        .clamp(LOG_MIN_PAGE, LOG_MAX_PAGE);
    let pages = (0..bytes.div_ceil(1 << log_page_bytes))
        .map(|i| iova + (i << log_page_bytes))
        .collect();
    PageList {
        log_page_bytes,
        pages,
    }
}

/// `log_page_size` of a queue's context, which counts from 4 KiB pages on.
pub(crate) fn queue_log_page_size(list: &PageList) -> u8 {
    (list.log_page_bytes - LOG_MIN_PAGE) as u8
}

/// The translations of a region of `bytes` (not 0) at `iova`, whose addresses begin with `iova` too: the fewest pages
/// that cover it. The first and the last may reach beyond the region, which the mkey's bounds don't.
pub(crate) fn of_region(iova: u64, bytes: u64) -> PageList {
    let last = iova + (bytes.max(1) - 1);
    // The highest bit in which the two ends differ says which page holds both.
    let spanning = u64::BITS - (iova ^ last).leading_zeros();
    let log_page_bytes = spanning.clamp(LOG_MIN_PAGE, LOG_MAX_PAGE);
    let first = iova >> log_page_bytes;
    let pages = (first..=last >> log_page_bytes)
        .map(|page| page << log_page_bytes | MTT_PRESENT)
        .collect();
    PageList {
        log_page_bytes,
        pages,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_queue_that_is_aligned_to_its_size_is_one_page() {
        assert_eq!(
            of_queue(0x10_0000, 0x1_0000),
            PageList {
                log_page_bytes: 16,
                pages: vec![0x10_0000]
            }
        );
        let odd = of_queue(0x10_1000, 0x3000);
        assert_eq!(
            odd,
            PageList {
                log_page_bytes: 12,
                pages: vec![0x10_1000, 0x10_2000, 0x10_3000]
            }
        );
        assert_eq!(of_queue(0x10_0000, 64).log_page_bytes, 12);
    }

    #[test]
    fn m08_a_large_region_needs_few_translations() {
        assert_eq!(of_region(0x4000_0000, 1 << 30).pages, [0x4000_0003]);
        assert_eq!(
            of_region(0x4000_0000, 16 << 30).pages.len(),
            9,
            "at 1 GiB, pages of 2 GiB"
        );
        assert_eq!(
            of_region(0x1000, 1),
            PageList {
                log_page_bytes: 12,
                pages: vec![0x1003]
            }
        );
        assert_eq!(of_region(0x1fff, 2).pages, [0x3], "8 KiB pages hold both bytes");
    }

    proptest! {
        #[test]
        fn pages_cover_the_memory(at in 0u64..1 << 40, bytes in 1u64..1 << 36) {
            let region = of_region(at, bytes);
            let size = 1u64 << region.log_page_bytes;
            prop_assert!(region.pages[0] & !3 <= at);
            prop_assert!(at + bytes <= (region.pages[region.pages.len() - 1] & !3) + size);
            for (i, page) in region.pages.iter().enumerate() {
                prop_assert_eq!(*page & 3, 3);
                prop_assert_eq!(page & !3, (region.pages[0] & !3) + i as u64 * size);
            }
            let at = at & !0xfff;
            let queue = of_queue(at, bytes.min(1 << 28));
            prop_assert_eq!(queue.pages[0], at);
            let size = 1u64 << queue.log_page_bytes;
            prop_assert_eq!(at % size, 0);
            prop_assert!(queue.pages.len() as u64 * size >= bytes.min(1 << 28));
        }
    }
}
