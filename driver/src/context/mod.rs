//! An open NIC: what everything else is made from.
//!
//! ```text
//!  Context ── Arc<Hca>: commands, events, pages, health ◀── service thread
//!     ├─ caps, firmware, adapter, GID table, UAR
//!     └─ held by every PD, MR, CQ, QP: the device is shut down after the last of them
//! ```

mod counters;
mod events;
mod facts;
mod ports;
mod service;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

pub use ferroce_firmware_iface::cmds::{CongStatistics, ModifyNotificationPoint};
use ferroce_firmware_iface::command::Command;
use ferroce_hw_regs::ids::Eqn;

pub use counters::PortCounters;
pub use facts::{Adapter, CloseReport, ContextCounters, FirmwareVersion};
pub use ports::{Port, PortEvents};
use service::Service;

use crate::bringup::{self, Device, Progress, tear_down};
use crate::caps::Caps;
use crate::clock::{ClockError, DeviceClock};
use crate::cmdq::lock;
pub use crate::config::OpenConfig;
use crate::error::{CloseError, CommandError, DeviceFailure, OpenError, Step, StepError};
use crate::function::PciFunction;
use crate::gid::{GidEntry, GidTable};
use crate::hca::Hca;
use crate::health::HealthReport;
use crate::mem::DmaSpace;
use crate::port::{self, PortAttributes, PortNumber};
use crate::reaper::Destroy;
use crate::uar::Uar;

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
    /// Each port's table, from port 1 on; one at least.
    gids: Vec<Arc<GidTable>>,
    /// Largest path MTU, once it was asked for.
    path_mtu: OnceLock<u16>,
    /// Event queue of each completion vector, made when it is first asked for.
    completion_eqns: Vec<Mutex<Option<Eqn>>>,
    completion_eq_log_size: u8,
    progress: Mutex<Progress>,
    service: Mutex<Option<Service>>,
    closed: AtomicBool,
    /// The raw Ethernet queues are somebody's: there is one set, since there is one root of the flow tables.
    ethernet_taken: AtomicBool,
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
        let gids = progress.gids.clone();
        let Some(uar) = progress.uar.clone().filter(|_| !gids.is_empty()) else {
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
            path_mtu: OnceLock::new(),
            completion_eqns: (0..vectors).map(|_| Mutex::default()).collect(),
            completion_eq_log_size: config.completion_eq_log_size,
            progress: Mutex::new(progress),
            service: Mutex::new(service),
            closed: AtomicBool::new(false),
            ethernet_taken: AtomicBool::new(false),
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
        self.hca.reaper().drain(&self.hca);
        match Arc::try_unwrap(self) {
            Ok(context) => context.shut_down(),
            Err(context) => Err(CloseError::InUse {
                holders: Arc::strong_count(&context) - 1,
            }),
        }
    }

    fn shut_down(&self) -> Result<CloseReport, CloseError> {
        self.closed.store(true, Ordering::Relaxed);
        // Not in the condition: the lock would be held while the thread ends.
        let service = lock(&self.service).take();
        if let Some(service) = service {
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
    pub(crate) fn exec<C: Command>(&self, command: &C) -> Result<C::Output, CommandError> {
        self.hca.exec(command)
    }

    /// Executes a firmware command given as bytes, headers included: at least 16 in each direction. `output` is filled
    /// when the command's status is OK. For commands that this driver has no function for.
    ///
    /// # Errors
    ///
    /// [`CommandError`] names the command and says why it was not carried out.
    ///
    /// # Safety
    ///
    /// Firmware gives the device access to whatever DMA memory a command names, and takes objects away that others use.
    /// The command must neither name memory of this process that it does not own (also not indirectly, such as by an
    /// mkey), nor change an object of this driver.
    #[allow(unsafe_code)] // Only the declaration is: the contract is the caller's.
    pub unsafe fn exec_raw(&self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
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

    /// The device's clock, whose ticks completions carry.
    ///
    /// # Errors
    ///
    /// [`ClockError::NoFrequency`] if firmware does not say how long a tick is.
    pub fn clock(&self) -> Result<DeviceClock, ClockError> {
        DeviceClock::new(self.hca.bar(), &self.caps)
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
    /// The command failed; the error says why.
    pub fn dealloc_uar(&self, uar: &Uar) -> Result<(), CommandError> {
        uar.dealloc(&self.hca)
    }

    /// The GID table of the first port.
    #[must_use]
    pub fn gids(&self) -> &GidTable {
        // PANIC: none; there is one table at least.
        &self.gids[0]
    }

    /// Programs another GID for the first port; its index.
    ///
    /// # Errors
    ///
    /// The device can't have it, the table is full, or the command failed.
    pub fn add_gid(&self, entry: GidEntry) -> Result<u16, StepError> {
        self.add_gid_to(self.gids(), entry)
    }

    /// Clears an entry of the first port's GID table. QPs that use it stop working.
    ///
    /// # Errors
    ///
    /// The command failed.
    pub fn remove_gid(&self, index: u16) -> Result<(), StepError> {
        self.remove_gid_from(self.gids(), index)
    }

    /// The first port's addresses, state, MTU and speed, as they are now; of others [`Port::attributes`].
    ///
    /// # Errors
    ///
    /// A command failed.
    pub fn port_attributes(&self) -> Result<PortAttributes, StepError> {
        port::query(&self.hca, PortNumber::FIRST)
    }

    /// Largest path MTU in bytes that the port's MTU lets through; that of opening, since the driver doesn't change it
    /// later.
    ///
    /// # Errors
    ///
    /// [`CommandError`], the first time that it is asked for.
    pub fn active_path_mtu(&self) -> Result<u16, CommandError> {
        if let Some(mtu) = self.path_mtu.get() {
            return Ok(*mtu);
        }
        let mtu = port::active_path_mtu(&self.hca)?;
        Ok(*self.path_mtu.get_or_init(|| mtu))
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

    /// Where a `Drop` leaves what firmware has to destroy.
    pub(crate) fn reaper(&self) -> ReaperHandle<'_> {
        ReaperHandle(self)
    }

    /// Takes the right to raw Ethernet queues; false if somebody has it.
    pub(crate) fn take_ethernet(&self) -> bool {
        !self.ethernet_taken.swap(true, Ordering::AcqRel)
    }

    /// Gives the right to raw Ethernet queues back.
    pub(crate) fn release_ethernet(&self) {
        self.ethernet_taken.store(false, Ordering::Release);
    }

    fn has_service(&self) -> bool {
        lock(&self.service).as_ref().is_some_and(Service::is_at_work)
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
pub(crate) struct ReaperHandle<'a>(&'a Context);

impl ReaperHandle<'_> {
    /// Waits until what was taken over is destroyed, and nothing of it holds anything any more. Not to be called by what
    /// [`Destroy`] calls or drops.
    pub(crate) fn drain(&self) {
        self.0.hca.reaper().drain(&self.0.hca);
    }

    /// Takes an object over. With a service thread it does not wait; without one, or once the device has failed, it
    /// destroys at once.
    pub(crate) fn submit(&self, destroy: Destroy) {
        let hca = &self.0.hca;
        hca.reaper().submit(destroy);
        match hca.vectors().first() {
            Some(vector) if self.0.has_service() => vector.wake(),
            _ => hca.reaper().run(hca),
        }
    }
}
