//! Driver and models in processes of their own, over vfio-user: random operations, and either of them killed.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Model, PATIENCE, open, output, wait};
use ferroce::verbs::{Cq, CqConfig, Payload, Qp, QpConfig, RecvWr, SendFlags, SendOp, SendWr, WaitError};
use ferroce_suites::pair::{Side, connect};
use ferroce_suites::traffic::{self, Random};

/// Tells a process that it is the driver that will be killed: the NICs' sockets, and how many queue pairs it has.
const SOCKETS: &str = "FERROCE_TEST_SOCKETS";
const QPS: &str = "FERROCE_TEST_QPS";
/// What it says, before the numbers of its first queue pairs, when all of them work.
const BUSY: &str = "busy: ";
/// How a model's log tells that a driver, or what one has left behind, did what it must not.
const BROKEN: &str = "host broke a rule";
/// After so many rounds a model has the memory that it needs, ...
const WARM: u32 = 10;
/// ... in KiB, but for what chance and the allocator make of it: far less than a driver's objects in each round.
const GROWTH: u64 = 1024;

fn sides(model: &Model, config: &QpConfig) -> [Side; 2] {
    let [mut a, mut b] = [0, 1].map(|index| Side::on(model.open(index), config));
    connect((&mut a.qp, &a.context), (&mut b.qp, &b.context), |_, rts| {
        // 8 ms, so that a lost packet costs little time.
        rts.timeout = 11;
    });
    [a, b]
}

fn exchange(sides: &mut [Side; 2], seed: u64, count: usize) -> traffic::Done {
    let deadline = Instant::now() + PATIENCE;
    let [a, b] = sides;
    traffic::run([a, b], seed, count, |moved| {
        assert!(Instant::now() < deadline, "seed {seed:#x} hangs");
        if !moved {
            std::thread::yield_now();
        }
    })
}

#[test]
fn t08_random_operations_over_vfio_user_between_processes() {
    for (n, wire) in [
        &[][..],
        &["--loss", "0.02"],
        &[
            "--loss",
            "0.01",
            "--duplicate",
            "0.02",
            "--reorder",
            "0.02",
            "--corrupt",
            "0.01",
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let seed = 0xc0de + n as u64;
        println!("seed {seed:#x} {wire:?}");
        let text = seed.to_string();
        let args: Vec<&str> = wire.iter().copied().chain(["--seed", &text]).collect();
        let model = Model::start(&args);
        let mut sides = sides(&model, &traffic::config());
        let done = exchange(&mut sides, seed, 400);
        assert_eq!(done.requests, 800);
        close(sides);
    }
}

fn close(sides: [Side; 2]) {
    for side in sides {
        let (destroyed, closed) = side.close();
        destroyed.unwrap();
        let report = closed.expect("an orderly end");
        assert_eq!((report.pages_lost, report.objects_failed), (0, 0), "{report:?}");
    }
}

#[test]
fn a_killed_model_is_told_and_nothing_hangs() {
    let mut model = Model::start(&[]);
    let mut pair = sides(&model, &traffic::config());
    exchange(&mut pair, 1, 50);
    let [a, b] = &mut pair;
    let wr = RecvWr { wr_id: 1, sges: &[] };
    a.qp.post_recv_list(&[wr]).unwrap();
    model.child.kill().unwrap();
    model.child.wait().unwrap();

    let started = Instant::now();
    // Waiting ends with the reason.
    let error = a.poller.wait(started + PATIENCE).unwrap_err();
    assert!(!matches!(error, WaitError::Deadline { .. }), "{error}");
    let gone = |what: &str, text: String| {
        assert!(
            text.contains("gone") || text.contains("hung up"),
            "{what}: {text}"
        );
    };
    gone("wait", chain(&error));
    let small = QpConfig {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QpConfig::default()
    };
    // Whatever is asked of firmware fails at once; the fast path goes nowhere, without harm.
    gone(
        "create",
        chain(&Qp::create(&a.pd, &a.cq, &a.cq, &small).unwrap_err()),
    );
    gone(
        "create",
        chain(&Cq::create(&a.context, CqConfig::new(10)).unwrap_err()),
    );
    gone("modify", chain(&a.qp.modify_to_err().unwrap_err()));
    gone("query", chain(&a.qp.query().unwrap_err()));
    gone("port", chain(&a.context.port_attributes().unwrap_err()));
    let op = SendOp::Send {
        data: Payload::Inline(b"into the void"),
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    b.qp.post_send_list(&[SendWr { wr_id: 1, op, flags }]).unwrap();
    let error = b.poller.wait(Instant::now() + PATIENCE).unwrap_err();
    gone("wait", chain(&error));
    assert!(a.context.failure().is_some() || a.context.function().gone().is_some());
    a.mr.write(0, b"memory is still ours").unwrap();
    for side in pair {
        let (destroyed, closed) = side.close();
        gone("destroy", chain(&destroyed.unwrap_err()));
        // Everything goes, by whatever way.
        if let Err(error) = closed {
            gone("close", chain(&error));
        }
    }
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    // The next one starts at the same paths.
    drop(model);
    let model = Model::start(&[]);
    exchange(&mut sides(&model, &traffic::config()), 2, 20);
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// In a process of its own, started by the tests below: keeps many queue pairs busy until it is killed.
#[test]
fn helper_that_is_killed() {
    let (Ok(sockets), Ok(count)) = (std::env::var(SOCKETS), std::env::var(QPS)) else {
        return;
    };
    let sockets: Vec<_> = sockets.split(',').map(std::path::PathBuf::from).collect();
    let count: u32 = count.parse().unwrap();
    let [a, b] = [0, 1].map(|index| Side::on(open(&sockets[index], index), &QpConfig::default()));
    let config = QpConfig {
        max_send_wr: 16,
        max_recv_wr: 1,
        ..QpConfig::default()
    };
    let queue = |side: &Side| Cq::create(&side.context, CqConfig::new(count * 17)).unwrap();
    let ((a_cq, mut poller), (b_cq, _b_poller)) = (queue(&a), queue(&b));
    let mut pairs = Vec::new();
    for _ in 0..count {
        let mut from = Qp::create(&a.pd, &a_cq, &a_cq, &config).unwrap();
        let mut to = Qp::create(&b.pd, &b_cq, &b_cq, &config).unwrap();
        connect((&mut from, &a.context), (&mut to, &b.context), |_, _| ());
        pairs.push((from, to));
    }
    let sge = [a.mr.sge(0..64 << 10).unwrap()];
    let op = SendOp::Write {
        data: Payload::Gather(&sge),
        remote: b.mr.remote(0),
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    println!("{BUSY}{} {}", a.qp.qpn().get(), b.qp.qpn().get());
    loop {
        for (qp, _) in &mut pairs {
            while qp.post_send(&SendWr { wr_id: 0, op, flags }).is_ok() {}
            qp.ring_send();
        }
        poller.poll(1000, |wc| assert!(wc.is_ok())).unwrap();
    }
}

/// Starts a driver in a process of its own, and kills it somewhere in the middle of its work; when, and the numbers of its first
/// queue pairs.
fn killed_driver(model: &Model, qps: u32, random: &mut Random) -> (Instant, String) {
    let sockets = model.sockets.each_ref().map(|path| path.display().to_string());
    let mut driver = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_is_killed", "--nocapture"])
        .env(SOCKETS, sockets.join(","))
        .env(QPS, qps.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(driver.stdout.as_mut().unwrap());
    let busy = out
        .lines()
        .find_map(|line| Some(line.unwrap().split_once(BUSY)?.1.to_owned()));
    let first = busy.expect("it works");
    for _ in 0..random.below(200_000) {
        std::hint::spin_loop();
    }
    driver.kill().unwrap();
    wait(&mut driver).expect("it ends");
    let killed = Instant::now();
    output(&mut driver);
    (killed, first)
}

#[test]
fn v01_v08_a_killed_driver_leaves_a_nic_that_the_next_one_can_use() {
    let log = killed_and_opened_again(&["-v"], 8);
    // Not one access to memory that was the killed driver's, nor anything else that a driver must not have a NIC do.
    assert!(!log.contains(BROKEN), "{log}");
}

/// Nothing resets the function then: the next driver ends by commands what the killed one left.
#[test]
fn v01_a_killed_driver_leaves_a_nic_without_reset_that_the_next_one_can_use() {
    for (profile, rounds) in [
        ("connectx5", 4),
        // Its firmware does not know the forced teardown.
        ("connectx4", 2),
    ] {
        let log = killed_and_opened_again(&["-v", "--no-reset", "--profile", profile], rounds);
        // What is left has work, and is refused each access to memory that it would need for it.
        let broken = log.lines().filter(|line| line.contains(BROKEN));
        let refused = ["(HostMemory)", "(BusMasterOff)"];
        for line in broken {
            assert!(refused.iter().any(|kind| line.contains(kind)), "{line}");
        }
    }
}

/// What the model has logged in the end.
fn killed_and_opened_again(args: &[&str], rounds: u64) -> String {
    let mut model = Model::start(args);
    let mut random = Random::new(5);
    let mut took = Vec::new();
    for round in 0..rounds {
        let (killed, _) = killed_driver(&model, 100, &mut random);
        // At once; the server may not have noticed yet that its client is gone.
        let deadline = Instant::now() + PATIENCE;
        let function = |index: usize| loop {
            let address = ferroce::function::FunctionAddress::VfioUser(model.sockets[index].clone());
            match ferroce::function::open(&address) {
                Ok(function) => break function,
                Err(error) if Instant::now() < deadline => {
                    assert!(chain(&error).contains("in use"), "{error}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        };
        drop([function(0), function(1)]);
        took.push(killed.elapsed());
        let mut pair = sides(&model, &traffic::config());
        exchange(&mut pair, 0xdead + round, 60);
        close(pair);
        assert_eq!(model.child.try_wait().unwrap(), None, "the model lives");
    }
    took.sort();
    // One may be late on a busy machine, but not most of them.
    let median = took[took.len() / 2];
    assert!(median < Duration::from_secs(1), "in the same second: {took:?}");
    model.log()
}

#[test]
fn v08_fifty_killed_drivers_leave_a_model_as_it_was() {
    let model = Model::start(&["-v", "--profile", "minimal"]);
    let mut random = Random::new(8);
    // Each server keeps the socket of the client that was there last until there is another one.
    let idle = model.descriptors() + model.sockets.len();
    let mut at_first = None;
    let mut warm = 0;
    for round in 1..=50 {
        let (_, numbers) = killed_driver(&model, 10, &mut random);
        // The first objects have the numbers that they had the first time: the NICs begin afresh.
        assert_eq!(numbers, *at_first.get_or_insert(numbers.clone()), "round {round}");
        // What the model had of a driver goes when it has noticed its end.
        let deadline = Instant::now() + PATIENCE;
        while model.descriptors() != idle {
            let open = model.descriptors();
            assert!(Instant::now() < deadline, "{open} descriptors, not {idle}");
            std::thread::sleep(Duration::from_millis(1));
        }
        if round == WARM {
            warm = model.resident();
        }
    }
    let resident = model.resident();
    assert!(resident <= warm + GROWTH, "{warm} KiB, then {resident} KiB");
    let log = model.log();
    assert!(!log.contains(BROKEN), "{log}");
}
