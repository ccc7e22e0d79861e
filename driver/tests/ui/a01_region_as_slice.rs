//! A01: memory that peers may reach is never a slice.
use ferroce::verbs::Mr;

fn sliced(region: &Mr) -> u8 {
    let bytes: &[u8] = region.as_slice();
    bytes[0] + region[1]
}

fn main() {}
