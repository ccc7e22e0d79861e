//! What becomes of work when a QP is in error.

use std::time::Duration;

use ferroce_hw_regs::wqe::opcode;

use super::*;

#[test]
fn q19_all_receives_and_sends_are_flushed_in_order() {
    let mut pair = Pair::new();
    let key = pair.b.key;
    for i in 0..RQ {
        pair.b.post_recv(&data(8, key, DATA + i * 8));
    }
    pair.a.fill(DATA, b"whatever");
    for _ in 0..3 {
        pair.a.post(opcode::SEND, CQE, 0, &data(8, pair.a.key, DATA));
    }
    pair.a.ring();
    pair.run();
    for _ in 0..3 {
        assert_eq!(pair.b.poll().unwrap()[63] >> 4, 2);
    }
    let qpc = pair.b.qpc();
    pair.b
        .dp
        .modify_qp(QpTransition::To2Err, pair.b.qpn, &qpc)
        .unwrap();
    pair.b.post(
        opcode::RDMA_READ,
        0,
        0,
        &[remote(DATA, key), data(8, key, DATA)].concat(),
    );
    pair.b.post(opcode::SEND, CQE, 0, &data(8, key, DATA));
    pair.b.ring();
    pair.run();
    let mut receives = Vec::new();
    let mut sends = Vec::new();
    while let Some(cqe) = pair.b.poll() {
        assert_eq!(cqe[0x37], 5);
        let list = if cqe[63] >> 4 == 0xe {
            &mut receives
        } else {
            &mut sends
        };
        list.push(be32(&cqe, 0x3c) >> 16);
    }
    assert_eq!(receives, (3..RQ as u32).collect::<Vec<_>>());
    assert_eq!(sends, [0, 1]);
}

#[test]
fn q02_receives_posted_in_error_are_flushed_without_a_doorbell() {
    let mut side = Side::new(1);
    let qpc = side.qpc();
    side.dp.modify_qp(QpTransition::Rst2Init, side.qpn, &qpc).unwrap();
    side.post_recv(&data(8, side.key, DATA));
    side.dp.modify_qp(QpTransition::To2Err, side.qpn, &qpc).unwrap();
    let mut now = Nanos(1);
    while side.dp.run(now) {}
    assert_eq!(side.poll().unwrap()[0x37], 5);
    side.post_recv(&data(8, side.key, DATA));
    for _ in 0..3 {
        now = now.max(side.dp.next_timeout().unwrap());
        while side.dp.run(now) {}
    }
    assert!(now < Nanos::ZERO + Duration::from_millis(5));
    assert_eq!(side.poll().unwrap()[0x37], 5);
}

#[test]
fn a_peer_that_is_gone_ends_in_retries_exceeded_and_flushes() {
    let mut pair = Pair::new();
    let segments = [remote(DATA, pair.b.key), data(8, pair.a.key, DATA)].concat();
    for _ in 0..3 {
        pair.a.post(opcode::RDMA_WRITE, CQE, 0, &segments);
    }
    pair.b.dp.destroy_qp(pair.b.qpn).unwrap();
    pair.a.ring();
    pair.pass(Duration::from_secs(5));
    let syndromes: Vec<u8> = (0..3).map(|_| pair.a.poll().unwrap()[0x37]).collect();
    assert_eq!(syndromes, [0x15, 5, 5]);
    assert!(pair.b.dp.counters.dropped_qp >= 8);
}

#[test]
fn a_reset_qp_starts_at_the_ring_s_beginning() {
    let mut pair = Pair::new();
    let segments = [remote(DATA, pair.b.key), data(8, pair.a.key, DATA)].concat();
    pair.a.post(opcode::RDMA_WRITE, CQE, 0, &segments);
    pair.a.ring();
    pair.run();
    assert!(pair.a.poll().is_some());
    let (a, b) = (pair.a.qpn, pair.b.qpn);
    for (side, last, peer) in [(&mut pair.a, 2, b), (&mut pair.b, 1, a)] {
        let qpc = side.qpc();
        side.dp.modify_qp(QpTransition::To2Rst, side.qpn, &qpc).unwrap();
        side.sq_pi = 0;
        side.dp.host.write(QP_DBR, &[0; 8]).unwrap();
        side.connect(last, peer);
    }
    pair.a.post(opcode::RDMA_WRITE, CQE, 0, &segments);
    pair.a.ring();
    pair.run();
    assert_eq!(pair.a.poll().unwrap()[63] >> 4, 0);
}
