//! Completion queues.

use alloc::vec::Vec;

use ferroce_hw_regs::ids::Cqn;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{Cqc, CreateCqIn, CreateCqOut, DestroyCqIn};
use crate::opcode::Opcode;

/// Makes a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CreateCq<'a> {
    /// Size, EQ, UAR page, doorbell record, page size.
    pub cqc: &'a Cqc,
    /// IOVAs of the ring's pages.
    pub pages: &'a [u64],
}

impl Command for CreateCq<'_> {
    type Output = Cqn;
    const OPCODE: Opcode = Opcode::CREATE_CQ;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = CreateCqIn::default();
        *input.cq_context_mut() = *self.cqc;
        Ok(encode(Self::OPCODE, 0, &input, self.pages))
    }

    fn output_length(&self) -> usize {
        CreateCqOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Cqn, DecodeError> {
        Ok(Cqn::from_low_bits(output::<CreateCqOut>(bytes)?.cqn()))
    }
}

/// Ends a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct DestroyCq {
    /// Which.
    pub cqn: Cqn,
}

impl Command for DestroyCq {
    const OPCODE: Opcode = Opcode::DESTROY_CQ;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DestroyCqIn::default();
        input.set_cqn(self.cqn.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}
