//! The link agent on the NIC model: two NICs on a cable that find each other, and nobody else to help them.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferroce::cm::{DisconnectCause, DisconnectError, Event, ManagerConfig, Resolver};
use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::gid::{Gid, RoceVersion};
use ferroce::link::{
    AddressState, Agent, AgentConfig, DuplicateDetection, InterfaceAddress, LinkError, LinkEvent,
    NeighbourKey, ResolveError, RouteError, RouteQuery, Timing, Via,
};
use ferroce::port::MacAddress;
use ferroce::verbs::{Payload, QpConfig, QpState, SendFlags, SendOp, SendWr, ToInit, ToRtr, ToRts};
use ferroce_nic_model::link::pcap::PcapFile;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::cm::{Host, Hosts};
use ferroce_suites::pair::{PATIENCE, Side, mac};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn address(text: &str) -> InterfaceAddress {
    text.parse().expect("an address with a prefix")
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn open_with(testbed: &Testbed, index: usize, config: OpenConfig) -> Arc<Context> {
    let device = testbed.device(index).expect("a NIC");
    let function = InProcess::new(&format!("nic{index}"), device).expect("an in-process function");
    Context::open(Arc::new(function), config).expect("the NIC comes up")
}

/// A NIC opened without addresses.
fn open(testbed: &Testbed, index: usize) -> Arc<Context> {
    open_with(testbed, index, OpenConfig::new())
}

fn quick() -> AgentConfig {
    AgentConfig::new().duplicate_detection(DuplicateDetection::Off)
}

/// The standards' timers, fifty times as fast.
fn fast() -> Timing {
    let mut timing = Timing::default();
    for time in [
        &mut timing.retransmit,
        &mut timing.probe_wait,
        &mut timing.probe_min,
        &mut timing.announce_wait,
        &mut timing.announce_interval,
        &mut timing.failed_hold,
        &mut timing.delay_first_probe,
        &mut timing.reachable,
    ] {
        *time /= 50;
    }
    timing
}

fn with_addresses(config: AgentConfig, addresses: &[&str]) -> AgentConfig {
    addresses
        .iter()
        .fold(config, |config, text| config.address(address(text)))
}

fn agent(testbed: &Testbed, index: usize, addresses: &[&str]) -> Agent {
    Agent::start(&open(testbed, index), with_addresses(quick(), addresses)).expect("an agent")
}

fn has_gid(context: &Context, address: &str) -> bool {
    context
        .gids()
        .find(|entry| entry.gid == Gid::from_ip(ip(address)))
        .is_some()
}

fn assert_clean(testbed: &Testbed) {
    for index in 0..2 {
        let stats = testbed.stats(index).expect("a NIC");
        assert_eq!(
            (stats.data_path_violations, stats.firmware_violations),
            (0, 0),
            "NIC {index}: {stats:?}"
        );
    }
}

/// Waits until `ready` gives something.
fn until<R>(what: &str, mut ready: impl FnMut() -> Option<R>) -> R {
    let deadline = soon();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn two_nics_find_each_other_by_arp_and_neighbour_discovery() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let a = agent(&testbed, 0, &["10.9.0.1/24", "fd00:9::1/64"]);
    let b = agent(&testbed, 1, &["10.9.0.2/24", "fd00:9::2/64"]);
    for peer in ["10.9.0.2", "fd00:9::2", "fe80::fe:cff:fee0:2"] {
        assert_eq!(
            a.resolve(ip(peer), None, soon()).expect("the peer answers"),
            mac(1),
            "{peer}"
        );
    }
    assert_eq!(
        b.resolve(ip("10.9.0.1"), None, soon()).expect("the peer answers"),
        mac(0)
    );
    let route = a.route_to(ip("10.9.0.2"), soon()).expect("a way");
    assert_eq!(
        (route.dmac, route.source.version, route.next_hop),
        (Some(mac(1)), RoceVersion::V2, ip("10.9.0.2"))
    );
    let path = route.path().expect("the MAC is known");
    assert_eq!((path.sgid_index, path.dmac), (route.sgid_index, mac(1)));
    // To itself no frame is needed.
    let itself = a.route_to(ip("10.9.0.1"), soon()).expect("a way");
    assert_eq!((itself.via, itself.dmac), (Via::Itself, Some(mac(0))));
    drop((a, b));
    assert_clean(&testbed);
}

#[test]
fn every_kind_of_nic_has_an_agent() {
    let profiles = [
        Profile::minimal(),
        Profile::connectx5(),
        Profile::connectx6dx(),
        Profile::vf(),
        Profile::minimal_vf(),
    ];
    for profile in profiles {
        let name = format!("{:?}", profile.device_id);
        let mut config = TestbedConfig::default();
        config.profiles[0] = profile.with_mac([0x02, 0xfe, 0x0c, 0xe0, 0x00, 1]);
        let testbed = Testbed::new(config).expect("a testbed");
        let a = agent(&testbed, 0, &["10.9.0.1/24"]);
        let b = agent(&testbed, 1, &["10.9.0.2/24"]);
        assert_eq!(a.resolve(ip("10.9.0.2"), None, soon()).expect(&name), mac(1));
        assert_eq!(b.resolve(ip("10.9.0.1"), None, soon()).expect(&name), mac(0));
        drop((a, b));
        assert_clean(&testbed);
    }
}

#[test]
fn without_interrupts_and_service_thread_the_agent_works_too() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open_with(&testbed, 0, OpenConfig::new().interrupts(false));
    let a = Agent::start(&context, with_addresses(quick(), &["10.9.0.1/24"])).expect("an agent");
    let b = agent(&testbed, 1, &["10.9.0.2/24"]);
    assert_eq!(b.resolve(ip("10.9.0.1"), None, soon()).expect("answered"), mac(0));
    assert_eq!(a.resolve(ip("10.9.0.2"), None, soon()).expect("answered"), mac(1));
}

#[test]
fn who_does_not_answer_is_said_so_in_words() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let config = with_addresses(quick(), &["10.9.0.1/24"]).timing(fast());
    let a = Agent::start(&open(&testbed, 0), config).expect("an agent");
    let refused = a.resolve(ip("10.9.0.77"), None, soon()).unwrap_err();
    assert!(matches!(refused, ResolveError::NoAnswer { .. }), "{refused}");
    assert!(
        refused
            .to_string()
            .starts_with("10.9.0.77 does not answer: no station on the link"),
        "{refused}"
    );
    let refused = a.resolve(ip("10.9.0.78"), None, Instant::now()).unwrap_err();
    assert!(matches!(refused, ResolveError::Deadline { .. }), "{refused}");
    let refused = a.resolve(ip("10.9.0.2"), Some(7), soon()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "10.9.0.2 in VLAN 7 can't be asked for: the NIC has no address of its family there"
    );
    let refused = a.route_to(ip("10.1.0.2"), soon()).unwrap_err();
    assert!(
        matches!(refused, ResolveError::Route(RouteError::Unreachable { .. })),
        "{refused}"
    );
}

#[test]
fn an_address_that_the_other_nic_has_gets_no_gid() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let _b = agent(&testbed, 1, &["10.9.0.1/24"]);
    let context = open(&testbed, 0);
    for detection in [DuplicateDetection::BeforeUse, DuplicateDetection::Optimistic] {
        let config = AgentConfig::new().duplicate_detection(detection).timing(fast());
        let a = Agent::start(&context, with_addresses(config, &["10.9.0.1/24", "10.9.0.3/24"]))
            .expect("an agent");
        let refused = until("an objection", || match a.wait_ready(soon()) {
            Err(LinkError::Duplicate { ip }) => Some(ip),
            _ => None,
        });
        assert_eq!(refused, ip("10.9.0.1"));
        until("the other address", || {
            has_gid(&context, "10.9.0.3").then_some(())
        });
        assert!(!has_gid(&context, "10.9.0.1"), "{detection:?}");
        assert_eq!(
            a.resolve(ip("10.9.0.1"), None, soon()).ok(),
            Some(mac(0)),
            "our own, though unused"
        );
        a.remove_address(ip("10.9.0.3"), None).expect("removed");
        assert!(!has_gid(&context, "10.9.0.3"));
    }
}

#[test]
fn a_way_is_waited_for_while_addresses_are_looked_for_duplicates() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let _b = agent(&testbed, 1, &["10.9.0.2/24"]);
    let config = with_addresses(AgentConfig::new().timing(fast()), &["10.9.0.1/24"]);
    let context = open(&testbed, 0);
    let a = Agent::start(&context, config).expect("an agent");
    let refused = a.route(ip("10.9.0.2")).unwrap_err();
    assert!(matches!(refused, RouteError::NoGid { .. }), "{refused}");
    let route = a.route_to(ip("10.9.0.2"), soon()).expect("in a moment");
    assert_eq!(route.source.gid.to_ip(), ip("10.9.0.1"));
    a.wait_ready(soon()).expect("nobody objects");
}

#[test]
fn addresses_that_the_nic_was_opened_with_are_answered_for() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open_with(
        &testbed,
        0,
        OpenConfig::new().address(ip("10.9.0.1")).address(ip("fd00:9::1")),
    );
    let a = Agent::start(&context, with_addresses(quick(), &["10.9.0.1/24"])).expect("an agent");
    let prefixes: Vec<String> = a
        .addresses()
        .iter()
        .map(|(address, _)| address.to_string())
        .collect();
    assert_eq!(
        prefixes,
        ["fe80::fe:cff:fee0:1/64", "10.9.0.1/24", "fd00:9::1/128"]
    );
    assert!(a.addresses().iter().all(|(_, state)| state.is_usable()));
    assert_eq!(context.gids().entries().len(), 6, "none is there twice");
    let b = agent(&testbed, 1, &["10.9.0.2/24", "fd00:9::2/64"]);
    for own in ["10.9.0.1", "fd00:9::1"] {
        assert_eq!(b.resolve(ip(own), None, soon()).expect("answered"), mac(0));
    }
}

#[test]
fn addresses_and_their_gids_come_and_go() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let (a, b) = (
        agent(&testbed, 0, &["10.9.0.1/24"]),
        agent(&testbed, 1, &["10.9.0.2/24"]),
    );
    let context = a.context().clone();
    for round in 0..3 {
        a.add_address(address("fd00:9::11/64")).expect("added");
        a.add_address(address("10.9.0.11/24")).expect("added");
        until("GIDs", || {
            (has_gid(&context, "fd00:9::11") && has_gid(&context, "10.9.0.11")).then_some(())
        });
        assert_eq!(
            b.resolve(ip("10.9.0.11"), None, soon()).expect("answered"),
            mac(0),
            "round {round}"
        );
        a.remove_address(ip("fd00:9::11"), None).expect("removed");
        a.remove_address(ip("10.9.0.11"), None).expect("removed");
        assert!(!has_gid(&context, "fd00:9::11") && !has_gid(&context, "10.9.0.11"));
    }
    let twice = a.add_address(address("10.9.0.1/8")).unwrap_err();
    assert_eq!(
        twice.to_string(),
        "10.9.0.1 is an address of this interface already"
    );
    assert_eq!(context.gids().entries().len(), 4);
    drop((a, b));
    assert_clean(&testbed);
}

#[test]
fn g08_vlans_have_their_own_addresses_gids_and_neighbours() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vlan.pcap");
    let config = TestbedConfig {
        pcap: Some(PcapFile::create(&path, Duration::ZERO).expect("a file")),
        ..TestbedConfig::default()
    };
    let testbed = Testbed::new(config).expect("a testbed");
    let a = agent(
        &testbed,
        0,
        &["10.9.0.1/24", "10.9.1.1/24@100", "fd00:9:1::1/64@100"],
    );
    let b = agent(
        &testbed,
        1,
        &["10.9.0.2/24", "10.9.1.2/24@100", "fd00:9:1::2/64@100"],
    );
    for peer in ["10.9.1.2", "fd00:9:1::2"] {
        let route = a.route_to(ip(peer), soon()).expect("a way");
        assert_eq!(
            (route.vlan, route.source.vlan, route.dmac),
            (Some(100), Some(100), Some(mac(1)))
        );
    }
    let untagged = a.route_to(ip("10.9.0.2"), soon()).expect("a way");
    assert_eq!((untagged.vlan, untagged.dmac), (None, Some(mac(1))));
    // The link-local address is in each of the two networks.
    let refused = a.route(ip("fe80::fe:cff:fee0:2")).unwrap_err();
    assert!(matches!(refused, RouteError::Ambiguous { .. }), "{refused}");
    let query = RouteQuery {
        vlan: Some(Some(100)),
        ..RouteQuery::to(ip("fe80::fe:cff:fee0:2"))
    };
    assert_eq!(a.route_to(query, soon()).expect("a way").dmac, Some(mac(1)));
    drop((a, b));
    assert_clean(&testbed);
    drop(testbed);
    let tagged = std::fs::read(&path).expect("the frames");
    let tag = [0x81, 0x00, 0x00, 100, 0x08, 0x06];
    assert!(
        tagged.windows(6).filter(|bytes| *bytes == tag).count() >= 2,
        "ARP went through the VLAN"
    );
}

#[test]
fn queue_pairs_are_connected_by_the_agents_ways() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let (of_a, of_b) = (
        ["10.9.0.1/24", "fd00:9:1::1/64@100"],
        ["10.9.0.2/24", "fd00:9:1::2/64@100"],
    );
    let (a, b) = (agent(&testbed, 0, &of_a), agent(&testbed, 1, &of_b));
    for (own, peer) in [("10.9.0.1", "10.9.0.2"), ("fd00:9:1::1", "fd00:9:1::2")] {
        let mut sides = [&a, &b].map(|agent| Side::on(agent.context().clone(), &QpConfig::default()));
        let ways = [(&a, peer), (&b, own)].map(|(agent, to)| {
            let route = agent.route_to(ip(to), soon()).expect("a way");
            route.path().expect("the MAC is known")
        });
        let qpns = [sides[1].qp.qpn(), sides[0].qp.qpn()];
        for ((side, path), qpn) in sides.iter_mut().zip(ways).zip(qpns) {
            side.qp.modify_to_init(&ToInit::default()).expect("INIT");
            side.qp.modify_to_rtr(&ToRtr::new(path, qpn, 7)).expect("RTR");
            side.qp.modify_to_rts(&ToRts::new(7)).expect("RTS");
        }
        let [from, to] = &mut sides;
        from.fill(0x5a);
        let sges = [from.mr.sge(0..10_000).expect("within")];
        let op = SendOp::Write {
            data: Payload::Gather(&sges),
            remote: to.mr.remote(64),
            imm: None,
        };
        let flags = SendFlags::SIGNALED;
        from.qp
            .post_send(&SendWr { wr_id: 1, op, flags })
            .expect("posted");
        from.qp.ring_send();
        assert_eq!(from.success().wr_id, 1);
        assert_eq!(to.bytes(64, 10_000), from.bytes(0, 10_000), "{own} to {peer}");
    }
    drop((a, b));
    assert_clean(&testbed);
}

#[test]
fn c07_a_neighbour_whose_mac_changes_is_told_of() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let config = with_addresses(quick(), &["10.9.0.1/24"]).timing(fast());
    let a = Agent::start(&open(&testbed, 0), config).expect("an agent");
    let seen: Arc<Mutex<Vec<LinkEvent>>> = Arc::default();
    let log = seen.clone();
    let guard = a.on_event(move |event| log.lock().expect("unpoisoned").push(*event));
    type Change = (IpAddr, Option<MacAddress>);
    let peers: Arc<Mutex<Vec<Change>>> = Arc::default();
    let log = peers.clone();
    Resolver::watch(
        &a,
        Arc::new(move |peer, mac| log.lock().expect("unpoisoned").push((peer, mac))),
    );

    let b = agent(&testbed, 1, &["10.9.0.2/24"]);
    let path = Resolver::resolve(&a, ip("10.9.0.2"), soon()).expect("a way");
    assert_eq!(path.dmac, mac(1));
    assert_eq!(Resolver::lookup(&a, ip("10.9.0.2")), Some(path), "known by now");
    let hop = NeighbourKey {
        vlan: None,
        ip: ip("10.9.0.2"),
    };
    let watch = a.watch(hop).expect("room");

    // Another NIC in its place, with the same address.
    let other = MacAddress([0x02, 0xfe, 0x0c, 0xe0, 0x00, 0x99]);
    drop(b);
    let context = open_with(&testbed, 1, OpenConfig::new().mac(other));
    let b = Agent::start(&context, with_addresses(quick(), &["10.9.0.2/24"])).expect("an agent");
    let changed = LinkEvent::NeighbourChanged {
        neighbour: hop,
        old: mac(1),
        new: other,
    };
    until("the news", || {
        let seen = seen.lock().expect("unpoisoned");
        // It may have been given up in between, and been found again.
        let again = LinkEvent::NeighbourReachable {
            neighbour: hop,
            mac: other,
        };
        (seen.contains(&changed) || seen.contains(&again)).then_some(())
    });
    assert_eq!(a.resolve(ip("10.9.0.2"), None, soon()).expect("answered"), other);
    drop((b, context));
    let gone = LinkEvent::NeighbourUnreachable { neighbour: hop };
    until("the loss", || {
        seen.lock().expect("unpoisoned").contains(&gone).then_some(())
    });
    until("the manager's news", || {
        let peers = peers.lock().expect("unpoisoned");
        peers.contains(&(ip("10.9.0.2"), None)).then_some(())
    });
    drop((watch, guard));
    assert_eq!(watch_count(&a), 1, "the manager's own is left");
}

/// Datagrams of the connection manager may come from any address: only neighbours that there are get followed.
#[test]
fn addresses_that_nobody_has_are_not_followed() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let a = agent(&testbed, 0, &["10.9.0.1/24"]);
    let b = agent(&testbed, 1, &["10.9.0.2/24"]);
    for last in 10..30 {
        assert_eq!(Resolver::lookup(&a, IpAddr::from([10, 9, 0, last])), None);
    }
    assert_eq!(watch_count(&a), 0);
    until("the way", || Resolver::lookup(&a, ip("10.9.0.2")));
    assert_eq!(watch_count(&a), 1);
    drop((a, b));
}

/// C07: however many stations are looked for, those with a connection are followed.
#[test]
fn c07_peers_with_a_connection_are_followed_however_many_others_there_are() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let config = with_addresses(quick(), &["10.9.0.1/24"]).max_neighbours(8);
    let a = Agent::start(&open(&testbed, 0), config).expect("an agent");
    let of_b: Vec<String> = (2..9).map(|last| format!("10.9.0.{last}/24")).collect();
    let of_b: Vec<&str> = of_b.iter().map(String::as_str).collect();
    let b = agent(&testbed, 1, &of_b);
    let watched = |last: u8| {
        let ip = IpAddr::from([10, 9, 0, last]);
        let mut all = a.neighbours().into_iter();
        all.any(|neighbour| neighbour.key.ip == ip && neighbour.watched)
    };
    let look_for = |last: u8| {
        Resolver::resolve(&a, IpAddr::from([10, 9, 0, last]), soon()).expect("a way");
    };
    look_for(2);
    Resolver::connected(&a, ip("10.9.0.2"));
    (3..9).for_each(look_for);
    assert!(watched(2));
    assert_eq!(
        watch_count(&a),
        3,
        "a quarter of the cache, and the one with a connection"
    );
    Resolver::disconnected(&a, ip("10.9.0.2"));
    assert!(watched(2), "the last one that was of use");
    (3..7).for_each(look_for);
    assert!(!watched(2));
    drop((a, b));
    assert_clean(&testbed);
}

/// A NIC with an agent, by which its connection manager finds others.
fn host(testbed: &Testbed, index: usize, config: OpenConfig) -> (Arc<Agent>, Host) {
    let context = open_with(testbed, index, config);
    let own = format!("10.9.0.{}/24", index + 1);
    let agent = Arc::new(Agent::start(&context, with_addresses(quick(), &[&own])).expect("an agent"));
    let resolver = agent.clone();
    let host = Host::with_resolver(context, index, &ManagerConfig::default(), |_| resolver);
    (agent, host)
}

/// C07: as a whole, with the agent's usual timers: the peer's NIC is exchanged for another while a connection is in use.
#[test]
fn c07_a_connection_whose_peer_gets_another_mac_loses_its_path_and_is_ended() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let [(of_a, a), (of_b, b)] = [0, 1].map(|index| host(&testbed, index, OpenConfig::new()));
    let hosts = Hosts { a, b, testbed };
    let mut listener = hosts.listen();
    let (mut active, passive) = hosts.connect(&mut listener);
    assert_eq!(active.path().dmac, mac(1));
    assert_eq!((watch_count(&of_a), watch_count(&of_b)), (1, 1));

    // Nothing is said any more from the old NIC, and the new one knows nothing of the connection.
    let Hosts { a, b, testbed } = hosts;
    testbed.set_cable(false);
    drop((listener, passive));
    let (manager, context) = (b.manager.clone(), b.context.clone());
    drop(b);
    manager.close(soon()).expect("an end");
    drop(of_b);
    context.close().expect("an orderly end");
    assert_eq!(active.next_event(), None);
    testbed.set_cable(true);
    let other = MacAddress([0x02, 0xfe, 0x0c, 0xe0, 0x00, 0x99]);
    let (of_b, b) = host(&testbed, 1, OpenConfig::new().mac(other));

    // It announces itself, long before anybody is missed.
    let Ok(Event::PathLost(change)) = active.wait_event(soon()) else {
        panic!("no news")
    };
    assert_eq!(
        (change.address, change.was, change.now),
        (ip("10.9.0.2"), mac(1), Some(other))
    );
    assert_eq!(active.qp().state(), QpState::Rts, "it is the program's to end it");
    // Whom the connection was with does not answer any more.
    let ended = active.disconnect(Instant::now() + Duration::from_millis(300));
    assert!(matches!(ended, Err(DisconnectError::NoAnswer)), "{ended:?}");
    assert_eq!(active.ended(), Some(DisconnectCause::NoAnswer));
    assert_eq!(active.qp().state(), QpState::Err);
    drop(active);

    let hosts = Hosts { a, b, testbed };
    let mut listener = hosts.listen();
    let (mut active, mut passive) = hosts.connect(&mut listener);
    assert_eq!(active.path().dmac, other);
    active.disconnect(soon()).expect("an end");
    let ended = Event::Disconnected(DisconnectCause::Peer);
    assert_eq!(passive.wait_event(soon()), Ok(ended));
    hosts.assert_clean();
    drop((of_a, of_b));
}

fn watch_count(agent: &Agent) -> usize {
    agent
        .neighbours()
        .iter()
        .filter(|neighbour| neighbour.watched)
        .count()
}

#[test]
fn an_idle_agent_sleeps() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let a = agent(&testbed, 0, &["10.9.0.1/24"]);
    // Announcements go on for 2 s.
    let wakes = until("quiet", || {
        let before = a.counters().wakes;
        std::thread::sleep(Duration::from_millis(100));
        (a.counters().wakes == before).then_some(before)
    });
    std::thread::sleep(Duration::from_millis(500));
    let woken = a.counters().wakes - wakes;
    assert!(woken <= 8, "it woke {woken} times with nothing to do");
}

#[test]
fn an_agent_that_goes_leaves_nothing_behind() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open(&testbed, 0);
    let census = || {
        context.process_events();
        testbed.stats(0).expect("a NIC").objects
    };
    let mut before = None;
    for _ in 0..20 {
        let agent = Agent::start(
            &context,
            with_addresses(quick(), &["10.9.0.1/24", "fd00:9::1/64"]),
        )
        .expect("an agent");
        agent.remove_address(ip("10.9.0.1"), None).expect("removed");
        let watch = agent
            .watch(NeighbourKey {
                vlan: None,
                ip: ip("fd00:9::2"),
            })
            .expect("room");
        // Either may go first.
        drop(agent);
        drop(watch);
        let now = until("the end of its objects", || {
            let objects = census();
            let raw = ["SQ", "RQ", "TIR", "TIS", "flow table", "transport domain"];
            let left = objects
                .iter()
                .any(|(kind, count)| raw.contains(kind) && *count > 0);
            (!left).then_some(objects)
        });
        assert_eq!(*before.get_or_insert_with(|| now.clone()), now);
    }
    assert_clean(&testbed);
    context.close().expect("an orderly end");
}

#[test]
fn an_agent_outlives_what_it_can_not_receive() {
    // The peer's port takes frames of 9000 bytes, ours of 1500.
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let a = open_with(&testbed, 0, OpenConfig::new().mtu(1500));
    let a = Agent::start(&a, with_addresses(quick(), &["10.9.0.1/24"])).expect("an agent");
    let context = open_with(&testbed, 1, OpenConfig::new().mtu(9000));
    let mut queues = ferroce::ethernet::EthernetQueues::open(&context, &Default::default()).expect("queues");
    let mut frame = vec![0u8; 8000];
    frame[..6].copy_from_slice(&mac(0).0);
    frame[6..12].copy_from_slice(&mac(1).0);
    frame[12..14].copy_from_slice(&[0x08, 0x06]);
    queues.send(&frame).expect("sent");
    drop(queues);
    let b = Agent::start(&context, with_addresses(quick(), &["10.9.0.2/24"])).expect("an agent");
    assert_eq!(
        b.resolve(ip("10.9.0.1"), None, soon()).expect("still there"),
        mac(0)
    );
    assert_eq!(
        a.resolve(ip("10.9.0.2"), None, soon()).expect("still there"),
        mac(1)
    );
    assert_eq!(
        a.addresses()
            .iter()
            .filter(|(_, state)| *state == AddressState::Duplicate)
            .count(),
        0
    );
}
