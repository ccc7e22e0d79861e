//! What the firmware asks of the data plane for Ethernet: raw queues and flow tables.

use ferroce_firmware_iface::layouts::{Rqc, Sqc, Tirc, Tisc};

use crate::objects::flow::{FlowEntry, FlowGroup, FlowTable, Miss};
use crate::objects::raw::RawState;
use crate::objects::{Buffer, ObjectError};

/// Which unicast frames to foreign addresses the vport takes too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// All unicast frames.
    pub promiscuous: bool,
    /// Further own addresses.
    pub unicast: Vec<[u8; 6]>,
}

/// The part of [`super::Plane`] that Ethernet queues need. Errors are as described there. A plane without
/// Ethernet leaves the functions as they are: everything is refused.
#[allow(missing_docs, unused_variables)] // One function for each firmware command, under the command's name.
pub trait EthernetPlane {
    fn create_sq(&mut self, sqc: &Sqc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        none("SQ")
    }
    /// Moves the SQ from state `from`.
    fn modify_sq(&mut self, sqn: u32, from: RawState, to: RawState) -> Result<(), ObjectError> {
        none("SQ")
    }
    fn destroy_sq(&mut self, sqn: u32) -> Result<(), ObjectError> {
        none("SQ")
    }
    fn query_sq(&self, sqn: u32) -> Result<Sqc, ObjectError> {
        none("SQ")
    }

    fn create_rq(&mut self, rqc: &Rqc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        none("RQ")
    }
    /// Moves the RQ from state `from`; `keep_vlan` and `counter_set` are set when given.
    fn modify_rq(
        &mut self,
        rqn: u32,
        from: RawState,
        to: RawState,
        keep_vlan: Option<bool>,
        counter_set: Option<u8>,
    ) -> Result<(), ObjectError> {
        none("RQ")
    }
    fn destroy_rq(&mut self, rqn: u32) -> Result<(), ObjectError> {
        none("RQ")
    }
    fn query_rq(&self, rqn: u32) -> Result<Rqc, ObjectError> {
        none("RQ")
    }

    fn create_tis(&mut self, tisc: &Tisc) -> Result<u32, ObjectError> {
        none("TIS")
    }
    fn modify_tis(&mut self, tisn: u32, prio: u8) -> Result<(), ObjectError> {
        none("TIS")
    }
    fn destroy_tis(&mut self, tisn: u32) -> Result<(), ObjectError> {
        none("TIS")
    }

    fn create_tir(&mut self, tirc: &Tirc) -> Result<u32, ObjectError> {
        none("TIR")
    }
    /// Takes over a whole context.
    fn modify_tir(&mut self, tirn: u32, tirc: &Tirc) -> Result<(), ObjectError> {
        none("TIR")
    }
    fn destroy_tir(&mut self, tirn: u32) -> Result<(), ObjectError> {
        none("TIR")
    }
    fn query_tir(&self, tirn: u32) -> Result<Tirc, ObjectError> {
        none("TIR")
    }

    fn create_rqt(&mut self, rqs: Vec<u32>) -> Result<u32, ObjectError> {
        none("RQT")
    }
    fn modify_rqt(&mut self, rqtn: u32, rqs: Vec<u32>) -> Result<(), ObjectError> {
        none("RQT")
    }
    fn destroy_rqt(&mut self, rqtn: u32) -> Result<(), ObjectError> {
        none("RQT")
    }

    fn create_flow_table(&mut self, table: FlowTable) -> Result<u32, ObjectError> {
        none("flow table")
    }
    fn modify_flow_table(&mut self, id: u32, miss: Miss) -> Result<(), ObjectError> {
        none("flow table")
    }
    fn destroy_flow_table(&mut self, id: u32) -> Result<(), ObjectError> {
        none("flow table")
    }
    /// The table that received frames meet first; `None`: none, frames are dropped.
    fn set_flow_root(&mut self, id: Option<u32>) -> Result<(), ObjectError> {
        none("flow table")
    }
    fn create_flow_group(&mut self, table: u32, group: FlowGroup) -> Result<u32, ObjectError> {
        none("flow table")
    }
    fn destroy_flow_group(&mut self, table: u32, group: u32) -> Result<(), ObjectError> {
        none("flow table")
    }
    fn set_flow_entry(&mut self, table: u32, index: u32, entry: FlowEntry) -> Result<(), ObjectError> {
        none("flow table")
    }
    fn delete_flow_entry(&mut self, table: u32, index: u32) -> Result<(), ObjectError> {
        none("flow table")
    }
    fn flow_entry(&self, table: u32, index: u32) -> Option<FlowEntry> {
        None
    }

    fn set_filter(&mut self, filter: Filter) {}
}

fn none<T>(object: &'static str) -> Result<T, ObjectError> {
    Err(ObjectError::NoResources { object, limit: 0 })
}
