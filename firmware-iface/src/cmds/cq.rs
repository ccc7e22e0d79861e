//! Completion queues.

use alloc::vec::Vec;

use ferroce_hw_regs::ids::Cqn;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{Cqc, CreateCqIn, CreateCqOut, DestroyCqIn, ModifyCqIn};
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

/// op_mod of MODIFY_CQ that resizes.
pub const MODIFY_CQ_RESIZE: u16 = 1;
/// Bits of `resize_field_select`.
pub mod resize_field {
    /// `log_cq_size`.
    pub const LOG_CQ_SIZE: u32 = 1 << 0;
    /// `page_offset`.
    pub const PAGE_OFFSET: u32 = 1 << 1;
    /// `log_page_size`.
    pub const LOG_PAGE_SIZE: u32 = 1 << 2;
}

/// Moves a completion queue to a ring of another size.
#[derive(Clone, Copy, Debug)]
pub struct ResizeCq<'a> {
    /// Which.
    pub cqn: Cqn,
    /// `log_cq_size`, `log_page_size` and `page_offset` of the new ring.
    pub cqc: &'a Cqc,
    /// IOVAs of the new ring's pages.
    pub pages: &'a [u64],
}

impl Command for ResizeCq<'_> {
    const OPCODE: Opcode = Opcode::MODIFY_CQ;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ModifyCqIn::default();
        input.set_cqn(self.cqn.get())?;
        *input.cq_context_mut() = *self.cqc;
        input
            .modify_field_select_resize_field_select_mut()
            .resize_field_select_mut()
            .set_resize_field_select(
                resize_field::LOG_CQ_SIZE | resize_field::PAGE_OFFSET | resize_field::LOG_PAGE_SIZE,
            );
        Ok(encode(Self::OPCODE, MODIFY_CQ_RESIZE, &input, self.pages))
    }

    plain_answer!();
}
