//! Completion queues that are moved to rings of another size (case Q08).

use std::time::Instant;

use ferroce::verbs::{
    Cq, CqConfig, CqPoller, CreateError, Payload, Qp, QpConfig, QpType, RecvWr, SendFlags, SendOp, SendWr,
};
use ferroce_firmware_iface::layouts::CmdHcaCap;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::CommandStatus;
use ferroce_nic_model::fw::Fault;
use ferroce_nic_model::profile::CapType;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, Pair, open};

const CONFIG: QpConfig = QpConfig {
    qp_type: QpType::Rc,
    max_send_wr: 8,
    max_recv_wr: 8,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 0,
    timestamps: ferroce::clock::TimestampFormat::FreeRunning,
    blueflame: false,
};

fn write(pair: &Pair, wr_id: u64) -> SendWr<'static> {
    let op = SendOp::Write {
        data: Payload::Inline(&[1]),
        remote: pair.b.mr.remote(0),
        imm: None,
    };
    SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
    }
}

/// Writes whose completions wait in A's queue.
fn complete(pair: &mut Pair, ids: std::ops::Range<u64>) {
    let count = ids.end - ids.start;
    for wr_id in ids {
        let wr = write(pair, wr_id);
        pair.a.qp.post_send_list(&[wr]).unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while pair.a.poller.waiting() < count as u32 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[track_caller]
fn polled(poller: &mut CqPoller, ids: std::ops::Range<u64>) {
    let mut shown = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while shown.len() < (ids.end - ids.start) as usize {
        poller
            .poll(3, |wc| shown.push(wc.result().unwrap().wr_id))
            .unwrap();
        assert!(Instant::now() < deadline, "{shown:?}");
    }
    assert_eq!(shown, ids.collect::<Vec<_>>());
}

#[test]
fn q08_unread_completions_stay_in_order_over_resizes() {
    let mut pair = Pair::new(&CONFIG);
    assert_eq!(pair.a.cq.entries(), 47);
    let mut next = 0;
    for entries in [63, 16, 1000, 16, 16, 31, 17, 4000, 16] {
        for unread in [0, 1, 7, 8] {
            complete(&mut pair, next..next + unread);
            pair.a.poller.resize(entries).unwrap();
            assert!(pair.a.cq.entries() >= entries);
            polled(&mut pair.a.poller, next..next + unread);
            complete(&mut pair, next + unread..next + unread + 5);
            polled(&mut pair.a.poller, next + unread..next + unread + 5);
            next += unread + 5;
        }
    }
    assert_eq!(pair.a.poller.bad_completions(), 0);
    pair.assert_clean();
}

#[test]
fn q08_a_size_that_does_not_do_changes_nothing() {
    let mut pair = Pair::new(&CONFIG);
    complete(&mut pair, 0..8);
    // 16 requests may be outstanding: 15 entries are too few.
    let error = pair.a.poller.resize(15).unwrap_err();
    assert!(
        matches!(
            error,
            CreateError::CqTooSmall {
                capacity: 15,
                reserved: 16,
                ..
            }
        ),
        "{error}"
    );
    let max = (1u32 << pair.a.context.caps().general().log_max_cq_sz()) - 17;
    assert!(matches!(
        pair.a.poller.resize(max + 1).unwrap_err(),
        CreateError::Limit(_)
    ));
    assert!(matches!(
        pair.a.poller.resize(0).unwrap_err(),
        CreateError::Limit(_)
    ));
    let refusal = Fault::Status(CommandStatus::EXCEED_LIM, 1);
    pair.testbed.with_nic(0, |nic| {
        nic.firmware()
            .faults_mut()
            .inject(Some(Opcode::MODIFY_CQ), 0, refusal)
    });
    assert!(matches!(
        pair.a.poller.resize(100).unwrap_err(),
        CreateError::Command(_)
    ));
    assert_eq!(pair.a.cq.entries(), 47);
    polled(&mut pair.a.poller, 0..8);
    // A second resize waits for the first to be followed.
    pair.a.poller.resize(100).unwrap();
    assert!(matches!(
        pair.a.poller.resize(200).unwrap_err(),
        CreateError::Limit(_)
    ));
    assert!(pair.a.poller.poll_one().unwrap().is_none());
    pair.a.poller.resize(200).unwrap();
    complete(&mut pair, 8..10);
    polled(&mut pair.a.poller, 8..10);
    // The refusal that was ordered counts as one of firmware's.
    assert_eq!(pair.testbed.stats(0).unwrap().data_path_violations, 0);
}

#[test]
fn q08_unread_completions_must_fit_an_overcommitted_queue_too() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let pd = ferroce::verbs::Pd::alloc(&context).unwrap();
    let (cq, mut poller) = Cq::create(
        &context,
        CqConfig {
            overcommit: true,
            ..CqConfig::new(16)
        },
    )
    .unwrap();
    let mut qp = Qp::create(
        &pd,
        &cq,
        &cq,
        &QpConfig {
            max_recv_wr: 64,
            ..CONFIG
        },
    )
    .unwrap();
    qp.modify_to_init(&Default::default()).unwrap();
    let recvs: Vec<_> = (0..18).map(|wr_id| RecvWr { wr_id, sges: &[] }).collect();
    qp.post_recv_list(&recvs).unwrap();
    qp.modify_to_err().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while poller.waiting() < 18 {
        assert!(Instant::now() < deadline);
    }
    assert!(matches!(poller.resize(7).unwrap_err(), CreateError::Limit(_)));
    poller.resize(64).unwrap();
    let mut shown = Vec::new();
    while shown.len() < 18 {
        poller.poll(4, |wc| shown.push(wc.wr_id())).unwrap();
    }
    assert_eq!(shown, (0..18).collect::<Vec<_>>());
    poller.resize(12).unwrap();
    assert_eq!(cq.entries(), 15);
}

#[test]
fn q08_resizes_while_traffic_runs() {
    let mut pair = Pair::new(&CONFIG);
    let (mut posted, mut shown) = (0u64, 0u64);
    let mut sizes = [16, 500, 31, 2000, 64].into_iter().cycle();
    let deadline = Instant::now() + PATIENCE;
    while shown < 20_000 {
        loop {
            let wr = write(&pair, posted);
            if pair.a.qp.post_send(&wr).is_err() {
                break;
            }
            posted += 1;
        }
        pair.a.qp.ring_send();
        pair.a
            .poller
            .poll(5, |wc| {
                assert_eq!(wc.result().unwrap().wr_id, shown);
                shown += 1;
            })
            .unwrap();
        if shown % 64 < 5 {
            // One may still be under way.
            let _ = pair.a.poller.resize(sizes.next().unwrap());
        }
        assert!(Instant::now() < deadline, "{shown} of {posted}");
    }
    assert_eq!(pair.a.poller.bad_completions(), 0);
    pair.assert_clean();
}

#[test]
fn a_device_that_can_not_resize_is_not_asked_to() {
    let mut config = TestbedConfig::default();
    let edit = |general: &mut CmdHcaCap| general.set_cq_resize(false);
    config.profiles[0].capabilities.edit(CapType::GENERAL, edit);
    let mut pair = Pair::with(config, &CONFIG, |_, _| ());
    let error = pair.a.poller.resize(100).unwrap_err();
    assert!(matches!(error, CreateError::Capability { .. }), "{error}");
}
