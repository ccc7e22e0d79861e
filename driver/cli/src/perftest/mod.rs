//! `ferroce perftest`, hidden: a peer for perftest's `ib_atomic_bw` (with `-x`, one queue pair, one direction), for tests
//! with Linux's drivers: no NIC user measures that. What measures, also with perftest, is `ferroce perf`.

pub mod talk;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, Mr, Pd, Qp, QpConfig, RemoteAddr, SendFlags, SendOp, SendWr, ToInit,
    ToRtr, ToRts,
};
use serde_json::json;

use self::talk::{Keys, Report, Talk};
use crate::args::path_mtu;
use crate::error::{CliError, failed};
use crate::exchange;
use crate::nic::{self, Nic, NicArgs};
use crate::output::say;

/// Requests outstanding at a time.
const DEPTH: u32 = 64;
/// READs and atomics at a time.
const OUT_READS: u8 = 16;
/// Bytes of an atomic.
const ATOMIC: usize = 8;
/// Largest memory that a peer may ask for.
const MOST_BYTES: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Test {
    /// `ib_atomic_bw -A FETCH_AND_ADD`.
    FetchAndAdd,
    /// `ib_atomic_bw -A CMP_AND_SWAP`.
    CompareAndSwap,
}

/// Arguments of `perftest`.
#[derive(Debug, Args)]
pub struct PerftestArgs {
    /// What the peer's program does.
    #[arg(value_enum)]
    pub test: Test,

    /// Host name or IP address of the server; without it, this is the server.
    #[arg(value_name = "HOST")]
    pub peer: Option<String>,

    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,

    /// TCP port of the exchange.
    #[arg(short, long, value_name = "PORT", default_value_t = 18515)]
    pub port: u16,

    /// How many messages.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: u32,

    /// Path MTU in bytes.
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024, value_parser = path_mtu)]
    pub mtu: u16,
}

pub fn run(args: &PerftestArgs) -> Result<ExitCode, CliError> {
    let (own, peer) = Nic::open(&args.nic)?.with(|nic| play(args, nic))?;
    let shown = |report: Report| json!({ "size": report.size, "iterations": report.iterations, "MiB/s": report.bandwidth, "Mpps": report.rate });
    say!(
        "{}",
        json!({ "ok": true, "own": shown(own), "peer": shown(peer) })
    );
    Ok(ExitCode::SUCCESS)
}

fn play(args: &PerftestArgs, nic: &Nic) -> Result<(Report, Report), CliError> {
    let stream = match &args.peer {
        Some(host) => exchange::connect(host, args.port, PATIENCE)?,
        None => exchange::accept(&exchange::listen(args.port)?, PATIENCE)?,
    };
    let mut talk = Talk::new(stream, args.peer.is_some());
    let mtu = nic::mtu(args.mtu)?;
    let (cycle, mtu) = talk.hello(mtu)?;
    let mut side = Side::new(nic, cycle as usize)?;
    let local = nic.gid(None)?;
    let own = side.keys(local.entry.gid);
    let peer = talk.keys(&own)?;
    let path = nic.path(&local, peer.gid, PATIENCE)?;
    side.connect(ToRtr {
        mtu,
        max_dest_rd_atomic: OUT_READS,
        ..ToRtr::new(path, peer.qpn, peer.psn)
    })?;
    // Connected, and ready.
    for _ in 0..2 {
        talk.keys(&own)?;
    }
    let measured = if args.peer.is_some() {
        side.work(args, peer.memory)?
    } else {
        Report::default()
    };
    talk.keys(&own)?;
    let peer = talk.reports(&measured)?;
    talk.keys(&own)?;
    Ok((measured, peer))
}

/// This side's verbs objects. Fields go in this order.
struct Side {
    qp: Qp,
    poller: CqPoller,
    region: Mr,
    psn: u32,
    _pd: Pd,
}

impl Side {
    fn new(nic: &Nic, cycle: usize) -> Result<Side, CliError> {
        let context = nic.context();
        let len = ATOMIC.max(cycle);
        if len > MOST_BYTES {
            return Err(CliError::Other(format!(
                "the peer wants a buffer of {len} bytes; {MOST_BYTES} is the most that it gets"
            )));
        }
        let pd = Pd::alloc(context).map_err(failed("protection domain"))?;
        let (cq, poller) = Cq::create(context, CqConfig::new(DEPTH + 1)).map_err(failed("CQ"))?;
        let region = Mr::alloc(&pd, len, Access::supported_by(context)).map_err(failed("memory region"))?;
        let config = QpConfig {
            max_send_wr: DEPTH,
            max_recv_wr: 1,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&pd, &cq, &cq, &config).map_err(failed("QP"))?;
        qp.modify_to_init(&ToInit::default())
            .map_err(failed("QP to INIT"))?;
        Ok(Side {
            qp,
            poller,
            region,
            psn: rand::random::<u32>() & 0xff_ffff,
            _pd: pd,
        })
    }

    fn keys(&self, gid: ferroce::gid::Gid) -> Keys {
        Keys {
            qpn: self.qp.qpn(),
            psn: self.psn,
            out_reads: OUT_READS,
            memory: self.region.remote(0),
            gid,
        }
    }

    fn connect(&mut self, to_rtr: ToRtr) -> Result<(), CliError> {
        self.qp.modify_to_rtr(&to_rtr).map_err(failed("QP to RTR"))?;
        self.qp
            .modify_to_rts(&ToRts::new(self.psn))
            .map_err(failed("QP to RTS"))
    }

    fn post_send(&mut self, args: &PerftestArgs, remote: RemoteAddr) -> Result<(), CliError> {
        let sge = self.region.sge(0..ATOMIC).map_err(failed("memory region"))?;
        let op = match args.test {
            Test::FetchAndAdd => SendOp::FetchAdd {
                into: sge,
                remote,
                add: 1,
            },
            Test::CompareAndSwap => SendOp::CompareSwap {
                into: sge,
                remote,
                compare: 0,
                swap: 0,
            },
        };
        let wr = SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
        };
        self.qp.post_send(&wr).map_err(failed("request"))
    }

    /// Does all of them.
    fn work(&mut self, args: &PerftestArgs, remote: RemoteAddr) -> Result<Report, CliError> {
        let begun = Instant::now();
        let deadline = begun + PATIENCE;
        let (mut posted, mut done) = (0, 0);
        while done < args.iters {
            while posted < args.iters && posted - done < DEPTH {
                self.post_send(args, remote)?;
                posted += 1;
            }
            self.qp.ring_send();
            self.poller.wait(deadline).map_err(failed("completion"))?;
            while let Some(wc) = self.poller.poll_one().map_err(failed("completion"))? {
                drop(wc.result().map_err(failed("request"))?);
                done += 1;
            }
        }
        Ok(report(args, begun.elapsed()))
    }
}

fn report(args: &PerftestArgs, took: Duration) -> Report {
    let (size, iterations) = (ATOMIC as u64, u64::from(args.iters));
    let seconds = took.as_secs_f64().max(f64::MIN_POSITIVE);
    Report {
        size,
        iterations,
        bandwidth: (size * iterations) as f64 / seconds / f64::from(1 << 20),
        rate: iterations as f64 / seconds / 1e6,
    }
}
