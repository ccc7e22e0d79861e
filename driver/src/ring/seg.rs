//! WQE segments as bytes, made from the layouts of `ferroce_hw_regs::wqe`.

use ferroce_hw_regs::wqe::{
    AV_EXTENDED, AtomicSeg, CtrlSeg, DS_BYTES, DataSeg, INLINE_SEG, RaddrSeg, SrqNextSeg,
};

use super::wr::{RemoteAddr, Sge};

/// Bytes of a segment.
pub(super) const BYTES: u32 = DS_BYTES as u32;

/// Control segment. `block` is the producer index (16 bits), `qpn` the QP number shifted left by 8, `segs` the WQE's length
/// in segments. Its first 8 bytes are made as one number, which is what a post can afford.
#[inline(always)]
pub(super) fn ctrl(opcode: u8, block: u32, qpn: u64, segs: u32, flags: u8, imm: u32) -> [u8; 16] {
    let what = u64::from(opcode) << 32 | u64::from(segs);
    let [head, tail] = [
        u64::from(block) << 40 | what | qpn,
        u64::from(flags) << 32 | u64::from(imm),
    ];
    zerocopy::transmute!([head.to_be_bytes(), tail.to_be_bytes()])
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(CtrlSeg, opmod_idx_opcode) == 0 && offset_of!(CtrlSeg, qpn_ds) == 4);
    assert!(offset_of!(CtrlSeg, fm_ce_se) == 11 && offset_of!(CtrlSeg, imm) == 12);
};

/// Remote address segment.
#[inline(always)]
pub(super) fn raddr(remote: &RemoteAddr) -> [u8; 16] {
    zerocopy::transmute!(RaddrSeg {
        raddr: remote.addr.into(),
        rkey: remote.rkey.into(),
        rsvd: 0.into()
    })
}

/// Operands of an atomic.
#[inline(always)]
pub(super) fn atomic(swap_add: u64, compare: u64) -> [u8; 16] {
    zerocopy::transmute!(AtomicSeg {
        swap_add: swap_add.into(),
        compare: compare.into()
    })
}

/// First segment of an address vector, with Q_Key and QPN filled in.
#[inline(always)]
pub(super) fn destination(first: &[u8; 16], qkey: u32, qpn: u32) -> [u8; 16] {
    let mut segment = *first;
    segment[0..4].copy_from_slice(&qkey.to_be_bytes());
    segment[8..12].copy_from_slice(&(AV_EXTENDED | qpn).to_be_bytes());
    segment
}

/// Data segment.
#[inline(always)]
pub(super) fn data(sge: &Sge) -> [u8; 16] {
    zerocopy::transmute!(DataSeg {
        byte_count: sge.len.into(),
        lkey: sge.key.into(),
        addr: sge.addr.into()
    })
}

/// First segment of a WQE in a shared receive queue.
#[inline(always)]
pub(super) fn link(next: u16) -> [u8; 16] {
    zerocopy::transmute!(SrqNextSeg {
        rsvd0: [0; 2],
        next_wqe_index: next.into(),
        signature: 0,
        rsvd1: [0; 11],
    })
}

/// End of a receive WQE's list.
#[inline(always)]
pub(super) fn list_end() -> [u8; 16] {
    zerocopy::transmute!(DataSeg::TERMINATOR)
}

/// Header of inline data.
pub(super) fn inline_header(len: u32) -> u32 {
    INLINE_SEG | len
}
