//! Completion queue entries: what the device writes when a work request is done (`cqe64`, `err_cqe`).

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an entry.
pub const BYTES: usize = 64;
/// Byte offset of `op_own`, which the device writes last.
pub const OP_OWN_OFFSET: usize = 0x3f;
/// `op_own` of an entry that the device has not written yet: opcode invalid, owner 1... which is not the owner
/// of the first lap.
pub const OP_OWN_INIT: u8 = opcode::INVALID << 4 | 1;

/// Completion opcodes: bits `7:4` of `op_own`.
pub mod opcode {
    /// A send work request is done.
    pub const REQ: u8 = 0x0;
    /// RDMA WRITE with immediate received.
    pub const RESP_WR_IMM: u8 = 0x1;
    /// SEND received.
    pub const RESP_SEND: u8 = 0x2;
    /// SEND with immediate received.
    pub const RESP_SEND_IMM: u8 = 0x3;
    /// SEND with invalidate received.
    pub const RESP_SEND_INV: u8 = 0x4;
    /// The CQ has been resized: the rest is in the new buffer.
    pub const RESIZE_CQ: u8 = 0x5;
    /// Signature error.
    pub const SIG_ERR: u8 = 0xc;
    /// A send work request failed.
    pub const REQ_ERR: u8 = 0xd;
    /// A receive work request failed.
    pub const RESP_ERR: u8 = 0xe;
    /// Not written yet.
    pub const INVALID: u8 = 0xf;
}

/// Bits `25:24` of `flags_rqpn`: which header stands in the GRH's place.
pub mod roce_l3 {
    /// A GRH (RoCE v1).
    pub const GRH: u8 = 0;
    /// IPv6 (RoCE v2).
    pub const IPV6: u8 = 1;
    /// IPv4 (RoCE v2).
    pub const IPV4: u8 = 2;
}

/// A completion that is not an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Cqe64 {
    /// Tunnel and TLS bits.
    pub tls_outer_l3_tunneled: u8,
    /// Reserved.
    pub rsvd0: u8,
    /// Id of a striding receive WQE.
    pub wqe_id: U16,
    /// Large receive offload fields.
    pub lro: [u8; 8],
    /// Receive hash.
    pub rss_hash_result: U32,
    /// Kind of receive hash.
    pub rss_hash_type: u8,
    /// Path bits.
    pub ml_path: u8,
    /// Reserved.
    pub rsvd1: [u8; 2],
    /// Checksum of a received Ethernet frame.
    pub check_sum: U16,
    /// Source LID.
    pub slid: U16,
    /// GRH `29:28`, RoCE layer 3 `25:24` (see [`roce_l3`]), remote QPN `23:0`.
    pub flags_rqpn: U32,
    /// Checksum results.
    pub hds_ip_ext: u8,
    /// Kinds of received headers.
    pub l4_l3_hdr_type: u8,
    /// Stripped VLAN tag.
    pub vlan_info: U16,
    /// SRQ number, or the queue's user index `23:0` (CQE version 1).
    pub srqn_uidx: U32,
    /// Immediate data, invalidated R_Key, or P_Key.
    pub imm_inval_pkey: U32,
    /// Reserved.
    pub rsvd2: [u8; 4],
    /// Bytes that were received, or read.
    pub byte_cnt: U32,
    /// Device time.
    pub timestamp: U64,
    /// Requester: send opcode `31:24` and QPN `23:0`. Responder: QPN `23:0`.
    pub sop_drop_qpn: U32,
    /// Index of the WQE: of its first basic block, for a send queue. 16 bits that wrap.
    pub wqe_counter: U16,
    /// Signature.
    pub signature: u8,
    /// Opcode `7:4`, format `3:2`, solicited bit 1, owner bit 0.
    pub op_own: u8,
}

impl Cqe64 {
    /// The completion opcode of `op_own`.
    pub const fn opcode(op_own: u8) -> u8 {
        op_own >> 4
    }

    /// The owner bit of `op_own`: valid when it equals bit `log_cq_size` of the consumer index.
    pub const fn owner(op_own: u8) -> u8 {
        op_own & 1
    }
}

/// A completion with an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrCqe {
    /// Reserved.
    pub rsvd0: [u8; 32],
    /// SRQ number, or the queue's user index `23:0`.
    pub srqn_uidx: U32,
    /// Reserved.
    pub rsvd1: [u8; 18],
    /// The vendor's syndrome: says more than `syndrome`, to the maker.
    pub vendor_err_synd: u8,
    /// Why: a `CqeSyndrome`.
    pub syndrome: u8,
    /// Send opcode `31:24` and QPN `23:0`.
    pub s_wqe_opcode_qpn: U32,
    /// Index of the WQE.
    pub wqe_counter: U16,
    /// Signature.
    pub signature: u8,
    /// Opcode `7:4`, owner bit 0.
    pub op_own: u8,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Cqe64>() == BYTES);
    assert!(size_of::<ErrCqe>() == BYTES);
    assert!(offset_of!(Cqe64, op_own) == OP_OWN_OFFSET);
};
