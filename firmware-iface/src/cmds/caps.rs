//! Capabilities.

use alloc::vec::Vec;
use core::marker::PhantomData;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layout::Layout;
use crate::layouts::{
    AtomicCaps, CmdHcaCap, CmdHcaCap2, OdpCap, PerProtocolNetworkingOffloadCaps, QueryHcaCapIn,
    QueryHcaCapOut, RoceCap, SetHcaCapIn,
};
use crate::opcode::Opcode;

/// Bytes that any capability takes in QUERY_HCA_CAP and SET_HCA_CAP.
pub const CAPABILITY_BYTES: usize = QueryHcaCapOut::BYTES - QueryHcaCapOut::CAPABILITY_OFFSET;

/// A group of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CapType {
    /// `cmd_hca_cap`.
    General = 0x0,
    /// `per_protocol_networking_offload_caps`.
    EthernetOffloads = 0x1,
    /// `odp_cap`.
    Odp = 0x2,
    /// `atomic_caps`.
    Atomic = 0x3,
    /// `roce_cap`.
    Roce = 0x4,
    /// `flow_table_nic_cap`.
    FlowTable = 0x7,
    /// `flow_table_eswitch_cap`.
    EswitchFlowTable = 0x8,
    /// `e_switch_cap`.
    Eswitch = 0x9,
    /// `qos_cap`.
    Qos = 0xc,
    /// `debug_cap`.
    Debug = 0xd,
    /// `device_mem_cap`.
    DeviceMemory = 0xf,
    /// `cmd_hca_cap_2`.
    General2 = 0x20,
}

/// Which of the two values of a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CapMode {
    /// What can be had.
    Max = 0,
    /// What is in force.
    Current = 1,
}

/// A layout that is a capability.
pub trait Capability: Layout {
    /// Its group.
    const TYPE: CapType;
}

macro_rules! capability {
    ($($T:ident = $type:ident;)*) => {$(
        impl Capability for $T {
            const TYPE: CapType = CapType::$type;
        }
    )*};
}

capability! {
    CmdHcaCap = General;
    CmdHcaCap2 = General2;
    OdpCap = Odp;
    AtomicCaps = Atomic;
    RoceCap = Roce;
    PerProtocolNetworkingOffloadCaps = EthernetOffloads;
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
    type Output = T;
    const OPCODE: Opcode = Opcode::QUERY_HCA_CAP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let op_mod = (T::TYPE as u16) << 1 | self.mode as u16;
        Ok(encode(Self::OPCODE, op_mod, &QueryHcaCapIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        QueryHcaCapOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, DecodeError> {
        output::<QueryHcaCapOut>(bytes)?;
        output::<T>(&bytes[QueryHcaCapOut::CAPABILITY_OFFSET..]).cloned()
    }
}

/// Sets a group of capabilities; only before INIT_HCA.
#[derive(Clone, Copy, Debug)]
pub struct SetHcaCap<'a, T> {
    /// What shall be in force.
    pub capability: &'a T,
}

impl<T: Capability> Command for SetHcaCap<'_, T> {
    const OPCODE: Opcode = Opcode::SET_HCA_CAP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = encode(Self::OPCODE, (T::TYPE as u16) << 1, &SetHcaCapIn::default(), &[]);
        let capability = self.capability.as_bytes();
        let from = SetHcaCapIn::CAPABILITY_OFFSET;
        bytes[from..from + capability.len()].copy_from_slice(capability);
        Ok(bytes)
    }

    plain_answer!();
}
