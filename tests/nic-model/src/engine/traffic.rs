//! What the port counted, frame by frame, and frames that steer the port itself (IEEE 802.3, annexes 31B, 31D).

use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::{QueryVportCounterOut, RoceAddrLayout, TrafficCounter};

use super::DataPlane;
use super::address::Gid;
use super::congestion::Congestion;
use super::ports::PortNumber;
use super::refs::no_such;
use crate::fw::plane_port::PortPlane;
use crate::objects::ObjectError;
use crate::wire::Frame;

/// Bytes of the frame check sequence, which frames here do not carry and counters of octets have in them.
const FCS_BYTES: u64 = 4;
/// Where MAC control frames go: no switch forwards it.
const MAC_CONTROL_ADDRESS: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];
const MAC_CONTROL_TYPE: u16 = 0x8808;
const PAUSE: u16 = 0x0001;
const PRIORITY_PAUSE: u16 = 0x0101;

/// Frames and their octets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Frames.
    pub frames: u64,
    /// Their octets, with the frame check sequence.
    pub octets: u64,
}

impl Count {
    fn add(&mut self, len: usize) {
        self.frames += 1;
        self.octets += len as u64 + FCS_BYTES;
    }

    /// What came to it since `base`.
    pub fn since(self, base: Count) -> Count {
        Count {
            frames: self.frames.wrapping_sub(base.frames),
            octets: self.octets.wrapping_sub(base.octets),
        }
    }

    fn plus(self, more: Count) -> Count {
        Count {
            frames: self.frames.wrapping_add(more.frames),
            octets: self.octets.wrapping_add(more.octets),
        }
    }
}

/// Frames by whom they are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cast {
    /// One station.
    pub unicast: Count,
    /// A group.
    pub multicast: Count,
    /// Everybody.
    pub broadcast: Count,
}

impl Cast {
    fn of(&mut self, dst: [u8; 6]) -> &mut Count {
        match dst {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => &mut self.broadcast,
            [first, ..] if first & 1 != 0 => &mut self.multicast,
            _ => &mut self.unicast,
        }
    }

    fn plus(&self, more: &Cast) -> Cast {
        Cast {
            unicast: self.unicast.plus(more.unicast),
            multicast: self.multicast.plus(more.multicast),
            broadcast: self.broadcast.plus(more.broadcast),
        }
    }

    fn minus(&self, less: &Cast) -> Cast {
        Cast {
            unicast: self.unicast.since(less.unicast),
            multicast: self.multicast.since(less.multicast),
            broadcast: self.broadcast.since(less.broadcast),
        }
    }

    /// All of them.
    pub fn total(&self) -> Count {
        self.unicast.plus(self.multicast).plus(self.broadcast)
    }
}

/// One direction of the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Direction {
    /// All frames.
    pub all: Cast,
    /// Those of queue pairs.
    pub rdma: Cast,
    /// All frames by priority of their VLAN tag; 0 for those without.
    pub priority: [Count; 8],
}

impl Direction {
    fn count(&mut self, frame: &Frame, rdma: bool) {
        let Some(dst) = frame.dst_mac() else {
            return;
        };
        let len = frame.len();
        self.all.of(dst).add(len);
        if rdma {
            self.rdma.of(dst).add(len);
        }
        self.priority[usize::from(frame.priority() & 7)].add(len);
    }
}

/// MAC control frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MacControl {
    /// All received.
    pub received: u64,
    /// Received with an opcode that is neither of the two below.
    pub unsupported: u64,
    /// Pause frames received.
    pub pause: u64,
    /// Priority pause frames received, by the priorities that they stop or start.
    pub priority_pause: [u64; 8],
    /// Quanta of 512 bit times that they asked for: of all priorities, by pause frames.
    pub pause_quanta: u64,
    /// The same by priority.
    pub priority_quanta: [u64; 8],
}

/// What the port counted since power-on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// From the wire.
    pub received: Direction,
    /// To the wire.
    pub sent: Direction,
    /// Frames from the wire that were for other stations.
    pub foreign: Cast,
    /// Frames that steer the port.
    pub control: MacControl,
}

impl Traffic {
    /// Adds the frames of another port, as far as [`Traffic::report_vport`] asks for them.
    pub(super) fn add_frames(&mut self, other: &Traffic) {
        let directions = [
            (&mut self.received, &other.received),
            (&mut self.sent, &other.sent),
        ];
        for (to, from) in directions {
            to.all = to.all.plus(&from.all);
            to.rdma = to.rdma.plus(&from.rdma);
        }
        self.foreign = self.foreign.plus(&other.foreign);
    }

    /// Fills in the vport's counters: what was counted since `base`. Frames of queue pairs are told from Ethernet's.
    pub(super) fn report_vport(&self, base: &Traffic, out: &mut QueryVportCounterOut) {
        let set = |counter: &mut TrafficCounter, count: Count| {
            counter.set_packets(count.frames);
            counter.set_octets(count.octets);
        };
        let split = |now: &Direction, then: &Direction, of: fn(&Cast) -> Count| {
            let rdma = of(&now.rdma).since(of(&then.rdma));
            (rdma, of(&now.all).since(of(&then.all)).since(rdma))
        };
        // The port sees frames that the vport does not.
        let mut vport = (self.received, base.received);
        vport.0.all = vport.0.all.minus(&self.foreign);
        vport.1.all = vport.1.all.minus(&base.foreign);
        let (rdma, eth) = split(&vport.0, &vport.1, |cast| cast.unicast);
        set(out.received_ib_unicast_mut(), rdma);
        set(out.received_eth_unicast_mut(), eth);
        let (rdma, eth) = split(&vport.0, &vport.1, |cast| cast.multicast);
        set(out.received_ib_multicast_mut(), rdma);
        set(out.received_eth_multicast_mut(), eth);
        let (_, eth) = split(&vport.0, &vport.1, |cast| cast.broadcast);
        set(out.received_eth_broadcast_mut(), eth);
        let (rdma, eth) = split(&self.sent, &base.sent, |cast| cast.unicast);
        set(out.transmitted_ib_unicast_mut(), rdma);
        set(out.transmitted_eth_unicast_mut(), eth);
        let (rdma, eth) = split(&self.sent, &base.sent, |cast| cast.multicast);
        set(out.transmitted_ib_multicast_mut(), rdma);
        set(out.transmitted_eth_multicast_mut(), eth);
        let (_, eth) = split(&self.sent, &base.sent, |cast| cast.broadcast);
        set(out.transmitted_eth_broadcast_mut(), eth);
    }
}

impl MacControl {
    /// Counts a MAC control frame by what stands behind its Ethernet header.
    fn take(&mut self, body: &[u8]) {
        self.received += 1;
        let word = |at: usize| {
            let bytes = body.get(at..at + 2);
            bytes.map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
        };
        match word(0) {
            PAUSE if body.len() >= 4 => {
                self.pause += 1;
                self.pause_quanta += u64::from(word(2));
            }
            PRIORITY_PAUSE if body.len() >= 20 => {
                for priority in (0..8).filter(|priority| word(2) >> priority & 1 != 0) {
                    self.priority_pause[priority] += 1;
                    self.priority_quanta[priority] += u64::from(word(4 + 2 * priority));
                }
            }
            _ => self.unsupported += 1,
        }
    }
}

impl DataPlane {
    /// Counts a frame for a port's wire.
    pub(super) fn count_sent(&mut self, port: PortNumber, frame: &Frame, rdma: bool) {
        self.line_mut(port).traffic.sent.count(frame, rdma);
    }

    /// Counts a frame that has arrived. A MAC control frame ends here, and gives true: it is never data.
    pub(super) fn count_received(&mut self, frame: &Frame) -> bool {
        let traffic = &mut self.line_mut(self.arrived_at).traffic;
        traffic.received.count(frame, false);
        if frame.ethertype() != Some(MAC_CONTROL_TYPE) || frame.dst_mac() != Some(MAC_CONTROL_ADDRESS) {
            return false;
        }
        let bytes = frame.to_bytes().unwrap_or_default();
        traffic.control.take(bytes.get(14..).unwrap_or_default());
        true
    }

    /// A received frame that [`DataPlane::count_received`] counted turned out to be a queue pair's.
    pub(super) fn count_received_rdma(&mut self, dst: [u8; 6], len: usize) {
        self.line_mut(self.arrived_at)
            .traffic
            .received
            .rdma
            .of(dst)
            .add(len);
    }

    /// A received frame that was counted is for another station.
    pub(super) fn count_foreign(&mut self, dst: [u8; 6], len: usize) {
        self.line_mut(self.arrived_at).traffic.foreign.of(dst).add(len);
    }
}

impl PortPlane for DataPlane {
    fn port_traffic(&self, port: PortNumber) -> Traffic {
        *self.traffic_of(port)
    }

    fn link_up(&self, port: PortNumber) -> bool {
        self.line(port).link_up
    }

    fn set_link_admin(&mut self, port: PortNumber, up: bool) {
        self.line_mut(port).admin_up = up;
    }

    fn set_roce_address(
        &mut self,
        port: PortNumber,
        index: u16,
        address: Option<&RoceAddrLayout>,
    ) -> Result<(), ObjectError> {
        let entry = self.line_mut(port).gids.get_mut(usize::from(index));
        let entry = entry.ok_or(no_such("GID", u32::from(index)))?;
        *entry = address.map(|address| (*address, Gid::decode(address)));
        Ok(())
    }

    fn roce_address(&self, port: PortNumber, index: u16) -> Option<RoceAddrLayout> {
        let entry = self.line(port).gids.get(usize::from(index))?;
        Some(
            entry
                .as_ref()
                .map_or_else(RoceAddrLayout::zeroed, |(layout, _)| *layout),
        )
    }

    fn port_congestion(&mut self) -> &mut Congestion {
        &mut self.congestion
    }

    fn qkey_violations(&self) -> u64 {
        self.counters.qkey_violations
    }

    fn attach_multicast(
        &mut self,
        qpn: u32,
        gid: [u8; 16],
        groups: u32,
        members: u32,
    ) -> Result<(), ObjectError> {
        self.join_group(qpn, gid, groups, members)
    }

    fn detach_multicast(&mut self, qpn: u32, gid: [u8; 16]) -> Result<(), ObjectError> {
        self.leave_group(qpn, gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_frames_are_counted_by_priority_and_quanta() {
        let mut control = MacControl::default();
        control.take(&[0, 1, 0x12, 0x34]);
        let mut pfc = vec![1, 1, 0, 0b1000_1000];
        for quanta in 0..8u16 {
            pfc.extend((quanta * 100).to_be_bytes());
        }
        control.take(&pfc);
        control.take(&pfc);
        control.take(&[0, 2, 0, 0]);
        // Cut off.
        control.take(&[1, 1]);
        control.take(&[]);
        assert_eq!((control.received, control.unsupported), (6, 3));
        assert_eq!((control.pause, control.pause_quanta), (1, 0x1234));
        assert_eq!(control.priority_pause, [0, 0, 0, 2, 0, 0, 0, 2]);
        assert_eq!(control.priority_quanta, [0, 0, 0, 600, 0, 0, 0, 1400]);
    }
}
