//! Packet sequence numbers: 24 bits that wrap (IBTA vol. 1, 9.7.2).

/// Number of bits in a PSN, an MSN and an SSN.
pub const BITS: u32 = 24;
const MASK: u32 = (1 << BITS) - 1;

/// A 24-bit packet sequence number.
///
/// It has no ordering operator, since 24-bit numbers that wrap have no total order: compare with
/// [`Psn::diff`], which is exact while the two are less than 2^23 apart (IBTA vol. 1, 9.7.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Psn(u32);

impl Psn {
    /// The PSN with the low 24 bits of `value`: used on numbers that come from a 24-bit field.
    pub const fn from_low_bits(value: u32) -> Psn {
        Psn(value & MASK)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// This PSN moved on by `n`, wrapping at 2^24.
    #[must_use]
    pub const fn add(self, n: u32) -> Psn {
        Psn(self.0.wrapping_add(n) & MASK)
    }

    /// This PSN moved back by `n`, wrapping at 0.
    #[must_use]
    pub const fn sub(self, n: u32) -> Psn {
        Psn(self.0.wrapping_sub(n) & MASK)
    }

    /// The signed distance from `other` to `self`, in -2^23..2^23: negative when `self` is older.
    pub const fn diff(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << (32 - BITS)) as i32) >> (32 - BITS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn distance_wraps_at_24_bits() {
        let last = Psn::from_low_bits(0xff_ffff);
        assert_eq!(last.add(1), Psn::default());
        assert_eq!(last.add(1).diff(last), 1);
        assert_eq!(last.diff(last.add(3)), -3);
        assert_eq!(Psn::default().sub(1), last);
        assert_eq!(Psn::from_low_bits(0x80_0000).diff(Psn::default()), -0x80_0000);
    }

    proptest! {
        #[test]
        fn moving_and_measuring_agree(start in any::<u32>(), n in 0u32..1 << 23) {
            let start = Psn::from_low_bits(start);
            prop_assert_eq!(start.add(n).sub(n), start);
            prop_assert_eq!(start.add(n).diff(start), n as i32);
            prop_assert_eq!(start.sub(n).diff(start), -(n as i32));
            prop_assert!(start.add(n).get() < 1 << BITS);
        }

        #[test]
        fn moves_add_up_modulo_2_to_24(start in any::<u32>(), a in any::<u32>(), b in any::<u32>()) {
            let start = Psn::from_low_bits(start);
            prop_assert_eq!(start.add(a).add(b), start.add(a.wrapping_add(b)));
            prop_assert_eq!(start.add(a).sub(b), start.sub(b).add(a));
            prop_assert_eq!(start.add(1 << BITS), start);
        }

        #[test]
        fn distance_is_the_shorter_way_round(a in any::<u32>(), b in any::<u32>()) {
            let (a, b) = (Psn::from_low_bits(a), Psn::from_low_bits(b));
            let distance = a.diff(b);
            prop_assert!((-(1 << 23)..1 << 23).contains(&distance));
            prop_assert_eq!(b.add(distance as u32), a);
        }
    }
}
