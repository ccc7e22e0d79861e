//! Multicast groups.

use alloc::vec::Vec;

use ferroce_hw_regs::ids::Qpn;

use super::{encode, plain_answer};
use crate::command::{Command, EncodeError};
use crate::layouts::{AttachToMcgIn, DetachFromMcgIn};
use crate::opcode::Opcode;

/// Lets a queue pair take the datagrams of a multicast group.
#[derive(Clone, Copy, Debug)]
pub struct AttachToMcg {
    /// The queue pair.
    pub qpn: Qpn,
    /// The group.
    pub gid: [u8; 16],
}

impl Command for AttachToMcg {
    const OPCODE: Opcode = Opcode::ATTACH_TO_MCG;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = AttachToMcgIn::default();
        input.set_qpn(self.qpn.get())?;
        for (i, byte) in self.gid.into_iter().enumerate() {
            input.set_multicast_gid(i, byte);
        }
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Ends that.
#[derive(Clone, Copy, Debug)]
pub struct DetachFromMcg {
    /// The queue pair.
    pub qpn: Qpn,
    /// The group.
    pub gid: [u8; 16],
}

impl Command for DetachFromMcg {
    const OPCODE: Opcode = Opcode::DETACH_FROM_MCG;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DetachFromMcgIn::default();
        input.set_qpn(self.qpn.get())?;
        for (i, byte) in self.gid.into_iter().enumerate() {
            input.set_multicast_gid(i, byte);
        }
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}
