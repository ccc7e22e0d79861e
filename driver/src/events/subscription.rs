//! One port's events, for whoever asked for them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::AsyncEvent;
use crate::cmdq::lock;
use crate::fd::EventFd;
use crate::port::PortNumber;

/// Events of a port that wait to be read; the oldest go when nobody reads them.
pub(super) const MAX_WAITING: usize = 1024;

/// What a subscriber has yet to read.
#[derive(Debug)]
pub(crate) struct PortQueue {
    port: PortNumber,
    waiting: Mutex<VecDeque<AsyncEvent>>,
    readable: EventFd,
    lost: AtomicU64,
}

impl PortQueue {
    fn push(&self, event: &AsyncEvent) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        waiting.push_back(event.clone());
        self.readable.signal();
    }

    pub(crate) fn next(&self) -> Option<AsyncEvent> {
        let mut waiting = lock(&self.waiting);
        let event = waiting.pop_front();
        if waiting.is_empty() {
            self.readable.drain();
        }
        event
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// Events that nobody read in time.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Everybody who has asked for a port's events.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Mutex<Vec<Weak<PortQueue>>>);

impl Subscribers {
    /// Adds one, who gets the port's events from now on, for as long as the queue is held.
    pub(super) fn add(&self, port: PortNumber) -> std::io::Result<Arc<PortQueue>> {
        let queue = Arc::new(PortQueue {
            port,
            waiting: Mutex::default(),
            readable: EventFd::new()?,
            lost: AtomicU64::new(0),
        });
        let mut all = lock(&self.0);
        all.retain(|one| one.strong_count() != 0);
        all.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// Gives an event to those whose port it names, once each.
    pub(super) fn deliver(&self, event: &AsyncEvent) {
        let Some(port) = event.port() else {
            return;
        };
        let all = lock(&self.0);
        let those = all.iter().filter_map(Weak::upgrade);
        those
            .filter(|queue| queue.port == port)
            .for_each(|queue| queue.push(event));
    }
}

#[cfg(test)]
mod tests {
    use ferroce_firmware_iface::event::PortChange;

    use super::*;

    fn change(port: u8, change: PortChange) -> AsyncEvent {
        let port = PortNumber::new(port).unwrap();
        AsyncEvent::Port { port, change }
    }

    #[test]
    fn g06_each_subscriber_of_a_port_gets_its_events_once_and_nobody_else() {
        let all = Subscribers::default();
        let two = PortNumber::new(2).unwrap();
        let (first, second) = (all.add(PortNumber::FIRST).unwrap(), all.add(two).unwrap());
        let again = all.add(two).unwrap();
        let gone = all.add(two).unwrap();
        drop(gone);
        let gid = AsyncEvent::Gid { port: two, index: 3 };
        all.deliver(&change(2, PortChange::DOWN));
        all.deliver(&gid);
        all.deliver(&change(9, PortChange::DOWN));
        all.deliver(&AsyncEvent::Device(crate::error::DeviceFailure::Unresponsive));
        assert!(first.is_empty() && first.next().is_none());
        for queue in [second, again] {
            let seen = [queue.next(), queue.next(), queue.next()];
            assert_eq!(seen, [Some(change(2, PortChange::DOWN)), Some(gid.clone()), None]);
        }
        assert_eq!(lock(&all.0).len(), 4);
        all.add(two).unwrap();
        assert_eq!(lock(&all.0).len(), 2, "who is gone is forgotten");
    }

    #[test]
    fn a_subscriber_who_does_not_read_loses_the_oldest() {
        let all = Subscribers::default();
        let queue = all.add(PortNumber::FIRST).unwrap();
        for index in 0..MAX_WAITING as u16 + 2 {
            all.deliver(&AsyncEvent::Gid {
                port: PortNumber::FIRST,
                index,
            });
        }
        assert_eq!(queue.lost(), 2);
        assert!(matches!(queue.next(), Some(AsyncEvent::Gid { index: 2, .. })));
    }
}
