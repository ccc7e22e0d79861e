//! Raw Ethernet queues: SQ, RQ, TIS, TIR, RQT.

use ferroce_firmware_iface::layouts::{
    CreateRqIn, CreateRqOut, CreateRqtIn, CreateRqtOut, CreateSqIn, CreateSqOut, CreateTirIn, CreateTirOut,
    CreateTisIn, CreateTisOut, DestroyRqIn, DestroyRqtIn, DestroySqIn, DestroyTirIn, DestroyTisIn,
    ModifyRqIn, ModifyRqtIn, ModifySqIn, ModifyTirIn, ModifyTisIn, QueryRqIn, QueryRqOut, QuerySqIn,
    QuerySqOut, Rqtc, Tirc, Wq,
};
use ferroce_firmware_iface::status::CommandStatus;

use super::command::{Call, Outcome, at_most, buffer, ok, output};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};
use crate::objects::Buffer;
use crate::objects::raw::RawState;

/// Where the context of CREATE_SQ and CREATE_RQ has its work queue, from the start of the input.
const WQ_AT: usize = 0x20 + 0x30;
/// Where RQ numbers start in CREATE_RQT and MODIFY_RQT.
const RQ_LIST_AT: usize = 0x20 + 0xf0;
/// `modify_bitmask` bits of MODIFY_RQ.
mod modify_rq {
    pub const VSD: u64 = 1 << 1;
    pub const SCATTER_FCS: u64 = 1 << 2;
    pub const COUNTER_SET: u64 = 1 << 3;
}

fn wq_buffer<'a>(wq: &Wq, call: &Call<'a>) -> Buffer<'a> {
    let pas = call.input.get(WQ_AT + Wq::PAS_OFFSET..).unwrap_or_default();
    buffer(wq.wq_umem_valid(), wq.wq_umem_id(), wq.wq_umem_offset(), pas)
}

fn state(name: &str, value: u8) -> Result<RawState, Refusal> {
    RawState::from_prm(value).ok_or_else(|| Refusal::bad_field(format!("{name} {value}")))
}

fn offloads(fw: &Firmware) -> Result<(), Refusal> {
    if fw.general().eth_net_offloads() {
        return Ok(());
    }
    Err(Refusal::no_capability("eth_net_offloads"))
}

fn new_is_reset(value: u8) -> Result<(), Refusal> {
    if value != RawState::Reset.prm() {
        return Err(Refusal::bad_field("a queue is created in state RST"));
    }
    Ok(())
}

pub(super) fn create_sq(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateSqIn = call.input()?;
    offloads(fw)?;
    let sqc = input.ctx();
    new_is_reset(sqc.state())?;
    at_most(
        "log_wq_sz",
        sqc.wq().log_wq_sz().into(),
        fw.general().log_max_wq_sz().into(),
    )?;
    at_most("tis_lst_sz", sqc.tis_lst_sz().into(), 1)?;
    if sqc.hairpin() || sqc.non_wire() || sqc.packet_pacing_rate_limit_index() != 0 {
        return Err(Refusal::no_capability("hairpin, non_wire, packet_pacing"));
    }
    let sqn = env.plane.create_sq(sqc, wq_buffer(sqc.wq(), call))?;
    output(|out: &mut CreateSqOut| out.set_sqn(sqn))
}

pub(super) fn modify_sq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifySqIn = call.input()?;
    let (from, to) = (
        state("sq_state", input.sq_state())?,
        state("sqc.state", input.ctx().state())?,
    );
    env.plane.modify_sq(input.sqn(), from, to)?;
    ok()
}

pub(super) fn destroy_sq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroySqIn = call.input()?;
    env.plane.destroy_sq(input.sqn())?;
    ok()
}

pub(super) fn query_sq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QuerySqIn = call.input()?;
    let sqc = env.plane.query_sq(input.sqn())?;
    output(|out: &mut QuerySqOut| {
        *out.sq_context_mut() = sqc;
        Ok(())
    })
}

pub(super) fn create_rq(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateRqIn = call.input()?;
    offloads(fw)?;
    let rqc = input.ctx();
    new_is_reset(rqc.state())?;
    at_most(
        "log_wq_sz",
        rqc.wq().log_wq_sz().into(),
        fw.general().log_max_wq_sz().into(),
    )?;
    if rqc.hairpin() || rqc.delay_drop_en() || rqc.scatter_fcs() {
        return Err(Refusal::no_capability("hairpin, rq_delay_drop, scatter_fcs"));
    }
    let rqn = env.plane.create_rq(rqc, wq_buffer(rqc.wq(), call))?;
    output(|out: &mut CreateRqOut| out.set_rqn(rqn))
}

pub(super) fn modify_rq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyRqIn = call.input()?;
    let rqc = input.ctx();
    let mask = input.modify_bitmask();
    if mask & !(modify_rq::VSD | modify_rq::COUNTER_SET | modify_rq::SCATTER_FCS) != 0
        || mask & modify_rq::SCATTER_FCS != 0 && rqc.scatter_fcs()
    {
        return Err(Refusal::bad_field(format!("modify_bitmask {mask:#x}")));
    }
    let (from, to) = (
        state("rq_state", input.rq_state())?,
        state("rqc.state", rqc.state())?,
    );
    let keep_vlan = (mask & modify_rq::VSD != 0).then(|| rqc.vsd());
    let counter_set = (mask & modify_rq::COUNTER_SET != 0).then(|| rqc.counter_set_id());
    env.plane
        .modify_rq(input.rqn(), from, to, keep_vlan, counter_set)?;
    ok()
}

pub(super) fn destroy_rq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyRqIn = call.input()?;
    env.plane.destroy_rq(input.rqn())?;
    ok()
}

pub(super) fn query_rq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryRqIn = call.input()?;
    let rqc = env.plane.query_rq(input.rqn())?;
    output(|out: &mut QueryRqOut| {
        *out.rq_context_mut() = rqc;
        Ok(())
    })
}

pub(super) fn create_tis(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateTisIn = call.input()?;
    offloads(fw)?;
    if input.ctx().tls_en() {
        return Err(Refusal::no_capability("tls_tx"));
    }
    let tisn = env.plane.create_tis(input.ctx())?;
    output(|out: &mut CreateTisOut| out.set_tisn(tisn))
}

pub(super) fn modify_tis(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyTisIn = call.input()?;
    if input.bitmask().lag_tx_port_affinity() || input.bitmask().strict_lag_tx_port_affinity() {
        return Err(Refusal::no_capability("lag_tx_port_affinity"));
    }
    if input.bitmask().prio() {
        env.plane.modify_tis(input.tisn(), input.ctx().prio())?;
    }
    ok()
}

pub(super) fn destroy_tis(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyTisIn = call.input()?;
    env.plane.destroy_tis(input.tisn())?;
    ok()
}

fn check_tir(tirc: &Tirc) -> Result<(), Refusal> {
    if tirc.tls_en() || tirc.packet_merge_mask() != 0 || tirc.tunneled_offload_en() {
        return Err(Refusal::no_capability("tls_rx, lro_cap, tunnel_stateless"));
    }
    // 0: none, 1: inverted XOR of 8 bits, 2: Toeplitz.
    if tirc.rx_hash_fn() > 2 {
        return Err(Refusal::bad_field(format!("rx_hash_fn {}", tirc.rx_hash_fn())));
    }
    Ok(())
}

pub(super) fn create_tir(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateTirIn = call.input()?;
    offloads(fw)?;
    check_tir(input.ctx())?;
    let tirn = env.plane.create_tir(input.ctx())?;
    output(|out: &mut CreateTirOut| out.set_tirn(tirn))
}

pub(super) fn modify_tir(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyTirIn = call.input()?;
    let new = input.ctx();
    check_tir(new)?;
    let mut tirc = env.plane.query_tir(input.tirn())?;
    if input.bitmask().self_lb_en() {
        tirc.set_self_lb_block(new.self_lb_block())?;
    }
    if input.bitmask().hash() {
        tirc.set_rx_hash_fn(new.rx_hash_fn())?;
        tirc.set_rx_hash_symmetric(new.rx_hash_symmetric());
        for i in 0..10 {
            tirc.set_rx_hash_toeplitz_key(i, new.rx_hash_toeplitz_key(i));
        }
        *tirc.rx_hash_field_selector_outer_mut() = *new.rx_hash_field_selector_outer();
    }
    env.plane.modify_tir(input.tirn(), &tirc)?;
    ok()
}

pub(super) fn destroy_tir(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyTirIn = call.input()?;
    env.plane.destroy_tir(input.tirn())?;
    ok()
}

/// The list of RQs behind the context.
fn rq_list(fw: &Firmware, rqtc: &Rqtc, call: &Call<'_>) -> Result<Vec<u32>, Refusal> {
    let count = usize::from(rqtc.rqt_actual_size());
    at_most(
        "rqt_actual_size",
        count as u64,
        1 << fw.general().log_max_rqt_size(),
    )?;
    if rqtc.list_q_type() != 0 || rqtc.rq_vhca_id_format() {
        return Err(Refusal::no_capability("list_q_type, rq_vhca_id_format"));
    }
    let list = call.tail(RQ_LIST_AT);
    if list.len() < count * 4 {
        let reason = format!("{count} RQs in {} bytes", list.len());
        return Err(Refusal::new(
            CommandStatus::BAD_INP_LEN,
            syndrome::SHORT_INPUT,
            reason,
        ));
    }
    let numbers = list.chunks_exact(4).take(count);
    Ok(numbers
        .map(|b| u32::from_be_bytes([0, b[1], b[2], b[3]]))
        .collect())
}

pub(super) fn create_rqt(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateRqtIn = call.input()?;
    offloads(fw)?;
    let rqs = rq_list(fw, input.rqt_context(), call)?;
    let rqtn = env.plane.create_rqt(rqs)?;
    output(|out: &mut CreateRqtOut| out.set_rqtn(rqtn))
}

pub(super) fn modify_rqt(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyRqtIn = call.input()?;
    if input.bitmask().rqn_list() {
        let rqs = rq_list(fw, input.ctx(), call)?;
        env.plane.modify_rqt(input.rqtn(), rqs)?;
    }
    ok()
}

pub(super) fn destroy_rqt(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyRqtIn = call.input()?;
    env.plane.destroy_rqt(input.rqtn())?;
    ok()
}
