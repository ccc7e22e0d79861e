//! The receiving half: what fits together is carried out, all else is dropped without a word.

use std::collections::VecDeque;

use super::Health;
use crate::psn::Psn;
use crate::rc::types::{
    CompletionStatus, Event, MAX_MESSAGE_BYTES, MemoryFault, QpConfig, QpCounters, QpMemory, RecvCompletion,
    RecvKind, RecvWork, RemoteAccess, sges_len_bytes,
};
use crate::wire::opcode::{Headers, Kind, OpcodeInfo, Position};
use crate::wire::packet::Packet;

/// The message of which packets have come, but not the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    /// None, or the rest of one that is dropped.
    None,
    Send {
        /// Bytes received.
        offset: u64,
    },
    Write {
        va: u64,
        rkey: u32,
        len: u32,
        /// Bytes received.
        offset: u32,
    },
}

/// Why a packet is not carried out.
enum Refusal {
    /// Its message is dropped.
    Drop,
    /// The receive in use can't take it.
    Receive(CompletionStatus),
    /// The receive queue can't be read.
    Queue,
}

/// What a packet is measured by, and where news goes.
pub(super) struct Receiver<'a> {
    pub config: &'a QpConfig,
    pub counters: &'a mut QpCounters,
    pub events: &'a mut VecDeque<Event>,
}

/// The receiving half of a QP.
#[derive(Debug)]
pub(super) struct Responder {
    pub(super) expected: Psn,
    pub(super) out_of_buffer: u32,
    message: Message,
    /// A receive that was taken and is not complete: of the message that is coming, or of one that was dropped.
    held: Option<RecvWork>,
}

impl Responder {
    pub(super) fn new(expected: Psn) -> Responder {
        Responder {
            expected,
            out_of_buffer: 0,
            message: Message::None,
            held: None,
        }
    }

    /// Takes a packet with its row of the opcode table.
    pub(super) fn handle<M: QpMemory + ?Sized>(
        &mut self,
        info: &OpcodeInfo,
        packet: &Packet,
        to: &mut Receiver<'_>,
        mem: &mut M,
    ) -> Health {
        // A gap ends the message that was coming (IBTA vol. 1, 9.8.2.2.3).
        if packet.bth.psn != self.expected {
            to.counters.out_of_sequence += 1;
            self.message = Message::None;
        }
        self.expected = packet.bth.psn.add(1);
        if info.position.is_start() {
            // One that had no end is given up.
            to.counters.dropped += u64::from(self.message != Message::None);
            self.message = Message::None;
        }
        match self.carry_out(info, packet, to, mem) {
            Ok(()) => Health::Good,
            Err(Refusal::Drop) => {
                to.counters.dropped += 1;
                self.message = Message::None;
                Health::Good
            }
            Err(Refusal::Receive(status)) => {
                log::debug!("receive failed: {status:?}");
                let kind = if info.kind == Kind::Write {
                    RecvKind::WriteImm
                } else {
                    RecvKind::Send
                };
                self.end_receive(kind, status, to.events);
                Health::Broken
            }
            Err(Refusal::Queue) => {
                let catastrophic = crate::rc::types::AsyncEvent::Catastrophic;
                to.events.push_back(Event::Async(catastrophic));
                Health::Broken
            }
        }
    }

    fn carry_out<M: QpMemory + ?Sized>(
        &mut self,
        info: &OpcodeInfo,
        packet: &Packet,
        to: &mut Receiver<'_>,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        // A payload longer than any packet is longer than any MTU.
        let len = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        let mtu = to.config.path_mtu;
        let fits = match info.position {
            Position::First | Position::Middle => len == mtu,
            Position::Last => (1..=mtu).contains(&len),
            Position::Only => len <= mtu,
        };
        if !fits {
            return Err(Refusal::Drop);
        }
        match info.kind {
            Kind::Send => self.send(info, packet, to, mem),
            Kind::Write => self.write(info, packet, to, mem),
            _ => Err(Refusal::Drop),
        }
    }

    fn send<M: QpMemory + ?Sized>(
        &mut self,
        info: &OpcodeInfo,
        packet: &Packet,
        to: &mut Receiver<'_>,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        let offset = match (self.message, info.position.is_start()) {
            (Message::Send { offset }, false) => offset,
            (Message::None, true) => 0,
            _ => return Err(Refusal::Drop),
        };
        self.need_receive(mem)?;
        let recv = self.held.as_ref().ok_or(Refusal::Drop)?;
        let received = offset + packet.payload.len() as u64;
        if received > sges_len_bytes(&recv.sges) {
            return Err(Refusal::Receive(CompletionStatus::LocalLength));
        }
        if !packet.payload.is_empty() {
            let scattered = mem.scatter(&recv.sges, offset, &packet.payload);
            scattered.map_err(|fault| Refusal::Receive(status_of(fault)))?;
        }
        self.message = Message::Send { offset: received };
        if info.position.is_end() {
            let kind = match packet.immediate {
                Some(_) => RecvKind::SendImm,
                None => RecvKind::Send,
            };
            // A message is at most as long as its receive's elements together; more than 32 bits say is not.
            let bytes = u32::try_from(received).unwrap_or(u32::MAX);
            self.complete(kind, bytes, packet, to);
        }
        Ok(())
    }

    fn write<M: QpMemory + ?Sized>(
        &mut self,
        info: &OpcodeInfo,
        packet: &Packet,
        to: &mut Receiver<'_>,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        let here = packet.payload.len() as u32;
        let (va, rkey, len, offset) = match (self.message, packet.reth) {
            (Message::None, Some(reth)) if info.position.is_start() => {
                let (va, len) = (reth.va, u64::from(reth.dma_len));
                let wraps = len != 0 && va.checked_add(len - 1).is_none();
                if !to.config.remote_write || len > MAX_MESSAGE_BYTES || wraps {
                    return Err(Refusal::Drop);
                }
                if len != 0 {
                    mem.check_remote(reth.rkey, va, len, RemoteAccess::Write)
                        .map_err(|_| Refusal::Drop)?;
                }
                (va, reth.rkey, reth.dma_len, 0)
            }
            (
                Message::Write {
                    va,
                    rkey,
                    len,
                    offset,
                },
                None,
            ) if !info.position.is_start() => (va, rkey, len, offset),
            _ => return Err(Refusal::Drop),
        };
        let left = len - offset;
        let fits = if info.position.is_end() {
            left == here
        } else {
            left > here
        };
        if !fits {
            return Err(Refusal::Drop);
        }
        let immediate = info.headers.contains(Headers::IMMDT);
        if immediate {
            self.need_receive(mem)?;
        }
        if here != 0 {
            mem.remote_write(rkey, va.wrapping_add(u64::from(offset)), &packet.payload)
                .map_err(|_| Refusal::Drop)?;
        }
        self.message = Message::Write {
            va,
            rkey,
            len,
            offset: offset + here,
        };
        if info.position.is_end() {
            self.message = Message::None;
            if immediate {
                self.complete(RecvKind::WriteImm, len, packet, to);
            }
        }
        Ok(())
    }

    /// Makes sure that a receive is held.
    fn need_receive<M: QpMemory + ?Sized>(&mut self, mem: &mut M) -> Result<(), Refusal> {
        if self.held.is_some() {
            return Ok(());
        }
        match mem.take_recv() {
            Ok(Some(recv)) => {
                self.held = Some(recv);
                Ok(())
            }
            Ok(None) => {
                self.out_of_buffer = self.out_of_buffer.wrapping_add(1);
                Err(Refusal::Drop)
            }
            Err(_) => Err(Refusal::Queue),
        }
    }

    fn complete(&mut self, kind: RecvKind, byte_len: u32, packet: &Packet, to: &mut Receiver<'_>) {
        self.message = Message::None;
        if let Some(recv) = self.held.take() {
            to.events.push_back(Event::Recv(RecvCompletion {
                id: recv.id,
                status: CompletionStatus::Success,
                kind,
                byte_len,
                imm: packet.immediate,
                invalidated_rkey: None,
                solicited: packet.bth.solicited,
            }));
        }
    }

    fn end_receive(&mut self, kind: RecvKind, status: CompletionStatus, events: &mut VecDeque<Event>) {
        self.message = Message::None;
        if let Some(recv) = self.held.take() {
            events.push_back(Event::Recv(RecvCompletion {
                id: recv.id,
                status,
                kind,
                byte_len: 0,
                imm: None,
                invalidated_rkey: None,
                solicited: false,
            }));
        }
    }

    /// The QP is in error: the receive that is held is flushed.
    pub(super) fn abort(&mut self, events: &mut VecDeque<Event>) {
        self.end_receive(RecvKind::Send, CompletionStatus::Flushed, events);
    }
}

fn status_of(fault: MemoryFault) -> CompletionStatus {
    match fault {
        MemoryFault::Protection { .. } => CompletionStatus::LocalProtection,
        MemoryFault::Host { .. } => CompletionStatus::LocalQpOperation,
    }
}
