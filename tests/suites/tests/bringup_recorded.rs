//! The driver is given a real ConnectX-4's recorded answers, and says to it what Linux mlx5_core said.
//!
//! `tests/data/connectx4-commands.jsonl` holds both sides of Linux' bring-up of that card. Where the driver differs from
//! that (2016) Linux, the difference is listed here with its reason.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::gid::RoceVersion;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_suites::fake::{FakeNic, Reply, Request};

#[derive(Clone, Debug)]
struct Recorded {
    input: Vec<u8>,
    input_len: usize,
    output: Vec<u8>,
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).expect("ASCII"), 16).expect("hex"))
        .collect()
}

fn recording() -> Vec<Recorded> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data/connectx4-commands.jsonl");
    let text = std::fs::read_to_string(path).expect("the recording");
    text.lines()
        .map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let text = |key: &str| value[key].as_str().expect("a string").to_owned();
            Recorded {
                input: hex(&text("in")),
                input_len: value["in_len"].as_u64().expect("a number") as usize,
                output: hex(&text("out")),
            }
        })
        .collect()
}

/// Opcode and op_mod.
fn kind(input: &[u8]) -> [u8; 4] {
    [input[0], input[1], input[6], input[7]]
}

/// A NIC that answers what the card answered. A command that was recorded more than once gets its answers in turn, then
/// the last one again.
fn card() -> Arc<FakeNic> {
    let mut answers: HashMap<[u8; 4], Vec<Vec<u8>>> = HashMap::new();
    for recorded in recording() {
        answers
            .entry(kind(&recorded.input))
            .or_default()
            .push(recorded.output);
    }
    let mut asked: HashMap<[u8; 4], usize> = HashMap::new();
    FakeNic::new(move |request: &Request| {
        let own_state = [
            Opcode::MANAGE_PAGES,
            Opcode::CREATE_EQ,
            Opcode::ALLOC_UAR,
            Opcode::ACCESS_REG,
        ];
        let Some(recorded) = answers
            .get(&kind(&request.input))
            .filter(|_| !own_state.contains(&request.opcode))
        else {
            return Reply::Normal;
        };
        let nth = asked.entry(kind(&request.input)).or_default();
        let output = recorded[(*nth).min(recorded.len() - 1)].clone();
        *nth += 1;
        Reply::Output(output)
    })
}

fn opened(nic: &Arc<FakeNic>) -> Arc<Context> {
    let function = Arc::new(InProcess::new("card", nic.clone()).expect("a function"));
    let config = OpenConfig::new()
        .command_timeout(Duration::from_secs(5))
        .completion_vectors(1)
        .address("10.9.0.1".parse().expect("an address"));
    Context::open(function, config).expect("bring-up")
}

#[test]
fn the_driver_says_what_linux_said() {
    let nic = card();
    let context = opened(&nic);
    let requests = nic.requests();
    let adapter = requests
        .iter()
        .position(|r| r.opcode == Opcode::QUERY_ADAPTER)
        .expect("QUERY_ADAPTER");
    let recorded = recording();
    for request in &requests[..=adapter] {
        let same = |r: &&Recorded| {
            // The page lists were shortened in the recording, and their addresses are each host's own.
            let compared = if request.opcode == Opcode::MANAGE_PAGES {
                16
            } else {
                r.input.len()
            };
            r.input_len == request.input.len() && r.input[..compared] == request.input[..compared]
        };
        // MAX of the RoCE and atomic capabilities is asked before they may be set, as Linux 6.12 does; in 2016 Linux
        // asked after INIT_HCA. So the order is not compared, and all of them are in the recording.
        let found = recorded.iter().find(same);
        if request.opcode == Opcode::SET_HCA_CAP {
            let linux = recorded
                .iter()
                .find(|r| kind(&r.input) == kind(&request.input))
                .expect("SET_HCA_CAP");
            let differing: Vec<(usize, u8, u8)> = (0..linux.input.len())
                .filter(|i| linux.input[*i] != request.input[*i])
                .map(|i| (i, linux.input[i], request.input[i]))
                .collect();
            // log_max_qp: 17 in Linux of 2016, 18 in 6.12.
            assert_eq!(differing, [(0x23, 0x11, 0x12)]);
            continue;
        }
        assert!(
            found.is_some(),
            "Linux never said {} {:02x?}",
            request.opcode,
            &request.input[..16]
        );
    }
    // And nothing that Linux said up to QUERY_ADAPTER is missing.
    let last = recorded
        .iter()
        .position(|r| r.input[..2] == [0x01, 0x01])
        .expect("QUERY_ADAPTER");
    for r in &recorded[..=last] {
        // Flow tables are for the kernel's own network device.
        if kind(&r.input) == [0x01, 0x00, 0, 0xf] || kind(&r.input) == [0x01, 0x00, 0, 0xe] {
            continue;
        }
        // MAX of a capability is asked once, and MAX of Ethernet offloads, which the driver sets nothing of, never.
        if kind(&r.input) == [0x01, 0x00, 0, 0x2] {
            continue;
        }
        assert!(
            requests.iter().any(|q| kind(&q.input) == kind(&r.input)),
            "{:02x?}",
            &r.input[..16]
        );
    }
    context.close().expect("an orderly close");
}

#[test]
fn the_cards_answers_are_understood() {
    let nic = card();
    let context = opened(&nic);
    assert_eq!(context.counters().pages.held, 6 + 12_868);
    let caps = context.caps();
    assert_eq!(caps.general_max().log_max_qp(), 23);
    assert_eq!(
        (caps.general().log_max_qp(), caps.general().log_max_cq()),
        (17, 24),
        "as the card reported it"
    );
    assert_eq!((caps.max_eqs(), caps.bf_reg_bytes()), (256, 512));
    assert!(caps.general().eswitch_manager());
    let roce = caps.roce().expect("RoCE");
    assert_eq!(
        (roce.roce_version(), roce.l3_type(), roce.r_roce_dest_udp_port()),
        (7, 7, 4791)
    );
    assert_eq!(context.gids().size(), 256);
    // Link-local, then the address, each in both versions.
    let versions: Vec<RoceVersion> = context.gids().entries().iter().map(|(_, e)| e.version).collect();
    assert_eq!(
        versions,
        [RoceVersion::V1, RoceVersion::V2, RoceVersion::V1, RoceVersion::V2]
    );
    assert!(caps.atomic().is_some_and(|a| a.atomic_operations() == 0xf));
    let adapter = context.adapter();
    assert_eq!((adapter.ieee_vendor_id, adapter.vsd_vendor_id), (0x02c9, 0x15b3));
    assert!(!adapter.psid.is_empty(), "{adapter:?}");
    let report = context.close().expect("an orderly close");
    assert_eq!((report.pages_given, report.pages_lost), (12_874, 0));
}
