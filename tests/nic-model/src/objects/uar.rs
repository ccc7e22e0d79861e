//! User access regions: pages of BAR 0 that take doorbells.

use std::collections::BTreeMap;

/// A doorbell page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Uar {
    /// Queues that ring in it.
    pub users: u32,
    /// First halves of 8-byte doorbells that come as two writes of 4 bytes: offset in the page, and value.
    pub half: Option<(u32, u32)>,
    /// Its BlueFlame registers that were written to.
    pub registers: BTreeMap<u32, Register>,
    /// The last write to a slot, if more may follow.
    pub open: Option<OpenWqe>,
}

/// A BlueFlame register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Register {
    /// The slot that was written to last, by its offset in the page.
    pub last: Option<u32>,
    /// WQEs were written to it, and not only doorbells.
    pub takes_wqes: bool,
}

/// The start of a WQE that was written to a slot: 8 bytes, which may be all, or more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenWqe {
    /// The register's number in the page.
    pub register: u32,
    /// The slot's offset in the page.
    pub slot: u32,
    /// What has come, at least 8 bytes.
    pub bytes: Vec<u8>,
    /// The write before went to the same slot.
    pub reused: bool,
    /// It began with a whole piece, so it is no mere doorbell: nothing was rung yet.
    pub waits: bool,
}

impl OpenWqe {
    fn word(&self, at: usize) -> u32 {
        let word = self.bytes.get(at..at + 4).and_then(|word| word.first_chunk());
        word.map_or(0, |word| u32::from_be_bytes(*word))
    }

    /// The queue that its control segment names.
    pub fn qpn(&self) -> u32 {
        self.word(4) >> 8
    }

    /// Index of its first WQEBB.
    pub fn index(&self) -> u16 {
        (self.word(0) >> 8) as u16
    }

    /// Its length, rounded up to whole pieces.
    pub fn padded(&self) -> usize {
        ((self.word(4) & 0x3f) as usize * 16).next_multiple_of(64).max(64)
    }
}
