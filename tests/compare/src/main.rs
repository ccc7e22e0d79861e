//! `compare-bringup`: see `scripts/compare-bringup`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ferroce_compare::compare::{changes, compare};
use ferroce_compare::programs::{Program, load, load_file, top};
use ferroce_compare::reasons::Reasons;
use ferroce_compare::record::{parse, write};
use ferroce_compare::report::DOCUMENT;
use ferroce_compare::{report, shrink};

/// Compares what Linux's mlx5 drivers, rdma-core's VFIO provider and ferroce say to a NIC.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compares, writes docs/bringup-comparison.md, and lists the differences that have no reason.
    Write,
    /// Lists the differences that have no reason, with other recordings than the committed ones if they are given; also
    /// what those have that the committed ones have not, and the other way round.
    Check {
        /// A recording of Linux's drivers.
        #[arg(long, value_name = "FILE")]
        linux: Option<PathBuf>,
        /// A recording of rdma-core's VFIO provider.
        #[arg(long, value_name = "FILE")]
        rdma_core: Option<PathBuf>,
    },
    /// Makes a recording small enough to keep.
    Shrink {
        /// The recording of the model.
        from: PathBuf,
        /// The small form.
        to: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("compare-bringup: {error}");
            let mut source = error.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let reasons = Reasons::parse(&std::fs::read_to_string(top().join(report::REASONS))?)?;
    let mut acts = BTreeMap::new();
    match &args.command {
        Command::Shrink { from, to } => {
            let records = parse(&std::fs::read_to_string(from)?)?;
            std::fs::write(to, write(&shrink::shrink(&records)))?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Check { linux, rdma_core } => {
            for (program, path) in [(Program::Linux, linux), (Program::RdmaCore, rdma_core)] {
                if let Some(path) = path {
                    let new = load_file(path)?;
                    // Which of them say something depends on what the programs did by chance: only told.
                    for line in changes(&load(program)?, &new) {
                        println!("not as in the kept recording of {}: {line}", program.name());
                    }
                    acts.insert(program, new);
                }
            }
        }
        Command::Write => {}
    }
    for program in Program::ALL {
        if let Entry::Vacant(missing) = acts.entry(program) {
            missing.insert(load(program)?);
        }
    }
    let comparison = compare(&acts);
    let wrong = reasons.unexplained(&comparison);
    for line in &wrong {
        println!("{line}");
    }
    println!("{} differences without a reason", wrong.len());
    if matches!(args.command, Command::Write) {
        let learnt = std::fs::read_to_string(top().join(report::LEARNT))?;
        std::fs::write(
            top().join(DOCUMENT),
            report::write(&comparison, &reasons, &learnt),
        )?;
    }
    Ok(if wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
