//! The NIC's ports: each has a wire, an administrative state, a GID table and counters of its own. The objects that a
//! host makes are the function's; a queue pair belongs to the port that its address path names (`vhca_port_num`).

use std::collections::VecDeque;

use ferroce_firmware_iface::layouts::{Ads, RoceAddrLayout};

use super::DataPlane;
use super::address::Gid;
use super::traffic::Traffic;
use crate::objects::Qp;
use crate::wire::Frame;

/// A port's number, from 1, as registers, events and address paths have it.
pub type PortNumber = u8;
/// The port of what names none, and the one of the raw Ethernet queues.
pub const FIRST_PORT: PortNumber = 1;

/// One port.
#[derive(Clone, Debug)]
pub struct Line {
    /// The wire is there.
    pub link_up: bool,
    /// Administrative state.
    pub admin_up: bool,
    /// The GID table: entries as they were set, and what they mean.
    pub(super) gids: Vec<Option<(RoceAddrLayout, Option<Gid>)>>,
    /// What the port counted.
    pub(super) traffic: Traffic,
    /// Counters when the host last cleared those of its vport.
    pub(super) vport_base: Traffic,
    /// Frames for the wire.
    pub(super) outgoing: VecDeque<Frame>,
}

impl Line {
    pub(super) fn new(gids: u16) -> Line {
        Line {
            link_up: true,
            admin_up: true,
            gids: vec![None; usize::from(gids)],
            traffic: Traffic::default(),
            vport_base: Traffic::default(),
            outgoing: VecDeque::new(),
        }
    }

    /// Forgets GIDs and frames.
    pub(super) fn clear(&mut self) {
        self.gids.iter_mut().for_each(|gid| *gid = None);
        self.outgoing.clear();
    }

    /// The GID table's entry `index`.
    pub(super) fn gid(&self, index: u16) -> Option<Gid> {
        self.gids.get(usize::from(index))?.as_ref()?.1
    }

    /// All GIDs that mean something.
    pub(super) fn all_gids(&self) -> impl Iterator<Item = &Gid> {
        self.gids.iter().flatten().filter_map(|(_, gid)| gid.as_ref())
    }
}

impl DataPlane {
    /// How many ports there are, at least 1.
    pub fn ports(&self) -> PortNumber {
        self.lines.len() as PortNumber
    }

    fn place(&self, port: PortNumber) -> usize {
        usize::from(port.saturating_sub(1)).min(self.lines.len() - 1)
    }

    /// A port: the first for 0, as a path that names none means it; the last for a number that is beyond.
    pub fn line(&self, port: PortNumber) -> &Line {
        &self.lines[self.place(port)]
    }

    /// The same, to be changed.
    pub fn line_mut(&mut self, port: PortNumber) -> &mut Line {
        let place = self.place(port);
        &mut self.lines[place]
    }

    /// The GID table's entry `index` of the first port.
    pub fn gid(&self, index: u16) -> Option<Gid> {
        self.line(FIRST_PORT).gid(index)
    }

    /// The next frame for a port's wire.
    pub fn take_frame_of(&mut self, port: PortNumber) -> Option<Frame> {
        self.line_mut(port).outgoing.pop_front()
    }

    /// The next frame for the first port's wire.
    pub fn take_frame(&mut self) -> Option<Frame> {
        self.take_frame_of(FIRST_PORT)
    }

    /// All frames for a port's wire, the first to be sent in front; whoever sends them takes them out.
    pub fn frames_to_send(&mut self, port: PortNumber) -> &mut VecDeque<Frame> {
        &mut self.line_mut(port).outgoing
    }

    /// Frames that wait to be sent, of all ports.
    pub(super) fn waiting_frames(&self) -> usize {
        self.lines.iter().map(|line| line.outgoing.len()).sum()
    }

    /// What a port counted.
    pub fn traffic_of(&self, port: PortNumber) -> &Traffic {
        &self.line(port).traffic
    }

    /// What the first port counted.
    pub fn traffic(&self) -> &Traffic {
        self.traffic_of(FIRST_PORT)
    }

    /// The port that QP `qpn` is on; the first for one that is not there.
    pub(super) fn port_of(&self, qpn: u32) -> PortNumber {
        self.objects.qps.get(qpn).map_or(FIRST_PORT, port_of)
    }
}

/// The port that an address path names.
pub(super) fn path_port(path: &Ads) -> PortNumber {
    path.vhca_port_num().max(FIRST_PORT)
}

/// The port that a QP is on.
pub(super) fn port_of(qp: &Qp) -> PortNumber {
    path_port(qp.context.primary_address_path())
}
