//! The table.

use std::fmt;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use ferroce_nic_model::wire::Icrc;
use serde::Serialize;

use crate::bandwidth::Bandwidth;
use crate::instructions::Case;
use crate::latency::Latency;
use crate::stats;

/// Of memcpy's bandwidth, to be reached with or without ICRCs.
const BANDWIDTH_TARGET: f64 = 0.5;
/// Of TCP's round trip, not to be passed.
const LATENCY_TARGET: f64 = 0.25;

/// One line.
#[derive(Serialize)]
pub struct Row {
    what: String,
    figure: f64,
    unit: &'static str,
    /// What it is compared with, in the same unit.
    reference: Option<Reference>,
    /// Figure over reference.
    ratio: Option<f64>,
    /// Where it shall get: the ratio if there is one, or else the figure.
    target: Option<f64>,
    met: Option<bool>,
}

#[derive(Serialize)]
struct Reference {
    what: &'static str,
    figure: f64,
}

impl Row {
    pub fn instructions(case: Case, figure: f64) -> Row {
        Row {
            what: case.what().to_string(),
            figure,
            unit: "instructions",
            reference: None,
            ratio: None,
            target: case.target(),
            met: case.target().map(|most| figure <= most),
        }
    }

    pub fn bandwidth(what: &str, icrc: Icrc, measured: &Bandwidth) -> Row {
        let target = (icrc == Icrc::Off).then_some(BANDWIDTH_TARGET);
        Row {
            what: what.to_string(),
            figure: measured.write / 1e9,
            unit: "GB/s",
            reference: Some(Reference {
                what: "memcpy",
                figure: measured.memcpy / 1e9,
            }),
            ratio: Some(measured.ratio),
            target,
            met: target.map(|least| measured.ratio >= least),
        }
    }

    /// The same, for each second of the engine's CPU time: what a busy machine takes away is not in it.
    pub fn engine(what: &str, measured: &Bandwidth) -> Row {
        Row {
            what: format!("{what}, by the engine's CPU time"),
            figure: measured.per_engine_second / 1e9,
            unit: "GB/s",
            reference: Some(Reference {
                what: "memcpy",
                figure: measured.memcpy / 1e9,
            }),
            ratio: Some(measured.engine_ratio),
            target: None,
            met: None,
        }
    }

    pub fn latency(what: &str, measured: &Latency) -> Row {
        Row {
            what: what.to_string(),
            figure: measured.write * 1e6,
            unit: "us",
            reference: Some(Reference {
                what: "TCP",
                figure: measured.tcp * 1e6,
            }),
            ratio: Some(measured.ratio),
            target: Some(LATENCY_TARGET),
            met: Some(measured.ratio <= LATENCY_TARGET),
        }
    }

    fn figure_text(&self) -> String {
        match self.unit {
            "instructions" => format!("{:.1}", self.figure),
            unit => format!("{:.2} {unit}", self.figure),
        }
    }

    fn ratio_text(&self) -> String {
        match (&self.reference, self.ratio) {
            (Some(reference), Some(ratio)) => format!(
                "{ratio:.2} of {} ({:.2} {})",
                reference.what, reference.figure, self.unit
            ),
            _ => String::new(),
        }
    }

    fn target_text(&self) -> String {
        match (self.target, self.met) {
            (Some(target), Some(met)) => format!("{target}{}", if met { "" } else { "  not met" }),
            _ => String::new(),
        }
    }
}

/// All lines, and what the machine was like.
#[derive(Serialize)]
pub struct Report {
    unix_time: u64,
    cpu: String,
    cores: usize,
    load_before: String,
    load_after: String,
    /// Times that a fixed piece of work took, over the best one: the middle and one in ten, before and after.
    noise: [(f64, f64); 2],
    pub rows: Vec<Row>,
}

impl Report {
    pub fn new() -> Report {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Report {
            unix_time: now.map_or(0, |t| t.as_secs()),
            cpu: cpu(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            load_before: load(),
            load_after: String::new(),
            noise: [stats::noise(), (0.0, 0.0)],
            rows: Vec::new(),
        }
    }

    /// Says on a terminal what goes on.
    pub fn progress(&self, what: &str) {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K{what} ...");
        }
    }

    pub fn finish(&mut self) {
        if io::stderr().is_terminal() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        self.load_after = load();
        self.noise[1] = stats::noise();
    }
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_string()
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("model name"));
    line.map_or("unknown CPU", |l| l.trim_start_matches([' ', '\t', ':']))
        .to_string()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|r| r.what.len()).max().unwrap_or(0).max(4);
        writeln!(f, "{:width$}  {:>10}  {:28}  target", "what", "figure", "ratio")?;
        for row in &self.rows {
            let line = format!(
                "{:width$}  {:>10}  {:28}  {}",
                row.what,
                row.figure_text(),
                row.ratio_text(),
                row.target_text()
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        let [before, after] = self.noise;
        writeln!(
            f,
            "\n{}, {} cores; load {} before, {} after; noise (median and 90 % of a fixed piece of work, over its \
             best) {:.2} and {:.2} before, {:.2} and {:.2} after",
            self.cpu, self.cores, self.load_before, self.load_after, before.0, before.1, after.0, after.1
        )
    }
}
