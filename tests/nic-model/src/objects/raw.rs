//! Raw Ethernet queues and what frames pass on their way to and from them.
//!
//! ```text
//!   SQ ─▶ TIS ─▶ wire ─▶ flow tables ─▶ TIR ─▶ (hash, RQT) ─▶ RQ
//! ```

use ferroce_firmware_iface::layouts::{Rqc, Sqc, Tirc, Tisc, Wq};

use super::buffer::{PAGE_UNIT_SHIFT, PageList, offset_in_page};
use super::error::ObjectError;
use super::qp::{RecvRing, SendRing, WQEBB_BYTES};

/// Largest log2 of the entries of a work queue: indices have 16 bits.
const MAX_LOG_WQ_SIZE: u8 = 15;
/// `wq_type` of a ring.
const CYCLIC: u8 = 1;

/// State of an SQ or RQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RawState {
    /// 0.
    Reset,
    /// 1: it works.
    Ready,
    /// 3.
    Error,
}

impl RawState {
    /// From the PRM's number.
    pub fn from_prm(value: u8) -> Option<RawState> {
        Some(match value {
            0 => RawState::Reset,
            1 => RawState::Ready,
            3 => RawState::Error,
            _ => return None,
        })
    }

    /// The PRM's number.
    pub fn prm(self) -> u8 {
        match self {
            RawState::Reset => 0,
            RawState::Ready => 1,
            RawState::Error => 3,
        }
    }
}

fn bad(field: &'static str, value: u64, reason: &'static str) -> ObjectError {
    ObjectError::BadValue { field, value, reason }
}

/// What SQ and RQ need of their work queue's description; gives the ring's pages.
fn ring_of(
    wq: &Wq,
    bytes: u64,
    buffer: impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError>,
) -> Result<PageList, ObjectError> {
    if wq.wq_type() != CYCLIC {
        return Err(bad(
            "wq_type",
            wq.wq_type().into(),
            "only cyclic queues are there",
        ));
    }
    if !wq.dbr_addr().is_multiple_of(8) {
        return Err(bad(
            "dbr_addr",
            wq.dbr_addr(),
            "the doorbell record is 8 bytes and aligned",
        ));
    }
    let page_shift = u32::from(wq.log_wq_pg_sz()) + PAGE_UNIT_SHIFT;
    buffer(page_shift, offset_in_page(wq.page_offset(), page_shift), bytes)
}

fn log_size(wq: &Wq) -> Result<u8, ObjectError> {
    match wq.log_wq_sz() {
        log if log <= MAX_LOG_WQ_SIZE => Ok(log),
        log => Err(bad("log_wq_sz", log.into(), "indices have 16 bits")),
    }
}

/// A send queue.
#[derive(Debug)]
pub struct SendQueue {
    /// Its number, which doorbells name as they name a QPN.
    pub sqn: u32,
    /// Where it completes.
    pub cqn: u32,
    /// Where it is rung.
    pub uar_page: u32,
    /// Protection domain of its keys.
    pub pd: u32,
    /// TIS that it sends through.
    pub tisn: u32,
    /// User index of its completions.
    pub user_index: u32,
    /// IOVA of the doorbell record.
    pub dbr: u64,
    /// The ring's pages.
    pub buffer: PageList,
    /// The ring.
    pub ring: SendRing,
    /// State.
    pub state: RawState,
    /// It waits for its turn.
    pub queued: bool,
    /// The context as the host gave it.
    pub context: Sqc,
}

impl SendQueue {
    /// An SQ in reset.
    ///
    /// # Errors
    /// A context that can't be had.
    pub fn new(
        sqn: u32,
        context: &Sqc,
        buffer: impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError>,
    ) -> Result<SendQueue, ObjectError> {
        let wq = context.wq();
        if wq.log_wq_stride() != 6 {
            return Err(bad(
                "log_wq_stride",
                wq.log_wq_stride().into(),
                "an SQ has blocks of 64 bytes",
            ));
        }
        let wqebbs = 1u32 << log_size(wq)?;
        let buffer = ring_of(wq, u64::from(wqebbs * WQEBB_BYTES), buffer)?;
        Ok(SendQueue {
            sqn,
            cqn: context.cqn(),
            uar_page: wq.uar_page(),
            pd: wq.pd(),
            tisn: context.tis_num_0(),
            user_index: context.user_index(),
            dbr: wq.dbr_addr(),
            buffer,
            ring: SendRing {
                wqebbs,
                ..SendRing::default()
            },
            state: RawState::Reset,
            queued: false,
            context: *context,
        })
    }
}

/// A receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    /// Its number.
    pub rqn: u32,
    /// Where it completes.
    pub cqn: u32,
    /// Protection domain of its keys.
    pub pd: u32,
    /// User index of its completions.
    pub user_index: u32,
    /// IOVA of the doorbell record.
    pub dbr: u64,
    /// The ring's pages.
    pub buffer: PageList,
    /// The ring.
    pub ring: RecvRing,
    /// State.
    pub state: RawState,
    /// VLAN tags stay in the frame.
    pub keep_vlan: bool,
    /// Frames that found no receive posted.
    pub out_of_buffer: u32,
    /// The context as the host gave it.
    pub context: Rqc,
}

impl ReceiveQueue {
    /// An RQ in reset.
    ///
    /// # Errors
    /// A context that can't be had.
    pub fn new(
        rqn: u32,
        context: &Rqc,
        buffer: impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError>,
    ) -> Result<ReceiveQueue, ObjectError> {
        let wq = context.wq();
        if context.mem_rq_type() != 0 {
            return Err(bad(
                "mem_rq_type",
                context.mem_rq_type().into(),
                "only inline memory is there",
            ));
        }
        if !(4..=11).contains(&wq.log_wq_stride()) {
            return Err(bad(
                "log_wq_stride",
                wq.log_wq_stride().into(),
                "16 to 2048 bytes",
            ));
        }
        let ring = RecvRing {
            wqes: 1u32 << log_size(wq)?,
            log_stride: u32::from(wq.log_wq_stride()),
            signature: wq.wq_signature(),
            ..RecvRing::default()
        };
        let buffer = ring_of(wq, u64::from(ring.wqes) << ring.log_stride, buffer)?;
        Ok(ReceiveQueue {
            rqn,
            cqn: context.cqn(),
            pd: wq.pd(),
            user_index: context.user_index(),
            dbr: wq.dbr_addr(),
            buffer,
            ring,
            state: RawState::Reset,
            keep_vlan: context.vsd(),
            out_of_buffer: 0,
            context: *context,
        })
    }
}

/// A transport interface send object.
#[derive(Clone, Debug)]
pub struct Tis {
    /// The context.
    pub context: Tisc,
    /// SQs that send through it.
    pub users: u32,
}

/// A transport interface receive object.
#[derive(Clone, Debug)]
pub struct Tir {
    /// The context.
    pub context: Tirc,
}

/// A receive queue table.
#[derive(Clone, Debug)]
pub struct Rqt {
    /// The RQs, by hash.
    pub rqs: Vec<u32>,
}
