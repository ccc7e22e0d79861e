//! Time as the model sees it: nanoseconds since the clock's start, from the machine or from a test.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A point in time in nanoseconds since its clock's start (2^64 ns are 584 years).
///
/// Arithmetic saturates, so that a far timeout is "never" and not the past.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The clock's start.
    pub const ZERO: Nanos = Nanos(0);
    /// A time that is never reached.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// Nanoseconds since the clock's start.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Ticks that a clock of `khz` has made since it was 0, where that was this clock's start. A counter of 64 bits.
    pub const fn ticks(self, khz: u32) -> u64 {
        (self.0 as u128 * khz as u128 / 1_000_000) as u64
    }

    /// The same as a real-time stamp: seconds in the upper half, nanoseconds in the lower.
    pub const fn seconds_and_nanos(self) -> u64 {
        let (seconds, nanos) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        seconds << 32 | nanos
    }

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Nanos {
    type Output = Nanos;

    fn add(self, d: Duration) -> Nanos {
        Nanos(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub for Nanos {
    type Output = Duration;

    fn sub(self, earlier: Nanos) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Nanos::NEVER {
            return f.write_str("never");
        }
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Where the model gets its time from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time now; never earlier than an answer given before.
    fn now(&self) -> Nanos;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Nanos {
        (**self).now()
    }
}

/// The machine's monotonic clock, 0 when made.
#[derive(Clone, Debug)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// A clock that starts now.
    pub fn new() -> RealClock {
        RealClock {
            start: Instant::now(),
        }
    }
}

impl Default for RealClock {
    fn default() -> RealClock {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Nanos {
        Nanos::ZERO + self.start.elapsed()
    }
}

/// A clock that moves when told; clones share the time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that stands at 0.
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Moves the time on by `d` and returns it.
    pub fn advance(&self, d: Duration) -> Nanos {
        let step = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let add = |now: u64| Some(now.saturating_add(step));
        // The closure never gives `None`, so both arms hold the old value.
        let (Ok(old) | Err(old)) = self.now.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        Nanos(old.saturating_add(step))
    }

    /// Moves the time on to `at`; a time in the past changes nothing.
    pub fn advance_to(&self, at: Nanos) {
        self.now.fetch_max(at.0, Ordering::AcqRel);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_only_forward_and_is_shared() {
        let clock = ManualClock::new();
        let other = clock.clone();
        assert_eq!(clock.advance(Duration::from_micros(3)), Nanos(3_000));
        other.advance_to(Nanos(2_000));
        assert_eq!(other.now(), Nanos(3_000));
        other.advance_to(Nanos::NEVER);
        assert_eq!(clock.now() + Duration::from_secs(1), Nanos::NEVER);
        assert_eq!(Nanos(5) - Nanos(9), Duration::ZERO);
    }
}
