//! What all parts of an open device share: commands, events, pages, health.
//!
//! Locks, outermost first: a vector's `rings`; pages' state; a vector's `led`; pages' requests; the command queue's
//! state; its pool. None is held while a command runs, but pages' state, which only the thread at it touches.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ferroce_firmware_iface::command::{Command, InputHeader};
use ferroce_firmware_iface::event::EventType;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_hw_regs::eqe::Eqe;
use ferroce_hw_regs::init_seg::offset;

use crate::cmdq::{CommandQueue, SlotClass, Ticket, lock};
use crate::eq::{EventVector, Waited};
use crate::error::{CommandError, DeviceFailure};
use crate::events::{AsyncEvent, Events};
use crate::function::PciFunction;
use crate::health::{HealthMonitor, HealthReport};
use crate::mem::DmaSpace;
use crate::mmio::Mmio;
use crate::pages::{PageRequest, Pages};
use crate::reaper::Reaper;

/// How long a command is waited for by spinning before the thread sleeps: a healthy device answers simple commands in
/// this time, and waking a thread costs more.
const SPIN: Duration = Duration::from_micros(20);

/// Commands that may be answered before their events are read; a quarter of what the command event queue holds, as several
/// threads may be at it.
const MOST_UNREAD_ANSWERS: u32 = 63;

/// After how long a command's silence is reason to look at the device's health.
const LONG_WAIT: Duration = Duration::from_secs(2);

/// An open device below the verbs.
pub(crate) struct Hca {
    function: Arc<dyn PciFunction>,
    dma: Arc<DmaSpace>,
    bar: Mmio,
    cmdq: CommandQueue,
    /// Vector 0 carries the asynchronous queues; the others completions, if there are others.
    vectors: Vec<EventVector>,
    /// The command event queue exists: completions are announced.
    event_mode: AtomicBool,
    pages: Pages,
    events: Events,
    reaper: Reaper,
    monitor: Mutex<HealthMonitor>,
    failure: OnceLock<DeviceFailure>,
    /// The device reads the command queue's address back, so that its loss tells of a reset.
    queue_reads_back: AtomicBool,
    command_timeout: Duration,
    unknown_events: AtomicU64,
    /// Commands that were answered since their events were last read.
    unread_answers: AtomicU32,
}

/// What [`Hca::new`] is made of.
#[derive(Debug)]
pub(crate) struct HcaParts {
    pub(crate) function: Arc<dyn PciFunction>,
    pub(crate) dma: Arc<DmaSpace>,
    pub(crate) bar: Mmio,
    pub(crate) cmdq: CommandQueue,
    pub(crate) vectors: Vec<EventVector>,
    pub(crate) pages: Pages,
    pub(crate) events: Events,
    pub(crate) command_timeout: Duration,
}

impl fmt::Debug for Hca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hca")
            .field("function", &self.function)
            .field("vectors", &self.vectors.len())
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Hca {
    pub(crate) fn new(parts: HcaParts) -> Self {
        let HcaParts {
            function,
            dma,
            bar,
            cmdq,
            vectors,
            pages,
            events,
            command_timeout,
        } = parts;
        Self {
            function,
            dma,
            bar,
            cmdq,
            vectors,
            event_mode: AtomicBool::new(false),
            pages,
            events,
            reaper: Reaper::default(),
            monitor: Mutex::default(),
            failure: OnceLock::new(),
            queue_reads_back: AtomicBool::new(false),
            command_timeout,
            unknown_events: AtomicU64::new(0),
            unread_answers: AtomicU32::new(0),
        }
    }

    pub(crate) fn function(&self) -> &Arc<dyn PciFunction> {
        &self.function
    }

    pub(crate) fn dma(&self) -> &Arc<DmaSpace> {
        &self.dma
    }

    pub(crate) fn bar(&self) -> &Mmio {
        &self.bar
    }

    pub(crate) fn cmdq(&self) -> &CommandQueue {
        &self.cmdq
    }

    pub(crate) fn vectors(&self) -> &[EventVector] {
        &self.vectors
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    pub(crate) fn reaper(&self) -> &Reaper {
        &self.reaper
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    pub(crate) fn unknown_events(&self) -> u64 {
        self.unknown_events.load(Ordering::Relaxed)
    }

    /// Whether command completions are announced from now on.
    pub(crate) fn set_event_mode(&self, on: bool) {
        self.event_mode.store(on, Ordering::Release);
    }

    /// Tells the device where the command queue is.
    pub(crate) fn program_queue(&self) {
        let address = self.cmdq.iova();
        // High word first: the low word's write carries the effect. Its low 12 bits are 0, which also says "full driver".
        self.bar.write32(offset::CMDQ_ADDR_H, (address >> 32) as u32);
        self.bar.write32(offset::CMDQ_ADDR_L_SZ, address as u32);
        let known = HealthReport::read(&self.bar).queue;
        self.queue_reads_back
            .store(known != 0 && known == address as u32, Ordering::Relaxed);
    }

    /// Why the device can't be used any more, if that is so.
    pub(crate) fn failure(&self) -> Option<&DeviceFailure> {
        self.failure.get()
    }

    /// The device can't be used any more; everybody who waits is told.
    pub(crate) fn fail(&self, failure: DeviceFailure) {
        if self.failure.set(failure.clone()).is_ok() {
            log::error!("{}: {failure}", self.function.address());
            self.events.deliver(AsyncEvent::Device(failure));
            self.vectors.iter().for_each(EventVector::wake);
        }
    }

    /// Keeps all memory that the device may use after this is dropped: it could be neither shut down nor reset.
    pub(crate) fn keep_memory(&self) {
        self.cmdq.keep_memory();
        self.pages.keep_memory();
        self.vectors.iter().for_each(EventVector::keep_memory);
    }

    /// Notices that the function is gone. Cheap.
    pub(crate) fn check_gone(&self) {
        if let Some(reason) = self.function.gone()
            && self.failure.get().is_none()
        {
            self.fail(DeviceFailure::Gone(reason.to_string()));
        }
    }

    pub(crate) fn gone_fd(&self) -> Option<BorrowedFd<'_>> {
        self.function.gone_fd()
    }

    /// Reads the health buffer, and notices a dead device.
    pub(crate) fn check_health(&self) -> HealthReport {
        let report = HealthReport::read(&self.bar);
        if report.gone {
            self.fail(DeviceFailure::Gone(report.to_string()));
        } else if report.fatal() {
            self.fail(DeviceFailure::Fatal(report));
        } else if self.queue_reads_back.load(Ordering::Relaxed) && report.queue != self.cmdq.iova() as u32 {
            let why = "it was reset behind our back, and no longer knows the command queue";
            self.fail(DeviceFailure::Gone(why.into()));
        }
        report
    }

    /// One poll of the health counter; the service thread's task.
    pub(crate) fn poll_health(&self) -> HealthReport {
        let report = self.check_health();
        let mut monitor = lock(&self.monitor);
        let report = monitor.observe(report);
        if monitor.changed(&report) {
            log::warn!("{}: {report}", self.function.address());
        }
        report
    }

    /// Executes a typed command.
    pub(crate) fn exec<C: Command>(&self, command: &C) -> Result<C::Output, CommandError> {
        self.exec_in(SlotClass::General, command)
    }

    /// Executes a typed command in a slot of that class.
    pub(crate) fn exec_in<C: Command>(
        &self,
        class: SlotClass,
        command: &C,
    ) -> Result<C::Output, CommandError> {
        let input = encode(command)?;
        let mut output = vec![0; command.output_length()];
        self.exec_bytes(class, &input, &mut output)?;
        decode(command, &output)
    }

    /// Executes a command given as bytes.
    pub(crate) fn exec_raw(&self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        self.exec_bytes(SlotClass::General, input, output)
    }

    fn exec_bytes(&self, class: SlotClass, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        let head = input.first_chunk().copied().unwrap_or_default();
        self.usable(InputHeader::from_bytes(head).opcode)?;
        let deadline = Instant::now() + self.command_timeout;
        let ticket = self.cmdq.submit(class, input, output.len(), deadline)?;
        if self.wait_watching(deadline, &mut || self.cmdq.is_done(&ticket)) {
            self.read_answers();
            self.cmdq.finish(ticket, output)
        } else {
            Err(self.give_up(ticket))
        }
    }

    /// Reads events from time to time. A command that is answered while this thread spins leaves its event unread, and the
    /// thread that sleeps on the vector may be late: a program that gives command after command would overrun the command
    /// event queue.
    fn read_answers(&self) {
        if !self.event_mode.load(Ordering::Acquire)
            || self.unread_answers.fetch_add(1, Ordering::Relaxed) < MOST_UNREAD_ANSWERS
        {
            return;
        }
        self.unread_answers.store(0, Ordering::Relaxed);
        if let Some(vector) = self.vectors.first() {
            vector.poll(self);
        }
    }

    fn usable(&self, opcode: Opcode) -> Result<(), CommandError> {
        self.check_gone();
        match self.failure.get() {
            Some(failure) => Err(CommandError::Dead {
                opcode,
                sent: false,
                failure: failure.clone(),
            }),
            None => Ok(()),
        }
    }

    /// As [`Self::wait`], with a look at the device's health each time that it has let us wait for long: one that died or
    /// was reset will not answer.
    fn wait_watching(&self, deadline: Instant, ready: &mut dyn FnMut() -> bool) -> bool {
        loop {
            if self.wait(deadline.min(Instant::now() + LONG_WAIT), ready) {
                return true;
            }
            if Instant::now() >= deadline || self.failure.get().is_some() {
                return false;
            }
            self.check_health();
        }
    }

    /// Waits until `ready` holds, pumping events meanwhile; whether it does.
    pub(crate) fn wait(&self, deadline: Instant, ready: &mut dyn FnMut() -> bool) -> bool {
        let spinning = Instant::now() + SPIN;
        while Instant::now() < spinning {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        match self.vectors.first() {
            Some(vector) if self.event_mode.load(Ordering::Acquire) => {
                vector.wait(self, Some(deadline), ready) == Waited::Ready || ready()
            }
            _ => self.poll_until(deadline, ready),
        }
    }

    fn poll_until(&self, deadline: Instant, ready: &mut dyn FnMut() -> bool) -> bool {
        let mut pause = Duration::from_micros(5);
        loop {
            if ready() {
                return true;
            }
            self.check_gone();
            if self.failure.get().is_some() || Instant::now() >= deadline {
                return ready();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Gives an unanswered command up: says why, and keeps its memory.
    pub(crate) fn give_up(&self, ticket: Ticket) -> CommandError {
        let (opcode, slot, waited) = (ticket.opcode(), ticket.slot(), ticket.age());
        let health = self.check_health();
        let error = match self.failure.get() {
            Some(failure) => CommandError::Dead {
                opcode,
                sent: true,
                failure: failure.clone(),
            },
            None => CommandError::Timeout {
                opcode,
                slot,
                waited,
                health,
            },
        };
        self.cmdq.abandon(ticket, &error);
        error
    }

    /// Takes one entry of an event queue in. Called by the pump, with a vector's rings locked.
    pub(crate) fn dispatch(&self, eqe: &Eqe) {
        match EventType(eqe.ty) {
            EventType::COMPLETION => self.events.completed(number(&eqe.data[0x18..]) & 0xff_ffff),
            EventType::COMMAND => self.cmdq.note_event(number(&eqe.data)),
            EventType::PAGE_REQUEST => self.pages.request(PageRequest::decode(&eqe.data)),
            event => {
                if event.meaning().is_none() {
                    self.unknown_events.fetch_add(1, Ordering::Relaxed);
                }
                self.events
                    .deliver(AsyncEvent::decode(event, eqe.sub_type, &eqe.data));
            }
        }
    }
}

/// A typed command's input.
pub(crate) fn encode<C: Command>(command: &C) -> Result<Vec<u8>, CommandError> {
    let opcode = C::OPCODE;
    command
        .encode()
        .map_err(|source| CommandError::Encode { opcode, source })
}

/// What a typed command's answer says.
pub(crate) fn decode<C: Command>(command: &C, output: &[u8]) -> Result<C::Output, CommandError> {
    let opcode = C::OPCODE;
    command
        .decode(output)
        .map_err(|source| CommandError::Decode { opcode, source })
}

/// The first four bytes as a number.
fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
