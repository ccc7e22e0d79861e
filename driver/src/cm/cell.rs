//! What a thread waits on: a queue of news with a condition, and an eventfd for those who want one.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cmdq::lock;
use crate::fd::EventFd;

/// How long after a deadline the machine's word on it is waited for.
const GRACE: Duration = Duration::from_secs(1);

/// When even the machine's word on a deadline is late.
pub(super) fn late(deadline: Instant) -> Instant {
    deadline.checked_add(GRACE).unwrap_or(deadline)
}

/// Wakes who waited for news, once it is dropped: a waker is the program's, and may do at once whatever the task would, such as
/// drop a connection. So it must go when none of the manager's locks is held.
#[must_use = "it wakes where it is dropped, which must not be under a lock"]
#[derive(Debug, Default)]
pub(super) struct Wake {
    #[cfg(feature = "tokio")]
    waker: Option<std::task::Waker>,
}

#[cfg(feature = "tokio")]
impl Drop for Wake {
    fn drop(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// News for one object of the program.
#[derive(Debug)]
pub(super) struct Cell<T> {
    news: Mutex<VecDeque<T>>,
    /// The task that waits. Locked within `news`.
    #[cfg(feature = "tokio")]
    waker: Mutex<Option<std::task::Waker>>,
    changed: Condvar,
    /// Made when it is first asked for: ten thousand connections must not need ten thousand fds.
    fd: OnceLock<EventFd>,
}

impl<T> Default for Cell<T> {
    fn default() -> Self {
        Self {
            news: Mutex::default(),
            #[cfg(feature = "tokio")]
            waker: Mutex::default(),
            changed: Condvar::new(),
            fd: OnceLock::new(),
        }
    }
}

impl<T> Cell<T> {
    /// Adds news. What may be there at a time is bounded by the states that its object can go through.
    pub(super) fn push(&self, news: T) -> Wake {
        self.push_in_place_of(news, |_| false)
    }

    /// Adds news that make older ones pointless.
    pub(super) fn push_in_place_of(&self, news: T, pointless: impl Fn(&T) -> bool) -> Wake {
        let mut queue = lock(&self.news);
        queue.retain(|old| !pointless(old));
        queue.push_back(news);
        // Under the lock, so that it is never taken for older than what another thread takes out.
        if let Some(fd) = self.fd.get() {
            fd.signal();
        }
        #[cfg(feature = "tokio")]
        let waker = lock(&self.waker).take();
        drop(queue);
        self.changed.notify_all();
        Wake {
            #[cfg(feature = "tokio")]
            waker,
        }
    }

    /// Drops news that `keep` says are worth nothing any more; how many are left.
    pub(super) fn retain(&self, keep: impl FnMut(&T) -> bool) -> usize {
        let mut queue = lock(&self.news);
        queue.retain(keep);
        if queue.is_empty()
            && let Some(fd) = self.fd.get()
        {
            fd.drain();
        }
        queue.len()
    }

    /// How many news there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.news).len()
    }

    /// Wakes a task at the next news; there is one that waits at a time.
    #[cfg(feature = "tokio")]
    pub(super) fn wake_at_news(&self, waker: &std::task::Waker) {
        // Both of them are the program's: not under the lock.
        let waker = waker.clone();
        let last = lock(&self.waker).replace(waker);
        drop(last);
    }

    /// The oldest news.
    pub(super) fn pop(&self) -> Option<T> {
        let mut queue = lock(&self.news);
        let news = queue.pop_front();
        if queue.is_empty()
            && let Some(fd) = self.fd.get()
        {
            fd.drain();
        }
        news
    }

    /// The oldest news, as soon as there is any; `None` at the deadline.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> Option<T> {
        let mut queue = lock(&self.news);
        while queue.is_empty() {
            queue = match deadline {
                None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    let waited = self.changed.wait_timeout(queue, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        drop(queue);
        self.pop()
    }

    /// What is readable while there are news.
    pub(super) fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        // Under the lock, so that no news come between the making and the first signal.
        let queue = lock(&self.news);
        if self.fd.get().is_none() {
            let fd = EventFd::new()?;
            if !queue.is_empty() {
                fd.signal();
            }
            let _ = self.fd.set(fd);
        }
        drop(queue);
        self.fd
            .get()
            .map(AsFd::as_fd)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fd::wait_readable;

    #[test]
    fn the_fd_is_readable_while_there_are_news() {
        let cell = Cell::default();
        drop(cell.push(1));
        let soon = || Instant::now() + Duration::from_millis(2);
        let readable = |cell: &Cell<i32>| {
            let mut polled = [rustix::event::PollFd::from_borrowed_fd(
                cell.fd().unwrap(),
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(
                &mut polled,
                Some(&rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                }),
            )
            .unwrap()
                == 1
        };
        assert!(readable(&cell), "news from before the fd was made");
        drop(cell.push(2));
        assert_eq!(cell.pop(), Some(1));
        assert!(readable(&cell));
        assert_eq!(cell.wait(None), Some(2));
        assert!(!readable(&cell));
        assert_eq!(cell.wait(Some(soon())), None);
        wait_readable([cell.fd().unwrap()], soon());
    }
}
