//! The device's clock: its free-running timer, what a tick is worth, and the time stamps of completions.
//!
//! ```text
//!   initialization segment  0x1000 high  0x1004 low   free-running timer ─┐
//!                           0x1040 s     0x1044 ns    real time, if any   ├─▶ DeviceClock
//!   capability              device_frequency_khz ─▶ Frequency ────────────┘       │ sample: ticks and host's time
//!                                                                                 ▼
//!   completion              time stamp (64 bits) ───────────────────────▶ ClockCorrelation ─▶ host's monotonic time
//! ```
//!
//! All conversions are in integers and exact but for the last nanosecond, so that nothing drifts. The unit of the
//! frequency is kHz and nothing else: of firmware that gives only `device_frequency_mhz` the driver takes none, since a
//! MHz is too coarse (half a MHz of 156 are 3 ms in each second) and may be another clock's.
//!
//! Reading the timer is a trip to the device and takes about a microsecond; a completion's time stamp comes with it
//! ([`WcSuccess::timestamp`](crate::verbs::WcSuccess::timestamp)).
//!
//! Source: PRM, initialization segment (`internal_timer_h`, `internal_timer_l`, `real_time_h`, `real_time_l`), CQE,
//! `qpc.ts_format`, `roce_cap.qp_ts_format`.

mod correlation;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use ferroce_firmware_iface::cmds::ts_format;
use ferroce_hw_regs::init_seg::offset;

pub use correlation::{ClockCorrelation, ClockSample};

use crate::caps::Caps;
use crate::function::FunctionError;
use crate::mmio::Mmio;

/// How often a pair of registers is read, at most, until its high word stands still. It changes every few seconds.
const READS: u32 = 8;
/// Readings of which a sample is the quickest.
const SAMPLE_READINGS: u32 = 8;
/// Nanoseconds in a millisecond.
const NANOS_PER_MILLI: u64 = 1_000_000;

/// Why the device's clock can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClockError {
    /// Firmware doesn't say how long a tick is.
    #[error(
        "the clock's frequency is not known: device_frequency_khz is 0 (device_frequency_mhz is {device_frequency_mhz}, too \
         coarse to convert time stamps by); newer firmware may say it"
    )]
    NoFrequency {
        /// What it says in MHz; 0 for nothing.
        device_frequency_mhz: u32,
    },
    /// The device has no real-time clock.
    #[error(
        "the device has no real-time clock: roce_cap.qp_ts_format is {qp_ts_format}, which is free-running only"
    )]
    NoRealTime {
        /// The capability.
        qp_ts_format: u8,
    },
    /// The device does not answer any more.
    #[error("the clock's registers read as all ones: the device is gone")]
    Gone,
    /// The clock's high word was another one in each reading, or what it shows is no time.
    #[error(
        "the clock's registers make no sense after {reads} readings: the device or the way to it is broken"
    )]
    Unstable {
        /// How often it was read.
        reads: u32,
    },
    /// BAR 0 is too small.
    #[error("BAR 0 has no clock")]
    Registers(#[from] FunctionError),
}

/// How fast the device's clock ticks, in kHz.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frequency(NonZeroU32);

impl Frequency {
    /// A frequency in kHz, such as 156,250 or 1,000,000.
    ///
    /// # Errors
    /// [`ClockError::NoFrequency`] for 0.
    pub fn from_khz(khz: u32) -> Result<Frequency, ClockError> {
        let khz = NonZeroU32::new(khz).ok_or(ClockError::NoFrequency {
            device_frequency_mhz: 0,
        })?;
        Ok(Frequency(khz))
    }

    pub(crate) fn of_device(caps: &Caps) -> Result<Frequency, ClockError> {
        let general = caps.general();
        Frequency::from_khz(general.device_frequency_khz()).map_err(|_| ClockError::NoFrequency {
            device_frequency_mhz: general.device_frequency_mhz(),
        })
    }

    /// Thousands of ticks a second.
    #[must_use]
    pub fn khz(self) -> u32 {
        self.0.get()
    }

    /// How long that many ticks take: exact, rounded down to a whole nanosecond, for each number of ticks.
    #[must_use]
    pub fn duration(self, ticks: u64) -> Duration {
        let khz = u64::from(self.khz());
        // A kHz is a tick in a millisecond. The rest is less than 2^32, and times 10^6 less than 2^52.
        let (millis, rest) = (ticks / khz, ticks % khz);
        Duration::from_millis(millis) + Duration::from_nanos(rest * NANOS_PER_MILLI / khz)
    }

    /// The same in nanoseconds.
    #[must_use]
    pub fn nanos(self, ticks: u64) -> u128 {
        self.duration(ticks).as_nanos()
    }
}

/// What the time stamps of a queue pair's completions are (`qpc.ts_format`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TimestampFormat {
    /// Ticks of the free-running timer.
    #[default]
    FreeRunning,
    /// The time of the NIC's real-time clock, which something else sets (PTP, on the NIC's owner); [`real_time`] reads
    /// it.
    RealTime,
}

impl TimestampFormat {
    /// Whether the device has that format for queue pairs (`roce_cap.qp_ts_format`).
    pub(crate) fn is_offered(self, caps: &Caps) -> bool {
        match (self, qp_ts_format(caps)) {
            (TimestampFormat::FreeRunning, format) => format != REAL_TIME_ONLY,
            (TimestampFormat::RealTime, format) => matches!(format, REAL_TIME_ONLY | BOTH),
        }
    }

    /// `qpc.ts_format`.
    pub(crate) fn to_prm(self) -> u8 {
        match self {
            TimestampFormat::FreeRunning => ts_format::FREE_RUNNING,
            TimestampFormat::RealTime => ts_format::REAL_TIME,
        }
    }
}

/// `qp_ts_format`: no free-running time stamps.
const REAL_TIME_ONLY: u8 = 1;
/// `qp_ts_format`: either.
const BOTH: u8 = 2;

fn qp_ts_format(caps: &Caps) -> u8 {
    caps.roce().map_or(0, |roce| roce.qp_ts_format())
}

/// The time in a time stamp of the format [`TimestampFormat::RealTime`], since the real-time clock's epoch: seconds in the
/// upper half, nanoseconds in the lower. `None` if that is no time.
#[must_use]
pub fn real_time(timestamp: u64) -> Option<Duration> {
    let (seconds, nanos) = (timestamp >> 32, timestamp as u32);
    (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
}

/// The device's clock, from [`Context::clock`](crate::context::Context::clock). Any thread may read it.
///
/// It can be read for as long as it is held, also when the context is closed meanwhile.
#[derive(Clone, Debug)]
pub struct DeviceClock {
    /// Page of the initialization segment that has the timer and the real-time clock.
    registers: Mmio,
    frequency: Frequency,
    qp_ts_format: u8,
}

impl DeviceClock {
    pub(crate) fn new(bar: &Mmio, caps: &Caps) -> Result<DeviceClock, ClockError> {
        let frequency = Frequency::of_device(caps)?;
        let len = offset::REAL_TIME_L + 4 - offset::INTERNAL_TIMER_H;
        Ok(DeviceClock {
            registers: bar.subregion(offset::INTERNAL_TIMER_H, len)?,
            frequency,
            qp_ts_format: qp_ts_format(caps),
        })
    }

    /// What a tick is worth.
    #[must_use]
    pub fn frequency(&self) -> Frequency {
        self.frequency
    }

    /// The free-running timer, in ticks.
    ///
    /// # Errors
    /// [`ClockError::Gone`], [`ClockError::Unstable`].
    pub fn now(&self) -> Result<u64, ClockError> {
        self.read(offset::INTERNAL_TIMER_H, offset::INTERNAL_TIMER_L)
    }

    /// The real-time clock, since its epoch.
    ///
    /// # Errors
    /// [`ClockError::NoRealTime`], [`ClockError::Gone`], [`ClockError::Unstable`].
    pub fn real_time(&self) -> Result<Duration, ClockError> {
        if !matches!(self.qp_ts_format, REAL_TIME_ONLY | BOTH) {
            return Err(ClockError::NoRealTime {
                qp_ts_format: self.qp_ts_format,
            });
        }
        let timestamp = self.read(offset::REAL_TIME_H, offset::REAL_TIME_L)?;
        real_time(timestamp).ok_or(ClockError::Unstable { reads: 1 })
    }

    /// The free-running timer and the host's monotonic clock at one time. Of several readings, the one in which least time
    /// passed.
    ///
    /// # Errors
    /// As [`DeviceClock::now`].
    pub fn sample(&self) -> Result<ClockSample, ClockError> {
        self.sample_by(Instant::now)
    }

    fn sample_by(&self, mut host: impl FnMut() -> Instant) -> Result<ClockSample, ClockError> {
        let mut best: Option<ClockSample> = None;
        for _ in 0..SAMPLE_READINGS {
            let before = host();
            let ticks = self.now()?;
            let window = host().saturating_duration_since(before);
            if best.is_none_or(|best| window < best.window) {
                // The low word is read between the other two reads, so about in the middle.
                let host = before + window / 2;
                best = Some(ClockSample { ticks, host, window });
            }
        }
        best.ok_or(ClockError::Unstable { reads: 0 })
    }

    /// Reads a counter of two words: its low word may wrap between the reads, and then its high word is another one.
    fn read(&self, high: u64, low: u64) -> Result<u64, ClockError> {
        let word = |at: u64| self.registers.read32(at - offset::INTERNAL_TIMER_H);
        let mut above = word(high);
        for _ in 0..READS {
            let below = word(low);
            let again = word(high);
            if above == again {
                // No counter gets that far: at 1 GHz, 2^64 ticks are 584 years.
                return if (above, below) == (u32::MAX, u32::MAX) {
                    Err(ClockError::Gone)
                } else {
                    Ok(u64::from(above) << 32 | u64::from(below))
                };
            }
            above = again;
        }
        Err(ClockError::Unstable { reads: READS })
    }
}

#[cfg(test)]
mod tests;
