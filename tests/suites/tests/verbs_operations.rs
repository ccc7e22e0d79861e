//! Each RC operation by the whole driver, over two NICs of the model.

use ferroce::verbs::{Payload, QpConfig, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, WcOpcode};
use ferroce_suites::pair::{Pair, pattern, signaled};

fn config() -> QpConfig {
    QpConfig {
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 200,
        ..QpConfig::default()
    }
}

#[test]
fn one_write() {
    let mut pair = Pair::new(&config());
    pair.a.fill(1);
    let sge = pair.a.mr.sge(100..5100).unwrap();
    let op = SendOp::Write {
        data: Payload::Gather(&[sge]),
        remote: pair.b.mr.remote(7),
        imm: None,
    };
    pair.a.qp.post_send(&signaled(42, op)).unwrap();
    pair.a.qp.ring_send();
    let wc = pair.a.success();
    assert_eq!(
        (wc.wr_id, wc.opcode, wc.byte_len, wc.imm),
        (42, WcOpcode::RdmaWrite, 0, None)
    );
    assert_eq!(pair.b.bytes(7, 5000), pattern(5100, 1)[100..]);
    assert_eq!(
        (pair.b.bytes(0, 7), pair.b.bytes(5007, 100)),
        (vec![0; 7], vec![0; 100]),
        "and nothing else"
    );
    pair.assert_clean();
}

#[test]
fn t15_write_with_immediate() {
    let mut pair = Pair::new(&config());
    pair.a.fill(2);
    pair.b
        .qp
        .post_recv_list(&[RecvWr { wr_id: 9, sges: &[] }])
        .unwrap();
    let sge = pair.a.mr.sge(0..3000).unwrap();
    let remote = pair.b.mr.remote(0);
    let op = SendOp::Write {
        data: Payload::Gather(&[sge]),
        remote,
        imm: Some(0x0102_0304),
    };
    pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
    let wc = pair.b.success();
    assert_eq!(
        (wc.wr_id, wc.opcode, wc.byte_len, wc.imm),
        (9, WcOpcode::RecvRdmaWithImm, 3000, Some(0x0102_0304))
    );
    assert_eq!(pair.b.bytes(0, 3000), pattern(3000, 2));
    assert_eq!(pair.a.success().opcode, WcOpcode::RdmaWrite);
    pair.assert_clean();
}

#[test]
fn m02_zero_length_write_with_immediate_needs_no_region() {
    let mut pair = Pair::new(&config());
    pair.b
        .qp
        .post_recv_list(&[RecvWr { wr_id: 9, sges: &[] }])
        .unwrap();
    let remote = RemoteAddr {
        addr: 0xdead_beef,
        rkey: 0x7777_7777,
    };
    let op = SendOp::Write {
        data: Payload::Gather(&[]),
        remote,
        imm: Some(5),
    };
    pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
    let wc = pair.b.success();
    assert_eq!((wc.byte_len, wc.imm), (0, Some(5)));
    assert_eq!(pair.a.success().wr_id, 1);
    pair.assert_clean();
}

#[test]
fn t15_send_with_and_without_immediate_into_several_elements() {
    let mut pair = Pair::new(&config());
    pair.a.fill(3);
    let parts = [
        pair.b.mr.sge(0..10).unwrap(),
        pair.b.mr.sge(1000..1000).unwrap(),
        pair.b.mr.sge(2000..2100).unwrap(),
        pair.b.mr.sge(4000..8000).unwrap(),
    ];
    let recvs = [
        RecvWr {
            wr_id: 20,
            sges: &parts,
        },
        RecvWr {
            wr_id: 21,
            sges: &parts[3..],
        },
    ];
    pair.b.qp.post_recv_list(&recvs).unwrap();
    let first = [
        pair.a.mr.sge(0..1).unwrap(),
        pair.a.mr.sge(1..2).unwrap(),
        pair.a.mr.sge(2..500).unwrap(),
    ];
    let second = [pair.a.mr.sge(600..700).unwrap()];
    let sends = [
        signaled(
            10,
            SendOp::Send {
                data: Payload::Gather(&first),
                imm: Some(0xaabb_ccdd),
            },
        ),
        signaled(
            11,
            SendOp::Send {
                data: Payload::Gather(&second),
                imm: None,
            },
        ),
    ];
    pair.a.qp.post_send_list(&sends).unwrap();
    let wc = pair.b.success();
    assert_eq!(
        (wc.wr_id, wc.opcode, wc.byte_len, wc.imm),
        (20, WcOpcode::Recv, 500, Some(0xaabb_ccdd))
    );
    let sent = pattern(700, 3);
    assert_eq!(pair.b.bytes(0, 10), sent[..10]);
    assert_eq!(pair.b.bytes(2000, 100), sent[10..110]);
    assert_eq!(pair.b.bytes(4000 + 100, 290), sent[210..500], "the rest of it");
    let wc = pair.b.success();
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm), (21, 100, None));
    assert_eq!(pair.b.bytes(4000, 100), sent[600..]);
    assert_eq!([pair.a.success().wr_id, pair.a.success().wr_id], [10, 11]);
    pair.assert_clean();
}

#[test]
fn t15_read_of_several_packets_into_several_elements() {
    let mut pair = Pair::new(&config());
    pair.b.fill(4);
    let into = [
        pair.a.mr.sge(0..3).unwrap(),
        pair.a.mr.sge(100..5000).unwrap(),
        pair.a.mr.sge(9000..9100).unwrap(),
    ];
    let op = SendOp::Read {
        into: &into,
        remote: pair.b.mr.remote(50),
    };
    pair.a.qp.post_send_list(&[signaled(3, op)]).unwrap();
    let wc = pair.a.success();
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (3, WcOpcode::RdmaRead, 5003));
    let sent = pattern(6000, 4);
    assert_eq!(pair.a.bytes(0, 3), sent[50..53]);
    assert_eq!(pair.a.bytes(100, 4900), sent[53..4953]);
    assert_eq!(pair.a.bytes(9000, 100), sent[4953..5053]);
    pair.assert_clean();
}

#[test]
fn t12_atomics_give_the_old_value_in_host_order() {
    let mut pair = Pair::new(&config());
    let value = 0x0102_0304_0506_0708u64;
    pair.b.mr.write_u64(64, value).unwrap();
    let into = pair.a.mr.sge(16..24).unwrap();
    let remote = pair.b.mr.remote(64);
    let mut run = |op, opcode, old: u64, new: u64| {
        pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
        let wc = pair.a.success();
        assert_eq!((wc.opcode, wc.byte_len), (opcode, 8));
        assert_eq!(pair.a.mr.atomic_result(16).unwrap(), old);
        assert_eq!(pair.b.mr.read_u64(64).unwrap(), new);
    };
    let swap = 0x1111_2222_3333_4444;
    run(
        SendOp::CompareSwap {
            into,
            remote,
            compare: 1,
            swap,
        },
        WcOpcode::CompareSwap,
        value,
        value,
    );
    run(
        SendOp::CompareSwap {
            into,
            remote,
            compare: value,
            swap,
        },
        WcOpcode::CompareSwap,
        value,
        swap,
    );
    run(
        SendOp::FetchAdd {
            into,
            remote,
            add: 0x10,
        },
        WcOpcode::FetchAdd,
        swap,
        swap + 0x10,
    );
    run(
        SendOp::FetchAdd {
            into,
            remote,
            add: u64::MAX,
        },
        WcOpcode::FetchAdd,
        swap + 0x10,
        swap + 0xf,
    );
    pair.assert_clean();
}

#[test]
fn inline_data_is_taken_when_posted() {
    let mut pair = Pair::new(&config());
    let lens = [0usize, 1, 12, 13, 64, 200];
    for len in lens {
        let into = [pair.b.mr.sge(0..1000).unwrap()];
        pair.b
            .qp
            .post_recv_list(&[RecvWr {
                wr_id: 1,
                sges: &into,
            }])
            .unwrap();
        let mut data = pattern(len, 5);
        pair.a
            .qp
            .post_send(&signaled(
                1,
                SendOp::Send {
                    data: Payload::Inline(&data),
                    imm: None,
                },
            ))
            .unwrap();
        data.fill(0);
        pair.a.qp.ring_send();
        assert_eq!(pair.b.success().byte_len as usize, len);
        assert_eq!(pair.b.bytes(0, len), pattern(len, 5));
        assert_eq!(pair.a.success().wr_id, 1);
    }
    let max = pair.a.qp.config().max_inline_data;
    assert!(max >= 200);
    pair.assert_clean();
}

#[test]
fn unsignaled_requests_complete_with_a_later_one() {
    let mut pair = Pair::new(&config());
    let mut done = 0;
    for round in 0..40u64 {
        for i in 0..10 {
            let flags = if i == 9 {
                SendFlags::SIGNALED
            } else {
                SendFlags::empty()
            };
            let op = SendOp::Write {
                data: Payload::Inline(&[i as u8]),
                remote: pair.b.mr.remote(i),
                imm: None,
            };
            pair.a
                .qp
                .post_send(&SendWr {
                    wr_id: round * 10 + i as u64,
                    op,
                    flags,
                })
                .unwrap();
        }
        pair.a.qp.ring_send();
        assert_eq!(pair.a.success().wr_id, round * 10 + 9);
        assert_eq!(pair.a.qp.outstanding().0, 0);
        done += 10;
    }
    assert_eq!(pair.b.bytes(0, 10), (0..10).collect::<Vec<u8>>());
    assert_eq!(done, 400);
    pair.assert_clean();
}

#[test]
fn messages_of_all_sizes_around_the_mtu() {
    let mut pair = Pair::new(&config());
    pair.a.fill(6);
    for (i, len) in [1023usize, 1024, 1025, 2047, 2048, 2049, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let sge = [pair.a.mr.sge(0..len).unwrap()];
        let op = SendOp::Write {
            data: Payload::Gather(&sge),
            remote: pair.b.mr.remote(0),
            imm: None,
        };
        pair.a.qp.post_send_list(&[signaled(i as u64, op)]).unwrap();
        assert_eq!(pair.a.success().wr_id, i as u64);
        assert_eq!(pair.b.bytes(0, len), pattern(len, 6), "{len}");
    }
    pair.assert_clean();
}
