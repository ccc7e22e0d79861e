//! Bring-up and teardown against scripted firmware: each step failing, devices that lie, die, or stay silent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferroce::cmdq::CommandTrace;
use ferroce::context::{Context, OpenConfig};
use ferroce::error::{CloseError, CommandError, DeviceFailure, OpenError, Step, StepError};
use ferroce::events::AsyncEvent;
use ferroce::function::{InProcess, PciFunction};
use ferroce::gid::RoceVersion;
use ferroce::port::PortNumber;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::CommandStatus;
use ferroce_hw_regs::init_seg::offset;
use ferroce_suites::fake::{FakeNic, Reply, Request};

fn function(nic: &Arc<FakeNic>) -> Arc<dyn PciFunction> {
    Arc::new(InProcess::new("fake", nic.clone()).expect("a function"))
}

fn config() -> OpenConfig {
    OpenConfig::new()
        .command_timeout(Duration::from_millis(200))
        .firmware_ready_timeout(Duration::from_millis(20))
        .completion_vectors(2)
        .address("10.9.0.1".parse().expect("an address"))
        .address("fd00:9::1".parse().expect("an address"))
}

fn open(nic: &Arc<FakeNic>) -> Result<Arc<Context>, OpenError> {
    Context::open(function(nic), config())
}

fn opened(nic: &Arc<FakeNic>) -> Arc<Context> {
    open(nic).expect("bring-up")
}

/// The error of a bring-up that must fail, and its step.
fn failed(nic: &Arc<FakeNic>) -> (Step, StepError) {
    let error = open(nic).expect_err("bring-up was to fail");
    assert!(error.to_string().contains("in-process:fake"), "{error}");
    (error.step, *error.source)
}

/// A command that does nothing, with that many bytes of input and output.
fn nop(context: &Context, input: usize, output: usize) -> Result<(), CommandError> {
    let mut bytes = vec![0; input];
    bytes[..2].copy_from_slice(&Opcode::NOP.0.to_be_bytes());
    // SAFETY: it names neither memory nor objects.
    unsafe { context.exec_raw(&bytes, &mut vec![0; output]) }
}

/// Waits for another thread to have done something.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::yield_now();
    }
}

fn assert_nothing_left(nic: &FakeNic) {
    assert_eq!((nic.pages().len(), nic.event_queues(), nic.maps()), (0, 0, 0));
    assert!(!nic.attached());
}

const BRING_UP: [Opcode; 33] = [
    Opcode::ENABLE_HCA,
    Opcode::QUERY_ISSI,
    Opcode::SET_ISSI,
    Opcode::QUERY_PAGES,
    Opcode::MANAGE_PAGES,
    Opcode::ACCESS_REG,
    Opcode::QUERY_HCA_CAP,
    Opcode::QUERY_HCA_CAP,
    Opcode::SET_HCA_CAP,
    Opcode::QUERY_HCA_CAP,
    Opcode::QUERY_HCA_CAP,
    Opcode::QUERY_PAGES,
    Opcode::MANAGE_PAGES,
    Opcode::INIT_HCA,
    Opcode::QUERY_HCA_CAP,
    Opcode::QUERY_HCA_CAP,
    Opcode::QUERY_HCA_CAP,
    Opcode::QUERY_ADAPTER,
    Opcode::ALLOC_UAR,
    Opcode::CREATE_EQ,
    Opcode::CREATE_EQ,
    Opcode::CREATE_EQ,
    Opcode::QUERY_NIC_VPORT_CONTEXT,
    Opcode::ACCESS_REG,
    Opcode::ACCESS_REG,
    Opcode::MODIFY_NIC_VPORT_CONTEXT,
    Opcode::ACCESS_REG,
    Opcode::SET_L2_TABLE_ENTRY,
    Opcode::MODIFY_NIC_VPORT_CONTEXT,
    Opcode::SET_ROCE_ADDRESS,
    Opcode::SET_ROCE_ADDRESS,
    Opcode::SET_ROCE_ADDRESS,
    Opcode::SET_ROCE_ADDRESS,
];

#[test]
fn bring_up_and_teardown_follow_the_prm() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    // Two versions for the link-local address and both configured ones: two more than the list has.
    let mut expected = BRING_UP.to_vec();
    expected.extend([Opcode::SET_ROCE_ADDRESS; 2]);
    assert_eq!(nic.opcodes(), expected);
    assert_eq!(nic.pages().len(), 73);
    assert_eq!(context.firmware_version().to_string(), "12.14.1220");

    let report = context.close().expect("an orderly close");
    assert_eq!(
        (report.pages_given, report.pages_reclaimed, report.pages_lost),
        (73, 73, 0)
    );
    assert!(!report.reset && report.commands.leaked_slots == 0 && report.commands.failed == 0);
    let mut teardown = vec![Opcode::SET_ROCE_ADDRESS; 6];
    teardown.extend([
        Opcode::MODIFY_NIC_VPORT_CONTEXT,
        Opcode::DELETE_L2_TABLE_ENTRY,
        Opcode::ACCESS_REG,
        Opcode::DESTROY_EQ,
        Opcode::DESTROY_EQ,
        Opcode::DESTROY_EQ,
        Opcode::DEALLOC_UAR,
        Opcode::TEARDOWN_HCA,
        Opcode::MANAGE_PAGES,
        Opcode::DISABLE_HCA,
    ]);
    assert_eq!(nic.opcodes()[expected.len()..], teardown);
    assert_eq!(nic.resets(), 0);
    assert_nothing_left(&nic);
}

#[test]
fn init_pages_go_in_one_command_in_the_reserved_slot() {
    let nic = FakeNic::obedient();
    nic.set_pages(6, 12_868);
    // Huge pages are used where there are some, and not missed where there are none.
    let context = Context::open(function(&nic), config().huge_pages(true)).expect("bring-up");
    let gives: Vec<Request> = nic
        .requests()
        .into_iter()
        .filter(|r| r.opcode == Opcode::MANAGE_PAGES)
        .collect();
    assert_eq!(
        gives.iter().map(|r| r.input.len()).collect::<Vec<_>>(),
        [64, 102_960]
    );
    assert!(gives.iter().all(|r| r.slot == 31));
    // One pool, so few mappings.
    assert!(nic.maps() < 16, "{} mappings", nic.maps());
    let report = context.close().expect("an orderly close");
    assert_eq!((report.pages_given, report.pages_reclaimed), (12_874, 12_874));
    assert_nothing_left(&nic);
}

#[test]
fn a_refusal_at_any_step_is_named_and_undone() {
    // A refused QUERY_ISSI means old firmware, and some settings of the port are not ours to insist on.
    let total = {
        let nic = FakeNic::obedient();
        drop(opened(&nic).close());
        BRING_UP.len() + 2
    };
    for at in 0..total {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let nic = FakeNic::new(move |_| {
            if seen.fetch_add(1, Ordering::Relaxed) == at {
                Reply::Status(CommandStatus::INTERNAL_ERR, 0x1234)
            } else {
                Reply::Normal
            }
        });
        match open(&nic) {
            Ok(context) => {
                let opcode = nic.opcodes()[at];
                assert!(
                    [
                        Opcode::QUERY_ISSI,
                        Opcode::ENABLE_HCA,
                        Opcode::ACCESS_REG,
                        Opcode::MODIFY_NIC_VPORT_CONTEXT
                    ]
                    .contains(&opcode),
                    "a refused {opcode} was ignored"
                );
                context.close().expect("an orderly close");
            }
            Err(error) => {
                let StepError::Command(CommandError::Status {
                    opcode,
                    status,
                    syndrome,
                    ..
                }) = &*error.source
                else {
                    panic!("{error}: {:?}", error.source)
                };
                assert_eq!((*status, *syndrome), (CommandStatus::INTERNAL_ERR, 0x1234));
                assert_eq!(*opcode, nic.opcodes()[at], "{}", error.step);
                if nic.resets() == 0 && at > 0 {
                    assert_eq!(
                        nic.opcodes().last(),
                        Some(&Opcode::DISABLE_HCA),
                        "{} {opcode}",
                        error.step
                    );
                }
            }
        }
        assert_nothing_left(&nic);
        // And the device can be opened again.
        nic.set_script(|_| Reply::Normal);
        opened(&nic).close().expect("an orderly close");
    }
}

#[test]
fn silence_at_any_step_ends_at_the_deadline_and_the_function_is_reset() {
    for at in 0..BRING_UP.len() + 2 {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let nic = FakeNic::new(move |_| {
            if seen.fetch_add(1, Ordering::Relaxed) >= at {
                Reply::Silent
            } else {
                Reply::Normal
            }
        });
        let config = config().command_timeout(Duration::from_millis(5));
        let error = Context::open(function(&nic), config).expect_err("nothing answers");
        let StepError::Command(CommandError::Timeout { opcode, waited, .. }) = *error.source else {
            panic!("{error}: {:?}", error.source)
        };
        assert_eq!(opcode, nic.opcodes()[at]);
        assert!(waited >= Duration::from_millis(5));
        assert_eq!(nic.resets(), 1, "at command {at}");
        assert_nothing_left(&nic);
    }
}

#[test]
fn registers_are_checked_before_anything_else() {
    let nic = FakeNic::obedient();
    nic.set_config16(2, 0x6001);
    assert!(matches!(
        failed(&nic),
        (Step::Identify, StepError::NotOurDevice { device: 0x6001, .. })
    ));

    let nic = FakeNic::obedient();
    nic.set_config16(0, 0xffff);
    assert!(matches!(
        failed(&nic),
        (Step::Identify, StepError::Dead(DeviceFailure::Gone(_)))
    ));

    let nic = FakeNic::obedient();
    nic.set_register(offset::INITIALIZING, 1 << 31);
    let (step, error) = failed(&nic);
    assert!(
        matches!((step, &error), (Step::FirmwareReady, StepError::NotReady { .. })),
        "{step}: {error}"
    );

    let nic = FakeNic::obedient();
    nic.unplug();
    assert!(matches!(
        failed(&nic),
        (Step::FirmwareReady, StepError::Dead(DeviceFailure::Gone(_)))
    ));

    let nic = FakeNic::obedient();
    nic.set_register(offset::CMDIF_REV_FW_SUB, 4 << 16);
    let (step, error) = failed(&nic);
    assert_eq!(step, Step::CommandQueue);
    assert_eq!(
        error.to_string(),
        "cmdif_rev is 0x4, which must be 5 (the revision that this driver speaks)"
    );

    for geometry in [0, 6, 5 << 4, 6 << 4 | 6, 5 << 4 | 8, 15 << 4 | 15] {
        let nic = FakeNic::obedient();
        nic.set_register(offset::CMDQ_ADDR_L_SZ, geometry);
        assert!(
            matches!(
                failed(&nic),
                (
                    Step::CommandQueue,
                    StepError::Value {
                        what: "cmdq_addr_l_sz",
                        ..
                    }
                )
            ),
            "{geometry:#x}"
        );
        assert!(nic.opcodes().is_empty());
    }
}

#[test]
fn a_function_that_was_left_disabled_is_reset_first() {
    let nic = FakeNic::obedient();
    nic.set_register(offset::CMDQ_ADDR_L_SZ, 1 << 8 | 5 << 4 | 6);
    opened(&nic).close().expect("an orderly close");
    assert_eq!(nic.resets(), 1);

    // The same where ENABLE_HCA says that it is enabled already.
    let nic = FakeNic::new(|request| {
        if request.opcode == Opcode::ENABLE_HCA && request.nth == 0 {
            Reply::Status(CommandStatus::BAD_SYS_STATE, 1)
        } else {
            Reply::Normal
        }
    });
    let context = opened(&nic);
    assert!(nic.resets() >= 1);
    context.close().expect("an orderly close");
}

#[test]
fn answers_that_no_firmware_may_give_are_errors() {
    // A UAR on the initialization segment, and one past the BAR.
    for uar in [0u32, 2, 0x20, 0xff_ffff] {
        let nic = FakeNic::new(move |request| match request.opcode {
            Opcode::ALLOC_UAR => Reply::Output([[0; 8], (u64::from(uar) << 32).to_be_bytes()].concat()),
            _ => Reply::Normal,
        });
        assert!(
            matches!(failed(&nic), (Step::Uar, StepError::Value { .. })),
            "{uar:#x}"
        );
        assert_nothing_left(&nic);
    }
    // More pages than anybody has.
    let nic = FakeNic::obedient();
    nic.set_pages(3, i32::MAX as u32);
    let (step, error) = failed(&nic);
    assert_eq!(step, Step::InitPages);
    assert!(
        matches!(
            error,
            StepError::TooManyPages {
                asked: 0x7fff_ffff,
                given: 3,
                ..
            }
        ),
        "{error}"
    );
    assert_nothing_left(&nic);
    // A negative number is an offer, not a request.
    nic.set_pages(3, -5i32 as u32);
    opened(&nic).close().expect("an orderly close");
    // Capabilities that can't be worked with.
    let nic = FakeNic::obedient();
    nic.change_caps(|cap| cap.set_port_type(0).expect("fits"));
    assert!(matches!(
        failed(&nic),
        (Step::Capabilities, StepError::Unsupported(_))
    ));
}

#[test]
fn a_device_without_roce_or_without_room_for_the_addresses_is_refused() {
    let nic = FakeNic::obedient();
    nic.change_caps(|cap| cap.set_roce(false));
    // A reset would bring the capability back; none is needed.
    assert!(matches!(failed(&nic), (Step::Roce, StepError::Unsupported(_))));
    assert_eq!(nic.resets(), 0);

    let nic = FakeNic::obedient();
    let config = (2..9).fold(config(), |c, i| {
        c.address(format!("10.9.0.{i}").parse().expect("an address"))
    });
    let error = Context::open(function(&nic), config).expect_err("8 entries");
    assert!(
        matches!(*error.source, StepError::GidTableFull { size: 8, .. }),
        "{:?}",
        error.source
    );
    assert_nothing_left(&nic);
}

#[test]
fn only_the_versions_of_roce_that_were_asked_for_get_gids() {
    let nic = FakeNic::obedient();
    let config = config().roce_versions([RoceVersion::V2]).link_local_gid(false);
    let context = Context::open(function(&nic), config).expect("bring-up");
    let gids: Vec<String> = context
        .gids()
        .entries()
        .iter()
        .map(|(i, e)| format!("{i} {} {}", e.gid.to_ip(), e.version))
        .collect();
    assert_eq!(gids, ["0 10.9.0.1 RoCE v2", "1 fd00:9::1 RoCE v2"]);
    context.remove_gid(0).expect("removed");
    assert_eq!(context.gids().entries().len(), 1);
    assert_eq!(context.gids().size(), 8);
    context.close().expect("an orderly close");
}

#[test]
fn answers_with_wrong_tokens_or_delivery_errors_are_discarded() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    nic.set_script(|_| Reply::EntryToken(0));
    assert!(matches!(
        nop(&context, 16, 16),
        Err(CommandError::Token { found: 0, .. })
    ));
    nic.set_script(|_| Reply::MailboxToken(0));
    assert!(matches!(
        nop(&context, 16, 64),
        Err(CommandError::Token { found: 0, .. })
    ));
    nic.set_script(|_| Reply::Delivery(3));
    let error = nop(&context, 16, 16).expect_err("undelivered");
    assert_eq!(
        error.to_string(),
        "NOP was not delivered: mailbox block number out of order (0x3)"
    );
    for (input, output) in [(15, 16), (16, 15), (16, (1 << 20) + 1), ((1 << 20) + 1, 16)] {
        let result = nop(&context, input, output);
        assert!(
            matches!(result, Err(CommandError::Length { .. })),
            "{input} {output}"
        );
    }
    assert_eq!(context.counters().commands.bad_tokens, 2);
    nic.set_script(|_| Reply::Normal);
    nop(&context, 16, 16).expect("works again");
    context.close().expect("an orderly close");
}

#[test]
fn a_late_answer_gives_the_slot_back() {
    let nic = FakeNic::obedient();
    let context = Context::open(
        function(&nic),
        config().command_timeout(Duration::from_millis(10)),
    )
    .expect("bring-up");
    nic.set_script(|_| Reply::Silent);
    let error = nop(&context, 16, 16).expect_err("silence");
    assert!(matches!(error, CommandError::Timeout { slot: 0, .. }), "{error}");
    assert_eq!(context.counters().commands.leaked_slots, 1);
    nic.set_script(|_| Reply::Normal);
    nop(&context, 16, 16).expect("in another slot");
    assert_eq!(nic.requests().last().map(|r| r.slot), Some(1));
    nic.answer_late();
    nop(&context, 16, 16).expect("in the first slot");
    assert_eq!(nic.requests().last().map(|r| r.slot), Some(0));
    let counters = context.counters().commands;
    assert_eq!(
        (counters.leaked_slots, counters.late, counters.timed_out),
        (0, 1, 1)
    );
    context.close().expect("an orderly close");
}

#[test]
fn all_slots_lost_is_an_error_at_once() {
    let nic = FakeNic::obedient();
    let context =
        Context::open(function(&nic), config().command_timeout(Duration::from_millis(5))).expect("bring-up");
    nic.set_script(|_| Reply::Silent);
    for _ in 0..31 {
        assert!(matches!(nop(&context, 16, 16), Err(CommandError::Timeout { .. })));
    }
    let error = nop(&context, 16, 16).expect_err("no slot");
    assert!(
        matches!(error, CommandError::NoSlot { leaked: 31, .. }),
        "{error}"
    );
    // Pages go on all the same: they have their own slot.
    nic.set_script(|_| Reply::Normal);
    assert!(nic.post_event(0x0b, 0, &[0, 0, 0, 0, 0, 0, 0, 5], None));
    eventually("5 more pages", || nic.pages().len() == 78);
    // Teardown has no slot either, so the function is reset.
    let CloseError::Teardown { report, .. } = context.close().expect_err("no slot") else {
        panic!()
    };
    assert!(report.reset);
    assert_nothing_left(&nic);
}

#[test]
fn page_requests_are_answered_while_a_command_waits() {
    let nic = FakeNic::obedient();
    // Without a service thread only the waiting thread itself can be the one that answers.
    let config = config()
        .service_thread(false)
        .command_timeout(Duration::from_secs(20));
    let context = Context::open(function(&nic), config).expect("bring-up");
    nic.set_script(|request| {
        if request.opcode == Opcode::NOP {
            Reply::Silent
        } else {
            Reply::Normal
        }
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| nop(&context, 16, 16));
        eventually("the command is there", || {
            nic.opcodes().last() == Some(&Opcode::NOP)
        });
        assert!(nic.post_event(0x0b, 0, &[0, 0, 0, 0, 0, 0, 1, 0], None));
        eventually("256 more pages", || nic.pages().len() == 73 + 256);
        assert!(nic.post_event(0x0b, 0, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0x00], None));
        eventually("256 fewer pages", || nic.pages().len() == 73);
        nic.answer_late();
        waiting.join().expect("no panic").expect("answered in the end");
    });
    let pages = context.counters().pages;
    assert_eq!((pages.given, pages.reclaimed, pages.held), (329, 256, 73));
    context.close().expect("an orderly close");
    assert_nothing_left(&nic);
}

#[test]
fn a_page_request_over_the_limit_is_refused_to_firmware() {
    let nic = FakeNic::obedient();
    let context = Context::open(function(&nic), config().firmware_pages_limit(80)).expect("bring-up");
    assert!(nic.post_event(0x0b, 0, &[0, 0, 0, 0, 0, 0, 0, 8], None));
    eventually("CANT_GIVE", || {
        nic.requests()
            .last()
            .is_some_and(|r| r.opcode == Opcode::MANAGE_PAGES && r.op_mod == 0)
    });
    eventually("it is counted", || context.counters().pages.refused == 1);
    context.close().expect("an orderly close");
}

#[test]
fn pages_that_firmware_never_had_are_not_taken_back() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    nic.set_script(|request| match (request.opcode, request.op_mod) {
        (Opcode::MANAGE_PAGES, 2) => {
            let mut output = vec![0; request.output_len];
            output[11] = 1;
            output[16..24].copy_from_slice(&0xdead_0000u64.to_be_bytes());
            Reply::Output(output)
        }
        _ => Reply::Normal,
    });
    assert!(nic.post_event(0x0b, 0, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], None));
    eventually("a foreign page", || context.counters().pages.foreign == 1);
    // More than was asked for is worse.
    nic.set_script(|request| match (request.opcode, request.op_mod) {
        (Opcode::MANAGE_PAGES, 2) => Reply::Output([[0; 8], [0xff; 8]].concat()),
        _ => Reply::Normal,
    });
    let CloseError::Teardown { step, report, .. } = context.close().expect_err("nonsense") else {
        panic!()
    };
    assert_eq!(
        (step, report.reset, report.pages_lost),
        (Step::ReclaimPages, true, 73)
    );
    assert_nothing_left(&nic);
}

#[test]
fn firmware_that_keeps_its_pages_is_reset() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    nic.set_script(|request| match (request.opcode, request.op_mod) {
        (Opcode::MANAGE_PAGES, 2) => Reply::Output(vec![0; 16]),
        _ => Reply::Normal,
    });
    let CloseError::Teardown { step, source, report } = context.close().expect_err("pages are kept") else {
        panic!()
    };
    assert_eq!(
        (step, report.pages_lost, report.reset),
        (Step::ReclaimPages, 73, true)
    );
    assert!(source.to_string().contains("73"), "{source}");
}

#[test]
fn a_lost_interrupt_costs_time_and_nothing_else() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    assert!(nic.post_event_silently(0x0b, 0, &[0, 0, 0, 0, 0, 0, 0, 1]));
    eventually("one more page", || nic.pages().len() == 74);
    context.close().expect("an orderly close");
}

#[test]
fn stale_and_invented_events_are_counted() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    let before = context.counters().commands.stale_events;
    assert!(nic.post_event(0x0a, 0, &[0xff; 4], None));
    assert!(nic.post_event(0x09, 4, &[0, 0, 0, 0, 0, 0, 0, 0, 0x10], None));
    assert!(nic.post_event(0x04, 0, &[0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1], None));
    let deadline = Instant::now() + Duration::from_secs(20);
    let port = context.wait_event(deadline).expect("a port event");
    assert!(
        matches!(
            port,
            AsyncEvent::Port {
                port: PortNumber::FIRST,
                ..
            }
        ),
        "{port:?}"
    );
    assert!(matches!(
        context.wait_event(deadline),
        Some(AsyncEvent::Cq { cqn: 7, .. })
    ));
    eventually("32 stale slots", || {
        context.counters().commands.stale_events >= before + 32
    });
    context.close().expect("an orderly close");
}

#[test]
fn completion_events_are_counted_per_cq_and_wake_their_waiters() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    assert_eq!(context.completion_vectors(), 2);
    let eqn = context.comp_eqn(1).expect("an EQ");
    assert_eq!(context.comp_eqn(1).expect("the same"), eqn);
    assert!(context.comp_eqn(2).is_err());
    let counter = context.count_completions(0x81);
    let mut data = [0; 28];
    data[27] = 0x81;
    let soon = Instant::now() + Duration::from_millis(1);
    assert_eq!(context.wait_completion(1, &counter, 0, Some(soon)), Ok(false));
    // An event that comes before anybody waits is not lost.
    assert!(nic.post_event(0, 0, &data, Some(2)));
    assert_eq!(context.wait_completion(1, &counter, 0, None), Ok(true));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| context.wait_completion(1, &counter, 1, None)))
            .collect();
        data[27] = 0x82;
        assert!(nic.post_event(0, 0, &data, Some(2)));
        data[27] = 0x81;
        assert!(nic.post_event(0, 0, &data, Some(2)));
        for waiter in waiters {
            assert_eq!(waiter.join().expect("no panic"), Ok(true));
        }
    });
    assert_eq!(counter.count(), 2);
    assert_eq!(context.counters().unknown_cqns, 1);
    context.close().expect("an orderly close");
    assert_nothing_left(&nic);
}

#[test]
fn an_event_queue_wraps() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    context.comp_eqn(0).expect("an EQ");
    let counter = context.count_completions(1);
    let mut data = [0; 28];
    data[27] = 1;
    // Three times around the queue of 2048 entries.
    for round in 0..3 * 2048u64 {
        assert!(nic.post_event(0, 0, &data, Some(1)));
        assert_eq!(context.wait_completion(0, &counter, round, None), Ok(true));
    }
    context.close().expect("an orderly close");
}

#[test]
fn a_device_that_goes_away_wakes_everybody() {
    let nic = FakeNic::obedient();
    let context =
        Context::open(function(&nic), config().command_timeout(Duration::from_secs(60))).expect("bring-up");
    nic.set_script(|_| Reply::Silent);
    let started = Instant::now();
    let counter = context.count_completions(1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| nop(&context, 16, 16));
        let completion = scope.spawn(|| context.wait_completion(0, &counter, 0, None));
        eventually("the command is there", || {
            nic.opcodes().last() == Some(&Opcode::NOP)
        });
        nic.request_release();
        let error = waiting.join().expect("no panic").expect_err("gone");
        assert!(
            matches!(
                error,
                CommandError::Dead {
                    failure: DeviceFailure::Gone(_),
                    ..
                }
            ),
            "{error}"
        );
        assert!(matches!(
            completion.join().expect("no panic"),
            Err(DeviceFailure::Gone(_))
        ));
    });
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(matches!(context.next_event(), Some(AsyncEvent::Device(_))));
    assert!(context.close().is_err());
    assert_nothing_left(&nic);
}

#[test]
fn a_fatal_health_report_names_its_syndrome() {
    let nic = FakeNic::obedient();
    let context =
        Context::open(function(&nic), config().command_timeout(Duration::from_millis(5))).expect("bring-up");
    assert!(context.health().healthy());
    nic.set_script(|_| Reply::Silent);
    nic.set_register(0x238, 0x80 << 24);
    nic.set_register(0x23c, 0x0008_0042);
    let error = nop(&context, 16, 16).expect_err("dead");
    let CommandError::Dead {
        failure: DeviceFailure::Fatal(report),
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((report.syndrome, report.ext_syndrome), (8, 0x42));
    assert!(error.to_string().contains("fatal hardware error"), "{error}");
    assert!(matches!(context.close(), Err(CloseError::Teardown { report, .. }) if report.reset));
}

#[test]
fn everything_works_without_interrupts() {
    let nic = FakeNic::obedient();
    let context = Context::open(function(&nic), config().interrupts(false)).expect("bring-up");
    assert!(nic.post_event(0x0b, 0, &[0, 0, 0, 0, 0, 0, 0, 9], None));
    eventually("9 more pages", || {
        context.process_events();
        nic.pages().len() == 82
    });
    let counter = context.count_completions(1);
    context.comp_eqn(0).expect("an EQ");
    let mut data = [0; 28];
    data[27] = 1;
    assert!(nic.post_event(0, 0, &data, Some(1)));
    assert_eq!(context.wait_completion(0, &counter, 0, None), Ok(true));
    assert_eq!(context.close().expect("an orderly close").pages_reclaimed, 82);
    assert_nothing_left(&nic);
}

#[test]
fn commands_run_from_many_threads() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let context = &context;
            scope.spawn(move || {
                for i in 0..200 {
                    nop(context, 16 + thread * 300, 16 + i * 20).expect("answered");
                }
            });
        }
    });
    let counters = context.counters().commands;
    assert_eq!(
        (counters.failed, counters.timed_out, counters.leaked_slots),
        (0, 0, 0)
    );
    context.close().expect("an orderly close");
}

#[test]
fn a_context_in_use_is_closed_by_its_last_holder() {
    let nic = FakeNic::obedient();
    let context = opened(&nic);
    let holder = context.clone();
    assert!(matches!(context.close(), Err(CloseError::InUse { holders: 1 })));
    assert!(nic.attached());
    drop(holder);
    assert_eq!(nic.opcodes().last(), Some(&Opcode::DISABLE_HCA));
    assert_nothing_left(&nic);
}

#[test]
fn the_tracer_sees_every_command() {
    let nic = FakeNic::obedient();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = seen.clone();
    let tracer = move |trace: &CommandTrace<'_>| {
        record
            .lock()
            .expect("no panic")
            .push((trace.opcode, trace.input.to_vec(), trace.output.len()));
    };
    let context = Context::open(function(&nic), config().tracer(Arc::new(tracer))).expect("bring-up");
    context.close().expect("an orderly close");
    let seen = seen.lock().expect("no panic");
    let expected: Vec<_> = nic
        .requests()
        .into_iter()
        .map(|r| (r.opcode, r.input, r.output_len))
        .collect();
    assert_eq!(*seen, expected);
}
