//! The two system interfaces that waiting needs: eventfds and `poll`.
//!
//! MSI-X vectors arrive as eventfds, and a thread that wants the next event sleeps in `poll` on one of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

/// A non-blocking, close-on-exec eventfd.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    /// A new one, at zero.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?))
    }

    /// Wakes whoever polls it. Adding to a counter that is full is no error: it is readable already.
    pub(crate) fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes what was signalled: whether there was anything.
    pub(crate) fn drain(&self) -> bool {
        rustix::io::read(&self.0, &mut [0u8; 8]).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until one of `fds` is readable (or in error), or `until` has come.
///
/// It may return early (a signal): callers look again at what they wait for.
pub(crate) fn wait_readable<'a>(fds: impl IntoIterator<Item = BorrowedFd<'a>>, until: Instant) {
    let mut polled: Vec<_> = fds
        .into_iter()
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let left = until
        .saturating_duration_since(Instant::now())
        .min(Duration::from_secs(3600));
    let timeout = Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    let _ = rustix::event::poll(&mut polled, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_seen_once() {
        let fd = EventFd::new().unwrap();
        assert!(!fd.drain());
        fd.signal();
        fd.signal();
        wait_readable([fd.as_fd()], Instant::now() + Duration::from_secs(60));
        assert!(fd.drain());
        assert!(!fd.drain());
    }

    #[test]
    fn waiting_ends_at_its_deadline() {
        let fd = EventFd::new().unwrap();
        let until = Instant::now() + Duration::from_millis(2);
        wait_readable([fd.as_fd()], until);
        assert!(Instant::now() >= until);
    }
}
