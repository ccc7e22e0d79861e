//! What two Linux 6.12 machines with Soft-RoCE said to each other: each RoCE frame is taken apart, its ICRC
//! agrees, and it is made again bit for bit.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use ferroce_nic_model::wire::opcode::{Kind, Transport};
use ferroce_nic_model::wire::{Frame, Icrc, L3, RoceFrame, WireError, emit, parse};
use pcap_file::pcap::PcapReader;

fn capture() -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/linux-rxe.pcap");
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

fn roce_frames() -> Vec<(Vec<u8>, RoceFrame)> {
    let mut out = Vec::new();
    for bytes in capture() {
        match parse(&Frame::from_vec(bytes.clone()), Icrc::On) {
            Ok(parsed) => out.push((bytes, parsed)),
            Err(WireError::NotRoce { .. }) => {}
            Err(e) => panic!("a frame of the capture was refused: {e}\n{bytes:02x?}"),
        }
    }
    out
}

#[test]
fn every_roce_frame_is_parsed_and_emitted_bit_for_bit() {
    let frames = roce_frames();
    let over = |v4| {
        frames
            .iter()
            .filter(|(_, f)| matches!(f.encap.l3, L3::V2Ipv4(..)) == v4)
            .count()
    };
    assert_eq!((over(true), over(false)), (442, 121));
    for (bytes, parsed) in &frames {
        let again = emit(&parsed.encap, &parsed.packet, Icrc::On).unwrap();
        assert_eq!(&again.to_bytes().unwrap(), bytes);
        // And through the form in parts that a cable carries.
        let through = parse(&again, Icrc::On).unwrap();
        assert_eq!(through.encap, parsed.encap);
        assert_eq!(through.packet.bth, parsed.packet.bth);
    }
}

#[test]
fn the_capture_holds_the_traffic_it_is_said_to_hold() {
    let mut kinds = BTreeMap::new();
    for (_, f) in roce_frames() {
        *kinds.entry(f.info.name).or_insert(0) += 1;
        // RC requests carry a P_Key, a real queue pair and no reserved header version.
        assert_eq!(f.packet.bth.pkey, 0xffff);
        assert_eq!(f.packet.bth.tver, 0);
    }
    let count = |name| kinds.get(name).copied().unwrap_or(0);
    assert_eq!(count("RC Acknowledge"), 125);
    assert_eq!(count("RC SEND First"), count("RC SEND Last"));
    assert_eq!(count("RC RDMA READ Request"), 11);
    assert_eq!(
        count("RC RDMA READ response First") + count("RC RDMA READ response Only"),
        11
    );
    assert_eq!(
        count("RC CmpSwap") + count("RC FetchAdd"),
        count("RC ATOMIC Acknowledge")
    );
    assert_eq!(count("RC RDMA WRITE Last with Immediate"), 5);
    assert_eq!(count("UC SEND First"), 10);
    assert_eq!(count("UD SEND Only") + count("UD SEND Only with Immediate"), 57);
}

#[test]
fn each_flipped_byte_behind_the_ip_header_is_noticed() {
    for (bytes, parsed) in roce_frames() {
        let l4 = bytes.len() - parsed.encap.header_bytes();
        let bth = bytes.len() - l4;
        // Byte 4 of the BTH may change on the way.
        for at in (bth..bytes.len()).filter(|&at| at != bth + 4).step_by(7) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            assert!(
                parse(&Frame::from_vec(changed), Icrc::On).is_err(),
                "byte {at} of {bytes:02x?}"
            );
        }
    }
}

#[test]
fn ud_receivers_get_the_grh_area() {
    for (bytes, f) in roce_frames() {
        if f.info.transport != Transport::Ud || f.info.kind != Kind::Send {
            continue;
        }
        let area = f.grh_area();
        match f.encap.l3 {
            L3::V2Ipv4(..) => assert_eq!((&area[..20], &area[20..]), (&[0; 20][..], &bytes[14..34])),
            _ => assert_eq!(area[..], bytes[14..54]),
        }
    }
}
