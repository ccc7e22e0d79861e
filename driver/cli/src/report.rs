//! `ferroce report`: what we need to see of a card to support it, from a bring-up and a shutdown.

use std::fmt;
use std::fs;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use ferroce::cmdq::CommandTrace;
use ferroce::context::{Context, OpenConfig};
use ferroce::error::CommandError;
use ferroce::function::{self, FunctionAddress, PciFunction};
use ferroce::health::Registers;
use ferroce::host::Host;
use ferroce_firmware_iface::cmds::QueryNicVportContext;
use ferroce_firmware_iface::command::Command as _;
use serde_json::{Value, json};

use crate::args::ReportArgs;
use crate::devices;
use crate::error::{CliError, chain};
use crate::output::say;

/// Most bytes of a command's input or output that are kept: more than any command of a bring-up has.
const MOST_BYTES: usize = 1 << 16;

/// What was said to firmware, and what in it names this one card.
#[derive(Debug, Default)]
struct Said {
    commands: Vec<Value>,
    ids: Vec<Vec<u8>>,
}

type Kept = Arc<Mutex<Said>>;

pub fn run(args: &ReportArgs) -> Result<ExitCode, CliError> {
    let kept = Kept::default();
    let session = session(&args.device, &kept);
    let error = session["error"].as_str().map(str::to_owned);
    let Said { commands, ids } = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
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
        match &error {
            None => "all went well".to_string(),
            Some(error) => format!("NOT all went well ({error})"),
        }
    );
    Ok(match error {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
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

/// Brings the NIC up and shuts it down. What came of it.
fn session(device: &FunctionAddress, kept: &Kept) -> Value {
    match function::open(device) {
        Ok(function) => up_and_down(function, kept),
        Err(error) => json!({ "error": chain(&error) }),
    }
}

fn up_and_down(function: Arc<dyn PciFunction>, kept: &Kept) -> Value {
    let msix_vectors = function.msix_vectors();
    let before = registers(&*function);
    let mut found = match bring_up(Arc::clone(&function), kept) {
        Ok(context) => told_and_closed(context),
        Err(error) => json!({ "error": error }),
    };
    found["msix_vectors"] = json!(msix_vectors);
    found["registers"] = json!({ "before": before, "after": registers(&*function) });
    found
}

fn bring_up(function: Arc<dyn PciFunction>, kept: &Kept) -> Result<Arc<Context>, String> {
    let kept = Arc::clone(kept);
    let tracer = move |trace: &CommandTrace<'_>| {
        let mut said = kept.lock().unwrap_or_else(PoisonError::into_inner);
        said.commands.push(command(trace));
        said.ids.extend(ids(trace));
    };
    Context::open(function, OpenConfig::new().tracer(Arc::new(tracer))).map_err(|error| chain(&error))
}

/// What a NIC that is up says of itself, and how it goes down.
fn told_and_closed(context: Arc<Context>) -> Value {
    let port = context.port_attributes();
    let mut found = json!({
        "product": context.product(),
        "firmware": context.firmware_version().to_string(),
        "board_id": context.adapter().psid,
        "health": format!("{:?}", context.health()),
        "counters": format!("{:?}", context.counters()),
        "port_counters": told(context.port_counters()),
        "congestion_counters": told(context.congestion_counters()),
        "port": match &port {
            Ok(port) => format!("{:?}, MTU {}, {:?} Mb/s", port.state, port.mtu, port.speed_mbps),
            Err(error) => chain(error),
        },
    });
    match context.close() {
        Ok(report) => found["close"] = json!(format!("{report:?}")),
        Err(error) => found["error"] = json!(chain(&error)),
    }
    found
}

/// The registers that a NIC has also while it takes no commands: the start of BAR 0 and the health buffer.
fn registers(function: &dyn PciFunction) -> Value {
    let dwords = |dwords: &[u32]| {
        dwords
            .iter()
            .map(|dword| format!("{dword:08x}"))
            .collect::<String>()
    };
    match Registers::read(function) {
        Ok(registers) => json!({
            "firmware": registers.firmware().to_string(),
            "cmdif_rev": registers.cmdif_rev(),
            "initializing": registers.initializing(),
            "start": dwords(&registers.start),
            "initializing_dword": dwords(&[registers.initializing]),
            "health_buffer": dwords(&registers.health),
            "health": registers.report.to_string(),
            "health_counter": registers.report.counter,
        }),
        Err(error) => json!({ "error": chain(&error) }),
    }
}

/// What was found, or why it was not.
fn told<T: fmt::Debug>(found: Result<T, CommandError>) -> String {
    found.map_or_else(|error| chain(&error), |found| format!("{found:?}"))
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

/// The bytes by which one card can be told from another, where a command asks for them: its MAC address, the interface id
/// made of it, its GUIDs. Also those of a bring-up that fails later are kept: such a report is the one that is sent.
fn ids(trace: &CommandTrace<'_>) -> Vec<Vec<u8>> {
    if trace.opcode != QueryNicVportContext::OPCODE {
        return Vec::new();
    }
    let Ok(vport) = QueryNicVportContext.decode(trace.output) else {
        return Vec::new();
    };
    let [a, b, c, d, e, f] = vport.permanent_address().to_bytes();
    let guids = [vport.system_image_guid(), vport.port_guid(), vport.node_guid()];
    let own = [vec![a ^ 2, b, c, 0xff, 0xfe, d, e, f], vec![a, b, c, d, e, f]];
    own.into_iter()
        .chain(guids.map(|guid| guid.to_be_bytes().to_vec()))
        .collect()
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
    use ferroce::function::InProcess;
    use ferroce_firmware_iface::opcode::Opcode;
    use ferroce_firmware_iface::status::{CommandStatus, HealthSyndrome};
    use ferroce_nic_model::fw::Fault;
    use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
    use ferroce_suites::pair;

    #[test]
    fn what_names_a_card_is_blotted_out() {
        let ids = [vec![2, 0xfe, 0x44, 0x0c, 0xe0, 1], vec![0; 8]];
        let text = "0000000000000000 02fe440ce001 02fe440ce002".to_string();
        assert_eq!(hide(text, &ids), "0000000000000000 xxxxxxxxxxxx 02fe440ce002");
    }

    /// What the registers say, whether the bring-up went well or not.
    fn told_what_it_is(session: &Value) {
        assert!(session["msix_vectors"].as_u64() > Some(0), "{session}");
        for when in ["before", "after"] {
            let registers = &session["registers"][when];
            let version = registers["firmware"].as_str().unwrap();
            assert!(
                version.split('.').all(|part| part.parse::<u16>().unwrap() > 0),
                "{session}"
            );
            assert_eq!(registers["cmdif_rev"], 5, "{session}");
            let bytes = |name: &str| registers[name].as_str().unwrap().len() / 2;
            assert_eq!(
                (bytes("start"), bytes("health_buffer")),
                (0x20, 0x40),
                "{session}"
            );
            assert_eq!(registers["health"], "no error reported");
        }
        assert_eq!(session["registers"]["after"]["initializing"], false);
    }

    /// One whose firmware never gets ready answers no command: its registers are all that it tells.
    #[test]
    fn a_card_whose_firmware_is_dead_is_told_by_its_registers() {
        let testbed = Testbed::new(TestbedConfig::default()).unwrap();
        let dead = testbed.with_nic(0, |nic| {
            nic.firmware().set_health(HealthSyndrome::FW_INTERNAL_ERR, true)
        });
        dead.expect("a NIC");
        let function = InProcess::new("nic", testbed.device(0).unwrap()).unwrap();
        let found = registers(&function);
        assert_eq!(
            &found["health_buffer"].as_str().unwrap()[0x3c * 2..][2..4],
            "01",
            "{found}"
        );
        assert!(found["health"] != "no error reported", "{found}");
    }

    #[test]
    fn a_card_that_works_is_told_with_its_counters() {
        let testbed = Testbed::new(TestbedConfig::default()).unwrap();
        let function = InProcess::new("nic", testbed.device(0).unwrap()).unwrap();
        let kept = Kept::default();
        let session = up_and_down(Arc::new(function), &kept);
        assert!(session["error"].is_null(), "{session}");
        let counters = session["port_counters"].as_str().unwrap();
        assert!(counters.starts_with("PortCounters {"), "{counters}");
        told_what_it_is(&session);
        assert_eq!(session["registers"]["after"]["firmware"], session["firmware"]);
        let said = std::mem::take(&mut *kept.lock().unwrap());
        let told = |name: &str| said.commands.iter().any(|c| c["opcode"] == name);
        assert!(told("ENABLE_HCA") && told("DISABLE_HCA"), "{:?}", said.commands);
    }

    /// A bring-up that fails is what is most likely sent, and has told the card's names before.
    #[test]
    fn a_bring_up_that_fails_names_no_card_either() {
        let testbed = Testbed::new(TestbedConfig::default()).unwrap();
        let refused = Fault::Status(CommandStatus::EXCEED_LIM, 7);
        let injected = testbed.with_nic(0, |nic| {
            let faults = nic.firmware().faults_mut();
            faults.inject(Some(Opcode::SET_ROCE_ADDRESS), 0, refused);
        });
        injected.expect("a NIC");
        let function = InProcess::new("nic", testbed.device(0).unwrap()).unwrap();
        let kept = Kept::default();
        let session = up_and_down(Arc::new(function), &kept);
        assert!(session["error"].is_string(), "{session}");
        told_what_it_is(&session);
        let said = std::mem::take(&mut *kept.lock().unwrap());
        let (text, names) = (json!(said.commands).to_string(), pair::mac(0).0);
        assert!(text.contains(&hex(&names)), "{text}");
        let text = hide(text, &said.ids);
        assert!(!text.contains(&hex(&names)) && text.contains("xx"), "{text}");
    }
}
