//! A bad wire: loses, duplicates, reorders, corrupts and delays frames, by seed.
//!
//! What happens to the n-th frame depends on the seed and on n alone, so that a run can be repeated. Faults are
//! put on what the wrapped port sends. For both directions wrap both ends, or, where the other end is not ours, put faults on
//! what comes as well ([`FaultPort::with_received`]).

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{LinkError, Port, PortCounters, Waker};
use crate::clock::Nanos;
use crate::wire::Frame;

/// How bad the wire is. Fractions are of all frames, 0 to 1, and independent of each other.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Faults {
    /// Where the randomness starts.
    pub seed: u64,
    /// Fraction that is lost.
    pub loss: f64,
    /// Fraction that arrives twice.
    pub duplicate: f64,
    /// Fraction that is overtaken by the next 1 to [`Faults::reorder_distance`] frames.
    pub reorder: f64,
    /// Fraction in which 1 to 3 bits are flipped (and Ethernet's check sequence did not notice).
    pub corrupt: f64,
    /// Fraction of the frames that take part in ECN that is marked "congestion experienced", as a congested switch
    /// does.
    pub mark: f64,
    /// Fraction that is late by up to [`Faults::delay_max`].
    pub delay: f64,
    /// Most frames that overtake a reordered one.
    pub reorder_distance: u64,
    /// Longest that a reordered frame waits for others to overtake it.
    pub reorder_wait: Duration,
    /// Longest delay.
    pub delay_max: Duration,
}

impl Default for Faults {
    /// A good wire.
    fn default() -> Faults {
        Faults {
            seed: 0,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            mark: 0.0,
            delay: 0.0,
            reorder_distance: 4,
            reorder_wait: Duration::from_micros(100),
            delay_max: Duration::from_millis(1),
        }
    }
}

impl Faults {
    /// Whether nothing happens to any frame.
    fn are_none(&self) -> bool {
        self.fractions().iter().all(|(_, fraction)| *fraction == 0.0)
    }

    fn fractions(&self) -> [(&'static str, f64); 6] {
        [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("mark", self.mark),
            ("delay", self.delay),
        ]
    }

    /// Checks the fractions.
    ///
    /// # Errors
    /// [`LinkError::Fraction`] names the one that is not from 0 to 1.
    pub fn validate(&self) -> Result<(), LinkError> {
        for (what, value) in self.fractions() {
            if !(0.0..=1.0).contains(&value) {
                return Err(LinkError::Fraction { what, value });
            }
        }
        Ok(())
    }

    /// Whether nothing will happen to any frame.
    pub fn is_none(&self) -> bool {
        self.are_none()
    }
}

/// What the bad wire did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounters {
    /// Frames that it was given.
    pub frames: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames held back for others to overtake.
    pub reordered: u64,
    /// Frames with flipped bits.
    pub corrupted: u64,
    /// Frames marked "congestion experienced".
    pub marked: u64,
    /// Frames made late.
    pub delayed: u64,
}

impl fmt::Display for FaultCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, of which {} lost, {} doubled, {} overtaken, {} corrupted, {} marked, {} late",
            self.frames,
            self.lost,
            self.duplicated,
            self.reordered,
            self.corrupted,
            self.marked,
            self.delayed
        )
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same for ever, so that a printed seed keeps its meaning.
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with probability `fraction`.
    fn chance(&mut self, fraction: f64) -> bool {
        // 53 bits make a number in [0, 1).
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        unit < fraction
    }

    /// A number below `limit`, or 0 when that is 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or(0)
    }
}

/// A frame that is held back.
#[derive(Debug)]
struct Held {
    /// Goes out at this time,
    due: Nanos,
    /// or when the port has been given this many frames.
    after: u64,
    frame: Frame,
}

/// One direction of a bad wire.
#[derive(Debug)]
struct Way {
    faults: Faults,
    counters: FaultCounters,
    /// In the order in which they were held back.
    held: Vec<Held>,
}

/// Most frames held back; when there are more the oldest goes on.
const MAX_HELD: usize = 1024;

impl Way {
    fn new(faults: Faults) -> Result<Way, LinkError> {
        faults.validate()?;
        Ok(Way {
            faults,
            counters: FaultCounters::default(),
            held: Vec::new(),
        })
    }

    /// Whether frames go on as they come.
    fn is_good(&self) -> bool {
        self.faults.are_none() && self.held.is_empty()
    }

    fn hold(&mut self, due: Nanos, after: u64, frame: &Frame, on: &mut impl FnMut(Frame)) {
        // The host may change or take away its memory while the frame waits; a frame that can't be read any
        // more is lost.
        let Ok(frame) = frame.flatten() else {
            self.counters.lost += 1;
            return;
        };
        if self.held.len() >= MAX_HELD {
            on(self.held.remove(0).frame);
        }
        self.held.push(Held { due, after, frame });
    }

    /// Gives what has waited long enough to `on`.
    fn release(&mut self, now: Nanos, on: &mut impl FnMut(Frame)) {
        if self.held.is_empty() {
            return;
        }
        let frames = self.counters.frames;
        let (mut out, kept): (Vec<_>, Vec<_>) = self
            .held
            .drain(..)
            .partition(|h| h.due <= now || h.after <= frames);
        self.held = kept;
        out.sort_by_key(|h| h.due);
        for held in out {
            on(held.frame);
        }
    }

    /// Flips 1 to 3 bits; `None` when the frame can't be read any more.
    fn corrupt(frame: &Frame, random: &mut Random) -> Option<Frame> {
        let mut bytes = frame.to_bytes().ok()?;
        for _ in 0..1 + random.below(3) {
            let bit = random.below(bytes.len() as u64 * 8);
            if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
        Some(Frame::from_vec(bytes))
    }

    /// Lets one frame suffer, and gives `on` what is due then.
    fn pass(&mut self, now: Nanos, frame: Frame, on: &mut impl FnMut(Frame)) {
        if self.suffer(now, frame, on).is_none() {
            self.counters.lost += 1;
        }
        self.release(now, on);
    }

    /// `None` when the frame is lost.
    fn suffer(&mut self, now: Nanos, mut frame: Frame, on: &mut impl FnMut(Frame)) -> Option<()> {
        let Faults {
            seed,
            loss,
            duplicate,
            reorder,
            corrupt,
            delay,
            ..
        } = self.faults;
        let mut random = Random(seed ^ self.counters.frames.wrapping_mul(0xd6e8_feb8_6659_fd93));
        // The order of the draws is part of what a seed means.
        let [lost, twice, overtaken, corrupted, late] =
            [loss, duplicate, reorder, corrupt, delay].map(|fraction| random.chance(fraction));
        // A stream of its own, so that marks leave the other faults of a seed as they are.
        let marked = Random(random.0 ^ 0x5851_f42d_4c95_7f2d).chance(self.faults.mark);
        self.counters.frames += 1;
        if lost {
            return None;
        }
        if marked {
            self.counters.marked += u64::from(frame.mark_congestion().ok()?);
        }
        if corrupted {
            frame = Self::corrupt(&frame, &mut random)?;
            self.counters.corrupted += 1;
        }
        if twice {
            self.counters.duplicated += 1;
            let after = self.counters.frames + random.below(self.faults.reorder_distance + 1);
            self.hold(now + self.faults.reorder_wait, after, &frame, on);
        }
        if late {
            self.counters.delayed += 1;
            let longest = u64::try_from(self.faults.delay_max.as_nanos()).unwrap_or(u64::MAX);
            let by = Duration::from_nanos(random.below(longest) + 1);
            self.hold(now + by, u64::MAX, &frame, on);
        } else if overtaken {
            self.counters.reordered += 1;
            let after = self.counters.frames + 1 + random.below(self.faults.reorder_distance);
            self.hold(now + self.faults.reorder_wait, after, &frame, on);
        } else {
            on(frame);
        }
        Some(())
    }

    /// When the first of what is held back is due.
    fn next_event(&self) -> Option<Nanos> {
        self.held.iter().map(|h| h.due).min()
    }
}

/// A port whose frames suffer: those that it sends and, if asked, those that come. What was done to them goes to the log at
/// its end.
#[derive(Debug)]
pub struct FaultPort<P> {
    inner: P,
    sent: Way,
    received: Option<Way>,
    /// Came through, and were not taken yet.
    ready: VecDeque<Frame>,
}

impl<P> Drop for FaultPort<P> {
    fn drop(&mut self) {
        let ways = [("sent", Some(&self.sent)), ("received", self.received.as_ref())];
        for (which, way) in ways {
            if let Some(way) = way.filter(|way| !way.faults.are_none()) {
                log::info!("bad wire, frames {which}: {}", way.counters);
            }
        }
    }
}

impl<P: Port> FaultPort<P> {
    /// Puts faults on what `inner` sends.
    ///
    /// # Errors
    /// As for [`Faults::validate`].
    pub fn new(inner: P, faults: Faults) -> Result<FaultPort<P>, LinkError> {
        Ok(FaultPort {
            inner,
            sent: Way::new(faults)?,
            received: None,
            ready: VecDeque::new(),
        })
    }

    /// Puts faults on what comes, too: for a wire whose other end is not ours.
    ///
    /// # Errors
    /// As for [`Faults::validate`].
    pub fn with_received(mut self, faults: Faults) -> Result<FaultPort<P>, LinkError> {
        self.received = Some(Way::new(faults)?);
        Ok(self)
    }

    /// What was done so far to what is sent.
    pub fn fault_counters(&self) -> FaultCounters {
        self.sent.counters
    }

    /// What was done so far to what came; all 0 where nothing is done to it.
    pub fn received_fault_counters(&self) -> FaultCounters {
        self.received.as_ref().map(|way| way.counters).unwrap_or_default()
    }

    /// Changes how bad the wire is to what is sent, from the next frame on; frames that are held back stay so.
    /// Counting goes on, so that the n-th frame's fate under a seed does not depend on when this was called.
    ///
    /// # Errors
    /// As for [`Faults::validate`]; nothing changes then.
    pub fn set_faults(&mut self, faults: Faults) -> Result<(), LinkError> {
        faults.validate()?;
        self.sent.faults = faults;
        Ok(())
    }

    /// The port inside.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Does what is due on the way out.
    fn release(&mut self, now: Nanos) {
        self.sent.release(now, &mut |frame| self.inner.send(now, frame));
    }
}

impl<P: Port> Port for FaultPort<P> {
    fn send(&mut self, now: Nanos, frame: Frame) {
        self.sent
            .pass(now, frame, &mut |frame| self.inner.send(now, frame));
    }

    fn recv(&mut self, now: Nanos) -> Option<Frame> {
        self.release(now);
        let Some(way) = &mut self.received else {
            return self.inner.recv(now);
        };
        let ready = &mut self.ready;
        way.release(now, &mut |frame| ready.push_back(frame));
        while ready.is_empty() {
            let frame = self.inner.recv(now)?;
            way.pass(now, frame, &mut |frame| ready.push_back(frame));
        }
        ready.pop_front()
    }

    fn send_all(&mut self, now: Nanos, frames: &mut VecDeque<Frame>) {
        if self.sent.is_good() {
            self.sent.counters.frames += frames.len() as u64;
            return self.inner.send_all(now, frames);
        }
        while let Some(frame) = frames.pop_front() {
            self.send(now, frame);
        }
    }

    fn recv_into(&mut self, now: Nanos, max: usize, into: &mut VecDeque<Frame>) {
        if self.received.is_none() {
            self.release(now);
            return self.inner.recv_into(now, max, into);
        }
        for _ in 0..max {
            let Some(frame) = self.recv(now) else {
                break;
            };
            into.push_back(frame);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        let ready = (!self.ready.is_empty()).then_some(Nanos::ZERO);
        let held = self.received.as_ref().and_then(Way::next_event);
        [ready, held, self.sent.next_event(), self.inner.next_event()]
            .into_iter()
            .flatten()
            .min()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn set_waker(&mut self, waker: Option<Waker>) {
        self.inner.set_waker(waker);
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// What to do with a frame that is about to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Send it.
    Pass,
    /// Lose it.
    Drop,
}

/// A port that asks about each outgoing frame: for tests that lose the first of each kind, or all ACKs for a
/// while.
pub struct FilterPort<P, F> {
    inner: P,
    filter: F,
    dropped: u64,
}

impl<P: Port, F: FnMut(Nanos, &Frame) -> Verdict + Send> FilterPort<P, F> {
    /// Asks `filter` before `inner` sends.
    pub fn new(inner: P, filter: F) -> FilterPort<P, F> {
        FilterPort {
            inner,
            filter,
            dropped: 0,
        }
    }

    /// Frames that the filter has dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl<P: std::fmt::Debug, F> std::fmt::Debug for FilterPort<P, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilterPort")
            .field("inner", &self.inner)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

impl<P: Port, F: FnMut(Nanos, &Frame) -> Verdict + Send> Port for FilterPort<P, F> {
    fn send(&mut self, now: Nanos, frame: Frame) {
        match (self.filter)(now, &frame) {
            Verdict::Pass => self.inner.send(now, frame),
            Verdict::Drop => self.dropped += 1,
        }
    }

    fn recv(&mut self, now: Nanos) -> Option<Frame> {
        self.inner.recv(now)
    }

    fn next_event(&self) -> Option<Nanos> {
        self.inner.next_event()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn set_waker(&mut self, waker: Option<Waker>) {
        self.inner.set_waker(waker);
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::cable::{CablePort, cable};

    const N: u32 = 4000;

    fn numbered(n: u32) -> Frame {
        let mut bytes = vec![0; 60];
        bytes[56..].copy_from_slice(&n.to_be_bytes());
        Frame::from_vec(bytes)
    }

    fn number(frame: &Frame) -> u32 {
        let bytes = frame.to_bytes().unwrap();
        u32::from_be_bytes([bytes[56], bytes[57], bytes[58], bytes[59]])
    }

    /// Sends `N` numbered frames, one each microsecond, then lets all that waits come out.
    fn run(faults: Faults) -> (Vec<Vec<u8>>, FaultCounters) {
        let (a, mut b) = cable(2 * N as usize);
        let mut port = FaultPort::new(a, faults).unwrap();
        for n in 0..N {
            port.send(Nanos(u64::from(n) * 1000), numbered(n));
        }
        while let Some(at) = port.next_event() {
            assert!(port.recv(at).is_none());
            assert!(port.next_event().is_none_or(|next| next > at));
        }
        let arrived = std::iter::from_fn(|| b.recv(Nanos::ZERO)).map(|f| f.to_bytes().unwrap());
        (arrived.collect(), port.fault_counters())
    }

    #[test]
    fn a_good_wire_changes_nothing() {
        let (arrived, counters) = run(Faults::default());
        assert!(Faults::default().is_none());
        let sent: Vec<_> = (0..N).map(|n| numbered(n).to_bytes().unwrap()).collect();
        assert_eq!(arrived, sent);
        assert_eq!(
            counters,
            FaultCounters {
                frames: u64::from(N),
                ..FaultCounters::default()
            }
        );
    }

    #[test]
    fn counters_say_how_many_frames_suffered_what() {
        let counters = FaultCounters {
            frames: 7,
            lost: 1,
            duplicated: 2,
            reordered: 3,
            corrupted: 4,
            marked: 5,
            delayed: 6,
        };
        let said = "7, of which 1 lost, 2 doubled, 3 overtaken, 4 corrupted, 5 marked, 6 late";
        assert_eq!(counters.to_string(), said);
    }

    #[test]
    fn a_seed_gives_the_same_run_again_and_another_seed_another() {
        let bad = Faults {
            seed: 7,
            loss: 0.1,
            duplicate: 0.1,
            reorder: 0.1,
            corrupt: 0.1,
            delay: 0.1,
            ..Faults::default()
        };
        let first = run(bad);
        assert_eq!(run(bad), first);
        assert_ne!(run(Faults { seed: 8, ..bad }).0, first.0);
        let c = first.1;
        for (what, count) in [
            ("lost", c.lost),
            ("duplicated", c.duplicated),
            ("reordered", c.reordered),
            ("corrupted", c.corrupted),
            ("delayed", c.delayed),
        ] {
            assert!((250..550).contains(&count), "{count} {what} of {N}");
        }
        assert_eq!(first.0.len() as u64, c.frames - c.lost + c.duplicated);
    }

    #[test]
    fn single_faults_do_what_they_say() {
        let one = |f: fn(&mut Faults)| {
            let mut faults = Faults {
                seed: 3,
                ..Faults::default()
            };
            f(&mut faults);
            let (arrived, counters) = run(faults);
            let frames: Vec<u32> = arrived
                .iter()
                .map(|b| number(&Frame::from_vec(b.clone())))
                .collect();
            (frames, counters)
        };
        let (lossy, c) = one(|f| f.loss = 0.05);
        assert_eq!(lossy.len() as u64, u64::from(N) - c.lost);
        assert!(lossy.is_sorted() && c.lost > 0);
        let (mut twice, c) = one(|f| f.duplicate = 0.05);
        assert_eq!(twice.len() as u64, u64::from(N) + c.duplicated);
        twice.sort_unstable();
        twice.dedup();
        assert_eq!(twice.len() as u32, N);
        let (reordered, c) = one(|f| f.reorder = 0.05);
        assert!(!reordered.is_sorted() && c.reordered > 0);
        let shift = reordered
            .iter()
            .zip(0..)
            .map(|(&n, at): (&u32, u32)| n.abs_diff(at))
            .max()
            .unwrap();
        assert!((1..=8).contains(&shift), "moved by {shift}");
        let (all_lost, _) = one(|f| f.loss = 1.0);
        assert!(all_lost.is_empty());
        let (corrupt, c) = run(Faults {
            corrupt: 1.0,
            ..Faults::default()
        });
        assert_eq!(c.corrupted, u64::from(N));
        for (n, bytes) in corrupt.iter().enumerate() {
            let good = numbered(n as u32).to_bytes().unwrap();
            let flipped: u32 = bytes.iter().zip(&good).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert!(flipped <= 3);
        }
    }

    #[test]
    fn marks_are_put_on_frames_that_take_part_in_ecn_only() {
        let faults = Faults {
            seed: 11,
            mark: 0.25,
            ..Faults::default()
        };
        let (a, mut b) = cable(2 * N as usize);
        let mut port = FaultPort::new(a, faults).unwrap();
        for n in 0..N {
            // IPv4; every second one is ECT(0).
            let mut bytes = vec![0; 60];
            bytes[12..16].copy_from_slice(&[8, 0, 0x45, if n % 2 == 0 { 2 } else { 0 }]);
            port.send(Nanos(0), Frame::from_vec(bytes));
        }
        let marked = port.fault_counters().marked;
        assert!((400..600).contains(&marked), "{marked} of {}", N / 2);
        let ecn = std::iter::from_fn(|| b.recv(Nanos::ZERO)).map(|f| f.to_bytes().unwrap()[15]);
        let ecn: Vec<u8> = ecn.collect();
        assert!(ecn.iter().skip(1).step_by(2).all(|ecn| *ecn == 0));
        assert_eq!(ecn.iter().filter(|ecn| **ecn == 3).count() as u64, marked);
    }

    #[test]
    fn what_comes_suffers_too_where_it_is_asked_for() {
        let faults = Faults {
            seed: 5,
            loss: 0.05,
            duplicate: 0.05,
            reorder: 0.05,
            ..Faults::default()
        };
        // What the same faults do on the way out.
        let (sent, counters) = run(faults);
        let (a, mut b) = cable(2 * N as usize);
        let mut port = FaultPort::new(a, Faults::default())
            .unwrap()
            .with_received(faults)
            .unwrap();
        let mut arrived = Vec::new();
        for n in 0..N {
            let now = Nanos(u64::from(n) * 1000);
            b.send(now, numbered(n));
            arrived.extend(std::iter::from_fn(|| port.recv(now)));
        }
        while let Some(at) = port.next_event() {
            let mut some = VecDeque::new();
            port.recv_into(at, 3, &mut some);
            assert!(!some.is_empty(), "nothing is due at {at:?}");
            arrived.extend(some);
        }
        let arrived: Vec<_> = arrived.iter().map(|frame| frame.to_bytes().unwrap()).collect();
        assert_eq!(arrived, sent);
        assert_eq!(port.received_fault_counters(), counters);
        port.send(Nanos::ZERO, numbered(7));
        assert_eq!(
            number(&b.recv(Nanos::ZERO).unwrap()),
            7,
            "what is sent is on a good wire"
        );
        assert_eq!(port.fault_counters().lost, 0);
    }

    #[test]
    fn a_late_frame_comes_out_when_its_time_has_come() {
        let (a, mut b) = cable(8);
        let faults = Faults {
            delay: 1.0,
            ..Faults::default()
        };
        let mut port = FaultPort::new(a, faults).unwrap();
        port.send(Nanos(10), numbered(1));
        let due = port.next_event().unwrap();
        assert!(due > Nanos(10) && due <= Nanos(10) + faults.delay_max);
        assert!(port.recv(Nanos(due.get() - 1)).is_none());
        assert!(b.recv(due).is_none());
        assert!(port.recv(due).is_none());
        assert_eq!(number(&b.recv(due).unwrap()), 1);
        assert_eq!(port.next_event(), None);
    }

    #[test]
    fn fractions_outside_0_to_1_are_refused() {
        let make = |loss| {
            FaultPort::<CablePort>::new(
                cable(1).0,
                Faults {
                    loss,
                    ..Faults::default()
                },
            )
        };
        for loss in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                make(loss),
                Err(LinkError::Fraction { what: "loss", .. })
            ));
        }
        let mut port = make(1.0).unwrap();
        assert!(
            port.set_faults(Faults {
                delay: 2.0,
                ..Faults::default()
            })
            .is_err()
        );
    }

    #[test]
    fn a_filter_drops_what_it_is_told_to() {
        let (a, mut b) = cable(8);
        let mut port = FilterPort::new(a, |_, frame: &Frame| match number(frame) % 2 {
            0 => Verdict::Pass,
            _ => Verdict::Drop,
        });
        for n in 0..4 {
            port.send(Nanos::ZERO, numbered(n));
        }
        assert_eq!(port.dropped(), 2);
        let arrived: Vec<_> = std::iter::from_fn(|| b.recv(Nanos::ZERO))
            .map(|f| number(&f))
            .collect();
        assert_eq!(arrived, [0, 2]);
    }
}
