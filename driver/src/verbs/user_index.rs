//! User indices: the 24 bits by which completions find their queue pair.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use ferroce_hw_regs::ids::UserIndex;

/// Indices handed out: one after the other, so that each comes again as late as can be; a completion that is
/// left over from a queue pair that is gone does not meet its successor.
#[derive(Debug)]
struct Pool {
    next: u32,
    used: Option<HashSet<u32>>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { next: 0, used: None });

/// 24 bits, without the one that means "none".
const COUNT: u32 = UserIndex::MAX.get();

/// An index in use, given back when dropped: once no poller can meet a completion with it any more.
#[derive(Debug)]
pub(crate) struct UserIndexGuard(u32);

impl UserIndexGuard {
    /// Takes the next free index. `None` if all 2^24 - 1 are in use.
    pub(crate) fn take() -> Option<UserIndexGuard> {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let first = pool.next;
        let used = pool.used.get_or_insert_default();
        if used.len() >= COUNT as usize {
            return None;
        }
        let mut index = first;
        while !used.insert(index) {
            index = (index + 1) % COUNT;
        }
        pool.next = (index + 1) % COUNT;
        Some(UserIndexGuard(index))
    }

    pub(crate) fn get(&self) -> u32 {
        self.0
    }
}

impl Drop for UserIndexGuard {
    fn drop(&mut self) {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.used.get_or_insert_default().remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_does_not_come_again_soon() {
        let kept = UserIndexGuard::take().unwrap();
        let first = UserIndexGuard::take().unwrap().get();
        for _ in 0..1000 {
            let next = UserIndexGuard::take().unwrap();
            assert!(next.get() != first && next.get() != kept.get() && next.get() < COUNT);
        }
    }
}
