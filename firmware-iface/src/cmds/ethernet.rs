//! Raw Ethernet queues: transport domains, TIS, TIR, SQ, RQ. Source: PRM; Linux mlx5e for which states they go through.

use alloc::vec::Vec;

use ferroce_hw_regs::ids::Tdn;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    AllocTransportDomainIn, AllocTransportDomainOut, CreateRqIn, CreateRqOut, CreateSqIn, CreateSqOut,
    CreateTirIn, CreateTirOut, CreateTisIn, CreateTisOut, DeallocTransportDomainIn, DestroyRqIn, DestroySqIn,
    DestroyTirIn, DestroyTisIn, ModifyRqIn, ModifySqIn, Rqc, Sqc, Tirc, Tisc,
};
use crate::opcode::Opcode;

/// States of an SQ or RQ.
pub mod raw_queue_state {
    /// Does nothing; new ones are in it.
    pub const RESET: u8 = 0;
    /// Works.
    pub const READY: u8 = 1;
    /// Has failed.
    pub const ERROR: u8 = 3;
}

/// `wq.wq_type` of a ring.
pub const WQ_TYPE_CYCLIC: u8 = 1;
/// `tirc.disp_type` of a TIR that leads to one RQ.
pub const TIR_DIRECT: u8 = 0;

/// Makes a transport domain: what TIS and TIR belong to.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocTransportDomain;

impl Command for AllocTransportDomain {
    type Output = Tdn;
    const OPCODE: Opcode = Opcode::ALLOC_TRANSPORT_DOMAIN;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &AllocTransportDomainIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        AllocTransportDomainOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Tdn, DecodeError> {
        Ok(Tdn::from_low_bits(
            output::<AllocTransportDomainOut>(bytes)?.transport_domain(),
        ))
    }
}

/// Ends a transport domain.
#[derive(Clone, Copy, Debug)]
pub struct DeallocTransportDomain {
    /// Which.
    pub domain: Tdn,
}

impl Command for DeallocTransportDomain {
    const OPCODE: Opcode = Opcode::DEALLOC_TRANSPORT_DOMAIN;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DeallocTransportDomainIn::default();
        input.set_transport_domain(self.domain.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// A command that makes an object of a context and a page list, and one that ends it by its number (24 bits).
macro_rules! object {
    (
        $(#[$doc:meta])* $Create:ident: $CREATE:ident, $CreateIn:ident, $CreateOut:ident, $Context:ident, $number:ident;
        $(#[$gone:meta])* $Destroy:ident: $DESTROY:ident, $DestroyIn:ident, $set:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $Create<'a> {
            /// What it shall be.
            pub context: &'a $Context,
            /// IOVAs of its ring's pages, where it has a ring.
            pub pages: &'a [u64],
        }

        impl Command for $Create<'_> {
            type Output = u32;
            const OPCODE: Opcode = Opcode::$CREATE;

            fn encode(&self) -> Result<Vec<u8>, EncodeError> {
                let mut input = $CreateIn::default();
                *input.ctx_mut() = *self.context;
                Ok(encode(Self::OPCODE, 0, &input, self.pages))
            }

            fn output_length(&self) -> usize {
                $CreateOut::BYTES
            }

            fn decode(&self, bytes: &[u8]) -> Result<u32, DecodeError> {
                Ok(output::<$CreateOut>(bytes)?.$number())
            }
        }

        $(#[$gone])*
        #[derive(Clone, Copy, Debug)]
        pub struct $Destroy {
            /// Its number.
            pub $number: u32,
        }

        impl Command for $Destroy {
            const OPCODE: Opcode = Opcode::$DESTROY;

            fn encode(&self) -> Result<Vec<u8>, EncodeError> {
                let mut input = $DestroyIn::default();
                input.$set(self.$number)?;
                Ok(encode(Self::OPCODE, 0, &input, &[]))
            }

            plain_answer!();
        }
    };
}

object! {
    /// Makes a transport interface send object: how what an SQ sends leaves. It has no ring.
    CreateTis: CREATE_TIS, CreateTisIn, CreateTisOut, Tisc, tisn;
    /// Ends a TIS that no SQ uses.
    DestroyTis: DESTROY_TIS, DestroyTisIn, set_tisn
}

object! {
    /// Makes a transport interface receive object: where flow rules lead. It has no ring.
    CreateTir: CREATE_TIR, CreateTirIn, CreateTirOut, Tirc, tirn;
    /// Ends a TIR that no flow rule names.
    DestroyTir: DESTROY_TIR, DestroyTirIn, set_tirn
}

object! {
    /// Makes a send queue of Ethernet frames, in state RST.
    CreateSq: CREATE_SQ, CreateSqIn, CreateSqOut, Sqc, sqn;
    /// Ends a send queue.
    DestroySq: DESTROY_SQ, DestroySqIn, set_sqn
}

object! {
    /// Makes a receive queue of Ethernet frames, in state RST.
    CreateRq: CREATE_RQ, CreateRqIn, CreateRqOut, Rqc, rqn;
    /// Ends a receive queue that no TIR names.
    DestroyRq: DESTROY_RQ, DestroyRqIn, set_rqn
}

/// Brings a send queue from one state to another ([`raw_queue_state`]).
#[derive(Clone, Copy, Debug)]
pub struct ModifySq {
    /// Which, 24 bits.
    pub sqn: u32,
    /// The state that it is in.
    pub from: u8,
    /// The state that it shall be in.
    pub to: u8,
}

impl Command for ModifySq {
    const OPCODE: Opcode = Opcode::MODIFY_SQ;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ModifySqIn::default();
        input.set_sqn(self.sqn)?;
        input.set_sq_state(self.from)?;
        input.ctx_mut().set_state(self.to)?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Brings a receive queue from one state to another ([`raw_queue_state`]).
#[derive(Clone, Copy, Debug)]
pub struct ModifyRq {
    /// Which, 24 bits.
    pub rqn: u32,
    /// The state that it is in.
    pub from: u8,
    /// The state that it shall be in.
    pub to: u8,
}

impl Command for ModifyRq {
    const OPCODE: Opcode = Opcode::MODIFY_RQ;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ModifyRqIn::default();
        input.set_rqn(self.rqn)?;
        input.set_rq_state(self.from)?;
        input.ctx_mut().set_state(self.to)?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_described_as_the_prm_says() {
        let mut sqc = Sqc::default();
        sqc.set_cqn(0x12_3456).unwrap();
        sqc.wq_mut().set_wq_type(WQ_TYPE_CYCLIC).unwrap();
        sqc.wq_mut().set_dbr_addr(0x1122_3344_5566_7788);
        let input = CreateSq {
            context: &sqc,
            pages: &[0xabc0_0000],
        }
        .encode()
        .unwrap();
        // Opcode; sqc.cqn; wq_type and dbr_addr of sqc.wq; the page list behind the context.
        assert_eq!((input.len(), &input[..8]), (0x118, &[9, 4, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!(input[0x28..0x2c], [0, 0x12, 0x34, 0x56]);
        assert_eq!(
            (input[0x50], &input[0x60..0x68]),
            (0x10, &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88][..])
        );
        assert_eq!(input[0x110..], [0, 0, 0, 0, 0xab, 0xc0, 0, 0]);
    }

    #[test]
    fn states_stand_beside_the_numbers() {
        let input = ModifyRq {
            rqn: 0x77,
            from: raw_queue_state::RESET,
            to: raw_queue_state::READY,
        };
        let input = input.encode().unwrap();
        assert_eq!(
            (&input[..2], &input[8..12], input[0x21]),
            (&[9, 9][..], &[0, 0, 0, 0x77][..], 0x10)
        );
        let input = ModifySq {
            sqn: 0x77,
            from: raw_queue_state::ERROR,
            to: raw_queue_state::RESET,
        };
        let input = input.encode().unwrap();
        assert_eq!(
            (&input[..2], &input[8..12], input[0x21]),
            (&[9, 5][..], &[0x30, 0, 0, 0x77][..], 0)
        );
        assert!(DestroyTir { tirn: 1 << 24 }.encode().is_err());
    }
}
