//! Flow tables: which received frames go where. Source: PRM; Linux mlx5_core for the order of things.

use alloc::vec::Vec;

use zerocopy::IntoBytes;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateFlowTableOut, DeleteFteIn,
    DestFormatStruct, DestroyFlowGroupIn, DestroyFlowTableIn, FteMatchParam, SetFlowTableRootIn, SetFteIn,
};
use crate::opcode::Opcode;

/// `match_criteria_enable`: the outer headers count.
pub const MATCH_OUTER_HEADERS: u8 = 1 << 0;
/// `flow_context.action`: forward to the destinations.
const FORWARD: u16 = 1 << 2;
/// `destination_type` of a TIR.
const TO_TIR: u8 = 2;

/// Makes a table of received frames (NIC_RX, the table type 0).
#[derive(Clone, Copy, Debug)]
pub struct CreateFlowTable {
    /// Tables forward to higher levels only.
    pub level: u8,
    /// log2 of its entries.
    pub log_size: u8,
}

impl Command for CreateFlowTable {
    type Output = u32;
    const OPCODE: Opcode = Opcode::CREATE_FLOW_TABLE;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = CreateFlowTableIn::default();
        input.flow_table_context_mut().set_level(self.level);
        input.flow_table_context_mut().set_log_size(self.log_size);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    fn output_length(&self) -> usize {
        CreateFlowTableOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<u32, DecodeError> {
        Ok(output::<CreateFlowTableOut>(bytes)?.table_id())
    }
}

/// Ends a table without groups.
#[derive(Clone, Copy, Debug)]
pub struct DestroyFlowTable {
    /// Which, 24 bits.
    pub table: u32,
}

impl Command for DestroyFlowTable {
    const OPCODE: Opcode = Opcode::DESTROY_FLOW_TABLE;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DestroyFlowTableIn::default();
        input.set_table_id(self.table)?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Makes a table the first that received frames meet, or lets none be.
#[derive(Clone, Copy, Debug)]
pub struct SetFlowTableRoot {
    /// Which, 24 bits.
    pub table: u32,
    /// Whether it is, or is not any more.
    pub on: bool,
}

impl Command for SetFlowTableRoot {
    const OPCODE: Opcode = Opcode::SET_FLOW_TABLE_ROOT;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = SetFlowTableRootIn::default();
        input.set_table_id(self.table)?;
        Ok(encode(Self::OPCODE, u16::from(!self.on), &input, &[]))
    }

    plain_answer!();
}

/// Says what entries `first..=last` of a table compare.
#[derive(Clone, Copy, Debug)]
pub struct CreateFlowGroup<'a> {
    /// Of which table, 24 bits.
    pub table: u32,
    /// The first entry.
    pub first: u32,
    /// The last entry.
    pub last: u32,
    /// Which parts of the mask count.
    pub enable: u8,
    /// Bits that are compared.
    pub mask: &'a FteMatchParam,
}

impl Command for CreateFlowGroup<'_> {
    type Output = u32;
    const OPCODE: Opcode = Opcode::CREATE_FLOW_GROUP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = CreateFlowGroupIn::default();
        input.set_table_id(self.table)?;
        input.set_start_flow_index(self.first);
        input.set_end_flow_index(self.last);
        input.set_match_criteria_enable(self.enable);
        *input.match_criteria_mut() = *self.mask;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    fn output_length(&self) -> usize {
        CreateFlowGroupOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<u32, DecodeError> {
        Ok(output::<CreateFlowGroupOut>(bytes)?.group_id())
    }
}

/// Ends a group without entries.
#[derive(Clone, Copy, Debug)]
pub struct DestroyFlowGroup {
    /// Of which table, 24 bits.
    pub table: u32,
    /// Which.
    pub group: u32,
}

impl Command for DestroyFlowGroup {
    const OPCODE: Opcode = Opcode::DESTROY_FLOW_GROUP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DestroyFlowGroupIn::default();
        input.set_table_id(self.table)?;
        input.set_group_id(self.group);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Sets an entry: frames that match go to a TIR.
#[derive(Clone, Copy, Debug)]
pub struct SetFlowEntry<'a> {
    /// Of which table, 24 bits.
    pub table: u32,
    /// Of which group.
    pub group: u32,
    /// Its place, one of the group's.
    pub index: u32,
    /// What is compared, under the group's mask.
    pub value: &'a FteMatchParam,
    /// Where frames go, 24 bits.
    pub tirn: u32,
}

impl Command for SetFlowEntry<'_> {
    const OPCODE: Opcode = Opcode::SET_FLOW_TABLE_ENTRY;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = SetFteIn::default();
        input.set_table_id(self.table)?;
        input.set_flow_index(self.index);
        let context = input.flow_context_mut();
        context.set_group_id(self.group);
        context.set_action(FORWARD);
        context.set_destination_list_size(1)?;
        *context.match_value_mut() = *self.value;
        let mut destination = DestFormatStruct::default();
        destination.set_destination_type(TO_TIR);
        destination.set_destination_id(self.tirn)?;
        let mut bytes = encode(Self::OPCODE, 0, &input, &[]);
        bytes.extend_from_slice(destination.as_bytes());
        Ok(bytes)
    }

    plain_answer!();
}

/// Takes an entry away.
#[derive(Clone, Copy, Debug)]
pub struct DeleteFlowEntry {
    /// Of which table, 24 bits.
    pub table: u32,
    /// Its place.
    pub index: u32,
}

impl Command for DeleteFlowEntry {
    const OPCODE: Opcode = Opcode::DELETE_FLOW_TABLE_ENTRY;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DeleteFteIn::default();
        input.set_table_id(self.table)?;
        input.set_flow_index(self.index);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_its_place_what_it_matches_and_its_tir() {
        let mut value = FteMatchParam::default();
        value.outer_headers_mut().set_ethertype(0x0806);
        let input = SetFlowEntry {
            table: 0x55,
            group: 3,
            index: 9,
            value: &value,
            tirn: 0x12,
        }
        .encode()
        .unwrap();
        assert_eq!((input.len(), &input[..2]), (0x348, &[9, 0x36][..]));
        assert_eq!(
            (input[0x17], input[0x23], input[0x47], input[0x4f]),
            (0x55, 9, 3, 4)
        );
        // Ethertype at 0x06 of the outer headers, at 0x40 of the context, at 0x40 of the input.
        assert_eq!(input[0x86..0x88], [8, 6]);
        assert_eq!(input[0x340..0x348], [2, 0, 0, 0x12, 0, 0, 0, 0]);
        let root = SetFlowTableRoot {
            table: 0x55,
            on: false,
        }
        .encode()
        .unwrap();
        assert_eq!((root[7], root[0x17]), (1, 0x55));
    }
}
