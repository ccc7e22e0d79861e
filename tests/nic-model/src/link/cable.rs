//! A cable between two ports in this process. Frames keep their parts: payloads are not copied.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{MAX_FRAME, Port, PortCounters, Waker};
use crate::clock::Nanos;
use crate::wire::Frame;

/// Frames under way in one direction before more are lost: 4 MiB of 4 KiB packets, four times over.
pub const DEFAULT_DEPTH: usize = 4096;

/// One direction.
struct Lane {
    queue: Mutex<VecDeque<Frame>>,
    /// Length of `queue`, so that looking into an empty one takes no lock.
    len: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    fn new() -> Arc<Lane> {
        Arc::new(Lane {
            queue: Mutex::new(VecDeque::new()),
            len: AtomicUsize::new(0),
            waker: Mutex::new(None),
        })
    }

    /// Appends a frame; false when the lane is full.
    fn push(&self, frame: Frame, depth: usize) -> bool {
        let was_empty = {
            let mut queue = lock(&self.queue);
            if queue.len() >= depth {
                return false;
            }
            queue.push_back(frame);
            self.len.store(queue.len(), Ordering::Release);
            queue.len() == 1
        };
        if was_empty {
            self.wake();
        }
        true
    }

    /// Appends as many frames as there is room for; the rest stays in `frames`.
    fn append(&self, frames: &mut VecDeque<Frame>, depth: usize) {
        let was_empty = {
            let mut queue = lock(&self.queue);
            let was_empty = queue.is_empty();
            let room = depth.saturating_sub(queue.len());
            move_frames(frames, room, &mut queue);
            self.len.store(queue.len(), Ordering::Release);
            was_empty && !queue.is_empty()
        };
        if was_empty {
            self.wake();
        }
    }

    /// Takes up to `max` frames.
    fn take(&self, max: usize, into: &mut VecDeque<Frame>) {
        if self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut queue = lock(&self.queue);
        move_frames(&mut queue, max, into);
        self.len.store(queue.len(), Ordering::Release);
    }

    fn wake(&self) {
        let waker = lock(&self.waker).clone();
        if let Some(wake) = waker {
            wake();
        }
    }

    fn pop(&self) -> Option<Frame> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut queue = lock(&self.queue);
        let frame = queue.pop_front();
        self.len.store(queue.len(), Ordering::Release);
        frame
    }

    fn clear(&self) {
        lock(&self.queue).clear();
        self.len.store(0, Ordering::Release);
    }
}

/// Moves up to `max` frames from the front of one queue to the end of another.
fn move_frames(from: &mut VecDeque<Frame>, max: usize, to: &mut VecDeque<Frame>) {
    if to.is_empty() && from.len() <= max {
        // No frame has to be touched.
        std::mem::swap(from, to);
    } else {
        to.extend(from.drain(..max.min(from.len())));
    }
}

/// Pulls the plug and puts it back, from anywhere.
#[derive(Clone, Debug)]
pub struct CableControl {
    up: Arc<AtomicBool>,
}

impl CableControl {
    /// Takes the link up or down. While it is down frames are lost, also those that were under way.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Release);
    }
}

/// One end of a cable.
pub struct CablePort {
    out: Arc<Lane>,
    inn: Arc<Lane>,
    up: Arc<AtomicBool>,
    depth: usize,
    counters: PortCounters,
}

/// The two ends of a new cable, which carries `depth` frames at a time in each direction.
pub fn cable(depth: usize) -> (CablePort, CablePort) {
    let (ab, ba) = (Lane::new(), Lane::new());
    let up = Arc::new(AtomicBool::new(true));
    let end = |out: &Arc<Lane>, inn: &Arc<Lane>| CablePort {
        out: Arc::clone(out),
        inn: Arc::clone(inn),
        up: Arc::clone(&up),
        depth,
        counters: PortCounters::default(),
    };
    (end(&ab, &ba), end(&ba, &ab))
}

impl CablePort {
    /// A handle that takes the link down and up.
    pub fn control(&self) -> CableControl {
        CableControl {
            up: Arc::clone(&self.up),
        }
    }
}

impl Port for CablePort {
    fn send(&mut self, _now: Nanos, frame: Frame) {
        if frame.len() > MAX_FRAME {
            self.counters.oversized += 1;
        } else if self.is_up() && self.out.push(frame, self.depth) {
            self.counters.sent += 1;
        } else {
            self.counters.send_lost += 1;
        }
    }

    fn recv(&mut self, _now: Nanos) -> Option<Frame> {
        if !self.is_up() {
            self.inn.clear();
            return None;
        }
        let frame = self.inn.pop()?;
        self.counters.received += 1;
        Some(frame)
    }

    fn send_all(&mut self, now: Nanos, frames: &mut VecDeque<Frame>) {
        if !self.is_up() || frames.iter().any(|frame| frame.len() > MAX_FRAME) {
            while let Some(frame) = frames.pop_front() {
                self.send(now, frame);
            }
            return;
        }
        let all = frames.len();
        self.out.append(frames, self.depth);
        self.counters.sent += (all - frames.len()) as u64;
        self.counters.send_lost += frames.len() as u64;
        frames.clear();
    }

    fn recv_into(&mut self, _now: Nanos, max: usize, into: &mut VecDeque<Frame>) {
        if !self.is_up() {
            self.inn.clear();
            return;
        }
        let before = into.len();
        self.inn.take(max, into);
        self.counters.received += (into.len() - before) as u64;
    }

    fn set_waker(&mut self, waker: Option<Waker>) {
        *lock(&self.inn.waker) = waker;
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl fmt::Debug for CablePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CablePort")
            .field("waiting", &self.inn.len)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(n: u8) -> Frame {
        Frame::from_vec(vec![n; 60])
    }

    #[test]
    fn frames_cross_in_order_and_wake_the_other_end() {
        let (mut a, mut b) = cable(8);
        let wakes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&wakes);
        b.set_waker(Some(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })));
        for n in 0..3 {
            a.send(Nanos::ZERO, frame(n));
        }
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        for n in 0..3 {
            assert_eq!(b.recv(Nanos::ZERO).unwrap().to_bytes().unwrap(), vec![n; 60]);
        }
        assert!(b.recv(Nanos::ZERO).is_none());
        assert!(a.recv(Nanos::ZERO).is_none());
        a.send(Nanos::ZERO, frame(9));
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
        assert_eq!((a.counters().sent, b.counters().received), (4, 3));
    }

    #[test]
    fn many_frames_at_once_are_as_many_frames_one_by_one() {
        let (mut a, mut b) = cable(8);
        let wakes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&wakes);
        b.set_waker(Some(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })));
        let mut frames: VecDeque<Frame> = (0..5).map(frame).collect();
        a.send_all(Nanos::ZERO, &mut frames);
        frames.extend((5..11).map(frame));
        a.send_all(Nanos::ZERO, &mut frames);
        assert!(frames.is_empty());
        assert_eq!((a.counters().sent, a.counters().send_lost), (8, 3));
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        b.recv_into(Nanos::ZERO, 3, &mut frames);
        assert_eq!(frames.len(), 3);
        b.recv_into(Nanos::ZERO, 100, &mut frames);
        let first: Vec<u8> = frames.iter().map(|f| f.to_bytes().unwrap()[0]).collect();
        assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(b.counters().received, 8);
        b.recv_into(Nanos::ZERO, 100, &mut frames);
        assert_eq!(frames.len(), 8);
        let mut long: VecDeque<Frame> = [Frame::from_vec(vec![0; MAX_FRAME + 1]), frame(1)].into();
        a.send_all(Nanos::ZERO, &mut long);
        assert_eq!((a.counters().sent, a.counters().oversized), (9, 1));
        a.control().set_up(false);
        a.send_all(Nanos::ZERO, &mut frames);
        assert_eq!(a.counters().send_lost, 11);
        b.recv_into(Nanos::ZERO, 100, &mut frames);
        assert!(frames.is_empty());
    }

    #[test]
    fn a_full_or_unplugged_cable_loses_frames_and_counts_them() {
        let (mut a, mut b) = cable(2);
        for n in 0..3 {
            a.send(Nanos::ZERO, frame(n));
        }
        a.send(Nanos::ZERO, Frame::from_vec(vec![0; MAX_FRAME + 1]));
        assert_eq!(
            (a.counters().sent, a.counters().send_lost, a.counters().oversized),
            (2, 1, 1)
        );
        b.control().set_up(false);
        assert!(!a.is_up());
        assert!(b.recv(Nanos::ZERO).is_none());
        a.send(Nanos::ZERO, frame(3));
        a.control().set_up(true);
        assert!(b.recv(Nanos::ZERO).is_none());
        assert_eq!(a.counters().send_lost, 2);
    }
}
