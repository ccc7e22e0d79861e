//! Shared receive queues: a linked list of WQEs in a ring's memory (PRM, SRQ and RMP).

use ferroce_firmware_iface::layouts::Srqc;

use super::buffer::{PAGE_UNIT_SHIFT, PageList, offset_in_page};
use super::error::ObjectError;

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct Srq {
    /// Its number.
    pub srqn: u32,
    /// Protection domain.
    pub pd: u32,
    /// Number of WQEs, a power of two.
    pub wqes: u32,
    /// log2 of a WQE's bytes.
    pub log_stride: u32,
    /// Its ring.
    pub ring: PageList,
    /// IOVA of its doorbell record: be32 count of posted WQEs.
    pub dbr: u64,
    /// Slot of the next WQE to take.
    pub head: u16,
    /// WQEs taken since it was made.
    pub taken: u16,
    /// WQEs posted since it was made, as last read from the record.
    pub posted: u16,
    /// When fewer WQEs than this are left, an event is raised once; 0: none.
    pub limit: u16,
    /// It was broken by what its memory held.
    pub error: bool,
    /// QPs on it.
    pub users: u32,
    /// The context as it was created, for queries.
    pub context: Srqc,
}

impl Srq {
    /// Decodes a context; `ring` gives the pages for a page shift, an offset and a length.
    ///
    /// # Errors
    /// Sizes that can't be, a record that is not aligned, or what `ring` says.
    pub fn new(
        srqn: u32,
        context: &Srqc,
        ring: impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError>,
    ) -> Result<Srq, ObjectError> {
        if !context.dbr_addr().is_multiple_of(8) {
            return Err(ObjectError::BadValue {
                field: "dbr_addr",
                value: context.dbr_addr(),
                reason: "the doorbell record is 8 bytes and aligned",
            });
        }
        let log_stride = u32::from(context.log_rq_stride()) + 4;
        let wqes = 1u32 << context.log_srq_size();
        let page_shift = u32::from(context.log_page_size()) + PAGE_UNIT_SHIFT;
        let offset = offset_in_page(context.page_offset(), page_shift);
        Ok(Srq {
            srqn,
            pd: context.pd(),
            wqes,
            log_stride,
            ring: ring(page_shift, offset, u64::from(wqes) << log_stride)?,
            dbr: context.dbr_addr(),
            head: 0,
            taken: 0,
            posted: 0,
            limit: context.lwm(),
            error: false,
            users: 0,
            context: *context,
        })
    }
}
