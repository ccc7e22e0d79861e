//! The states of a queue pair: what may be posted, what leads where, what is refused before firmware is asked.

use ferroce::gid::Gid;
use ferroce::port::MacAddress;
use ferroce::verbs::{
    Access, Cq, CqConfig, LimitError, ModifyError, Mtu, Path, PathError, Payload, PostError, Qp, QpConfig,
    QpState, RecvWr, SendOp, ToInit, ToRtr, ToRts, Update, WcStatus,
};
use ferroce_hw_regs::ids::Qpn;
use ferroce_nic_model::testbed::TestbedConfig;
use ferroce_suites::pair::{Pair, Side, address, empty_send, gid_index, mac, signaled};

fn unconnected() -> Pair {
    Pair::unconnected(TestbedConfig::default(), &QpConfig::default())
}

/// Brings `a` to a state, as far as the states go that a program can bring it to.
fn bring(pair: &mut Pair, state: QpState) {
    let path = Path::to_ip(gid_index(&pair.a.context, 0), address(1), mac(1));
    let qp = &mut pair.a.qp;
    let remote = pair.b.qp.qpn();
    qp.modify_to_reset().unwrap();
    if state == QpState::Reset {
        return;
    }
    qp.modify_to_init(&ToInit::default()).unwrap();
    if matches!(state, QpState::Rtr | QpState::Rts) {
        qp.modify_to_rtr(&ToRtr::new(path, remote, 0)).unwrap();
    }
    if state == QpState::Rts {
        qp.modify_to_rts(&ToRts::new(0)).unwrap();
    }
    if state == QpState::Err {
        qp.modify_to_err().unwrap();
    }
}

const STATES: [QpState; 5] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Err,
];

#[test]
fn q03_what_may_be_posted_in_which_state() {
    let mut pair = unconnected();
    for state in STATES {
        bring(&mut pair, state);
        assert_eq!(pair.a.qp.state(), state);
        assert_eq!(pair.a.qp.query().unwrap().state, state, "the device agrees");
        let send = pair.a.qp.post_send(&signaled(1, empty_send()));
        let recv = pair.a.qp.post_recv(&RecvWr { wr_id: 2, sges: &[] });
        let refused = |queue| Err(PostError::State { queue, state });
        assert_eq!(
            send,
            if matches!(state, QpState::Rts | QpState::Err) {
                Ok(())
            } else {
                refused("send")
            }
        );
        assert_eq!(
            recv,
            if state == QpState::Reset {
                refused("receive")
            } else {
                Ok(())
            }
        );
        if state == QpState::Err {
            pair.a.qp.ring_send();
            pair.a.qp.ring_recv();
            assert!(
                [pair.a.failure(), pair.a.failure()]
                    .iter()
                    .all(|error| error.status == WcStatus::Flushed)
            );
        }
    }
    pair.assert_clean();
}

#[test]
fn q03_a_receive_posted_in_init_is_kept() {
    let mut pair = unconnected();
    pair.b.qp.modify_to_init(&ToInit::default()).unwrap();
    pair.b
        .qp
        .post_recv_list(&[RecvWr { wr_id: 5, sges: &[] }])
        .unwrap();
    let path = Path::to_ip(gid_index(&pair.b.context, 1), address(0), mac(0));
    pair.b
        .qp
        .modify_to_rtr(&ToRtr::new(path, pair.a.qp.qpn(), 77))
        .unwrap();
    bring(&mut pair, QpState::Rtr);
    pair.a.qp.modify_to_rts(&ToRts::new(77)).unwrap();
    pair.a.qp.post_send_list(&[signaled(1, empty_send())]).unwrap();
    assert_eq!(pair.b.success().wr_id, 5);
    assert_eq!(pair.a.success().wr_id, 1);
    pair.assert_clean();
}

#[test]
fn transitions_that_are_not_in_the_table_are_refused_before_firmware_is_asked() {
    let mut pair = unconnected();
    let path = Path::to_ip(gid_index(&pair.a.context, 0), address(1), mac(1));
    let (rtr, rts) = (ToRtr::new(path, Qpn::default(), 0), ToRts::new(0));
    for state in STATES {
        bring(&mut pair, state);
        let commands = pair.a.context.counters().commands.submitted;
        let qp = &mut pair.a.qp;
        let refusals = [
            (
                QpState::Init,
                (!matches!(state, QpState::Reset | QpState::Init))
                    .then(|| qp.modify_to_init(&ToInit::default())),
            ),
            (
                QpState::Rtr,
                (state != QpState::Init).then(|| qp.modify_to_rtr(&rtr)),
            ),
            (
                QpState::Rts,
                (state != QpState::Rtr).then(|| qp.modify_to_rts(&rts)),
            ),
            (
                QpState::Rts,
                (state != QpState::Rts).then(|| qp.modify_in_rts(&Update::default())),
            ),
            (QpState::Rts, Some(qp.resume(&Update::default()))),
            (QpState::Sqd, (state != QpState::Rts).then(|| qp.modify_to_sqd())),
        ];
        for (to, refusal) in refusals
            .into_iter()
            .filter_map(|(to, refusal)| Some((to, refusal?)))
        {
            let error = refusal.unwrap_err();
            assert!(
                matches!(error, ModifyError::Transition { from, to: t, .. } if from == state && t == to),
                "{state} to {to}: {error}"
            );
        }
        assert_eq!(pair.a.context.counters().commands.submitted, commands, "{state}");
        assert_eq!(pair.a.qp.state(), state);
    }
    bring(&mut pair, QpState::Rts);
    let error = pair.a.qp.modify_to_sqd().unwrap_err();
    assert!(matches!(error, ModifyError::NotOffered { .. }), "{error}");
    pair.assert_clean();
}

#[test]
fn g07_g03_paths_are_refused_by_name_before_firmware_is_asked() {
    let mut pair = unconnected();
    pair.a.qp.modify_to_init(&ToInit::default()).unwrap();
    let commands = pair.a.context.counters().commands.submitted;
    let index = gid_index(&pair.a.context, 0);
    let good = Path::to_ip(index, address(1), mac(1));
    let size = pair.a.context.gids().size() as u16;
    let remote = pair.b.qp.qpn();
    let mut refused = |path: Path| match pair.a.qp.modify_to_rtr(&ToRtr::new(path, remote, 0)).unwrap_err() {
        ModifyError::Path(error) => error,
        other => panic!("{other}"),
    };
    assert_eq!(refused(Path { hop_limit: 0, ..good }), PathError::HopLimit);
    let beyond = PathError::NoSuchIndex {
        index: size,
        entries: size,
    };
    assert_eq!(
        refused(Path {
            sgid_index: size,
            ..good
        }),
        beyond
    );
    assert_eq!(
        refused(Path {
            sgid_index: size - 1,
            ..good
        }),
        PathError::EmptyEntry { index: size - 1 }
    );
    assert_eq!(
        refused(Path {
            dgid: Gid::default(),
            ..good
        }),
        PathError::NoDestination
    );
    assert!(matches!(
        refused(Path {
            dmac: MacAddress([0xff; 6]),
            ..good
        }),
        PathError::BadMac { .. }
    ));
    let v6 = Path::to_ip(index, "fd00::1".parse().unwrap(), mac(1));
    assert!(matches!(refused(v6), PathError::OtherFamily { .. }));
    assert_eq!(pair.a.context.counters().commands.submitted, commands);

    let mut limit = |rtr: ToRtr| match pair.a.qp.modify_to_rtr(&rtr).unwrap_err() {
        ModifyError::Limit(LimitError { attribute, max, .. }) => (attribute, max),
        other => panic!("{other}"),
    };
    let rtr = ToRtr::new(good, remote, 0);
    assert_eq!(
        limit(ToRtr {
            min_rnr_timer: 32,
            ..rtr
        }),
        ("min_rnr_timer", 31)
    );
    assert_eq!(
        limit(ToRtr {
            rq_psn: 1 << 24,
            ..rtr
        }),
        ("rq_psn", 0xff_ffff)
    );
    assert_eq!(
        limit(ToRtr {
            max_dest_rd_atomic: 17,
            ..rtr
        }),
        ("max_dest_rd_atomic", 16)
    );
    pair.a.qp.modify_to_rtr(&rtr).unwrap();
    let mut limit = |rts: ToRts| match pair.a.qp.modify_to_rts(&rts).unwrap_err() {
        ModifyError::Limit(LimitError { attribute, max, .. }) => (attribute, max),
        other => panic!("{other}"),
    };
    let rts = ToRts::new(0);
    assert_eq!(
        limit(ToRts {
            retry_count: 8,
            ..rts
        }),
        ("retry_count", 7)
    );
    assert_eq!(limit(ToRts { rnr_retry: 8, ..rts }), ("rnr_retry", 7));
    assert_eq!(limit(ToRts { timeout: 32, ..rts }), ("timeout", 31));
    assert_eq!(
        limit(ToRts {
            max_rd_atomic: 255,
            ..rts
        }),
        ("max_rd_atomic", 16)
    );
    assert_eq!(
        limit(ToRts {
            sq_psn: 1 << 24,
            ..rts
        }),
        ("sq_psn", 0xff_ffff)
    );
    pair.a.qp.modify_to_rts(&rts).unwrap();
}

#[test]
fn what_was_set_is_what_the_device_says() {
    let mut pair = unconnected();
    let index = gid_index(&pair.a.context, 0);
    let path = Path {
        traffic_class: 0x68,
        hop_limit: 9,
        priority: 3,
        udp_sport: Some(0xc123),
        ..Path::to_ip(index, address(1), mac(1))
    };
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    pair.a
        .qp
        .modify_to_init(&ToInit {
            access: Access::REMOTE_READ,
            ..ToInit::default()
        })
        .unwrap();
    pair.a
        .qp
        .modify_to_init(&ToInit {
            access,
            ..ToInit::default()
        })
        .unwrap();
    let rtr = ToRtr {
        mtu: Mtu::Mtu2048,
        min_rnr_timer: 20,
        ..ToRtr::new(path, pair.b.qp.qpn(), 0x123)
    };
    pair.a.qp.modify_to_rtr(&rtr).unwrap();
    let rts = ToRts {
        timeout: 10,
        retry_count: 3,
        rnr_retry: 2,
        ..ToRts::new(0xabcdef)
    };
    pair.a.qp.modify_to_rts(&rts).unwrap();
    let said = pair.a.qp.query().unwrap();
    assert_eq!(
        (said.state, said.mtu, said.remote_qpn),
        (QpState::Rts, Some(Mtu::Mtu2048), pair.b.qp.qpn())
    );
    assert_eq!((said.rq_psn, said.sq_psn, said.timeout), (0x123, 0xabcdef, 10));
    assert_eq!((said.retry_count, said.rnr_retry, said.min_rnr_timer), (3, 2, 20));
    assert_eq!((said.path, said.access), (path, access));
    let update = Update {
        access: Some(Access::REMOTE_WRITE),
        min_rnr_timer: Some(1),
        qkey: None,
    };
    pair.a.qp.modify_in_rts(&update).unwrap();
    let said = pair.a.qp.query().unwrap();
    assert_eq!((said.access, said.min_rnr_timer), (Access::REMOTE_WRITE, 1));
    pair.assert_clean();
}

#[test]
fn a_peer_that_may_have_no_reads_in_progress_is_not_let_in_later_either() {
    let no_reads = |rtr: &mut ToRtr, _: &mut ToRts| rtr.max_dest_rd_atomic = 0;
    let mut pair = Pair::with(TestbedConfig::default(), &QpConfig::default(), no_reads);
    let access = |pair: &mut Pair| pair.b.qp.query().unwrap().access;
    assert_eq!(access(&mut pair), Access::REMOTE_WRITE);
    let update = Update {
        access: Some(Access::supported_by(&pair.b.context)),
        ..Update::default()
    };
    pair.b.qp.modify_in_rts(&update).unwrap();
    assert_eq!(access(&mut pair), Access::REMOTE_WRITE);
    // The next connection may be another.
    for side in [&mut pair.a, &mut pair.b] {
        side.qp.modify_to_reset().unwrap();
    }
    pair.connect(|_, _| ());
    pair.b.qp.modify_in_rts(&update).unwrap();
    assert!(access(&mut pair).contains(Access::REMOTE_READ));
    pair.assert_clean();
}

#[test]
fn what_the_queue_pair_does_not_allow_the_peer_does_not_get() {
    let mut pair = Pair::new(&QpConfig::default());
    pair.b
        .qp
        .modify_in_rts(&Update {
            access: Some(Access::REMOTE_WRITE),
            ..Update::default()
        })
        .unwrap();
    let sge = [pair.a.mr.sge(0..8).unwrap()];
    let remote = pair.b.mr.remote(0);
    let write = SendOp::Write {
        data: Payload::Gather(&sge),
        remote,
        imm: None,
    };
    pair.a.qp.post_send_list(&[signaled(1, write)]).unwrap();
    assert_eq!(pair.a.success().wr_id, 1);
    pair.a
        .qp
        .post_send_list(&[signaled(2, SendOp::Read { into: &sge, remote })])
        .unwrap();
    assert!(matches!(
        pair.a.failure().status,
        WcStatus::RemoteInvalidRequest | WcStatus::RemoteAccess
    ));
}

#[test]
fn queue_pairs_with_one_queue_only() {
    let mut pair = Pair::unconnected(TestbedConfig::default(), &QpConfig::default());
    let make = |side: &Side, config: QpConfig| {
        let (cq, poller) = Cq::create(&side.context, CqConfig::new(63)).unwrap();
        (Qp::create(&side.pd, &cq, &cq, &config).unwrap(), poller)
    };
    let (mut sender, mut sends) = make(
        &pair.a,
        QpConfig {
            max_send_wr: 8,
            max_recv_wr: 0,
            ..QpConfig::default()
        },
    );
    let (mut receiver, mut recvs) = make(
        &pair.b,
        QpConfig {
            max_send_wr: 0,
            max_recv_wr: 8,
            ..QpConfig::default()
        },
    );
    ferroce_suites::pair::connect(
        (&mut sender, &pair.a.context),
        (&mut receiver, &pair.b.context),
        |_, _| (),
    );
    let no = |queue| Err(PostError::NoQueue { queue });
    assert_eq!(sender.post_recv(&RecvWr { wr_id: 1, sges: &[] }), no("receive"));
    assert_eq!(receiver.post_send(&signaled(1, empty_send())), no("send"));
    receiver
        .post_recv_list(&[RecvWr { wr_id: 2, sges: &[] }])
        .unwrap();
    sender.post_send_list(&[signaled(3, empty_send())]).unwrap();
    std::mem::swap(&mut pair.a.poller, &mut sends);
    std::mem::swap(&mut pair.b.poller, &mut recvs);
    assert_eq!((pair.a.success().wr_id, pair.b.success().wr_id), (3, 2));
    pair.assert_clean();
}
