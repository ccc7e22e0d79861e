//! What devices that are software have in common: an address space, and BARs whose memory is a file.

use std::os::fd::{AsFd, OwnedFd};

use ferroce_vfio_user::device::{BarArea, Sealing, check_dma_fd};

use super::{DmaLimits, FunctionError, check_range, host_page_size};
use crate::mem::map_fd;
use crate::mmio::MappedArea;

/// Most DMA maps at a time where nobody says otherwise: what Linux's type1 IOMMU driver has by default.
pub(super) const MAX_MAPPINGS: u32 = 65535;

/// The IOVA space of a device without an IOMMU: that of a server with one, its MSI window left out as hardware would.
/// `page` is the smallest page in bytes.
pub(super) fn limits(max_mappings: u32, page: u64) -> DmaLimits {
    let iova_ranges = vec![0..=0xfedf_ffff, 0xfef0_0000..=(1 << 48) - 1];
    DmaLimits {
        iova_ranges,
        page_sizes: page.wrapping_neg(),
        max_mappings: Some(max_mappings),
    }
}

/// Maps `areas` of a BAR of `bar_len` bytes, whose memory begins at `offset` of `file`: those that are whole pages of
/// the host and can't be taken away from under us. What is left out is trapped.
///
/// # Errors
/// [`FunctionError::OutOfRange`] for an area outside the BAR, [`FunctionError::Io`] for a map that failed.
pub(super) fn map_areas(
    file: &OwnedFd,
    offset: u64,
    areas: &[BarArea],
    bar_len: u64,
) -> Result<Vec<MappedArea>, FunctionError> {
    let page = host_page_size() as u64;
    let mut mapped = Vec::new();
    for area in areas {
        check_range("mappable area of BAR 0", area.offset, area.len, bar_len)?;
        let (start, end) = (
            area.offset.next_multiple_of(page),
            (area.offset + area.len) / page * page,
        );
        let Some(at) = offset
            .checked_add(start)
            .filter(|at| start < end && at.is_multiple_of(page))
        else {
            log::debug!(
                "BAR 0 at {:#x} + {:#x} is not whole pages; trapped",
                area.offset,
                area.len
            );
            continue;
        };
        match check_dma_fd(file.as_fd(), at, end - start) {
            Ok(Sealing::Sealed) => {
                let memory = map_fd(file, at, end - start);
                let memory = memory.map_err(|e| FunctionError::io("mapping a part of BAR 0", e))?;
                mapped.push(MappedArea {
                    offset: start,
                    memory,
                });
            }
            // A file that shrinks would raise SIGBUS.
            Ok(Sealing::Shrinkable) => {
                log::warn!("BAR 0 at {start:#x} is trapped: its memory is not sealed against shrinking");
            }
            Err(error) => log::warn!("BAR 0 at {start:#x} is trapped: {error}"),
        }
    }
    Ok(mapped)
}
