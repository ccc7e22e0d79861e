//! What is said at the end.

use std::fs;
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::args::{PerfArgs, Test};
use crate::error::CliError;
use crate::output::{print, say};
use crate::perftest;

/// The result.
#[derive(Debug, Serialize)]
pub struct Report {
    ok: bool,
    test: Test,
    role: &'static str,
    /// How the sides were connected.
    connection: &'static str,
    mtu: u16,
    qps: u32,
    events: bool,
    /// Why the figures say little.
    warnings: Vec<String>,
    pub rows: Vec<Row>,
}

/// One size.
#[derive(Debug, Serialize)]
pub struct Row {
    bytes: usize,
    iterations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth: Option<Bandwidth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_us: Option<Latency>,
}

#[derive(Debug, Serialize)]
struct Bandwidth {
    mib_per_second: f64,
    million_messages_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Latency {
    min: f64,
    mean: f64,
    stdev: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    p99_99: f64,
    max: f64,
    /// Upper end of each range in microseconds, and how many were in it.
    histogram: Vec<(f64, u64)>,
}

impl Row {
    pub fn new(args: &PerfArgs, bytes: usize, took: Duration, histogram: &Histogram<u64>) -> Row {
        let iterations = u64::from(args.iters()) * u64::from(args.qps());
        let seconds = took.as_secs_f64();
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        Row {
            bytes,
            iterations,
            bandwidth: (args.test.is_bandwidth() && args.is_client()).then(|| Bandwidth {
                mib_per_second: (bytes as u64 * iterations) as f64 / f64::from(1 << 20) / seconds,
                million_messages_per_second: iterations as f64 / 1e6 / seconds,
            }),
            latency_us: (!histogram.is_empty()).then(|| Latency {
                min: micros(histogram.min()),
                mean: histogram.mean() / 1000.0,
                stdev: histogram.stdev() / 1000.0,
                p50: micros(histogram.value_at_quantile(0.5)),
                p90: micros(histogram.value_at_quantile(0.9)),
                p99: micros(histogram.value_at_quantile(0.99)),
                p99_9: micros(histogram.value_at_quantile(0.999)),
                p99_99: micros(histogram.value_at_quantile(0.9999)),
                max: micros(histogram.max()),
                histogram: histogram
                    .iter_log(1000, 2.0)
                    .map(|step| {
                        (
                            micros(step.value_iterated_to()),
                            step.count_since_last_iteration(),
                        )
                    })
                    .filter(|(_, count)| *count > 0)
                    .collect(),
            }),
        }
    }

    /// What perftest at the other side is told of it.
    pub fn for_perftest(&self) -> perftest::talk::Report {
        let bandwidth = self.bandwidth.as_ref();
        perftest::talk::Report {
            size: self.bytes as u64,
            iterations: self.iterations,
            bandwidth: bandwidth.map_or(0.0, |b| b.mib_per_second),
            rate: bandwidth.map_or(0.0, |b| b.million_messages_per_second),
        }
    }
}

impl Report {
    pub fn new(args: &PerfArgs, warnings: Vec<String>) -> Report {
        Report {
            ok: true,
            test: args.test,
            role: if args.is_client() { "client" } else { "server" },
            connection: match (args.rdma_cm, args.with_perftest) {
                (true, _) => "rdma-cm",
                (_, true) => "perftest",
                _ => "tcp",
            },
            mtu: args.mtu,
            qps: args.qps(),
            events: args.events,
            warnings,
            rows: Vec::new(),
        }
    }

    pub fn print(&self, json: bool) -> Result<(), CliError> {
        if json {
            let text = serde_json::to_string(self).map_err(|e| CliError::Other(e.to_string()))?;
            return print(&format!("{text}\n"));
        }
        for warning in &self.warnings {
            say!(" WARNING: {warning}");
        }
        if self.rows.iter().any(|row| row.bandwidth.is_some()) {
            say!(" #bytes     #iterations    BW average[MiB/sec]    MsgRate[Mpps]");
        } else if self.rows.iter().any(|row| row.latency_us.is_some()) {
            say!(
                " #bytes     #iterations   min[usec]    p50    mean   stdev     p90     p99   p99.9  p99.99     max"
            );
        }
        for row in &self.rows {
            if let Some(b) = &row.bandwidth {
                say!(
                    " {:<10} {:<14} {:<22.2} {:.6}",
                    row.bytes,
                    row.iterations,
                    b.mib_per_second,
                    b.million_messages_per_second
                );
            }
            if let Some(l) = &row.latency_us {
                say!(
                    " {:<10} {:<12} {:>9.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2}",
                    row.bytes,
                    row.iterations,
                    l.min,
                    l.p50,
                    l.mean,
                    l.stdev,
                    l.p90,
                    l.p99,
                    l.p99_9,
                    l.p99_99,
                    l.max
                );
            }
        }
        Ok(())
    }
}

/// What makes the figures of this set-up worth little.
pub fn warnings(args: &PerfArgs) -> Vec<String> {
    let mut found = Vec::new();
    if cfg!(debug_assertions) {
        found.push("this is a debug build; measure with cargo build --release".to_string());
    }
    if args.nic.device.is_software() {
        found.push("the NIC is a software model: its figures are those of this machine's cores".to_string());
    }
    let faults = args.nic.faults;
    if [faults.loss, faults.reorder, faults.duplicate, faults.corrupt] != [0.0; 4] {
        found.push("the wire is a bad one, as was asked for".to_string());
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        found.push("there is one core only, which polling and everything else share".to_string());
    }
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    if flags.any(|line| line.split_whitespace().any(|flag| flag == "hypervisor")) {
        found.push("this is a virtual machine, whose processors may be taken away at any time".to_string());
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Option<f64> = load.split(' ').next().and_then(|load| load.parse().ok());
    if let Some(load) = load.filter(|load| *load > cores as f64) {
        found.push(format!("the machine is busy: load {load} on {cores} cores"));
    }
    let governor =
        fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").unwrap_or_default();
    if !matches!(governor.trim(), "" | "performance") {
        found.push(format!(
            "CPU frequency governor {}; for steady figures set performance",
            governor.trim()
        ));
    }
    found
}
