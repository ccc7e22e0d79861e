//! The messages of vfio-user, version 0.1, as they stand on the wire.
//!
//! Every message is a 16-byte [`Header`] and a payload. A command is answered by a reply with the same message
//! id and command, unless it carries [`flags::NO_REPLY`]; an error reply is a header alone. File descriptors
//! travel beside the bytes as SCM_RIGHTS.
//!
//! The protocol says "host byte order". All hosts that this crate runs on are little-endian, so the fields are
//! declared little-endian and nothing is left to the build target.
//!
//! Source: vfio-user protocol specification 0.1 (QEMU `docs/interop/vfio-user.rst`); constants that it takes
//! from VFIO are those of `linux/vfio.h`. Left out: live migration, twin sockets, ioeventfds.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Protocol version that this crate speaks: major.
pub const VERSION_MAJOR: u16 = 0;
/// Protocol version that this crate speaks: minor.
pub const VERSION_MINOR: u16 = 1;

/// Most file descriptors that one message can carry (Linux `SCM_MAX_FD`).
pub const MAX_FDS: usize = 253;

/// Default and upper limit of the data in one region or DMA access, in bytes. Larger offers are cut to it.
pub const MAX_DATA_XFER: u32 = 1 << 20;

/// Longest version data (the JSON text) that is read, in bytes.
pub const MAX_VERSION_DATA: usize = 16 * 1024;

/// Length of a message header in bytes.
pub const HEADER_LEN: usize = size_of::<Header>();

/// Longest message that is ever accepted, in bytes: the largest access with its headers.
pub const MAX_MESSAGE: usize = HEADER_LEN + size_of::<DmaAccess>() + MAX_DATA_XFER as usize;

/// A message's kind. Values without a name are kept, so that they can be refused by number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command(pub u16);

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        impl Command {
            $($(#[$doc])* pub const $name: Command = Command($value);)*

            /// The command's name in the specification without its prefix, if it has one.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Command::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

commands! {
    /// Version and capabilities, client to server, first on every connection.
    VERSION = 1,
    /// Gives the device access to memory.
    DMA_MAP = 2,
    /// Takes it away.
    DMA_UNMAP = 3,
    /// Number of regions and interrupt indexes, reset support.
    DEVICE_GET_INFO = 4,
    /// Size, access and mappable parts of a region.
    DEVICE_GET_REGION_INFO = 5,
    /// ioeventfds of a region; not supported.
    DEVICE_GET_REGION_IO_FDS = 6,
    /// Number of interrupts of an index.
    DEVICE_GET_IRQ_INFO = 7,
    /// Sets and clears interrupt eventfds.
    DEVICE_SET_IRQS = 8,
    /// Reads from a region.
    REGION_READ = 9,
    /// Writes to a region.
    REGION_WRITE = 10,
    /// Reads client memory, server to client.
    DMA_READ = 11,
    /// Writes client memory, server to client.
    DMA_WRITE = 12,
    /// Function reset.
    DEVICE_RESET = 13,
    /// Several small region writes in one message.
    REGION_WRITE_MULTI = 15,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "command {}", self.0),
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Values of [`Header::flags`].
pub mod flags {
    /// Bits 3:0, the message's type.
    pub const TYPE_MASK: u32 = 0xf;
    /// A command.
    pub const TYPE_COMMAND: u32 = 0;
    /// A reply.
    pub const TYPE_REPLY: u32 = 1;
    /// On a command: no reply is wanted.
    pub const NO_REPLY: u32 = 1 << 4;
    /// On a reply: the command failed, [`super::Header::error`] says why.
    pub const ERROR: u32 = 1 << 5;
}

/// What every message begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender of a command, repeated in its reply.
    pub message_id: U16,
    /// A [`Command`].
    pub command: U16,
    /// Length of the whole message in bytes, this header included.
    pub message_size: U32,
    /// See [`flags`].
    pub flags: U32,
    /// On an error reply: a Linux error number, or 0.
    pub error: U32,
}

impl Header {
    /// The command that the message is, or answers.
    pub fn command(&self) -> Command {
        Command(self.command.get())
    }

    /// The message is a command (and not a reply, nor of a type that does not exist).
    pub fn is_command(&self) -> bool {
        self.flags.get() & flags::TYPE_MASK == flags::TYPE_COMMAND
    }

    /// The message is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags.get() & flags::TYPE_MASK == flags::TYPE_REPLY
    }

    /// The sender wants no reply.
    pub fn no_reply(&self) -> bool {
        self.flags.get() & flags::NO_REPLY != 0
    }

    /// The error number of an error reply; `None` where the command worked.
    pub fn error(&self) -> Option<u32> {
        (self.flags.get() & flags::ERROR != 0).then(|| self.error.get())
    }
}

/// Fixed part of VERSION, in both directions; NUL-terminated JSON follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Version {
    /// Incompatible if it differs.
    pub major: U16,
    /// The reply's is at most the request's.
    pub minor: U16,
}

/// Payload of DMA_MAP. At most one file descriptor comes with it; the reply has no payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaMap {
    /// Length of this structure in bytes.
    pub argsz: U32,
    /// [`dma_flags::READ`] and [`dma_flags::WRITE`].
    pub flags: U32,
    /// Offset in the file of the first byte; 0 without a file.
    pub offset: U64,
    /// First I/O virtual address.
    pub address: U64,
    /// Length in bytes.
    pub size: U64,
}

/// Payload of DMA_UNMAP and of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaUnmap {
    /// Largest reply payload wanted, in bytes.
    pub argsz: U32,
    /// 0, or [`dma_flags::UNMAP_ALL`].
    pub flags: U32,
    /// First I/O virtual address.
    pub address: U64,
    /// Length in bytes.
    pub size: U64,
}

/// Flags of [`DmaMap`] and [`DmaUnmap`].
pub mod dma_flags {
    /// The device may read.
    pub const READ: u32 = 1 << 0;
    /// The device may write.
    pub const WRITE: u32 = 1 << 1;
    /// All maps, as `linux/vfio.h` and QEMU number it; address and size are 0.
    pub const UNMAP_ALL: u32 = 1 << 1;
    /// All maps, as older editions of the specification (and the vfio_user crate) number it.
    pub const UNMAP_ALL_OLD: u32 = 1 << 2;
}

/// Payload of DEVICE_GET_INFO and of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DeviceInfo {
    /// Largest reply payload wanted; in the reply, its full length. Bytes.
    pub argsz: U32,
    /// [`device_flags`].
    pub flags: U32,
    /// Number of regions.
    pub num_regions: U32,
    /// Number of interrupt indexes.
    pub num_irqs: U32,
}

/// Flags of [`DeviceInfo`].
pub mod device_flags {
    /// DEVICE_RESET works.
    pub const RESET: u32 = 1 << 0;
    /// A PCI device, with the region and interrupt indexes of [`super::region`] and [`super::irq`].
    pub const PCI: u32 = 1 << 1;
}

/// Region indexes of a PCI device.
pub mod region {
    /// BAR 0; the others follow.
    pub const BAR0: u32 = 0;
    /// The expansion ROM.
    pub const ROM: u32 = 6;
    /// Configuration space.
    pub const CONFIG: u32 = 7;
    /// Legacy VGA ranges.
    pub const VGA: u32 = 8;
    /// Number of regions.
    pub const COUNT: u32 = 9;
}

/// Payload of DEVICE_GET_REGION_INFO and of its reply; capabilities follow in the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegionInfo {
    /// Largest reply payload wanted; in the reply, its full length with capabilities. Bytes.
    pub argsz: U32,
    /// [`region_flags`].
    pub flags: U32,
    /// Region index.
    pub index: U32,
    /// Offset of the first capability from the start of this structure, 0 where there is none. Bytes.
    pub cap_offset: U32,
    /// Size of the region in bytes; 0 where the device has none.
    pub size: U64,
    /// Where the region begins in the file that came with the reply. Bytes.
    pub offset: U64,
}

/// Flags of [`RegionInfo`].
pub mod region_flags {
    /// May be read.
    pub const READ: u32 = 1 << 0;
    /// May be written.
    pub const WRITE: u32 = 1 << 1;
    /// May be mapped, with the file descriptor in the reply.
    pub const MMAP: u32 = 1 << 2;
    /// Capabilities follow.
    pub const CAPS: u32 = 1 << 3;
}

/// Identity of the sparse mmap capability (`VFIO_REGION_INFO_CAP_SPARSE_MMAP`).
pub const CAP_SPARSE_MMAP: u16 = 1;

/// Most areas of one sparse mmap capability that are believed.
pub const MAX_SPARSE_AREAS: u32 = 4096;

/// What a region capability begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CapHeader {
    /// Such as [`CAP_SPARSE_MMAP`].
    pub id: U16,
    /// Version of that capability.
    pub version: U16,
    /// Offset of the next from the start of [`RegionInfo`], 0 at the end. Bytes.
    pub next: U32,
}

/// The sparse mmap capability after its [`CapHeader`]; [`SparseArea`]s follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SparseMmap {
    /// Number of areas.
    pub nr_areas: U32,
    /// 0.
    pub reserved: U32,
}

/// One mappable part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SparseArea {
    /// Offset in the region in bytes.
    pub offset: U64,
    /// Length in bytes.
    pub size: U64,
}

/// Interrupt indexes of a PCI device.
pub mod irq {
    /// INTx.
    pub const INTX: u32 = 0;
    /// MSI.
    pub const MSI: u32 = 1;
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// Error notifier.
    pub const ERR: u32 = 3;
    /// Device-request notifier.
    pub const REQ: u32 = 4;
    /// Number of indexes.
    pub const COUNT: u32 = 5;
}

/// Payload of DEVICE_GET_IRQ_INFO and of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IrqInfo {
    /// Largest reply payload wanted; in the reply, its full length. Bytes.
    pub argsz: U32,
    /// [`irq_flags`].
    pub flags: U32,
    /// Interrupt index.
    pub index: U32,
    /// Number of interrupts of that index.
    pub count: U32,
}

/// Flags of [`IrqInfo`].
pub mod irq_flags {
    /// Signalled by eventfd.
    pub const EVENTFD: u32 = 1 << 0;
    /// Can be masked by SET_IRQS.
    pub const MASKABLE: u32 = 1 << 1;
    /// Masked by being raised.
    pub const AUTOMASKED: u32 = 1 << 2;
    /// All are set at once or not at all.
    pub const NORESIZE: u32 = 1 << 3;
}

/// Payload of DEVICE_SET_IRQS; booleans may follow, eventfds come beside it. The reply has no payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SetIrqs {
    /// Length of this structure and its data in bytes.
    pub argsz: U32,
    /// One data flag and one action of [`set_irqs_flags`].
    pub flags: U32,
    /// Interrupt index.
    pub index: U32,
    /// First interrupt of the index.
    pub start: U32,
    /// Number of interrupts.
    pub count: U32,
}

/// Flags of [`SetIrqs`].
pub mod set_irqs_flags {
    /// No data: the action for all. With a count of 0, takes all eventfds of the index away.
    pub const DATA_NONE: u32 = 1 << 0;
    /// One byte for each interrupt.
    pub const DATA_BOOL: u32 = 1 << 1;
    /// One eventfd for each interrupt, or none at all to take them away.
    pub const DATA_EVENTFD: u32 = 1 << 2;
    /// Mask.
    pub const ACTION_MASK: u32 = 1 << 3;
    /// Unmask.
    pub const ACTION_UNMASK: u32 = 1 << 4;
    /// Trigger.
    pub const ACTION_TRIGGER: u32 = 1 << 5;
}

/// Payload of REGION_READ and REGION_WRITE and of their replies; data follows in a write and in a read's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegionAccess {
    /// Offset in the region in bytes.
    pub offset: U64,
    /// Region index.
    pub region: U32,
    /// Length of the data in bytes.
    pub count: U32,
}

/// Payload of DMA_READ and DMA_WRITE and of their replies; data follows in a write and in a read's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DmaAccess {
    /// First I/O virtual address.
    pub address: U64,
    /// Length of the data in bytes.
    pub count: U64,
}

/// One write of REGION_WRITE_MULTI, whose payload is their number (64 bits) and then these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MultiWrite {
    /// Offset in the region in bytes.
    pub offset: U64,
    /// Region index.
    pub region: U32,
    /// Length of the data in bytes, at most 8.
    pub count: U32,
    /// The data, from the first byte on.
    pub data: [u8; 8],
}

/// Splits a payload into its fixed part and what follows. `None`: too short.
pub fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(payload: &[u8]) -> Option<(&T, &[u8])> {
    T::ref_from_prefix(payload).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden<T>(value: T, bytes: &[u8])
    where
        T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + PartialEq + fmt::Debug,
    {
        assert_eq!(value.as_bytes(), bytes);
        let mut longer = bytes.to_vec();
        longer.push(0xaa);
        let (read, rest) = split::<T>(&longer).expect("long enough");
        assert_eq!((read, rest), (&value, &[0xaa][..]));
        assert!(split::<T>(&bytes[1..]).is_none(), "too short must be seen");
    }

    #[test]
    fn header_matches_the_specification() {
        let header = Header {
            message_id: 0x0201.into(),
            command: 0x0403.into(),
            message_size: 0x0807_0605.into(),
            flags: 0x0c0b_0a09.into(),
            error: 0x100f_0e0d.into(),
        };
        golden(header, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    }

    #[test]
    fn header_flags_are_told_apart() {
        let header = |flags: u32, error: u32| Header {
            message_id: 7.into(),
            command: 9.into(),
            message_size: 16.into(),
            flags: flags.into(),
            error: error.into(),
        };
        assert!(header(0x10, 0).is_command() && header(0x10, 0).no_reply());
        assert!(header(0x21, 22).is_reply() && !header(0x21, 22).no_reply());
        assert_eq!(header(0x21, 22).error(), Some(22));
        assert_eq!(header(0x21, 0).error(), Some(0));
        assert_eq!(header(0x01, 22).error(), None);
        assert!(!header(2, 0).is_command() && !header(2, 0).is_reply());
    }

    #[test]
    fn dma_payloads_match_the_specification() {
        golden(
            DmaMap {
                argsz: 32.into(),
                flags: 3.into(),
                offset: 0x1000.into(),
                address: 0x1_0000_0000.into(),
                size: 0x2000.into(),
            },
            &[
                32, 0, 0, 0, 3, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, 0, 0, 0,
                0, 0, 0,
            ],
        );
        golden(
            DmaUnmap {
                argsz: 24.into(),
                flags: 2.into(),
                address: 0x3000.into(),
                size: 0x1000.into(),
            },
            &[
                24, 0, 0, 0, 2, 0, 0, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0,
            ],
        );
        golden(
            DmaAccess {
                address: 0x0102_0304_0506_0708.into(),
                count: 9.into(),
            },
            &[8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0],
        );
    }

    #[test]
    fn info_payloads_match_the_specification() {
        golden(
            DeviceInfo {
                argsz: 16.into(),
                flags: 3.into(),
                num_regions: 9.into(),
                num_irqs: 5.into(),
            },
            &[16, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0],
        );
        golden(
            RegionInfo {
                argsz: 64.into(),
                flags: 0xf.into(),
                index: 2.into(),
                cap_offset: 32.into(),
                size: 0x10000.into(),
                offset: 0x4000.into(),
            },
            &[
                64, 0, 0, 0, 0xf, 0, 0, 0, 2, 0, 0, 0, 32, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0,
                0, 0, 0,
            ],
        );
        golden(
            CapHeader {
                id: 1.into(),
                version: 1.into(),
                next: 0x30.into(),
            },
            &[1, 0, 1, 0, 0x30, 0, 0, 0],
        );
        golden(
            SparseMmap {
                nr_areas: 2.into(),
                reserved: 0.into(),
            },
            &[2, 0, 0, 0, 0, 0, 0, 0],
        );
        golden(
            SparseArea {
                offset: 0x1000.into(),
                size: 0x2000.into(),
            },
            &[0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0],
        );
        golden(
            IrqInfo {
                argsz: 16.into(),
                flags: 1.into(),
                index: 2.into(),
                count: 512.into(),
            },
            &[16, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0, 0],
        );
    }

    #[test]
    fn access_payloads_match_the_specification() {
        golden(
            SetIrqs {
                argsz: 20.into(),
                flags: 0x24.into(),
                index: 2.into(),
                start: 16.into(),
                count: 8.into(),
            },
            &[20, 0, 0, 0, 0x24, 0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 8, 0, 0, 0],
        );
        golden(
            RegionAccess {
                offset: 0x801800.into(),
                region: 0.into(),
                count: 8.into(),
            },
            &[0, 0x18, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0],
        );
        golden(
            MultiWrite {
                offset: 0x20.into(),
                region: 1.into(),
                count: 4.into(),
                data: [1, 2, 3, 4, 0, 0, 0, 0],
            },
            &[
                0x20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0,
            ],
        );
        golden(
            Version {
                major: 0.into(),
                minor: 1.into(),
            },
            &[0, 0, 1, 0],
        );
    }

    #[test]
    fn commands_are_named() {
        assert_eq!(Command::REGION_WRITE_MULTI.to_string(), "REGION_WRITE_MULTI");
        assert_eq!(Command(99).to_string(), "command 99");
    }
}
