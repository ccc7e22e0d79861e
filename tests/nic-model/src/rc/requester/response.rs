//! What comes back: acknowledgements, READ responses, results of atomics.

use super::super::aeth::{NakCode, Syndrome};
use super::super::segment::Class;
use super::super::types::{CompletionStatus, MemoryFault, QpMemory, SendData, SendOp, Sge};
use super::super::{Health, Shared};
use super::Requester;
use super::transmit::local_status;
use crate::clock::Nanos;
use crate::psn;
use crate::wire::opcode::{Kind, OpcodeInfo};
use crate::wire::packet::{Aeth, Packet};

/// How far an acknowledgement got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// All the way.
    Whole,
    /// To a READ or atomic whose answer is missing: it was lost (IBTA vol. 1, 9.7.5.1.2: implied NAK).
    Gap,
}

impl Requester {
    /// Takes a response packet.
    pub(in super::super) fn handle_response<M: QpMemory + ?Sized>(
        &mut self,
        now: Nanos,
        info: &OpcodeInfo,
        packet: &Packet,
        shared: &mut Shared,
        mem: &mut M,
    ) -> Health {
        let distance = i64::from(packet.bth.psn.diff(Requester::wire(self.una)));
        let psn = self.una.wrapping_add_signed(distance);
        if distance < 0 || psn >= self.max_sent {
            // A duplicate of what was taken before, or an answer to nothing ("ghost").
            shared.counters.dropped += 1;
            self.take_unsolicited_credits(distance, packet.aeth);
            return Health::Good;
        }
        let health = match (info.kind, packet.aeth) {
            (Kind::Acknowledge, Some(aeth)) => self.acknowledge(now, psn, aeth, shared),
            (Kind::ReadResponse, _) => self.read_response(now, psn, info, packet, shared, mem),
            (Kind::AtomicAcknowledge, _) => self.atomic_response(now, psn, packet, shared, mem),
            _ => {
                shared.counters.dropped += 1;
                Health::Good
            }
        };
        match health {
            Health::Good => self.settle(shared),
            Health::Broken => Health::Broken,
        }
    }

    fn acknowledge(&mut self, now: Nanos, psn: u64, aeth: Aeth, shared: &mut Shared) -> Health {
        match Syndrome::decode(aeth.syndrome) {
            Syndrome::Ack { credits } => match self.advance(now, psn + 1, shared) {
                Reach::Whole => {
                    self.take_credits(aeth.msn, credits);
                    Health::Good
                }
                Reach::Gap => self.gap(shared),
            },
            Syndrome::Rnr { timer } => match self.advance(now, psn, shared) {
                Reach::Whole => self.receiver_not_ready(now, timer, shared),
                Reach::Gap => self.gap(shared),
            },
            Syndrome::Nak(code) => match self.advance(now, psn, shared) {
                Reach::Whole => self.refused(code, shared),
                Reach::Gap => self.gap(shared),
            },
            Syndrome::Reserved(_) => {
                shared.counters.dropped += 1;
                Health::Good
            }
        }
    }

    fn refused(&mut self, code: NakCode, shared: &mut Shared) -> Health {
        match code.status() {
            Some(status) => self.fail(status, shared),
            None => {
                shared.counters.sequence_naks_received += 1;
                self.go_back_once(shared)
            }
        }
    }

    fn gap(&mut self, shared: &mut Shared) -> Health {
        shared.counters.implied_naks += 1;
        self.go_back_once(shared)
    }

    /// Acknowledges what is before `end` (at most `max_sent`), up to the first missing answer.
    fn advance(&mut self, now: Nanos, end: u64, shared: &mut Shared) -> Reach {
        let before = self.una;
        let mut reach = Reach::Whole;
        while let Some(front) = self.queue.front() {
            match front.class {
                Class::Local => self.complete_front(shared),
                Class::Fetch if end > self.una => {
                    reach = Reach::Gap;
                    break;
                }
                // Refused work takes no PSNs and waits for its turn to fail.
                Class::Outbound if end >= front.end() && front.packets > 0 => {
                    self.una = front.end();
                    self.complete_front(shared);
                }
                Class::Outbound | Class::Fetch => break,
            }
        }
        if reach == Reach::Whole {
            self.step_to(end);
        }
        if self.una != before {
            self.progress(now, shared);
        }
        reach
    }

    /// Moves `una` on inside the front, and the cursor with it if it was behind.
    fn step_to(&mut self, psn: u64) {
        self.una = self.una.max(psn);
        if self.cursor.number == self.base {
            self.cursor.psn = self.cursor.psn.max(self.una);
        }
    }

    /// The answer `psn` of the front, a READ or atomic, is here; what is before it counts as acknowledged.
    /// `Err` when it is not its turn, with what follows from that.
    fn expect_fetch(&mut self, now: Nanos, psn: u64, shared: &mut Shared) -> Result<(), Health> {
        if self.advance(now, psn, shared) == Reach::Gap {
            return Err(self.gap(shared));
        }
        match self.queue.front() {
            Some(front) if front.class == Class::Fetch && self.una == psn => Ok(()),
            Some(_) => Err(self.fail(CompletionStatus::BadResponse, shared)),
            None => Err(Health::Good),
        }
    }

    fn read_response<M: QpMemory + ?Sized>(
        &mut self,
        now: Nanos,
        psn: u64,
        info: &OpcodeInfo,
        packet: &Packet,
        shared: &mut Shared,
        mem: &mut M,
    ) -> Health {
        if let Err(health) = self.expect_fetch(now, psn, shared) {
            return health;
        }
        let Some(front) = self.queue.front() else {
            return Health::Good;
        };
        let (offset, len) = front.part(psn, shared.config.path_mtu);
        let ends = psn + 1 == front.end();
        let fits = matches!(front.work.op, SendOp::Read { .. })
            && packet.payload.len() == len as usize
            && info.position.is_end() == ends;
        if !fits {
            return self.fail(CompletionStatus::BadResponse, shared);
        }
        self.store(now, shared, |sges| match packet.payload.is_empty() {
            true => Ok(()),
            false => mem.scatter(sges, u64::from(offset), &packet.payload),
        })
    }

    fn atomic_response<M: QpMemory + ?Sized>(
        &mut self,
        now: Nanos,
        psn: u64,
        packet: &Packet,
        shared: &mut Shared,
        mem: &mut M,
    ) -> Health {
        if let Err(health) = self.expect_fetch(now, psn, shared) {
            return health;
        }
        let is_atomic = self
            .queue
            .front()
            .is_some_and(|e| matches!(e.work.op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }));
        let Some(original) = packet.atomic_ack.filter(|_| is_atomic) else {
            return self.fail(CompletionStatus::BadResponse, shared);
        };
        self.store(now, shared, |sges| mem.scatter_atomic(sges, original))
    }

    /// Has an answer written to the front's local memory and takes its PSN as acknowledged.
    fn store(
        &mut self,
        now: Nanos,
        shared: &mut Shared,
        write: impl FnOnce(&[Sge]) -> Result<(), MemoryFault>,
    ) -> Health {
        let Some(front) = self.queue.front() else {
            return Health::Good;
        };
        let end = front.end();
        let written = match &front.work.data {
            SendData::Sges(sges) => write(sges).map_err(local_status),
            SendData::Inline(_) => Err(CompletionStatus::LocalQpOperation),
        };
        if let Err(status) = written {
            return self.fail(status, shared);
        }
        self.step_to(self.una + 1);
        if self.una == end {
            self.complete_front(shared);
        }
        self.progress(now, shared);
        Health::Good
    }

    /// A responder may say with an ACK of the last PSN again that it has more receives.
    fn take_unsolicited_credits(&mut self, distance: i64, aeth: Option<Aeth>) {
        if let (-1, Some(aeth)) = (distance, aeth)
            && let Syndrome::Ack { credits } = Syndrome::decode(aeth.syndrome)
        {
            self.take_credits(aeth.msn, credits);
        }
    }

    /// Credits count from the responder's MSN (IBTA vol. 1, 9.7.7.2.5).
    fn take_credits(&mut self, msn: u32, credits: Option<u32>) {
        let Some(credits) = credits else {
            self.credit_limit = None;
            return;
        };
        let completed = self.queue.front().map_or(self.next_ssn, |e| e.ssn) - 1;
        let ahead = psn::Psn::from_low_bits(msn).diff(Requester::wire(completed));
        if ahead >= 0 {
            let limit = completed + u64::from(ahead.unsigned_abs()) + u64::from(credits);
            self.credit_limit = Some(limit);
        }
    }
}
