//! Making request packets at the cursor.

use super::super::segment::{self, Class};
use super::super::timer;
use super::super::types::{CompletionStatus, MemoryFault, QpConfig, QpMemory, QpState, SendData, SendOp};
use super::super::{Health, Shared};
use super::{Entry, Requester};
use crate::clock::Nanos;
use crate::payload::Payload;
use crate::psn;
use crate::wire::opcode::Position;
use crate::wire::packet::{AtomicEth, Packet, Reth};

/// PSNs that may be outstanding at once, so that old and new can be told apart (IBTA vol. 1, 9.7.2.1).
const MAX_SPAN: u64 = 1 << (psn::BITS - 1);

/// An acknowledgement is asked for this many times in a window.
const ACKS_PER_WINDOW: u64 = 4;

fn window_packets(config: &QpConfig) -> u64 {
    u64::from((config.window_bytes / config.path_mtu).max(1))
}

impl Requester {
    /// The next request packet that may go out now.
    pub(in super::super) fn poll_transmit<M: QpMemory + ?Sized>(
        &mut self,
        now: Nanos,
        shared: &mut Shared,
        mem: &M,
        health: &mut Health,
    ) -> Option<Packet> {
        if !matches!(shared.state, QpState::Rts | QpState::Sqd) || self.rnr_until.is_some() {
            return None;
        }
        let index = self.skip_local()?;
        if !self.may_send(index, shared) {
            return None;
        }
        match self.build(index, shared, mem) {
            Ok(packet) => {
                self.sent(index, now, shared);
                Some(packet)
            }
            Err(fault) => {
                log::debug!("send work can't be read: {fault}");
                if let Some(entry) = self.queue.get_mut(index) {
                    entry.failed = Some(local_status(fault));
                }
                *health = self.settle(shared);
                None
            }
        }
    }

    /// Moves the cursor over work without packets; gives the index in the queue of what it stands at.
    fn skip_local(&mut self) -> Option<usize> {
        loop {
            let index = usize::try_from(self.cursor.number - self.base).ok()?;
            let entry = self.queue.get(index)?;
            match entry.class {
                Class::Local => self.cursor.number += 1,
                Class::Outbound | Class::Fetch => return Some(index),
            }
        }
    }

    /// Whether the packet at the cursor may go out: work that failed, SQD, fences, windows, READ depth, and
    /// credits can hold it. A rate limit for congestion control would be one more.
    fn may_send(&self, index: usize, shared: &Shared) -> bool {
        let Some(entry) = self.queue.get(index) else {
            return false;
        };
        let config = &shared.config;
        let psn = self.cursor.psn;
        let starts = psn == entry.first;
        let held_by_drain = starts && shared.state == QpState::Sqd && psn >= self.max_sent;
        let held_by_fence = starts && entry.work.fence && self.fetches > 0;
        if entry.failed.is_some() || held_by_drain || held_by_fence {
            return false;
        }
        let room = match entry.class {
            Class::Local => true,
            Class::Outbound => {
                self.requests_in_flight() < window_packets(config) && psn - self.una < MAX_SPAN
            }
            Class::Fetch => {
                self.fetches < u32::from(config.max_rd_atomic) && entry.end() - self.una <= MAX_SPAN
            }
        };
        room && self.has_credit(entry)
    }

    /// Beyond the responder's credits one message may be tried, with its first packet only, and when all
    /// before it is acknowledged (IBTA vol. 1, 9.7.7.2.5).
    fn has_credit(&self, entry: &Entry) -> bool {
        match self.credit_limit {
            Some(limit) if entry.ssn > limit && segment::consumes_receive(&entry.work.op) => {
                let probe = self.cursor.psn == entry.first && self.una == entry.first;
                probe || self.una > entry.first
            }
            _ => true,
        }
    }

    fn build<M: QpMemory + ?Sized>(
        &self,
        index: usize,
        shared: &Shared,
        mem: &M,
    ) -> Result<Packet, MemoryFault> {
        let Some(entry) = self.queue.get(index) else {
            return Ok(Packet::default());
        };
        match entry.class {
            Class::Outbound => self.build_outbound(entry, shared, mem),
            Class::Local | Class::Fetch => Ok(self.build_fetch(entry, shared)),
        }
    }

    fn build_outbound<M: QpMemory + ?Sized>(
        &self,
        entry: &Entry,
        shared: &Shared,
        mem: &M,
    ) -> Result<Packet, MemoryFault> {
        let psn = self.cursor.psn;
        let (offset, len) = entry.part(psn, shared.config.path_mtu);
        let nth = psn - entry.first;
        let position = segment::position(u32::try_from(nth).unwrap_or(u32::MAX), entry.packets);
        let payload = read_local(&entry.work.data, offset, len, mem)?;
        let opcode = segment::request_opcode(entry.work.op.kind(), position).unwrap_or_default();
        let mut packet = Packet {
            bth: shared.bth(opcode, Requester::wire(psn), payload.len()),
            payload,
            ..Packet::default()
        };
        if let (SendOp::Write { remote } | SendOp::WriteImm { remote, .. }, true) =
            (entry.work.op, position.is_start())
        {
            packet.reth = Some(Reth {
                va: remote.va,
                rkey: remote.rkey,
                dma_len: entry.len,
            });
        }
        if position.is_end() {
            match entry.work.op {
                SendOp::SendImm { imm } | SendOp::WriteImm { imm, .. } => packet.immediate = Some(imm),
                SendOp::SendInvalidate { rkey } => packet.invalidate_rkey = Some(rkey),
                _ => {}
            }
            packet.bth.solicited = entry.work.solicited && segment::consumes_receive(&entry.work.op);
        }
        packet.bth.ack_req = self.wants_ack(entry, nth, position, shared);
        Ok(packet)
    }

    /// An acknowledgement is wanted at the end of each message, a few times in a window, and before anything
    /// that would make us wait for one.
    fn wants_ack(&self, entry: &Entry, nth: u64, position: Position, shared: &Shared) -> bool {
        let window = window_packets(&shared.config);
        let every = (window / ACKS_PER_WINDOW).max(1);
        let limited = self.credit_limit.is_some_and(|limit| entry.ssn > limit);
        position.is_end()
            || (nth + 1).is_multiple_of(every)
            || self.requests_in_flight() + 1 >= window
            || limited
    }

    /// A READ request may begin in the middle of its READ, when a part has come already.
    fn build_fetch(&self, entry: &Entry, shared: &Shared) -> Packet {
        let psn = self.cursor.psn;
        let opcode = segment::request_opcode(entry.work.op.kind(), Position::Only).unwrap_or_default();
        let mut packet = Packet {
            bth: shared.bth(opcode, Requester::wire(psn), 0),
            ..Packet::default()
        };
        packet.bth.ack_req = true;
        match entry.work.op {
            SendOp::Read { remote } => {
                let (offset, _) = entry.part(psn, shared.config.path_mtu);
                packet.reth = Some(Reth {
                    va: remote.va.wrapping_add(u64::from(offset)),
                    rkey: remote.rkey,
                    dma_len: entry.len - offset,
                });
            }
            SendOp::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                packet.atomic_eth = Some(AtomicEth {
                    va: remote.va,
                    rkey: remote.rkey,
                    swap_add: swap,
                    compare,
                });
            }
            SendOp::FetchAdd { remote, add } => {
                packet.atomic_eth = Some(AtomicEth {
                    va: remote.va,
                    rkey: remote.rkey,
                    swap_add: add,
                    compare: 0,
                });
            }
            _ => {}
        }
        packet
    }

    /// The packet at the cursor went out: moves it on and starts the timer.
    fn sent(&mut self, index: usize, now: Nanos, shared: &mut Shared) {
        let Some(entry) = self.queue.get(index) else {
            return;
        };
        if self.cursor.psn < self.max_sent {
            shared.counters.retransmitted += 1;
        }
        match entry.class {
            Class::Fetch => {
                self.cursor.psn = entry.end();
                self.fetches += 1;
            }
            Class::Local | Class::Outbound => self.cursor.psn += 1,
        }
        if self.cursor.psn == entry.end() {
            self.cursor.number += 1;
        }
        self.max_sent = self.max_sent.max(self.cursor.psn);
        if self.ack_deadline.is_none() {
            self.ack_deadline = timer::ack_timeout(shared.config.ack_timeout).map(|t| now + t);
        }
    }
}

/// Payload of one packet.
fn read_local<M: QpMemory + ?Sized>(
    data: &SendData,
    offset: u32,
    len: u32,
    mem: &M,
) -> Result<Payload, MemoryFault> {
    if len == 0 {
        return Ok(Payload::empty());
    }
    let payload = match data {
        SendData::Sges(sges) => mem.gather(sges, u64::from(offset), len)?,
        SendData::Inline(bytes) => {
            let from = offset as usize;
            bytes.slice(from..from + len as usize).unwrap_or_default()
        }
    };
    if payload.len() != len as usize {
        return Err(MemoryFault::Host {
            va: u64::from(offset),
            len: u64::from(len),
        });
    }
    Ok(payload)
}

/// How work ends whose local memory failed.
pub(super) fn local_status(fault: MemoryFault) -> CompletionStatus {
    match fault {
        MemoryFault::Protection { .. } => CompletionStatus::LocalProtection,
        MemoryFault::Host { .. } => CompletionStatus::LocalQpOperation,
    }
}
