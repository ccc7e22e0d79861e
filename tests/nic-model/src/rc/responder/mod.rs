//! The responder: carries out request packets and answers them.
//!
//! A request passes a chain of checks in IBTA's order (vol. 1, 9.7.4: PSN, opcode sequence, opcode support,
//! length, resources, memory key) and is executed. The first check that fails decides: silence, a replay, a NAK.
//!
//! Answers leave in PSN order: READ responses and atomic results from a queue, then one acknowledgement or
//! NAK, which stands for all PSNs before it. Acknowledgements coalesce until they are polled.

mod checks;
mod duplicate;
mod execute;
mod reply;

use std::collections::VecDeque;

use super::aeth::NakCode;
use super::types::{AsyncEvent, CompletionStatus, Event, QpConfig, QpMemory, RecvKind, RecvWork};
use super::{Health, Shared};
use crate::psn::Psn;
use crate::wire::opcode::OpcodeInfo;
use crate::wire::packet::Packet;

use reply::Reply;

/// The 24 bits of an MSN.
const MSN_MASK: u32 = (1 << crate::psn::BITS) - 1;

/// A request packet with its row of the opcode table.
#[derive(Clone, Copy)]
struct Request<'a> {
    info: &'a OpcodeInfo,
    packet: &'a Packet,
}

impl Request<'_> {
    fn psn(&self) -> Psn {
        self.packet.bth.psn
    }

    fn payload_len(&self) -> u32 {
        // A payload longer than any packet is longer than any MTU.
        u32::try_from(self.packet.payload.len()).unwrap_or(u32::MAX)
    }
}

/// Why a request is not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// Nothing is to be done.
    Drop,
    /// It was executed before.
    Duplicate,
    /// Packets before it are missing.
    Sequence,
    /// No receive is posted.
    NotReady,
    /// It is wrong, and this breaks the QP: what the peer is told, and how the receive ends that is in use.
    Fatal(NakCode, CompletionStatus),
}

impl Refusal {
    const INVALID: Refusal = Refusal::Fatal(NakCode::InvalidRequest, CompletionStatus::RemoteInvalidRequest);
}

/// The message of which packets have come, but not the last.
#[derive(Debug)]
enum Message {
    None,
    Send {
        recv: RecvWork,
        /// Bytes that the receive has room for.
        capacity: u64,
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

/// What was said last about a packet that did not come in order, so that it is said once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Nothing,
    Sequence,
    NotReady,
}

/// An answer that is not data; acknowledges all before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Control {
    None,
    Ack,
    /// Packets up to before this PSN were dropped for the gap.
    Sequence {
        dropped_to: Psn,
    },
    NotReady,
    Fatal {
        psn: Psn,
        code: NakCode,
    },
}

/// The result of an atomic, kept in case it is asked for again.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedAtomic {
    psn: Psn,
    original: u64,
    msn: u32,
}

/// The receiving half of a QP.
#[derive(Debug)]
pub(super) struct Responder {
    expected: Psn,
    /// Messages completed, 24 bits.
    pub(super) msn: u32,
    message: Message,
    /// Receive taken for the WRITE with immediate that ends now.
    imm_recv: Option<RecvWork>,
    told: Told,
    control: Control,
    /// PSN of the last SEND or WRITE packet executed: what an ACK names. PSNs of READs are acknowledged by
    /// their responses alone.
    last_acked: Psn,
    /// Ordered by PSN.
    pub(super) replies: VecDeque<Reply>,
    pub(super) atomics: VecDeque<SavedAtomic>,
}

impl Responder {
    pub(super) fn new(config: &QpConfig) -> Responder {
        Responder {
            expected: config.recv_psn,
            msn: 0,
            message: Message::None,
            imm_recv: None,
            told: Told::Nothing,
            control: Control::None,
            last_acked: config.recv_psn.sub(1),
            replies: VecDeque::new(),
            atomics: VecDeque::new(),
        }
    }

    pub(super) fn expected_psn(&self) -> Psn {
        self.expected
    }

    pub(super) fn msn(&self) -> u32 {
        self.msn
    }

    /// Takes a request packet; `info` is `None` when its opcode is reserved.
    pub(super) fn handle_request<M: QpMemory + ?Sized>(
        &mut self,
        info: Option<&OpcodeInfo>,
        packet: &Packet,
        shared: &mut Shared,
        mem: &mut M,
    ) -> Health {
        let verdict = match info {
            Some(info) => {
                let request = Request { info, packet };
                match self.admit(request, shared, mem) {
                    Err(Refusal::Duplicate) => {
                        shared.counters.duplicates += 1;
                        self.replay(request, shared, mem);
                        return Health::Good;
                    }
                    verdict => verdict,
                }
            }
            None => match self.check_psn(packet.bth.psn) {
                Ok(()) => Err(Refusal::INVALID),
                Err(Refusal::Duplicate) => Err(Refusal::Drop),
                verdict => verdict,
            },
        };
        match verdict {
            Ok(()) => Health::Good,
            Err(refusal) => self.refuse(refusal, packet, shared),
        }
    }

    /// The chain of checks, and the deed.
    fn admit<M: QpMemory + ?Sized>(
        &mut self,
        request: Request<'_>,
        shared: &mut Shared,
        mem: &mut M,
    ) -> Result<(), Refusal> {
        self.check_psn(request.psn())?;
        self.told = Told::Nothing;
        self.check_sequence(request)?;
        checks::check_supported(request, &shared.config)?;
        self.check_length(request, shared.config.path_mtu)?;
        self.take_resources(request, &shared.config, mem)?;
        self.check_capacity(request)?;
        checks::check_key(request, mem)?;
        self.execute(request, shared, mem)
    }

    fn refuse(&mut self, refusal: Refusal, packet: &Packet, shared: &mut Shared) -> Health {
        match refusal {
            Refusal::Drop | Refusal::Duplicate => shared.counters.dropped += 1,
            Refusal::Sequence => {
                shared.counters.out_of_sequence += 1;
                self.note_gap(packet.bth.psn);
            }
            Refusal::NotReady => {
                shared.counters.rnr_naks_sent += 1;
                self.told = Told::NotReady;
                self.control = Control::NotReady;
            }
            Refusal::Fatal(code, status) => {
                log::debug!("request with opcode {:#04x} refused: {code:?}", packet.bth.opcode);
                self.control = Control::Fatal {
                    psn: self.expected,
                    code,
                };
                self.report(code, status, shared);
                return Health::Broken;
            }
        }
        Health::Good
    }

    /// One NAK for a gap, however many packets come behind it. After an RNR NAK the requester comes back by
    /// itself (IBTA vol. 1, 9.7.5.1.3 and 9.7.5.2.8).
    fn note_gap(&mut self, psn: Psn) {
        let after = psn.add(1);
        let dropped_to = match self.control {
            Control::Sequence { dropped_to } if dropped_to.diff(after) > 0 => dropped_to,
            _ => after,
        };
        // Either nothing was said yet, or what is to be said has not left yet.
        if self.told == Told::Nothing || matches!(self.control, Control::Sequence { .. }) {
            self.control = Control::Sequence { dropped_to };
            self.told = Told::Sequence;
        }
    }

    /// Tells the host of a fatal request: by the receive in use, or by an event when there is none.
    fn report(&mut self, code: NakCode, status: CompletionStatus, shared: &mut Shared) {
        if let Some((recv, kind)) = self.take_recv_in_use() {
            shared.emit_failed_recv(&recv, kind, status);
            return;
        }
        shared.emit(Event::Async(match code {
            NakCode::RemoteAccess => AsyncEvent::AccessError,
            NakCode::RemoteOperation => AsyncEvent::Catastrophic,
            NakCode::InvalidRequest | NakCode::Sequence => AsyncEvent::InvalidRequest,
        }));
    }

    fn take_recv_in_use(&mut self) -> Option<(RecvWork, RecvKind)> {
        if let Some(recv) = self.imm_recv.take() {
            return Some((recv, RecvKind::WriteImm));
        }
        match std::mem::replace(&mut self.message, Message::None) {
            Message::Send { recv, .. } => Some((recv, RecvKind::Send)),
            Message::None | Message::Write { .. } => None,
        }
    }

    /// The QP is in error: the receive in use is flushed.
    pub(super) fn abort(&mut self, shared: &mut Shared) {
        if let Some((recv, kind)) = self.take_recv_in_use() {
            shared.emit_failed_recv(&recv, kind, CompletionStatus::Flushed);
        }
    }

    /// Says nothing more.
    pub(super) fn forget_replies(&mut self) {
        self.replies.clear();
        self.control = Control::None;
    }
}
