//! The two answers a command has: whether it was delivered, and what the firmware says of it.

use core::fmt;

macro_rules! numbers {
    (
        $(#[$doc:meta])*
        pub struct $Name:ident($t:ty) { $( $(#[$vdoc:meta])* $variant:ident = $value:literal, $text:literal; )* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $Name(pub $t);

        impl $Name {
            $( $(#[$vdoc])* #[doc = concat!("Value ", stringify!($value), ": ", $text, ".")]
            pub const $variant: $Name = $Name($value); )*

            /// What it means, in words; `None` for a number that is not in the PRM's table.
            pub const fn meaning(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some($text), )*
                    _ => None,
                }
            }

            /// Every number of the PRM's table.
            pub const ALL: &'static [$Name] = &[ $( $Name::$variant, )* ];
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.meaning() {
                    Some(text) => write!(f, "{text} ({:#x})", self.0),
                    None => write!(f, "unknown ({:#x})", self.0),
                }
            }
        }

        impl fmt::Debug for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}
pub(crate) use numbers;

numbers! {
    /// Delivery status: bits 7:1 of the last byte of a command queue entry. Anything but [`Self::OK`] means
    /// that the firmware never looked at the command itself.
    pub struct DeliveryStatus(u8) {
        OK = 0x00, "delivered";
        SIGNATURE = 0x01, "signature of the entry or of a mailbox block is wrong";
        TOKEN = 0x02, "token of a mailbox block differs from the entry's";
        BAD_BLOCK_NUMBER = 0x03, "mailbox block number out of order";
        BAD_OUTPUT_POINTER = 0x04, "output mailbox pointer is bad";
        BAD_INPUT_POINTER = 0x05, "input mailbox pointer is bad";
        INTERNAL = 0x06, "internal error of the firmware";
        INPUT_LENGTH = 0x07, "input length is wrong";
        OUTPUT_LENGTH = 0x08, "output length is wrong";
        RESERVED_NOT_ZERO = 0x09, "a reserved field is not zero";
        BAD_TYPE = 0x10, "entry type is not that of a PCIe command";
    }
}

numbers! {
    /// Command status: the first byte of a command's output.
    pub struct CommandStatus(u8) {
        OK = 0x00, "OK";
        INTERNAL_ERR = 0x01, "internal error";
        BAD_OP = 0x02, "unknown or unsupported opcode or op_mod";
        BAD_PARAM = 0x03, "bad parameter";
        BAD_SYS_STATE = 0x04, "bad system state: the HCA is not in the state that this command needs";
        BAD_RESOURCE = 0x05, "bad resource: it does not exist or is of another kind";
        RESOURCE_BUSY = 0x06, "resource is busy: something still uses it";
        NOT_READY = 0x07, "not ready";
        EXCEED_LIM = 0x08, "exceeds a limit of the device";
        BAD_RES_STATE = 0x09, "resource is in a bad state for this";
        BAD_INDEX = 0x0a, "bad index";
        NO_RESOURCES = 0x0f, "out of resources";
        BAD_QP_STATE = 0x10, "the QP is in a state that does not allow this transition";
        BAD_PKT = 0x30, "bad management packet";
        BAD_SIZE_OUTSTANDING_CQES = 0x40, "the CQ holds more CQEs than the new size";
        BAD_INP_LEN = 0x50, "input length is wrong for this command";
        BAD_OUTP_LEN = 0x51, "output length is wrong for this command";
    }
}

numbers! {
    /// Syndrome of an error CQE: byte 0x37 (PRM "Completion with error").
    pub struct CqeSyndrome(u8) {
        LOCAL_LENGTH_ERR = 0x01, "local length error";
        LOCAL_QP_OP_ERR = 0x02, "local QP operation error";
        LOCAL_PROT_ERR = 0x04, "local protection error";
        WR_FLUSH_ERR = 0x05, "work request flushed";
        MW_BIND_ERR = 0x06, "memory window bind error";
        BAD_RESP_ERR = 0x10, "bad response";
        LOCAL_ACCESS_ERR = 0x11, "local access error";
        REMOTE_INVAL_REQ_ERR = 0x12, "remote invalid request";
        REMOTE_ACCESS_ERR = 0x13, "remote access error";
        REMOTE_OP_ERR = 0x14, "remote operation error";
        TRANSPORT_RETRY_EXC_ERR = 0x15, "transport retries exceeded";
        RNR_RETRY_EXC_ERR = 0x16, "receiver-not-ready retries exceeded";
        REMOTE_ABORTED_ERR = 0x22, "remote aborted";
    }
}

numbers! {
    /// Health syndrome: byte 0x23d of the initialization segment.
    pub struct HealthSyndrome(u8) {
        OK = 0x00, "healthy";
        FW_INTERNAL_ERR = 0x01, "firmware internal error";
        DEAD_IRISC = 0x07, "an internal processor does not respond";
        HW_FATAL_ERR = 0x08, "fatal hardware error";
        FW_CRC_ERR = 0x09, "firmware image CRC error";
        ICM_FETCH_PCI_ERR = 0x0a, "PCI error while the firmware fetched its pages";
        ICM_PAGE_ERR = 0x0b, "a firmware page is missing";
        ASYNCHRONOUS_EQ_BUF_OVERRUN = 0x0c, "an asynchronous event queue overran";
        EQ_IN_ERR = 0x0d, "an event queue is in error";
        EQ_INV = 0x0e, "an event queue is invalid";
        FFSER_ERR = 0x0f, "FFSER error";
        HIGH_TEMP_ERR = 0x10, "temperature too high";
        ICM_PCI_POISONED_ERR = 0x12, "poisoned PCI data in the firmware's pages";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn unknown_numbers_keep_their_value() {
        assert_eq!(CommandStatus(0x77).to_string(), "unknown (0x77)");
        assert_eq!(
            CommandStatus::EXCEED_LIM.to_string(),
            "exceeds a limit of the device (0x8)"
        );
        assert_eq!(DeliveryStatus::ALL.len(), 11);
    }
}
