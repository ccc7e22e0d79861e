//! UD and GSI queue pairs: their states, addresses, operations and traffic.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::gid::{Gid, RoceVersion};
use ferroce::ids::Qpn;
use ferroce::verbs::{
    Access, Ah, AttachError, BufferOp, Cq, CqConfig, CqPoller, GRH_BYTES, GSI_QKEY, GlobalHeader,
    LocalBuffer, Mr, Mtu, NetworkType, Path, PathError, Payload, Pd, PostError, Qp, QpConfig, QpState,
    QpType, SendFlags, SendOp, SendWr, Sge, ToInit, ToRtr, ToRts, Update, Wc, WcError, WcStatus, WcSuccess,
};
use ferroce_firmware_iface::layouts::CmdHcaCap;
use ferroce_nic_model::link::fault::Faults;
use ferroce_nic_model::profile::CapType;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, Side, address, gid_index, mac, open, pattern};

fn config(qp_type: QpType) -> QpConfig {
    QpConfig {
        qp_type,
        ..QpConfig::default()
    }
}

fn testbed() -> Testbed {
    Testbed::new(TestbedConfig::default()).unwrap()
}

fn to_peer(context: &Context) -> Path {
    Path::to_ip(gid_index(context, 0), address(1), mac(1))
}

fn assert_clean(testbed: &Testbed) {
    let stats = testbed.stats(0).unwrap();
    assert_eq!(
        (stats.data_path_violations, stats.firmware_violations),
        (0, 0),
        "{stats:?}"
    );
}

#[test]
fn datagram_queue_pairs_go_from_reset_to_rts_without_a_peer() {
    let testbed = testbed();
    let mut ud = Side::new(&testbed, 0, &config(QpType::Ud));
    let qp = &mut ud.qp;
    assert_eq!(
        qp.modify_to_init(&ToInit::default()).unwrap_err().to_string(),
        "the way to INIT of a UD queue pair needs qkey"
    );
    qp.modify_to_init(&ToInit::ud(0x1111)).unwrap();
    qp.modify_to_init(&ToInit::ud(0x2222)).unwrap();
    assert_eq!(qp.query().unwrap().qkey, 0x2222, "INIT to INIT");
    let rtr = ToRtr::new(to_peer(&ud.context), qp.qpn(), 0);
    assert_eq!(
        qp.modify_to_rtr(&rtr).unwrap_err().to_string(),
        "modify_to_rtr is not for a UD queue pair; use modify_to_rtr_datagram"
    );
    qp.modify_to_rtr_datagram().unwrap();
    assert!(qp.modify_to_rts(&ToRts::new(0)).is_err());
    assert!(qp.modify_to_rts_datagram(1 << 24).is_err());
    qp.modify_to_rts_datagram(0xab_cdef).unwrap();
    let said = qp.query().unwrap();
    assert_eq!(
        (said.state, said.sq_psn, said.qkey),
        (QpState::Rts, 0xab_cdef, 0x2222)
    );
    let update = Update {
        qkey: Some(0x3333),
        ..Update::default()
    };
    qp.modify_in_rts(&update).unwrap();
    assert_eq!(qp.query().unwrap().qkey, 0x3333);

    let mut gsi = Side::on(ud.context.clone(), &config(QpType::Gsi));
    gsi.qp.start_datagrams(&ToInit::default()).unwrap();
    assert_eq!((gsi.qp.qpn().get(), gsi.qp.state()), (1, QpState::Rts));
    assert_eq!(gsi.qp.query().unwrap().qkey, GSI_QKEY);
    assert!(gsi.qp.modify_in_rts(&update).is_err(), "its Q_Key is fixed");

    let mut rc = Side::on(ud.context.clone(), &config(QpType::Rc));
    assert!(rc.qp.modify_to_init(&ToInit::ud(1)).is_err());
    rc.qp.modify_to_init(&ToInit::default()).unwrap();
    assert!(rc.qp.modify_to_rtr_datagram().is_err());
    assert_clean(&testbed);
}

#[test]
fn datagrams_are_at_most_one_packet_of_the_port() {
    let testbed = testbed();
    let context = open(&testbed, 0);
    let mtu = u64::from(context.active_path_mtu().unwrap());
    assert_eq!(Mtu::ALL.last().map(|mtu| u64::from(mtu.bytes())), Some(mtu));
    let mut ud = Side::on(context, &config(QpType::Ud));
    ud.qp.start_datagrams(&ToInit::ud(1)).unwrap();
    let ah = Ah::new(&ud.pd, &to_peer(&ud.context)).unwrap();
    let mut post = |len: usize| {
        let sges = [ud.mr.sge(0..len).unwrap()];
        let op = SendOp::SendTo {
            data: Payload::Gather(&sges),
            imm: None,
            to: &ah,
            qpn: ud.qp.qpn(),
            qkey: 1,
        };
        ud.qp.post_send(&SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
        })
    };
    post(mtu as usize).unwrap();
    assert_eq!(
        post(mtu as usize + 1),
        Err(PostError::MessageTooLong {
            asked: mtu + 1,
            max: mtu
        })
    );
}

#[test]
fn address_handles_are_checked_and_belong_to_a_domain() {
    let testbed = testbed();
    let mut ud = Side::new(&testbed, 0, &config(QpType::Ud));
    let path = to_peer(&ud.context);
    let bad = Path { hop_limit: 0, ..path };
    assert_eq!(Ah::new(&ud.pd, &bad), Err(PathError::HopLimit));
    let group = Path::to_group(path.sgid_index, "239.1.2.3".parse().unwrap());
    Ah::new(&ud.pd, &group).unwrap();
    ud.qp.start_datagrams(&ToInit::ud(1)).unwrap();

    let other = Pd::alloc(&ud.context).unwrap();
    let ah = Ah::new(&other, &path).unwrap();
    drop(other);
    let op = SendOp::SendTo {
        data: Payload::Inline(&[]),
        imm: None,
        to: &ah,
        qpn: ud.qp.qpn(),
        qkey: 1,
    };
    let wr = SendWr {
        wr_id: 0,
        op,
        flags: SendFlags::SIGNALED,
    };
    assert_eq!(ud.qp.post_send(&wr), Err(PostError::OtherPd));

    let mut rc = Side::on(ud.context.clone(), &config(QpType::Rc));
    rc.qp.modify_to_init(&ToInit::default()).unwrap();
    let to_group = ToRtr::new(group, ud.qp.qpn(), 0);
    assert_eq!(
        rc.qp.modify_to_rtr(&to_group).unwrap_err().to_string(),
        "path: dgid 239.1.2.3 is a multicast group's, which only datagrams reach"
    );
}

#[test]
fn a_device_without_such_queue_pairs_is_not_asked_for_them() {
    let mut profiles = TestbedConfig::default().profiles;
    profiles[0]
        .capabilities
        .edit(CapType::GENERAL, |caps: &mut CmdHcaCap| {
            caps.set_ud(false);
            caps.set_uc(false);
        });
    let testbed = Testbed::new(TestbedConfig {
        profiles,
        ..TestbedConfig::default()
    })
    .unwrap();
    let context = open(&testbed, 0);
    let pd = Pd::alloc(&context).unwrap();
    let (cq, _poller) = Cq::create(&context, CqConfig::new(256)).unwrap();
    for (qp_type, message) in [
        (
            QpType::Ud,
            "the device can't do that: it has no UD queue pairs (ud)",
        ),
        (
            QpType::Uc,
            "the device can't do that: it has no UC queue pairs (uc)",
        ),
    ] {
        let error = Qp::create(&pd, &cq, &cq, &config(qp_type)).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

/// The Q_Key of the queue pairs here.
const QKEY: u32 = 0x1234_5678;

/// One NIC with a datagram queue pair in RTS.
struct Station {
    qp: Qp,
    poller: CqPoller,
    cq: Cq,
    pd: Pd,
    context: Arc<Context>,
}

impl Station {
    fn on(context: Arc<Context>, config: &QpConfig) -> Station {
        let pd = Pd::alloc(&context).unwrap();
        let (cq, poller) = Cq::create(&context, CqConfig::new(1023)).unwrap();
        let mut qp = Qp::create(&pd, &cq, &cq, config).unwrap();
        let qkey = (config.qp_type == QpType::Ud).then_some(QKEY);
        qp.start_datagrams(&ToInit {
            qkey,
            ..ToInit::default()
        })
        .unwrap();
        Station {
            qp,
            poller,
            cq,
            pd,
            context,
        }
    }

    /// Posts `count` receives of `len` bytes that hold 0xa5.
    fn receive(&mut self, count: u64, len: usize) {
        for wr_id in 0..count {
            let mut buffer = LocalBuffer::alloc(&self.pd, len).unwrap();
            buffer.as_mut_slice().fill(0xa5);
            self.qp.post_recv_buffer(wr_id, buffer).unwrap();
        }
        self.qp.ring_recv();
    }

    fn next(&mut self) -> Wc {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = self.poller.poll_one().unwrap() {
                return wc;
            }
            self.poller.wait(deadline).unwrap();
        }
    }

    fn success(&mut self) -> WcSuccess {
        self.next().result().unwrap()
    }

    fn failure(&mut self) -> WcError {
        self.next().result().unwrap_err()
    }

    /// Sends bytes to a queue pair at the other end of `path`, and waits until they are sent.
    fn send(&mut self, path: &Path, to: Qpn, imm: Option<u32>, bytes: &[u8]) {
        let qkey = match self.qp.qp_type() {
            QpType::Gsi => GSI_QKEY,
            _ => QKEY,
        };
        let ah = Ah::new(&self.pd, path).unwrap();
        let mut buffer = LocalBuffer::alloc(&self.pd, bytes.len()).unwrap();
        buffer.as_mut_slice().copy_from_slice(bytes);
        let op = BufferOp::SendTo {
            imm,
            to: &ah,
            qpn: to,
            qkey,
        };
        self.qp
            .post_send_buffer(1, op, SendFlags::empty(), buffer, 0..bytes.len())
            .unwrap();
        self.qp.ring_send();
        let done = self.success();
        assert_eq!((done.byte_len, done.datagram), (0, None));
        assert!(done.buffer.is_some());
    }
}

/// Both NICs of a testbed, with these addresses.
fn contexts(testbed: &Testbed, addresses: [IpAddr; 2], vlan: Option<u16>) -> [Arc<Context>; 2] {
    [0, 1].map(|index| {
        let function = InProcess::new(&format!("nic{index}"), testbed.device(index).unwrap()).unwrap();
        let config = OpenConfig::new().address(addresses[index]);
        let config = match vlan {
            Some(vlan) => config.vlan(vlan),
            None => config,
        };
        Context::open(Arc::new(function), config).unwrap()
    })
}

fn stations(contexts: [Arc<Context>; 2], qp_type: QpType) -> [Station; 2] {
    contexts.map(|context| Station::on(context, &config(qp_type)))
}

fn path_to(context: &Context, from: IpAddr, version: RoceVersion, to: IpAddr) -> Path {
    let gid = Gid::from_ip(from);
    let found = context
        .gids()
        .find(|entry| entry.gid == gid && entry.version == version);
    Path::to_ip(found.unwrap(), to, mac(1))
}

/// All kinds of GIDs, each with and without a VLAN.
#[test]
fn t15_t16_a_datagram_arrives_behind_its_global_header() {
    let kinds = [
        ("10.9.0.1", "10.9.0.2", RoceVersion::V2, NetworkType::Ipv4),
        ("fd00:9::1", "fd00:9::2", RoceVersion::V2, NetworkType::Ipv6),
        ("fe80::9:1", "fe80::9:2", RoceVersion::V2, NetworkType::Ipv6),
        ("10.9.0.1", "10.9.0.2", RoceVersion::V1, NetworkType::RoceV1),
        ("fe80::9:1", "fe80::9:2", RoceVersion::V1, NetworkType::RoceV1),
    ];
    for (kind, vlan) in kinds
        .into_iter()
        .flat_map(|kind| [(kind, None), (kind, Some(100))])
    {
        let (from, to, version, network) = kind;
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let testbed = testbed();
        let [mut a, mut b] = stations(contexts(&testbed, [from, to], vlan), QpType::Ud);
        let path = Path {
            traffic_class: 0x6a,
            hop_limit: 17,
            flow_label: 0x1_2345,
            priority: 3,
            ..path_to(&a.context, from, version, to)
        };
        b.receive(2, GRH_BYTES + 100);
        let data = pattern(100, 5);
        a.send(&path, b.qp.qpn(), Some(0x0102_0304), &data);
        a.send(&path, b.qp.qpn(), None, &data[..7]);

        let done = b.success();
        assert_eq!(
            (done.wr_id, done.byte_len, done.imm),
            (0, 140, Some(0x0102_0304)),
            "{kind:?} {vlan:?}"
        );
        let datagram = done.datagram.unwrap();
        assert_eq!(
            (datagram.src_qp, datagram.network, datagram.pkey_index),
            (a.qp.qpn(), Some(network), 0)
        );
        let buffer = done.buffer.unwrap();
        assert_eq!(buffer.as_slice()[GRH_BYTES..140], data);
        let header = GlobalHeader::read(buffer.as_slice(), network).unwrap();
        assert_eq!((header.source, header.destination), (from, to));
        assert_eq!((header.dscp(), header.ecn(), header.hop_limit), (0x1a, 2, 17));
        if network == NetworkType::Ipv4 {
            assert_eq!(header.flow_label, 0);
        } else {
            assert_eq!(header.flow_label, 0x1_2345);
        }
        let done = b.success();
        assert_eq!((done.byte_len, done.imm), (47, None));
        assert_eq!(done.buffer.unwrap().as_slice()[GRH_BYTES..47], data[..7]);
        for index in 0..2 {
            let stats = testbed.stats(index).unwrap();
            assert_eq!(
                (stats.data_path_violations, stats.firmware_violations),
                (0, 0),
                "{stats:?}"
            );
        }
    }
}

#[test]
fn gsi_queue_pairs_are_qp_1_to_each_other() {
    let testbed = testbed();
    let addresses = [address(0), address(1)];
    let [mut a, mut b] = stations(contexts(&testbed, addresses, None), QpType::Gsi);
    b.receive(1, GRH_BYTES + 256);
    let path = to_peer(&a.context);
    a.send(&path, Qpn::from_low_bits(1), None, &pattern(256, 1));
    let done = b.success();
    assert_eq!((done.qpn.get(), done.byte_len, done.imm), (1, 296, None));
    let datagram = done.datagram.unwrap();
    assert_eq!((datagram.src_qp.get(), datagram.pkey_index), (1, 0));
    assert_eq!(done.buffer.unwrap().as_slice()[GRH_BYTES..], pattern(256, 1));
    let long = [Sge::new(0, 257, ferroce::verbs::Lkey::new(0).unwrap())];
    let ah = Ah::new(&a.pd, &path).unwrap();
    let op = SendOp::SendTo {
        data: Payload::Gather(&long),
        imm: None,
        to: &ah,
        qpn: Qpn::from_low_bits(1),
        qkey: GSI_QKEY,
    };
    let refused = a.qp.post_send(&SendWr {
        wr_id: 0,
        op,
        flags: SendFlags::SIGNALED,
    });
    assert_eq!(refused, Err(PostError::MessageTooLong { asked: 257, max: 256 }));
    // The port has one.
    let error = Qp::create(&a.pd, &a.cq, &a.cq, &config(QpType::Gsi)).unwrap_err();
    assert!(error.to_string().contains("CREATE_QP"), "{error}");
}

#[test]
fn datagrams_with_another_q_key_are_not_taken() {
    let testbed = testbed();
    let addresses = [address(0), address(1)];
    let [mut a, mut b] = stations(contexts(&testbed, addresses, None), QpType::Ud);
    b.receive(2, GRH_BYTES + 8);
    let path = to_peer(&a.context);
    let ah = Ah::new(&a.pd, &path).unwrap();
    // The third one has the highest bit set, which stands for the sender's own.
    for (wr_id, qkey) in [(0, QKEY + 1), (1, QKEY), (2, 0x8000_0000)] {
        let op = SendOp::SendTo {
            data: Payload::Inline(&[wr_id; 8]),
            imm: None,
            to: &ah,
            qpn: b.qp.qpn(),
            qkey,
        };
        a.qp.post_send(&SendWr {
            wr_id: wr_id.into(),
            op,
            flags: SendFlags::SIGNALED,
        })
        .unwrap();
        a.qp.ring_send();
        assert_eq!(a.success().wr_id, u64::from(wr_id));
    }
    for n in [1, 2] {
        let done = b.success();
        assert_eq!(done.buffer.unwrap().as_slice()[GRH_BYTES..], [n; 8]);
    }
    assert!(b.poller.poll_one().unwrap().is_none());
    assert_eq!(testbed.stats(1).unwrap().engine.qkey_violations, 1);
}

#[test]
fn a_group_reaches_all_queue_pairs_that_are_attached() {
    for (group, own) in [
        ("239.1.2.3", ["10.9.0.1", "10.9.0.2"]),
        ("ff0e::9:1", ["fd00:9::1", "fd00:9::2"]),
    ] {
        let testbed = testbed();
        let own = own.map(|address| address.parse::<IpAddr>().unwrap());
        let group: IpAddr = group.parse().unwrap();
        let [mut a, mut b] = stations(contexts(&testbed, own, None), QpType::Ud);
        let mut c = Station::on(b.context.clone(), &config(QpType::Ud));
        let gid = Gid::from_ip(group);
        for station in [&mut b, &mut c] {
            station.receive(4, GRH_BYTES + 8);
            station.qp.attach_multicast(gid).unwrap();
            station.qp.attach_multicast(gid).unwrap();
            assert_eq!(station.qp.multicast_groups(), [gid]);
        }
        let unicast = path_to(&a.context, own[0], RoceVersion::V2, own[1]);
        let path = Path::to_group(unicast.sgid_index, group);
        let all = Qpn::from_low_bits(0xff_ffff);
        a.send(&path, all, None, &[1; 8]);
        for station in [&mut b, &mut c] {
            let done = station.success();
            let network = done.datagram.unwrap().network.unwrap();
            let buffer = done.buffer.unwrap();
            let header = GlobalHeader::read(buffer.as_slice(), network).unwrap();
            assert_eq!((header.source, header.destination), (own[0], group));
            assert_eq!(buffer.as_slice()[GRH_BYTES..], [1; 8]);
        }
        b.qp.detach_multicast(gid).unwrap();
        let error = b.qp.detach_multicast(gid).unwrap_err();
        assert!(matches!(error, AttachError::NotAttached { .. }), "{error}");
        a.send(&path, all, None, &[2; 8]);
        assert_eq!(c.success().buffer.unwrap().as_slice()[GRH_BYTES..], [2; 8]);
        assert!(b.poller.poll_one().unwrap().is_none());
        // Those that are attached can go all the same, dropped or destroyed.
        b.qp.attach_multicast(gid).unwrap();
        b.qp.destroy().unwrap();
        drop(c);
        b.context.process_events();
        assert_eq!(b.context.counters().reaper.failed, 0);
        for index in 0..2 {
            let stats = testbed.stats(index).unwrap();
            assert_eq!(
                (stats.data_path_violations, stats.firmware_violations),
                (0, 0),
                "{stats:?}"
            );
        }
    }
}

#[test]
fn only_ud_queue_pairs_are_attached_and_only_to_groups() {
    let testbed = testbed();
    let context = open(&testbed, 0);
    let mut ud = Station::on(context.clone(), &config(QpType::Ud));
    let refused = ud.qp.attach_multicast(Gid::from_ip(address(1))).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "10.9.0.2 is not a multicast group (224.0.0.0/4, ff00::/8)"
    );
    let group = Gid::from_ip("224.0.0.251".parse().unwrap());
    let mut gsi = Station::on(context.clone(), &config(QpType::Gsi));
    let refused = gsi.qp.attach_multicast(group).unwrap_err();
    assert!(matches!(refused, AttachError::Service { qp_type: QpType::Gsi }));
    let mut rc = Side::on(context, &config(QpType::Rc));
    assert!(rc.qp.attach_multicast(group).is_err());
    assert_clean(&testbed);
}

#[test]
fn what_is_lost_or_damaged_is_lost_and_the_rest_is_whole() {
    const COUNT: u32 = 400;
    let faults = Faults {
        seed: 11,
        loss: 0.1,
        corrupt: 0.05,
        reorder: 0.05,
        ..Faults::default()
    };
    let testbed = Testbed::new(TestbedConfig {
        faults,
        ..TestbedConfig::default()
    })
    .unwrap();
    let config = QpConfig {
        max_recv_wr: COUNT,
        ..config(QpType::Ud)
    };
    let [mut a, mut b] =
        contexts(&testbed, [address(0), address(1)], None).map(|context| Station::on(context, &config));
    b.receive(COUNT.into(), GRH_BYTES + 64);
    let path = to_peer(&a.context);
    for id in 0..COUNT {
        a.send(&path, b.qp.qpn(), Some(id), &pattern(64, id as u8));
    }
    let mut seen = std::collections::BTreeSet::new();
    while let Some(wc) = b.poller.poll_one().unwrap() {
        let done = wc.result().unwrap();
        let id = done.imm.unwrap();
        assert!(id < COUNT && seen.insert(id), "{id}");
        assert_eq!(
            done.buffer.unwrap().as_slice()[GRH_BYTES..],
            pattern(64, id as u8)
        );
    }
    let arrived = seen.len();
    assert!((250..400).contains(&arrived), "{arrived}");
    assert_clean(&testbed);
}

#[test]
fn a_send_that_fails_stops_the_sends_and_not_the_receives() {
    let testbed = testbed();
    let addresses = [address(0), address(1)];
    let [mut a, mut b] = stations(contexts(&testbed, addresses, None), QpType::Ud);
    a.receive(1, GRH_BYTES + 8);
    b.receive(1, GRH_BYTES + 8);
    let path = to_peer(&a.context);
    let ah = Ah::new(&a.pd, &path).unwrap();
    let region = Mr::alloc(&a.pd, 64, Access::empty()).unwrap();
    let outside = [Sge::new(
        region.addr() + (1 << 30),
        8,
        ferroce::verbs::Lkey::new(region.lkey()).unwrap(),
    )];
    let op = SendOp::SendTo {
        data: Payload::Gather(&outside),
        imm: None,
        to: &ah,
        qpn: b.qp.qpn(),
        qkey: QKEY,
    };
    a.qp.post_send(&SendWr {
        wr_id: 9,
        op,
        flags: SendFlags::SIGNALED,
    })
    .unwrap();
    a.qp.ring_send();
    let error = a.failure();
    assert_eq!((error.wr_id, error.status), (9, WcStatus::LocalProtection));
    assert_eq!(a.qp.query().unwrap().state, QpState::Sqe);
    // It still receives.
    let back = Path::to_ip(gid_index(&b.context, 1), address(0), mac(0));
    b.send(&back, a.qp.qpn(), None, &[3; 8]);
    assert_eq!(a.success().buffer.unwrap().as_slice()[GRH_BYTES..], [3; 8]);
    a.qp.resume(&Update::default()).unwrap();
    a.send(&path, b.qp.qpn(), None, &[4; 8]);
    assert_eq!(b.success().buffer.unwrap().as_slice()[GRH_BYTES..], [4; 8]);
}

/// A queue pair is reset and used anew from within the poll that has its old completions before it.
#[test]
fn q18_completions_from_before_a_reset_are_not_shown_even_within_one_poll() {
    let testbed = testbed();
    let (from, to) = (address(0), address(1));
    let [mut a, mut b] = stations(contexts(&testbed, [from, to], None), QpType::Ud);
    let path = path_to(&a.context, from, RoceVersion::V2, to);
    let ah = Ah::new(&a.pd, &path).unwrap();
    b.receive(3, GRH_BYTES + 8);
    let to = b.qp.qpn();
    let post = |qp: &mut Qp, wr_id: u64| {
        let op = SendOp::SendTo {
            data: Payload::Inline(&[7; 8]),
            imm: None,
            to: &ah,
            qpn: to,
            qkey: QKEY,
        };
        let flags = SendFlags::SIGNALED;
        qp.post_send(&SendWr { wr_id, op, flags }).unwrap();
        qp.ring_send();
    };
    post(&mut a.qp, 1);
    post(&mut a.qp, 2);
    for _ in 0..2 {
        drop(b.success());
    }
    let deadline = Instant::now() + PATIENCE;
    while a.poller.waiting() < 2 {
        assert!(Instant::now() < deadline, "two sends complete");
        a.poller.wait(deadline).unwrap();
    }
    let Station { qp, poller, .. } = &mut a;
    let mut given = Vec::new();
    poller
        .poll(16, |wc| {
            given.push(wc.wr_id());
            if wc.wr_id() == 1 {
                qp.modify_to_reset().unwrap();
                qp.start_datagrams(&ToInit::ud(QKEY)).unwrap();
                post(qp, 100);
                // It is done when it has arrived: its completion is there or soon will be.
                drop(b.success());
            }
        })
        .unwrap();
    while !given.contains(&100) {
        poller.wait(deadline).unwrap();
        poller.poll(16, |wc| given.push(wc.wr_id())).unwrap();
    }
    assert_eq!(given, [1, 100]);
}
