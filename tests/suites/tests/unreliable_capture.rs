//! What two Linux 6.12 machines with Soft-RoCE said over UC, played against our transport: one side's packets to
//! our receiver, which must make the same messages of them; and the same messages through our sender, whose
//! packets must be those that Linux sent. Linux sends MigReq as 0, ConnectX (and we) as 1: that is left out.

use std::fs::File;
use std::path::Path;

use ferroce_nic_model::rc::testing::{FakeMemory, Region, open_config};
use ferroce_nic_model::rc::types::{
    CompletionStatus, Event, QpConfig, QpState, RecvCompletion, SendData, SendOp, SendWork, Sge,
};
use ferroce_nic_model::uc::UcQp;
use ferroce_nic_model::wire::opcode::Transport;
use ferroce_nic_model::wire::packet::{Bth, Packet};
use ferroce_nic_model::wire::{Frame, Icrc, WireError, parse};
use pcap_file::pcap::PcapReader;

const MTU: u32 = 1024;
const KEY: u32 = 0xffff_0001;
const VA: u64 = 0x1000;
const BYTES: usize = 1 << 16;

/// UC packets that one of the machines sent, in order.
fn said_by(last_byte_of_mac: u8) -> Vec<Packet> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/linux-rxe.pcap");
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(captured) = reader.next_packet() {
        let bytes = captured.unwrap().data.into_owned();
        match parse(&Frame::from_vec(bytes), Icrc::On) {
            Ok(frame) if frame.info.transport == Transport::Uc && frame.encap.src[5] == last_byte_of_mac => {
                packets.push(frame.packet);
            }
            Ok(_) | Err(WireError::NotRoce { .. }) => {}
            Err(e) => panic!("a frame of the capture was refused: {e}"),
        }
    }
    packets
}

/// Payloads of the messages that the packets make up.
fn messages(packets: &[Packet]) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    for packet in packets {
        let info = ferroce_nic_model::wire::opcode::info(packet.bth.opcode).unwrap();
        if info.position.is_start() {
            out.push(Vec::new());
        }
        out.last_mut().unwrap().extend(packet.payload.to_vec().unwrap());
    }
    out
}

fn qp(packets: &[Packet]) -> (UcQp, FakeMemory) {
    let first = &packets[0].bth;
    let config = QpConfig {
        dest_qpn: first.dest_qp,
        ..open_config(MTU, first.psn.get())
    };
    let mut qp = UcQp::new(config.clone());
    qp.to_rts(config);
    let mut memory = FakeMemory::default();
    memory.regions.insert(KEY, Region::new(VA, BYTES));
    (qp, memory)
}

#[test]
fn our_receiver_makes_the_same_messages() {
    for machine in [1, 2] {
        let packets = said_by(machine);
        let want = messages(&packets);
        assert!(want.len() >= 5, "{} messages of machine {machine}", want.len());
        let (mut qp, mut memory) = qp(&packets);
        for (packet, n) in packets.iter().zip(0..) {
            let at = VA + n * 0x10;
            memory.post_recv(
                n,
                Sge {
                    addr: at,
                    len: 8192,
                    lkey: KEY,
                },
            );
            qp.handle_packet(packet, &mut memory);
            while let Some(event) = qp.poll_event() {
                let Event::Recv(RecvCompletion {
                    id, status, byte_len, ..
                }) = event
                else {
                    panic!("{event:?}");
                };
                assert_eq!(status, CompletionStatus::Success);
                let message = want.iter().find(|message| message.len() == byte_len as usize);
                let bytes = memory.bytes(KEY, VA + id * 0x10, u64::from(byte_len));
                assert_eq!(Some(bytes), message.map(Vec::as_slice));
            }
        }
        assert_eq!((qp.state(), qp.counters().dropped), (QpState::Rts, 0));
    }
}

#[test]
fn our_sender_sends_the_same_packets() {
    for machine in [1, 2] {
        let said = said_by(machine);
        let (mut qp, mut memory) = qp(&said);
        let mut ours = Vec::new();
        for (message, id) in messages(&said).iter().zip(0..) {
            memory.fill(KEY, VA, message);
            qp.post_send(SendWork {
                id,
                op: SendOp::Send,
                data: SendData::Sges(vec![Sge {
                    addr: VA,
                    len: message.len() as u32,
                    lkey: KEY,
                }]),
                fence: false,
                signaled: true,
                solicited: false,
            });
            ours.extend(std::iter::from_fn(|| qp.poll_transmit(&mut memory)));
            let done = qp.poll_event();
            let Some(Event::Send(done)) = done else {
                panic!("{done:?}");
            };
            assert_eq!((done.id, done.status), (id, CompletionStatus::Success));
        }
        assert_eq!(ours.len(), said.len());
        for (ours, linux) in ours.iter().zip(&said) {
            let linux_bth = Bth {
                mig_req: true,
                pad_count: ours.bth.pad_count,
                ..linux.bth
            };
            assert_eq!(ours.bth, linux_bth);
            assert_eq!((ours.reth, ours.immediate), (linux.reth, linux.immediate));
            assert_eq!(ours.payload.to_vec().unwrap(), linux.payload.to_vec().unwrap());
        }
    }
}
