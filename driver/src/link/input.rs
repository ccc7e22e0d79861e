//! What the stack does with received frames. All that they say is untrusted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use smoltcp::wire::{
    Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet,
    NdiscNeighborFlags, NdiscRepr,
};

use super::address::is_station;
use super::frame::{
    self, ALL_NODES, Arp, HOP_LIMIT, Incoming, Ipv6Way, ND_HOP_LIMIT, ethertype, icmpv6, ipv4_frame,
    ipv6_frame, next_header, option_mac, solicited_node,
};
use super::interface::AddressState;
use super::neighbour::{Heard, NeighbourKey};
use super::stack::{LinkEvent, Stack};
use crate::port::MacAddress;

/// Longest frame that is looked at: no link of ours has longer ones.
const MAX_FRAME: usize = 16 * 1024;
/// Longest wait before groups are reported to a querier.
const MAX_REPORT_DELAY: Duration = Duration::from_secs(10);

/// How far a frame came.
enum Fate {
    Taken,
    Ignored,
    Malformed,
}

impl Stack {
    /// Takes a received frame (without FCS).
    pub fn handle_frame(&mut self, now: Instant, bytes: &[u8]) {
        self.counters.frames_in += 1;
        match self.take(now, bytes) {
            Fate::Taken => {}
            Fate::Ignored => self.counters.ignored += 1,
            Fate::Malformed => self.counters.malformed += 1,
        }
        self.flush_neighbours();
    }

    fn take(&mut self, now: Instant, bytes: &[u8]) -> Fate {
        if bytes.len() > MAX_FRAME {
            return Fate::Malformed;
        }
        let Some(frame) = Incoming::parse(bytes) else {
            return Fate::Malformed;
        };
        if !frame.src.is_unicast() {
            return Fate::Malformed;
        }
        let group = frame.dst.0[0] & 1 != 0;
        // What we have sent ourselves may come back from a switch, or from the NIC.
        if frame.src == self.mac
            || !(group || frame.dst == self.mac)
            || !self.interfaces.contains_key(&frame.vlan)
        {
            return Fate::Ignored;
        }
        match frame.ethertype {
            ethertype::ARP => match Arp::parse(frame.payload) {
                Some(arp) => self.take_arp(now, frame.vlan, &arp),
                None => Fate::Malformed,
            },
            ethertype::IPV4 => self.take_ipv4(now, &frame),
            ethertype::IPV6 => self.take_ipv6(now, &frame),
            _ => Fate::Ignored,
        }
    }

    fn state_of(&self, vlan: Option<u16>, ip: IpAddr) -> Option<AddressState> {
        self.interfaces.get(&vlan)?.find(ip).map(|address| address.state)
    }

    fn is_usable(&self, vlan: Option<u16>, ip: IpAddr) -> bool {
        self.state_of(vlan, ip).is_some_and(AddressState::is_usable)
    }

    fn is_probing(&self, vlan: Option<u16>, ip: IpAddr) -> bool {
        let address = self
            .interfaces
            .get(&vlan)
            .and_then(|interface| interface.find(ip));
        address.is_some_and(|address| address.is_probing())
    }

    fn take_arp(&mut self, now: Instant, vlan: Option<u16>, arp: &Arp) -> Fate {
        let ((mac, sender), target) = (arp.sender, arp.target.1);
        let (sender_ip, target_ip) = (IpAddr::V4(sender), IpAddr::V4(target));
        let probe = sender.is_unspecified();
        // Frames of ours were passed over already: this is somebody who gives our MAC for his own, and an answer would go to us.
        if !probe && !is_station(sender_ip) || mac == self.mac {
            return Fate::Malformed;
        }
        // RFC 5227, 2.1.1 and 2.4: somebody has it, or wants it at the same time.
        if self.state_of(vlan, sender_ip).is_some() {
            self.conflict(now, vlan, sender_ip, mac);
            return Fate::Taken;
        }
        if probe && arp.request && self.is_probing(vlan, target_ip) {
            self.conflict(now, vlan, target_ip, mac);
            return Fate::Taken;
        }
        let for_us = self.is_usable(vlan, target_ip);
        if !probe {
            let key = NeighbourKey { vlan, ip: sender_ip };
            let on_link = self
                .interfaces
                .get(&vlan)
                .is_some_and(|interface| interface.is_on_link(sender_ip));
            let how = match (for_us, arp.request) {
                (true, true) if on_link => Heard::Asked,
                (true, false) => Heard::Answered { overrides: true },
                _ => Heard::Announced { overrides: true },
            };
            self.neighbours.heard(now, key, mac, how);
        }
        if for_us && arp.request {
            self.counters.resolutions_answered += 1;
            let reply = self.arp((false, mac), vlan, target, (mac, sender));
            self.send(reply);
        }
        Fate::Taken
    }

    /// Another station says that it has an address of ours.
    fn conflict(&mut self, now: Instant, vlan: Option<u16>, ip: IpAddr, mac: MacAddress) {
        self.counters.conflicts += 1;
        let timing = self.timing.clone();
        let Some(address) = self
            .interfaces
            .get_mut(&vlan)
            .and_then(|interface| interface.find_mut(ip))
        else {
            return;
        };
        let config = address.config;
        if address.state == AddressState::Duplicate {
            return;
        }
        if address.is_probing() {
            address.give_up();
            self.event(LinkEvent::AddressDuplicate { address: config, mac });
            return;
        }
        if address.may_defend(now, &timing) {
            self.announce(&config);
            self.event(LinkEvent::AddressConflict { address: config, mac });
        }
    }

    fn take_ipv4(&mut self, now: Instant, frame: &Incoming<'_>) -> Fate {
        let Ok(packet) = Ipv4Packet::new_checked(frame.payload) else {
            return Fate::Malformed;
        };
        if packet.version() != 4 || packet.header_len() < 20 || !packet.verify_checksum() {
            return Fate::Malformed;
        }
        let (src, dst) = (packet.src_addr(), packet.dst_addr());
        let for_us = frame.dst == self.mac && self.is_usable(frame.vlan, dst.into());
        // A broadcast is not answered (RFC 1122, 3.2.2.6), nor is a piece of a packet.
        let whole = !packet.more_frags() && packet.frag_offset() == 0;
        if !for_us || !is_station(src.into()) || !whole || packet.next_header() != IpProtocol::Icmp {
            return Fate::Ignored;
        }
        let tos = packet.dscp() << 2 | packet.ecn();
        self.take_icmpv4(now, frame, (src, dst), tos, packet.payload())
    }

    fn take_icmpv4(
        &mut self,
        now: Instant,
        frame: &Incoming<'_>,
        (src, dst): (Ipv4Addr, Ipv4Addr),
        tos: u8,
        message: &[u8],
    ) -> Fate {
        let Ok(packet) = Icmpv4Packet::new_checked(message) else {
            return Fate::Malformed;
        };
        if !packet.verify_checksum() {
            return Fate::Malformed;
        }
        if packet.msg_type() != Icmpv4Message::EchoRequest {
            return Fate::Ignored;
        }
        if packet.msg_code() != 0 {
            return Fate::Malformed;
        }
        if !self.may_reply(now) {
            return Fate::Ignored;
        }
        let macs = (self.mac, frame.src);
        let reply = ipv4_frame(macs, frame.vlan, (dst, src), (1, tos), message.len(), |bytes| {
            bytes.copy_from_slice(message);
            let mut packet = Icmpv4Packet::new_unchecked(bytes);
            packet.set_msg_type(Icmpv4Message::EchoReply);
            packet.fill_checksum();
        });
        self.send(reply);
        Fate::Taken
    }

    fn may_reply(&mut self, now: Instant) -> bool {
        let may = self.echo.admit(now);
        if may {
            self.counters.echo_replies += 1;
        } else {
            self.counters.echo_limited += 1;
        }
        may
    }

    fn take_ipv6(&mut self, now: Instant, frame: &Incoming<'_>) -> Fate {
        let Ok(packet) = Ipv6Packet::new_checked(frame.payload) else {
            return Fate::Malformed;
        };
        let (src, dst) = (packet.src_addr(), packet.dst_addr());
        if packet.version() != 6 || src.is_multicast() {
            return Fate::Malformed;
        }
        let (message, routed) = match u8::from(packet.next_header()) {
            next_header::ICMPV6 => (packet.payload(), packet.hop_limit() != ND_HOP_LIMIT),
            // Only queries of multicast listeners have such a header and are of interest.
            next_header::HOP_BY_HOP => {
                return self.take_hop_by_hop(now, frame.vlan, src, dst, packet.payload());
            }
            _ => return Fate::Ignored,
        };
        let Ok(icmp) = Icmpv6Packet::new_checked(message) else {
            return Fate::Malformed;
        };
        if !icmp.verify_checksum(&src, &dst) {
            return Fate::Malformed;
        }
        match icmp.msg_type() {
            Icmpv6Message::EchoRequest => self.take_echo(now, frame, (src, dst), message),
            // RFC 4861, 7.1: what was routed, or has a code, is no neighbour's.
            Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert
                if routed || icmp.msg_code() != 0 =>
            {
                Fate::Malformed
            }
            Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert => match NdiscRepr::parse(&icmp) {
                Ok(NdiscRepr::NeighborSolicit { target_addr, lladdr }) => self.take_solicitation(
                    now,
                    frame,
                    (src, dst),
                    target_addr,
                    (lladdr.is_some(), option_mac(lladdr)),
                ),
                Ok(NdiscRepr::NeighborAdvert {
                    flags,
                    target_addr,
                    lladdr,
                }) => self.take_advertisement(now, frame, dst, target_addr, flags, option_mac(lladdr)),
                _ => Fate::Malformed,
            },
            _ => Fate::Ignored,
        }
    }

    fn take_echo(
        &mut self,
        now: Instant,
        frame: &Incoming<'_>,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        message: &[u8],
    ) -> Fate {
        if frame.dst != self.mac || !self.is_usable(frame.vlan, dst.into()) || !is_station(src.into()) {
            return Fate::Ignored;
        }
        if message[1] != 0 {
            return Fate::Malformed;
        }
        if !self.may_reply(now) {
            return Fate::Ignored;
        }
        let way = Ipv6Way {
            macs: (self.mac, frame.src),
            vlan: frame.vlan,
            src: dst,
            dst: src,
            hop_limit: HOP_LIMIT,
        };
        let reply = ipv6_frame(&way, next_header::ICMPV6, message.len(), |bytes| {
            bytes.copy_from_slice(message);
            bytes[0] = icmpv6::ECHO_REPLY;
            Icmpv6Packet::new_unchecked(bytes).fill_checksum(&way.src, &way.dst);
        });
        self.send(reply);
        Fate::Taken
    }

    /// RFC 4861, 7.1.1 and 7.2.3; RFC 4862, 5.4.3.
    fn take_solicitation(
        &mut self,
        now: Instant,
        frame: &Incoming<'_>,
        (src, dst): (Ipv6Addr, Ipv6Addr),
        target: Ipv6Addr,
        (has_option, mac): (bool, Option<MacAddress>),
    ) -> Fate {
        let probe = src.is_unspecified();
        let group = solicited_node(target);
        // An answer to our own MAC would go to us.
        if target.is_multicast() || probe && (dst != group || has_option) || mac == Some(self.mac) {
            return Fate::Malformed;
        }
        let (vlan, ip) = (frame.vlan, IpAddr::V6(target));
        if probe && self.is_probing(vlan, ip) {
            self.conflict(now, vlan, ip, frame.src);
            return Fate::Taken;
        }
        if !self.is_usable(vlan, ip) {
            return Fate::Ignored;
        }
        let overrides = self.state_of(vlan, ip) != Some(AddressState::Optimistic);
        self.counters.resolutions_answered += 1;
        if probe {
            // Whoever wants our address hears so with all others.
            let way = self.way(vlan, target, ALL_NODES);
            let answer = frame::advertisement(&way, target, self.mac, (false, overrides));
            self.send(answer);
            return Fate::Taken;
        }
        let on_link = self
            .interfaces
            .get(&vlan)
            .is_some_and(|interface| interface.is_on_link(src.into()));
        if let (true, Some(mac)) = (on_link, mac) {
            self.neighbours
                .heard(now, NeighbourKey { vlan, ip: src.into() }, mac, Heard::Asked);
        }
        let way = Ipv6Way {
            macs: (self.mac, mac.unwrap_or(frame.src)),
            vlan,
            src: target,
            dst: src,
            hop_limit: ND_HOP_LIMIT,
        };
        let answer = frame::advertisement(&way, target, self.mac, (true, overrides));
        self.send(answer);
        Fate::Taken
    }

    /// RFC 4861, 7.1.2 and 7.2.5; RFC 4862, 5.4.4.
    fn take_advertisement(
        &mut self,
        now: Instant,
        frame: &Incoming<'_>,
        dst: Ipv6Addr,
        target: Ipv6Addr,
        flags: NdiscNeighborFlags,
        mac: Option<MacAddress>,
    ) -> Fate {
        let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
        if target.is_multicast() || dst.is_multicast() && solicited {
            return Fate::Malformed;
        }
        let (vlan, ip) = (frame.vlan, IpAddr::V6(target));
        if self.state_of(vlan, ip).is_some() {
            self.conflict(now, vlan, ip, mac.unwrap_or(frame.src));
            return Fate::Taken;
        }
        let solicited = solicited && self.is_usable(vlan, dst.into());
        let overrides = flags.contains(NdiscNeighborFlags::OVERRIDE);
        let how = if solicited {
            Heard::Answered { overrides }
        } else {
            Heard::Announced { overrides }
        };
        let key = NeighbourKey { vlan, ip };
        match mac {
            Some(mac) => self.neighbours.heard(now, key, mac, how),
            // An answer to a unicast question may leave the MAC out.
            None if solicited => self.neighbours.confirm(now, key),
            None => {}
        }
        Fate::Taken
    }

    /// A query of multicast listeners (RFC 3810, 5.1; RFC 2710).
    fn take_hop_by_hop(
        &mut self,
        now: Instant,
        vlan: Option<u16>,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        payload: &[u8],
    ) -> Fate {
        let Some([next, len, ..]) = payload.get(..8) else {
            return Fate::Malformed;
        };
        if *next != next_header::ICMPV6 {
            return Fate::Ignored;
        }
        let Some(message) = payload
            .get(8 + usize::from(*len) * 8..)
            .filter(|message| message.len() >= 24)
        else {
            return Fate::Malformed;
        };
        let packet = Icmpv6Packet::new_unchecked(message);
        if !packet.verify_checksum(&src, &dst) {
            return Fate::Malformed;
        }
        if message[0] != icmpv6::MLD_QUERY || !src.is_unicast_link_local() {
            return Fate::Ignored;
        }
        let code = u64::from(u16::from_be_bytes([message[4], message[5]]));
        let delay = Duration::from_millis(code).min(MAX_REPORT_DELAY);
        let wait = self.random.between(Duration::ZERO, delay);
        if let Some(interface) = self.interfaces.get_mut(&vlan) {
            let at = now + wait;
            interface.report = Some(interface.report.map_or(at, |already| already.min(at)));
        }
        Fate::Taken
    }
}
