//! Receive memory pools: what shared receive queues are made of from ISSI 1 on.

use alloc::vec::Vec;

use ferroce_hw_regs::ids::Srqn;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layout::ValueTooWide;
use crate::layouts::{
    CreateRmpIn, CreateRmpOut, DestroyRmpIn, ModifyRmpIn, QueryRmpIn, QueryRmpOut, Rmpc, Wq,
};
use crate::opcode::Opcode;

/// `rmpc.state`: receives are taken.
const RMP_READY: u8 = 1;
/// `wq.wq_type`: each entry names the next.
const LINKED_LIST: u8 = 0;

/// What a pool is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmpAttributes {
    /// Whether receives are taken; an error has ended that otherwise.
    pub ready: bool,
    /// Fewer entries than this raise an event; 0 when it was raised, or not asked for.
    pub limit: u16,
    /// log2 of the number of entries.
    pub log_entries: u8,
    /// log2 of an entry's bytes.
    pub log_stride: u8,
}

/// Makes a pool.
#[derive(Clone, Copy, Debug)]
pub struct CreateRmp<'a> {
    /// Protection domain, size, stride, page size and doorbell record. Its kind is set here.
    pub wq: &'a Wq,
    /// IOVAs of the ring's pages.
    pub pages: &'a [u64],
}

impl Command for CreateRmp<'_> {
    type Output = Srqn;
    const OPCODE: Opcode = Opcode::CREATE_RMP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = CreateRmpIn::default();
        let rmpc = input.ctx_mut();
        rmpc.set_state(RMP_READY)?;
        *rmpc.wq_mut() = *self.wq;
        rmpc.wq_mut().set_wq_type(LINKED_LIST)?;
        Ok(encode(Self::OPCODE, 0, &input, self.pages))
    }

    fn output_length(&self) -> usize {
        CreateRmpOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Srqn, DecodeError> {
        Ok(Srqn::from_low_bits(output::<CreateRmpOut>(bytes)?.rmpn()))
    }
}

/// Ends a pool.
#[derive(Clone, Copy, Debug)]
pub struct DestroyRmp {
    /// Which.
    pub rmpn: Srqn,
}

impl Command for DestroyRmp {
    const OPCODE: Opcode = Opcode::DESTROY_RMP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DestroyRmpIn::default();
        input.set_rmpn(self.rmpn.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Asks for one event, once fewer than `limit` entries are left.
#[derive(Clone, Copy, Debug)]
pub struct ArmRmp {
    /// Which.
    pub rmpn: Srqn,
    /// The limit; 0 asks for none.
    pub limit: u16,
}

impl Command for ArmRmp {
    const OPCODE: Opcode = Opcode::MODIFY_RMP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = ModifyRmpIn::default();
        input.set_rmp_state(RMP_READY)?;
        input.set_rmpn(self.rmpn.get())?;
        input.bitmask_mut().set_lwm(true);
        ready_with(input.ctx_mut(), self.limit)?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

fn ready_with(rmpc: &mut Rmpc, limit: u16) -> Result<(), ValueTooWide> {
    rmpc.set_state(RMP_READY)?;
    rmpc.wq_mut().set_lwm(limit);
    Ok(())
}

/// Asks what a pool is like.
#[derive(Clone, Copy, Debug)]
pub struct QueryRmp {
    /// Which.
    pub rmpn: Srqn,
}

impl Command for QueryRmp {
    type Output = RmpAttributes;
    const OPCODE: Opcode = Opcode::QUERY_RMP;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = QueryRmpIn::default();
        input.set_rmpn(self.rmpn.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    fn output_length(&self) -> usize {
        QueryRmpOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<RmpAttributes, DecodeError> {
        let rmpc = output::<QueryRmpOut>(bytes)?.rmp_context();
        let wq = rmpc.wq();
        Ok(RmpAttributes {
            ready: rmpc.state() == RMP_READY,
            limit: wq.lwm(),
            log_entries: wq.log_wq_sz(),
            log_stride: wq.log_wq_stride(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_made_ready_and_as_a_list() {
        let mut wq = Wq::default();
        wq.set_log_wq_sz(4).unwrap();
        wq.set_log_wq_stride(6).unwrap();
        wq.set_pd(0x12_3456).unwrap();
        wq.set_dbr_addr(0x1122_3344_5566_7788);
        let pages = &[0xa000, 0xb000];
        let bytes = CreateRmp { wq: &wq, pages }.encode().unwrap();
        assert_eq!(bytes.len(), 0x110 + 16);
        assert_eq!(bytes[..8], [0x09, 0x0c, 0, 0, 0, 0, 0, 0]);
        // The context is at 0x20, its queue at 0x30 of it, the list at 0xc0 of that.
        assert_eq!(bytes[0x20..0x24], [0, 0x10, 0, 0]);
        assert_eq!(bytes[0x50..0x54], [0; 4], "a list, without signatures");
        assert_eq!(bytes[0x58..0x5c], [0, 0x12, 0x34, 0x56]);
        assert_eq!(bytes[0x60..0x68], 0x1122_3344_5566_7788u64.to_be_bytes());
        assert_eq!(bytes[0x70..0x74], [0, 6, 0, 4]);
        assert_eq!(bytes[0x110..0x118], 0xa000u64.to_be_bytes());
    }

    #[test]
    fn a_limit_is_the_only_thing_that_is_changed() {
        let rmpn = Srqn::from_low_bits(0x77);
        let bytes = ArmRmp { rmpn, limit: 0x1234 }.encode().unwrap();
        assert_eq!(
            (&bytes[..2], &bytes[8..12], &bytes[0x14..0x18]),
            (&[0x09, 0x0d][..], &[0x10, 0, 0, 0x77][..], &[0, 0, 0, 1][..])
        );
        assert_eq!(bytes[0x54..0x58], [0, 0, 0x12, 0x34]);
    }

    #[test]
    fn what_a_pool_is_like_is_read_from_its_context() {
        let mut out = QueryRmpOut::default();
        ready_with(out.rmp_context_mut(), 9).unwrap();
        out.rmp_context_mut().wq_mut().set_log_wq_sz(5).unwrap();
        let query = QueryRmp {
            rmpn: Srqn::from_low_bits(1),
        };
        let said = query.decode(zerocopy::IntoBytes::as_bytes(&out)).unwrap();
        assert_eq!((said.ready, said.limit, said.log_entries), (true, 9, 5));
        assert!(query.decode(&[0; 16]).is_err());
    }
}
