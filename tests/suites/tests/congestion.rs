//! A wire that marks packets as a congested switch does, between two drivers: who is told, and who counts what.

use std::time::Instant;

use ferroce::context::{ModifyNotificationPoint, PortCounters};
use ferroce::ethernet::{EthernetConfig, EthernetQueues};
use ferroce::verbs::{Payload, QpConfig, SendFlags, SendOp, SendWr};
use ferroce_nic_model::link::fault::Faults;
use ferroce_nic_model::testbed::TestbedConfig;
use ferroce_suites::pair::{self, PATIENCE, Pair, Side, pattern};

/// DSCP 26, ECT(0).
const ECT: u8 = 26 << 2 | 2;
/// DSCP 26, not ECN-capable.
const NOT_ECT: u8 = 26 << 2;
const BYTES: usize = 64 * 1024;
/// Of the path MTU that connections have when they name none.
const PACKETS: u64 = 64;

fn pair(mark: f64, traffic_class: u8) -> Pair {
    let config = TestbedConfig {
        faults: Faults {
            seed: 3,
            mark,
            ..Faults::default()
        },
        ..TestbedConfig::default()
    };
    Pair::with(config, &QpConfig::default(), |rtr, _| {
        rtr.path.traffic_class = traffic_class
    })
}

/// Writes the region's first bytes of `from` to those of `to`.
fn write(from: &mut Side, to: &Side) {
    let sges = [from.mr.sge(0..BYTES).expect("within")];
    let op = SendOp::Write {
        data: Payload::Gather(&sges),
        remote: to.mr.remote(0),
        imm: None,
    };
    let wr = SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED,
    };
    from.qp.post_send(&wr).expect("room");
    from.qp.ring_send();
    assert_eq!(from.success().wr_id, 1);
}

#[test]
fn marked_packets_are_answered_and_both_ends_count() {
    let mut pair = pair(1.0, ECT);
    pair.a.fill(7);
    write(&mut pair.a, &pair.b);
    assert_eq!(pair.b.bytes(0, BYTES), pattern(BYTES, 7));
    let received = pair.b.context.congestion_counters().expect("counters");
    assert_eq!(received.np_ecn_marked_roce_packets, PACKETS);
    assert!((1..=PACKETS).contains(&received.np_cnp_sent), "{received:?}");
    // The last CNPs may be on their way when the write is complete, but not when the next one is.
    write(&mut pair.a, &pair.b);
    let sent = pair.a.context.congestion_counters().expect("counters");
    assert!(
        sent.rp_cnp_handled >= received.np_cnp_sent,
        "{sent:?} {received:?}"
    );
    assert_eq!(sent.rp_cnp_ignored, 0);
    // The acknowledgements take part in ECN too.
    assert!(sent.np_ecn_marked_roce_packets >= 1);
    pair.assert_clean();
}

#[test]
fn how_marked_packets_are_answered_can_be_set() {
    let mut pair = pair(1.0, ECT);
    // Longer than the test takes: one CNP, and no more.
    let how = ModifyNotificationPoint {
        cnp_dscp: Some(46),
        cnp_priority: Some(5),
        min_time_between_cnps: Some(600_000_000),
    };
    pair.b.context.set_notification_point(&how).expect("allowed");
    let set = pair
        .testbed
        .with_nic(1, |nic| nic.data_plane.congestion().clone());
    let set = set.expect("a NIC");
    assert_eq!((set.cnp_dscp, set.cnp_priority), (46, Some(5)));
    pair.a.fill(7);
    write(&mut pair.a, &pair.b);
    let received = pair.b.context.congestion_counters().expect("counters");
    assert_eq!(
        (received.np_ecn_marked_roce_packets, received.np_cnp_sent),
        (PACKETS, 1)
    );
    let wrong = ModifyNotificationPoint {
        cnp_dscp: Some(64),
        ..ModifyNotificationPoint::default()
    };
    assert!(pair.b.context.set_notification_point(&wrong).is_err());
    pair.assert_clean();
}

#[test]
fn what_takes_no_part_in_ecn_is_not_marked() {
    let mut pair = pair(1.0, NOT_ECT);
    write(&mut pair.a, &pair.b);
    for side in [&pair.a, &pair.b] {
        assert_eq!(
            side.context.congestion_counters().expect("counters"),
            Default::default()
        );
    }
}

#[test]
fn the_port_counts_its_frames() {
    let mut pair = pair(0.0, 0);
    let before = pair.b.context.port_counters().expect("counters");
    write(&mut pair.a, &pair.b);
    let after = pair.b.context.port_counters().expect("counters");
    assert_eq!(after.frames_received - before.frames_received, PACKETS);
    assert!(after.octets_received - before.octets_received > BYTES as u64);
    assert!(after.frames_sent > before.frames_sent, "acknowledgements");
    assert_eq!((after.pause_received, after.mac_control_received), (0, 0));
}

/// Sends a MAC control frame with that body by the raw queues.
fn send_control(queues: &mut EthernetQueues, body: &[u8]) {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x01]);
    frame[6..12].copy_from_slice(&pair::mac(0).0);
    frame[12..14].copy_from_slice(&[0x88, 0x08]);
    frame[14..14 + body.len()].copy_from_slice(body);
    queues.send(&frame).expect("room");
}

/// The port's counters when it has had that many MAC control frames.
fn counted(side: &Side, mac_control: u64) -> PortCounters {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let counters = side.context.port_counters().expect("counters");
        if counters.mac_control_received >= mac_control {
            return counters;
        }
        assert!(Instant::now() < deadline, "{mac_control} frames: {counters:?}");
    }
}

#[test]
fn the_port_counts_pause_frames_by_priority() {
    let pair = pair(0.0, 0);
    let mut queues = EthernetQueues::open(&pair.a.context, &EthernetConfig::default()).expect("queues");
    assert_eq!(counted(&pair.b, 0).priority_pause_received, [0; 8]);
    // Priorities 3 and 7, twice, then 3 alone; what is not named counts for nobody, whatever its time says.
    let of = |priorities: u8| [&[1, 1, 0, priorities][..], &[0xff; 16]].concat();
    send_control(&mut queues, &of(1 << 3 | 1 << 7));
    send_control(&mut queues, &of(1 << 3 | 1 << 7));
    send_control(&mut queues, &of(1 << 3));
    let named = counted(&pair.b, 3);
    assert_eq!(named.priority_pause_received, [0, 0, 0, 3, 0, 0, 0, 2]);
    assert_eq!((named.pause_received, named.mac_control_received), (0, 3));
    // One of the whole link.
    send_control(&mut queues, &[0, 1, 0xff, 0xff]);
    let whole = counted(&pair.b, 4);
    assert_eq!(whole.priority_pause_received, [1, 0, 0, 3, 0, 0, 0, 2]);
    assert_eq!((whole.pause_received, whole.mac_control_received), (1, 4));
    assert_eq!(whole.priority_pause_sent, [0; 8]);
    assert_eq!(counted(&pair.a, 0).priority_pause_received, [0; 8]);
    pair.assert_clean();
}
