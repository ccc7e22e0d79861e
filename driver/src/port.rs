//! The port and its virtual port: addresses, state, MTU, speed.

use std::fmt;
use std::num::NonZeroU8;
use std::str::FromStr;

use ferroce_firmware_iface::cmds::{
    DeleteL2TableEntry, ModifyNicVportContext, QueryNicVportContext, QueryVportState, ReadRegister,
    SetAddressList, SetL2TableEntry, WriteRegister, address_list,
};
use ferroce_firmware_iface::layouts::{
    ModifyNicVportFieldSelect, NicVportContext, PaosReg, PmtuReg, PtysReg,
};

use crate::error::{CommandError, StepError};
use crate::hca::Hca;

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

/// The number of a port of a NIC: they count from 1. Whether a NIC has that port, [`Context::port`] tells.
///
/// [`Context::port`]: crate::context::Context::port
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNumber(NonZeroU8);

impl PortNumber {
    /// The first port, which every NIC has and most have alone.
    pub const FIRST: PortNumber = PortNumber(NonZeroU8::MIN);

    /// The port of that number; `None` for 0, which is none's.
    #[must_use]
    pub const fn new(number: u8) -> Option<PortNumber> {
        match NonZeroU8::new(number) {
            Some(number) => Some(PortNumber(number)),
            None => None,
        }
    }

    /// The number, from 1.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0.get()
    }
}

impl Default for PortNumber {
    fn default() -> Self {
        PortNumber::FIRST
    }
}

impl fmt::Display for PortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for PortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
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

/// The MAC of a virtual port.
pub(crate) fn vport_mac(vport: &NicVportContext) -> MacAddress {
    MacAddress(vport.permanent_address().to_bytes())
}

fn modify_vport(
    hca: &Hca,
    change: impl FnOnce(&mut ModifyNicVportFieldSelect, &mut NicVportContext),
) -> Result<(), CommandError> {
    let (mut fields, mut context) = (ModifyNicVportFieldSelect::default(), NicVportContext::default());
    change(&mut fields, &mut context);
    hca.exec(&ModifyNicVportContext {
        fields,
        context: &context,
    })
}

/// Lets the virtual port send and receive RoCE packets, or stops it.
pub(crate) fn enable_roce(hca: &Hca, on: bool) -> Result<(), CommandError> {
    modify_vport(hca, |fields, context| {
        fields.set_roce_en(true);
        context.set_roce_en(on);
    })
}

/// Sets the virtual port's MAC, which firmware then uses as the permanent one until the next reset.
pub(crate) fn set_vport_mac(hca: &Hca, mac: MacAddress) -> Result<(), CommandError> {
    modify_vport(hca, |fields, context| {
        fields.set_permanent_address(true);
        context.permanent_address_mut().set_bytes(mac.0);
    })
}

/// The port's PMTU register, with nothing but the port said.
fn pmtu_index(port: PortNumber) -> PmtuReg {
    let mut register = PmtuReg::default();
    register.set_local_port(port.get());
    register
}

/// Sets the largest IP packet, at most what the port can; returns what it became.
pub(crate) fn set_mtu(hca: &Hca, port: PortNumber, wanted: Option<u16>) -> Result<u16, StepError> {
    let pmtu = hca.exec(&ReadRegister::new(pmtu_index(port)))?;
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
    let mut register = pmtu_index(port);
    register.set_admin_mtu(hardware);
    hca.exec(&WriteRegister { register })?;
    modify_vport(hca, |fields, context| {
        fields.set_mtu(true);
        context.set_mtu(hardware);
    })?;
    Ok(mtu)
}

/// Turns a port on or off.
pub(crate) fn set_admin_state(hca: &Hca, port: PortNumber, up: bool) -> Result<(), StepError> {
    let mut register = PaosReg::default();
    register.set_local_port(port.get());
    // 1 up, 2 down; `ase` says that admin_status is meant. Source: PRM PAOS register.
    register.set_admin_status(if up { 1 } else { 2 })?;
    register.set_ase(true);
    Ok(hca.exec(&WriteRegister { register })?)
}

/// Enters the MAC in the table by which a physical function's frames find it among its virtual functions.
pub(crate) fn set_l2_entry(hca: &Hca, mac: MacAddress) -> Result<(), CommandError> {
    hca.exec(&SetL2TableEntry {
        index: L2_INDEX,
        mac: mac.0,
        vlan: None,
    })
}

/// Takes the MAC out of the table.
pub(crate) fn delete_l2_entry(hca: &Hca) -> Result<(), CommandError> {
    hca.exec(&DeleteL2TableEntry { index: L2_INDEX })
}

/// Tells who manages the embedded switch which stations' frames this function wants. Without its own address in that list,
/// the switch of a physical function that Linux runs brings a virtual one nothing.
pub(crate) fn ask_for_own_frames(hca: &Hca, macs: &[[u8; 6]]) -> Result<(), CommandError> {
    hca.exec(&SetAddressList {
        kind: address_list::UNICAST,
        macs,
    })
}

/// Largest path MTU for RoCE that the virtual port's MTU lets through; 0 if none does.
pub(crate) fn active_path_mtu(hca: &Hca) -> Result<u16, CommandError> {
    let hardware = match hca.exec(&QueryNicVportContext)?.mtu() {
        0 => hca
            .exec(&ReadRegister::new(pmtu_index(PortNumber::FIRST)))?
            .oper_mtu(),
        mtu => mtu,
    };
    Ok(path_mtu(hardware.saturating_sub(HARDWARE_MTU_EXTRA)))
}

/// Whether a port carries traffic. The vport's state is that of the first port; of the others their register tells.
fn state(hca: &Hca, port: PortNumber) -> Result<PortState, StepError> {
    if port == PortNumber::FIRST {
        return Ok(match hca.exec(&QueryVportState)?.state {
            0 => PortState::Down,
            1 => PortState::Active,
            other => PortState::Unknown(other),
        });
    }
    let mut index = PaosReg::default();
    index.set_local_port(port.get());
    Ok(match hca.exec(&ReadRegister::new(index))?.oper_status() {
        // Source: PRM PAOS register.
        1 => PortState::Active,
        2 => PortState::Down,
        other => PortState::Unknown(other),
    })
}

/// Everything about a port that the device says.
pub(crate) fn query(hca: &Hca, port: PortNumber) -> Result<PortAttributes, StepError> {
    let vport = hca.exec(&QueryNicVportContext)?;
    let state = state(hca, port)?;
    let pmtu = hca.exec(&ReadRegister::new(pmtu_index(port)))?;
    let mut index = PtysReg::default();
    index.set_local_port(port.get());
    index.set_proto_mask(PROTO_ETHERNET)?;
    let ptys = hca.exec(&ReadRegister::new(index))?;
    let hardware = if vport.mtu() != 0 {
        vport.mtu()
    } else {
        pmtu.oper_mtu()
    };
    let mtu = hardware.saturating_sub(HARDWARE_MTU_EXTRA);
    Ok(PortAttributes {
        state,
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
        assert_eq!(mac.0, [0x02, 0x00, 0xc9, 0x01, 0xfe, 0xff]);
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
