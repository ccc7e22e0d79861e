//! The invariant CRC: over all that routers and switches leave alone.
//!
//! It is Ethernet's CRC-32 over 64 one bits (in the place of InfiniBand's LRH), the network header, the UDP
//! header, the BTH and all that follows, where the fields that may change on the way count as ones (IBTA 7.8.1,
//! A17.3.3); sent least significant byte first.

use crc32fast::Hasher;

/// The form of the header before the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    V1,
    V2Ipv4,
    V2Ipv6,
}

impl Form {
    /// The fields that may change on the way: byte offset from the network header on, and the bits.
    fn variant_fields(self) -> &'static [(usize, u8)] {
        match self {
            // TOS, time to live, header checksum; UDP checksum; FECN, BECN and reserved bits of the BTH.
            Form::V2Ipv4 => &[
                (1, 0xff),
                (8, 0xff),
                (10, 0xff),
                (11, 0xff),
                (26, 0xff),
                (27, 0xff),
                (32, 0xff),
            ],
            // Traffic class, flow label, hop limit; UDP checksum; as above.
            Form::V2Ipv6 => &[
                (0, 0x0f),
                (1, 0xff),
                (2, 0xff),
                (3, 0xff),
                (7, 0xff),
                (46, 0xff),
                (47, 0xff),
                (52, 0xff),
            ],
            // As for IPv6, but without UDP.
            Form::V1 => &[(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff), (44, 0xff)],
        }
    }
}

/// One bits in the place of the LRH.
const LRH_BYTES: usize = 8;
/// The longest header from network header on: IPv6, UDP, BTH, AtomicETH.
const MAX_L3_HEADERS: usize = 88;

/// The CRC so far, after `headers`: all headers from the network header on. The caller goes on with payload
/// and pad bytes.
pub(super) fn start(form: Form, headers: &[u8]) -> Hasher {
    let mut masked = [0xff; LRH_BYTES + MAX_L3_HEADERS];
    let (head, rest) = headers.split_at(headers.len().min(MAX_L3_HEADERS));
    let end = LRH_BYTES + head.len();
    masked[LRH_BYTES..end].copy_from_slice(head);
    for &(at, ones) in form.variant_fields() {
        // Headers that have been parsed or made hold all of them.
        if let Some(byte) = masked[LRH_BYTES..end].get_mut(at) {
            *byte |= ones;
        }
    }
    let mut crc = Hasher::new();
    crc.update(&masked[..end]);
    crc.update(rest);
    crc
}
