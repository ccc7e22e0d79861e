//! QUERY_HCA_CAP and SET_HCA_CAP.

use ferroce_firmware_iface::layout::{FieldInfo, Layout, LayoutInfo, read_field};
use ferroce_firmware_iface::layouts::{
    AtomicCaps, CmdHcaCap, CmdHcaCap2, OdpCap, QueryHcaCapIn, RoceCap, SetHcaCapIn,
};
use ferroce_firmware_iface::status::CommandStatus;

use super::command::{Call, Outcome, ok, own_function};
use super::qp_transition::copy_field;
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware, HcaState};
use crate::profile::{CAP_BYTES, CapType};

/// Fields of the general capabilities that a driver may change (linux-bringup.md 4.2). A field of the others
/// must be set back as it was read.
const SETTABLE: &[&str] = &[
    "log_max_qp",
    "pkey_table_size",
    "gid_table_size",
    "cmdif_checksum",
    "uar_4k",
    "log_uar_page_sz",
    "cache_line_128byte",
    "dct",
    "pci_sync_for_fw_update_event",
    "pci_sync_for_fw_update_with_driver_unload",
    "pcie_reset_using_hotreset_method",
    "release_all_pages",
    "mkey_by_name",
    "num_vhca_ports",
    "num_total_dynamic_vf_msix",
    "vhca_state",
    "event_on_vhca_state_teardown_request",
    "event_on_vhca_state_in_use",
    "event_on_vhca_state_active",
    "event_on_vhca_state_allocated",
    "event_on_vhca_state_invalid",
    "roce",
    "log_max_current_uc_list",
    "disable_link_up",
];
/// The same of the other capabilities.
const SETTABLE_ATOMIC: &[&str] = &["atomic_req_8B_endianness_mode"];
const SETTABLE_ROCE: &[&str] = &["sw_r_roce_src_udp_port", "qp_ooo_transmit_default"];
const SETTABLE_2: &[&str] = &["sw_vhca_id_valid"];

fn settable(ty: CapType) -> Option<(&'static LayoutInfo, &'static [&'static str])> {
    Some(match ty {
        CapType::GENERAL => (CmdHcaCap::INFO, SETTABLE),
        CapType::ATOMIC => (AtomicCaps::INFO, SETTABLE_ATOMIC),
        CapType::ROCE => (RoceCap::INFO, SETTABLE_ROCE),
        CapType::GENERAL_2 => (CmdHcaCap2::INFO, SETTABLE_2),
        CapType::ODP => (OdpCap::INFO, &[]),
        _ => return None,
    })
}

fn unknown_type(ty: CapType) -> Refusal {
    let reason = format!("capability type {:#x}", ty.0);
    Refusal::new(CommandStatus::BAD_PARAM, syndrome::NO_CAPABILITY, reason)
}

pub(super) fn query(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryHcaCapIn = call.input()?;
    own_function(input.other_function(), input.function_id())?;
    let ty = CapType(call.header.op_mod >> 1);
    let capability = fw.caps.get(ty).ok_or_else(|| unknown_type(ty))?;
    let mut out = vec![0; 16];
    out.extend_from_slice(if call.header.op_mod & 1 != 0 {
        &capability.current
    } else {
        &capability.max
    });
    Ok(out)
}

pub(super) fn set(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    // The capability itself is no field of the layout.
    let input: SetHcaCapIn = call.input_with(0x10 + 0x100, &[(0x10, usize::MAX)])?;
    own_function(input.other_function(), input.function_id())?;
    let op_mod = call.header.op_mod;
    let ty = CapType(op_mod >> 1);
    if op_mod & 1 != 0 {
        let reason = format!("SET_HCA_CAP op_mod {op_mod:#x}");
        return Err(Refusal::new(CommandStatus::BAD_OP, syndrome::BAD_OP_MOD, reason));
    }
    if fw.state == HcaState::Initialized {
        return Err(Refusal::new(
            CommandStatus::BAD_SYS_STATE,
            syndrome::ALREADY,
            "SET_HCA_CAP after INIT_HCA",
        ));
    }
    let missing = fw.pages.missing_for_boot();
    if missing > 0 {
        let reason = format!("SET_HCA_CAP while {missing} boot pages have not been given");
        return Err(Refusal::new(
            CommandStatus::BAD_SYS_STATE,
            syndrome::PAGES_MISSING,
            reason,
        ));
    }
    let (info, names) = settable(ty).ok_or_else(|| unknown_type(ty))?;
    let capability = fw.caps.get_mut(ty).ok_or_else(|| unknown_type(ty))?;
    let mut wanted = vec![0; CAP_BYTES];
    let given = call.tail(0x10);
    let n = given.len().min(CAP_BYTES);
    wanted[..n].copy_from_slice(&given[..n]);
    if n < CAP_BYTES {
        wanted[n..].copy_from_slice(&capability.current[n..]);
    }
    if ty == CapType::ATOMIC {
        // Linux sends what it sets and zeros for the rest.
        let mut whole = capability.current.clone();
        for name in names {
            copy_field(&mut whole, &wanted, info, name);
        }
        wanted = whole;
    }
    for field in info.fields {
        check_field(info, field, names, &wanted, &capability.current, &capability.max)?;
    }
    check_unnamed(info, &wanted, &capability.current, &capability.max)?;
    capability.current = wanted;
    ok()
}

/// A field that differs from what is on has to be one that can be set, to no more than can be had.
fn check_field(
    info: &LayoutInfo,
    field: &FieldInfo,
    settable: &[&str],
    wanted: &[u8],
    current: &[u8],
    max: &[u8],
) -> Result<(), Refusal> {
    for i in 0..field.count {
        let read = |bytes| read_field(bytes, field, i);
        let (Some(value), Some(now), Some(most)) = (read(wanted), read(current), read(max)) else {
            continue;
        };
        if value == now {
            continue;
        }
        let name = field.name;
        if !settable.contains(&name) {
            let reason = format!(
                "{}.{name} set from {now:#x} to {value:#x}: it can't be set",
                info.name
            );
            return Err(Refusal::new(
                CommandStatus::BAD_PARAM,
                syndrome::CAP_NOT_SETTABLE,
                reason,
            ));
        }
        if value > most {
            let reason = format!("{}.{name} set to {value:#x}, the maximum is {most:#x}", info.name);
            return Err(Refusal::new(
                CommandStatus::BAD_PARAM,
                syndrome::CAP_ABOVE_MAX,
                reason,
            ));
        }
    }
    Ok(())
}

/// What the PRM has no name for must come back as it was read, from either query.
fn check_unnamed(info: &LayoutInfo, wanted: &[u8], current: &[u8], max: &[u8]) -> Result<(), Refusal> {
    let mut named = vec![0u8; wanted.len()];
    for field in info.fields {
        let bits = field.bit_offset..field.bit_offset + field.bit_width * field.count;
        for bit in bits {
            named[(bit / 8) as usize] |= 0x80 >> (bit % 8);
        }
    }
    for (at, ((w, c), m)) in wanted.iter().zip(current).zip(max).enumerate() {
        if (w & !(c | m)) & !named[at] != 0 {
            let reason = format!("{}: reserved bits in byte {at:#x} are set", info.name);
            return Err(Refusal::new(
                CommandStatus::BAD_PARAM,
                syndrome::RESERVED_SET,
                reason,
            ));
        }
    }
    Ok(())
}
