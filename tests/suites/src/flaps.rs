//! Connections over a link that comes and goes, with traffic on it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferroce::cm::{Connection, Event, Params};
use ferroce::verbs::{Mr, Payload, QpState, SendFlags, SendOp, SendWr, WcStatus};

use crate::cm::{Hosts, soon};

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

/// Counts lines of log from now on, up to level Info; what comes back says how many there are.
///
/// # Panics
/// If the process has a logger already.
pub fn count_log() -> impl Fn() -> usize {
    static LOGGER: Counting = Counting;
    log::set_logger(&LOGGER).expect("no other logger");
    log::set_max_level(log::LevelFilter::Info);
    || RECORDS.load(Ordering::Relaxed)
}

/// What became of a run.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Flaps {
    /// Writes that were told as done, and whose data was there.
    pub writes: u64,
    /// How those ended that were told as failed; a new connection was made each time.
    pub errors: Vec<WcStatus>,
}

/// The link, which changes its state every half period.
struct Link {
    started: Instant,
    half: Duration,
    changes: usize,
    most: usize,
}

impl Link {
    /// Does what is due.
    fn turn(&mut self, hosts: &Hosts) {
        let due = (self.started.elapsed().as_nanos() / self.half.as_nanos()) as usize;
        if due > self.changes && self.changes < self.most {
            self.changes += 1;
            hosts.testbed.set_cable(self.changes.is_multiple_of(2));
        }
    }
}

/// Writes from one host to the other while the link goes down and up `cycles` times, once in each `period`. A connection that
/// is lost is replaced by another.
///
/// # Panics
/// If a write that is told as done isn't, or a queue pair on either side is not in the state that goes with what was told.
pub fn flap(hosts: &mut Hosts, cycles: usize, period: Duration, ack_timeout: Duration) -> Flaps {
    let mut listener = hosts.listen();
    let params = Params {
        ack_timeout: Some(ack_timeout),
        ..Params::new()
    };
    let regions = (hosts.a.region(4096), hosts.b.region(4096));
    let mut flaps = Flaps::default();
    let mut link = Link {
        started: Instant::now(),
        half: period / 2,
        changes: 0,
        most: 2 * cycles,
    };
    while link.changes < link.most {
        let (mut active, passive) = hosts.connect_with(&mut listener, &params, &Params::new());
        let error = write_on(hosts, &mut active, &regions, &mut link, &mut flaps.writes);
        hosts.testbed.set_cable(true);
        let state = if error.is_some() {
            QpState::Err
        } else {
            QpState::Rts
        };
        assert_eq!(active.qp_mut().query().expect("a QP").state, state, "{error:?}");
        flaps.errors.extend(error);
        end(active, passive);
    }
    flaps
}

/// Writes until a write fails, which it gives, or the link has changed often enough.
fn write_on(
    hosts: &mut Hosts,
    active: &mut Connection,
    (source, target): &(Mr, Mr),
    link: &mut Link,
    writes: &mut u64,
) -> Option<WcStatus> {
    while link.changes < link.most {
        source.write(0, &writes.to_be_bytes()).expect("within");
        let sges = [source.sge(0..4096).expect("within")];
        let op = SendOp::Write {
            data: Payload::Gather(&sges),
            remote: target.remote(0),
            imm: None,
        };
        let (wr_id, flags) = (*writes, SendFlags::SIGNALED);
        let qp = active.qp_mut();
        qp.post_send(&SendWr { wr_id, op, flags }).expect("room");
        qp.ring_send();
        let done = loop {
            link.turn(hosts);
            // Either there is a completion, or the link is to be looked at.
            let _ = hosts.a.poller.wait(Instant::now() + Duration::from_millis(5));
            if let Some(done) = hosts.a.poller.poll_one().expect("the CQ works") {
                break done;
            }
        };
        match done.result() {
            Ok(done) => assert_eq!(done.wr_id, wr_id),
            Err(error) => return Some(error.status),
        }
        let mut there = [0; 8];
        target.read(0, &mut there).expect("within");
        assert_eq!(there, writes.to_be_bytes());
        *writes += 1;
    }
    None
}

/// Ends a connection. The passive side has seen nothing but writes that came or didn't, until it is told.
fn end(mut active: Connection, mut passive: Connection) {
    let mut state = || passive.qp_mut().query().expect("a QP").state;
    assert_eq!(state(), QpState::Rts);
    active.disconnect(soon()).expect("the peer answers");
    let told = passive.wait_event(soon());
    assert!(matches!(told, Ok(Event::Disconnected(_))), "{told:?}");
    assert_eq!(passive.qp_mut().query().expect("a QP").state, QpState::Err);
}
