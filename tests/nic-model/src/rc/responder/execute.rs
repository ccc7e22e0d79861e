//! Carrying out a request that passed all checks.

use super::super::Shared;
use super::super::aeth::NakCode;
use super::super::segment;
use super::super::types::{
    AtomicOp, CompletionStatus, Event, MemoryFault, QpMemory, RecvCompletion, RecvKind, RecvWork,
};
use super::reply::{Content, Reply};
use super::{Control, MSN_MASK, Message, Refusal, Request, Responder, SavedAtomic};
use crate::wire::opcode::Kind;
use crate::wire::packet::AtomicEth;

impl Responder {
    pub(super) fn execute<M: QpMemory + ?Sized>(
        &mut self,
        request: Request<'_>,
        shared: &mut Shared,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        match request.info.kind {
            Kind::Send => self.execute_send(request, shared, mem),
            Kind::Write => self.execute_write(request, shared, mem),
            Kind::ReadRequest => self.execute_read(request, shared),
            Kind::CompareSwap | Kind::FetchAdd => self.execute_atomic(request, shared, mem),
            _ => Err(Refusal::Drop),
        }
    }

    fn execute_send<M: QpMemory + ?Sized>(
        &mut self,
        request: Request<'_>,
        shared: &mut Shared,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        let Message::Send { recv, offset, .. } = &mut self.message else {
            return Err(Refusal::INVALID);
        };
        let payload = &request.packet.payload;
        if !payload.is_empty() {
            mem.scatter(&recv.sges, *offset, payload)
                .map_err(scatter_failed)?;
        }
        *offset += u64::from(request.payload_len());
        let received = u32::try_from(*offset).unwrap_or(u32::MAX);
        if request.info.position.is_end() {
            if let Some(rkey) = request.packet.invalidate_rkey {
                mem.invalidate(rkey).map_err(Refusal::of_fault)?;
            }
            if let Message::Send { recv, .. } = std::mem::replace(&mut self.message, Message::None) {
                let kind = match (request.packet.immediate, request.packet.invalidate_rkey) {
                    (Some(_), _) => RecvKind::SendImm,
                    (None, Some(_)) => RecvKind::SendInvalidate,
                    (None, None) => RecvKind::Send,
                };
                received_message(&recv, kind, received, request, shared);
            }
        }
        self.executed(request);
        Ok(())
    }

    fn execute_write<M: QpMemory + ?Sized>(
        &mut self,
        request: Request<'_>,
        shared: &mut Shared,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        if let Some(reth) = request.packet.reth {
            self.message = Message::Write {
                va: reth.va,
                rkey: reth.rkey,
                len: reth.dma_len,
                offset: 0,
            };
        }
        let Message::Write {
            va,
            rkey,
            len,
            offset,
        } = &mut self.message
        else {
            return Err(Refusal::INVALID);
        };
        let len = *len;
        if !request.packet.payload.is_empty() {
            let at = va.wrapping_add(u64::from(*offset));
            mem.remote_write(*rkey, at, &request.packet.payload)
                .map_err(Refusal::of_fault)?;
        }
        *offset += request.payload_len();
        if request.info.position.is_end() {
            self.message = Message::None;
            if let Some(recv) = self.imm_recv.take() {
                received_message(&recv, RecvKind::WriteImm, len, request, shared);
            }
        }
        self.executed(request);
        Ok(())
    }

    /// The data is read when its packets leave; here the READ takes its PSNs (IBTA vol. 1, 9.7.4.1.1).
    fn execute_read(&mut self, request: Request<'_>, shared: &Shared) -> Result<(), Refusal> {
        let reth = request.packet.reth.ok_or(Refusal::INVALID)?;
        let packets = segment::packets(reth.dma_len, shared.config.path_mtu);
        let first = request.psn();
        self.expected = first.add(packets);
        self.msn = (self.msn + 1) & MSN_MASK;
        self.push_reply(Reply {
            first,
            start: first,
            next: first,
            packets,
            msn: self.msn,
            replayed: false,
            content: Content::Read {
                rkey: reth.rkey,
                va: reth.va,
                len: reth.dma_len,
            },
        });
        Ok(())
    }

    fn execute_atomic<M: QpMemory + ?Sized>(
        &mut self,
        request: Request<'_>,
        shared: &Shared,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        let atomic = request.packet.atomic_eth.ok_or(Refusal::INVALID)?;
        let original = mem
            .remote_atomic(atomic.rkey, atomic.va, operation(request.info.kind, &atomic))
            .map_err(Refusal::of_fault)?;
        let psn = request.psn();
        self.expected = psn.add(1);
        self.msn = (self.msn + 1) & MSN_MASK;
        let saved = SavedAtomic {
            psn,
            original,
            msn: self.msn,
        };
        while self.atomics.len() >= usize::from(shared.config.max_dest_rd_atomic).max(1) {
            self.atomics.pop_front();
        }
        self.atomics.push_back(saved);
        self.push_reply(Reply::of_atomic(saved, false));
        Ok(())
    }

    /// Bookkeeping of a SEND or WRITE packet.
    fn executed(&mut self, request: Request<'_>) {
        self.last_acked = request.psn();
        self.expected = request.psn().add(1);
        if request.info.position.is_end() {
            self.msn = (self.msn + 1) & MSN_MASK;
        }
        self.control = match self.control {
            // What was dropped behind the gap that this packet closed still has to be asked for.
            Control::Sequence { dropped_to } if dropped_to.diff(self.expected) > 0 => self.control,
            Control::Ack | Control::Sequence { .. } => Control::Ack,
            Control::None | Control::NotReady | Control::Fatal { .. } if request.packet.bth.ack_req => {
                Control::Ack
            }
            Control::None | Control::NotReady | Control::Fatal { .. } => Control::None,
        };
    }
}

/// The atomic operation that the headers describe.
fn operation(kind: Kind, header: &AtomicEth) -> AtomicOp {
    match kind {
        Kind::CompareSwap => AtomicOp::CompareSwap {
            compare: header.compare,
            swap: header.swap_add,
        },
        _ => AtomicOp::FetchAdd { add: header.swap_add },
    }
}

fn scatter_failed(fault: MemoryFault) -> Refusal {
    let status = match fault {
        MemoryFault::Protection { .. } => CompletionStatus::LocalProtection,
        MemoryFault::Host { .. } => CompletionStatus::LocalQpOperation,
    };
    Refusal::Fatal(NakCode::RemoteOperation, status)
}

fn received_message(
    recv: &RecvWork,
    kind: RecvKind,
    byte_len: u32,
    request: Request<'_>,
    shared: &mut Shared,
) {
    shared.emit(Event::Recv(RecvCompletion {
        id: recv.id,
        status: CompletionStatus::Success,
        kind,
        byte_len,
        imm: request.packet.immediate,
        invalidated_rkey: request.packet.invalidate_rkey,
        solicited: request.packet.bth.solicited,
    }));
}
