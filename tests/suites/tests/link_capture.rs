//! What two Linux 6.12 machines said to each other to find one another (`tests/data/linux-rxe.pcap`): our stack in the place of
//! either says the same, byte for byte.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use ferroce::link::{DuplicateDetection, Lookup, NeighbourKey, Stack, StackConfig};
use ferroce::port::MacAddress;
use pcap_file::pcap::PcapReader;

const A: MacAddress = MacAddress([0x52, 0x54, 0, 9, 0, 1]);
const B: MacAddress = MacAddress([0x52, 0x54, 0, 9, 0, 2]);
/// Where frames of the capture are.
const REPORT_OF_B: usize = 0;
const ARP_REQUEST: usize = 22;
const ARP_REPLY: usize = 23;
const SOLICITATION: usize = 301;
const ADVERTISEMENT: usize = 302;
/// An answer to a unicast question, without a MAC in it.
const BARE_ADVERTISEMENT: usize = 417;

fn capture() -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/linux-rxe.pcap");
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// A station as one of the capture's, past its announcements.
fn station(mac: MacAddress, addresses: &[&str]) -> Stack {
    let mut stack = Stack::new(&StackConfig::new(mac));
    for address in addresses {
        let address = address.parse().unwrap();
        stack
            .add_address(Instant::now(), address, DuplicateDetection::Off)
            .unwrap();
    }
    while stack.poll_transmit().is_some() {}
    stack
}

fn ip(text: &str) -> NeighbourKey {
    let ip: IpAddr = text.parse().unwrap();
    NeighbourKey { vlan: None, ip }
}

/// Frames as Linux handed them to its virtual NIC, which pads nothing.
fn unpadded(frame: &[u8], like: &[u8]) -> Vec<u8> {
    assert!(frame.len() >= 60 && frame[like.len().min(frame.len())..].iter().all(|byte| *byte == 0));
    frame[..like.len()].to_vec()
}

#[test]
fn arp_is_what_linux_says() {
    let frames = capture();
    let (mut a, mut b) = (station(A, &["10.9.0.1/24"]), station(B, &["10.9.0.2/24"]));
    let now = Instant::now();
    assert_eq!(b.look_up(now, ip("10.9.0.1")), Lookup::Pending);
    let request = b.poll_transmit().unwrap();
    assert_eq!(unpadded(&request, &frames[ARP_REQUEST]), frames[ARP_REQUEST]);
    a.handle_frame(now, &frames[ARP_REQUEST]);
    let reply = a.poll_transmit().unwrap();
    assert_eq!(unpadded(&reply, &frames[ARP_REPLY]), frames[ARP_REPLY]);
    b.handle_frame(now, &frames[ARP_REPLY]);
    assert_eq!(b.look_up(now, ip("10.9.0.1")), Lookup::Found(A));
}

#[test]
fn neighbour_discovery_is_what_linux_says() {
    let frames = capture();
    // Linux asked from its link-local address.
    let (mut a, mut b) = (
        station(A, &["fe80::5054:ff:fe09:1/64"]),
        station(B, &["fd00:9::2/64"]),
    );
    let now = Instant::now();
    a.look_up(now, ip("fd00:9::2"));
    assert_eq!(a.poll_transmit().unwrap(), frames[SOLICITATION]);
    b.handle_frame(now, &frames[SOLICITATION]);
    assert_eq!(b.poll_transmit().unwrap(), frames[ADVERTISEMENT]);
    a.handle_frame(now, &frames[ADVERTISEMENT]);
    assert_eq!(a.look_up(now, ip("fd00:9::2")), Lookup::Found(B));
}

#[test]
fn groups_are_reported_as_linux_does() {
    let frames = capture();
    let mut b = Stack::new(&StackConfig::new(B));
    let address = "fe80::5054:ff:fe09:2/64".parse().unwrap();
    b.add_address(Instant::now(), address, DuplicateDetection::BeforeUse)
        .unwrap();
    assert_eq!(b.poll_transmit().unwrap(), frames[REPORT_OF_B]);
}

#[test]
fn an_answer_without_a_mac_confirms_the_one_that_is_known() {
    let frames = capture();
    let mut a = station(A, &["fe80::5054:ff:fe09:1/64"]);
    let now = Instant::now();
    a.look_up(now, ip("fe80::5054:ff:fe09:2"));
    a.handle_frame(now, &frames[BARE_ADVERTISEMENT]);
    assert_eq!(
        a.look_up(now, ip("fe80::5054:ff:fe09:2")),
        Lookup::Pending,
        "there is none to confirm"
    );
}

#[test]
fn nothing_that_linux_said_is_malformed() {
    for (mac, addresses) in [
        (A, ["10.9.0.1/24", "fd00:9::1/64"]),
        (B, ["10.9.0.2/24", "fd00:9::2/64"]),
    ] {
        let mut stack = station(mac, &addresses);
        for frame in capture() {
            stack.handle_frame(Instant::now(), &frame);
        }
        let counters = stack.counters();
        assert_eq!(
            (counters.frames_in, counters.malformed),
            (1039, 0),
            "{counters:?}"
        );
        assert_eq!(counters.conflicts, 0);
    }
}
