use proptest::prelude::*;
use smoltcp::wire::{EthernetFrame, Icmpv4Packet, Icmpv6Packet, Ipv4Packet, Ipv6Packet, NdiscRepr};

use super::super::frame::{Incoming, Outgoing, ethertype, icmpv6, ipv4_frame, ipv6_frame, next_header};
use super::super::neighbour::NeighbourState;
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const OFF: DuplicateDetection = DuplicateDetection::Off;

fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key(text: &str, vlan: Option<u16>) -> NeighbourKey {
    NeighbourKey { vlan, ip: ip(text) }
}

/// Stations on a wire, and their time. A frame arrives at all others at once.
struct Wire {
    stacks: Vec<Stack>,
    events: Vec<Vec<LinkEvent>>,
    frames: Vec<(Duration, Vec<u8>)>,
    start: Instant,
    now: Instant,
}

impl Wire {
    /// Stations with the MACs 1, 2, …
    fn new(count: u8) -> Wire {
        let stack = |i| {
            let config = StackConfig {
                seed: 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(i)),
                ..StackConfig::new(mac(i))
            };
            Stack::new(&config)
        };
        let now = Instant::now();
        Wire {
            stacks: (1..=count).map(stack).collect(),
            events: vec![Vec::new(); count.into()],
            frames: Vec::new(),
            start: now,
            now,
        }
    }

    fn add(&mut self, index: usize, address: &str, detection: DuplicateDetection) {
        self.stacks[index]
            .add_address(self.now, address.parse().unwrap(), detection)
            .unwrap();
        self.exchange();
    }

    /// Carries frames until nobody has one.
    fn exchange(&mut self) {
        loop {
            let next = self
                .stacks
                .iter_mut()
                .enumerate()
                .find_map(|(i, stack)| Some((i, stack.poll_transmit()?)));
            let Some((from, frame)) = next else { break };
            self.frames.push((self.now - self.start, frame.clone()));
            assert!(self.frames.len() < 10_000, "frames breed frames");
            for (i, stack) in self.stacks.iter_mut().enumerate() {
                if i != from {
                    stack.handle_frame(self.now, &frame);
                }
            }
        }
        for (stack, events) in self.stacks.iter_mut().zip(&mut self.events) {
            events.extend(std::iter::from_fn(|| stack.poll_event()));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.exchange();
        let end = self.now + time;
        loop {
            let due = self.stacks.iter().filter_map(Stack::poll_timeout).min();
            let Some(at) = due.filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(at);
            for stack in &mut self.stacks {
                stack.handle_timeout(self.now);
                assert!(
                    stack.poll_timeout().is_none_or(|next| next > self.now),
                    "what is due is done"
                );
            }
            self.exchange();
        }
        self.now = end;
    }

    fn deliver(&mut self, index: usize, frame: &[u8]) -> Vec<Vec<u8>> {
        self.stacks[index].handle_frame(self.now, frame);
        std::iter::from_fn(|| self.stacks[index].poll_transmit()).collect()
    }

    fn state(&self, index: usize, address: &str) -> Option<AddressState> {
        let all = self.stacks[index].addresses();
        all.iter()
            .find(|(own, _)| own.ip == ip(address))
            .map(|(_, state)| *state)
    }

    fn neighbour(&self, index: usize, address: &str) -> Option<(Option<MacAddress>, NeighbourState)> {
        let all = self.stacks[index].neighbours();
        all.iter()
            .find(|have| have.key.ip == ip(address))
            .map(|have| (have.mac, have.state))
    }

    /// Times of the frames of a kind, in milliseconds.
    fn times(&self, of: impl Fn(&[u8]) -> bool) -> Vec<u128> {
        self.frames
            .iter()
            .filter(|(_, frame)| of(frame))
            .map(|(at, _)| at.as_millis())
            .collect()
    }
}

fn arp_of(frame: &[u8]) -> Option<Arp> {
    let frame = Incoming::parse(frame)?;
    (frame.ethertype == ethertype::ARP)
        .then(|| Arp::parse(frame.payload))
        .flatten()
}

fn is_probe(frame: &[u8]) -> bool {
    arp_of(frame).is_some_and(|arp| arp.request && arp.sender.1.is_unspecified())
}

fn is_announcement(frame: &[u8]) -> bool {
    arp_of(frame).is_some_and(|arp| arp.request && arp.sender.1 == arp.target.1)
}

#[test]
fn stations_find_each_other() {
    let mut wire = Wire::new(2);
    for (i, addresses) in [["10.9.0.1/24", "fd00:9::1/64"], ["10.9.0.2/24", "fd00:9::2/64"]]
        .iter()
        .enumerate()
    {
        for address in addresses {
            wire.add(i, address, OFF);
        }
    }
    for peer in ["10.9.0.2", "fd00:9::2"] {
        assert_eq!(wire.stacks[0].look_up(wire.now, key(peer, None)), Lookup::Pending);
        wire.exchange();
        assert_eq!(
            wire.stacks[0].look_up(wire.now, key(peer, None)),
            Lookup::Found(mac(2))
        );
        assert_eq!(
            wire.neighbour(0, peer).map(|(_, state)| state),
            Some(NeighbourState::Reachable)
        );
    }
    // Whoever was asked knows the other too, and will ask before it relies on it.
    for peer in ["10.9.0.1", "fd00:9::1"] {
        assert_eq!(
            wire.neighbour(1, peer),
            Some((Some(mac(1)), NeighbourState::Stale))
        );
    }
    for group in ["224.0.0.1", "ff02::1"] {
        assert!(
            matches!(wire.stacks[0].look_up(wire.now, key(group, None)), Lookup::Found(mac) if !mac.is_unicast())
        );
    }
    assert_eq!(
        wire.stacks[0].look_up(wire.now, key("10.9.0.1", None)),
        Lookup::Found(mac(1))
    );
    assert_eq!(
        wire.stacks
            .iter()
            .map(|stack| stack.counters().malformed)
            .sum::<u64>(),
        0
    );
}

#[test]
fn an_ipv4_address_is_probed_and_announced_as_the_standard_says() {
    let mut wire = Wire::new(1);
    wire.add(0, "10.9.0.1/24", DuplicateDetection::BeforeUse);
    assert_eq!(wire.state(0, "10.9.0.1"), Some(AddressState::Tentative));
    wire.pass(20 * SECOND);
    let probes = wire.times(is_probe);
    assert_eq!(probes.len(), 3);
    assert!(probes[0] <= 1000, "{probes:?}");
    assert!(
        probes
            .windows(2)
            .all(|two| (1000..=2000).contains(&(two[1] - two[0]))),
        "{probes:?}"
    );
    let announced = wire.times(is_announcement);
    assert_eq!(announced, [probes[2] + 2000, probes[2] + 4000]);
    assert_eq!(
        wire.events[0],
        [LinkEvent::AddressUsable {
            address: "10.9.0.1/24".parse().unwrap()
        }]
    );
    assert!(
        wire.stacks[0].poll_timeout().is_none(),
        "then there is nothing to do"
    );
}

#[test]
fn an_ipv6_address_is_solicited_and_its_group_reported() {
    let mut wire = Wire::new(1);
    wire.add(0, "fd00:9::ab12:3456/64", DuplicateDetection::BeforeUse);
    assert_eq!(
        wire.stacks[0].multicast(),
        [
            MacAddress([0x33, 0x33, 0, 0, 0, 1]),
            MacAddress([0x33, 0x33, 0xff, 0x12, 0x34, 0x56])
        ]
    );
    // The report goes out before the address is asked for (RFC 4862, 5.4.2).
    let report = EthernetFrame::new_checked(&wire.frames[0].1[..]).unwrap();
    let packet = Ipv6Packet::new_checked(report.payload()).unwrap();
    assert_eq!(
        (packet.dst_addr(), packet.src_addr(), packet.hop_limit()),
        (ALL_MLDV2_ROUTERS, Ipv6Addr::UNSPECIFIED, 1)
    );
    let message = Icmpv6Packet::new_unchecked(&packet.payload()[8..]);
    assert!(message.verify_checksum(&packet.src_addr(), &packet.dst_addr()));
    assert_eq!(packet.payload()[8], icmpv6::MLDV2_REPORT);
    wire.pass(SECOND);
    assert_eq!(wire.state(0, "fd00:9::ab12:3456"), Some(AddressState::Tentative));
    wire.pass(SECOND);
    assert_eq!(wire.state(0, "fd00:9::ab12:3456"), Some(AddressState::Usable));
    wire.pass(10 * SECOND);
    // A report, a solicitation, two unsolicited advertisements.
    assert_eq!(wire.frames.len(), 4);
}

#[test]
fn an_address_that_another_station_has_is_not_used() {
    for address in ["10.9.0.1/24", "fd00:9::1/64", "fe80::1/64"] {
        let bare = address.split('/').next().unwrap();
        let mut wire = Wire::new(2);
        wire.add(0, address, OFF);
        wire.pass(20 * SECOND);
        wire.add(1, address, DuplicateDetection::BeforeUse);
        wire.pass(20 * SECOND);
        assert_eq!(wire.state(1, bare), Some(AddressState::Duplicate), "{address}");
        let duplicate = LinkEvent::AddressDuplicate {
            address: address.parse().unwrap(),
            mac: mac(1),
        };
        assert_eq!(wire.events[1], [duplicate]);
        assert_eq!(wire.state(0, bare), Some(AddressState::Usable));
        assert_eq!(wire.stacks[1].multicast(), [], "nor is it listened for");
        // The other one was asked and has answered; it has nothing to complain of.
        assert!(
            !wire.events[0]
                .iter()
                .any(|event| matches!(event, LinkEvent::AddressConflict { .. }))
        );
    }
}

#[test]
fn two_that_want_the_same_address_at_once_both_do_without() {
    for address in ["10.9.0.1/24", "fd00:9::1/64"] {
        let mut wire = Wire::new(2);
        wire.add(0, address, DuplicateDetection::BeforeUse);
        wire.add(1, address, DuplicateDetection::BeforeUse);
        wire.pass(20 * SECOND);
        let states = [0, 1].map(|i| wire.state(i, address.split('/').next().unwrap()));
        // Whoever asks first makes the other give up; its answer is no conflict for the first.
        assert!(
            states.contains(&Some(AddressState::Duplicate)),
            "{address}: {states:?}"
        );
        assert!(
            states
                .iter()
                .filter(|state| **state == Some(AddressState::Usable))
                .count()
                <= 1
        );
    }
}

#[test]
fn an_optimistic_address_is_used_at_once_and_given_up_on_objection() {
    for address in ["10.9.0.1/24", "fd00:9::1/64"] {
        let bare = address.split('/').next().unwrap();
        let mut wire = Wire::new(2);
        wire.add(1, address, DuplicateDetection::Optimistic);
        assert_eq!(wire.state(1, bare), Some(AddressState::Optimistic));
        assert_eq!(
            wire.events[1],
            [LinkEvent::AddressUsable {
                address: address.parse().unwrap()
            }]
        );
        wire.pass(20 * SECOND);
        assert_eq!(wire.state(1, bare), Some(AddressState::Usable));
        assert_eq!(wire.events[1].len(), 1, "said once");
        wire.add(0, address, DuplicateDetection::Optimistic);
        wire.pass(20 * SECOND);
        assert_eq!(wire.state(0, bare), Some(AddressState::Duplicate));
        assert_eq!(wire.events[0].len(), 2);
    }
}

#[test]
fn an_address_in_use_is_defended_but_not_without_end() {
    let mut wire = Wire::new(1);
    wire.add(0, "10.9.0.1/24", OFF);
    wire.pass(10 * SECOND);
    let announced = wire.times(is_announcement).len();
    let claim = Arp {
        request: true,
        sender: (mac(9), "10.9.0.1".parse().unwrap()),
        target: (MacAddress::default(), "10.9.0.1".parse().unwrap()),
    };
    for _ in 0..150 {
        let answers = wire.deliver(0, &claim.frame(BROADCAST, None));
        wire.frames
            .extend(answers.into_iter().map(|frame| (wire.now - wire.start, frame)));
        wire.pass(SECOND / 10);
    }
    assert_eq!(wire.times(is_announcement).len() - announced, 2, "one each 10 s");
    assert_eq!(wire.state(0, "10.9.0.1"), Some(AddressState::Usable));
    let conflict = LinkEvent::AddressConflict {
        address: "10.9.0.1/24".parse().unwrap(),
        mac: mac(9),
    };
    assert_eq!(
        wire.events[0].iter().filter(|event| **event == conflict).count(),
        2
    );
    assert_eq!(wire.stacks[0].counters().conflicts, 150);
    assert_eq!(
        wire.neighbour(0, "10.9.0.1"),
        None,
        "our own address is no neighbour"
    );
}

#[test]
fn several_addresses_come_and_go() {
    let mut wire = Wire::new(2);
    for address in ["10.9.0.1/24", "10.9.0.11/24", "fd00:9::1/64", "fd00:9::11/64"] {
        wire.add(0, address, OFF);
    }
    wire.add(1, "10.9.0.2/24", OFF);
    wire.add(1, "fd00:9::2/64", OFF);
    for peer in ["10.9.0.1", "10.9.0.11", "fd00:9::1", "fd00:9::11"] {
        wire.stacks[1].look_up(wire.now, key(peer, None));
        wire.exchange();
        assert_eq!(
            wire.stacks[1].look_up(wire.now, key(peer, None)),
            Lookup::Found(mac(1)),
            "{peer}"
        );
    }
    assert_eq!(
        wire.stacks[0].add_address(wire.now, "10.9.0.11/16".parse().unwrap(), OFF),
        Err(AddressError::Exists { ip: ip("10.9.0.11") })
    );
    wire.stacks[0].remove_address(ip("10.9.0.11"), None).unwrap();
    assert!(wire.stacks[0].remove_address(ip("10.9.0.11"), None).is_err());
    let question = Arp {
        request: true,
        sender: (mac(2), "10.9.0.2".parse().unwrap()),
        target: (MacAddress::default(), "10.9.0.11".parse().unwrap()),
    };
    assert!(
        wire.deliver(0, &question.frame(BROADCAST, None)).is_empty(),
        "it is not ours any more"
    );
    for i in 0..u8::MAX {
        let added =
            wire.stacks[1].add_address(wire.now, InterfaceAddress::new([10, 9, 1, i].into(), 24), OFF);
        if i > 253 {
            assert_eq!(added, Err(AddressError::TooMany { max: MAX_ADDRESSES }));
        }
    }
}

#[test]
fn vlans_are_links_of_their_own() {
    let mut wire = Wire::new(2);
    wire.add(0, "10.9.0.1/24", OFF);
    wire.add(0, "10.9.0.1/24@100", OFF);
    wire.add(1, "10.9.0.2/24@100", OFF);
    wire.pass(10 * SECOND);
    wire.frames.clear();
    let ignored = wire.stacks[1].counters().ignored;
    wire.stacks[0].look_up(wire.now, key("10.9.0.2", None));
    wire.stacks[0].look_up(wire.now, key("10.9.0.2", Some(100)));
    wire.exchange();
    assert_eq!(
        wire.stacks[0].look_up(wire.now, key("10.9.0.2", Some(100))),
        Lookup::Found(mac(2))
    );
    assert_eq!(
        wire.stacks[0].look_up(wire.now, key("10.9.0.2", None)),
        Lookup::Pending
    );
    let tagged = wire
        .frames
        .iter()
        .filter(|(_, frame)| frame[12..16] == [0x81, 0, 0, 100])
        .count();
    assert_eq!(
        (tagged, wire.frames.len()),
        (2, 3),
        "question and answer in the VLAN, a question outside"
    );
    assert_eq!(wire.stacks[1].counters().ignored, ignored + 1, "of another VLAN");
    wire.stacks[0].remove_address(ip("10.9.0.1"), Some(100)).unwrap();
    assert_eq!(
        wire.stacks[0]
            .neighbours()
            .iter()
            .filter(|have| have.key.vlan.is_some())
            .count(),
        0
    );
}

#[test]
fn c07_a_neighbour_that_moves_is_told_of() {
    let mut wire = Wire::new(3);
    wire.add(0, "10.9.0.1/24", OFF);
    wire.add(1, "10.9.0.2/24", OFF);
    assert!(wire.stacks[0].watch(wire.now, key("10.9.0.2", None)));
    wire.pass(20 * SECOND);
    wire.events[0].clear();
    // The address moves to another station, which announces it.
    wire.stacks[1].remove_address(ip("10.9.0.2"), None).unwrap();
    wire.add(2, "10.9.0.2/24", OFF);
    let changed = LinkEvent::NeighbourChanged {
        neighbour: key("10.9.0.2", None),
        old: mac(2),
        new: mac(3),
    };
    assert_eq!(wire.events[0], [changed]);
    assert_eq!(
        wire.neighbour(0, "10.9.0.2"),
        Some((Some(mac(3)), NeighbourState::Reachable)),
        "and was asked"
    );
    // Then it is gone.
    wire.stacks[2].remove_address(ip("10.9.0.2"), None).unwrap();
    wire.pass(60 * SECOND);
    assert_eq!(
        wire.events[0].last(),
        Some(&LinkEvent::NeighbourUnreachable {
            neighbour: key("10.9.0.2", None)
        })
    );
}

fn echo_v4(payload: &[u8], to: &str, frame_to: MacAddress) -> Vec<u8> {
    let ends = ("10.9.0.2".parse().unwrap(), to.parse().unwrap());
    let mut frame = ipv4_frame(
        (mac(2), frame_to),
        None,
        ends,
        (1, 0x6a),
        8 + payload.len(),
        |bytes| {
            bytes[..8].copy_from_slice(&[8, 0, 0, 0, 0x12, 0x34, 0, 7]);
            bytes[8..].copy_from_slice(payload);
            Icmpv4Packet::new_unchecked(bytes).fill_checksum();
        },
    );
    frame.truncate(14 + 20 + 8 + payload.len());
    frame
}

#[test]
fn echo_requests_are_answered() {
    let mut wire = Wire::new(1);
    wire.add(0, "10.9.0.1/24", OFF);
    wire.add(0, "fd00:9::1/64", OFF);
    for len in [0, 1, 17, 56, 1400, 8952] {
        let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let answers = wire.deliver(0, &echo_v4(&payload, "10.9.0.1", mac(1)));
        let [answer] = &answers[..] else {
            panic!("{len}: {} answers", answers.len())
        };
        let frame = Incoming::parse(answer).unwrap();
        assert_eq!((frame.dst, frame.src), (mac(2), mac(1)));
        let packet = Ipv4Packet::new_checked(frame.payload).unwrap();
        assert!(packet.verify_checksum());
        assert_eq!(
            (packet.src_addr().into(), packet.dst_addr().into()),
            (ip("10.9.0.1"), ip("10.9.0.2"))
        );
        assert_eq!(
            (packet.dscp() << 2 | packet.ecn(), packet.hop_limit()),
            (0x6a, 64)
        );
        let icmp = Icmpv4Packet::new_checked(packet.payload()).unwrap();
        assert!(icmp.verify_checksum());
        assert_eq!(
            (packet.payload()[0], &packet.payload()[4..8], icmp.data()),
            (0, &[0x12, 0x34, 0, 7][..], &payload[..])
        );

        let way = Ipv6Way {
            macs: (mac(2), mac(1)),
            vlan: None,
            src: "fd00:9::2".parse().unwrap(),
            dst: "fd00:9::1".parse().unwrap(),
            hop_limit: 64,
        };
        let request = ipv6_frame(&way, next_header::ICMPV6, 8 + len, |bytes| {
            bytes[..8].copy_from_slice(&[128, 0, 0, 0, 0x12, 0x34, 0, 7]);
            bytes[8..].copy_from_slice(&payload);
            Icmpv6Packet::new_unchecked(bytes).fill_checksum(&way.src, &way.dst);
        });
        let answers = wire.deliver(0, &request);
        let packet = Ipv6Packet::new_checked(&answers[0][14..]).unwrap();
        let icmp = Icmpv6Packet::new_checked(packet.payload()).unwrap();
        assert!(icmp.verify_checksum(&way.dst, &way.src));
        assert_eq!((packet.payload()[0], &packet.payload()[8..]), (129, &payload[..]));
    }
    assert_eq!(wire.stacks[0].counters().echo_replies, 12);
}

#[test]
fn what_is_no_echo_request_to_us_is_not_answered() {
    let mut wire = Wire::new(1);
    wire.add(0, "10.9.0.1/24", OFF);
    let good = echo_v4(b"0123456789", "10.9.0.1", mac(1));
    let mut silent = |frame: &[u8], malformed: bool| {
        let before = wire.stacks[0].counters();
        assert!(wire.deliver(0, frame).is_empty());
        let after = wire.stacks[0].counters();
        let counts = (after.malformed - before.malformed, after.ignored - before.ignored);
        assert_eq!(counts, (u64::from(malformed), u64::from(!malformed)));
    };
    silent(&echo_v4(b"x", "10.9.0.3", mac(1)), false);
    silent(&echo_v4(b"x", "10.9.0.1", BROADCAST), false);
    silent(&echo_v4(b"x", "10.9.0.255", BROADCAST), false);
    silent(&echo_v4(b"x", "10.9.0.1", mac(7)), false);
    for at in [14 + 10, 14 + 20 + 2, 14 + 20 + 9] {
        let mut wrong = good.clone();
        wrong[at] ^= 1;
        silent(&wrong, true);
    }
    let with = |change: &dyn Fn(&mut Ipv4Packet<&mut [u8]>)| {
        let mut frame = good.clone();
        let mut packet = Ipv4Packet::new_unchecked(&mut frame[14..]);
        change(&mut packet);
        packet.fill_checksum();
        frame
    };
    silent(&with(&|packet| packet.set_more_frags(true)), false);
    silent(&with(&|packet| packet.set_frag_offset(8)), false);
    silent(&with(&|packet| packet.set_src_addr(Ipv4Addr::BROADCAST)), false);
    silent(&with(&|packet| packet.set_src_addr(Ipv4Addr::UNSPECIFIED)), false);
    silent(&with(&|packet| packet.set_header_len(16)), true);
    silent(&with(&|packet| packet.set_total_len(4000)), true);
    silent(&with(&|packet| packet.set_version(6)), true);
    let mut from_group = good.clone();
    from_group[6] |= 1;
    silent(&from_group, true);
    silent(&[0; 17_000], true);
}

#[test]
fn echo_replies_have_a_rate() {
    let mut wire = Wire::new(1);
    wire.add(0, "10.9.0.1/24", OFF);
    let request = echo_v4(b"x", "10.9.0.1", mac(1));
    let answered = (0..1000).map(|_| wire.deliver(0, &request).len()).sum::<usize>();
    assert_eq!((answered, wire.stacks[0].counters().echo_limited), (200, 800));
    wire.now += SECOND / 10;
    assert_eq!(
        (0..1000).map(|_| wire.deliver(0, &request).len()).sum::<usize>(),
        100
    );
}

/// A solicitation as Linux sends it.
fn solicit(from: &str, target: &str) -> (Ipv6Way, Ipv6Addr) {
    let target: Ipv6Addr = target.parse().unwrap();
    let way = Ipv6Way {
        macs: (mac(2), multicast_mac(solicited_node(target))),
        vlan: None,
        src: from.parse().unwrap(),
        dst: solicited_node(target),
        hop_limit: ND_HOP_LIMIT,
    };
    (way, target)
}

#[test]
fn neighbour_discovery_takes_nothing_that_was_routed_or_makes_no_sense() {
    let mut wire = Wire::new(1);
    wire.add(0, "fd00:9::1/64", OFF);
    let (way, target) = solicit("fd00:9::2", "fd00:9::1");
    assert_eq!(
        wire.deliver(0, &frame::solicitation(&way, target, Some(mac(2))))
            .len(),
        1
    );
    let malformed = |wire: &mut Wire, frame: &[u8]| {
        let before = wire.stacks[0].counters().malformed;
        wire.deliver(0, frame).is_empty() && wire.stacks[0].counters().malformed == before + 1
    };
    let routed = Ipv6Way {
        hop_limit: 254,
        ..way
    };
    assert!(malformed(
        &mut wire,
        &frame::solicitation(&routed, target, Some(mac(2)))
    ));
    let group = solicited_node(target);
    assert!(malformed(
        &mut wire,
        &frame::solicitation(&way, group, Some(mac(2)))
    ));
    // A probe has no option, and goes to the group.
    let probe = Ipv6Way {
        src: Ipv6Addr::UNSPECIFIED,
        ..way
    };
    assert!(malformed(
        &mut wire,
        &frame::solicitation(&probe, target, Some(mac(2)))
    ));
    let straight = Ipv6Way { dst: target, ..probe };
    assert!(malformed(
        &mut wire,
        &frame::solicitation(&straight, target, None)
    ));
    let from_group = Ipv6Way {
        src: ALL_NODES,
        ..way
    };
    assert!(malformed(
        &mut wire,
        &frame::solicitation(&from_group, target, Some(mac(2)))
    ));
    // Solicited, and to all: no.
    let to_all = Ipv6Way {
        dst: ALL_NODES,
        ..way
    };
    assert!(malformed(
        &mut wire,
        &frame::advertisement(&to_all, "fd00:9::7".parse().unwrap(), mac(7), (true, true))
    ));
    // A probe is answered to all.
    let answers = wire.deliver(0, &frame::solicitation(&probe, target, None));
    let packet = Ipv6Packet::new_checked(&answers[0][14..]).unwrap();
    assert_eq!((packet.dst_addr(), packet.hop_limit()), (ALL_NODES, 255));
    let icmp = Icmpv6Packet::new_checked(packet.payload()).unwrap();
    assert!(
        matches!(NdiscRepr::parse(&icmp), Ok(NdiscRepr::NeighborAdvert { target_addr, .. }) if target_addr == target)
    );
}

#[test]
fn an_off_link_station_is_answered_and_not_remembered() {
    let mut wire = Wire::new(1);
    wire.add(0, "10.9.0.1/24", OFF);
    wire.add(0, "fd00:9::1/64", OFF);
    let question = Arp {
        request: true,
        sender: (mac(2), "192.0.2.7".parse().unwrap()),
        target: (MacAddress::default(), "10.9.0.1".parse().unwrap()),
    };
    assert_eq!(wire.deliver(0, &question.frame(BROADCAST, None)).len(), 1);
    let (way, target) = solicit("2001:db8::2", "fd00:9::1");
    assert_eq!(
        wire.deliver(0, &frame::solicitation(&way, target, Some(mac(2))))
            .len(),
        1
    );
    assert_eq!(wire.stacks[0].neighbours(), []);
    let lie = Arp {
        sender: (mac(2), "224.0.0.1".parse().unwrap()),
        ..question
    };
    assert!(wire.deliver(0, &lie.frame(BROADCAST, None)).is_empty());
    assert_eq!(wire.stacks[0].counters().malformed, 1);
}

#[test]
fn a_querier_hears_of_the_groups_within_its_time() {
    let mut wire = Wire::new(1);
    wire.add(0, "fe80::1/64", OFF);
    wire.add(0, "fd00:9::1/64", OFF);
    wire.pass(30 * SECOND);
    wire.frames.clear();
    let way = Ipv6Way {
        macs: (mac(2), multicast_mac(ALL_NODES)),
        vlan: None,
        src: "fe80::2".parse().unwrap(),
        dst: ALL_NODES,
        hop_limit: 1,
    };
    let query = ipv6_frame(&way, next_header::HOP_BY_HOP, 8 + 28, |bytes| {
        bytes[..8].copy_from_slice(&[58, 0, 5, 2, 0, 0, 1, 0]);
        // A general query, to be answered within 2000 ms.
        bytes[8..14].copy_from_slice(&[130, 0, 0, 0, 0x07, 0xd0]);
        Icmpv6Packet::new_unchecked(&mut bytes[8..]).fill_checksum(&way.src, &way.dst);
    });
    assert!(wire.deliver(0, &query).is_empty(), "not at once");
    wire.pass(2 * SECOND);
    assert_eq!(wire.frames.len(), 1);
    let packet = Ipv6Packet::new_checked(&wire.frames[0].1[14..]).unwrap();
    assert_eq!(
        (packet.src_addr().to_string().as_str(), packet.dst_addr()),
        ("fe80::1", ALL_MLDV2_ROUTERS)
    );
    let mut wrong = query.clone();
    wrong[14 + 40 + 12] ^= 1;
    wire.deliver(0, &wrong);
    wire.deliver(0, &query[..14 + 40 + 20]);
    assert_eq!(wire.stacks[0].counters().malformed, 2);
}

#[test]
fn floods_meet_bounds() {
    let mut wire = Wire::new(1);
    wire.add(0, "10.9.0.1/8", OFF);
    for i in 0..5000u32 {
        let sender = Ipv4Addr::from_bits(0x0a00_0100 + i);
        let question = Arp {
            request: true,
            sender: (mac(2), sender),
            target: (MacAddress::default(), "10.9.0.1".parse().unwrap()),
        };
        wire.stacks[0].handle_frame(wire.now, &question.frame(BROADCAST, None));
        if i % 2 == 0 {
            let moved = Arp {
                request: false,
                sender: (mac(3 + i as u8 % 200), sender),
                ..question
            };
            wire.stacks[0].handle_frame(wire.now, &moved.frame(BROADCAST, None));
        }
    }
    let stack = &mut wire.stacks[0];
    assert!(stack.neighbours().len() <= 1024);
    assert!(std::iter::from_fn(|| stack.poll_transmit()).count() <= MAX_WAITING);
    assert!(std::iter::from_fn(|| stack.poll_event()).count() <= MAX_WAITING);
    assert!(stack.counters().frames_dropped > 0 && stack.counters().events_lost > 0);
}

#[test]
fn who_gives_our_mac_for_his_own_gets_no_answer() {
    let mut wire = Wire::new(1);
    wire.add(0, "10.9.0.1/24", DuplicateDetection::Optimistic);
    let mut asked = |sender| {
        let question = Arp {
            request: true,
            sender: (sender, "10.9.0.2".parse().unwrap()),
            target: (MacAddress([0; 6]), "10.9.0.1".parse().unwrap()),
        };
        let mut frame = question.frame(BROADCAST, None);
        frame[6..12].copy_from_slice(&mac(2).0);
        let answers = wire.deliver(0, &frame);
        answers
            .iter()
            .filter_map(|answer| arp_of(answer))
            .filter(|arp| !arp.request)
            .count()
    };
    assert_eq!((asked(mac(1)), asked(mac(2))), (0, 1));
    assert_eq!(wire.stacks[0].counters().malformed, 1);
}

proptest! {
    /// Whatever comes, the stack stays within its bounds, and what it sends is well-formed and not to itself.
    #[test]
    fn any_frames_are_taken(frames in proptest::collection::vec(any_frame(), 1..40)) {
        let mut wire = Wire::new(1);
        for address in ["10.9.0.1/24", "fd00:9::1/64", "fe80::1/64", "10.9.0.1/24@5"] {
            wire.add(0, address, DuplicateDetection::Optimistic);
        }
        for frame in frames {
            for answer in wire.deliver(0, &frame) {
                let sent = Incoming::parse(&answer).expect("a frame");
                prop_assert!(sent.src == mac(1) && sent.dst != mac(1) && answer.len() >= 60);
                match sent.ethertype {
                    ethertype::ARP => prop_assert!(Arp::parse(sent.payload).is_some()),
                    ethertype::IPV4 => prop_assert!(Ipv4Packet::new_checked(sent.payload).unwrap().verify_checksum()),
                    _ => prop_assert!(Ipv6Packet::new_checked(sent.payload).is_ok()),
                }
            }
            wire.pass(SECOND / 3);
        }
        prop_assert!(wire.stacks[0].neighbours().len() <= 1024);
    }
}

/// Valid messages with bytes changed, cut or added; and noise.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let (way, target) = solicit("fd00:9::2", "fd00:9::1");
    let arp = Arp {
        request: true,
        sender: (mac(2), "10.9.0.2".parse().unwrap()),
        target: (MacAddress::default(), "10.9.0.1".parse().unwrap()),
    };
    let unicast = Ipv6Way {
        macs: (mac(2), mac(1)),
        dst: target,
        ..way
    };
    let samples = vec![
        arp.frame(BROADCAST, None),
        arp.frame(mac(1), Some(5)),
        echo_v4(b"0123456789abcdef", "10.9.0.1", mac(1)),
        frame::solicitation(&way, target, Some(mac(2))),
        frame::advertisement(&unicast, "fd00:9::2".parse().unwrap(), mac(2), (true, true)),
        frame::mld_report(&way, &[target], true),
        Outgoing::new((mac(2), mac(1)), Some(5), 0x86dd, 60).finish(),
    ];
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (
        prop::sample::select(samples),
        changes,
        0usize..80,
        any::<bool>(),
        proptest::collection::vec(any::<u8>(), 0..90),
    )
        .prop_map(|(mut frame, changes, cut, noise, random)| {
            if noise {
                return random;
            }
            for (at, value) in changes {
                let at = at.index(frame.len());
                frame[at] = value;
            }
            if cut < 20 {
                frame.truncate(frame.len() - cut.min(frame.len()));
            }
            frame
        })
}

#[test]
fn times_without_end_are_no_reason_to_panic() {
    let forever = Duration::MAX;
    let mut config = StackConfig::new(MacAddress([2, 0, 0, 0, 0, 9]));
    config.timing.retransmit = forever;
    config.timing.reachable = forever;
    config.timing.stale = forever;
    config.timing.probe_wait = forever;
    config.timing.probe_min = forever;
    config.timing.announce_wait = forever;
    let (mut stack, mut now) = (Stack::new(&config), Instant::now());
    assert_eq!(stack.timing.probe_min, crate::config::LONGEST_WAIT);
    let address = InterfaceAddress::new(ip("10.0.0.9"), 24);
    stack
        .add_address(now, address, DuplicateDetection::BeforeUse)
        .expect("an address");
    for _ in 0..20 {
        let Some(at) = stack.poll_timeout() else { break };
        now = now.max(at);
        stack.handle_timeout(now);
    }
    assert!(stack.patience() > Duration::ZERO);
}
