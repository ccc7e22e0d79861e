//! The IOVA space of one function: what is mapped where, and how much.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::arena::{ARENA, Arena, ArenaKind, ArenaState, LARGE, MOST_ALIGNMENT, PageKind, UNIT, make_memory};
use super::dbr::DbrPage;
use super::ranges::RangeSet;
use super::{DmaBuffer, DmaError};
use crate::function::{FunctionError, HostPages, LEAVE, PciFunction, check_granule, host_page_size};

/// How a buffer is to be allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocOptions {
    /// What pages it is made of.
    pub pages: PageKind,
    /// Whether it gets an IOMMU map of its own, shared with no other buffer and gone when it is dropped. Buffers of
    /// 1 MiB and more do in any case until half of the allowed maps are used, but where [`DmaSpace::reserve`]'s have room.
    pub dedicated: bool,
}

/// The IOVA space of a function: gives DMA memory, keeps account of it.
///
/// Lives as long as any buffer in it. When it goes, all that is still mapped (leaked buffers too) is unmapped.
pub struct DmaSpace {
    function: Arc<dyn PciFunction>,
    /// Granule of maps: the larger of the host's and the IOMMU's smallest page.
    granule: u64,
    state: Mutex<State>,
    leaked: AtomicU64,
    /// Pages of doorbell records that may have room. Weak, since each holds this space.
    pub(super) dbr_pages: Mutex<Vec<Weak<DbrPage>>>,
}

struct State {
    iova: RangeSet,
    mappings: u32,
    mapped_bytes: u64,
    /// By their first IOVA.
    arenas: BTreeMap<u64, ArenaState>,
}

impl fmt::Debug for DmaSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("DmaSpace")
            .field("function", &self.function.address())
            .field("mappings", &state.mappings)
            .field("mapped_bytes", &state.mapped_bytes)
            .field("leaked_bytes", &self.leaked_bytes())
            .finish()
    }
}

impl DmaSpace {
    /// The IOVA space of `function`, empty. A function has one space at a time: a second would hand out addresses that the
    /// first has retired, since the device may still use them.
    ///
    /// # Errors
    /// [`DmaError::IovaExhausted`] where the function offers no IOVA range at all; [`FunctionError::Taken`];
    /// [`FunctionError::Unusable`] where its smallest page is above 2 MiB.
    pub(crate) fn new(function: Arc<dyn PciFunction>) -> Result<Arc<DmaSpace>, DmaError> {
        let limits = function.dma_limits();
        let least = limits.page_sizes & limits.page_sizes.wrapping_neg();
        check_granule(function.address(), least)?;
        let granule = least.max(host_page_size() as u64).max(UNIT);
        // Whole granules only, and not address 0, which devices and people take for "none".
        let ranges = limits.iova_ranges.iter().filter_map(|range| {
            let start = (*range.start()).max(1).checked_next_multiple_of(granule)?;
            let end = (u128::from(*range.end()) + 1) / u128::from(granule) * u128::from(granule);
            let last = u64::try_from(end.checked_sub(1)?).ok()?;
            (start < last).then_some(start..=last)
        });
        let iova = RangeSet::new(ranges);
        if iova.largest() == 0 {
            return Err(DmaError::IovaExhausted {
                len: granule,
                ranges: limits.iova_ranges.len(),
                largest: 0,
            });
        }
        if function.has_space(LEAVE).swap(true, Ordering::AcqRel) {
            return Err(taken(&*function).into());
        }
        let state = State {
            iova,
            mappings: 0,
            mapped_bytes: 0,
            arenas: BTreeMap::new(),
        };
        Ok(Arc::new(DmaSpace {
            function,
            granule,
            state: Mutex::new(state),
            leaked: AtomicU64::new(0),
            dbr_pages: Mutex::default(),
        }))
    }

    /// The function.
    pub fn function(&self) -> &Arc<dyn PciFunction> {
        &self.function
    }

    /// The granule of IOMMU maps in bytes: 4096, or more on hosts with larger pages.
    pub fn granule(&self) -> u64 {
        self.granule
    }

    /// Bytes given up for good since the device may still touch them, see [`DmaBuffer::leak`].
    pub fn leaked_bytes(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }

    /// Number of IOMMU maps in use.
    pub fn mappings(&self) -> u32 {
        self.state().mappings
    }

    /// Bytes that the device can reach.
    pub fn mapped_bytes(&self) -> u64 {
        self.state().mapped_bytes
    }

    /// A zeroed buffer of `len` bytes, its IOVA aligned to 4096 bytes and, where the IOVA space allows, to the power of
    /// two at or above its length (1 GiB at most).
    ///
    /// # Errors
    /// [`DmaError::ZeroLength`], [`DmaError::IovaExhausted`], [`DmaError::MappingLimit`], [`DmaError::Memory`] or what
    /// the function says. Nothing is left behind then.
    pub fn alloc(self: &Arc<Self>, len: usize) -> Result<DmaBuffer, DmaError> {
        self.alloc_with(len, &AllocOptions::default())
    }

    /// As [`DmaSpace::alloc`], with options.
    ///
    /// # Errors
    /// As [`DmaSpace::alloc`], and [`DmaError::NoHugePages`].
    pub fn alloc_with(self: &Arc<Self>, len: usize, options: &AllocOptions) -> Result<DmaBuffer, DmaError> {
        let unit = if options.dedicated { self.granule } else { UNIT };
        self.alloc_units(len, unit, options)
    }

    /// As [`DmaSpace::alloc_with`]; the buffer begins and ends at multiples of `unit`.
    pub(super) fn alloc_units(
        self: &Arc<Self>,
        len: usize,
        unit: u64,
        options: &AllocOptions,
    ) -> Result<DmaBuffer, DmaError> {
        if len == 0 {
            return Err(DmaError::ZeroLength);
        }
        let span = (len as u64)
            .checked_next_multiple_of(unit)
            .filter(|s| *s <= isize::MAX as u64 / 2);
        let span = span.ok_or(DmaError::TooLong { len: len as u64 })?;
        let mut state = self.state();
        let short = self.maps_run_short(&state);
        let huge = options.pages.huge_size();
        let alone = options.dedicated || huge.is_some();
        // Large buffers share only what was reserved for them, as long as there are maps enough.
        let large = span >= LARGE && !short;
        let room = |(iova, arena): (&u64, &mut ArenaState)| {
            let shared = !large || arena.kind == ArenaKind::Reserved;
            (shared && arena.fits(span)).then_some(*iova)
        };
        let found = (!alone).then(|| state.arenas.iter_mut().find_map(room)).flatten();
        if alone || (large && found.is_none()) {
            let whole = span.checked_next_multiple_of(huge.unwrap_or(self.granule));
            let whole = whole.ok_or(DmaError::TooLong { len: len as u64 })?;
            let iova = self.add_arena(&mut state, whole, options.pages, ArenaKind::Dedicated)?;
            let (buffer, _) = self.cut(&mut state, iova, span, len)?;
            return Ok(buffer);
        }
        let iova = match found {
            Some(iova) => iova,
            None => self.add_shared_arena(&mut state, span, short)?,
        };
        let (buffer, used_before) = self.cut(&mut state, iova, span, len)?;
        drop(state);
        buffer.fill(0, used_before, 0)?;
        Ok(buffer)
    }

    /// Maps `len` bytes beforehand, of which later buffers are cut, and keeps them mapped until the space goes: for
    /// programs that want many large buffers out of few IOMMU maps. Buffers that ask for huge pages or a map of their own are
    /// not cut of it.
    ///
    /// # Errors
    /// As [`DmaSpace::alloc_with`].
    pub fn reserve(&self, len: usize, pages: PageKind) -> Result<(), DmaError> {
        let unit = pages.huge_size().unwrap_or(self.granule);
        let whole = (len as u64)
            .checked_next_multiple_of(unit)
            .filter(|s| *s <= isize::MAX as u64 / 2);
        match whole.ok_or(DmaError::TooLong { len: len as u64 })? {
            0 => Err(DmaError::ZeroLength),
            whole => self
                .add_arena(&mut self.state(), whole, pages, ArenaKind::Reserved)
                .map(|_| ()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Half of the allowed maps are in use: from now on large buffers share too.
    fn maps_run_short(&self, state: &State) -> bool {
        self.function
            .dma_limits()
            .max_mappings
            .is_some_and(|most| state.mappings >= most / 2)
    }

    /// An arena for small buffers with room for `span`. Where maps run short each new one is larger, so that the
    /// number of maps grows with the logarithm of the memory.
    fn add_shared_arena(&self, state: &mut State, span: u64, short: bool) -> Result<u64, DmaError> {
        let exact = span.next_multiple_of(self.granule);
        let wish = if short { state.mapped_bytes / 2 } else { ARENA };
        let wish = wish.max(ARENA).next_multiple_of(self.granule);
        if wish > exact {
            match self.add_arena(state, wish, PageKind::Normal, ArenaKind::Shared) {
                Err(DmaError::MappingLimit { limit }) => return Err(DmaError::MappingLimit { limit }),
                // Perhaps there is room for what is needed, though not for more (RLIMIT_MEMLOCK, address space).
                Err(error) => log::debug!("arena of {wish} bytes: {error}; trying {exact}"),
                done => return done,
            }
        }
        self.add_arena(state, exact, PageKind::Normal, ArenaKind::Shared)
    }

    /// Makes an arena and maps it; gives its IOVA. On an error nothing is left of it.
    fn add_arena(
        &self,
        state: &mut State,
        len: u64,
        pages: PageKind,
        kind: ArenaKind,
    ) -> Result<u64, DmaError> {
        self.check_map_limit(state)?;
        let align = len.next_power_of_two().clamp(self.granule, MOST_ALIGNMENT);
        let (fd, memory) = make_memory(len, pages, align)?;
        // SAFETY: the arena owns the mapping and is dropped only after `dma_unmap` succeeded; the file is sealed against
        // shrinking; buffers access it by copy or atomically only, LocalPages while the device has no business there.
        let pages = unsafe { HostPages::new(memory.as_ptr(), len, Some((fd.as_fd(), 0))) };
        let iova = self.map_at_free_iova(state, &pages)?;
        let arena = Arc::new(Arena { iova, memory, fd });
        let free = RangeSet::new([0..=len - 1]);
        state.arenas.insert(
            iova,
            ArenaState {
                arena,
                free,
                fresh: 0,
                kind,
            },
        );
        Ok(iova)
    }

    /// Maps pages of the program; gives their IOVA. Counts them as leaked where it is not known whether the device has them.
    pub(super) fn map_pages(&self, pages: &HostPages<'_>) -> Result<u64, DmaError> {
        let mapped = self.map_at_free_iova(&mut self.state(), pages);
        if let Err(DmaError::Function(FunctionError::MapUnknown { .. })) = mapped {
            self.count_leak(pages.len());
        }
        mapped
    }

    /// Takes the device's access to pages of the program away. With `keep_iova`, the addresses are not used again, since
    /// the device may still use them.
    pub(super) fn unmap_caller(&self, iova: u64, len: u64, keep_iova: bool) {
        let mut state = self.state();
        let unmapped = self.unmap_only(&mut state, iova, len).inspect_err(|error| {
            log::error!("{}: {error}; {len} bytes stay mapped", self.function.address());
        });
        match unmapped {
            Ok(()) if keep_iova => {
                log::warn!(
                    "{}: {len} bytes of IOVA space at {iova:#x} are given up",
                    self.function.address()
                );
            }
            Ok(()) => self.give_iova(&mut state, iova, len),
            Err(_) => self.count_leak(len),
        }
    }

    /// Counts memory that stays the device's.
    pub(super) fn count_leak(&self, len: u64) {
        let total = self.leaked.fetch_add(len, Ordering::Relaxed) + len;
        log::warn!(
            "{}: {len} bytes of DMA memory leaked, {total} in all",
            self.function.address()
        );
    }

    /// Finds IOVA space for `pages` and maps them there. On an error nothing has changed, except that the range stays taken
    /// where it is not known whether the device has it.
    fn map_at_free_iova(&self, state: &mut State, pages: &HostPages<'_>) -> Result<u64, DmaError> {
        self.check_map_limit(state)?;
        let len = pages.len();
        let align = len.next_power_of_two().clamp(self.granule, MOST_ALIGNMENT);
        let iova = self.take_iova(state, len, align, pages.va().as_ptr() as u64)?;
        match self.function.dma_map(iova, pages, LEAVE) {
            Ok(()) => {}
            Err(error @ FunctionError::MapUnknown { .. }) => return Err(error.into()),
            Err(error) => {
                self.give_iova(state, iova, len);
                return Err(map_error(error));
            }
        }
        log::trace!("{}: DMA map {iova:#x} + {len:#x}", self.function.address());
        state.mappings += 1;
        state.mapped_bytes += len;
        Ok(iova)
    }

    /// Unmaps memory that nobody but this space and the device has. Whether it may go; where it may not, the IOVA range
    /// stays taken.
    fn unmap_own(&self, state: &mut State, iova: u64, len: u64) -> bool {
        match self.unmap_only(state, iova, len) {
            Ok(()) => {
                self.give_iova(state, iova, len);
                true
            }
            Err(FunctionError::Gone { .. }) => {
                state.mappings -= 1;
                state.mapped_bytes -= len;
                true
            }
            Err(error) => {
                log::error!("{}: {error}; {len} bytes stay mapped", self.function.address());
                false
            }
        }
    }

    /// Unmaps; the IOVA range stays taken.
    fn unmap_only(&self, state: &mut State, iova: u64, len: u64) -> Result<(), FunctionError> {
        self.function.dma_unmap(iova, len, LEAVE)?;
        log::trace!("{}: DMA unmap {iova:#x} + {len:#x}", self.function.address());
        state.mappings -= 1;
        state.mapped_bytes -= len;
        Ok(())
    }

    fn check_map_limit(&self, state: &State) -> Result<(), DmaError> {
        match self.function.dma_limits().max_mappings {
            Some(limit) if state.mappings >= limit => Err(DmaError::MappingLimit { limit }),
            _ => Ok(()),
        }
    }

    /// Takes IOVA space that agrees with `va` modulo `align`, or else modulo the largest smaller power of two for which
    /// there is room.
    fn take_iova(&self, state: &mut State, len: u64, align: u64, va: u64) -> Result<u64, DmaError> {
        let mut modulus = align;
        loop {
            if let Some(iova) = state.iova.take(len, modulus, va & (modulus - 1)) {
                return Ok(iova);
            }
            if modulus <= self.granule {
                let ranges = self.function.dma_limits().iova_ranges.len();
                return Err(DmaError::IovaExhausted {
                    len,
                    ranges,
                    largest: state.iova.largest(),
                });
            }
            modulus /= 2;
        }
    }

    fn give_iova(&self, state: &mut State, iova: u64, len: u64) {
        if !state.iova.give(iova, len) {
            log::error!("IOVA {iova:#x} + {len:#x} was freed twice");
        }
    }

    /// Cuts a buffer out of the arena at `iova`, which has room; says how many of its first bytes were used before.
    fn cut(
        self: &Arc<Self>,
        state: &mut State,
        iova: u64,
        span: u64,
        len: usize,
    ) -> Result<(DmaBuffer, usize), DmaError> {
        let no_room = DmaError::IovaExhausted {
            len: span,
            ranges: 1,
            largest: 0,
        };
        let Some(arena) = state.arenas.get_mut(&iova) else {
            return Err(no_room);
        };
        let Some(offset) = arena.take(span) else {
            return Err(no_room);
        };
        let used_before = arena.fresh.saturating_sub(offset).min(span);
        arena.fresh = arena.fresh.max(offset + span);
        let buffer = DmaBuffer::new(self.clone(), arena.arena.clone(), offset, span, len);
        Ok((buffer, used_before.min(len as u64) as usize))
    }

    /// A buffer is dropped: its part of the arena is free again, or leaked.
    pub(super) fn release(&self, arena: &Arc<Arena>, offset: u64, span: u64, leak: bool) {
        if leak {
            return self.count_leak(span);
        }
        let mut state = self.state();
        let spare = state
            .arenas
            .values()
            .any(|a| a.kind == ArenaKind::Shared && a.is_empty());
        let Some(entry) = state.arenas.get_mut(&arena.iova) else {
            return;
        };
        if !entry.free.give(offset, span) {
            log::error!(
                "DMA memory at IOVA {:#x} + {span:#x} was freed twice",
                arena.iova + offset
            );
        }
        // One empty arena stays, so that a buffer that comes and goes does not map and unmap each time.
        let goes = match entry.kind {
            ArenaKind::Dedicated => true,
            ArenaKind::Shared => entry.is_empty() && (spare || arena.len() > ARENA),
            ArenaKind::Reserved | ArenaKind::Stuck => false,
        };
        if goes {
            self.remove_arena(&mut state, arena.iova);
        }
    }

    /// Unmaps an arena and forgets it. If the unmap fails the memory stays, for the device may still reach it.
    fn remove_arena(&self, state: &mut State, iova: u64) {
        let Some(mut entry) = state.arenas.remove(&iova) else {
            return;
        };
        let len = entry.arena.len();
        if !self.unmap_own(state, iova, len) {
            self.count_leak(len);
            entry.kind = ArenaKind::Stuck;
            state.arenas.insert(iova, entry);
        }
    }
}

impl Drop for DmaSpace {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (iova, entry) in std::mem::take(&mut state.arenas) {
            match self.function.dma_unmap(iova, entry.arena.len(), LEAVE) {
                // A process that is gone for us has the file at most, which is nobody else's.
                Ok(()) | Err(FunctionError::Gone { .. }) => {}
                Err(error) => {
                    log::error!("{}: {error}; the memory stays allocated", self.function.address());
                    std::mem::forget(entry);
                }
            }
        }
        self.function.has_space(LEAVE).store(false, Ordering::Release);
    }
}

/// Whether a function has no [`DmaSpace`] yet, for who would disturb its user.
///
/// # Errors
/// [`FunctionError::Taken`].
pub(crate) fn check_unused(function: &dyn PciFunction) -> Result<(), FunctionError> {
    match function.has_space(LEAVE).load(Ordering::Acquire) {
        true => Err(taken(function)),
        false => Ok(()),
    }
}

fn taken(function: &dyn PciFunction) -> FunctionError {
    FunctionError::Taken {
        address: function.address().to_string(),
    }
}

/// The mapping limit is one error, whoever noticed it.
fn map_error(error: FunctionError) -> DmaError {
    match error {
        FunctionError::MappingLimit { limit } => DmaError::MappingLimit { limit },
        error => DmaError::Function(error),
    }
}
