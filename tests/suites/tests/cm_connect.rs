//! Connections between two drivers on two NIC models, made by their connection managers.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferroce::cm::mad::SidrStatus;
use ferroce::cm::{
    ConnectError, Connection, DatagramListener, DisconnectCause, DisconnectError, Event, ListenError,
    Listener, LookupError, Manager, Params, RejectReason, ResolveError, Resolver, StartError, StaticTable,
    WaitError,
};
use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::gid::{Gid, GidEntry, RoceVersion};
use ferroce::ids::Qpn;
use ferroce::port::MacAddress;
use ferroce::verbs::{
    Ah, Mtu, Path, Payload, Qp, QpConfig, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, ToInit,
    WcOpcode,
};
use ferroce_nic_model::link::fault::Faults;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::cm::{Host, Hosts, PORT, config, soon};
use ferroce_suites::pair::{address, mac, open};

fn within(millis: u64) -> Instant {
    Instant::now() + Duration::from_millis(millis)
}

/// Writes 17 bytes from one host's memory to the other's.
fn write(from: &mut Host, connection: &mut Connection, to: &Host) {
    let (source, target) = (from.region(4096), to.region(4096));
    source.write(0, b"over a connection").unwrap();
    let sges = [source.sge(0..17).unwrap()];
    let op = SendOp::Write {
        data: Payload::Gather(&sges),
        remote: target.remote(100),
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    let wr = SendWr { wr_id: 1, op, flags };
    connection.qp_mut().post_send(&wr).unwrap();
    connection.qp_mut().ring_send();
    from.poller.wait(soon()).unwrap();
    let done = from.poller.poll_one().unwrap().unwrap().result().unwrap();
    assert_eq!(done.wr_id, 1);
    let mut bytes = [0; 17];
    target.read(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"over a connection");
}

#[test]
fn a_connection_carries_data_and_ends() {
    let mut hosts = Hosts::new();
    let mut listener = hosts.listen();
    let (mut active, mut passive) = hosts.connect(&mut listener);
    assert_eq!(
        (active.qp().state(), passive.qp().state()),
        (QpState::Rts, QpState::Rts)
    );
    assert_eq!(active.remote_address(), hosts.there());
    assert_eq!(passive.remote_address().ip(), address(0));
    assert_eq!(
        (active.local_address(), passive.local_address()),
        (Some(address(0)), Some(address(1)))
    );
    write(&mut hosts.a, &mut active, &hosts.b);
    write(&mut hosts.b, &mut passive, &hosts.a);
    assert_eq!((active.next_event(), passive.next_event()), (None, None));

    active.disconnect(soon()).unwrap();
    assert_eq!(active.ended(), Some(DisconnectCause::Local));
    let ended = Event::Disconnected(DisconnectCause::Peer);
    assert_eq!(passive.wait_event(soon()), Ok(ended));
    assert_eq!(
        (active.qp().state(), passive.qp().state()),
        (QpState::Err, QpState::Err)
    );
    // The other side may say so too.
    passive.disconnect(soon()).unwrap();
    assert_eq!(hosts.a.manager.counters().connections, 1, "time-wait");
    drop((active, passive));
    for host in [&hosts.a, &hosts.b] {
        host.manager.wait_idle(soon()).unwrap();
    }
    hosts.assert_clean();
}

#[test]
fn both_sides_get_what_they_have_agreed_on() {
    let hosts = Hosts::new();
    let mut listener = hosts.listen();
    let asks = Params {
        private_data: b"I ask".to_vec(),
        mtu: Some(Mtu::Mtu1024),
        responder_resources: 2,
        initiator_depth: 8,
        ack_timeout: Some(Duration::from_millis(200)),
        retry_count: 3,
        rnr_retry: 2,
        rnr_timer: Duration::from_micros(80),
        traffic_class: Some(0x68),
        ..Params::new()
    };
    let gives = Params {
        private_data: b"I give".to_vec(),
        responder_resources: 4,
        initiator_depth: 16,
        rnr_retry: 5,
        rnr_timer: Duration::from_millis(2),
        ..Params::new()
    };
    let (mut active, mut passive) = hosts.connect_with(&mut listener, &asks, &gives);
    assert_eq!(&active.private_data()[..7], b"I give\0");
    assert_eq!(&passive.private_data()[..6], b"I ask\0");
    let (a, b) = (
        active.qp_mut().query().unwrap(),
        passive.qp_mut().query().unwrap(),
    );
    assert_eq!((a.mtu, b.mtu), (Some(Mtu::Mtu1024), Some(Mtu::Mtu1024)));
    // Each says how often the other repeats; the one who asks says how long both wait.
    assert_eq!((a.rnr_retry, b.rnr_retry), (5, 2));
    assert_eq!(
        (a.retry_count, b.retry_count, a.timeout, b.timeout),
        (3, 3, 16, 16)
    );
    assert_eq!((a.min_rnr_timer, b.min_rnr_timer), (6, 16));
    assert_eq!((a.path.traffic_class, b.path.traffic_class), (0x68, 0x68));
    assert_eq!((a.sq_psn, b.sq_psn), (b.rq_psn, a.rq_psn));
    assert_eq!(
        (a.remote_qpn, b.remote_qpn),
        (passive.qp().qpn(), active.qp().qpn())
    );
    hosts.assert_clean();
}

#[test]
fn who_asks_waits_for_as_long_as_the_peers_nic_may_take() {
    let hosts = Hosts::new();
    let mut listener = hosts.listen();
    let (mut active, mut passive) = hosts.connect(&mut listener);
    // 67 ms are asked for; the acceptance tells of 134 ms on top.
    assert_eq!(active.qp_mut().query().unwrap().timeout, 16);
    assert_eq!(passive.qp_mut().query().unwrap().timeout, 14);
    hosts.assert_clean();
}

#[test]
fn what_can_not_be_connected_is_told_by_name() {
    let hosts = Hosts::new();
    let ask = |qp: Qp, to: SocketAddr| hosts.a.manager.connect(qp, to, &Params::new(), within(3000));
    let error = ask(hosts.a.qp(), hosts.there()).unwrap_err();
    assert!(
        matches!(
            &error,
            ConnectError::Rejected {
                reason: RejectReason::InvalidServiceId,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "rejected: nobody listens there (invalid service id) (REJ reason 8)"
    );
    let nowhere = "10.9.0.77:1".parse().unwrap();
    let error = ask(hosts.a.qp(), nowhere).unwrap_err();
    assert!(
        matches!(&error, ConnectError::Resolve(ResolveError::Unknown { address }) if *address == nowhere.ip()),
        "{error}"
    );
    let datagrams = QpConfig {
        qp_type: QpType::Ud,
        ..QpConfig::default()
    };
    let ud = Qp::create(&hosts.a.pd, &hosts.a.cq, &hosts.a.cq, &datagrams).unwrap();
    assert!(matches!(ask(ud, hosts.there()), Err(ConnectError::QpType { .. })));
    let mut broken = hosts.a.qp();
    broken.modify_to_err().unwrap();
    assert!(matches!(
        ask(broken, hosts.there()),
        Err(ConnectError::QpState { .. })
    ));
    assert!(matches!(
        ask(hosts.b.qp(), hosts.there()),
        Err(ConnectError::OtherDevice)
    ));
    let _listener = hosts.listen();
    let again = Listener::bind(&hosts.b.manager, hosts.there()).unwrap_err();
    assert_eq!(
        again,
        ListenError::InUse {
            address: hosts.there()
        }
    );
    let error = Manager::start(&hosts.a.context, StaticTable::new(&hosts.a.context)).unwrap_err();
    assert!(matches!(error, StartError::Create(_)), "{error}");
}

#[test]
fn a_listener_at_one_address_takes_only_requests_for_it() {
    let hosts = Hosts::new();
    let elsewhere = SocketAddr::new("10.9.0.9".parse().unwrap(), PORT);
    let _listener = Listener::bind(&hosts.b.manager, elsewhere).unwrap();
    let error = hosts
        .a
        .manager
        .connect(hosts.a.qp(), hosts.there(), &Params::new(), soon())
        .unwrap_err();
    assert!(matches!(
        error,
        ConnectError::Rejected {
            reason: RejectReason::InvalidServiceId,
            ..
        }
    ));
    let any: IpAddr = "0.0.0.0".parse().unwrap();
    let free = Listener::bind(&hosts.b.manager, SocketAddr::new(any, 0)).unwrap();
    assert!(free.local_address().port() >= 0xc000);
}

#[test]
fn an_mtu_that_the_port_does_not_carry_is_rejected_with_one_that_would_do() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let a = Host::new(&testbed, 0, &config());
    // 1500 bytes of Ethernet carry 1024 of RoCE.
    let function = InProcess::new("nic1", testbed.device(1).unwrap()).unwrap();
    let small = OpenConfig::new().address(address(1)).mtu(1500);
    let b = Host::on(Context::open(Arc::new(function), small).unwrap(), 1, &config());
    let hosts = Hosts { a, b, testbed };
    let mut listener = hosts.listen();
    let asking_for = |mtu| Params {
        mtu: Some(mtu),
        ..Params::new()
    };
    let (manager, params) = (&hosts.a.manager, asking_for(Mtu::Mtu4096));
    let error = manager.connect(hosts.a.qp(), hosts.there(), &params, soon());
    let ConnectError::Rejected { reason, info, .. } = error.unwrap_err() else {
        panic!("not rejected")
    };
    assert_eq!((reason, &info[..]), (RejectReason::InvalidMtu, &[3][..]));
    let would_do = Mtu::ALL[usize::from(info[0]) - 1];
    assert_eq!(would_do, Mtu::Mtu1024);
    let (mut active, _passive) = hosts.connect_with(&mut listener, &asking_for(would_do), &Params::new());
    assert_eq!(active.qp_mut().query().unwrap().mtu, Some(Mtu::Mtu1024));
    hosts.assert_clean();
}

#[test]
fn c05_private_data_has_the_messages_lengths_and_too_much_is_refused_here() {
    let hosts = Hosts::new();
    let mut listener = hosts.listen();
    for (req, rep) in [(0, 0), (1, 1), (56, 196)] {
        let (asks, gives) = (vec![7; req], vec![8; rep]);
        let (active, passive) = hosts.connect_with(
            &mut listener,
            &Params::new().private_data(asks.clone()),
            &Params::new().private_data(gives.clone()),
        );
        // What comes is always the whole area, the rest of it zeros.
        for (got, sent, area) in [
            (passive.private_data(), asks, 56),
            (active.private_data(), gives, 196),
        ] {
            assert_eq!(got.len(), area);
            assert_eq!(&got[..sent.len()], &sent[..]);
            assert!(got[sent.len()..].iter().all(|byte| *byte == 0));
        }
    }
    let params = Params::new().private_data(vec![7; 57]);
    let error = hosts
        .a
        .manager
        .connect(hosts.a.qp(), hosts.there(), &params, soon())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "57 bytes of private data for a connection request, which holds 56"
    );
    let ask = || {
        hosts
            .a
            .manager
            .start_connect(hosts.a.qp(), hosts.there(), &Params::new(), soon())
    };
    let mut asked = ask().unwrap();
    let request = request(&mut listener, &mut asked);
    let params = Params::new().private_data(vec![7; 197]);
    let error = request.accept(hosts.b.qp(), &params, soon()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "197 bytes of private data for an acceptance, which holds 196"
    );
    assert!(matches!(
        asked.wait(),
        Err(ConnectError::Rejected {
            reason: RejectReason::Consumer,
            ..
        })
    ));
    for (len, refused) in [(148, false), (149, true)] {
        let mut asked = ask().unwrap();
        let request = self::request(&mut listener, &mut asked);
        assert_eq!(request.reject(&vec![9; len]).is_err(), refused);
        let Err(ConnectError::Rejected { private_data, .. }) = asked.wait() else {
            panic!()
        };
        assert_eq!(private_data.len(), 148);
        assert_eq!(private_data.iter().all(|byte| *byte == 9), !refused);
    }
}

/// The request of a connection that is being made.
fn request(listener: &mut Listener, asked: &mut ferroce::cm::Connecting) -> ferroce::cm::Request {
    loop {
        assert!(asked.try_finish().is_none());
        if let Some(request) = listener.try_next().unwrap() {
            return request;
        }
        std::thread::yield_now();
    }
}

/// C01: nothing needs to be acknowledged, and nothing that is dropped waits for it.
#[test]
fn c01_what_is_dropped_with_its_news_untouched_never_hangs() {
    let hosts = Hosts::new();
    let started = Instant::now();
    let deadline = || within(500);
    // No address, no route: the news lie in what is dropped.
    let nowhere = "10.9.0.77:1".parse().unwrap();
    drop(
        hosts
            .a
            .manager
            .start_connect(hosts.a.qp(), nowhere, &Params::new(), deadline()),
    );
    // A rejection that has come.
    let asked = hosts
        .a
        .manager
        .start_connect(hosts.a.qp(), hosts.there(), &Params::new(), deadline());
    let mut asked = asked.unwrap();
    assert!(asked.try_finish().is_none());
    while hosts.a.manager.counters().machine.received == 0 {
        std::thread::yield_now();
    }
    drop(asked);
    // A request that nobody looks at, one that is looked at and dropped, an acceptance that is dropped, a connection
    // whose end nobody looks at.
    let mut listener = hosts.listen();
    let ask = || {
        hosts
            .a
            .manager
            .start_connect(hosts.a.qp(), hosts.there(), &Params::new(), soon())
            .unwrap()
    };
    let mut second = ask();
    drop(request(&mut listener, &mut second));
    drop(second);
    let mut third = ask();
    drop(
        request(&mut listener, &mut third)
            .start_accept(hosts.b.qp(), &Params::new(), soon())
            .unwrap(),
    );
    drop(third);
    let (active, passive) = hosts.connect(&mut listener);
    drop(active);
    while hosts.b.manager.counters().connections > 1 {
        std::thread::yield_now();
    }
    drop(passive);
    // Nobody answers; and nobody has answered yet.
    hosts.testbed.set_cable(false);
    for wait in [Duration::ZERO, Duration::from_millis(1)] {
        let asked =
            hosts
                .a
                .manager
                .start_connect(hosts.a.qp(), hosts.there(), &Params::new(), Instant::now() + wait);
        let mut asked = asked.unwrap();
        assert!(asked.try_finish().is_none() || wait.is_zero());
        drop(asked);
    }
    hosts.testbed.set_cable(true);
    let mut fourth = ask();
    assert!(fourth.try_finish().is_none());
    drop(listener);
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    drop(fourth);
    for host in [&hosts.a, &hosts.b] {
        host.manager.wait_idle(soon()).unwrap();
    }
    hosts.assert_clean();
}

#[test]
fn silence_is_told_at_the_deadline_or_after_the_retries() {
    let patience = ferroce::cm::ManagerConfig {
        response_timeout: Duration::from_millis(10),
        max_retries: 2,
        ..config()
    };
    let hosts = Hosts::with(TestbedConfig::default(), &patience);
    hosts.testbed.set_cable(false);
    let connect = |deadline| {
        let qp = hosts.a.qp();
        hosts
            .a
            .manager
            .connect(qp, hosts.there(), &Params::new(), deadline)
            .unwrap_err()
    };
    assert!(matches!(connect(within(5)), ConnectError::Deadline { .. }));
    assert!(matches!(connect(soon()), ConnectError::NoAnswer { tries: 3 }));
    hosts.testbed.set_cable(true);
    let mut listener = hosts.listen();
    let (mut active, mut passive) = hosts.connect(&mut listener);
    hosts.testbed.set_cable(false);
    assert!(matches!(
        active.disconnect(soon()),
        Err(DisconnectError::NoAnswer)
    ));
    assert_eq!(active.ended(), Some(DisconnectCause::NoAnswer));
    assert!(matches!(
        passive.disconnect(within(5)),
        Err(DisconnectError::NoAnswer)
    ));
    assert_eq!(listener.next_request(within(1)).unwrap_err(), WaitError::Deadline);
}

#[test]
fn every_call_that_waits_ends_at_its_deadline() {
    let wait = Duration::from_millis(20);
    let timed = |call: &mut dyn FnMut(Instant)| {
        let started = Instant::now();
        call(started + wait);
        let took = started.elapsed();
        assert!((wait..Duration::from_secs(5)).contains(&took), "{took:?}");
    };
    let hosts = Hosts::new();
    let mut listener = hosts.listen();
    let mut datagrams = DatagramListener::bind(&hosts.b.manager, hosts.there()).unwrap();
    timed(&mut |until| assert_eq!(listener.next_request(until).unwrap_err(), WaitError::Deadline));
    timed(&mut |until| assert_eq!(datagrams.next_request(until).unwrap_err(), WaitError::Deadline));
    let (mut active, passive) = hosts.connect(&mut listener);
    timed(&mut |until| assert_eq!(active.wait_event(until), Err(WaitError::Deadline)));
    let manager = &hosts.a.manager;
    timed(&mut |until| assert_eq!(manager.wait_idle(until), Err(WaitError::Deadline)));
    let mut asked = manager
        .start_connect(hosts.a.qp(), hosts.there(), &Params::new(), soon())
        .unwrap();
    let mut request = Some(request(&mut listener, &mut asked));
    // Nobody is heard of any more.
    hosts.testbed.set_cable(false);
    timed(&mut |until| {
        let accepted = request
            .take()
            .unwrap()
            .accept(hosts.b.qp(), &Params::new(), until);
        assert!(
            matches!(accepted, Err(ConnectError::Deadline { .. })),
            "{accepted:?}"
        );
    });
    timed(&mut |until| {
        let connected = manager.connect(hosts.a.qp(), hosts.there(), &Params::new(), until);
        assert!(
            matches!(connected, Err(ConnectError::Deadline { .. })),
            "{connected:?}"
        );
    });
    timed(&mut |until| {
        let found = manager.connect_datagram(hosts.there(), b"", until);
        assert!(matches!(found, Err(LookupError::Deadline)), "{found:?}");
    });
    timed(&mut |until| {
        let ended = active.disconnect(until);
        assert!(matches!(ended, Err(DisconnectError::NoAnswer)), "{ended:?}");
    });
    hosts.testbed.set_cable(true);
    drop((asked, passive));
    hosts.assert_clean();
}

#[test]
fn a_peer_can_put_us_off_for_as_long_as_the_manager_has_patience() {
    let patience = Duration::from_millis(20);
    let config = ferroce::cm::ManagerConfig {
        response_timeout: Duration::from_millis(10),
        max_retries: 3,
        patience,
        ..config()
    };
    let hosts = Hosts::with(TestbedConfig::default(), &config);
    // Nobody looks at the requests, and the peer's manager asks for a minute when they come again.
    let _listener = hosts.listen();
    let started = Instant::now();
    let (manager, params) = (&hosts.a.manager, Params::new());
    let error = manager.connect(hosts.a.qp(), hosts.there(), &params, soon());
    assert!(
        matches!(error, Err(ConnectError::NoAnswer { tries: 4 })),
        "{error:?}"
    );
    assert!(started.elapsed() >= patience);
    assert!(
        hosts.b.manager.counters().machine.duplicates >= 2,
        "the MRA was sent"
    );
}

/// C07: late errors on a connection that is in use.
#[test]
fn c07_a_neighbour_that_changes_is_a_loss_of_path_and_nothing_breaks() {
    let mut hosts = Hosts::new();
    let mut listener = hosts.listen();
    let (mut active, mut passive) = hosts.connect(&mut listener);
    let other = MacAddress([2, 0, 0, 0, 0, 0x77]);
    hosts.a.neighbours.insert(address(1), other);
    let Ok(Event::PathLost(change)) = active.wait_event(soon()) else {
        panic!()
    };
    assert_eq!(
        (change.address, change.was, change.now),
        (address(1), mac(1), Some(other))
    );
    hosts.a.neighbours.insert(address(1), mac(1));
    assert_eq!(active.next_event(), None, "the way is the queue pair's again");
    hosts.a.neighbours.remove(address(1));
    let Ok(Event::PathLost(change)) = active.wait_event(soon()) else {
        panic!()
    };
    assert_eq!(change.now, None);
    // The queue pair goes its way as before, and the end is as ever: datagrams go where the connection went.
    assert_eq!(active.qp().state(), QpState::Rts);
    write(&mut hosts.a, &mut active, &hosts.b);
    hosts.a.neighbours.insert(address(1), mac(1));
    active.disconnect(soon()).unwrap();
    assert_eq!(
        passive.wait_event(soon()),
        Ok(Event::Disconnected(DisconnectCause::Peer))
    );
}

/// A table of neighbours that counts the connections that it is told of.
struct Counting {
    table: Arc<StaticTable>,
    connections: Arc<Mutex<HashMap<IpAddr, i64>>>,
}

impl Resolver for Counting {
    fn resolve(&self, address: IpAddr, deadline: Instant) -> Result<Path, ResolveError> {
        self.table.resolve(address, deadline)
    }

    fn lookup(&self, address: IpAddr) -> Option<Path> {
        self.table.lookup(address)
    }

    fn connected(&self, address: IpAddr) {
        *self.connections.lock().unwrap().entry(address).or_default() += 1;
    }

    fn disconnected(&self, address: IpAddr) {
        *self.connections.lock().unwrap().entry(address).or_default() -= 1;
    }
}

#[test]
fn resolvers_are_told_which_peers_have_connections() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let counts: [Arc<Mutex<HashMap<IpAddr, i64>>>; 2] = Default::default();
    let [a, b] = [0, 1].map(|index| {
        let connections = counts[index].clone();
        let counting = |table| Counting { table, connections };
        Host::with_resolver(open(&testbed, index), index, &config(), counting)
    });
    let hosts = Hosts { a, b, testbed };
    let count = || {
        let of = |side: usize| counts[side].lock().unwrap().get(&address(1 - side)).copied();
        [of(0).unwrap_or(0), of(1).unwrap_or(0)]
    };
    let mut listener = hosts.listen();
    let mut first = hosts.connect(&mut listener);
    let second = hosts.connect(&mut listener);
    assert_eq!(count(), [2, 2]);
    first.0.disconnect(soon()).unwrap();
    drop(first);
    assert_eq!(count(), [1, 1]);
    drop(second);
    assert_eq!(count(), [0, 0]);
    // What comes to nothing is told of as well.
    let mut asked = hosts
        .a
        .manager
        .start_connect(hosts.a.qp(), hosts.there(), &Params::new(), soon())
        .unwrap();
    let request = request(&mut listener, &mut asked);
    assert_eq!(count(), [1, 0]);
    let accepting = request
        .start_accept(hosts.b.qp(), &Params::new(), soon())
        .unwrap();
    assert_eq!(count(), [1, 1]);
    drop(accepting);
    // It may have seen the acceptance first.
    drop(asked.wait());
    assert_eq!(count(), [0, 0]);
}

/// The first host with nothing left of what it had: numbers begin anew.
fn restart(testbed: &Testbed, a: Host) -> Host {
    let (manager, context) = (a.manager.clone(), a.context.clone());
    drop(a);
    manager.close(soon()).unwrap();
    context.close().unwrap();
    Host::on(open(testbed, 0), 0, &config())
}

/// A queue pair of that number, which is to come soon.
fn qp_numbered(host: &Host, qpn: Qpn) -> Qp {
    let mut others = Vec::new();
    loop {
        let qp = host.qp();
        if qp.qpn() == qpn {
            return qp;
        }
        assert!(others.len() < 1000, "{qpn} does not come again");
        others.push(qp);
    }
}

/// C03: a peer whose power fails comes back with the same queue pair number, both times that it tries.
#[test]
fn c03_a_peer_that_comes_back_is_told_that_it_is_stale_and_then_let_in() {
    let Hosts { a, mut b, testbed } = Hosts::new();
    let there = SocketAddr::new(address(1), PORT);
    let mut listener = Listener::bind(&b.manager, there).unwrap();
    let server = |listener: &mut Listener, host: &Host| {
        let request = listener.next_request(soon()).unwrap();
        request.accept(host.qp(), &Params::new(), soon()).unwrap()
    };
    // Long enough for a busy machine: the time-wait is twice 2.1 s.
    let (asks, time_wait) = (
        Params {
            ack_timeout: Some(Duration::from_secs(2)),
            ..Params::new()
        },
        Duration::from_nanos(2 * (4096 << 19)),
    );
    let connect = |host: &Host, qp: Qp| host.manager.connect(qp, there, &asks, soon());
    let (first, mut old) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| server(&mut listener, &b));
        (connect(&a, a.qp()).unwrap(), accepted.join().unwrap())
    });
    let qpn = first.qp().qpn();
    // The power fails: nothing that is said reaches the peer.
    testbed.set_cable(false);
    drop(first);
    let a = restart(&testbed, a);
    testbed.set_cable(true);
    let came_back = Instant::now();
    let error = connect(&a, qp_numbered(&a, qpn)).unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::Rejected {
                reason: RejectReason::StaleConnection,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        old.wait_event(soon()),
        Ok(Event::Disconnected(DisconnectCause::Stale))
    );
    assert_eq!(old.qp().state(), QpState::Err);
    drop(old);
    let mut a = restart(&testbed, a);
    let (mut active, mut passive) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| server(&mut listener, &b));
        let active = connect(&a, qp_numbered(&a, qpn)).unwrap();
        (active, accepted.join().unwrap())
    });
    assert!(came_back.elapsed() < time_wait, "{:?}", came_back.elapsed());
    assert_eq!(
        b.manager.counters().connections,
        2,
        "the old one is in time-wait still"
    );
    write(&mut a, &mut active, &b);
    write(&mut b, &mut passive, &a);
}

#[test]
fn a_bad_wire_costs_time_and_nothing_else() {
    let faults = Faults {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        seed: 5,
        ..Faults::default()
    };
    let mut hosts = Hosts::with(
        TestbedConfig {
            faults,
            ..TestbedConfig::default()
        },
        &config(),
    );
    let mut listener = hosts.listen();
    for _ in 0..20 {
        let (mut active, mut passive) = hosts.connect(&mut listener);
        write(&mut hosts.a, &mut active, &hosts.b);
        active.disconnect(soon()).unwrap();
        // The end may have been lost on the way, but comes.
        assert!(matches!(passive.wait_event(soon()), Ok(Event::Disconnected(_))));
    }
    for host in [&hosts.a, &hosts.b] {
        host.manager.wait_idle(soon()).unwrap();
    }
    hosts.assert_clean();
}

#[test]
fn unreliable_connections_are_made_too() {
    let hosts = Hosts::new();
    let mut listener = hosts.listen();
    let uc = |host: &Host| {
        let config = QpConfig {
            qp_type: QpType::Uc,
            ..QpConfig::default()
        };
        Qp::create(&host.pd, &host.cq, &host.cq, &config).unwrap()
    };
    let mut asked = hosts
        .a
        .manager
        .start_connect(uc(&hosts.a), hosts.there(), &Params::new(), soon())
        .unwrap();
    let request = request(&mut listener, &mut asked);
    assert_eq!(request.transport(), ferroce::cm::Transport::Uc);
    let accepting = request
        .start_accept(uc(&hosts.b), &Params::new(), soon())
        .unwrap();
    let active = asked.wait().unwrap();
    let passive = accepting.wait().unwrap();
    assert_eq!(
        (active.qp().state(), passive.qp().state()),
        (QpState::Rts, QpState::Rts)
    );
    // The other kind of queue pair than the one asked for is refused, and the peer told.
    let mut asked = hosts
        .a
        .manager
        .start_connect(uc(&hosts.a), hosts.there(), &Params::new(), soon())
        .unwrap();
    let request = self::request(&mut listener, &mut asked);
    assert!(matches!(
        request.accept(hosts.b.qp(), &Params::new(), soon()),
        Err(ConnectError::QpType { qp_type: QpType::Rc })
    ));
    assert!(matches!(asked.wait(), Err(ConnectError::Rejected { .. })));
    hosts.assert_clean();
}

#[test]
fn ipv6_addresses_connect_as_well() {
    let mut hosts = Hosts::new();
    let [one, two]: [IpAddr; 2] = ["fd00:9::1", "fd00:9::2"].map(|text| text.parse().unwrap());
    for (host, own, peer, index) in [(&hosts.a, one, two, 0), (&hosts.b, two, one, 1)] {
        let entry = GidEntry {
            gid: Gid::from_ip(own),
            version: RoceVersion::V2,
            mac: mac(index),
            vlan: None,
        };
        host.context.add_gid(entry).unwrap();
        host.neighbours.insert(peer, mac(1 - index));
    }
    let mut listener = Listener::bind(&hosts.b.manager, SocketAddr::new(two, PORT)).unwrap();
    let asked =
        hosts
            .a
            .manager
            .start_connect(hosts.a.qp(), SocketAddr::new(two, PORT), &Params::new(), soon());
    let mut asked = asked.unwrap();
    let request = request(&mut listener, &mut asked);
    assert_eq!(
        (request.remote_address().ip(), request.local_address()),
        (one, two)
    );
    let accepting = request
        .start_accept(hosts.b.qp(), &Params::new(), soon())
        .unwrap();
    let mut active = asked.wait().unwrap();
    let passive = accepting.wait().unwrap();
    write(&mut hosts.a, &mut active, &hosts.b);
    assert_eq!(passive.remote_address().ip(), one);
    hosts.assert_clean();
}

#[test]
fn datagram_services_are_found_by_address() {
    const QKEY: u32 = 0x0123_4567;
    let mut hosts = Hosts::new();
    let ud = |host: &Host| {
        let config = QpConfig {
            qp_type: QpType::Ud,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&host.pd, &host.cq, &host.cq, &config).unwrap();
        qp.start_datagrams(&ToInit::ud(QKEY)).unwrap();
        qp
    };
    let (mut client, mut server) = (ud(&hosts.a), ud(&hosts.b));
    let error = hosts
        .a
        .manager
        .connect_datagram(hosts.there(), b"", soon())
        .unwrap_err();
    assert!(matches!(
        error,
        LookupError::Refused {
            status: SidrStatus::ServiceIdNotSupported,
            ..
        }
    ));
    // A listener for connections is none for datagrams.
    let _connections = hosts.listen();
    assert!(
        hosts
            .a
            .manager
            .connect_datagram(hosts.there(), b"", soon())
            .is_err()
    );
    let mut listener = DatagramListener::bind(&hosts.b.manager, hosts.there()).unwrap();
    let found = std::thread::scope(|scope| {
        let (listener, qpn) = (&mut listener, server.qpn());
        scope.spawn(move || {
            let request = listener.next_request(soon()).unwrap();
            assert_eq!(request.remote_address().ip(), address(0));
            assert_eq!(&request.private_data()[..4], b"who\0");
            request.accept(qpn, QKEY, b"me").unwrap();
            listener.next_request(soon()).unwrap().reject();
        });
        let found = hosts
            .a
            .manager
            .connect_datagram(hosts.there(), b"who", soon())
            .unwrap();
        let refused = hosts.a.manager.connect_datagram(hosts.there(), b"", soon());
        assert!(matches!(
            refused,
            Err(LookupError::Refused {
                status: SidrStatus::Rejected,
                ..
            })
        ));
        found
    });
    assert_eq!((found.qpn, found.qkey), (server.qpn(), QKEY));
    assert_eq!(&found.private_data[..3], b"me\0");
    let (source, target) = (hosts.a.region(4096), hosts.b.region(4096));
    source.write(0, b"datagram").unwrap();
    let into = [target.sge(0..4096).unwrap()];
    server
        .post_recv(&RecvWr {
            wr_id: 1,
            sges: &into,
        })
        .unwrap();
    server.ring_recv();
    let sges = [source.sge(0..8).unwrap()];
    let to = Ah::new(&hosts.a.pd, &found.path).unwrap();
    let op = SendOp::SendTo {
        data: Payload::Gather(&sges),
        imm: None,
        to: &to,
        qpn: found.qpn,
        qkey: found.qkey,
    };
    let flags = SendFlags::SIGNALED;
    client.post_send(&SendWr { wr_id: 2, op, flags }).unwrap();
    client.ring_send();
    hosts.b.poller.wait(soon()).unwrap();
    let received = hosts.b.poller.poll_one().unwrap().unwrap().result().unwrap();
    assert_eq!((received.opcode, received.byte_len), (WcOpcode::Recv, 48));
    let too_much = hosts.a.manager.connect_datagram(hosts.there(), &[0; 181], soon());
    assert!(matches!(too_much, Err(LookupError::PrivateData(_))));
    hosts.assert_clean();
}

#[test]
fn a_manager_that_is_closed_tells_all_and_can_be_started_again() {
    let hosts = Hosts::new();
    let mut listener = hosts.listen();
    let (mut active, mut passive) = hosts.connect(&mut listener);
    let asking = hosts.b.manager.clone();
    hosts.b.manager.clone().close(soon()).unwrap();
    assert!(matches!(passive.wait_event(soon()), Ok(Event::Stopped(_))));
    assert!(matches!(passive.wait_event(soon()), Err(WaitError::Stopped(_))));
    assert!(matches!(
        listener.next_request(soon()),
        Err(WaitError::Stopped(_))
    ));
    assert!(listener.try_next().is_err());
    assert!(matches!(
        asking.connect(hosts.b.qp(), hosts.there(), &Params::new(), soon()),
        Err(ConnectError::Stopped(_))
    ));
    assert!(matches!(
        passive.disconnect(soon()),
        Err(DisconnectError::Stopped(_))
    ));
    drop(passive);
    // QP 1 is free again.
    let again = Manager::start(&hosts.b.context, hosts.b.neighbours.clone()).unwrap();
    // The peer that knows nothing of the old connection says so, and that is the end of it.
    active.disconnect(soon()).unwrap();
    drop(again);
    hosts.assert_clean();
}

/// Finds nobody at first, when it is told to give up, and then whom a table has.
struct SecondTime {
    table: StaticTable,
    give_up: Mutex<Option<Receiver<()>>>,
}

impl Resolver for SecondTime {
    fn resolve(&self, address: IpAddr, deadline: Instant) -> Result<Path, ResolveError> {
        let first = self.give_up.lock().unwrap().take();
        if let Some(give_up) = first {
            give_up.recv().expect("the test says when");
            let waited = Duration::ZERO;
            return Err(ResolveError::NoAnswer { address, waited });
        }
        self.table.resolve(address, deadline)
    }
}

#[test]
fn who_joins_a_look_up_has_all_of_its_own_time() {
    let hosts = Hosts::new();
    let Host {
        manager: first,
        context,
        neighbours,
        cq,
        poller,
        pd,
    } = hosts.a;
    drop(first);
    let (told, give_up) = channel();
    let resolver = SecondTime {
        table: StaticTable::new(&context).with(address(1), mac(1)),
        give_up: Mutex::new(Some(give_up)),
    };
    let manager = Manager::with(&context, resolver, &config()).unwrap();
    let host = Host {
        manager,
        neighbours,
        cq,
        poller,
        pd,
        context,
    };
    let there = SocketAddr::new(address(1), PORT);
    let ask = |deadline| {
        host.manager
            .start_connect(host.qp(), there, &Params::new(), deadline)
            .unwrap()
    };
    let short = ask(soon());
    let long = ask(soon() + Duration::from_secs(60));
    told.send(()).unwrap();
    assert!(matches!(
        short.wait(),
        Err(ConnectError::Resolve(ResolveError::NoAnswer { .. }))
    ));
    // Nobody listens there, which only the peer can say.
    assert!(matches!(long.wait(), Err(ConnectError::Rejected { .. })));
}
