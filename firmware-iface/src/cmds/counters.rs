//! Queue counters: what happened to the QPs that name a counter set.

use alloc::vec::Vec;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    AllocQCounterIn, AllocQCounterOut, DeallocQCounterIn, QueryQCounterIn, QueryQCounterOut,
};
use crate::opcode::Opcode;

/// Makes a counter set, which QPs then name (`qpc.counter_set_id`).
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocQCounter;

impl Command for AllocQCounter {
    /// The set's id; 0 means none.
    type Output = u8;
    const OPCODE: Opcode = Opcode::ALLOC_Q_COUNTER;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &AllocQCounterIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        AllocQCounterOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<u8, DecodeError> {
        Ok(output::<AllocQCounterOut>(bytes)?.counter_set_id())
    }
}

/// Ends a counter set.
#[derive(Clone, Copy, Debug)]
pub struct DeallocQCounter {
    /// Which.
    pub counter_set_id: u8,
}

impl Command for DeallocQCounter {
    const OPCODE: Opcode = Opcode::DEALLOC_Q_COUNTER;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DeallocQCounterIn::default();
        input.set_counter_set_id(self.counter_set_id);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Reads a counter set.
#[derive(Clone, Copy, Debug)]
pub struct QueryQCounter {
    /// Which.
    pub counter_set_id: u8,
    /// Whether to set it back to zero.
    pub clear: bool,
}

impl Command for QueryQCounter {
    type Output = QueryQCounterOut;
    const OPCODE: Opcode = Opcode::QUERY_Q_COUNTER;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = QueryQCounterIn::default();
        input.set_counter_set_id(self.counter_set_id);
        input.set_clear(self.clear);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    fn output_length(&self) -> usize {
        QueryQCounterOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<QueryQCounterOut, DecodeError> {
        output::<QueryQCounterOut>(bytes).copied()
    }
}
