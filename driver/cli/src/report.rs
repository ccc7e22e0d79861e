//! `ferroce report`: what we need to see of a card to support it, from a bring-up and a shutdown.

use std::fs;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use ferroce::cmdq::CommandTrace;
use ferroce::context::{Context, OpenConfig};
use ferroce::error::OpenError;
use ferroce::function::{self, FunctionAddress};
use ferroce::host::Host;
use ferroce::port::PortAttributes;
use serde_json::{Value, json};

use crate::args::ReportArgs;
use crate::devices;
use crate::error::{CliError, chain};
use crate::output::say;

/// Most bytes of a command's input or output that are kept: more than any command of a bring-up has.
const MOST_BYTES: usize = 1 << 16;

type Commands = Arc<Mutex<Vec<Value>>>;

pub fn run(args: &ReportArgs) -> Result<ExitCode, CliError> {
    let commands = Commands::default();
    let (session, ids) = session(&args.device, &commands);
    let ok = session["error"].is_null();
    let commands = std::mem::take(&mut *commands.lock().unwrap_or_else(PoisonError::into_inner));
    let count = commands.len();
    let report = json!({
        "format": 1,
        "ferroce": env!("CARGO_PKG_VERSION"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "architecture": std::env::consts::ARCH,
        "page_size": function::host_page_size(),
        "device": device(&args.device),
        "session": session,
        "commands": commands,
    });
    let text = serde_json::to_string_pretty(&report).map_err(|e| CliError::Other(e.to_string()))?;
    fs::write(&args.file, hide(text, &ids)).map_err(CliError::file("can't write", &args.file))?;
    say!(
        "{}: {count} firmware commands, {}; MAC addresses and GUIDs are blotted out. Please look through it before you \
         send it.",
        args.file.display(),
        if ok {
            "all went well"
        } else {
            "NOT all went well, see \"error\" in it"
        }
    );
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the machine says of the function, without its names and addresses on the network.
fn device(device: &FunctionAddress) -> Value {
    let Some(address) = device.pci() else {
        return json!({ "address": "not on this machine's PCI bus" });
    };
    match Host::new().function(address) {
        Ok(function) => {
            let mut value = devices::as_json(&function);
            if let Some(fields) = value.as_object_mut() {
                fields.remove("netdevs");
            }
            value
        }
        Err(error) => json!({ "error": chain(&error) }),
    }
}

/// Brings the NIC up and shuts it down. What came of it, and what in it names this one card.
fn session(device: &FunctionAddress, commands: &Commands) -> (Value, Vec<Vec<u8>>) {
    let function = match function::open(device) {
        Ok(function) => function,
        Err(error) => return (json!({ "error": chain(&error) }), Vec::new()),
    };
    let msix_vectors = function.msix_vectors();
    let kept = Arc::clone(commands);
    let tracer = move |trace: &CommandTrace<'_>| {
        kept.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(command(trace));
    };
    let context = match Context::open(function, OpenConfig::new().tracer(Arc::new(tracer))) {
        Ok(context) => context,
        Err(error) => return (json!({ "error": open_error(&error) }), Vec::new()),
    };
    let port = context.port_attributes();
    let ids = port.as_ref().map(ids).unwrap_or_default();
    let mut found = json!({
        "product": context.product(),
        "firmware": context.firmware_version().to_string(),
        "board_id": context.adapter().psid,
        "msix_vectors": msix_vectors,
        "health": format!("{:?}", context.health()),
        "counters": format!("{:?}", context.counters()),
        "port": match &port {
            Ok(port) => format!("{:?}, MTU {}, {:?} Mb/s", port.state, port.mtu, port.speed_mbps),
            Err(error) => chain(error),
        },
    });
    match context.close() {
        Ok(report) => found["close"] = json!(format!("{report:?}")),
        Err(error) => found["error"] = json!(chain(&error)),
    }
    (found, ids)
}

fn open_error(error: &OpenError) -> String {
    chain(error)
}

fn command(trace: &CommandTrace<'_>) -> Value {
    json!({
        "opcode": trace.opcode.to_string(),
        "input": hex(trace.input),
        "output": hex(trace.output),
        "microseconds": trace.took.as_micros() as u64,
        "error": trace.result.err().map(|error| chain(error)),
    })
}

fn hex(bytes: &[u8]) -> String {
    let kept = &bytes[..bytes.len().min(MOST_BYTES)];
    kept.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes by which one card can be told from another: its MAC address, the interface id made of it, its GUIDs.
fn ids(port: &PortAttributes) -> Vec<Vec<u8>> {
    let [a, b, c, d, e, f] = port.mac.0;
    vec![
        vec![a ^ 2, b, c, 0xff, 0xfe, d, e, f],
        port.mac.0.to_vec(),
        port.node_guid.to_be_bytes().to_vec(),
        port.system_image_guid.to_be_bytes().to_vec(),
    ]
}

/// Blots out what names one card, where it stands as hexadecimal digits.
fn hide(mut text: String, ids: &[Vec<u8>]) -> String {
    for id in ids {
        if id.iter().any(|byte| *byte != 0) {
            text = text.replace(&hex(id), &"xx".repeat(id.len()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_a_card_is_blotted_out() {
        let ids = [vec![2, 0xfe, 0x44, 0x0c, 0xe0, 1], vec![0; 8]];
        let text = "0000000000000000 02fe440ce001 02fe440ce002".to_string();
        assert_eq!(hide(text, &ids), "0000000000000000 xxxxxxxxxxxx 02fe440ce002");
    }
}
