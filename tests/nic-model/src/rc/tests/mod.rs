//! The rules of IBTA vol. 1, chapter 9, one QP at a time, packet by packet.

mod hostile;
mod requester;
mod responder;

use super::aeth::{NakCode, Syndrome};
use super::testing::{FakeMemory, Region, open_config};
use super::types::*;
use super::*;
use crate::payload::Payload;
use crate::wire::packet::{Aeth, AtomicEth, Reth};

const MTU: u32 = 256;
/// Where both directions start: the wrap is never far.
const START: u32 = 0xff_fffe;
const KEY: u32 = 0x77;
const VA: u64 = 0x4000;
const MEMORY: usize = 0x2000;

/// One QP, its memory, and the time.
struct Bench {
    qp: RcQp,
    mem: FakeMemory,
    now: Nanos,
}

fn config() -> QpConfig {
    QpConfig {
        dest_qpn: 0x1234,
        recv_psn: psn(0),
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        ..open_config(MTU, START)
    }
}

/// PSN of the `n`th packet of a direction.
fn psn(n: u32) -> Psn {
    Psn::from_low_bits(START).add(n)
}

fn bench() -> Bench {
    bench_with(config())
}

fn bench_with(config: QpConfig) -> Bench {
    let mut qp = RcQp::new(config.clone());
    qp.to_rts(config);
    let mut mem = FakeMemory::default();
    mem.regions.insert(KEY, Region::new(VA, MEMORY));
    Bench {
        qp,
        mem,
        now: Nanos::ZERO,
    }
}

impl Bench {
    fn deliver(&mut self, packet: Packet) {
        self.qp.handle_packet(self.now, &packet, &mut self.mem);
    }

    fn next(&mut self) -> Option<Packet> {
        self.qp.poll_transmit(self.now, &mut self.mem)
    }

    fn all(&mut self) -> Vec<Packet> {
        std::iter::from_fn(|| self.next()).take(1000).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.qp.poll_event()).collect()
    }

    /// Delivers a request and gives the one answer to it.
    fn answer(&mut self, packet: Packet) -> Option<(Psn, Syndrome)> {
        self.deliver(packet);
        let answers = self.all();
        assert!(answers.len() <= 1, "{answers:?}");
        answers.first().map(syndrome)
    }

    fn post(&mut self, id: u64, op: SendOp, len: u32) {
        self.qp.post_send(send(id, op, len));
    }

    /// Lets the next timer expire.
    fn expire(&mut self) {
        self.now = self.qp.poll_timeout().expect("a timer runs");
        self.qp.handle_timeout(self.now);
    }

    fn bytes(&self, offset: u64, len: u64) -> &[u8] {
        self.mem.bytes(KEY, VA + offset, len)
    }
}

fn send(id: u64, op: SendOp, len: u32) -> SendWork {
    SendWork {
        id,
        op,
        data: SendData::Sges(vec![sge(0, len)]),
        fence: false,
        signaled: true,
        solicited: false,
    }
}

fn sge(offset: u64, len: u32) -> Sge {
    Sge {
        addr: VA + offset,
        len,
        lkey: KEY,
    }
}

const REMOTE: Remote = Remote {
    va: 0x9000,
    rkey: 0x5,
};

/// A packet with `len` bytes of value `fill`.
fn packet(opcode: u8, n: u32, fill: u8, len: u32) -> Packet {
    Packet {
        bth: Bth {
            opcode,
            psn: psn(n),
            pkey: 0xffff,
            ack_req: true,
            ..Bth::default()
        },
        payload: Payload::from_vec(vec![fill; len as usize]),
        ..Packet::default()
    }
}

fn with_reth(mut packet: Packet, offset: u64, dma_len: u32) -> Packet {
    packet.reth = Some(Reth {
        va: VA + offset,
        rkey: KEY,
        dma_len,
    });
    packet
}

/// A WRITE of one packet.
fn write_only(n: u32, fill: u8, len: u32) -> Packet {
    with_reth(packet(opcode::RC_WRITE_ONLY, n, fill, len), 0, len)
}

fn read_request(n: u32, offset: u64, len: u32) -> Packet {
    with_reth(packet(opcode::RC_READ_REQUEST, n, 0, 0), offset, len)
}

fn fetch_add(n: u32, offset: u64, add: u64) -> Packet {
    let mut packet = packet(opcode::RC_FETCH_ADD, n, 0, 0);
    packet.atomic_eth = Some(AtomicEth {
        va: VA + offset,
        rkey: KEY,
        swap_add: add,
        compare: 0,
    });
    packet
}

/// An acknowledgement of our `n`th packet.
fn ack(n: u32, syndrome: Syndrome, msn: u32) -> Packet {
    let mut packet = packet(opcode::RC_ACKNOWLEDGE, n, 0, 0);
    packet.aeth = Some(Aeth {
        syndrome: syndrome.encode(),
        msn,
    });
    packet
}

const GOOD: Syndrome = Syndrome::Ack { credits: None };

fn syndrome(packet: &Packet) -> (Psn, Syndrome) {
    assert_eq!(packet.bth.opcode, opcode::RC_ACKNOWLEDGE);
    (
        packet.bth.psn,
        Syndrome::decode(packet.aeth.expect("an AETH").syndrome),
    )
}

fn nak(n: u32, code: NakCode) -> Option<(Psn, Syndrome)> {
    Some((psn(n), Syndrome::Nak(code)))
}

fn opcodes_and_psns(packets: &[Packet]) -> Vec<(u8, Psn)> {
    packets.iter().map(|p| (p.bth.opcode, p.bth.psn)).collect()
}

fn send_statuses(events: &[Event]) -> Vec<(u64, CompletionStatus)> {
    let pick = |e: &Event| match e {
        Event::Send(c) => Some((c.id, c.status)),
        _ => None,
    };
    events.iter().filter_map(pick).collect()
}

fn recv_statuses(events: &[Event]) -> Vec<(u64, CompletionStatus)> {
    let pick = |e: &Event| match e {
        Event::Recv(c) => Some((c.id, c.status)),
        _ => None,
    };
    events.iter().filter_map(pick).collect()
}
