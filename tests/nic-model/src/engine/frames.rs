//! Between packets and frames: addressing of what is sent, checks of what arrives.

use super::DataPlane;
use super::address::{Addresses, Gid, RoceVersion, ipv4_of};
use super::counters::QueueCounters;
use super::ports::{FIRST_PORT, PortNumber, port_of};
use crate::clock::Nanos;
use crate::objects::qp::Service;
use crate::payload::Payload;
use crate::rc::types::QpState;
use crate::wire::opcode::Kind;
use crate::wire::packet::Packet;
use crate::wire::{self, Encap, Frame, Icrc, Ipv4, Ipv6, L3, RoceFrame, Udp, Vlan, WireError};

/// Most frames that wait to be sent: a QP's burst for each of many QPs. What exceeds it is dropped as a full
/// switch would, and the transport sends it again.
pub(super) const MAX_QUEUED_FRAMES: usize = 64 * 1024;

impl Addresses {
    /// The headers before the BTH.
    pub fn encap(&self) -> Encap {
        let Addresses { gid, .. } = self;
        let vlan = gid.vlan.map(|vid| Vlan {
            vid,
            pcp: self.priority & 7,
            dei: false,
        });
        Encap {
            dst: self.dmac,
            src: gid.mac,
            vlan,
            l3: self.network(gid),
        }
    }

    fn network(&self, gid: &Gid) -> L3 {
        let udp = Udp {
            src_port: self.udp_sport,
            checksum: 0,
        };
        let ipv6 = Ipv6 {
            traffic_class: self.tclass,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            src: gid.address,
            dst: self.dgid,
        };
        match (gid.version, gid.ipv4) {
            (RoceVersion::V1, _) => L3::V1(ipv6),
            (RoceVersion::V2, false) => L3::V2Ipv6(ipv6, udp),
            (RoceVersion::V2, true) => {
                let ipv4 = Ipv4 {
                    tos: self.tclass,
                    identification: 0,
                    dont_fragment: true,
                    ttl: self.hop_limit,
                    src: ipv4_of(&gid.address),
                    dst: ipv4_of(&self.dgid),
                };
                L3::V2Ipv4(ipv4, udp)
            }
        }
    }

    /// Whether a frame came the way back on this path: same kind of frame, addresses exchanged, same VLAN
    /// (case G08). A tag with VID 0 only carries a priority.
    fn is_reverse_of(&self, frame: &Encap) -> bool {
        self.gid.is_of_network(frame) && frame.src_gid() == self.dgid && frame.dst_gid() == self.gid.address
    }
}

impl Gid {
    /// Whether frames from this GID are of this kind and VLAN.
    fn is_of_network(&self, frame: &Encap) -> bool {
        let vid = frame.vlan.map(|tag| tag.vid).filter(|vid| *vid != 0);
        let kind = match frame.l3 {
            L3::V1(_) => self.version == RoceVersion::V1,
            L3::V2Ipv4(..) => self.version == RoceVersion::V2 && self.ipv4,
            L3::V2Ipv6(..) => self.version == RoceVersion::V2 && !self.ipv4,
        };
        kind && vid == self.vlan.filter(|vid| *vid != 0)
    }
}

/// Counts the request that starts with this packet.
fn count_request(counts: &mut QueueCounters, roce: &RoceFrame) {
    if !roce.info.position.is_start() {
        return;
    }
    let count = match roce.info.kind {
        Kind::Write => &mut counts.rx_write_requests,
        Kind::ReadRequest => &mut counts.rx_read_requests,
        Kind::CompareSwap | Kind::FetchAdd => &mut counts.rx_atomic_requests,
        _ => return,
    };
    *count = count.wrapping_add(1);
}

impl DataPlane {
    /// Makes frames of a QP's packets and queues them for the wire, or for ourselves.
    pub(super) fn send_packets(&mut self, qpn: u32, packets: impl Iterator<Item = Packet>) {
        let Some(qp) = self.objects.qps.get(qpn) else {
            return;
        };
        let Some(encap) = qp.path.as_ref().map(|path| path.encap) else {
            return;
        };
        let own = self.is_own_mac(encap.dst);
        let port = port_of(qp);
        // Its sends are complete at once, and the host may then change their memory.
        let copy = qp.service == Service::Uc && self.icrc == Icrc::Off;
        for mut packet in packets {
            if copy {
                let Ok(bytes) = packet.payload.to_vec() else {
                    continue;
                };
                packet.payload = Payload::from_vec(bytes);
            }
            let frame = match wire::emit_owned(&encap, packet, self.icrc) {
                Ok(frame) => frame,
                // Payload that the host unmapped meanwhile, or a path that has no frame: as if lost on the wire.
                Err(error) => {
                    log::debug!("QP {qpn:#x} can't send: {error}");
                    continue;
                }
            };
            self.queue_frame(port, own, frame);
        }
    }

    /// Queues a frame for a port's wire, or for ourselves.
    pub(super) fn queue_frame(&mut self, port: PortNumber, own: bool, frame: Frame) {
        self.counters.frames_out += 1;
        self.counters.bytes_out += frame.len() as u64;
        if own {
            if self.loopback.len() < MAX_QUEUED_FRAMES {
                self.loopback.push_back((port, frame));
            }
            return;
        }
        self.count_sent(port, &frame, true);
        let queue = &mut self.line_mut(port).outgoing;
        if queue.len() < MAX_QUEUED_FRAMES {
            queue.push_back(frame);
        }
    }

    /// Whether the port that the frame arrived at has a GID of its kind and on its VLAN.
    pub(super) fn has_network(&self, frame: &Encap) -> bool {
        let mut gids = self.line(self.arrived_at).all_gids();
        gids.any(|gid| gid.is_of_network(frame))
    }

    /// Whether the frame is for a GID of the port that it arrived at, of its kind and on its VLAN.
    fn has_destination(&self, frame: &Encap) -> bool {
        let dgid = frame.dst_gid();
        let mut gids = self.line(self.arrived_at).all_gids();
        gids.any(|gid| gid.address == dgid && gid.is_of_network(frame))
    }

    /// Takes in what the device sent to itself; true when there was something.
    pub(super) fn receive_loopback(&mut self, now: Nanos) -> bool {
        let waiting = self.loopback.len();
        for _ in 0..waiting {
            let Some((port, frame)) = self.loopback.pop_front() else {
                break;
            };
            self.now = now;
            self.arrived_at = port;
            self.take_in(frame, false);
        }
        waiting != 0
    }

    /// A frame from the first port's wire.
    pub fn receive(&mut self, now: Nanos, frame: Frame) {
        self.receive_at(now, FIRST_PORT, frame);
    }

    /// A frame from a port's wire.
    pub fn receive_at(&mut self, now: Nanos, port: PortNumber, frame: Frame) {
        self.now = now;
        self.arrived_at = port;
        if self.count_received(&frame) {
            return;
        }
        self.take_in(frame, true);
    }

    /// A frame that is not for the port itself; `wire` says that it came from outside.
    fn take_in(&mut self, mut frame: Frame, wire: bool) {
        self.counters.frames_in += 1;
        self.counters.bytes_in += frame.len() as u64;
        let Some(dst) = frame.dst_mac().filter(|_| self.line(self.arrived_at).admin_up) else {
            self.counters.dropped_mac += 1;
            return;
        };
        let own = self.is_own_mac(dst);
        // The raw queues are the first port's.
        let ethernet = self.arrived_at == FIRST_PORT && self.bus_master && self.ethernet_takes(dst);
        let group = self.groups.listen_to(dst);
        if !own && !group && !ethernet {
            if wire {
                self.count_foreign(dst, frame.len());
            }
            self.counters.dropped_mac += 1;
            return;
        }
        let for_qps = own || group;
        if !for_qps || !self.port.roce_enabled || !self.bus_master {
            self.receive_other(&frame, ethernet);
            return;
        }
        let len = frame.len();
        let parsed = wire::parse_owned(&mut frame, self.icrc);
        if wire && parsed.is_ok() {
            self.count_received_rdma(dst, len);
        }
        match parsed {
            Ok(roce) if group => self.receive_multicast(&roce),
            Ok(roce) => self.receive_roce(&roce),
            Err(WireError::NotRoce { .. }) => self.receive_other(&frame, ethernet),
            Err(WireError::Icrc { .. }) => self.counters.dropped_icrc += 1,
            Err(error) => {
                self.counters.dropped_malformed += 1;
                log::debug!("malformed RoCE frame dropped: {error}");
            }
        }
    }

    /// A frame that no queue pair takes.
    fn receive_other(&mut self, frame: &Frame, ethernet: bool) {
        if ethernet {
            self.receive_ethernet(frame);
        } else {
            self.counters.dropped_not_roce += 1;
        }
    }

    fn receive_roce(&mut self, roce: &RoceFrame) {
        let found = self.qpn_of_wire(roce.packet.bth.dest_qp);
        let Some(qp) = found.and_then(|qpn| self.objects.qps.get(qpn)) else {
            self.counters.dropped_qp += 1;
            return;
        };
        if port_of(qp) != self.arrived_at {
            self.counters.dropped_address += 1;
            return;
        }
        let qpn = qp.qpn;
        let cnp = roce.info.kind == Kind::Cnp;
        if matches!(qp.service, Service::Ud | Service::Gsi) {
            if !self.has_destination(&roce.encap) {
                self.counters.dropped_address += 1;
            } else if cnp {
                self.receive_cnp(roce);
            } else {
                self.receive_datagram(qpn, roce);
            }
            return;
        }
        if qp.transport.is_none() || qp.state() == QpState::Err {
            self.counters.dropped_qp += 1;
            return;
        }
        if !qp
            .path
            .as_ref()
            .is_some_and(|path| path.addresses.is_reverse_of(&roce.encap))
        {
            self.counters.dropped_address += 1;
            return;
        }
        if cnp {
            return self.receive_cnp(roce);
        }
        let peer = qp.context.remote_qpn();
        self.notice_congestion(qpn, roce, peer);
        if let Some(qp) = self.objects.qps.get_mut(qpn) {
            count_request(&mut qp.counts, roce);
        }
        let now = self.now;
        self.with_transport(qpn, |transport, memory| {
            transport.handle_packet(now, &roce.packet, memory)
        });
        self.wake(qpn);
    }

    /// Makes and checks ICRCs, or does neither.
    pub fn set_icrc(&mut self, icrc: Icrc) {
        self.icrc = icrc;
    }
}
