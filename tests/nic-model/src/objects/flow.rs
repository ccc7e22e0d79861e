//! Flow tables: which receive objects a frame goes to (PRM, chapter "Flow tables").
//!
//! A table holds entries under indices; groups give ranges of them a mask. The first entry by index whose value
//! equals the frame under its group's mask decides.

use std::collections::BTreeMap;

use super::error::ObjectError;

/// Bytes of `fte_match_param`.
pub const MATCH_BYTES: usize = 512;
/// Bytes of each of its parts, of which `match_criteria_enable` has a bit.
const PART_BYTES: usize = 64;
/// Most entries that a group or a table has: `log_size` ends here.
pub const MAX_LOG_SIZE: u8 = 24;

/// The PRM's `fte_match_param`: values to match, or the mask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MatchBytes(Box<[u8; MATCH_BYTES]>);

impl MatchBytes {
    /// From the bytes of the layout; what is missing is 0.
    pub fn new(bytes: &[u8]) -> MatchBytes {
        let mut out = Box::new([0; MATCH_BYTES]);
        let n = bytes.len().min(MATCH_BYTES);
        out[..n].copy_from_slice(&bytes[..n]);
        MatchBytes(out)
    }
}

/// Where frames go that no entry of a table matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// They are dropped.
    Default,
    /// To another table.
    Table(u32),
}

/// Where an entry sends frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// Another table.
    Table(u32),
    /// A transport interface receive object.
    Tir(u32),
}

/// Entries `start..=end` of a table, and what they compare.
#[derive(Clone, Debug)]
pub struct FlowGroup {
    /// First entry.
    pub start: u32,
    /// Last entry.
    pub end: u32,
    /// Which 64-byte parts of the mask count, a bit each.
    pub enable: u8,
    /// The mask.
    pub mask: MatchBytes,
}

/// One entry.
#[derive(Clone, Debug)]
pub struct FlowEntry {
    /// Its group.
    pub group: u32,
    /// Frames that match are dropped.
    pub drop: bool,
    /// What receive completions carry in place of a QPN.
    pub flow_tag: u32,
    /// What is matched under the group's mask.
    pub value: MatchBytes,
    /// Where frames that match go.
    pub destinations: Vec<Destination>,
}

/// A flow table.
#[derive(Clone, Debug)]
pub struct FlowTable {
    /// Tables forward to higher levels only.
    pub level: u8,
    /// log2 of its entries.
    pub log_size: u8,
    /// What happens without a match.
    pub miss: Miss,
    groups: BTreeMap<u32, FlowGroup>,
    entries: BTreeMap<u32, FlowEntry>,
    next_group: u32,
}

fn bad(field: &'static str, value: u32, reason: &'static str) -> ObjectError {
    ObjectError::BadValue {
        field,
        value: u64::from(value),
        reason,
    }
}

impl FlowTable {
    /// An empty table.
    pub fn new(level: u8, log_size: u8, miss: Miss) -> FlowTable {
        FlowTable {
            level,
            log_size: log_size.min(MAX_LOG_SIZE),
            miss,
            groups: BTreeMap::new(),
            entries: BTreeMap::new(),
            next_group: 0,
        }
    }

    /// Adds a group; gives its id.
    ///
    /// # Errors
    /// It lies outside the table, or over another.
    pub fn add_group(&mut self, group: FlowGroup) -> Result<u32, ObjectError> {
        if group.start > group.end || group.end >= 1 << self.log_size {
            return Err(bad("end_flow_index", group.end, "the group is outside the table"));
        }
        let overlaps = |g: &FlowGroup| group.start <= g.end && g.start <= group.end;
        if self.groups.values().any(overlaps) {
            return Err(bad("start_flow_index", group.start, "another group is there"));
        }
        let id = self.next_group;
        self.next_group += 1;
        self.groups.insert(id, group);
        Ok(id)
    }

    /// Takes a group away.
    ///
    /// # Errors
    /// It is not there, or has entries.
    pub fn remove_group(&mut self, id: u32) -> Result<(), ObjectError> {
        let users = self.entries.values().filter(|e| e.group == id).count() as u32;
        if users != 0 {
            return Err(ObjectError::Busy {
                object: "flow group",
                number: id,
                users,
            });
        }
        let removed = self.groups.remove(&id);
        removed.map(drop).ok_or(ObjectError::NoSuch {
            object: "flow group",
            number: id,
        })
    }

    /// Sets an entry, new or in place of the one there.
    ///
    /// # Errors
    /// Its group is not there, or does not have the index.
    pub fn set_entry(&mut self, index: u32, entry: FlowEntry) -> Result<(), ObjectError> {
        let group = self.groups.get(&entry.group).ok_or(ObjectError::NoSuch {
            object: "flow group",
            number: entry.group,
        })?;
        if !(group.start..=group.end).contains(&index) {
            return Err(bad("flow_index", index, "not in its group"));
        }
        self.entries.insert(index, entry);
        Ok(())
    }

    /// Takes an entry away.
    ///
    /// # Errors
    /// It is not there.
    pub fn remove_entry(&mut self, index: u32) -> Result<(), ObjectError> {
        let removed = self.entries.remove(&index);
        removed.map(drop).ok_or(ObjectError::NoSuch {
            object: "flow table entry",
            number: index,
        })
    }

    /// The entry there.
    pub fn entry(&self, index: u32) -> Option<&FlowEntry> {
        self.entries.get(&index)
    }

    /// How often entries and the miss rule name `destination`.
    pub fn uses(&self, destination: Destination) -> u32 {
        let all = self.entries.values().flat_map(|e| &e.destinations);
        let by_entries = all.filter(|d| **d == destination).count() as u32;
        let by_miss = matches!((self.miss, destination), (Miss::Table(a), Destination::Table(b)) if a == b);
        by_entries + u32::from(by_miss)
    }

    /// The entry that a frame with these values meets.
    pub fn find(&self, frame: &MatchBytes) -> Option<&FlowEntry> {
        self.entries.values().find(|entry| {
            let group = self.groups.get(&entry.group);
            group.is_some_and(|group| group.matches(&entry.value, frame))
        })
    }
}

impl FlowGroup {
    fn matches(&self, value: &MatchBytes, frame: &MatchBytes) -> bool {
        let parts = self.mask.0.chunks_exact(PART_BYTES);
        let parts = parts.zip(
            value
                .0
                .chunks_exact(PART_BYTES)
                .zip(frame.0.chunks_exact(PART_BYTES)),
        );
        parts.enumerate().all(|(part, (mask, (value, frame)))| {
            self.enable >> part & 1 == 0
                || mask
                    .iter()
                    .zip(value.iter().zip(frame))
                    .all(|(m, (v, f))| m & v == m & f)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(start: u32, end: u32, mask: &[u8]) -> FlowGroup {
        FlowGroup {
            start,
            end,
            enable: 1,
            mask: MatchBytes::new(mask),
        }
    }

    fn entry(group: u32, value: &[u8], tir: u32) -> FlowEntry {
        FlowEntry {
            group,
            drop: false,
            flow_tag: 0,
            value: MatchBytes::new(value),
            destinations: vec![Destination::Tir(tir)],
        }
    }

    #[test]
    fn the_first_entry_that_matches_decides() {
        let mut table = FlowTable::new(1, 4, Miss::Default);
        let exact = table.add_group(group(0, 3, &[0xff])).unwrap();
        let any = table.add_group(group(4, 4, &[])).unwrap();
        table.set_entry(4, entry(any, &[], 9)).unwrap();
        table.set_entry(2, entry(exact, &[7], 1)).unwrap();
        let tir = |byte| table.find(&MatchBytes::new(&[byte, 0xaa])).unwrap().destinations[0];
        assert_eq!(tir(7), Destination::Tir(1));
        assert_eq!(tir(8), Destination::Tir(9));
        assert_eq!(table.uses(Destination::Tir(9)), 1);
    }

    #[test]
    fn groups_stay_apart_and_entries_in_their_group() {
        let mut table = FlowTable::new(1, 2, Miss::Table(5));
        let id = table.add_group(group(0, 1, &[])).unwrap();
        assert!(table.add_group(group(1, 2, &[])).is_err());
        assert!(table.add_group(group(2, 4, &[])).is_err());
        assert!(table.set_entry(2, entry(id, &[], 1)).is_err());
        assert!(table.set_entry(0, entry(7, &[], 1)).is_err());
        table.set_entry(0, entry(id, &[], 1)).unwrap();
        assert!(table.remove_group(id).is_err());
        table.remove_entry(0).unwrap();
        assert!(table.remove_entry(0).is_err());
        table.remove_group(id).unwrap();
        assert_eq!(table.uses(Destination::Table(5)), 1);
    }
}
