//! A01: a region holds bytes, not values that a peer could make invalid.
use ferroce::verbs::{Access, Mr, Pd};

fn typed(pd: &Pd) {
    let region: Mr<Vec<u8>> = Mr::alloc(pd, 4096, Access::all()).unwrap();
    drop(region);
}

fn main() {}
