//! The driver brings the device model up and shuts it down: all profiles, each step failing, pages at run time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::error::{CloseError, CommandError, DeviceFailure, StepError};
use ferroce::events::AsyncEvent;
use ferroce::gid::RoceVersion;
use ferroce::port::PortState;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::{CommandStatus, HealthSyndrome};
use ferroce_nic_model::fw::Fault;
use ferroce_nic_model::profile::Profile;
use ferroce_suites::nics::Nics;

fn config() -> OpenConfig {
    OpenConfig::new()
        .command_timeout(Duration::from_secs(10))
        .completion_vectors(2)
        .address("10.9.0.1".parse().expect("an address"))
        .address("fd00:9::1".parse().expect("an address"))
}

fn open(nics: &Nics) -> Arc<Context> {
    Context::open(nics.function(0), config()).expect("bring-up")
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::yield_now();
    }
}

fn assert_clean(nics: &Nics) {
    assert_eq!(nics.violations(0), Vec::<String>::new());
    assert_eq!(nics.firmware(0, |fw| fw.pages_held()), 0);
}

#[test]
fn every_profile_comes_up_and_goes_down() {
    for profile in Profile::all() {
        let name = profile.name;
        let pages = u64::from(profile.boot_pages + profile.init_pages);
        let nics = Nics::pair(profile);
        let context = open(&nics);
        assert_eq!(context.counters().pages.held, pages, "{name}");
        let port = context.port_attributes().expect("a port");
        assert_eq!(
            (port.state, port.active_path_mtu, port.mac.0[5]),
            (PortState::Active, 4096, 1),
            "{name}"
        );
        assert!(
            context
                .gids()
                .find(|e| e.version == RoceVersion::V2 && e.gid.to_ipv4().is_some())
                .is_some()
        );
        assert!(context.health().healthy(), "{name}: {}", context.health());
        context.comp_eqn(0).expect("an EQ");
        context.comp_eqn(1).expect("an EQ");
        let report = context
            .close()
            .unwrap_or_else(|error| panic!("{name}: {error}: {error:?}"));
        assert_eq!(
            (report.pages_given, report.pages_reclaimed, report.pages_lost),
            (pages, pages, 0),
            "{name}"
        );
        assert!(!report.reset && report.commands.failed == 0, "{name}: {report:?}");
        assert_clean(&nics);
        // And again, with what the first left behind.
        open(&nics).close().expect("an orderly close");
        assert_clean(&nics);
    }
}

#[test]
fn a_function_that_manages_no_switch_asks_it_for_its_frames() {
    let nics = Nics::pair(Profile::vf());
    let context = open(&nics);
    let (mac, list) = nics.firmware(0, |fw| (fw.mac(), fw.unicast_list()));
    assert_eq!(list, [mac]);
    context.close().expect("an orderly close");
    assert_eq!(nics.firmware(0, |fw| fw.unicast_list()), Vec::<[u8; 6]>::new());
    assert_clean(&nics);

    // Not being heard is no reason to stay down: the switch may have been set up by its manager.
    let fault = Fault::Status(CommandStatus::BAD_PARAM, 7);
    nics.firmware(0, |fw| {
        fw.faults_mut()
            .inject(Some(Opcode::MODIFY_NIC_VPORT_CONTEXT), 1, fault)
    });
    let context = open(&nics);
    assert_eq!(
        nics.firmware(0, |fw| (fw.faults_mut().pending(), fw.unicast_list())),
        (0, vec![])
    );
    context.close().expect("an orderly close");
    assert_eq!(nics.firmware(0, |fw| fw.pages_held()), 0);
}

#[test]
fn a_refusal_at_any_step_is_named_and_undone() {
    for at in 0.. {
        let nics = Nics::pair(Profile::minimal());
        let fault = Fault::Status(CommandStatus::NO_RESOURCES, 0xabcd);
        nics.firmware(0, |fw| fw.faults_mut().inject(None, at, fault));
        match Context::open(nics.function(0), config()) {
            Err(error) => {
                let StepError::Command(error @ CommandError::Status { syndrome, .. }) = &*error.source else {
                    panic!("{at}: {error}: {:?}", error.source)
                };
                assert_eq!(*syndrome, 0xabcd, "{error}");
                assert_eq!(nics.firmware(0, |fw| fw.pages_held()), 0, "{error}");
            }
            Ok(context) => {
                let pending = nics.firmware(0, |fw| fw.faults_mut().pending());
                nics.firmware(0, |fw| fw.faults_mut().clear());
                context.close().expect("an orderly close");
                if pending != 0 {
                    assert!(at > 20, "bring-up had only {at} commands");
                    return;
                }
            }
        }
        open(&nics).close().expect("an orderly close");
    }
}

#[test]
fn a_command_that_is_never_answered_ends_in_a_reset() {
    for at in (0..30).step_by(3) {
        let nics = Nics::pair(Profile::minimal());
        nics.firmware(0, |fw| fw.faults_mut().inject(None, at, Fault::NoAnswer));
        let config = config().command_timeout(Duration::from_millis(100));
        let error = Context::open(nics.function(0), config).expect_err("no answer");
        assert!(
            matches!(*error.source, StepError::Command(CommandError::Timeout { .. })),
            "{error}"
        );
        assert_eq!(nics.firmware(0, |fw| fw.pages_held()), 0);
        open(&nics).close().expect("an orderly close");
    }
}

#[test]
fn a_teardown_that_fails_ends_in_a_reset() {
    for opcode in [
        Opcode::SET_ROCE_ADDRESS,
        Opcode::DESTROY_EQ,
        Opcode::DEALLOC_UAR,
        Opcode::TEARDOWN_HCA,
        Opcode::MANAGE_PAGES,
        Opcode::DISABLE_HCA,
    ] {
        let nics = Nics::pair(Profile::minimal());
        let context = open(&nics);
        let fault = Fault::Status(CommandStatus::INTERNAL_ERR, 1);
        nics.firmware(0, |fw| fw.faults_mut().inject(Some(opcode), 0, fault));
        let pages = context.counters().pages.held;
        match context.close() {
            Err(CloseError::Teardown { report, .. }) => assert!(report.reset, "{opcode}"),
            // A profile without pages has none to take.
            other => assert!(
                opcode == Opcode::MANAGE_PAGES && pages == 0,
                "{opcode}: {other:?}"
            ),
        }
        nics.firmware(0, |fw| fw.faults_mut().clear());
        open(&nics).close().expect("an orderly close");
    }
}

#[test]
fn pages_move_at_run_time() {
    let nics = Nics::pair(Profile::connectx4());
    let context = open(&nics);
    let held = context.counters().pages.held;
    nics.firmware(0, |fw| fw.request_pages(1000));
    eventually("1000 more pages", || context.counters().pages.held == held + 1000);
    nics.firmware(0, |fw| fw.request_pages(-900));
    eventually("900 fewer pages", || context.counters().pages.held == held + 100);
    let report = context.close().expect("an orderly close");
    assert_eq!(
        (report.pages_given, report.pages_reclaimed),
        (held + 1000, held + 1000)
    );
    assert_clean(&nics);
}

#[test]
fn a_dying_firmware_is_noticed() {
    let nics = Nics::pair(Profile::minimal());
    let context = Context::open(
        nics.function(0),
        config().command_timeout(Duration::from_millis(50)),
    )
    .expect("bring-up");
    nics.firmware(0, |fw| {
        fw.set_health(HealthSyndrome::HIGH_TEMP_ERR, true);
        fw.faults_mut().inject(None, 0, Fault::NoAnswer);
    });
    let error = context.port_attributes().expect_err("dead");
    assert!(error.to_string().contains("temperature"), "{error}");
    assert!(matches!(context.failure(), Some(DeviceFailure::Fatal(_))));
    assert!(matches!(
        context.wait_event(Instant::now()),
        Some(AsyncEvent::Device(_))
    ));
    assert!(matches!(context.close(), Err(CloseError::Teardown { report, .. }) if report.reset));
    open(&nics).close().expect("an orderly close");
}

#[test]
fn a_device_that_leaves_the_bus_is_gone() {
    let nics = Nics::pair(Profile::minimal());
    let context = Context::open(
        nics.function(0),
        config().command_timeout(Duration::from_millis(50)),
    )
    .expect("bring-up");
    nics.firmware(0, |fw| fw.set_gone(true));
    let error = context.port_attributes().expect_err("gone");
    assert!(
        matches!(context.failure(), Some(DeviceFailure::Gone(_))),
        "{error}"
    );
    assert!(context.close().is_err());
    nics.firmware(0, |fw| fw.set_gone(false));
    open(&nics).close().expect("an orderly close");
}

#[test]
fn a_function_that_is_reset_behind_the_drivers_back_is_gone() {
    let nics = Nics::pair(Profile::minimal());
    let context = Context::open(
        nics.function(0),
        config().command_timeout(Duration::from_secs(600)),
    )
    .expect("bring-up");
    context.function().reset().expect("a reset");
    // Nobody asks: the service thread looks after the device, and a command that is never answered does not have to
    // wait for its deadline.
    let error = context
        .port_attributes()
        .expect_err("firmware has forgotten the command queue");
    assert!(error.to_string().contains("reset behind our back"), "{error}");
    assert!(matches!(context.failure(), Some(DeviceFailure::Gone(_))));
    assert!(matches!(context.close(), Err(CloseError::Teardown { report, .. }) if report.reset));
    open(&nics).close().expect("an orderly close");
}

#[test]
fn a_command_timeout_without_end_is_no_reason_to_panic() {
    let nics = Nics::pair(Profile::minimal());
    let config = config().command_timeout(Duration::MAX);
    let context = Context::open(nics.function(0), config).expect("bring-up");
    nics.firmware(0, |fw| fw.request_pages(8));
    eventually("the pages are given", || context.counters().pages.given >= 8);
    context.close().expect("an orderly close");
}

#[test]
fn a_function_is_opened_once_at_a_time() {
    let nics = Nics::pair(Profile::minimal());
    let function = nics.function(0);
    let context = Context::open(function.clone(), config()).expect("bring-up");
    let error = Context::open(function.clone(), config())
        .expect_err("in use")
        .to_string();
    assert!(
        error.contains("Identify") || error.contains("identify"),
        "{error}"
    );
    context.port_attributes().expect("the first is as it was");
    let buffer = context.dma().alloc(4096).expect("fits");
    context.close().expect("an orderly close");
    let open = || Context::open(function.clone(), config());
    assert!(
        open().is_err(),
        "a buffer may still have an address that the next would use"
    );
    drop(buffer);
    open().expect("bring-up").close().expect("an orderly close");
}

#[test]
fn firmware_that_never_gets_ready_is_an_error() {
    let nics = Nics::pair(Profile::minimal());
    nics.firmware(0, |fw| fw.set_stuck_initializing(true));
    // The bit is cleared by a reset's end only, so begin with one.
    nics.function(0).reset().expect("a reset");
    let config = config().firmware_ready_timeout(Duration::from_millis(20));
    let error = Context::open(nics.function(0), config).expect_err("stuck");
    assert!(
        matches!(*error.source, StepError::NotReady { .. }),
        "{:?}",
        error.source
    );
}

#[test]
fn the_port_follows_its_settings() {
    let nics = Nics::pair(Profile::connectx4());
    let config = config()
        .mtu(1500)
        .mac("02:00:00:aa:bb:cc".parse().expect("a MAC"));
    let context = Context::open(nics.function(0), config).expect("bring-up");
    let port = context.port_attributes().expect("a port");
    assert_eq!(
        (port.mtu, port.active_path_mtu, port.mac.to_string().as_str()),
        (1500, 1024, "02:00:00:aa:bb:cc")
    );
    assert!(port.speed_mbps.is_some());
    context.close().expect("an orderly close");
    assert_clean(&nics);
}

#[test]
fn a_killed_driver_leaves_a_device_that_opens_again() {
    let nics = Nics::pair(Profile::minimal());
    let context = open(&nics);
    // What a SIGKILL leaves to the device: the function goes, without a word to firmware.
    let device = nics.runner.device(0).expect("a NIC");
    std::mem::forget(context);
    ferroce_vfio_user::device::PciDevice::detached(&*device);
    open(&nics).close().expect("an orderly close");
}
