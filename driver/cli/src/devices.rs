//! `ferroce devices`: the machine's RoCE-capable functions, and what each lacks.

use std::process::ExitCode;

use ferroce::host::{Function, Group, Link, Netdev};
use serde_json::{Value, json};

use crate::args::DevicesArgs;
use crate::error::CliError;
use crate::output::say;

pub fn run(args: &DevicesArgs) -> Result<ExitCode, CliError> {
    let functions = args.host.host().functions()?;
    if args.host.json {
        let devices: Vec<Value> = functions.iter().map(as_json).collect();
        say!("{}", json!({ "devices": devices }));
    } else if functions.is_empty() {
        say!("no NIC that ferroce drives on this machine's PCI bus; without one, try `ferroce demo`");
    } else {
        functions.iter().for_each(print);
    }
    Ok(ExitCode::SUCCESS)
}

/// A function, for machines.
pub fn as_json(function: &Function) -> Value {
    let netdev = |n: &Netdev| {
        json!({
            "name": n.name, "up": n.up, "mac": n.mac, "state": n.state, "speed_mbps": n.speed_mbps,
            "addresses": n.addresses,
        })
    };
    let group = |g: &Group| {
        let others: Vec<Value> = g
            .others
            .iter()
            .map(|o| json!({ "address": o.address, "driver": o.driver }))
            .collect();
        json!({ "id": g.id, "others": others, "in_the_way": g.in_the_way })
    };
    let link = &function.link;
    json!({
        "address": function.address.to_string(),
        "vendor": format!("{:04x}", function.vendor),
        "device": format!("{:04x}", function.device),
        "product": function.product,
        "virtual_function": function.virtual_function,
        "driver": function.driver,
        "driver_override": function.driver_override,
        "iommu_group": function.group.as_ref().map(group),
        "numa_node": function.numa_node,
        "pcie_link": {
            "speed": link.speed, "width": link.width, "max_speed": link.max_speed, "max_width": link.max_width,
        },
        "netdevs": function.netdevs.iter().map(netdev).collect::<Vec<_>>(),
        "rdma_devices": function.rdma_devices,
        "missing": function.missing,
    })
}

fn print(function: &Function) {
    say!(
        "{} {} [{:04x}:{:04x}]",
        function.address,
        function.product,
        function.vendor,
        function.device
    );
    let line = |name: &str, value: &str| say!("    {name:<12}{value}");
    line("driver", function.driver.as_deref().unwrap_or("none"));
    line("IOMMU group", &group_text(function.group.as_ref()));
    match function.numa_node {
        Some(node) => line("NUMA node", &node.to_string()),
        None => line("NUMA node", "not said"),
    }
    line("PCIe link", &link_text(&function.link));
    for netdev in &function.netdevs {
        line("interface", &netdev_text(netdev));
    }
    for name in &function.rdma_devices {
        line("RDMA device", name);
    }
    if function.missing.is_empty() {
        line("ready", "yes");
    }
    for missing in &function.missing {
        line("missing", missing);
    }
}

fn group_text(group: Option<&Group>) -> String {
    let Some(group) = group else {
        return "none".to_string();
    };
    if group.others.is_empty() {
        return format!("{}, alone in it", group.id);
    }
    let others: Vec<String> = group
        .others
        .iter()
        .map(|o| format!("{} ({})", o.address, o.driver.as_deref().unwrap_or("no driver")))
        .collect();
    format!("{}, shared with {}", group.id, others.join(", "))
}

fn link_text(link: &Link) -> String {
    let text = |speed: &Option<String>, width: Option<u32>| match (speed, width) {
        (Some(speed), Some(width)) => Some(format!("{speed} x{width}")),
        _ => None,
    };
    match (
        text(&link.speed, link.width),
        text(&link.max_speed, link.max_width),
    ) {
        (Some(now), Some(most)) if link.reduced() => format!("{now}, could do {most}"),
        (Some(now), _) => now,
        (None, _) => "not said".to_string(),
    }
}

fn netdev_text(netdev: &Netdev) -> String {
    let up = match netdev.up {
        Some(true) => "up",
        Some(false) => "down",
        None => "up or down is not said",
    };
    let mut text = format!("{}, {up}", netdev.name);
    if let Some(speed) = netdev.speed_mbps {
        text.push_str(&format!(", {} Gb/s", f64::from(speed) / 1000.0));
    }
    if let Some(mac) = &netdev.mac {
        text.push_str(&format!(", {mac}"));
    }
    match &netdev.addresses {
        Some(addresses) => addresses
            .iter()
            .for_each(|address| text.push_str(&format!(", {address}"))),
        None => text.push_str(", addresses are not said"),
    }
    text
}
