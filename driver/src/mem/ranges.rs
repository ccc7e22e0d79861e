//! Which parts of an address space are free: first fit, congruent to what the caller wants, coalescing when given back.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The free ranges of an address space of up to 2^64 addresses.
///
/// # Invariants
/// Ranges are not empty, and no two overlap or touch.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    /// First address to last address of each free range.
    free: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Everything in `ranges` is free. Empty ranges are ignored, overlaps and neighbours become one.
    pub fn new(ranges: impl IntoIterator<Item = RangeInclusive<u64>>) -> RangeSet {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|r| !r.is_empty()).collect();
        sorted.sort_by_key(|range| *range.start());
        let mut set = RangeSet::default();
        for range in sorted {
            let (start, last) = range.into_inner();
            match set.free.last_entry() {
                Some(mut previous) if start.saturating_sub(1) <= *previous.get() => {
                    let previous = previous.get_mut();
                    *previous = last.max(*previous);
                }
                _ => {
                    set.free.insert(start, last);
                }
            }
        }
        set
    }

    /// Takes `len` addresses that begin at the lowest free `a` with `a % modulus == residue`. `modulus` is a power of
    /// two. `None` where no such range is free.
    pub fn take(&mut self, len: u64, modulus: u64, residue: u64) -> Option<u64> {
        debug_assert!(len != 0 && modulus.is_power_of_two());
        let (start, last, at) = self.free.iter().find_map(|(&start, &last)| {
            let at = start.checked_add(residue.wrapping_sub(start) & (modulus - 1))?;
            let fits = at.checked_add(len - 1).is_some_and(|end| end <= last);
            fits.then_some((start, last, at))
        })?;
        self.free.remove(&start);
        if start < at {
            self.free.insert(start, at - 1);
        }
        if at + (len - 1) < last {
            self.free.insert(at + len, last);
        }
        Some(at)
    }

    /// Gives back `len` addresses at `start` that [`RangeSet::take`] gave. False, and no change, where a part of them
    /// is free already.
    #[must_use]
    pub fn give(&mut self, start: u64, len: u64) -> bool {
        let Some(last) = len.checked_sub(1).and_then(|l| start.checked_add(l)) else {
            return false;
        };
        let before = self.free.range(..=last).next_back().map(|(&s, &l)| (s, l));
        if before.is_some_and(|(_, l)| l >= start) {
            return false;
        }
        let (mut first, mut end) = (start, last);
        if let Some((s, l)) = before
            && l + 1 == start
        {
            self.free.remove(&s);
            first = s;
        }
        if let Some(next) = last.checked_add(1)
            && let Some(l) = self.free.remove(&next)
        {
            end = l;
        }
        self.free.insert(first, end);
        true
    }

    /// Addresses in the largest free range, 2^64 - 1 at most.
    pub fn largest(&self) -> u64 {
        self.free
            .iter()
            .map(|(s, l)| (l - s).saturating_add(1))
            .max()
            .unwrap_or(0)
    }

    /// Whether exactly `start..=last` is free.
    pub fn is_exactly(&self, start: u64, last: u64) -> bool {
        self.free.len() == 1 && self.free.first_key_value() == Some((&start, &last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The addresses arm64 reserves for MSI, and x86's (case M14).
    fn with_holes() -> RangeSet {
        RangeSet::new([
            0x1000..=0x7ff_ffff,
            0x810_0000..=0xfedf_ffff,
            0xfef0_0000..=0xffff_ffff,
        ])
    }

    #[test]
    fn m14_allocations_skip_reserved_windows_until_full() {
        let mut set = with_holes();
        let big = set.take(512 << 20, 1 << 21, 0).expect("fits behind the hole");
        assert_eq!(big, 0x820_0000);
        let mut taken = vec![(big, 512 << 20)];
        while let Some(at) = set.take(1 << 20, 1 << 20, 0) {
            taken.push((at, 1 << 20));
        }
        for (at, len) in taken {
            let last = at + len - 1;
            for hole in [0..=0xfff, 0x800_0000..=0x80f_ffff, 0xfee0_0000..=0xfeef_ffff] {
                assert!(
                    last < *hole.start() || at > *hole.end(),
                    "{at:#x} touches {hole:x?}"
                );
            }
            assert!(last <= 0xffff_ffff);
        }
    }

    #[test]
    fn the_last_address_of_the_space_can_be_taken_and_given() {
        let mut set = RangeSet::new([0..=u64::MAX]);
        assert_eq!(set.take(u64::MAX, 1, 0), Some(0));
        assert_eq!(set.take(1, 1, 0), Some(u64::MAX));
        assert_eq!(set.take(1, 1, 0), None);
        assert!(set.give(u64::MAX, 1));
        assert!(!set.give(u64::MAX, 1));
        assert!(!set.give(u64::MAX, 2));
        assert!(set.give(0, u64::MAX));
        assert!(set.is_exactly(0, u64::MAX));
    }

    #[test]
    fn overlapping_and_touching_ranges_become_one() {
        let set = RangeSet::new([0x2000..=0x2fff, 0..=0xfff, 0x1000..=0x1fff, 0x500..=0x600]);
        assert!(set.is_exactly(0, 0x2fff));
        let (first, last) = (1, 0);
        assert_eq!(RangeSet::new([first..=last]).largest(), 0);
    }

    proptest! {
        #[test]
        fn taken_ranges_are_disjoint_and_everything_comes_back(
            steps in proptest::collection::vec((0u64..3, 1u64..40, 0u32..6, any::<u64>()), 1..200)
        ) {
            let bounds = [16..=199u64, 210..=1000];
            let mut set = RangeSet::new(bounds.clone());
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (what, len, log, pick) in steps {
                if what == 0 && !held.is_empty() {
                    let (at, len) = held.swap_remove(pick as usize % held.len());
                    prop_assert!(set.give(at, len));
                } else if let Some(at) = set.take(len, 1 << log, pick) {
                    prop_assert_eq!(at % (1 << log), pick % (1 << log));
                    prop_assert!(bounds.iter().any(|b| b.contains(&at) && b.contains(&(at + len - 1))));
                    prop_assert!(held.iter().all(|(a, l)| at + len <= *a || a + l <= at));
                    held.push((at, len));
                }
            }
            for (at, len) in held {
                prop_assert!(set.give(at, len));
                prop_assert!(!set.give(at, len) && !set.give(at + len - 1, 2));
            }
            prop_assert_eq!(set.free, BTreeMap::from(bounds.map(|b| b.into_inner())));
        }
    }
}
