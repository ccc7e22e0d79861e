//! The requester: turns send work into request packets, and responses into completions.
//!
//! ```text
//!   queue:   [ front ........ ][ ... ][ ... ][ last posted ]
//!   PSNs:      una ──▶ oldest not acknowledged
//!                        cursor ──▶ next to transmit (goes back to una to retransmit)
//!                                max_sent ──▶ never transmitted from here on
//! ```
//!
//! PSNs are kept as 64-bit numbers whose low 24 bits are on the wire, so that they compare as integers. The
//! span from `una` to `max_sent` is at most 2^23, which keeps what comes from the wire unambiguous.
//!
//! Everything is done at the front or at the cursor: an acknowledgement costs as much as it completes.

mod response;
mod retry;
mod transmit;

use std::collections::VecDeque;

use super::segment::{self, Class};
use super::types::{
    AsyncEvent, CompletionStatus, Event, MAX_MESSAGE_BYTES, QpConfig, QpState, SendCompletion, SendData,
    SendOp, SendWork,
};
use super::{Health, Shared};
use crate::clock::Nanos;
use crate::psn::{self, Psn};

/// Bytes that an atomic acts on.
const ATOMIC_BYTES: u32 = 8;

/// A posted send that is not complete.
#[derive(Debug)]
struct Entry {
    work: SendWork,
    class: Class,
    /// Its first PSN.
    first: u64,
    /// PSNs that it takes.
    packets: u32,
    /// Request packets before it: for READ and atomics one, whatever their PSNs.
    first_request: u64,
    /// Its number among the messages, as the responder counts them in MSN (IBTA vol. 1, 9.7.7.2).
    ssn: u64,
    /// Message length in bytes.
    len: u32,
    /// How it ends once it is in front, if it can't be done.
    failed: Option<CompletionStatus>,
}

impl Entry {
    /// The PSN after its last.
    fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// Requests before the packet `psn` of it.
    fn requests_before(&self, psn: u64) -> u64 {
        match self.class {
            Class::Outbound => self.first_request + psn.saturating_sub(self.first),
            Class::Local | Class::Fetch => self.first_request,
        }
    }

    /// Where the payload of packet `psn` begins in the message, and how long it is.
    fn part(&self, psn: u64, mtu: u32) -> (u32, u32) {
        let offset = u64::from(mtu) * psn.saturating_sub(self.first);
        let offset = u32::try_from(offset).map_or(self.len, |o| o.min(self.len));
        (offset, (self.len - offset).min(mtu))
    }
}

/// Position from which packets are transmitted next.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Running number of the entry.
    number: u64,
    psn: u64,
}

/// The sending half of a QP.
#[derive(Debug)]
pub(super) struct Requester {
    queue: VecDeque<Entry>,
    /// Running number of the front of `queue`.
    base: u64,
    /// PSN, request count and SSN of what is posted next.
    next_psn: u64,
    next_request: u64,
    next_ssn: u64,
    una: u64,
    cursor: Cursor,
    max_sent: u64,
    /// READs and atomics between `una` and `cursor`.
    fetches: u32,
    /// Highest SSN that the responder has a receive for; `None` while it gives no credits.
    credit_limit: Option<u64>,
    retries_left: u8,
    rnr_retries_left: u8,
    ack_deadline: Option<Nanos>,
    /// After an RNR NAK: nothing is sent before this time.
    rnr_until: Option<Nanos>,
    /// `una` when a gap last made us go back: the same gap does so once, the timer does the rest.
    went_back_at: Option<u64>,
    /// In SQD, and the event is still owed.
    drain_pending: bool,
}

impl Requester {
    pub(super) fn new(config: &QpConfig) -> Requester {
        // One lap above zero, so that no comparison near the start goes below it.
        let start = u64::from(config.send_psn.get()) + (1 << psn::BITS);
        Requester {
            queue: VecDeque::new(),
            base: 0,
            next_psn: start,
            next_request: 0,
            next_ssn: 1,
            una: start,
            cursor: Cursor {
                number: 0,
                psn: start,
            },
            max_sent: start,
            fetches: 0,
            credit_limit: None,
            retries_left: config.retry_count,
            rnr_retries_left: config.rnr_retry,
            ack_deadline: None,
            rnr_until: None,
            went_back_at: None,
            drain_pending: false,
        }
    }

    /// The PSN transmitted next, were nothing to be sent again.
    pub(super) fn next_psn(&self) -> Psn {
        Requester::wire(self.max_sent)
    }

    /// The last PSN acknowledged.
    pub(super) fn last_acked_psn(&self) -> Psn {
        Requester::wire(self.una - 1)
    }

    /// Sends that are not complete.
    pub(super) fn held(&self) -> usize {
        self.queue.len()
    }

    /// Takes new retry counts.
    pub(super) fn reset_retries(&mut self, config: &QpConfig) {
        self.retries_left = config.retry_count;
        self.rnr_retries_left = config.rnr_retry;
    }

    /// Puts `work` at the end of the queue.
    pub(super) fn post(&mut self, work: SendWork, shared: &mut Shared) -> Health {
        let class = segment::class(&work.op);
        let len = work.data.len_bytes();
        let failed = refusal(&work, class, len, &shared.config);
        // Refused work is never sent; `len` fits otherwise.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let packets = match class {
            _ if failed.is_some() => 0,
            Class::Local => 0,
            Class::Outbound | Class::Fetch => segment::packets(len, shared.config.path_mtu),
        };
        self.queue.push_back(Entry {
            work,
            class,
            first: self.next_psn,
            packets,
            first_request: self.next_request,
            ssn: self.next_ssn,
            len,
            failed,
        });
        self.next_psn += u64::from(packets);
        self.next_request += match class {
            Class::Local => 0,
            Class::Outbound => u64::from(packets),
            Class::Fetch => 1,
        };
        self.next_ssn += u64::from(class != Class::Local);
        self.settle(shared)
    }

    /// Ends what needs no more packets: work without any, and work that failed and is now in front.
    fn settle(&mut self, shared: &mut Shared) -> Health {
        while let Some(front) = self.queue.front() {
            match (front.failed, front.class) {
                (Some(status), _) => return self.fail(status, shared),
                (None, Class::Local) => self.complete_front(shared),
                (None, Class::Outbound | Class::Fetch) => break,
            }
        }
        if self.drain_pending && self.una == self.max_sent {
            self.drain_pending = false;
            shared.emit(Event::Async(AsyncEvent::SendQueueDrained));
        }
        Health::Good
    }

    /// Takes the front off with success.
    fn complete_front(&mut self, shared: &mut Shared) {
        let Some(entry) = self.queue.pop_front() else {
            return;
        };
        if entry.class == Class::Fetch && self.cursor.number > self.base {
            self.fetches = self.fetches.saturating_sub(1);
        }
        self.base += 1;
        if self.cursor.number < self.base {
            // It was answered while it waited to be sent again.
            self.cursor = Cursor {
                number: self.base,
                psn: self.una,
            };
        }
        if entry.work.signaled {
            shared.emit(completion(&entry, CompletionStatus::Success));
        }
    }

    /// Ends the front with `status`; the QP is broken, and the rest gets flushed.
    fn fail(&mut self, status: CompletionStatus, shared: &mut Shared) -> Health {
        if let Some(entry) = self.queue.pop_front() {
            self.base += 1;
            shared.emit(completion(&entry, status));
        }
        Health::Broken
    }

    /// Ends everything as flushed, in order.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        self.base += self.queue.len() as u64;
        for entry in self.queue.drain(..) {
            shared.emit(completion(&entry, CompletionStatus::Flushed));
        }
        self.una = self.next_psn;
        self.max_sent = self.next_psn;
        self.cursor = Cursor {
            number: self.base,
            psn: self.next_psn,
        };
        self.fetches = 0;
        self.ack_deadline = None;
        self.rnr_until = None;
        self.drain_pending = false;
    }

    /// The QP went to SQD.
    pub(super) fn start_drain(&mut self, shared: &mut Shared) {
        debug_assert_eq!(shared.state, QpState::Sqd);
        self.drain_pending = true;
        // Failed work in front would have been dealt with when it got there.
        let _ = self.settle(shared);
    }

    /// The PSN on the wire of `psn`.
    fn wire(psn: u64) -> Psn {
        Psn::from_low_bits((psn & u64::from(u32::MAX)) as u32)
    }

    /// Requests transmitted and not acknowledged, READs and atomics counting as one each.
    fn requests_in_flight(&self) -> u64 {
        let at = |number: u64, psn| {
            let index = usize::try_from(number - self.base).unwrap_or(usize::MAX);
            self.queue
                .get(index)
                .map_or(self.next_request, |e| e.requests_before(psn))
        };
        at(self.cursor.number, self.cursor.psn).saturating_sub(at(self.base, self.una))
    }
}

/// Why `work` can't be done at all.
fn refusal(work: &SendWork, class: Class, len: u64, config: &QpConfig) -> Option<CompletionStatus> {
    let inline = matches!(work.data, SendData::Inline(_));
    match (&work.op, class) {
        (_, Class::Local) => None,
        _ if len > MAX_MESSAGE_BYTES => Some(CompletionStatus::LocalLength),
        (_, Class::Fetch) if inline || config.max_rd_atomic == 0 => Some(CompletionStatus::LocalQpOperation),
        (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, _) if len != u64::from(ATOMIC_BYTES) => {
            Some(CompletionStatus::LocalLength)
        }
        _ => None,
    }
}

fn completion(entry: &Entry, status: CompletionStatus) -> Event {
    Event::Send(SendCompletion {
        id: entry.work.id,
        status,
        kind: entry.work.op.kind(),
        byte_len: entry.len,
        signaled: entry.work.signaled,
    })
}
