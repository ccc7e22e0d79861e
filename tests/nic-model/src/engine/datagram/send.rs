//! Sends of datagram queue pairs.

use ferroce_hw_regs::wqe::opcode;

use super::GSI_QPN;
use super::av::{self, AddressVector};
use crate::engine::DataPlane;
use crate::engine::send::{SendId, check_control, data};
use crate::engine::violation::Violation;
use crate::engine::wqe::{self, SEGMENT, Wqe};
use crate::objects::Qp;
use crate::objects::qp::Service;
use crate::payload::Payload;
use crate::rc::types::{
    CompletionStatus, MemoryFault, QpMemory, QpState, SendCompletion, SendData, SendKind,
};
use crate::wire::opcode as bth_opcode;
use crate::wire::packet::{Bth, Deth, Packet};
use crate::wire::{self, Icrc};

/// The partition that all ports are full members of; RoCE has no other.
const PKEY: u16 = 0xffff;

/// How a send failed.
enum Failure {
    /// The WQE breaks a rule: the QP can't go on.
    Wqe(Violation, &'static str),
    /// It could not be carried out: the send queue stops (IBTA vol. 1, 10.3.1, SQEr), receives go on.
    Send(CompletionStatus),
}

impl From<(Violation, &'static str)> for Failure {
    fn from((violation, what): (Violation, &'static str)) -> Failure {
        Failure::Wqe(violation, what)
    }
}

impl From<MemoryFault> for Failure {
    fn from(fault: MemoryFault) -> Failure {
        Failure::Send(match fault {
            MemoryFault::Protection { .. } => CompletionStatus::LocalProtection,
            MemoryFault::Host { .. } => CompletionStatus::LocalQpOperation,
        })
    }
}

/// A WQE, understood.
struct Datagram {
    av: AddressVector,
    data: SendData,
    immediate: Option<u32>,
    solicited: bool,
}

impl Datagram {
    fn parse(wqe: &Wqe) -> Result<Datagram, Failure> {
        let bad = |what| Failure::Wqe(Violation::BadWqe, what);
        let immediate = match wqe.opcode() {
            opcode::SEND => None,
            opcode::SEND_IMM => Some(wqe.be32(12)),
            _ => return Err(bad("its opcode is not one of a datagram queue pair")),
        };
        let rest = wqe.bytes().get(SEGMENT..).unwrap_or_default();
        let (vector, rest) = rest
            .split_first_chunk::<{ av::BYTES }>()
            .ok_or(bad("it is too short for its address vector"))?;
        Ok(Datagram {
            av: AddressVector::parse(vector)?,
            data: data(rest).map_err(bad)?,
            immediate,
            solicited: wqe.bytes()[11] & 2 != 0,
        })
    }
}

/// Bytes that a datagram of the QP may have: its MTU and its longest message.
fn longest(qp: &Qp) -> u64 {
    let mtu = 128u64 << qp.context.mtu().clamp(1, 5);
    mtu.min(1 << qp.context.log_msg_max())
}

impl DataPlane {
    /// Carries out the next send of a datagram QP; false when there is none.
    pub(in crate::engine) fn run_datagram(&mut self, qpn: u32) -> bool {
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return false;
        };
        let flush = matches!(qp.state, QpState::Err | QpState::Sqe);
        if qp.sq.stuck || qp.sq.lost || qp.sq.wqebbs == 0 {
            return false;
        }
        let Ok(pi) = self.host.read_be32(qp.dbr.wrapping_add(4)) else {
            self.violations
                .note(Violation::HostMemory, format_args!("record of QP {qpn:#x}"));
            return false;
        };
        let wqe = match wqe::take(&self.host, &qp.buffer, &mut qp.sq, pi as u16) {
            Ok(Some(wqe)) => wqe,
            Ok(None) => return false,
            Err(what) => {
                // Where the next WQE starts is not known: nothing can be flushed either.
                qp.sq.lost = true;
                let (index, done) = (qp.sq.ci, CompletionStatus::LocalQpOperation);
                self.violations
                    .note(Violation::BadWqe, format_args!("QP {qpn:#x}: {what}"));
                self.datagram_done(qpn, index, 0, done, 0, true);
                self.fail_qp(qpn);
                return true;
            }
        };
        self.counters.send_wqes += 1;
        let (index, opcode, signaled) = (wqe.index, wqe.opcode(), wqe.signaled());
        if flush {
            self.datagram_done(qpn, index, opcode, CompletionStatus::Flushed, 0, true);
            return true;
        }
        match self.send_datagram(qpn, &wqe) {
            Ok(bytes) => self.datagram_done(qpn, index, opcode, CompletionStatus::Success, bytes, signaled),
            Err(Failure::Send(status)) => {
                if let Some(qp) = self.objects.qps.get_mut(qpn) {
                    qp.state = QpState::Sqe;
                }
                self.datagram_done(qpn, index, opcode, status, 0, true);
            }
            Err(Failure::Wqe(violation, what)) => {
                let at = format_args!("send WQE {index:#x} of QP {qpn:#x}, opcode {opcode:#x}: {what}");
                self.violations.note(violation, at);
                let status = CompletionStatus::LocalQpOperation;
                self.datagram_done(qpn, index, opcode, status, 0, true);
                self.fail_qp(qpn);
            }
        }
        true
    }

    fn datagram_done(
        &mut self,
        qpn: u32,
        wqe_index: u16,
        opcode: u8,
        status: CompletionStatus,
        byte_len: u32,
        signaled: bool,
    ) {
        if !signaled {
            return;
        }
        let id = SendId {
            wqe_index,
            opcode,
            bad: 0,
        };
        let done = SendCompletion {
            id: id.pack(),
            status,
            kind: SendKind::Send,
            byte_len,
            signaled,
        };
        self.send_done(qpn, &done);
    }

    /// Sends what the WQE says; gives its length in bytes.
    fn send_datagram(&mut self, qpn: u32, wqe: &Wqe) -> Result<u32, Failure> {
        check_control(qpn, wqe.index, wqe.bytes())?;
        if wqe.opcode() == opcode::NOP {
            return Ok(0);
        }
        let datagram = Datagram::parse(wqe)?;
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return Ok(0);
        };
        let len = datagram.data.len_bytes();
        if len > longest(qp) {
            return Err(Failure::Send(CompletionStatus::LocalLength));
        }
        let psn = qp.datagram_psn;
        qp.datagram_psn = psn.add(1);
        qp.counts.transport.packets_sent += 1;
        let deth = Deth {
            qkey: datagram.av.qkey(qp.context.q_key()),
            src_qp: match (qp.service, qp.context.deth_sqpn()) {
                (Service::Gsi, _) => GSI_QPN,
                (_, 0) => qpn,
                (_, other) => other,
            },
        };
        let bth = Bth {
            opcode: match datagram.immediate {
                Some(_) => bth_opcode::UD_SEND_ONLY_IMM,
                None => bth_opcode::UD_SEND_ONLY,
            },
            solicited: datagram.solicited,
            mig_req: true,
            pkey: PKEY,
            dest_qp: datagram.av.qpn,
            psn,
            ..Bth::default()
        };
        let packet = Packet {
            bth,
            deth: Some(deth),
            immediate: datagram.immediate,
            // No longer than an MTU.
            payload: self.datagram_payload(qpn, datagram.data, len as u32)?,
            ..Packet::default()
        };
        self.emit_datagram(qpn, &datagram.av, packet)?;
        Ok(len as u32)
    }

    fn datagram_payload(&mut self, qpn: u32, data: SendData, len: u32) -> Result<Payload, Failure> {
        let sges = match data {
            SendData::Inline(payload) => return Ok(payload),
            SendData::Sges(_) if len == 0 => return Ok(Payload::empty()),
            SendData::Sges(sges) => sges,
        };
        let gathered = self.with_memory(qpn, |_, memory| memory.gather(&sges, 0, len));
        let payload = gathered.unwrap_or(Ok(Payload::empty()))?;
        if self.icrc == Icrc::On {
            return Ok(payload);
        }
        // The send is complete before the frame is looked at again, and the host may then change its memory.
        let lost = MemoryFault::Host { va: 0, len: 0 };
        Ok(Payload::from_vec(payload.to_vec().map_err(|_| lost)?))
    }

    fn emit_datagram(&mut self, qpn: u32, av: &AddressVector, packet: Packet) -> Result<(), Failure> {
        let port = self.port_of(qpn);
        let Some(gid) = self.line(port).gid(av.gid_index) else {
            log::debug!("QP {qpn:#x}: the GID table has nothing at {}", av.gid_index);
            return Err(Failure::Send(CompletionStatus::LocalQpOperation));
        };
        let encap = av.addresses(gid).encap();
        let frame = match wire::emit_owned(&encap, packet, self.icrc) {
            Ok(frame) => frame,
            Err(error) => {
                log::debug!("QP {qpn:#x} can't send: {error}");
                return Err(Failure::Send(CompletionStatus::LocalQpOperation));
            }
        };
        if !av.is_multicast() {
            self.queue_frame(port, self.is_own_mac(av.dmac), frame);
            return Ok(());
        }
        if self.is_joined(&encap.dst_gid()) {
            self.queue_frame(port, true, frame.clone());
        }
        self.queue_frame(port, false, frame);
        Ok(())
    }
}
