//! How raw Ethernet queues are made: memory, contexts, commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ferroce_firmware_iface::cmds::{
    CreateCq, CreateRq, CreateSq, DestroyCq, DestroyRq, DestroySq, ModifyRq, ModifySq, QueryNicVportContext,
    WQ_TYPE_CYCLIC, raw_queue_state,
};
use ferroce_firmware_iface::layouts::{Cqc, Rqc, Sqc, Wq};
use ferroce_hw_regs::uar;
use ferroce_hw_regs::wqe::WQEBB_BYTES;

use super::firmware::Guard;
use super::queues::{EthernetConfig, HEALTHY};
use super::send::{InlineMode, Producer};
use crate::context::Context;
use crate::events::{AsyncEvent, CompCounter, Object};
use crate::mem::{DmaBuffer, DmaRing};
use crate::ring::{CQE_BYTES, CqRing, QpState, RqLimits, RqProducer, RqShape, WqConsumer, WqShared};
use crate::verbs::{CreateError, LimitError, Pd, made, of_queue, queue_log_page_size};

/// Bytes that a doorbell record takes: a cache line.
const RECORD_BYTES: usize = 64;

pub(super) fn check(context: &Context, config: &EthernetConfig) -> Result<(), CreateError> {
    let general = context.caps().general();
    if !general.eth_net_offloads() {
        let what = "it has no raw Ethernet queues (eth_net_offloads)";
        return Err(CreateError::Capability { what });
    }
    if general.cqe_version() == 0 {
        let what = "its completions carry no user index (cqe_version 0)";
        return Err(CreateError::Capability { what });
    }
    // Indices of work queues have 16 bits, and a WQE takes up to 4 blocks.
    let max = 1u64 << general.log_max_wq_sz().min(13);
    let reason = "is what its work queues hold (log_max_wq_sz)";
    LimitError::check(
        "raw Ethernet RQ",
        "receive_buffers",
        config.receive_buffers.into(),
        1..=max,
        reason,
    )?;
    LimitError::check(
        "raw Ethernet SQ",
        "send_buffers",
        config.send_buffers.into(),
        1..=max / 4,
        reason,
    )?;
    let last = context.completion_vectors().saturating_sub(1) as u64;
    let reason = "are the completion vectors";
    Ok(LimitError::check(
        "raw Ethernet CQ",
        "vector",
        config.vector as u64,
        0..=last,
        reason,
    )?)
}

/// What the device wants inline. Source: PRM, `wqe_inline_mode` of the Ethernet offload capabilities: 0 layer 2, 1 what
/// the virtual port says, 2 nothing.
pub(super) fn inline_mode(context: &Context) -> Result<InlineMode, CreateError> {
    Ok(
        match context.caps().ethernet().map_or(0, |caps| caps.wqe_inline_mode()) {
            0 => InlineMode::L2,
            1 => InlineMode::from_prm(context.exec(&QueryNicVportContext)?.min_wqe_inline_mode()),
            _ => InlineMode::None,
        },
    )
}

pub(super) struct CompletionQueue {
    pub(super) guard: Guard,
    pub(super) ring: CqRing<()>,
    pub(super) events: CqEvents,
    pub(super) failed: Arc<AtomicU8>,
}

/// The events of a CQ, which are counted for as long as this lives.
#[derive(Debug)]
pub(super) struct CqEvents {
    completions: CompCounter,
    cqn: u32,
    context: Arc<Context>,
}

impl CqEvents {
    /// Counts the CQ's completion events, and lets its errors set `failed`.
    fn new(context: &Arc<Context>, cqn: u32, failed: Arc<AtomicU8>) -> CqEvents {
        let handler = move |event: &AsyncEvent| {
            if let AsyncEvent::Cq { syndrome, .. } = event {
                failed.store(syndrome.0.max(1), Ordering::Release);
            }
        };
        context.handle_events(Object::Cq(cqn), Arc::new(handler));
        CqEvents {
            completions: context.count_completions(cqn),
            cqn,
            context: context.clone(),
        }
    }

    pub(super) fn cqn(&self) -> u32 {
        self.cqn
    }

    pub(super) fn count(&self) -> u64 {
        self.completions.count()
    }

    pub(super) fn counter(&self) -> CompCounter {
        self.completions.clone()
    }
}

impl Drop for CqEvents {
    fn drop(&mut self) {
        self.context.forget_events(Object::Cq(self.cqn));
        self.context.forget_completions(self.cqn);
    }
}

impl CompletionQueue {
    pub(super) fn new(
        context: &Arc<Context>,
        config: &EthernetConfig,
    ) -> Result<CompletionQueue, CreateError> {
        // One entry stays free, so that a full ring and an empty one differ.
        let entries = (config.receive_buffers + config.send_buffers + 1).next_power_of_two();
        let bytes = (entries * CQE_BYTES) as usize;
        let buffer = Arc::new(context.dma().alloc(bytes + RECORD_BYTES)?);
        CqRing::<()>::prepare(&mut DmaRing::new(buffer.clone(), 0, entries)?);
        let list = of_queue(buffer.iova(), bytes as u64);
        let mut cqc = Cqc::default();
        cqc.set_log_cq_size(entries.ilog2() as u8)?;
        cqc.set_log_page_size(queue_log_page_size(&list))?;
        cqc.set_uar_page(context.uar().index())?;
        cqc.set_c_eqn_or_apu_element(
            context
                .comp_eqn(config.vector)
                .map_err(CreateError::EventQueue)?
                .get(),
        );
        cqc.set_dbr_addr(buffer.iova() + bytes as u64);
        let doorbell = context.uar().page().doorbell(uar::CQ_DOORBELL)?;
        let (mem, record) = (
            DmaRing::new(buffer.clone(), 0, entries)?,
            DmaRing::new(buffer.clone(), bytes, 1)?,
        );
        let created = context.exec(&CreateCq {
            cqc: &cqc,
            pages: &list.pages,
        });
        let cqn = made(created, || buffer.leak_on_drop())?;
        let guard = Guard::new(context, cqn.to_string(), &DestroyCq { cqn }).with_memory([buffer]);
        let cqn = cqn.get();
        let failed = Arc::new(AtomicU8::new(HEALTHY));
        Ok(CompletionQueue {
            guard,
            ring: CqRing::new(mem, record, doorbell, cqn),
            events: CqEvents::new(context, cqn, failed.clone()),
            failed,
        })
    }
}

/// Numbers that both queues are told.
pub(super) struct Numbers {
    pub(super) cqn: u32,
    pub(super) tisn: u32,
    pub(super) index: u32,
}

/// What firmware is told of a ring.
fn describe(
    wq: &mut Wq,
    pd: &Pd,
    buffer: &DmaBuffer,
    log_stride: u32,
    entries: u32,
) -> Result<Vec<u64>, CreateError> {
    let bytes = u64::from(entries) << log_stride;
    let list = of_queue(buffer.iova(), bytes);
    wq.set_wq_type(WQ_TYPE_CYCLIC)?;
    wq.set_pd(pd.pdn().get())?;
    wq.set_dbr_addr(buffer.iova() + bytes);
    wq.set_log_wq_stride(log_stride as u8)?;
    wq.set_log_wq_pg_sz(queue_log_page_size(&list))?;
    wq.set_log_wq_sz(entries.ilog2() as u8)?;
    Ok(list.pages)
}

pub(super) fn send_queue(
    pd: &Pd,
    config: &EthernetConfig,
    mode: InlineMode,
    numbers: &Numbers,
) -> Result<(Guard, Producer, WqConsumer<()>), CreateError> {
    let context = pd.context();
    let blocks = (config.send_buffers * mode.blocks()).next_power_of_two();
    let bytes = blocks as usize * WQEBB_BYTES;
    let buffer = Arc::new(context.dma().alloc(bytes + RECORD_BYTES)?);
    let mut sqc = Sqc::default();
    sqc.set_flush_in_error_en(true);
    sqc.set_min_wqe_inline_mode(mode.prm())?;
    sqc.set_user_index(numbers.index)?;
    sqc.set_cqn(numbers.cqn)?;
    sqc.set_tis_lst_sz(1);
    sqc.set_tis_num_0(numbers.tisn)?;
    sqc.wq_mut().set_uar_page(context.uar().index())?;
    let pages = describe(sqc.wq_mut(), pd, &buffer, WQEBB_BYTES.ilog2(), blocks)?;
    let doorbell = context.uar().page().doorbell(uar::BF_OFFSET)?;
    let (mem, record) = (
        DmaRing::new(buffer.clone(), 0, blocks)?,
        DmaRing::new(buffer.clone(), bytes, 1)?,
    );
    let created = context.exec(&CreateSq {
        context: &sqc,
        pages: &pages,
    });
    let sqn = made(created, || buffer.leak_on_drop())?;
    let guard = Guard::new(context, format!("SQ {sqn:#x}"), &DestroySq { sqn }).with_memory([buffer]);
    context.exec(&ModifySq {
        sqn,
        from: raw_queue_state::RESET,
        to: raw_queue_state::READY,
    })?;
    let shared = WqShared::new(blocks);
    let consumer = WqConsumer::new(shared.clone(), config.send_buffers);
    Ok((
        guard,
        Producer::new(mem, record, doorbell, shared, mode, sqn),
        consumer,
    ))
}

pub(super) fn receive_queue(
    pd: &Pd,
    config: &EthernetConfig,
    stride: usize,
    numbers: &Numbers,
) -> Result<(Guard, u32, RqProducer<()>, WqConsumer<()>), CreateError> {
    let context = pd.context();
    let what = "receive_buffers of a size that overflows";
    let shape = RqShape::new(config.receive_buffers, 1).ok_or(CreateError::Capability { what })?;
    let bytes = (shape.entries * shape.stride) as usize;
    let buffer = Arc::new(context.dma().alloc(bytes + RECORD_BYTES)?);
    let mut rqc = Rqc::default();
    // VLAN tags stay in the frame.
    rqc.set_vsd(true);
    rqc.set_user_index(numbers.index)?;
    rqc.set_cqn(numbers.cqn)?;
    let pages = describe(rqc.wq_mut(), pd, &buffer, shape.stride.ilog2(), shape.entries)?;
    let (mem, record) = (
        DmaRing::new(buffer.clone(), 0, (bytes / 16) as u32)?,
        DmaRing::new(buffer.clone(), bytes, 1)?,
    );
    let created = context.exec(&CreateRq {
        context: &rqc,
        pages: &pages,
    });
    let rqn = made(created, || buffer.leak_on_drop())?;
    let guard = Guard::new(context, format!("RQ {rqn:#x}"), &DestroyRq { rqn }).with_memory([buffer]);
    context.exec(&ModifyRq {
        rqn,
        from: raw_queue_state::RESET,
        to: raw_queue_state::READY,
    })?;
    let shared = WqShared::new(shape.entries);
    let limits = RqLimits {
        max_wr: config.receive_buffers,
        max_sge: 1,
        max_msg: stride as u64,
    };
    let mut producer = RqProducer::new(mem, record, shared.clone(), limits, shape.stride);
    // To the producer a queue that works is one in RTS.
    producer.set_state(QpState::Rts);
    let consumer = WqConsumer::new(shared, config.receive_buffers);
    Ok((guard, rqn, producer, consumer))
}
