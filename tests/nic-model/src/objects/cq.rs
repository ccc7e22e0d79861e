//! Completion queues: rings in host memory that the device writes completions into.

use ferroce_firmware_iface::layouts::Cqc;

use super::buffer::{PAGE_UNIT_SHIFT, PageList, offset_in_page};
use super::error::ObjectError;

/// Whether a CQ still takes completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CqState {
    /// It does.
    Good,
    /// It was overrun, or its memory could not be written; all later completions are lost.
    Error,
}

/// A request for one completion event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arm {
    /// Only completions with the solicited bit, and errors, count.
    pub solicited_only: bool,
    /// Sequence number of the request, 2 bits.
    pub sn: u8,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// Its number.
    pub cqn: u32,
    /// log2 of its entries.
    pub log_size: u32,
    /// log2 of an entry's bytes: 6 or 7.
    pub log_cqe_bytes: u32,
    /// The UAR page in which its arms are accepted.
    pub uar_page: u32,
    /// The event queue that it reports to.
    pub eqn: u32,
    /// IOVA of its doorbell record: be32 consumer index, be32 arm image.
    pub dbr: u64,
    /// Its ring.
    pub ring: PageList,
    /// Whether the device may overwrite entries that were not consumed.
    pub overrun_ignore: bool,
    /// Whether it still takes completions.
    pub state: CqState,
    /// Entries written since it was made; wraps at 2^32.
    pub pi: u32,
    /// The host's consumer index as last read from the record, 24 bits.
    pub ci: u32,
    /// The event that the host waits for.
    pub arm: Option<Arm>,
    /// Sequence number of the arm that the last event answered.
    pub answered_sn: Option<u8>,
    /// Index after the last entry that counts for a solicited arm, with the width of `pi`.
    pub solicited_pi: Option<u32>,
    /// QPs and SRQs that report to it.
    pub users: u32,
    /// The context as it was created, for queries.
    pub context: Cqc,
}

impl Cq {
    /// Decodes a context; `ring` gives the pages for a page shift, an offset and a length.
    ///
    /// # Errors
    /// Sizes that can't be, a record that is not aligned, or what `ring` says.
    pub fn new(
        cqn: u32,
        context: &Cqc,
        max_log_size: u32,
        ring: impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError>,
    ) -> Result<Cq, ObjectError> {
        let bad = |field, value, reason| ObjectError::BadValue { field, value, reason };
        let log_size = u32::from(context.log_cq_size());
        if log_size > max_log_size {
            let reason = "more entries than the device's log_max_cq_sz";
            return Err(bad("log_cq_size", u64::from(log_size), reason));
        }
        let log_cqe_bytes = match context.cqe_sz() {
            0 => 6,
            1 => 7,
            other => {
                return Err(bad(
                    "cqe_sz",
                    u64::from(other),
                    "entries are 64 (0) or 128 (1) bytes",
                ));
            }
        };
        if !context.dbr_addr().is_multiple_of(8) {
            return Err(bad(
                "dbr_addr",
                context.dbr_addr(),
                "the doorbell record is 8 bytes and aligned",
            ));
        }
        let page_shift = u32::from(context.log_page_size()) + PAGE_UNIT_SHIFT;
        let offset = offset_in_page(context.page_offset(), page_shift);
        let ring = ring(page_shift, offset, 1 << (log_size + log_cqe_bytes))?;
        Ok(Cq {
            cqn,
            log_size,
            log_cqe_bytes,
            uar_page: context.uar_page(),
            eqn: context.c_eqn_or_apu_element(),
            dbr: context.dbr_addr(),
            ring,
            overrun_ignore: context.oi(),
            state: CqState::Good,
            pi: 0,
            ci: 0,
            arm: None,
            answered_sn: None,
            solicited_pi: None,
            users: 0,
            context: *context,
        })
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        1 << self.log_size
    }

    /// Number of entries that the host has not consumed, by the last consumer index read (24-bit indices).
    pub fn outstanding(&self) -> u32 {
        self.pi.wrapping_sub(self.ci) & 0xff_ffff
    }

    /// Whether the entries from consumer index `ci` (24 bits) on hold one that `arm` waits for.
    pub fn has_what_arm_waits_for(&self, arm: Arm, ci: u32) -> bool {
        let since = |pi: u32| {
            let n = pi.wrapping_sub(ci) & 0xff_ffff;
            n != 0 && n <= self.entries()
        };
        if arm.solicited_only {
            self.solicited_pi.is_some_and(since)
        } else {
            since(self.pi)
        }
    }
}
