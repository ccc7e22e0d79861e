//! Completion events: arming, sleeping and waking, and that no wake-up is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::verbs::{
    Cq, CqConfig, CqPoller, Path, Payload, Qp, QpConfig, RecvWr, SendFlags, SendOp, SendWr, ToInit, ToRtr,
    ToRts, WaitError,
};
use ferroce_nic_model::runner::Drive;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, Pair, connect};

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

fn send(flags: SendFlags) -> SendWr<'static> {
    SendWr {
        wr_id: 1,
        op: SendOp::Send {
            data: Payload::Inline(&[1]),
            imm: None,
        },
        flags,
    }
}

#[test]
fn waiting_ends_at_the_deadline_when_nothing_comes() {
    let mut pair = Pair::new(&QpConfig::default());
    let started = Instant::now();
    let error = pair
        .a
        .poller
        .wait(started + Duration::from_millis(30))
        .unwrap_err();
    assert!(matches!(error, WaitError::Deadline { .. }), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(30));
    // The queue is still armed; what comes later is found by the next wait, whether it polls before or not.
    for poll in [false, true] {
        let wr = write(&pair, 5);
        pair.a.qp.post_send_list(&[wr]).unwrap();
        if poll {
            while pair.a.poller.poll_one().unwrap().is_none() {}
            assert!(
                pair.a
                    .poller
                    .wait(Instant::now() + Duration::from_millis(5))
                    .is_err()
            );
        } else {
            pair.a.poller.wait(Instant::now() + PATIENCE).unwrap();
            assert_eq!(pair.a.success().wr_id, 5);
        }
    }
    pair.assert_clean();
}

#[test]
fn q10_arming_with_a_completion_already_there_fires_at_once() {
    let mut pair = Pair::new(&QpConfig::default());
    for round in 0..50 {
        let deadline = Instant::now() + PATIENCE;
        let wr = write(&pair, round);
        pair.a.qp.post_send_list(&[wr]).unwrap();
        // It is there, and stays there while the queue is armed.
        pair.a.poller.wait(deadline).unwrap();
        let before = pair.a.poller.events();
        pair.a.poller.req_notify(false);
        while pair.a.poller.events() == before {
            pair.a.context.poll_completion_events(0);
            assert!(Instant::now() < deadline, "round {round}: no event");
        }
        assert_eq!(pair.a.success().wr_id, round);
    }
    pair.assert_clean();
}

#[test]
fn q10_sleeping_for_each_completion_loses_no_wake_up() {
    let mut pair = Pair::new(&QpConfig::default());
    let mut gap = 1u64;
    for round in 0..100_000 {
        let wr = write(&pair, round);
        pair.a.qp.post_send_list(&[wr]).unwrap();
        // A gap that differs each time lets the completion come before, while and after the queue is armed.
        gap = gap
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        for _ in 0..gap >> 55 {
            std::hint::spin_loop();
        }
        let started = Instant::now();
        while pair.a.poller.poll_one().unwrap().is_none() {
            pair.a.poller.wait(started + Duration::from_secs(5)).unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(5), "round {round}");
    }
    pair.assert_clean();
}

#[test]
fn a_queue_armed_for_solicited_completions_wakes_for_those_only() {
    let mut pair = Pair::new(&QpConfig::default());
    let recvs = [RecvWr { wr_id: 1, sges: &[] }; 4];
    let one = pair.b.mr.sge(0..8).unwrap();
    let recvs: Vec<_> = recvs
        .iter()
        .map(|wr| RecvWr {
            sges: std::slice::from_ref(&one),
            ..*wr
        })
        .collect();
    pair.b.qp.post_recv_list(&recvs).unwrap();
    pair.b.poller.req_notify(true);
    let before = pair.b.poller.events();
    pair.a.qp.post_send_list(&[send(SendFlags::SIGNALED)]).unwrap();
    assert_eq!(pair.a.success().wr_id, 1);
    pair.b.context.poll_completion_events(0);
    assert_eq!(pair.b.poller.events(), before, "not solicited");
    pair.a
        .qp
        .post_send_list(&[send(SendFlags::SIGNALED | SendFlags::SOLICITED)])
        .unwrap();
    assert_eq!(pair.a.success().wr_id, 1);
    let deadline = Instant::now() + PATIENCE;
    while pair.b.poller.events() == before {
        pair.b.context.poll_completion_events(0);
        assert!(Instant::now() < deadline);
    }
    assert_eq!(
        pair.b.completions(2).into_iter().filter(|wc| wc.is_ok()).count(),
        2
    );
    pair.assert_clean();
}

#[test]
fn q12_many_queue_pairs_on_one_sleeping_queue() {
    const QPS: usize = 16;
    const MESSAGES: usize = 62_500;
    let pair = Pair::new(&QpConfig::default());
    let config = QpConfig {
        max_send_wr: 32,
        max_recv_wr: 32,
        ..QpConfig::default()
    };
    let queue = |context| Cq::create(context, CqConfig::new(64 * QPS as u32)).unwrap();
    let (a_cq, mut a_poller) = queue(&pair.a.context);
    let (b_cq, mut b_poller) = queue(&pair.b.context);
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for _ in 0..QPS {
        let mut a = Qp::create(&pair.a.pd, &a_cq, &a_cq, &config).unwrap();
        let mut b = Qp::create(&pair.b.pd, &b_cq, &b_cq, &config).unwrap();
        connect((&mut a, &pair.a.context), (&mut b, &pair.b.context), |_, _| ());
        senders.push((a, 0usize));
        receivers.push(b);
    }
    let sge = pair.b.mr.sge(0..8).unwrap();
    let recv = RecvWr {
        wr_id: 0,
        sges: std::slice::from_ref(&sge),
    };
    for qp in &mut receivers {
        qp.post_recv_list(&[recv; 32]).unwrap();
    }
    let (mut sent, mut received) = (0, 0);
    let by_qpn = |qps: &[Qp]| qps.iter().map(Qp::qpn).collect::<Vec<_>>();
    let receiver_qpns = by_qpn(&receivers);
    // A million messages, on a machine that may be busy.
    let deadline = Instant::now() + 10 * PATIENCE;
    let wait = |poller: &mut CqPoller| poller.wait(deadline).unwrap();
    while received < QPS * MESSAGES || sent < QPS * MESSAGES {
        let mut posted_now = 0;
        for (qp, posted) in &mut senders {
            while *posted < MESSAGES && qp.post_send(&send(SendFlags::SIGNALED)).is_ok() {
                *posted += 1;
                posted_now += 1;
            }
            qp.ring_send();
        }
        // Batches of 8, with sleep where there was nothing at all.
        let got = b_poller.poll(8, |wc| {
            let at = receiver_qpns.iter().position(|qpn| *qpn == wc.qpn()).unwrap();
            assert!(wc.is_ok());
            receivers[at].post_recv_list(&[recv]).unwrap();
        });
        let done = a_poller.poll(8, |wc| assert!(wc.is_ok())).unwrap();
        let got = got.unwrap();
        (received, sent) = (received + got, sent + done);
        if posted_now + got + done == 0 && sent < QPS * MESSAGES {
            // What was posted and has not completed here has to, whether or not the other side has it already.
            wait(if received < senders.iter().map(|(_, posted)| posted).sum() {
                &mut b_poller
            } else {
                &mut a_poller
            });
        } else if posted_now + got + done == 0 {
            wait(&mut b_poller);
        }
    }
    pair.assert_clean();
}

#[test]
fn a_queue_pair_tells_of_its_own_asynchronous_events() {
    use ferroce_firmware_iface::event::EventType;

    let mut pair = Pair::unconnected(Default::default(), &QpConfig::default());
    // B stays in RTR, so that A's first message is what establishes communication there.
    let index = |pair: &Pair, side: usize| {
        let context = if side == 0 {
            &pair.a.context
        } else {
            &pair.b.context
        };
        ferroce_suites::pair::gid_index(context, side)
    };
    let path = |pair: &Pair, side: usize| {
        Path::to_ip(
            index(pair, side),
            ferroce_suites::pair::address(1 - side),
            ferroce_suites::pair::mac(1 - side),
        )
    };
    let (to_b, to_a) = (path(&pair, 0), path(&pair, 1));
    let (a_qpn, b_qpn) = (pair.a.qp.qpn(), pair.b.qp.qpn());
    pair.a.qp.modify_to_init(&ToInit::default()).unwrap();
    pair.b.qp.modify_to_init(&ToInit::default()).unwrap();
    pair.b.qp.modify_to_rtr(&ToRtr::new(to_a, a_qpn, 5)).unwrap();
    pair.a.qp.modify_to_rtr(&ToRtr::new(to_b, b_qpn, 5)).unwrap();
    pair.a.qp.modify_to_rts(&ToRts::new(5)).unwrap();
    let wr = write(&pair, 1);
    pair.a.qp.post_send_list(&[wr]).unwrap();
    assert_eq!(pair.a.success().wr_id, 1);
    let deadline = Instant::now() + PATIENCE;
    let event = loop {
        pair.b.context.process_events();
        match pair.b.qp.next_event() {
            Some(event) => break event,
            None => assert!(Instant::now() < deadline, "no event"),
        }
    };
    assert_eq!(event, EventType::COMM_ESTABLISHED);
    assert_eq!((pair.a.qp.next_event(), pair.b.qp.next_event()), (None, None));
}

#[test]
fn commands_without_end_do_not_overrun_their_event_queue() {
    // Commands are answered at once, while the thread that gives them still spins.
    let testbed = Testbed::new(TestbedConfig {
        drive: Drive::Caller,
        ..TestbedConfig::default()
    })
    .unwrap();
    let function = InProcess::new("nic0", testbed.device(0).unwrap()).unwrap();
    // Nobody sleeps on the vector, so that only those who give commands can read their events.
    let config = OpenConfig::new().service_thread(false);
    let context = Context::open(Arc::new(function), config).unwrap();
    for _ in 0..1000 {
        context.port_attributes().unwrap();
    }
    let stats = testbed.stats(0).unwrap();
    assert_eq!(stats.data_path_violations, 0, "{stats:?}");
}
