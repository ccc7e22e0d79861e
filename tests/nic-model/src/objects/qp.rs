//! Queue pairs: context, rings, and the transport's state.

use ferroce_firmware_iface::layouts::Qpc;

use super::buffer::{PAGE_UNIT_SHIFT, PageList, offset_in_page};
use super::error::ObjectError;
use crate::clock::Nanos;
use crate::engine::address::Path;
use crate::engine::counters::{QueueCounters, sum};
use crate::psn::Psn;
use crate::rc::types::QpState;
use crate::transport::Transport;

/// Bytes of a send WQE basic block.
pub const WQEBB_BYTES: u32 = 64;

/// The kind of a QP (`qpc.st`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// QP 1.
    Gsi,
    /// A QP that only changes memory keys.
    RegUmr,
    /// Any other; it can be made and moved through its states, and all its work fails.
    Other(u8),
}

impl Service {
    /// By the PRM's number.
    pub fn of(st: u8) -> Service {
        match st {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Ud,
            8 => Service::Gsi,
            0xc => Service::RegUmr,
            other => Service::Other(other),
        }
    }
}

/// Where the receives of a QP come from (`qpc.rq_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiveFrom {
    /// Its own ring.
    Own,
    /// An SRQ.
    Srq(u32),
    /// Nowhere: a receive queue of length 0.
    Nowhere,
}

/// A WQE that was written to a BlueFlame slot.
#[derive(Clone, Debug)]
pub struct SlotWqe {
    /// Index of its first WQEBB.
    pub index: u16,
    /// Whole WQEBBs.
    pub bytes: Vec<u8>,
}

/// The send ring.
#[derive(Clone, Debug, Default)]
pub struct SendRing {
    /// Offset of WQEBB 0 in the QP's buffer.
    pub base: u64,
    /// Number of WQEBBs, a power of two; 0: no send queue.
    pub wqebbs: u32,
    /// Index of the next WQEBB to fetch, 16 bits.
    pub ci: u16,
    /// Index of the next WQEBB that a recording has not seen.
    pub recorded: u16,
    /// A WQE could not be understood: what follows is not fetched until the QP is in error, then flushed.
    pub stuck: bool,
    /// Where the next WQE starts is not known any more.
    pub lost: bool,
    /// The WQE that is next, as it came by BlueFlame.
    pub slot: Option<SlotWqe>,
}

/// A receive ring.
#[derive(Clone, Debug, Default)]
pub struct RecvRing {
    /// Offset of WQE 0 in the buffer.
    pub base: u64,
    /// Number of WQEs, a power of two; 0: none.
    pub wqes: u32,
    /// log2 of a WQE's bytes.
    pub log_stride: u32,
    /// Index of the next WQE to take, 16 bits.
    pub ci: u16,
    /// Index after the last posted one, as last read from the record.
    pub pi: u16,
    /// WQEs start with a signature segment.
    pub signature: bool,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// Its kind.
    pub service: Service,
    /// Protection domain.
    pub pd: u32,
    /// CQ of sends.
    pub cqn_snd: u32,
    /// CQ of receives.
    pub cqn_rcv: u32,
    /// The UAR page in which its doorbells are accepted.
    pub uar_page: u32,
    /// What its CQEs carry as user index.
    pub user_index: u32,
    /// IOVA of its doorbell record: be32 receive counter, be32 send WQEBB counter.
    pub dbr: u64,
    /// Its buffer: receive ring, then send ring.
    pub buffer: PageList,
    /// Send ring.
    pub sq: SendRing,
    /// Receive ring, if it has one of its own.
    pub rq: RecvRing,
    /// Where receives come from.
    pub receive_from: ReceiveFrom,
    /// The effective context.
    pub context: Qpc,
    /// The state while there is no transport.
    pub state: QpState,
    /// The transport, from RTR on, of a connected QP.
    pub transport: Option<Transport>,
    /// How its packets are addressed, from RTR on.
    pub path: Option<Path>,
    /// PSN of the next datagram.
    pub datagram_psn: Psn,
    /// When its last CNP left.
    pub last_cnp: Option<Nanos>,
    /// It waits in the run queue.
    pub queued: bool,
    /// The time for which the timer queue holds an entry.
    pub timer_at: Option<Nanos>,
    /// What it counted, without its present transport's part.
    pub counts: QueueCounters,
    /// Its last WQE of an SRQ is to be told.
    pub last_wqe_due: bool,
    /// While in error: when to look for new receives next, and the interval.
    pub flush_poll: Option<(Nanos, u64)>,
}

impl Qp {
    /// Decodes a context; `buffer` gives the pages for a page shift, an offset and a length.
    ///
    /// # Errors
    /// Sizes that can't be, a record that is not aligned, or what `buffer` says.
    pub fn new(
        qpn: u32,
        context: &Qpc,
        buffer: impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError>,
    ) -> Result<Qp, ObjectError> {
        let bad = |field, value, reason| ObjectError::BadValue { field, value, reason };
        let receive_from = match context.rq_type() {
            0 | 2 => ReceiveFrom::Own,
            1 => ReceiveFrom::Srq(context.srqn_rmpn_xrqn()),
            3 => ReceiveFrom::Nowhere,
            other => return Err(bad("rq_type", u64::from(other), "there is no such receive queue")),
        };
        if !context.dbr_addr().is_multiple_of(8) {
            return Err(bad(
                "dbr_addr",
                context.dbr_addr(),
                "the doorbell record is 8 bytes and aligned",
            ));
        }
        let mut rq = RecvRing::default();
        if receive_from == ReceiveFrom::Own {
            rq.wqes = 1 << context.log_rq_size();
            rq.log_stride = u32::from(context.log_rq_stride()) + 4;
            rq.signature = context.wq_signature();
        }
        let rq_bytes = u64::from(rq.wqes) << rq.log_stride;
        let sq = SendRing {
            base: rq_bytes,
            wqebbs: if context.no_sq() {
                0
            } else {
                1 << context.log_sq_size()
            },
            ..SendRing::default()
        };
        let bytes = rq_bytes + u64::from(sq.wqebbs * WQEBB_BYTES);
        let page_shift = u32::from(context.log_page_size()) + PAGE_UNIT_SHIFT;
        let buffer = buffer(
            page_shift,
            offset_in_page(context.page_offset(), page_shift),
            bytes,
        )?;
        Ok(Qp {
            qpn,
            service: Service::of(context.st()),
            pd: context.pd(),
            cqn_snd: context.cqn_snd(),
            cqn_rcv: context.cqn_rcv(),
            uar_page: context.uar_page(),
            user_index: context.user_index(),
            dbr: context.dbr_addr(),
            buffer,
            sq,
            rq,
            receive_from,
            context: *context,
            state: QpState::Reset,
            transport: None,
            path: None,
            datagram_psn: Psn::default(),
            last_cnp: None,
            queued: false,
            timer_at: None,
            counts: QueueCounters::default(),
            last_wqe_due: false,
            flush_poll: None,
        })
    }

    /// Its state now.
    pub fn state(&self) -> QpState {
        self.transport.as_ref().map_or(self.state, Transport::state)
    }

    /// All that it counted.
    pub fn counters_now(&self) -> QueueCounters {
        let mut counts = self.counts;
        if let Some(transport) = &self.transport {
            counts.transport = sum(counts.transport, transport.counters());
            counts.out_of_buffer = counts.out_of_buffer.wrapping_add(transport.out_of_buffer());
        }
        counts
    }

    /// Back to RESET: rings empty, no transport.
    pub fn reset(&mut self) {
        self.counts = self.counters_now();
        self.sq.ci = 0;
        self.sq.recorded = 0;
        self.sq.stuck = false;
        self.sq.lost = false;
        self.sq.slot = None;
        self.rq.ci = 0;
        self.rq.pi = 0;
        self.transport = None;
        self.path = None;
        self.state = QpState::Reset;
        self.flush_poll = None;
        self.last_wqe_due = false;
    }
}

/// The number that the PRM gives a state (`qpc.state`).
pub fn prm_state(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqe => 4,
        QpState::Sqd => 5,
        QpState::Err => 6,
    }
}
