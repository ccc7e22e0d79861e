//! Many connections, and links that come and go. The full numbers are in `examples/connections.rs`.

use std::time::Duration;

use ferroce::verbs::WcStatus;
use ferroce_suites::cm::{Hosts, storm};
use ferroce_suites::flaps::{count_log, flap};

#[test]
fn c09_many_connections_at_once_are_all_made() {
    println!("{}", storm(1000, 64, 0.0));
}

#[test]
fn c09_a_wire_that_loses_every_tenth_datagram_loses_no_connection() {
    println!("{}", storm(300, 64, 0.1));
}

#[test]
fn c11_link_flaps_end_in_right_data_or_a_told_error_and_a_quiet_log() {
    let records = count_log();
    let mut hosts = Hosts::new();
    let (ack_timeout, lost) = (Duration::from_millis(4), WcStatus::TransportRetryExceeded);
    // Flaps that the retries outlast, then one that they don't.
    let short = flap(&mut hosts, 25, Duration::from_millis(40), ack_timeout);
    assert!(short.writes > 25, "{short:?}");
    assert!(short.errors.iter().all(|status| *status == lost), "{short:?}");
    let long = flap(&mut hosts, 1, Duration::from_secs(2), ack_timeout);
    assert_eq!(long.errors, [lost], "{long:?}");
    // Other tests of this process bring NICs up, and say so.
    assert!(records() < 100, "{} lines of log", records());
    hosts.assert_clean();
}
