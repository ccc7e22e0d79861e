//! A RoCE packet above its encapsulation: base transport header, extended headers and payload.
//!
//! The transport (sans-IO) speaks in these; `wire` puts them into RoCE v1 and v2 frames and back.

use crate::payload::Payload;
use crate::psn::Psn;

/// Length of a BTH in bytes.
pub const BTH_BYTES: usize = 12;

/// Base transport header (IBTA vol. 1, 9.2), 12 bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bth {
    /// Transport and operation, 8 bits.
    pub opcode: u8,
    /// Solicited event.
    pub solicited: bool,
    /// Migration state.
    pub mig_req: bool,
    /// Pad bytes between payload and ICRC, 0 to 3.
    pub pad_count: u8,
    /// Transport header version, 4 bits; 0 is the only one defined.
    pub tver: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification (RoCE v2 uses the IP header's ECN field instead).
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Destination queue pair, 24 bits.
    pub dest_qp: u32,
    /// The responder is asked for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header (IBTA vol. 1, 9.3.3), 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// Length of the whole DMA operation in bytes.
    pub dma_len: u32,
}

/// ACK extended transport header (IBTA vol. 1, 9.3.5), 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aeth {
    /// Kind and credit count, RNR timer or NAK code, 8 bits.
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// Atomic extended transport header (IBTA vol. 1, 9.3.4), 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder, 8-byte aligned.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// Value to swap in or to add.
    pub swap_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

/// Datagram extended transport header (IBTA vol. 1, 9.3.2), 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source queue pair, 24 bits.
    pub src_qp: u32,
}

/// One packet: which extended headers are there follows from the opcode, and parsing and emitting hold
/// packets to that.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    /// Base transport header.
    pub bth: Bth,
    /// Of UD packets.
    pub deth: Option<Deth>,
    /// Of the first or only packet of an RDMA WRITE, and of an RDMA READ request.
    pub reth: Option<Reth>,
    /// Of an atomic request.
    pub atomic_eth: Option<AtomicEth>,
    /// Of acknowledgements and of the first, last or only packet of a READ response.
    pub aeth: Option<Aeth>,
    /// Original value, of an atomic acknowledgement (AtomicAckETH).
    pub atomic_ack: Option<u64>,
    /// Immediate data, as a number: its bytes stand on the wire most significant first.
    pub immediate: Option<u32>,
    /// R_Key to invalidate (IETH).
    pub invalidate_rkey: Option<u32>,
    /// Payload without pad bytes.
    pub payload: Payload,
}
