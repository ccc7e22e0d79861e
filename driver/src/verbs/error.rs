//! What can go wrong with verbs objects, one enum for each kind of call.

use std::time::Duration;

use ferroce_firmware_iface::layout::ValueTooWide;

use crate::error::{CommandError, StepError};
use crate::function::FunctionError;
use crate::mem::DmaError;
use crate::port::PortNumber;
use crate::ring::{PostError, QpState, QpType};

/// A number that the device doesn't take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {attribute} {asked} is not within {min}..={max}, which {reason}")]
pub struct LimitError {
    /// What was to be made or changed, such as "CQ".
    pub object: &'static str,
    /// The attribute, by the name that the API has for it.
    pub attribute: &'static str,
    /// What was asked for.
    pub asked: u64,
    /// The least that is allowed.
    pub min: u64,
    /// The most that is allowed.
    pub max: u64,
    /// Where the limit comes from, such as "is the device's limit (log_max_cq_sz)".
    pub reason: &'static str,
}

impl LimitError {
    /// Checks a number.
    pub(crate) fn check(
        object: &'static str,
        attribute: &'static str,
        asked: u64,
        allowed: std::ops::RangeInclusive<u64>,
        reason: &'static str,
    ) -> Result<(), LimitError> {
        if allowed.contains(&asked) {
            return Ok(());
        }
        Err(LimitError {
            object,
            attribute,
            asked,
            min: *allowed.start(),
            max: *allowed.end(),
            reason,
        })
    }
}

/// Why a verbs object could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A number that the device doesn't take.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A memory region of length 0. Transfers of length 0 need no region: they have no elements, and any remote key
    /// does.
    #[error("a memory region of length 0 was asked for; transfers of length 0 need none")]
    ZeroLength,
    /// Remote write or atomic access without local write access.
    #[error("remote write and atomic access to a memory region need LOCAL_WRITE too")]
    NeedsLocalWrite,
    /// The device lacks something that is needed for it.
    #[error("the device can't do that: {what}")]
    Capability {
        /// What it lacks.
        what: &'static str,
    },
    /// There can be only one, and there is one.
    #[error("the NIC has {object} already, and there can be only one of them")]
    Taken {
        /// What there is, such as "raw Ethernet queues (a link agent's, perhaps)".
        object: &'static str,
    },
    /// Objects of two devices were to be joined.
    #[error("the {object} belongs to another device than the protection domain")]
    OtherDevice {
        /// The one that doesn't fit.
        object: &'static str,
    },
    /// A queue pair could complete more than its completion queue holds.
    #[error(
        "the {queue} CQ has {capacity} entries, {reserved} of them taken by other queues; this one may complete {asked} \
         at a time: make the CQ larger, or let it be overcommitted (CqConfig::overcommit)"
    )]
    CqTooSmall {
        /// "send", "receive", "send and receive" or "shared receive".
        queue: &'static str,
        /// Entries of the CQ.
        capacity: u32,
        /// Of them promised to queues of other queue pairs.
        reserved: u32,
        /// What this queue pair needs.
        asked: u32,
    },
    /// All 2^24 user indices are in use.
    #[error("all user indices for queue pairs are in use")]
    NoUserIndex,
    /// No DMA memory.
    #[error("no DMA memory for it")]
    Dma(#[from] DmaError),
    /// A register that is not there.
    #[error("its doorbell can't be reached")]
    Function(#[from] FunctionError),
    /// A value that doesn't fit the firmware's layout.
    #[error("it can't be described to firmware")]
    Layout(#[from] ValueTooWide),
    /// The completion vector has no event queue.
    #[error("its completion vector has no event queue")]
    EventQueue(#[source] StepError),
    /// There is no doorbell page for the queue pair alone.
    #[error("a doorbell page (UAR) of its own could not be had, which BlueFlame needs")]
    Uar(#[source] StepError),
    /// The port doesn't say what it is.
    #[error("the port's address and MTU can't be read")]
    Port(#[source] StepError),
    /// Firmware refused.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Hands on what a command that makes an object gave. Where firmware may have made the object without saying so, `keep` is
/// called: the object's memory must stay.
pub(crate) fn made<T>(
    result: Result<T, impl Into<CreateError>>,
    keep: impl FnOnce(),
) -> Result<T, CreateError> {
    result.map_err(Into::into).inspect_err(|error| {
        if matches!(error, CreateError::Command(error) if error.uncertain()) {
            keep();
        }
    })
}

/// Why an object could not be destroyed. Its memory stays allocated, since the device may still use it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// Other objects still need it.
    #[error("the {object} is still used by {users} other objects; destroy them first")]
    Busy {
        /// What was to be destroyed.
        object: &'static str,
        /// How many hold it.
        users: usize,
    },
    /// Firmware refused or did not answer.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Why a queue pair is not in a multicast group, or still is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Only UD has multicast.
    #[error("a {qp_type} queue pair can't be in a multicast group; only UD ones can")]
    Service {
        /// Its transport service.
        qp_type: QpType,
    },
    /// Not the address of a multicast group.
    #[error("{gid} is not a multicast group (224.0.0.0/4, ff00::/8)")]
    NoGroup {
        /// The address.
        gid: String,
    },
    /// The device has no multicast.
    #[error("the device has no multicast groups (log_max_mcg, max_qp_mcg)")]
    Capability,
    /// It was not in that group.
    #[error("the queue pair is not in the multicast group {gid}")]
    NotAttached {
        /// The group.
        gid: String,
    },
    /// Firmware refused; too many groups, or queue pairs in one, are one reason.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// Why a queue pair's state did not change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such transition (IBTA vol. 1, 10.3.1).
    #[error("queue pair {qpn:#x} can't go from {from} to {to}")]
    Transition {
        /// The queue pair.
        qpn: u32,
        /// Its state.
        from: QpState,
        /// The state it was to go to.
        to: QpState,
    },
    /// The standard has the transition, this kind of device has no command for it.
    #[error("queue pair {qpn:#x} can't go from {from} to {to}: ConnectX firmware has no command for that")]
    NotOffered {
        /// The queue pair.
        qpn: u32,
        /// Its state.
        from: QpState,
        /// The state it was to go to.
        to: QpState,
    },
    /// The transition needs something that was not given.
    #[error("the way to {to} of a {qp_type} queue pair needs {attribute}")]
    NeedsAttribute {
        /// The transport service.
        qp_type: QpType,
        /// The state it was to go to.
        to: QpState,
        /// What is missing.
        attribute: &'static str,
    },
    /// The transport service has no such attribute.
    #[error("the way to {to} of a {qp_type} queue pair has no {attribute}; leave it out, or 0")]
    NoAttribute {
        /// The transport service.
        qp_type: QpType,
        /// The state it was to go to.
        to: QpState,
        /// What was given.
        attribute: &'static str,
    },
    /// Another call is for queue pairs of that transport service.
    #[error("{call} is not for a {qp_type} queue pair; use {instead}")]
    OtherService {
        /// What was called.
        call: &'static str,
        /// The transport service.
        qp_type: QpType,
        /// What to call.
        instead: &'static str,
    },
    /// A number that the device doesn't take.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The path can't be used.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A value that doesn't fit the firmware's layout.
    #[error("it can't be described to firmware")]
    Layout(#[from] ValueTooWide),
    /// Firmware refused; a queue pair that is in error meanwhile is one reason.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// What is wrong with a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The NIC has no such port.
    #[error("path: the NIC has no port {port}")]
    NoSuchPort {
        /// The port.
        port: PortNumber,
    },
    /// The source GID index is past the table.
    #[error("path: sgid_index {index} is beyond the GID table of {entries} entries")]
    NoSuchIndex {
        /// The index.
        index: u16,
        /// Entries of the table.
        entries: u16,
    },
    /// The source GID's entry is empty.
    #[error("path: entry {index} of the GID table (sgid_index) is empty")]
    EmptyEntry {
        /// The index.
        index: u16,
    },
    /// No destination.
    #[error(
        "path: dgid is all zero; the destination's GID is needed, for on Ethernet each packet has a global header"
    )]
    NoDestination,
    /// The destination can't be reached from that source.
    #[error("path: dgid {dgid} is not of the same kind as the source GID {sgid} at sgid_index {index}")]
    OtherFamily {
        /// The destination.
        dgid: String,
        /// The source.
        sgid: String,
        /// The source's index.
        index: u16,
    },
    /// The next hop's MAC address is zero or a group's.
    #[error("path: dmac {dmac} is not the address of one station")]
    BadMac {
        /// The address.
        dmac: String,
    },
    /// A connection's peer is no multicast group; only an address handle can lead to one.
    #[error("path: dgid {dgid} is a multicast group's, which only datagrams reach")]
    Multicast {
        /// The group.
        dgid: String,
    },
    /// The MAC address is not that of the multicast group.
    #[error("path: dmac {dmac} is not {expected}, which is that of the multicast group {dgid}")]
    GroupMac {
        /// The address.
        dmac: String,
        /// The group's.
        expected: String,
        /// The group.
        dgid: String,
    },
    /// The packets would die at the first hop.
    #[error("path: hop_limit is 0; at least 1 is needed")]
    HopLimit,
    /// The flow label has more than 20 bits.
    #[error("path: flow_label {label:#x} has more than 20 bits")]
    FlowLabel {
        /// The label.
        label: u32,
    },
    /// Ethernet has priorities 0 to 7.
    #[error("path: priority {priority} is not within 0..=7")]
    Priority {
        /// The priority.
        priority: u8,
    },
    /// The UDP source port is outside of what the device takes.
    #[error("path: udp_sport {port} is not within {min}..={max}")]
    UdpPort {
        /// The port.
        port: u16,
        /// The least.
        min: u16,
        /// The most.
        max: u16,
    },
}

/// Why a chain of work requests was not posted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} of the chain was not posted; those before it were")]
pub struct BadWr {
    /// The first that was not posted; as many were.
    pub index: usize,
    /// Why.
    #[source]
    pub error: PostError,
}

/// A buffer that was not posted, and why.
#[derive(Debug, thiserror::Error)]
#[error("the buffer was not posted")]
pub struct Refused<B: std::fmt::Debug> {
    /// Why.
    #[source]
    pub error: PostError,
    /// The buffer.
    pub buffer: B,
}

/// Why a completion queue can't be polled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// The device gave the queue up; what it had written before has been polled.
    #[error("CQ {cqn:#x} is in error: {reason}; its queue pairs are too")]
    Failed {
        /// The queue.
        cqn: u32,
        /// What the device says, such as "overrun".
        reason: String,
    },
    /// The device can't be used any more.
    #[error("CQ {cqn:#x}: {reason}")]
    Device {
        /// The queue.
        cqn: u32,
        /// What happened to the device.
        reason: String,
    },
}

/// How waiting for completions ended without one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The deadline came first.
    #[error("CQ {cqn:#x}: no completion within {waited:?}")]
    Deadline {
        /// The queue.
        cqn: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The queue or the device failed.
    #[error(transparent)]
    Poll(#[from] PollError),
}

/// Why a queue pair is not drained.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// It could not be brought to ERR.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// Requests are still outstanding: their completions were not polled, or did not come.
    #[error(
        "queue pair {qpn:#x}: {sends} sends and {receives} receives had not completed within {waited:?}; are its \
         completion queues being polled?"
    )]
    Deadline {
        /// The queue pair.
        qpn: u32,
        /// Send requests that are outstanding.
        sends: u32,
        /// Receive requests that are outstanding.
        receives: u32,
        /// How long it was waited for.
        waited: Duration,
    },
}
