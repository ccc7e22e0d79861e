//! Instructions of the fast path, counted by callgrind.
//!
//! This program runs itself under callgrind, which counts inside of the functions `counted_*` only. What is counted
//! is the driver on real queues of a NIC that the model plays; the model works in the ringing thread, under
//! `Bar::write`, where a doorbell leaves the driver, and what that call costs is taken off. (With mapped doorbells, as
//! under vfio-pci, a store stands there.) Each case runs for N and for 2 N operations; the difference is N operations
//! and nothing else.

use std::fs;
use std::hint::black_box;
use std::process::Command;

use clap::ValueEnum;
use ferroce::verbs::{CqPoller, Lkey, Payload, Qp, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
use ferroce_nic_model::wire::Icrc;

use crate::rig::{Failure, Rig, RigConfig};

/// Requests of a batch.
pub const BATCH: usize = 32;
/// Batches of a run; the second run has twice as many.
const ROUNDS: u32 = 16;
/// Where a doorbell leaves the driver.
const OUTSIDE: &str = "ferroce::mmio::Bar::write";
/// Bytes of a small message.
const SMALL: usize = 32;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    WriteOne,
    WriteBatch,
    WriteList,
    InlineOne,
    InlineBatch,
    Ring,
    PollOne,
    PollBatch,
    PollEmpty,
}

impl Case {
    pub const ALL: [Case; 9] = [
        Case::WriteOne,
        Case::WriteBatch,
        Case::WriteList,
        Case::InlineOne,
        Case::InlineBatch,
        Case::Ring,
        Case::PollOne,
        Case::PollBatch,
        Case::PollEmpty,
    ];

    pub fn what(self) -> &'static str {
        match self {
            Case::WriteOne => "post and ring one WRITE, one SGE",
            Case::WriteBatch => "a WRITE of one SGE in a batch of 32, ring included",
            Case::WriteList => "the same through post_send_list",
            Case::InlineOne => "post and ring one inline SEND of 32 bytes",
            Case::InlineBatch => "an inline SEND of 32 bytes in a batch of 32, ring included",
            Case::Ring => "ring alone",
            Case::PollOne => "poll one CQE",
            Case::PollBatch => "a CQE in a batch of 32 polled",
            Case::PollEmpty => "poll an empty CQ",
        }
    }

    /// Most instructions that it is to take some day.
    pub fn target(self) -> Option<f64> {
        matches!(
            self,
            Case::WriteBatch | Case::WriteList | Case::InlineBatch | Case::PollBatch
        )
        .then_some(40.0)
    }

    fn operations_of_a_round(self) -> u32 {
        match self {
            Case::WriteBatch | Case::WriteList | Case::InlineBatch | Case::PollBatch => BATCH as u32,
            Case::WriteOne | Case::InlineOne | Case::Ring | Case::PollOne | Case::PollEmpty => 1,
        }
    }
}

/// Instructions of one operation.
pub fn count(case: Case) -> Result<f64, Failure> {
    let once = run(case, ROUNDS)?;
    let twice = run(case, 2 * ROUNDS)?;
    let more = twice.checked_sub(once).ok_or("callgrind counted backwards")?;
    Ok(more as f64 / f64::from(ROUNDS * case.operations_of_a_round()))
}

fn run(case: Case, rounds: u32) -> Result<u64, Failure> {
    let name = case.to_possible_value().ok_or("a case has a name")?;
    let file = std::env::temp_dir().join(format!("ferroce-bench-{}.callgrind", std::process::id()));
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg("--toggle-collect=*ferroce_bench::instructions::counted_*")
        .arg(std::env::current_exe()?)
        .args(["--count", name.get_name(), "--count-rounds", &rounds.to_string()])
        .output()
        .map_err(|e| format!("valgrind can't be started ({e}); scripts/setup installs it"))?;
    let profile = fs::read_to_string(&file);
    let _ = fs::remove_file(&file);
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        return Err(format!("callgrind failed with {}:\n{text}", out.status).into());
    }
    instructions(&profile?).ok_or_else(|| "callgrind's file has no totals".into())
}

/// What a callgrind file counted in all, but for calls of [`OUTSIDE`].
fn instructions(profile: &str) -> Option<u64> {
    let (mut total, mut outside) = (None, 0);
    let mut callee = "";
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if line.starts_with("calls=") {
            // The next line has the calls' place and their cost, of all that they called too.
            let cost = lines.next()?.split(' ').nth(1)?;
            if callee.contains(OUTSIDE) {
                outside += cost.parse::<u64>().ok()?;
            }
        } else if let Some(cost) = line.strip_prefix("totals:") {
            total = cost.trim().parse::<u64>().ok();
        }
    }
    total?.checked_sub(outside)
}

/// The run that is counted.
pub fn counted(case: Case, rounds: u32) -> Result<(), Failure> {
    let mut rig = Rig::new(&RigConfig {
        region: 1 << 16,
        depth: 128,
        max_inline: 64,
        icrc: Icrc::On,
        stepped: true,
    })?;
    let target = Target {
        addr: rig.a.mr.addr(),
        lkey: Lkey::new(rig.a.mr.lkey()).ok_or("a region's key")?,
        remote: rig.b.mr.remote(0),
    };
    for _ in 0..rounds {
        round(case, &mut rig, &target)?;
    }
    Ok(())
}

/// Where the requests read and write.
struct Target {
    addr: u64,
    lkey: Lkey,
    remote: RemoteAddr,
}

fn round(case: Case, rig: &mut Rig, target: &Target) -> Result<(), Failure> {
    let data = [7; SMALL];
    let (qp, poller) = (&mut rig.a.qp, &mut rig.a.poller);
    match case {
        Case::InlineOne | Case::InlineBatch => {
            let sends = case.operations_of_a_round() as usize;
            for _ in 0..sends {
                let into = rig.b.mr.sge(0..64)?;
                rig.b.qp.post_recv(&RecvWr {
                    wr_id: 0,
                    sges: &[into],
                })?;
            }
            rig.b.qp.ring_recv();
            if sends == 1 {
                counted_inline_one(qp, black_box(&data));
            } else {
                counted_inline_batch(qp, black_box(&data));
            }
            rig.a.succeed(sends)?;
            rig.b.succeed(sends)
        }
        Case::WriteOne => {
            counted_write_one(qp, black_box(target));
            rig.a.succeed(1)
        }
        Case::WriteBatch => {
            counted_write_batch(qp, black_box(target));
            rig.a.succeed(BATCH)
        }
        Case::WriteList => {
            let sges: [[Sge; 1]; BATCH] = std::array::from_fn(|i| [target.sge(i as u64)]);
            let wrs: [SendWr<'_>; BATCH] = std::array::from_fn(|i| target.write(i as u64, &sges[i]));
            counted_write_list(qp, black_box(&wrs));
            rig.a.succeed(BATCH)
        }
        Case::Ring => {
            qp.post_send(&target.write(0, &[target.sge(0)]))?;
            counted_ring(qp);
            rig.a.succeed(1)
        }
        Case::PollOne | Case::PollBatch => {
            let batch = if case == Case::PollOne { 1 } else { BATCH };
            for i in 0..batch as u64 {
                qp.post_send(&target.write(i, &[target.sge(i)]))?;
            }
            qp.ring_send();
            let sum = if batch == 1 {
                counted_poll_one(poller)
            } else {
                counted_poll_batch(poller)
            };
            let expected = (0..batch as u64).sum::<u64>();
            if sum == Some(expected) {
                Ok(())
            } else {
                Err(format!("polled {sum:?}, not {expected}").into())
            }
        }
        Case::PollEmpty => {
            counted_poll_batch(poller);
            Ok(())
        }
    }
}

impl Target {
    #[inline(always)]
    fn sge(&self, i: u64) -> Sge {
        Sge::new(self.addr + 64 * i, 64, self.lkey)
    }

    #[inline(always)]
    fn write<'a>(&self, i: u64, sges: &'a [Sge; 1]) -> SendWr<'a> {
        SendWr {
            wr_id: i,
            op: SendOp::Write {
                data: Payload::Gather(sges),
                remote: self.remote,
                imm: None,
            },
            flags: SendFlags::SIGNALED,
        }
    }
}

#[inline(always)]
fn inline_send(data: &[u8; SMALL], i: u64) -> SendWr<'_> {
    SendWr {
        wr_id: i,
        op: SendOp::Send {
            data: Payload::Inline(data),
            imm: None,
        },
        flags: SendFlags::SIGNALED,
    }
}

#[inline(never)]
fn counted_write_one(qp: &mut Qp, target: &Target) {
    black_box(qp.post_send(&target.write(0, &[target.sge(0)])).is_ok());
    qp.ring_send();
}

#[inline(never)]
fn counted_write_batch(qp: &mut Qp, target: &Target) {
    for i in 0..BATCH as u64 {
        if qp.post_send(&target.write(i, &[target.sge(i)])).is_err() {
            return;
        }
    }
    qp.ring_send();
}

#[inline(never)]
fn counted_write_list(qp: &mut Qp, wrs: &[SendWr<'_>; BATCH]) {
    black_box(qp.post_send_list(wrs).is_ok());
}

#[inline(never)]
fn counted_inline_one(qp: &mut Qp, data: &[u8; SMALL]) {
    black_box(qp.post_send(&inline_send(data, 0)).is_ok());
    qp.ring_send();
}

#[inline(never)]
fn counted_inline_batch(qp: &mut Qp, data: &[u8; SMALL]) {
    for i in 0..BATCH as u64 {
        if qp.post_send(&inline_send(data, i)).is_err() {
            return;
        }
    }
    qp.ring_send();
}

#[inline(never)]
fn counted_ring(qp: &mut Qp) {
    qp.ring_send();
}

/// The sum of the requests' names; `None` if one failed.
#[inline(never)]
fn counted_poll_one(poller: &mut CqPoller) -> Option<u64> {
    poll(poller, 1)
}

#[inline(never)]
fn counted_poll_batch(poller: &mut CqPoller) -> Option<u64> {
    poll(poller, BATCH)
}

#[inline(always)]
fn poll(poller: &mut CqPoller, max: usize) -> Option<u64> {
    let (mut sum, mut good) = (0, true);
    let polled = poller.poll(max, |wc| {
        good &= wc.is_ok();
        sum += wc.wr_id();
    });
    (polled.is_ok() && good).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_doorbell_costs_behind_the_driver_is_taken_off() {
        let profile = "events: Ir\n\nfn=counted_ring\n10 5\ncfn=ferroce::mmio::Bar::write\ncalls=2 7\n11 900\n\
                       cfn=other\ncalls=1 3\n12 20\n\nfn=other\n3 20\n\ntotals: 925\n";
        assert_eq!(instructions(profile), Some(25));
        assert_eq!(instructions("events: Ir\n"), None);
    }
}
