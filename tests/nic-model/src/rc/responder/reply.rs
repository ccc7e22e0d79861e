//! Answers on their way out.

use super::super::aeth::{NakCode, Syndrome};
use super::super::segment;
use super::super::types::QpMemory;
use super::super::{Health, Shared};
use super::{Control, Message, Refusal, Responder, SavedAtomic, Told};
use crate::payload::Payload;
use crate::psn::Psn;
use crate::wire::opcode;
use crate::wire::packet::{Aeth, Packet};

/// What an answer carries.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Content {
    Read { rkey: u32, va: u64, len: u32 },
    Atomic { original: u64 },
}

/// The answer to a READ or an atomic.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Reply {
    /// PSN of its first packet.
    pub first: Psn,
    /// PSN at which the current stream of packets began: later than `first` when a part was asked for again.
    pub start: Psn,
    /// PSN that leaves next.
    pub next: Psn,
    /// Its packets.
    pub packets: u32,
    /// MSN that it reports.
    pub msn: u32,
    /// Answers a duplicate.
    pub replayed: bool,
    pub content: Content,
}

impl Reply {
    pub(super) fn of_atomic(saved: SavedAtomic, replayed: bool) -> Reply {
        Reply {
            first: saved.psn,
            start: saved.psn,
            next: saved.psn,
            packets: 1,
            msn: saved.msn,
            replayed,
            content: Content::Atomic {
                original: saved.original,
            },
        }
    }

    /// Packets of it before `psn`.
    fn index(&self, psn: Psn) -> u32 {
        psn.sub(self.first.get()).get()
    }

    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.index(psn) < self.packets
    }
}

impl Responder {
    /// READs and atomics that the peer has outstanding with us.
    pub(super) fn fetches_pending(&self) -> usize {
        self.replies.iter().filter(|r| !r.replayed).count()
    }

    /// Queues the answer to a request just executed. It acknowledges all before it.
    pub(super) fn push_reply(&mut self, reply: Reply) {
        if matches!(self.control, Control::Ack | Control::NotReady) {
            self.control = Control::None;
        }
        self.replies.push_back(reply);
    }

    /// The next packet of an answer.
    pub(in super::super) fn poll_transmit<M: QpMemory + ?Sized>(
        &mut self,
        shared: &mut Shared,
        mem: &M,
        health: &mut Health,
    ) -> Option<Packet> {
        let Some(reply) = self.replies.front_mut() else {
            return self.take_control(shared, mem);
        };
        let mtu = shared.config.path_mtu;
        let psn = reply.next;
        let index = reply.index(psn);
        let last = index + 1 >= reply.packets;
        let packet = match reply.content {
            Content::Atomic { original } => Ok(atomic_packet(reply, original, shared)),
            Content::Read { rkey, va, len } => {
                let offset = u64::from(index) * u64::from(mtu);
                let part = u64::from(len).saturating_sub(offset).min(u64::from(mtu)) as u32;
                read_remote(rkey, va.wrapping_add(offset), part, mem)
                    .map(|payload| read_packet(reply, payload, shared))
            }
        };
        match packet {
            Ok(packet) => {
                reply.next = psn.add(1);
                if last {
                    self.replies.pop_front();
                }
                Some(packet)
            }
            Err(refusal) => {
                *health = Health::Broken;
                self.break_off(psn, refusal, shared, mem)
            }
        }
    }

    /// The memory of a READ went away while its responses were leaving (IBTA vol. 1, 9.7.5.2.4).
    fn break_off<M: QpMemory + ?Sized>(
        &mut self,
        psn: Psn,
        refusal: Refusal,
        shared: &mut Shared,
        mem: &M,
    ) -> Option<Packet> {
        self.replies.clear();
        if let Refusal::Fatal(code, status) = refusal {
            self.control = Control::Fatal { psn, code };
            if matches!(self.message, Message::Send { .. }) {
                // The receive in use has nothing to do with it and is flushed.
                self.abort(shared);
            }
            self.report(code, status, shared);
        }
        self.take_control(shared, mem)
    }

    /// The acknowledgement or NAK that is due.
    fn take_control<M: QpMemory + ?Sized>(&mut self, shared: &Shared, mem: &M) -> Option<Packet> {
        let (psn, syndrome) = match std::mem::replace(&mut self.control, Control::None) {
            Control::None => return None,
            Control::Ack => (self.last_acked, self.ack_syndrome(mem)),
            // The PSN asked for is the one expected now, wherever the gap began.
            Control::Sequence { dropped_to } if dropped_to.diff(self.expected) > 0 => {
                self.told = Told::Sequence;
                (self.expected, Syndrome::Nak(NakCode::Sequence))
            }
            Control::Sequence { .. } => (self.last_acked, self.ack_syndrome(mem)),
            Control::NotReady => (
                self.expected,
                Syndrome::Rnr {
                    timer: shared.config.min_rnr_nak,
                },
            ),
            Control::Fatal { psn, code } => (psn, Syndrome::Nak(code)),
        };
        Some(Packet {
            bth: shared.bth(opcode::RC_ACKNOWLEDGE, psn, 0),
            aeth: Some(Aeth {
                syndrome: syndrome.encode(),
                msn: self.msn,
            }),
            ..Packet::default()
        })
    }

    /// A receive that is in use counts, since its message does not count in the MSN yet.
    fn ack_syndrome<M: QpMemory + ?Sized>(&self, mem: &M) -> Syndrome {
        let in_use = u32::from(matches!(self.message, Message::Send { .. }));
        Syndrome::Ack {
            credits: mem.recv_credits().map(|n| n.saturating_add(in_use)),
        }
    }
}

fn read_remote<M: QpMemory + ?Sized>(rkey: u32, va: u64, len: u32, mem: &M) -> Result<Payload, Refusal> {
    if len == 0 {
        return Ok(Payload::empty());
    }
    match mem.remote_read(rkey, va, len) {
        Ok(payload) if payload.len() == len as usize => Ok(payload),
        Ok(_) => Err(Refusal::of_fault(super::super::types::MemoryFault::Host {
            va,
            len: u64::from(len),
        })),
        Err(fault) => Err(Refusal::of_fault(fault)),
    }
}

fn read_packet(reply: &Reply, payload: Payload, shared: &Shared) -> Packet {
    let end = reply.first.add(reply.packets);
    let count = end.sub(reply.start.get()).get();
    let position = segment::position(reply.next.sub(reply.start.get()).get(), count);
    let opcode = segment::read_response_opcode(position);
    let has_aeth = position.is_start() || position.is_end();
    Packet {
        bth: shared.bth(opcode, reply.next, payload.len()),
        aeth: has_aeth.then(|| response_aeth(reply)),
        payload,
        ..Packet::default()
    }
}

fn atomic_packet(reply: &Reply, original: u64, shared: &Shared) -> Packet {
    Packet {
        bth: shared.bth(opcode::RC_ATOMIC_ACKNOWLEDGE, reply.next, 0),
        aeth: Some(response_aeth(reply)),
        atomic_ack: Some(original),
        ..Packet::default()
    }
}

/// Responses carry no credits: their MSN may be older than the receives are.
fn response_aeth(reply: &Reply) -> Aeth {
    Aeth {
        syndrome: Syndrome::Ack { credits: None }.encode(),
        msn: reply.msn,
    }
}
