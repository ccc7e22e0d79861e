//! The command queue: slots, tokens, signatures, mailboxes, the doorbell.
//!
//! ```text
//!  submit ──▶ slot: entry + chains ──▶ doorbell bit ──▶ firmware ──▶ owner bit 0 ──▶ finish
//!                                                          └─ completion EQE (wakes; proves nothing)
//! ```
//! Whether a command was answered is decided by its entry's owner bit alone. The completion event only wakes whoever
//! waits, so that a lost, early, stale or invented one does no harm. A command that is given up keeps its slot and its
//! memory until the device gives the entry back, or until a reset: the device may still write there.
//!
//! Source: PRM "Command interface"; Linux mlx5 for the reserved slot.

mod mailbox;
mod slots;
mod trace;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferroce_firmware_iface::command::{InputHeader, OutputHeader};
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::queue::{
    Entry, INLINE_BYTES, MAX_SLOTS, OUTPUT_OFFSET, STATUS_OWN_OFFSET, TYPE_PCIE,
};
use ferroce_firmware_iface::status::{CommandStatus, DeliveryStatus};
use zerocopy::{FromZeros, IntoBytes};

use crate::barrier;
use crate::error::CommandError;
use crate::mem::{DmaBuffer, DmaError, DmaSpace};
use crate::mmio::Mmio;

use mailbox::{BlockPool, Chain};
pub(crate) use slots::SlotClass;
use slots::SlotTable;
pub use trace::{CommandTrace, CommandTracer};

/// Bytes of the page that the entries are in, and its alignment.
pub(crate) const QUEUE_BYTES: usize = 4096;
/// Least input and output: the header and the inline part.
const MIN_COMMAND: usize = INLINE_BYTES;
/// Most input and output. The largest that a driver sends is MANAGE_PAGES, 8 bytes for each page of 4 KiB; Linux takes at
/// most 50,000 pages at a time.
pub(crate) const MAX_COMMAND: usize = 1 << 20;
/// Offset of the dword of an entry that holds token, signature and owner.
const TOKEN_DWORD: usize = STATUS_OWN_OFFSET - 3;

/// Locks, also after another thread panicked while it held the lock: all our tables stay consistent between statements
/// that can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many and how large the entries are, as the initialization segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// Base-2 logarithm of the number of entries, 1..=5.
    pub(crate) log_size: u8,
    /// Base-2 logarithm of the distance between entries in bytes, at least 6.
    pub(crate) log_stride: u8,
}

impl Geometry {
    /// Whether the driver can work with it: two slots at least, all in one page.
    pub(crate) fn usable(self) -> bool {
        (1..=5).contains(&self.log_size) && self.log_stride >= 6 && self.log_size + self.log_stride <= 12
    }
}

/// What went through the queue so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CommandCounters {
    /// Commands that were rung.
    pub submitted: u64,
    /// Commands that firmware refused, or the queue did not deliver.
    pub failed: u64,
    /// Commands that were not answered in time.
    pub timed_out: u64,
    /// Commands that were answered after they had been given up.
    pub late: u64,
    /// Answers that carried another command's token.
    pub bad_tokens: u64,
    /// Completion events for slots that no command was in.
    pub stale_events: u64,
    /// Slots that are out of use since their command was never answered.
    pub leaked_slots: u32,
}

/// A command that was rung and not yet answered. It owns its slot and its mailboxes.
#[derive(Debug)]
pub(crate) struct Ticket {
    slot: u8,
    token: u8,
    header: InputHeader,
    input: Chain,
    output: Chain,
    rung: Instant,
    /// For the tracer; empty without one.
    traced: Vec<u8>,
}

impl Ticket {
    pub(crate) fn opcode(&self) -> Opcode {
        self.header.opcode
    }

    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    pub(crate) fn age(&self) -> Duration {
        self.rung.elapsed()
    }
}

#[derive(Debug)]
struct State {
    slots: SlotTable,
    /// Commands that were given up; their chains may still be written to.
    abandoned: Vec<Ticket>,
    counters: CommandCounters,
}

/// The command queue of a function.
pub(crate) struct CommandQueue {
    entries: DmaBuffer,
    stride: usize,
    /// The initialization segment's doorbell register, alone.
    doorbell: Mmio,
    state: Mutex<State>,
    slot_freed: Condvar,
    pool: Mutex<BlockPool>,
    tracer: Option<Arc<dyn CommandTracer>>,
}

impl std::fmt::Debug for CommandQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandQueue")
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl CommandQueue {
    /// Memory for a queue of that geometry. `doorbell` is the `cmd_dbell` register.
    pub(crate) fn new(
        dma: &Arc<DmaSpace>,
        geometry: Geometry,
        doorbell: Mmio,
        tracer: Option<Arc<dyn CommandTracer>>,
    ) -> Result<Self, DmaError> {
        Ok(Self {
            entries: dma.alloc(QUEUE_BYTES)?,
            stride: 1 << geometry.log_stride,
            doorbell,
            state: Mutex::new(State {
                slots: SlotTable::new(geometry.log_size),
                abandoned: Vec::new(),
                counters: CommandCounters::default(),
            }),
            slot_freed: Condvar::new(),
            pool: Mutex::new(BlockPool::new(dma.clone())),
            tracer,
        })
    }

    /// Address of the entries, aligned to a page of 4 KiB.
    pub(crate) fn iova(&self) -> u64 {
        self.entries.iova()
    }

    /// Writes a command into a free slot and rings. Waits for a slot until `deadline`.
    pub(crate) fn submit(
        &self,
        class: SlotClass,
        input: &[u8],
        output_len: usize,
        deadline: Instant,
    ) -> Result<Ticket, CommandError> {
        let header = header_of(input);
        let opcode = header.opcode;
        for (what, len) in [("input", input.len()), ("output", output_len)] {
            if !(MIN_COMMAND..=MAX_COMMAND).contains(&len) {
                return Err(CommandError::Length {
                    opcode,
                    what,
                    len,
                    min: MIN_COMMAND,
                    max: MAX_COMMAND,
                });
            }
        }
        let memory = |e: DmaError| CommandError::memory(opcode, &e);
        let (in_chain, out_chain) = {
            let mut pool = lock(&self.pool);
            let input = pool.chain(input.len() - INLINE_BYTES).map_err(memory)?;
            match pool.chain(output_len - INLINE_BYTES) {
                Ok(output) => (input, output),
                Err(error) => {
                    pool.give_back(input);
                    return Err(memory(error));
                }
            }
        };
        let (slot, token) = match self.take_slot(class, opcode, deadline) {
            Ok(taken) => taken,
            Err(error) => {
                self.give_back(in_chain, out_chain);
                return Err(error);
            }
        };
        let ticket = Ticket {
            slot,
            token,
            header,
            input: in_chain,
            output: out_chain,
            rung: Instant::now(),
            traced: if self.tracer.is_some() {
                input.to_vec()
            } else {
                Vec::new()
            },
        };
        if let Err(error) = self.write(&ticket, input, output_len) {
            self.release(ticket);
            return Err(memory(error));
        }
        lock(&self.state).counters.submitted += 1;
        barrier::before_doorbell();
        self.doorbell.write32(0, 1 << slot);
        Ok(ticket)
    }

    fn take_slot(
        &self,
        class: SlotClass,
        opcode: Opcode,
        deadline: Instant,
    ) -> Result<(u8, u8), CommandError> {
        let started = Instant::now();
        let mut state = lock(&self.state);
        loop {
            self.recover(&mut state);
            if let Some(taken) = state.slots.take(class) {
                return Ok(taken);
            }
            let now = Instant::now();
            if now >= deadline || state.slots.hopeless(class) {
                return Err(CommandError::NoSlot {
                    opcode,
                    waited: now - started,
                    leaked: state.slots.leaked(),
                });
            }
            // Bounded, so that a slot whose late answer arrives meanwhile is seen.
            let slice = (deadline - now).min(Duration::from_millis(100));
            state = self
                .slot_freed
                .wait_timeout(state, slice)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn write(&self, ticket: &Ticket, input: &[u8], output_len: usize) -> Result<(), DmaError> {
        let (inline, rest) = input.split_at(INLINE_BYTES);
        ticket.input.write(rest, ticket.token)?;
        ticket.output.write(&[], ticket.token)?;
        let mut entry = Entry::new_zeroed();
        entry.ty = TYPE_PCIE;
        entry.input_length = (input.len() as u32).into();
        entry.input_mailbox = ticket.input.iova().into();
        entry.input.copy_from_slice(inline);
        entry.output_mailbox = ticket.output.iova().into();
        entry.output_length = (output_len as u32).into();
        entry.token = ticket.token;
        entry.status_own = Entry::OWNER_HW;
        entry.sign();
        // The device looks at an entry only when its doorbell bit was written, so that one store of the whole is enough.
        self.entries.write(self.offset(ticket.slot), entry.as_bytes())
    }

    fn offset(&self, slot: u8) -> usize {
        usize::from(slot) * self.stride
    }

    /// Token (high byte), signature, and owner bit and delivery status (low byte) of a slot.
    fn ownership(&self, slot: u8) -> u32 {
        // The offset is within the page that `new` allocated, so that the read can't fail.
        self.entries
            .read_be32(self.offset(slot) + TOKEN_DWORD)
            .unwrap_or(u32::MAX)
    }

    /// Whether the device has answered.
    pub(crate) fn is_done(&self, ticket: &Ticket) -> bool {
        self.ownership(ticket.slot) as u8 & Entry::OWNER_HW == 0
    }

    /// Takes the answer of a command that is done. `output` has the length that was given to [`Self::submit`].
    pub(crate) fn finish(&self, ticket: Ticket, output: &mut [u8]) -> Result<(), CommandError> {
        debug_assert!(self.is_done(&ticket), "finish before the command was answered");
        barrier::after_ownership();
        let result = self.read_answer(&ticket, output);
        if let Err(error) = &result {
            let mut state = lock(&self.state);
            match error {
                CommandError::Token { .. } => state.counters.bad_tokens += 1,
                _ => state.counters.failed += 1,
            }
        }
        self.trace(&ticket, output, &result);
        self.release(ticket);
        result
    }

    fn read_answer(&self, ticket: &Ticket, output: &mut [u8]) -> Result<(), CommandError> {
        let InputHeader { opcode, op_mod, .. } = ticket.header;
        let memory = |e: DmaError| CommandError::memory(opcode, &e);
        let word = self.ownership(ticket.slot);
        let token_error = |found| CommandError::Token {
            opcode,
            expected: ticket.token,
            found,
        };
        let found = (word >> 24) as u8;
        if found != ticket.token {
            return Err(token_error(found));
        }
        let delivery = DeliveryStatus(word as u8 >> 1);
        if delivery != DeliveryStatus::OK {
            return Err(CommandError::Delivery {
                opcode,
                status: delivery,
            });
        }
        let (inline, rest) = output.split_at_mut(INLINE_BYTES);
        self.entries
            .read(self.offset(ticket.slot) + OUTPUT_OFFSET, inline)
            .map_err(memory)?;
        let mut head = [0u8; 8];
        head.copy_from_slice(&inline[..8]);
        let OutputHeader { status, syndrome } = OutputHeader::from_bytes(head);
        if status != CommandStatus::OK {
            return Err(CommandError::Status {
                opcode,
                op_mod,
                status,
                syndrome,
            });
        }
        ticket
            .output
            .read(rest, ticket.token)
            .map_err(memory)?
            .map_err(token_error)
    }

    /// Gives a command up. Its slot and its memory stay out of use until the device answers after all.
    pub(crate) fn abandon(&self, ticket: Ticket, error: &CommandError) {
        self.trace(&ticket, &[], &Err(error.clone()));
        let mut state = lock(&self.state);
        state.slots.leak(ticket.slot);
        state.counters.timed_out += 1;
        state.abandoned.push(ticket);
    }

    fn trace(&self, ticket: &Ticket, output: &[u8], result: &Result<(), CommandError>) {
        if let Some(tracer) = &self.tracer {
            tracer.command(&CommandTrace {
                opcode: ticket.header.opcode,
                slot: ticket.slot,
                token: ticket.token,
                input: &ticket.traced,
                output,
                took: ticket.age(),
                result: result.as_ref().copied(),
            });
        }
    }

    fn release(&self, ticket: Ticket) {
        self.give_back(ticket.input, ticket.output);
        lock(&self.state).slots.release(ticket.slot);
        self.slot_freed.notify_all();
    }

    fn give_back(&self, input: Chain, output: Chain) {
        let mut pool = lock(&self.pool);
        pool.give_back(input);
        pool.give_back(output);
    }

    /// Takes back the slots of commands that were answered after they had been given up.
    fn recover(&self, state: &mut State) {
        let (late, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut state.abandoned)
            .into_iter()
            .partition(|ticket| self.is_done(ticket));
        state.abandoned = waiting;
        for ticket in late {
            log::warn!(
                "{} in slot {} was answered {:?} after it was sent",
                ticket.opcode(),
                ticket.slot,
                ticket.age()
            );
            state.slots.recover(ticket.slot);
            state.counters.late += 1;
            self.give_back(ticket.input, ticket.output);
        }
    }

    /// A completion event named these slots. Only counted: the owner bit decides.
    pub(crate) fn note_event(&self, slots: u32) {
        let mut state = lock(&self.state);
        let stale = slots & state.slots.idle();
        // A command that was answered and finished before its event was read is idle too; that is the usual case of a
        // poller that was faster than the interrupt, so it is not worth a line in the log.
        state.counters.stale_events += u64::from(stale.count_ones());
    }

    /// What went through so far.
    pub(crate) fn counters(&self) -> CommandCounters {
        let state = lock(&self.state);
        CommandCounters {
            leaked_slots: state.slots.leaked(),
            ..state.counters
        }
    }

    /// Keeps the queue's memory after the queue is dropped: the device may still use it.
    pub(crate) fn keep_memory(&self) {
        self.entries.leak_on_drop();
        lock(&self.pool).keep_memory();
    }
}

/// The header of an input that may be too short to have one.
fn header_of(input: &[u8]) -> InputHeader {
    let mut head = [0u8; 8];
    let len = input.len().min(head.len());
    head[..len].copy_from_slice(&input[..len]);
    InputHeader::from_bytes(head)
}

const _: () = assert!(MAX_SLOTS == 32, "slots are bits of a u32");
