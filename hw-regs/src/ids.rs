//! Numbers by which the device names its objects. All of them are 24 bits wide or less, and a value that is
//! wider can't be made.

use core::fmt;

/// A number that does not fit the 24 bits (or 8, for an EQ) that the device has for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdTooWide {
    /// Name of the type.
    pub kind: &'static str,
    /// The number.
    pub value: u32,
    /// Bits that there are.
    pub bits: u32,
}

impl fmt::Display for IdTooWide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:#x} does not fit in {} bits",
            self.kind, self.value, self.bits
        )
    }
}

impl core::error::Error for IdTooWide {}

macro_rules! ids {
    ($( $(#[$doc:meta])* $Name:ident: $bits:literal, $shown:literal; )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $Name(u32);

        impl $Name {
            /// Width of the number.
            pub const BITS: u32 = $bits;
            /// The largest number.
            pub const MAX: $Name = $Name((1 << $bits) - 1);

            /// The number as its type.
            ///
            /// # Errors
            ///
            /// A number that has more bits than the device gives it.
            pub const fn new(value: u32) -> Result<$Name, IdTooWide> {
                if value > Self::MAX.0 {
                    return Err(IdTooWide { kind: $shown, value, bits: $bits });
                }
                Ok($Name(value))
            }

            /// The number in the low bits of `value`, which comes from a field that has other things above it.
            pub const fn from_low_bits(value: u32) -> $Name {
                $Name(value & Self::MAX.0)
            }

            /// The number.
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($shown, " {:#x}"), self.0)
            }
        }

        impl fmt::Debug for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl TryFrom<u32> for $Name {
            type Error = IdTooWide;

            fn try_from(value: u32) -> Result<$Name, IdTooWide> {
                $Name::new(value)
            }
        }
    )*};
}

ids! {
    /// Queue pair number.
    Qpn: 24, "QPN";
    /// Completion queue number.
    Cqn: 24, "CQN";
    /// Event queue number: 8 bits.
    Eqn: 8, "EQN";
    /// Shared receive queue number.
    Srqn: 24, "SRQN";
    /// Protection domain number.
    Pdn: 24, "PDN";
    /// Index of a UAR page in BAR 0, in units of 4 KiB.
    UarPage: 24, "UAR page";
    /// What a driver puts into a queue's context and finds again in its completions.
    UserIndex: 24, "user index";
    /// Transport domain number.
    Tdn: 24, "transport domain";
    /// Index of a memory key: the upper 24 bits of an L_Key or R_Key.
    MkeyIndex: 24, "mkey index";
}

/// A whole memory key, as it stands in a work request (L_Key) or goes to a peer (R_Key): 24 bits of index that
/// the device gives, 8 bits that the driver chooses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mkey(pub u32);

impl Mkey {
    /// The key of `index` with the driver's byte `variant`.
    pub const fn new(index: MkeyIndex, variant: u8) -> Mkey {
        Mkey(index.get() << 8 | variant as u32)
    }

    /// The device's part.
    pub const fn index(self) -> MkeyIndex {
        MkeyIndex::from_low_bits(self.0 >> 8)
    }

    /// The driver's part (`mkc.mkey_7_0`).
    pub const fn variant(self) -> u8 {
        self.0 as u8
    }
}

impl fmt::Debug for Mkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mkey {:#010x}", self.0)
    }
}

impl fmt::Display for Mkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_too_wide_is_refused() {
        assert_eq!(Qpn::new(0xff_ffff).map(Qpn::get), Ok(0xff_ffff));
        assert!(Qpn::new(0x100_0000).is_err());
        assert!(Eqn::new(256).is_err());
        assert_eq!(Qpn::from_low_bits(0x0a12_3456).get(), 0x12_3456);
    }

    #[test]
    fn an_mkey_is_index_and_variant() {
        let key = Mkey::new(MkeyIndex::from_low_bits(0x1234), 0x56);
        assert_eq!(key.0, 0x12_3456);
        assert_eq!((key.index().get(), key.variant()), (0x1234, 0x56));
    }
}
