//! Bringing the HCA up and down.

use alloc::vec::Vec;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    DisableHcaIn, EnableHcaIn, InitHcaIn, QueryAdapterIn, QueryAdapterOut, QueryIssiIn, QueryIssiOut,
    SetIssiIn, TeardownHcaIn,
};
use crate::opcode::Opcode;

/// Takes possession of the function: the first command of all.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnableHca;

impl Command for EnableHca {
    const OPCODE: Opcode = Opcode::ENABLE_HCA;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        // Function 0: the one that is asked.
        Ok(encode(Self::OPCODE, 0, &EnableHcaIn::default(), &[]))
    }

    plain_answer!();
}

/// Gives the function up: the last command of all.
#[derive(Clone, Copy, Debug, Default)]
pub struct DisableHca;

impl Command for DisableHca {
    const OPCODE: Opcode = Opcode::DISABLE_HCA;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &DisableHcaIn::default(), &[]))
    }

    plain_answer!();
}

/// Which interface step sequence ids (ISSI) the firmware has.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryIssi;

/// The answer to [`QueryIssi`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issi {
    /// The one in force.
    pub current: u16,
    /// A bit for each of the ids 0 to 31 that can be chosen.
    pub supported: u32,
}

impl Command for QueryIssi {
    type Output = Issi;
    const OPCODE: Opcode = Opcode::QUERY_ISSI;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &QueryIssiIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        QueryIssiOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Issi, DecodeError> {
        let out = output::<QueryIssiOut>(bytes)?;
        Ok(Issi {
            current: out.current_issi(),
            supported: out.supported_issi_dw0(),
        })
    }
}

/// Chooses an ISSI.
#[derive(Clone, Copy, Debug)]
pub struct SetIssi {
    /// The id.
    pub issi: u16,
}

impl Command for SetIssi {
    const OPCODE: Opcode = Opcode::SET_ISSI;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = SetIssiIn::default();
        input.set_current_issi(self.issi);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Starts the HCA with the capabilities that have been set.
#[derive(Clone, Copy, Debug, Default)]
pub struct InitHca;

impl Command for InitHca {
    const OPCODE: Opcode = Opcode::INIT_HCA;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = encode(Self::OPCODE, 0, &InitHcaIn::default(), &[]);
        // sw_owner_id is for functions that share resources. Without it the command is what it was before that field.
        bytes.truncate(16);
        Ok(bytes)
    }

    plain_answer!();
}

/// Stops the HCA, whose objects are all gone already.
#[derive(Clone, Copy, Debug, Default)]
pub struct TeardownHca;

impl Command for TeardownHca {
    const OPCODE: Opcode = Opcode::TEARDOWN_HCA;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        // Profile 0: in order. The others stop what runs.
        Ok(encode(Self::OPCODE, 0, &TeardownHcaIn::default(), &[]))
    }

    plain_answer!();
}

/// Stops the HCA with all objects that it still has (capability `force_teardown`).
#[derive(Clone, Copy, Debug, Default)]
pub struct ForceTeardownHca;

impl Command for ForceTeardownHca {
    const OPCODE: Opcode = Opcode::TEARDOWN_HCA;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = TeardownHcaIn::default();
        input.set_profile(1);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// What board this is.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryAdapter;

/// The answer to [`QueryAdapter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The vendor's OUI, 24 bits.
    pub ieee_vendor_id: u32,
    /// PCI vendor id of the board's maker.
    pub vsd_vendor_id: u16,
    /// Parameter set id: names the board and its configuration. ASCII, padded with zeros.
    pub psid: [u8; 16],
}

impl Command for QueryAdapter {
    type Output = Adapter;
    const OPCODE: Opcode = Opcode::QUERY_ADAPTER;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &QueryAdapterIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        QueryAdapterOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Adapter, DecodeError> {
        let block = output::<QueryAdapterOut>(bytes)?.query_adapter_struct();
        let mut psid = [0; 16];
        for (i, byte) in psid.iter_mut().enumerate() {
            *byte = block.vsd_contd_psid(i);
        }
        Ok(Adapter {
            ieee_vendor_id: block.ieee_vendor_id(),
            vsd_vendor_id: block.vsd_vendor_id(),
            psid,
        })
    }
}
