//! The checks of a request, in IBTA's order.

use super::super::aeth::NakCode;
use super::super::types::{
    AtomicMode, CompletionStatus, MAX_MESSAGE_BYTES, MemoryFault, QpConfig, QpMemory, RemoteAccess,
    sges_len_bytes,
};
use super::{Message, Refusal, Request, Responder, Told};
use crate::psn::Psn;
use crate::wire::opcode::{Headers, Kind, Position};

/// Atomics act on this many bytes, aligned to as many.
const ATOMIC_BYTES: u64 = 8;

impl Refusal {
    /// An access from the wire failed.
    pub(super) fn of_fault(fault: MemoryFault) -> Refusal {
        let code = NakCode::of_fault(fault);
        let status = match code {
            NakCode::RemoteAccess => CompletionStatus::LocalAccess,
            _ => CompletionStatus::LocalQpOperation,
        };
        Refusal::Fatal(code, status)
    }
}

impl Responder {
    /// IBTA vol. 1, 9.7.4.1.2: only the expected PSN is executed.
    pub(super) fn check_psn(&self, psn: Psn) -> Result<(), Refusal> {
        match (psn.diff(self.expected), self.told) {
            (0, _) => Ok(()),
            (..0, _) => Err(Refusal::Duplicate),
            (_, Told::NotReady) => Err(Refusal::Drop),
            _ => Err(Refusal::Sequence),
        }
    }

    /// IBTA vol. 1, 9.7.4.1.3: first, middle and last of one kind follow each other.
    pub(super) fn check_sequence(&self, request: Request<'_>) -> Result<(), Refusal> {
        let starts = request.info.position.is_start();
        let fits = match (&self.message, request.info.kind) {
            (Message::None, _) => starts,
            (Message::Send { .. }, Kind::Send) | (Message::Write { .. }, Kind::Write) => !starts,
            _ => false,
        };
        if fits { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// IBTA vol. 1, 9.7.4.1.6: payload against MTU and position, and against the RETH.
    pub(super) fn check_length(&self, request: Request<'_>, mtu: u32) -> Result<(), Refusal> {
        let payload = request.payload_len();
        let fits_position = match (request.info.kind.has_payload(), request.info.position) {
            (false, _) => payload == 0,
            (true, Position::First | Position::Middle) => payload == mtu,
            (true, Position::Last) => (1..=mtu).contains(&payload),
            (true, Position::Only) => payload <= mtu,
        };
        let fits_message = match request.info.kind {
            Kind::Write => self.write_length_fits(request, payload, mtu),
            Kind::ReadRequest => request
                .packet
                .reth
                .is_some_and(|r| u64::from(r.dma_len) <= MAX_MESSAGE_BYTES),
            _ => true,
        };
        if fits_position && fits_message {
            Ok(())
        } else {
            Err(Refusal::INVALID)
        }
    }

    fn write_length_fits(&self, request: Request<'_>, payload: u32, mtu: u32) -> bool {
        match (request.info.position, request.packet.reth, &self.message) {
            (Position::Only, Some(reth), _) => reth.dma_len == payload,
            (Position::First, Some(reth), _) => {
                reth.dma_len > mtu && u64::from(reth.dma_len) <= MAX_MESSAGE_BYTES
            }
            (Position::Middle, _, Message::Write { len, offset, .. }) => len - offset > mtu,
            (Position::Last, _, Message::Write { len, offset, .. }) => len - offset == payload,
            _ => false,
        }
    }

    /// IBTA vol. 1, 9.7.4.1.4: a receive for what needs one, a place for READs and atomics.
    pub(super) fn take_resources<M: QpMemory + ?Sized>(
        &mut self,
        request: Request<'_>,
        config: &QpConfig,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        let position = request.info.position;
        match request.info.kind {
            Kind::Send if position.is_start() => {
                let recv = take_recv(mem)?;
                self.message = Message::Send {
                    capacity: sges_len_bytes(&recv.sges),
                    recv,
                    offset: 0,
                };
                Ok(())
            }
            Kind::Write if request.info.headers.contains(Headers::IMMDT) => {
                self.imm_recv = Some(take_recv(mem)?);
                Ok(())
            }
            Kind::ReadRequest | Kind::CompareSwap | Kind::FetchAdd
                if self.fetches_pending() >= usize::from(config.max_dest_rd_atomic) =>
            {
                Err(Refusal::INVALID)
            }
            _ => Ok(()),
        }
    }

    /// IBTA vol. 1, 9.7.5.2.6: a SEND longer than its receive.
    pub(super) fn check_capacity(&self, request: Request<'_>) -> Result<(), Refusal> {
        match &self.message {
            Message::Send { capacity, offset, .. }
                if offset + u64::from(request.payload_len()) > *capacity =>
            {
                Err(Refusal::Fatal(
                    NakCode::InvalidRequest,
                    CompletionStatus::LocalLength,
                ))
            }
            _ => Ok(()),
        }
    }
}

fn take_recv<M: QpMemory + ?Sized>(mem: &mut M) -> Result<super::RecvWork, Refusal> {
    match mem.take_recv() {
        Ok(Some(recv)) => Ok(recv),
        Ok(None) => Err(Refusal::NotReady),
        Err(fault) => {
            log::debug!("receive work can't be read: {fault}");
            Err(Refusal::Fatal(
                NakCode::RemoteOperation,
                CompletionStatus::LocalQpOperation,
            ))
        }
    }
}

/// IBTA vol. 1, 9.7.4.1.5: operations that the QP does not offer, and headers that an opcode needs.
pub(super) fn check_supported(request: Request<'_>, config: &QpConfig) -> Result<(), Refusal> {
    let starts = request.info.position.is_start();
    let offered = match request.info.kind {
        Kind::Send => true,
        Kind::Write => config.remote_write && request.packet.reth.is_some() == starts,
        Kind::ReadRequest => config.remote_read && request.packet.reth.is_some(),
        Kind::CompareSwap | Kind::FetchAdd => {
            config.remote_atomic
                && config.atomic_mode != AtomicMode::None
                && request.packet.atomic_eth.is_some()
        }
        _ => false,
    };
    if offered { Ok(()) } else { Err(Refusal::INVALID) }
}

/// IBTA vol. 1, 9.7.4.1.5 and 9.4.3: the memory key permits the whole operation. An empty one has no memory to
/// ask about.
pub(super) fn check_key<M: QpMemory + ?Sized>(request: Request<'_>, mem: &M) -> Result<(), Refusal> {
    let (rkey, va, len, access) = match (request.info.kind, request.packet.reth, request.packet.atomic_eth) {
        (Kind::Write, Some(reth), _) if request.info.position.is_start() => {
            (reth.rkey, reth.va, u64::from(reth.dma_len), RemoteAccess::Write)
        }
        (Kind::ReadRequest, Some(reth), _) => {
            (reth.rkey, reth.va, u64::from(reth.dma_len), RemoteAccess::Read)
        }
        (Kind::CompareSwap | Kind::FetchAdd, _, Some(atomic)) => {
            if !atomic.va.is_multiple_of(ATOMIC_BYTES) {
                return Err(Refusal::INVALID);
            }
            (atomic.rkey, atomic.va, ATOMIC_BYTES, RemoteAccess::Atomic)
        }
        _ => return Ok(()),
    };
    check_range(rkey, va, len, access, mem).map_err(Refusal::of_fault)
}

/// As [`QpMemory::check_remote`], for any length.
pub(super) fn check_range<M: QpMemory + ?Sized>(
    rkey: u32,
    va: u64,
    len: u64,
    access: RemoteAccess,
    mem: &M,
) -> Result<(), MemoryFault> {
    if len == 0 {
        return Ok(());
    }
    if va.checked_add(len - 1).is_none() {
        return Err(MemoryFault::Protection { key: rkey, va, len });
    }
    mem.check_remote(rkey, va, len, access)
}
