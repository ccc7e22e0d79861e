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

use ferroce_firmware_iface::cmds::{CannotGivePages, GivePages, TakePages};
use ferroce_firmware_iface::command::Command;

use crate::cmdq::{SlotClass, Ticket, lock};
use crate::error::{CommandError, StepError};
use crate::hca::{self, Hca};
use crate::mem::{AllocOptions, DmaBuffer, DmaError, DmaSpace, PageKind};

use pool::PagePool;

/// Bytes of a firmware page, whatever the host's pages are.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Most pages that one MANAGE_PAGES TAKE asks for, as Linux does.
const TAKE_AT_ONCE: u32 = 768;
/// More pages than any firmware asks for: 16 GiB.
const MOST_FOREIGN: usize = 1 << 22;
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

/// What is done about a page request.
#[derive(Debug)]
enum Work {
    Give(Vec<u64>),
    Take(TakePages),
    CantGive,
}

impl Work {
    /// The command's input, and the length of its answer.
    fn encode(&self, request: &PageRequest) -> Result<(Vec<u8>, usize), CommandError> {
        fn encode<C: Command>(command: &C) -> Result<(Vec<u8>, usize), CommandError> {
            Ok((hca::encode(command)?, command.output_length()))
        }
        let PageRequest {
            function: function_id,
            embedded_cpu,
            ..
        } = *request;
        match self {
            Self::Give(pages) => encode(&GivePages {
                function_id,
                embedded_cpu,
                pages,
            }),
            Self::Take(take) => encode(take),
            Self::CantGive => encode(&CannotGivePages {
                function_id,
                embedded_cpu,
            }),
        }
    }
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
        let give = GivePages {
            function_id: function,
            embedded_cpu: false,
            pages: &pages,
        };
        match hca.exec_in(SlotClass::Pages, &give) {
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
        log::debug!("firmware sent {request:?}");
        let function = request.function;
        if request.release_all {
            let count = state.pool.reclaim_all(function) as u64;
            state.counters.reclaimed += count;
            return;
        }
        let work = self.work(state, request);
        let deadline = Instant::now() + hca.command_timeout();
        let sent = work.encode(&request).and_then(|(input, output)| {
            let ticket = hca
                .cmdq()
                .submit(SlotClass::Pages, &input, output, Instant::now())?;
            Ok((ticket, output))
        });
        match sent {
            Ok((ticket, output)) => {
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

    /// What to do about a page request. Of one that takes more than one command, the rest is put back as the next.
    fn work(&self, state: &mut State, request: PageRequest) -> Work {
        let function = request.function;
        let pages = request.pages.clamp(-(MAX_REQUEST as i32), MAX_REQUEST as i32);
        let count = pages.unsigned_abs();
        if pages < 0 {
            let num_pages = count.min(TAKE_AT_ONCE);
            let rest = pages + num_pages as i32;
            if rest < 0 {
                lock(&self.requests).push_front(PageRequest {
                    pages: rest,
                    ..request
                });
            }
            return Work::Take(TakePages {
                function_id: function,
                embedded_cpu: request.embedded_cpu,
                num_pages,
            });
        }
        let given = state.pool.given.len();
        let pages = if count as usize > self.limit.saturating_sub(given) {
            Err(StepError::TooManyPages {
                asked: count,
                given,
                limit: self.limit,
            })
        } else {
            self.free_pages(state, count as usize)
        };
        match pages {
            Ok(pages) => Work::Give(pages),
            Err(error) => {
                log::error!("can't give firmware {count} pages for function {function}: {error}");
                state.counters.refused += 1;
                Work::CantGive
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
            let take = TakePages {
                function_id: function,
                embedded_cpu: false,
                num_pages: state.pool.given_to(function).min(TAKE_AT_ONCE as usize) as u32,
            };
            let pages = hca.exec_in(SlotClass::Pages, &take)?;
            if taken(&mut state, function, &pages) > 0 {
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

    /// Makes firmware let go of the pages that a user gave it who is gone. Returns how many; their addresses mean nothing
    /// any more.
    pub(crate) fn take_foreign(hca: &Hca) -> Result<usize, StepError> {
        let take = TakePages {
            function_id: 0,
            embedded_cpu: false,
            num_pages: TAKE_AT_ONCE,
        };
        let mut count = 0;
        // Firmware must not keep us for ever.
        while count < MOST_FOREIGN {
            let pages = hca.exec_in(SlotClass::Pages, &take)?;
            if pages.is_empty() {
                return Ok(count);
            }
            count += pages.len();
        }
        Err(StepError::PagesKept {
            left: count,
            waited: Duration::ZERO,
        })
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
        (Ok(()), Work::Take(take)) => {
            match hca::decode(&take, &answer) {
                Ok(pages) => {
                    taken(state, function, &pages);
                }
                Err(error) => log::error!("{opcode} TAKE for function {function}: {error}"),
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
        CommandError::NoSlot { .. }
            | CommandError::Length { .. }
            | CommandError::Memory { .. }
            | CommandError::Encode { .. }
    );
    if error.refused() || not_sent {
        state.pool.put_back(pages);
    } else {
        state.pool.give(function, pages);
        state.counters.given += pages.len() as u64;
    }
}

/// Records the pages that a TAKE returned; how many of them firmware had.
fn taken(state: &mut State, function: u16, pages: &[u64]) -> usize {
    let mut own = 0;
    for page in pages {
        if state.pool.reclaim(function, *page) {
            own += 1;
        } else {
            state.counters.foreign += 1;
            log::warn!("firmware gave back page {page:#x} of function {function}, which it did not have");
        }
    }
    state.counters.reclaimed += own as u64;
    own
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
}
