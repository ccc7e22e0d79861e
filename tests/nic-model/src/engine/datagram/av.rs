//! The address vector of a datagram's WQE (PRM, datagram segment).

use crate::engine::address::{Addresses, Gid, udp_source};
use crate::engine::violation::Violation;

/// Bytes of an address vector.
pub const BYTES: usize = 48;
/// The vector has all its 48 bytes; the short form is for InfiniBand only.
const EXTENDED: u32 = 1 << 31;
/// A WQE's Q_Key with this bit says that the QP's own is to be sent (IBTA vol. 1, 10.2.5).
const PRIVILEGED: u32 = 1 << 31;

/// Where a datagram goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressVector {
    qkey: u32,
    /// QP number at the destination, 24 bits.
    pub qpn: u32,
    /// Entry of the GID table that is the source.
    pub gid_index: u16,
    /// Destination MAC address.
    pub dmac: [u8; 6],
    dgid: [u8; 16],
    hop_limit: u8,
    tclass: u8,
    flow_label: u32,
    udp_sport: u16,
    priority: u8,
}

impl AddressVector {
    /// Decodes a vector.
    ///
    /// # Errors
    /// Which rule it breaks, and how.
    pub fn parse(av: &[u8; BYTES]) -> Result<AddressVector, (Violation, &'static str)> {
        let word = |at: usize| u32::from_be_bytes([av[at], av[at + 1], av[at + 2], av[at + 3]]);
        let (destination, grh) = (word(0x8), word(0x1c));
        if destination & EXTENDED == 0 {
            return Err((
                Violation::BadWqe,
                "its address vector is not of the extended form",
            ));
        }
        if destination & 0x7f00_0000 != 0 || word(0x4) != 0 || word(0x10) != 0 || grh >> 31 != 0 {
            return Err((
                Violation::ReservedBit,
                "reserved bits of its address vector are set",
            ));
        }
        let mut dmac = [0; 6];
        dmac.copy_from_slice(&av[0x14..0x1a]);
        if dmac == [0; 6] {
            return Err((
                Violation::BadWqe,
                "its address vector has no destination MAC address",
            ));
        }
        let mut dgid = [0; 16];
        dgid.copy_from_slice(&av[0x20..0x30]);
        Ok(AddressVector {
            qkey: word(0),
            qpn: destination & 0xff_ffff,
            gid_index: (grh >> 20 & 0x3ff) as u16,
            dmac,
            dgid,
            hop_limit: av[0x1b],
            tclass: av[0x1a],
            flow_label: grh & 0xf_ffff,
            udp_sport: u16::from_be_bytes([av[0xe], av[0xf]]),
            // On Ethernet three bits above a reserved one.
            priority: av[0xc] >> 1 & 7,
        })
    }

    /// The Q_Key to send, for a QP whose own is `own`.
    pub fn qkey(&self, own: u32) -> u32 {
        if self.qkey & PRIVILEGED != 0 {
            own
        } else {
            self.qkey
        }
    }

    /// Whether it goes to a group.
    pub fn is_multicast(&self) -> bool {
        self.dmac[0] & 1 != 0
    }

    /// The addresses of its frame, from this entry of the GID table.
    pub fn addresses(&self, gid: Gid) -> Addresses {
        Addresses {
            gid,
            dmac: self.dmac,
            dgid: self.dgid,
            hop_limit: self.hop_limit,
            tclass: self.tclass,
            flow_label: self.flow_label,
            udp_sport: udp_source(self.udp_sport),
            priority: self.priority,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector() -> [u8; BYTES] {
        let mut av = [0; BYTES];
        av[0..4].copy_from_slice(&0x1111_1111u32.to_be_bytes());
        av[8..12].copy_from_slice(&0x8012_3456u32.to_be_bytes());
        av[0xc] = 5 << 1;
        av[0xe..0x10].copy_from_slice(&0xc123u16.to_be_bytes());
        av[0x14..0x1a].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        av[0x1a] = 0x6a;
        av[0x1b] = 64;
        av[0x1c..0x20].copy_from_slice(&(1 << 30 | 3 << 20 | 0xabcdeu32).to_be_bytes());
        av[0x20..0x30].copy_from_slice(&[7; 16]);
        av
    }

    #[test]
    fn each_field_is_where_the_prm_has_it() {
        let av = AddressVector::parse(&vector()).unwrap();
        assert_eq!((av.qpn, av.gid_index, av.priority), (0x12_3456, 3, 5));
        assert_eq!((av.tclass, av.hop_limit, av.flow_label), (0x6a, 64, 0xabcde));
        assert_eq!(
            (av.udp_sport, av.dmac, av.dgid),
            (0xc123, [2, 0, 0, 0, 0, 9], [7; 16])
        );
    }

    #[test]
    fn a_q_key_with_its_high_bit_stands_for_that_of_the_qp() {
        let av = AddressVector::parse(&vector()).unwrap();
        assert_eq!(av.qkey(5), 0x1111_1111);
        let mut privileged = vector();
        privileged[0] = 0x80;
        assert_eq!(AddressVector::parse(&privileged).unwrap().qkey(5), 5);
    }

    #[test]
    fn vectors_that_break_rules_are_refused() {
        let cases: [(usize, u8, Violation); 6] = [
            (8, 0x00, Violation::BadWqe),
            (8, 0xc0, Violation::ReservedBit),
            (7, 0x01, Violation::ReservedBit),
            (0x10, 0x80, Violation::ReservedBit),
            (0x1c, 0xc0, Violation::ReservedBit),
            (0x14, 0x00, Violation::BadWqe),
        ];
        for (at, value, violation) in cases {
            let mut av = vector();
            av[at] = value;
            if at == 0x14 {
                av[0x14..0x1a].fill(0);
            }
            let refused = AddressVector::parse(&av).unwrap_err();
            assert_eq!(refused.0, violation, "byte {at:#x} {value:#x}: {}", refused.1);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: [u8; 24], more: [u8; 24]) {
            let mut av = [0; BYTES];
            av[..24].copy_from_slice(&bytes);
            av[24..].copy_from_slice(&more);
            let _ = AddressVector::parse(&av);
        }
    }
}
