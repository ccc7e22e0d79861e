//! BlueFlame, driver and model together: the model complains of each wrong order.

use std::sync::Arc;

use ferroce::verbs::{CreateError, Payload, Qp, QpConfig, SendFlags, SendOp, SendWr, ToInit};
use ferroce_nic_model::clock::ManualClock;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::runner::Drive;
use ferroce_nic_model::testbed::TestbedConfig;
use ferroce_suites::pair::{Pair, pattern};

fn config() -> QpConfig {
    QpConfig {
        blueflame: true,
        max_inline_data: 300,
        ..QpConfig::default()
    }
}

/// Two sides whose NICs work in the ringing thread: what is in a slot is looked at before anything else.
fn pair(config: &QpConfig) -> Pair {
    let testbed = TestbedConfig {
        drive: Drive::Caller,
        clock: Arc::new(ManualClock::new()),
        ..TestbedConfig::default()
    };
    let pair = Pair::with(testbed, config, |_, _| ());
    assert!(pair.a.qp.config().blueflame);
    pair
}

/// A WRITE of these bytes, inline.
fn write(pair: &mut Pair, at: usize, bytes: &[u8]) {
    let remote = pair.b.mr.remote(at);
    let op = SendOp::Write {
        data: Payload::Inline(bytes),
        remote,
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    pair.a
        .qp
        .post_send(&SendWr {
            wr_id: at as u64,
            op,
            flags,
        })
        .expect("there is room");
}

fn counted(pair: &Pair) -> (u64, u64, u64) {
    let engine = pair.testbed.stats(0).expect("a NIC").engine;
    (
        engine.send_doorbells,
        engine.blueflame_wqes,
        engine.blueflame_taken,
    )
}

#[test]
fn d01_wqes_of_all_sizes_reach_the_nic_in_the_doorbell() {
    let mut pair = pair(&config());
    let data = pattern(300, 7);
    for turn in 0..400usize {
        let (at, len) = (turn * 512, turn % 300);
        write(&mut pair, at, &data[..len]);
        pair.a.qp.ring_send_blueflame();
        assert_eq!(pair.a.success().wr_id, at as u64);
        assert_eq!(pair.b.bytes(at, len), data[..len]);
    }
    // Those of up to 256 bytes fit a slot: 32 in front of the data, and the 4 of its header.
    let fit = (0..400usize).filter(|turn| 32 + 4 + turn % 300 <= 256).count() as u64;
    assert_eq!(counted(&pair), (400, fit, fit));
    pair.assert_clean();
}

#[test]
fn d01_batches_ring_once_and_singles_go_within_the_doorbell_in_any_mixture() {
    let mut pair = pair(&config());
    let (mut rings, mut singles) = (0, 0);
    for turn in 0..300usize {
        let batch = turn % 4;
        for i in 0..batch {
            write(&mut pair, (turn * 4 + i) * 64, &[turn as u8; 16]);
        }
        pair.a.qp.ring_send_blueflame();
        rings += u64::from(batch > 0);
        singles += u64::from(batch == 1);
        pair.a
            .completions(batch)
            .into_iter()
            .for_each(|wc| drop(wc.result().expect("success")));
    }
    // A READ is one of pointers; a list, and what is rung for as ever, go the usual way.
    let into = [pair.a.mr.sge(0..64).expect("within")];
    let remote = pair.b.mr.remote(64);
    let read = SendWr {
        wr_id: 1,
        op: SendOp::Read { into: &into, remote },
        flags: SendFlags::SIGNALED,
    };
    for usual in [false, true, false, false, true, true, false] {
        pair.a.qp.post_send(&read).expect("there is room");
        if usual {
            pair.a.qp.ring_send();
        } else {
            pair.a.qp.ring_send_blueflame();
        }
        let _ = pair.a.success();
        pair.a.qp.post_send_list(&[read]).expect("there is room");
        let _ = pair.a.success();
    }
    assert_eq!(counted(&pair), (rings + 14, singles + 4, singles + 4));
    pair.assert_clean();
}

#[test]
fn a_queue_pair_that_was_not_made_for_it_rings_as_ever() {
    let mut pair = Pair::new(&QpConfig::default());
    write(&mut pair, 0, &[1; 8]);
    pair.a.qp.ring_send_blueflame();
    let _ = pair.a.success();
    assert_eq!(counted(&pair), (1, 0, 0));
    pair.assert_clean();
}

#[test]
fn d01_resets_errors_and_drops_keep_the_slots_in_turn_and_give_the_page_back() {
    let mut pair = pair(&config());
    let uars = |pair: &Pair| {
        let objects = pair.testbed.stats(0).expect("a NIC").objects;
        objects
            .iter()
            .find(|(kind, _)| kind.contains("UAR"))
            .expect("UARs are counted")
            .1
    };
    let with_one = uars(&pair);
    write(&mut pair, 0, &[1; 8]);
    pair.a.qp.ring_send_blueflame();
    let _ = pair.a.success();
    drop(pair.a.qp.modify_to_reset().expect("RESET"));
    pair.b.qp.modify_to_reset().expect("RESET");
    pair.connect(|_, _| ());
    for turn in 0..3 {
        write(&mut pair, turn * 8, &[2; 8]);
        pair.a.qp.ring_send_blueflame();
        let _ = pair.a.success();
    }
    let more = Qp::create(
        &pair.a.pd,
        &pair.a.cq,
        &pair.a.cq,
        &QpConfig {
            max_send_wr: 4,
            max_recv_wr: 0,
            ..config()
        },
    );
    let mut more = more.expect("a QP");
    more.modify_to_init(&ToInit::default()).expect("INIT");
    assert_eq!(uars(&pair), with_one + 1);
    drop(more);
    let given_back = Qp::create(
        &pair.a.pd,
        &pair.a.cq,
        &pair.a.cq,
        &QpConfig {
            max_send_wr: 4,
            max_recv_wr: 0,
            ..config()
        },
    );
    given_back.expect("a QP").destroy().expect("destroyed");
    pair.a.context.process_events();
    let deadline = std::time::Instant::now() + ferroce_suites::pair::PATIENCE;
    while uars(&pair) != with_one {
        assert!(std::time::Instant::now() < deadline, "{} pages", uars(&pair));
        pair.a.context.process_events();
        std::thread::yield_now();
    }
    pair.assert_clean();
}

#[test]
fn d01_a_device_without_blueflame_says_so() {
    let profile = |last| Profile::minimal().with_mac([0x02, 0xfe, 0x0c, 0xe0, 0, last]);
    let testbed = TestbedConfig {
        profiles: [1, 2].map(profile),
        ..TestbedConfig::default()
    };
    let small = QpConfig {
        max_send_wr: 4,
        max_recv_wr: 0,
        ..config()
    };
    let pair = Pair::unconnected(testbed, &QpConfig::default());
    let refused = Qp::create(&pair.a.pd, &pair.a.cq, &pair.a.cq, &small);
    assert!(
        matches!(refused, Err(CreateError::Capability { .. })),
        "{refused:?}"
    );
}

#[test]
fn d01_slots_alternate_for_as_long_as_the_indices_wrap() {
    let mut pair = pair(&QpConfig {
        max_send_wr: 8,
        ..config()
    });
    // Three blocks each, past 65536 of them.
    for turn in 0..22_000usize {
        write(&mut pair, turn % 64 * 256, &[turn as u8; 140]);
        pair.a.qp.ring_send_blueflame();
        assert!(pair.testbed.runner().step(), "the NICs never come to rest");
        let mut done = 0;
        pair.a
            .poller
            .poll(8, |wc| done += usize::from(wc.result().is_ok()))
            .expect("the CQ works");
        assert_eq!(done, 1, "turn {turn}");
    }
    assert_eq!(counted(&pair), (22_000, 22_000, 22_000));
    pair.assert_clean();
}
