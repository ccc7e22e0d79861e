//! Frames for the link's stack, with time between them.

use std::time::{Duration, Instant};

use ferroce::link::{DuplicateDetection, NeighbourKey, Stack, StackConfig};
use ferroce::port::MacAddress;

use super::Input;

/// The station whose stack it is, and the one that speaks.
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Frames that reach the stack, times that pass, look-ups: what comes out is bounded, and the stack's own.
pub fn link(data: &[u8]) {
    let mut now = Instant::now();
    let mut config = StackConfig::new(MacAddress(OWN));
    config.max_neighbours = 8;
    let mut stack = Stack::new(&config);
    for address in ["10.9.0.1/24", "fd00:9::1/64", "fe80::1/64", "10.9.1.1/24@5"] {
        let address = address.parse().expect("an address");
        let added = stack.add_address(now, address, DuplicateDetection::Optimistic);
        added.expect("room for a few");
    }
    let mut input = Input(data);
    while !input.is_empty() {
        match input.u8() {
            kind @ 0..=0x7f => {
                let len = usize::from(input.u8());
                stack.handle_frame(now, &frame(kind, input.take(len)));
            }
            0x80..=0xbf => {
                now += Duration::from_millis(u64::from(input.u8()) * 100);
                stack.handle_timeout(now);
                assert!(
                    stack.poll_timeout().is_none_or(|next| next > now),
                    "what is due is done"
                );
            }
            kind => {
                let ip = [10, 9, kind & 1, input.u8()].into();
                let key = NeighbourKey {
                    vlan: (kind & 1 != 0).then_some(5),
                    ip,
                };
                match kind & 6 {
                    0 => drop(stack.look_up(now, key)),
                    2 => drop(stack.watch(now, key)),
                    4 => stack.unwatch(key),
                    _ => stack.confirm(now, key),
                }
            }
        }
        assert!(
            stack.neighbours().len() <= 8,
            "no more neighbours than there is room for"
        );
        while let Some(sent) = stack.poll_transmit() {
            assert!(
                sent.len() >= 60 && sent[6..12] == OWN && sent[..6] != OWN,
                "{sent:02x?}"
            );
        }
        while stack.poll_event().is_some() {}
    }
}

/// A frame with these bytes as they are, or behind headers that lead into the stack.
fn frame(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let dst: &[u8; 6] = match kind >> 3 & 3 {
        0 => &OWN,
        1 => &[0xff; 6],
        2 => &[0x33, 0x33, 0, 0, 0, 1],
        _ => &[0x33, 0x33, 0xff, 0, 0, 1],
    };
    let ethertype: [u8; 2] = match kind & 7 {
        0 => return bytes.to_vec(),
        1 => [8, 0],
        2 => [8, 6],
        3 | 4 => [0x86, 0xdd],
        5 => [0x81, 0],
        _ => [0x88, 0xa8],
    };
    let mut frame = [&dst[..], &PEER, &ethertype].concat();
    if kind & 7 == 4 {
        // ICMPv6 from a neighbour, whose message and checksum are the input's.
        let len = (bytes.len() as u16).to_be_bytes();
        frame.extend_from_slice(&[0x60, 0, 0, 0, len[0], len[1], 58, 255]);
        frame.extend_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        frame.extend_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
    frame.extend_from_slice(bytes);
    frame
}
