//! Queue pairs.

use alloc::vec::Vec;
use core::fmt;

use ferroce_hw_regs::ids::Qpn;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    CreateQpIn, CreateQpOut, DestroyQpIn, Qp2errIn, Qp2rstIn, Qpc, QueryQpIn, QueryQpOut, Rst2initQpIn,
};
use crate::opcode::Opcode;

/// State of a queue pair (`qpc.state`; IBTA vol. 1, 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Just made, or set back.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue error.
    Sqe,
    /// Send queue drained.
    Sqd,
    /// Error: everything is flushed.
    Err,
    /// A state that the PRM has for other purposes, or none at all.
    Unknown(u8),
}

impl QpState {
    /// The state that a context holds.
    pub const fn from_prm(state: u8) -> QpState {
        match state {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqe,
            // 5: drained; 7: draining.
            5 | 7 => QpState::Sqd,
            6 => QpState::Err,
            other => QpState::Unknown(other),
        }
    }

    /// The number that a context holds.
    pub const fn to_prm(self) -> u8 {
        match self {
            QpState::Reset => 0,
            QpState::Init => 1,
            QpState::Rtr => 2,
            QpState::Rts => 3,
            QpState::Sqe => 4,
            QpState::Sqd => 5,
            QpState::Err => 6,
            QpState::Unknown(other) => other,
        }
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqe => "SQE",
            QpState::Sqd => "SQD",
            QpState::Err => "ERR",
            QpState::Unknown(other) => return write!(f, "state {other}"),
        })
    }
}

/// Service types (`qpc.st`).
pub mod service {
    /// Reliable connection.
    pub const RC: u8 = 0x0;
    /// Unreliable connection.
    pub const UC: u8 = 0x1;
    /// Unreliable datagram.
    pub const UD: u8 = 0x2;
    /// Extended reliable connection.
    pub const XRC: u8 = 0x3;
    /// General services interface, QP 1.
    pub const GSI: u8 = 0x8;
    /// Memory key updates only.
    pub const REG_UMR: u8 = 0xc;
}

/// Formats of time stamps (`qpc.ts_format`); `roce_cap.qp_ts_format` says which there are.
pub mod ts_format {
    /// Ticks of the free-running timer.
    pub const FREE_RUNNING: u8 = 0;
    /// What the device chooses.
    pub const DEFAULT: u8 = 1;
    /// Seconds and nanoseconds of the real-time clock.
    pub const REAL_TIME: u8 = 2;
}

/// `qpc.pm_state` of a path that is not migrated.
pub const PM_STATE_MIGRATED: u8 = 3;

/// `qpc.rq_type`.
pub mod rq_type {
    /// The QP has a receive queue of its own.
    pub const REGULAR: u8 = 0;
    /// Receives come from an SRQ or an RMP.
    pub const SRQ: u8 = 1;
    /// The QP receives nothing.
    pub const ZERO_LENGTH: u8 = 3;
}

bitflags::bitflags! {
    /// Fields of a context that a transition takes although they are optional (`opt_param_mask`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct OptParamMask: u32 {
        /// The alternate path.
        const ALT_ADDR_PATH = 1 << 0;
        /// Remote READ is allowed.
        const RRE = 1 << 1;
        /// Remote atomics are allowed.
        const RAE = 1 << 2;
        /// Remote WRITE is allowed.
        const RWE = 1 << 3;
        /// P_Key index.
        const PKEY_INDEX = 1 << 4;
        /// Q_Key.
        const Q_KEY = 1 << 5;
        /// `min_rnr_nak`.
        const RNR_TIMEOUT = 1 << 6;
        /// The primary path.
        const PRIMARY_ADDR_PATH = 1 << 7;
        /// `log_sra_max`.
        const SRA_MAX = 1 << 8;
        /// `log_rra_max`.
        const RRA_MAX = 1 << 9;
        /// Path migration state.
        const PM_STATE = 1 << 10;
        /// `retry_count`.
        const RETRY_COUNT = 1 << 12;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 13;
        /// The path's `ack_timeout`.
        const ACK_TIMEOUT = 1 << 14;
        /// Port affinity of a LAG.
        const LAG_TX_AFF = 1 << 15;
        /// The primary port.
        const PRI_PORT = 1 << 16;
        /// SRQ.
        const SRQN = 1 << 18;
        /// Receive CQ.
        const CQN_RCV = 1 << 19;
        /// DC handshake.
        const DC_HS = 1 << 20;
        /// DC key.
        const DC_KEY = 1 << 21;
        /// Counter set.
        const COUNTER_SET_ID = 1 << 25;
    }
}

/// Makes a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct CreateQp<'a> {
    /// Everything about its queues.
    pub qpc: &'a Qpc,
    /// IOVAs of the queues' pages: receive queue first, then send queue.
    pub pages: &'a [u64],
}

impl Command for CreateQp<'_> {
    type Output = Qpn;
    const OPCODE: Opcode = Opcode::CREATE_QP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = CreateQpIn::default();
        *input.qpc_mut() = *self.qpc;
        Ok(encode(Self::OPCODE, 0, &input, self.pages))
    }

    fn output_length(&self) -> usize {
        CreateQpOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Qpn, DecodeError> {
        Ok(Qpn::from_low_bits(output::<CreateQpOut>(bytes)?.qpn()))
    }
}

/// Ends a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct DestroyQp {
    /// Which.
    pub qpn: Qpn,
}

impl Command for DestroyQp {
    const OPCODE: Opcode = Opcode::DESTROY_QP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DestroyQpIn::default();
        input.set_qpn(self.qpn.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Asks for a queue pair's context.
#[derive(Clone, Copy, Debug)]
pub struct QueryQp {
    /// Which.
    pub qpn: Qpn,
}

impl Command for QueryQp {
    type Output = Qpc;
    const OPCODE: Opcode = Opcode::QUERY_QP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = QueryQpIn::default();
        input.set_qpn(self.qpn.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    fn output_length(&self) -> usize {
        QueryQpOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Qpc, DecodeError> {
        Ok(*output::<QueryQpOut>(bytes)?.qpc())
    }
}

macro_rules! transitions {
    ($( $(#[$doc:meta])* $Name:ident = $OPCODE:ident; )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $Name<'a> {
            /// Which queue pair.
            pub qpn: Qpn,
            /// What it shall have; the state that it is in goes into no field.
            pub qpc: &'a Qpc,
            /// Which of the optional fields to take.
            pub optional: OptParamMask,
        }

        impl Command for $Name<'_> {
            const OPCODE: Opcode = Opcode::$OPCODE;

            fn encode(&self) -> Result<Vec<u8>, EncodeError> {
                // The inputs of all transitions with a context are alike.
                let mut input = Rst2initQpIn::default();
                input.set_qpn(self.qpn.get())?;
                input.set_opt_param_mask(self.optional.bits());
                *input.qpc_mut() = *self.qpc;
                Ok(encode(Self::OPCODE, 0, &input, &[]))
            }

            plain_answer!();
        }
    )*};
}

transitions! {
    /// RESET to INIT.
    Rst2Init = RST2INIT_QP;
    /// INIT to INIT.
    Init2Init = INIT2INIT_QP;
    /// INIT to RTR.
    Init2Rtr = INIT2RTR_QP;
    /// RTR to RTS.
    Rtr2Rts = RTR2RTS_QP;
    /// RTS to RTS.
    Rts2Rts = RTS2RTS_QP;
    /// SQD to RTS.
    Sqd2Rts = SQD2RTS_QP;
    /// SQE to RTS.
    Sqerr2Rts = SQERR2RTS_QP;
}

/// To ERR, from any state.
#[derive(Clone, Copy, Debug)]
pub struct QpToErr {
    /// Which.
    pub qpn: Qpn,
}

impl Command for QpToErr {
    const OPCODE: Opcode = Opcode::QP_2ERR;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = Qp2errIn::default();
        input.set_qpn(self.qpn.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// To RESET, from any state.
#[derive(Clone, Copy, Debug)]
pub struct QpToReset {
    /// Which.
    pub qpn: Qpn,
}

impl Command for QpToReset {
    const OPCODE: Opcode = Opcode::QP_2RST;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = Qp2rstIn::default();
        input.set_qpn(self.qpn.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}
