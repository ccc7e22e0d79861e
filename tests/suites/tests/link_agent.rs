//! The link agent on the NIC model: two NICs on a cable that find each other, and nobody else to help them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::gid::RoceVersion;
use ferroce::link::{Agent, AgentConfig, DuplicateDetection, InterfaceAddress};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, mac};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn address(text: &str) -> InterfaceAddress {
    text.parse().expect("an address with a prefix")
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A NIC opened without addresses.
fn open(testbed: &Testbed, index: usize) -> Arc<Context> {
    let device = testbed.device(index).expect("a NIC");
    let function = InProcess::new(&format!("nic{index}"), device).expect("an in-process function");
    Context::open(Arc::new(function), OpenConfig::new()).expect("the NIC comes up")
}

fn quick() -> AgentConfig {
    AgentConfig::new().duplicate_detection(DuplicateDetection::Off)
}

fn agent(testbed: &Testbed, index: usize, addresses: &[&str]) -> Agent {
    let config = addresses
        .iter()
        .fold(quick(), |config, text| config.address(address(text)));
    Agent::start(&open(testbed, index), config).expect("an agent")
}

fn assert_clean(testbed: &Testbed) {
    for index in 0..2 {
        let stats = testbed.stats(index).expect("a NIC");
        assert_eq!(
            (stats.data_path_violations, stats.firmware_violations),
            (0, 0),
            "NIC {index}: {stats:?}"
        );
    }
}

#[test]
fn two_nics_find_each_other_by_arp_and_neighbour_discovery() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let a = agent(&testbed, 0, &["10.9.0.1/24", "fd00:9::1/64"]);
    let b = agent(&testbed, 1, &["10.9.0.2/24", "fd00:9::2/64"]);
    for peer in ["10.9.0.2", "fd00:9::2", "fe80::fe:cff:fee0:2"] {
        let found = a.resolve(ip(peer), None, soon()).expect("the peer answers");
        assert_eq!(found, mac(1), "{peer}");
    }
    assert_eq!(
        b.resolve(ip("10.9.0.1"), None, soon()).expect("the peer answers"),
        mac(0)
    );
    let route = a.route_to(ip("10.9.0.2"), soon()).expect("a way");
    assert_eq!(
        (route.dmac, route.source.version, route.next_hop),
        (Some(mac(1)), RoceVersion::V2, ip("10.9.0.2"))
    );
    drop((a, b));
    assert_clean(&testbed);
}
