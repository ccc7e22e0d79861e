//! How the engine sleeps: until a write wakes it, one of the ports' descriptors has a frame, or time is up.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// The engine's bed.
#[derive(Debug)]
pub(super) struct Sleeper {
    asleep: AtomicBool,
    bell: OwnedFd,
    ports: Vec<OwnedFd>,
}

impl Sleeper {
    /// Also wakes when one of `ports` becomes readable.
    pub fn new(ports: Vec<OwnedFd>) -> io::Result<Sleeper> {
        Ok(Sleeper {
            asleep: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            ports,
        })
    }

    /// Says that the engine is about to sleep. It looks for work once more after this.
    pub fn prepare(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// Sleeps until woken, until a port has something, or for `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(self.ports.iter().map(|port| PollFd::new(port, PollFlags::IN)));
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // An interrupted or failed wait is a short sleep, nothing more.
        let _ = poll(&mut fds, Some(&timeout));
    }

    /// Says that the engine is awake.
    pub fn awake(&self) {
        if !self.asleep.swap(false, Ordering::SeqCst) {
            let mut count = [0; 8];
            // Somebody rang, or is about to: at worst the next sleep is short.
            let _ = rustix::io::read(&self.bell, &mut count);
        }
    }

    /// Wakes the engine if it sleeps.
    pub fn wake_if_asleep(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the engine, or keeps it from its next sleep.
    pub fn wake(&self) {
        // The counter can't overflow before 2^64 wake-ups.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
