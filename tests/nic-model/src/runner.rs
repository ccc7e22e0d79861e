//! Who drives NICs: one engine thread for any number of them, or a caller step by step.
//!
//! ```text
//!   any thread: BAR write ──▶ queue of posted writes ─┐ wakes the engine if it sleeps
//!   any thread: BAR read, DMA map, reset … ─▶ lock ─┐ │
//!                                                   ▼ ▼
//!                            engine thread:  World { NICs, ports }  spins a moment, then sleeps until a
//!                                                                   write, a frame or a timer
//! ```
//! Posted writes of a device take effect in the order in which they were made, and before any later call on
//! that device returns: every call that takes the lock first applies what is queued.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;

use crate::clock::{Clock, Nanos};
use crate::device::ModelDevice;
use crate::link::Waker;
use crate::nic::Nic;

mod sleep;

use sleep::Sleeper;

/// Posted writes that wait for the engine, for each device; the writer does the engine's work when it is full.
const POSTED_WRITES: usize = 1024;
/// Turns of all NICs in one call of [`Runner::step`]: ends a step of NICs that keep each other busy.
const TURNS_IN_A_STEP: usize = 100_000;
/// The longest sleep: a bound for what a missed wake-up could cost.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Who calls the NICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drive {
    /// A thread of the runner, which spins this long without work before it sleeps.
    Thread {
        /// How long it spins.
        spin: Duration,
    },
    /// The thread that accesses a device, as far as the work goes without the time moving on; and
    /// [`Runner::step`].
    Caller,
}

impl Default for Drive {
    fn default() -> Drive {
        Drive::Thread {
            spin: Duration::from_micros(50),
        }
    }
}

/// Most bytes of a posted write: a piece of a BlueFlame burst, as a CPU that combines writes sends it.
pub(crate) const PIECE: usize = 64;

/// A write to BAR 0 of at most [`PIECE`] bytes that has not taken effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedWrite {
    pub offset: u64,
    pub len: u8,
    pub bytes: [u8; PIECE],
}

/// The NICs, behind the lock.
#[derive(Debug)]
struct World {
    nics: Vec<Nic>,
}

/// What the engine and the devices share.
pub(crate) struct Shared {
    world: Mutex<World>,
    clock: Arc<dyn Clock>,
    posted: Vec<ArrayQueue<PostedWrite>>,
    /// Threads that wait for the lock: the engine lets them in before it takes it again.
    waiting: AtomicUsize,
    drive: Drive,
    sleeper: Sleeper,
    stop: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("drive", &self.drive)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        // A panic of the engine is a bug in the model; what it left behind is still safe to use.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` on a NIC, after what was posted to it, and lets what follows from it happen.
    pub(crate) fn with<R>(&self, index: usize, f: impl FnOnce(&mut Nic, Nanos) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut world = self.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let now = self.clock.now();
        self.apply_posted(&mut world.nics[index], index, now);
        let result = f(&mut world.nics[index], now);
        self.settle(world);
        result
    }

    /// Queues a write to BAR 0.
    pub(crate) fn post(&self, index: usize, write: PostedWrite) {
        if self.posted[index].push(write).is_err() {
            // Full: the engine is behind, or sleeps. Order holds, since `with` applies the queue first.
            self.with(index, |nic, now| write.apply(nic, now));
            return;
        }
        match self.drive {
            // Pairs with the fence of the engine between "I sleep" and its last look at the queues.
            Drive::Thread { .. } => {
                fence(Ordering::SeqCst);
                self.sleeper.wake_if_asleep();
            }
            Drive::Caller => self.with(index, |_, _| ()),
        }
    }

    fn apply_posted(&self, nic: &mut Nic, index: usize, now: Nanos) -> bool {
        let mut worked = false;
        // No more than fit the queue, so that a writer can't keep the engine here.
        for _ in 0..POSTED_WRITES {
            let Some(write) = self.posted[index].pop() else {
                break;
            };
            write.apply(nic, now);
            worked = true;
        }
        worked
    }

    /// After a call from outside: the engine or the caller goes on.
    fn settle(&self, mut world: MutexGuard<'_, World>) {
        match self.drive {
            Drive::Thread { .. } => {
                drop(world);
                self.sleeper.wake_if_asleep();
            }
            Drive::Caller => {
                self.run_until_idle(&mut world);
            }
        }
    }

    /// Turns of all NICs at the present time until none has anything to do. False when they went on for too
    /// long.
    fn run_until_idle(&self, world: &mut World) -> bool {
        for _ in 0..TURNS_IN_A_STEP {
            if !self.turn(world) {
                return true;
            }
        }
        log::error!("the NICs did not come to rest within {TURNS_IN_A_STEP} turns");
        false
    }

    fn turn(&self, world: &mut World) -> bool {
        let now = self.clock.now();
        let mut worked = false;
        for (index, nic) in world.nics.iter_mut().enumerate() {
            worked |= self.apply_posted(nic, index, now);
            worked |= nic.poll(now);
        }
        worked
    }

    fn next_timeout(world: &mut World) -> Option<Nanos> {
        world.nics.iter_mut().filter_map(Nic::next_timeout).min()
    }

    /// The engine thread.
    fn run(&self, spin: Duration) {
        let mut idle_since = None;
        while !self.stop.load(Ordering::Acquire) {
            while self.waiting.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
            let mut world = self.lock();
            if self.turn(&mut world) {
                idle_since = None;
                continue;
            }
            let timeout = Self::next_timeout(&mut world);
            drop(world);
            let now = self.clock.now();
            let since = *idle_since.get_or_insert(now);
            if now.since(since) < spin || timeout.is_some_and(|at| at <= now) {
                std::hint::spin_loop();
                continue;
            }
            self.sleep(timeout.map(|at| at.since(now)));
            idle_since = None;
        }
    }

    fn sleep(&self, timeout: Option<Duration>) {
        self.sleeper.prepare();
        fence(Ordering::SeqCst);
        let nothing_new = self.posted.iter().all(ArrayQueue::is_empty)
            && self.waiting.load(Ordering::SeqCst) == 0
            && !self.stop.load(Ordering::SeqCst);
        if nothing_new {
            self.sleeper
                .sleep(timeout.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP));
        }
        self.sleeper.awake();
    }
}

impl PostedWrite {
    fn apply(self, nic: &mut Nic, now: Nanos) {
        let len = usize::from(self.len).min(self.bytes.len());
        // The offset was checked when the write was posted.
        if let Err(error) = nic.bar_write(now, self.offset, &self.bytes[..len]) {
            log::debug!("posted write lost: {error}");
        }
    }
}

/// Drives NICs until it is dropped.
#[derive(Debug)]
pub struct Runner {
    shared: Arc<Shared>,
    engine: Option<JoinHandle<()>>,
}

impl Runner {
    /// Takes over NICs, whose ports may be joined with each other or lead elsewhere.
    ///
    /// # Errors
    /// The system gives no thread or no eventfd.
    pub fn new(nics: Vec<Nic>, clock: Arc<dyn Clock>, drive: Drive) -> std::io::Result<Runner> {
        let fds = nics.iter().flat_map(Nic::port_fds).collect();
        let posted = nics.iter().map(|_| ArrayQueue::new(POSTED_WRITES)).collect();
        let shared = Arc::new(Shared {
            world: Mutex::new(World { nics }),
            clock,
            posted,
            waiting: AtomicUsize::new(0),
            drive,
            sleeper: Sleeper::new(fds)?,
            stop: AtomicBool::new(false),
        });
        for nic in &mut shared.lock().nics {
            let engine = Arc::downgrade(&shared);
            let waker: Waker = Arc::new(move || {
                if let Some(engine) = engine.upgrade() {
                    engine.sleeper.wake_if_asleep();
                }
            });
            nic.ports().for_each(|port| port.set_waker(Some(waker.clone())));
        }
        let engine = match drive {
            Drive::Thread { spin } => {
                let shared = Arc::clone(&shared);
                let thread = std::thread::Builder::new().name("nic-model".into());
                Some(thread.spawn(move || shared.run(spin))?)
            }
            Drive::Caller => None,
        };
        Ok(Runner { shared, engine })
    }

    /// NIC `index` as a PCI device; `None` past the last.
    pub fn device(&self, index: usize) -> Option<Arc<ModelDevice>> {
        self.shared.posted.get(index)?;
        Some(Arc::new(ModelDevice::new(Arc::clone(&self.shared), index)))
    }

    /// Calls `f` on NIC `index` between two turns; `None` past the last.
    pub fn with_nic<R>(&self, index: usize, f: impl FnOnce(&mut Nic) -> R) -> Option<R> {
        self.shared.posted.get(index)?;
        Some(self.shared.with(index, |nic, _| f(nic)))
    }

    /// Turns of all NICs at the present time until none has anything to do. For [`Drive::Caller`]; with an
    /// engine thread it helps it. False when the NICs did not come to rest.
    pub fn step(&self) -> bool {
        let mut world = self.shared.lock();
        self.shared.run_until_idle(&mut world)
    }

    /// When the next thing is due that needs no access and no frame from outside.
    pub fn next_timeout(&self) -> Option<Nanos> {
        Shared::next_timeout(&mut self.shared.lock())
    }

    /// Ends the engine. The devices stay, and answer calls, but nothing moves by itself any more.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.sleeper.wake();
        if let Some(engine) = self.engine.take()
            && engine.join().is_err()
        {
            log::error!("the engine thread of the device model panicked");
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
