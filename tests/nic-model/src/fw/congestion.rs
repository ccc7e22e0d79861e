//! Congestion control as the host sees it, and the UDP ports of VXLAN. Neither changes what the model does with
//! packets: it sends no CNPs, so all counts are 0, and it has no inner-header offloads.

use ferroce_firmware_iface::status::CommandStatus;

use super::command::{Call, Outcome, at_most, ok};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};

/// Bytes of the outputs of QUERY_CONG_STATISTICS and QUERY_CONG_PARAMS.
const OUT_BYTES: usize = 0x110;
/// The VXLAN port that is there without being added (IANA's; Linux mlx5 `mlx5_vxlan_create` relies on it).
pub(super) const IANA_VXLAN_PORT: u16 = 4789;

/// VXLAN ports where the capability `max_vxlan_udp_ports` says nothing (as Linux assumes).
const VXLAN_PORTS: usize = 4;

fn allowed(fw: &Firmware) -> Result<(), Refusal> {
    if fw.general().cc_query_allowed() {
        return Ok(());
    }
    Err(Refusal::no_capability("cc_query_allowed"))
}

/// QUERY_CONG_STATISTICS, QUERY_CONG_PARAMS: nothing was counted, nothing is set.
pub(super) fn query(fw: &mut Firmware, _: &mut Env<'_>, _: &Call<'_>) -> Outcome {
    allowed(fw)?;
    Ok(vec![0; OUT_BYTES])
}

/// QUERY_CONG_STATUS: it is off.
pub(super) fn query_status(fw: &mut Firmware, _: &mut Env<'_>, _: &Call<'_>) -> Outcome {
    allowed(fw)?;
    ok()
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
