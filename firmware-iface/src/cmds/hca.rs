//! Bringing the HCA up and down.

use alloc::vec::Vec;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    DisableHcaIn, EnableHcaIn, InitHcaIn, QueryAdapterIn, QueryAdapterOut, QueryIssiIn, QueryIssiOut,
    SetDriverVersionIn, SetIssiIn, TeardownHcaIn, TeardownHcaOut,
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
pub struct InitHca {
    /// Owner id, where `cmd_hca_cap.sw_owner_id` is set: tells LAG and multi-host functions of one driver apart.
    pub sw_owner_id: [u32; 4],
}

impl Command for InitHca {
    const OPCODE: Opcode = Opcode::INIT_HCA;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = InitHcaIn::default();
        for (i, dword) in self.sw_owner_id.into_iter().enumerate() {
            input.set_sw_owner_id(i, dword);
        }
        let bytes = encode(Self::OPCODE, 0, &input, &[]);
        // Without an owner id the command is its first 16 bytes, as firmware knew it before that field.
        let length = if self.sw_owner_id == [0; 4] {
            16
        } else {
            bytes.len()
        };
        Ok(bytes[..length].to_vec())
    }

    plain_answer!();
}

/// How TEARDOWN_HCA stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TeardownProfile {
    /// All objects are gone already.
    Graceful = 0,
    /// Stop whatever there is (`cmd_hca_cap.force_teardown`).
    Force = 1,
    /// Prepare for `nic_interface` going to disabled (`cmd_hca_cap.fast_teardown`).
    PrepareFast = 2,
}

/// Stops the HCA.
#[derive(Clone, Copy, Debug)]
pub struct TeardownHca {
    /// How.
    pub profile: TeardownProfile,
}

impl Command for TeardownHca {
    type Output = ();
    const OPCODE: Opcode = Opcode::TEARDOWN_HCA;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = TeardownHcaIn::default();
        input.set_profile(self.profile as u16);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    fn output_length(&self) -> usize {
        TeardownHcaOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<(), DecodeError> {
        if output::<TeardownHcaOut>(bytes)?.state() && self.profile == TeardownProfile::Force {
            return Err(DecodeError::BadValue {
                layout: "teardown_hca_out",
                field: "state",
                value: 1,
                why: "the firmware could not stop the HCA by force; a function reset is needed",
            });
        }
        Ok(())
    }
}

/// What board this is.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryAdapter;

/// The answer to [`QueryAdapter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The vendor's OUI, 24 bits.
    pub ieee_vendor_id: u32,
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
            psid,
        })
    }
}

/// Tells the firmware which driver it has (`cmd_hca_cap.driver_version`).
#[derive(Clone, Copy, Debug)]
pub struct SetDriverVersion<'a> {
    /// `OS,driver,version`: at most 63 bytes; what is beyond is cut off.
    pub version: &'a str,
}

impl Command for SetDriverVersion<'_> {
    const OPCODE: Opcode = Opcode::SET_DRIVER_VERSION;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = SetDriverVersionIn::default();
        for (i, byte) in self.version.bytes().take(63).enumerate() {
            input.set_driver_version(i, byte);
        }
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}
