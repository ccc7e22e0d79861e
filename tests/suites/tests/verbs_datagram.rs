//! UD and GSI queue pairs: their states, addresses and operations.

use ferroce::context::Context;
use ferroce::verbs::{
    Ah, Cq, CqConfig, GSI_QKEY, Mtu, Path, PathError, Payload, Pd, PostError, Qp, QpConfig, QpState, QpType,
    SendFlags, SendOp, SendWr, ToInit, ToRtr, ToRts, Update,
};
use ferroce_firmware_iface::layouts::CmdHcaCap;
use ferroce_nic_model::profile::CapType;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{Side, address, gid_index, mac, open};

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
