//! What the kernel's information ioctls answer: fixed parts and chains of capabilities, parsed from bytes.
//!
//! Layouts: Linux `include/uapi/linux/vfio.h`. All words are in the host's byte order.

use std::io;
use std::ops::RangeInclusive;

use vfio_bindings::bindings::vfio as abi;

/// Longest chain of capabilities that is followed; the kernel's longest has three.
const MOST_CAPABILITIES: usize = 64;
/// Most ranges or areas that are taken from one capability.
const MOST_RANGES: u32 = 1024;

/// A region of a device's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// `VFIO_REGION_INFO_FLAG_*`.
    pub flags: u32,
    /// Length in bytes; 0 where there is no such region.
    pub size: u64,
    /// Offset in the device's file.
    pub offset: u64,
    /// Parts that may be mapped, if only some may: offset in the region, length.
    pub sparse: Option<Vec<(u64, u64)>>,
}

/// Interrupts of one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// `VFIO_IRQ_INFO_*`.
    pub flags: u32,
    /// Number of interrupts.
    pub count: u32,
}

/// What a type 1 IOMMU can map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IommuInfo {
    /// Page sizes, a bit mask; 0 where the kernel does not say.
    pub page_sizes: u64,
    /// Usable IOVA ranges; `None` on kernels before 5.4, which don't say.
    pub ranges: Option<Vec<RangeInclusive<u64>>>,
    /// Maps that are left; `None` on kernels before 5.10.
    pub available: Option<u32>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the kernel's answer is malformed: {what}"),
    )
}

fn word(bytes: &[u8], at: usize) -> io::Result<u32> {
    let word = bytes.get(at..).and_then(|b| b.first_chunk());
    word.map(|b| u32::from_ne_bytes(*b))
        .ok_or_else(|| bad("too short"))
}

fn long(bytes: &[u8], at: usize) -> io::Result<u64> {
    let long = bytes.get(at..).and_then(|b| b.first_chunk());
    long.map(|b| u64::from_ne_bytes(*b))
        .ok_or_else(|| bad("too short"))
}

/// The capabilities of a chain that begins at `first`: each one's id, and the bytes from its header on.
fn capabilities(bytes: &[u8], first: u32) -> io::Result<Vec<(u16, &[u8])>> {
    let mut found = Vec::new();
    let mut at = first as usize;
    while at != 0 {
        let capability = bytes
            .get(at..)
            .filter(|c| c.len() >= 8)
            .ok_or_else(|| bad("capability out of range"))?;
        if found.len() == MOST_CAPABILITIES {
            return Err(bad("capabilities without end"));
        }
        found.push((u16::from_ne_bytes([capability[0], capability[1]]), capability));
        at = word(capability, 4)? as usize;
    }
    Ok(found)
}

/// Pairs of 64-bit words from offset 16 of a capability, counted at offset 8.
fn pairs(capability: &[u8]) -> io::Result<Vec<(u64, u64)>> {
    let count = word(capability, 8)?;
    if count > MOST_RANGES {
        return Err(bad("too many ranges"));
    }
    let pair = |i| Ok((long(capability, 16 + i * 16)?, long(capability, 24 + i * 16)?));
    (0..count as usize).map(pair).collect()
}

/// Flags of `struct vfio_device_info`.
pub fn device_flags(bytes: &[u8]) -> io::Result<u32> {
    word(bytes, 4)
}

/// `struct vfio_irq_info`.
pub fn irq(bytes: &[u8]) -> io::Result<IrqInfo> {
    Ok(IrqInfo {
        flags: word(bytes, 4)?,
        count: word(bytes, 12)?,
    })
}

/// `struct vfio_region_info` and its capabilities.
pub fn region(bytes: &[u8]) -> io::Result<RegionInfo> {
    let flags = word(bytes, 4)?;
    let (size, offset) = (long(bytes, 16)?, long(bytes, 24)?);
    let mut sparse = None;
    if flags & abi::VFIO_REGION_INFO_FLAG_CAPS != 0 {
        for (id, capability) in capabilities(bytes, word(bytes, 12)?)? {
            if u32::from(id) == abi::VFIO_REGION_INFO_CAP_SPARSE_MMAP {
                sparse = Some(pairs(capability)?);
            }
        }
    }
    Ok(RegionInfo {
        flags,
        size,
        offset,
        sparse,
    })
}

/// `struct vfio_iommu_type1_info` and its capabilities.
pub fn iommu(bytes: &[u8]) -> io::Result<IommuInfo> {
    let flags = word(bytes, 4)?;
    let page_sizes = if flags & abi::VFIO_IOMMU_INFO_PGSIZES != 0 {
        long(bytes, 8)?
    } else {
        0
    };
    let mut info = IommuInfo {
        page_sizes,
        ranges: None,
        available: None,
    };
    if flags & abi::VFIO_IOMMU_INFO_CAPS != 0 {
        for (id, capability) in capabilities(bytes, word(bytes, 16)?)? {
            match u32::from(id) {
                abi::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE => {
                    let range = |(start, last)| start..=last;
                    info.ranges = Some(pairs(capability)?.into_iter().map(range).collect());
                }
                abi::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL => info.available = Some(word(capability, 8)?),
                _ => {}
            }
        }
    }
    Ok(info)
}

/// The parts of a region that can be mapped, as offset and length: those the kernel allows, cut to whole pages.
pub fn mappable(region: &RegionInfo, page: u64) -> Vec<(u64, u64)> {
    if region.flags & abi::VFIO_REGION_INFO_FLAG_MMAP == 0 {
        return Vec::new();
    }
    let whole = vec![(0, region.size)];
    let mut areas: Vec<_> = region
        .sparse
        .clone()
        .unwrap_or(whole)
        .into_iter()
        .filter_map(|(offset, len)| {
            let end = offset.checked_add(len)?.min(region.size) / page * page;
            let start = offset.checked_next_multiple_of(page)?;
            (start < end).then(|| (start, end - start))
        })
        .collect();
    areas.sort_unstable();
    areas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Puts words of 32 bits together.
    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// A capability's header: id and version 1, next.
    fn header(id: u32, next: u32) -> [u32; 2] {
        [
            if cfg!(target_endian = "little") {
                id | 1 << 16
            } else {
                id << 16 | 1
            },
            next,
        ]
    }

    fn halves(values: &[u64]) -> Vec<u32> {
        let words = values
            .iter()
            .flat_map(|value| value.to_ne_bytes())
            .collect::<Vec<_>>();
        words
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_ne_bytes(*word))
            .collect()
    }

    #[test]
    fn iommu_ranges_page_sizes_and_available_maps_are_read() {
        let mut words = vec![96, 3];
        words.extend(halves(&[0x4020_1000]));
        words.extend([24, 0]);
        words.extend(header(1, 72));
        words.extend([2, 0]);
        words.extend(halves(&[0, 0xfedf_ffff, 0xfef0_0000, 0x7f_ffff_ffff]));
        words.extend(header(3, 0));
        words.push(65_000);
        let info = iommu(&bytes(&words)).expect("well formed");
        assert_eq!(info.page_sizes, 0x4020_1000);
        assert_eq!(
            info.ranges,
            Some(vec![0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff])
        );
        assert_eq!(info.available, Some(65_000));
    }

    #[test]
    fn old_kernels_say_less() {
        let info = iommu(&bytes(&[24, 0, 0, 0, 0, 0])).expect("well formed");
        assert_eq!(
            info,
            IommuInfo {
                page_sizes: 0,
                ranges: None,
                available: None
            }
        );
    }

    #[test]
    fn sparse_areas_are_cut_to_whole_pages() {
        let mut words = vec![88, abi::VFIO_REGION_INFO_FLAG_CAPS | 7, 0, 32];
        words.extend(halves(&[0x2_0000, 0]));
        words.extend(header(abi::VFIO_REGION_INFO_CAP_MSIX_MAPPABLE, 40));
        words.extend(header(abi::VFIO_REGION_INFO_CAP_SPARSE_MMAP, 0));
        words.extend([2, 0]);
        words.extend(halves(&[0x3000, 0x1_d000, 0, 0x2000]));
        let info = region(&bytes(&words)).expect("well formed");
        assert_eq!(info.sparse, Some(vec![(0x3000, 0x1_d000), (0, 0x2000)]));
        assert_eq!(mappable(&info, 0x1000), [(0, 0x2000), (0x3000, 0x1_d000)]);
        assert_eq!(mappable(&info, 0x1_0000), [(0x1_0000, 0x1_0000)]);
    }

    #[test]
    fn v14_a_bar_smaller_than_a_page_is_trapped() {
        let mut info = RegionInfo {
            flags: 7,
            size: 0x4000,
            offset: 0,
            sparse: None,
        };
        assert_eq!(mappable(&info, 0x1000), [(0, 0x4000)]);
        assert!(mappable(&info, 0x1_0000).is_empty());
        info.flags = 3;
        assert!(mappable(&info, 0x1000).is_empty());
        info.flags = 7;
        info.sparse = Some(vec![(u64::MAX, 1), (u64::MAX - 4095, 4096), (0x8000, 0x1000)]);
        assert!(mappable(&info, 0x1000).is_empty());
    }

    #[test]
    fn malformed_chains_are_refused() {
        let mut endless = vec![32, 2, 0, 0, 24, 0];
        endless.extend(header(7, 24));
        assert!(iommu(&bytes(&endless)).is_err());
        assert!(iommu(&bytes(&[24, 2, 0, 0, 0xffff_fff0, 0])).is_err());
        let mut many = vec![40, 2, 0, 0, 24, 0];
        many.extend(header(1, 0));
        many.extend([u32::MAX, 0]);
        assert!(iommu(&bytes(&many)).is_err());
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (iommu(&bytes), irq(&bytes), device_flags(&bytes));
            if let Ok(info) = region(&bytes) {
                for (offset, len) in mappable(&info, 4096) {
                    prop_assert!(offset + len <= info.size);
                }
            }
        }
    }
}
