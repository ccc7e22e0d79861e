//! Completions: what became of a work request.

use std::fmt;

use ferroce_hw_regs::ids::Qpn;
use ferroce_hw_regs::wqe::opcode;

use super::grh::NetworkType;
use super::local::{LocalBuffer, LocalInner};
use crate::ring::{DATAGRAM, Kind, RawWc};

/// A work request that has completed. [`Wc::result`] says how; nothing of what was received can be reached without it.
#[must_use = "a completion says whether its request succeeded"]
pub struct Wc {
    raw: RawWc<LocalInner>,
}

/// What a request that succeeded was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcOpcode {
    /// SEND, with or without immediate data, or with invalidate.
    Send,
    /// RDMA WRITE, with or without immediate data.
    RdmaWrite,
    /// RDMA READ.
    RdmaRead,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// Another send request; the WQE's opcode.
    Other(u8),
    /// A SEND was received.
    Recv,
    /// A WRITE with immediate data was received.
    RecvRdmaWithImm,
}

/// What the completion of a received datagram says besides. The first 40 bytes of what was received are for the global
/// header, which [`GlobalHeader::read`](super::GlobalHeader::read) knows; `byte_len` counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Datagram {
    /// The queue pair that sent it; its Q_Key is what this side's queue pair has.
    pub src_qp: Qpn,
    /// Which header it had; `None` if the device says that there is none, or one that the driver doesn't know.
    pub network: Option<NetworkType>,
    /// Index of its partition key; RoCE has only index 0.
    pub pkey_index: u16,
}

impl Datagram {
    /// Reads the CQE's word, which has [`DATAGRAM`] if it is one's.
    fn from_raw(remote: u32) -> Option<Datagram> {
        (remote & DATAGRAM != 0).then(|| Datagram {
            src_qp: Qpn::from_low_bits(remote),
            network: NetworkType::from_raw(remote),
            pkey_index: 0,
        })
    }
}

/// A request that succeeded.
#[derive(Debug)]
#[must_use = "it holds the buffer that was moved into the request"]
pub struct WcSuccess {
    /// The caller's name for the request.
    pub wr_id: u64,
    /// The queue pair.
    pub qpn: Qpn,
    /// What the request was.
    pub opcode: WcOpcode,
    /// Bytes received, of a datagram with the 40 of the global header; or read; 0 for SEND and WRITE.
    pub byte_len: u32,
    /// When the device finished it, by the device's clock: ticks, which [`DeviceClock`](crate::clock::DeviceClock) and
    /// [`ClockCorrelation`](crate::clock::ClockCorrelation) know, unless the queue pair was made for another
    /// [`TimestampFormat`](crate::clock::TimestampFormat). The completion of a request that failed has none.
    pub timestamp: u64,
    /// Immediate data of a received message, in host order.
    pub imm: Option<u32>,
    /// Where a received datagram came from.
    pub datagram: Option<Datagram>,
    /// The R_Key that a received SEND with invalidate named.
    pub invalidated_rkey: Option<u32>,
    /// The buffer that was moved into the request.
    pub buffer: Option<LocalBuffer>,
}

/// A request that failed.
#[derive(thiserror::Error)]
#[error("work request {wr_id:#x} of {qpn} failed: {status} (vendor syndrome {vendor_syndrome:#04x})")]
#[must_use = "it holds the buffer that was moved into the request"]
pub struct WcError {
    /// The caller's name for the request.
    pub wr_id: u64,
    /// The queue pair, which is in error now.
    pub qpn: Qpn,
    /// Why.
    pub status: WcStatus,
    /// The maker's number for it.
    pub vendor_syndrome: u8,
    /// Index of its work queue entry: of the first 64-byte block, for a send.
    pub wqe_index: u16,
    /// Whether it was a receive.
    pub is_receive: bool,
    buffer: Option<LocalBuffer>,
}

/// Why a request failed (the CQE's syndrome; IBTA vol. 1, 10.8.3.6 has the meanings).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WcStatus {
    /// A message longer than its receive's elements, or than what is allowed.
    LocalLength,
    /// The queue pair could not carry the request out.
    LocalQpOperation,
    /// A local element is outside its region, or the region doesn't allow it.
    LocalProtection,
    /// The queue pair was in error before the request's turn came: no fault of its own.
    Flushed,
    /// A memory window could not be bound.
    MemoryWindowBind,
    /// The peer's answer made no sense.
    BadResponse,
    /// A local region was not accessible when an incoming message was written.
    LocalAccess,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The remote address is outside its region, or the region doesn't allow it.
    RemoteAccess,
    /// The peer could not carry the request out.
    RemoteOperation,
    /// The peer did not answer, as often as was tried.
    TransportRetryExceeded,
    /// The peer had no receive posted, as often as was tried.
    RnrRetryExceeded,
    /// The peer gave the request up.
    RemoteAborted,
    /// A syndrome that the driver doesn't know.
    Unknown(u8),
}

impl WcStatus {
    /// The status of a CQE's syndrome. Source: PRM notes, section 8.5.
    pub fn from_syndrome(syndrome: u8) -> WcStatus {
        match syndrome {
            0x01 => WcStatus::LocalLength,
            0x02 => WcStatus::LocalQpOperation,
            0x04 => WcStatus::LocalProtection,
            0x05 => WcStatus::Flushed,
            0x06 => WcStatus::MemoryWindowBind,
            0x10 => WcStatus::BadResponse,
            0x11 => WcStatus::LocalAccess,
            0x12 => WcStatus::RemoteInvalidRequest,
            0x13 => WcStatus::RemoteAccess,
            0x14 => WcStatus::RemoteOperation,
            0x15 => WcStatus::TransportRetryExceeded,
            0x16 => WcStatus::RnrRetryExceeded,
            0x22 => WcStatus::RemoteAborted,
            other => WcStatus::Unknown(other),
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::LocalLength => "local length error",
            WcStatus::LocalQpOperation => "local QP operation error",
            WcStatus::LocalProtection => "local protection error",
            WcStatus::Flushed => "flushed, since the queue pair was in error",
            WcStatus::MemoryWindowBind => "memory window bind error",
            WcStatus::BadResponse => "bad response from the peer",
            WcStatus::LocalAccess => "local access error",
            WcStatus::RemoteInvalidRequest => "remote invalid request error",
            WcStatus::RemoteAccess => "remote access error",
            WcStatus::RemoteOperation => "remote operation error",
            WcStatus::TransportRetryExceeded => "transport retry counter exceeded",
            WcStatus::RnrRetryExceeded => "RNR retry counter exceeded",
            WcStatus::RemoteAborted => "aborted by the peer",
            WcStatus::Unknown(syndrome) => return write!(f, "unknown syndrome {syndrome:#04x}"),
        })
    }
}

impl Wc {
    #[inline(always)]
    pub(super) fn new(raw: RawWc<LocalInner>) -> Wc {
        Wc { raw }
    }

    /// The caller's name for the request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        self.raw.wr_id
    }

    /// The queue pair.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(self.raw.qpn)
    }

    /// When the device finished it, see [`WcSuccess::timestamp`]; 0 of one that failed.
    #[inline]
    pub fn timestamp(&self) -> u64 {
        self.raw.timestamp
    }

    /// Whether the request succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.raw.syndrome == 0
    }

    /// What became of the request.
    ///
    /// # Errors
    /// [`WcError`] if it failed; [`WcError::is_flush`] tells what was merely given back from what went wrong.
    #[inline]
    pub fn result(self) -> Result<WcSuccess, WcError> {
        if self.raw.syndrome != 0 {
            Err(self.into_error())
        } else {
            Ok(self.into_success())
        }
    }

    fn into_success(self) -> WcSuccess {
        let RawWc {
            wr_id,
            qpn,
            byte_len,
            imm,
            remote,
            timestamp,
            kind,
            buffer,
            ..
        } = self.raw;
        let opcode = match kind {
            Kind::Send(opcode) => send_opcode(opcode),
            Kind::RecvWriteImm => WcOpcode::RecvRdmaWithImm,
            _ => WcOpcode::Recv,
        };
        let has_length = !matches!(opcode, WcOpcode::Send | WcOpcode::RdmaWrite | WcOpcode::Other(_));
        WcSuccess {
            wr_id,
            qpn: Qpn::from_low_bits(qpn),
            opcode,
            byte_len: if has_length { byte_len } else { 0 },
            timestamp,
            imm: matches!(kind, Kind::RecvImm | Kind::RecvWriteImm).then_some(imm),
            datagram: Datagram::from_raw(remote),
            invalidated_rkey: (kind == Kind::RecvInv).then_some(imm),
            buffer: buffer.map(LocalBuffer::reclaim),
        }
    }

    #[cold]
    fn into_error(self) -> WcError {
        let RawWc {
            wr_id,
            qpn,
            wqe_index,
            kind,
            syndrome,
            vendor_syndrome,
            buffer,
            ..
        } = self.raw;
        WcError {
            wr_id,
            qpn: Qpn::from_low_bits(qpn),
            status: WcStatus::from_syndrome(syndrome),
            vendor_syndrome,
            wqe_index,
            is_receive: !matches!(kind, Kind::Send(_)),
            buffer: buffer.map(LocalBuffer::reclaim),
        }
    }
}

fn send_opcode(code: u8) -> WcOpcode {
    match code {
        opcode::SEND | opcode::SEND_IMM | opcode::SEND_INVAL => WcOpcode::Send,
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM => WcOpcode::RdmaWrite,
        opcode::RDMA_READ => WcOpcode::RdmaRead,
        opcode::ATOMIC_CS => WcOpcode::CompareSwap,
        opcode::ATOMIC_FA => WcOpcode::FetchAdd,
        other => WcOpcode::Other(other),
    }
}

impl WcError {
    /// Whether the request was only given back since the queue pair was in error already, as all outstanding ones are
    /// when a connection ends.
    pub fn is_flush(&self) -> bool {
        self.status == WcStatus::Flushed
    }

    /// The buffer that was moved into the request, to be used again; what it holds means nothing.
    pub fn take_buffer(&mut self) -> Option<LocalBuffer> {
        self.buffer.take()
    }
}

impl fmt::Debug for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WcError")
            .field("wr_id", &self.wr_id)
            .field("qpn", &self.qpn)
            .field("status", &self.status)
            .field("vendor_syndrome", &self.vendor_syndrome)
            .field("wqe_index", &self.wqe_index)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wc")
            .field("wr_id", &self.raw.wr_id)
            .field("qpn", &self.raw.qpn)
            .field("kind", &self.raw.kind)
            .field("syndrome", &self.raw.syndrome)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(kind: Kind, syndrome: u8) -> Wc {
        let (wr_id, qpn, byte_len, imm) = (7, 0x123, 99, 0x0102_0304);
        Wc::new(RawWc {
            wr_id,
            qpn,
            byte_len,
            imm,
            remote: 0,
            timestamp: 0x1234_5678_9abc_def0,
            wqe_index: 5,
            kind,
            syndrome,
            vendor_syndrome: 9,
            buffer: None,
        })
    }

    #[test]
    fn t15_only_received_immediates_and_lengths_are_shown() {
        let wc = raw(Kind::Send(opcode::SEND_IMM), 0).result().unwrap();
        assert_eq!((wc.opcode, wc.byte_len, wc.imm), (WcOpcode::Send, 0, None));
        let wc = raw(Kind::RecvImm, 0).result().unwrap();
        assert_eq!(
            (wc.opcode, wc.byte_len, wc.imm),
            (WcOpcode::Recv, 99, Some(0x0102_0304))
        );
        let wc = raw(Kind::RecvWriteImm, 0).result().unwrap();
        assert_eq!(
            (wc.opcode, wc.imm),
            (WcOpcode::RecvRdmaWithImm, Some(0x0102_0304))
        );
        let wc = raw(Kind::Send(opcode::RDMA_READ), 0).result().unwrap();
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RdmaRead, 99));
    }

    #[test]
    fn a_datagram_says_where_it_came_from() {
        assert_eq!(raw(Kind::Recv, 0).result().unwrap().datagram, None);
        for (l3, network) in [
            (0, NetworkType::RoceV1),
            (1, NetworkType::Ipv6),
            (2, NetworkType::Ipv4),
        ] {
            let mut wc = raw(Kind::Recv, 0);
            wc.raw.remote = DATAGRAM | 1 << 28 | l3 << 24 | 0xab_cdef;
            let datagram = wc.result().unwrap().datagram.unwrap();
            assert_eq!(
                (datagram.src_qp.get(), datagram.network),
                (0xab_cdef, Some(network))
            );
        }
        for odd in [0, 1 << 28 | 3 << 24, 2 << 24] {
            let mut wc = raw(Kind::RecvImm, 0);
            wc.raw.remote = DATAGRAM | odd;
            assert_eq!(wc.result().unwrap().datagram.unwrap().network, None, "{odd:#x}");
        }
    }

    #[test]
    fn q20_flushes_are_told_from_faults_by_type() {
        let flushed = raw(Kind::RecvFailed, 5).result().unwrap_err();
        assert!(flushed.is_flush() && flushed.is_receive);
        let failed = raw(Kind::Send(opcode::RDMA_WRITE), 0x13).result().unwrap_err();
        assert!(!failed.is_flush() && !failed.is_receive);
        assert_eq!(
            failed.to_string(),
            "work request 0x7 of QPN 0x123 failed: remote access error (vendor syndrome 0x09)"
        );
    }

    #[test]
    fn every_syndrome_has_a_status() {
        let known = (0..=255u8).filter(|&s| !matches!(WcStatus::from_syndrome(s), WcStatus::Unknown(_)));
        assert_eq!(known.count(), 13);
        assert_eq!(WcStatus::from_syndrome(0xff), WcStatus::Unknown(0xff));
    }
}
