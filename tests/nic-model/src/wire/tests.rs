use proptest::prelude::*;

use super::opcode::{Headers, Kind, TABLE, Transport};
use super::packet::{Aeth, AtomicEth, Bth, Deth, Packet, Reth};
use super::*;
use crate::host::{Access, test_support::host_memory};
use crate::payload::Payload;
use crate::psn::Psn;

fn any_ipv6() -> impl Strategy<Value = Ipv6> {
    (
        any::<u8>(),
        0u32..1 << 20,
        any::<u8>(),
        any::<[u8; 16]>(),
        any::<[u8; 16]>(),
    )
        .prop_map(|(traffic_class, flow_label, hop_limit, src, dst)| Ipv6 {
            traffic_class,
            flow_label,
            hop_limit,
            src,
            dst,
        })
}

fn any_l3() -> impl Strategy<Value = L3> {
    let udp = || (any::<u16>(), any::<u16>()).prop_map(|(src_port, checksum)| Udp { src_port, checksum });
    let ipv4 = any::<(u8, u16, bool, u8, [u8; 4], [u8; 4])>().prop_map(
        |(tos, identification, dont_fragment, ttl, src, dst)| Ipv4 {
            tos,
            identification,
            dont_fragment,
            ttl,
            src,
            dst,
        },
    );
    prop_oneof![
        any_ipv6().prop_map(L3::V1),
        (ipv4, udp()).prop_map(|(ip, udp)| L3::V2Ipv4(ip, udp)),
        (any_ipv6(), udp()).prop_map(|(ip, udp)| L3::V2Ipv6(ip, udp)),
    ]
}

fn any_encap() -> impl Strategy<Value = Encap> {
    let vlan = (0u16..4096, 0u8..8, any::<bool>()).prop_map(|(vid, pcp, dei)| Vlan { vid, pcp, dei });
    (
        any::<[u8; 6]>(),
        any::<[u8; 6]>(),
        prop::option::of(vlan),
        any_l3(),
    )
        .prop_map(|(dst, src, vlan, l3)| Encap { dst, src, vlan, l3 })
}

/// A packet of each opcode with random numbers; the payload's bytes are random too.
fn any_packet() -> impl Strategy<Value = Packet> {
    let bth = any::<([bool; 5], u16, u32, u32)>();
    let numbers = any::<(u64, u32, u32, u64, u64)>();
    let payload = prop::collection::vec(any::<u8>(), 0..90);
    (prop::sample::select(TABLE), bth, numbers, payload).prop_map(|(info, bth, n, payload)| {
        let has = |h| info.headers.contains(h);
        let payload = match info.kind {
            Kind::Cnp => vec![0; CNP_RESERVED_BYTES],
            kind if kind.has_payload() => payload,
            _ => Vec::new(),
        };
        let ([solicited, mig_req, fecn, becn, ack_req], pkey, qp, psn) = bth;
        Packet {
            bth: Bth {
                opcode: info.opcode,
                solicited,
                mig_req,
                pad_count: (payload.len().wrapping_neg() % 4) as u8,
                tver: 0,
                pkey,
                fecn,
                becn,
                dest_qp: qp >> 8,
                ack_req,
                psn: Psn::from_low_bits(psn),
            },
            deth: has(Headers::DETH).then_some(Deth {
                qkey: n.1,
                src_qp: n.2 >> 8,
            }),
            reth: has(Headers::RETH).then_some(Reth {
                va: n.0,
                rkey: n.1,
                dma_len: n.2,
            }),
            atomic_eth: has(Headers::ATOMIC_ETH).then_some(AtomicEth {
                va: n.0,
                rkey: n.1,
                swap_add: n.3,
                compare: n.4,
            }),
            aeth: has(Headers::AETH).then_some(Aeth {
                syndrome: n.1 as u8,
                msn: n.2 >> 8,
            }),
            atomic_ack: has(Headers::ATOMIC_ACK_ETH).then_some(n.3),
            immediate: has(Headers::IMMDT).then_some(n.1),
            invalidate_rkey: has(Headers::IETH).then_some(n.2),
            payload: Payload::from_vec(payload),
        }
    })
}

/// CRC-32 of Ethernet, bit by bit: nothing in common with the one in use.
fn crc32_bitwise(bytes: impl Iterator<Item = u8>) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        for bit in 0..8 {
            let feedback = (crc ^ u32::from(byte >> bit)) & 1;
            crc = (crc >> 1) ^ (feedback * 0xedb8_8320);
        }
    }
    !crc
}

/// The ICRC from the standard's text, on a whole frame: it walks the bytes and asks of each whether it counts.
fn icrc_by_the_book(frame: &[u8]) -> [u8; 4] {
    let tagged = frame[12..14] == [0x81, 0x00];
    let l3 = if tagged { 18 } else { 14 };
    let kind = u16::from_be_bytes([frame[l3 - 2], frame[l3 - 1]]);
    let (l3_len, udp_len) = match kind {
        0x0800 => (20, 8),
        0x86dd => (40, 8),
        0x8915 => (40, 0),
        _ => panic!("not RoCE"),
    };
    let masked = |at: usize, byte: u8| match (kind, at) {
        (0x0800, 1 | 8 | 10 | 11) => 0xff,
        (0x86dd | 0x8915, 0) => byte | 0x0f,
        (0x86dd | 0x8915, 1..=3 | 7) => 0xff,
        (0x0800 | 0x86dd, at) if at == l3_len + 6 || at == l3_len + 7 => 0xff,
        (_, at) if at == l3_len + udp_len + 4 => 0xff,
        _ => byte,
    };
    let covered = &frame[l3..frame.len() - 4];
    let covered = covered.iter().enumerate().map(|(at, &byte)| masked(at, byte));
    crc32_bitwise([0xff; 8].into_iter().chain(covered)).to_le_bytes()
}

fn same(a: &Packet, b: &Packet) -> bool {
    a.payload.to_vec().unwrap() == b.payload.to_vec().unwrap()
        && format!(
            "{:?}",
            Packet {
                payload: Payload::empty(),
                ..a.clone()
            }
        ) == format!(
            "{:?}",
            Packet {
                payload: Payload::empty(),
                ..b.clone()
            }
        )
}

proptest! {
    #[test]
    fn packets_survive_the_wire(encap in any_encap(), packet in any_packet(), padding in 0usize..20) {
        let frame = emit(&encap, &packet, Icrc::On).unwrap();
        let bytes = frame.to_bytes().unwrap();
        prop_assert_eq!(&bytes[bytes.len() - 4..], icrc_by_the_book(&bytes));
        let mut padded = bytes.clone();
        padded.resize(bytes.len() + padding, 0);
        for form in [frame, Frame::from_vec(bytes.clone()), Frame::from_vec(padded)] {
            let parsed = parse(&form, Icrc::On).unwrap();
            prop_assert_eq!(parsed.encap, encap);
            prop_assert!(same(&parsed.packet, &packet), "{:?} != {:?}", parsed.packet, packet);
            let again = emit(&parsed.encap, &parsed.packet, Icrc::On).unwrap();
            prop_assert_eq!(again.to_bytes().unwrap(), bytes.clone());
        }
    }

    #[test]
    fn a_changed_bit_is_noticed_where_the_icrc_covers_it(
        encap in any_encap(),
        packet in any_packet(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let bytes = emit(&encap, &packet, Icrc::On).unwrap().to_bytes().unwrap();
        let mut changed = bytes.clone();
        let at = at.index(bytes.len());
        changed[at] ^= 1 << bit;
        if let Ok(parsed) = parse(&Frame::from_vec(changed.clone()), Icrc::On) {
            // Then the change is in the Ethernet header or in a field that may change on the way.
            let l2 = if encap.vlan.is_some() { 18 } else { 14 };
            let excused = at < l2 || icrc_by_the_book(&changed) == icrc_by_the_book(&bytes);
            prop_assert!(excused, "bit {bit} of byte {at} went unnoticed");
            let as_sent = Packet { bth: packet.bth, ..parsed.packet };
            prop_assert!(same(&as_sent, &packet));
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&Frame::from_vec(bytes), Icrc::On);
    }

    #[test]
    fn damaged_frames_are_parsed_or_refused(
        encap in any_encap(),
        packet in any_packet(),
        cut in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = emit(&encap, &packet, Icrc::On).unwrap().to_bytes().unwrap();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = parse(&Frame::from_vec(bytes.clone()), Icrc::Off);
        bytes.truncate(cut.index(bytes.len()));
        let _ = parse(&Frame::from_vec(bytes.clone()), Icrc::Off);
        Frame::from_vec(bytes).mark_congestion().unwrap();
    }

    #[test]
    fn truncated_frames_are_refused(encap in any_encap(), packet in any_packet(), cut in any::<prop::sample::Index>()) {
        let mut bytes = emit(&encap, &packet, Icrc::On).unwrap().to_bytes().unwrap();
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(parse(&Frame::from_vec(bytes), Icrc::Off).is_err());
    }

    /// smoltcp, which shares no code with this module, reads the same fields.
    #[test]
    fn smoltcp_agrees_on_ethernet_ip_and_udp(encap in any_encap(), packet in any_packet()) {
        use smoltcp::wire::{EthernetFrame, EthernetProtocol, Ipv4Packet, Ipv6Packet, UdpPacket};
        let encap = Encap { vlan: None, ..encap };
        let bytes = emit(&encap, &packet, Icrc::On).unwrap().to_bytes().unwrap();
        let eth = EthernetFrame::new_checked(&bytes[..]).unwrap();
        prop_assert_eq!(eth.dst_addr().0, encap.dst);
        prop_assert_eq!(eth.src_addr().0, encap.src);
        let (udp, port) = match encap.l3 {
            L3::V1(_) => return Ok(()),
            L3::V2Ipv4(ip, udp) => {
                prop_assert_eq!(eth.ethertype(), EthernetProtocol::Ipv4);
                let p = Ipv4Packet::new_checked(eth.payload()).unwrap();
                prop_assert!(p.verify_checksum());
                prop_assert_eq!((p.src_addr().octets(), p.dst_addr().octets()), (ip.src, ip.dst));
                prop_assert_eq!((p.dscp(), p.ecn(), p.ident()), (ip.tos >> 2, ip.tos & 3, ip.identification));
                prop_assert_eq!((p.hop_limit(), p.dont_frag(), p.more_frags()), (ip.ttl, ip.dont_fragment, false));
                (p.payload(), udp.src_port)
            }
            L3::V2Ipv6(ip, udp) => {
                prop_assert_eq!(eth.ethertype(), EthernetProtocol::Ipv6);
                let p = Ipv6Packet::new_checked(eth.payload()).unwrap();
                prop_assert_eq!((p.src_addr().octets(), p.dst_addr().octets()), (ip.src, ip.dst));
                prop_assert_eq!((p.traffic_class(), p.flow_label()), (ip.traffic_class, ip.flow_label));
                prop_assert_eq!(p.hop_limit(), ip.hop_limit);
                (p.payload(), udp.src_port)
            }
        };
        let udp = UdpPacket::new_checked(udp).unwrap();
        prop_assert_eq!((udp.src_port(), udp.dst_port()), (port, UDP_PORT));
        prop_assert_eq!(udp.payload().len() % 4, 0);
    }

    #[test]
    fn marking_congestion_leaves_the_frame_valid(encap in any_encap(), packet in any_packet(), flat in any::<bool>()) {
        let mut frame = emit(&encap, &packet, Icrc::On).unwrap();
        if flat {
            frame = frame.flatten().unwrap();
        }
        let marked = frame.mark_congestion().unwrap();
        let can = !matches!(encap.l3, L3::V1(_)) && encap.ecn() != Ecn::NotEct;
        prop_assert_eq!(marked, can);
        let parsed = parse(&frame, Icrc::On).unwrap();
        let mut expected = encap;
        if can {
            expected.set_ecn(Ecn::Ce);
        }
        prop_assert_eq!(parsed.encap, expected);
    }
}

fn encap_v4() -> Encap {
    Encap {
        dst: [2, 0, 0, 0, 0, 2],
        src: [2, 0, 0, 0, 0, 1],
        vlan: None,
        l3: L3::V2Ipv4(
            Ipv4 {
                tos: 2,
                identification: 0,
                dont_fragment: true,
                ttl: 64,
                src: [10, 0, 0, 1],
                dst: [10, 0, 0, 2],
            },
            Udp {
                src_port: 49152,
                checksum: 0,
            },
        ),
    }
}

fn send_only(payload: Vec<u8>) -> Packet {
    Packet {
        bth: Bth {
            opcode: opcode::RC_SEND_ONLY,
            pkey: 0xffff,
            dest_qp: 0x11,
            ..Bth::default()
        },
        payload: Payload::from_vec(payload),
        ..Packet::default()
    }
}

#[test]
fn packets_that_contradict_their_opcode_are_not_emitted() {
    let encap = encap_v4();
    let mut with_aeth = send_only(vec![1]);
    with_aeth.aeth = Some(Aeth::default());
    assert!(matches!(
        emit(&encap, &with_aeth, Icrc::On),
        Err(WireError::Headers { .. })
    ));
    let mut wide = send_only(vec![]);
    wide.bth.dest_qp = 1 << 24;
    assert!(matches!(
        emit(&encap, &wide, Icrc::On),
        Err(WireError::TooWide { .. })
    ));
    let long = send_only(vec![0; MAX_PAYLOAD + 1]);
    assert!(matches!(
        emit(&encap, &long, Icrc::On),
        Err(WireError::Payload { limit: 4096, .. })
    ));
    let mut reserved = send_only(vec![]);
    reserved.bth.opcode = 0x15;
    assert!(matches!(
        emit(&encap, &reserved, Icrc::On),
        Err(WireError::Opcode(0x15))
    ));
    let mut ack = send_only(vec![1; 4]);
    ack.bth.opcode = opcode::RC_ACKNOWLEDGE;
    ack.aeth = Some(Aeth::default());
    assert!(matches!(
        emit(&encap, &ack, Icrc::On),
        Err(WireError::Payload { limit: 0, .. })
    ));
}

#[test]
fn frames_that_are_not_roce_are_told_apart_from_bad_ones() {
    let good = emit(&encap_v4(), &send_only(vec![7; 10]), Icrc::On)
        .unwrap()
        .to_bytes()
        .unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        parse(&Frame::from_vec(bytes), Icrc::On).unwrap_err()
    };
    // ARP; TCP; another port.
    assert!(matches!(with(13, 6), WireError::NotRoce { ethertype: 0x0806 }));
    assert!(matches!(with(23, 6), WireError::NotRoce { .. }));
    assert!(matches!(with(37, 0xb6), WireError::NotRoce { .. }));
    // Options; more fragments; TTL without a new checksum; UDP length; transport version; reserved opcode.
    assert!(matches!(
        with(14, 0x46),
        WireError::NotRoce { .. } | WireError::Unsupported { .. } | WireError::Length { .. }
    ));
    assert!(matches!(with(20, 0x60), WireError::Unsupported { .. }));
    assert!(matches!(with(22, 1), WireError::Ipv4Checksum { .. }));
    assert!(matches!(with(39, 1), WireError::Length { .. }));
    assert!(matches!(with(43, 0x21), WireError::Unsupported { .. }));
    assert!(matches!(with(42, 0xff), WireError::Opcode(0xff)));
    // The pad count, and a byte of the payload.
    assert!(matches!(with(43, 0x10), WireError::Icrc { .. }));
    assert!(matches!(with(55, 0), WireError::Icrc { .. }));
}

#[test]
fn without_icrcs_the_payload_stays_in_host_memory() {
    let mut host = host_memory(0, 4096);
    host.write(100, b"host bytes").unwrap();
    let payload = Payload::from_host(host.slices(100, 10, Access::Read).unwrap());
    let packet = Packet {
        payload,
        ..send_only(vec![])
    };
    let lazy = emit(&encap_v4(), &packet, Icrc::Off).unwrap();
    let kept = emit(&encap_v4(), &packet, Icrc::On).unwrap();
    let parsed = parse(&lazy, Icrc::Off).unwrap();
    assert!(!parsed.packet.payload.is_owned());
    assert_eq!(parsed.packet.payload.to_vec().unwrap(), b"host bytes");
    host.clear();
    // A frame in flight can't reach memory that the host has taken back, a snapshot needs not.
    assert!(parsed.packet.payload.to_vec().is_err());
    assert!(lazy.to_bytes().is_err());
    let parsed = parse(&kept, Icrc::On).unwrap();
    assert_eq!(parsed.packet.payload.to_vec().unwrap(), b"host bytes");
}

#[test]
fn the_longest_headers_fit_inline() {
    for info in TABLE {
        assert!(
            58 + 8 + info.header_bytes() <= super::frame::MAX_HEADERS,
            "{}",
            info.name
        );
        assert_eq!(info.transport == Transport::Cnp, info.kind == Kind::Cnp);
    }
}
