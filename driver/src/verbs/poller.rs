//! Polling a completion queue, and waiting for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ferroce_firmware_iface::event::CqErrorSyndrome;

use super::cq::{Attachment, Consumers, Cq, CqShared, FAILED, HEALTHY, Identity, Message, Promise};
use super::error::{PollError, WaitError};
use super::local::LocalInner;
use super::wc::Wc;
use crate::barrier;
use crate::cmdq::lock;
use crate::ring::{CqRing, Entry, Filter, Next, RawWc, WqConsumer};

/// What to do when the poller reaches a position.
#[derive(Debug)]
struct Leaving {
    key: u32,
    end: u32,
    destroyed: bool,
    /// For what lies before `end`.
    _room: Option<Promise>,
}

/// Polls a completion queue. There is one for each; it may move between threads.
#[derive(Debug)]
pub struct CqPoller {
    pub(super) ring: CqRing<LocalInner>,
    attached: HashMap<u32, Attachment>,
    /// QPs whose old completions are not all passed yet.
    leaving: Vec<Leaving>,
    /// The event counter when the queue was armed; `None` if it isn't.
    armed_at: Option<u64>,
    pub(super) shared: Arc<CqShared>,
}

impl CqPoller {
    /// The poller of a queue that was just made.
    pub(super) fn new(ring: CqRing<LocalInner>, shared: Arc<CqShared>) -> CqPoller {
        CqPoller {
            ring,
            attached: HashMap::new(),
            leaving: Vec::new(),
            armed_at: None,
            shared,
        }
    }

    /// The queue.
    pub fn cq(&self) -> Cq {
        Cq {
            shared: self.shared.clone(),
        }
    }

    /// Gives up to `max` completions to `each`, in the order in which they came, and says how many. 0 means that there
    /// are none now. `each` may post.
    ///
    /// # Errors
    /// [`PollError::Failed`] if the device gave the queue up, for example since it was overrun, and all that it had written
    /// has been polled.
    #[inline(always)]
    pub fn poll(&mut self, max: usize, mut each: impl FnMut(Wc)) -> Result<usize, PollError> {
        if self.shared.mail.load(Ordering::Acquire) || !self.leaving.is_empty() {
            self.read_inbox();
        }
        let start = self.ring.consumer_index();
        let (mut count, more) = self.ring.each_usual(max, |raw| each(Wc::new(raw)));
        if more && count < max && self.ring.is_ready() {
            count += self.poll_others(start, max - count, &mut each);
        }
        if self.ring.consumer_index() != start {
            self.ring.publish();
        } else if self.shared.error.load(Ordering::Relaxed) != HEALTHY {
            return Err(self.failure());
        }
        Ok(count)
    }

    /// Goes on where the next completion is no usual one. Out of line, so that the usual way is short.
    #[inline(never)]
    fn poll_others(&mut self, start: u32, max: usize, each: &mut impl FnMut(Wc)) -> usize {
        let mut count = 0;
        while count < max && self.ring.is_ready() {
            self.ring.publish();
            match self.next_unusual(start) {
                Some(Some(raw)) => {
                    count += 1;
                    each(Wc::new(raw));
                }
                Some(None) => {}
                None => break,
            }
            count += self.ring.each_usual(max - count, |raw| each(Wc::new(raw))).0;
        }
        // What was passed now makes room now.
        if !self.leaving.is_empty() {
            self.forget_left();
        }
        count
    }

    /// What is next, where it is no usual completion: another completion, something to pass over, or `None` to stop.
    #[inline(never)]
    fn next_unusual(&mut self, start: u32) -> Option<Option<RawWc<LocalInner>>> {
        // A reset that was told of before this CQE was written, even since the poll began.
        barrier::after_ownership();
        if self.shared.mail.load(Ordering::Acquire) {
            self.read_inbox();
        }
        let mut found = None;
        match self.ring.next() {
            Next::Wc(raw) => found = Some(raw),
            Next::Empty => return None,
            Next::Dropped => {}
            Next::Moved => lock(&self.shared.view).moved(&mut self.ring),
            Next::Unknown => self.meet_stranger(),
        }
        // Before its request may be posted again.
        self.ring.publish();
        (found.is_some() || !self.is_lap(start)).then_some(found)
    }

    /// The next completion, if there is one. [`CqPoller::poll`] costs less for several.
    ///
    /// # Errors
    /// As [`CqPoller::poll`].
    pub fn poll_one(&mut self) -> Result<Option<Wc>, PollError> {
        let mut found = None;
        self.poll(1, |wc| found = Some(wc))?;
        Ok(found)
    }

    /// Waits until there is something to poll, asleep until the device announces it.
    ///
    /// # Errors
    /// [`WaitError::Deadline`], or [`WaitError::Poll`] if the queue or the device failed.
    pub fn wait(&mut self, deadline: Instant) -> Result<(), WaitError> {
        let started = Instant::now();
        loop {
            if self.ring.is_ready() {
                return Ok(());
            }
            if self.shared.error.load(Ordering::Acquire) != HEALTHY {
                return Err(self.failure().into());
            }
            // The device announces at once what it has written before it sees the arming.
            let seen = self.arm(false);
            let shared = &self.shared;
            let woken =
                shared
                    .context
                    .wait_completion(shared.vector, &shared.completions, seen, Some(deadline));
            match woken {
                Ok(true) => {}
                Ok(false) if self.ring.is_ready() => return Ok(()),
                Ok(false) => {
                    return Err(WaitError::Deadline {
                        cqn: shared.cqn.get(),
                        waited: started.elapsed(),
                    });
                }
                Err(failure) => {
                    let (cqn, reason) = (shared.cqn.get(), failure.to_string());
                    return Err(PollError::Device { cqn, reason }.into());
                }
            }
        }
    }

    /// Sleeps once: until there may be something to poll, `stop` holds, or the deadline has come. Whoever makes `stop` hold
    /// wakes the vector.
    pub(crate) fn sleep(
        &mut self,
        deadline: Instant,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<(), PollError> {
        // The device announces at once what it has written before it sees the arming.
        let seen = self.arm(false);
        let (ring, shared) = (&self.ring, &self.shared);
        let mut ready = || shared.completions.count() != seen || ring.is_ready() || stop();
        let slept = shared
            .context
            .wait_until(shared.vector, Some(deadline), &mut ready);
        let (cqn, failed) = (shared.cqn.get(), shared.error.load(Ordering::Acquire) != HEALTHY);
        match slept {
            Ok(_) if failed && !self.ring.is_ready() => Err(self.failure()),
            Ok(_) => Ok(()),
            Err(failure) => Err(PollError::Device {
                cqn,
                reason: failure.to_string(),
            }),
        }
    }

    /// Asks for one event on the queue's completion vector, when the next completion comes or, with `solicited_only`, the
    /// next that its sender marked so or that is an error. Polling once more after this makes sure that none is missed.
    ///
    /// For programs with an event loop of their own; [`CqPoller::events`] tells whether the event came.
    pub fn req_notify(&mut self, solicited_only: bool) {
        self.arm(solicited_only);
    }

    /// Completion events of this queue so far, as far as the vector's events have been taken in
    /// ([`Context::poll_completion_events`](crate::context::Context::poll_completion_events)).
    pub fn events(&self) -> u64 {
        self.shared.completions.count()
    }

    /// Completions that wait to be polled. It looks at each, so it is for diagnosis.
    pub fn waiting(&self) -> u32 {
        self.ring.waiting()
    }

    /// Completions that made no sense and were dropped: a fault of the device.
    pub fn bad_completions(&self) -> u64 {
        self.ring.bad
    }

    /// Arms the queue; the event counter from before.
    fn arm(&mut self, solicited_only: bool) -> u64 {
        let seen = self.shared.completions.count();
        match self.armed_at {
            // Still armed, without an event: the same arming again, with a newer index.
            Some(at) if at == seen => {}
            Some(_) => self.ring.event_seen(),
            None => {}
        }
        self.armed_at = Some(seen);
        self.ring.arm(solicited_only);
        seen
    }

    /// Whether a whole ring was gone through since `start`: a device that keeps writing nonsense does not keep the
    /// program here.
    fn is_lap(&self, start: u32) -> bool {
        self.ring.consumer_index().wrapping_sub(start) >= self.ring.entries()
    }

    /// A completion of an unknown queue pair is next: it may have come since the inbox was last read.
    #[cold]
    fn meet_stranger(&mut self) {
        if self.shared.mail.load(Ordering::Acquire) {
            self.read_inbox();
        } else {
            self.ring.skip();
        }
    }

    #[cold]
    #[inline(never)]
    fn read_inbox(&mut self) {
        self.shared.mail.store(false, Ordering::Relaxed);
        let mail = std::mem::take(&mut *lock(&self.shared.inbox));
        for message in mail {
            match message {
                Message::Attach {
                    identity: Identity { key, qpn, datagram },
                    consumers: Consumers { sq, rq, srq },
                    attachment,
                } => {
                    self.ring.queues.insert(Entry {
                        key,
                        qpn,
                        datagram,
                        filter: Filter::None,
                        sq,
                        rq,
                        srq,
                    });
                    self.attached.insert(key, attachment);
                }
                Message::Reset {
                    key,
                    end,
                    consumers: Consumers { sq, rq, srq },
                    room,
                } => {
                    let end = self.position(end);
                    if let Some(entry) = self.ring.queues.get_mut(key) {
                        (entry.sq, entry.rq, entry.srq) = (sq, rq, srq);
                        entry.filter = Filter::Before(end);
                        self.leaving.push(Leaving {
                            key,
                            end,
                            destroyed: false,
                            _room: room,
                        });
                    }
                }
                Message::Mute { key } => {
                    if let Some(entry) = self.ring.queues.get_mut(key) {
                        entry.filter = Filter::All;
                    }
                }
                Message::Detach { key, end } => {
                    let end = self.position(end);
                    if let Some(entry) = self.ring.queues.get_mut(key) {
                        entry.filter = Filter::All;
                        self.leaving.push(Leaving {
                            key,
                            end,
                            destroyed: true,
                            _room: None,
                        });
                    }
                }
            }
        }
        self.forget_left();
    }

    /// A position of 24 bits as one of 32. It is at most a ring away.
    fn position(&self, at: u32) -> u32 {
        let ci = self.ring.consumer_index();
        let ahead = at.wrapping_sub(ci) & 0xff_ffff;
        // More than half a turn ahead is behind.
        let signed = if ahead < 1 << 23 {
            ahead
        } else {
            ahead | 0xff00_0000
        };
        ci.wrapping_add(signed)
    }

    /// Ends the filtering of those whose old completions are passed.
    fn forget_left(&mut self) {
        let (ci, ring, attached) = (self.ring.consumer_index(), &mut self.ring, &mut self.attached);
        self.leaving.retain(|left| {
            if (ci.wrapping_sub(left.end) as i32) < 0 {
                return true;
            }
            if left.destroyed {
                ring.queues.remove(left.key);
                attached.remove(&left.key);
            } else if let Some(entry) = ring.queues.get_mut(left.key)
                && entry.filter == Filter::Before(left.end)
            {
                entry.filter = Filter::None;
                entry.sq.iter().chain(&entry.rq).for_each(WqConsumer::settle);
            }
            false
        });
    }

    #[cold]
    fn failure(&self) -> PollError {
        let syndrome = CqErrorSyndrome(self.shared.error.load(Ordering::Acquire) & !FAILED);
        PollError::Failed {
            cqn: self.shared.cqn.get(),
            reason: syndrome.to_string(),
        }
    }
}
