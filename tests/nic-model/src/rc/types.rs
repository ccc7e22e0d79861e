//! What goes into and comes out of the RC transport, other than packets: work requests, receive buffers,
//! completions, attributes, and the memory that the transport acts on.

use std::fmt;

use thiserror::Error;

use crate::payload::Payload;
use crate::psn::Psn;

/// Longest message in bytes (IBTA vol. 1, 9.7.1: 0 to 2^31).
pub const MAX_MESSAGE_BYTES: u64 = 1 << 31;

/// One element of a scatter or gather list: local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Address, in the address space of the memory key.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key.
    pub lkey: u32,
}

/// Memory at the other end: where an RDMA operation or an atomic goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
}

/// The operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// Nothing goes over the wire: it completes when all before it have. For NOP, and for work that the
    /// engine has done itself (UMR, local invalidate) and that must complete in its turn.
    Nop,
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm {
        /// Immediate data, as a number.
        imm: u32,
    },
    /// SEND with invalidate.
    SendInvalidate {
        /// Key of the responder that it invalidates.
        rkey: u32,
    },
    /// RDMA WRITE.
    Write {
        /// Destination.
        remote: Remote,
    },
    /// RDMA WRITE with immediate data.
    WriteImm {
        /// Destination.
        remote: Remote,
        /// Immediate data, as a number.
        imm: u32,
    },
    /// RDMA READ; the gather list is where the data goes.
    Read {
        /// Source.
        remote: Remote,
    },
    /// Compare-and-swap of 8 bytes; the gather list (8 bytes) gets the original value.
    CompareSwap {
        /// Target, 8-byte aligned.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Value to store when equal.
        swap: u64,
    },
    /// Fetch-and-add of 8 bytes; the gather list (8 bytes) gets the original value.
    FetchAdd {
        /// Target, 8-byte aligned.
        remote: Remote,
        /// Value to add.
        add: u64,
    },
}

impl SendOp {
    /// Which of the operations it is, without its operands.
    pub const fn kind(&self) -> SendKind {
        match self {
            SendOp::Nop => SendKind::Nop,
            SendOp::Send => SendKind::Send,
            SendOp::SendImm { .. } => SendKind::SendImm,
            SendOp::SendInvalidate { .. } => SendKind::SendInvalidate,
            SendOp::Write { .. } => SendKind::Write,
            SendOp::WriteImm { .. } => SendKind::WriteImm,
            SendOp::Read { .. } => SendKind::Read,
            SendOp::CompareSwap { .. } => SendKind::CompareSwap,
            SendOp::FetchAdd { .. } => SendKind::FetchAdd,
        }
    }
}

/// [`SendOp`] without operands: what a completion names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SendKind {
    /// Nothing on the wire.
    Nop,
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND with invalidate.
    SendInvalidate,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare-and-swap.
    CompareSwap,
    /// Fetch-and-add.
    FetchAdd,
}

/// Local memory of a send work request.
#[derive(Clone, Debug)]
pub enum SendData {
    /// Read (or, for READ and atomics, written) through local keys when packets need it, and again for each
    /// retransmission.
    Sges(Vec<Sge>),
    /// Data that stood in the WQE itself.
    Inline(Payload),
}

impl SendData {
    /// Length of the message in bytes; more than [`MAX_MESSAGE_BYTES`] is refused later.
    pub fn len_bytes(&self) -> u64 {
        match self {
            SendData::Sges(sges) => sges_len_bytes(sges),
            SendData::Inline(data) => data.len() as u64,
        }
    }
}

/// Sum of the lengths of `sges` in bytes.
pub fn sges_len_bytes(sges: &[Sge]) -> u64 {
    sges.iter().map(|s| u64::from(s.len)).sum()
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendWork {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local memory.
    pub data: SendData,
    /// Waits until all READs and atomics before it are complete (IBTA vol. 1, 10.8.3.3).
    pub fence: bool,
    /// Success gives a completion; failure always does.
    pub signaled: bool,
    /// Sets the solicited-event bit in its last packet, where the operation consumes a receive.
    pub solicited: bool,
}

/// A receive work request, taken from the RQ or SRQ.
#[derive(Clone, Debug, Default)]
pub struct RecvWork {
    /// Comes back in the completion.
    pub id: u64,
    /// Where the message goes.
    pub sges: Vec<Sge>,
}

/// How a work request ended. The numbers are the CQE syndromes of the mlx5 PRM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum CompletionStatus {
    /// It did what it should.
    Success = 0x00,
    /// A receive buffer too small, a message too long.
    LocalLength = 0x01,
    /// The work request makes no sense on this QP, or the NIC could not carry it out.
    LocalQpOperation = 0x02,
    /// A local key does not allow the access.
    LocalProtection = 0x04,
    /// Not done, since the QP is in error.
    Flushed = 0x05,
    /// The responder's answer does not fit the request.
    BadResponse = 0x10,
    /// A peer's request broke the protection of local memory (receive side).
    LocalAccess = 0x11,
    /// NAK: invalid request.
    RemoteInvalidRequest = 0x12,
    /// NAK: remote access error.
    RemoteAccess = 0x13,
    /// NAK: remote operational error.
    RemoteOperation = 0x14,
    /// No answer after all retries.
    TransportRetryExceeded = 0x15,
    /// Receiver not ready after all retries.
    RnrRetryExceeded = 0x16,
}

impl CompletionStatus {
    /// The syndrome byte of an error CQE; 0 for success.
    pub const fn syndrome(self) -> u8 {
        self as u8
    }
}

/// Completion of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendCompletion {
    /// [`SendWork::id`].
    pub id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// What it was.
    pub kind: SendKind,
    /// Message length in bytes (8 for atomics).
    pub byte_len: u32,
    /// [`SendWork::signaled`].
    pub signaled: bool,
}

/// What a receive completion reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RecvKind {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendImm,
    /// SEND with invalidate.
    SendInvalidate,
    /// RDMA WRITE with immediate data.
    WriteImm,
}

/// Completion of a receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvCompletion {
    /// [`RecvWork::id`].
    pub id: u64,
    /// How it ended.
    pub status: CompletionStatus,
    /// What came; of no meaning when it failed.
    pub kind: RecvKind,
    /// Length of the message in bytes, for WRITE with immediate that of the WRITE.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key that the message invalidated.
    pub invalidated_rkey: Option<u32>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
}

/// Asynchronous event of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AsyncEvent {
    /// First packet while in RTR (PRM event COMM_EST).
    CommunicationEstablished,
    /// In SQD all started sends are complete (SQ_DRAINED).
    SendQueueDrained,
    /// A peer's request was invalid (WQ_INVAL_REQ_ERROR).
    InvalidRequest,
    /// A peer's request broke memory protection (WQ_ACCESS_ERROR).
    AccessError,
    /// The QP can't read its work or reach memory (WQ_CATAS_ERROR).
    Catastrophic,
}

/// What the transport tells the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A send ended. Successes of unsignaled work give none.
    Send(SendCompletion),
    /// A receive ended.
    Recv(RecvCompletion),
    /// Something to put on an event queue.
    Async(AsyncEvent),
    /// The QP went to the error state by itself: the engine has the work that is still in its rings flushed
    /// ([`super::RcQp::flush_send`] and [`super::RcQp::flush_receives`]). Comes after the completion that says why.
    EnteredError,
}

/// State of a QP (IBTA vol. 1, 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QpState {
    /// Reset.
    Reset,
    /// Initialized: receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drain.
    Sqd,
    /// Send queue error (UC and UD only).
    Sqe,
    /// Error.
    Err,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpState::Reset => "Reset",
            QpState::Init => "Init",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQEr",
            QpState::Err => "Error",
        })
    }
}

/// Which atomics the responder offers (`atomic_mode` of the PRM's `qpc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum AtomicMode {
    /// None: atomic requests are invalid.
    None,
    /// 8-byte compare-and-swap and fetch-and-add, as IBTA has them.
    #[default]
    Ib,
}

/// What a memory access from the wire wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RemoteAccess {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Atomic (both read and written).
    Atomic,
}

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AtomicOp {
    /// Stores `swap` if the memory holds `compare`.
    CompareSwap {
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Adds, wrapping.
    FetchAdd {
        /// Value to add.
        add: u64,
    },
}

/// Why memory could not be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MemoryFault {
    /// The key is unknown, free, of another PD, does not permit the access, or does not span it.
    #[error("memory key {key:#010x} does not permit {len} bytes at {va:#x}")]
    Protection {
        /// Memory key.
        key: u32,
        /// First address.
        va: u64,
        /// Bytes.
        len: u64,
    },
    /// The host's memory behind the address is not there (IOMMU fault, peer gone), or work can't be read.
    #[error("no host memory at {va:#x} for {len} bytes")]
    Host {
        /// First address.
        va: u64,
        /// Bytes.
        len: u64,
    },
}

/// The memory that a QP acts on, and its receive queue. Implementations hold the QP's protection domain.
///
/// Nothing is assumed of what they answer, but that a [`Payload`] asked for has the length asked for: one of
/// another length counts as a fault.
pub trait QpMemory {
    /// Reads `len` bytes from local memory, `offset` bytes into the list `sges`.
    ///
    /// # Errors
    /// A local key that does not allow it, or memory that is not there.
    fn gather(&self, sges: &[Sge], offset: u64, len: u32) -> Result<Payload, MemoryFault>;

    /// Writes `data` to local memory, `offset` bytes into the list `sges`: receives and READ responses.
    ///
    /// # Errors
    /// A local key that does not allow it, or memory that is not there.
    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &Payload) -> Result<(), MemoryFault>;

    /// Writes what an atomic found at the responder to local memory, 8 bytes. As it stands here in little endian;
    /// a device says by a capability in which order it does.
    ///
    /// # Errors
    /// A local key that does not allow it, or memory that is not there.
    fn scatter_atomic(&mut self, sges: &[Sge], original: u64) -> Result<(), MemoryFault> {
        self.scatter(sges, 0, &Payload::from_vec(original.to_le_bytes().to_vec()))
    }

    /// Whether the peer may do this to the whole range. `len` is at most 2^31 and not 0; `va + len` may exceed
    /// 2^64, which is a fault.
    ///
    /// # Errors
    /// The remote key does not allow it.
    fn check_remote(&self, rkey: u32, va: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryFault>;

    /// Writes to remotely accessible memory, whose key is checked again.
    ///
    /// # Errors
    /// As [`QpMemory::check_remote`], or memory that is not there.
    fn remote_write(&mut self, rkey: u32, va: u64, data: &Payload) -> Result<(), MemoryFault>;

    /// Reads remotely accessible memory, whose key is checked again.
    ///
    /// # Errors
    /// As [`QpMemory::check_remote`], or memory that is not there.
    fn remote_read(&self, rkey: u32, va: u64, len: u32) -> Result<Payload, MemoryFault>;

    /// Carries out an atomic on 8 aligned bytes that hold a number in host order, and gives their value before.
    ///
    /// # Errors
    /// As [`QpMemory::check_remote`], or memory that is not there.
    fn remote_atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, MemoryFault>;

    /// Takes the next receive work request off the RQ or SRQ; `None` when there is none.
    ///
    /// # Errors
    /// The work request can't be read.
    fn take_recv(&mut self) -> Result<Option<RecvWork>, MemoryFault>;

    /// Invalidates a remote key for SEND with invalidate.
    ///
    /// # Errors
    /// The key is not one that a peer may invalidate.
    fn invalidate(&mut self, rkey: u32) -> Result<(), MemoryFault>;

    /// Receives posted and not taken, for end-to-end flow control; `None` when credits are not given, as with
    /// an SRQ (IBTA vol. 1, 9.7.7.2).
    fn recv_credits(&self) -> Option<u32> {
        None
    }
}

/// Attributes of an RC QP. Those of the send side count from RTS on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// Largest payload of a packet: 256, 512, 1024, 2048 or 4096 bytes. Another value counts as the next lower
    /// of these, and one below 256 as 256.
    pub path_mtu: u32,
    /// QP number of the peer, 24 bits.
    pub dest_qpn: u32,
    /// Partition key.
    pub pkey: u16,
    /// First PSN that we send.
    pub send_psn: Psn,
    /// First PSN that we expect.
    pub recv_psn: Psn,
    /// Retries after timeouts and sequence NAKs without progress, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs without progress, 0 to 6; 7 is without end.
    pub rnr_retry: u8,
    /// Local ACK timeout, 5 bits: 4.096 µs * 2^code; 0 never times out.
    pub ack_timeout: u8,
    /// RNR timer that our RNR NAKs ask for, 5-bit code ([`super::timer::rnr_delay`]).
    pub min_rnr_nak: u8,
    /// READs and atomics that we have outstanding at most.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding, and atomic results kept for replay.
    pub max_dest_rd_atomic: u8,
    /// The peer may READ.
    pub remote_read: bool,
    /// The peer may WRITE.
    pub remote_write: bool,
    /// The peer may use atomics.
    pub remote_atomic: bool,
    /// Which atomics.
    pub atomic_mode: AtomicMode,
    /// Payload of SENDs and WRITEs that may be unacknowledged, in bytes; at least one packet always may.
    pub window_bytes: u32,
}

impl QpConfig {
    /// These attributes with an MTU that exists.
    pub(crate) fn with_valid_mtu(self) -> QpConfig {
        QpConfig {
            path_mtu: 1 << self.path_mtu.clamp(256, 4096).ilog2(),
            ..self
        }
    }
}

impl Default for QpConfig {
    /// What a ConnectX QP that nobody tuned looks like: MTU 1024, 7 retries, timeout code 14 (67 ms), RNR code
    /// 12 (0.64 ms), one READ each way, nothing permitted to the peer.
    fn default() -> QpConfig {
        QpConfig {
            path_mtu: 1024,
            dest_qpn: 0,
            pkey: 0xffff,
            send_psn: Psn::default(),
            recv_psn: Psn::default(),
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 14,
            min_rnr_nak: 12,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            remote_read: false,
            remote_write: false,
            remote_atomic: false,
            atomic_mode: AtomicMode::Ib,
            window_bytes: 64 * 1024,
        }
    }
}

/// What a QP has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCounters {
    /// Packets transmitted, all kinds.
    pub packets_sent: u64,
    /// Packets handled, all kinds.
    pub packets_received: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
    /// ACK timeouts.
    pub timeouts: u64,
    /// Requests whose PSN was executed before.
    pub duplicates: u64,
    /// Requests whose PSN was ahead of the expected one.
    pub out_of_sequence: u64,
    /// Sequence NAKs received.
    pub sequence_naks_received: u64,
    /// Gaps in responses that made the requester go back (implied NAKs).
    pub implied_naks: u64,
    /// RNR NAKs sent.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// Packets dropped without an answer: ghosts, malformed ones, wrong partition or state.
    pub dropped: u64,
}
