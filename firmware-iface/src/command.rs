//! A typed command: what a caller may choose, and what the answer holds.

use alloc::vec::Vec;

use crate::layout::{Layout, ValueTooWide};
use crate::opcode::Opcode;
use crate::status::CommandStatus;

/// A command of the firmware.
///
/// An implementation holds only what its caller may choose; constants that the PRM asks for are in
/// [`Command::encode`].
pub trait Command {
    /// What the answer says.
    type Output;

    /// Its opcode.
    const OPCODE: Opcode;

    /// The whole input, header included.
    ///
    /// # Errors
    ///
    /// A value that does not fit its field.
    fn encode(&self) -> Result<Vec<u8>, EncodeError>;

    /// Length of the output in bytes, header included: at least 16.
    fn output_length(&self) -> usize;

    /// Reads the answer of a command whose status was OK; `output` has [`Command::output_length`] bytes.
    ///
    /// # Errors
    ///
    /// An answer that does not make sense.
    fn decode(&self, output: &[u8]) -> Result<Self::Output, DecodeError>;
}

/// A command that can't be put into its layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A value that does not fit its field.
    #[error(transparent)]
    ValueTooWide(#[from] ValueTooWide),
    /// A list that is longer than the command's counter can say.
    #[error("{what}: {count} entries, at most {max} fit the command")]
    TooMany {
        /// What the list is of.
        what: &'static str,
        /// How many were given.
        count: usize,
        /// How many fit.
        max: usize,
    },
}

/// An answer that does not make sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Fewer bytes than the layout has.
    #[error("answer of {actual} bytes where {layout} has {expected}")]
    Truncated {
        /// PRM name of the layout.
        layout: &'static str,
        /// Its bytes.
        expected: usize,
        /// Bytes that are there.
        actual: usize,
    },
    /// A value that the PRM does not allow there.
    #[error("{layout}.{field} is {value:#x}: {why}")]
    BadValue {
        /// PRM name of the layout.
        layout: &'static str,
        /// PRM name of the field.
        field: &'static str,
        /// What it holds.
        value: u64,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// The header of a command's output: `status` and `syndrome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputHeader {
    /// What the firmware says.
    pub status: CommandStatus,
    /// A number of the firmware's own that says more to its makers.
    pub syndrome: u32,
}

impl OutputHeader {
    /// Reads the first 8 bytes of an output.
    pub fn from_bytes(bytes: [u8; 8]) -> OutputHeader {
        let [status, _, _, _, s @ ..] = bytes;
        OutputHeader {
            status: CommandStatus(status),
            syndrome: u32::from_be_bytes(s),
        }
    }
}

/// The header of a command's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputHeader {
    /// What is asked.
    pub opcode: Opcode,
    /// User context on whose behalf; 0 for the driver itself.
    pub uid: u16,
    /// Modifier of the opcode.
    pub op_mod: u16,
}

impl InputHeader {
    /// Reads the first 8 bytes of an input.
    pub fn from_bytes(bytes: [u8; 8]) -> InputHeader {
        let [o0, o1, u0, u1, _, _, m0, m1] = bytes;
        InputHeader {
            opcode: Opcode(u16::from_be_bytes([o0, o1])),
            uid: u16::from_be_bytes([u0, u1]),
            op_mod: u16::from_be_bytes([m0, m1]),
        }
    }
}

/// The layout at the start of an output.
///
/// # Errors
///
/// Too few bytes.
pub fn output<T: Layout>(bytes: &[u8]) -> Result<&T, DecodeError> {
    crate::layout::view(bytes).ok_or(DecodeError::Truncated {
        layout: T::INFO.name,
        expected: T::INFO.bytes,
        actual: bytes.len(),
    })
}

/// Appends `addresses` as big-endian 64-bit numbers, as page lists (`pas`) are written.
pub fn push_addresses(input: &mut Vec<u8>, addresses: &[u64]) {
    input.reserve(addresses.len() * 8);
    for address in addresses {
        input.extend_from_slice(&address.to_be_bytes());
    }
}

/// The big-endian 64-bit numbers from byte `offset` of `bytes` on; an incomplete one at the end is left out.
pub fn addresses(bytes: &[u8], offset: usize) -> impl Iterator<Item = u64> + '_ {
    bytes
        .get(offset..)
        .unwrap_or_default()
        .as_chunks::<8>()
        .0
        .iter()
        .map(|a| u64::from_be_bytes(*a))
}
