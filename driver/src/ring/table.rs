//! From a CQE's 24-bit user index to the queues that it releases: the poller's own table of consumer halves.
//!
//! Open addressing with linear probing, at most half full, so that a look-up is a multiplication, a shift and mostly one
//! comparison, whatever the number of queue pairs.

use std::sync::Arc;

use super::slots::WqConsumer;
use super::srq::SrqShared;

/// No user index has more than 24 bits.
const EMPTY: u32 = u32::MAX;

/// Which completions of an entry are still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    /// All.
    None,
    /// Not those before this position of the CQ (within 2^31 of the present): they are of the QP's time before a reset.
    Before(u32),
    /// None: the QP is destroyed.
    All,
}

/// The consumer halves of one QP, as far as they belong to this CQ. Whole cache lines, so that the step from one entry
/// to the next is a shift.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Entry<T> {
    /// The QP's user index.
    pub(crate) key: u32,
    /// The QP's number, as its peers know it.
    pub(crate) qpn: u32,
    /// Its receives say where the message came from.
    pub(crate) datagram: bool,
    /// Which completions are dropped.
    pub(crate) filter: Filter,
    /// Its send queue, if it completes here.
    pub(crate) sq: Option<WqConsumer<T>>,
    /// Its receive queue, if it completes here.
    pub(crate) rq: Option<WqConsumer<T>>,
    /// The shared receive queue that it takes its receives from, if those complete here.
    pub(crate) srq: Option<Arc<SrqShared<T>>>,
}

impl<T> Entry<T> {
    fn empty() -> Entry<T> {
        Entry {
            key: EMPTY,
            qpn: 0,
            datagram: false,
            filter: Filter::None,
            sq: None,
            rq: None,
            srq: None,
        }
    }
}

/// The table. Keys are user indices.
#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Vec<Entry<T>>,
    /// 32 less the log2 of the number of entries.
    shift: u32,
    used: usize,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Table<T> {
        Table::with_log(3)
    }

    fn with_log(log: u32) -> Table<T> {
        Table {
            entries: (0..1usize << log).map(|_| Entry::empty()).collect(),
            shift: 32 - log,
            used: 0,
        }
    }

    #[inline(always)]
    fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    #[inline(always)]
    fn home(&self, key: u32) -> usize {
        // 2^32 over the golden ratio: spreads indices that are handed out in strides.
        (key.wrapping_mul(0x9e37_79b1) >> self.shift) as usize
    }

    #[inline(never)]
    fn find(&self, key: u32) -> Option<usize> {
        let mut at = self.home(key) & self.mask();
        loop {
            let found = self.entries[at].key;
            if found == key {
                return Some(at);
            }
            if found == EMPTY {
                return None;
            }
            at = (at + 1) & self.mask();
        }
    }

    /// The entry of `key` (24 bits).
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut Entry<T>> {
        let home = self.home(key);
        if self.entries.get(home).is_some_and(|entry| entry.key == key) {
            return self.entries.get_mut(home);
        }
        let at = self.find(key)?;
        self.entries.get_mut(at)
    }

    /// Number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Puts an entry in. Gives back the one that had its key.
    pub(crate) fn insert(&mut self, entry: Entry<T>) -> Option<Entry<T>> {
        if let Some(at) = self.find(entry.key) {
            return Some(std::mem::replace(&mut self.entries[at], entry));
        }
        if (self.used + 1) * 2 > self.entries.len() {
            let bigger = Table::with_log(32 - self.shift + 1);
            for old in std::mem::replace(self, bigger).entries {
                if old.key != EMPTY {
                    self.place(old);
                }
            }
        }
        self.place(entry);
        None
    }

    fn place(&mut self, entry: Entry<T>) {
        let mut at = self.home(entry.key) & self.mask();
        while self.entries[at].key != EMPTY {
            at = (at + 1) & self.mask();
        }
        self.entries[at] = entry;
        self.used += 1;
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, key: u32) -> Option<Entry<T>> {
        let mut hole = self.find(key)?;
        let removed = std::mem::replace(&mut self.entries[hole], Entry::empty());
        self.used -= 1;
        // Those behind it move up, where that doesn't take them before their home.
        let mask = self.mask();
        let mut at = (hole + 1) & mask;
        while self.entries[at].key != EMPTY {
            let home = self.home(self.entries[at].key) & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.entries.swap(at, hole);
                hole = at;
            }
            at = (at + 1) & mask;
        }
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entry(key: u32, qpn: u32) -> Entry<()> {
        Entry {
            key,
            qpn,
            ..Entry::empty()
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(operations in prop::collection::vec((0u32..40, any::<bool>()), 0..400), stride in 1u32..70_000) {
            let mut table = Table::new();
            let mut map = BTreeMap::new();
            for (i, (key, insert)) in operations.into_iter().enumerate() {
                let key = key.wrapping_mul(stride) & 0xff_ffff;
                if insert {
                    let old = table.insert(entry(key, i as u32)).map(|e| e.qpn);
                    prop_assert_eq!(old, map.insert(key, i as u32));
                } else {
                    prop_assert_eq!(table.remove(key).map(|e| e.qpn), map.remove(&key));
                }
                prop_assert_eq!(table.len(), map.len());
                for (&key, &qpn) in &map {
                    prop_assert_eq!(table.get_mut(key).map(|e| e.qpn), Some(qpn));
                }
            }
        }
    }

    #[test]
    fn look_ups_stay_short_whatever_the_stride() {
        for log_stride in 0..14 {
            let mut table = Table::new();
            for i in 0..1024u32 {
                table.insert(entry(i << log_stride & 0xff_ffff, i));
            }
            let probes: usize = (0..1024u32)
                .map(|i| {
                    let key = i << log_stride & 0xff_ffff;
                    table.find(key).unwrap().wrapping_sub(table.home(key)) & table.mask()
                })
                .sum();
            assert!(
                probes < 2048,
                "stride 2^{log_stride}: {probes} probes beyond the first for 1024 look-ups"
            );
        }
    }
}
