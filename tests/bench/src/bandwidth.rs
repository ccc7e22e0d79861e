//! Bandwidth of RDMA WRITEs over the whole path, next to what one core copies.
//!
//! Both move blocks of 64 KiB from one span of 64 MiB to another, in turn, round and round.

use std::time::{Duration, Instant};

use ferroce::verbs::{Payload, SendFlags, SendOp, SendWr};
use ferroce_nic_model::wire::Icrc;

use crate::rig::{Failure, PATIENCE, Rig, RigConfig};
use crate::stats::{cpu_time, cpu_time_of_this_thread, median};

const BLOCK: usize = 64 << 10;
const SPAN: usize = 64 << 20;
/// WRITEs under way at a time.
const DEPTH: u32 = 256;
/// Blocks of one measurement: twice round the span.
const BLOCKS: usize = 2 * SPAN / BLOCK;

/// Bytes per second, medians over the rounds.
pub struct Bandwidth {
    pub write: f64,
    pub memcpy: f64,
    /// Median of the ratios within each round.
    pub ratio: f64,
    /// Bytes per second of CPU time of the models' engine, which is what limits `write` where it has a core to itself.
    pub per_engine_second: f64,
    /// Median of the ratios of that to what a core copies in a second of CPU time, within each round.
    pub engine_ratio: f64,
}

/// Name of the thread that drives the models.
const ENGINE: &str = "nic-model";

/// Measures `rounds` times, WRITEs and copies in turn.
pub fn measure(icrc: Icrc, rounds: usize) -> Result<Bandwidth, Failure> {
    let mut rig = Rig::new(&RigConfig {
        region: SPAN,
        depth: 2 * DEPTH,
        max_inline: 0,
        icrc,
        stepped: false,
    })?;
    let mut copies = Copies::new();
    writes(&mut rig)?;
    copies.run();
    let (mut write, mut memcpy, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    let (mut engine, mut engine_ratio) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let started = cpu_time_of_this_thread();
        let copied = copies.run();
        let copied_per_second = per_second(cpu_time_of_this_thread().saturating_sub(started));
        let before = cpu_time(ENGINE).unwrap_or_default();
        let written = writes(&mut rig)?;
        let spent = cpu_time(ENGINE).unwrap_or_default().saturating_sub(before);
        engine.push(per_second(spent));
        engine_ratio.push(per_second(spent) / copied_per_second);
        memcpy.push(copied);
        write.push(written);
        ratio.push(written / copied);
    }
    Ok(Bandwidth {
        write: median(&mut write),
        memcpy: median(&mut memcpy),
        ratio: median(&mut ratio),
        per_engine_second: median(&mut engine),
        engine_ratio: median(&mut engine_ratio),
    })
}

/// Bytes of a measurement for each second of `time`.
fn per_second(time: Duration) -> f64 {
    (BLOCKS * BLOCK) as f64 / time.as_secs_f64().max(1e-9)
}

struct Copies {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copies {
    fn new() -> Copies {
        Copies {
            from: vec![0x5a; SPAN],
            to: vec![0xa5; SPAN],
        }
    }

    fn run(&mut self) -> f64 {
        let started = Instant::now();
        for block in 0..BLOCKS {
            let at = block * BLOCK % SPAN;
            self.to[at..at + BLOCK].copy_from_slice(&self.from[at..at + BLOCK]);
        }
        std::hint::black_box(&self.to);
        (BLOCKS * BLOCK) as f64 / started.elapsed().as_secs_f64()
    }
}

fn writes(rig: &mut Rig) -> Result<f64, Failure> {
    let started = Instant::now();
    let (mut posted, mut done) = (0, 0);
    let mut failed = None;
    while done < BLOCKS {
        let room = (DEPTH as usize - (posted - done)).min(BLOCKS - posted);
        for _ in 0..room {
            let at = posted * BLOCK % SPAN;
            let sges = [rig.a.mr.sge(at..at + BLOCK)?];
            rig.a.qp.post_send(&SendWr {
                wr_id: posted as u64,
                op: SendOp::Write {
                    data: Payload::Gather(&sges),
                    remote: rig.b.mr.remote(at),
                    imm: None,
                },
                flags: SendFlags::SIGNALED,
            })?;
            posted += 1;
        }
        rig.a.qp.ring_send();
        let mut spins = 0u32;
        loop {
            let polled = rig.a.poller.poll(DEPTH as usize, |wc| {
                if let Err(error) = wc.result() {
                    failed.get_or_insert(error);
                }
            })?;
            if let Some(error) = failed {
                return Err(Box::new(error));
            }
            if polled > 0 {
                done += polled;
                break;
            }
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(1 << 20) && started.elapsed() > PATIENCE {
                return Err("WRITEs don't complete".into());
            }
        }
    }
    Ok((BLOCKS * BLOCK) as f64 / started.elapsed().as_secs_f64())
}
