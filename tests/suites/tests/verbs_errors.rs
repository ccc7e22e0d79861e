//! What goes wrong with requests and queues, and how the program is told.

use std::time::{Duration, Instant};

use ferroce::verbs::{
    Access, BadWr, Cq, CqConfig, CreateError, LimitError, Lkey, Mr, Payload, PollError, PostError, Qp,
    QpConfig, QpState, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use ferroce_firmware_iface::layouts::CmdHcaCap;
use ferroce_nic_model::profile::CapType;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, Pair, REGION, empty_send, open, pattern, signaled};

#[test]
fn m04_local_elements_past_their_region_fail_here() {
    let mut pair = Pair::new(&QpConfig::default());
    pair.b.fill(1);
    let lkey = Lkey::new(pair.a.mr.lkey()).unwrap();
    let past = Sge::new(pair.a.mr.addr() + REGION as u64 - 4, 8, lkey);
    let op = SendOp::Write {
        data: Payload::Gather(&[past]),
        remote: pair.b.mr.remote(0),
        imm: None,
    };
    pair.a.qp.post_send_list(&[signaled(5, op)]).unwrap();
    let error = pair.a.failure();
    assert_eq!(
        (error.wr_id, error.status, error.is_receive),
        (5, WcStatus::LocalProtection, false)
    );
    assert!(!error.is_flush());
    assert_eq!(pair.b.bytes(0, REGION), pattern(REGION, 1), "nothing was written");
    // The queue pair is in error now, which the device says too.
    assert_eq!(pair.a.qp.query().unwrap().state, QpState::Err);
    pair.a.qp.post_send_list(&[signaled(6, empty_send())]).unwrap();
    assert!(pair.a.failure().is_flush());
}

#[test]
fn m04_remote_addresses_past_their_region_fail_there() {
    let end = REGION as u64;
    for (name, move_to) in [
        ("past the end", end - 4),
        ("before the start", 0u64.wrapping_sub(4)),
        ("around 2^64", u64::MAX - 3),
    ] {
        let mut pair = Pair::new(&QpConfig::default());
        pair.b.fill(2);
        let RemoteAddr { addr, rkey } = pair.b.mr.remote(0);
        let addr = if move_to == u64::MAX - 3 {
            move_to
        } else {
            addr.wrapping_add(move_to)
        };
        let sge = [pair.a.mr.sge(0..8).unwrap()];
        let op = SendOp::Write {
            data: Payload::Gather(&sge),
            remote: RemoteAddr { addr, rkey },
            imm: None,
        };
        pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
        assert_eq!(pair.a.failure().status, WcStatus::RemoteAccess, "{name}");
        assert_eq!(
            pair.b.bytes(0, REGION),
            pattern(REGION, 2),
            "{name}: nothing was written"
        );
    }
}

#[test]
fn remote_access_is_what_the_region_allows() {
    for (access, writes) in [
        (Access::LOCAL_WRITE | Access::REMOTE_READ, true),
        (Access::all() - Access::REMOTE_READ, false),
    ] {
        let mut pair = Pair::new(&QpConfig::default());
        let region = Mr::alloc(&pair.b.pd, 4096, access).unwrap();
        let sge = [pair.a.mr.sge(0..8).unwrap()];
        let remote = region.remote(0);
        let op = if writes {
            SendOp::Write {
                data: Payload::Gather(&sge),
                remote,
                imm: None,
            }
        } else {
            SendOp::Read { into: &sge, remote }
        };
        pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
        assert_eq!(pair.a.failure().status, WcStatus::RemoteAccess, "{access:?}");
    }
}

#[test]
fn a_key_of_another_domain_or_of_a_region_that_is_gone_does_not_work() {
    let mut pair = Pair::new(&QpConfig::default());
    let other = ferroce::verbs::Pd::alloc(&pair.b.context).unwrap();
    let region = Mr::alloc(&other, 4096, Access::all()).unwrap();
    let sge = [pair.a.mr.sge(0..8).unwrap()];
    let op = SendOp::Write {
        data: Payload::Gather(&sge),
        remote: region.remote(0),
        imm: None,
    };
    pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
    assert_eq!(pair.a.failure().status, WcStatus::RemoteAccess);

    let mut pair = Pair::new(&QpConfig::default());
    let region = Mr::alloc(&pair.b.pd, 4096, Access::all()).unwrap();
    let remote = region.remote(0);
    region.dereg().unwrap();
    let sge = [pair.a.mr.sge(0..8).unwrap()];
    let op = SendOp::Write {
        data: Payload::Gather(&sge),
        remote,
        imm: None,
    };
    pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
    assert_eq!(pair.a.failure().status, WcStatus::RemoteAccess);

    let mut pair = Pair::new(&QpConfig::default());
    let region = Mr::alloc(&pair.a.pd, 4096, Access::all()).unwrap();
    let sge = [region.sge(0..8).unwrap()];
    region.dereg().unwrap();
    let op = SendOp::Write {
        data: Payload::Gather(&sge),
        remote: pair.b.mr.remote(0),
        imm: None,
    };
    pair.a.qp.post_send_list(&[signaled(1, op)]).unwrap();
    assert_eq!(pair.a.failure().status, WcStatus::LocalProtection);
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    let mut pair = Pair::new(&QpConfig::default());
    let into = [pair.b.mr.sge(0..100).unwrap()];
    pair.b
        .qp
        .post_recv_list(&[RecvWr {
            wr_id: 3,
            sges: &into,
        }])
        .unwrap();
    let sge = [pair.a.mr.sge(0..101).unwrap()];
    pair.a
        .qp
        .post_send_list(&[signaled(
            1,
            SendOp::Send {
                data: Payload::Gather(&sge),
                imm: None,
            },
        )])
        .unwrap();
    let error = pair.b.failure();
    assert_eq!(
        (error.wr_id, error.status, error.is_receive),
        (3, WcStatus::LocalLength, true)
    );
    assert_eq!(pair.a.failure().status, WcStatus::RemoteInvalidRequest);
}

#[test]
fn q04_t19_a_chain_is_posted_up_to_the_first_bad_one() {
    let config = QpConfig {
        max_send_wr: 16,
        max_send_sge: 2,
        max_recv_sge: 2,
        ..QpConfig::default()
    };
    let mut pair = Pair::new(&config);
    let sge = pair.a.mr.sge(0..1).unwrap();
    for n in [0usize, 2, 3, 255] {
        let many = vec![sge; n];
        let remote = pair.b.mr.remote(0);
        for op in [
            SendOp::Write {
                data: Payload::Gather(&many),
                remote,
                imm: None,
            },
            SendOp::Read { into: &many, remote },
        ] {
            let good = SendOp::Write {
                data: Payload::Gather(&[sge]),
                remote,
                imm: None,
            };
            let chain = [
                signaled(1, good),
                signaled(2, good),
                signaled(3, op),
                signaled(4, good),
            ];
            let posted = pair.a.qp.post_send_list(&chain);
            if n > 2 {
                let error = PostError::TooManySges { asked: n, max: 2 };
                assert_eq!(posted, Err(BadWr { index: 2, error }));
                assert_eq!([pair.a.success().wr_id, pair.a.success().wr_id], [1, 2]);
            } else {
                assert_eq!(posted, Ok(()));
                let ids: Vec<u64> = (0..4).map(|_| pair.a.success().wr_id).collect();
                assert_eq!(ids, [1, 2, 3, 4]);
            }
        }
        let into = vec![pair.b.mr.sge(0..1).unwrap(); n];
        let chain = [
            RecvWr { wr_id: 1, sges: &[] },
            RecvWr {
                wr_id: 2,
                sges: &into,
            },
        ];
        let posted = pair.b.qp.post_recv_list(&chain);
        let expected = PostError::TooManySges { asked: n, max: 2 };
        assert_eq!(
            posted,
            if n > 2 {
                Err(BadWr {
                    index: 1,
                    error: expected,
                })
            } else {
                Ok(())
            }
        );
    }
    // 15 outstanding of 16, then two: one fits.
    let op = SendOp::Write {
        data: Payload::Gather(&[sge]),
        remote: pair.b.mr.remote(0),
        imm: None,
    };
    for i in 0..15 {
        pair.a.qp.post_send(&signaled(i, op)).unwrap();
    }
    let bad = pair
        .a
        .qp
        .post_send_list(&[signaled(15, op), signaled(16, op)])
        .unwrap_err();
    assert_eq!(
        bad,
        BadWr {
            index: 1,
            error: PostError::QueueFull {
                queue: "send",
                max_wr: 16
            }
        }
    );
    let ids: Vec<u64> = (0..16).map(|_| pair.a.success().wr_id).collect();
    assert_eq!(ids, (0..16).collect::<Vec<u64>>());
    pair.assert_clean();
}

#[test]
fn q02_queues_fill_to_the_last_place_again_and_again() {
    let config = QpConfig {
        max_send_wr: 5,
        max_recv_wr: 3,
        ..QpConfig::default()
    };
    let mut pair = Pair::new(&config);
    for lap in 0..25u64 {
        for i in 0..3 {
            pair.b
                .qp
                .post_recv(&RecvWr {
                    wr_id: lap * 3 + i,
                    sges: &[],
                })
                .unwrap();
        }
        let full = pair.b.qp.post_recv(&RecvWr { wr_id: 0, sges: &[] });
        assert_eq!(
            full,
            Err(PostError::QueueFull {
                queue: "receive",
                max_wr: 3
            })
        );
        pair.b.qp.ring_recv();
        for i in 0..5 {
            let op = match i {
                0..3 => empty_send(),
                _ => SendOp::Write {
                    data: Payload::Inline(&[1]),
                    remote: pair.b.mr.remote(0),
                    imm: None,
                },
            };
            pair.a.qp.post_send(&signaled(lap * 5 + i, op)).unwrap();
        }
        let full = pair.a.qp.post_send(&signaled(0, empty_send()));
        assert_eq!(
            full,
            Err(PostError::QueueFull {
                queue: "send",
                max_wr: 5
            })
        );
        pair.a.qp.ring_send();
        for i in 0..5 {
            assert_eq!(pair.a.success().wr_id, lap * 5 + i);
        }
        for i in 0..3 {
            assert_eq!(pair.b.success().wr_id, lap * 3 + i);
        }
    }
    // In ERR both are taken, and flushed.
    pair.a.qp.modify_to_err().unwrap();
    pair.a
        .qp
        .post_send_list(&[signaled(1, empty_send()), signaled(2, empty_send())])
        .unwrap();
    pair.a
        .qp
        .post_recv_list(&[RecvWr { wr_id: 3, sges: &[] }])
        .unwrap();
    let mut flushed: Vec<(u64, bool)> = (0..3)
        .map(|_| pair.a.failure())
        .map(|error| {
            assert!(error.is_flush());
            (error.wr_id, error.is_receive)
        })
        .collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [(1, false), (2, false), (3, true)]);
    pair.assert_clean();
}

#[test]
fn q19_every_receive_is_flushed_in_order() {
    for (used, wrapped) in [(3usize, false), (3, true), (0, false)] {
        let config = QpConfig {
            max_recv_wr: 128,
            ..QpConfig::default()
        };
        let mut pair = Pair::new(&config);
        if wrapped {
            for _ in 0..100 {
                pair.b
                    .qp
                    .post_recv_list(&[RecvWr { wr_id: 0, sges: &[] }])
                    .unwrap();
                pair.a.qp.post_send_list(&[signaled(0, empty_send())]).unwrap();
                let _ = (pair.b.success(), pair.a.success());
            }
        }
        let wrs: Vec<_> = (0..128).map(|wr_id| RecvWr { wr_id, sges: &[] }).collect();
        pair.b.qp.post_recv_list(&wrs).unwrap();
        for i in 0..used as u64 {
            pair.a.qp.post_send_list(&[signaled(i, empty_send())]).unwrap();
            assert_eq!(pair.a.success().wr_id, i);
            assert_eq!(pair.b.success().wr_id, i);
        }
        pair.b.qp.modify_to_err().unwrap();
        let flushed: Vec<u64> = (used..128)
            .map(|_| pair.b.failure())
            .map(|error| {
                assert!(error.is_flush() && error.is_receive);
                error.wr_id
            })
            .collect();
        assert_eq!(flushed, (used as u64..128).collect::<Vec<_>>());
        assert!(pair.b.poller.poll_one().unwrap().is_none());
        assert_eq!(pair.b.qp.outstanding(), (0, 0));
    }
}

#[test]
fn q19_receives_are_flushed_in_init_and_rtr_too() {
    let mut pair = Pair::unconnected(TestbedConfig::default(), &QpConfig::default());
    pair.b.qp.modify_to_init(&Default::default()).unwrap();
    let wrs: Vec<_> = (0..50).map(|wr_id| RecvWr { wr_id, sges: &[] }).collect();
    pair.b.qp.post_recv_list(&wrs).unwrap();
    pair.b.qp.modify_to_err().unwrap();
    let flushed: Vec<u64> = (0..50).map(|_| pair.b.failure().wr_id).collect();
    assert_eq!(flushed, (0..50).collect::<Vec<_>>());
}

#[test]
fn q20_q24_a_disconnect_is_told_by_type_and_in_full() {
    let mut pair = Pair::new(&QpConfig::default());
    // The cable is out, so that nothing completes before the error.
    pair.testbed.set_cable(false);
    let recvs: Vec<_> = (0..32).map(|wr_id| RecvWr { wr_id, sges: &[] }).collect();
    let sends: Vec<_> = (100..132).map(|wr_id| signaled(wr_id, empty_send())).collect();
    pair.a.qp.post_recv_list(&recvs).unwrap();
    pair.a.qp.post_send_list(&sends).unwrap();
    pair.a.qp.modify_to_err().unwrap();
    let errors: Vec<_> = (0..64).map(|_| pair.a.failure()).collect();
    assert!(errors.iter().all(|error| error.is_flush()));
    let (recvs, sends): (Vec<_>, Vec<_>) = errors.iter().partition(|error| error.is_receive);
    assert_eq!(
        recvs.iter().map(|e| e.wr_id).collect::<Vec<_>>(),
        (0..32).collect::<Vec<_>>()
    );
    assert_eq!(
        sends.iter().map(|e| e.wr_id).collect::<Vec<_>>(),
        (100..132).collect::<Vec<_>>()
    );
    assert_eq!(sends[5].qpn, pair.a.qp.qpn());
    assert_eq!(sends[5].wqe_index, 5);
}

#[test]
fn drain_waits_for_all_also_unsignaled_ones() {
    let mut pair = Pair::new(&QpConfig::default());
    let write = SendOp::Write {
        data: Payload::Inline(&[7]),
        remote: pair.b.mr.remote(0),
        imm: None,
    };
    for i in 0..10 {
        pair.a
            .qp
            .post_send(&SendWr {
                wr_id: i,
                op: write,
                flags: SendFlags::empty(),
            })
            .unwrap();
    }
    pair.a
        .qp
        .post_recv_list(&[RecvWr { wr_id: 9, sges: &[] }])
        .unwrap();
    pair.a.qp.ring_send();
    let mut shown = Vec::new();
    let poller = &mut pair.a.poller;
    pair.a
        .qp
        .drain(Instant::now() + PATIENCE, || {
            poller.poll(16, |wc| shown.push(wc.wr_id())).unwrap();
        })
        .unwrap();
    assert!(shown.contains(&9), "the receive was flushed: {shown:?}");
    assert_eq!(pair.a.qp.outstanding(), (0, 0));

    // With nobody polling it can't end well.
    let mut pair = Pair::new(&QpConfig::default());
    pair.a
        .qp
        .post_recv_list(&[RecvWr { wr_id: 9, sges: &[] }])
        .unwrap();
    let error = pair
        .a
        .qp
        .drain(Instant::now() + Duration::from_millis(20), || ())
        .unwrap_err();
    assert!(error.to_string().contains("1 receives"), "{error}");
}

fn limit(error: CreateError) -> LimitError {
    match error {
        CreateError::Limit(limit) => limit,
        other => panic!("{other}"),
    }
}

#[test]
fn q15_cq_sizes_are_checked_by_name() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let max = (1u32 << context.caps().general().log_max_cq_sz()) - 17;
    for asked in [0, max + 1] {
        let error = limit(Cq::create(&context, CqConfig::new(asked)).unwrap_err());
        assert_eq!(
            (error.attribute, error.asked, error.min, error.max),
            ("entries", u64::from(asked), 1, u64::from(max))
        );
    }
    for asked in [1, 2, 3, 1000, 4096] {
        let (cq, _poller) = Cq::create(&context, CqConfig::new(asked)).unwrap();
        assert!(cq.entries() >= asked);
    }
    let (cq, _poller) = Cq::create(&context, CqConfig::new(max)).unwrap();
    assert_eq!(cq.entries(), max);
    let vector = CqConfig {
        vector: 1000,
        ..CqConfig::new(1)
    };
    assert_eq!(
        limit(Cq::create(&context, vector).unwrap_err()).attribute,
        "vector"
    );
}

#[test]
fn q16_inline_sizes_are_granted_or_refused_by_name() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let pd = ferroce::verbs::Pd::alloc(&context).unwrap();
    let (cq, mut poller) = Cq::create(&context, CqConfig::new(64)).unwrap();
    let mut granted = 0;
    for max_inline_data in (0..=1024).step_by(13).chain([972, 973, 1024]) {
        let config = QpConfig {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_inline_data,
            ..QpConfig::default()
        };
        match Qp::create(&pd, &cq, &cq, &config) {
            Ok(qp) => {
                assert!(qp.config().max_inline_data >= max_inline_data && max_inline_data <= 972);
                granted += 1;
                qp.destroy().unwrap();
                let _ = poller.poll_one().unwrap();
            }
            Err(error) => {
                let error = limit(error);
                assert_eq!(
                    (error.attribute, error.max),
                    ("max_inline_data", 972),
                    "for {max_inline_data}"
                );
                assert!(max_inline_data > 972);
            }
        }
    }
    assert!(granted > 70);
    for (config, attribute) in [
        (
            QpConfig {
                max_send_wr: 1 << 16,
                ..QpConfig::default()
            },
            "max_send_wr",
        ),
        (
            QpConfig {
                max_recv_wr: 1 << 16,
                ..QpConfig::default()
            },
            "max_recv_wr",
        ),
        (
            QpConfig {
                max_send_sge: 62,
                ..QpConfig::default()
            },
            "max_send_sge",
        ),
        (
            QpConfig {
                max_recv_sge: 33,
                ..QpConfig::default()
            },
            "max_recv_sge",
        ),
        (
            QpConfig {
                max_send_wr: 0,
                max_recv_wr: 0,
                ..QpConfig::default()
            },
            "max_send_wr",
        ),
    ] {
        assert_eq!(
            limit(Qp::create(&pd, &cq, &cq, &config).unwrap_err()).attribute,
            attribute
        );
    }
}

#[test]
fn m01_m02_region_lengths_are_checked_by_name() {
    let mut config = TestbedConfig::default();
    let edit = |general: &mut CmdHcaCap| general.set_log_max_mrw_sz(26).unwrap();
    config.profiles[0].capabilities.edit(CapType::GENERAL, edit);
    let testbed = Testbed::new(config).unwrap();
    let context = open(&testbed, 0);
    let pd = ferroce::verbs::Pd::alloc(&context).unwrap();
    let error = limit(Mr::alloc(&pd, (64 << 20) + 1, Access::all()).unwrap_err());
    assert_eq!(
        (error.attribute, error.asked, error.max),
        ("length", (64 << 20) + 1, 64 << 20)
    );
    let region = Mr::alloc(&pd, 64 << 20, Access::all()).unwrap();
    assert_eq!(region.len(), 64 << 20);
    assert!(matches!(
        Mr::alloc(&pd, 0, Access::all()).unwrap_err(),
        CreateError::ZeroLength
    ));
    let remote_only = Access::REMOTE_WRITE;
    assert!(matches!(
        Mr::alloc(&pd, 1, remote_only).unwrap_err(),
        CreateError::NeedsLocalWrite
    ));
}

#[test]
fn q14_a_cq_that_could_be_overrun_is_refused_or_says_so() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let pd = ferroce::verbs::Pd::alloc(&context).unwrap();
    let (cq, mut poller) = Cq::create(&context, CqConfig::new(15)).unwrap();
    let config = QpConfig {
        max_send_wr: 4,
        max_recv_wr: 4,
        ..QpConfig::default()
    };
    let one = Qp::create(&pd, &cq, &cq, &config).unwrap();
    let error = Qp::create(&pd, &cq, &cq, &config).unwrap_err();
    assert!(
        matches!(
            error,
            CreateError::CqTooSmall {
                capacity: 15,
                reserved: 8,
                asked: 8,
                ..
            }
        ),
        "{error}"
    );
    one.destroy().unwrap();
    let _ = poller.poll_one().unwrap();
    assert_eq!(
        cq.reserved(),
        0,
        "its place is free once the poller has passed its completions"
    );

    // Overcommitted on purpose: the device says so.
    let (cq, mut poller) = Cq::create(
        &context,
        CqConfig {
            overcommit: true,
            ..CqConfig::new(7)
        },
    )
    .unwrap();
    let mut qp = Qp::create(
        &pd,
        &cq,
        &cq,
        &QpConfig {
            max_recv_wr: 64,
            ..config
        },
    )
    .unwrap();
    qp.modify_to_init(&Default::default()).unwrap();
    let wrs: Vec<_> = (0..64).map(|wr_id| RecvWr { wr_id, sges: &[] }).collect();
    qp.post_recv_list(&wrs).unwrap();
    qp.modify_to_err().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while testbed.stats(0).unwrap().data_path_violations == 0 {
        assert!(Instant::now() < deadline, "never overrun");
        std::thread::yield_now();
    }
    let mut shown = 0;
    let error = loop {
        match poller.poll(64, |_| shown += 1) {
            Ok(_) => assert!(Instant::now() < deadline, "no error after {shown} completions"),
            Err(error) => break error,
        }
        // Takes events in.
        context.process_events();
    };
    assert!(
        matches!(&error, PollError::Failed { reason, .. } if reason.contains("overrun")),
        "{error}"
    );
    assert!(shown < 64);
}
