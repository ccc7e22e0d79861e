//! A context's events: completion vectors, and what happens without having been asked for.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use ferroce_hw_regs::ids::Eqn;

use super::Context;
use crate::bringup::create_completion_eq;
use crate::cmdq::lock;
use crate::eq::{EventVector, Waited};
use crate::error::{DeviceFailure, StepError};
use crate::events::{AsyncEvent, CompCounter, Handler, Object};

/// How often a thread that waits for long looks for what it was not told of.
const IDLE_RECHECK: Duration = Duration::from_secs(1);

impl Context {
    // Completion vectors.

    /// Completion vectors that CQs can be spread over.
    #[must_use]
    pub fn completion_vectors(&self) -> usize {
        self.completion_eqns.len()
    }

    /// The event queue of a completion vector, for a CQ's context. It is created when it is first asked for.
    ///
    /// # Errors
    ///
    /// There is no such vector, or CREATE_EQ failed.
    pub fn comp_eqn(&self, vector: usize) -> Result<Eqn, StepError> {
        let Some(slot) = self.completion_eqns.get(vector) else {
            let limit = format!("below {}", self.completion_eqns.len());
            return Err(StepError::Value {
                what: "completion vector",
                value: vector as u64,
                limit,
            });
        };
        let mut eqn = lock(slot);
        if let Some(eqn) = *eqn {
            return Ok(eqn);
        }
        let index = self.msix_index(vector);
        let created = create_completion_eq(
            &self.hca,
            &self.uar,
            &self.caps,
            index,
            self.completion_eq_log_size,
        )?;
        *eqn = Some(created);
        Ok(created)
    }

    fn msix_index(&self, vector: usize) -> usize {
        if self.hca.vectors().len() == 1 {
            0
        } else {
            vector + 1
        }
    }

    fn vector(&self, vector: usize) -> Option<&EventVector> {
        self.hca.vectors().get(self.msix_index(vector))
    }

    /// Waits until `counter` is no longer at `seen`: whether it is, or the deadline came first.
    ///
    /// To wait for a CQ without missing a completion: read the counter, arm the CQ, poll it once more, then wait.
    ///
    /// # Errors
    ///
    /// The device can't be used any more.
    pub fn wait_completion(
        &self,
        vector: usize,
        counter: &CompCounter,
        seen: u64,
        deadline: Option<Instant>,
    ) -> Result<bool, DeviceFailure> {
        let Some(vector) = self.vector(vector) else {
            return Ok(false);
        };
        let waited = vector.wait(&self.hca, deadline, &mut || counter.count() != seen);
        self.waited(waited)
    }

    /// Waits until `ready` holds: whether it does, or the deadline came first. `ready` is asked often, must be cheap, and take
    /// no lock that is held while the vector is woken ([`Context::wake`]).
    pub(crate) fn wait_until(
        &self,
        vector: usize,
        deadline: Option<Instant>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<bool, DeviceFailure> {
        let Some(vector) = self.vector(vector) else {
            return Ok(false);
        };
        let waited = vector.wait_rechecking(&self.hca, deadline, IDLE_RECHECK, ready);
        self.waited(waited)
    }

    /// Makes everybody who waits on a completion vector look again at what they wait for.
    pub(crate) fn wake(&self, vector: usize) {
        if let Some(vector) = self.vector(vector) {
            vector.wake();
        }
    }

    fn waited(&self, waited: Waited) -> Result<bool, DeviceFailure> {
        match waited {
            Waited::Ready => Ok(true),
            Waited::Deadline => Ok(false),
            Waited::Dead => Err(self.hca.failure().cloned().unwrap_or(DeviceFailure::Unresponsive)),
        }
    }

    /// What becomes readable when a completion vector has events, for the program's own event loop. Not to be read from:
    /// [`Context::poll_completion_events`] takes the events in and asks for the next.
    #[must_use]
    pub fn completion_fd(&self, vector: usize) -> Option<BorrowedFd<'_>> {
        self.vector(vector).map(EventVector::eventfd)
    }

    /// Takes a completion vector's events in without waiting; whether there were any.
    pub fn poll_completion_events(&self, vector: usize) -> bool {
        self.vector(vector).is_some_and(|vector| vector.poll(&self.hca))
    }

    // Asynchronous events.

    /// The next asynchronous event, if there is one.
    #[must_use]
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.hca.events().next()
    }

    /// Waits for an asynchronous event until the deadline.
    #[must_use]
    pub fn wait_event(&self, deadline: Instant) -> Option<AsyncEvent> {
        let events = self.hca.events();
        loop {
            // A device that has failed may have left events.
            let waited = self.wait_async(deadline, &mut || !events.is_empty());
            let event = events.next();
            // Another thread may have been quicker.
            if event.is_some() || !waited.unwrap_or(false) {
                return event;
            }
        }
    }

    /// Waits until `ready` holds, which an asynchronous event brings about, or the deadline has come.
    pub(super) fn wait_async(
        &self,
        deadline: Instant,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<bool, DeviceFailure> {
        let Some(vector) = self.hca.vectors().first() else {
            return Ok(false);
        };
        let waited = vector.wait(&self.hca, Some(deadline), ready);
        self.waited(waited)
    }

    /// What is readable while asynchronous events wait, for the program's own event loop. Not to be read from.
    #[must_use]
    pub fn events_fd(&self) -> Option<BorrowedFd<'_>> {
        self.hca.events().fd()
    }

    /// Takes asynchronous events in, answers page requests and destroys what was dropped, without waiting for events. For
    /// programs without a service thread.
    pub fn process_events(&self) {
        if let Some(vector) = self.hca.vectors().first() {
            vector.poll(&self.hca);
        }
        self.hca.reaper().run(&self.hca);
    }

    /// Calls `handler` for each event of an object, in the thread that takes events in.
    pub(crate) fn handle_events(&self, object: Object, handler: Handler) {
        self.hca.events().handle(object, handler);
    }

    /// Forgets an object's handler.
    pub(crate) fn forget_events(&self, object: Object) {
        self.hca.events().forget(object);
    }

    /// The counter of a CQ's completion events, which counts from the first call of this on.
    #[must_use]
    pub fn count_completions(&self, cqn: u32) -> CompCounter {
        self.hca.events().count_completions(cqn)
    }

    /// Stops counting a CQ's completion events.
    pub(crate) fn forget_completions(&self, cqn: u32) {
        self.hca.events().forget_completions(cqn);
    }
}
