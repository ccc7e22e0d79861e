//! The same operations on each kind of NIC, over IPv4, IPv6 and RoCE v1.

use ferroce::gid::{Gid, RoceVersion};
use ferroce::verbs::{CounterSet, Path, Payload, QpConfig, RecvWr, SendOp, ToInit, ToRtr, ToRts};
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::testbed::TestbedConfig;
use ferroce_suites::pair::{Pair, mac, pattern, signaled};

/// SEND, WRITE, READ and, where the device does them, atomics.
fn exercise(pair: &mut Pair, name: &str) {
    pair.a.fill(1);
    let into = [pair.b.mr.sge(0..4000).unwrap()];
    pair.b
        .qp
        .post_recv_list(&[RecvWr {
            wr_id: 1,
            sges: &into,
        }])
        .unwrap();
    let sge = [pair.a.mr.sge(0..4000).unwrap()];
    let send = SendOp::Send {
        data: Payload::Gather(&sge),
        imm: Some(7),
    };
    pair.a.qp.post_send_list(&[signaled(1, send)]).unwrap();
    assert_eq!(pair.b.success().imm, Some(7), "{name}");
    assert_eq!(pair.a.success().wr_id, 1);
    assert_eq!(pair.b.bytes(0, 4000), pattern(4000, 1), "{name}");
    let remote = pair.b.mr.remote(100_000);
    let write = SendOp::Write {
        data: Payload::Gather(&sge),
        remote,
        imm: None,
    };
    let back = [pair.a.mr.sge(500_000..504_000).unwrap()];
    let read = SendOp::Read { into: &back, remote };
    pair.a
        .qp
        .post_send_list(&[signaled(2, write), signaled(3, read)])
        .unwrap();
    assert_eq!([pair.a.success().wr_id, pair.a.success().wr_id], [2, 3]);
    assert_eq!(pair.a.bytes(500_000, 4000), pattern(4000, 1), "{name}");
    let old = pair.b.mr.read_u64(200_000).unwrap();
    let add = SendOp::FetchAdd {
        into: pair.a.mr.sge(0..8).unwrap(),
        remote: pair.b.mr.remote(200_000),
        add: 3,
    };
    match pair.a.qp.post_send_list(&[signaled(4, add)]) {
        Ok(()) => {
            assert_eq!(pair.a.success().wr_id, 4);
            assert_eq!(pair.a.mr.atomic_result(0).unwrap(), old, "{name}");
            assert_eq!(pair.b.mr.read_u64(200_000).unwrap(), old + 3, "{name}");
        }
        Err(bad) => assert!(bad.error.to_string().contains("no atomic"), "{name}: {bad}"),
    }
    pair.assert_clean();
}

#[test]
fn every_kind_of_nic_carries_every_operation() {
    for profile in Profile::all() {
        let name = profile.name;
        let [a, b, c, d, e, _] = [0x02, 0xfe, 0x0c, 0xe0, 0x00, 0];
        let profiles = [1, 2].map(|last| profile.clone().with_mac([a, b, c, d, e, last]));
        let testbed = TestbedConfig {
            profiles,
            ..TestbedConfig::default()
        };
        let mut pair = Pair::with(testbed, &QpConfig::default(), |_, _| ());
        exercise(&mut pair, name);
    }
}

#[test]
fn every_kind_of_address_carries_every_operation() {
    for (version, link_local) in [
        (RoceVersion::V1, false),
        (RoceVersion::V1, true),
        (RoceVersion::V2, true),
    ] {
        let name = format!("{version}, link-local {link_local}");
        let mut pair = Pair::unconnected(TestbedConfig::default(), &QpConfig::default());
        let index = |pair: &Pair, side: usize| {
            let context = if side == 0 {
                &pair.a.context
            } else {
                &pair.b.context
            };
            let found = context
                .gids()
                .find(|entry| entry.version == version && entry.gid.to_ipv4().is_none() == link_local);
            let index = found.unwrap_or_else(|| panic!("{name}: {:?}", context.gids().entries()));
            (index, context.gids().get(index).unwrap().gid)
        };
        let ends: [(u16, Gid); 2] = [index(&pair, 0), index(&pair, 1)];
        let (a_qpn, b_qpn) = (pair.a.qp.qpn(), pair.b.qp.qpn());
        for (side, qp, remote) in [(0, &mut pair.a.qp, b_qpn), (1, &mut pair.b.qp, a_qpn)] {
            let path = Path::new(ends[side].0, ends[1 - side].1, mac(1 - side));
            qp.modify_to_init(&ToInit::default()).unwrap();
            qp.modify_to_rtr(&ToRtr::new(path, remote, 100)).unwrap();
            qp.modify_to_rts(&ToRts::new(100)).unwrap();
        }
        exercise(&mut pair, &name);
    }
}

#[test]
fn queue_pairs_count_into_their_set() {
    let mut pair = Pair::unconnected(TestbedConfig::default(), &QpConfig::default());
    let counters = CounterSet::alloc(&pair.b.context).unwrap();
    pair.b.qp.count_with(&counters).unwrap();
    assert!(pair.a.qp.count_with(&counters).is_err(), "another device's");
    pair.connect(|_, _| ());
    assert_eq!(counters.query().unwrap(), Default::default());
    exercise(&mut pair, "counted");
    let counted = counters.query().unwrap();
    assert_eq!(
        (
            counted.rx_write_requests,
            counted.rx_read_requests,
            counted.rx_atomic_requests
        ),
        (1, 1, 1)
    );
    assert_eq!(counted.out_of_sequence, 0);
}
