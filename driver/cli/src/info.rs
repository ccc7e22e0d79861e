//! `ferroce info`: what a NIC is and can, from our own queries.

use std::process::ExitCode;
use std::sync::Arc;

use ferroce::context::{Context, OpenConfig};
use ferroce::function;
use ferroce::gid::{GidEntry, GidTable};
use ferroce::port::{PortAttributes, PortState};
use serde::Serialize;

use crate::args::InfoArgs;
use crate::error::CliError;
use crate::output::print;

/// What `ibv_devinfo -v` shows of a device, under the same names where it has one.
#[derive(Debug, Serialize)]
struct Info {
    device: String,
    product: &'static str,
    fw_ver: String,
    board_id: String,
    vendor_id: String,
    node_guid: String,
    sys_image_guid: String,
    limits: Limits,
    clock: Clock,
    port: Port,
    gids: Vec<GidRow>,
    /// Ports after the first, on a NIC that has any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    further_ports: Vec<FurtherPort>,
}

#[derive(Debug, Serialize)]
struct FurtherPort {
    number: u8,
    port: Port,
    gids: Vec<GidRow>,
}

#[derive(Debug, Serialize)]
struct Limits {
    max_qp: u64,
    max_qp_wr: u64,
    max_cq: u64,
    max_cqe: u64,
    max_mr: u64,
    max_mr_size: u64,
    max_pd: u64,
    max_srq: u64,
    max_srq_wr: u64,
    max_eq: u32,
    max_msg_sz: u64,
    max_send_wqe_bytes: u16,
    max_recv_wqe_bytes: u16,
    max_qp_rd_atom: u64,
    max_qp_init_rd_atom: u64,
    max_gids: usize,
    atomic: bool,
    device_frequency_khz: u32,
    msix_vectors: u16,
    completion_vectors: usize,
}

/// The device's clock, or why it can't be used.
#[derive(Debug, Serialize)]
struct Clock {
    frequency_khz: Option<u32>,
    ticks: Option<u64>,
    real_time: bool,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Port {
    state: String,
    link_layer: &'static str,
    mac: String,
    mtu: u16,
    max_mtu: u16,
    active_path_mtu: u16,
    speed_gbps: Option<f64>,
    eswitch_manager: bool,
}

#[derive(Debug, Serialize)]
struct GidRow {
    index: u16,
    gid: String,
    version: String,
    mac: String,
    vlan: Option<u16>,
}

pub fn run(args: &InfoArgs) -> Result<ExitCode, CliError> {
    let device = args.device.clone();
    let function = function::open(&device).map_err(|source| CliError::Function {
        device: device.clone(),
        source: Box::new(source),
    })?;
    let msix_vectors = function.msix_vectors();
    let context = Context::open(function, OpenConfig::new()).map_err(|source| CliError::Open {
        device: device.clone(),
        source: Box::new(source),
    })?;
    let info = gather(&context, device.to_string(), msix_vectors)?;
    context.close().map_err(|source| CliError::Close {
        device: device.to_string(),
        source: Box::new(source),
    })?;
    if args.json {
        let text = serde_json::to_string(&info).map_err(|e| CliError::Other(e.to_string()))?;
        print(&format!("{text}\n"))?;
    } else {
        print(&text(&info))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn gather(context: &Arc<Context>, device: String, msix_vectors: u16) -> Result<Info, CliError> {
    let port = context
        .port_attributes()
        .map_err(|e| CliError::Other(crate::error::chain(&e)))?;
    let cap = context.caps().general();
    Ok(Info {
        device,
        product: context.product(),
        fw_ver: context.firmware_version().to_string(),
        board_id: context.adapter().psid.clone(),
        vendor_id: format!("{:#08x}", context.adapter().ieee_vendor_id),
        node_guid: guid(port.node_guid),
        sys_image_guid: guid(port.system_image_guid),
        limits: Limits {
            max_qp: 1 << cap.log_max_qp(),
            max_qp_wr: 1 << cap.log_max_qp_sz(),
            max_cq: 1 << cap.log_max_cq(),
            max_cqe: (1u64 << cap.log_max_cq_sz().min(31)) - 1,
            max_mr: 1 << cap.log_max_mkey(),
            max_mr_size: 1u64
                .checked_shl(cap.log_max_mrw_sz().into())
                .map_or(u64::MAX, |s| s),
            max_pd: 1 << cap.log_max_pd(),
            max_srq: 1 << cap.log_max_srq(),
            max_srq_wr: (1u64 << cap.log_max_srq_sz().min(31)) - 1,
            max_eq: context.caps().max_eqs(),
            max_msg_sz: 1 << cap.log_max_msg(),
            max_send_wqe_bytes: cap.max_wqe_sz_sq(),
            max_recv_wqe_bytes: cap.max_wqe_sz_rq(),
            max_qp_rd_atom: 1 << cap.log_max_ra_res_qp(),
            max_qp_init_rd_atom: 1 << cap.log_max_ra_req_qp(),
            max_gids: context.gids().size(),
            atomic: cap.atomic(),
            device_frequency_khz: cap.device_frequency_khz(),
            msix_vectors,
            completion_vectors: context.completion_vectors(),
        },
        clock: clock(context),
        port: port_of(context, &port),
        gids: rows(context.gids()),
        further_ports: further_ports(context)?,
    })
}

fn further_ports(context: &Arc<Context>) -> Result<Vec<FurtherPort>, CliError> {
    let further = context.ports().skip(1).map(|port| {
        let attributes = port.attributes();
        let attributes = attributes.map_err(|e| CliError::Other(crate::error::chain(&e)))?;
        Ok(FurtherPort {
            number: port.number().get(),
            port: port_of(context, &attributes),
            gids: rows(port.gids()),
        })
    });
    further.collect()
}

fn port_of(context: &Context, port: &PortAttributes) -> Port {
    Port {
        state: match port.state {
            PortState::Active => "PORT_ACTIVE".to_string(),
            PortState::Down => "PORT_DOWN".to_string(),
            other => format!("{other:?}"),
        },
        link_layer: if context.caps().roce().is_some() {
            "Ethernet, RoCE"
        } else {
            "Ethernet, no RoCE"
        },
        mac: port.mac.to_string(),
        mtu: port.mtu,
        max_mtu: port.max_mtu,
        active_path_mtu: port.active_path_mtu,
        speed_gbps: port.speed_mbps.map(|m| f64::from(m) / 1000.0),
        eswitch_manager: context.caps().general().eswitch_manager(),
    }
}

fn rows(gids: &GidTable) -> Vec<GidRow> {
    let row = |(index, entry): (u16, GidEntry)| GidRow {
        index,
        gid: entry.gid.to_string(),
        version: entry.version.to_string(),
        mac: entry.mac.to_string(),
        vlan: entry.vlan,
    };
    gids.entries().into_iter().map(row).collect()
}

fn clock(context: &Context) -> Clock {
    match context.clock() {
        Ok(clock) => {
            let (ticks, problem) = match clock.now() {
                Ok(ticks) => (Some(ticks), None),
                Err(error) => (None, Some(error.to_string())),
            };
            Clock {
                frequency_khz: Some(clock.frequency().khz()),
                ticks,
                real_time: clock.real_time().is_ok(),
                problem,
            }
        }
        Err(error) => Clock {
            frequency_khz: None,
            ticks: None,
            real_time: false,
            problem: Some(error.to_string()),
        },
    }
}

/// The clock in a line.
fn clock_line(clock: &Clock) -> String {
    let real_time = if clock.real_time {
        ", and a real-time clock"
    } else {
        ""
    };
    match (clock.frequency_khz, clock.ticks, &clock.problem) {
        (Some(khz), Some(ticks), _) => format!("{khz} kHz, now at {ticks} ticks{real_time}"),
        (_, _, Some(problem)) => format!("none: {problem}"),
        _ => "none".to_owned(),
    }
}

fn guid(value: u64) -> String {
    let [a, b, c, d] = [
        value >> 48,
        value >> 32 & 0xffff,
        value >> 16 & 0xffff,
        value & 0xffff,
    ];
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

fn text(info: &Info) -> String {
    let mut out = format!("{}\n", info.device);
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        out.push_str(&format!("    {name:<24}{value}\n"));
    };
    line("product", &info.product);
    line("fw_ver", &info.fw_ver);
    line("board_id", &info.board_id);
    line("vendor_id", &info.vendor_id);
    line("node_guid", &info.node_guid);
    line("sys_image_guid", &info.sys_image_guid);
    let limits = &info.limits;
    line("max_qp", &limits.max_qp);
    line("max_qp_wr", &limits.max_qp_wr);
    line("max_cq", &limits.max_cq);
    line("max_cqe", &limits.max_cqe);
    line("max_mr", &limits.max_mr);
    line("max_mr_size", &format_args!("{:#x}", limits.max_mr_size));
    line("max_pd", &limits.max_pd);
    line("max_srq", &limits.max_srq);
    line("max_srq_wr", &limits.max_srq_wr);
    line("max_eq", &limits.max_eq);
    line("max_msg_sz", &format_args!("{:#x}", limits.max_msg_sz));
    line("max_send_wqe_bytes", &limits.max_send_wqe_bytes);
    line("max_recv_wqe_bytes", &limits.max_recv_wqe_bytes);
    line("max_qp_rd_atom", &limits.max_qp_rd_atom);
    line("max_qp_init_rd_atom", &limits.max_qp_init_rd_atom);
    line("max_gids", &limits.max_gids);
    line(
        "atomic",
        &if limits.atomic {
            "ATOMIC_HCA"
        } else {
            "ATOMIC_NONE"
        },
    );
    line("device_frequency_khz", &limits.device_frequency_khz);
    line("device_clock", &clock_line(&info.clock));
    line("msix_vectors", &limits.msix_vectors);
    line("completion_vectors", &limits.completion_vectors);
    port_text(&mut out, 1, &info.port, &info.gids);
    for further in &info.further_ports {
        port_text(&mut out, further.number, &further.port, &further.gids);
    }
    out
}

fn port_text(out: &mut String, number: u8, port: &Port, gids: &[GidRow]) {
    out.push_str(&format!("    port {number}\n"));
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        out.push_str(&format!("        {name:<20}{value}\n"));
    };
    line("state", &port.state);
    line("link_layer", &port.link_layer);
    line("mac", &port.mac);
    line("mtu", &format_args!("{} (max {})", port.mtu, port.max_mtu));
    line("active_path_mtu", &port.active_path_mtu);
    match port.speed_gbps {
        Some(speed) => line("speed", &format_args!("{speed} Gb/s")),
        None => line("speed", &"not said"),
    }
    line("eswitch_manager", &port.eswitch_manager);
    for gid in gids {
        let vlan = gid.vlan.map_or(String::new(), |v| format!(", VLAN {v}"));
        line(
            &format!("GID[{:3}]", gid.index),
            &format_args!("{}, {}{vlan}", gid.gid, gid.version),
        );
    }
}
