//! The port and its virtual port: addresses, state, MTU, speed.

use std::fmt;
use std::str::FromStr;

use ferroce_firmware_iface::layout::{Layout, view};
use ferroce_firmware_iface::layouts::{
    AccessRegisterIn, AccessRegisterOut, DeleteL2TableEntryIn, MacAddressLayout, ModifyNicVportContextIn,
    NicVportContext, PaosReg, PmtuReg, PtysReg, QueryNicVportContextIn, QueryNicVportContextOut,
    QueryVportStateIn, QueryVportStateOut, SetL2TableEntryIn,
};
use ferroce_firmware_iface::opcode::Opcode;
use zerocopy::IntoBytes;

use crate::error::{CommandError, StepError};
use crate::hca::Hca;

/// Register ids. Source: PRM "ACCESS_REG".
pub(crate) mod register {
    /// Port MTU.
    pub(crate) const PMTU: u16 = 0x5003;
    /// Port type and speed.
    pub(crate) const PTYS: u16 = 0x5004;
    /// Port administrative and operational status.
    pub(crate) const PAOS: u16 = 0x5006;
    /// Byte order of the host.
    pub(crate) const HOST_ENDIANNESS: u16 = 0x7004;
}

/// `local_port`: ports count from 1, and a function has one.
const LOCAL_PORT: u8 = 1;
/// `proto_mask` for Ethernet.
const PROTO_ETHERNET: u8 = 1 << 2;
/// Bytes by which the hardware's MTU exceeds the one of IP: Ethernet header, VLAN tag, frame check sequence. Source:
/// Linux mlx5e.
const HARDWARE_MTU_EXTRA: u16 = 14 + 4 + 4;
/// The most headers that a RoCE packet has around its payload: GRH 40, UDP 8, BTH 12, XRCETH 4, AtomicETH 28, ICRC 4.
/// Source: Linux's rdma core.
const ROCE_HEADERS: u16 = 40 + 8 + 12 + 4 + 28 + 4;
/// The index of our own MAC in the L2 table.
const L2_INDEX: u32 = 0;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// Bits 47:32 and 31:0.
    pub(crate) fn halves(self) -> (u16, u32) {
        let [a, b, c, d, e, f] = self.0;
        (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]))
    }

    fn from_layout(layout: &MacAddressLayout) -> Self {
        let [a, b] = layout.mac_addr_47_32().to_be_bytes();
        let [c, d, e, f] = layout.mac_addr_31_0().to_be_bytes();
        Self([a, b, c, d, e, f])
    }

    fn write(self, layout: &mut MacAddressLayout) {
        let (high, low) = self.halves();
        layout.set_mac_addr_47_32(high);
        layout.set_mac_addr_31_0(low);
    }

    /// Whether it is the address of one station: not all zero, and without the group bit.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a MAC address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not a MAC address (six hex bytes: 02:00:00:00:00:01)")]
pub struct ParseMacError(String);

impl FromStr for MacAddress {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let bytes: Option<Vec<u8>> = text
            .split(':')
            .map(|part| {
                u8::from_str_radix(part, 16)
                    .ok()
                    .filter(|_| (1..=2).contains(&part.len()))
            })
            .collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(|| ParseMacError(text.to_owned()))
    }
}

/// Whether a port carries traffic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PortState {
    /// The link is down.
    Down,
    /// The link is up.
    Active,
    /// A state that this driver does not know.
    Unknown(u8),
}

/// What a port is and does.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Whether it carries traffic.
    pub state: PortState,
    /// Its address.
    pub mac: MacAddress,
    /// GUID of the NIC.
    pub node_guid: u64,
    /// GUID of the port.
    pub port_guid: u64,
    /// GUID that all NICs of a system share.
    pub system_image_guid: u64,
    /// Largest IP packet in bytes, in effect.
    pub mtu: u16,
    /// Largest IP packet in bytes that the port could be set to.
    pub max_mtu: u16,
    /// Largest path MTU for RoCE that fits `mtu`: 256, 512, 1024, 2048 or 4096 bytes of payload; 0 if none does.
    pub active_path_mtu: u16,
    /// Speed in megabits per second; `None` where the device does not say, or the link is down.
    pub speed_mbps: Option<u32>,
}

/// The largest RoCE path MTU for an IP MTU.
fn path_mtu(mtu: u16) -> u16 {
    let room = mtu.saturating_sub(ROCE_HEADERS);
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|payload| *payload <= room)
        .unwrap_or(0)
}

/// Megabits per second for a bit of PTYS' `eth_proto_oper`. Source: PRM PTYS register.
fn legacy_speed(bit: u32) -> Option<u32> {
    Some(match bit {
        24 => 100,
        0 | 1 | 25 => 1_000,
        2..=4 | 12..=14 | 26 => 10_000,
        5 => 20_000,
        27..=29 => 25_000,
        6 | 7 | 15 | 16 => 40_000,
        18 | 30 | 31 => 50_000,
        8 => 56_000,
        20..=23 => 100_000,
        _ => return None,
    })
}

/// Megabits per second for a bit of PTYS' `ext_eth_proto_oper`. Source: PRM PTYS register.
fn extended_speed(bit: u32) -> Option<u32> {
    Some(match bit {
        0 => 100,
        1 => 1_000,
        3 => 5_000,
        4 => 10_000,
        6 => 25_000,
        5 => 40_000,
        7 | 8 => 50_000,
        9..=11 => 100_000,
        12 | 13 => 200_000,
        15 | 16 => 400_000,
        19 => 800_000,
        _ => return None,
    })
}

fn speed(ptys: &PtysReg) -> Option<u32> {
    let highest = |bits: u32| bits.checked_ilog2();
    if ptys.ext_eth_proto_capability() != 0 {
        return highest(ptys.ext_eth_proto_oper()).and_then(extended_speed);
    }
    highest(ptys.eth_proto_oper()).and_then(legacy_speed)
}

/// ACCESS_REG, reading. `register` holds the index fields.
pub(crate) fn read_register<R: Layout>(hca: &Hca, id: u16, register: &R) -> Result<R, CommandError> {
    access_register(hca, id, 1, register)
}

/// ACCESS_REG, writing.
pub(crate) fn write_register<R: Layout>(hca: &Hca, id: u16, register: &R) -> Result<(), CommandError> {
    access_register(hca, id, 0, register).map(drop)
}

fn access_register<R: Layout>(hca: &Hca, id: u16, op_mod: u16, register: &R) -> Result<R, CommandError> {
    let mut header = AccessRegisterIn::default();
    header.set_opcode(Opcode::ACCESS_REG.0);
    header.set_op_mod(op_mod);
    header.set_register_id(id);
    let input = [header.as_bytes(), register.as_bytes()].concat();
    let mut output = vec![0; AccessRegisterOut::REGISTER_DATA_OFFSET + size_of::<R>()];
    hca.exec_raw(&input, &mut output)?;
    let data = &output[AccessRegisterOut::REGISTER_DATA_OFFSET..];
    Ok(view::<R>(data).cloned().unwrap_or_else(R::zeroed))
}

/// QUERY_NIC_VPORT_CONTEXT of our own virtual port.
pub(crate) fn query_vport(hca: &Hca) -> Result<NicVportContext, CommandError> {
    let mut input = QueryNicVportContextIn::default();
    input.set_opcode(Opcode::QUERY_NIC_VPORT_CONTEXT.0);
    let output: QueryNicVportContextOut = hca.exec_layout(&input)?;
    Ok(*output.nic_vport_context())
}

/// The MAC of a virtual port.
pub(crate) fn vport_mac(vport: &NicVportContext) -> MacAddress {
    MacAddress::from_layout(vport.permanent_address())
}

fn modify_vport(hca: &Hca, change: impl FnOnce(&mut ModifyNicVportContextIn)) -> Result<(), CommandError> {
    let mut input = ModifyNicVportContextIn::default();
    input.set_opcode(Opcode::MODIFY_NIC_VPORT_CONTEXT.0);
    change(&mut input);
    hca.exec_raw(input.as_bytes(), &mut [0; 16])
}

/// Lets the virtual port send and receive RoCE packets, or stops it.
pub(crate) fn enable_roce(hca: &Hca, on: bool) -> Result<(), CommandError> {
    modify_vport(hca, |input| {
        input.field_select_mut().set_roce_en(true);
        input.nic_vport_context_mut().set_roce_en(on);
    })
}

/// Sets the virtual port's MAC, which firmware then uses as the permanent one until the next reset.
pub(crate) fn set_vport_mac(hca: &Hca, mac: MacAddress) -> Result<(), CommandError> {
    modify_vport(hca, |input| {
        input.field_select_mut().set_permanent_address(true);
        mac.write(input.nic_vport_context_mut().permanent_address_mut());
    })
}

fn pmtu_index() -> PmtuReg {
    let mut register = PmtuReg::default();
    register.set_local_port(LOCAL_PORT);
    register
}

/// Sets the largest IP packet, at most what the port can; returns what it became.
pub(crate) fn set_mtu(hca: &Hca, wanted: Option<u16>) -> Result<u16, StepError> {
    let pmtu = read_register(hca, register::PMTU, &pmtu_index())?;
    let max = pmtu.max_mtu().saturating_sub(HARDWARE_MTU_EXTRA);
    if let Some(mtu) = wanted.filter(|mtu| *mtu > max) {
        return Err(StepError::Value {
            what: "MTU",
            value: u64::from(mtu),
            limit: format!("at most {max}"),
        });
    }
    // A RoCE packet of the largest path MTU needs no more than this.
    let mtu = wanted.unwrap_or(max.min(4096 + ROCE_HEADERS));
    let hardware = mtu.saturating_add(HARDWARE_MTU_EXTRA);
    let mut register = pmtu_index();
    register.set_admin_mtu(hardware);
    write_register(hca, register::PMTU, &register)?;
    modify_vport(hca, |input| {
        input.field_select_mut().set_mtu(true);
        input.nic_vport_context_mut().set_mtu(hardware);
    })?;
    Ok(mtu)
}

/// Turns the port on or off.
pub(crate) fn set_admin_state(hca: &Hca, up: bool) -> Result<(), StepError> {
    let mut register = PaosReg::default();
    register.set_local_port(LOCAL_PORT);
    // 1 up, 2 down; `ase` says that admin_status is meant. Source: PRM PAOS register.
    register.set_admin_status(if up { 1 } else { 2 })?;
    register.set_ase(true);
    Ok(write_register(hca, register::PAOS, &register)?)
}

/// Enters the MAC in the table by which a physical function's frames find it among its virtual functions.
pub(crate) fn set_l2_entry(hca: &Hca, mac: MacAddress) -> Result<(), StepError> {
    let mut input = SetL2TableEntryIn::default();
    input.set_opcode(Opcode::SET_L2_TABLE_ENTRY.0);
    input.set_table_index(L2_INDEX)?;
    mac.write(input.mac_address_mut());
    Ok(hca.exec_raw(input.as_bytes(), &mut [0; 16])?)
}

/// Takes the MAC out of the table.
pub(crate) fn delete_l2_entry(hca: &Hca) -> Result<(), StepError> {
    let mut input = DeleteL2TableEntryIn::default();
    input.set_opcode(Opcode::DELETE_L2_TABLE_ENTRY.0);
    input.set_table_index(L2_INDEX)?;
    Ok(hca.exec_raw(input.as_bytes(), &mut [0; 16])?)
}

/// Everything about the port that the device says.
pub(crate) fn query(hca: &Hca) -> Result<PortAttributes, StepError> {
    let vport = query_vport(hca)?;
    let mut input = QueryVportStateIn::default();
    input.set_opcode(Opcode::QUERY_VPORT_STATE.0);
    let state: QueryVportStateOut = hca.exec_layout(&input)?;
    let pmtu = read_register(hca, register::PMTU, &pmtu_index())?;
    let mut index = PtysReg::default();
    index.set_local_port(LOCAL_PORT);
    index.set_proto_mask(PROTO_ETHERNET)?;
    let ptys = read_register(hca, register::PTYS, &index)?;
    let hardware = if vport.mtu() != 0 {
        vport.mtu()
    } else {
        pmtu.oper_mtu()
    };
    let mtu = hardware.saturating_sub(HARDWARE_MTU_EXTRA);
    Ok(PortAttributes {
        state: match state.state() {
            0 => PortState::Down,
            1 => PortState::Active,
            other => PortState::Unknown(other),
        },
        mac: vport_mac(&vport),
        node_guid: vport.node_guid(),
        port_guid: vport.port_guid(),
        system_image_guid: vport.system_image_guid(),
        mtu,
        max_mtu: pmtu.max_mtu().saturating_sub(HARDWARE_MTU_EXTRA),
        active_path_mtu: path_mtu(mtu),
        speed_mbps: speed(&ptys),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_read_and_print() {
        let mac: MacAddress = "02:00:c9:1:fe:ff".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:c9:01:fe:ff");
        assert_eq!(mac.halves(), (0x0200, 0xc901_feff));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "02:00:00:00:00:1ff",
            "0g:00:00:00:00:00",
        ] {
            assert!(bad.parse::<MacAddress>().is_err(), "{bad}");
        }
        assert!(mac.is_unicast() && !MacAddress([0; 6]).is_unicast() && !MacAddress([1; 6]).is_unicast());
    }

    #[test]
    fn path_mtu_leaves_room_for_headers() {
        assert_eq!(
            [1500, 4200, 4192, 4191, 9000, 352, 351, 0].map(path_mtu),
            [1024, 4096, 4096, 2048, 4096, 256, 0, 0]
        );
    }

    #[test]
    fn speed_comes_from_the_extended_fields_where_there_are_any() {
        let mut ptys = PtysReg::default();
        ptys.set_eth_proto_oper(1 << 20);
        assert_eq!(speed(&ptys), Some(100_000));
        ptys.set_ext_eth_proto_capability(1);
        assert_eq!(speed(&ptys), None);
        ptys.set_ext_eth_proto_oper(1 << 12);
        assert_eq!(speed(&ptys), Some(200_000));
    }
}
