//! Receive WQEs: the cyclic ring of a QP, and the linked list of an SRQ (PRM, receive queue).

use super::events::event_type;
use super::read_ring;
use crate::host::{HostError, HostMemory};
use crate::objects::qp::{ReceiveFrom, RecvRing};
use crate::objects::{PageList, Srq, Table};
use crate::rc::types::{RecvWork, Sge};

/// Bytes of a data segment.
const SEGMENT: usize = 16;
/// The key that ends a list that is shorter than its WQE.
const TERMINATOR_LKEY: u32 = 0x100;
/// Largest receive WQE: the stride field of a QP ends at 2^(7 + 4) bytes.
const MAX_WQE_BYTES: usize = 2048;
/// A receive WQE of four elements.
const SHORT_WQE_BYTES: usize = 64;

/// Where a QP's receives come from, for the length of a call.
pub(super) struct RecvSource<'a> {
    pub from: ReceiveFrom,
    pub ring: &'a mut RecvRing,
    pub buffer: &'a PageList,
    /// IOVA of the QP's doorbell record.
    pub dbr: u64,
    pub srqs: &'a mut Table<Srq>,
    /// What happened to SRQs during the call: PRM event type, and SRQN.
    pub srq_events: &'a mut Vec<(u8, u32)>,
}

impl RecvSource<'_> {
    /// Takes the next receive; `None` when there is none.
    pub fn take(&mut self, host: &HostMemory) -> Result<Option<RecvWork>, HostError> {
        match self.from {
            ReceiveFrom::Own => take_own(self.ring, self.buffer, self.dbr, host),
            ReceiveFrom::Srq(srqn) => match self.srqs.get_mut(srqn) {
                Some(srq) => take_shared(srq, host, self.srq_events),
                None => Ok(None),
            },
            ReceiveFrom::Nowhere => Ok(None),
        }
    }

    /// Receives posted and not taken; `None` for an SRQ, which gives no credits.
    pub fn credits(&self, host: &HostMemory) -> Option<u32> {
        match self.from {
            ReceiveFrom::Own => {
                let posted = host.read_be32(self.dbr).ok()? as u16;
                Some(u32::from(posted.wrapping_sub(self.ring.ci)).min(self.ring.wqes))
            }
            ReceiveFrom::Srq(_) => None,
            ReceiveFrom::Nowhere => Some(0),
        }
    }
}

pub(super) fn take_own(
    ring: &mut RecvRing,
    buffer: &PageList,
    dbr: u64,
    host: &HostMemory,
) -> Result<Option<RecvWork>, HostError> {
    if ring.wqes == 0 {
        return Ok(None);
    }
    if ring.pi == ring.ci {
        ring.pi = host.read_be32(dbr)? as u16;
    }
    let posted = ring.pi.wrapping_sub(ring.ci);
    if posted == 0 {
        return Ok(None);
    }
    if u32::from(posted) > ring.wqes {
        // More than fit the ring: the record is wrong, and no entry can be trusted.
        return Err(HostError::OutOfSlice {
            at: usize::from(posted),
            len: 1,
            slice: ring.wqes as usize,
        });
    }
    let slot = u64::from(ring.ci) & u64::from(ring.wqes - 1);
    let at = ring.base + (slot << ring.log_stride);
    let skip = if ring.signature { SEGMENT } else { 0 };
    let sges = read_list(host, buffer, at, 1 << ring.log_stride, skip)?;
    let id = u64::from(ring.ci);
    ring.ci = ring.ci.wrapping_add(1);
    Ok(Some(RecvWork { id, sges }))
}

/// Takes the next receive of an SRQ. What can't be read breaks the SRQ, once (IBTA vol. 1, 10.2.9.3).
fn take_shared(
    srq: &mut Srq,
    host: &HostMemory,
    events: &mut Vec<(u8, u32)>,
) -> Result<Option<RecvWork>, HostError> {
    if srq.error {
        return Ok(None);
    }
    let taken = take_linked(srq, host, events);
    if taken.is_err() {
        srq.error = true;
        events.push((event_type::SRQ_CATASTROPHIC, srq.srqn));
    }
    taken
}

fn take_linked(
    srq: &mut Srq,
    host: &HostMemory,
    events: &mut Vec<(u8, u32)>,
) -> Result<Option<RecvWork>, HostError> {
    let mut left = srq.posted.wrapping_sub(srq.taken);
    // The host may have posted more since; that matters where the queue looks empty, or below its limit.
    if left <= srq.limit {
        srq.posted = host.read_be32(srq.dbr)? as u16;
        left = srq.posted.wrapping_sub(srq.taken);
    }
    if left == 0 {
        return Ok(None);
    }
    if u32::from(left) > srq.wqes {
        return Err(HostError::OutOfSlice {
            at: usize::from(left),
            len: 1,
            slice: srq.wqes as usize,
        });
    }
    // Slots come from the list in host memory; the mask keeps any of them inside the ring.
    let slot = u64::from(srq.head) & u64::from(srq.wqes - 1);
    let at = slot << srq.log_stride;
    let mut next = [0; SEGMENT];
    read_ring(host, &srq.ring, at, &mut next)?;
    let sges = read_list(host, &srq.ring, at, 1 << srq.log_stride, SEGMENT)?;
    srq.head = u16::from_be_bytes([next[2], next[3]]);
    srq.taken = srq.taken.wrapping_add(1);
    if left <= srq.limit {
        srq.limit = 0;
        events.push((event_type::SRQ_LIMIT, srq.srqn));
    }
    Ok(Some(RecvWork { id: slot, sges }))
}

/// The data segments of a WQE of `bytes` bytes from `skip` on, up to the terminator.
fn read_list(
    host: &HostMemory,
    ring: &PageList,
    at: u64,
    bytes: usize,
    skip: usize,
) -> Result<Vec<Sge>, HostError> {
    // Most are short, and clearing the longest possible for each would cost more than reading it.
    let (mut short, mut long);
    let wqe = if bytes <= SHORT_WQE_BYTES {
        short = [0; SHORT_WQE_BYTES];
        &mut short[..bytes]
    } else {
        long = [0; MAX_WQE_BYTES];
        &mut long[..bytes.min(MAX_WQE_BYTES)]
    };
    read_ring(host, ring, at, wqe)?;
    let mut sges = Vec::new();
    for segment in wqe.get(skip..).unwrap_or_default().chunks_exact(SEGMENT) {
        let sge = data_segment(segment);
        if sge.lkey == TERMINATOR_LKEY && segment[..4] == [0; 4] {
            break;
        }
        sges.push(sge);
    }
    Ok(sges)
}

/// Decodes a data segment of 16 bytes. A byte count of 0 stands for 2^31 (PRM, data segment).
pub(super) fn data_segment(segment: &[u8]) -> Sge {
    let word =
        |at: usize| u32::from_be_bytes([segment[at], segment[at + 1], segment[at + 2], segment[at + 3]]);
    let len = match word(0) & 0x7fff_ffff {
        0 => 1 << 31,
        len => len,
    };
    Sge {
        addr: u64::from(word(8)) << 32 | u64::from(word(12)),
        len,
        lkey: word(4),
    }
}
