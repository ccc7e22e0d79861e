//! Shared receive queues in their three commands: SRQ (ISSI 0), XRC SRQ and receive memory pool (ISSI 1).
//!
//! They are one object with one number space; what differs is where a context has its fields.

use ferroce_firmware_iface::layouts::{
    ArmRqIn, ArmXrcSrqIn, CreateRmpIn, CreateRmpOut, CreateSrqIn, CreateSrqOut, CreateXrcSrqIn,
    CreateXrcSrqOut, DestroySrqIn, ModifyRmpIn, QueryRmpOut, QuerySrqIn, QuerySrqOut, QueryXrcSrqOut, Srqc,
    Wq, XrcSrqc,
};

use super::command::{Call, Exempt, Outcome, at_most, buffer, ok, output};
use super::refusal::Refusal;
use super::{Env, Firmware};

/// CREATE_XRC_SRQ and CREATE_RMP: umem offset and id as rdma-core's PRM has them.
const XRC_SRQ_UMEM: Exempt = &[(0x50, 0x5c)];

/// ARM_RQ op_mod: a limit of an SRQ.
const ARM_SRQ: u16 = 1;
/// `wq.wq_type`: a linked list of receive WQEs.
const LINKED_LIST: u8 = 0;
/// `rmpc.state`: ready.
const RMP_READY: u8 = 1;
/// Least bytes of a receive WQE, as log2: one data segment.
const LOG_LEAST_STRIDE: u8 = 4;

fn create(
    fw: &mut Firmware,
    env: &mut Env<'_>,
    srqc: &Srqc,
    buffer: crate::objects::Buffer<'_>,
) -> Result<u32, Refusal> {
    let caps = fw.general();
    at_most(
        "log_srq_size",
        srqc.log_srq_size().into(),
        caps.log_max_srq_sz().into(),
    )?;
    if srqc.wq_signature() && !caps.wq_signature() {
        return Err(Refusal::no_capability("wq_signature"));
    }
    if !srqc.dbr_addr().is_multiple_of(8) {
        return Err(Refusal::bad_field("the doorbell record is not aligned to 8"));
    }
    Ok(env.plane.create_srq(srqc, buffer)?)
}

pub(super) fn create_srq(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateSrqIn = call.input()?;
    let pas = buffer(false, 0, 0, call.tail(CreateSrqIn::PAS_OFFSET));
    let srqn = create(fw, env, input.srq_context_entry(), pas)?;
    output(|out: &mut CreateSrqOut| out.set_srqn(srqn))
}

pub(super) fn create_xrc_srq(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateXrcSrqIn = call.input_with(CreateXrcSrqIn::BYTES, XRC_SRQ_UMEM)?;
    if !fw.general().xrc() {
        return Err(Refusal::no_capability("xrc"));
    }
    let srqc = from_xrc(input.xrc_srq_context_entry())?;
    let at = |from: usize| call.input.get(from..).unwrap_or_default();
    let offset = at(0x50).first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
    let id = at(0x58).first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
    let pas = call.tail(CreateXrcSrqIn::PAS_OFFSET);
    let srqn = create(
        fw,
        env,
        &srqc,
        buffer(input.xrc_srq_umem_valid(), id, offset, pas),
    )?;
    output(|out: &mut CreateXrcSrqOut| out.set_xrc_srqn(srqn))
}

fn from_xrc(xrc: &XrcSrqc) -> Result<Srqc, Refusal> {
    let mut srqc = Srqc::default();
    srqc.set_state(xrc.state())?;
    srqc.set_log_srq_size(xrc.log_xrc_srq_size())?;
    srqc.set_wq_signature(xrc.wq_signature());
    srqc.set_cont_srq(xrc.cont_srq());
    srqc.set_rlky(xrc.rlky());
    srqc.set_log_rq_stride(xrc.log_rq_stride())?;
    srqc.set_xrcd(xrc.xrcd())?;
    srqc.set_page_offset(xrc.page_offset())?;
    srqc.set_cqn(xrc.cqn())?;
    srqc.set_log_page_size(xrc.log_page_size())?;
    srqc.set_pd(xrc.pd())?;
    srqc.set_lwm(xrc.lwm());
    srqc.set_wqe_cnt(xrc.wqe_cnt());
    srqc.set_dbr_addr(u64::from(xrc.db_record_addr_h()) << 32 | u64::from(xrc.db_record_addr_l()) << 2);
    Ok(srqc)
}

pub(super) fn create_rmp(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateRmpIn = call.input()?;
    let rmpc = input.ctx();
    if rmpc.state() != RMP_READY {
        return Err(Refusal::bad_field(format!(
            "a receive memory pool is created ready, not in {}",
            rmpc.state()
        )));
    }
    let wq = rmpc.wq();
    let srqc = from_wq(wq)?;
    let pas = call.tail(0x20 + 0x30 + Wq::PAS_OFFSET);
    let buffer = buffer(wq.wq_umem_valid(), wq.wq_umem_id(), wq.wq_umem_offset(), pas);
    let rmpn = create(fw, env, &srqc, buffer)?;
    output(|out: &mut CreateRmpOut| out.set_rmpn(rmpn))
}

fn from_wq(wq: &Wq) -> Result<Srqc, Refusal> {
    if wq.wq_type() != LINKED_LIST {
        return Err(Refusal::bad_field(format!(
            "wq_type {}: a pool is a linked list",
            wq.wq_type()
        )));
    }
    let stride = wq.log_wq_stride();
    let Some(log_rq_stride) = stride.checked_sub(LOG_LEAST_STRIDE).filter(|s| *s < 8) else {
        return Err(Refusal::bad_field(format!("log_wq_stride {stride}")));
    };
    if wq.log_wq_sz() > 15 {
        return Err(Refusal::above_limit("log_wq_sz", wq.log_wq_sz().into(), 15));
    }
    let mut srqc = Srqc::default();
    srqc.set_log_srq_size(wq.log_wq_sz())?;
    srqc.set_log_rq_stride(log_rq_stride)?;
    srqc.set_wq_signature(wq.wq_signature());
    srqc.set_page_offset(wq.page_offset())?;
    srqc.set_log_page_size(wq.log_wq_pg_sz())?;
    srqc.set_pd(wq.pd())?;
    srqc.set_lwm(wq.lwm());
    srqc.set_dbr_addr(wq.dbr_addr());
    Ok(srqc)
}

/// DESTROY_SRQ, DESTROY_XRC_SRQ and DESTROY_RMP have one layout.
pub(super) fn destroy(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroySrqIn = call.input()?;
    env.plane.destroy_srq(input.srqn())?;
    ok()
}

/// The context of the queue that QUERY_SRQ, QUERY_XRC_SRQ or QUERY_RMP asks for.
fn queried(env: &Env<'_>, call: &Call<'_>) -> Result<Srqc, Refusal> {
    let input: QuerySrqIn = call.input()?;
    let mut srqc = Srqc::default();
    env.plane.query_srq(input.srqn(), &mut srqc)?;
    Ok(srqc)
}

pub(super) fn query_srq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let srqc = queried(env, call)?;
    output(|out: &mut QuerySrqOut| {
        *out.srq_context_entry_mut() = srqc;
        Ok(())
    })
}

pub(super) fn query_xrc_srq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let srqc = queried(env, call)?;
    output(|out: &mut QueryXrcSrqOut| {
        let xrc = out.xrc_srq_context_entry_mut();
        xrc.set_state(srqc.state())?;
        xrc.set_log_xrc_srq_size(srqc.log_srq_size())?;
        xrc.set_log_rq_stride(srqc.log_rq_stride())?;
        xrc.set_xrcd(srqc.xrcd())?;
        xrc.set_cqn(srqc.cqn())?;
        xrc.set_pd(srqc.pd())?;
        xrc.set_lwm(srqc.lwm());
        xrc.set_wqe_cnt(srqc.wqe_cnt());
        Ok(())
    })
}

pub(super) fn query_rmp(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let srqc = queried(env, call)?;
    output(|out: &mut QueryRmpOut| {
        let rmpc = out.rmp_context_mut();
        rmpc.set_state(RMP_READY)?;
        let wq = rmpc.wq_mut();
        wq.set_log_wq_sz(srqc.log_srq_size())?;
        wq.set_log_wq_stride(srqc.log_rq_stride() + LOG_LEAST_STRIDE)?;
        wq.set_pd(srqc.pd())?;
        wq.set_lwm(srqc.lwm());
        wq.set_dbr_addr(srqc.dbr_addr());
        Ok(())
    })
}

pub(super) fn arm_rq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ArmRqIn = call.input()?;
    if call.header.op_mod != ARM_SRQ {
        return Err(Refusal::no_capability("ARM_RQ of anything but an SRQ"));
    }
    env.plane.arm_srq(input.srq_number(), input.lwm())?;
    ok()
}

pub(super) fn arm_xrc_srq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ArmXrcSrqIn = call.input()?;
    env.plane.arm_srq(input.xrc_srqn(), input.lwm())?;
    ok()
}

pub(super) fn modify_rmp(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyRmpIn = call.input()?;
    if input.bitmask().lwm() {
        env.plane.arm_srq(input.rmpn(), input.ctx().wq().lwm())?;
    }
    ok()
}
