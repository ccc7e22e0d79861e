//! Objects that are little more than a number.

use ferroce_firmware_iface::layouts::{
    AllocPdIn, AllocPdOut, AllocQCounterIn, AllocQCounterOut, AllocTransportDomainIn,
    AllocTransportDomainOut, AllocUarIn, AllocUarOut, AllocXrcdIn, AllocXrcdOut, CreateUctxIn, CreateUctxOut,
    CreateUmemIn, CreateUmemOut, DeallocPdIn, DeallocQCounterIn, DeallocTransportDomainIn, DeallocUarIn,
    DeallocXrcdIn, DestroyUctxIn, DestroyUmemIn, QueryQCounterIn, QueryQCounterOut, QueryVportCounterIn,
    QueryVportCounterOut,
};
use ferroce_firmware_iface::status::CommandStatus;
use zerocopy::IntoBytes;

use super::command::{Call, Outcome, ok, output};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};

pub(super) fn nop(_: &mut Firmware, _: &mut Env<'_>, _: &Call<'_>) -> Outcome {
    ok()
}

macro_rules! numbered {
    ($( $alloc:ident $AllocIn:ident $AllocOut:ident $set:ident, $dealloc:ident $DeallocIn:ident $get:ident; )*) => {$(
        pub(super) fn $alloc(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
            let _: $AllocIn = call.input()?;
            let number = env.plane.$alloc()?;
            output(|out: &mut $AllocOut| out.$set(number))
        }

        pub(super) fn $dealloc(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
            let input: $DeallocIn = call.input()?;
            env.plane.$dealloc(input.$get())?;
            ok()
        }
    )*};
}

numbered! {
    alloc_pd AllocPdIn AllocPdOut set_pd, dealloc_pd DeallocPdIn pd;
    alloc_uar AllocUarIn AllocUarOut set_uar, dealloc_uar DeallocUarIn uar;
    alloc_xrcd AllocXrcdIn AllocXrcdOut set_xrcd, dealloc_xrcd DeallocXrcdIn xrcd;
    alloc_transport_domain AllocTransportDomainIn AllocTransportDomainOut set_transport_domain,
        dealloc_transport_domain DeallocTransportDomainIn transport_domain;
}

pub(super) fn alloc_q_counter(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let _: AllocQCounterIn = call.input()?;
    if fw.general().max_qp_cnt() == 0 {
        return Err(Refusal::no_capability("max_qp_cnt"));
    }
    let id = env.plane.alloc_q_counter()?;
    output(|out: &mut AllocQCounterOut| {
        out.set_counter_set_id(id);
        Ok(())
    })
}

pub(super) fn dealloc_q_counter(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DeallocQCounterIn = call.input()?;
    env.plane.dealloc_q_counter(input.counter_set_id())?;
    ok()
}

pub(super) fn query_q_counter(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryQCounterIn = call.input()?;
    if input.other_vport() || input.aggregate() {
        return Err(Refusal::no_capability(
            "q_counter_other_vport, q_counter_aggregation",
        ));
    }
    let mut out = QueryQCounterOut::default();
    env.plane
        .query_q_counter(input.counter_set_id(), input.clear(), &mut out)?;
    Ok(out.as_bytes().to_vec())
}

pub(super) fn query_vport_counter(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryVportCounterIn = call.input()?;
    if !fw.general().vport_counters() {
        return Err(Refusal::no_capability("vport_counters"));
    }
    let mut out = QueryVportCounterOut::default();
    env.plane.query_vport_counter(input.clear(), &mut out);
    Ok(out.as_bytes().to_vec())
}

/// Most user contexts at a time.
const MAX_UCTXS: usize = 1 << 10;

pub(super) fn create_uctx(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let caps = fw.general();
    if caps.log_max_uctx() == 0 {
        return Err(Refusal::no_capability("log_max_uctx"));
    }
    let input: CreateUctxIn = call.input()?;
    let wanted = input.uctx().cap();
    if wanted & !caps.uctx_cap() != 0 {
        return Err(Refusal::bad_field(format!("uctx.cap {wanted:#x}")));
    }
    let most = MAX_UCTXS.min(1 << caps.log_max_uctx());
    let free = (1..=most as u16).find(|uid| !fw.uctxs.contains_key(uid));
    let Some(uid) = free else {
        let reason = format!("all {most} user contexts are in use");
        return Err(Refusal::new(
            CommandStatus::NO_RESOURCES,
            syndrome::ABOVE_LIMIT,
            reason,
        ));
    };
    fw.uctxs.insert(uid, wanted);
    output(|out: &mut CreateUctxOut| {
        out.set_uid(uid);
        Ok(())
    })
}

pub(super) fn destroy_uctx(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyUctxIn = call.input()?;
    match fw.uctxs.remove(&input.uid()) {
        Some(_) => ok(),
        None => {
            let reason = format!("no user context {:#x}", input.uid());
            Err(Refusal::new(
                CommandStatus::BAD_RESOURCE,
                syndrome::BAD_UID,
                reason,
            ))
        }
    }
}

pub(super) fn create_umem(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateUmemIn = call.input()?;
    let caps = fw.general();
    if !caps.umem_uid_0() && (call.header.uid == 0 || caps.log_max_uctx() == 0) {
        return Err(Refusal::no_capability("umem_uid_0"));
    }
    let umem = input.umem();
    if umem.ats() && !caps.ats() {
        return Err(Refusal::no_capability("ats"));
    }
    let list = call.tail(CreateUmemIn::BYTES);
    let bytes = umem
        .num_of_mtt()
        .checked_mul(8)
        .filter(|b| *b <= list.len() as u64);
    let Some(bytes) = bytes else {
        let reason = format!("{} page addresses in {} bytes", umem.num_of_mtt(), list.len());
        return Err(Refusal::new(
            CommandStatus::BAD_INP_LEN,
            syndrome::SHORT_INPUT,
            reason,
        ));
    };
    let id = env.plane.create_umem(umem, &list[..bytes as usize])?;
    output(|out: &mut CreateUmemOut| out.set_umem_id(id))
}

pub(super) fn destroy_umem(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyUmemIn = call.input()?;
    env.plane.destroy_umem(input.umem_id())?;
    ok()
}
