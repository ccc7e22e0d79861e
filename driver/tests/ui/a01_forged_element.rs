//! A01: an element is only made with a region's key.
use ferroce::verbs::Sge;

fn forged() -> Sge {
    Sge { addr: 0, len: 64, key: 0x180 }
}

fn main() {}
