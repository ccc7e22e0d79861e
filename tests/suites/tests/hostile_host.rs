//! A host that gives the model any command, any doorbell and any register write: never a panic, bounded work,
//! and a function reset brings the NIC back.

use ferroce_firmware_iface::opcode::Opcode;
use ferroce_suites::bare_host::{BYTES, Host, MEMORY, templates};
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

#[test]
fn v03_a_thousand_resets_at_any_point() {
    let mut host = Host::new();
    for i in 0..1000u32 {
        // ALLOC_PD, ALLOC_UAR and a command that waits in the queue when the reset comes.
        for opcode in [0x800u16, 0x802] {
            let mut input = vec![0; 16];
            input[..2].copy_from_slice(&opcode.to_be_bytes());
            assert_eq!(host.command(&input, 16), Some(0), "round {i}");
        }
        host.nic
            .bar_write(host.now, 0x18, &(i | 1).to_be_bytes())
            .expect("in the BAR");
        host.nic.reset(host.now);
        host.turn();
        host.bring_up();
    }
    let left: Vec<_> = host.nic.data_plane.objects.pds.iter().collect();
    assert_eq!(left.len(), 0);
}
