//! Writes a pcap with a packet of each opcode in each encapsulation, for other people's decoders to judge:
//! `cargo run -p ferroce-nic-model --example every_packet -- FILE`.

use std::path::PathBuf;
use std::time::Duration;

use ferroce_nic_model::clock::Nanos;
use ferroce_nic_model::link::pcap::PcapFile;
use ferroce_nic_model::payload::Payload;
use ferroce_nic_model::psn::Psn;
use ferroce_nic_model::wire::opcode::{Headers, Kind, OpcodeInfo, TABLE};
use ferroce_nic_model::wire::packet::{Aeth, AtomicEth, Bth, Deth, Packet, Reth};
use ferroce_nic_model::wire::{CNP_RESERVED_BYTES, Encap, Icrc, Ipv4, Ipv6, L3, Udp, Vlan, emit};

fn encaps() -> Vec<Encap> {
    let address = |last: u8| {
        let mut a = [0; 16];
        (a[0], a[15]) = (0xfd, last);
        a
    };
    let ip6 = Ipv6 {
        traffic_class: 0x68,
        flow_label: 0x12345,
        hop_limit: 64,
        src: address(1),
        dst: address(2),
    };
    let ip4 = Ipv4 {
        tos: 0x6a,
        identification: 0x1234,
        dont_fragment: true,
        ttl: 64,
        src: [10, 9, 0, 1],
        dst: [10, 9, 0, 2],
    };
    let udp = Udp {
        src_port: 0xc001,
        checksum: 0,
    };
    let tag = Vlan {
        vid: 100,
        pcp: 3,
        dei: false,
    };
    let mut out = Vec::new();
    for l3 in [L3::V1(ip6), L3::V2Ipv4(ip4, udp), L3::V2Ipv6(ip6, udp)] {
        for vlan in [None, Some(tag)] {
            let (dst, src) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
            out.push(Encap { dst, src, vlan, l3 });
        }
    }
    out
}

fn packet(info: &OpcodeInfo, payload_len: usize) -> Packet {
    let has = |h| info.headers.contains(h);
    let len = match info.kind {
        Kind::Cnp => CNP_RESERVED_BYTES,
        kind if kind.has_payload() => payload_len,
        _ => 0,
    };
    let byte = |i: usize| if info.kind == Kind::Cnp { 0 } else { i as u8 };
    Packet {
        bth: Bth {
            opcode: info.opcode,
            mig_req: true,
            pkey: 0xffff,
            dest_qp: 0x12_3456,
            becn: info.kind == Kind::Cnp,
            psn: Psn::from_low_bits(0xff_fff0),
            ..Bth::default()
        },
        deth: has(Headers::DETH).then_some(Deth {
            qkey: 0x8001_0000,
            src_qp: 0x77,
        }),
        reth: has(Headers::RETH).then_some(Reth {
            va: 0x7f00_1234_5678_9abc,
            rkey: 0x1234_5678,
            dma_len: 4096,
        }),
        atomic_eth: has(Headers::ATOMIC_ETH).then_some(AtomicEth {
            va: 0x7f00_1234_5678_9ab8,
            rkey: 0x1234_5678,
            swap_add: 1,
            compare: 2,
        }),
        aeth: has(Headers::AETH).then_some(Aeth {
            syndrome: 0x1f,
            msn: 7,
        }),
        atomic_ack: has(Headers::ATOMIC_ACK_ETH).then_some(0x0102_0304_0506_0708),
        immediate: has(Headers::IMMDT).then_some(0x0102_0304),
        invalidate_rkey: has(Headers::IETH).then_some(0x1234_5678),
        payload: Payload::from_vec((0..len).map(byte).collect()),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .map(PathBuf::from)
        .ok_or("usage: every_packet FILE")?;
    let file = PcapFile::create(&path, Duration::ZERO)?;
    let mut at = Nanos::ZERO;
    for encap in encaps() {
        for info in TABLE {
            for len in [1, 64, 255] {
                at = at + Duration::from_micros(1);
                file.write(at, &emit(&encap, &packet(info, len), Icrc::On)?);
            }
        }
    }
    file.flush()?;
    Ok(())
}
