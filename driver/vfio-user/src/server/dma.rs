//! Which DMA maps a client has, so that bad ones are refused before the device hears of them.

use std::collections::BTreeMap;

use crate::device::DeviceError;

/// Granularity of DMA maps in bytes; what the server offers as `pgsizes`.
pub(crate) const PAGE_SIZE: u64 = 4096;

/// The maps of one client: start to length, never overlapping.
#[derive(Debug)]
pub(crate) struct DmaTable {
    maps: BTreeMap<u64, u64>,
    limit: u32,
}

impl DmaTable {
    pub fn new(limit: u32) -> DmaTable {
        DmaTable {
            maps: BTreeMap::new(),
            limit,
        }
    }

    /// Enters a map.
    pub fn insert(&mut self, iova: u64, len: u64) -> Result<(), DeviceError> {
        let last = last_address(iova, len)?;
        for (what, value) in [("DMA map address", iova), ("DMA map length", len)] {
            if value % PAGE_SIZE != 0 {
                return Err(DeviceError::Misaligned {
                    what,
                    value,
                    alignment: PAGE_SIZE,
                });
            }
        }
        if let Some((other_iova, other_len)) = self.first_in(iova, last) {
            return Err(DeviceError::Overlaps {
                iova,
                len,
                other_iova,
                other_len,
            });
        }
        if self.maps.len() as u64 >= u64::from(self.limit) {
            return Err(DeviceError::TooManyMaps { limit: self.limit });
        }
        self.maps.insert(iova, len);
        Ok(())
    }

    /// The maps that an unmap of this span ends: all that touch it, none of which may stick out of it. Takes nothing
    /// out.
    ///
    /// The specification has a span be that of one map. QEMU with an emulated IOMMU maps page by page and unmaps in one
    /// message what a guest's page table covered, 2 MiB say, and maps other pages there next; the kernel's type 1 takes
    /// such spans too.
    pub fn covered(&self, iova: u64, len: u64) -> Result<Vec<(u64, u64)>, DeviceError> {
        let last = last_address(iova, len)?;
        let cut = |&(start, length): &(u64, u64)| start < iova || start + (length - 1) > last;
        let inside = self.maps.range(iova..=last).map(|(&iova, &len)| (iova, len));
        let cut = self
            .first_in(iova, last)
            .filter(cut)
            .or_else(|| inside.clone().next_back().filter(cut));
        match cut {
            Some((map_iova, map_len)) => Err(DeviceError::PartialUnmap {
                iova,
                len,
                map_iova,
                map_len,
            }),
            None => Ok(inside.collect()),
        }
    }

    /// Takes a map out.
    pub fn remove(&mut self, iova: u64) {
        self.maps.remove(&iova);
    }

    /// Any one map.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.maps.first_key_value().map(|(&iova, &len)| (iova, len))
    }

    /// The lowest map that touches the addresses `first` to `last`.
    fn first_in(&self, first: u64, last: u64) -> Option<(u64, u64)> {
        let before = self
            .maps
            .range(..first)
            .next_back()
            .filter(|&(&iova, &len)| iova + (len - 1) >= first);
        let found = before.or_else(|| self.maps.range(first..=last).next());
        found.map(|(&iova, &len)| (iova, len))
    }
}

/// The last address of a range that is not empty and does not pass 2^64.
fn last_address(iova: u64, len: u64) -> Result<u64, DeviceError> {
    let last = len.checked_sub(1).and_then(|rest| iova.checked_add(rest));
    last.ok_or(DeviceError::BadRange {
        what: "DMA range",
        start: iova,
        len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    // Case M12.
    #[test]
    fn partial_unmap_is_refused_without_change() {
        let mut table = DmaTable::new(10);
        table.insert(4 * MIB, 4 * MIB).expect("free");
        for (iova, len) in [
            (5 * MIB, MIB),
            (4 * MIB, MIB),
            (7 * MIB, MIB),
            (0, 5 * MIB),
            (5 * MIB, 6 * MIB),
        ] {
            let e = table.covered(iova, len).expect_err("partial");
            assert!(matches!(e, DeviceError::PartialUnmap { map_iova, .. } if map_iova == 4 * MIB));
        }
        assert!(matches!(
            table.covered(4 * MIB, 0),
            Err(DeviceError::BadRange { .. })
        ));
        let map = [(4 * MIB, 4 * MIB)];
        assert_eq!(table.covered(4 * MIB, 4 * MIB).expect("exact"), map);
        assert_eq!(table.covered(3 * MIB, 6 * MIB).expect("around it"), map);
        assert_eq!(table.covered(8 * MIB, MIB).expect("free"), []);
        assert_eq!(table.covered(0, 4 * MIB).expect("free"), []);
    }

    #[test]
    fn pages_mapped_one_by_one_may_be_unmapped_at_once() {
        let mut table = DmaTable::new(1024);
        let pages: Vec<_> = (0..512)
            .map(|page| (2 * MIB + page * PAGE_SIZE, PAGE_SIZE))
            .collect();
        for (iova, len) in &pages {
            table.insert(*iova, *len).expect("free");
        }
        assert_eq!(table.covered(2 * MIB, 2 * MIB).expect("whole pages"), pages);
    }

    #[test]
    fn impossible_maps_are_refused() {
        let mut table = DmaTable::new(2);
        assert!(matches!(table.insert(0, 0), Err(DeviceError::BadRange { .. })));
        assert!(matches!(
            table.insert(0, u64::MAX),
            Err(DeviceError::Misaligned { .. })
        ));
        assert!(matches!(
            table.insert(PAGE_SIZE, u64::MAX),
            Err(DeviceError::BadRange { .. })
        ));
        assert!(matches!(
            table.insert(0x800, PAGE_SIZE),
            Err(DeviceError::Misaligned { .. })
        ));
        table
            .insert(u64::MAX - 4095, PAGE_SIZE)
            .expect("the last page of the address space is one");
        table.insert(0, PAGE_SIZE).expect("free");
        assert!(matches!(
            table.insert(0, PAGE_SIZE),
            Err(DeviceError::Overlaps { .. })
        ));
        assert!(matches!(
            table.insert(MIB, PAGE_SIZE),
            Err(DeviceError::TooManyMaps { limit: 2 })
        ));
        table.remove(0);
        table.insert(MIB, PAGE_SIZE).expect("room again");
    }

    proptest! {
        /// The table agrees with a bitmap of pages.
        #[test]
        fn agrees_with_a_bitmap(ops in prop::collection::vec((any::<bool>(), 0u64..32, 0u64..8), 1..200)) {
            let mut table = DmaTable::new(1000);
            let mut owner = [None::<(u64, u64)>; 64];
            for (map, page, pages) in ops {
                let (iova, len) = (page * PAGE_SIZE, pages * PAGE_SIZE);
                let span = &mut owner[page as usize..(page + pages) as usize];
                if pages == 0 {
                    prop_assert!(table.insert(iova, len).is_err() && table.covered(iova, len).is_err());
                } else if map {
                    let free = span.iter().all(Option::is_none);
                    prop_assert_eq!(table.insert(iova, len).is_ok(), free);
                    if free {
                        span.fill(Some((iova, len)));
                    }
                } else {
                    let mut touched: Vec<_> = span.iter().flatten().copied().collect();
                    let bytes = touched.len() as u64 * PAGE_SIZE;
                    touched.dedup();
                    let found = table.covered(iova, len);
                    if touched.iter().map(|&(_, len)| len).sum::<u64>() == bytes {
                        prop_assert_eq!(found.expect("none is cut"), touched.clone());
                        for (iova, _) in touched {
                            table.remove(iova);
                        }
                        span.fill(None);
                    } else {
                        prop_assert!(found.is_err());
                    }
                }
            }
        }
    }
}
