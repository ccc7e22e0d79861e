//! The parts that a queue pair is made of: slots, memory, places in its completion queues, its context for firmware.

use std::sync::Arc;

use ferroce_firmware_iface::cmds::{PM_STATE_MIGRATED, rq_type, service};
use ferroce_firmware_iface::layouts::Qpc;

use super::attr::{QpConfig, Shapes};
use super::cq::{Cq, Promise, Reservation};
use super::error::CreateError;
use super::local::{LocalBuffer, LocalInner};
use super::pages;
use super::pd::Pd;
use super::srq::Srq;
use super::user_index::UserIndexGuard;
use crate::mem::DmaBuffer;
use crate::ring::{QpType, WQEBB_BYTES, WqShared};

/// The slots of both queues.
pub(super) struct Slots {
    pub(super) sq: Option<Arc<WqShared<LocalInner>>>,
    pub(super) rq: Option<Arc<WqShared<LocalInner>>>,
}

impl Slots {
    pub(super) fn new(shapes: &Shapes) -> Slots {
        Slots {
            sq: shapes.sq.map(|(shape, _)| WqShared::new(shape.blocks)),
            rq: shapes.rq.map(|(shape, _)| WqShared::new(shape.entries)),
        }
    }

    /// No request of these slots completes any more.
    pub(super) fn retire(&self) {
        self.sq.iter().chain(&self.rq).for_each(|slots| slots.retire());
    }

    /// Takes the buffers of requests that will not complete; the device must be done with them.
    pub(super) fn reclaim(&self) -> Vec<LocalBuffer> {
        let both = self.sq.iter().chain(&self.rq);
        both.flat_map(|slots| slots.take_all())
            .map(LocalBuffer::reclaim)
            .collect()
    }
}

/// Where the parts of a QP's memory are.
pub(super) struct Layout {
    pub(super) rq_bytes: usize,
    pub(super) sq_bytes: usize,
}

impl Layout {
    pub(super) fn new(shapes: &Shapes) -> Layout {
        let rq_bytes = shapes
            .rq
            .map_or(0, |(shape, _)| (shape.entries * shape.stride) as usize);
        let sq_bytes = shapes
            .sq
            .map_or(0, |(shape, _)| (shape.blocks * WQEBB_BYTES) as usize);
        Layout { rq_bytes, sq_bytes }
    }

    /// Bytes of the queues; the doorbell record follows.
    pub(super) fn queues(&self) -> usize {
        self.rq_bytes + self.sq_bytes
    }
}

/// A QP's place in its CQs, while it is being made.
pub(super) struct Places {
    pub(super) send: Option<Reservation>,
    pub(super) recv: Option<Reservation>,
}

impl Places {
    pub(super) fn reserve(
        config: &QpConfig,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: Option<&Srq>,
        index: &Arc<UserIndexGuard>,
    ) -> Result<Places, CreateError> {
        let shared = srq.map(|srq| srq.place_in(recv_cq)).transpose()?;
        if send_cq.is_same(recv_cq) {
            let both = config.max_send_wr + config.max_recv_wr;
            return Ok(Places {
                send: Some(send_cq.reserve("send and receive", both, index, shared)?),
                recv: None,
            });
        }
        let place = |cq: &Cq, queue, entries, shared: Option<Arc<Promise>>| match (entries, &shared) {
            (0, None) => Ok(None),
            _ => cq.reserve(queue, entries, index, shared).map(Some),
        };
        Ok(Places {
            send: place(send_cq, "send", config.max_send_wr, None)?,
            recv: place(recv_cq, "receive", config.max_recv_wr, shared)?,
        })
    }
}

/// The CQs in which a QP's requests complete.
pub(super) struct Ends {
    pub(super) key: u32,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
}

impl Ends {
    pub(super) fn each(&self, act: impl Fn(&Cq)) {
        act(&self.send_cq);
        if !self.send_cq.is_same(&self.recv_cq) {
            act(&self.recv_cq);
        }
    }

    /// Completions are dropped from now on.
    pub(super) fn mute(&self) {
        self.each(|cq| cq.mute(self.key));
    }

    /// No more completions will come.
    pub(super) fn detach(&self) {
        self.each(|cq| cq.detach(self.key));
    }
}

/// `qpc.st`.
fn service_of(qp_type: QpType) -> u8 {
    match qp_type {
        QpType::Rc => service::RC,
        QpType::Uc => service::UC,
        QpType::Ud => service::UD,
        QpType::Gsi => service::GSI,
    }
}

/// `qpc.mtu` and `qpc.log_msg_max` of datagrams, as Linux mlx5_ib sets them: 4096 bytes for UD, 256 for GSI.
pub(super) fn datagram_limits(qp_type: QpType) -> Option<(u8, u8)> {
    match qp_type {
        QpType::Rc | QpType::Uc => None,
        QpType::Ud => Some((5, 12)),
        QpType::Gsi => Some((1, 8)),
    }
}

/// The context that CREATE_QP is given.
pub(super) fn describe(
    pd: &Pd,
    (send_cq, recv_cq): (&Cq, &Cq),
    srq: Option<&Srq>,
    shapes: &Shapes,
    index: &UserIndexGuard,
    buffer: &DmaBuffer,
) -> Result<Qpc, CreateError> {
    let layout = Layout::new(shapes);
    let list = pages::of_queue(buffer.iova(), layout.queues() as u64);
    let mut qpc = Qpc::default();
    qpc.set_st(service_of(shapes.granted.qp_type));
    qpc.set_pm_state(PM_STATE_MIGRATED)?;
    qpc.set_pd(pd.pdn().get())?;
    match shapes.sq {
        Some((shape, _)) => qpc.set_log_sq_size(shape.blocks.ilog2() as u8)?,
        None => qpc.set_no_sq(true),
    }
    match (shapes.rq, srq) {
        (_, Some(srq)) => {
            qpc.set_rq_type(rq_type::SRQ)?;
            qpc.set_srqn_rmpn_xrqn(srq.srqn().get())?;
        }
        (Some((shape, _)), None) => {
            qpc.set_log_rq_size(shape.entries.ilog2() as u8)?;
            // Strides count from 16 bytes on.
            qpc.set_log_rq_stride((shape.stride / 16).ilog2() as u8)?;
        }
        (None, None) => qpc.set_rq_type(rq_type::ZERO_LENGTH)?,
    }
    qpc.set_ts_format(shapes.granted.timestamps.to_prm())?;
    qpc.set_uar_page(pd.context().uar().index())?;
    qpc.set_user_index(index.get())?;
    qpc.set_log_page_size(pages::queue_log_page_size(&list))?;
    qpc.set_cqn_snd(send_cq.cqn().get())?;
    qpc.set_cqn_rcv(recv_cq.cqn().get())?;
    qpc.set_dbr_addr(buffer.iova() + layout.queues() as u64);
    Ok(qpc)
}
