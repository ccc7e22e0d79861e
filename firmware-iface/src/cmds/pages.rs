//! Pages of host memory that the firmware works in.

use alloc::vec::Vec;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, addresses, output};
use crate::layouts::{ManagePagesIn, ManagePagesOut, QueryPagesIn, QueryPagesOut};
use crate::opcode::Opcode;

/// When pages are asked for (op_mod of QUERY_PAGES).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagesFor {
    /// Before anything else.
    Boot = 1,
    /// Before INIT_HCA.
    Init = 2,
}

/// op_mods of MANAGE_PAGES.
pub mod manage_pages_op {
    /// The driver could not find the pages.
    pub const ALLOCATION_FAIL: u16 = 0;
    /// The driver gives pages.
    pub const GIVE: u16 = 1;
    /// The driver asks for pages back.
    pub const TAKE: u16 = 2;
}

/// How many pages the firmware wants.
#[derive(Clone, Copy, Debug)]
pub struct QueryPages {
    /// For what.
    pub pages_for: PagesFor,
}

/// The answer to [`QueryPages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesWanted {
    /// For which function, as MANAGE_PAGES wants it.
    pub function_id: u16,
    /// Pages of 4 KiB; negative when the firmware has too many.
    pub num_pages: i32,
}

impl Command for QueryPages {
    type Output = PagesWanted;
    const OPCODE: Opcode = Opcode::QUERY_PAGES;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(
            Self::OPCODE,
            self.pages_for as u16,
            &QueryPagesIn::default(),
            &[],
        ))
    }

    fn output_length(&self) -> usize {
        QueryPagesOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<PagesWanted, DecodeError> {
        let out = output::<QueryPagesOut>(bytes)?;
        Ok(PagesWanted {
            function_id: out.function_id(),
            num_pages: out.num_pages() as i32,
        })
    }
}

/// Gives pages to the firmware, all in one command.
#[derive(Clone, Copy, Debug)]
pub struct GivePages<'a> {
    /// As [`QueryPages`] or the event named it.
    pub function_id: u16,
    /// The function is one of an embedded CPU.
    pub embedded_cpu: bool,
    /// IOVAs of 4 KiB pages.
    pub pages: &'a [u64],
}

impl Command for GivePages<'_> {
    const OPCODE: Opcode = Opcode::MANAGE_PAGES;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ManagePagesIn::default();
        input.set_function_id(self.function_id);
        input.set_embedded_cpu_function(self.embedded_cpu);
        input.set_input_num_entries(u32::try_from(self.pages.len()).map_err(|_| EncodeError::TooMany {
            what: "pages",
            count: self.pages.len(),
            max: u32::MAX as usize,
        })?);
        Ok(encode(Self::OPCODE, manage_pages_op::GIVE, &input, self.pages))
    }

    plain_answer!();
}

/// Tells the firmware that the driver can't give what a page request asked for.
#[derive(Clone, Copy, Debug)]
pub struct CannotGivePages {
    /// As the event named it.
    pub function_id: u16,
    /// The function is one of an embedded CPU.
    pub embedded_cpu: bool,
}

impl Command for CannotGivePages {
    const OPCODE: Opcode = Opcode::MANAGE_PAGES;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ManagePagesIn::default();
        input.set_function_id(self.function_id);
        input.set_embedded_cpu_function(self.embedded_cpu);
        Ok(encode(
            Self::OPCODE,
            manage_pages_op::ALLOCATION_FAIL,
            &input,
            &[],
        ))
    }

    plain_answer!();
}

/// Asks the firmware for pages back; it may give fewer.
#[derive(Clone, Copy, Debug)]
pub struct TakePages {
    /// As [`QueryPages`] or the event named it.
    pub function_id: u16,
    /// The function is one of an embedded CPU.
    pub embedded_cpu: bool,
    /// At most so many. Linux never asks for more than 768 at once.
    pub num_pages: u32,
}

impl Command for TakePages {
    /// IOVAs of the pages that came back.
    type Output = Vec<u64>;
    const OPCODE: Opcode = Opcode::MANAGE_PAGES;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ManagePagesIn::default();
        input.set_function_id(self.function_id);
        input.set_embedded_cpu_function(self.embedded_cpu);
        input.set_input_num_entries(self.num_pages);
        Ok(encode(Self::OPCODE, manage_pages_op::TAKE, &input, &[]))
    }

    fn output_length(&self) -> usize {
        ManagePagesOut::BYTES + self.num_pages as usize * 8
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<u64>, DecodeError> {
        let count = output::<ManagePagesOut>(bytes)?.output_num_entries();
        if count > self.num_pages {
            return Err(DecodeError::BadValue {
                layout: "manage_pages_out",
                field: "output_num_entries",
                value: count.into(),
                why: "the firmware gives more pages back than it was asked for",
            });
        }
        let pages: Vec<u64> = addresses(bytes, ManagePagesOut::PAS_OFFSET)
            .take(count as usize)
            .collect();
        if pages.len() != count as usize {
            return Err(DecodeError::Truncated {
                layout: "manage_pages_out",
                expected: ManagePagesOut::BYTES + count as usize * 8,
                actual: bytes.len(),
            });
        }
        Ok(pages)
    }
}
