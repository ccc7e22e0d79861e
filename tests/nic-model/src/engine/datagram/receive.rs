//! Datagrams that arrive.

use ferroce_hw_regs::cqe::opcode as cqe_opcode;

use super::{GRH_BYTES, GSI_QPN};
use crate::engine::DataPlane;
use crate::engine::completion::{Completion, EthernetInfo};
use crate::engine::events::{Event, event_type};
use crate::objects::Qp;
use crate::objects::qp::Service;
use crate::payload::Payload;
use crate::rc::accepts_partition;
use crate::rc::types::{
    CompletionStatus, MemoryFault, QpMemory, QpState, RecvCompletion, RecvKind, RecvWork, sges_len_bytes,
};
use crate::wire::opcode::Transport;
use crate::wire::{L3, RoceFrame};

/// The partition of all ports.
const PKEY: u16 = 0xffff;
/// CQE, dword 0x18: the global header stands in the buffer.
const GRH_IN_BUFFER: u32 = 1 << 28;
/// CQE, dword 0x18: shift of the kind of L3 header.
const L3_SHIFT: u32 = 24;
/// CQE, `l4_l3_hdr_type`: the frame had a VLAN tag, which is in `vlan_info`.
const VLAN_TAG: u8 = 1;

/// What a CQE says of the L3 header.
fn l3_kind(l3: &L3) -> u32 {
    match l3 {
        L3::V1(_) => 0,
        L3::V2Ipv6(..) => 1,
        L3::V2Ipv4(..) => 2,
    }
}

/// How putting a datagram into a receive ended.
enum Delivery {
    Done(RecvWork),
    /// No receive is posted.
    NoReceive,
    /// The receive can't take it.
    Failed(RecvWork, CompletionStatus),
    /// The receive queue can't be read.
    Unreadable,
}

impl DataPlane {
    /// A datagram for QP `qpn` whose addresses were checked.
    pub(in crate::engine) fn receive_datagram(&mut self, qpn: u32, roce: &RoceFrame) {
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            self.counters.dropped_qp += 1;
            return;
        };
        let ready = matches!(
            qp.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        let Some(deth) = roce
            .packet
            .deth
            .filter(|_| ready && roce.info.transport == Transport::Ud)
        else {
            self.counters.dropped_qp += 1;
            return;
        };
        qp.counts.transport.packets_received += 1;
        if !accepts_partition(roce.packet.bth.pkey, PKEY) {
            self.counters.pkey_violations += 1;
            return;
        }
        // Silently dropped, and counted by the port (IBTA vol. 1, 10.2.5).
        if deth.qkey != qp.context.q_key() {
            self.counters.qkey_violations += 1;
            return;
        }
        let completion = describe(qp, roce, deth.src_qp);
        self.notice_congestion(qpn, roce, deth.src_qp);
        match self.deliver_datagram(qpn, roce) {
            Delivery::Done(work) => {
                let Some(cqn) = self.objects.qps.get(qpn).map(|qp| qp.cqn_rcv) else {
                    return;
                };
                let done = Completion {
                    wqe_counter: work.id as u16,
                    ..completion
                };
                self.complete(cqn, &done);
            }
            Delivery::NoReceive => {
                self.counters.dropped_no_receive += 1;
                if let Some(qp) = self.objects.qps.get_mut(qpn) {
                    qp.counts.out_of_buffer = qp.counts.out_of_buffer.wrapping_add(1);
                }
            }
            Delivery::Failed(work, status) => {
                let failed = RecvCompletion {
                    id: work.id,
                    status,
                    kind: RecvKind::Send,
                    byte_len: 0,
                    imm: None,
                    invalidated_rkey: None,
                    solicited: false,
                };
                self.recv_done(qpn, &failed);
                self.fail_qp(qpn);
            }
            Delivery::Unreadable => {
                self.fail_qp(qpn);
                self.raise(Event::Queue {
                    event_type: event_type::WQ_CATASTROPHIC,
                    number: qpn,
                });
            }
        }
    }

    /// Takes a receive and fills it: 40 bytes of global header, then the payload.
    fn deliver_datagram(&mut self, qpn: u32, roce: &RoceFrame) -> Delivery {
        let grh = Payload::from_vec(roce.grh_area().to_vec());
        let payload = &roce.packet.payload;
        let len = (GRH_BYTES + payload.len()) as u64;
        let delivered = self.with_memory(qpn, |_, memory| {
            let work = match memory.take_recv() {
                Ok(Some(work)) => work,
                Ok(None) => return Delivery::NoReceive,
                Err(_) => return Delivery::Unreadable,
            };
            if len > sges_len_bytes(&work.sges) {
                return Delivery::Failed(work, CompletionStatus::LocalLength);
            }
            let mut scattered = memory.scatter(&work.sges, 0, &grh);
            if scattered.is_ok() && !payload.is_empty() {
                scattered = memory.scatter(&work.sges, GRH_BYTES as u64, payload);
            }
            match scattered {
                Ok(()) => Delivery::Done(work),
                Err(MemoryFault::Protection { .. }) => {
                    Delivery::Failed(work, CompletionStatus::LocalProtection)
                }
                Err(_) => Delivery::Failed(work, CompletionStatus::LocalQpOperation),
            }
        });
        delivered.unwrap_or(Delivery::NoReceive)
    }

    /// The QP that a wire's QP number means: QP1 is the GSI's, and no other number is.
    pub(in crate::engine) fn qpn_of_wire(&self, wire: u32) -> Option<u32> {
        if wire == GSI_QPN {
            return self.objects.gsi;
        }
        Some(wire).filter(|qpn| self.objects.gsi != Some(*qpn))
    }
}

/// The CQE of a datagram, but for its receive.
fn describe(qp: &Qp, roce: &RoceFrame, src_qp: u32) -> Completion {
    let immediate = roce.packet.immediate;
    let vlan = roce.encap.vlan.map(|tag| EthernetInfo {
        l4_l3_hdr_type: VLAN_TAG,
        vlan_info: u16::from(tag.pcp) << 13 | u16::from(tag.dei) << 12 | tag.vid,
        ..EthernetInfo::default()
    });
    Completion {
        opcode: match immediate {
            Some(_) => cqe_opcode::RESP_SEND_IMM,
            None => cqe_opcode::RESP_SEND,
        },
        qpn: qp.qpn,
        user_index: qp.user_index,
        immediate: match (qp.service, immediate) {
            (Service::Gsi, _) => u32::from(roce.packet.bth.pkey),
            (_, immediate) => immediate.unwrap_or(0),
        },
        byte_cnt: (GRH_BYTES + roce.packet.payload.len()) as u32,
        solicited: roce.packet.bth.solicited,
        flags_rqpn: GRH_IN_BUFFER | l3_kind(&roce.encap.l3) << L3_SHIFT | src_qp,
        ethernet: vlan,
        ..Completion::default()
    }
}
