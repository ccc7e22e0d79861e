//! Event queues.

use alloc::vec::Vec;

use ferroce_hw_regs::ids::Eqn;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::event::EventType;
use crate::layouts::{CreateEqIn, CreateEqOut, DestroyEqIn, Eqc};
use crate::opcode::Opcode;

/// Makes an event queue.
#[derive(Clone, Copy, Debug)]
pub struct CreateEq<'a> {
    /// Size, UAR page, interrupt vector, page size.
    pub eqc: &'a Eqc,
    /// The events that shall come here. Completion events need no entry: they follow the CQ's EQN.
    pub events: &'a [EventType],
    /// IOVAs of the ring's pages.
    pub pages: &'a [u64],
}

impl Command for CreateEq<'_> {
    type Output = Eqn;
    const OPCODE: Opcode = Opcode::CREATE_EQ;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = CreateEqIn::default();
        *input.eq_context_entry_mut() = *self.eqc;
        for event in self.events {
            let (word, bit) = event.mask_position();
            input.set_event_bitmask(word, input.event_bitmask(word) | bit);
        }
        Ok(encode(Self::OPCODE, 0, &input, self.pages))
    }

    fn output_length(&self) -> usize {
        CreateEqOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Eqn, DecodeError> {
        Ok(Eqn::from_low_bits(
            output::<CreateEqOut>(bytes)?.eq_number().into(),
        ))
    }
}

/// Ends an event queue.
#[derive(Clone, Copy, Debug)]
pub struct DestroyEq {
    /// Which.
    pub eqn: Eqn,
}

impl Command for DestroyEq {
    const OPCODE: Opcode = Opcode::DESTROY_EQ;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DestroyEqIn::default();
        input.set_eq_number(self.eqn.get() as u8);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}
