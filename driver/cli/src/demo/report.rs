//! What the demo found, for people and for machines.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use ferroce::context::CloseReport;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::node::Node;
use crate::args::{DemoArgs, Transport};
use crate::error::CliError;
use crate::output::print;

/// Everything that is printed.
#[derive(Debug, Serialize)]
pub struct Report {
    transport: &'static str,
    gid: String,
    pub path_mtu: u16,
    seed: u64,
    nics: Vec<NicReport>,
    bring_up_ms: f64,
    pub bytes: usize,
    bandwidth: BTreeMap<&'static str, Bandwidth>,
    latency_us: Option<Latency>,
    pub completions: u64,
    counters: BTreeMap<&'static str, u64>,
    pub sha256: String,
    checks: BTreeMap<&'static str, Check>,
    /// What was left out, since the NICs don't do it.
    left_out: Vec<&'static str>,
    ok: bool,
}

#[derive(Debug, Serialize)]
struct NicReport {
    device: String,
    product: &'static str,
    fw_ver: String,
    board_id: String,
    mac: String,
    gids: Vec<String>,
    capabilities: Capabilities,
    firmware_pages_given: u64,
    firmware_pages_lost: u64,
    firmware_commands: u64,
}

/// Capabilities that the demo uses.
#[derive(Debug, Serialize)]
struct Capabilities {
    max_qp: u64,
    max_cqe: u64,
    max_msg_bytes: u64,
    max_rd_atomic: u64,
    atomic: bool,
    eswitch_manager: bool,
    roce_versions: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Bandwidth {
    mib_per_s: f64,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct Latency {
    what: &'static str,
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

/// How often something was looked at, and how often it was not as it should be.
#[derive(Debug, Default, Serialize)]
struct Check {
    looked: u64,
    wrong: u64,
}

impl Report {
    pub fn new(args: &DemoArgs, nodes: &[Node], bring_up: Duration, bytes: usize) -> Report {
        Report {
            transport: match args.transport {
                _ if !args.devices.is_empty() => "given devices",
                Transport::InProcess => "in-process",
                Transport::VfioUser => "vfio-user",
            },
            gid: args.gid.to_string(),
            path_mtu: args.mtu,
            seed: args.faults.seed(),
            nics: nodes.iter().map(NicReport::new).collect(),
            bring_up_ms: bring_up.as_secs_f64() * 1e3,
            bytes,
            bandwidth: BTreeMap::new(),
            latency_us: None,
            completions: 0,
            counters: BTreeMap::new(),
            sha256: String::new(),
            checks: BTreeMap::new(),
            left_out: Vec::new(),
            ok: true,
        }
    }

    /// Notes whether something is as it should be.
    pub fn check(&mut self, what: &'static str, right: bool) {
        let check = self.checks.entry(what).or_default();
        check.looked += 1;
        check.wrong += u64::from(!right);
        self.ok &= right;
    }

    /// The NICs don't do `what`.
    pub fn left_out(&mut self, what: &'static str) {
        self.left_out.push(what);
    }

    pub fn bandwidth(&mut self, what: &'static str, bytes: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        let mib_per_s = bytes as f64 / f64::from(1 << 20) / seconds.max(1e-9);
        self.bandwidth.insert(what, Bandwidth { mib_per_s, seconds });
    }

    pub fn latency(&mut self, histogram: &Histogram<u64>) {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        self.latency_us = Some(Latency {
            what: "8 B inline WRITE, post to completion",
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max() as f64 / 1e3,
        });
    }

    /// What the NICs counted, both together.
    pub fn counters(&mut self, counters: BTreeMap<&'static str, u64>) {
        self.counters = counters;
    }

    /// A NIC has been shut down.
    pub fn closed(&mut self, close: CloseReport) {
        let nic = self.nics.iter_mut().find(|n| n.firmware_commands == 0);
        if let Some(nic) = nic {
            nic.firmware_pages_given = close.pages_given;
            nic.firmware_pages_lost = close.pages_lost;
            nic.firmware_commands = close.commands.submitted;
        }
        self.check("all firmware pages came back", close.pages_lost == 0);
        self.check("all objects were destroyed", close.objects_failed == 0);
    }

    pub fn all_right(&self) -> bool {
        self.ok
    }

    pub fn print(&self, json: bool) -> Result<(), CliError> {
        if json {
            let text = serde_json::to_string(self).map_err(|e| CliError::Other(e.to_string()))?;
            return print(&format!("{text}\n"));
        }
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(&mut text);
        print(&text)
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        for nic in &self.nics {
            nic.write_text(out)?;
        }
        writeln!(
            out,
            "{}up in {:.1} ms, over {}",
            if self.nics.len() == 2 { "both " } else { "" },
            self.bring_up_ms,
            self.transport
        )?;
        writeln!(
            out,
            "{} bytes, path MTU {}, {}",
            self.bytes, self.path_mtu, self.gid
        )?;
        for (what, bandwidth) in &self.bandwidth {
            writeln!(
                out,
                "  {what:<6} {:>9.1} MiB/s ({:.3} s)",
                bandwidth.mib_per_s, bandwidth.seconds
            )?;
        }
        if let Some(l) = &self.latency_us {
            writeln!(
                out,
                "  {}: p50 {:.1} us, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}",
                l.what, l.p50, l.p90, l.p99, l.p99_9, l.max
            )?;
        }
        writeln!(out, "  completions: {}", self.completions)?;
        for (what, count) in &self.counters {
            writeln!(out, "  {what}: {count}")?;
        }
        for (what, check) in &self.checks {
            let verdict = if check.wrong == 0 { "ok" } else { "WRONG" };
            writeln!(
                out,
                "  {verdict:<5} {what} ({} of {})",
                check.looked - check.wrong,
                check.looked
            )?;
        }
        for what in &self.left_out {
            writeln!(out, "  left out: {what}; these NICs don't do that")?;
        }
        writeln!(out, "sha256 {}", self.sha256)?;
        writeln!(
            out,
            "{}",
            if self.ok {
                "all right"
            } else {
                "SOMETHING IS WRONG, see above"
            }
        )
    }
}

impl NicReport {
    fn new(node: &Node) -> NicReport {
        let context = &node.context;
        let cap = context.caps().general();
        let entries = context.gids().entries();
        NicReport {
            device: node.name.clone(),
            product: context.product(),
            fw_ver: context.firmware_version().to_string(),
            board_id: context.adapter().psid.clone(),
            mac: entries.first().map_or(String::new(), |(_, e)| e.mac.to_string()),
            gids: entries
                .iter()
                .map(|(i, e)| format!("[{i}] {} {}", e.gid, e.version))
                .collect(),
            capabilities: Capabilities {
                max_qp: 1 << cap.log_max_qp(),
                max_cqe: (1 << cap.log_max_cq_sz().min(31)) - 1,
                max_msg_bytes: 1 << cap.log_max_msg(),
                max_rd_atomic: 1 << cap.log_max_ra_res_qp(),
                atomic: cap.atomic(),
                eswitch_manager: cap.eswitch_manager(),
                roce_versions: context.caps().roce().map_or(Vec::new(), |roce| {
                    let versions = [(0, "v1"), (2, "v2")];
                    let has = |bit: &u8| roce.roce_version() >> bit & 1 != 0;
                    versions
                        .iter()
                        .filter(|(bit, _)| has(bit))
                        .map(|(_, name)| *name)
                        .collect()
                }),
            },
            firmware_pages_given: 0,
            firmware_pages_lost: 0,
            firmware_commands: 0,
        }
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "{}: {}, firmware {}, board {}",
            self.device, self.product, self.fw_ver, self.board_id
        )?;
        let c = &self.capabilities;
        writeln!(
            out,
            "  capabilities: {} QPs, {} CQEs, {} B messages, {} READs at a time, atomics {}, RoCE {}{}",
            c.max_qp,
            c.max_cqe,
            c.max_msg_bytes,
            c.max_rd_atomic,
            if c.atomic { "yes" } else { "no" },
            c.roce_versions.join(" and "),
            if c.eswitch_manager {
                ", e-switch manager"
            } else {
                ""
            }
        )?;
        writeln!(out, "  MAC {}, GIDs: {}", self.mac, self.gids.join(", "))?;
        writeln!(
            out,
            "  firmware: {} commands, {} pages given, {} lost",
            self.firmware_commands, self.firmware_pages_given, self.firmware_pages_lost
        )
    }
}
