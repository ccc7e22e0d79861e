//! Receives from an SRQ.

use ferroce_firmware_iface::layouts::Srqc;
use ferroce_hw_regs::wqe::opcode;

use super::*;

const SRQ_RING: u64 = BASE + 0x4_0000;
const SRQ_DBR: u64 = BASE + 0x2_2000;

/// Side `last` with a UD QP on an SRQ that holds three receives of 48 bytes, in slots 0, 5 and 2.
pub(super) fn srq_of_ud(last: u8) -> (Side, u32) {
    filled_srq_of(last, 2)
}

/// The same with a UC QP.
pub(super) fn srq_of_uc(last: u8) -> (Side, u32) {
    filled_srq_of(last, 1)
}

fn filled_srq_of(last: u8, st: u8) -> (Side, u32) {
    let (mut side, srqn) = srq_of(last, st);
    for (slot, next) in [(0u64, 5u16), (5, 2), (2, 7)] {
        let mut wqe = vec![0; 16];
        wqe[2..4].copy_from_slice(&next.to_be_bytes());
        wqe.extend(data(48, side.key, DATA + slot * 64));
        side.fill(SRQ_RING + slot * 32, &wqe);
    }
    side.dp.host.write_be32(SRQ_DBR, 3).unwrap();
    (side, srqn)
}

/// Side `last` with an SRQ of 8 WQEs of 32 bytes under its RC QP.
fn with_srq(last: u8) -> (Side, u32) {
    srq_of(last, 0)
}

/// The same under a QP of service `st`.
fn srq_of(last: u8, st: u8) -> (Side, u32) {
    let mut side = Side::new(last);
    side.dp.destroy_qp(side.qpn).unwrap();
    let mut srqc = Srqc::zeroed();
    srqc.set_log_srq_size(3).unwrap();
    srqc.set_log_rq_stride(1).unwrap();
    srqc.set_pd(side.pd).unwrap();
    srqc.set_dbr_addr(SRQ_DBR);
    let srqn = side
        .dp
        .create_srq(&srqc, Buffer::Pas(&pages(SRQ_RING, 256)))
        .unwrap();
    let mut qpc = side.qpc();
    qpc.set_st(st);
    qpc.set_rq_type(1).unwrap();
    qpc.set_srqn_rmpn_xrqn(srqn).unwrap();
    let buffer = pages(QP_BUFFER + RQ * 64, SQ * 64);
    side.qpn = side.dp.create_qp(&qpc, Buffer::Pas(&buffer)).unwrap();
    (side, srqn)
}

/// Puts a receive for 8 bytes of `DATA + slot * 8` into a slot, followed by another.
fn link(side: &mut Side, slot: u64, next: u16) {
    let mut wqe = vec![0; 16];
    wqe[2..4].copy_from_slice(&next.to_be_bytes());
    wqe.extend(data(8, side.key, DATA + slot * 8));
    side.fill(SRQ_RING + slot * 32, &wqe);
}

#[test]
fn wqes_are_taken_along_the_list_and_the_limit_is_told_once() {
    let mut a = Side::new(1);
    let (mut b, srqn) = with_srq(2);
    a.connect(2, b.qpn);
    b.connect(1, a.qpn);
    for (slot, next) in [(0, 5), (5, 2), (2, 7)] {
        link(&mut b, slot, next);
    }
    b.dp.host.write_be32(SRQ_DBR, 3).unwrap();
    b.dp.arm_srq(srqn, 2).unwrap();
    assert!(b.dp.destroy_srq(srqn).is_err());
    let mut pair = Pair { a, b, now: Nanos(1) };
    for i in 0..3u8 {
        pair.a.fill(DATA, &[i + 1; 8]);
        pair.a.post(opcode::SEND, CQE, 0, &data(8, pair.a.key, DATA));
        pair.a.ring();
        pair.run();
    }
    let slots: Vec<u32> = (0..3)
        .map(|_| be32(&pair.b.poll().unwrap(), 0x3c) >> 16)
        .collect();
    assert_eq!(slots, [0, 5, 2]);
    for (slot, value) in [(0, 1), (5, 2), (2, 3)] {
        assert_eq!(pair.b.bytes(DATA + slot * 8, 8), [value; 8]);
    }
    let events: Vec<(u8, u32)> = (0..2)
        .map(|i| (pair.b.eqe(i)[1], be32(&pair.b.eqe(i), 0x38)))
        .collect();
    assert_eq!(events.iter().filter(|e| **e == (0x14, srqn)).count(), 1);
}

#[test]
fn the_limit_counts_what_was_posted_since() {
    let mut a = Side::new(1);
    let (mut b, srqn) = with_srq(2);
    a.connect(2, b.qpn);
    b.connect(1, a.qpn);
    // What is taken first is posted first again: the list is a circle of all eight.
    for slot in 0..8u16 {
        link(&mut b, slot.into(), (slot + 1) % 8);
    }
    b.dp.host.write_be32(SRQ_DBR, 8).unwrap();
    b.dp.arm_srq(srqn, 6).unwrap();
    let mut pair = Pair { a, b, now: Nanos(1) };
    let mut posted = 8;
    let take = |pair: &mut Pair| {
        let key = pair.a.key;
        pair.a.post(opcode::SEND, CQE, 0, &data(8, key, DATA));
        pair.a.ring();
        pair.run();
        assert!(pair.a.poll().is_some() && pair.b.poll().is_some());
    };
    let told = |pair: &Pair| (0..4).filter(|i| pair.b.eqe(*i)[1] == 0x14).count();
    for _ in 0..8 {
        take(&mut pair);
        posted += 1;
        pair.b.dp.host.write_be32(SRQ_DBR, posted).unwrap();
    }
    assert_eq!(told(&pair), 0, "never fewer than 7");
    for left in [7, 6] {
        take(&mut pair);
        assert_eq!(told(&pair), 0, "{left} left");
    }
    take(&mut pair);
    assert_eq!(told(&pair), 1, "5 left");
}

#[test]
fn the_last_wqe_is_told_after_the_receive_in_use_was_flushed() {
    let mut a = Side::new(1);
    let (mut b, _) = with_srq(2);
    a.connect(2, b.qpn);
    b.connect(1, a.qpn);
    let mut wqe = vec![0; 16];
    wqe.extend(data(8192, b.key, DATA));
    b.fill(SRQ_RING, &wqe);
    b.dp.host.write_be32(SRQ_DBR, 1).unwrap();
    a.post(opcode::SEND, CQE, 0, &data(8192, a.key, DATA));
    a.ring();
    while a.dp.run(Nanos(1)) {}
    let first = a.dp.take_frame().unwrap();
    b.dp.receive(Nanos(2), first);
    b.dp.modify_qp(QpTransition::To2Err, b.qpn, &Qpc::zeroed())
        .unwrap();
    assert_eq!(b.eqe(0)[63] & 1, 1, "not yet");
    while b.dp.run(Nanos(3)) {}
    let flushed = b.poll().unwrap();
    assert_eq!((flushed[63] >> 4, flushed[0x37]), (0xe, 0x05));
    assert_eq!((b.eqe(0)[1], be32(&b.eqe(0), 0x38)), (0x13, b.qpn));
}

#[test]
fn a_count_past_the_ring_breaks_the_srq_and_nothing_else() {
    let mut a = Side::new(1);
    let (mut b, srqn) = with_srq(2);
    a.connect(2, b.qpn);
    b.connect(1, a.qpn);
    b.dp.host.write_be32(SRQ_DBR, 9).unwrap();
    a.post(opcode::SEND, CQE, 0, &data(8, a.key, DATA));
    a.ring();
    let mut pair = Pair { a, b, now: Nanos(1) };
    pair.pass(std::time::Duration::from_millis(1));
    assert_eq!(pair.b.dp.violations.count(Violation::HostMemory), 1);
    let events: Vec<(u8, u32)> = (0..3)
        .map(|i| pair.b.eqe(i))
        .filter(|eqe| eqe[63] & 1 == 0)
        .map(|eqe| (eqe[1], be32(&eqe, 0x38)))
        .collect();
    assert_eq!(
        events.iter().filter(|e| **e == (0x12, srqn)).count(),
        1,
        "{events:?}"
    );
    let mut context = Srqc::zeroed();
    pair.b.dp.query_srq(srqn, &mut context).unwrap();
    assert_eq!(context.state(), 1);
}
