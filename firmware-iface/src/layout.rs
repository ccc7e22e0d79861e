//! The one way in which a PRM layout is declared: [`layout!`](crate::layout!).
//!
//! A layout is a fixed number of big-endian bytes with named bit fields. The macro makes from one
//! declaration: the type (a transparent byte array, so that it can be laid over a mailbox with zerocopy), a
//! getter and a setter per field, the field table, a `Debug` that names the fields that are set, and the
//! map of bits that belong to a field. What no field covers is reserved and must be zero, which
//! [`Layout::reserved_bit_set`] checks.
//!
//! ```text
//!  PRM (and Linux) count bits from the most significant bit of byte 0; the declarations here use what the
//!  PRM's figures show: the byte offset of the field's big-endian dword, and [high:low] within it.
//!
//!        byte offset 0x0c      31   29 28        24 23                                   0
//!                             |       | log_cq_size |              uar_page               |
//! ```

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One field of a layout.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// The PRM's name.
    pub name: &'static str,
    /// Offset of its most significant bit from the start of the layout, counted as the PRM's tables do.
    pub bit_offset: u32,
    /// Width in bits of one element; 0 for a variable tail.
    pub bit_width: u32,
    /// Number of elements: 1 for a plain field, 0 for a tail whose length the command gives.
    pub count: u32,
    /// The layout of a nested field.
    pub nested: Option<&'static LayoutInfo>,
}

/// A layout's table of fields.
#[derive(Debug)]
pub struct LayoutInfo {
    /// The PRM's name.
    pub name: &'static str,
    /// Size in bytes, without a variable tail.
    pub bytes: usize,
    /// Its fields in PRM order.
    pub fields: &'static [FieldInfo],
}

/// A PRM layout: bytes in the device's (big-endian) order with named fields.
pub trait Layout:
    FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Clone + fmt::Debug + 'static
{
    /// Name, size and fields.
    const INFO: &'static LayoutInfo;

    /// A bit mask of the size of the layout: 1 where a field is, 0 where the PRM reserves the bit.
    fn known_bits() -> &'static [u8];

    /// The layout with all bits 0.
    #[must_use]
    fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Offset (PRM counting) of the first reserved bit that is set, if any.
    fn reserved_bit_set(&self) -> Option<u32> {
        self.as_bytes()
            .iter()
            .zip(Self::known_bits())
            .enumerate()
            .find_map(|(i, (byte, known))| {
                let bad = byte & !known;
                (bad != 0).then(|| i as u32 * 8 + bad.leading_zeros())
            })
    }
}

/// A value that does not fit the field it was to be put into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{layout}.{field}: {value:#x} does not fit in {bits} bits")]
pub struct ValueTooWide {
    /// PRM name of the layout.
    pub layout: &'static str,
    /// PRM name of the field.
    pub field: &'static str,
    /// The value that was given.
    pub value: u64,
    /// Width of the field.
    pub bits: u32,
}

/// PRM bit offset of bit `hi` of the dword at byte `offset`.
#[doc(hidden)]
pub const fn bit_offset(offset: usize, hi: u32) -> u32 {
    assert!(hi < 32 && offset.is_multiple_of(4));
    offset as u32 * 8 + 31 - hi
}

/// Width of `[hi:lo]`.
#[doc(hidden)]
pub const fn width(hi: u32, lo: u32) -> u32 {
    assert!(lo <= hi && hi < 32);
    hi - lo + 1
}

/// Marks `width` bits from `bit` on as known.
///
/// # Panics
///
/// At compile time, where the field overlaps another or runs past the end: that fails the build.
#[doc(hidden)]
pub const fn mark(mask: &mut [u8], bit: u32, width: u32, may_overlap: bool) {
    let mut i = bit;
    while i < bit + width {
        let byte = (i / 8) as usize;
        let one = 0x80 >> (i % 8);
        assert!(byte < mask.len(), "a field runs past the end of its layout");
        assert!(
            may_overlap || mask[byte] & one == 0,
            "two fields of a layout overlap"
        );
        mask[byte] |= one;
        i += 1;
    }
}

/// Marks the known bits of a nested layout.
#[doc(hidden)]
pub const fn mark_nested(mask: &mut [u8], offset: usize, known: &[u8], may_overlap: bool) {
    let mut i = 0;
    while i < known.len() {
        assert!(offset + i < mask.len(), "a nested layout runs past the end");
        assert!(
            may_overlap || mask[offset + i] & known[i] == 0,
            "two fields of a layout overlap"
        );
        mask[offset + i] |= known[i];
        i += 1;
    }
}

/// The `width` bits below and including bit `hi` of the big-endian dword at `offset`.
#[doc(hidden)]
#[inline(always)]
pub const fn get_bits<const N: usize>(bytes: &[u8; N], offset: usize, hi: u32, lo: u32) -> u32 {
    let dword = u32::from_be_bytes([
        bytes[offset],
        bytes[offset + 1],
        bytes[offset + 2],
        bytes[offset + 3],
    ]);
    (dword >> lo) & (u32::MAX >> (31 - (hi - lo)))
}

/// Replaces bits `[hi:lo]` of the dword at `offset`; `value` fits them.
#[doc(hidden)]
#[inline(always)]
pub const fn set_bits<const N: usize>(bytes: &mut [u8; N], offset: usize, hi: u32, lo: u32, value: u32) {
    let mask = (u32::MAX >> (31 - (hi - lo))) << lo;
    let old = u32::from_be_bytes([
        bytes[offset],
        bytes[offset + 1],
        bytes[offset + 2],
        bytes[offset + 3],
    ]);
    let new = ((old & !mask) | ((value << lo) & mask)).to_be_bytes();
    let mut i = 0;
    while i < 4 {
        bytes[offset + i] = new[i];
        i += 1;
    }
}

/// Reads a field of any layout by its table row, element `index`; at most 64 bits. `None` when it is wider,
/// or outside of `bytes`.
pub fn read_field(bytes: &[u8], field: &FieldInfo, index: u32) -> Option<u64> {
    if field.bit_width == 0 || field.bit_width > 64 {
        return None;
    }
    let start = field.bit_offset as usize + index as usize * field.bit_width as usize;
    let mut value = 0u64;
    for bit in start..start + field.bit_width as usize {
        let byte = *bytes.get(bit / 8)?;
        value = value << 1 | u64::from(byte >> (7 - bit % 8) & 1);
    }
    Some(value)
}

/// Writes `name=value` for each field of `info` that is not zero, nested layouts in braces.
pub fn debug_fields(info: &LayoutInfo, bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut out = f.debug_struct(info.name);
    for field in info.fields {
        let start = field.bit_offset as usize / 8;
        if let Some(nested) = field.nested {
            for i in 0..field.count as usize {
                let from = start + i * nested.bytes;
                if let Some(part) = bytes
                    .get(from..from + nested.bytes)
                    .filter(|p| p.iter().any(|b| *b != 0))
                {
                    out.field(field.name, &Nested(nested, part));
                }
            }
            continue;
        }
        let values = (0..field.count).map(|i| read_field(bytes, field, i).unwrap_or(0));
        if field.count == 1 {
            for value in values.filter(|v| *v != 0) {
                out.field(field.name, &format_args!("{value:#x}"));
            }
        } else if values.clone().any(|v| v != 0) {
            out.field(field.name, &Values(values));
        }
    }
    out.finish_non_exhaustive()
}

struct Nested<'a>(&'static LayoutInfo, &'a [u8]);

impl fmt::Debug for Nested<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_fields(self.0, self.1, f)
    }
}

struct Values<I>(I);

impl<I: Iterator<Item = u64> + Clone> fmt::Debug for Values<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.clone().map(Hex)).finish()
    }
}

struct Hex(u64);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Declares PRM layouts. Forms of a field (offsets in bytes; bits of the big-endian dword there):
///
/// | form | getter | setter |
/// | --- | --- | --- |
/// | `oi: bool @ 0x00[17];` | `oi() -> bool` | `set_oi(bool)` |
/// | `opcode: u16 @ 0x00[31:16];` as wide as the type | `-> u16` | `set_opcode(u16)` |
/// | `log_cq_size: (u8) @ 0x0c[28:24];` narrower than the type | `-> u8` | `set_log_cq_size(u8) -> Result<(), ValueTooWide>` |
/// | `dbr_addr: u64 @ 0x38;` | `-> u64` | `set_dbr_addr(u64)` |
/// | `qpc: {Qpc} @ 0x18;` a layout in a layout | `-> &Qpc` | `qpc_mut() -> &mut Qpc` |
/// | `event_bitmask: [u64; 4] @ 0x58;` | `(i) -> u64`, 0 past the end | `set_event_bitmask(i, u64)`, nothing past the end |
/// | `destination: [{Dest}; 4] @ 0x58;` | `(i) -> Option<&Dest>` | `destination_mut(i) -> Option<&mut Dest>` |
/// | `pas: tail @ 0x110;` a list whose length the command gives | `PAS_OFFSET` is where it starts | |
///
/// `struct` fails the build where fields overlap; in a `union` they may.
#[macro_export]
macro_rules! layout {
    ($(
        $(#[$doc:meta])*
        $kind:ident $Name:ident($prm:literal, $bytes:literal) {
            $( $field:ident : $ty:tt @ $off:literal $([ $hi:literal $(: $lo:literal)? ])? ; )*
        }
    )*) => {$(
        $(#[$doc])*
        #[doc = concat!("\n\nLayout `", $prm, "`, ", stringify!($bytes), " bytes.")]
        #[derive(
            Clone, Copy, PartialEq, Eq,
            ::zerocopy::FromBytes, ::zerocopy::IntoBytes, ::zerocopy::KnownLayout,
            ::zerocopy::Immutable, ::zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $Name([u8; $bytes]);

        // Names are the PRM's, and a PRM field may be called `len`.
        #[allow(non_snake_case, clippy::len_without_is_empty)]
        impl $Name {
            /// Size in bytes, without a variable tail.
            pub const BYTES: usize = $bytes;

            /// 1 for each bit that belongs to a field.
            pub(crate) const KNOWN: [u8; $bytes] = {
                #[allow(unused_mut)]
                let mut mask = [0u8; $bytes];
                #[allow(dead_code)]
                const OVERLAP: bool = $crate::layout_part!(overlap $kind);
                $( $crate::layout_part!(mark mask OVERLAP $ty $off $([$hi $(: $lo)?])?); )*
                mask
            };

            $( $crate::layout_part!(methods $prm $field $ty $off $([$hi $(: $lo)?])?); )*
        }

        impl $crate::layout::Layout for $Name {
            const INFO: &'static $crate::layout::LayoutInfo = &$crate::layout::LayoutInfo {
                name: $prm,
                bytes: $bytes,
                fields: &[ $( $crate::layout_part!(info $field $ty $off $([$hi $(: $lo)?])?), )* ],
            };

            fn known_bits() -> &'static [u8] {
                &Self::KNOWN
            }
        }

        impl Default for $Name {
            fn default() -> Self {
                Self([0; $bytes])
            }
        }

        impl ::core::fmt::Debug for $Name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $crate::layout::debug_fields(<Self as $crate::layout::Layout>::INFO, &self.0, f)
            }
        }
    )*

        /// The layouts that are declared here.
        pub(crate) const LAYOUTS: &[&$crate::layout::LayoutInfo] =
            &[ $( <$Name as $crate::layout::Layout>::INFO, )* ];
    };
}

/// The pieces that [`layout!`](crate::layout!) puts together for each form of field.
#[doc(hidden)]
#[macro_export]
macro_rules! layout_part {
    (overlap struct) => { false };
    (overlap union) => { true };

    // ---- which bits a field covers -------------------------------------------------------------
    (mark $m:ident $o:ident tail $off:literal) => {};
    (mark $m:ident $o:ident $ty:tt $off:literal [$bit:literal]) => {
        $crate::layout::mark(&mut $m, $crate::layout::bit_offset($off, $bit), 1, $o)
    };
    (mark $m:ident $o:ident $ty:tt $off:literal [$hi:literal : $lo:literal]) => {
        $crate::layout::mark(
            &mut $m, $crate::layout::bit_offset($off, $hi), $crate::layout::width($hi, $lo), $o)
    };
    (mark $m:ident $o:ident {$T:ident} $off:literal) => {
        $crate::layout::mark_nested(&mut $m, $off, &$T::KNOWN, $o)
    };
    (mark $m:ident $o:ident [{$T:ident}; $n:literal] $off:literal) => {{
        let mut i = 0;
        while i < $n {
            $crate::layout::mark_nested(&mut $m, $off + i * $T::BYTES, &$T::KNOWN, $o);
            i += 1;
        }
    }};
    (mark $m:ident $o:ident [$t:ident; $n:literal] $off:literal) => {
        $crate::layout::mark(&mut $m, $off * 8, $t::BITS * $n, $o)
    };
    (mark $m:ident $o:ident $t:ident $off:literal) => {
        $crate::layout::mark(&mut $m, $off * 8, $t::BITS, $o)
    };

    // ---- the row of the field table ------------------------------------------------------------
    (row $field:ident $bit:expr, $width:expr, $count:expr, $nested:expr) => {
        $crate::layout::FieldInfo {
            name: stringify!($field),
            bit_offset: $bit,
            bit_width: $width,
            count: $count,
            nested: $nested,
        }
    };
    (info $field:ident tail $off:literal) => {
        $crate::layout_part!(row $field $off * 8, 0, 0, None)
    };
    (info $field:ident $ty:tt $off:literal [$bit:literal]) => {
        $crate::layout_part!(row $field $crate::layout::bit_offset($off, $bit), 1, 1, None)
    };
    (info $field:ident $ty:tt $off:literal [$hi:literal : $lo:literal]) => {
        $crate::layout_part!(row $field
            $crate::layout::bit_offset($off, $hi), $crate::layout::width($hi, $lo), 1, None)
    };
    (info $field:ident {$T:ident} $off:literal) => {
        $crate::layout_part!(row $field $off * 8, $T::BYTES as u32 * 8, 1,
            Some(<$T as $crate::layout::Layout>::INFO))
    };
    (info $field:ident [{$T:ident}; $n:literal] $off:literal) => {
        $crate::layout_part!(row $field $off * 8, $T::BYTES as u32 * 8, $n,
            Some(<$T as $crate::layout::Layout>::INFO))
    };
    (info $field:ident [$t:ident; $n:literal] $off:literal) => {
        $crate::layout_part!(row $field $off * 8, $t::BITS, $n, None)
    };
    (info $field:ident $t:ident $off:literal) => {
        $crate::layout_part!(row $field $off * 8, $t::BITS, 1, None)
    };

    // ---- accessors -----------------------------------------------------------------------------
    (methods $prm:literal $field:ident tail $off:literal) => { ::pastey::paste! {
        #[doc = concat!("Byte offset at which the list `", stringify!($field), "` starts.")]
        pub const [<$field:upper _OFFSET>]: usize = $off;
    } };
    (methods $prm:literal $field:ident bool $off:literal [$bit:literal]) => { ::pastey::paste! {
        #[doc = concat!("`", stringify!($field), "`: dword ", stringify!($off), " bit ", stringify!($bit), ".")]
        #[inline]
        pub const fn $field(&self) -> bool {
            $crate::layout::get_bits(&self.0, $off, $bit, $bit) != 0
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub const fn [<set_ $field>](&mut self, value: bool) {
            $crate::layout::set_bits(&mut self.0, $off, $bit, $bit, value as u32)
        }
    } };
    (methods $prm:literal $field:ident ($t:ident) $off:literal [$hi:literal : $lo:literal]) => { ::pastey::paste! {
        #[doc = concat!("`", stringify!($field), "`: dword ", stringify!($off),
            " bits `", stringify!($hi), ":", stringify!($lo), "`.")]
        #[inline]
        pub const fn $field(&self) -> $t {
            $crate::layout::get_bits(&self.0, $off, $hi, $lo) as $t
        }

        #[doc = concat!("Sets `", stringify!($field), "`.\n\n# Errors\n\nA value that does not fit.")]
        #[inline]
        pub const fn [<set_ $field>](&mut self, value: $t) -> Result<(), $crate::layout::ValueTooWide> {
            const BITS: u32 = $crate::layout::width($hi, $lo);
            const { assert!(BITS < $t::BITS, "the field is as wide as its type: leave out the parentheses") };
            if value >> BITS != 0 {
                return Err($crate::layout::ValueTooWide {
                    layout: $prm, field: stringify!($field), value: value as u64, bits: BITS });
            }
            $crate::layout::set_bits(&mut self.0, $off, $hi, $lo, value as u32);
            Ok(())
        }
    } };
    (methods $prm:literal $field:ident $t:ident $off:literal [$hi:literal : $lo:literal]) => { ::pastey::paste! {
        #[doc = concat!("`", stringify!($field), "`: dword ", stringify!($off),
            " bits `", stringify!($hi), ":", stringify!($lo), "`.")]
        #[inline]
        pub const fn $field(&self) -> $t {
            $crate::layout::get_bits(&self.0, $off, $hi, $lo) as $t
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub const fn [<set_ $field>](&mut self, value: $t) {
            const { assert!($crate::layout::width($hi, $lo) == $t::BITS, "field and type differ in width") };
            $crate::layout::set_bits(&mut self.0, $off, $hi, $lo, value as u32)
        }
    } };
    (methods $prm:literal $field:ident {$T:ident} $off:literal) => { ::pastey::paste! {
        #[doc = concat!("`", stringify!($field), "`, at byte ", stringify!($off), ".")]
        #[inline]
        pub fn $field(&self) -> &$T {
            const { assert!($off + $T::BYTES <= Self::BYTES) };
            ::zerocopy::transmute_ref!(self.0[$off..].first_chunk::<{ $T::BYTES }>().unwrap_or(&[0; $T::BYTES]))
        }

        #[doc = concat!("`", stringify!($field), "`, to be changed in place.")]
        #[inline]
        pub fn [<$field _mut>](&mut self) -> &mut $T {
            // PANIC: the assertion above `first_chunk_mut` holds at compile time.
            const { assert!($off + $T::BYTES <= Self::BYTES) };
            match self.0[$off..].first_chunk_mut::<{ $T::BYTES }>() {
                Some(bytes) => ::zerocopy::transmute_mut!(bytes),
                None => unreachable!(),
            }
        }
    } };
    (methods $prm:literal $field:ident [{$T:ident}; $n:literal] $off:literal) => { ::pastey::paste! {
        #[doc = concat!("Element `i` of `", stringify!($field), "`, which starts at byte ", stringify!($off), ".")]
        pub fn $field(&self, i: usize) -> Option<&$T> {
            let from = $off + if i < $n { i } else { return None } * $T::BYTES;
            $crate::layout::view(self.0.get(from..)?)
        }

        #[doc = concat!("Element `i` of `", stringify!($field), "`, to be changed in place.")]
        pub fn [<$field _mut>](&mut self, i: usize) -> Option<&mut $T> {
            let from = $off + if i < $n { i } else { return None } * $T::BYTES;
            $crate::layout::view_mut(self.0.get_mut(from..)?)
        }
    } };
    (methods $prm:literal $field:ident [$t:ident; $n:literal] $off:literal) => { ::pastey::paste! {
        #[doc = concat!("Element `i` of `", stringify!($field), "`, which starts at byte ",
            stringify!($off), "; 0 from ", stringify!($n), " on.")]
        pub fn $field(&self, i: usize) -> $t {
            const BYTES: usize = ($t::BITS / 8) as usize;
            match self.0.get($off + i.min($n) * BYTES..).and_then(|b| b.first_chunk()) {
                Some(bytes) if i < $n => $t::from_be_bytes(*bytes),
                _ => 0,
            }
        }

        #[doc = concat!("Sets element `i` of `", stringify!($field), "`; nothing from ", stringify!($n), " on.")]
        pub fn [<set_ $field>](&mut self, i: usize, value: $t) {
            const BYTES: usize = ($t::BITS / 8) as usize;
            if i < $n {
                self.0[$off + i * BYTES..$off + (i + 1) * BYTES].copy_from_slice(&value.to_be_bytes());
            }
        }
    } };
    (methods $prm:literal $field:ident $t:ident $off:literal) => { ::pastey::paste! {
        #[doc = concat!("`", stringify!($field), "`, at byte ", stringify!($off), ".")]
        #[inline]
        pub const fn $field(&self) -> $t {
            const BYTES: usize = ($t::BITS / 8) as usize;
            let mut bytes = [0; BYTES];
            let mut i = 0;
            while i < BYTES {
                bytes[i] = self.0[$off + i];
                i += 1;
            }
            $t::from_be_bytes(bytes)
        }

        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[inline]
        pub const fn [<set_ $field>](&mut self, value: $t) {
            let bytes = value.to_be_bytes();
            let mut i = 0;
            while i < bytes.len() {
                self.0[$off + i] = bytes[i];
                i += 1;
            }
        }
    } };
}

/// The layout at the start of `bytes`; `None` when they are too few.
pub fn view<T: Layout>(bytes: &[u8]) -> Option<&T> {
    T::ref_from_prefix(bytes).ok().map(|(layout, _)| layout)
}

/// The layout at the start of `bytes`, to be changed in place; `None` when they are too few.
pub fn view_mut<T: Layout>(bytes: &mut [u8]) -> Option<&mut T> {
    T::mut_from_prefix(bytes).ok().map(|(layout, _)| layout)
}
