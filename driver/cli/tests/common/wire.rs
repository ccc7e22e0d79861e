//! The RoCE v2 frames over IPv4 of a capture.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::Path;

/// What a test looks at of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceFrame {
    /// Priority of its VLAN tag, if it has one.
    pub priority: Option<u8>,
    /// DSCP in the upper 6 bits, ECN in the lower 2.
    pub traffic_class: u8,
    /// Queue pair that it goes to.
    pub dest_qp: u32,
}

/// Reads a pcap file.
pub fn roce_frames(path: &Path) -> Vec<RoceFrame> {
    let bytes = std::fs::read(path).expect("a capture");
    let mut rest = bytes.get(24..).expect("a pcap header");
    let mut frames = Vec::new();
    while let Some((header, after)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        frames.extend(roce(&after[..len]));
        rest = &after[len..];
    }
    frames
}

fn roce(frame: &[u8]) -> Option<RoceFrame> {
    let tagged = frame.get(12..14)? == [0x81, 0];
    let (kind, ip) = frame.get(if tagged { 16 } else { 12 }..)?.split_at_checked(2)?;
    let udp = ip.get(usize::from(ip.first()? & 15) * 4..)?;
    // IPv4, UDP, the port of RoCE v2.
    if kind != [8, 0] || ip.get(9)? != &17 || udp.get(2..4)? != 4791u16.to_be_bytes() {
        return None;
    }
    let qp = udp.get(8 + 5..8 + 8)?;
    Some(RoceFrame {
        priority: tagged.then(|| frame[14] >> 5),
        traffic_class: ip[1],
        dest_qp: u32::from_be_bytes([0, qp[0], qp[1], qp[2]]),
    })
}
