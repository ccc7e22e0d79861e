//! Work queue entries: what a driver writes into a send or receive queue.
//!
//! A send WQE is a control segment and then the segments that its opcode asks for, each 16 bytes or a multiple.
//! Send queues are counted in 64-byte basic blocks (WQEBB); a WQE begins at a block and takes as many as it
//! needs, wrapping at the end of the ring.
//!
//! | opcode | segments after the control segment |
//! | --- | --- |
//! | SEND, SEND_IMM, SEND_INVAL | data or inline |
//! | RDMA_WRITE, RDMA_WRITE_IMM, RDMA_READ | remote address, data or inline |
//! | ATOMIC_CS, ATOMIC_FA | remote address, atomic, one data |
//! | NOP | none |

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a send queue's basic block.
pub const WQEBB_BYTES: usize = 64;
/// Unit in which a WQE's length (`ds`) is counted.
pub const DS_BYTES: usize = 16;
/// Most basic blocks of a WQE.
pub const MAX_WQEBBS: usize = 16;
/// L_Key that ends a receive WQE's list before its end, and that scatters to nothing.
pub const INVALID_LKEY: u32 = 0x100;

/// Send opcodes (`opmod_idx_opcode` bits `7:0`, and byte 0x38 of a requester's CQE).
pub mod opcode {
    /// Does nothing but complete.
    pub const NOP: u8 = 0x00;
    /// SEND that invalidates an R_Key at the peer.
    pub const SEND_INVAL: u8 = 0x01;
    /// RDMA WRITE.
    pub const RDMA_WRITE: u8 = 0x08;
    /// RDMA WRITE with immediate.
    pub const RDMA_WRITE_IMM: u8 = 0x09;
    /// SEND.
    pub const SEND: u8 = 0x0a;
    /// SEND with immediate.
    pub const SEND_IMM: u8 = 0x0b;
    /// Large send offload (Ethernet).
    pub const LSO: u8 = 0x0e;
    /// RDMA READ.
    pub const RDMA_READ: u8 = 0x10;
    /// Atomic compare-and-swap.
    pub const ATOMIC_CS: u8 = 0x11;
    /// Atomic fetch-and-add.
    pub const ATOMIC_FA: u8 = 0x12;
    /// Masked compare-and-swap.
    pub const ATOMIC_MASKED_CS: u8 = 0x14;
    /// Masked fetch-and-add.
    pub const ATOMIC_MASKED_FA: u8 = 0x15;
    /// Bind a memory window.
    pub const BIND_MW: u8 = 0x18;
    /// Change a memory key from the data path.
    pub const UMR: u8 = 0x25;
}

/// Flags of [`CtrlSeg::fm_ce_se`].
pub mod ctrl_flags {
    /// Completion with an event for a solicited one at the peer.
    pub const SOLICITED: u8 = 0x02;
    /// Write a CQE when done.
    pub const CQ_UPDATE: u8 = 0x08;
    /// Bits of the completion mode.
    pub const CQ_UPDATE_MASK: u8 = 0x0c;
    /// Fence: after all earlier RDMA READs and atomics.
    pub const FENCE: u8 = 0x40;
    /// Bits of the fence mode.
    pub const FENCE_MASK: u8 = 0xe0;
}

/// Control segment: the first 16 bytes of each send WQE.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CtrlSeg {
    /// Opcode modifier `31:24`, index of the WQE's first basic block `23:8` (16 bits that wrap), opcode `7:0`.
    pub opmod_idx_opcode: U32,
    /// QPN `31:8`, length of the WQE in units of 16 bytes `5:0`.
    pub qpn_ds: U32,
    /// Signature over the WQE, when the QP asks for one.
    pub signature: u8,
    /// Reserved.
    pub rsvd: [u8; 2],
    /// Fence, completion and solicited flags: [`ctrl_flags`].
    pub fm_ce_se: u8,
    /// Immediate data, R_Key to invalidate, or mkey of a UMR.
    pub imm: U32,
}

impl CtrlSeg {
    /// Bits of `qpn_ds` that hold the length.
    pub const DS_MASK: u32 = 0x3f;

    /// The opcode.
    pub fn opcode(&self) -> u8 {
        self.opmod_idx_opcode.get() as u8
    }

    /// Index of the WQE's first basic block.
    pub fn wqe_index(&self) -> u16 {
        (self.opmod_idx_opcode.get() >> 8) as u16
    }

    /// The opcode's modifier.
    pub fn opmod(&self) -> u8 {
        (self.opmod_idx_opcode.get() >> 24) as u8
    }

    /// Number of the queue.
    pub fn qpn(&self) -> u32 {
        self.qpn_ds.get() >> 8
    }

    /// Length of the WQE in units of 16 bytes, this segment included.
    pub fn ds(&self) -> u8 {
        (self.qpn_ds.get() & Self::DS_MASK) as u8
    }
}

/// Remote address segment.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct RaddrSeg {
    /// Virtual address at the peer.
    pub raddr: U64,
    /// The peer's key.
    pub rkey: U32,
    /// Reserved.
    pub rsvd: U32,
}

/// Atomic segment.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AtomicSeg {
    /// What is swapped in, or added.
    pub swap_add: U64,
    /// What the memory is compared with.
    pub compare: U64,
}

/// Data segment: a piece of local memory. In a send WQE `byte_count` has bit 31 clear.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DataSeg {
    /// Bytes; 0 stands for 2^31 in a send WQE.
    pub byte_count: U32,
    /// Key of the memory.
    pub lkey: U32,
    /// Virtual address.
    pub addr: U64,
}

impl DataSeg {
    /// Ends a receive WQE's list before its end.
    pub const TERMINATOR: DataSeg = DataSeg {
        byte_count: U32::ZERO,
        lkey: U32::new(INVALID_LKEY),
        addr: U64::ZERO,
    };
}

/// Bit of an inline segment's header that tells it from a data segment.
pub const INLINE_SEG: u32 = 0x8000_0000;
/// Bits of an inline segment's header that hold its length.
pub const INLINE_LENGTH_MASK: u32 = 0x3ff;
/// Bytes of an inline segment's header; the data follows it at once, padded to 16 bytes in all.
pub const INLINE_HEADER_BYTES: usize = 4;

/// First segment of a WQE in a shared receive queue: which entry comes next.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct SrqNextSeg {
    /// Reserved.
    pub rsvd0: [u8; 2],
    /// Index of the next WQE.
    pub next_wqe_index: U16,
    /// Signature.
    pub signature: u8,
    /// Reserved.
    pub rsvd1: [u8; 11],
}

/// Bit of [`Av::dqp_dct`]: the vector has its last 32 bytes.
pub const AV_EXTENDED: u32 = 1 << 31;
/// Bit of [`Av::grh_gid_fl`]: there is a GRH.
pub const AV_GRH: u32 = 1 << 30;
/// Where [`Av::grh_gid_fl`] has the source GID's index (8 bits).
pub const AV_SGID_INDEX_SHIFT: u32 = 20;

/// Address vector of a datagram (`av`): the first segment after the control segment of a UD WQE.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Av {
    /// Q_Key.
    pub qkey: U32,
    /// Reserved.
    pub rsvd0: U32,
    /// Destination QPN `23:0`; bit 31: the vector is extended (48 bytes), always so on RoCE.
    pub dqp_dct: U32,
    /// Static rate `7:4`; service level `3:0`, on RoCE the Ethernet priority `3:1` (Linux mlx5_ib).
    pub stat_rate_sl: u8,
    /// Force loopback and source path bits.
    pub fl_mlid: u8,
    /// UDP source port on RoCE v2.
    pub rlid_udp_sport: U16,
    /// Reserved.
    pub rsvd1: [u8; 4],
    /// MAC address of the next hop.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bit 30: there is a GRH; `27:20` index of the source GID; `19:0` flow label.
    pub grh_gid_fl: U32,
    /// Destination GID.
    pub rgid: [u8; 16],
}

const _: () = {
    assert!(size_of::<CtrlSeg>() == 16);
    assert!(size_of::<RaddrSeg>() == 16);
    assert!(size_of::<AtomicSeg>() == 16);
    assert!(size_of::<DataSeg>() == 16);
    assert!(size_of::<SrqNextSeg>() == 16);
    assert!(size_of::<Av>() == 48);
};
