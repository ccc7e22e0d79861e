//! `ferroce operations`, hidden: all RC operations by chance, in both directions, with a program at the other end that
//! does as it is told (`tests/lab/share/operations_peer.py`, which uses Linux's verbs).
//!
//! This side knows what all memory of both sides has to hold after each batch, and compares: the peer tells hashes of
//! its own.

mod plan;
mod side;
mod talk;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;

use self::plan::{Kind, Memory, Op, Role};
use self::side::Side;
use self::talk::Talk;
use crate::args::path_mtu;
use crate::error::CliError;
use crate::exchange;
use crate::nic::{Nic, NicArgs};
use crate::output::say;

/// Arguments of `operations`.
#[derive(Debug, Args)]
pub struct OperationsArgs {
    /// Host name or IP address of the peer.
    #[arg(value_name = "HOST")]
    pub peer: String,

    /// The NIC. Its --seed is that of the operations, too.
    #[command(flatten)]
    pub nic: NicArgs,

    /// TCP port at which the peer listens.
    #[arg(short, long, value_name = "PORT", default_value_t = 18516)]
    pub port: u16,

    /// How many operations.
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,

    /// Path MTU in bytes.
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024, value_parser = path_mtu)]
    pub mtu: u16,

    /// The peer has no memory windows: nothing of its own can be invalidated.
    #[arg(long)]
    pub no_windows: bool,

    /// Leave READs and WRITEs of 0 bytes of this side's out: Linux's rdma_rxe can't repeat its answers to READs once it got one.
    #[arg(long)]
    pub no_empty_rdma: bool,
}

impl OperationsArgs {
    /// What that side may do.
    fn kinds(&self, from: Role) -> Vec<Kind> {
        let hindered = self.no_windows && from == Role::Host;
        let kinds = Kind::ALL.iter().copied();
        kinds
            .filter(|kind| !hindered || *kind != Kind::SendInvalidate)
            .collect()
    }

    /// How long anything may take: longer than all retries of a connection together.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }
}

pub fn run(args: &OperationsArgs) -> Result<ExitCode, CliError> {
    let nic = Nic::open(&args.nic.with_data_of_seed())?;
    let (counts, counted) = nic.with(|nic| Ok((play(args, nic)?, nic.counted())))?;
    say!(
        "{}",
        json!({ "ok": true, "operations": counts, "counters": counted })
    );
    Ok(ExitCode::SUCCESS)
}

fn play(args: &OperationsArgs, nic: &Nic) -> Result<BTreeMap<String, u64>, CliError> {
    let stream = exchange::connect(&args.peer, args.port, args.patience())?;
    let mut talk = Talk::new(stream)?;
    let seed = args.nic.faults.seed();
    let mut side = Side::new(nic, seed)?;
    let peer = talk.hello(&side.describe(nic, args.mtu, seed)?)?;
    side.connect(nic, args, &peer)?;
    let (mut ours, mut theirs) = (Memory::new(seed, Role::Host), Memory::new(seed, Role::Guest));
    let mut random = StdRng::seed_from_u64(seed);
    let mut counts = BTreeMap::new();
    let mut left = args.count as usize;
    while left > 0 {
        let from = if random.random() { Role::Host } else { Role::Guest };
        let ops = plan::batch(
            &mut random,
            left.min(plan::BATCH),
            &args.kinds(from),
            from == Role::Guest || !args.no_empty_rdma,
        );
        left -= ops.len();
        for op in &ops {
            *counts
                .entry(format!("{} by {}", op.kind.name(), from.name()))
                .or_default() += 1;
        }
        let batch = Batch {
            ops: &ops,
            patience: args.patience(),
        };
        match from {
            Role::Host => batch.begun_here(&mut side, &mut talk, &mut ours, &mut theirs)?,
            Role::Guest => batch.begun_there(&mut side, &mut talk, &mut ours, &mut theirs)?,
        }
    }
    talk.end()?;
    side.close()?;
    Ok(counts)
}

/// Some operations of one side.
struct Batch<'a> {
    ops: &'a [Op],
    patience: Duration,
}

impl Batch<'_> {
    fn begun_here(
        &self,
        side: &mut Side,
        talk: &mut Talk,
        ours: &mut Memory,
        theirs: &mut Memory,
    ) -> Result<(), CliError> {
        ours.begin();
        theirs.begin();
        side.begin(0)?;
        let keys = talk.target(self.ops)?;
        side.execute(self.ops, &keys, Instant::now() + self.patience)?;
        let report = talk.report()?;
        let results = plan::apply(self.ops, ours, theirs);
        side.check_results(&results, ours)?;
        side.check_memory(ours)?;
        plan::check_report(&report, theirs, &plan::arrivals(self.ops, &keys))
    }

    fn begun_there(
        &self,
        side: &mut Side,
        talk: &mut Talk,
        ours: &mut Memory,
        theirs: &mut Memory,
    ) -> Result<(), CliError> {
        ours.begin();
        theirs.begin();
        let receives = self.ops.iter().filter(|op| op.kind.takes_receive()).count();
        side.begin(receives)?;
        let keys = side.make_keys(self.ops)?;
        talk.initiate(self.ops, &keys)?;
        let report = talk.report()?;
        let arrived = side.arrivals(receives, Instant::now() + self.patience)?;
        let results = plan::apply(self.ops, theirs, ours);
        plan::check_results(&report, &results)?;
        plan::check_report(&report, theirs, &[])?;
        if arrived != plan::arrivals(self.ops, &keys) {
            return Err(CliError::Other(format!(
                "this side received {arrived:?}, which is not what the peer sent: {:?}",
                self.ops
            )));
        }
        side.check_memory(ours)
    }
}
