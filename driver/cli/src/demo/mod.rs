//! `ferroce demo`: the whole driver over two NIC models, from firmware bring-up to a checked file.

mod node;
mod remote;
mod report;
mod rig;
mod side;
mod traffic;

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
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
use crate::args::{DemoArgs, MAX_BYTES};
use crate::error::{CliError, chain};

pub fn run(args: &DemoArgs) -> Result<ExitCode, CliError> {
    args.check()?;
    if args.listen.is_some() || args.connect.is_some() {
        return remote::run(args);
    }
    let started = Instant::now();
    let content = content(args)?;
    // Opened first: a copy that can't be kept is said before anything is transferred.
    let out = args.out.as_deref().map(open_out).transpose()?;
    let mut rig = Rig::start(args)?;
    let nodes = [Node::open(rig.function(0)?, 0)?, Node::open(rig.function(1)?, 1)?];
    rig.connected();
    let bring_up = started.elapsed();
    let mut report = Report::new(args, &nodes, bring_up, content.len());

    if let Err(error) = transfer(&nodes, args, &content, out, &mut report) {
        // In order, before the models go. The first error is the one to tell.
        for node in nodes {
            if let Err(error) = node.close() {
                log::warn!("{}", chain(&error));
            }
        }
        return Err(error);
    }
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

/// All that goes over the wire.
fn transfer(
    nodes: &[Node; 2],
    args: &DemoArgs,
    content: &[u8],
    out: Option<File>,
    report: &mut Report,
) -> Result<(), CliError> {
    let progress = progress(args, content.len() as u64);
    let mut traffic = Traffic::new(nodes, args, content, &progress)?;
    traffic.write_with_immediate(report)?;
    traffic.read_back(report)?;
    traffic.atomics(report)?;
    traffic.messages(report)?;
    traffic.latency(report)?;
    progress.finish_and_clear();

    let (received, read_back) = traffic.contents()?;
    report.sha256 = hash(content);
    report.check("file at the peer", report.sha256 == hash(&received));
    report.check("file read back", report.sha256 == hash(&read_back));
    report.counters(traffic.counters()?);
    if let (Some(mut file), Some(path)) = (out, &args.out) {
        write(&mut file, &received).map_err(CliError::file("can't write", path))?;
    }
    traffic.close()
}

/// The bytes to transfer.
fn content(args: &DemoArgs) -> Result<Vec<u8>, CliError> {
    match &args.file {
        Some(path) => read(path),
        None => {
            // The size is bounded by its argument.
            let mut bytes = vec![0; args.size as usize];
            StdRng::seed_from_u64(args.faults.seed()).fill_bytes(&mut bytes);
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

/// Puts `bytes` in the place of what was there; a pipe or a device has nothing to be cut.
fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(bytes)
}

/// The whole of a file, or an error that names the limit.
fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let what = "can't read";
    let too_long = || {
        CliError::Other(format!(
            "{} is longer than {} GiB",
            path.display(),
            MAX_BYTES >> 30
        ))
    };
    let file = File::open(path).map_err(CliError::file(what, path))?;
    let len = file.metadata().map_err(CliError::file(what, path))?.len();
    if len > MAX_BYTES {
        return Err(too_long());
    }
    // A pipe or a device has no length that is known beforehand.
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(CliError::file(what, path))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(too_long());
    }
    Ok(bytes)
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
