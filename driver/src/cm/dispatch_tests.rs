//! What peers can leave behind at a listener.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::machine::{ConnectRequest, MachineConfig, TimeCode, Transport};
use super::*;
use crate::gid::Gid;
use crate::port::MacAddress;

fn gid(side: u8) -> Gid {
    Gid::from_ip(Ipv4Addr::new(10, 0, 0, side).into())
}

fn path_to(side: u8) -> Path {
    Path::new(0, gid(side), MacAddress([2, 0, 0, 0, 0, side]))
}

fn machine(side: u8) -> Machine {
    let (random, mut drawn) = (RandomState::new(), 0u64);
    let ca_guid = side.into();
    Machine::new(
        MachineConfig {
            ca_guid,
            ..MachineConfig::default()
        },
        move || {
            drawn += 1;
            random.hash_one(drawn) as u32
        },
    )
}

fn header() -> Vec<u8> {
    let header = IpHeader {
        source: SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 0),
        destination: Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    header.emit().to_vec()
}

fn ask(qpn: u32) -> ConnectRequest {
    ConnectRequest {
        path: path_to(2),
        local_gid: gid(1),
        service_id: ServiceId::of_port(PortSpace::Tcp, 7),
        transport: Transport::Rc,
        qpn,
        psn: 0,
        mtu: Mtu::Mtu1024,
        responder_resources: 1,
        initiator_depth: 1,
        ack_timeout: TimeCode::covering(Duration::from_millis(60)),
        retry_count: 7,
        rnr_retry: 7,
        srq: false,
        private_data: header(),
        deadline: None,
    }
}

/// A core that listens at a port, and whose program does not look.
fn listening(space: PortSpace) -> (Core, Arc<Cell<Incoming>>) {
    let cell: Arc<Cell<Incoming>> = Arc::default();
    let mut core = Core {
        machine: machine(2),
        cells: HashMap::new(),
        listeners: HashMap::new(),
        pen: HashMap::new(),
        to_pen: Vec::new(),
        wakes: Vec::new(),
        stopped: None,
        next_port: 0,
    };
    let service = ServiceId::of_port(space, 7);
    core.machine.listen(service, 1024).unwrap();
    let at = Listening::new(Ipv4Addr::UNSPECIFIED.into(), cell.clone());
    core.listeners.insert(service, at);
    (core, cell)
}

fn deliver(now: Instant, from: &mut Machine, to: &mut Core) {
    while let Some(transmit) = from.poll_transmit() {
        to.machine.handle_mad(now, &path_to(1), &transmit.mad[..]);
        drop(to.dispatch(Mtu::Mtu4096));
    }
}

#[test]
fn requests_that_are_taken_back_do_not_pile_up_at_a_program_that_is_slow() {
    let (mut core, cell) = listening(PortSpace::Tcp);
    let (now, mut peer) = (Instant::now(), machine(1));
    for qpn in 1..=4 * TIDY_AT as u32 {
        let id = peer.connect(now, &ask(qpn)).unwrap();
        deliver(now, &mut peer, &mut core);
        peer.abandon(now, id);
        deliver(now, &mut peer, &mut core);
        assert_eq!(core.machine.connections(), 0);
        assert!(cell.len() <= TIDY_AT, "{}", cell.len());
        assert!(core.cells.len() <= TIDY_AT, "{}", core.cells.len());
    }
    // Those that wait are kept.
    for qpn in 1..=2 * TIDY_AT as u32 {
        peer.connect(now, &ask(0x10_0000 + qpn)).unwrap();
    }
    deliver(now, &mut peer, &mut core);
    assert_eq!(core.machine.connections(), 2 * TIDY_AT);
    let mut waiting = 0;
    while let Some(Incoming::Connection { id, .. }) = cell.pop() {
        waiting += usize::from(core.machine.is_requested(id));
    }
    assert_eq!(waiting, 2 * TIDY_AT);
}

#[test]
fn datagram_requests_that_have_expired_do_not_pile_up_either() {
    let (mut core, cell) = listening(PortSpace::Udp);
    let (mut now, mut peer) = (Instant::now(), machine(1));
    let service = ServiceId::of_port(PortSpace::Udp, 7);
    for _ in 0..20 {
        for _ in 0..100 {
            let id = peer
                .sidr_request(now, &path_to(2), service, &header(), None)
                .unwrap();
            peer.sidr_abandon(id);
        }
        deliver(now, &mut peer, &mut core);
        now += Duration::from_secs(100);
        core.machine.handle_timeout(now);
        assert!(cell.len() <= TIDY_AT, "{}", cell.len());
    }
    assert!(cell.len() >= 100);
}
