//! `ferroce perf`: bandwidth and latency between two sides, with the habits of perftest. Both sides are this program, or one
//! is perftest's.

mod args;
mod cm;
mod control;
mod ends;
mod hello;
mod measure;
mod plan;
mod report;
mod talk;
mod with_perftest;

use std::net::TcpListener;
use std::process::ExitCode;

use ferroce::cm::Manager;
use ferroce::verbs::RemoteAddr;
use serde_json::json;

pub use self::args::PerfArgs;
use self::ends::{Ends, Peer};
use self::report::{Report, warnings};
use self::talk::{Lines, Talk};
use crate::error::{CliError, chain};
use crate::exchange;
use crate::nic::Nic;
use crate::output::say;

/// Bytes of an atomic.
const ATOMIC: usize = 8;

pub fn run(args: &PerfArgs) -> Result<ExitCode, CliError> {
    args.check()?;
    let listener = if args.rdma_cm || args.is_client() {
        None
    } else {
        Some(exchange::listen(args.port)?)
    };
    let report = Nic::open(&args.nic)?.with(|nic| match args.rdma_cm {
        true => nic.with_manager(args.patience(), |manager| by_cm(args, nic, manager)),
        false => by_tcp(args, nic, listener),
    })?;
    report.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures between sides that meet by the connection manager.
fn by_cm(args: &PerfArgs, nic: &Nic, manager: &Manager) -> Result<Report, CliError> {
    let mut ends = Ends::new(args, nic, ATOMIC)?;
    let (control, memory) = cm::meet(args, nic, manager, &mut ends)?;
    let mut talk = Talk::Cm(Box::new(control));
    let report = all_sizes(args, &mut ends, memory, &mut talk)?;
    talk.part(args.is_client(), report.rows.last())?;
    ends.part(args.is_client());
    ends.close()?;
    Ok(report)
}

/// Measures between sides that meet over TCP.
fn by_tcp(args: &PerfArgs, nic: &Nic, listener: Option<TcpListener>) -> Result<Report, CliError> {
    let stream = match (&listener, &args.server) {
        (Some(listener), _) => {
            if args.port == 0
                && let Ok(address) = listener.local_addr()
                && !args.json
            {
                say!("  listening at TCP port {}", address.port());
            }
            exchange::accept(listener, args.patience())?
        }
        (None, Some(host)) => exchange::connect(host, args.port, args.patience())?,
        (None, None) => return Err(CliError::Other("neither a server nor a client".to_string())),
    };
    let (mut ends, peer, mut talk);
    if args.with_perftest {
        let exchange;
        (ends, peer, exchange) = with_perftest::meet(args, nic, stream)?;
        talk = Talk::Perftest(Box::new(exchange));
    } else {
        let mut lines = Lines::new(stream)?;
        ends = Ends::new(args, nic, ATOMIC)?;
        peer = exchange_addresses(args, nic, &mut lines, &mut ends)?;
        talk = Talk::Tcp(lines);
    }
    let report = all_sizes(args, &mut ends, peer.memory, &mut talk)?;
    talk.part(args.is_client(), report.rows.last())?;
    ends.close()?;
    Ok(report)
}

/// Tells the peer where this side is, and connects the queue pairs. The client's GID is first: the server's is one that
/// fits it.
fn exchange_addresses(
    args: &PerfArgs,
    nic: &Nic,
    lines: &mut Lines,
    ends: &mut Ends,
) -> Result<Peer, CliError> {
    if args.is_client() {
        let gid = nic.gid(None)?;
        lines.say(&ends.describe(args, &gid))?;
        let peer = Peer::read(&lines.hear()?, args)?;
        ends.connect(args, nic, &gid, &peer)?;
        return Ok(peer);
    }
    let said = lines.hear()?;
    // The client is told why, too.
    let peer = Peer::read(&said, args).inspect_err(|error| {
        let _ = lines.say(&json!({ "error": chain(error) }));
    })?;
    let gid = nic.gid(Some(peer.gid))?;
    ends.connect(args, nic, &gid, &peer)?;
    lines.say(&ends.describe(args, &gid))?;
    Ok(peer)
}

fn all_sizes(
    args: &PerfArgs,
    ends: &mut Ends,
    peer: RemoteAddr,
    talk: &mut Talk,
) -> Result<Report, CliError> {
    let mut report = Report::new(args, warnings(args));
    for size in args.sizes() {
        report.rows.push(measure::size(args, ends, peer, talk, size)?);
    }
    Ok(report)
}
