//! Capabilities.

use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layout::Layout;
use crate::layouts::{
    AtomicCaps, CmdHcaCap, CmdHcaCap2, FlowTableNicCap, OdpCap, PerProtocolNetworkingOffloadCaps,
    QueryHcaCapIn, QueryHcaCapOut, RoceCap, SetHcaCapIn,
};
use crate::opcode::Opcode;
use crate::status::numbers;

/// Bytes that any capability takes in QUERY_HCA_CAP and SET_HCA_CAP. Source: PRM `hca_cap_union`.
pub const CAP_BYTES: usize = QueryHcaCapOut::BYTES - QueryHcaCapOut::CAPABILITY_OFFSET;

numbers! {
    /// A group of capabilities: `op_mod` of QUERY_HCA_CAP and SET_HCA_CAP without its lowest bit.
    pub struct CapType(u16) {
        GENERAL = 0x0, "cmd_hca_cap";
        ETHERNET_OFFLOADS = 0x1, "per_protocol_networking_offload_caps";
        ODP = 0x2, "odp_cap";
        ATOMIC = 0x3, "atomic_caps";
        ROCE = 0x4, "roce_cap";
        FLOW_TABLE = 0x7, "flow_table_nic_cap";
        ESWITCH_FLOW_TABLE = 0x8, "flow_table_eswitch_cap";
        ESWITCH = 0x9, "e_switch_cap";
        QOS = 0xc, "qos_cap";
        DEBUG = 0xd, "debug_cap";
        DEVICE_MEMORY = 0xf, "device_mem_cap";
        GENERAL_2 = 0x20, "cmd_hca_cap_2";
        PORT_SELECTION = 0x25, "port_selection_cap";
    }
}

/// Which of the two values of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CapMode {
    /// What can be had.
    Max = 0,
    /// What is in force.
    Current = 1,
}

/// A layout that is a capability; it takes at most [`CAP_BYTES`].
pub trait Capability: Layout {
    /// Its group.
    const TYPE: CapType;
}

macro_rules! capability {
    ($($T:ident = $type:ident;)*) => {$(
        impl Capability for $T {
            const TYPE: CapType = CapType::$type;
        }

        const _: () = assert!($T::BYTES <= CAP_BYTES);
    )*};
}

capability! {
    CmdHcaCap = GENERAL;
    CmdHcaCap2 = GENERAL_2;
    OdpCap = ODP;
    AtomicCaps = ATOMIC;
    RoceCap = ROCE;
    PerProtocolNetworkingOffloadCaps = ETHERNET_OFFLOADS;
    FlowTableNicCap = FLOW_TABLE;
}

/// A group of capabilities as the firmware has it, with what the PRM's tables have no names for: SET_HCA_CAP is to
/// hand back what QUERY_HCA_CAP said, but for what its caller means to change.
#[derive(Clone, PartialEq, Eq)]
pub struct CapValue<T> {
    /// The table. Bits in it that no field covers stay as they came.
    pub layout: T,
    /// The bytes after the table.
    beyond: Vec<u8>,
}

impl<T: Capability> CapValue<T> {
    /// What is in `layout`, and 0 in all behind it: for a group of which firmware takes what can be set and looks at nothing
    /// else.
    pub fn only(layout: T) -> CapValue<T> {
        CapValue {
            layout,
            beyond: alloc::vec![0; CAP_BYTES - T::INFO.bytes],
        }
    }

    /// Reads a capability as it stands in a command; what is missing of its [`CAP_BYTES`] is 0.
    ///
    /// # Errors
    ///
    /// Fewer bytes than the table has.
    pub fn from_bytes(bytes: &[u8]) -> Result<CapValue<T>, DecodeError> {
        let layout = output::<T>(bytes)?.clone();
        let mut beyond = bytes[T::INFO.bytes..].to_vec();
        beyond.resize(CAP_BYTES - T::INFO.bytes, 0);
        Ok(CapValue { layout, beyond })
    }

    /// The [`CAP_BYTES`] as they stand in a command.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.layout.as_bytes(), &self.beyond].concat()
    }
}

impl<T: fmt::Debug> fmt::Debug for CapValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layout.fmt(f)
    }
}

/// Asks for a group of capabilities.
#[derive(Clone, Copy, Debug)]
pub struct QueryHcaCap<T> {
    mode: CapMode,
    capability: PhantomData<T>,
}

impl<T: Capability> QueryHcaCap<T> {
    /// The values of `mode`.
    pub fn new(mode: CapMode) -> QueryHcaCap<T> {
        QueryHcaCap {
            mode,
            capability: PhantomData,
        }
    }
}

impl<T: Capability> Command for QueryHcaCap<T> {
    type Output = CapValue<T>;
    const OPCODE: Opcode = Opcode::QUERY_HCA_CAP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let op_mod = T::TYPE.0 << 1 | self.mode as u16;
        Ok(encode(Self::OPCODE, op_mod, &QueryHcaCapIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        QueryHcaCapOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<CapValue<T>, DecodeError> {
        output::<QueryHcaCapOut>(bytes)?;
        CapValue::from_bytes(&bytes[QueryHcaCapOut::CAPABILITY_OFFSET..])
    }
}

/// Sets a group of capabilities; only before INIT_HCA.
#[derive(Clone, Copy, Debug)]
pub struct SetHcaCap<'a, T> {
    /// What shall be in force.
    pub value: &'a CapValue<T>,
}

impl<T: Capability> Command for SetHcaCap<'_, T> {
    const OPCODE: Opcode = Opcode::SET_HCA_CAP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        // The type stands where QUERY_HCA_CAP has it: above the bit for the mode.
        let mut bytes = encode(Self::OPCODE, T::TYPE.0 << 1, &SetHcaCapIn::default(), &[]);
        bytes.truncate(SetHcaCapIn::CAPABILITY_OFFSET);
        bytes.extend_from_slice(&self.value.to_bytes());
        Ok(bytes)
    }

    plain_answer!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_queried_is_set_again_with_what_has_no_name() {
        let mut answer = [0; QueryHcaCapOut::BYTES];
        answer[QueryHcaCapOut::BYTES - 1] = 0x5a;
        let query = QueryHcaCap::<CmdHcaCap>::new(CapMode::Current);
        let mut value = query.decode(&answer).unwrap();
        value.layout.set_roce(true);
        let input = SetHcaCap { value: &value }.encode().unwrap();
        assert_eq!(input.len(), SetHcaCapIn::BYTES);
        assert_eq!(input.last(), Some(&0x5a));
        let set = CapValue::<CmdHcaCap>::from_bytes(&input[SetHcaCapIn::CAPABILITY_OFFSET..]).unwrap();
        assert_eq!(set, value);
    }

    #[test]
    fn a_short_capability_is_refused() {
        assert!(CapValue::<CmdHcaCap>::from_bytes(&[0; 16]).is_err());
        assert!(
            QueryHcaCap::<RoceCap>::new(CapMode::Max)
                .decode(&[0; 16])
                .is_err()
        );
    }
}
