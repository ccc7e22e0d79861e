//! NICs of two ports: what belongs to one port stays with it.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig, Port, PortEvents};
use ferroce::events::AsyncEvent;
use ferroce::gid::{Gid, GidEntry, RoceVersion};
use ferroce::ids::Qpn;
use ferroce::port::{PortNumber, PortState};
use ferroce::verbs::{
    Ah, Path, PathError, Payload, PostError, QpConfig, QpType, RecvWr, SendFlags, SendOp, SendWr, ToInit,
    ToRtr, ToRts, WcStatus,
};
use ferroce_firmware_iface::event::PortChange;
use ferroce_firmware_iface::layouts::CmdHcaCap;
use ferroce_nic_model::profile::{CapType, Profile};
use ferroce_suites::nics::Nics;
use ferroce_suites::pair::{PATIENCE, Side, mac};
use ferroce_suites::two_ports::{SECOND, TwoPorts};

const FIRST: PortNumber = PortNumber::FIRST;

fn port(context: &Arc<Context>, number: PortNumber) -> Port {
    context.port(number).expect("the port")
}

fn next(events: &PortEvents) -> AsyncEvent {
    let event = events.wait(Instant::now() + PATIENCE);
    event.expect("a device that works").expect("an event")
}

fn changed(port: PortNumber, change: PortChange) -> AsyncEvent {
    AsyncEvent::Port { port, change }
}

#[test]
fn g06_events_of_a_port_reach_its_subscribers_once_and_nobody_elses() {
    let rig = TwoPorts::new();
    let context = rig.open(0);
    let second = port(&context, SECOND);
    let on_first = port(&context, FIRST).subscribe().expect("a subscription");
    let on_second = [second.subscribe(), second.subscribe()].map(|events| events.expect("a subscription"));

    rig.set_cable(SECOND, false);
    let down = changed(SECOND, PortChange::DOWN);
    assert_eq!(next(&on_second[0]), down, "port error");
    rig.announce(0, SECOND, PortChange::GUID);
    let guid = changed(SECOND, PortChange::GUID);
    assert_eq!(next(&on_second[0]), guid, "GID change, by firmware");
    let entry = GidEntry {
        gid: Gid::from_ip("10.9.2.77".parse().unwrap()),
        ..second.gids().entries()[0].1
    };
    let entry = GidEntry {
        version: RoceVersion::V2,
        ..entry
    };
    let index = second.add_gid(entry).expect("a place");
    assert_eq!(second.add_gid(entry).unwrap(), index, "no change, no event");
    second.remove_gid(index).expect("it is there");
    second.remove_gid(index).expect("it is not there");
    rig.set_cable(SECOND, true);
    // What ends the run comes after all of these in one queue, and goes to everybody.
    let ours = [
        down,
        guid,
        AsyncEvent::Gid { port: SECOND, index },
        AsyncEvent::Gid { port: SECOND, index },
        changed(SECOND, PortChange::ACTIVE),
    ];
    for (at, expected) in ours.iter().enumerate().skip(2) {
        assert_eq!(next(&on_second[0]), *expected, "event {at}");
    }
    rig.announce(0, FIRST, PortChange::LID);
    let end = changed(FIRST, PortChange::LID);
    assert_eq!(next(&on_first), end, "the first that port 1 hears of");

    // The context's own queue has all of them, once each and in order.
    for expected in ours.iter().chain([&end]) {
        let event = context.wait_event(Instant::now() + PATIENCE);
        assert_eq!(event.as_ref(), Some(expected));
    }
    assert_eq!(context.next_event(), None);
    // The other subscriber has read nothing so far.
    for expected in &ours {
        assert_eq!(on_second[1].next_event().as_ref(), Some(expected));
    }
    for events in on_second.iter().chain([&on_first]) {
        assert_eq!((events.next_event(), events.lost()), (None, 0));
    }
    assert_eq!(
        [FIRST, SECOND].map(|number| port(&context, number).attributes().unwrap().state),
        [PortState::Active; 2]
    );
    rig.assert_clean();
}

#[test]
fn a_wire_that_is_pulled_out_of_one_nic_is_down_there_alone() {
    let rig = TwoPorts::new();
    let (context, peer) = (rig.open(0), rig.open(1));
    let events = [&context, &peer].map(|context| port(context, SECOND).subscribe().expect("a subscription"));
    let state = |context| port(context, SECOND).attributes().expect("attributes").state;
    for (plugged, change, wanted) in [
        (false, PortChange::DOWN, PortState::Down),
        (true, PortChange::ACTIVE, PortState::Active),
    ] {
        let found = rig.testbed.with_nic(0, |nic| nic.plug(SECOND.get(), plugged));
        assert_eq!(found, Some(true));
        assert_eq!(next(&events[0]), changed(SECOND, change));
        assert_eq!((state(&context), state(&peer)), (wanted, PortState::Active));
    }
    assert_eq!(rig.testbed.with_nic(0, |nic| nic.plug(3, false)), Some(false));
    assert_eq!(events[1].next_event(), None);
    rig.assert_clean();
}

#[test]
fn g06_a_port_that_is_down_leaves_the_other_as_it_is() {
    let rig = TwoPorts::new();
    let context = rig.open(0);
    let events = port(&context, SECOND).subscribe().unwrap();
    for (number, other) in [(SECOND, FIRST), (FIRST, SECOND)] {
        rig.set_cable(number, false);
        let state = |number| port(&context, number).attributes().unwrap().state;
        assert_eq!(
            (state(number), state(other)),
            (PortState::Down, PortState::Active)
        );
        rig.set_cable(number, true);
    }
    let seen = [next(&events), next(&events)];
    assert_eq!(
        seen,
        [PortChange::DOWN, PortChange::ACTIVE].map(|change| changed(SECOND, change))
    );
    drop(events);
    context.close().expect("nobody holds it");
    rig.assert_clean();
}

#[test]
fn g06_who_waits_is_woken_by_a_gid_that_another_thread_adds() {
    let rig = TwoPorts::new();
    let context = rig.open(0);
    let second = port(&context, SECOND);
    let events = second.subscribe().unwrap();
    let entry = GidEntry {
        gid: Gid::from_ip("10.9.2.77".parse().unwrap()),
        ..second.gids().entries()[0].1
    };
    let (about_to_wait, waits) = channel();
    let (go, gone) = channel();
    let mut lags: Vec<Duration> = std::thread::scope(|scope| {
        let woken = scope.spawn(|| {
            let each = (0..9).map(|_| {
                about_to_wait.send(()).unwrap();
                assert!(matches!(next(&events), AsyncEvent::Gid { .. }));
                Instant::now()
            });
            each.collect::<Vec<_>>()
        });
        let second = &second;
        let told = scope.spawn(move || {
            let each = (0..9).map(|round| {
                gone.recv().unwrap();
                // Each change is an event.
                if round % 2 == 0 {
                    second.add_gid(entry).unwrap();
                } else {
                    let index = second.gids().find(|have| *have == entry).unwrap();
                    second.remove_gid(index).unwrap();
                }
                Instant::now()
            });
            each.collect::<Vec<_>>()
        });
        for _ in 0..9 {
            waits.recv().unwrap();
            // Firmware takes its time, so that both threads sleep when the command is done.
            rig.testbed.with_nic(0, |_| {
                go.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            });
        }
        let (woken, told) = (woken.join().unwrap(), told.join().unwrap());
        let lags = woken.iter().zip(&told);
        lags.map(|(woken, told)| woken.saturating_duration_since(*told))
            .collect()
    });
    lags.sort();
    // Threads that nobody wakes look again each 100 ms; a busy machine may be late now and then.
    assert!(lags[3] < Duration::from_millis(70), "{lags:?}");
}

#[test]
fn each_of_several_threads_that_wait_gets_an_event() {
    let rig = TwoPorts::new();
    let context = rig.open(0);
    let events = port(&context, SECOND).subscribe().unwrap();
    let own = || {
        context
            .wait_event(Instant::now() + PATIENCE)
            .expect("an event of the context's")
    };
    std::thread::scope(|scope| {
        let (has, hears) = channel();
        for _ in 0..8 {
            let (has, events) = (has.clone(), &events);
            scope.spawn(move || (0..50).for_each(|_| has.send(next(events)).unwrap()));
            scope.spawn(move || (0..50).for_each(|_| assert_eq!(own(), changed(SECOND, PortChange::GUID))));
        }
        // One at a time, so that the others find nothing.
        for _ in 0..400 {
            rig.announce(0, SECOND, PortChange::GUID);
            assert_eq!(
                hears.recv_timeout(PATIENCE),
                Ok(changed(SECOND, PortChange::GUID))
            );
        }
    });
    rig.assert_clean();
}

/// Connects two sides by the port of that number of either NIC.
fn connect(a: &mut Side, b: &mut Side, number: PortNumber) {
    let (a_qpn, b_qpn) = (a.qp.qpn(), b.qp.qpn());
    for (side, index, remote) in [(a, 0, b_qpn), (b, 1, a_qpn)] {
        let source = TwoPorts::gid_index(index, &port(&side.context, number));
        let path = Path::to_ip(source, TwoPorts::address(1 - index, number), mac(1 - index));
        let to_init = ToInit {
            port: number,
            ..ToInit::default()
        };
        side.qp.modify_to_init(&to_init).expect("INIT");
        side.qp.modify_to_rtr(&ToRtr::new(path, remote, 5)).expect("RTR");
        side.qp.modify_to_rts(&ToRts::new(5)).expect("RTS");
    }
}

fn write(to: &Side) -> SendWr<'static> {
    SendWr {
        wr_id: 1,
        op: SendOp::Write {
            data: Payload::Inline(b"by that port"),
            remote: to.mr.remote(0),
            imm: None,
        },
        flags: SendFlags::SIGNALED,
    }
}

#[test]
fn traffic_goes_by_the_queue_pairs_port_and_is_counted_there() {
    let rig = TwoPorts::new();
    let config = QpConfig::default();
    let (mut a, mut b) = (Side::on(rig.open(0), &config), Side::on(rig.open(1), &config));
    connect(&mut a, &mut b, SECOND);
    a.qp.post_send_list(&[write(&b)]).unwrap();
    let _ = a.success();
    assert_eq!(b.bytes(0, 12), b"by that port");
    let sent = |number| port(&a.context, number).counters().unwrap().frames_sent;
    let received = |number| port(&b.context, number).counters().unwrap().frames_received;
    assert_eq!((sent(FIRST), received(FIRST)), (0, 0));
    assert!(sent(SECOND) >= 1 && received(SECOND) >= 1);
    assert_eq!(a.context.port_counters().unwrap().frames_sent, 0);
    rig.assert_clean();
}

#[test]
fn a_queue_pair_of_one_port_does_not_hear_the_other_ports_wire() {
    let rig = TwoPorts::new();
    let config = QpConfig::default();
    let (mut a, mut b) = (Side::on(rig.open(0), &config), Side::on(rig.open(1), &config));
    // Both ports of NIC 1 have the address, so that only the port tells them apart.
    let address = TwoPorts::address(1, FIRST);
    let entry = GidEntry {
        gid: Gid::from_ip(address),
        version: RoceVersion::V2,
        mac: mac(1),
        vlan: None,
    };
    let source = port(&b.context, SECOND).add_gid(entry).unwrap();
    let own = TwoPorts::gid_index(0, &port(&a.context, FIRST));
    let (a_qpn, b_qpn) = (a.qp.qpn(), b.qp.qpn());
    let ways = [
        (&mut a, FIRST, Path::to_ip(own, address, mac(1)), b_qpn),
        (
            &mut b,
            SECOND,
            Path::to_ip(source, TwoPorts::address(0, FIRST), mac(0)),
            a_qpn,
        ),
    ];
    for (side, number, path, remote) in ways {
        let to_init = ToInit {
            port: number,
            ..ToInit::default()
        };
        let rts = ToRts {
            timeout: 8,
            retry_count: 1,
            ..ToRts::new(5)
        };
        side.qp.modify_to_init(&to_init).unwrap();
        side.qp.modify_to_rtr(&ToRtr::new(path, remote, 5)).unwrap();
        side.qp.modify_to_rts(&rts).unwrap();
    }
    a.qp.post_send_list(&[write(&b)]).unwrap();
    assert_eq!(a.failure().status, WcStatus::TransportRetryExceeded);
    let dropped = rig
        .testbed
        .with_nic(1, |nic| nic.data_plane.counters.dropped_address);
    assert_eq!(dropped, Some(2), "the request and its repetition");
    assert_eq!(b.bytes(0, 12), [0; 12]);
    rig.assert_clean();
}

fn datagram(to: &Ah, qpn: Qpn) -> SendWr<'_> {
    let op = SendOp::SendTo {
        data: Payload::Inline(b"hello"),
        imm: None,
        to,
        qpn,
        qkey: 7,
    };
    SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED,
    }
}

#[test]
fn datagrams_go_by_the_port_of_handle_and_queue_pair() {
    let rig = TwoPorts::new();
    let config = QpConfig {
        qp_type: QpType::Ud,
        ..QpConfig::default()
    };
    let (mut a, mut b) = (Side::on(rig.open(0), &config), Side::on(rig.open(1), &config));
    for side in [&mut a, &mut b] {
        let to = ToInit {
            port: SECOND,
            ..ToInit::ud(7)
        };
        side.qp.start_datagrams(&to).unwrap();
    }
    let source = TwoPorts::gid_index(0, &port(&a.context, SECOND));
    let path = Path::to_ip(source, TwoPorts::address(1, SECOND), mac(1));
    let sges = [b.mr.sge(0..100).unwrap()];
    b.qp.post_recv_list(&[RecvWr {
        wr_id: 3,
        sges: &sges,
    }])
    .unwrap();
    let qpn = b.qp.qpn();
    let other = Ah::new(&a.pd, &path).expect("a handle for port 1");
    let refused = a.qp.post_send(&datagram(&other, qpn)).unwrap_err();
    assert_eq!(
        refused,
        PostError::OtherPort {
            handle: FIRST,
            queue: SECOND
        }
    );
    let ah = Ah::on_port(&a.pd, &path, SECOND).unwrap();
    a.qp.post_send_list(&[datagram(&ah, qpn)]).unwrap();
    let _ = a.success();
    assert_eq!(b.success().byte_len, 45);
    let third = PortNumber::new(3).unwrap();
    assert_eq!(
        Ah::on_port(&a.pd, &path, third),
        Err(PathError::NoSuchPort { port: third })
    );
    rig.assert_clean();
}

#[test]
fn ports_that_a_nic_does_not_have_are_refused_by_name() {
    let rig = TwoPorts::new();
    let context = rig.open(0);
    let third = PortNumber::new(3).unwrap();
    assert_eq!(context.port_count(), 2);
    let numbers: Vec<u8> = context.ports().map(|port| port.number().get()).collect();
    assert_eq!(numbers, [1, 2]);
    let error = context.port(third).unwrap_err().to_string();
    assert!(error.contains("port") && error.contains("at most 2"), "{error}");
    let mut side = Side::on(context, &QpConfig::default());
    let error = side.qp.modify_to_init(&ToInit {
        port: third,
        ..ToInit::default()
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("port 3"), "{error}");

    // A NIC of one port, as most are.
    let nics = Nics::pair(Profile::connectx4());
    let config = OpenConfig::new().command_timeout(Duration::from_secs(10));
    let asked = config.clone().address_on(SECOND, TwoPorts::address(0, SECOND));
    let error = Context::open(nics.function(0), asked).unwrap_err();
    let error = std::error::Error::source(&error).map(ToString::to_string);
    assert!(
        error.as_ref().is_some_and(|e| e.contains("at most 1")),
        "{error:?}"
    );
    let context = Context::open(nics.function(0), config.clone()).unwrap();
    assert_eq!(context.port_count(), 1);
    assert!(context.port(SECOND).is_err());
    assert!(context.port(FIRST).unwrap().gids().size() > 0);
}

#[test]
fn an_address_of_a_port_without_a_gid_table_is_refused_by_name() {
    let mut profile = Profile::connectx4().with_ports(2);
    profile
        .capabilities
        .edit_max(CapType::GENERAL, |caps: &mut CmdHcaCap| {
            caps.set_num_vhca_ports(0)
        });
    let nics = Nics::pair(profile);
    let config = OpenConfig::new().command_timeout(Duration::from_secs(10));
    let address = TwoPorts::address(0, SECOND);
    let asked = config.clone().address_on(SECOND, address);
    let error = Context::open(nics.function(0), asked).unwrap_err();
    let error = std::error::Error::source(&error).map(ToString::to_string);
    let named = |text: &str| text.contains("port 2") && text.contains(&address.to_string());
    assert!(error.as_deref().is_some_and(named), "{error:?}");
    // Without, the port is there all the same.
    let context = Context::open(nics.function(0), config).unwrap();
    assert_eq!(context.port_count(), 2);
}
