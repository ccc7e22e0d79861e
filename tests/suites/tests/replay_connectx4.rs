//! Gives the model the commands that Linux gave a real ConnectX-4, and compares every byte of the answers.
//!
//! `tests/data/connectx4-commands.jsonl` holds the first 42 commands of mlx5_core on a card with firmware
//! 14.12.1220, with the card's answers; page lists are shortened there, so this test puts its own addresses in
//! their place. A byte that differs has to be in [`EXPLAINED`], and what is explained has to differ: the table
//! can't grow stale.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use ferroce_nic_model::clock::Nanos;
use ferroce_nic_model::link::cable::cable;
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::profile::Profile;
use ferroce_vfio_user::device::{DmaFd, DmaMap};
use rustix::fs::{MemfdFlags, memfd_create};

/// Answers in which the model differs from the card: command (from 0), bytes of its output, why.
const EXPLAINED: &[(usize, Range<usize>, &str)] = &[];

const RECORDING: &str = include_str!("../../data/connectx4-commands.jsonl");

/// Where the command queue lies, and what follows it.
const QUEUE: u64 = 0x1000_0000;
const INPUT: u64 = QUEUE + 0x10_0000;
const OUTPUT: u64 = QUEUE + 0x20_0000;
/// Pages for the firmware.
const PAGES: u64 = QUEUE + 0x40_0000;
const MAPPED: u64 = 80 << 20;
/// Linux aligns a mailbox block to this.
const BLOCK_STEP: u64 = 1024;
const MANAGE_PAGES: u16 = 0x108;
const CREATE_EQ: u16 = 0x301;

struct Recorded {
    opcode: u16,
    input: Vec<u8>,
    output: Vec<u8>,
    output_length: usize,
}

fn unhex(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn recording() -> Vec<Recorded> {
    let mut next_page = PAGES;
    let commands = RECORDING.lines().map(|line| {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line of the recording");
        let text = |key: &str| value[key].as_str().expect("a string").to_owned();
        let number = |key: &str| value[key].as_u64().expect("a number") as usize;
        let mut input = unhex(&text("in"));
        let opcode = u16::from_be_bytes([input[0], input[1]]);
        if opcode == MANAGE_PAGES {
            input.truncate(16);
            while input.len() < number("in_len") {
                input.extend_from_slice(&next_page.to_be_bytes());
                next_page += 4096;
            }
        }
        // Of HOST_ENDIANNESS the log has only what stood in the queue entry; the register itself is 0 both ways.
        input.resize(number("in_len"), 0);
        Recorded {
            opcode,
            input,
            output: unhex(&text("out")),
            output_length: number("out_len"),
        }
    });
    commands.collect()
}

/// The host of the replay: the NIC, and memory that both see.
struct Host {
    nic: Nic,
    memory: File,
    now: Nanos,
}

fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("replay", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("its size");
    fd
}

impl Host {
    fn new() -> Host {
        let (port, _peer) = cable(16);
        let mut nic = Nic::new(Profile::connectx4(), Box::new(port));
        let fd = memfd(MAPPED);
        let memory = File::from(fd.try_clone().expect("another descriptor"));
        let now = Nanos(1_000_000_000);
        nic.config_write(now, 4, &[6, 0]).expect("command register");
        let mut host = Host { nic, memory, now };
        host.map(QUEUE, MAPPED, fd);
        host.write_register(0x10, (QUEUE >> 32) as u32);
        host.write_register(0x14, QUEUE as u32);
        host
    }

    fn map(&mut self, iova: u64, len: u64, fd: OwnedFd) {
        let memory = Some(DmaFd { fd, offset: 0 });
        let map = DmaMap {
            iova,
            len,
            readable: true,
            writable: true,
            memory,
        };
        self.nic.dma_map(map).expect("DMA map");
    }

    fn write_register(&mut self, at: u64, value: u32) {
        self.nic
            .bar_write(self.now, at, &value.to_be_bytes())
            .expect("in the BAR");
        while self.nic.poll(self.now) {}
    }

    fn put(&self, iova: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, iova - QUEUE).expect("memory");
    }

    fn get(&self, iova: u64, bytes: &mut [u8]) {
        self.memory.read_exact_at(bytes, iova - QUEUE).expect("memory");
    }

    /// Writes a chain of mailbox blocks, byte by byte as the PRM has it, not by the layouts under test.
    fn chain(&self, at: u64, data: &[u8], length: usize, token: u8) {
        let blocks = length.saturating_sub(16).div_ceil(512) as u64;
        for i in 0..blocks {
            let mut block = [0; 576];
            let from = (i as usize * 512).min(data.len());
            let part = &data[from..data.len().min(from + 512)];
            block[..part.len()].copy_from_slice(part);
            let next = if i + 1 < blocks {
                at + (i + 1) * BLOCK_STEP
            } else {
                0
            };
            block[0x230..0x238].copy_from_slice(&next.to_be_bytes());
            block[0x238..0x23c].copy_from_slice(&(i as u32).to_be_bytes());
            block[0x23d] = token;
            self.put(at + i * BLOCK_STEP, &block);
        }
    }

    fn command(&mut self, command: &Recorded, token: u8) -> Vec<u8> {
        let (input, out_len) = (&command.input, command.output_length);
        let inline = input.len().min(16);
        self.chain(INPUT, &input[inline..], input.len(), token);
        self.chain(OUTPUT, &[], out_len, token);
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&INPUT.to_be_bytes());
        entry[0x10..0x10 + inline].copy_from_slice(&input[..inline]);
        entry[0x30..0x38].copy_from_slice(&OUTPUT.to_be_bytes());
        entry[0x38..0x3c].copy_from_slice(&(out_len as u32).to_be_bytes());
        entry[0x3c] = token;
        entry[0x3d] = !entry.iter().fold(1, |x, b| x ^ b);
        entry[0x3f] = 1;
        self.put(QUEUE, &entry);
        self.write_register(0x18, 1);
        self.get(QUEUE, &mut entry);
        assert_eq!(entry[0x3f], 0, "command {:#x} was not delivered", command.opcode);
        let mut output = entry[0x20..0x30].to_vec();
        let mut block = [0; 512];
        for i in 0..out_len.saturating_sub(16).div_ceil(512) as u64 {
            self.get(OUTPUT + i * BLOCK_STEP, &mut block);
            output.extend_from_slice(&block);
        }
        output.truncate(out_len);
        output
    }
}

/// Runs of bytes in which the two differ.
fn differences(ours: &[u8], theirs: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in ours.iter().zip(theirs).enumerate().filter(|(_, (a, b))| a != b) {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[test]
fn the_model_answers_as_the_real_card() {
    let commands = recording();
    assert_eq!(commands.len(), 42);
    let mut host = Host::new();
    let mut unexplained = Vec::new();
    let mut used: BTreeMap<usize, usize> = BTreeMap::new();
    for (number, command) in commands.iter().enumerate() {
        if command.opcode == CREATE_EQ {
            // The queue's pages lie where Linux had them.
            let pas = command.input[0x110..].first_chunk().expect("one page address");
            host.map(u64::from_be_bytes(*pas), 0x2_0000, memfd(0x2_0000));
        }
        let output = host.command(command, number as u8 + 1);
        assert!(output.len() >= command.output.len());
        for run in differences(&output, &command.output) {
            let known = EXPLAINED
                .iter()
                .position(|(n, bytes, _)| *n == number && bytes.start <= run.start && run.end <= bytes.end);
            match known {
                Some(row) => *used.entry(row).or_default() += 1,
                None => unexplained.push(format!(
                    "command {number} ({:#x}), output bytes {run:#x?}: ours {:02x?}, the card's {:02x?}",
                    command.opcode,
                    &output[run.clone()],
                    &command.output[run.clone()],
                )),
            }
        }
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    for (row, (number, bytes, reason)) in EXPLAINED.iter().enumerate() {
        assert!(
            used.contains_key(&row),
            "command {number} does not differ in {bytes:x?} any more: {reason}"
        );
    }
    let violations: Vec<_> = host
        .nic
        .firmware()
        .violations()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(violations, Vec::<String>::new(), "Linux did nothing wrong");
}

#[test]
fn the_recorded_queue_lists_need_the_pages_that_they_name() {
    // Each recorded CREATE_EQ gives one page address, with a log_page_size that makes the page hold the queue.
    for command in recording().iter().filter(|c| c.opcode == CREATE_EQ) {
        let log_entries = command.input[0x1c] & 0x1f;
        let log_page = command.input[0x28] & 0x1f;
        assert!(64u64 << log_entries <= 4096 << log_page);
    }
}

/// The bits `[offset, offset + width)` of a capability, counted as the PRM does.
fn bits(capability: &[u8], offset: usize, width: usize) -> u64 {
    let bit = |at: usize| u64::from(capability[at / 8] >> (7 - at % 8) & 1);
    (offset..offset + width).fold(0, |value, at| value << 1 | bit(at))
}

#[test]
fn every_decoded_capability_is_that_of_the_card() {
    let mut host = Host::new();
    for (number, command) in recording()
        .iter()
        .take_while(|c| c.opcode != CREATE_EQ)
        .enumerate()
    {
        host.command(command, number as u8 + 1);
    }
    let types = [
        ("cmd_hca_cap", 0u16),
        ("per_protocol_networking_offload_caps", 1),
        ("atomic_caps", 3),
        ("roce_cap", 4),
        ("flow_table_nic_cap", 7),
    ];
    let mut query = |op_mod: u16| {
        let mut input = vec![0; 16];
        input[..2].copy_from_slice(&0x100u16.to_be_bytes());
        input[6..8].copy_from_slice(&op_mod.to_be_bytes());
        let command = Recorded {
            opcode: 0x100,
            input,
            output: Vec::new(),
            output_length: 4112,
        };
        host.command(&command, 99).split_off(16)
    };
    let answers: BTreeMap<_, _> = types
        .iter()
        .map(|(name, ty)| (*name, [query(ty << 1), query(ty << 1 | 1)]))
        .collect();
    let mut rows = 0;
    for line in include_str!("../../data/connectx4-capabilities.tsv")
        .lines()
        .filter(|l| !l.starts_with('#'))
    {
        let [layout, field, offset, width, max, current] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("not a row: {line}");
        };
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex");
        let (offset, width) = (hex(offset) as usize, width.parse().expect("a width"));
        let [ours_max, ours_current] = &answers[layout];
        assert_eq!(bits(ours_max, offset, width), hex(max), "{layout}.{field}, MAX");
        assert_eq!(
            bits(ours_current, offset, width),
            hex(current),
            "{layout}.{field}, CURRENT"
        );
        rows += 1;
    }
    assert!(rows > 1500);
}
