//! The measurements.

use std::time::{Duration, Instant};

use ferroce::verbs::RemoteAddr;
use hdrhistogram::Histogram;

use super::args::{PerfArgs, Test};
use super::ends::{Ends, silence};
use super::report::Row;
use super::talk::Talk;
use crate::error::{CliError, failed};

/// Looks at the memory before the time is asked for.
const SPINS: u32 = 4096;

/// Measures one size.
pub fn size(
    args: &PerfArgs,
    ends: &mut Ends,
    peer: RemoteAddr,
    talk: &mut Talk,
    size: usize,
) -> Result<Row, CliError> {
    let client = args.is_client();
    // What the first messages find here. perftest's may have come: it does not meet before each size, and looks at bytes
    // where none of another size has been.
    if !args.with_perftest {
        ends.remote.fill(0, size, 0).map_err(failed("memory region"))?;
    }
    let receives = match args.test {
        Test::SendBw if !client => args.rx_depth.min(args.iters()),
        Test::SendLat => 1,
        _ => 0,
    };
    for qp in 0..ends.lines.len() {
        for _ in 0..receives {
            ends.post_recv(qp, size)?;
        }
    }
    talk.begin()?;
    let started = Instant::now();
    let mut histogram = Histogram::<u64>::new(3).map_err(failed("histogram"))?;
    match args.test {
        Test::WriteLat => write_latency(args, ends, peer, size, &mut histogram)?,
        Test::SendLat => send_latency(args, ends, peer, size, &mut histogram)?,
        Test::ReadLat | Test::AtomicLat if client => latency(args, ends, peer, size, &mut histogram)?,
        Test::WriteBw | Test::ReadBw | Test::SendBw if client => bandwidth(args, ends, peer, size)?,
        Test::SendBw => receive(args, ends, size)?,
        // The server's NIC does it.
        Test::ReadLat | Test::AtomicLat | Test::WriteBw | Test::ReadBw => {}
    }
    let took = started.elapsed();
    talk.end()?;
    Ok(Row::new(args, size, took, &histogram))
}

fn record(histogram: &mut Histogram<u64>, took: Duration) -> Result<(), CliError> {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    histogram.record(nanos).map_err(failed("histogram"))
}

/// As many as may be under way at a time, until all are done.
fn bandwidth(args: &PerfArgs, ends: &mut Ends, peer: RemoteAddr, size: usize) -> Result<(), CliError> {
    let count = ends.lines.len();
    let (mut posted, mut done) = (vec![0; count], 0);
    for _ in 0..args.tx_depth.min(args.iters()) {
        for (qp, posted) in posted.iter_mut().enumerate() {
            ends.post(args, peer, qp, size)?;
            *posted += 1;
        }
    }
    while done < u64::from(args.iters()) * count as u64 {
        let (qp, _) = ends.next(args)?;
        done += 1;
        if posted[qp] < args.iters() {
            ends.post(args, peer, qp, size)?;
            posted[qp] += 1;
        }
    }
    Ok(())
}

/// The other side of SEND's bandwidth.
fn receive(args: &PerfArgs, ends: &mut Ends, size: usize) -> Result<(), CliError> {
    let count = ends.lines.len();
    let mut posted = vec![args.rx_depth.min(args.iters()); count];
    for _ in 0..u64::from(args.iters()) * count as u64 {
        let (qp, _) = ends.next(args)?;
        if posted[qp] < args.iters() {
            ends.post_recv(qp, size)?;
            posted[qp] += 1;
        }
    }
    Ok(())
}

/// One at a time, from the post to the completion.
fn latency(
    args: &PerfArgs,
    ends: &mut Ends,
    peer: RemoteAddr,
    size: usize,
    histogram: &mut Histogram<u64>,
) -> Result<(), CliError> {
    for _ in 0..args.iters() {
        let started = Instant::now();
        ends.post(args, peer, 0, size)?;
        ends.next(args)?;
        record(histogram, started.elapsed())?;
    }
    Ok(())
}

/// Messages to and fro.
fn send_latency(
    args: &PerfArgs,
    ends: &mut Ends,
    peer: RemoteAddr,
    size: usize,
    histogram: &mut Histogram<u64>,
) -> Result<(), CliError> {
    let mut sends = 0;
    for number in 0..args.iters() {
        let started = Instant::now();
        if args.is_client() {
            ends.post(args, peer, 0, size)?;
            sends += 1;
        }
        while !ends.next(args)?.1 {
            sends -= 1;
        }
        if args.is_client() {
            record(histogram, started.elapsed() / 2)?;
        }
        // Before the message that lets the peer send again.
        if number + 1 < args.iters() {
            ends.post_recv(0, size)?;
        }
        if !args.is_client() {
            ends.post(args, peer, 0, size)?;
            sends += 1;
        }
        while sends > 1 {
            ends.next(args)?;
            sends -= 1;
        }
    }
    while sends > 0 {
        ends.next(args)?;
        sends -= 1;
    }
    Ok(())
}

/// WRITEs to and fro, whose last byte, which comes last, is their number's lowest, as in perftest.
fn write_latency(
    args: &PerfArgs,
    ends: &mut Ends,
    peer: RemoteAddr,
    size: usize,
    histogram: &mut Histogram<u64>,
) -> Result<(), CliError> {
    // In perftest it is the server that writes first. Its client has a latency less, as nothing answers its last WRITE.
    let first = args.is_client() != args.with_perftest;
    let mut posted = None;
    for number in 1..=args.iters() {
        let mark = [number as u8];
        ends.local
            .write(size - 1, &mark)
            .map_err(failed("memory region"))?;
        if first {
            posted = Some(Instant::now());
            ends.post(args, peer, 0, size)?;
        }
        arrived(args, ends, size, mark)?;
        if args.is_client()
            && let Some(posted) = posted
        {
            record(histogram, posted.elapsed() / 2)?;
        }
        if !first {
            posted = Some(Instant::now());
            ends.post(args, peer, 0, size)?;
        }
        ends.next(args)?;
    }
    Ok(())
}

/// Waits until the last byte is there.
fn arrived(args: &PerfArgs, ends: &mut Ends, size: usize, mark: [u8; 1]) -> Result<(), CliError> {
    let deadline = Instant::now() + args.patience();
    loop {
        for _ in 0..SPINS {
            let mut last = [0];
            ends.remote
                .read(size - 1, &mut last)
                .map_err(failed("memory region"))?;
            if last == mark {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        ends.check()?;
        if Instant::now() >= deadline {
            return Err(silence(args));
        }
        std::thread::yield_now();
    }
}
