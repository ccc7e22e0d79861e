//! Receive side scaling: the Toeplitz hash (as defined by Microsoft's RSS specification) of the fields that a
//! TIR selects.

use ferroce_firmware_iface::layouts::Tirc;

use super::packet::{Packet, Transport};

/// `selected_fields` bits of `rx_hash_field_select`.
const SRC_IP: u32 = 1 << 0;
const DST_IP: u32 = 1 << 1;
const L4_SPORT: u32 = 1 << 2;
const L4_DPORT: u32 = 1 << 3;
/// `rx_hash_fn`: no hash, and Toeplitz.
const TOEPLITZ: u8 = 2;
/// Bytes of the key.
const KEY_BYTES: usize = 40;

/// The Toeplitz hash of up to 36 bytes.
pub fn toeplitz(key: &[u8; KEY_BYTES], data: &[u8]) -> u32 {
    let mut hash = 0;
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    for (at, byte) in data.iter().enumerate() {
        let next = key.get(at + 4).copied().unwrap_or(0);
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                hash ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    hash
}

/// The hash of a frame, as the TIR wants it; 0 for one that hashes nothing.
pub fn of(tirc: &Tirc, packet: &Packet) -> u32 {
    if tirc.rx_hash_fn() != TOEPLITZ {
        return 0;
    }
    let mut key = [0; KEY_BYTES];
    for (i, chunk) in key.chunks_exact_mut(4).enumerate() {
        chunk.copy_from_slice(&tirc.rx_hash_toeplitz_key(i).to_be_bytes());
    }
    let fields = tirc.rx_hash_field_selector_outer().selected_fields();
    let (mut src, mut dst) = packet.addresses();
    let (mut sport, mut dport) = match packet.transport {
        Some(Transport { sport, dport, .. }) => (sport, dport),
        None => (0, 0),
    };
    if tirc.rx_hash_symmetric() {
        // Both ways of a conversation get one hash.
        if src > dst {
            std::mem::swap(&mut src, &mut dst);
        }
        if sport > dport {
            std::mem::swap(&mut sport, &mut dport);
        }
    }
    let mut data = Vec::with_capacity(36);
    if fields & SRC_IP != 0 {
        data.extend_from_slice(src);
    }
    if fields & DST_IP != 0 {
        data.extend_from_slice(dst);
    }
    if fields & L4_SPORT != 0 {
        data.extend_from_slice(&sport.to_be_bytes());
    }
    if fields & L4_DPORT != 0 {
        data.extend_from_slice(&dport.to_be_bytes());
    }
    toeplitz(&key, &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and two of the examples of the specification.
    #[test]
    fn the_specifications_examples_hash_as_it_says() {
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        let addresses = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&key, &addresses), 0x323e_8fc2);
        let mut with_ports = addresses.to_vec();
        with_ports.extend_from_slice(&2794u16.to_be_bytes());
        with_ports.extend_from_slice(&1766u16.to_be_bytes());
        assert_eq!(toeplitz(&key, &with_ports), 0x51cc_c178);
    }
}
