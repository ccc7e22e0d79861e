//! Two drivers on two models under virtual time: a bad wire, late receivers, pauses. The time moves only when nothing
//! else can happen, so that a run depends on its seed alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::verbs::{Mtu, Payload, QpConfig, RecvWr, SendFlags, SendOp, SendWr, ToRtr, ToRts, Wc, WcStatus};
use ferroce_nic_model::clock::{Clock, ManualClock, Nanos};
use ferroce_nic_model::link::fault::Faults;
use ferroce_nic_model::rc::types::QpCounters;
use ferroce_nic_model::runner::Drive;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{Pair, Side, address};
use ferroce_suites::traffic;

/// Real time after which a test that makes no progress is ended.
const HANG: Duration = Duration::from_secs(120);

struct Virtual {
    pair: Pair,
    clock: ManualClock,
}

/// A NIC without a thread of its own on the driver's side either.
fn open(testbed: &Testbed, index: usize) -> Arc<Context> {
    let device = testbed.device(index).expect("a NIC");
    let function = InProcess::new(&format!("nic{index}"), device).expect("a function");
    let config = OpenConfig::new().address(address(index)).interrupts(false);
    Context::open(Arc::new(function), config).expect("the NIC comes up")
}

impl Virtual {
    fn new(faults: Faults, adjust: impl Fn(&mut ToRtr, &mut ToRts)) -> Virtual {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1));
        let testbed = Testbed::new(TestbedConfig {
            drive: Drive::Caller,
            clock: Arc::new(clock.clone()),
            faults,
            ..TestbedConfig::default()
        })
        .expect("a testbed");
        let config = QpConfig {
            max_send_wr: 128,
            ..traffic::config()
        };
        let mut pair = Pair {
            a: Side::on(open(&testbed, 0), &config),
            b: Side::on(open(&testbed, 1), &config),
            testbed,
        };
        pair.connect(adjust);
        Virtual { pair, clock }
    }

    /// Lets the time pass to the next thing that is due; false if nothing is, or only after `until`.
    fn pass(&self, until: Nanos) -> bool {
        let runner = self.pair.testbed.runner();
        match runner.next_timeout() {
            Some(at) if at <= until => {
                self.clock.advance_to(at);
                assert!(runner.step(), "the NICs never come to rest");
                true
            }
            _ => false,
        }
    }

    /// Lets this much time pass.
    fn pass_for(&self, time: Duration) {
        let until = self.clock.now() + time;
        while self.pass(until) {}
        self.clock.advance_to(until);
        self.pair.testbed.runner().step();
    }

    /// The next completion of `a`, and how long it took; `None` if it takes longer than `limit`.
    fn completion(&mut self, limit: Duration) -> Option<(Wc, Duration)> {
        let started = self.clock.now();
        loop {
            if let Some(wc) = self.pair.a.poller.poll_one().expect("the CQ works") {
                return Some((wc, self.clock.now().since(started)));
            }
            if !self.pass(started + limit) {
                return None;
            }
        }
    }

    fn post(&mut self, wr_id: u64, op: SendOp<'_>) {
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id, op, flags };
        self.pair.a.qp.post_send_list(&[wr]).expect("there is room");
    }

    fn post_recv(&mut self) {
        let wr = RecvWr { wr_id: 0, sges: &[] };
        self.pair.b.qp.post_recv_list(&[wr]).expect("there is room");
    }

    fn counted(&self, index: usize) -> QpCounters {
        self.pair.testbed.stats(index).expect("a NIC").transport
    }
}

const EMPTY: SendOp<'static> = SendOp::Send {
    data: Payload::Inline(&[]),
    imm: None,
};

fn random_operations(
    seed: u64,
    faults: Faults,
    mtu: Mtu,
    depth: u8,
    count: usize,
) -> (traffic::Done, String) {
    println!("seed {seed:#x} {faults:?} {mtu:?} depth {depth}");
    let mut rig = Virtual::new(faults, |rtr, rts| {
        (rtr.mtu, rtr.max_dest_rd_atomic, rts.max_rd_atomic) = (mtu, depth, depth);
        // 1 ms, and as many tries as such a wire needs.
        (rts.timeout, rts.retry_count) = (8, 7);
    });
    let hang = Instant::now() + HANG;
    let (clock, Pair { a, b, testbed }) = (&rig.clock, &mut rig.pair);
    let contexts = [a.context.clone(), b.context.clone()];
    let done = traffic::run([a, b], seed, count, |moved| {
        assert!(Instant::now() < hang, "seed {seed:#x} hangs");
        if !moved && let Some(at) = testbed.runner().next_timeout() {
            clock.advance_to(at);
            assert!(testbed.runner().step(), "the NICs never come to rest");
        }
        contexts.iter().for_each(|context| context.process_events());
    });
    rig.pair.assert_clean();
    let stats = [0, 1].map(|i| rig.pair.testbed.stats(i).expect("a NIC"));
    let said = format!(
        "{:?} at {:?}",
        stats.map(|s| (s.transport, s.port, s.faults)),
        rig.clock.now()
    );
    (done, said)
}

/// Fractions of everything that a wire can do, some of them high.
fn wires() -> Vec<(&'static str, Faults)> {
    let good = Faults::default();
    vec![
        ("good", good),
        ("1 % loss", Faults { loss: 0.01, ..good }),
        ("10 % loss", Faults { loss: 0.1, ..good }),
        (
            "duplicates",
            Faults {
                duplicate: 0.3,
                ..good
            },
        ),
        ("reordering", Faults { reorder: 0.2, ..good }),
        (
            "corruption",
            Faults {
                corrupt: 0.05,
                ..good
            },
        ),
        ("delays", Faults { delay: 0.3, ..good }),
        (
            "all",
            Faults {
                loss: 0.03,
                duplicate: 0.05,
                reorder: 0.05,
                corrupt: 0.03,
                delay: 0.05,
                ..good
            },
        ),
    ]
}

#[test]
fn t08_t05_random_operations_of_two_drivers_on_a_bad_wire() {
    for (n, (name, faults)) in wires().into_iter().enumerate() {
        for round in 0..8 {
            let seed = 0xfe00 + 16 * n as u64 + round;
            let faults = Faults { seed, ..faults };
            let mtu = Mtu::ALL[seed as usize % Mtu::ALL.len()];
            let depth = [16, 1, 4][round as usize % 3];
            let (done, said) = random_operations(seed, faults, mtu, depth, 150);
            assert_eq!(done.requests, 300, "{name}");
            println!("  {name}: {done:?}; {said}");
        }
    }
}

#[test]
fn a_run_depends_on_its_seed_alone() {
    let faults = |seed| Faults { seed, ..wires()[7].1 };
    let once = random_operations(7, faults(7), Mtu::Mtu1024, 16, 80);
    assert_eq!(once, random_operations(7, faults(7), Mtu::Mtu1024, 16, 80));
    assert_ne!(once, random_operations(8, faults(8), Mtu::Mtu1024, 16, 80));
}

#[test]
fn t01_a_receive_that_is_a_millisecond_late_costs_about_that() {
    // The driver's default code 12 is 0.64 ms; code 0 is the longest, 655.36 ms.
    for (code, most) in [(None, 3_000), (Some(1), 1_200), (Some(0), 700_000)] {
        let mut rig = Virtual::new(Faults::default(), |rtr, _| {
            rtr.min_rnr_timer = code.unwrap_or(rtr.min_rnr_timer);
        });
        rig.post(1, EMPTY);
        rig.pass_for(Duration::from_millis(1));
        rig.post_recv();
        let (wc, took) = rig.completion(Duration::from_secs(5)).expect("a completion");
        assert!(wc.is_ok());
        assert!(took < Duration::from_micros(most), "code {code:?}: {took:?}");
        assert!(code != Some(0) || took > Duration::from_millis(600), "{took:?}");
        rig.pair.assert_clean();
    }
}

#[test]
fn t02_rnr_retries_are_counted_and_seven_is_for_ever() {
    for (rnr_retry, tries) in [(0, 1), (3, 4)] {
        let mut rig = Virtual::new(Faults::default(), |_, rts| rts.rnr_retry = rnr_retry);
        rig.post(1, EMPTY);
        rig.post(2, EMPTY);
        let (wc, _) = rig.completion(Duration::from_secs(5)).expect("an error");
        let error = wc.result().expect_err("no receive was posted");
        assert_eq!((error.wr_id, error.status), (1, WcStatus::RnrRetryExceeded));
        assert_eq!(rig.counted(1).rnr_naks_sent, tries);
        let (wc, _) = rig.completion(Duration::ZERO).expect("the other one");
        assert!(wc.result().expect_err("flushed").is_flush());
    }
    let mut rig = Virtual::new(Faults::default(), |_, _| ());
    rig.post(1, EMPTY);
    rig.pass_for(Duration::from_millis(50));
    assert!(rig.pair.a.poller.poll_one().expect("the CQ works").is_none());
    assert!(rig.counted(0).rnr_naks_received > 20);
    rig.post_recv();
    let (wc, _) = rig.completion(Duration::from_millis(2)).expect("a completion");
    assert!(wc.is_ok());
}

#[test]
fn t11_a_short_pause_is_survived_and_a_long_one_is_told_after_the_computed_time() {
    // 4.096 us * 2^14 is 67 ms, seven times again: 537 ms.
    for (pause, survives) in [
        (Duration::from_millis(200), true),
        (Duration::from_secs(10), false),
    ] {
        let mut rig = Virtual::new(Faults::default(), |_, _| ());
        let sge = [rig.pair.a.mr.sge(0..1 << 20).expect("within")];
        let remote = rig.pair.b.mr.remote(0);
        let op = SendOp::Write {
            data: Payload::Gather(&sge),
            remote,
            imm: None,
        };
        rig.pair
            .testbed
            .set_faults(Faults {
                loss: 1.0,
                ..Faults::default()
            })
            .expect("a fraction");
        let queued = u64::from(rig.pair.a.qp.config().max_send_wr.min(32));
        let started = rig.clock.now();
        for wr_id in 0..queued {
            rig.post(wr_id, op);
        }
        rig.pass_for(pause);
        rig.pair.testbed.set_faults(Faults::default()).expect("fractions");
        for wr_id in 0..queued {
            let (wc, _) = rig.completion(Duration::from_secs(60)).expect("a completion");
            assert_eq!(wc.wr_id(), wr_id);
            match wc.result() {
                Ok(_) => assert!(survives),
                Err(error) if wr_id == 0 => assert_eq!(error.status, WcStatus::TransportRetryExceeded),
                Err(error) => assert!(!survives && error.is_flush()),
            }
        }
        assert_eq!(rig.counted(0).timeouts > 7, !survives);
        println!("{pause:?}: done after {:?}", rig.clock.now().since(started));
    }
    // The time itself: every timeout is between one and four times what the code says (IBTA vol. 1, 9.7.6.1.3).
    let mut rig = Virtual::new(
        Faults {
            loss: 1.0,
            ..Faults::default()
        },
        |_, _| (),
    );
    rig.post(1, EMPTY);
    let (wc, took) = rig.completion(Duration::from_secs(60)).expect("an error");
    assert!(wc.result().is_err());
    let least = Duration::from_nanos(8 * (4096 << 14));
    assert!((least..=4 * least).contains(&took), "{took:?}");
}

#[test]
fn t05_the_wqe_counter_passes_65536_and_the_psn_its_end() {
    const BATCH: u64 = 64;
    let mut rig = Virtual::new(Faults::default(), |rtr, rts| {
        // Both directions have the same number, so that either end's PSN wraps.
        (rtr.rq_psn, rts.sq_psn) = (0xff_f000, 0xff_f000);
    });
    let remote = rig.pair.b.mr.remote(0);
    let rounds = 70_000 / BATCH;
    for round in 0..rounds {
        for i in 0..BATCH {
            let wr_id = round * BATCH + i;
            let data = wr_id.to_ne_bytes();
            let op = SendOp::Write {
                data: Payload::Inline(&data),
                remote,
                imm: None,
            };
            let flags = SendFlags::SIGNALED;
            rig.pair
                .a
                .qp
                .post_send(&SendWr { wr_id, op, flags })
                .expect("there is room");
        }
        rig.pair.a.qp.ring_send();
        for i in 0..BATCH {
            let (wc, _) = rig.completion(Duration::ZERO).expect("a completion");
            assert_eq!(wc.result().expect("success").wr_id, round * BATCH + i);
        }
    }
    let last = rig.pair.b.mr.read_u64(0).expect("within");
    assert_eq!(last, rounds * BATCH - 1);
    rig.pair.assert_clean();
}
