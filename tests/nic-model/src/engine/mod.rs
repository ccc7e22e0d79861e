//! The data plane: doorbells in, work fetched, packets and completions out.
//!
//! ```text
//!   UAR write ─▶ doorbell ─▶ run queue ─▶ send ring ─▶ RcQp ─▶ frames ─▶ wire
//!                   │                                   │ ▲
//!              CQ / EQ arm                              │ └── frames ◀─ wire, timers
//!                   ▼                                   ▼
//!            EQE, interrupt  ◀──── CQE ◀──────────── completions
//! ```
//!
//! A [`DataPlane`] is single-threaded and never waits: its owner calls it when there is something to do. It
//! touches host memory only through [`HostMemory`], and believes nothing that it reads there.

pub mod address;
mod blueflame;
pub mod completion;
pub mod congestion;
pub mod counters;
mod datagram;
mod doorbell;
pub mod ethernet;
pub mod events;
mod frames;
pub mod interrupts;
mod lifecycle;
mod memory;
pub mod multicast;
mod outcome;
pub mod ports;
mod queue_pairs;
mod record;
mod recv;
mod refs;
mod run;
mod send;
pub mod traffic;
mod umr;
pub mod violation;
mod wqe;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::clock::Nanos;
use crate::fw::plane_ethernet::Filter;
use crate::host::{HostError, HostMemory};
use crate::objects::{Limits, Objects, PageList};
use crate::rc::types::{Event as RcEvent, QpCounters};
use crate::record::Recorder;
use crate::wire::packet::Packet;
use crate::wire::{Frame, Icrc};

pub use counters::Counters;

use congestion::Congestion;
use interrupts::Interrupts;
use multicast::Groups;
use ports::{FIRST_PORT, Line, PortNumber};
use violation::Violations;

/// What the firmware sets of the vport, for all ports.
#[derive(Clone, Debug)]
pub struct PortState {
    /// The function's own MAC address.
    pub mac: [u8; 6],
    /// Further addresses that the L2 table gives to this function.
    pub l2_table: BTreeMap<u32, [u8; 6]>,
    /// Largest frame in bytes, without FCS.
    pub mtu: u16,
    /// RoCE frames go to queue pairs.
    pub roce_enabled: bool,
    /// Foreign addresses whose frames are taken too.
    pub filter: Filter,
}

/// The data plane of one function.
#[derive(Debug)]
pub struct DataPlane {
    /// What the host created.
    pub objects: Objects,
    /// The host's memory.
    pub host: HostMemory,
    /// MSI-X vectors.
    pub interrupts: Interrupts,
    /// Rules that the host broke.
    pub violations: Violations,
    /// Counters.
    pub counters: Counters,
    /// The vport.
    pub port: PortState,
    /// The ports; there is one at least.
    lines: Vec<Line>,
    /// The port at which the frame arrived that is looked at.
    arrived_at: PortNumber,
    limits: Limits,
    /// Time of the call that is being served.
    now: Nanos,
    /// QPs with something to do, each at most once ([`crate::objects::Qp::queued`]).
    run_queue: VecDeque<u32>,
    /// SQs with something to do, each at most once.
    sq_queue: VecDeque<u32>,
    /// The flow table that received frames meet first.
    flow_root: Option<u32>,
    /// Multicast groups.
    groups: Groups,
    /// Congestion notification.
    congestion: Congestion,
    /// Timers of QPs; an entry that is not the QP's latest is stale.
    timers: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// CQs that broke and whose QPs are not yet in error.
    broken_cqs: Vec<u32>,
    /// Counters of QPs that are gone.
    retired: QpCounters,
    /// Frames to ourselves, and the port that they would have left by.
    loopback: VecDeque<(PortNumber, Frame)>,
    icrc: Icrc,
    /// Kept between calls so that no call allocates.
    event_scratch: Vec<RcEvent>,
    packet_scratch: Vec<Packet>,
    /// DMA is allowed (bus master enable).
    bus_master: bool,
    /// Atomic results go to local memory in host order, and not big-endian.
    atomics_in_host_order: bool,
    /// Where the data path is recorded.
    recorder: Option<Recorder>,
}

impl DataPlane {
    /// A data plane without objects, with one port.
    pub fn new(limits: Limits, mac: [u8; 6]) -> DataPlane {
        DataPlane::with_ports(limits, mac, FIRST_PORT)
    }

    /// A data plane without objects, with that many ports; one at least.
    pub fn with_ports(limits: Limits, mac: [u8; 6], ports: PortNumber) -> DataPlane {
        DataPlane {
            objects: Objects::new(&limits),
            host: HostMemory::new(),
            interrupts: Interrupts::new(limits.msix_vectors),
            violations: Violations::default(),
            counters: Counters::default(),
            port: PortState {
                mac,
                l2_table: BTreeMap::new(),
                mtu: 9000 + 22,
                roce_enabled: false,
                filter: Filter::default(),
            },
            lines: vec![Line::new(limits.gids); usize::from(ports.max(FIRST_PORT))],
            arrived_at: FIRST_PORT,
            limits,
            now: Nanos::ZERO,
            run_queue: VecDeque::new(),
            sq_queue: VecDeque::new(),
            flow_root: None,
            groups: Groups::default(),
            congestion: Congestion::default(),
            timers: BinaryHeap::new(),
            broken_cqs: Vec::new(),
            retired: QpCounters::default(),
            loopback: VecDeque::new(),
            icrc: Icrc::On,
            event_scratch: Vec::new(),
            packet_scratch: Vec::new(),
            bus_master: false,
            atomics_in_host_order: false,
            recorder: None,
        }
    }

    /// Limits of its tables.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Allows or forbids DMA (bus master enable of PCI command register).
    pub fn set_bus_master(&mut self, on: bool) {
        self.bus_master = on;
    }

    /// Sums the transport's counters over all QPs, those that are gone included.
    pub fn transport_counters(&self) -> QpCounters {
        let live = self.objects.qps.iter().map(|(_, qp)| qp.counters_now().transport);
        live.fold(self.retired, |total, one| counters::sum(total, &one))
    }

    /// Function reset: all objects are gone, the port is as at power-on; memory maps and eventfds stay.
    pub fn reset(&mut self) {
        self.forget_objects();
        self.port.l2_table.clear();
        self.port.roce_enabled = false;
        self.lines.iter_mut().for_each(|line| line.admin_up = true);
        self.port.filter = Filter::default();
        self.bus_master = false;
        self.atomics_in_host_order = false;
        let counters = self.congestion.counters;
        self.congestion = Congestion {
            counters,
            ..Congestion::default()
        };
    }

    /// All objects, GIDs and queued frames are gone, without a further access to host memory.
    fn forget_objects(&mut self) {
        let counters = self.transport_counters();
        self.retired = counters;
        self.objects.clear();
        self.lines.iter_mut().for_each(Line::clear);
        self.run_queue.clear();
        self.sq_queue.clear();
        self.flow_root = None;
        self.groups.clear();
        self.timers.clear();
        self.broken_cqs.clear();
        self.loopback.clear();
    }

    /// Whether frames to `mac` are for this function.
    fn is_own_mac(&self, mac: [u8; 6]) -> bool {
        self.port.mac == mac || self.port.l2_table.values().any(|own| *own == mac)
    }
}

/// Where an access to a ring went wrong.
fn outside(ring: &PageList, at: u64) -> HostError {
    HostError::OutOfSlice {
        at: usize::try_from(at).unwrap_or(usize::MAX),
        len: 1,
        slice: ring.pages(),
    }
}

/// Reads `out.len()` bytes at offset `at` of a ring, across its pages.
fn read_ring(host: &HostMemory, ring: &PageList, mut at: u64, mut out: &mut [u8]) -> Result<(), HostError> {
    while !out.is_empty() {
        let (iova, here) = ring.iova(at).ok_or_else(|| outside(ring, at))?;
        let n = usize::try_from(here).map_or(out.len(), |here| here.min(out.len()));
        let (now, later) = out.split_at_mut(n);
        host.read(iova, now)?;
        out = later;
        at += n as u64;
    }
    Ok(())
}

/// Writes an entry whose last byte makes it valid at offset `at` of a ring; entries never cross pages.
fn publish(host: &HostMemory, ring: &PageList, at: u64, entry: &[u8]) -> Result<(), HostError> {
    match ring.iova(at) {
        Some((iova, here)) if here >= entry.len() as u64 => host.publish(iova, entry),
        _ => Err(outside(ring, at)),
    }
}

#[cfg(test)]
mod tests;
