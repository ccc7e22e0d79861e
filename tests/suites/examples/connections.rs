//! Many connections, at full size: 5000 one after the other, 10,000 at once, and those again on a wire that loses every
//! tenth frame. Then a link that goes down and up 100 times in 10 s with traffic on it (C11).
//!
//! `cargo run --release -p ferroce-suites --example connections`

use std::time::Duration;

use ferroce::verbs::WcStatus;
use ferroce_suites::cm::{Hosts, churn, storm};
use ferroce_suites::flaps::{count_log, flap};

fn main() {
    println!("one after the other:     {}", churn(5000));
    println!("64 at a time:            {}", storm(10_000, 64, 0.0));
    println!("64 at a time, 10 % lost: {}", storm(10_000, 64, 0.1));
    flaps();
}

/// A link that flaps: right data or a told error, and a quiet log.
fn flaps() {
    let records = count_log();
    let mut hosts = Hosts::new();
    let flaps = flap(
        &mut hosts,
        100,
        Duration::from_millis(100),
        Duration::from_millis(8),
    );
    println!(
        "100 link flaps in 10 s:  {} writes were right, {} connections lost and replaced, {} lines of log",
        flaps.writes,
        flaps.errors.len(),
        records()
    );
    let lost = WcStatus::TransportRetryExceeded;
    assert!(flaps.errors.iter().all(|status| *status == lost), "{flaps:?}");
    assert!(flaps.writes > 100, "{flaps:?}");
    assert!(records() < 1000, "{} lines of log", records());
    hosts.assert_clean();
}
