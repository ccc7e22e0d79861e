//! Registers: one aligned volatile access of the register's own width, in mapped memory or trapped.
//!
//! A BAR is some areas of mapped memory, and everywhere else an access is a request to whoever serves the BAR
//! ([`BarAccess`]). vfio-pci maps nearly all of a BAR; a device model may map only its doorbell pages, or nothing.
//! [`Mmio`] is a checked window on a BAR; a doorbell is one 8-byte register in it, resolved beforehand, for the
//! fast path: one predictable branch and one store.
//!
//! The NIC's registers are big-endian; values here are in host order, converted in this file and nowhere else. A read
//! of a register of a device that is gone gives all ones; what that means is the reader's business. Writes are the
//! driver's alone: a doorbell or a command queue address of somebody else's could make the device write to memory that
//! this process has plain references to.
//!
//! `unsafe` is allowed here for the volatile accesses themselves.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use ferroce_hw_regs::uar::PIECE_BYTES;
use volatile_register::{RO, RW, WO};

use crate::function::{FunctionError, check_range};
use crate::mem::SharedMapping;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("an 8-byte doorbell must be one store, which needs a 64-bit CPU");

/// Access to a BAR by request, where it is not mapped memory. Called from any thread.
pub trait BarAccess: Send + Sync {
    /// Reads `data.len()` bytes at `offset` of the BAR, in the bus's byte order.
    ///
    /// # Errors
    /// What the device or the way to it says.
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), FunctionError>;

    /// Writes `data` at `offset` of the BAR, in the bus's byte order. May return before the write takes effect.
    ///
    /// # Errors
    /// What the device or the way to it says.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FunctionError>;
}

/// A part of a BAR that is mapped memory.
#[derive(Debug)]
pub(crate) struct MappedArea {
    /// Offset in the BAR; page aligned.
    pub offset: u64,
    /// The memory.
    pub memory: SharedMapping,
}

struct Bar {
    areas: Vec<MappedArea>,
    trapped: Arc<dyn BarAccess>,
}

impl Bar {
    /// The address of `len` bytes at `offset`, if all of them lie in one mapped area.
    fn mapped(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        self.areas.iter().find_map(|area| {
            let inner = usize::try_from(offset.checked_sub(area.offset)?).ok()?;
            let end = inner.checked_add(usize::try_from(len).ok()?)?;
            // SAFETY: `inner` <= `end`, which is within the mapping.
            (end <= area.memory.len()).then(|| unsafe { area.memory.as_ptr().add(inner) })
        })
    }
}

/// A window on a BAR: some of its registers. Clones share the BAR.
///
/// Accesses outside the window, or not aligned to their own width, do nothing but log an error; a read gives all ones.
#[derive(Clone)]
pub struct Mmio {
    bar: Arc<Bar>,
    /// Where the window begins in the BAR.
    offset: u64,
    len: u64,
    /// The window's memory, if it is all in one mapped area.
    base: Option<NonNull<u8>>,
}

// SAFETY: `base` points into a mapping that `bar` keeps alive; registers may be accessed from any thread, since each
// access is one volatile load or store that no Rust value aliases.
unsafe impl Send for Mmio {}
// SAFETY: as for Send.
unsafe impl Sync for Mmio {}

impl fmt::Debug for Mmio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapped = self.base.is_some();
        f.debug_struct("Mmio")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("mapped", &mapped)
            .finish()
    }
}

impl Mmio {
    /// A BAR of `len` bytes that is trapped except for `areas`.
    pub(crate) fn new(len: u64, areas: Vec<MappedArea>, trapped: Arc<dyn BarAccess>) -> Mmio {
        let bar = Arc::new(Bar { areas, trapped });
        let base = bar.mapped(0, len);
        Mmio {
            bar,
            offset: 0,
            len,
            base,
        }
    }

    /// A BAR of `len` bytes where each access goes to `bar`.
    pub fn trapped(len: u64, bar: Arc<dyn BarAccess>) -> Mmio {
        Mmio::new(len, Vec::new(), bar)
    }

    /// Length of the window in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the whole window is mapped memory, so that no access leaves the CPU's hands.
    pub fn is_mapped(&self) -> bool {
        self.base.is_some()
    }

    /// A window on `len` bytes at `offset` of this window.
    ///
    /// # Errors
    /// [`FunctionError::OutOfRange`] where it leaves this window.
    pub fn subregion(&self, offset: u64, len: u64) -> Result<Mmio, FunctionError> {
        check_range("BAR 0", offset, len, self.len)?;
        let offset = self.offset + offset;
        Ok(Mmio {
            bar: self.bar.clone(),
            offset,
            len,
            base: self.bar.mapped(offset, len),
        })
    }

    /// The 8-byte doorbell at `offset`, for the fast path.
    ///
    /// # Errors
    /// [`FunctionError::OutOfRange`] where it leaves the window or is not aligned to 8 bytes.
    pub(crate) fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        check_range("doorbell in BAR 0", offset, 8, self.len)?;
        let offset = self.offset + offset;
        if !offset.is_multiple_of(8) {
            return Err(FunctionError::OutOfRange {
                what: "unaligned doorbell",
                offset,
                len: 8,
                limit: self.len,
            });
        }
        let cell = self.bar.mapped(offset, 8).map(NonNull::cast);
        Ok(Doorbell {
            cell,
            bar: self.bar.clone(),
            offset,
        })
    }

    /// The `len` bytes at `offset` as a slot for bursts, for the fast path.
    ///
    /// # Errors
    /// [`FunctionError::OutOfRange`] where it leaves the window, or `offset` or `len` are not whole pieces.
    pub(crate) fn burst(&self, offset: u64, len: usize) -> Result<Burst, FunctionError> {
        check_range("BlueFlame slot in BAR 0", offset, len as u64, self.len)?;
        let offset = self.offset + offset;
        if !offset.is_multiple_of(PIECE_BYTES as u64) || !len.is_multiple_of(PIECE_BYTES) || len == 0 {
            return Err(FunctionError::OutOfRange {
                what: "unaligned BlueFlame slot",
                offset,
                len: len as u64,
                limit: self.len,
            });
        }
        Ok(Burst {
            cells: self.bar.mapped(offset, len as u64).map(NonNull::cast),
            bar: self.bar.clone(),
            offset,
            len,
        })
    }

    /// Reads the 32-bit register at `offset`.
    #[inline]
    pub fn read32(&self, offset: u64) -> u32 {
        match self.target(offset, 4) {
            // SAFETY: `target` gives an aligned address of 4 bytes in a mapping that `self.bar` keeps alive.
            Some(Target::Mapped(at)) => u32::from_be(unsafe { at.cast::<RO<u32>>().as_ref() }.read()),
            Some(Target::Trapped(at)) => {
                let mut data = [0xff; 4];
                if let Err(error) = self.bar.trapped.read(at, &mut data) {
                    log::debug!("read of register {at:#x} failed, taken as all ones: {error}");
                    data = [0xff; 4];
                }
                u32::from_be_bytes(data)
            }
            None => u32::MAX,
        }
    }

    /// Writes the 32-bit register at `offset`.
    #[inline]
    pub(crate) fn write32(&self, offset: u64, value: u32) {
        match self.target(offset, 4) {
            // SAFETY: as in `read32`. The effect on the device is limited by the IOMMU to memory mapped for it.
            Some(Target::Mapped(at)) => unsafe { at.cast::<WO<u32>>().as_ref().write(value.to_be()) },
            Some(Target::Trapped(at)) => self.bar.write(at, &value.to_be_bytes()),
            None => {}
        }
    }

    /// Where the `width` bytes at `offset` are found; `None`, and a line in the log, where the access is not sound.
    #[inline]
    fn target(&self, offset: u64, width: u64) -> Option<Target> {
        let inside = offset.checked_add(width).is_some_and(|end| end <= self.len);
        if !inside || !(self.offset + offset).is_multiple_of(width) {
            log::error!(
                "access of {width} bytes at {offset:#x} of {self:?} is outside or not aligned; not done"
            );
            return None;
        }
        if let Some(base) = self.base {
            // SAFETY: `base` is followed by `self.len` mapped bytes, and `offset` is less than that.
            return Some(Target::Mapped(unsafe { base.add(offset as usize) }));
        }
        let offset = self.offset + offset;
        Some(
            self.bar
                .mapped(offset, width)
                .map_or(Target::Trapped(offset), Target::Mapped),
        )
    }
}

enum Target {
    Mapped(NonNull<u8>),
    Trapped(u64),
}

impl Bar {
    /// A trapped write. An error means that the device is gone, which others notice and report.
    #[inline(never)]
    fn write(&self, offset: u64, data: &[u8]) {
        if let Err(error) = self.trapped.write(offset, data) {
            log::debug!("write of register {offset:#x} failed: {error}");
        }
    }
}

/// One 8-byte doorbell register: in range and aligned by construction.
#[derive(Clone)]
pub(crate) struct Doorbell {
    cell: Option<NonNull<RW<u64>>>,
    bar: Arc<Bar>,
    offset: u64,
}

// SAFETY: as for `Mmio`.
unsafe impl Send for Doorbell {}
// SAFETY: as for `Mmio`.
unsafe impl Sync for Doorbell {}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapped = self.cell.is_some();
        f.debug_struct("Doorbell")
            .field("offset", &self.offset)
            .field("mapped", &mapped)
            .finish()
    }
}

impl Doorbell {
    /// Writes `value`, which goes to the bus big-endian. The caller has issued
    /// [`before_doorbell`](crate::barrier::before_doorbell).
    #[inline(always)]
    pub(crate) fn ring(&self, value: u64) {
        self.ring_bytes(value.to_be_bytes());
    }

    /// Writes 8 bytes as they stand in memory, such as the first 8 of a WQE's control segment.
    #[inline(always)]
    pub(crate) fn ring_bytes(&self, bytes: [u8; 8]) {
        match self.cell {
            // SAFETY: the cell is aligned, in a mapping that `self.bar` keeps alive, and only ever accessed volatile.
            Some(cell) => unsafe { cell.as_ref().write(u64::from_ne_bytes(bytes)) },
            None => self.bar.write(self.offset, &bytes),
        }
    }
}

/// A slot of a register that takes bursts of 64 bytes: in range and aligned by construction.
pub(crate) struct Burst {
    /// `len` bytes, if they are mapped.
    cells: Option<NonNull<RW<u64>>>,
    bar: Arc<Bar>,
    offset: u64,
    /// A multiple of [`PIECE_BYTES`], and not 0.
    len: usize,
}

// SAFETY: as for `Mmio`.
unsafe impl Send for Burst {}
// SAFETY: as for `Mmio`.
unsafe impl Sync for Burst {}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapped = self.cells.is_some();
        f.debug_struct("Burst")
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("mapped", &mapped)
            .finish()
    }
}

impl Burst {
    /// Bytes of the slot.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes a piece as it stands in memory, the `piece`th of the slot; none that is outside. The caller has issued
    /// [`before_write_combining`](crate::barrier::before_write_combining).
    #[inline]
    pub(crate) fn write(&self, piece: usize, bytes: &[u8; PIECE_BYTES]) {
        if piece >= self.len / PIECE_BYTES {
            return;
        }
        let at = piece * PIECE_BYTES;
        match self.cells {
            // SAFETY: the piece lies within the slot, which is mapped, aligned to 64 and kept by `self.bar`.
            Some(cells) => unsafe { write_piece(cells.byte_add(at), bytes) },
            None => self.bar.write(self.offset + at as u64, bytes),
        }
    }

    /// Writes 8 bytes to the start of the slot: a doorbell.
    #[inline]
    pub(crate) fn ring_bytes(&self, bytes: [u8; 8]) {
        match self.cells {
            // SAFETY: the slot is not empty, mapped, aligned and kept by `self.bar`.
            Some(cells) => unsafe { cells.as_ref().write(u64::from_ne_bytes(bytes)) },
            None => self.bar.write(self.offset, &bytes),
        }
    }
}

/// Stores the words of a piece, in ascending order and with nothing in between, so that a CPU that combines writes makes
/// one transaction of them.
///
/// # Safety
/// `to` must be aligned to 8 and be followed by 64 bytes of registers that may be written.
#[inline(always)]
unsafe fn write_piece(to: NonNull<RW<u64>>, bytes: &[u8; PIECE_BYTES]) {
    let mut words = [0u64; PIECE_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let [a, b, c, d, e, f, g, h] = words;
        // Pairs, back to back: CPUs that see other stores or loads in between give up combining (as Linux found for its
        // own copy to such memory).
        // SAFETY: the caller vouches for 64 bytes at `to`; each store is to device memory or to normal memory that only the
        // device reads.
        unsafe {
            core::arch::asm!(
                "stp {a}, {b}, [{to}]",
                "stp {c}, {d}, [{to}, #16]",
                "stp {e}, {f}, [{to}, #32]",
                "stp {g}, {h}, [{to}, #48]",
                to = in(reg) to.as_ptr(),
                a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d,
                e = in(reg) e, f = in(reg) f, g = in(reg) g, h = in(reg) h,
                options(nostack, preserves_flags),
            );
        }
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    for (i, word) in words.into_iter().enumerate() {
        // SAFETY: the caller vouches for all words of the piece.
        unsafe { to.add(i).as_ref().write(word) };
    }
}
