//! User access regions: pages of BAR 0 that take doorbells.

/// A doorbell page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uar {
    /// Queues that ring in it.
    pub users: u32,
    /// First halves of 8-byte doorbells that come as two writes of 4 bytes: offset in the page, and value.
    pub half: Option<(u32, u32)>,
}
