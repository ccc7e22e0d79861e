//! The sending half: messages become packets, and are complete when the last has left.

use std::collections::VecDeque;

use super::{Health, UcQp, bth, sent};
use crate::payload::Payload;
use crate::psn::Psn;
use crate::rc::segment;
use crate::rc::types::{
    CompletionStatus, Event, MAX_MESSAGE_BYTES, MemoryFault, QpConfig, QpMemory, SendCompletion, SendData,
    SendKind, SendOp, SendWork,
};
use crate::wire::opcode::Position;
use crate::wire::packet::{Packet, Reth};

/// The transport bits of an opcode: UC has the operations of RC under its own number (IBTA vol. 1, 9.2.1).
const UC: u8 = 0x20;

/// A send that was never done.
pub(super) fn flushed(id: u64, kind: SendKind) -> Event {
    Event::Send(SendCompletion {
        id,
        status: CompletionStatus::Flushed,
        kind,
        byte_len: 0,
        signaled: true,
    })
}

/// The sending half of a QP.
#[derive(Debug)]
pub(super) struct Requester {
    queue: VecDeque<SendWork>,
    /// Packets of the first message that have left.
    packets_sent: u32,
    psn: Psn,
}

impl Requester {
    pub(super) fn new(psn: Psn) -> Requester {
        Requester {
            queue: VecDeque::new(),
            packets_sent: 0,
            psn,
        }
    }

    pub(super) fn held(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn post(&mut self, work: SendWork) {
        self.queue.push_back(work);
    }

    pub(super) fn flush(&mut self, events: &mut VecDeque<Event>) {
        self.packets_sent = 0;
        events.extend(self.queue.drain(..).map(|work| flushed(work.id, work.op.kind())));
    }

    /// The next packet; `health` says when a send failed.
    pub(super) fn poll_transmit<M: QpMemory + ?Sized>(
        &mut self,
        config: &QpConfig,
        events: &mut VecDeque<Event>,
        mem: &M,
        health: &mut Health,
    ) -> Option<Packet> {
        loop {
            let work = self.queue.front()?;
            let kind = work.op.kind();
            if kind == SendKind::Nop {
                self.finish(0, CompletionStatus::Success, events);
                continue;
            }
            let len = match u32::try_from(work.data.len_bytes()) {
                _ if !UcQp::supports(kind) => {
                    *health = self.fail(CompletionStatus::LocalQpOperation, events);
                    return None;
                }
                Ok(len) if u64::from(len) <= MAX_MESSAGE_BYTES => len,
                _ => {
                    *health = self.fail(CompletionStatus::LocalLength, events);
                    return None;
                }
            };
            return match self.build(work, len, config, mem) {
                Ok((packet, position)) => {
                    self.psn = self.psn.add(1);
                    self.packets_sent += 1;
                    if position.is_end() {
                        self.finish(len, CompletionStatus::Success, events);
                    }
                    Some(packet)
                }
                Err(status) => {
                    *health = self.fail(status, events);
                    None
                }
            };
        }
    }

    /// The first message is done.
    fn finish(&mut self, len: u32, status: CompletionStatus, events: &mut VecDeque<Event>) {
        self.packets_sent = 0;
        if let Some(work) = self.queue.pop_front()
            && (work.signaled || status != CompletionStatus::Success)
        {
            events.push_back(sent(&work, len, status));
        }
    }

    fn fail(&mut self, status: CompletionStatus, events: &mut VecDeque<Event>) -> Health {
        self.finish(0, status, events);
        Health::SendsBroken
    }

    fn build<M: QpMemory + ?Sized>(
        &self,
        work: &SendWork,
        len: u32,
        config: &QpConfig,
        mem: &M,
    ) -> Result<(Packet, Position), CompletionStatus> {
        let mtu = config.path_mtu;
        let position = segment::position(self.packets_sent, segment::packets(len, mtu));
        // Below `len`: there is a packet that has not left.
        let offset = self.packets_sent.saturating_mul(mtu).min(len);
        let payload =
            gather(&work.data, offset, mtu.min(len - offset), mem).map_err(|fault| match fault {
                MemoryFault::Protection { .. } => CompletionStatus::LocalProtection,
                MemoryFault::Host { .. } => CompletionStatus::LocalQpOperation,
            })?;
        let opcode = segment::request_opcode(work.op.kind(), position);
        let opcode = opcode.ok_or(CompletionStatus::LocalQpOperation)? | UC;
        let mut bth = bth(config, opcode, self.psn);
        bth.solicited = work.solicited && position.is_end() && segment::consumes_receive(&work.op);
        let reth = match work.op {
            SendOp::Write { remote } | SendOp::WriteImm { remote, .. } if position.is_start() => Some(Reth {
                va: remote.va,
                rkey: remote.rkey,
                dma_len: len,
            }),
            _ => None,
        };
        let immediate = match work.op {
            SendOp::SendImm { imm } | SendOp::WriteImm { imm, .. } if position.is_end() => Some(imm),
            _ => None,
        };
        let packet = Packet {
            bth,
            reth,
            immediate,
            payload,
            ..Packet::default()
        };
        Ok((packet, position))
    }
}

fn gather<M: QpMemory + ?Sized>(
    data: &SendData,
    offset: u32,
    len: u32,
    mem: &M,
) -> Result<Payload, MemoryFault> {
    let lost = MemoryFault::Host {
        va: u64::from(offset),
        len: u64::from(len),
    };
    let payload = match data {
        _ if len == 0 => Payload::empty(),
        SendData::Sges(sges) => mem.gather(sges, u64::from(offset), len)?,
        SendData::Inline(bytes) => {
            let (from, to) = (offset as usize, (offset + len) as usize);
            bytes.slice(from..to).ok_or(lost)?
        }
    };
    if payload.len() == len as usize {
        Ok(payload)
    } else {
        Err(lost)
    }
}
