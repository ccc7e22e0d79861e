//! The one table of BTH opcodes: what each means and which headers follow it.
//!
//! Source: IBTA vol. 1, table 38 (opcodes) and 9.3 (extended headers); the CNP is of its RoCE v2 annex
//! (A17.9.3). Nothing else in the model decides by raw opcodes.

use bitflags::bitflags;

bitflags! {
    /// The extended headers that follow a BTH, in the order of their bits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub struct Headers: u8 {
        /// Datagram header, 8 bytes.
        const DETH = 1 << 0;
        /// RDMA header, 16 bytes.
        const RETH = 1 << 1;
        /// Atomic header, 28 bytes.
        const ATOMIC_ETH = 1 << 2;
        /// ACK header, 4 bytes.
        const AETH = 1 << 3;
        /// Original value of an atomic's target, 8 bytes.
        const ATOMIC_ACK_ETH = 1 << 4;
        /// Immediate data, 4 bytes.
        const IMMDT = 1 << 5;
        /// R_Key to invalidate, 4 bytes.
        const IETH = 1 << 6;
    }
}

impl Headers {
    /// Length of these headers together, in bytes.
    pub const fn len_bytes(self) -> usize {
        const LENGTHS: [usize; 7] = [8, 16, 28, 4, 8, 4, 4];
        let (mut sum, mut i) = (0, 0);
        while i < LENGTHS.len() {
            if self.bits() & (1 << i) != 0 {
                sum += LENGTHS[i];
            }
            i += 1;
        }
        sum
    }
}

/// The transport service that an opcode belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification packet (RoCE v2).
    Cnp,
}

/// What a packet does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Answer to an atomic.
    AtomicAcknowledge,
    /// Compare-and-swap request.
    CompareSwap,
    /// Fetch-and-add request.
    FetchAdd,
    /// Congestion notification.
    Cnp,
}

impl Kind {
    /// Whether the requester sends it (the others are responses and CNPs).
    pub const fn is_request(self) -> bool {
        matches!(
            self,
            Kind::Send | Kind::Write | Kind::ReadRequest | Kind::CompareSwap | Kind::FetchAdd
        )
    }

    /// Whether the responder sends it to answer a request.
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Kind::ReadResponse | Kind::Acknowledge | Kind::AtomicAcknowledge
        )
    }

    /// Whether packets of it may carry payload (a CNP carries 16 reserved bytes).
    pub const fn has_payload(self) -> bool {
        matches!(self, Kind::Send | Kind::Write | Kind::ReadResponse | Kind::Cnp)
    }
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message begins here.
    pub const fn is_start(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether a message ends here.
    pub const fn is_end(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// The 8 bits in the BTH.
    pub opcode: u8,
    /// IBTA's name.
    pub name: &'static str,
    /// Whose it is.
    pub transport: Transport,
    /// What it does.
    pub kind: Kind,
    /// Where it stands in its message.
    pub position: Position,
    /// Extended headers that follow the BTH.
    pub headers: Headers,
}

impl OpcodeInfo {
    /// Bytes of BTH and extended headers.
    pub const fn header_bytes(&self) -> usize {
        super::packet::BTH_BYTES + self.headers.len_bytes()
    }
}

macro_rules! opcodes {
    ($($konst:ident = $value:literal, $name:literal, $transport:ident, $kind:ident, $position:ident, [$($header:ident)*];)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $konst: u8 = $value;
        )*

        /// All opcodes that the model knows, ascending.
        pub static TABLE: &[OpcodeInfo] = &[$(OpcodeInfo {
            opcode: $value,
            name: $name,
            transport: Transport::$transport,
            kind: Kind::$kind,
            position: Position::$position,
            headers: Headers::empty()$(.union(Headers::$header))*,
        },)*];
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00, "RC SEND First", Rc, Send, First, [];
    RC_SEND_MIDDLE = 0x01, "RC SEND Middle", Rc, Send, Middle, [];
    RC_SEND_LAST = 0x02, "RC SEND Last", Rc, Send, Last, [];
    RC_SEND_LAST_IMM = 0x03, "RC SEND Last with Immediate", Rc, Send, Last, [IMMDT];
    RC_SEND_ONLY = 0x04, "RC SEND Only", Rc, Send, Only, [];
    RC_SEND_ONLY_IMM = 0x05, "RC SEND Only with Immediate", Rc, Send, Only, [IMMDT];
    RC_WRITE_FIRST = 0x06, "RC RDMA WRITE First", Rc, Write, First, [RETH];
    RC_WRITE_MIDDLE = 0x07, "RC RDMA WRITE Middle", Rc, Write, Middle, [];
    RC_WRITE_LAST = 0x08, "RC RDMA WRITE Last", Rc, Write, Last, [];
    RC_WRITE_LAST_IMM = 0x09, "RC RDMA WRITE Last with Immediate", Rc, Write, Last, [IMMDT];
    RC_WRITE_ONLY = 0x0a, "RC RDMA WRITE Only", Rc, Write, Only, [RETH];
    RC_WRITE_ONLY_IMM = 0x0b, "RC RDMA WRITE Only with Immediate", Rc, Write, Only, [RETH IMMDT];
    RC_READ_REQUEST = 0x0c, "RC RDMA READ Request", Rc, ReadRequest, Only, [RETH];
    RC_READ_RESPONSE_FIRST = 0x0d, "RC RDMA READ response First", Rc, ReadResponse, First, [AETH];
    RC_READ_RESPONSE_MIDDLE = 0x0e, "RC RDMA READ response Middle", Rc, ReadResponse, Middle, [];
    RC_READ_RESPONSE_LAST = 0x0f, "RC RDMA READ response Last", Rc, ReadResponse, Last, [AETH];
    RC_READ_RESPONSE_ONLY = 0x10, "RC RDMA READ response Only", Rc, ReadResponse, Only, [AETH];
    RC_ACKNOWLEDGE = 0x11, "RC Acknowledge", Rc, Acknowledge, Only, [AETH];
    RC_ATOMIC_ACKNOWLEDGE = 0x12, "RC ATOMIC Acknowledge", Rc, AtomicAcknowledge, Only, [AETH ATOMIC_ACK_ETH];
    RC_COMPARE_SWAP = 0x13, "RC CmpSwap", Rc, CompareSwap, Only, [ATOMIC_ETH];
    RC_FETCH_ADD = 0x14, "RC FetchAdd", Rc, FetchAdd, Only, [ATOMIC_ETH];
    RC_SEND_LAST_INV = 0x16, "RC SEND Last with Invalidate", Rc, Send, Last, [IETH];
    RC_SEND_ONLY_INV = 0x17, "RC SEND Only with Invalidate", Rc, Send, Only, [IETH];
    UC_SEND_FIRST = 0x20, "UC SEND First", Uc, Send, First, [];
    UC_SEND_MIDDLE = 0x21, "UC SEND Middle", Uc, Send, Middle, [];
    UC_SEND_LAST = 0x22, "UC SEND Last", Uc, Send, Last, [];
    UC_SEND_LAST_IMM = 0x23, "UC SEND Last with Immediate", Uc, Send, Last, [IMMDT];
    UC_SEND_ONLY = 0x24, "UC SEND Only", Uc, Send, Only, [];
    UC_SEND_ONLY_IMM = 0x25, "UC SEND Only with Immediate", Uc, Send, Only, [IMMDT];
    UC_WRITE_FIRST = 0x26, "UC RDMA WRITE First", Uc, Write, First, [RETH];
    UC_WRITE_MIDDLE = 0x27, "UC RDMA WRITE Middle", Uc, Write, Middle, [];
    UC_WRITE_LAST = 0x28, "UC RDMA WRITE Last", Uc, Write, Last, [];
    UC_WRITE_LAST_IMM = 0x29, "UC RDMA WRITE Last with Immediate", Uc, Write, Last, [IMMDT];
    UC_WRITE_ONLY = 0x2a, "UC RDMA WRITE Only", Uc, Write, Only, [RETH];
    UC_WRITE_ONLY_IMM = 0x2b, "UC RDMA WRITE Only with Immediate", Uc, Write, Only, [RETH IMMDT];
    UD_SEND_ONLY = 0x64, "UD SEND Only", Ud, Send, Only, [DETH];
    UD_SEND_ONLY_IMM = 0x65, "UD SEND Only with Immediate", Ud, Send, Only, [DETH IMMDT];
    CNP = 0x81, "CNP", Cnp, Cnp, Only, [];
}

const UNKNOWN: u8 = u8::MAX;

static INDEX: [u8; 256] = {
    let mut index = [UNKNOWN; 256];
    let mut i = 0;
    while i < TABLE.len() {
        index[TABLE[i].opcode as usize] = i as u8;
        i += 1;
    }
    index
};

/// The row of `opcode`; `None` when it is reserved or of a transport that the model has not (RD, XRC).
pub fn info(opcode: u8) -> Option<&'static OpcodeInfo> {
    TABLE.get(usize::from(INDEX[usize::from(opcode)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_up_finds_each_row_and_nothing_else() {
        for row in TABLE {
            assert_eq!(info(row.opcode), Some(row));
        }
        let known = (0..=255).filter(|&o| info(o).is_some()).count();
        assert_eq!(known, TABLE.len());
        assert_eq!(info(0x15), None);
        assert_eq!(info(0xff), None);
    }

    #[test]
    fn rows_are_consistent() {
        for row in TABLE {
            let h = row.headers;
            assert_eq!(
                h.contains(Headers::DETH),
                row.transport == Transport::Ud,
                "{}",
                row.name
            );
            let starts_rdma = matches!(row.kind, Kind::Write | Kind::ReadRequest) && row.position.is_start();
            assert_eq!(h.contains(Headers::RETH), starts_rdma, "{}", row.name);
            let answers = row.kind.is_response() && row.position != Position::Middle;
            assert_eq!(h.contains(Headers::AETH), answers, "{}", row.name);
            if h.intersects(Headers::IMMDT | Headers::IETH) {
                assert!(row.position.is_end(), "{}", row.name);
            }
        }
        assert_eq!(info(RC_COMPARE_SWAP).map(OpcodeInfo::header_bytes), Some(40));
        assert_eq!(
            info(RC_ATOMIC_ACKNOWLEDGE).map(OpcodeInfo::header_bytes),
            Some(24)
        );
    }
}
