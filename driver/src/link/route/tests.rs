use proptest::prelude::*;

use super::*;
use crate::gid::Gid;
use crate::port::MacAddress;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn gid(address: &str, version: RoceVersion, vlan: Option<u16>) -> GidEntry {
    GidEntry {
        gid: Gid::from_ip(ip(address)),
        version,
        mac: MacAddress([2, 0, 0, 0, 0, 1]),
        vlan,
    }
}

use RoceVersion::{V1, V2};

/// Tables that own what they have.
#[derive(Clone, Debug, Default)]
struct Nic {
    gids: Vec<(u16, GidEntry)>,
    addresses: Vec<(InterfaceAddress, AddressState)>,
    gateways: Vec<Gateway>,
}

impl Nic {
    /// Addresses with v1 and v2 entries each, in order.
    fn new(addresses: &[&str]) -> Nic {
        let mut nic = Nic::default();
        for address in addresses {
            let address: InterfaceAddress = address.parse().unwrap();
            nic.addresses.push((address, AddressState::Usable));
            for version in [V1, V2] {
                let index = nic.gids.len() as u16;
                nic.gids
                    .push((index, gid(&address.ip.to_string(), version, address.vlan)));
            }
        }
        nic
    }

    fn via(mut self, gateway: &str) -> Nic {
        self.gateways.push(gateway.parse().unwrap());
        self
    }

    fn choose(&self, query: impl Into<RouteQuery>) -> Result<Route, RouteError> {
        choose(
            &query.into(),
            &RouteTables {
                gids: &self.gids,
                addresses: &self.addresses,
                gateways: &self.gateways,
            },
        )
    }

    fn index(&self, destination: &str) -> u16 {
        self.choose(ip(destination)).unwrap().sgid_index
    }
}

fn asked(destination: &str, index: u16) -> RouteQuery {
    RouteQuery {
        sgid_index: Some(index),
        ..RouteQuery::to(ip(destination))
    }
}

#[test]
fn g01_the_routable_entry_of_the_covering_prefix_is_chosen_by_itself() {
    // The table of the report: [fe80 v1, fe80 v2, ::ffff:10.0.0.1 v1, the same v2].
    let nic = Nic::new(&["fe80::1/64", "10.0.0.1/24"]).via("10.0.0.254");
    let route = nic.choose(ip("10.0.0.2")).unwrap();
    assert_eq!(
        (route.sgid_index, route.next_hop, route.vlan),
        (3, ip("10.0.0.2"), None)
    );
    let verdicts: Vec<Verdict> = route.why.iter().map(|reason| reason.verdict).collect();
    assert_eq!(
        verdicts,
        [
            Verdict::Unfit(Unfit::Family),
            Verdict::Unfit(Unfit::Family),
            Verdict::Worse(Worse::Version),
            Verdict::Chosen
        ]
    );
    // To a remote subnet too, by the router.
    let route = nic.choose(ip("10.7.0.2")).unwrap();
    assert_eq!((route.sgid_index, route.next_hop), (3, ip("10.0.0.254")));
}

#[test]
fn g01_an_explicit_choice_that_can_not_work_fails_early_and_names_a_better_one() {
    let nic = Nic::new(&["fe80::1/64", "10.0.0.1/24"]).via("10.0.0.254");
    let refused = nic.choose(asked("10.7.0.2", 1)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "GID 1 (fe80::1, RoCE v2) can't be used to reach 10.7.0.2: other family than the destination (IPv4, IPv6); GID \
         3 would do"
    );
    // RoCE v1 does on the link, with a warning, and not beyond it.
    let worse = nic.choose(asked("10.0.0.2", 2)).unwrap();
    assert_eq!(
        (worse.sgid_index, worse.better().map(|better| better.index)),
        (2, Some(3))
    );
    let refused = nic.choose(asked("10.7.0.2", 2)).unwrap_err();
    assert!(
        matches!(
            refused,
            RouteError::WrongGid {
                unfit: Unfit::V1Routed,
                better: Some(3),
                ..
            }
        ),
        "{refused}"
    );
    assert!(nic.choose(asked("10.0.0.2", 3)).unwrap().better().is_none());
}

#[test]
fn g01_link_local_sources_stay_on_their_link() {
    let nic = Nic::new(&["fe80::1/64", "fd00:9::1/64"]).via("fd00:9::fe");
    assert_eq!(
        [
            nic.index("fe80::2"),
            nic.index("fd00:9::2"),
            nic.index("2001:db8::1")
        ],
        [1, 3, 3]
    );
    let refused = nic.choose(asked("2001:db8::1", 1)).unwrap_err();
    assert!(
        matches!(
            refused,
            RouteError::WrongGid {
                unfit: Unfit::LinkLocalRouted,
                ..
            }
        ),
        "{refused}"
    );
    // On the link it would do, but not well.
    let worse = nic.choose(asked("fd00:9::2", 1)).unwrap();
    assert_eq!(worse.better().map(|better| better.index), Some(3));
}

#[test]
fn g04_holes_and_entries_that_went_are_passed() {
    let mut nic = Nic::new(&["10.9.0.1/24", "10.9.0.9/24", "fd00:9::1/64"]);
    // Only 3 (10.9.0.9 v2) and 5 (fd00:9::1 v2) are left, far behind.
    nic.gids = vec![(4, nic.gids[3].1), (250, nic.gids[5].1)];
    assert_eq!([nic.index("10.9.0.2"), nic.index("fd00:9::2")], [4, 250]);
    for hole in [0, 3, 5, 251, u16::MAX] {
        let refused = nic.choose(asked("10.9.0.2", hole)).unwrap_err();
        assert_eq!(
            refused,
            RouteError::EmptyGid {
                index: hole,
                better: Some(4)
            }
        );
    }
    nic.gids.clear();
    let refused = nic.choose(ip("10.9.0.2")).unwrap_err();
    assert!(
        refused.to_string().ends_with("the GID table is empty"),
        "{refused}"
    );
}

#[test]
fn the_longest_prefix_decides_and_a_router_only_beyond_it() {
    let nic = Nic::new(&["10.0.0.1/8", "10.9.0.1/24", "192.0.2.1/32"])
        .via("10.9.0.254")
        .via("10.9.7.0/24 via 10.9.0.7");
    let hop = |to: &str| {
        let route = nic.choose(ip(to)).unwrap();
        (route.source.gid.to_ip(), route.next_hop)
    };
    assert_eq!(hop("10.9.0.2"), (ip("10.9.0.1"), ip("10.9.0.2")));
    assert_eq!(hop("10.8.0.2"), (ip("10.0.0.1"), ip("10.8.0.2")));
    assert_eq!(
        hop("10.9.7.1"),
        (ip("10.9.0.1"), ip("10.9.0.7")),
        "a longer route than the link's prefix"
    );
    assert_eq!(hop("198.51.100.1"), (ip("10.9.0.1"), ip("10.9.0.254")));
}

#[test]
fn vlans_are_kept_apart() {
    let nic = Nic::new(&["10.9.0.1/24", "10.9.1.1/24@100", "fe80::1/64", "fe80::1/64@100"]);
    let route = nic.choose(ip("10.9.1.2")).unwrap();
    assert_eq!((route.sgid_index, route.vlan), (3, Some(100)));
    let refused = nic.choose(asked("10.9.1.2", 1)).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("untagged, the destination is reached by VLAN 100; GID 3 would do"),
        "{refused}"
    );
    // A link-local address is one in each.
    let refused = nic.choose(ip("fe80::2")).unwrap_err();
    assert!(matches!(refused, RouteError::Ambiguous { .. }), "{refused}");
    let in_vlan = |vlan| RouteQuery {
        vlan: Some(vlan),
        ..RouteQuery::to(ip("fe80::2"))
    };
    assert_eq!(nic.choose(in_vlan(None)).unwrap().sgid_index, 5);
    assert_eq!(nic.choose(in_vlan(Some(100))).unwrap().sgid_index, 7);
    let refused = nic.choose(in_vlan(Some(7))).unwrap_err();
    assert!(refused.to_string().contains("in VLAN 7"), "{refused}");
}

#[test]
fn addresses_that_are_not_ours_to_use_are_named() {
    let mut nic = Nic::new(&["10.9.0.1/24"]);
    nic.addresses[0].1 = AddressState::Tentative;
    let refused = nic.choose(ip("10.9.0.2")).unwrap_err();
    assert!(
        refused.to_string().contains("try again in a few seconds"),
        "{refused}"
    );
    nic.addresses[0].1 = AddressState::Duplicate;
    let refused = nic.choose(ip("10.9.0.2")).unwrap_err();
    assert!(matches!(refused, RouteError::Unreachable { .. }), "{refused}");
    nic.addresses.clear();
    let refused = nic.choose(ip("10.9.0.2")).unwrap_err();
    assert!(
        refused.to_string().contains("there is none of its family"),
        "{refused}"
    );
    for nowhere in ["0.0.0.0", "::", "127.0.0.1", "::1"] {
        assert!(
            matches!(nic.choose(ip(nowhere)), Err(RouteError::Destination { .. })),
            "{nowhere}"
        );
    }
}

#[test]
fn itself_and_groups_have_ways_too() {
    let nic = Nic::new(&["10.9.0.1/24", "10.9.0.9/24", "fd00:9::1/64"]);
    let route = nic.choose(ip("10.9.0.9")).unwrap();
    assert_eq!(
        (route.via, route.sgid_index),
        (Via::Itself, 3),
        "from the same address"
    );
    let route = nic.choose(ip("ff05::1:3")).unwrap();
    assert_eq!(
        (route.via, route.sgid_index, route.next_hop),
        (Via::Group, 5, ip("ff05::1:3"))
    );
}

#[test]
fn a_version_can_be_asked_for() {
    let nic = Nic::new(&["10.9.0.1/24"]);
    let with = |version| RouteQuery {
        version: Some(version),
        ..RouteQuery::to(ip("10.9.0.2"))
    };
    assert_eq!(
        [V1, V2].map(|version| nic.choose(with(version)).unwrap().sgid_index),
        [0, 1]
    );
    let mut only_v1 = nic.clone();
    only_v1.gids.truncate(1);
    assert_eq!(only_v1.index("10.9.0.2"), 0, "v1 does where there is no v2");
    let refused = only_v1.choose(with(V2)).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("another version of RoCE was asked for"),
        "{refused}"
    );
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    // Few networks, so that prefixes meet.
    prop_oneof![
        (0u8..3, 0u8..4).prop_map(|(net, host)| IpAddr::from([10, 9, net, host])),
        (0u16..3, 0u16..4).prop_map(|(net, host)| IpAddr::from([0xfd00, 9, net, 0, 0, 0, 0, host])),
        (1u16..4).prop_map(|host| IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, host])),
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
    ]
}

fn any_vlan() -> impl Strategy<Value = Option<u16>> {
    prop_oneof![3 => Just(None), 1 => (0u16..3).prop_map(Some), 1 => Just(Some(4095))]
}

proptest! {
    #[test]
    fn a_choice_is_one_of_the_table_and_the_best(
        gids in proptest::collection::vec((any_ip(), any::<bool>(), any_vlan()), 0..12),
        addresses in proptest::collection::vec((any_ip(), any::<u8>(), any_vlan(), 0u8..4), 0..8),
        gateways in proptest::collection::vec((any_ip(), any::<u8>(), any_ip(), any_vlan()), 0..3),
        destination in any_ip(),
        index in proptest::option::of(0u16..14),
    ) {
        let states = [AddressState::Tentative, AddressState::Optimistic, AddressState::Usable, AddressState::Duplicate];
        let nic = Nic {
            gids: gids.iter().enumerate().map(|(i, (ip, v2, vlan))| {
                (i as u16, gid(&ip.to_string(), if *v2 { V2 } else { V1 }, *vlan))
            }).collect(),
            addresses: addresses.iter().map(|(ip, prefix_len, vlan, state)| {
                (InterfaceAddress { ip: *ip, prefix_len: *prefix_len, vlan: *vlan }, states[usize::from(*state)])
            }).collect(),
            gateways: gateways.iter().filter_map(|(to, len, via, vlan)| {
                Some(Gateway { to: Prefix::new(*to, len % 33).ok()?, via: *via, vlan: *vlan })
            }).collect(),
        };
        let query = RouteQuery { sgid_index: index, ..RouteQuery::to(destination) };
        match nic.choose(query) {
            Ok(route) => {
                let chosen = &route.why[usize::from(route.sgid_index)];
                prop_assert_eq!(chosen.verdict, Verdict::Chosen);
                prop_assert_eq!(route.source.gid.to_ipv4().is_some(), destination.is_ipv4());
                prop_assert!(index.is_none_or(|index| index == route.sgid_index));
                prop_assert!(index.is_some() || route.better().is_none(), "by itself it is the best");
                prop_assert_eq!(route.why.iter().filter(|why| why.verdict == Verdict::Chosen).count(), 1);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
