//! `ferroce demo`: the whole driver over two NIC models, from firmware bring-up to a checked file.

mod node;
mod report;
mod rig;
mod traffic;

use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use sha2::{Digest, Sha256};

use self::node::Node;
use self::report::Report;
use self::rig::Rig;
use self::traffic::Traffic;
use crate::args::DemoArgs;
use crate::error::CliError;

pub fn run(args: &DemoArgs) -> Result<ExitCode, CliError> {
    let started = Instant::now();
    let content = content(args)?;
    // Opened first: a copy that can't be kept is said before anything is transferred.
    let out = args.out.as_deref().map(open_out).transpose()?;
    let rig = Rig::start(args)?;
    let nodes = [Node::open(&rig, 0)?, Node::open(&rig, 1)?];
    let bring_up = started.elapsed();
    let mut report = Report::new(args, &nodes, bring_up, content.len());

    let progress = progress(args, content.len() as u64);
    let mut traffic = Traffic::new(&nodes, args, &content, &progress)?;
    traffic.write_with_immediate(&mut report)?;
    traffic.read_back(&mut report)?;
    traffic.atomics(&mut report)?;
    traffic.messages(&mut report)?;
    traffic.latency(&mut report)?;
    progress.finish_and_clear();

    let (received, read_back) = traffic.contents()?;
    report.check("file at the peer", hash(&content) == hash(&received));
    report.check("file read back", hash(&content) == hash(&read_back));
    report.sha256 = hash(&content);
    report.counters(traffic.counters()?);
    if let (Some(mut file), Some(path)) = (out, &args.out) {
        let written = file.set_len(0).and_then(|()| file.write_all(&received));
        written.map_err(CliError::file("can't write", path))?;
    }
    traffic.close()?;
    for node in nodes {
        report.closed(node.close()?);
    }
    rig.stop()?;
    report.print(args.json)?;
    Ok(if report.all_right() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The bytes to transfer.
fn content(args: &DemoArgs) -> Result<Vec<u8>, CliError> {
    match &args.file {
        Some(path) => fs::read(path).map_err(CliError::file("can't read", path)),
        None => {
            // The size is bounded by its argument.
            let mut bytes = vec![0; args.size as usize];
            StdRng::seed_from_u64(args.faults.seed).fill_bytes(&mut bytes);
            Ok(bytes)
        }
    }
}

/// What was in the file stays until there is something to put in its place.
fn open_out(path: &Path) -> Result<File, CliError> {
    let mut options = File::options();
    let opened = options.write(true).create(true).truncate(false).open(path);
    opened.map_err(CliError::file("can't write", path))
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// A bar on standard error, if that is a terminal and a person reads the result.
fn progress(args: &DemoArgs, len: u64) -> ProgressBar {
    // Written once and read back once.
    let bar = ProgressBar::new(2 * len);
    if args.json || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style =
        ProgressStyle::with_template("{msg:6} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
