//! Medians, and how quiet the machine is.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

/// The middle of the figures; 0 of none.
pub fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    match (figures.len(), figures.len() / 2) {
        (0, _) => 0.0,
        (n, half) if n % 2 == 1 => figures[half],
        (_, half) => (figures[half - 1] + figures[half]) / 2.0,
    }
}

/// How much longer than at best a piece of work of a millisecond takes on this machine now: in the middle, and
/// for one in ten. 1.0 is a quiet machine.
pub fn noise() -> (f64, f64) {
    let mut times: Vec<f64> = (0..300).map(|_| fixed_work().as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let best = times[0];
    (times[times.len() / 2] / best, times[times.len() * 9 / 10] / best)
}

/// CPU time that threads of this process with that name have had; `None` where the system doesn't tell.
pub fn cpu_time(thread: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        if name.trim_end() == thread {
            total += time_on_cpu(&task.path().join("schedstat"))?;
        }
    }
    Some(total)
}

/// CPU time that the calling thread has had; 0 where the system doesn't tell.
pub fn cpu_time_of_this_thread() -> Duration {
    time_on_cpu(Path::new("/proc/thread-self/schedstat")).unwrap_or_default()
}

fn time_on_cpu(schedstat: &Path) -> Option<Duration> {
    let text = fs::read_to_string(schedstat).ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

fn fixed_work() -> Duration {
    let started = Instant::now();
    let mut x = black_box(1u64);
    for _ in 0..300_000 {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    black_box(x);
    started.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
