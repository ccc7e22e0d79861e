//! ferroce's benchmarks, as one table. `scripts/bench` builds and runs this; `docs/performance.md` says how it measures.

mod bandwidth;
mod instructions;
mod latency;
mod report;
mod rig;
mod stats;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use ferroce_nic_model::wire::Icrc;

use instructions::Case;
use report::{Report, Row};
use rig::Failure;

#[derive(Parser)]
#[command(about = "Measures ferroce and prints a table.")]
struct Args {
    /// Prints one JSON object in place of the table.
    #[arg(long)]
    json: bool,
    /// Only these.
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Measurements of bandwidth and latency, of which the medians are shown.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Internal: the run that callgrind counts.
    #[arg(long, hide = true, value_enum)]
    count: Option<Case>,
    /// Internal: how many rounds it has.
    #[arg(long = "count-rounds", hide = true, default_value_t = 1)]
    count_rounds: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Instructions,
    Bandwidth,
    Latency,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.count {
        Some(case) => instructions::counted(case, args.count_rounds),
        None => measure(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferroce-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<(), Failure> {
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let rounds = usize::from(args.rounds);
    let mut report = Report::new();
    if wants(Part::Instructions) {
        for case in Case::ALL {
            report.progress(case.what());
            report
                .rows
                .push(Row::instructions(case, instructions::count(case)?));
        }
    }
    if wants(Part::Bandwidth) {
        for (icrc, what) in [
            (Icrc::On, "WRITEs of 64 KiB, ICRCs made and checked"),
            (Icrc::Off, "WRITEs of 64 KiB, without ICRCs"),
        ] {
            report.progress(what);
            let measured = bandwidth::measure(icrc, rounds)?;
            report.rows.push(Row::bandwidth(what, icrc, &measured));
            report.rows.push(Row::engine(what, &measured));
        }
    }
    if wants(Part::Latency) {
        let what = "round trip of 8 bytes by WRITE, memory polled";
        report.progress(what);
        report.rows.push(Row::latency(what, &latency::measure(rounds)?));
    }
    report.finish();
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}
