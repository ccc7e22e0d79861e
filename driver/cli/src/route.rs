//! `ferroce route`: which GID a connection to an address would use, and why.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ferroce::link::{Place, Route, RouteQuery, Verdict};
use serde::Serialize;

use crate::error::{CliError, chain, failed};
use crate::nic::{Nic, NicArgs};
use crate::output::print;

/// Arguments of `route`.
#[derive(Debug, Args)]
pub struct RouteArgs {
    /// The NIC.
    #[command(flatten)]
    pub nic: NicArgs,

    /// The peer's address, such as 10.9.0.2 or fe80::2; with @VLAN in that VLAN only, with @0 outside of all.
    #[arg(value_name = "DESTINATION")]
    pub destination: Place,

    /// Don't ask for the next hop's MAC address.
    #[arg(long)]
    pub no_resolve: bool,

    /// How long to wait for the next hop's answer, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0, value_parser = seconds)]
    pub timeout: f64,

    /// Print one JSON object on standard output instead of text.
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=3600.0).contains(&value) => Ok(value),
        _ => Err("it must be a number of seconds from 0 to 3600".to_string()),
    }
}

pub fn run(args: &RouteArgs) -> Result<ExitCode, CliError> {
    let found = Nic::open(&args.nic)?.with(|nic| find(args, nic))?;
    print(&if args.json { json(&found)? } else { text(&found) })?;
    Ok(match found.error {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}

/// A way, and why its next hop was not found.
struct Found {
    route: Route,
    error: Option<String>,
}

fn find(args: &RouteArgs, nic: &Nic) -> Result<Found, CliError> {
    let Place { ip, vlan } = args.destination;
    let agent = nic.agent()?;
    let mut query = RouteQuery {
        vlan,
        ..RouteQuery::to(ip)
    };
    if args.nic.gid.is_some() {
        query.sgid_index = Some(nic.gid_to(agent, query)?.index);
    }
    let route = agent.route(query).map_err(failed("can't choose a GID"))?;
    if args.no_resolve {
        return Ok(Found { route, error: None });
    }
    let deadline = Instant::now() + Duration::from_secs_f64(args.timeout);
    Ok(match agent.route_to(query, deadline) {
        Ok(route) => Found { route, error: None },
        Err(error) => Found {
            route,
            error: Some(chain(&error)),
        },
    })
}

fn text(found: &Found) -> String {
    let route = &found.route;
    let mut out = format!("{route}\n");
    let mac = match (&found.error, route.dmac) {
        (Some(error), _) => format!(": {error}"),
        (None, Some(mac)) => format!(" at {mac}"),
        (None, None) => String::new(),
    };
    out.push_str(&format!("next hop {}{mac}\n", route.next_hop));
    if let Some(better) = route.better() {
        out.push_str(&format!("warning: GID {} would be better\n", better.index));
    }
    for reason in &route.why {
        let mark = if reason.verdict == Verdict::Chosen {
            '*'
        } else {
            ' '
        };
        out.push_str(&format!("{mark} {reason}\n"));
    }
    out
}

#[derive(Serialize)]
struct Report {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    destination: String,
    gid_index: u16,
    gid: String,
    source: String,
    roce_version: String,
    vlan: Option<u16>,
    via: String,
    next_hop: String,
    next_hop_mac: Option<String>,
    better_gid_index: Option<u16>,
    gids: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    index: u16,
    gid: String,
    roce_version: String,
    vlan: Option<u16>,
    used: bool,
    why: String,
}

fn json(found: &Found) -> Result<String, CliError> {
    let route = &found.route;
    let report = Report {
        ok: found.error.is_none(),
        error: found.error.clone(),
        destination: route.destination.to_string(),
        gid_index: route.sgid_index,
        gid: route.source.gid.to_string(),
        source: route.source.gid.to_ip().to_string(),
        roce_version: route.source.version.to_string(),
        vlan: route.vlan,
        via: route.via.to_string(),
        next_hop: route.next_hop.to_string(),
        next_hop_mac: route.dmac.map(|mac| mac.to_string()),
        better_gid_index: route.better().map(|better| better.index),
        gids: route
            .why
            .iter()
            .map(|reason| Row {
                index: reason.index,
                gid: reason.entry.gid.to_string(),
                roce_version: reason.entry.version.to_string(),
                vlan: reason.entry.vlan,
                used: reason.verdict == Verdict::Chosen,
                why: reason.verdict.to_string(),
            })
            .collect(),
    };
    let mut text = serde_json::to_string_pretty(&report).map_err(failed("JSON"))?;
    text.push('\n');
    Ok(text)
}
