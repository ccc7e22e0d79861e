//! UC queue pairs between two NICs.

use ferroce_hw_regs::wqe::opcode;

use super::shared::srq_of_uc;
use super::*;
use crate::rc::types::QpState;

const UC: u8 = 1;

impl Side {
    fn unreliable(last: u8) -> Side {
        let mut side = Side::new(last);
        side.dp.destroy_qp(side.qpn).unwrap();
        let mut qpc = side.qpc();
        qpc.set_st(UC);
        let buffer = pages(QP_BUFFER, (RQ + SQ) * 64);
        side.qpn = side.dp.create_qp(&qpc, Buffer::Pas(&buffer)).unwrap();
        side
    }
}

fn pair() -> Pair {
    let (mut a, mut b) = (Side::unreliable(1), Side::unreliable(2));
    a.connect(2, b.qpn);
    b.connect(1, a.qpn);
    Pair { a, b, now: Nanos(1) }
}

#[test]
fn t15_sends_and_writes_arrive_with_their_immediates() {
    let mut pair = pair();
    let sent: Vec<u8> = (0..10_000u32).map(|i| ((i * 31) >> 2) as u8).collect();
    pair.a.fill(DATA, &sent);
    let into = DATA + (1 << 20);
    pair.b.post_recv(&data(16_384, pair.b.key, into));
    pair.b.post_recv(&[]);
    pair.a.post(
        opcode::SEND_IMM,
        CQE,
        0x0102_0304,
        &data(10_000, pair.a.key, DATA),
    );
    let segments = [remote(into + 20_000, pair.b.key), data(9_000, pair.a.key, DATA)].concat();
    pair.a.post(opcode::RDMA_WRITE_IMM, CQE, 7, &segments);
    pair.a.ring();
    pair.run();
    for kind in [opcode::SEND_IMM, opcode::RDMA_WRITE_IMM] {
        let cqe = pair.a.poll().unwrap();
        assert_eq!((cqe[63] >> 4, be32(&cqe, 0x38) >> 24), (0, u32::from(kind)));
    }
    let cqe = pair.b.poll().unwrap();
    assert_eq!(
        (cqe[63] >> 4, be32(&cqe, 0x2c), be32(&cqe, 0x24)),
        (3, 10_000, 0x0102_0304)
    );
    let cqe = pair.b.poll().unwrap();
    assert_eq!((cqe[63] >> 4, be32(&cqe, 0x2c), be32(&cqe, 0x24)), (1, 9_000, 7));
    assert_eq!(pair.b.bytes(into, 10_000), sent);
    assert_eq!(pair.b.bytes(into + 20_000, 9_000), sent[..9_000]);
    assert_eq!(
        (pair.a.dp.violations.total(), pair.b.dp.violations.total()),
        (0, 0)
    );
}

#[test]
fn a_read_on_an_unreliable_connection_is_a_rule_broken() {
    let mut pair = pair();
    let segments = [remote(DATA, pair.b.key), data(8, pair.a.key, DATA)].concat();
    pair.a.post(opcode::RDMA_READ, CQE, 0, &segments);
    pair.a.ring();
    pair.run();
    let cqe = pair.a.poll().unwrap();
    assert_eq!((cqe[63] >> 4, cqe[0x37]), (0xd, 0x02));
    assert_eq!(pair.a.dp.violations.count(Violation::BadWqe), 1);
    let qp = pair.a.dp.objects.qps.get(pair.a.qpn).unwrap();
    assert_eq!(qp.state(), QpState::Sqe);
}

#[test]
fn a_peer_that_is_gone_is_not_noticed() {
    let mut side = Side::unreliable(1);
    side.connect(2, 0x1234);
    for _ in 0..10 {
        side.post(opcode::SEND, CQE, 0, &data(8, side.key, DATA));
    }
    side.ring();
    while side.dp.run(Nanos(1)) {}
    for _ in 0..10 {
        assert_eq!(side.poll().unwrap()[63] >> 4, 0);
    }
    assert_eq!(side.dp.next_timeout(), None);
}

#[test]
fn without_icrc_the_bytes_that_were_posted_leave_whatever_the_host_does_after() {
    let mut pair = pair();
    pair.a.dp.set_icrc(Icrc::Off);
    pair.b.dp.set_icrc(Icrc::Off);
    pair.a.fill(DATA, b"posted");
    pair.b.post_recv(&data(64, pair.b.key, DATA));
    pair.a.post(opcode::SEND, CQE, 0, &data(6, pair.a.key, DATA));
    pair.a.ring();
    while pair.a.dp.run(Nanos(1)) {}
    assert!(pair.a.poll().is_some());
    pair.a.fill(DATA, b"change");
    pair.run();
    assert_eq!(pair.b.bytes(DATA, 6), b"posted");
}

#[test]
fn an_srq_serves_an_unreliable_connection() {
    let mut a = Side::unreliable(1);
    let (mut b, srqn) = srq_of_uc(2);
    a.connect(2, b.qpn);
    b.connect(1, a.qpn);
    b.dp.arm_srq(srqn, 3).unwrap();
    let mut pair = Pair { a, b, now: Nanos(1) };
    for _ in 0..4 {
        pair.a.post(opcode::SEND, CQE, 0, &data(8, pair.a.key, DATA));
    }
    pair.a.ring();
    pair.run();
    let slots: Vec<u32> = std::iter::from_fn(|| pair.b.poll())
        .map(|cqe| be32(&cqe, 0x3c) >> 16)
        .collect();
    assert_eq!(slots, [0, 5, 2], "the fourth found none");
    assert_eq!((pair.b.eqe(0)[1], be32(&pair.b.eqe(0), 0x38)), (0x14, srqn));
}
