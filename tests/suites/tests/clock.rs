//! The device's clock and the time stamps of completions, driver and model together, on a clock that the tests move.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::clock::{ClockCorrelation, ClockError, ClockSample, TimestampFormat, real_time};
use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::verbs::{CreateError, Payload, QpConfig, RecvWr, SendFlags, SendOp, SendWr, WcSuccess};
use ferroce_firmware_iface::layouts::{CmdHcaCap, RoceCap};
use ferroce_nic_model::clock::{Clock, ManualClock};
use ferroce_nic_model::profile::{CapType, Profile};
use ferroce_nic_model::runner::Drive;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{Pair, Side, address};

/// Two connected sides on NICs of that kind, and the clock that both NICs have.
fn rig(profile: &Profile, config: &QpConfig) -> (Pair, ManualClock) {
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(1));
    let mac = |last| profile.clone().with_mac([0x02, 0xfe, 0x0c, 0xe0, 0x00, last]);
    let testbed = Testbed::new(TestbedConfig {
        profiles: [mac(1), mac(2)],
        drive: Drive::Caller,
        clock: Arc::new(clock.clone()),
        ..TestbedConfig::default()
    })
    .expect("a testbed");
    let side = |index| Side::on(open(&testbed, index), config);
    let mut pair = Pair {
        a: side(0),
        b: side(1),
        testbed,
    };
    pair.connect(|_, _| ());
    (pair, clock)
}

fn open(testbed: &Testbed, index: usize) -> Arc<Context> {
    let device = testbed.device(index).expect("a NIC");
    let function = InProcess::new(&format!("nic{index}"), device).expect("a function");
    let config = OpenConfig::new().address(address(index)).interrupts(false);
    Context::open(Arc::new(function), config).expect("the NIC comes up")
}

fn profile(khz: u32, qp_ts_format: u8) -> Profile {
    let mut profile = Profile::connectx5();
    let general = |c: &mut CmdHcaCap| c.set_device_frequency_khz(khz);
    profile.capabilities.edit(CapType::GENERAL, general);
    let roce = |c: &mut RoceCap| c.set_qp_ts_format(qp_ts_format).expect("two bits");
    profile.capabilities.edit(CapType::ROCE, roce);
    profile
}

/// A SEND from `a` to `b`; both completions.
fn send(pair: &mut Pair) -> [WcSuccess; 2] {
    let receive = RecvWr { wr_id: 0, sges: &[] };
    pair.b.qp.post_recv_list(&[receive]).expect("there is room");
    let op = SendOp::Send {
        data: Payload::Inline(&[]),
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    let send = SendWr { wr_id: 0, op, flags };
    pair.a.qp.post_send_list(&[send]).expect("there is room");
    assert!(pair.testbed.runner().step(), "the NICs never come to rest");
    [pair.a.success(), pair.b.success()]
}

#[test]
fn d05_completions_carry_the_ticks_of_the_clock_that_is_read() {
    for khz in [156_250, 1_000_000] {
        let (mut pair, clock) = rig(&profile(khz, 0), &QpConfig::default());
        let device = pair.a.context.clock().expect("a clock");
        assert_eq!(device.frequency().khz(), khz);
        let (first, started) = (device.now().expect("there"), clock.now());
        // Past the wrap of the low word at 1 GHz, and three at that.
        for second in 1..=15u64 {
            clock.advance_to(started + Duration::from_secs(second));
            let [sent, received] = send(&mut pair);
            assert_eq!(sent.timestamp, device.now().expect("there"));
            assert_eq!(received.timestamp, pair.b.context.clock().unwrap().now().unwrap());
            let passed = device.frequency().duration(sent.timestamp - first);
            assert!(passed.abs_diff(Duration::from_secs(second)) < Duration::from_micros(1));
        }
        pair.assert_clean();
    }
}

#[test]
fn d05_a_completion_is_found_on_the_hosts_clock() {
    let (mut pair, clock) = rig(&profile(156_250, 0), &QpConfig::default());
    let device = pair.a.context.clock().expect("a clock");
    let origin = Instant::now();
    let host = |clock: &ManualClock| origin + Duration::from_nanos(clock.now().get());
    let sample = |clock: &ManualClock| ClockSample {
        ticks: device.now().expect("there"),
        host: host(clock),
        window: Duration::ZERO,
    };
    let mut correlation = ClockCorrelation::new(device.frequency(), sample(&clock));
    for _ in 0..10 {
        clock.advance(Duration::from_nanos(777_777_777));
        let [sent, _] = send(&mut pair);
        let completed = host(&clock);
        clock.advance(Duration::from_nanos(333_333_333));
        assert!(correlation.update(sample(&clock)));
        let told = correlation.to_host(sent.timestamp).expect("a time");
        let off = told.max(completed) - told.min(completed);
        assert!(off < Duration::from_micros(1), "{off:?}");
    }
    // The real one is read too.
    let read = device.sample().expect("there");
    assert_eq!(read.ticks, device.now().unwrap());
}

#[test]
fn d05_firmware_that_gives_no_khz_gives_no_clock() {
    // As the recorded card's: 275 MHz, and no kHz.
    let (mut pair, _) = rig(&Profile::connectx4(), &QpConfig::default());
    let error = pair.a.context.clock().unwrap_err();
    assert!(
        matches!(
            error,
            ClockError::NoFrequency {
                device_frequency_mhz: 275
            }
        ),
        "{error}"
    );
    // The stamps are there all the same.
    let [sent, _] = send(&mut pair);
    assert_ne!(sent.timestamp, 0);
}

#[test]
fn time_stamps_are_real_time_where_that_is_asked_for_and_offered() {
    let wanted = QpConfig {
        timestamps: TimestampFormat::RealTime,
        ..QpConfig::default()
    };
    let (mut pair, clock) = rig(&profile(156_250, 2), &wanted);
    clock.advance(Duration::from_nanos(2_345_678_901));
    let [sent, received] = send(&mut pair);
    let now = Duration::from_nanos(clock.now().get());
    assert_eq!([sent, received].map(|wc| real_time(wc.timestamp)), [Some(now); 2]);
    assert_eq!(pair.a.context.clock().unwrap().real_time().unwrap(), now);

    // A device that has nothing else grants that.
    let (mut pair, clock) = rig(&profile(156_250, 1), &QpConfig::default());
    assert_eq!(pair.a.qp.config().timestamps, TimestampFormat::RealTime);
    let [sent, _] = send(&mut pair);
    let now = Duration::from_nanos(clock.now().get());
    assert_eq!(real_time(sent.timestamp), Some(now));
    pair.assert_clean();

    // One that hasn't says so.
    let (pair, _) = rig(&profile(156_250, 0), &QpConfig::default());
    let refused = ferroce::verbs::Qp::create(&pair.a.pd, &pair.a.cq, &pair.a.cq, &wanted);
    assert!(
        matches!(refused, Err(CreateError::Capability { .. })),
        "{refused:?}"
    );
    assert!(pair.a.context.clock().unwrap().real_time().is_err());
}
