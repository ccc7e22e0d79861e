//! A host that gives the model any command, any doorbell and any register write: never a panic, bounded work,
//! and a function reset brings the NIC back.

use ferroce_firmware_iface::opcode::Opcode;
use ferroce_nic_model::clock::Nanos;
use ferroce_nic_model::fw::Fault;
use ferroce_nic_model::fw::plane::Plane;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::wire::{Frame, Icrc};
use ferroce_suites::bare_host::{BYTES, Host, MEMORY, SEND_QUEUE, templates};
use proptest::prelude::*;

/// A template of which a few bits are turned, or anything at all.
fn command() -> impl Strategy<Value = Vec<u8>> {
    let flips = proptest::collection::vec((2usize..0x140, 0u8..8), 0..4);
    let bent = (proptest::sample::select(templates()), flips).prop_map(|(mut input, flips)| {
        for (at, bit) in flips {
            let at = at % input.len();
            input[at] ^= 1 << bit;
        }
        input
    });
    let opcode = prop_oneof![
        4 => proptest::sample::select(Opcode::ALL).prop_map(|o| o.0),
        1 => any::<u16>(),
    ];
    let wild = (opcode, proptest::collection::vec(any::<u8>(), 6..700)).prop_map(|(opcode, body)| {
        let mut input = opcode.to_be_bytes().to_vec();
        input.extend(body);
        input
    });
    prop_oneof![8 => bent, 1 => wild]
}

#[derive(Clone, Debug)]
enum Step {
    Command(Vec<u8>, usize),
    Bar(u64, Vec<u8>),
    Config(u16, Vec<u8>),
    Scribble(u64, Vec<u8>),
    Wait(u64),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 1..most);
    let doorbell = (
        0x10u64..0x14,
        prop_oneof![Just(0x20u64), Just(0x40), Just(0x48), Just(0x800), 0u64..0x1000],
    );
    let doorbell = doorbell.prop_map(|(uar, at)| (uar * 4096 + at) & !3);
    prop_oneof![
        12 => (command(), 8usize..1200).prop_map(|(c, n)| Step::Command(c, n)),
        4 => (doorbell, proptest::collection::vec(any::<u8>(), 8)).prop_map(|(at, data)| Step::Bar(at, data)),
        2 => (0u64..(8 << 20) - 64, bytes(64)).prop_map(|(at, data)| Step::Bar(at, data)),
        1 => (0u64..0x2ff0, bytes(9)).prop_map(|(at, data)| Step::Bar(at, data)),
        1 => (0u16..4080, bytes(9)).prop_map(|(at, data)| Step::Config(at, data)),
        2 => (0x1000u64..BYTES - 64, bytes(64)).prop_map(|(at, data)| Step::Scribble(at, data)),
        1 => (0u64..10_000_000_000).prop_map(Step::Wait),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_a_host_does_breaks_the_model(start in any::<bool>(), steps in proptest::collection::vec(step(), 1..60)) {
        let mut host = Host::new();
        if start {
            host.objects();
        }
        for step in steps {
            match step {
                Step::Command(input, output_length) => {
                    host.command(&input, output_length);
                }
                Step::Bar(at, data) => host.write(at, &data),
                Step::Config(at, data) => host.config_write(at, &data),
                Step::Scribble(at, data) => host.put(MEMORY + at, &data),
                Step::Wait(ns) => host.pass(ns),
                Step::Reset => host.reset(),
            }
        }
        host.reset();
    }
}

#[test]
fn the_templates_are_commands_that_work() {
    let mut host = Host::new();
    host.objects();
    let violations: Vec<_> = host
        .nic
        .firmware()
        .violations()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(violations, Vec::<String>::new());
}

#[test]
fn a_device_that_may_not_master_the_bus_touches_no_memory() {
    let mut host = Host::new();
    host.nic
        .config_write(host.now, 4, &[2, 0])
        .expect("command register");
    let mut input = [0; 16];
    input[0] = 8; // ALLOC_PD
    assert_eq!(host.command(&input, 16), None);
    host.nic
        .config_write(host.now, 4, &[4, 0])
        .expect("command register");
    let mut revision = [0; 4];
    host.nic.bar_read(host.now, 0, &mut revision).expect("in the BAR");
    assert_eq!(revision, [0xff; 4], "without memory space nobody answers");
}

/// WRITEs of a page each in the send queue, and a peer's WRITE that arrives.
const WRITES: u16 = 8;
/// The bytes of the host's that a peer may write to, as [`Host::objects`] has registered them, clear of its queues.
const TARGET: u64 = MEMORY + 0x4_2000;
const KEY: u32 = 0x100 << 8;

fn post_writes(host: &mut Host) {
    for n in 0..WRITES {
        let control = [u32::from(n) << 8 | 0x08, 0x40 << 8 | 3, 0, 0];
        // To where does not matter: nobody answers.
        let remote = [0, 0, KEY, 0];
        let data = [4096, KEY, (TARGET >> 32) as u32, TARGET as u32];
        let words = [control, remote, data].into_iter().flatten();
        let wqe: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
        host.put(SEND_QUEUE + u64::from(n) * 64, &wqe);
    }
    host.doorbell(WRITES);
}

/// The first request of the peer: 8 bytes to [`TARGET`].
fn write_of_peer(round: u32) -> Frame {
    let bth = [&[0x0a, 0, 0xff, 0xff, 0, 0, 0, 0x40][..], &[0x80, 0, 0, 0]].concat();
    let reth = [&TARGET.to_be_bytes()[..], &KEY.to_be_bytes(), &8u32.to_be_bytes()].concat();
    let payload = (u64::from(round) + 1).to_be_bytes();
    Frame::from_vec(Host::frame_of_peer(
        &[&bth[..], &reth, &payload, &[0; 4]].concat(),
    ))
}

/// Commands, WRITEs of ours and a peer's are under way; how the reset finds them depends on how many turns the NIC has had.
/// True when the command had been answered.
fn reset_in_the_middle(host: &mut Host, round: u32) -> bool {
    host.objects();
    host.enable_roce();
    host.nic.data_plane.set_icrc(Icrc::Off);
    post_writes(host);
    host.nic.data_plane.receive(host.now, write_of_peer(round));
    let (opcode, number) = if round.is_multiple_of(2) {
        (Opcode::DESTROY_QP, 0x40u32)
    } else {
        (Opcode::ALLOC_PD, 0)
    };
    let late = Fault::LateAnswer(1_000);
    if round.is_multiple_of(3) {
        // Carried out, and on its way back.
        host.nic.firmware().faults_mut().inject(Some(opcode), 0, late);
    }
    let mut input = [0; 16];
    input[..2].copy_from_slice(&opcode.0.to_be_bytes());
    input[8..12].copy_from_slice(&number.to_be_bytes());
    host.submit(&input, 16);
    for _ in 0..round % 5 {
        host.nic.poll(host.now);
    }
    if round % 5 == 4 {
        assert_eq!(
            host.bytes(TARGET, 8),
            (u64::from(round) + 1).to_be_bytes(),
            "DMA ran"
        );
    }
    let answered = host.answer();
    assert!(matches!(answered, None | Some(0)), "{answered:?}");
    host.nic.reset(host.now);
    host.nic.firmware().faults_mut().clear();
    answered.is_some()
}

/// What a NIC has of its host's.
fn held(host: &mut Host) -> (Vec<(&'static str, u32)>, u64, Option<Nanos>) {
    let plane = &mut host.nic.data_plane;
    let timer = plane.next_timeout();
    (plane.census(), plane.host.counters().mapped_bytes, timer)
}

#[test]
fn v03_a_thousand_resets_at_any_point() {
    let mut profile = Profile::minimal();
    (profile.boot_pages, profile.init_pages, profile.object_pages) = (3, 40, 30);
    let mut host = Host::with(profile);
    let mut answered = 0;
    let mut at_first = None;
    for round in 0..1000 {
        answered += u32::from(reset_in_the_middle(&mut host, round));
        let then = host.bytes(MEMORY, BYTES as usize);
        // It may access memory again, and has time for whatever it might have kept: late answers, packets to be sent again.
        host.config_write(4, &[6, 0]);
        host.pass(100_000_000_000);
        assert!(
            host.bytes(MEMORY, BYTES as usize) == then,
            "DMA after reset {round}"
        );
        let now = held(&mut host);
        assert_eq!(now, *at_first.get_or_insert(now.clone()), "round {round}");
        // All pages are the host's again: the firmware takes none twice.
        host.bring_up();
    }
    let objects = at_first.expect("rounds").0;
    assert!(objects.iter().all(|(_, count)| *count == 0), "{objects:?}");
    // Both were seen often: with and without an answer.
    assert!((200..=800).contains(&answered), "{answered} of 1000");
}
