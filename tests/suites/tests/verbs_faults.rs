//! Firmware that refuses, or does not answer, what verbs ask of it (case V13).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::error::CommandError;
use ferroce::function::InProcess;
use ferroce::verbs::{
    Access, CounterSet, Cq, CqConfig, CreateError, DestroyError, LocalBuffer, ModifyError, Mr, Pd, Qp,
    QpConfig, QpState, ToInit, ToRts,
};
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::CommandStatus;
use ferroce_nic_model::fw::Fault;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, Pair, Side, address, open};

const SYNDROME: u32 = 0x00c0_ffee;

fn inject(testbed: &Testbed, opcode: Opcode, fault: Fault) {
    let done = testbed.with_nic(0, |nic| {
        nic.firmware().faults_mut().inject(Some(opcode), 0, fault)
    });
    done.expect("a NIC");
}

fn refuse(testbed: &Testbed, opcode: Opcode) {
    inject(
        testbed,
        opcode,
        Fault::Status(CommandStatus::EXCEED_LIM, SYNDROME),
    );
}

#[track_caller]
fn check(error: &CommandError, asked: Opcode) {
    check_status(
        error,
        asked,
        CommandStatus::EXCEED_LIM,
        "exceeds a limit of the device (0x8)",
    );
}

/// The error has command, status and syndrome, and says all three.
#[track_caller]
fn check_status(error: &CommandError, asked: Opcode, wanted: CommandStatus, name: &str) {
    match error {
        CommandError::Status {
            opcode,
            status,
            syndrome,
            ..
        } => assert_eq!((*opcode, *status, *syndrome), (asked, wanted, SYNDROME)),
        other => panic!("{other}"),
    }
    let text = error.to_string();
    for part in [asked.name().expect("a known command"), name, "0x00c0ffee"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

#[track_caller]
fn check_create<T: std::fmt::Debug>(result: Result<T, CreateError>, asked: Opcode) {
    match result.unwrap_err() {
        CreateError::Command(error) => check(&error, asked),
        other => panic!("{other}"),
    }
}

#[track_caller]
fn check_modify(result: Result<(), ModifyError>, asked: Opcode) {
    match result.unwrap_err() {
        ModifyError::Command(error) => check(&error, asked),
        other => panic!("{other}"),
    }
}

#[test]
fn v13_a_refusal_names_command_status_and_syndrome_and_leaves_nothing_behind() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let (bytes, mappings) = (context.dma().mapped_bytes(), context.dma().mappings());
    refuse(&testbed, Opcode::ALLOC_PD);
    check_create(Pd::alloc(&context), Opcode::ALLOC_PD);
    refuse(&testbed, Opcode::ALLOC_Q_COUNTER);
    check_create(CounterSet::alloc(&context), Opcode::ALLOC_Q_COUNTER);
    let pd = Pd::alloc(&context).unwrap();
    for _ in 0..3 {
        refuse(&testbed, Opcode::CREATE_MKEY);
        check_create(Mr::alloc(&pd, 8 << 20, Access::all()), Opcode::CREATE_MKEY);
        refuse(&testbed, Opcode::CREATE_MKEY);
        check_create(LocalBuffer::alloc(&pd, 8 << 20), Opcode::CREATE_MKEY);
        refuse(&testbed, Opcode::CREATE_CQ);
        check_create(Cq::create(&context, CqConfig::new(100_000)), Opcode::CREATE_CQ);
    }
    let (cq, _poller) = Cq::create(&context, CqConfig::new(1000)).unwrap();
    for _ in 0..3 {
        refuse(&testbed, Opcode::CREATE_QP);
        check_create(Qp::create(&pd, &cq, &cq, &QpConfig::default()), Opcode::CREATE_QP);
        assert_eq!(cq.reserved(), 0);
    }
    assert_eq!(context.dma().leaked_bytes(), 0);
    assert!(context.dma().mapped_bytes() <= bytes + (4 << 20) && context.dma().mappings() <= mappings + 2);
}

/// Statuses that the PRM has, by name and number, and two that it doesn't, by number.
#[test]
fn v13_every_status_is_told_by_name_and_unknown_ones_by_number() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let unknown = [CommandStatus(0x77), CommandStatus(0xff)];
    for status in CommandStatus::ALL.iter().copied().chain(unknown) {
        if status == CommandStatus::OK {
            continue;
        }
        let fault = Fault::Status(status, SYNDROME);
        inject(&testbed, Opcode::ALLOC_PD, fault);
        let Err(CreateError::Command(error)) = Pd::alloc(&context) else {
            panic!("{status}: not what firmware said");
        };
        let name = status.meaning().unwrap_or("unknown");
        let number = format!("({:#x})", status.0);
        check_status(&error, Opcode::ALLOC_PD, status, name);
        check_status(&error, Opcode::ALLOC_PD, status, &number);
    }
    drop(Pd::alloc(&context).unwrap());
}

#[test]
fn v13_a_refused_transition_leaves_the_state_as_it_was() {
    let mut pair = Pair::unconnected(TestbedConfig::default(), &QpConfig::default());
    refuse(&pair.testbed, Opcode::RST2INIT_QP);
    check_modify(pair.a.qp.modify_to_init(&ToInit::default()), Opcode::RST2INIT_QP);
    assert_eq!(pair.a.qp.state(), QpState::Reset);
    pair.connect(|_, _| ());
    refuse(&pair.testbed, Opcode::QP_2ERR);
    check_modify(pair.a.qp.modify_to_err(), Opcode::QP_2ERR);
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    refuse(&pair.testbed, Opcode::QP_2RST);
    check_modify(pair.a.qp.modify_to_reset().map(drop), Opcode::QP_2RST);
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    refuse(&pair.testbed, Opcode::QUERY_QP);
    check_modify(pair.a.qp.query().map(drop), Opcode::QUERY_QP);
    assert!(pair.a.qp.modify_to_rts(&ToRts::new(0)).is_err());
}

#[test]
fn v13_what_firmware_does_not_destroy_keeps_its_memory() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let Side {
        mut qp,
        poller,
        cq,
        mr,
        pd,
        context,
    } = Side::new(&testbed, 0, &QpConfig::default());
    refuse(&testbed, Opcode::DESTROY_MKEY);
    match mr.dereg().unwrap_err() {
        DestroyError::Command(error) => check(&error, Opcode::DESTROY_MKEY),
        other => panic!("{other}"),
    }
    let leaked = context.dma().leaked_bytes();
    assert!(leaked >= 1 << 20);
    qp.modify_to_init(&ToInit::default()).unwrap();
    qp.post_recv_buffer(1, LocalBuffer::alloc(&pd, 4 << 20).unwrap())
        .unwrap();
    qp.ring_recv();
    refuse(&testbed, Opcode::DESTROY_QP);
    match qp.destroy().unwrap_err() {
        DestroyError::Command(error) => check(&error, Opcode::DESTROY_QP),
        other => panic!("{other}"),
    }
    drop(poller);
    // The CQ is still used by that queue pair, which firmware says; neither is freed.
    drop((cq, pd));
    context.process_events();
    let counters = context.counters().reaper;
    assert!(counters.failed >= 1, "{counters:?}");
    assert!(
        context.dma().mapped_bytes() >= 5 << 20,
        "the buffer in flight is still there"
    );
}

/// The first NIC, with commands that are not waited for for long.
fn impatient(testbed: &Testbed) -> Arc<Context> {
    let function = InProcess::new("nic0", testbed.device(0).unwrap()).unwrap();
    let config = OpenConfig::new()
        .address(address(0))
        .command_timeout(Duration::from_millis(300));
    Context::open(Arc::new(function), config).unwrap()
}

#[test]
fn memory_of_an_object_that_firmware_may_have_made_is_kept() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = impatient(&testbed);
    let pd = Pd::alloc(&context).unwrap();
    inject(&testbed, Opcode::CREATE_MKEY, Fault::NoAnswer);
    let error = Mr::alloc(&pd, 8 << 20, Access::all()).unwrap_err();
    assert!(
        matches!(error, CreateError::Command(CommandError::Timeout { .. })),
        "{error}"
    );
    assert!(context.dma().leaked_bytes() >= 8 << 20);
    // The device goes on.
    Mr::alloc(&pd, 4096, Access::all()).unwrap();
}

/// Waits until `what` holds.
#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_device_that_is_asked_back_is_let_go_when_the_last_object_is_dropped() {
    for order in (0..120).step_by(7) {
        let testbed = Testbed::new(TestbedConfig::default()).unwrap();
        let Side {
            qp,
            poller,
            cq,
            mr,
            pd,
            context,
        } = Side::new(&testbed, 0, &QpConfig::default());
        let another = Mr::alloc(&pd, 4096, Access::LOCAL_WRITE).unwrap();
        let asked_back = || testbed.with_nic(0, |nic| nic.request_release()).expect("a NIC");
        assert!(asked_back());
        assert!(context.wait_event(Instant::now() + PATIENCE).is_some());
        drop(another);
        eventually("nothing waits to be destroyed", || {
            context.counters().reaper.waiting == 0
        });
        let left = Arc::downgrade(&context);
        let mut things: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(qp),
            Box::new((poller, cq)),
            Box::new(mr),
            Box::new(pd),
            Box::new(context),
        ];
        // The order's digits in the factorial system pick who goes next.
        let mut rest = order;
        for choices in (1..=5).rev() {
            things.remove(rest % choices);
            rest /= choices;
        }
        eventually("nobody holds the context", || left.strong_count() == 0);
        eventually("the NIC has no user", || !asked_back());
    }
}

/// Lets `act` run into a command that the first NIC carries out and never answers, while it asks to be let go.
fn given_up<T: std::fmt::Debug>(
    testbed: &Testbed,
    opcode: Opcode,
    act: impl FnOnce() -> Result<T, CreateError>,
) {
    inject(testbed, opcode, Fault::NoAnswer);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + PATIENCE;
            let pending = || testbed.with_nic(0, |nic| nic.firmware().faults_mut().pending());
            while pending() != Some(0) && Instant::now() < deadline {
                std::thread::yield_now();
            }
            assert_eq!(testbed.with_nic(0, |nic| nic.request_release()), Some(true));
        });
        act().unwrap_err()
    });
    match &error {
        CreateError::Command(
            command @ CommandError::Dead {
                opcode: given,
                sent: true,
                ..
            },
        ) => {
            assert_eq!(*given, opcode);
            assert!(
                command.uncertain() && error.to_string().contains("was sent"),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
}

#[test]
fn memory_of_an_object_that_a_device_was_told_of_before_it_went_is_kept() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let pd = Pd::alloc(&context).unwrap();
    given_up(&testbed, Opcode::CREATE_MKEY, || {
        Mr::alloc(&pd, 8 << 20, Access::all())
    });
    let kept = context.dma().leaked_bytes();
    assert!(kept >= 8 << 20, "{kept}");
    // What is not sent any more uses nothing.
    let error = Mr::alloc(&pd, 8 << 20, Access::all()).unwrap_err();
    let not_sent = |error: &CommandError| matches!(error, CommandError::Dead { sent: false, .. });
    assert!(
        matches!(&error, CreateError::Command(error) if not_sent(error) && !error.uncertain()),
        "{error}"
    );
    assert_eq!(context.dma().leaked_bytes(), kept);
}

#[test]
fn the_ring_that_a_device_was_told_of_before_it_went_is_kept() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = open(&testbed, 0);
    let (cq, mut poller) = Cq::create(&context, CqConfig::new(100)).unwrap();
    let before = context.dma().mapped_bytes();
    given_up(&testbed, Opcode::MODIFY_CQ, || poller.resize(100_000));
    let ring = 64 * 100_000;
    assert!(
        context.dma().mapped_bytes() >= before + ring,
        "the device writes there"
    );
    drop((cq, poller));
    context.process_events();
    assert!(
        context.dma().mapped_bytes() >= before + ring,
        "and may do so as long as it lives"
    );
}

#[test]
fn a_queue_that_may_have_shrunk_promises_what_the_smaller_ring_holds() {
    let testbed = Testbed::new(TestbedConfig::default()).unwrap();
    let context = impatient(&testbed);
    let (cq, mut poller) = Cq::create(&context, CqConfig::new(1000)).unwrap();
    let large = cq.entries();
    inject(&testbed, Opcode::MODIFY_CQ, Fault::NoAnswer);
    let error = poller.resize(100).unwrap_err();
    assert!(
        matches!(error, CreateError::Command(CommandError::Timeout { .. })),
        "{error}"
    );
    let small = cq.entries();
    assert!((100..large).contains(&small), "{small}");
    let pd = Pd::alloc(&context).unwrap();
    let config = QpConfig {
        max_send_wr: small + 1,
        max_recv_wr: 0,
        ..QpConfig::default()
    };
    let error = Qp::create(&pd, &cq, &cq, &config).unwrap_err();
    assert!(matches!(error, CreateError::CqTooSmall { .. }), "{error}");
    // Firmware has carried it out; the entry in the old ring says so.
    assert!(poller.poll_one().unwrap().is_none());
    inject(&testbed, Opcode::MODIFY_CQ, Fault::NoAnswer);
    poller.resize(1000).unwrap_err();
    assert_eq!(cq.entries(), small);
}
