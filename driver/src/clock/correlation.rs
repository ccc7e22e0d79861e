//! From the device's clock to the host's.

use std::time::{Duration, Instant};

use super::Frequency;

/// Time between samples from which on the rate is measured by them; over less, the error of the two readings (a
/// microsecond or so) would be more than that of the nominal frequency.
const BASELINE_NANOS: u64 = 1_000_000_000;
/// Part of the time between two samples that their readings may have taken together for the rate to be measured by them: else
/// the error of the readings, half of that, would be more than the nominal frequency's.
const MOST_OF_BASELINE: u128 = 50_000;
/// Most parts per million by which a measured rate may differ from the nominal one. Oscillators of NICs and hosts are
/// good to some tens.
const MOST_PPM: u64 = 1_000;
/// Most seconds between the last sample and a time stamp. Oscillators are seconds apart by then; and what is that far off is
/// no stamp of the free-running timer, but one of [`TimestampFormat::RealTime`](super::TimestampFormat::RealTime) or of before
/// a reset.
const FURTHEST_SECONDS: u64 = 86_400;
/// Bits of the counter that mean something: Linux mlx5_ib tells its users of 63 (`timestamp_mask`).
const UNUSED_BITS: u32 = 1;

/// The two clocks at one time: from [`DeviceClock::sample`](super::DeviceClock::sample).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The device's free-running timer.
    pub ticks: u64,
    /// The host's monotonic clock.
    pub host: Instant,
    /// How long the reading took: `host` is off by at most half of it.
    pub window: Duration,
}

/// Ticks and the nanoseconds that they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    ticks: u64,
    nanos: u64,
}

/// Puts the device's time stamps on the host's monotonic clock.
///
/// Two oscillators never run at the same rate: 20 parts per million are 20 µs in each second. So a program that wants
/// better than that gives it a sample every second or so ([`ClockCorrelation::update`]); the rate between the last two that are a
/// second apart then holds until the next. Where reading takes long, by a trap into a hypervisor, say, more than a second is
/// needed: fifty thousand times as long as both readings together.
///
/// ```no_run
/// use ferroce::{clock::ClockCorrelation, context::Context, verbs::WcSuccess};
///
/// fn follow(context: &Context, done: &WcSuccess) -> Result<(), ferroce::clock::ClockError> {
///     let clock = context.clock()?;
///     let mut correlation = ClockCorrelation::new(clock.frequency(), clock.sample()?);
///     // Each second or so:
///     correlation.update(clock.sample()?);
///     // For a completion:
///     println!("{:?}", correlation.to_host(done.timestamp));
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ClockCorrelation {
    nominal: Rate,
    rate: Rate,
    /// The sample from which the rate is measured next.
    base: ClockSample,
    latest: ClockSample,
}

impl ClockCorrelation {
    /// A correlation by one sample and the nominal frequency.
    #[must_use]
    pub fn new(frequency: Frequency, sample: ClockSample) -> ClockCorrelation {
        let nominal = Rate {
            ticks: frequency.khz().into(),
            nanos: 1_000_000,
        };
        ClockCorrelation {
            nominal,
            rate: nominal,
            base: sample,
            latest: sample,
        }
    }

    /// Takes a later sample, from which time stamps are converted from now on. One that does not fit the ones before (the
    /// counter went back, as by a reset of the device; or the clocks are more than 0.1 % apart, as when the host slept)
    /// begins afresh with the nominal frequency: then it is false.
    pub fn update(&mut self, sample: ClockSample) -> bool {
        let ticks = distance(sample.ticks, self.base.ticks);
        let nanos = sample.host.saturating_duration_since(self.base.host).as_nanos();
        let (Ok(ticks), Ok(nanos)) = (u64::try_from(ticks), u64::try_from(nanos)) else {
            return self.begin_afresh(sample);
        };
        let expected = self.nominal.nanos(ticks);
        let apart = expected.abs_diff(nanos.into());
        let read = self.base.window.saturating_add(sample.window).as_nanos();
        if apart > u128::from(nanos) * u128::from(MOST_PPM) / 1_000_000 + read {
            return self.begin_afresh(sample);
        }
        if nanos >= BASELINE_NANOS && ticks > 0 {
            if read <= u128::from(nanos) / MOST_OF_BASELINE {
                self.rate = Rate { ticks, nanos };
                self.base = sample;
            } else if sample.window < self.base.window {
                // It is the better one to measure from.
                self.base = sample;
            }
        }
        self.latest = sample;
        true
    }

    fn begin_afresh(&mut self, sample: ClockSample) -> bool {
        (self.rate, self.base, self.latest) = (self.nominal, sample, sample);
        false
    }

    /// The host's time when the device's free-running timer was or will be `ticks`, such as a completion's time stamp.
    /// `None` if that is more than a day from the last sample: then the samples are too old, or the time stamp is not one of
    /// [`TimestampFormat::FreeRunning`](super::TimestampFormat::FreeRunning).
    #[must_use]
    pub fn to_host(&self, ticks: u64) -> Option<Instant> {
        let distance = distance(ticks, self.latest.ticks);
        let nanos = self.rate.nanos(distance.unsigned_abs());
        let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
        if seconds >= FURTHEST_SECONDS {
            return None;
        }
        let apart = Duration::new(seconds, (nanos % 1_000_000_000) as u32);
        if distance < 0 {
            self.latest.host.checked_sub(apart)
        } else {
            self.latest.host.checked_add(apart)
        }
    }

    /// By how much a time near the last sample may be off because of how long that took to read.
    #[must_use]
    pub fn uncertainty(&self) -> Duration {
        self.latest.window / 2
    }

    /// How much faster than its nominal frequency the device's clock was last measured to run by the host's, in parts
    /// per billion; 0 until it was.
    #[must_use]
    pub fn deviation_ppb(&self) -> i64 {
        let nominal = self.nominal.nanos(self.rate.ticks);
        let faster = nominal as i128 - i128::from(self.rate.nanos);
        i64::try_from(faster * 1_000_000_000 / i128::from(self.rate.nanos)).unwrap_or(0)
    }
}

impl Rate {
    /// How long that many ticks take.
    fn nanos(self, ticks: u64) -> u128 {
        u128::from(ticks) * u128::from(self.nanos) / u128::from(self.ticks)
    }
}

/// How far `ticks` is behind `from`, in a counter that may have wrapped between them.
fn distance(ticks: u64, from: u64) -> i64 {
    (ticks.wrapping_sub(from) << UNUSED_BITS) as i64 >> UNUSED_BITS
}
