//! The connection manager's datagrams: bytes to messages and back.
//!
//! Source: IBTA vol. 1, chapters 12 and 13 and annex A11; Linux's `ibta_vol1_c12.h` for the same as code.

mod ip;
mod layouts;
mod reasons;

use ferroce_firmware_iface::layout::{self, Layout};
use zerocopy::IntoBytes;

pub use ip::{IP_HEADER_BYTES, IpHeader, PortSpace, ServiceId};
pub use layouts::{
    AprMsg, DrepMsg, DreqMsg, LapMsg, MadHeader, MraMsg, RejMsg, RepMsg, ReqMsg, RtuMsg, SidrRepMsg,
    SidrReqMsg,
};
pub use reasons::{RejectReason, SidrStatus};

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = 256;
/// `base_version` (IBTA vol. 1, 13.4.3).
const BASE_VERSION: u8 = 1;
/// `mgmt_class` of communication management (IBTA vol. 1, 13.4.4).
const CLASS: u8 = 0x07;
/// `class_version`.
const CLASS_VERSION: u8 = 2;
/// `method`: ComMgtSend is the only one (IBTA vol. 1, 16.7).
const METHOD_SEND: u8 = 0x03;

/// Bytes that are no datagram of the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// Too short.
    #[error("a management datagram of {0} bytes; it has 256")]
    Length(usize),
    /// A number in the header that the connection manager doesn't have.
    #[error("{field} {value:#x} of a management datagram is not the connection manager's")]
    Header {
        /// The field's name.
        field: &'static str,
        /// Its value.
        value: u16,
    },
    /// The RDMA CM header is not one that is known.
    #[error("RDMA CM header: {what} {value} is not supported")]
    IpHeader {
        /// What is wrong.
        what: &'static str,
        /// The value.
        value: u64,
    },
}

/// One kind of message.
pub trait CmMessage: Layout + Default {
    /// `attribute_id` (IBTA vol. 1, 16.7).
    const ATTRIBUTE: u16;
    /// Bytes of private data, which end the datagram.
    const PRIVATE_DATA: usize;

    /// The header, to be changed.
    fn header_mut(&mut self) -> &mut MadHeader;

    /// The header.
    fn mad_header(&self) -> &MadHeader;

    /// The private data, with the zeros that may follow what the sender gave: the wire does not tell its length.
    fn private(&self) -> &[u8] {
        &self.as_bytes()[MAD_BYTES - Self::PRIVATE_DATA..]
    }

    /// Sets the private data; zeros follow it. `false` if it is too long.
    #[must_use]
    fn set_private(&mut self, data: &[u8]) -> bool {
        let area = &mut self.as_mut_bytes()[MAD_BYTES - Self::PRIVATE_DATA..];
        let Some(start) = area.get_mut(..data.len()) else {
            return false;
        };
        start.copy_from_slice(data);
        true
    }

    /// The message with nothing but its header.
    #[must_use]
    fn new(transaction_id: u64) -> Self {
        let mut message = Self::default();
        let header = message.header_mut();
        header.set_base_version(BASE_VERSION);
        header.set_mgmt_class(CLASS);
        header.set_class_version(CLASS_VERSION);
        header.set_method(METHOD_SEND);
        header.set_transaction_id(transaction_id);
        header.set_attribute_id(Self::ATTRIBUTE);
        message
    }

    /// The bytes.
    fn emit(&self) -> Box<[u8; MAD_BYTES]> {
        let mut bytes = Box::new([0; MAD_BYTES]);
        bytes.copy_from_slice(self.as_bytes());
        bytes
    }
}

macro_rules! messages {
    ($( $(#[$doc:meta])* $Kind:ident($Msg:ident) = $attribute:literal, $private:literal; )*) => {
        $(
            // The private data is the datagram's end.
            const _: () = assert!($private <= MAD_BYTES && $Msg::BYTES == MAD_BYTES);

            impl CmMessage for $Msg {
                const ATTRIBUTE: u16 = $attribute;
                const PRIVATE_DATA: usize = $private;

                fn header_mut(&mut self) -> &mut MadHeader {
                    $Msg::header_mut(self)
                }

                fn mad_header(&self) -> &MadHeader {
                    self.header()
                }
            }
        )*

        /// A message, as it lies in its datagram.
        #[derive(Clone, Copy, Debug)]
        pub enum Message<'a> {
            $( $(#[$doc])* $Kind(&'a $Msg), )*
        }

        impl<'a> Message<'a> {
            fn of(attribute: u16, bytes: &'a [u8; MAD_BYTES]) -> Option<Self> {
                match attribute {
                    $( $attribute => layout::view(bytes).map(Message::$Kind), )*
                    _ => None,
                }
            }

            /// Its name in the standard.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $( Message::$Kind(_) => stringify!($Kind), )*
                }
            }

            /// The common header.
            #[must_use]
            pub fn header(&self) -> &'a MadHeader {
                match self {
                    $( Message::$Kind(message) => message.header(), )*
                }
            }

            /// The whole datagram.
            #[must_use]
            pub fn as_bytes(&self) -> &'a [u8] {
                match self {
                    $( Message::$Kind(message) => IntoBytes::as_bytes(*message), )*
                }
            }

            /// Offset in bits of the first reserved bit that is set, if any. Receivers don't care (IBTA vol. 1, 4.1);
            /// it is for those who check senders.
            #[must_use]
            pub fn reserved_bit_set(&self) -> Option<u32> {
                match self {
                    $( Message::$Kind(message) => message.reserved_bit_set(), )*
                }
            }
        }
    };
}

messages! {
    /// Asks for a connection.
    Req(ReqMsg) = 0x0010, 92;
    /// The answer takes longer.
    Mra(MraMsg) = 0x0011, 222;
    /// Rejects.
    Rej(RejMsg) = 0x0012, 148;
    /// Accepts.
    Rep(RepMsg) = 0x0013, 196;
    /// The connection is in use.
    Rtu(RtuMsg) = 0x0014, 224;
    /// Ends a connection.
    Dreq(DreqMsg) = 0x0015, 220;
    /// The end is known.
    Drep(DrepMsg) = 0x0016, 224;
    /// Asks for a service's queue pair.
    SidrReq(SidrReqMsg) = 0x0017, 216;
    /// A service's queue pair.
    SidrRep(SidrRepMsg) = 0x0018, 136;
    /// Asks for another alternate path.
    Lap(LapMsg) = 0x0019, 168;
    /// What became of it.
    Apr(AprMsg) = 0x001a, 148;
}

/// Reads a datagram.
///
/// # Errors
/// [`MadError`] if it is not one of the connection manager. The fields of one that is may still hold anything.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, MadError> {
    let bytes: &[u8; MAD_BYTES] = bytes.first_chunk().ok_or(MadError::Length(bytes.len()))?;
    let header: &MadHeader = layout::view(bytes).ok_or(MadError::Length(bytes.len()))?;
    let expected = [
        ("base_version", header.base_version(), BASE_VERSION),
        ("mgmt_class", header.mgmt_class(), CLASS),
        ("class_version", header.class_version(), CLASS_VERSION),
        ("method", header.method(), METHOD_SEND),
    ];
    for (field, value, wanted) in expected {
        if value != wanted {
            let value = value.into();
            return Err(MadError::Header { field, value });
        }
    }
    let attribute = header.attribute_id();
    Message::of(attribute, bytes).ok_or(MadError::Header {
        field: "attribute_id",
        value: attribute,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a message's table says of its private data, against the constant.
    fn private_is_the_end<M: CmMessage>() {
        let field = M::INFO
            .fields
            .iter()
            .find(|field| field.name == "private_data")
            .unwrap();
        assert_eq!(
            field.bit_offset as usize / 8,
            MAD_BYTES - M::PRIVATE_DATA,
            "{}",
            M::INFO.name
        );
        assert_eq!(field.count as usize, M::PRIVATE_DATA, "{}", M::INFO.name);
        let mut message = M::new(7);
        assert!(message.set_private(&vec![0xaa; M::PRIVATE_DATA]));
        assert!(!message.set_private(&vec![0; M::PRIVATE_DATA + 1]));
        assert!(message.private().iter().all(|byte| *byte == 0xaa));
        assert_eq!(message.reserved_bit_set(), None);
        let bytes = message.emit();
        let again = parse(&*bytes).unwrap();
        assert_eq!(
            (again.as_bytes(), again.header().transaction_id()),
            (&bytes[..], 7)
        );
    }

    #[test]
    fn private_data_ends_each_message() {
        private_is_the_end::<ReqMsg>();
        private_is_the_end::<MraMsg>();
        private_is_the_end::<RejMsg>();
        private_is_the_end::<RepMsg>();
        private_is_the_end::<RtuMsg>();
        private_is_the_end::<DreqMsg>();
        private_is_the_end::<DrepMsg>();
        private_is_the_end::<SidrReqMsg>();
        private_is_the_end::<SidrRepMsg>();
        private_is_the_end::<LapMsg>();
        private_is_the_end::<AprMsg>();
    }

    #[test]
    fn what_is_not_the_connection_managers_is_refused() {
        let good = RtuMsg::new(1).emit();
        assert!(matches!(parse(&*good), Ok(Message::Rtu(_))));
        assert_eq!(parse(&good[..255]).unwrap_err(), MadError::Length(255));
        for (at, field) in [
            (0, "base_version"),
            (1, "mgmt_class"),
            (2, "class_version"),
            (3, "method"),
            (0x10, "attribute_id"),
        ] {
            let mut bytes = good.clone();
            bytes[at] = 0x55;
            assert!(
                matches!(parse(&*bytes), Err(MadError::Header { field: f, .. }) if f == field),
                "{field}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(message) = parse(&bytes) {
                prop_assert_eq!(message.as_bytes(), &bytes[..MAD_BYTES]);
            }
        }
    }
}
