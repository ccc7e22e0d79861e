//! What two Linux 6.12 machines with Soft-RoCE said over RC, played against our transport: one side's requests
//! to our responder, whose answers must be those that Linux gave; and one side's work through our requester,
//! whose packets must be those that Linux sent.
//!
//! Two differences are meant, and left out of the comparison: Linux sends MigReq as 0, ConnectX (and we) as 1,
//! since the path is migrated; and where Linux acknowledges each packet that asks for it, we acknowledge what
//! came since the last poll, so that the test polls after each packet.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::Path;

use ferroce_nic_model::clock::Nanos;
use ferroce_nic_model::payload::Payload;
use ferroce_nic_model::rc::RcQp;
use ferroce_nic_model::rc::testing::{FakeMemory, Region, open_config};
use ferroce_nic_model::rc::types::{
    CompletionStatus, Event, QpConfig, Remote, SendData, SendOp, SendWork, Sge,
};
use ferroce_nic_model::wire::opcode::{Kind, OpcodeInfo, Position, Transport};
use ferroce_nic_model::wire::packet::{Bth, Packet};
use ferroce_nic_model::wire::{Frame, Icrc, WireError, parse};
use pcap_file::pcap::PcapReader;

/// The path MTU of all RC flows of the capture.
const MTU: u32 = 1024;
const LKEY: u32 = 0xffff_0001;
const LOCAL_VA: u64 = 0x1000;
const LOCAL_BYTES: usize = 1 << 20;

/// A packet of the capture and who sent it.
#[derive(Clone, Debug)]
struct Said {
    by_a: bool,
    info: &'static OpcodeInfo,
    packet: Packet,
}

/// RC packets by QP number, in order. Both machines numbered their QPs alike, so that a number is a connection.
fn flows() -> BTreeMap<u32, Vec<Said>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/linux-rxe.pcap");
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut flows: BTreeMap<u32, Vec<Said>> = BTreeMap::new();
    while let Some(captured) = reader.next_packet() {
        let bytes = captured.unwrap().data.into_owned();
        let frame = match parse(&Frame::from_vec(bytes), Icrc::On) {
            Ok(frame) if frame.info.transport == Transport::Rc => frame,
            Ok(_) | Err(WireError::NotRoce { .. }) => continue,
            Err(e) => panic!("a frame of the capture was refused: {e}"),
        };
        let said = Said {
            by_a: frame.encap.src == [0x52, 0x54, 0, 9, 0, 1],
            info: frame.info,
            packet: frame.packet,
        };
        flows.entry(said.packet.bth.dest_qp).or_default().push(said);
    }
    flows
}

/// What of a packet has to agree.
fn essence(packet: &Packet) -> (Bth, Vec<u8>, String) {
    let bth = Bth {
        mig_req: false,
        ..packet.bth
    };
    let headers = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        packet.reth,
        packet.atomic_eth,
        packet.aeth,
        packet.atomic_ack,
        packet.immediate,
        packet.invalidate_rkey
    );
    (bth, packet.payload.to_vec().unwrap(), headers)
}

/// The requests of one side and the answers to them, as they followed each other.
fn half(flow: &[Said], requester_is_a: bool) -> Vec<Said> {
    let belongs = |s: &&Said| s.info.kind.is_request() == (s.by_a == requester_is_a);
    flow.iter().filter(belongs).cloned().collect()
}

fn config(qpn: u32, half: &[Said]) -> Option<QpConfig> {
    let first = half.iter().find(|s| s.info.kind.is_request())?;
    let psn = first.packet.bth.psn;
    Some(QpConfig {
        dest_qpn: qpn,
        recv_psn: psn,
        ..open_config(MTU, psn.get())
    })
}

fn drain(qp: &mut RcQp, mem: &mut FakeMemory) -> Vec<Packet> {
    std::iter::from_fn(|| qp.poll_transmit(Nanos::ZERO, mem)).collect()
}

/// Memory of the responder as the requests address it, with room around.
fn responder_memory(half: &[Said]) -> FakeMemory {
    let mut spans: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for said in half {
        let reth = said.packet.reth.map(|r| (r.rkey, r.va, u64::from(r.dma_len)));
        let atomic = said.packet.atomic_eth.map(|a| (a.rkey, a.va, 8));
        if let Some((rkey, va, len)) = reth.or(atomic) {
            let span = spans.entry(rkey).or_insert((va, va + len));
            *span = (span.0.min(va), span.1.max(va + len));
        }
    }
    let mut mem = FakeMemory::default();
    for (rkey, (from, to)) in spans {
        mem.regions
            .insert(rkey, Region::new(from, usize::try_from(to - from).unwrap()));
    }
    mem.regions.insert(LKEY, Region::new(LOCAL_VA, LOCAL_BYTES));
    mem
}

/// Puts what the responder's program had written there: the data of the READ at `at`, the value before the first
/// atomic on an address.
fn prepare_fetch(half: &[Said], at: usize, seen: &mut HashSet<u64>, mem: &mut FakeMemory) {
    let request = &half[at].packet;
    let answers = || half[at..].iter().filter(|s| s.info.kind.is_response());
    if let Some(reth) = request.reth.filter(|_| half[at].info.kind == Kind::ReadRequest) {
        let packets = reth.dma_len.div_ceil(MTU).max(1);
        let data: Vec<u8> = answers()
            .filter(|s| s.info.kind == Kind::ReadResponse)
            .filter(|s| (0..packets as i32).contains(&s.packet.bth.psn.diff(request.bth.psn)))
            .flat_map(|s| s.packet.payload.to_vec().unwrap())
            .collect();
        assert_eq!(data.len(), reth.dma_len as usize);
        mem.fill(reth.rkey, reth.va, &data);
    }
    if let Some(atomic) = request.atomic_eth.filter(|a| seen.insert(a.va)) {
        let answer = answers().find(|s| s.packet.bth.psn == request.bth.psn).unwrap();
        let original = answer.packet.atomic_ack.unwrap();
        mem.fill(atomic.rkey, atomic.va, &original.to_le_bytes());
    }
}

/// Plays the requests to our responder; gives how many answers agreed.
fn play_to_responder(qpn: u32, half: &[Said]) -> usize {
    let Some(config) = config(qpn, half) else {
        return 0;
    };
    let mut mem = responder_memory(half);
    let mut qp = RcQp::new(config);
    let mut seen = HashSet::new();
    let mut ours = Vec::new();
    let mut messages = 0;
    for (at, said) in half.iter().enumerate() {
        if !said.info.kind.is_request() {
            continue;
        }
        prepare_fetch(half, at, &mut seen, &mut mem);
        if said.info.position.is_start() {
            mem.receives.clear();
            mem.post_recv(
                messages,
                Sge {
                    addr: LOCAL_VA,
                    len: LOCAL_BYTES as u32,
                    lkey: LKEY,
                },
            );
            messages += 1;
        }
        qp.handle_packet(Nanos::ZERO, &said.packet, &mut mem);
        ours.extend(drain(&mut qp, &mut mem));
    }
    let linux: Vec<_> = half.iter().filter(|s| s.info.kind.is_response()).collect();
    for (ours, linux) in ours.iter().zip(&linux) {
        assert_eq!(essence(ours), essence(&linux.packet), "QP {qpn:#x}");
    }
    assert_eq!(ours.len(), linux.len(), "QP {qpn:#x}");
    let failed = |e: &Event| matches!(e, Event::Recv(c) if c.status != CompletionStatus::Success);
    assert!(!std::iter::from_fn(|| qp.poll_event()).any(|e| failed(&e) || e == Event::EnteredError));
    linux.len()
}

#[test]
fn our_responder_answers_linux_requests_as_linux_did() {
    let mut answers = 0;
    for (qpn, flow) in flows() {
        for requester_is_a in [true, false] {
            answers += play_to_responder(qpn, &half(&flow, requester_is_a));
        }
    }
    assert_eq!(answers, 186);
}

/// The work request behind the message that starts at `at`.
fn work_of(half: &[Said], at: usize, id: u64) -> SendWork {
    let first = &half[at].packet;
    let requests = half[at..].iter().filter(|s| s.info.kind.is_request());
    let mut bytes = Vec::new();
    let mut last = first;
    for said in requests {
        bytes.extend(said.packet.payload.to_vec().unwrap());
        last = &said.packet;
        if said.info.position.is_end() {
            break;
        }
    }
    let remote = first
        .reth
        .map(|r| (r.va, r.rkey))
        .or(first.atomic_eth.map(|a| (a.va, a.rkey)))
        .map(|(va, rkey)| Remote { va, rkey })
        .unwrap_or_default();
    let atomic = first.atomic_eth.unwrap_or_default();
    let op = match (half[at].info.kind, last.immediate) {
        (Kind::Send, None) => SendOp::Send,
        (Kind::Send, Some(imm)) => SendOp::SendImm { imm },
        (Kind::Write, None) => SendOp::Write { remote },
        (Kind::Write, Some(imm)) => SendOp::WriteImm { remote, imm },
        (Kind::ReadRequest, _) => SendOp::Read { remote },
        (Kind::CompareSwap, _) => SendOp::CompareSwap {
            remote,
            compare: atomic.compare,
            swap: atomic.swap_add,
        },
        _ => SendOp::FetchAdd {
            remote,
            add: atomic.swap_add,
        },
    };
    let fetched = match half[at].info.kind {
        Kind::ReadRequest => first.reth.map(|r| r.dma_len),
        Kind::CompareSwap | Kind::FetchAdd => Some(8),
        _ => None,
    };
    SendWork {
        id,
        op,
        data: match fetched {
            Some(len) => SendData::Sges(vec![Sge {
                addr: LOCAL_VA,
                len,
                lkey: LKEY,
            }]),
            None => SendData::Inline(Payload::from_vec(bytes)),
        },
        fence: false,
        signaled: true,
        solicited: last.bth.solicited,
    }
}

/// Has our requester do the work and answers it as Linux did; gives how many packets agreed.
fn play_from_requester(qpn: u32, half: &[Said]) -> usize {
    let Some(config) = config(qpn, half) else {
        return 0;
    };
    let mut mem = FakeMemory::default();
    mem.regions.insert(LKEY, Region::new(LOCAL_VA, LOCAL_BYTES));
    let mut qp = RcQp::new(config.clone());
    qp.to_rts(config);
    let (mut posted, mut agreed, mut stored) = (0, 0, 0);
    for (at, said) in half.iter().enumerate() {
        if said.info.kind.is_response() {
            qp.handle_packet(Nanos::ZERO, &said.packet, &mut mem);
            stored = check_stored(said, stored, &mem);
            continue;
        }
        if said.info.position.is_start() {
            qp.post_send(work_of(half, at, posted));
            posted += 1;
        }
        let ours = qp.poll_transmit(Nanos::ZERO, &mut mem).expect("a packet");
        assert_eq!(essence(&ours), essence(&said.packet), "QP {qpn:#x}");
        agreed += 1;
    }
    assert!(qp.poll_transmit(Nanos::ZERO, &mut mem).is_none());
    let done: Vec<_> = std::iter::from_fn(|| qp.poll_event())
        .map(|e| match e {
            Event::Send(c) if c.status == CompletionStatus::Success => c.id,
            other => panic!("QP {qpn:#x}: {other:?}"),
        })
        .collect();
    assert_eq!(done, (0..posted).collect::<Vec<_>>(), "QP {qpn:#x}");
    assert_eq!(qp.counters().retransmitted, 0);
    agreed
}

/// The payload of a READ response, or the value of an atomic, is in local memory; `at` is where in its message it
/// belongs.
fn check_stored(said: &Said, at: u64, mem: &FakeMemory) -> u64 {
    let data = match said.packet.atomic_ack {
        Some(original) => original.to_le_bytes().to_vec(),
        None => said.packet.payload.to_vec().unwrap(),
    };
    let at = if said.info.position.is_start() { 0 } else { at };
    assert_eq!(mem.bytes(LKEY, LOCAL_VA + at, data.len() as u64), data);
    match said.info.position {
        Position::Last | Position::Only => 0,
        Position::First | Position::Middle => at + data.len() as u64,
    }
}

#[test]
fn our_requester_sends_what_linux_sent_for_the_same_work() {
    let mut packets = 0;
    for (qpn, flow) in flows() {
        for requester_is_a in [true, false] {
            packets += play_from_requester(qpn, &half(&flow, requester_is_a));
        }
    }
    assert_eq!(packets, 290);
}
