//! Registers that are reached by ACCESS_REG.

use alloc::vec::Vec;

use super::encode;
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layout::Layout;
use crate::layouts::{
    AccessRegisterIn, AccessRegisterOut, DtorReg, PaosReg, PfccReg, PmtuReg, PpcntReg, PtysReg,
    RegisterHostEndianness,
};
use crate::opcode::Opcode;

/// op_mods of ACCESS_REG.
pub mod access_reg_op {
    /// Writes the register.
    pub const WRITE: u16 = 0;
    /// Reads the register.
    pub const READ: u16 = 1;
}

/// A layout that is a register.
pub trait Register: Layout {
    /// Its number (`register_id`).
    const ID: u16;
}

macro_rules! registers {
    ($($T:ident = $id:literal;)*) => {$(
        impl Register for $T {
            const ID: u16 = $id;
        }
    )*};
}

registers! {
    RegisterHostEndianness = 0x7004;
    PmtuReg = 0x5003;
    PtysReg = 0x5004;
    PaosReg = 0x5006;
    PfccReg = 0x5007;
    PpcntReg = 0x5008;
    DtorReg = 0xc00e;
}

fn encode_access<R: Register>(op_mod: u16, register: &R) -> Vec<u8> {
    let mut input = AccessRegisterIn::default();
    input.set_register_id(R::ID);
    let mut bytes = encode(Opcode::ACCESS_REG, op_mod, &input, &[]);
    bytes.extend_from_slice(register.as_bytes());
    bytes
}

/// Reads a register.
#[derive(Clone, Copy, Debug)]
pub struct ReadRegister<R> {
    request: R,
}

impl<R: Register> ReadRegister<R> {
    /// `request` holds what selects the register's instance, such as `local_port`.
    pub fn new(request: R) -> ReadRegister<R> {
        ReadRegister { request }
    }
}

impl<R: Register> Command for ReadRegister<R> {
    type Output = R;
    const OPCODE: Opcode = Opcode::ACCESS_REG;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode_access(access_reg_op::READ, &self.request))
    }

    fn output_length(&self) -> usize {
        AccessRegisterOut::BYTES + R::INFO.bytes
    }

    fn decode(&self, bytes: &[u8]) -> Result<R, DecodeError> {
        output::<AccessRegisterOut>(bytes)?;
        output::<R>(&bytes[AccessRegisterOut::REGISTER_DATA_OFFSET..]).cloned()
    }
}

/// Writes a register.
#[derive(Clone, Copy, Debug)]
pub struct WriteRegister<R> {
    /// What it shall be.
    pub register: R,
}

impl<R: Register> Command for WriteRegister<R> {
    const OPCODE: Opcode = Opcode::ACCESS_REG;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode_access(access_reg_op::WRITE, &self.register))
    }

    type Output = ();

    // The answer to a write has room for the register as well, as the recorded drivers ask for it.
    fn output_length(&self) -> usize {
        AccessRegisterOut::BYTES + R::INFO.bytes
    }

    fn decode(&self, _output: &[u8]) -> Result<(), DecodeError> {
        Ok(())
    }
}
