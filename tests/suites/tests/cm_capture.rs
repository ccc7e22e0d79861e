//! The connection manager's datagrams that two Linux 6.12 machines exchanged (rping, ucmatose, udaddy, ib_send_bw -R):
//! each is understood in full, and our state machine, told the same, says the same, bit for bit.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce::cm::machine::{
    AcceptReply, ConnectRequest, Machine, MachineConfig, MachineEvent, SidrAnswer, TimeCode, Transport,
};
use ferroce::cm::mad::{self, IpHeader, MAD_BYTES, Message, PortSpace, ReqMsg, ServiceId};
use ferroce::gid::Gid;
use ferroce::port::MacAddress;
use ferroce::verbs::{Mtu, Path};
use ferroce_nic_model::wire::opcode::Transport as Service;
use ferroce_nic_model::wire::{Frame, Icrc, L3, parse};
use pcap_file::pcap::PcapReader;

/// A datagram and the addresses of its frame.
struct Captured {
    source: IpAddr,
    destination: IpAddr,
    mad: Vec<u8>,
}

fn captured() -> Vec<Captured> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/linux-rxe.pcap");
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut mads = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let bytes = packet.unwrap().data.into_owned();
        let Ok(frame) = parse(&Frame::from_vec(bytes.clone()), Icrc::On) else {
            continue;
        };
        if frame.info.transport != Service::Ud || frame.packet.bth.dest_qp != 1 {
            continue;
        }
        let (source, destination): (IpAddr, IpAddr) = match &frame.encap.l3 {
            L3::V2Ipv4(..) => {
                let at = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap().into();
                (at(26), at(30))
            }
            _ => {
                let at = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap().into();
                (at(22), at(38))
            }
        };
        let end = bytes.len() - 4;
        let mad = bytes[end - MAD_BYTES..end].to_vec();
        mads.push(Captured {
            source,
            destination,
            mad,
        });
    }
    mads
}

#[test]
fn every_datagram_is_understood_in_full() {
    let mut kinds = BTreeMap::new();
    for captured in captured() {
        let message = mad::parse(&captured.mad).unwrap();
        *kinds.entry(message.name()).or_insert(0) += 1;
        assert_eq!(message.reserved_bit_set(), None, "{message:?}");
        assert_eq!(message.as_bytes(), captured.mad);
        let header = match message {
            Message::Req(req) => {
                assert_eq!(ServiceId(req.service_id()).port().unwrap().0, PortSpace::Tcp);
                assert_eq!(
                    req.primary_local_port_gid().to_be_bytes(),
                    Gid::from_ip(captured.source).0
                );
                Some(IpHeader::parse(mad::CmMessage::private(req)).unwrap())
            }
            Message::SidrReq(req) => {
                assert_eq!(ServiceId(req.service_id()).port(), Some((PortSpace::Udp, 7174)));
                Some(IpHeader::parse(mad::CmMessage::private(req)).unwrap())
            }
            _ => None,
        };
        if let Some(header) = header {
            assert_eq!(
                (header.source.ip(), header.destination),
                (captured.source, captured.destination)
            );
        }
    }
    let expected = [
        ("Drep", 5),
        ("Dreq", 5),
        ("Rep", 5),
        ("Req", 5),
        ("Rtu", 5),
        ("SidrRep", 1),
        ("SidrReq", 1),
    ];
    assert_eq!(kinds, BTreeMap::from(expected));
}

/// A machine that draws these numbers, on a machine with this GUID.
fn machine(guid: u64, numbers: Vec<u32>) -> Machine {
    let config = MachineConfig {
        ca_guid: guid,
        // What Linux's RDMA CM tells: 4.3 s.
        response_timeout: TimeCode::covering(Duration::from_secs(4)),
        ..MachineConfig::default()
    };
    let mut numbers = numbers.into_iter();
    Machine::new(config, move || numbers.next().expect("no more numbers are drawn"))
}

fn next(machine: &mut Machine) -> Vec<u8> {
    machine.poll_transmit().expect("a datagram").mad.to_vec()
}

fn path(to: IpAddr) -> Path {
    Path::to_ip(0, to, MacAddress([0x52, 0x54, 0, 9, 0, 1]))
}

/// What the one who sent a REQ must have wanted.
fn wanted(captured: &Captured, req: &ReqMsg) -> ConnectRequest {
    ConnectRequest {
        path: Path {
            flow_label: req.primary_flow_label(),
            ..path(captured.destination)
        },
        local_gid: Gid::from_ip(captured.source),
        service_id: ServiceId(req.service_id()),
        transport: Transport::Rc,
        qpn: req.local_qpn(),
        psn: req.starting_psn(),
        mtu: Mtu::Mtu1024,
        responder_resources: req.responder_resources(),
        initiator_depth: req.initiator_depth(),
        ack_timeout: TimeCode::covering(Duration::from_nanos(4096 << req.primary_local_ack_timeout())),
        retry_count: req.retry_count(),
        rnr_retry: req.rnr_retry_count(),
        srq: false,
        private_data: mad::CmMessage::private(req).to_vec(),
        deadline: None,
    }
}

fn halves(transaction_id: u64) -> [u32; 2] {
    [(transaction_id >> 32) as u32, transaction_id as u32]
}

/// Plays the captured connection that starts at `start` with our machine on either side.
fn play(all: &[Captured], start: usize) {
    let now = Instant::now();
    let [asks, accepts, confirms] = [0, 1, 2].map(|i| &all[start + i]);
    let messages = [asks, accepts, confirms].map(|captured| mad::parse(&captured.mad).unwrap());
    let [Message::Req(req), Message::Rep(rep), Message::Rtu(_)] = messages else {
        panic!("{messages:?}");
    };
    // The end of it: a DREQ that names one of both ids, and its DREP.
    let ends = &all[start + 3..]
        .iter()
        .find_map(|captured| match mad::parse(&captured.mad).unwrap() {
            Message::Dreq(dreq) => {
                let ids = [dreq.local_comm_id(), dreq.remote_comm_id()];
                ids.contains(&req.local_comm_id()).then_some((captured, *dreq))
            }
            _ => None,
        });
    let (end, dreq) = ends.as_ref().expect("it ends");
    let drep = all.iter().find(|captured| {
        let Ok(Message::Drep(drep)) = mad::parse(&captured.mad) else {
            return false;
        };
        (drep.local_comm_id(), drep.remote_comm_id()) == (dreq.remote_comm_id(), dreq.local_comm_id())
    });
    let active_ends = dreq.local_comm_id() == req.local_comm_id();
    let end_numbers = halves(dreq.header().transaction_id());

    let [high, low] = halves(req.header().transaction_id());
    let mut active = machine(
        req.local_ca_guid(),
        vec![req.local_comm_id(), high, low, end_numbers[0], end_numbers[1]],
    );
    let id = active.connect(now, &wanted(asks, req)).unwrap();
    assert_eq!(next(&mut active), asks.mad, "REQ");
    let mut passive = machine(
        rep.local_ca_guid(),
        vec![rep.local_comm_id(), end_numbers[0], end_numbers[1]],
    );
    passive.listen(ServiceId(req.service_id()), 1).unwrap();
    passive.handle_mad(now, &path(asks.source), &asks.mad);
    let Some(MachineEvent::Requested(peer, requested)) = passive.poll_event() else {
        panic!("no request");
    };
    assert_eq!(
        (
            requested.remote_qpn,
            requested.psn,
            requested.mtu,
            requested.ack_timeout.code()
        ),
        (
            req.local_qpn(),
            req.starting_psn(),
            Mtu::Mtu1024,
            req.primary_local_ack_timeout()
        )
    );
    let reply = AcceptReply {
        qpn: rep.local_qpn(),
        psn: rep.starting_psn(),
        responder_resources: rep.responder_resources(),
        initiator_depth: rep.initiator_depth(),
        rnr_retry: rep.rnr_retry_count(),
        srq: false,
        private_data: mad::CmMessage::private(rep).to_vec(),
        deadline: None,
    };
    passive.accept(now, peer, &reply).unwrap();
    assert_eq!(next(&mut passive), accepts.mad, "REP");
    active.handle_mad(now, &path(accepts.source), &accepts.mad);
    assert!(matches!(active.poll_event(), Some(MachineEvent::Accepted(..))));
    active.confirm(id).unwrap();
    assert_eq!(next(&mut active), confirms.mad, "RTU");
    passive.handle_mad(now, &path(confirms.source), &confirms.mad);
    assert!(matches!(
        passive.poll_event(),
        Some(MachineEvent::Established(..))
    ));

    let (ender, ended, own) = if active_ends {
        (&mut active, &mut passive, id)
    } else {
        (&mut passive, &mut active, peer)
    };
    ender.disconnect(now, own, &[], None).unwrap();
    assert_eq!(next(ender), end.mad, "DREQ");
    ended.handle_mad(now, &path(end.source), &end.mad);
    assert!(matches!(ended.poll_event(), Some(MachineEvent::Disconnected(..))));
    assert_eq!(next(ended), drep.expect("a DREP").mad, "DREP");
}

#[test]
fn our_machine_says_what_linux_said_on_either_side() {
    let all = captured();
    let starts: Vec<usize> = all
        .iter()
        .enumerate()
        .filter(|(_, captured)| matches!(mad::parse(&captured.mad), Ok(Message::Req(_))))
        .map(|(i, _)| i)
        .collect();
    assert_eq!(starts.len(), 5);
    for start in starts {
        play(&all, start);
    }
}

#[test]
fn datagram_services_are_asked_for_and_told_as_linux_does() {
    let now = Instant::now();
    let all = captured();
    let mut asked = None;
    for captured in &all {
        match mad::parse(&captured.mad).unwrap() {
            Message::SidrReq(req) => asked = Some((captured, req)),
            Message::SidrRep(rep) => {
                let (asks, req) = asked.expect("a question first");
                let [high, low] = halves(req.header().transaction_id());
                let mut active = machine(1, vec![req.request_id(), high, low]);
                let service = ServiceId(req.service_id());
                let private = mad::CmMessage::private(req);
                let to = path(asks.destination);
                active.sidr_request(now, &to, service, private, None).unwrap();
                assert_eq!(next(&mut active), asks.mad);
                let mut passive = machine(2, vec![7]);
                passive.listen(service, 1).unwrap();
                passive.handle_mad(now, &path(asks.source), &asks.mad);
                let Some(MachineEvent::SidrRequested(id, _)) = passive.poll_event() else {
                    panic!("no request");
                };
                let answer = SidrAnswer {
                    qpn: rep.qpn(),
                    qkey: 0x0123_4567,
                    private_data: mad::CmMessage::private(rep).into(),
                };
                passive.sidr_reply(now, id, Ok(&answer)).unwrap();
                assert_eq!(next(&mut passive), captured.mad);
                active.handle_mad(now, &path(captured.source), &captured.mad);
                let Some(MachineEvent::SidrAnswered(_, Ok(found))) = active.poll_event() else {
                    panic!("no answer");
                };
                assert_eq!(found, answer);
                return;
            }
            _ => {}
        }
    }
    panic!("no SIDR in the capture");
}
