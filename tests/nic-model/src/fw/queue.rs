//! The command queue: entries and mailboxes fetched from host memory, answers written back.
//!
//! The host is not trusted: a chain is followed for as many blocks as the length says and no further, each
//! block's number is checked, and memory is taken as bytes arrive.

use std::borrow::Cow;

use ferroce_firmware_iface::command::InputHeader;
use ferroce_firmware_iface::event::EventType;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::queue::{
    BLOCK_DATA, Block, Entry, INLINE_BYTES, MAX_SLOTS, OUTPUT_OFFSET, STATUS_OWN_OFFSET, TYPE_PCIE,
    blocks_for,
};
use ferroce_firmware_iface::status::{CommandStatus, DeliveryStatus};
use zerocopy::{FromZeros, IntoBytes};

use super::command::{Answer, Call};
use super::faults::Fault;
use super::refusal::{Refusal, Violation, Violations};
use super::segment::LOG_STRIDE;
use super::{Env, Event, Firmware, HostDma};

/// Longest input: a memory key of four million pages.
const MAX_INPUT: usize = 0x110 + (8 << 22);
/// Longest output.
const MAX_OUTPUT: usize = 1 << 20;
/// Alignment of a mailbox pointer: the PRM has no bits below.
const MAILBOX_ALIGN: u64 = 512;

/// A command that was fetched.
#[derive(Clone, Debug)]
pub(super) struct Fetched {
    slot: u8,
    entry: Entry,
    pub(super) input: Vec<u8>,
    output_blocks: Vec<u64>,
    signed: bool,
}

impl Fetched {
    pub(super) fn header(&self) -> InputHeader {
        InputHeader::from_bytes(*self.entry.input.first_chunk().unwrap_or(&[0; 8]))
    }

    fn output_length(&self) -> usize {
        self.entry.output_length.get() as usize
    }
}

#[derive(Debug)]
struct Late {
    at_ns: u64,
    command: Fetched,
    output: Vec<u8>,
}

/// State of the queue.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    address: Option<u64>,
    /// Slots rung and not fetched.
    rung: u32,
    /// Slots fetched and not answered.
    busy: u32,
    /// Slots of which the host polls the entry: rung before command events went to an event queue.
    polled: u32,
    /// Executed, to be answered later.
    late: Vec<Late>,
    /// Waiting for pages.
    parked: Vec<Fetched>,
}

type Undelivered = (DeliveryStatus, Cow<'static, str>);

impl CommandQueue {
    pub(super) fn set_address(&mut self, address: u64) {
        *self = CommandQueue {
            address: Some(address),
            ..CommandQueue::default()
        };
    }

    pub(super) fn ring(&mut self, slots: u32, events: bool, violations: &mut Violations) {
        if self.address.is_none() {
            violations.protocol("command doorbell rung before the command queue's address was written");
            return;
        }
        let again = slots & (self.busy | self.rung);
        if again != 0 {
            violations.protocol(format!("command doorbell rung for busy slots {again:#x}"));
        }
        let fresh = slots & !again;
        self.rung |= fresh;
        if events {
            self.polled &= !fresh;
        } else {
            self.polled |= fresh;
        }
    }

    pub(super) fn next_late_ns(&self) -> Option<u64> {
        self.late.iter().map(|l| l.at_ns).min()
    }

    fn entry_address(&self, slot: u8) -> Option<u64> {
        // A page at the very end of the address space holds all 32 entries.
        Some(self.address? + (u64::from(slot) << LOG_STRIDE))
    }
}

/// Follows a mailbox chain of `blocks` blocks.
fn walk(
    host: &dyn HostDma,
    first: u64,
    blocks: usize,
    bad_pointer: DeliveryStatus,
    mut visit: impl FnMut(u64, &Block) -> Result<(), Undelivered>,
) -> Result<(), Undelivered> {
    let mut at = first;
    for number in 0..blocks {
        if at == 0 || !at.is_multiple_of(MAILBOX_ALIGN) {
            return Err((
                bad_pointer,
                format!("mailbox block {number} of {blocks} is at {at:#x}").into(),
            ));
        }
        let mut block = Block::new_zeroed();
        if host.read(at, block.as_mut_bytes()).is_err() {
            return Err((
                bad_pointer,
                format!("mailbox block {number} at {at:#x} is not mapped").into(),
            ));
        }
        if block.block_num.get() as usize != number {
            let got = block.block_num.get();
            let reason = format!("mailbox block {number} at {at:#x} has number {got}");
            return Err((DeliveryStatus::BAD_BLOCK_NUMBER, reason.into()));
        }
        visit(at, &block)?;
        at = block.next.get();
    }
    Ok(())
}

fn check_lengths(entry: &Entry) -> Result<(usize, usize), Undelivered> {
    let (input, output) = (
        entry.input_length.get() as usize,
        entry.output_length.get() as usize,
    );
    if !(8..=MAX_INPUT).contains(&input) {
        return Err((
            DeliveryStatus::INPUT_LENGTH,
            format!("input of {input} bytes").into(),
        ));
    }
    if !(8..=MAX_OUTPUT).contains(&output) {
        return Err((
            DeliveryStatus::OUTPUT_LENGTH,
            format!("output of {output} bytes").into(),
        ));
    }
    Ok((input, output))
}

fn fetch(
    host: &dyn HostDma,
    slot: u8,
    entry: Entry,
    signed: bool,
    violations: &mut Violations,
) -> Result<Fetched, Undelivered> {
    if entry.ty != TYPE_PCIE {
        return Err((
            DeliveryStatus::BAD_TYPE,
            format!("entry type {:#x}", entry.ty).into(),
        ));
    }
    if entry.rsvd1 != [0; 3] || entry.rsvd2 != 0 {
        return Err((
            DeliveryStatus::RESERVED_NOT_ZERO,
            "reserved bytes of the entry".into(),
        ));
    }
    if signed && !entry.signature_ok() {
        return Err((DeliveryStatus::SIGNATURE, "signature of the entry".into()));
    }
    let (input_length, output_length) = check_lengths(&entry)?;
    let mut input = entry.input[..input_length.min(INLINE_BYTES)].to_vec();
    let mut other_token = false;
    let blocks = blocks_for(input_length);
    let bad = DeliveryStatus::BAD_INPUT_POINTER;
    walk(host, entry.input_mailbox.get(), blocks, bad, |_, block| {
        if signed && !block.signatures_ok() {
            return Err((
                DeliveryStatus::SIGNATURE,
                "signature of an input mailbox block".into(),
            ));
        }
        other_token |= block.token != entry.token;
        let rest = input_length - input.len();
        input.extend_from_slice(&block.data[..rest.min(BLOCK_DATA)]);
        Ok(())
    })?;
    let mut output_blocks = Vec::new();
    let bad = DeliveryStatus::BAD_OUTPUT_POINTER;
    walk(
        host,
        entry.output_mailbox.get(),
        blocks_for(output_length),
        bad,
        |at, block| {
            other_token |= block.token != entry.token;
            output_blocks.push(at);
            Ok(())
        },
    )?;
    if other_token {
        // rdma-core leaves all tokens 0 and Linux sets them all, so a difference is a mistake, but no driver
        // relies on its being refused.
        violations.protocol("mailbox blocks with another token than their command's");
    }
    Ok(Fetched {
        slot,
        entry,
        input,
        output_blocks,
        signed,
    })
}

/// Writes the answer: mailboxes, inline part, and last the byte that gives the entry back.
fn answer(host: &dyn HostDma, at: u64, command: &Fetched, output: &[u8]) -> Result<(), super::DmaFault> {
    let inline = &output[..output.len().min(INLINE_BYTES)];
    let rest = output.get(INLINE_BYTES..).unwrap_or_default();
    let mut chunks = rest.chunks(BLOCK_DATA);
    for block_at in &command.output_blocks {
        let mut block = Block::new_zeroed();
        host.read(*block_at, block.as_mut_bytes())?;
        block.data = [0; BLOCK_DATA];
        let chunk = chunks.next().unwrap_or_default();
        block.data[..chunk.len()].copy_from_slice(chunk);
        block.token = command.entry.token;
        if command.signed {
            block.sign();
        }
        host.write(*block_at, block.as_bytes())?;
    }
    let mut entry = command.entry;
    entry.output = [0; INLINE_BYTES];
    entry.output[..inline.len()].copy_from_slice(inline);
    entry.status_own = Entry::completed(DeliveryStatus::OK);
    if command.signed {
        entry.sign();
        host.write(at + 0x3d, &[entry.signature])?;
    }
    host.write(at + OUTPUT_OFFSET as u64, &entry.output)?;
    host.write(at + STATUS_OWN_OFFSET as u64, &[entry.status_own])
}

impl Firmware {
    /// Fetches and executes what was rung, answers what was late.
    pub(super) fn run_commands(&mut self, env: &mut Env<'_>) -> bool {
        let mut done = self.answer_late(env);
        let mut worked = done != 0;
        while self.queue.rung != 0 {
            worked = true;
            let slot = self.queue.rung.trailing_zeros() as u8;
            self.queue.rung &= !(1 << slot);
            if let Some(command) = self.take_command(env, slot, &mut done) {
                self.execute(env, command, &mut done);
            }
            self.retry_parked(env, &mut done);
        }
        let told = done & !self.queue.polled;
        if told != 0 && Self::subscribed(env, EventType::COMMAND) {
            self.events.push_front(Event::Command { slots: told });
        }
        worked
    }

    fn answer_late(&mut self, env: &mut Env<'_>) -> u32 {
        let mut done = 0;
        let now_ns = env.now_ns;
        let due = |late: &Late| late.at_ns <= now_ns;
        while let Some(i) = self.queue.late.iter().position(due) {
            let late = self.queue.late.swap_remove(i);
            self.finish(env, &late.command, &late.output, &mut done);
        }
        done
    }

    /// Reads the entry of a rung slot and all that belongs to it.
    fn take_command(&mut self, env: &mut Env<'_>, slot: u8, done: &mut u32) -> Option<Fetched> {
        debug_assert!(usize::from(slot) < MAX_SLOTS);
        let at = self.queue.entry_address(slot)?;
        let mut entry = Entry::new_zeroed();
        if let Err(fault) = env.plane.read(at, entry.as_mut_bytes()) {
            self.violations
                .protocol(format!("command queue entry {slot} can't be read: {fault}"));
            return None;
        }
        if !entry.owned_by_device() {
            self.violations.protocol(format!(
                "command doorbell rung for slot {slot}, which the host still owns"
            ));
            return None;
        }
        let signed = self.general().cmdif_checksum() != 0;
        match fetch(&*env.plane, slot, entry, signed, &mut self.violations) {
            Ok(command) => {
                self.queue.busy |= 1 << slot;
                Some(command)
            }
            Err((status, reason)) => {
                self.undelivered(env, slot, status, reason, done);
                None
            }
        }
    }

    fn undelivered(
        &mut self,
        env: &mut Env<'_>,
        slot: u8,
        status: DeliveryStatus,
        reason: Cow<'static, str>,
        done: &mut u32,
    ) {
        self.violations
            .record(Violation::Undelivered { slot, status, reason });
        self.queue.busy &= !(1 << slot);
        let Some(at) = self.queue.entry_address(slot) else {
            return;
        };
        let byte = Entry::completed(status);
        if env.plane.write(at + STATUS_OWN_OFFSET as u64, &[byte]).is_ok() {
            *done |= 1 << slot;
        }
    }

    fn execute(&mut self, env: &mut Env<'_>, command: Fetched, done: &mut u32) {
        let header = command.header();
        if let Some(trace) = &mut self.trace {
            trace.input(command.slot, header.opcode, &command.input);
        }
        let fault = self.faults.take(header.opcode);
        match fault {
            Some(Fault::Delivery(status)) => {
                self.undelivered(env, command.slot, status, "an injected fault".into(), done);
                return;
            }
            Some(Fault::Status(status, syndrome)) => {
                let refusal = Refusal::new(status, syndrome, "an injected fault");
                let output = self.refused(header.opcode, refusal);
                self.finish(env, &command, &output, done);
                return;
            }
            _ => {}
        }
        let Some(output) = self.output_of(env, &command) else {
            self.queue.parked.push(command);
            return;
        };
        match fault {
            Some(Fault::NoAnswer) => {}
            Some(Fault::LateAnswer(ns)) => self.queue.late.push(Late {
                at_ns: env.now_ns.saturating_add(ns),
                command,
                output,
            }),
            _ => self.finish(env, &command, &output, done),
        }
    }

    /// The command's output; `None` when it has to wait for pages.
    fn output_of(&mut self, env: &mut Env<'_>, command: &Fetched) -> Option<Vec<u8>> {
        let header = command.header();
        let call = Call {
            header,
            input: &command.input,
            output_length: command.output_length(),
        };
        match self.dispatch(env, &call) {
            Ok(Answer::Done(output)) => Some(output),
            Ok(Answer::NeedsPages) => None,
            Err(refusal) => Some(self.refused(header.opcode, refusal)),
        }
    }

    fn refused(&mut self, opcode: Opcode, refusal: Refusal) -> Vec<u8> {
        let mut output = vec![0; 16];
        output[0] = refusal.status.0;
        output[4..8].copy_from_slice(&refusal.syndrome.to_be_bytes());
        self.violations.record(Violation::Refused { opcode, refusal });
        output
    }

    /// Gives a command's entry back with its output cut or filled up to the length that the host asked for.
    fn finish(&mut self, env: &mut Env<'_>, command: &Fetched, output: &[u8], done: &mut u32) {
        let slot = command.slot;
        self.queue.busy &= !(1 << slot);
        let mut sized = vec![0; command.output_length()];
        let n = sized.len().min(output.len());
        sized[..n].copy_from_slice(&output[..n]);
        if let Some(trace) = &mut self.trace {
            trace.output(slot, command.header().opcode, &sized);
        }
        if let Some(recorder) = &self.recorder {
            recorder.command(command.header().opcode, &command.input, &sized);
        }
        let Some(at) = self.queue.entry_address(slot) else {
            return;
        };
        match answer(&*env.plane, at, command, &sized) {
            Ok(()) => *done |= 1 << slot,
            Err(fault) => {
                let reason = format!("the answer can't be written: {fault}");
                let status = DeliveryStatus::BAD_OUTPUT_POINTER;
                self.undelivered(env, slot, status, reason.into(), done);
            }
        }
    }

    /// Tries the commands that wait for pages once more, in the order in which they came.
    fn retry_parked(&mut self, env: &mut Env<'_>, done: &mut u32) {
        if self.queue.parked.is_empty() || !self.pages.changed() {
            return;
        }
        for command in std::mem::take(&mut self.queue.parked) {
            match self.output_of(env, &command) {
                Some(output) => self.finish(env, &command, &output, done),
                None => self.queue.parked.push(command),
            }
        }
    }

    /// The host has no pages to give: what waits for them fails.
    pub(super) fn fail_parked(&mut self, env: &mut Env<'_>) {
        let mut done = 0;
        for command in std::mem::take(&mut self.queue.parked) {
            let refusal = Refusal::new(
                CommandStatus::NO_RESOURCES,
                super::syndrome::NO_PAGES_GIVEN,
                "the host could not give the pages that it needs",
            );
            let output = self.refused(command.header().opcode, refusal);
            self.finish(env, &command, &output, &mut done);
        }
        let told = done & !self.queue.polled;
        if told != 0 {
            self.events.push_back(Event::Command { slots: told });
        }
    }
}
