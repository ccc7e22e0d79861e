//! The virtual port: addresses, state, RoCE; and the L2 table of the physical function.

use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::{
    DeleteL2TableEntryIn, MacAddressLayout, ModifyNicVportContextIn, ModifyNicVportFieldSelect,
    ModifyVportStateIn, NicVportContext, QueryHcaVportPkeyIn, QueryNicVportContextIn, QueryRoceAddressIn,
    QueryRoceAddressOut, QueryVportStateIn, QueryVportStateOut, RoceAddrLayout, RoceCap, SetL2TableEntryIn,
    SetRoceAddressIn,
};
use ferroce_firmware_iface::status::CommandStatus;
use zerocopy::IntoBytes;

use super::command::{Call, Outcome, at_most, ok, output};
use super::plane_ethernet::Filter;
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};
use crate::engine::ports::FIRST_PORT;
use crate::profile::{CapType, Profile};

/// The only P_Key of a RoCE port.
const DEFAULT_PKEY: u16 = 0xffff;
/// Offset of the context in QUERY_NIC_VPORT_CONTEXT's output.
const CONTEXT_OFFSET: usize = 0x10;
/// Offset of the lists of addresses in MODIFY_NIC_VPORT_CONTEXT's input.
const LIST_OFFSET: usize = 0x200;

/// State of the port.
#[derive(Clone, Debug)]
pub(super) struct Vport {
    context: NicVportContext,
    /// Unicast, multicast and VLAN lists: 8 bytes an entry.
    lists: [Vec<u8>; 3],
    /// Administrative state of each port.
    admin_up: Vec<bool>,
}

pub(super) fn mac_bytes(mac: &MacAddressLayout) -> [u8; 6] {
    let [a, b] = mac.mac_addr_47_32().to_be_bytes();
    let [c, d, e, f] = mac.mac_addr_31_0().to_be_bytes();
    [a, b, c, d, e, f]
}

fn set_mac(layout: &mut MacAddressLayout, mac: [u8; 6]) {
    let [a, b, c, d, e, f] = mac;
    layout.set_mac_addr_47_32(u16::from_be_bytes([a, b]));
    layout.set_mac_addr_31_0(u32::from_be_bytes([c, d, e, f]));
}

fn is_unicast(mac: [u8; 6]) -> bool {
    mac != [0; 6] && mac[0] & 1 == 0
}

impl Vport {
    /// Each entry is two bytes of nothing and an address.
    pub(super) fn unicast_list(&self) -> Vec<[u8; 6]> {
        let (entries, _) = self.lists[0].as_chunks::<8>();
        entries
            .iter()
            .map(|&[_, _, a, b, c, d, e, f]| [a, b, c, d, e, f])
            .collect()
    }

    pub(super) fn new(profile: &Profile) -> Vport {
        let mut context = NicVportContext::zeroed();
        set_mac(context.permanent_address_mut(), profile.mac);
        context.set_node_guid(profile.guid());
        context.set_port_guid(profile.guid());
        context.set_system_image_guid(profile.guid());
        context.set_mtu(1522);
        Vport {
            context,
            lists: Default::default(),
            admin_up: vec![true; usize::from(profile.ports())],
        }
    }

    pub(super) fn mac(&self) -> [u8; 6] {
        mac_bytes(self.context.permanent_address())
    }

    /// Administrative state of a port.
    pub(super) fn admin_up(&self, port: u8) -> bool {
        let place = usize::from(port).wrapping_sub(1);
        self.admin_up.get(place).copied().unwrap_or_default()
    }

    /// Which foreign frames the host wants. An entry of the unicast list is a MAC address in 8 bytes.
    fn filter(&self) -> Filter {
        let entries = self.lists[0].chunks_exact(8);
        Filter {
            promiscuous: self.context.promisc_uc() || self.context.promisc_all(),
            unicast: entries.map(|e| [e[2], e[3], e[4], e[5], e[6], e[7]]).collect(),
        }
    }
}

impl Firmware {
    /// Tells the data plane what the port is, after INIT_HCA.
    pub(super) fn apply_vport(&mut self, env: &mut Env<'_>) {
        env.plane.set_mac(self.vport.mac());
        env.plane.set_roce_enabled(self.vport.context.roce_en());
        env.plane.set_mtu(self.vport.context.mtu());
        for port in 1..=self.ports() {
            env.plane.set_link_admin(port, self.vport.admin_up(port));
        }
    }

    /// Sets the administrative state of a port.
    pub(super) fn set_admin(&mut self, env: &mut Env<'_>, port: u8, up: bool) {
        if let Some(state) = self.vport.admin_up.get_mut(usize::from(port).wrapping_sub(1)) {
            *state = up;
            env.plane.set_link_admin(port, up);
        }
    }

    fn roce_cap(&self) -> RoceCap {
        self.caps.current(CapType::ROCE)
    }
}

fn own_vport(other: bool, number: u16) -> Result<(), Refusal> {
    // An e-switch manager may name itself as vport 0 of the others.
    let _ = other;
    if number != 0 {
        let reason = format!("vport {number:#x}: there is only vport 0 here");
        return Err(Refusal::new(
            CommandStatus::BAD_PARAM,
            syndrome::OTHER_FUNCTION,
            reason,
        ));
    }
    Ok(())
}

pub(super) fn query_state(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryVportStateIn = call.input()?;
    own_vport(input.other_vport(), input.vport_number())?;
    // The vport's state is that of the first port: the command names none.
    let up = fw.port_active(env, FIRST_PORT);
    output(|out: &mut QueryVportStateOut| {
        out.set_admin_state(u8::from(fw.vport.admin_up(FIRST_PORT)))?;
        out.set_state(u8::from(up))
    })
}

pub(super) fn modify_state(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyVportStateIn = call.input()?;
    own_vport(input.other_vport(), input.vport_number())?;
    match input.admin_state() {
        0 => fw.set_admin(env, FIRST_PORT, false),
        // 1 is up, 2 follows the port, which is up unless PAOS says otherwise.
        1 | 2 => fw.set_admin(env, FIRST_PORT, true),
        other => return Err(Refusal::bad_field(format!("admin_state {other}"))),
    }
    ok()
}

fn list_of(vport: &mut Vport, list_type: u8) -> Result<&mut Vec<u8>, Refusal> {
    let list = vport.lists.get_mut(usize::from(list_type));
    list.ok_or_else(|| Refusal::bad_field(format!("allowed_list_type {list_type}")))
}

pub(super) fn query_context(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryNicVportContextIn = call.input()?;
    own_vport(input.other_vport(), input.vport_number())?;
    let list = list_of(&mut fw.vport, input.allowed_list_type())?.clone();
    let mut context = fw.vport.context;
    context.set_allowed_list_type(input.allowed_list_type())?;
    context.set_allowed_list_size((list.len() / 8) as u16)?;
    let violations = u16::try_from(env.plane.qkey_violations()).unwrap_or(u16::MAX);
    context.set_qkey_violation_counter(violations);
    let mut out = vec![0; CONTEXT_OFFSET];
    out.extend_from_slice(context.as_bytes());
    out.extend_from_slice(&list);
    Ok(out)
}

pub(super) fn modify_context(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ModifyNicVportContextIn = call.input()?;
    own_vport(input.other_vport(), input.vport_number())?;
    let select = input.field_select();
    let new = input.nic_vport_context();
    check_context(fw, select, new)?;
    if select.addresses_list() {
        set_list(fw, new, call)?;
    }
    let context = &mut fw.vport.context;
    let filters = select.addresses_list() || select.promisc();
    if select.roce_en() {
        context.set_roce_en(new.roce_en());
        env.plane.set_roce_enabled(new.roce_en());
    }
    if select.permanent_address() {
        *context.permanent_address_mut() = *new.permanent_address();
        env.plane.set_mac(mac_bytes(new.permanent_address()));
    }
    if select.promisc() {
        context.set_promisc_uc(new.promisc_uc());
        context.set_promisc_mc(new.promisc_mc());
        context.set_promisc_all(new.promisc_all());
    }
    if select.change_event() {
        take_change_events(context, new);
    }
    if select.mtu() {
        context.set_mtu(new.mtu());
        env.plane.set_mtu(new.mtu());
    }
    if select.min_inline() {
        context.set_min_wqe_inline_mode(new.min_wqe_inline_mode())?;
    }
    if select.port_guid() {
        context.set_port_guid(new.port_guid());
    }
    if select.node_guid() {
        context.set_node_guid(new.node_guid());
    }
    if select.disable_mc_local_lb() {
        context.set_disable_mc_local_lb(new.disable_mc_local_lb());
    }
    if select.disable_uc_local_lb() {
        context.set_disable_uc_local_lb(new.disable_uc_local_lb());
    }
    if filters {
        env.plane.set_filter(fw.vport.filter());
    }
    ok()
}

fn take_change_events(context: &mut NicVportContext, new: &NicVportContext) {
    context.set_arm_change_event(new.arm_change_event());
    context.set_event_on_mtu(new.event_on_mtu());
    context.set_event_on_promisc_change(new.event_on_promisc_change());
    context.set_event_on_vlan_change(new.event_on_vlan_change());
    context.set_event_on_mc_address_change(new.event_on_mc_address_change());
    context.set_event_on_uc_address_change(new.event_on_uc_address_change());
}

fn check_context(
    fw: &Firmware,
    select: &ModifyNicVportFieldSelect,
    new: &NicVportContext,
) -> Result<(), Refusal> {
    let caps = fw.general();
    if select.roce_en() && new.roce_en() && !caps.roce() {
        return Err(Refusal::no_capability("roce"));
    }
    if select.permanent_address() && !is_unicast(mac_bytes(new.permanent_address())) {
        return Err(Refusal::bad_field("permanent_address is no unicast address"));
    }
    if select.mtu() {
        at_most("mtu", new.mtu().into(), fw.profile.max_mtu.into())?;
        if new.mtu() == 0 {
            return Err(Refusal::bad_field("mtu 0"));
        }
    }
    if select.affiliation() {
        return Err(Refusal::no_capability("num_vhca_ports"));
    }
    let loopback = select.disable_mc_local_lb() && !caps.disable_local_lb_mc()
        || select.disable_uc_local_lb() && !caps.disable_local_lb_uc();
    if loopback {
        return Err(Refusal::no_capability("disable_local_lb_uc, disable_local_lb_mc"));
    }
    Ok(())
}

fn set_list(fw: &mut Firmware, new: &NicVportContext, call: &Call<'_>) -> Result<(), Refusal> {
    let caps = fw.general();
    let (count, list_type) = (usize::from(new.allowed_list_size()), new.allowed_list_type());
    let log_limit = match list_type {
        0 => caps.log_max_current_uc_list(),
        1 => caps.log_max_current_mc_list(),
        _ => caps.log_max_vlan_list(),
    };
    at_most("allowed_list_size", count as u64, 1 << log_limit)?;
    let entries = call.tail(LIST_OFFSET);
    if entries.len() < count * 8 {
        let reason = format!("address list of {count} entries in {} bytes", entries.len());
        return Err(Refusal::new(
            CommandStatus::BAD_INP_LEN,
            syndrome::SHORT_INPUT,
            reason,
        ));
    }
    let entries = entries[..count * 8].to_vec();
    *list_of(&mut fw.vport, list_type)? = entries;
    Ok(())
}

pub(super) fn query_roce_address(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryRoceAddressIn = call.input()?;
    check_gid_index(fw, input.roce_address_index())?;
    let port = gid_port(fw, input.vhca_port_num())?;
    output(|out: &mut QueryRoceAddressOut| {
        if let Some(address) = env.plane.roce_address(port, input.roce_address_index()) {
            *out.roce_address_mut() = address;
        }
        Ok(())
    })
}

/// Refuses an index beyond the table.
pub(super) fn check_gid_index(fw: &Firmware, index: u16) -> Result<(), Refusal> {
    let size = fw.roce_cap().roce_address_table_size();
    if index >= size {
        let reason = format!("GID index {index}, the table has {size}");
        return Err(Refusal::new(
            CommandStatus::BAD_INDEX,
            syndrome::BAD_GID_INDEX,
            reason,
        ));
    }
    Ok(())
}

/// The port whose GID table a command means: it must name one of those that SET_HCA_CAP has taken into use, or none, which is
/// the first.
fn gid_port(fw: &Firmware, port: u8) -> Result<u8, Refusal> {
    let ports = fw.general().num_vhca_ports();
    if port > ports {
        return Err(Refusal::bad_field(format!(
            "vhca_port_num {port} with num_vhca_ports {ports}"
        )));
    }
    Ok(port.max(FIRST_PORT))
}

pub(super) fn set_roce_address(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: SetRoceAddressIn = call.input()?;
    if !fw.general().roce() {
        return Err(Refusal::no_capability("roce"));
    }
    check_gid_index(fw, input.roce_address_index())?;
    let port = gid_port(fw, input.vhca_port_num())?;
    let address = input.roce_address();
    let [a, b] = address.source_mac_47_32().to_be_bytes();
    let [c, d, e, f] = address.source_mac_31_0().to_be_bytes();
    let mac = [a, b, c, d, e, f];
    let empty = mac == [0; 6] && (0..16).all(|i| address.source_l3_address(i) == 0);
    if empty {
        env.plane
            .set_roce_address(port, input.roce_address_index(), None)?;
        return ok();
    }
    check_roce_address(&fw.roce_cap(), address, mac)?;
    env.plane
        .set_roce_address(port, input.roce_address_index(), Some(address))?;
    ok()
}

fn check_roce_address(caps: &RoceCap, address: &RoceAddrLayout, mac: [u8; 6]) -> Result<(), Refusal> {
    if !is_unicast(mac) {
        return Err(Refusal::bad_field("source_mac is no unicast address"));
    }
    let version = address.roce_version();
    if version > 2 || caps.roce_version() >> version & 1 == 0 {
        return Err(Refusal::bad_field(format!(
            "roce_version {version} is not supported"
        )));
    }
    let l3 = address.roce_l3_type();
    // l3_type of the capability: bit 0 the GRH of v1, bit 1 IPv4, bit 2 IPv6; of the entry: 0 IPv4, 1 IPv6.
    if version == 2 && (l3 > 1 || caps.l3_type() >> (l3 + 1) & 1 == 0) {
        return Err(Refusal::bad_field(format!("roce_l3_type {l3} is not supported")));
    }
    if version == 2 && l3 == 0 {
        let prefix: Vec<u8> = (0..12).map(|i| address.source_l3_address(i)).collect();
        if prefix != [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
            return Err(Refusal::bad_field(
                "an IPv4 address is given in its v4-mapped form",
            ));
        }
    }
    if address.vlan_valid() && address.vlan_id() == 0xfff {
        return Err(Refusal::bad_field("vlan_id 0xfff is reserved"));
    }
    if !address.vlan_valid() && address.vlan_id() != 0 {
        return Err(Refusal::bad_field("vlan_id without vlan_valid"));
    }
    Ok(())
}

pub(super) fn query_pkey(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryHcaVportPkeyIn = call.input()?;
    own_vport(input.other_vport(), input.vport_number())?;
    at_most(
        "port_num",
        input.port_num().into(),
        fw.general().num_ports().into(),
    )?;
    let count = match input.pkey_index() {
        0 => 1,
        0xffff => 1, // All of the table.
        other => {
            let reason = format!("P_Key index {other}");
            return Err(Refusal::new(
                CommandStatus::BAD_INDEX,
                syndrome::BAD_FIELD,
                reason,
            ));
        }
    };
    let mut out = vec![0; 16];
    for _ in 0..count {
        out.extend_from_slice(&u32::from(DEFAULT_PKEY).to_be_bytes());
    }
    Ok(out)
}

fn check_l2_index(fw: &Firmware, index: u32) -> Result<(), Refusal> {
    let caps = fw.general();
    if !caps.eswitch_manager() {
        return Err(Refusal::no_capability("eswitch_manager"));
    }
    if u64::from(index) >= 1 << caps.log_max_l2_table() {
        let reason = format!("L2 table index {index:#x}");
        return Err(Refusal::new(
            CommandStatus::BAD_INDEX,
            syndrome::BAD_FIELD,
            reason,
        ));
    }
    Ok(())
}

pub(super) fn set_l2_entry(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: SetL2TableEntryIn = call.input()?;
    check_l2_index(fw, input.table_index())?;
    if input.silent_mode_valid() || input.silent_mode() {
        return Err(Refusal::no_capability("silent_mode"));
    }
    let mac = mac_bytes(input.mac_address());
    if !is_unicast(mac) {
        return Err(Refusal::bad_field("mac_address is no unicast address"));
    }
    env.plane.set_l2_entry(input.table_index(), Some(mac))?;
    ok()
}

pub(super) fn delete_l2_entry(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DeleteL2TableEntryIn = call.input()?;
    check_l2_index(fw, input.table_index())?;
    env.plane.set_l2_entry(input.table_index(), None)?;
    ok()
}
