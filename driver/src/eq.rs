//! Event queues: rings that the device writes, and the MSI-X vectors that announce them.
//!
//! ```text
//!  device ──▶ EqRing (entries in host memory) ─┐
//!         ──▶ MSI-X ──▶ eventfd ───────────────┴▶ EventVector: one thread at a time pumps, the others wait for it
//! ```
//! Whoever waits for something may be the pump. The first one is (the leader): it sleeps on the eventfd, reads the rings,
//! hands out what it found and arms again; the others (followers) sleep on a condition variable and look at their own
//! condition after each round. A leader that is done hands over to a follower. Rings are armed with the consumer index
//! after they were read, and the device raises the vector at once if it has written past that index, so that no event
//! falls between reading and sleeping. Should an interrupt be lost all the same, everybody looks again every
//! [`RECHECK`].
//!
//! Source: PRM "Event queues", "EQ doorbells".

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ferroce_hw_regs::eqe::{Eqe, OWNER_OFFSET};
use ferroce_hw_regs::ids::Eqn;
use ferroce_hw_regs::uar::{EQ_ARM, EQ_UPDATE, eq_doorbell};
use zerocopy::{FromZeros, IntoBytes};

use crate::barrier;
use crate::cmdq::lock;
use crate::fd::{EventFd, wait_readable};
use crate::hca::Hca;
use crate::mem::{DmaBuffer, DmaError};
use crate::mmio::Mmio;

/// Bytes of an entry.
pub(crate) const EQE_BYTES: usize = size_of::<Eqe>();
/// Most entries read from one ring before the others get their turn. Source: Linux mlx5.
const BATCH: usize = 128;
/// How often a waiting thread looks again without having been woken.
pub(crate) const RECHECK: Duration = Duration::from_millis(100);

/// A ring of event queue entries and the driver's place in it.
///
/// # Invariants
/// `buffer` holds `1 << log_size` entries.
#[derive(Debug)]
pub(crate) struct EqRing {
    buffer: DmaBuffer,
    log_size: u8,
    /// Entries read so far; the device sees the low 24 bits.
    ci: u32,
    eqn: Eqn,
    uar: Mmio,
    armed: bool,
}

/// What an event queue's buffer looks like before the device has written to it.
///
/// # Errors
/// No entry fits in the buffer.
pub(crate) fn prepare(buffer: &DmaBuffer, log_size: u8) -> Result<(), DmaError> {
    // The owner bit of the first lap is 0, so that 1 marks entries that were never written.
    (0..1usize << log_size).try_for_each(|entry| buffer.write_u8(entry * EQE_BYTES + OWNER_OFFSET, 1))
}

impl EqRing {
    /// A ring over a [`prepare`]d buffer of a queue that firmware has created; not armed. `uar` is the queue's UAR page.
    pub(crate) fn new(buffer: DmaBuffer, log_size: u8, eqn: Eqn, uar: Mmio) -> Self {
        Self {
            buffer,
            log_size,
            ci: 0,
            eqn,
            uar,
            armed: false,
        }
    }

    pub(crate) fn eqn(&self) -> Eqn {
        self.eqn
    }

    /// The next entry, if the device has written it.
    pub(crate) fn poll(&mut self) -> Option<Eqe> {
        let index = (self.ci & ((1 << self.log_size) - 1)) as usize;
        let at = index * EQE_BYTES;
        let owner = self.buffer.read_u8(at + OWNER_OFFSET).ok()?;
        if u32::from(owner & 1) != self.ci >> self.log_size & 1 {
            return None;
        }
        barrier::after_ownership();
        let mut eqe = Eqe::new_zeroed();
        self.buffer.read(at, eqe.as_mut_bytes()).ok()?;
        self.ci = self.ci.wrapping_add(1);
        // The device raises the vector for the first entry after an arm; so this one has used it up.
        self.armed = false;
        Some(eqe)
    }

    /// Tells the device how far we read, and asks for an interrupt at the next entry (or at once, if there is one).
    pub(crate) fn arm(&mut self) {
        barrier::before_doorbell();
        self.uar.write32(EQ_ARM, eq_doorbell(self.eqn, self.ci));
        self.armed = true;
    }

    /// Tells the device how far we read.
    fn update(&mut self) {
        barrier::before_doorbell();
        self.uar.write32(EQ_UPDATE, eq_doorbell(self.eqn, self.ci));
    }
}

/// An MSI-X vector, the event queues that raise it, and the threads that wait for it.
#[derive(Debug)]
pub(crate) struct EventVector {
    eventfd: EventFd,
    /// Wakes the leader for another reason than an interrupt.
    kick: EventFd,
    rings: Mutex<Vec<EqRing>>,
    /// Whether some thread is the leader.
    led: Mutex<bool>,
    changed: Condvar,
    interrupts: bool,
}

/// How waiting ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waited {
    /// The condition holds.
    Ready,
    /// The deadline came first.
    Deadline,
    /// The device can't be used any more.
    Dead,
}

impl EventVector {
    /// A vector without queues. Without `interrupts` the rings are polled and never armed.
    pub(crate) fn new(interrupts: bool) -> std::io::Result<Self> {
        Ok(Self {
            eventfd: EventFd::new()?,
            kick: EventFd::new()?,
            rings: Mutex::default(),
            led: Mutex::new(false),
            changed: Condvar::new(),
            interrupts,
        })
    }

    /// What the device signals.
    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Takes a queue in, and arms it.
    pub(crate) fn add(&self, mut ring: EqRing) {
        if self.interrupts {
            ring.arm();
        }
        lock(&self.rings).push(ring);
    }

    /// Takes a queue back in as it was.
    pub(crate) fn put_back(&self, ring: EqRing) {
        lock(&self.rings).push(ring);
    }

    /// Takes a queue out: it is no longer read or armed.
    pub(crate) fn remove(&self, eqn: Eqn) -> Option<EqRing> {
        let mut rings = lock(&self.rings);
        let at = rings.iter().position(|ring| ring.eqn == eqn)?;
        Some(rings.remove(at))
    }

    /// Keeps the queues' memory after they are dropped: the device may still write to them.
    pub(crate) fn keep_memory(&self) {
        lock(&self.rings)
            .iter()
            .for_each(|ring| ring.buffer.leak_on_drop());
    }

    /// Numbers of its queues.
    pub(crate) fn eqns(&self) -> Vec<Eqn> {
        lock(&self.rings).iter().map(EqRing::eqn).collect()
    }

    /// Makes everybody who waits look at their conditions again.
    pub(crate) fn wake(&self) {
        self.kick.signal();
        drop(lock(&self.led));
        self.changed.notify_all();
    }

    /// Reads all rings once, without waiting, for a thread that does not wait on the vector. Whether there was anything.
    pub(crate) fn poll(&self, hca: &Hca) -> bool {
        let busy = self.pump(hca);
        if busy {
            // The leader may be what we found something for, and it sleeps on an eventfd that we have drained.
            self.kick.signal();
        }
        busy
    }

    fn pump(&self, hca: &Hca) -> bool {
        let rings = match self.rings.try_lock() {
            Ok(rings) => rings,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is at it and will notify.
            Err(TryLockError::WouldBlock) => return false,
        };
        let busy = self.read_rings(hca, rings);
        hca.pages().advance(hca);
        if busy {
            drop(lock(&self.led));
            self.changed.notify_all();
        }
        busy
    }

    fn read_rings(&self, hca: &Hca, mut rings: MutexGuard<'_, Vec<EqRing>>) -> bool {
        let interrupted = self.interrupts && self.eventfd.drain();
        let mut busy = false;
        for ring in rings.iter_mut() {
            let mut count = 0;
            while count < BATCH
                && let Some(eqe) = ring.poll()
            {
                hca.dispatch(&eqe);
                count += 1;
            }
            busy |= count > 0;
            if self.interrupts && (!ring.armed || interrupted && count == 0) {
                ring.arm();
            } else if !self.interrupts && count > 0 {
                ring.update();
            }
        }
        busy
    }

    /// Waits until `ready` holds, pumping if nobody else does.
    ///
    /// `ready` is asked often, by this thread, and must be cheap and take no lock that is held while the vector is
    /// woken.
    pub(crate) fn wait(
        &self,
        hca: &Hca,
        deadline: Option<Instant>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Waited {
        self.wait_rechecking(hca, deadline, RECHECK, ready)
    }

    /// As [`Self::wait`], looking again every `recheck` without having been woken.
    pub(crate) fn wait_rechecking(
        &self,
        hca: &Hca,
        deadline: Option<Instant>,
        recheck: Duration,
        ready: &mut dyn FnMut() -> bool,
    ) -> Waited {
        let mut led = lock(&self.led);
        loop {
            if ready() {
                return Waited::Ready;
            }
            if hca.failure().is_some() {
                return Waited::Dead;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Waited::Deadline;
            }
            if !*led {
                break;
            }
            let slice = deadline.map_or(recheck, |deadline| recheck.min(deadline - now));
            led = self
                .changed
                .wait_timeout(led, slice)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *led = true;
        drop(led);
        let _leader = Leader(self);
        self.lead(hca, deadline, recheck, ready)
    }

    fn lead(
        &self,
        hca: &Hca,
        deadline: Option<Instant>,
        recheck: Duration,
        ready: &mut dyn FnMut() -> bool,
    ) -> Waited {
        let mut pause = Duration::from_micros(20);
        loop {
            let busy = self.pump(hca);
            if ready() {
                return Waited::Ready;
            }
            hca.check_gone();
            if hca.failure().is_some() {
                return Waited::Dead;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Waited::Deadline;
            }
            if busy {
                pause = Duration::from_micros(20);
                continue;
            }
            let slice = if self.interrupts {
                recheck
            } else {
                pause.min(recheck)
            };
            let until = deadline.map_or(now + slice, |deadline| deadline.min(now + slice));
            wait_readable(
                [self.eventfd.as_fd(), self.kick.as_fd()]
                    .into_iter()
                    .chain(hca.gone_fd()),
                until,
            );
            self.kick.drain();
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }
}

/// Gives the lead back, whatever happens.
struct Leader<'a>(&'a EventVector);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        *lock(&self.0.led) = false;
        self.0.changed.notify_all();
    }
}
