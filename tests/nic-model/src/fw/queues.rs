//! Event queues and completion queues.

use ferroce_firmware_iface::event::EventType;
use ferroce_firmware_iface::layouts::{
    Cqc, CreateCqIn, CreateCqOut, CreateEqIn, CreateEqOut, DestroyCqIn, DestroyEqIn, Eqc, ModifyCqIn,
    QueryCqIn, QueryCqOut, QueryEqIn, QueryEqOut,
};
use ferroce_firmware_iface::status::CommandStatus;

use super::command::{Call, Exempt, Outcome, at_most, buffer, ok, output};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};

/// CREATE_CQ and MODIFY_CQ: umem offset and id, which the PRM of rdma-core has at 0x50 and 0x58, and the id of
/// the doorbell record's umem.
const CQ_UMEM: Exempt = &[
    (0x10 + DBR_UMEM_ID, 0x10 + DBR_UMEM_ID + 4),
    (0x44, 0x48),
    (0x50, 0x5c),
];
/// Where a CQ's context has the id of its doorbell record's umem.
const DBR_UMEM_ID: usize = 0x04;

pub(super) fn create_eq(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateEqIn = call.input()?;
    let eqc = input.eq_context_entry();
    let caps = fw.general();
    at_most(
        "log_eq_size",
        eqc.log_eq_size().into(),
        caps.log_max_eq_sz().into(),
    )?;
    if eqc.intr() >= fw.profile.msix_vectors {
        let reason = format!("intr {} of {} MSI-X vectors", eqc.intr(), fw.profile.msix_vectors);
        return Err(Refusal::new(
            CommandStatus::BAD_PARAM,
            syndrome::BAD_VECTOR,
            reason,
        ));
    }
    if eqc.st() != 0 || eqc.status() != 0 {
        return Err(Refusal::bad_field("st and status of a new event queue are 0"));
    }
    let mask = std::array::from_fn(|i| input.event_bitmask(i));
    check_events_free(env, mask)?;
    let pas = buffer(false, 0, 0, call.tail(CreateEqIn::PAS_OFFSET));
    let eqn = env.plane.create_eq(eqc, mask, pas)?;
    let (word, bit) = EventType::COMMAND.mask_position();
    if mask[word] & bit != 0 {
        fw.command_eqn = Some(eqn);
    }
    output(|out: &mut CreateEqOut| {
        out.set_eq_number(eqn as u8);
        Ok(())
    })
}

/// An event type goes to one queue.
fn check_events_free(env: &Env<'_>, mask: [u64; 4]) -> Result<(), Refusal> {
    for event_type in 0..=u8::MAX {
        let wanted = mask[usize::from(event_type / 64)] >> (event_type % 64) & 1 != 0;
        if wanted && env.plane.subscribed(event_type) {
            let reason = format!("event type {event_type:#x} already goes to another event queue");
            return Err(Refusal::new(
                CommandStatus::BAD_PARAM,
                syndrome::EVENT_TAKEN,
                reason,
            ));
        }
    }
    Ok(())
}

pub(super) fn destroy_eq(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyEqIn = call.input()?;
    let eqn = u32::from(input.eq_number());
    env.plane.destroy_eq(eqn)?;
    if fw.command_eqn == Some(eqn) {
        fw.command_eqn = None;
    }
    ok()
}

pub(super) fn query_eq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryEqIn = call.input()?;
    let mut eqc = Eqc::default();
    let mask = env.plane.query_eq(input.eq_number().into(), &mut eqc)?;
    output(|out: &mut QueryEqOut| {
        *out.eq_context_entry_mut() = eqc;
        out.set_event_bitmask(mask[0]);
        Ok(())
    })
}

fn check_cq(fw: &Firmware, cqc: &Cqc) -> Result<(), Refusal> {
    let caps = fw.general();
    at_most(
        "log_cq_size",
        cqc.log_cq_size().into(),
        caps.log_max_cq_sz().into(),
    )?;
    if cqc.oi() && !caps.cq_oi() {
        return Err(Refusal::no_capability("cq_oi"));
    }
    if cqc.cqe_comp_en() && !caps.cqe_compression() {
        return Err(Refusal::no_capability("cqe_compression"));
    }
    if cqc.scqe_break_moderation_en() && !caps.scqe_break_moderation() {
        return Err(Refusal::no_capability("scqe_break_moderation"));
    }
    if cqc.cq_period_mode() > u8::from(caps.cq_period_start_from_cqe()) {
        return Err(Refusal::no_capability("cq_period_start_from_cqe"));
    }
    if cqc.apu_cq() {
        return Err(Refusal::no_capability("apu"));
    }
    Ok(())
}

fn umem_part(call: &Call<'_>) -> (u32, u64) {
    let at = |from: usize| call.input.get(from..).unwrap_or_default();
    let offset = at(0x50).first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
    let id = at(0x58).first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
    (id, offset)
}

pub(super) fn create_cq(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateCqIn = call.input_with(CreateCqIn::BYTES, CQ_UMEM)?;
    let mut cqc = *input.cq_context();
    if cqc.dbr_umem_valid() {
        let iova = env
            .plane
            .umem_iova(call.be32(0x10 + DBR_UMEM_ID), cqc.dbr_addr())?;
        cqc.set_dbr_addr(iova);
    }
    if cqc.st() != 0 || cqc.status() != 0 {
        return Err(Refusal::bad_field(
            "st and status of a new completion queue are 0",
        ));
    }
    check_cq(fw, &cqc)?;
    let (id, offset) = umem_part(call);
    let pas = call.tail(CreateCqIn::PAS_OFFSET);
    let cqn = env
        .plane
        .create_cq(&cqc, buffer(input.cq_umem_valid(), id, offset, pas))?;
    output(|out: &mut CreateCqOut| out.set_cqn(cqn))
}

pub(super) fn destroy_cq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyCqIn = call.input()?;
    env.plane.destroy_cq(input.cqn())?;
    ok()
}

pub(super) fn query_cq(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryCqIn = call.input()?;
    let mut cqc = Cqc::default();
    env.plane.query_cq(input.cqn(), &mut cqc)?;
    output(|out: &mut QueryCqOut| {
        *out.cq_context_mut() = cqc;
        Ok(())
    })
}

/// MODIFY_CQ field_select bits.
mod select {
    pub const CQ_PERIOD: u32 = 1 << 0;
    pub const CQ_MAX_COUNT: u32 = 1 << 1;
    pub const OI: u32 = 1 << 2;
    pub const C_EQN: u32 = 1 << 3;
    pub const CQ_PERIOD_MODE: u32 = 1 << 4;
    pub const ALL: u32 = CQ_PERIOD | CQ_MAX_COUNT | OI | C_EQN | CQ_PERIOD_MODE;
}

pub(super) fn modify_cq(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyCqIn = call.input_with(ModifyCqIn::BYTES, CQ_UMEM)?;
    let new = input.cq_context();
    let mut cqc = Cqc::default();
    env.plane.query_cq(input.cqn(), &mut cqc)?;
    let at = call.input.get(0xc..).unwrap_or_default();
    let fields = at.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
    if call.header.op_mod == 1 {
        return resize_cq(fw, env, call, &input, cqc);
    }
    if fields & !select::ALL != 0 {
        return Err(Refusal::bad_field(format!("modify_field_select {fields:#x}")));
    }
    let caps = fw.general();
    if fields & (select::CQ_PERIOD | select::CQ_MAX_COUNT) != 0 && !caps.cq_moderation() {
        return Err(Refusal::no_capability("cq_moderation"));
    }
    if fields & select::C_EQN != 0 && !caps.cq_eq_remap() {
        return Err(Refusal::no_capability("cq_eq_remap"));
    }
    if fields & select::CQ_PERIOD_MODE != 0 && !caps.cq_period_mode_modify() {
        return Err(Refusal::no_capability("cq_period_mode_modify"));
    }
    if fields & select::CQ_PERIOD != 0 {
        cqc.set_cq_period(new.cq_period())?;
    }
    if fields & select::CQ_MAX_COUNT != 0 {
        cqc.set_cq_max_count(new.cq_max_count());
    }
    if fields & select::OI != 0 {
        cqc.set_oi(new.oi());
    }
    if fields & select::C_EQN != 0 {
        cqc.set_c_eqn_or_apu_element(new.c_eqn_or_apu_element());
    }
    if fields & select::CQ_PERIOD_MODE != 0 {
        cqc.set_cq_period_mode(new.cq_period_mode())?;
    }
    env.plane.modify_cq(input.cqn(), &cqc, None)?;
    ok()
}

fn resize_cq(fw: &Firmware, env: &mut Env<'_>, call: &Call<'_>, input: &ModifyCqIn, mut cqc: Cqc) -> Outcome {
    let caps = fw.general();
    if !caps.cq_resize() {
        return Err(Refusal::no_capability("cq_resize"));
    }
    let new = input.cq_context();
    at_most(
        "log_cq_size",
        new.log_cq_size().into(),
        caps.log_max_cq_sz().into(),
    )?;
    cqc.set_log_cq_size(new.log_cq_size())?;
    cqc.set_log_page_size(new.log_page_size())?;
    cqc.set_page_offset(new.page_offset())?;
    cqc.set_cqe_sz(new.cqe_sz())?;
    let (id, offset) = umem_part(call);
    let pas = call.tail(ModifyCqIn::PAS_OFFSET);
    let buffer = buffer(input.cq_umem_valid(), id, offset, pas);
    env.plane.modify_cq(input.cqn(), &cqc, Some(buffer))?;
    ok()
}
