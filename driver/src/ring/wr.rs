//! Work requests: what a caller posts.

use bitflags::bitflags;
use ferroce_hw_regs::ids::Qpn;

use super::{Ah, PostError};

/// Keys whose low byte has this bit belong to buffers that are moved into requests. Those memory keys are never in a
/// caller's hands, so that no request but the one that owns such a buffer can name it. See [`Lkey`].
pub(crate) const OWNED_KEY_BIT: u32 = 0x80;

/// The local key of a memory region.
///
/// A key that a caller may name in a [`Sge`]. The low byte of a memory key is the driver's to choose; keys of regions
/// have its top bit clear, keys of [`LocalBuffer`](crate::verbs::LocalBuffer)s have it set. So a request that is still
/// in flight when its region is gone can, whatever the firmware does with the key's number, at worst reach another
/// region, never memory that this process may have a plain slice of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lkey(u32);

impl Lkey {
    /// The key as a number; `None` if it can't be that of a region.
    pub fn new(key: u32) -> Option<Lkey> {
        (key & OWNED_KEY_BIT == 0).then_some(Lkey(key))
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

/// A scatter/gather element: a part of a local memory region. Whether it is within the region is checked by the NIC,
/// which fails the request with [`WcStatus::LocalProtection`](crate::verbs::WcStatus::LocalProtection) otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) key: u32,
}

impl Sge {
    /// `len` bytes at `addr`, an address as the region `lkey` counts them. An element of length 0 is left out of
    /// the request.
    #[inline(always)]
    pub fn new(addr: u64, len: u32, lkey: Lkey) -> Sge {
        Sge {
            addr,
            len,
            key: lkey.0,
        }
    }

    /// A part of a buffer that is moved into the same request.
    pub(crate) fn of_owned(addr: u64, len: u32, key: u32) -> Sge {
        Sge { addr, len, key }
    }

    /// The key as a number.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address as the peer's region counts them.
    pub addr: u64,
    /// The region's remote key.
    pub rkey: u32,
}

/// The data of a SEND or WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// Gathered by the NIC from regions, in this order.
    Gather(&'a [Sge]),
    /// Copied into the work queue entry when posted; the slice can be used again at once. At most the queue pair's
    /// `max_inline_data` bytes.
    Inline(&'a [u8]),
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp<'a> {
    /// SEND: the data go to the peer's next receive request.
    Send {
        /// What to send.
        data: Payload<'a>,
        /// Immediate data, in host order; on the wire most significant byte first.
        imm: Option<u32>,
    },
    /// SEND that also ends a key of the peer's: its region can be reached no more. RC only. The peer's completion names
    /// the key; a peer whose key may not be ended so (IBTA vol. 1, 10.6.5) refuses the message.
    SendInvalidate {
        /// What to send.
        data: Payload<'a>,
        /// The peer's R_Key.
        rkey: u32,
    },
    /// SEND of one datagram, of at most the port's path MTU, to a UD or GSI queue pair.
    SendTo {
        /// What to send.
        data: Payload<'a>,
        /// Immediate data, in host order.
        imm: Option<u32>,
        /// The way there; of the queue pair's protection domain.
        to: &'a Ah,
        /// The queue pair there; 0xffffff for all that are attached to a multicast group.
        qpn: Qpn,
        /// The Q_Key that the queue pair there has. With the highest bit set, this side's queue pair's own is sent
        /// instead (IBTA vol. 1, 10.2.5).
        qkey: u32,
    },
    /// RDMA WRITE. With immediate data it also completes the peer's next receive request.
    Write {
        /// What to write.
        data: Payload<'a>,
        /// Where to.
        remote: RemoteAddr,
        /// Immediate data, in host order.
        imm: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// Where the data go, in this order.
        into: &'a [Sge],
        /// Where they come from.
        remote: RemoteAddr,
    },
    /// Atomic compare and swap of the 8 bytes at `remote`, which must be aligned to 8. The value from before goes to
    /// `into` (8 bytes), in the order that `Mr::atomic_result` reads.
    CompareSwap {
        /// Where the old value goes; 8 bytes.
        into: Sge,
        /// The peer's 8 bytes.
        remote: RemoteAddr,
        /// Swapped only if the old value equals this one.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Atomic fetch and add on the 8 bytes at `remote`, which must be aligned to 8.
    FetchAdd {
        /// Where the old value goes; 8 bytes.
        into: Sge,
        /// The peer's 8 bytes.
        remote: RemoteAddr,
        /// Added to the old value, modulo 2^64.
        add: u64,
    },
}

bitflags! {
    /// Flags of a send work request. The bits are those of the control segment (`ferroce_hw_regs::wqe::ctrl_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u8 {
        /// Completes with an entry in the completion queue also where it succeeds. Requests without it give their
        /// places in the queue back only when a later one completes, so at least one in `max_send_wr` needs it.
        const SIGNALED = 0x08;
        /// Asks for an event at the peer, if its completion queue is armed for solicited completions only. For SEND
        /// and WRITE with immediate.
        const SOLICITED = 0x02;
        /// Starts only after all earlier READs and atomics of this queue pair are done.
        const FENCE = 0x40;
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr<'a> {
    /// The caller's name for it, given back by its completion.
    pub wr_id: u64,
    /// What it does.
    pub op: SendOp<'a>,
    /// Its flags.
    pub flags: SendFlags,
}

/// A receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr<'a> {
    /// The caller's name for it, given back by its completion.
    pub wr_id: u64,
    /// Where a message goes, in this order.
    pub sges: &'a [Sge],
}

/// Total length of a list. Below a limit of 2^31, each element is shorter than that, as the NIC's format asks.
#[inline(always)]
pub(super) fn total_len(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

/// As [`total_len`], refused above `max`.
#[inline(always)]
pub(super) fn check_len(sges: &[Sge], max: u64) -> Result<(), PostError> {
    let asked = total_len(sges);
    if asked > max {
        return Err(PostError::MessageTooLong { asked, max });
    }
    Ok(())
}
