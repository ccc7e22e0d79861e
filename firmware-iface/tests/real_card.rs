//! The commands that Linux gave a real ConnectX-4 and its answers (`tests/data/connectx4-commands.jsonl`):
//! our typed commands encode to the same bytes, and every layout that they hold decodes and encodes again bit
//! for bit.

use std::fs;
use std::path::PathBuf;

use ferroce_firmware_iface::cmds::*;
use ferroce_firmware_iface::command::Command;
use ferroce_firmware_iface::event::EventType;
use ferroce_firmware_iface::layout::{Layout, LayoutInfo, read_field, view};
use ferroce_firmware_iface::layouts::*;
use ferroce_firmware_iface::opcode::Opcode;

struct Recorded {
    opcode: Opcode,
    /// Length on the card; the recording shortens page lists.
    in_len: usize,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Recorded {
    fn op_mod(&self) -> u16 {
        u16::from_be_bytes([self.input[6], self.input[7]])
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .map(|d| (d as char).to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
}

fn recording() -> Vec<Recorded> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/connectx4-commands.jsonl");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let commands: Vec<Recorded> = text
        .lines()
        .map(|line| {
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            let opcode = json["opcode"].as_str().unwrap().trim_start_matches("0x");
            Recorded {
                opcode: Opcode(u16::from_str_radix(opcode, 16).unwrap()),
                in_len: json["in_len"].as_u64().unwrap() as usize,
                input: bytes(json["in"].as_str().unwrap()),
                output: bytes(json["out"].as_str().unwrap()),
            }
        })
        .collect();
    assert_eq!(commands.len(), 42);
    commands
}

/// Writes every field that a layout has into a buffer of zeros: what is not there again had no field.
fn rewrite(info: &LayoutInfo, from: &[u8], to: &mut [u8]) {
    for field in info.fields {
        for i in 0..field.count {
            let bit = field.bit_offset as usize + i as usize * field.bit_width as usize;
            if let Some(nested) = field.nested {
                let at = bit / 8;
                rewrite(
                    nested,
                    &from[at..at + nested.bytes],
                    &mut to[at..at + nested.bytes],
                );
                continue;
            }
            let value = read_field(from, field, i).unwrap_or(0);
            for b in 0..field.bit_width as usize {
                let one = (value >> (field.bit_width as usize - 1 - b) & 1) as u8;
                to[(bit + b) / 8] |= one << (7 - (bit + b) % 8);
            }
        }
    }
}

fn round_trip<T: Layout>(bytes: &[u8]) {
    let layout: &T = view(bytes).unwrap_or_else(|| panic!("too few bytes for {}", T::INFO.name));
    let mut again = vec![0; T::INFO.bytes];
    rewrite(T::INFO, layout.as_bytes(), &mut again);
    for (i, (again, said)) in again.iter().zip(layout.as_bytes()).enumerate() {
        let beyond = BEYOND_THE_TABLES
            .iter()
            .find(|(name, byte, _)| *name == T::INFO.name && *byte == i);
        let beyond = beyond.map_or(0, |(_, _, bits)| *bits);
        assert_eq!(
            *again,
            said & !beyond,
            "{} byte {i:#x}: the card said {said:#04x}",
            T::INFO.name
        );
    }
}

/// Bits that the card's firmware of 2016 sets and that the PRM's tables have no field for (layout, byte, bits).
/// A driver hands them back in SET_HCA_CAP, since it changes what it knows in a copy of what it was told.
const BEYOND_THE_TABLES: &[(&str, usize, u8)] = &[
    ("cmd_hca_cap", 0x41, 0x06),
    ("cmd_hca_cap", 0x45, 0x40),
    ("per_protocol_networking_offload_caps", 0x1, 0x60),
    ("roce_cap", 0x0, 0x40),
];

#[test]
fn every_layout_of_the_recording_encodes_again_bit_for_bit() {
    for command in recording() {
        match command.opcode {
            Opcode::QUERY_HCA_CAP => {
                let capability = &command.output[QueryHcaCapOut::CAPABILITY_OFFSET..];
                match command.op_mod() >> 1 {
                    0x0 => round_trip::<CmdHcaCap>(capability),
                    0x1 => round_trip::<PerProtocolNetworkingOffloadCaps>(capability),
                    0x3 => round_trip::<AtomicCaps>(capability),
                    0x4 => round_trip::<RoceCap>(capability),
                    // The driver looks at flow tables only when it has some; the model sends the recorded bytes.
                    0x7 => {}
                    other => panic!("capability {other:#x} is not covered"),
                }
            }
            Opcode::SET_HCA_CAP => round_trip::<CmdHcaCap>(&command.input[SetHcaCapIn::CAPABILITY_OFFSET..]),
            Opcode::CREATE_EQ => {
                round_trip::<CreateEqIn>(&command.input);
                round_trip::<CreateEqOut>(&command.output);
            }
            Opcode::QUERY_ADAPTER => round_trip::<QueryAdapterOut>(&command.output),
            Opcode::QUERY_ISSI => round_trip::<QueryIssiOut>(&command.output),
            Opcode::QUERY_PAGES => round_trip::<QueryPagesOut>(&command.output),
            Opcode::MANAGE_PAGES => round_trip::<ManagePagesIn>(&command.input),
            Opcode::ALLOC_UAR => round_trip::<AllocUarOut>(&command.output),
            Opcode::ACCESS_REG => {
                round_trip::<AccessRegisterIn>(&command.input);
                // The recording stops before the register itself, which is 16 zero bytes for little endian.
                assert_eq!(
                    command.in_len,
                    AccessRegisterIn::BYTES + RegisterHostEndianness::BYTES
                );
            }
            Opcode::ENABLE_HCA => round_trip::<EnableHcaIn>(&command.input),
            Opcode::SET_ISSI => round_trip::<SetIssiIn>(&command.input),
            Opcode::INIT_HCA => assert_eq!(command.input.len(), 16),
            other => panic!("{other} is not covered"),
        }
    }
}

/// The bytes that our own typed command gives for a recorded one.
fn ours(command: &Recorded) -> Vec<u8> {
    let input = &command.input;
    let cap_mode = |op_mod: u16| {
        if op_mod & 1 == 1 {
            CapMode::Current
        } else {
            CapMode::Max
        }
    };
    let encoded = match command.opcode {
        Opcode::ENABLE_HCA => EnableHca.encode(),
        Opcode::QUERY_ISSI => QueryIssi.encode(),
        Opcode::SET_ISSI => SetIssi { issi: 1 }.encode(),
        Opcode::QUERY_PAGES if command.op_mod() == 1 => QueryPages {
            pages_for: PagesFor::Boot,
        }
        .encode(),
        Opcode::QUERY_PAGES => QueryPages {
            pages_for: PagesFor::Init,
        }
        .encode(),
        Opcode::MANAGE_PAGES => {
            // The recording has the first page addresses only.
            let mut pages: Vec<u64> =
                ferroce_firmware_iface::command::addresses(input, ManagePagesIn::PAS_OFFSET).collect();
            pages.resize((command.in_len - ManagePagesIn::BYTES) / 8, 0);
            GivePages {
                function_id: 0,
                embedded_cpu: false,
                pages: &pages,
            }
            .encode()
        }
        Opcode::ACCESS_REG => WriteRegister {
            register: RegisterHostEndianness::default(),
        }
        .encode(),
        Opcode::QUERY_HCA_CAP => match command.op_mod() >> 1 {
            0x0 => QueryHcaCap::<CmdHcaCap>::new(cap_mode(command.op_mod())).encode(),
            0x1 => QueryHcaCap::<PerProtocolNetworkingOffloadCaps>::new(cap_mode(command.op_mod())).encode(),
            0x3 => QueryHcaCap::<AtomicCaps>::new(cap_mode(command.op_mod())).encode(),
            0x4 => QueryHcaCap::<RoceCap>::new(cap_mode(command.op_mod())).encode(),
            _ => return input.clone(),
        },
        Opcode::SET_HCA_CAP => {
            let value = CapValue::<CmdHcaCap>::from_bytes(&input[SetHcaCapIn::CAPABILITY_OFFSET..]).unwrap();
            SetHcaCap { value: &value }.encode()
        }
        Opcode::INIT_HCA => InitHca.encode(),
        Opcode::QUERY_ADAPTER => QueryAdapter.encode(),
        Opcode::ALLOC_UAR => AllocUar.encode(),
        Opcode::CREATE_EQ => {
            let recorded: &CreateEqIn = view(input).unwrap();
            let events: Vec<EventType> = (0..=255u8)
                .map(EventType)
                .filter(|e| recorded.event_bitmask(e.mask_position().0) & e.mask_position().1 != 0)
                .collect();
            let pages: Vec<u64> =
                ferroce_firmware_iface::command::addresses(input, CreateEqIn::PAS_OFFSET).collect();
            CreateEq {
                eqc: recorded.eq_context_entry(),
                events: &events,
                pages: &pages,
            }
            .encode()
        }
        other => panic!("{other} is not covered"),
    };
    encoded.unwrap()
}

#[test]
fn our_commands_are_the_recorded_ones_bit_for_bit() {
    for (number, command) in recording().iter().enumerate() {
        let ours = ours(command);
        assert_eq!(
            ours.len(),
            command.in_len,
            "length of command {number}, {}",
            command.opcode
        );
        assert_eq!(
            ours[..command.input.len()],
            command.input[..],
            "command {number}, {}",
            command.opcode
        );
    }
}

#[test]
fn the_cards_answers_decode_to_what_it_is() {
    let recording = recording();
    let answer = |opcode: Opcode, op_mod: u16| {
        &recording
            .iter()
            .find(|c| c.opcode == opcode && c.op_mod() == op_mod)
            .unwrap()
            .output
    };
    let boot = QueryPages {
        pages_for: PagesFor::Boot,
    }
    .decode(answer(Opcode::QUERY_PAGES, 1))
    .unwrap();
    assert_eq!(
        boot,
        PagesWanted {
            function_id: 0,
            num_pages: 6
        }
    );
    let init = QueryPages {
        pages_for: PagesFor::Init,
    }
    .decode(answer(Opcode::QUERY_PAGES, 2))
    .unwrap();
    assert_eq!(init.num_pages, 12_868);
    let issi = QueryIssi.decode(answer(Opcode::QUERY_ISSI, 0)).unwrap();
    assert_eq!(issi.supported & 0b10, 0b10);
    let caps = QueryHcaCap::<CmdHcaCap>::new(CapMode::Max)
        .decode(answer(Opcode::QUERY_HCA_CAP, 0))
        .unwrap()
        .layout;
    assert_eq!(caps.log_max_qp(), 23);
    assert_eq!((caps.vport_group_manager(), caps.eswitch_manager()), (true, true));
    assert_eq!(
        (caps.bf(), caps.uar_4k(), caps.log_bf_reg_size()),
        (true, false, 9)
    );
    assert_eq!(AllocUar.decode(answer(Opcode::ALLOC_UAR, 0)).unwrap().get(), 0x10);
}
