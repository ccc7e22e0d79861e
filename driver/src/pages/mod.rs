//! The memory that firmware works in: it asks for pages, at bring-up and at any time later, and gives them back.
//!
//! ```text
//!  QUERY_PAGES ──┐                       ┌─▶ MANAGE_PAGES GIVE ──▶ given to function n
//!  page request ─┴─▶ pool of mapped pages┤
//!  (event 0x0b)                          └── MANAGE_PAGES TAKE ◀── firmware is done with them
//! ```
//! Pages of 4 KiB come from chunks that were mapped as a whole: a real card asks for 12,868 at once, which would be a
//! fifth of all the mappings that VFIO type1 allows. Each page that firmware has is on record; an address that it
//! "returns" without having had it is counted and ignored, and the memory of a chunk goes back to the system only when
//! firmware holds none of its pages.
//!
//! Source: PRM "Pages", Linux mlx5 for the flags of the event and the use of the reserved slot.

mod pool;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use ferroce_firmware_iface::command::{DecodeError, addresses, push_addresses};
use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::{ManagePagesIn, ManagePagesOut};
use ferroce_firmware_iface::opcode::Opcode;
use zerocopy::{FromBytes, IntoBytes};

use crate::cmdq::{SlotClass, Ticket, lock};
use crate::error::{CommandError, StepError};
use crate::hca::Hca;
use crate::mem::{AllocOptions, DmaBuffer, DmaError, DmaSpace, PageKind};

use pool::PagePool;

/// Bytes of a firmware page, whatever the host's pages are.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Most pages that one MANAGE_PAGES TAKE asks for, as Linux does.
const TAKE_AT_ONCE: usize = 768;
/// Most pages of one page request; Linux clamps to the same.
const MAX_REQUEST: u32 = 50_000;
/// Page requests that may wait. Firmware sends the next one when the last was answered, so more is a flood.
const MAX_QUEUED: usize = 64;
/// Least pages of a chunk, so that many small requests do not need a mapping each.
const MIN_CHUNK: usize = 64;
/// Bytes of a huge page: smaller chunks are not worth one.
const HUGE_BYTES: usize = 2 << 20;
/// How long firmware may take to give back one more page at teardown. Source: Linux mlx5.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(5);

const OP_CANT_GIVE: u16 = 0;
const OP_GIVE: u16 = 1;
const OP_TAKE: u16 = 2;

/// What firmware asked for in a page request event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageRequest {
    /// The function that the pages are for; 0 is our own.
    pub(crate) function: u16,
    /// It is the function of an embedded CPU.
    pub(crate) embedded_cpu: bool,
    /// All pages of the function are free, without a command.
    pub(crate) release_all: bool,
    /// Pages wanted (positive) or offered back (negative).
    pub(crate) pages: i32,
}

impl PageRequest {
    /// Decodes the event's data. Source: Linux mlx5 (the flags are not in the PRM's table).
    pub(crate) fn decode(data: &[u8; 28]) -> Self {
        let flags = u16::from_be_bytes([data[0], data[1]]);
        Self {
            function: u16::from_be_bytes([data[2], data[3]]),
            embedded_cpu: flags & 0x8000 != 0,
            release_all: flags & 0x4000 != 0,
            pages: i32::from_be_bytes([data[4], data[5], data[6], data[7]]),
        }
    }
}

/// How many pages went where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PageCounters {
    /// Pages of 4 KiB given to firmware.
    pub given: u64,
    /// Pages that firmware gave back.
    pub reclaimed: u64,
    /// Pages that firmware has now.
    pub held: u64,
    /// Page requests that could not be met: no memory, or over the limit.
    pub refused: u64,
    /// Page requests that were dropped since too many waited.
    pub dropped: u64,
    /// Addresses that firmware gave back without having had them.
    pub foreign: u64,
}

#[derive(Debug)]
enum Work {
    Give(Vec<u64>),
    Take(usize),
    CantGive,
}

#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    function: u16,
    work: Work,
    output: usize,
    deadline: Instant,
}

#[derive(Debug)]
struct State {
    pool: PagePool<DmaBuffer>,
    in_flight: Option<InFlight>,
    counters: PageCounters,
}

/// Answers page requests, in the command queue's reserved slot.
#[derive(Debug)]
pub(crate) struct Pages {
    dma: Arc<DmaSpace>,
    limit: usize,
    huge_pages: bool,
    state: Mutex<State>,
    /// Apart from the rest, so that an event can be taken in while a command runs.
    requests: Mutex<VecDeque<PageRequest>>,
    dropped: AtomicU64,
}

impl Pages {
    /// Firmware may have at most `limit` pages, of the system's huge ones if wanted.
    pub(crate) fn new(dma: Arc<DmaSpace>, limit: usize, huge_pages: bool) -> Self {
        let state = State {
            pool: PagePool::new(),
            in_flight: None,
            counters: PageCounters::default(),
        };
        Self {
            dma,
            limit,
            huge_pages,
            state: Mutex::new(state),
            requests: Mutex::default(),
            dropped: AtomicU64::new(0),
        }
    }

    pub(crate) fn counters(&self) -> PageCounters {
        let state = lock(&self.state);
        PageCounters {
            held: state.pool.given.len() as u64,
            dropped: self.dropped.load(Ordering::Relaxed),
            ..state.counters
        }
    }

    /// Gives firmware the pages that QUERY_PAGES named, in one command, and waits for its answer.
    pub(crate) fn give_now(&self, hca: &Hca, function: u16, count: u32) -> Result<(), StepError> {
        let mut state = lock(&self.state);
        let held = state.pool.given.len();
        if held.saturating_add(count as usize) > self.limit {
            return Err(StepError::TooManyPages {
                asked: count,
                given: held,
                limit: self.limit,
            });
        }
        let pages = self.free_pages(&mut state, count as usize)?;
        let input = manage_pages(OP_GIVE, function, false, count, &pages);
        match hca.exec_in(SlotClass::Pages, &input, &mut [0; ManagePagesOut::BYTES]) {
            Ok(()) => {
                state.pool.give(function, &pages);
                state.counters.given += pages.len() as u64;
                Ok(())
            }
            Err(error) => {
                settle_failed_give(&mut state, function, &pages, &error);
                Err(error.into())
            }
        }
    }

    fn free_pages(&self, state: &mut State, count: usize) -> Result<Vec<u64>, StepError> {
        let missing = count.saturating_sub(state.pool.free.len());
        if missing > 0 {
            let pages = missing.max(MIN_CHUNK);
            let memory = self.chunk(pages * PAGE_BYTES)?;
            state.pool.add_chunk(memory.iova(), pages, memory);
        }
        Ok(state.pool.take_free(count).unwrap_or_default())
    }

    fn chunk(&self, len: usize) -> Result<DmaBuffer, DmaError> {
        if self.huge_pages && len >= HUGE_BYTES {
            let options = AllocOptions {
                pages: PageKind::Huge2M,
                ..AllocOptions::default()
            };
            match self.dma.alloc_with(len, &options) {
                Ok(memory) => return Ok(memory),
                Err(error) => log::warn!("firmware's pages are normal ones: {error}"),
            }
        }
        self.dma.alloc(len)
    }

    /// Firmware sent a page request; [`Self::advance`] answers it.
    pub(crate) fn request(&self, request: PageRequest) {
        let mut requests = lock(&self.requests);
        if requests.len() >= MAX_QUEUED {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            log::warn!("dropped {request:?}: {MAX_QUEUED} page requests wait already");
            return;
        }
        requests.push_back(request);
    }

    /// Carries page requests on as far as possible without waiting. Whoever pumps events calls it.
    pub(crate) fn advance(&self, hca: &Hca) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is at it, and will see what we see.
            Err(TryLockError::WouldBlock) => return,
        };
        loop {
            if let Some(flight) = state.in_flight.take() {
                if !hca.cmdq().is_done(&flight.ticket) && Instant::now() < flight.deadline {
                    state.in_flight = Some(flight);
                    return;
                }
                settle(&mut state, hca, flight);
            }
            let Some(request) = lock(&self.requests).pop_front() else {
                return;
            };
            self.start(&mut state, hca, request);
        }
    }

    fn start(&self, state: &mut State, hca: &Hca, request: PageRequest) {
        let PageRequest {
            function,
            embedded_cpu,
            release_all,
            pages,
        } = request;
        log::debug!("firmware sent {request:?}");
        if release_all {
            let count = state.pool.reclaim_all(function) as u64;
            state.counters.reclaimed += count;
            return;
        }
        let pages = pages.clamp(-(MAX_REQUEST as i32), MAX_REQUEST as i32);
        let count = pages.unsigned_abs();
        let (work, input, output) = if pages < 0 {
            let asked = (count as usize).min(TAKE_AT_ONCE);
            let rest = i64::from(pages) + asked as i64;
            if rest < 0 {
                lock(&self.requests).push_front(PageRequest {
                    pages: rest as i32,
                    ..request
                });
            }
            let input = manage_pages(OP_TAKE, function, embedded_cpu, asked as u32, &[]);
            (Work::Take(asked), input, ManagePagesOut::BYTES + 8 * asked)
        } else {
            let room = self.limit.saturating_sub(state.pool.given.len());
            let pages = if count as usize > room {
                Err(StepError::TooManyPages {
                    asked: count,
                    given: state.pool.given.len(),
                    limit: self.limit,
                })
            } else {
                self.free_pages(state, count as usize)
            };
            match pages {
                Ok(pages) => {
                    let input = manage_pages(OP_GIVE, function, embedded_cpu, count, &pages);
                    (Work::Give(pages), input, ManagePagesOut::BYTES)
                }
                Err(error) => {
                    log::error!("can't give firmware {count} pages for function {function}: {error}");
                    state.counters.refused += 1;
                    let input = manage_pages(OP_CANT_GIVE, function, embedded_cpu, 0, &[]);
                    (Work::CantGive, input, ManagePagesOut::BYTES)
                }
            }
        };
        let deadline = Instant::now() + hca.command_timeout();
        match hca
            .cmdq()
            .submit(SlotClass::Pages, &input, output, Instant::now())
        {
            Ok(ticket) => {
                state.in_flight = Some(InFlight {
                    ticket,
                    function,
                    work,
                    output,
                    deadline,
                })
            }
            Err(error) => {
                log::error!("can't answer {request:?}: {error}");
                if let Work::Give(pages) = work {
                    state.pool.put_back(&pages);
                }
            }
        }
    }

    /// Takes back all that firmware has: the last step before DISABLE_HCA. Returns how many came back.
    pub(crate) fn take_all(&self, hca: &Hca) -> Result<usize, StepError> {
        let mut state = lock(&self.state);
        lock(&self.requests).clear();
        if let Some(mut flight) = state.in_flight.take() {
            let done = hca.wait(flight.deadline, &mut || hca.cmdq().is_done(&flight.ticket));
            flight.deadline = Instant::now();
            log::debug!(
                "a page request was {} when the device was closed",
                if done { "answered" } else { "pending" }
            );
            settle(&mut state, hca, flight);
        }
        let before = state.pool.given.len();
        let mut progress = Instant::now();
        while let Some(function) = state.pool.given.values().next().copied() {
            let asked = state.pool.given_to(function).min(TAKE_AT_ONCE);
            let input = manage_pages(OP_TAKE, function, false, asked as u32, &[]);
            let mut output = vec![0; ManagePagesOut::BYTES + 8 * asked];
            hca.exec_in(SlotClass::Pages, &input, &mut output)?;
            if taken(&mut state, function, asked, &output)? > 0 {
                progress = Instant::now();
            } else if progress.elapsed() >= RECLAIM_TIMEOUT.min(hca.command_timeout()) {
                return Err(StepError::PagesKept {
                    left: state.pool.given.len(),
                    waited: progress.elapsed(),
                });
            }
        }
        Ok(before)
    }

    /// Keeps the memory of all pages after the pool is dropped: firmware may still use it.
    pub(crate) fn keep_memory(&self) {
        lock(&self.state)
            .pool
            .chunks
            .values()
            .for_each(|(_, memory)| memory.leak_on_drop());
    }
}

/// Records the outcome of a command that was answered, or gives it up if it was not.
fn settle(state: &mut State, hca: &Hca, flight: InFlight) {
    let InFlight {
        ticket,
        function,
        work,
        output,
        ..
    } = flight;
    let opcode = ticket.opcode();
    let mut answer = vec![0; output];
    let result = if hca.cmdq().is_done(&ticket) {
        hca.cmdq().finish(ticket, &mut answer)
    } else {
        Err(hca.give_up(ticket))
    };
    match (result, work) {
        (Ok(()), Work::Give(pages)) => {
            state.pool.give(function, &pages);
            state.counters.given += pages.len() as u64;
        }
        (Ok(()), Work::Take(asked)) => {
            if let Err(error) = taken(state, function, asked, &answer) {
                log::error!("{opcode} TAKE for function {function}: {error}");
            }
            // A chunk's worth stays for the next request.
            drop(state.pool.trim(MIN_CHUNK));
        }
        (Ok(()), Work::CantGive) => {}
        (Err(error), Work::Give(pages)) => {
            log::error!("firmware did not take {} pages: {error}", pages.len());
            settle_failed_give(state, function, &pages, &error);
        }
        (Err(error), work) => log::error!("{opcode} for function {function} failed ({work:?}): {error}"),
    }
}

/// A GIVE failed. Only a clear refusal means that firmware does not use the pages.
fn settle_failed_give(state: &mut State, function: u16, pages: &[u64], error: &CommandError) {
    let not_sent = matches!(
        error,
        CommandError::NoSlot { .. } | CommandError::Length { .. } | CommandError::Memory { .. }
    );
    if error.refused() || not_sent {
        state.pool.put_back(pages);
    } else {
        state.pool.give(function, pages);
        state.counters.given += pages.len() as u64;
    }
}

/// Records the pages that a TAKE returned; how many there were.
fn taken(state: &mut State, function: u16, asked: usize, output: &[u8]) -> Result<usize, CommandError> {
    let layout = ManagePagesOut::INFO.name;
    let bad = |value, why| CommandError::Decode {
        opcode: Opcode::MANAGE_PAGES,
        source: DecodeError::BadValue {
            layout,
            field: "output_num_entries",
            value,
            why,
        },
    };
    let count = ManagePagesOut::ref_from_prefix(output).map_or(0, |(out, _)| out.output_num_entries());
    if count as usize > asked {
        return Err(bad(u64::from(count), "more pages than were asked for"));
    }
    let mut own = 0;
    for page in addresses(output, ManagePagesOut::PAS_OFFSET).take(count as usize) {
        if state.pool.reclaim(function, page) {
            own += 1;
        } else {
            state.counters.foreign += 1;
            log::warn!("firmware gave back page {page:#x} of function {function}, which it did not have");
        }
    }
    state.counters.reclaimed += own as u64;
    Ok(own)
}

fn manage_pages(op_mod: u16, function: u16, embedded_cpu: bool, count: u32, pages: &[u64]) -> Vec<u8> {
    let mut input = ManagePagesIn::default();
    input.set_opcode(Opcode::MANAGE_PAGES.0);
    input.set_op_mod(op_mod);
    input.set_function_id(function);
    input.set_embedded_cpu_function(embedded_cpu);
    input.set_input_num_entries(count);
    let mut bytes = input.as_bytes().to_vec();
    push_addresses(&mut bytes, pages);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_request_event_decodes() {
        let mut data = [0u8; 28];
        data[..8].copy_from_slice(&[0x80, 0x00, 0x00, 0x03, 0xff, 0xff, 0xff, 0xf0]);
        let request = PageRequest::decode(&data);
        assert_eq!(
            request,
            PageRequest {
                function: 3,
                embedded_cpu: true,
                release_all: false,
                pages: -16
            }
        );
    }

    #[test]
    fn a_give_command_is_what_a_real_card_was_sent() {
        // The real card's recorded MANAGE_PAGES for its 6 boot pages, without the addresses.
        let input = manage_pages(OP_GIVE, 0, false, 6, &[0x1000]);
        assert_eq!(input[..16], [1, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6]);
        assert_eq!(input[16..], [0, 0, 0, 0, 0, 0, 0x10, 0]);
    }
}
