//! Congestion control as the host sees it, and the UDP ports of VXLAN, which change nothing here: the model has
//! no inner-header offloads.
//!
//! The reaction point's parameters are kept and not acted on: the model has no rate limit.

use ferroce_firmware_iface::cmds::cong_protocol::{R_ROCE_ECN_NP, R_ROCE_ECN_RP};
use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::{
    CongControlRRoceEcnNp, CongControlRRoceEcnRp, ModifyCongParamsIn, ModifyCongStatusIn, QueryCongParamsIn,
    QueryCongParamsOut, QueryCongStatisticsIn, QueryCongStatisticsOut, QueryCongStatusIn, QueryCongStatusOut,
};
use ferroce_firmware_iface::status::CommandStatus;
use std::time::Duration;
use zerocopy::IntoBytes;

use super::command::{Call, Exempt, Outcome, at_most, ok, output, reserved_clear};
use super::qp_transition::copy_field;
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};
use crate::engine::congestion::{Congestion, CongestionCounters};

/// The VXLAN port that is there without being added (IANA's; Linux mlx5 `mlx5_vxlan_create` relies on it).
pub(super) const IANA_VXLAN_PORT: u16 = 4789;

/// VXLAN ports where the capability `max_vxlan_udp_ports` says nothing (as Linux assumes).
const VXLAN_PORTS: usize = 4;
/// MODIFY_CONG_PARAMS: where the parameters stand, which each protocol lays out in its own way.
const PARAMETERS: usize = ModifyCongParamsIn::CONGESTION_PARAMETERS_OFFSET;
const PARAMETERS_END: usize = PARAMETERS + CongControlRRoceEcnNp::BYTES;
const PARAMETERS_EXEMPT: Exempt = &[(PARAMETERS, PARAMETERS_END)];

/// `field_select` of the notification point: bits and their fields.
const NP_FIELDS: &[(u32, &[&str])] = &[
    (1 << 2, &["min_time_between_cnps"]),
    (1 << 3, &["cnp_dscp"]),
    (1 << 4, &["cnp_prio_mode", "cnp_802p_prio"]),
];
/// `field_select` of the reaction point.
const RP_FIELDS: &[(u32, &[&str])] = &[
    (1 << 1, &["clamp_tgt_rate"]),
    (1 << 2, &["clamp_tgt_rate_after_time_inc"]),
    (1 << 3, &["rpg_time_reset"]),
    (1 << 4, &["rpg_byte_reset"]),
    (1 << 5, &["rpg_threshold"]),
    (1 << 6, &["rpg_max_rate"]),
    (1 << 7, &["rpg_ai_rate"]),
    (1 << 8, &["rpg_hai_rate"]),
    (1 << 9, &["rpg_min_dec_fac"]),
    (1 << 10, &["rpg_min_rate"]),
    (1 << 11, &["rate_to_set_on_first_cnp"]),
    (1 << 12, &["dce_tcp_g"]),
    (1 << 13, &["dce_tcp_rtt"]),
    (1 << 14, &["rate_reduce_monitor_period"]),
    (1 << 15, &["initial_alpha_value"]),
    (1 << 16, &["rpg_gd"]),
];

/// What the firmware keeps of congestion control.
#[derive(Clone, Debug)]
pub(super) struct CongestionState {
    reaction: CongControlRRoceEcnRp,
    /// Counters when the host last cleared them.
    base: CongestionCounters,
}

impl Default for CongestionState {
    fn default() -> CongestionState {
        CongestionState {
            reaction: CongControlRRoceEcnRp::zeroed(),
            base: CongestionCounters::default(),
        }
    }
}

fn query_allowed(fw: &Firmware) -> Result<(), Refusal> {
    if fw.general().cc_query_allowed() {
        return Ok(());
    }
    Err(Refusal::no_capability("cc_query_allowed"))
}

fn modify_allowed(fw: &Firmware) -> Result<(), Refusal> {
    if fw.general().cc_modify_allowed() {
        return Ok(());
    }
    Err(Refusal::no_capability("cc_modify_allowed"))
}

/// The priorities on which a protocol is on.
fn priorities(congestion: &mut Congestion, protocol: u8) -> Result<&mut u8, Refusal> {
    match protocol {
        R_ROCE_ECN_RP => Ok(&mut congestion.react),
        R_ROCE_ECN_NP => Ok(&mut congestion.notify),
        other => Err(Refusal::bad_field(format!(
            "cong_protocol {other}: 1 and 2 are there"
        ))),
    }
}

fn priority_bit(priority: u8) -> Result<u8, Refusal> {
    at_most("priority", priority.into(), 7)?;
    Ok(1 << priority)
}

pub(super) fn query_status(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    query_allowed(fw)?;
    let input: QueryCongStatusIn = call.input()?;
    let on = *priorities(env.plane.port_congestion(), input.cong_protocol())?;
    let bit = priority_bit(input.priority())?;
    output(|out: &mut QueryCongStatusOut| {
        out.set_enable(on & bit != 0);
        Ok(())
    })
}

pub(super) fn modify_status(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    modify_allowed(fw)?;
    let input: ModifyCongStatusIn = call.input()?;
    let bit = priority_bit(input.priority())?;
    let on = priorities(env.plane.port_congestion(), input.cong_protocol())?;
    if input.enable() {
        *on |= bit;
    } else {
        *on &= !bit;
    }
    ok()
}

fn notification(congestion: &Congestion) -> Result<CongControlRRoceEcnNp, Refusal> {
    let mut np = CongControlRRoceEcnNp::zeroed();
    let interval = u32::try_from(congestion.cnp_interval.as_micros()).unwrap_or(u32::MAX);
    np.set_min_time_between_cnps(interval);
    np.set_cnp_dscp(congestion.cnp_dscp)?;
    np.set_cnp_prio_mode(congestion.cnp_priority.is_none());
    np.set_cnp_802p_prio(congestion.cnp_priority.unwrap_or(0))?;
    Ok(np)
}

pub(super) fn query_params(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    query_allowed(fw)?;
    let input: QueryCongParamsIn = call.input()?;
    let mut out = vec![0; QueryCongParamsOut::CONGESTION_PARAMETERS_OFFSET];
    match input.cong_protocol() {
        R_ROCE_ECN_RP => out.extend_from_slice(fw.congestion.reaction.as_bytes()),
        R_ROCE_ECN_NP => out.extend_from_slice(notification(env.plane.port_congestion())?.as_bytes()),
        other => {
            return Err(Refusal::bad_field(format!(
                "cong_protocol {other}: 1 and 2 are there"
            )));
        }
    }
    Ok(out)
}

/// Takes over the selected fields of the input's parameters.
fn take_selected<T: Layout>(
    current: &mut T,
    call: &Call<'_>,
    select: u32,
    known: &[(u32, &[&str])],
) -> Result<(), Refusal> {
    let all = known.iter().fold(0, |all, (bit, _)| all | bit);
    if select & !all != 0 {
        return Err(Refusal::bad_field(format!("field_select {select:#x}")));
    }
    let bytes = call.tail(PARAMETERS);
    let new = T::read_from_prefix(bytes)
        .map_err(|_| Refusal::bad_field("no parameters"))?
        .0;
    reserved_clear(&new)?;
    for (_, names) in known.iter().filter(|(bit, _)| select & bit != 0) {
        for name in *names {
            copy_field(current.as_mut_bytes(), new.as_bytes(), T::INFO, name);
        }
    }
    Ok(())
}

pub(super) fn modify_params(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    modify_allowed(fw)?;
    let input: ModifyCongParamsIn = call.input_with(PARAMETERS_END, PARAMETERS_EXEMPT)?;
    let select = input.field_select();
    match input.cong_protocol() {
        R_ROCE_ECN_RP => take_selected(&mut fw.congestion.reaction, call, select, RP_FIELDS)?,
        R_ROCE_ECN_NP => {
            let congestion = env.plane.port_congestion();
            let mut np = notification(congestion)?;
            take_selected(&mut np, call, select, NP_FIELDS)?;
            congestion.cnp_interval = Duration::from_micros(np.min_time_between_cnps().into());
            congestion.cnp_dscp = np.cnp_dscp();
            congestion.cnp_priority = (!np.cnp_prio_mode()).then(|| np.cnp_802p_prio());
        }
        other => {
            return Err(Refusal::bad_field(format!(
                "cong_protocol {other}: 1 and 2 are there"
            )));
        }
    }
    ok()
}

pub(super) fn query_statistics(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    query_allowed(fw)?;
    let input: QueryCongStatisticsIn = call.input()?;
    let (now, base) = (env.plane.port_congestion().counters, fw.congestion.base);
    if input.clear() {
        fw.congestion.base = now;
    }
    let split = |now: u64, then: u64| {
        let count = now.wrapping_sub(then);
        ((count >> 32) as u32, count as u32)
    };
    output(|out: &mut QueryCongStatisticsOut| {
        let (high, low) = split(now.marked, base.marked);
        out.set_np_ecn_marked_roce_packets_high(high);
        out.set_np_ecn_marked_roce_packets_low(low);
        let (high, low) = split(now.cnps_sent, base.cnps_sent);
        out.set_np_cnp_sent_high(high);
        out.set_np_cnp_sent_low(low);
        let (high, low) = split(now.cnps_handled, base.cnps_handled);
        out.set_rp_cnp_handled_high(high);
        out.set_rp_cnp_handled_low(low);
        let (high, low) = split(now.cnps_ignored, base.cnps_ignored);
        out.set_rp_cnp_ignored_high(high);
        out.set_rp_cnp_ignored_low(low);
        out.set_time_stamp_high((env.now_ns >> 32) as u32);
        out.set_time_stamp_low(env.now_ns as u32);
        Ok(())
    })
}

/// `vxlan_udp_port` of ADD_VXLAN_UDP_DPORT and DELETE_VXLAN_UDP_DPORT: dword 0xc, low half.
fn vxlan_port(call: &Call<'_>) -> Result<u16, Refusal> {
    let bytes = call.input.get(0xe..0x10);
    let port = bytes.map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    if port == 0 {
        return Err(Refusal::bad_field("vxlan_udp_port 0"));
    }
    Ok(port)
}

pub(super) fn add_vxlan_port(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let port = vxlan_port(call)?;
    if !fw.vxlan_ports.contains(&port) {
        at_most("VXLAN ports", fw.vxlan_ports.len() as u64 + 1, VXLAN_PORTS as u64)?;
        fw.vxlan_ports.push(port);
    }
    ok()
}

pub(super) fn delete_vxlan_port(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let port = vxlan_port(call)?;
    let Some(at) = fw.vxlan_ports.iter().position(|p| *p == port) else {
        let reason = format!("UDP port {port} is no VXLAN port");
        return Err(Refusal::new(
            CommandStatus::BAD_PARAM,
            syndrome::BAD_FIELD,
            reason,
        ));
    };
    fw.vxlan_ports.remove(at);
    ok()
}
