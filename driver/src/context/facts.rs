//! What a context says of itself.

use std::fmt;

use crate::cmdq::CommandCounters;
use crate::pages::PageCounters;
use crate::reaper::ReaperCounters;

/// Version of a NIC's firmware.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FirmwareVersion {
    /// The family's number: 12 for ConnectX-4, 14 for 4 Lx, 16 for 5, 20 for 6, 22 for 6 Dx.
    pub major: u16,
    /// Minor.
    pub minor: u16,
    /// Subminor.
    pub subminor: u16,
}

impl fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:04}", self.major, self.minor, self.subminor)
    }
}

/// What QUERY_ADAPTER says.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Adapter {
    /// The manufacturer's IEEE company id (24 bits).
    pub ieee_vendor_id: u32,
    /// PCI vendor id of the adapter's maker.
    pub vsd_vendor_id: u16,
    /// Parameter-set id: which board it is, as firmware updates need to know.
    pub psid: String,
}

/// What happened since the device was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ContextCounters {
    /// Firmware commands.
    pub commands: CommandCounters,
    /// Firmware's pages.
    pub pages: PageCounters,
    /// Objects that were dropped.
    pub reaper: ReaperCounters,
    /// Events that went since nobody read them.
    pub events_lost: u64,
    /// Completion events that named no CQ of ours.
    pub unknown_cqns: u64,
    /// Events of types that the PRM does not have.
    pub unknown_events: u64,
}

/// What shutting a device down did.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CloseReport {
    /// Pages that firmware was given in all.
    pub pages_given: u64,
    /// Pages that it gave back in all.
    pub pages_reclaimed: u64,
    /// Pages that it never gave back.
    pub pages_lost: u64,
    /// Commands of the whole session.
    pub commands: CommandCounters,
    /// Objects that firmware did not destroy.
    pub objects_failed: u64,
    /// The function was reset since a step of the teardown failed.
    pub reset: bool,
}
