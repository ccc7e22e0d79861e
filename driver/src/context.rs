//! An open NIC: what everything else is made from.
//!
//! ```text
//!  Context ── Arc<Hca>: commands, events, pages, health ◀── service thread
//!     ├─ caps, firmware, adapter, GID table, UAR
//!     └─ held by every PD, MR, CQ, QP: the device is shut down after the last of them
//! ```

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferroce_firmware_iface::command::Command;

use crate::bringup::{self, Device, Progress, create_completion_eq, tear_down};
use crate::caps::Caps;
use crate::cmdq::{CommandCounters, lock};
pub use crate::config::OpenConfig;
use crate::eq::{EventVector, Waited};
use crate::error::{CloseError, CommandError, DeviceFailure, OpenError, Step, StepError};
use crate::events::{AsyncEvent, CompCounter, Handler, Object};
use crate::function::PciFunction;
use crate::gid::{GidEntry, GidTable};
use crate::hca::Hca;
use crate::health::HealthReport;
use crate::mem::DmaSpace;
use crate::pages::PageCounters;
use crate::port::{self, PortAttributes};
use crate::reaper::{Destroy, Reaper, ReaperCounters};
use crate::uar::Uar;

/// How often the service thread reads the health buffer. Source: Linux mlx5.
const HEALTH_POLL: Duration = Duration::from_secs(2);
/// How often the idle service thread looks for what it was not told of.
const SERVICE_RECHECK: Duration = Duration::from_secs(1);

/// Version of a NIC's firmware.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FirmwareVersion {
    /// The family's number: 12 for ConnectX-4, 14 for 4 Lx, 16 for 5, 20 for 6, 22 for 6 Dx.
    pub major: u16,
    /// Minor.
    pub minor: u16,
    /// Subminor.
    pub subminor: u16,
}

impl fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:04}", self.major, self.minor, self.subminor)
    }
}

/// What QUERY_ADAPTER says.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Adapter {
    /// The manufacturer's IEEE company id (24 bits).
    pub ieee_vendor_id: u32,
    /// PCI vendor id of the adapter's maker.
    pub vsd_vendor_id: u16,
    /// Parameter-set id: which board it is, as firmware updates need to know.
    pub psid: String,
}

/// What happened since the device was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ContextCounters {
    /// Firmware commands.
    pub commands: CommandCounters,
    /// Firmware's pages.
    pub pages: PageCounters,
    /// Objects that were dropped.
    pub reaper: ReaperCounters,
    /// Events that went since nobody read them.
    pub events_lost: u64,
    /// Completion events that named no CQ of ours.
    pub unknown_cqns: u64,
    /// Events of types that the PRM does not have.
    pub unknown_events: u64,
}

/// What shutting a device down did.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CloseReport {
    /// Pages that firmware was given in all.
    pub pages_given: u64,
    /// Pages that it gave back in all.
    pub pages_reclaimed: u64,
    /// Pages that it never gave back.
    pub pages_lost: u64,
    /// Commands of the whole session.
    pub commands: CommandCounters,
    /// Objects that firmware did not destroy.
    pub objects_failed: u64,
    /// The function was reset since a step of the teardown failed.
    pub reset: bool,
}

/// An open NIC.
///
/// Objects made from it hold it; it is shut down by [`Context::close`], or when the last holder is dropped.
pub struct Context {
    hca: Arc<Hca>,
    caps: Caps,
    firmware: FirmwareVersion,
    adapter: Adapter,
    product: &'static str,
    uar: Arc<Uar>,
    gids: Arc<GidTable>,
    /// Event queue of each completion vector, made when it is first asked for.
    completion_eqns: Vec<Mutex<Option<u8>>>,
    completion_eq_log_size: u8,
    progress: Mutex<Progress>,
    service: Mutex<Option<Service>>,
    closed: AtomicBool,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("hca", &self.hca)
            .field("firmware", &self.firmware)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Brings a NIC up.
    ///
    /// # Errors
    ///
    /// [`OpenError`] names the step that failed. The function is left as it was, or reset.
    pub fn open(function: Arc<dyn PciFunction>, config: OpenConfig) -> Result<Arc<Self>, OpenError> {
        let started = Instant::now();
        let device = bringup::bring_up(&function, &config)?;
        let context = Self::assemble(device, &config)
            .map_err(|(step, source)| OpenError::new(&*function, step, source))?;
        log::info!(
            "{}: {} with firmware {} is up after {:?}; {} pages given",
            function.address(),
            context.product,
            context.firmware,
            started.elapsed(),
            context.hca.pages().counters().given,
        );
        Ok(context)
    }

    fn assemble(device: Device, config: &OpenConfig) -> Result<Arc<Self>, (Step, StepError)> {
        let Device {
            hca,
            mut progress,
            caps,
            firmware,
            adapter,
            product,
        } = device;
        let service = if config.service_thread.unwrap_or(config.interrupts) {
            match Service::start(hca.clone()) {
                Ok(service) => Some(service),
                Err(source) => {
                    tear_down(&hca, &mut progress);
                    return Err((
                        Step::ServiceThread,
                        StepError::Os {
                            what: "start a thread",
                            source,
                        },
                    ));
                }
            }
        } else {
            None
        };
        let (Some(uar), Some(gids)) = (progress.uar.clone(), progress.gids.clone()) else {
            // PANIC: none; bring-up that succeeded has set both.
            return Err((Step::Uar, StepError::Unsupported("an unfinished bring-up".into())));
        };
        // Vector 0 is the asynchronous queues' own, unless there is no other.
        let vectors = hca.vectors().len().saturating_sub(1).max(1);
        Ok(Arc::new(Self {
            hca,
            caps,
            firmware,
            adapter,
            product,
            uar,
            gids,
            completion_eqns: (0..vectors).map(|_| Mutex::default()).collect(),
            completion_eq_log_size: config.completion_eq_log_size,
            progress: Mutex::new(progress),
            service: Mutex::new(service),
            closed: AtomicBool::new(false),
        }))
    }

    /// Shuts the device down: waits for what was dropped to be destroyed, undoes bring-up, takes all pages back.
    ///
    /// # Errors
    ///
    /// [`CloseError::InUse`] while other objects hold the context: it is shut down when the last one goes.
    /// [`CloseError::Teardown`] if a step failed; the function was then reset if that was possible.
    pub fn close(self: Arc<Self>) -> Result<CloseReport, CloseError> {
        // What was dropped may still hold us, until it is destroyed.
        self.hca.reaper().run(&self.hca);
        match Arc::try_unwrap(self) {
            Ok(context) => context.shut_down(),
            Err(context) => Err(CloseError::InUse {
                holders: Arc::strong_count(&context) - 1,
            }),
        }
    }

    fn shut_down(&self) -> Result<CloseReport, CloseError> {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(service) = lock(&self.service).take() {
            service.stop(&self.hca);
        }
        self.hca.reaper().run(&self.hca);
        let undone = tear_down(&self.hca, &mut lock(&self.progress));
        let pages = self.hca.pages().counters();
        let report = CloseReport {
            pages_given: pages.given,
            pages_reclaimed: pages.reclaimed,
            pages_lost: pages.held,
            commands: self.hca.cmdq().counters(),
            objects_failed: self.hca.reaper().counters().failed,
            reset: undone.reset,
        };
        log::info!("{}: closed; {report:?}", self.hca.function().address());
        match undone.failure {
            None => Ok(report),
            Some((step, source)) => Err(CloseError::Teardown {
                step,
                source: Box::new(source),
                report: Box::new(report),
            }),
        }
    }

    /// Executes a firmware command and waits for its answer. Any thread may.
    ///
    /// # Errors
    ///
    /// [`CommandError`] names the command and says why it was not carried out.
    pub fn exec<C: Command>(&self, command: &C) -> Result<C::Output, CommandError> {
        self.hca.exec(command)
    }

    /// Executes a firmware command given as bytes, headers included: at least 16 in each direction. `output` is filled
    /// when the command's status is OK.
    ///
    /// # Errors
    ///
    /// As [`Context::exec`].
    pub fn exec_raw(&self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        self.hca.exec_raw(input, output)
    }

    /// The device's IOVA space.
    #[must_use]
    pub fn dma(&self) -> &Arc<DmaSpace> {
        self.hca.dma()
    }

    /// The PCI function.
    #[must_use]
    pub fn function(&self) -> &Arc<dyn PciFunction> {
        self.hca.function()
    }

    /// What the device can.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Firmware's version.
    #[must_use]
    pub fn firmware_version(&self) -> FirmwareVersion {
        self.firmware
    }

    /// What QUERY_ADAPTER said.
    #[must_use]
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The product's name, by its PCI id.
    #[must_use]
    pub fn product(&self) -> &'static str {
        self.product
    }

    /// The context's UAR page: event queues' doorbells, and those of queues that have no page of their own.
    #[must_use]
    pub fn uar(&self) -> &Arc<Uar> {
        &self.uar
    }

    /// Asks firmware for another UAR page. It goes back with [`Context::dealloc_uar`].
    ///
    /// # Errors
    ///
    /// The command failed, or the page is not within BAR 0.
    pub fn alloc_uar(&self) -> Result<Uar, StepError> {
        Uar::alloc(&self.hca)
    }

    /// Gives a UAR page back, which no queue uses any more.
    ///
    /// # Errors
    ///
    /// As [`Context::exec`].
    pub fn dealloc_uar(&self, uar: &Uar) -> Result<(), CommandError> {
        uar.dealloc(&self.hca)
    }

    /// The GID table.
    #[must_use]
    pub fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Programs another GID; its index.
    ///
    /// # Errors
    ///
    /// The device can't have it, the table is full, or the command failed.
    pub fn add_gid(&self, entry: GidEntry) -> Result<u16, StepError> {
        self.gids.add(&self.hca, entry)
    }

    /// Clears an entry of the GID table. QPs that use it stop working.
    ///
    /// # Errors
    ///
    /// The command failed.
    pub fn remove_gid(&self, index: u16) -> Result<(), StepError> {
        self.gids.remove(&self.hca, index)
    }

    /// The port's addresses, state, MTU and speed, as they are now.
    ///
    /// # Errors
    ///
    /// A command failed.
    pub fn port_attributes(&self) -> Result<PortAttributes, StepError> {
        port::query(&self.hca)
    }

    /// What firmware says of its health, now.
    #[must_use]
    pub fn health(&self) -> HealthReport {
        self.hca.check_health()
    }

    /// Why the device can't be used any more, if that is so.
    #[must_use]
    pub fn failure(&self) -> Option<&DeviceFailure> {
        self.hca.failure()
    }

    /// What happened since the device was opened.
    #[must_use]
    pub fn counters(&self) -> ContextCounters {
        let (events_lost, unknown_cqns) = self.hca.events().losses();
        ContextCounters {
            commands: self.hca.cmdq().counters(),
            pages: self.hca.pages().counters(),
            reaper: self.hca.reaper().counters(),
            events_lost,
            unknown_cqns,
            unknown_events: self.hca.unknown_events(),
        }
    }

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
    pub fn comp_eqn(&self, vector: usize) -> Result<u8, StepError> {
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
        if let Some(vector) = self.hca.vectors().first() {
            vector.wait(&self.hca, Some(deadline), &mut || !events.is_empty());
        }
        events.next()
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
    pub fn handle_events(&self, object: Object, handler: Handler) {
        self.hca.events().handle(object, handler);
    }

    /// Forgets an object's handler.
    pub fn forget_events(&self, object: Object) {
        self.hca.events().forget(object);
    }

    /// Starts to count a CQ's completion events.
    #[must_use]
    pub fn count_completions(&self, cqn: u32) -> CompCounter {
        self.hca.events().count_completions(cqn)
    }

    /// Stops counting a CQ's completion events.
    pub fn forget_completions(&self, cqn: u32) {
        self.hca.events().forget_completions(cqn);
    }

    /// Where a `Drop` leaves what firmware has to destroy.
    #[must_use]
    pub fn reaper(&self) -> ReaperHandle<'_> {
        ReaperHandle(self)
    }

    fn has_service(&self) -> bool {
        lock(&self.service).is_some()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Relaxed)
            && let Err(error) = self.shut_down()
        {
            log::error!("{}: {error}", self.hca.function().address());
        }
    }
}

/// Takes objects to destroy.
#[derive(Debug)]
pub struct ReaperHandle<'a>(&'a Context);

impl ReaperHandle<'_> {
    /// Takes an object over. With a service thread it does not wait; without one it destroys at once.
    pub fn submit(&self, destroy: Destroy) {
        let hca = &self.0.hca;
        hca.reaper().submit(destroy);
        match hca.vectors().first() {
            Some(vector) if self.0.has_service() => vector.wake(),
            _ => hca.reaper().run(hca),
        }
    }
}

/// The thread that is there when no other is.
#[derive(Debug)]
struct Service {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Service {
    fn start(hca: Arc<Hca>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("ferroce-events".into())
            .spawn(move || serve(&hca, &stopped))?;
        Ok(Self { stop, thread })
    }

    fn stop(self, hca: &Hca) {
        self.stop.store(true, Ordering::Release);
        if let Some(vector) = hca.vectors().first() {
            vector.wake();
        }
        // The last object may have gone in the service thread itself, which then ends on its own.
        if self.thread.thread().id() != std::thread::current().id() && self.thread.join().is_err() {
            log::error!("the service thread of {} panicked", hca.function().address());
        }
    }
}

fn serve(hca: &Hca, stop: &AtomicBool) {
    let Some(vector) = hca.vectors().first() else {
        return;
    };
    let mut next_health = Instant::now() + HEALTH_POLL;
    let reaper: &Reaper = hca.reaper();
    while !stop.load(Ordering::Acquire) {
        reaper.run(hca);
        if Instant::now() >= next_health {
            hca.poll_health();
            next_health = Instant::now() + HEALTH_POLL;
        }
        let mut ready = || stop.load(Ordering::Acquire) || !reaper.is_idle();
        let waited = vector.wait_rechecking(hca, Some(next_health), SERVICE_RECHECK, &mut ready);
        if waited == Waited::Dead {
            // Nothing more will happen; what is dropped from now on is kept by whoever closes.
            reaper.run(hca);
            return;
        }
    }
}
