//! A command as its handler sees it, and the helpers that all handlers use.

use ferroce_firmware_iface::command::InputHeader;
use ferroce_firmware_iface::layout::{Layout, ValueTooWide};
use ferroce_firmware_iface::status::CommandStatus;

use super::refusal::{Refusal, syndrome};
use crate::objects::Buffer;

/// A command that was delivered.
pub(super) struct Call<'a> {
    /// Opcode, user context, modifier.
    pub header: InputHeader,
    /// The whole input, header included; at least 8 bytes.
    pub input: &'a [u8],
    /// Bytes of output that the host has room for.
    pub output_length: usize,
}

/// What comes of a command that is not refused.
#[derive(Debug)]
pub(super) enum Answer {
    /// Executed; its output, header included.
    Done(Vec<u8>),
    /// It can't be executed before the host has given pages.
    NeedsPages,
}

/// What handlers give back: an output.
pub(super) type Outcome = Result<Vec<u8>, Refusal>;

/// Bytes that a layout of ours calls reserved and real drivers fill: (first, one past the last).
pub(super) type Exempt = &'static [(usize, usize)];

impl Call<'_> {
    /// The input as its layout. Longer inputs are accepted.
    ///
    /// # Errors
    /// Too short, or a reserved bit is set.
    pub(super) fn input<T: Layout>(&self) -> Result<T, Refusal> {
        self.input_with::<T>(T::INFO.bytes, &[])
    }

    /// The input as its layout, of which only the first `least` bytes need to be there, and whose reserved bits
    /// must be 0 outside of `exempt`.
    ///
    /// # Errors
    /// Too short, or a reserved bit is set.
    pub(super) fn input_with<T: Layout>(&self, least: usize, exempt: Exempt) -> Result<T, Refusal> {
        if self.input.len() < least {
            let reason = format!("input of {} bytes, {least} needed", self.input.len());
            return Err(Refusal::new(
                CommandStatus::BAD_INP_LEN,
                syndrome::SHORT_INPUT,
                reason,
            ));
        }
        let mut layout = T::zeroed();
        let n = self.input.len().min(T::INFO.bytes);
        layout.as_mut_bytes()[..n].copy_from_slice(&self.input[..n]);
        let mut checked = layout.clone();
        for (from, to) in exempt {
            let to = (*to).min(T::INFO.bytes);
            checked.as_mut_bytes()[(*from).min(to)..to].fill(0);
        }
        reserved_clear(&checked)?;
        Ok(layout)
    }

    /// The big-endian word of the input there; 0 past its end.
    pub(super) fn be32(&self, at: usize) -> u32 {
        let bytes = self.input.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |b| u32::from_be_bytes(*b))
    }

    /// What follows the fixed part of the input.
    pub(super) fn tail(&self, from: usize) -> &[u8] {
        self.input.get(from..).unwrap_or_default()
    }
}

/// Refuses a layout in which a reserved bit is set.
pub(super) fn reserved_clear<T: Layout>(layout: &T) -> Result<(), Refusal> {
    match layout.reserved_bit_set() {
        None => Ok(()),
        Some(bit) => {
            let name = T::INFO.name;
            let reason = format!("{name}: reserved bit {bit:#x} (byte {:#x}) is set", bit / 8);
            Err(Refusal::new(
                CommandStatus::BAD_PARAM,
                syndrome::RESERVED_SET,
                reason,
            ))
        }
    }
}

/// An output with nothing but its status.
pub(super) fn ok() -> Outcome {
    Ok(vec![0; 16])
}

/// An output whose fields `fill` sets.
pub(super) fn output<T: Layout>(fill: impl FnOnce(&mut T) -> Result<(), ValueTooWide>) -> Outcome {
    let mut layout = T::zeroed();
    fill(&mut layout)?;
    Ok(layout.as_bytes().to_vec())
}

impl From<ValueTooWide> for Refusal {
    fn from(error: ValueTooWide) -> Refusal {
        Refusal::new(CommandStatus::INTERNAL_ERR, 0, error.to_string())
    }
}

/// The buffer of an object: a part of a umem when the command says so, its page list otherwise.
pub(super) fn buffer<'a>(umem_valid: bool, id: u32, offset: u64, pas: &'a [u8]) -> Buffer<'a> {
    if umem_valid {
        Buffer::Umem { id, offset }
    } else {
        Buffer::Pas(pas)
    }
}

/// Refuses what is above `1 << log_limit` or a plain limit.
pub(super) fn at_most(what: &str, value: u64, limit: u64) -> Result<(), Refusal> {
    if value > limit {
        return Err(Refusal::above_limit(what, value, limit));
    }
    Ok(())
}

/// Refuses a command for another function than the one it was given to.
pub(super) fn own_function(other: bool, function_id: u16) -> Result<(), Refusal> {
    if other || function_id != 0 {
        let reason = format!("function {function_id:#x}: there is only function 0 here");
        return Err(Refusal::new(
            CommandStatus::BAD_PARAM,
            syndrome::OTHER_FUNCTION,
            reason,
        ));
    }
    Ok(())
}
