//! Event queue entries (`eqe`): what the device writes when something happened.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an entry.
pub const BYTES: usize = 64;
/// Byte offset of `owner`, which the device writes last.
pub const OWNER_OFFSET: usize = 0x3f;
/// Byte offset of `data`.
pub const DATA_OFFSET: usize = 0x20;
/// Bytes of `data`.
pub const DATA_BYTES: usize = 28;

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Eqe {
    /// Reserved.
    pub rsvd0: u8,
    /// What happened: an `EventType`.
    pub ty: u8,
    /// Reserved.
    pub rsvd1: u8,
    /// More of what happened.
    pub sub_type: u8,
    /// Reserved.
    pub rsvd2: [u8; 28],
    /// To what: one of this module's data types.
    pub data: [u8; DATA_BYTES],
    /// Reserved.
    pub rsvd3: [u8; 2],
    /// Signature.
    pub signature: u8,
    /// Owner bit 0: valid when it equals bit `log_eq_size` of the consumer index.
    pub owner: u8,
}

macro_rules! data {
    ($( $(#[$doc:meta])* pub struct $Name:ident { $( $(#[$fdoc:meta])* pub $field:ident: $ty:ty, )* } )*) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
        )]
        #[repr(C)]
        pub struct $Name { $( $(#[$fdoc])* pub $field: $ty, )* }

        const _: () = assert!(size_of::<$Name>() == DATA_BYTES);
    )*};
}

data! {
    /// A CQ has completions.
    pub struct Completion {
        /// Reserved.
        pub rsvd: [u8; 24],
        /// CQN `23:0`.
        pub cqn: U32,
    }

    /// Commands have completed.
    pub struct CommandCompletion {
        /// A bit for each slot.
        pub vector: U32,
        /// Reserved.
        pub rsvd: [u8; 24],
    }

    /// The firmware wants pages, or gives some back.
    pub struct PageRequest {
        /// Bit 15: of an embedded CPU's function; bit 14: give all back.
        pub flags: U16,
        /// For which function.
        pub func_id: U16,
        /// Pages wanted, or, negative, to be taken back.
        pub num_pages: zerocopy::byteorder::big_endian::I32,
        /// Reserved.
        pub rsvd: [u8; 20],
    }

    /// Something happened to a QP or an SRQ.
    pub struct QpSrq {
        /// Reserved.
        pub rsvd0: [u8; 20],
        /// What kind of queue is named: a `QpEventQueue`.
        pub ty: u8,
        /// Reserved.
        pub rsvd1: [u8; 3],
        /// Number `23:0`.
        pub qp_srq_n: U32,
    }

    /// A CQ is in error.
    pub struct CqError {
        /// CQN `23:0`.
        pub cqn: U32,
        /// Reserved.
        pub rsvd0: [u8; 7],
        /// Why: a `CqErrorSyndrome`.
        pub syndrome: u8,
        /// Reserved.
        pub rsvd1: [u8; 16],
    }

    /// The state of a port changed; how is in the entry's `sub_type`.
    pub struct PortState {
        /// Reserved.
        pub rsvd0: [u8; 8],
        /// Port number `7:4`.
        pub port: u8,
        /// Reserved.
        pub rsvd1: [u8; 19],
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Eqe>() == BYTES);
    assert!(offset_of!(Eqe, data) == DATA_OFFSET);
    assert!(offset_of!(Eqe, owner) == OWNER_OFFSET);
};
