//! What of the data path goes into a recording: host memory is read a second time for it, so that the paths that do
//! the work don't know of it.

use super::completion::Completion;
use super::{DataPlane, read_ring};
use crate::host::HostMemory;
use crate::objects::PageList;
use crate::objects::qp::{ReceiveFrom, SendRing, WQEBB_BYTES};
use crate::record::Recorder;

/// Bytes of a segment, the unit of DS.
const SEGMENT: usize = 16;
/// Longest WQE: DS has 6 bits.
const MAX_WQE_BYTES: usize = 64 * SEGMENT;

impl DataPlane {
    /// Records the data path from now on; `None` stops it.
    pub fn set_recorder(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// What was posted when a send doorbell is rung: the record, and the WQEs that are new.
    pub(super) fn record_sends(&mut self, number: u32) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let (dbr, ring, buffer) = if let Some(sq) = self.objects.sqs.get_mut(number) {
            (sq.dbr, &mut sq.ring, &sq.buffer)
        } else if let Some(qp) = self.objects.qps.get_mut(number) {
            (qp.dbr, &mut qp.sq, &qp.buffer)
        } else {
            return;
        };
        let Some(record) = read_record(&self.host, dbr) else {
            return;
        };
        recorder.doorbell_record("qp", number, &record);
        let pi = u16::from_be_bytes([record[6], record[7]]);
        // The engine may have fetched them already: it looks at the record whenever the queue has its turn.
        let mut at = ring.recorded;
        while pi.wrapping_sub(at) != 0 && u32::from(pi.wrapping_sub(at)) <= ring.wqebbs {
            let Some(wqe) = read_wqe(&self.host, buffer, ring, at) else {
                break;
            };
            recorder.wqe("send", number, at, &wqe);
            at = at.wrapping_add(wqe.len().div_ceil(WQEBB_BYTES as usize) as u16);
        }
        ring.recorded = pi;
    }

    /// The receive WQE that a completion is of.
    pub(super) fn record_receive(&self, completion: &Completion) {
        let Some(recorder) = self.recorder.as_ref().filter(|_| completion.of_receive()) else {
            return;
        };
        let (qpn, index) = (completion.qpn, completion.wqe_counter);
        let Some(qp) = self.objects.qps.get(qpn) else {
            return;
        };
        let (ring, log_stride, base, wqes) = match qp.receive_from {
            ReceiveFrom::Own => (&qp.buffer, qp.rq.log_stride, qp.rq.base, qp.rq.wqes),
            ReceiveFrom::Srq(srqn) => match self.objects.srqs.get(srqn) {
                Some(srq) => (&srq.ring, srq.log_stride, 0, srq.wqes),
                None => return,
            },
            ReceiveFrom::Nowhere => return,
        };
        let kind = if qp.receive_from == ReceiveFrom::Own {
            "recv"
        } else {
            "srq"
        };
        let slot = u64::from(index) & u64::from(wqes.saturating_sub(1));
        let mut wqe = vec![0; (1usize << log_stride).min(MAX_WQE_BYTES)];
        if read_ring(&self.host, ring, base + (slot << log_stride), &mut wqe).is_ok() {
            recorder.wqe(kind, qpn, index, &wqe);
        }
    }

    /// The doorbell record of a CQ.
    pub(super) fn record_cq(&self, cqn: u32) {
        if let (Some(recorder), Some(cq)) = (&self.recorder, self.objects.cqs.get(cqn))
            && let Some(record) = read_record(&self.host, cq.dbr)
        {
            recorder.doorbell_record("cq", cqn, &record);
        }
    }
}

fn read_record(host: &HostMemory, dbr: u64) -> Option<[u8; 8]> {
    let mut record = [0; 8];
    host.read(dbr, &mut record).ok()?;
    Some(record)
}

/// The WQE that starts at block `at` of a ring.
pub(super) fn read_wqe(host: &HostMemory, buffer: &PageList, ring: &SendRing, at: u16) -> Option<Vec<u8>> {
    let mut wqe = vec![0; WQEBB_BYTES as usize];
    let block = |number: u16, out: &mut [u8]| {
        let slot = u32::from(at.wrapping_add(number)) & (ring.wqebbs - 1);
        read_ring(host, buffer, ring.base + u64::from(slot * WQEBB_BYTES), out).ok()
    };
    block(0, &mut wqe)?;
    let bytes = usize::from(wqe[7] & 0x3f) * SEGMENT;
    wqe.resize(bytes.max(SEGMENT), 0);
    for (number, part) in wqe.chunks_mut(WQEBB_BYTES as usize).enumerate().skip(1) {
        block(number as u16, part)?;
    }
    Some(wqe)
}
