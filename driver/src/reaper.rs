//! Destroying what a `Drop` let go of.
//!
//! A `Drop` can neither wait for firmware nor report an error. It hands the destroy commands over together with the
//! memory that the device may use until they are answered; the service thread executes them in order. Memory is freed
//! when firmware said yes. Otherwise it is kept until the function was reset or its IOMMU mappings are gone.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::cmdq::lock;
use crate::error::CommandError;
use crate::hca::Hca;
use crate::mem::DmaBuffer;

/// An object to destroy.
#[must_use = "an object to destroy does nothing until it is handed to the reaper"]
pub(crate) struct Destroy {
    /// For messages: "QP 0x49".
    pub(crate) what: String,
    /// The commands, in order, each a whole input; outputs are 16 bytes. All but the last may fail.
    pub(crate) commands: Vec<Vec<u8>>,
    /// What the device may access until the last command was answered.
    pub(crate) memory: Vec<Arc<DmaBuffer>>,
    /// What must not go before (parents, registrations); dropped afterwards, whether the commands succeeded or not.
    pub(crate) keep: Option<Box<dyn Any + Send>>,
    /// Told whether firmware destroyed the object, before `keep` is dropped.
    pub(crate) done: Option<Box<dyn FnOnce(bool) + Send>>,
}

impl std::fmt::Debug for Destroy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Destroy")
            .field("what", &self.what)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// What the reaper did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ReaperCounters {
    /// Objects that firmware destroyed.
    pub destroyed: u64,
    /// Objects that firmware did not destroy; their memory is kept until a reset.
    pub failed: u64,
    /// Objects that wait.
    pub waiting: u64,
    /// Buffers of objects that firmware did not destroy.
    pub kept_buffers: u64,
}

/// Objects that wait to be destroyed, and memory of those that could not be.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    queue: Mutex<VecDeque<Destroy>>,
    /// Held while destroying, so that the order is kept with several helpers.
    working: Mutex<()>,
    /// Objects whose commands were answered and whose `done` and `keep` are at work.
    settling: Mutex<usize>,
    settled: Condvar,
    kept: Mutex<Vec<Arc<DmaBuffer>>>,
    destroyed: AtomicU64,
    failed: AtomicU64,
}

impl Reaper {
    /// Takes an object over. Does not wait.
    pub(crate) fn submit(&self, destroy: Destroy) {
        lock(&self.queue).push_back(destroy);
    }

    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    pub(crate) fn counters(&self) -> ReaperCounters {
        ReaperCounters {
            destroyed: self.destroyed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            waiting: lock(&self.queue).len() as u64,
            kept_buffers: lock(&self.kept).len() as u64,
        }
    }

    /// Destroys all that waits, in the order in which it came.
    pub(crate) fn run(&self, hca: &Hca) {
        loop {
            let working = lock(&self.working);
            let next = lock(&self.queue).pop_front();
            let Some(destroy) = next else { return };
            let after = self.destroy(hca, destroy);
            let _settling = Settling::start(self);
            // Either may hand us more, and what is kept may be the last holder of the context, whose end runs us too.
            drop(working);
            after.settle();
        }
    }

    /// As [`Self::run`], and waits until nothing that was destroyed holds anything any more. Not to be called by what
    /// [`Destroy`] calls or drops.
    pub(crate) fn drain(&self, hca: &Hca) {
        loop {
            self.run(hca);
            let mut settling = lock(&self.settling);
            while *settling > 0 {
                settling = self
                    .settled
                    .wait(settling)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            drop(settling);
            if self.is_idle() {
                return;
            }
        }
    }

    fn destroy(&self, hca: &Hca, destroy: Destroy) -> After {
        let Destroy {
            what,
            commands,
            memory,
            keep,
            done,
        } = destroy;
        let mut result: Result<(), CommandError> = Ok(());
        for input in &commands {
            if let Err(error) = &result {
                log::debug!("{what}: {error}");
            }
            result = hca.exec_raw(input, &mut [0; 16]);
        }
        let destroyed = result.is_ok();
        match result {
            Ok(()) => {
                self.destroyed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                log::warn!("{what} was not destroyed, its memory is kept: {error}");
                self.failed.fetch_add(1, Ordering::Relaxed);
                memory.iter().for_each(|buffer| buffer.leak_on_drop());
                lock(&self.kept).extend(memory);
            }
        }
        After {
            destroyed,
            done,
            keep,
        }
    }

    /// The function was reset, so that the device no longer knows of the kept memory.
    pub(crate) fn free_kept(&self) {
        let kept = std::mem::take(&mut *lock(&self.kept));
        kept.iter().for_each(|buffer| buffer.free_on_drop());
    }
}

/// What happens once an object's commands were answered.
struct After {
    destroyed: bool,
    done: Option<Box<dyn FnOnce(bool) + Send>>,
    keep: Option<Box<dyn Any + Send>>,
}

/// An object is settling for as long as this lives.
struct Settling<'a>(&'a Reaper);

impl<'a> Settling<'a> {
    fn start(reaper: &'a Reaper) -> Self {
        *lock(&reaper.settling) += 1;
        Self(reaper)
    }
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        *lock(&self.0.settling) -= 1;
        self.0.settled.notify_all();
    }
}

impl After {
    fn settle(self) {
        if let Some(done) = self.done {
            done(self.destroyed);
        }
        drop(self.keep);
    }
}
