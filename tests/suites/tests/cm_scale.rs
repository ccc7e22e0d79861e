//! Many connections, and links that come and go. The full numbers are in `examples/connections.rs`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferroce::cm::Params;
use ferroce::verbs::{Payload, QpState, SendFlags, SendOp, SendWr, WcStatus};
use ferroce_suites::cm::{Hosts, soon, storm};

#[test]
fn c09_many_connections_at_once_are_all_made() {
    println!("{}", storm(1000, 64, 0.0));
}

#[test]
fn c09_a_wire_that_loses_every_tenth_datagram_loses_no_connection() {
    println!("{}", storm(300, 64, 0.1));
}

/// Counts what would be logged.
struct Counting;

static RECORDS: AtomicUsize = AtomicUsize::new(0);

impl log::Log for Counting {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            RECORDS.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// Writes until a write fails or it is told to stop: how many were right, and how it ended.
fn write_on(hosts: &mut Hosts, cycles: usize, period: Duration) -> (u64, Option<WcStatus>) {
    let mut listener = hosts.listen();
    let params = Params {
        ack_timeout: Some(Duration::from_millis(4)),
        ..Params::new()
    };
    let (mut active, _passive) = hosts.connect_with(&mut listener, &params, &Params::new());
    let (source, target) = (hosts.a.region(4096), hosts.b.region(4096));
    let started = Instant::now();
    let mut flips = 0;
    let mut writes = 0u64;
    while flips < 2 * cycles {
        source.write(0, &writes.to_be_bytes()).unwrap();
        let sges = [source.sge(0..4096).unwrap()];
        let op = SendOp::Write {
            data: Payload::Gather(&sges),
            remote: target.remote(0),
            imm: None,
        };
        let flags = SendFlags::SIGNALED;
        active
            .qp_mut()
            .post_send(&SendWr {
                wr_id: writes,
                op,
                flags,
            })
            .unwrap();
        active.qp_mut().ring_send();
        let done = loop {
            let due = (started.elapsed().as_nanos() / (period / 2).as_nanos()) as usize;
            if due > flips && flips < 2 * cycles {
                flips += 1;
                hosts.testbed.set_cable(flips % 2 == 0);
            }
            let _ = hosts.a.poller.wait(Instant::now() + Duration::from_millis(5));
            if let Some(done) = hosts.a.poller.poll_one().unwrap() {
                break done;
            }
        };
        match done.result() {
            Ok(done) => assert_eq!(done.wr_id, writes),
            Err(error) => {
                hosts.testbed.set_cable(true);
                assert_eq!(active.qp_mut().query().unwrap().state, QpState::Err);
                return (writes, Some(error.status));
            }
        }
        let mut there = [0; 8];
        target.read(0, &mut there).unwrap();
        assert_eq!(there, writes.to_be_bytes());
        writes += 1;
    }
    hosts.testbed.set_cable(true);
    active.disconnect(soon()).unwrap();
    (writes, None)
}

#[test]
fn c11_link_flaps_end_in_right_data_or_a_told_error_and_a_quiet_log() {
    static LOGGER: Counting = Counting;
    log::set_logger(&LOGGER).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let mut hosts = Hosts::new();
    // Flaps that the retries outlast, then some that they don't.
    let (writes, ended) = write_on(&mut hosts, 25, Duration::from_millis(40));
    assert!(writes > 25, "{writes} writes");
    assert!(
        ended.is_none() || ended == Some(WcStatus::TransportRetryExceeded),
        "{ended:?}"
    );
    let (_, ended) = write_on(&mut hosts, 1, Duration::from_secs(2));
    assert_eq!(ended, Some(WcStatus::TransportRetryExceeded));
    // Other tests of this process bring NICs up, and say so.
    let records = RECORDS.load(Ordering::Relaxed);
    assert!(records < 100, "{records} lines of log");
    hosts.assert_clean();
}
