//! Flow tables of received Ethernet frames (table type NIC_RX; no other kind is there).

use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::{
    CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateFlowTableOut, DeleteFteIn,
    DestFormatStruct, DestroyFlowGroupIn, DestroyFlowTableIn, FlowContext, FlowTableContext, FlowTableNicCap,
    ModifyFlowTableIn, SetFlowTableRootIn, SetFteIn,
};
use ferroce_firmware_iface::status::CommandStatus;
use zerocopy::{FromBytes, IntoBytes};

use super::command::{Call, Outcome, at_most, ok, output};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};
use crate::objects::flow::{Destination, FlowEntry, FlowGroup, FlowTable, MatchBytes, Miss};
use crate::profile::CapType;

/// `table_type`: what the NIC receives.
const NIC_RX: u8 = 0;
/// Bytes of an element of an entry's destination list.
const DESTINATION_BYTES: usize = 8;
/// `action` bits.
mod action {
    pub const ALLOW: u16 = 1 << 0;
    pub const DROP: u16 = 1 << 1;
    pub const FWD_DEST: u16 = 1 << 2;
}
/// `destination_type` values.
const TO_TABLE: u8 = 1;
const TO_TIR: u8 = 2;
/// Most destinations of an entry: `log_max_destination` ends here.
const MAX_DESTINATIONS: u64 = 1 << 8;
/// `modify_field_select` of MODIFY_FLOW_TABLE: where misses go.
const MISS_TABLE: u16 = 1 << 0;
/// `modify_enable_mask` bits of SET_FTE.
mod modify {
    pub const ACTION: u8 = 1 << 0;
    pub const FLOW_TAG: u8 = 1 << 1;
    pub const DESTINATIONS: u8 = 1 << 2;
    pub const COUNTERS: u8 = 1 << 3;
}

fn table_type(fw: &Firmware, ty: u8, other_vport: bool, vport: u16) -> Result<FlowTableNicCap, Refusal> {
    if other_vport || vport != 0 {
        let reason = format!("vport {vport:#x}: there is only vport 0 here");
        return Err(Refusal::new(
            CommandStatus::BAD_PARAM,
            syndrome::OTHER_FUNCTION,
            reason,
        ));
    }
    let caps: FlowTableNicCap = fw.caps.current(CapType::FLOW_TABLE);
    if !fw.general().nic_flow_table() || !caps.flow_table_properties_nic_receive().ft_support() {
        return Err(Refusal::no_capability("nic_flow_table"));
    }
    if ty != NIC_RX {
        return Err(Refusal::no_capability("ft_support of this table_type"));
    }
    Ok(caps)
}

fn miss_of(context: &FlowTableContext) -> Result<Miss, Refusal> {
    match context.table_miss_action() {
        0 => Ok(Miss::Default),
        1 => Ok(Miss::Table(context.table_miss_id())),
        other => Err(Refusal::bad_field(format!("table_miss_action {other}"))),
    }
}

pub(super) fn create_table(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateFlowTableIn = call.input()?;
    let caps = table_type(fw, input.table_type(), input.other_vport(), input.vport_number())?;
    let caps = caps.flow_table_properties_nic_receive();
    let context = input.flow_table_context();
    at_most("level", context.level().into(), caps.max_ft_level().into())?;
    at_most(
        "log_size",
        context.log_size().into(),
        caps.log_max_ft_size().into(),
    )?;
    let unsupported = context.reformat_en() && !caps.reformat()
        || context.decap_en() && !caps.decap()
        || context.sw_owner() && !caps.sw_owner()
        || context.termination_table() && !caps.termination_table();
    if unsupported {
        return Err(Refusal::no_capability(
            "reformat, decap, sw_owner, termination_table",
        ));
    }
    let table = FlowTable::new(context.level(), context.log_size(), miss_of(context)?);
    let id = env.plane.create_flow_table(table)?;
    output(|out: &mut CreateFlowTableOut| out.set_table_id(id))
}

pub(super) fn modify_table(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyFlowTableIn = call.input()?;
    let caps = table_type(fw, input.table_type(), input.other_vport(), input.vport_number())?;
    if !caps.flow_table_properties_nic_receive().flow_table_modify() {
        return Err(Refusal::no_capability("flow_table_modify"));
    }
    if input.modify_field_select() & !MISS_TABLE != 0 {
        return Err(Refusal::bad_field("modify_field_select"));
    }
    if input.modify_field_select() & MISS_TABLE != 0 {
        env.plane
            .modify_flow_table(input.table_id(), miss_of(input.flow_table_context())?)?;
    }
    ok()
}

pub(super) fn destroy_table(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyFlowTableIn = call.input()?;
    table_type(fw, input.table_type(), input.other_vport(), input.vport_number())?;
    env.plane.destroy_flow_table(input.table_id())?;
    ok()
}

/// op_mod 0 sets the root; 1 takes it away.
pub(super) fn set_root(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: SetFlowTableRootIn = call.input()?;
    let caps = table_type(fw, input.table_type(), input.other_vport(), input.vport_number())?;
    if !caps.flow_table_properties_nic_receive().modify_root() {
        return Err(Refusal::no_capability("modify_root"));
    }
    let root = (call.header.op_mod == 0).then(|| input.table_id());
    env.plane.set_flow_root(root)?;
    ok()
}

pub(super) fn create_group(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateFlowGroupIn = call.input()?;
    table_type(fw, input.table_type(), input.other_vport(), input.vport_number())?;
    if input.group_type() != 0 {
        return Err(Refusal::bad_field("group_type"));
    }
    let group = FlowGroup {
        start: input.start_flow_index(),
        end: input.end_flow_index(),
        enable: input.match_criteria_enable(),
        mask: MatchBytes::new(input.match_criteria().as_bytes()),
    };
    let id = env.plane.create_flow_group(input.table_id(), group)?;
    output(|out: &mut CreateFlowGroupOut| out.set_group_id(id))
}

pub(super) fn destroy_group(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyFlowGroupIn = call.input()?;
    table_type(fw, input.table_type(), input.other_vport(), input.vport_number())?;
    env.plane.destroy_flow_group(input.table_id(), input.group_id())?;
    ok()
}

/// op_mod 0 sets a new entry; 1 changes what `modify_enable_mask` names of one.
pub(super) fn set_entry(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: SetFteIn = call.input()?;
    table_type(fw, input.table_type(), input.other_vport(), input.vport_number())?;
    let context = input.flow_context();
    let mut entry = entry_of(context, call)?;
    let (table, index) = (input.table_id(), input.flow_index());
    if call.header.op_mod == 1 {
        let mask = input.modify_enable_mask();
        let all = modify::ACTION | modify::FLOW_TAG | modify::DESTINATIONS | modify::COUNTERS;
        if mask & !all != 0 {
            return Err(Refusal::bad_field(format!("modify_enable_mask {mask:#x}")));
        }
        let Some(mut old) = env.plane.flow_entry(table, index) else {
            let reason = format!("table {table:#x} has no entry {index:#x}");
            return Err(Refusal::new(
                CommandStatus::BAD_RESOURCE,
                syndrome::BAD_FIELD,
                reason,
            ));
        };
        if mask & modify::ACTION != 0 {
            old.drop = entry.drop;
        }
        if mask & modify::FLOW_TAG != 0 {
            old.flow_tag = entry.flow_tag;
        }
        if mask & modify::DESTINATIONS != 0 {
            old.destinations = entry.destinations;
        }
        entry = old;
    }
    env.plane.set_flow_entry(table, index, entry)?;
    ok()
}

fn entry_of(context: &FlowContext, call: &Call<'_>) -> Result<FlowEntry, Refusal> {
    let action = context.action();
    if action & !(action::ALLOW | action::DROP | action::FWD_DEST) != 0 {
        return Err(Refusal::no_capability("an action beyond allow, drop and forward"));
    }
    if context.extended_destination() || context.flow_counter_list_size() != 0 {
        return Err(Refusal::no_capability("flow_counter, extended destinations"));
    }
    let count = u64::from(context.destination_list_size());
    at_most("destination_list_size", count, MAX_DESTINATIONS)?;
    if (action & action::FWD_DEST != 0) != (count != 0) {
        return Err(Refusal::bad_field("FWD_DEST goes with a list of destinations"));
    }
    let list = call.tail(SetFteIn::BYTES);
    if (list.len() / DESTINATION_BYTES) < count as usize {
        let reason = format!("{count} destinations in {} bytes", list.len());
        return Err(Refusal::new(
            CommandStatus::BAD_INP_LEN,
            syndrome::SHORT_INPUT,
            reason,
        ));
    }
    let list = list.chunks_exact(DESTINATION_BYTES).take(count as usize);
    let destinations = list.map(destination).collect::<Result<_, _>>()?;
    Ok(FlowEntry {
        group: context.group_id(),
        drop: action & action::DROP != 0,
        flow_tag: context.flow_tag(),
        value: MatchBytes::new(context.match_value().as_bytes()),
        destinations,
    })
}

fn destination(bytes: &[u8]) -> Result<Destination, Refusal> {
    let element = DestFormatStruct::ref_from_bytes(bytes).map_err(|_| Refusal::bad_field("destination"))?;
    debug_assert_eq!(DestFormatStruct::INFO.bytes, DESTINATION_BYTES);
    match element.destination_type() {
        TO_TABLE => Ok(Destination::Table(element.destination_id())),
        TO_TIR => Ok(Destination::Tir(element.destination_id())),
        other => Err(Refusal::bad_field(format!("destination_type {other}"))),
    }
}

pub(super) fn delete_entry(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DeleteFteIn = call.input()?;
    table_type(fw, input.table_type(), input.other_vport(), input.vport_number())?;
    env.plane
        .delete_flow_entry(input.table_id(), input.flow_index())?;
    ok()
}
