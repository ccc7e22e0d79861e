//! Frames from the wire.

use ferroce::verbs::{GlobalHeader, NetworkType};
use ferroce_nic_model::wire::{self, Frame, Icrc};

use super::Input;
use super::host::host_of_any_service;
use crate::bare_host::Host;

/// Parsing one frame. What was accepted can be emitted, and says the same again.
///
/// # Panics
/// On a bug.
pub fn wire_parse(data: &[u8]) {
    let mut input = Input(data);
    // Lower layers that fit are given now and then, so that what is above them is reached.
    let frame = match input.u8() & 3 {
        0 => input.0.to_vec(),
        _ => Host::frame_of_peer(input.0),
    };
    let frame = Frame::from_vec(frame);
    // Whose check value is random too.
    let _ = wire::parse(&frame, Icrc::On);
    let Ok(first) = wire::parse(&frame, Icrc::Off) else {
        return;
    };
    let _ = first.grh_area();
    for mode in [Icrc::Off, Icrc::On] {
        let again = wire::emit(&first.encap, &first.packet, mode).expect("what was parsed can be emitted");
        let again = again.flatten().expect("all bytes are the frame's own");
        let second = wire::parse(&again, mode).expect("what was emitted can be parsed");
        assert_eq!(
            format!("{:?}", first.packet.bth),
            format!("{:?}", second.packet.bth)
        );
        assert_eq!(first.encap, second.encap);
    }
}

/// Frames into a NIC that has a queue pair; ICRCs are not looked at, so that all gets through.
///
/// # Panics
/// On a bug.
pub fn frames(data: &[u8]) {
    let mut input = Input(data);
    let (mut host, datagrams) = host_of_any_service(&mut input);
    host.nic.data_plane.set_icrc(Icrc::Off);
    host.enable_roce();
    while !input.is_empty() {
        let kind = input.u8();
        let len = usize::from(input.u8()) * 4;
        let mut packet = input.take(len).to_vec();
        // What leads to the queue pair is often given, so that what follows it is reached.
        if kind & 7 == 0 {
            host.receive(packet);
            continue;
        }
        packet.resize(packet.len().max(16), 0);
        packet[2..8].copy_from_slice(&[0xff, 0xff, 0, 0, 0, 0x40]);
        match kind >> 3 & 3 {
            0 if datagrams => {
                packet[5..8].fill(0xff);
                host.receive(Host::frame_of_group(&packet));
            }
            1 => {
                // QP1.
                packet[7] = 1;
                host.receive(Host::frame_of_peer(&packet));
            }
            2 => {
                // Marked by a switch.
                let mut frame = Host::frame_of_peer(&packet);
                frame[15] |= 0x30;
                host.receive(frame);
            }
            _ => host.receive(Host::frame_of_peer(&packet)),
        }
    }
}

/// The global header in front of a received datagram.
///
/// # Panics
/// On a bug.
pub fn global_header(data: &[u8]) {
    for network in [NetworkType::RoceV1, NetworkType::Ipv4, NetworkType::Ipv6] {
        if let Ok(header) = GlobalHeader::read(data, network) {
            assert_eq!(header.network, network);
            assert!(header.flow_label < 1 << 20 && header.dscp() < 64 && header.ecn() < 4);
            assert_eq!(header.sgid().to_ip(), header.source);
        }
    }
}
