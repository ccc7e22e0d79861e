use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::caps::testing::caps;
use crate::mmio::BarAccess;

/// A clock that moves by `step` ticks at each read of a word, as time does.
#[derive(Debug)]
struct Counter {
    ticks: Mutex<u64>,
    step: u64,
}

impl BarAccess for Counter {
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        let mut ticks = self.ticks.lock().unwrap();
        let word = match offset {
            0x1000 => (*ticks >> 32) as u32,
            0x1004 => *ticks as u32,
            other => panic!("read of {other:#x}"),
        };
        *ticks = ticks.wrapping_add(self.step);
        data.copy_from_slice(&word.to_be_bytes());
        Ok(())
    }

    fn write(&self, offset: u64, _: &[u8]) -> Result<(), FunctionError> {
        panic!("write at {offset:#x}");
    }
}

/// Words that are read one after the other, whatever their offset.
#[derive(Debug)]
struct Script(Mutex<VecDeque<u32>>);

impl BarAccess for Script {
    fn read(&self, _: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        let word = self.0.lock().unwrap().pop_front().expect("a word");
        data.copy_from_slice(&word.to_be_bytes());
        Ok(())
    }

    fn write(&self, offset: u64, _: &[u8]) -> Result<(), FunctionError> {
        panic!("write at {offset:#x}");
    }
}

fn clock_on(bar: Arc<dyn BarAccess>, khz: u32) -> Result<DeviceClock, ClockError> {
    let mut caps = caps();
    caps.general.set_device_frequency_khz(khz);
    caps.general.set_device_frequency_mhz(275);
    DeviceClock::new(&Mmio::trapped(0x3000, bar), &caps)
}

fn scripted(words: impl IntoIterator<Item = u32>) -> DeviceClock {
    clock_on(Arc::new(Script(Mutex::new(words.into_iter().collect()))), 156_250).unwrap()
}

const SECOND: u64 = 1_000_000_000;
/// At 156.25 MHz and at 1 GHz.
const KHZ: [u32; 2] = [156_250, 1_000_000];

#[test]
fn d05_a_billion_ticks_are_converted_in_khz() {
    let frequency = |khz| Frequency::from_khz(khz).unwrap();
    assert_eq!(
        frequency(156_250).duration(1_000_000_000),
        Duration::from_millis(6_400)
    );
    assert_eq!(
        frequency(1_000_000).duration(1_000_000_000),
        Duration::from_secs(1)
    );
    assert_eq!(frequency(156_250).nanos(1), 6, "6.4, rounded down");
    assert_eq!(frequency(1).duration(3), Duration::from_millis(3));
    // The whole counter, whose nanoseconds are more than 64 bits.
    assert_eq!(
        frequency(156_250).nanos(u64::MAX),
        u128::from(u64::MAX) * 1_000_000 / 156_250
    );
}

#[test]
fn d05_a_clock_without_a_frequency_is_an_error_that_names_the_capability() {
    let error = clock_on(Arc::new(Script(Mutex::default())), 0).unwrap_err();
    assert!(matches!(
        error,
        ClockError::NoFrequency {
            device_frequency_mhz: 275
        }
    ));
    assert!(
        error
            .to_string()
            .contains("device_frequency_khz is 0 (device_frequency_mhz is 275")
    );
    assert!(Frequency::from_khz(0).is_err());
}

#[test]
fn d05_ten_seconds_of_fake_time_drift_by_less_than_a_microsecond() {
    for khz in KHZ {
        let frequency = Frequency::from_khz(khz).unwrap();
        // From just before the low word wraps, and from just before the whole counter does.
        for start in [u64::from(u32::MAX) - 5, u64::MAX - 5, 0] {
            // An odd step, so that ticks and time fall together nowhere.
            for now in (0..=10 * SECOND).step_by(1_234_567) {
                let ticks = u128::from(now) * u128::from(khz) / 1_000_000;
                let read = start.wrapping_add(ticks as u64);
                let told = frequency.duration(read.wrapping_sub(start));
                let drift = told.abs_diff(Duration::from_nanos(now));
                assert!(
                    drift < Duration::from_micros(1),
                    "{khz} kHz after {now} ns: {drift:?}"
                );
            }
        }
    }
}

#[test]
fn d05_the_counter_is_read_over_the_wrap_of_its_low_word() {
    // Between any two of the reads.
    for before in 0..8u64 {
        let start = (7 << 32) - before;
        let bar = Arc::new(Counter {
            ticks: Mutex::new(start),
            step: 1,
        });
        let clock = clock_on(bar.clone(), 1_000_000).unwrap();
        let read = clock.now().unwrap();
        let end = *bar.ticks.lock().unwrap();
        assert!((start..end).contains(&read), "{start:#x}..{end:#x}: {read:#x}");
    }
    let bar = Arc::new(Counter {
        ticks: Mutex::new(u64::MAX - 1),
        step: 1,
    });
    assert_eq!(
        clock_on(bar, 1).unwrap().now().unwrap(),
        1,
        "the whole counter wraps"
    );
}

#[test]
fn a_clock_that_is_gone_or_wild_is_told() {
    assert!(matches!(scripted([u32::MAX; 3]).now(), Err(ClockError::Gone)));
    // It goes between two reads.
    let gone = scripted([5, 6, u32::MAX, u32::MAX, u32::MAX]);
    assert!(matches!(gone.now(), Err(ClockError::Gone)));
    let wild = scripted(0..100);
    assert!(matches!(wild.now(), Err(ClockError::Unstable { reads: READS })));
}

#[test]
fn real_time_is_seconds_and_nanoseconds_if_there_is_any() {
    assert_eq!(
        real_time(5 << 32 | 999_999_999),
        Some(Duration::new(5, 999_999_999))
    );
    assert_eq!(real_time(5 << 32 | 1_000_000_000), None);
    let refused = scripted([]).real_time().unwrap_err();
    assert!(refused.to_string().contains("qp_ts_format is 0"));
    let clock = |words: Vec<u32>| DeviceClock {
        qp_ts_format: BOTH,
        ..scripted(words)
    };
    assert_eq!(
        clock(vec![9, 999_999_999, 10, 3, 10]).real_time().unwrap(),
        Duration::new(10, 3)
    );
    assert!(clock(vec![9, 1_000_000_000, 9]).real_time().is_err());
}

#[test]
fn formats_are_those_of_the_capability() {
    let mut caps = caps();
    let offered = |caps: &Caps| {
        [TimestampFormat::FreeRunning, TimestampFormat::RealTime].map(|format| format.is_offered(caps))
    };
    assert_eq!(offered(&caps), [true, false], "without RoCE capabilities");
    for (format, expected) in [
        (0, [true, false]),
        (1, [false, true]),
        (2, [true, true]),
        (3, [true, false]),
    ] {
        let mut roce = ferroce_firmware_iface::layouts::RoceCap::default();
        roce.set_qp_ts_format(format).unwrap();
        caps.roce = Some(Box::new(roce));
        assert_eq!(offered(&caps), expected, "qp_ts_format {format}");
    }
}

#[test]
fn a_sample_is_the_quickest_of_some_and_in_the_middle() {
    let bar = Arc::new(Counter {
        ticks: Mutex::new(100),
        step: 1,
    });
    let clock = clock_on(bar, 1_000_000).unwrap();
    let start = Instant::now();
    // One reading takes 2 us, all others 10.
    let mut times = (0..16u64).map(|call| {
        let reading = call / 2;
        let micros = 100 * reading
            + if call % 2 == 0 {
                0
            } else if reading == 5 {
                2
            } else {
                10
            };
        start + Duration::from_micros(micros)
    });
    let sample = clock.sample_by(|| times.next().unwrap()).unwrap();
    assert_eq!(sample.window, Duration::from_micros(2));
    assert_eq!(sample.host, start + Duration::from_micros(501));
    assert_eq!(sample.ticks, 100 + 5 * 3 + 1, "its own low word");
}

/// Two clocks that tick as they like.
struct Clocks {
    start: Instant,
    first: u64,
    /// Ticks in a second.
    hz: u64,
}

impl Clocks {
    fn ticks(&self, nanos: u64) -> u64 {
        let ticks = u128::from(nanos) * u128::from(self.hz) / 1_000_000_000;
        self.first.wrapping_add(ticks as u64)
    }

    fn host(&self, nanos: u64) -> Instant {
        self.start + Duration::from_nanos(nanos)
    }

    fn sample(&self, nanos: u64) -> ClockSample {
        ClockSample {
            ticks: self.ticks(nanos),
            host: self.host(nanos),
            window: Duration::from_micros(1),
        }
    }
}

fn off(a: Instant, b: Instant) -> Duration {
    a.saturating_duration_since(b).max(b.saturating_duration_since(a))
}

#[test]
fn d05_time_stamps_follow_the_hosts_clock_whatever_the_oscillators_do() {
    for khz in KHZ {
        for ppm in [-50i64, 0, 50] {
            for first in [0, u64::MAX - 1_000, (1 << 63) - 1_000, u64::from(u32::MAX)] {
                let hz = (i64::from(khz) * 1_000 + i64::from(khz) * ppm / 1_000) as u64;
                let start = Instant::now() + Duration::from_secs(3_600);
                let clocks = Clocks { start, first, hz };
                let frequency = Frequency::from_khz(khz).unwrap();
                let mut correlation = ClockCorrelation::new(frequency, clocks.sample(0));
                for second in 1..=10 {
                    assert!(correlation.update(clocks.sample(second * SECOND)));
                    // A stamp of the second before, and one of the second to come.
                    for nanos in [second * SECOND - 700_000_001, second * SECOND + 900_000_007] {
                        let told = correlation.to_host(clocks.ticks(nanos)).unwrap();
                        let off = off(told, clocks.host(nanos));
                        assert!(
                            off < Duration::from_micros(1),
                            "{khz} kHz {ppm} ppm {nanos}: {off:?}"
                        );
                    }
                    assert!((correlation.deviation_ppb() - ppm * 1_000).abs() <= 10);
                }
                assert_eq!(correlation.uncertainty(), Duration::from_nanos(500));
            }
        }
    }
}

#[test]
fn a_sample_that_does_not_fit_begins_afresh() {
    let start = Instant::now() + Duration::from_secs(3_600);
    let (first, hz) = (1 << 40, 156_250_000);
    let clocks = Clocks { start, first, hz };
    let frequency = Frequency::from_khz(156_250).unwrap();
    let mut correlation = ClockCorrelation::new(frequency, clocks.sample(0));
    assert!(correlation.update(clocks.sample(2 * SECOND)));
    // The device was reset, and counts from 0 again.
    let reset = Clocks {
        first: 0,
        start: clocks.host(3 * SECOND),
        ..clocks
    };
    assert!(!correlation.update(reset.sample(0)));
    assert_eq!(correlation.to_host(reset.ticks(SECOND)), Some(reset.host(SECOND)));
    // The host's clock stood for 5 s.
    let mut later = reset.sample(9 * SECOND);
    later.host = reset.host(4 * SECOND);
    assert!(!correlation.update(later));
    assert_eq!(
        correlation.to_host(later.ticks + hz),
        Some(reset.host(5 * SECOND))
    );
    assert_eq!(correlation.deviation_ppb(), 0);
}

#[test]
fn d05_what_is_no_stamp_of_the_timer_has_no_time() {
    let start = Instant::now() + Duration::from_secs(100_000);
    let (first, hz) = (1 << 50, 156_250_000);
    let clocks = Clocks { start, first, hz };
    let frequency = Frequency::from_khz(156_250).unwrap();
    let correlation = ClockCorrelation::new(frequency, clocks.sample(0));
    // Of a NIC whose stamps are in real time: a day in November of 2026.
    assert_eq!(correlation.to_host(1_796_000_000 << 32 | 999_999_999), None);
    // A day off, either way, and just less.
    let day = 86_400 * hz;
    assert_eq!(correlation.to_host(first + day), None);
    assert_eq!(correlation.to_host(first - day), None);
    let less = Duration::from_secs(86_399);
    assert_eq!(correlation.to_host(first + day - hz), Some(start + less));
    assert_eq!(correlation.to_host(first - day + hz), Some(start - less));
}

#[test]
fn d05_a_reading_that_took_long_does_not_spoil_the_rate() {
    let start = Instant::now() + Duration::from_secs(3_600);
    let (first, hz) = (1 << 40, 156_250_000);
    let clocks = Clocks { start, first, hz };
    // The thread had to wait for its turn in the middle of each reading, so that the host's time is off by half of that.
    let late = |nanos, micros| ClockSample {
        host: clocks.host(nanos) + Duration::from_micros(micros / 2),
        window: Duration::from_micros(micros),
        ..clocks.sample(nanos)
    };
    let frequency = Frequency::from_khz(156_250).unwrap();
    let mut correlation = ClockCorrelation::new(frequency, clocks.sample(0));
    assert!(correlation.update(late(SECOND, 10_000)));
    assert_eq!(correlation.uncertainty(), Duration::from_millis(5));
    assert_eq!(correlation.deviation_ppb(), 0, "0.5 % otherwise");
    // The next good one is right at once, and measured from the first good one.
    assert!(correlation.update(clocks.sample(2 * SECOND)));
    let told = correlation.to_host(clocks.ticks(3 * SECOND)).unwrap();
    assert!(off(told, clocks.host(3 * SECOND)) < Duration::from_micros(1));
    assert!(correlation.deviation_ppb().abs() <= 1_000);

    // The first was a bad one, and each takes as long as a trap: a rate is measured all the same, over long enough.
    let clocks = Clocks {
        hz: hz + hz / 20_000,
        ..clocks
    };
    let trapped = |second| ClockSample {
        window: Duration::from_micros(50),
        ..clocks.sample(second * SECOND)
    };
    let mut correlation = ClockCorrelation::new(
        frequency,
        ClockSample {
            window: Duration::from_secs(1),
            ..clocks.sample(0)
        },
    );
    (1..=5).for_each(|second| assert!(correlation.update(trapped(second))));
    assert_eq!(correlation.deviation_ppb(), 0);
    assert!(correlation.update(trapped(6)));
    assert!((correlation.deviation_ppb() - 50_000).abs() <= 10);
}

proptest! {
    #[test]
    fn d05_any_ticks_at_any_frequency_are_exact(ticks in any::<u64>(), khz in 1u32..) {
        let frequency = Frequency::from_khz(khz).unwrap();
        let exact = u128::from(ticks) * 1_000_000 / u128::from(khz);
        prop_assert_eq!(frequency.nanos(ticks), exact);
    }

    #[test]
    fn any_samples_are_survived(
        all in prop::collection::vec((any::<u64>(), any::<u32>(), prop_oneof![0..10_000_000u64, any::<u64>()]), 1..20),
        khz in 1u32..,
        at in any::<u64>(),
    ) {
        let start = Instant::now();
        let mut samples = all.iter().map(|&(ticks, millis, window)| ClockSample {
            ticks,
            host: start + Duration::from_millis(millis.into()),
            // Also far more than a program would have waited.
            window: Duration::new(window, 0),
        });
        let frequency = Frequency::from_khz(khz).unwrap();
        let mut correlation = ClockCorrelation::new(frequency, samples.next().unwrap());
        for sample in samples {
            correlation.update(sample);
            let _ = (correlation.to_host(at), correlation.deviation_ppb());
        }
    }
}
