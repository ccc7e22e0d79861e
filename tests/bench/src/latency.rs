//! Round trip of 8 bytes: by RDMA WRITE over the whole path, and by TCP over loopback.
//!
//! WRITE: A writes 8 bytes inline into B's memory, B polls its memory and writes them back into A's, which A polls. Each
//! hop is what a program would do that waits for data: post, ring, the model fetches and delivers, the peer sees the
//! bytes. One thread plays both programs, since the model's engine needs a core of its own and three spinning threads
//! on two cores measure the scheduler; both hops go from core to core all the same.
//!
//! TCP: two threads on a connection over 127.0.0.1 without Nagle's delay, both spinning on a socket that doesn't block.

use std::hint::spin_loop;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use ferroce::verbs::{Payload, SendFlags, SendOp, SendWr};
use ferroce_nic_model::wire::Icrc;

use crate::rig::{Failure, PATIENCE, Rig, RigConfig, Side};
use crate::stats::median;

/// Round trips of one measurement.
const TRIPS: u64 = 20_000;
/// One WRITE in so many is signaled.
const SIGNAL_EVERY: u64 = 32;

/// Seconds for a round trip, medians.
pub struct Latency {
    pub write: f64,
    pub tcp: f64,
    /// Median of the ratios within each round.
    pub ratio: f64,
}

/// Measures `rounds` times, in turn.
pub fn measure(rounds: usize) -> Result<Latency, Failure> {
    let mut rig = Rig::new(&RigConfig {
        region: 4096,
        depth: 4 * SIGNAL_EVERY as u32,
        max_inline: 64,
        icrc: Icrc::On,
        stepped: false,
    })?;
    let mut next = 1;
    writes(&mut rig, &mut next)?;
    let (mut write, mut tcp, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let by_tcp = tcp_trips()?;
        let by_write = writes(&mut rig, &mut next)?;
        tcp.push(by_tcp);
        write.push(by_write);
        ratio.push(by_write / by_tcp);
    }
    Ok(Latency {
        write: median(&mut write),
        tcp: median(&mut tcp),
        ratio: median(&mut ratio),
    })
}

/// The median round trip of [`TRIPS`].
fn writes(rig: &mut Rig, next: &mut u64) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(TRIPS as usize);
    for _ in 0..TRIPS {
        let started = Instant::now();
        hop(&mut rig.a, &rig.b, *next)?;
        hop(&mut rig.b, &rig.a, *next)?;
        times.push(started.elapsed().as_secs_f64());
        *next += 1;
    }
    Ok(median(&mut times))
}

/// `value` from one side's program to the other's.
fn hop(from: &mut Side, to: &Side, value: u64) -> Result<(), Failure> {
    let signaled = value.is_multiple_of(SIGNAL_EVERY);
    from.qp.post_send(&SendWr {
        wr_id: value,
        op: SendOp::Write {
            data: Payload::Inline(&value.to_ne_bytes()),
            remote: to.mr.remote(0),
            imm: None,
        },
        flags: if signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        },
    })?;
    from.qp.ring_send();
    let mut spins = 0u32;
    while to.mr.read_u64(0)? != value {
        spin_loop();
        spins += 1;
        if spins == u32::MAX {
            return Err("a WRITE does not arrive".into());
        }
    }
    if value % SIGNAL_EVERY == SIGNAL_EVERY / 2 && value > SIGNAL_EVERY {
        // The last signaled one is long done.
        from.succeed(1)?;
    }
    Ok(())
}

fn tcp_trips() -> Result<f64, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let (mut peer, _) = listener.accept()?;
        prepare(&peer)?;
        let mut bytes = [0; 8];
        for _ in 0..TRIPS {
            receive(&mut peer, &mut bytes)?;
            peer.write_all(&bytes)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    prepare(&stream)?;
    let mut times = Vec::with_capacity(TRIPS as usize);
    let mut bytes = [0; 8];
    for trip in 0..TRIPS {
        let started = Instant::now();
        stream.write_all(&trip.to_ne_bytes())?;
        receive(&mut stream, &mut bytes)?;
        times.push(started.elapsed().as_secs_f64());
    }
    echo.join().map_err(|_| "the echoing thread panicked")??;
    Ok(median(&mut times))
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// Spins until all 8 bytes are there.
fn receive(stream: &mut TcpStream, bytes: &mut [u8; 8]) -> std::io::Result<()> {
    let started = Instant::now();
    let (mut got, mut spins) = (0, 0u32);
    while got < bytes.len() {
        match stream.read(&mut bytes[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                spins += 1;
                if spins.is_multiple_of(1 << 20) && started.elapsed() > PATIENCE {
                    return Err(ErrorKind::TimedOut.into());
                }
                spin_loop();
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
