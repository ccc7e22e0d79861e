//! The rules of IBTA vol. 1, 9.8.2, packet by packet, and whole messages over a bad link.

use proptest::prelude::*;

use super::*;
use crate::payload::Payload;
use crate::rc::testing::{FakeMemory, Region};
use crate::rc::types::{CompletionStatus, RecvCompletion, RecvKind, RecvWork, Remote, SendData, SendOp, Sge};
use crate::wire::opcode;

const MTU: u32 = 256;
const START: u32 = 0xff_fffe;
const KEY: u32 = 0x77;
const VA: u64 = 0x4000;
const MEMORY: usize = 0x4000;
/// Where the receiver's buffers are.
const INTO: u64 = VA + 0x2000;

fn config() -> QpConfig {
    QpConfig {
        path_mtu: MTU,
        dest_qpn: 0x1234,
        send_psn: Psn::from_low_bits(START),
        recv_psn: Psn::from_low_bits(START),
        remote_write: true,
        ..QpConfig::default()
    }
}

struct End {
    qp: UcQp,
    mem: FakeMemory,
}

fn end() -> End {
    let mut qp = UcQp::new(config());
    qp.to_rts(config());
    let mut mem = FakeMemory::default();
    mem.regions.insert(KEY, Region::new(VA, MEMORY));
    End { qp, mem }
}

fn sge(addr: u64, len: u32) -> Sge {
    Sge { addr, len, lkey: KEY }
}

impl End {
    fn send(&mut self, id: u64, op: SendOp, len: u32) {
        let data = if len == 0 {
            SendData::Sges(Vec::new())
        } else {
            SendData::Sges(vec![sge(VA, len)])
        };
        self.qp.post_send(SendWork {
            id,
            op,
            data,
            fence: false,
            signaled: true,
            solicited: true,
        });
    }

    fn packets(&mut self) -> Vec<Packet> {
        std::iter::from_fn(|| self.qp.poll_transmit(&mut self.mem))
            .take(1000)
            .collect()
    }

    fn take(&mut self, packets: impl IntoIterator<Item = Packet>) {
        for packet in packets {
            self.qp.handle_packet(&packet, &mut self.mem);
        }
    }

    fn post_recv(&mut self, id: u64, len: u32) {
        self.mem.post_recv(id, sge(INTO, len));
    }

    fn received(&mut self) -> Vec<RecvCompletion> {
        let events = std::iter::from_fn(|| self.qp.poll_event());
        events
            .filter_map(|event| match event {
                Event::Recv(done) => Some(done),
                _ => None,
            })
            .collect()
    }

    fn sent(&mut self) -> Vec<(u64, CompletionStatus)> {
        let events = std::iter::from_fn(|| self.qp.poll_event());
        events
            .filter_map(|event| match event {
                Event::Send(done) => Some((done.id, done.status)),
                _ => None,
            })
            .collect()
    }
}

/// A sender whose memory holds a pattern, and a receiver.
fn ends() -> (End, End) {
    let (mut a, b) = (end(), end());
    let pattern: Vec<u8> = (0..0x2000u32).map(|i| ((i * 13) >> 3) as u8).collect();
    a.mem.fill(KEY, VA, &pattern);
    (a, b)
}

fn write(offset: u64) -> SendOp {
    SendOp::Write {
        remote: Remote {
            va: INTO + offset,
            rkey: KEY,
        },
    }
}

#[test]
fn t07_messages_become_packets_of_the_mtu_and_are_complete_when_sent() {
    for (len, names) in [
        (0, vec![opcode::UC_SEND_ONLY_IMM]),
        (256, vec![opcode::UC_SEND_ONLY_IMM]),
        (257, vec![opcode::UC_SEND_FIRST, opcode::UC_SEND_LAST_IMM]),
        (
            700,
            vec![
                opcode::UC_SEND_FIRST,
                opcode::UC_SEND_MIDDLE,
                opcode::UC_SEND_LAST_IMM,
            ],
        ),
    ] {
        let (mut a, mut b) = ends();
        a.send(1, SendOp::SendImm { imm: 7 }, len);
        let packets = a.packets();
        assert_eq!(packets.iter().map(|p| p.bth.opcode).collect::<Vec<_>>(), names);
        assert!(packets.iter().all(|p| !p.bth.ack_req));
        assert_eq!(packets.last().map(|p| p.bth.solicited), Some(true));
        assert_eq!(a.sent(), [(1, CompletionStatus::Success)]);
        b.post_recv(9, 1024);
        b.take(packets);
        let done = b.received();
        assert_eq!((done[0].id, done[0].byte_len, done[0].imm), (9, len, Some(7)));
        assert_eq!(
            b.mem.bytes(KEY, INTO, u64::from(len)),
            a.mem.bytes(KEY, VA, u64::from(len))
        );
        assert!(b.packets().is_empty(), "nothing is acknowledged");
    }
}

#[test]
fn a_gap_drops_the_message_and_its_receive_serves_the_next() {
    let (mut a, mut b) = ends();
    a.send(1, SendOp::Send, 700);
    a.send(2, SendOp::Send, 300);
    let mut packets = a.packets();
    packets.remove(1);
    b.post_recv(9, 1024);
    b.take(packets);
    let done = b.received();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].id, done[0].byte_len), (9, 300));
    assert_eq!(b.qp.counters().out_of_sequence, 1);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_missing_first_or_last_packet_drops_its_message_only() {
    for lost in [0, 2] {
        let (mut a, mut b) = ends();
        for id in 0..3 {
            a.send(id, write(id * 0x400), 700);
        }
        let mut packets = a.packets();
        packets.remove(3 + lost);
        b.take(packets);
        let at = |end: &End, from: u64, len: u64| end.mem.bytes(KEY, from, len).to_vec();
        let want = at(&a, VA, 700);
        assert_eq!(at(&b, INTO, 700), want);
        assert_eq!(at(&b, INTO + 0x800, 700), want);
        assert_ne!(at(&b, INTO + 0x400, 700), want);
        assert_eq!(b.qp.state(), QpState::Rts);
    }
}

#[test]
fn without_a_receive_the_message_is_dropped_and_counted() {
    let (mut a, mut b) = ends();
    a.send(1, SendOp::Send, 700);
    a.send(2, SendOp::Send, 8);
    let packets = a.packets();
    b.take(packets[..3].to_vec());
    b.post_recv(9, 1024);
    b.take(packets[3..].to_vec());
    let done = b.received();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].byte_len, b.qp.out_of_buffer()), (8, 1));
}

#[test]
fn a_write_that_is_not_permitted_is_dropped_in_silence() {
    let cases: [fn(&mut End, &mut SendOp); 3] = [
        |b, _| {
            b.qp.modify(QpConfig {
                remote_write: false,
                ..config()
            })
        },
        |_, op| *op = write(0x1f00),
        |b, _| b.mem.regions.get_mut(&KEY).unwrap().remote_write = false,
    ];
    for change in cases {
        let (mut a, mut b) = ends();
        let mut op = write(0);
        change(&mut b, &mut op);
        a.send(1, op, 700);
        b.take(a.packets());
        assert_eq!(b.qp.state(), QpState::Rts);
        assert!(b.qp.poll_event().is_none() && b.packets().is_empty());
        assert_eq!(b.qp.counters().dropped, 3);
    }
}

#[test]
fn a_write_with_immediate_takes_its_receive_at_the_end() {
    let (mut a, mut b) = ends();
    let remote = Remote { va: INTO, rkey: KEY };
    a.send(1, SendOp::WriteImm { remote, imm: 5 }, 600);
    let packets = a.packets();
    b.take(packets[..2].to_vec());
    b.post_recv(9, 0);
    b.take(packets[2..].to_vec());
    let done = b.received();
    assert_eq!(
        (done[0].kind, done[0].byte_len, done[0].imm),
        (RecvKind::WriteImm, 600, Some(5))
    );
    assert_eq!(b.mem.bytes(KEY, INTO, 600), a.mem.bytes(KEY, VA, 600));
}

#[test]
fn a_message_longer_than_its_receive_breaks_the_qp() {
    let (mut a, mut b) = ends();
    a.send(1, SendOp::Send, 700);
    b.post_recv(9, 600);
    b.take(a.packets());
    assert_eq!(b.received()[0].status, CompletionStatus::LocalLength);
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn a_send_that_fails_stops_the_sends_and_not_the_receives() {
    let (mut a, mut b) = ends();
    a.send(1, SendOp::Send, 8);
    a.qp.post_send(SendWork {
        id: 2,
        op: SendOp::Send,
        data: SendData::Sges(vec![sge(0, 8)]),
        fence: false,
        signaled: false,
        solicited: false,
    });
    a.send(3, SendOp::Send, 8);
    assert_eq!(a.packets().len(), 1);
    a.send(4, SendOp::Send, 8);
    use CompletionStatus::{Flushed, LocalProtection, Success};
    assert_eq!(
        a.sent(),
        [(1, Success), (2, LocalProtection), (3, Flushed), (4, Flushed)]
    );
    assert_eq!(a.qp.state(), QpState::Sqe);
    a.post_recv(9, 64);
    b.send(1, SendOp::Send, 8);
    a.take(b.packets());
    assert_eq!(a.received().len(), 1);
    a.qp.sqe_to_rts();
    a.send(5, SendOp::Send, 8);
    assert_eq!(a.packets().len(), 1);
}

#[test]
fn reads_and_atomics_are_not_of_this_service() {
    let (mut a, _) = ends();
    let remote = Remote { va: INTO, rkey: KEY };
    a.send(1, SendOp::Read { remote }, 8);
    assert!(a.packets().is_empty());
    assert_eq!(a.sent(), [(1, CompletionStatus::LocalQpOperation)]);
}

#[test]
fn an_error_flushes_sends_and_the_receive_in_use() {
    let (mut a, mut b) = ends();
    a.send(1, SendOp::Send, 700);
    b.post_recv(9, 1024);
    let first = a.packets().remove(0);
    b.take([first]);
    b.send(3, SendOp::Send, 8);
    b.qp.to_error();
    let events: Vec<_> = std::iter::from_fn(|| b.qp.poll_event()).collect();
    assert!(matches!(events[0], Event::Send(done) if done.status == CompletionStatus::Flushed));
    assert!(matches!(events[1], Event::Recv(done) if done.id == 9));
}

#[test]
fn the_first_packet_in_rtr_is_told_once() {
    let (mut a, _) = ends();
    let mut b = UcQp::new(config());
    let mut mem = FakeMemory::default();
    mem.regions.insert(KEY, Region::new(VA, MEMORY));
    a.send(1, write(0), 600);
    for packet in a.packets() {
        b.handle_packet(&packet, &mut mem);
    }
    let established = Event::Async(AsyncEvent::CommunicationEstablished);
    assert_eq!(b.poll_event(), Some(established));
    assert_eq!(b.poll_event(), None);
}

proptest! {
    /// Whatever is lost, doubled or moved: what is received was sent, whole, and in order.
    #[test]
    fn messages_over_a_bad_link_are_whole_or_not_there(
        lens in proptest::collection::vec(1u32..900, 1..20),
        fates in proptest::collection::vec(0u8..10, 100),
    ) {
        let (mut a, mut b) = ends();
        for (id, len) in lens.iter().enumerate() {
            a.send(id as u64, SendOp::SendImm { imm: id as u32 }, *len);
            b.mem.receives.push_back(RecvWork { id: id as u64, sges: vec![sge(INTO, 1024)] });
        }
        let mut packets = Vec::new();
        for (packet, fate) in a.packets().into_iter().zip(fates.iter().cycle()) {
            match fate {
                0 => {}
                1 => packets.extend([packet.clone(), packet]),
                2 => packets.insert(packets.len().saturating_sub(1), packet),
                _ => packets.push(packet),
            }
        }
        b.take(packets);
        for done in b.received() {
            prop_assert_eq!(done.status, CompletionStatus::Success);
            let id = done.imm.unwrap() as usize;
            prop_assert_eq!(done.byte_len, lens[id]);
        }
        prop_assert_eq!(b.qp.state(), QpState::Rts);
    }

    #[test]
    fn any_packet_is_survived(opcode: u8, psn: u32, len in 0usize..600, dma_len: u32, va: u64, twice: bool) {
        let (_, mut b) = ends();
        b.post_recv(1, 300);
        let packet = Packet {
            bth: Bth { opcode: opcode & 0x3f, pkey: 0xffff, psn: Psn::from_low_bits(psn), ..Bth::default() },
            reth: (opcode & 0x40 != 0).then_some(crate::wire::packet::Reth { va, rkey: KEY, dma_len }),
            immediate: (opcode & 0x80 != 0).then_some(1),
            payload: Payload::from_vec(vec![1; len]),
            ..Packet::default()
        };
        b.take(std::iter::repeat_n(packet, 1 + usize::from(twice)));
    }
}
