//! A datagram's address is a checked handle, not bytes of the caller's.
use ferroce::verbs::Ah;

fn made_up(ah: &mut Ah) {
    ah.vector = [[0; 16]; 3];
}

fn main() {}
