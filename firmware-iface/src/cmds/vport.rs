//! The virtual port: addresses, state, RoCE.

use alloc::vec::Vec;

use zerocopy::IntoBytes;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    DeleteL2TableEntryIn, MacAddressLayout, ModifyNicVportContextIn, ModifyNicVportFieldSelect,
    NicVportContext, QueryNicVportContextIn, QueryNicVportContextOut, QueryVportStateIn, QueryVportStateOut,
    RoceAddrLayout, SetL2TableEntryIn, SetRoceAddressIn,
};
use crate::opcode::Opcode;

impl MacAddressLayout {
    /// The address as it stands on the wire.
    pub fn to_bytes(&self) -> [u8; 6] {
        mac_bytes(self.mac_addr_47_32(), self.mac_addr_31_0())
    }

    /// Sets the address.
    pub fn set_bytes(&mut self, mac: [u8; 6]) {
        let (high, low) = mac_words(mac);
        self.set_mac_addr_47_32(high);
        self.set_mac_addr_31_0(low);
    }
}

fn mac_bytes(high: u16, low: u32) -> [u8; 6] {
    let ([a, b], [c, d, e, f]) = (high.to_be_bytes(), low.to_be_bytes());
    [a, b, c, d, e, f]
}

fn mac_words([a, b, c, d, e, f]: [u8; 6]) -> (u16, u32) {
    (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]))
}

/// `roce_addr_layout.roce_version`.
pub mod roce_version {
    /// RoCE v1: Ethernet and GRH.
    pub const V1: u8 = 0;
    /// RoCE v2: UDP over IP.
    pub const V2: u8 = 2;
}

/// `roce_addr_layout.roce_l3_type`.
pub mod roce_l3_type {
    /// The GID is an IPv4-mapped address.
    pub const IPV4: u8 = 0;
    /// The GID is an IPv6 address (or, for v1, any GID).
    pub const IPV6: u8 = 1;
}

impl RoceAddrLayout {
    /// The GID, 16 bytes as on the wire.
    pub fn gid(&self) -> [u8; 16] {
        core::array::from_fn(|i| self.source_l3_address(i))
    }

    /// Sets the GID.
    pub fn set_gid(&mut self, gid: [u8; 16]) {
        for (i, byte) in gid.into_iter().enumerate() {
            self.set_source_l3_address(i, byte);
        }
    }

    /// The source MAC address.
    pub fn source_mac(&self) -> [u8; 6] {
        mac_bytes(self.source_mac_47_32(), self.source_mac_31_0())
    }

    /// Sets the source MAC address.
    pub fn set_source_mac(&mut self, mac: [u8; 6]) {
        let (high, low) = mac_words(mac);
        self.set_source_mac_47_32(high);
        self.set_source_mac_31_0(low);
    }
}

/// Asks for the function's own virtual port.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryNicVportContext;

impl Command for QueryNicVportContext {
    type Output = NicVportContext;
    const OPCODE: Opcode = Opcode::QUERY_NIC_VPORT_CONTEXT;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &QueryNicVportContextIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        QueryNicVportContextOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<NicVportContext, DecodeError> {
        Ok(*output::<QueryNicVportContextOut>(bytes)?.nic_vport_context())
    }
}

/// Changes the function's own virtual port.
#[derive(Clone, Copy, Debug)]
pub struct ModifyNicVportContext<'a> {
    /// Which fields to take.
    pub fields: ModifyNicVportFieldSelect,
    /// What they shall be.
    pub context: &'a NicVportContext,
}

impl Command for ModifyNicVportContext<'_> {
    const OPCODE: Opcode = Opcode::MODIFY_NIC_VPORT_CONTEXT;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ModifyNicVportContextIn::default();
        *input.field_select_mut() = self.fields;
        *input.nic_vport_context_mut() = *self.context;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Kinds of address lists of a virtual port (`allowed_list_type`).
pub mod address_list {
    /// Stations whose frames are wanted.
    pub const UNICAST: u8 = 0;
    /// Groups whose frames are wanted.
    pub const MULTICAST: u8 = 1;
}

/// Says which frames the function's own virtual port wants, for the embedded switch before it.
#[derive(Clone, Copy, Debug)]
pub struct SetAddressList<'a> {
    /// [`address_list`].
    pub kind: u8,
    /// The addresses, as many as `log_max_current_uc_list` and `log_max_current_mc_list` allow.
    pub macs: &'a [[u8; 6]],
}

impl Command for SetAddressList<'_> {
    const OPCODE: Opcode = Opcode::MODIFY_NIC_VPORT_CONTEXT;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ModifyNicVportContextIn::default();
        input.field_select_mut().set_addresses_list(true);
        let context = input.nic_vport_context_mut();
        context.set_allowed_list_type(self.kind)?;
        let size = u16::try_from(self.macs.len()).map_err(|_| EncodeError::TooMany {
            what: "addresses",
            count: self.macs.len(),
            max: 0xfff,
        })?;
        context.set_allowed_list_size(size)?;
        let mut bytes = encode(Self::OPCODE, 0, &input, &[]);
        for mac in self.macs {
            let mut entry = MacAddressLayout::default();
            entry.set_bytes(*mac);
            bytes.extend_from_slice(entry.as_bytes());
        }
        Ok(bytes)
    }

    plain_answer!();
}

/// Asks whether the link is up.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryVportState;

/// The answer to [`QueryVportState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VportState {
    /// What is wanted: 0 down, 1 up, 2 as the port is.
    pub admin_state: u8,
    /// What is: 0 down, 1 up.
    pub state: u8,
}

impl Command for QueryVportState {
    type Output = VportState;
    const OPCODE: Opcode = Opcode::QUERY_VPORT_STATE;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &QueryVportStateIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        QueryVportStateOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<VportState, DecodeError> {
        let out = output::<QueryVportStateOut>(bytes)?;
        Ok(VportState {
            admin_state: out.admin_state(),
            state: out.state(),
        })
    }
}

/// Sets an entry of the RoCE address (GID) table; an entry of zeros deletes it.
#[derive(Clone, Copy, Debug)]
pub struct SetRoceAddress<'a> {
    /// Which, below `roce_cap.roce_address_table_size`.
    pub index: u16,
    /// In the table of which port, from 1, 4 bits; 0 where `cmd_hca_cap.num_vhca_ports` is 0, as there is one table then.
    pub port: u8,
    /// What it shall be.
    pub address: &'a RoceAddrLayout,
}

impl Command for SetRoceAddress<'_> {
    const OPCODE: Opcode = Opcode::SET_ROCE_ADDRESS;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = SetRoceAddressIn::default();
        input.set_roce_address_index(self.index);
        input.set_vhca_port_num(self.port)?;
        *input.roce_address_mut() = *self.address;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Sets an entry of the embedded switch's L2 table: frames to this MAC address come to this function.
#[derive(Clone, Copy, Debug)]
pub struct SetL2TableEntry {
    /// Which, below `1 << cmd_hca_cap.log_max_l2_table`; 24 bits.
    pub index: u32,
    /// The address.
    pub mac: [u8; 6],
    /// Only with this VLAN id, 12 bits.
    pub vlan: Option<u16>,
}

impl Command for SetL2TableEntry {
    const OPCODE: Opcode = Opcode::SET_L2_TABLE_ENTRY;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = SetL2TableEntryIn::default();
        input.set_table_index(self.index)?;
        input.mac_address_mut().set_bytes(self.mac);
        if let Some(vlan) = self.vlan {
            input.set_vlan_valid(true);
            input.set_vlan(vlan)?;
        }
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Deletes an entry of the embedded switch's L2 table.
#[derive(Clone, Copy, Debug)]
pub struct DeleteL2TableEntry {
    /// Which, 24 bits.
    pub index: u32,
}

impl Command for DeleteL2TableEntry {
    const OPCODE: Opcode = Opcode::DELETE_L2_TABLE_ENTRY;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DeleteL2TableEntryIn::default();
        input.set_table_index(self.index)?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}
