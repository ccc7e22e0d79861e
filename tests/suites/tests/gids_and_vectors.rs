//! What a program has of the port and of the function: entries of the GID table, MSI-X vectors.

use std::sync::Arc;

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::gid::{Gid, GidEntry, RoceVersion};
use ferroce::verbs::{Cq, CqConfig, ModifyError, Path, PathError, QpConfig, ToInit, ToRtr};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{Pair, address, gid_index, mac};

fn open(testbed: &Testbed, config: OpenConfig) -> Arc<Context> {
    let device = testbed.device(0).expect("a NIC");
    let function = InProcess::new("nic", device).expect("a function");
    Context::open(Arc::new(function), config).expect("the NIC comes up")
}

#[test]
fn g04_holes_in_the_gid_table_are_passed_and_filled() {
    let mut pair = Pair::unconnected(TestbedConfig::default(), &QpConfig::default());
    let context = pair.a.context.clone();
    let first = context.gids().entries()[0].1;
    let entry = |last: u8| GidEntry {
        gid: Gid::from_ip([10, 20, 0, last].into()),
        version: RoceVersion::V2,
        ..first
    };
    let added: Vec<u16> = (1..=4)
        .map(|last| context.add_gid(entry(last)).expect("room"))
        .collect();
    // Only the later half is left, and of that one goes too.
    for index in (0..added[0]).chain([added[2]]) {
        context.remove_gid(index).expect("removed");
    }
    let left: Vec<u16> = context.gids().entries().iter().map(|(index, _)| *index).collect();
    assert_eq!(left, [added[0], added[1], added[3]]);
    let find = |last: u8| context.gids().find(|have| have.gid == entry(last).gid);
    assert_eq!(
        [1, 2, 3, 4].map(find),
        [Some(added[0]), Some(added[1]), None, Some(added[3])]
    );
    // What was found before it went is refused by name, before firmware is asked.
    pair.a.qp.modify_to_init(&ToInit::default()).expect("INIT");
    for gone in [0, added[2]] {
        let path = Path::to_ip(gone, address(1), mac(1));
        let refused = pair
            .a
            .qp
            .modify_to_rtr(&ToRtr::new(path, pair.b.qp.qpn(), 0))
            .unwrap_err();
        assert!(
            matches!(refused, ModifyError::Path(PathError::EmptyEntry { index }) if index == gone),
            "{refused}"
        );
    }
    // A new one takes the first hole; one that is there is not added again.
    assert_eq!(context.add_gid(entry(9)).expect("room"), 0);
    assert_eq!(context.add_gid(entry(4)).expect("there already"), added[3]);
    context.remove_gid(0).expect("removed");
    context.remove_gid(0).expect("removing nothing is fine");
    assert!(context.gids().get(u16::MAX).is_none());
    pair.assert_clean();
}

#[test]
fn g01_each_kind_of_gid_of_an_address_can_be_found() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open(&testbed, OpenConfig::new().address(address(0)));
    let kinds: Vec<(bool, RoceVersion)> = context
        .gids()
        .entries()
        .iter()
        .map(|(_, entry)| (entry.gid == Gid::from_ip(address(0)), entry.version))
        .collect();
    // As Linux has them: link-local first, then the address; v1 before v2.
    let wanted = [
        (false, RoceVersion::V1),
        (false, RoceVersion::V2),
        (true, RoceVersion::V1),
        (true, RoceVersion::V2),
    ];
    assert_eq!(kinds, wanted);
    assert_eq!(
        gid_index(&context, 0),
        3,
        "the address's RoCE v2 entry is found by what it is"
    );
}

#[test]
fn v05_no_more_vectors_are_enabled_than_are_used() {
    let mut config = TestbedConfig::default();
    config.profiles[0].msix_vectors = 2048;
    let testbed = Testbed::new(config).expect("a testbed");
    let connected = || {
        testbed
            .with_nic(0, |nic| nic.data_plane.interrupts.connected())
            .expect("a NIC")
    };
    let context = open(
        &testbed,
        OpenConfig::new().address(address(0)).completion_vectors(4),
    );
    assert_eq!(context.function().msix_vectors(), 2048);
    assert!((1..=5).contains(&connected()), "{}", connected());
    let queues: Vec<_> = (0..4)
        .map(|vector| {
            Cq::create(
                &context,
                CqConfig {
                    vector,
                    ..CqConfig::new(1)
                },
            )
            .expect("a CQ")
        })
        .collect();
    assert_eq!((context.completion_vectors(), connected()), (4, 5));
    drop(queues);
    context.close().expect("an orderly end");
    assert_eq!(connected(), 0);
    let context = open(&testbed, OpenConfig::new().interrupts(false));
    assert_eq!(connected(), 0);
    drop(context);
}
