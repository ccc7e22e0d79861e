//! Each operation between two NICs.

use ferroce_hw_regs::wqe::opcode;

use super::*;

#[test]
fn a_write_with_immediate_moves_bytes_and_completes_at_both_ends() {
    let mut pair = Pair::new();
    let sent: Vec<u8> = (0..10_000u32).map(|i| ((i * 31) >> 2) as u8).collect();
    pair.a.fill(DATA + 3, &sent);
    pair.b.post_recv(&[]);
    let mut segments = remote(DATA + 77, pair.b.key);
    segments.extend(data(6_000, pair.a.key, DATA + 3));
    segments.extend(data(4_000, pair.a.key, DATA + 6_003));
    let index = pair.a.post(opcode::RDMA_WRITE_IMM, CQE, 0x0102_0304, &segments);
    pair.a.ring();
    pair.run();
    assert_eq!(pair.b.bytes(DATA + 77, 10_000), sent);
    assert_eq!(pair.b.bytes(DATA + 76, 1), [0]);
    let cqe = pair.a.poll().unwrap();
    assert_eq!(cqe[63] >> 4, 0);
    assert_eq!(be32(&cqe, 0x20), 0x77);
    assert_eq!(
        be32(&cqe, 0x38),
        u32::from(opcode::RDMA_WRITE_IMM) << 24 | pair.a.qpn
    );
    assert_eq!(be32(&cqe, 0x3c) >> 16, u32::from(index));
    let cqe = pair.b.poll().unwrap();
    assert_eq!(cqe[63] >> 4, 1);
    assert_eq!(cqe[0x24..0x28], [1, 2, 3, 4]);
    assert_eq!(be32(&cqe, 0x2c), 10_000);
    assert_eq!(be32(&cqe, 0x38), pair.b.qpn);
    assert!(pair.a.poll().is_none() && pair.b.poll().is_none());
    assert_eq!(pair.a.dp.violations.total() + pair.b.dp.violations.total(), 0);
}

#[test]
fn a_read_and_both_atomics_bring_values_back() {
    let mut pair = Pair::new();
    let there: Vec<u8> = (0..5_000u32).map(|i| (i * 7) as u8).collect();
    pair.b.fill(DATA, &there);
    let (ka, kb) = (pair.a.key, pair.b.key);
    let read = [remote(DATA, kb), data(5_000, ka, DATA + 100)].concat();
    pair.a.post(opcode::RDMA_READ, CQE, 0, &read);
    pair.b.fill(DATA + 8_192, &0x0102_0304_0506_0708u64.to_le_bytes());
    let add = [
        remote(DATA + 8_192, kb),
        5u64.to_be_bytes().to_vec(),
        vec![0; 8],
        data(8, ka, DATA + 9_000),
    ]
    .concat();
    pair.a.post(opcode::ATOMIC_FA, CQE, 0, &add);
    let swap = [9u64.to_be_bytes(), 0x0102_0304_0506_070du64.to_be_bytes()].concat();
    let swap = [remote(DATA + 8_192, kb), swap, data(8, ka, DATA + 9_008)].concat();
    pair.a.post(opcode::ATOMIC_CS, CQE, 0, &swap);
    pair.a.ring();
    pair.run();
    assert_eq!(pair.a.bytes(DATA + 100, 5_000), there);
    // Big-endian, as the real card's capability says (case T12).
    assert_eq!(
        pair.a.bytes(DATA + 9_000, 8),
        0x0102_0304_0506_0708u64.to_be_bytes()
    );
    assert_eq!(
        pair.a.bytes(DATA + 9_008, 8),
        0x0102_0304_0506_070du64.to_be_bytes()
    );
    assert_eq!(pair.b.bytes(DATA + 8_192, 8), 9u64.to_le_bytes());
    let lens: Vec<u32> = (0..3).map(|_| be32(&pair.a.poll().unwrap(), 0x2c)).collect();
    assert_eq!(lens, [5_000, 8, 8]);
}

#[test]
fn sends_scatter_over_the_list_and_wait_for_a_receive() {
    let mut pair = Pair::new();
    let (ka, kb) = (pair.a.key, pair.b.key);
    pair.a.fill(DATA, b"hello, world");
    pair.a.post(opcode::SEND, CQE, 0, &data(12, ka, DATA));
    pair.a.ring();
    pair.run();
    assert!(pair.a.poll().is_none());
    pair.b
        .post_recv(&[data(5, kb, DATA), data(100, kb, DATA + 50)].concat());
    // The RNR timer of code 1 is 10 µs.
    pair.pass(std::time::Duration::from_micros(100));
    assert!(pair.a.poll().is_some());
    let cqe = pair.b.poll().unwrap();
    assert_eq!((cqe[63] >> 4, be32(&cqe, 0x2c)), (2, 12));
    assert_eq!(pair.b.bytes(DATA, 5), b"hello");
    assert_eq!(pair.b.bytes(DATA + 50, 7), b", world");
}

#[test]
fn unsignaled_work_gives_no_cqe_and_inline_data_is_sent() {
    let mut pair = Pair::new();
    let mut inline = (0x8000_0000u32 | 20).to_be_bytes().to_vec();
    inline.extend_from_slice(b"twenty bytes of data");
    inline.resize(32, 0xff);
    let segments = [remote(DATA, pair.b.key), inline].concat();
    for flags in [0, 0, CQE] {
        pair.a.post(opcode::RDMA_WRITE, flags, 0, &segments);
    }
    pair.a.ring();
    pair.run();
    let cqe = pair.a.poll().unwrap();
    assert_eq!(be32(&cqe, 0x3c) >> 16, 2);
    assert!(pair.a.poll().is_none());
    assert_eq!(pair.b.bytes(DATA, 21), b"twenty bytes of data\0");
}

#[test]
fn q01_wqes_of_many_blocks_wrap_around_the_ring() {
    let mut pair = Pair::new();
    let (ka, kb) = (pair.a.key, pair.b.key);
    for round in 0..40u64 {
        let sges: Vec<u8> = (0..13)
            .flat_map(|i| data(10, ka, DATA + round * 1_000 + i * 10))
            .collect();
        let bytes: Vec<u8> = (0..130).map(|i| (round * 3 + i) as u8).collect();
        pair.a.fill(DATA + round * 1_000, &bytes);
        let segments = [remote(DATA + round * 200, kb), sges].concat();
        // 15 segments: 4 blocks, then 1, so that all places in the ring of 16 have their turn.
        pair.a.post(opcode::RDMA_WRITE, 0, 0, &segments);
        pair.a.post(opcode::NOP, CQE, 0, &[]);
        pair.a.ring();
        pair.run();
        assert!(pair.a.poll().is_some(), "round {round}");
        assert_eq!(pair.b.bytes(DATA + round * 200, 130), bytes);
    }
    assert_eq!(pair.a.dp.violations.total(), 0);
}

#[test]
fn a_qp_talks_to_one_of_the_same_nic() {
    let mut side = Side::new(1);
    side.connect(1, side.qpn);
    side.fill(DATA, b"to myself");
    let segments = [remote(DATA + 64, side.key), data(9, side.key, DATA)].concat();
    side.post(opcode::RDMA_WRITE, CQE, 0, &segments);
    side.ring();
    while side.dp.run(Nanos(1)) {}
    assert_eq!(side.bytes(DATA + 64, 9), b"to myself");
    assert!(side.poll().is_some());
    assert!(side.dp.take_frame().is_none());
}

#[test]
fn m04_wrong_keys_and_bounds_fail_at_the_right_end() {
    // Local: a protection error, and nothing on the wire. Remote: a NAK.
    let cases = [
        (DATA, 0x100, DATA, 8, 0x04u8),
        (DATA + DATA_BYTES - 4, 0, DATA, 8, 0x04),
        (DATA, 0, DATA + DATA_BYTES - 4, 8, 0x13),
        (DATA, 0, u64::MAX - 3, 8, 0x13),
    ];
    for (local, local_key_change, far, len, syndrome) in cases {
        let mut pair = Pair::new();
        let key = pair.a.key ^ local_key_change;
        let segments = [remote(far, pair.b.key), data(len, key, local)].concat();
        pair.a.post(opcode::RDMA_WRITE, CQE, 0, &segments);
        pair.a.ring();
        pair.run();
        let cqe = pair.a.poll().unwrap();
        assert_eq!((cqe[63] >> 4, cqe[0x37]), (0xd, syndrome), "{local:#x} {far:#x}");
    }
}
