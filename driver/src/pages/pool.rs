//! The pool of pages: which are free, which firmware has.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::PAGE_BYTES;

/// Where firmware's pages are. `M` is what keeps a chunk mapped.
#[derive(Debug)]
pub(super) struct PagePool<M> {
    pub(super) chunks: BTreeMap<u64, (usize, M)>,
    pub(super) free: Vec<u64>,
    pub(super) given: HashMap<u64, u16>,
}

impl<M> PagePool<M> {
    pub(super) fn new() -> Self {
        Self {
            chunks: BTreeMap::new(),
            free: Vec::new(),
            given: HashMap::new(),
        }
    }

    pub(super) fn add_chunk(&mut self, iova: u64, pages: usize, memory: M) {
        // In reverse, so that pages are given in ascending order.
        self.free
            .extend((0..pages as u64).rev().map(|i| iova + i * PAGE_BYTES as u64));
        self.chunks.insert(iova, (pages, memory));
    }

    /// Takes `count` free pages; they are in nobody's hands until [`Self::give`] or [`Self::put_back`].
    pub(super) fn take_free(&mut self, count: usize) -> Option<Vec<u64>> {
        let left = self.free.len().checked_sub(count)?;
        let mut pages = self.free.split_off(left);
        pages.reverse();
        Some(pages)
    }

    pub(super) fn give(&mut self, function: u16, pages: &[u64]) {
        self.given.extend(pages.iter().map(|page| (*page, function)));
    }

    pub(super) fn put_back(&mut self, pages: &[u64]) {
        self.free.extend(pages.iter().rev());
    }

    /// Firmware says that `function` no longer uses `page`. Whether it had it.
    pub(super) fn reclaim(&mut self, function: u16, page: u64) -> bool {
        let had = self.given.get(&page) == Some(&function);
        if had {
            self.given.remove(&page);
            self.free.push(page);
        }
        had
    }

    pub(super) fn reclaim_all(&mut self, function: u16) -> usize {
        let pages: Vec<u64> = self
            .given
            .iter()
            .filter(|(_, owner)| **owner == function)
            .map(|(page, _)| *page)
            .collect();
        for page in &pages {
            self.reclaim(function, *page);
        }
        pages.len()
    }

    pub(super) fn given_to(&self, function: u16) -> usize {
        self.given.values().filter(|owner| **owner == function).count()
    }

    /// Takes chunks out of the pool in which all pages are free, if many pages are.
    pub(super) fn trim(&mut self, keep: usize) -> Vec<M> {
        if self.free.len() <= keep {
            return Vec::new();
        }
        let free: BTreeSet<u64> = self.free.iter().copied().collect();
        let mut spare = self.free.len() - keep;
        let idle: Vec<u64> = self
            .chunks
            .iter()
            .filter(|(iova, (pages, _))| {
                let end = **iova + (*pages * PAGE_BYTES) as u64;
                let idle = *pages <= spare && free.range(**iova..end).count() == *pages;
                if idle {
                    spare -= *pages;
                }
                idle
            })
            .map(|(iova, _)| *iova)
            .collect();
        idle.iter()
            .filter_map(|iova| {
                let (pages, memory) = self.chunks.remove(iova)?;
                let end = *iova + (pages * PAGE_BYTES) as u64;
                self.free.retain(|page| !(*iova..end).contains(page));
                Some(memory)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    #[test]
    fn pages_are_given_in_ascending_order_and_come_back() {
        let mut pool = PagePool::new();
        pool.add_chunk(0x10_0000, 4, "a");
        assert_eq!(pool.take_free(5), None);
        let pages = pool.take_free(3).unwrap();
        assert_eq!(pages, [0x10_0000, 0x10_1000, 0x10_2000]);
        pool.give(7, &pages);
        assert_eq!((pool.given_to(7), pool.given_to(0), pool.free.len()), (3, 0, 1));
        assert!(pool.reclaim(7, 0x10_1000));
        assert!(!pool.reclaim(7, 0x10_1000), "twice");
        assert!(!pool.reclaim(0, 0x10_0000), "another function's");
        assert!(!pool.reclaim(7, 0xdead_b000), "never given");
        assert_eq!(pool.reclaim_all(7), 2);
        assert_eq!((pool.given.len(), pool.free.len()), (0, 4));
    }

    #[test]
    fn a_refused_give_leaves_no_trace() {
        let mut pool = PagePool::new();
        pool.add_chunk(0, 2, ());
        let pages = pool.take_free(2).unwrap();
        pool.put_back(&pages);
        assert_eq!(pool.take_free(2).unwrap(), pages);
    }

    #[test]
    fn only_chunks_without_given_pages_are_trimmed() {
        let mut pool = PagePool::new();
        pool.add_chunk(0, 4, "first");
        pool.add_chunk(0x10 * PAGE, 4, "second");
        let pages = pool.take_free(2).unwrap();
        pool.give(0, &pages);
        assert!(pool.trim(6).is_empty(), "few enough");
        let used = pages[0] / PAGE / 0x10;
        let gone = pool.trim(0);
        assert_eq!(gone, [if used == 0 { "second" } else { "first" }]);
        assert_eq!((pool.free.len(), pool.chunks.len()), (2, 1));
        pool.reclaim_all(0);
        assert_eq!(pool.trim(3).len(), 0, "would leave less than is to be kept");
        assert_eq!(pool.trim(0).len(), 1);
        assert!(pool.free.is_empty());
    }
}
