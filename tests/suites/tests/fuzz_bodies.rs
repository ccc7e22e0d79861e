//! The fuzzers' bodies on random bytes: a little of each in every test run.

use ferroce_suites::fuzz;
use ferroce_suites::traffic::Random;

/// Inputs of each body.
const INPUTS: u64 = 150;

/// Bytes as hostile input is: all random, mostly zeros, one value over and over.
fn input(random: &mut Random) -> Vec<u8> {
    let most = 1 << (1 + random.below(11));
    let len = random.below(most);
    let bytes = random.bytes(len);
    match random.below(4) {
        0 => bytes
            .into_iter()
            .map(|byte| if byte & 7 == 0 { byte >> 3 } else { 0 })
            .collect(),
        1 => vec![bytes.first().copied().unwrap_or(0); len],
        _ => bytes,
    }
}

#[test]
fn all_bodies_survive_random_bytes() {
    for (n, (name, body)) in fuzz::ALL.iter().enumerate() {
        for seed in 0..INPUTS {
            let seed = seed << 8 | n as u64;
            let bytes = input(&mut Random::new(seed));
            if let Err(panic) = std::panic::catch_unwind(|| body(&bytes)) {
                println!("{name}, seed {seed:#x}: {bytes:02x?}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn each_body_is_a_fuzz_target() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/fuzz_targets");
    let mut targets: Vec<String> = std::fs::read_dir(folder)
        .expect("the targets")
        .map(|entry| {
            entry
                .expect("a file")
                .path()
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    targets.sort();
    let mut bodies: Vec<String> = fuzz::ALL.iter().map(|(name, _)| name.to_string()).collect();
    bodies.sort();
    assert_eq!(targets, bodies);
}
