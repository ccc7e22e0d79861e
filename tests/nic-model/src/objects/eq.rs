//! Event queues: rings in host memory that the device writes events into.

use ferroce_firmware_iface::layouts::Eqc;

use super::buffer::{PAGE_UNIT_SHIFT, PageList, offset_in_page};
use super::error::ObjectError;

/// Bytes of an EQE (PRM, event queue entry).
pub const EQE_BYTES: u64 = 64;

/// An event queue.
#[derive(Debug)]
pub struct Eq {
    /// Its number.
    pub eqn: u32,
    /// log2 of its entries.
    pub log_size: u32,
    /// The UAR page in which its doorbells are accepted.
    pub uar_page: u32,
    /// MSI-X vector.
    pub vector: u16,
    /// Event types it wants, bit `n` of word `n / 64`.
    pub event_bitmask: [u64; 4],
    /// Whether the device may overwrite entries that were not consumed.
    pub overrun_ignore: bool,
    /// Its ring.
    pub ring: PageList,
    /// Entries written since it was made; wraps at 2^32.
    pub pi: u32,
    /// The host's consumer index, 24 bits, from its last doorbell.
    pub ci: u32,
    /// Whether the next entry raises the interrupt.
    pub armed: bool,
    /// Entries that were lost since the ring was full.
    pub overruns: u64,
    /// CQs that report to it.
    pub users: u32,
    /// The context as it was created, for queries.
    pub context: Eqc,
}

impl Eq {
    /// Decodes a context; `ring` gives the pages for a page shift, an offset and a length.
    ///
    /// # Errors
    /// Sizes that can't be, or too few pages.
    pub fn new(
        eqn: u32,
        context: &Eqc,
        event_bitmask: [u64; 4],
        max_log_size: u32,
        ring: impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError>,
    ) -> Result<Eq, ObjectError> {
        let log_size = u32::from(context.log_eq_size());
        if log_size > max_log_size {
            return Err(ObjectError::BadValue {
                field: "log_eq_size",
                value: u64::from(log_size),
                reason: "more entries than the device's log_max_eq_sz",
            });
        }
        let page_shift = u32::from(context.log_page_size()) + PAGE_UNIT_SHIFT;
        let offset = offset_in_page(context.page_offset(), page_shift);
        let ring = ring(page_shift, offset, EQE_BYTES << log_size)?;
        Ok(Eq {
            eqn,
            log_size,
            uar_page: context.uar_page(),
            vector: context.intr(),
            event_bitmask,
            overrun_ignore: context.oi(),
            ring,
            pi: 0,
            ci: 0,
            armed: false,
            overruns: 0,
            users: 0,
            context: *context,
        })
    }

    /// Whether it wants events of this type.
    pub fn wants(&self, event_type: u8) -> bool {
        self.event_bitmask[usize::from(event_type / 64)] >> (event_type % 64) & 1 != 0
    }

    /// Number of entries that the host has not consumed, as its doorbells tell (24-bit indices).
    pub fn outstanding(&self) -> u32 {
        self.pi.wrapping_sub(self.ci) & 0xff_ffff
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        1 << self.log_size
    }
}
