//! A datagram's address is a checked handle, not bytes of the caller's.
use ferroce::verbs::{Ah, Pd};

fn made_up(pd: &Pd) -> Ah {
    Ah { vector: [[0; 16]; 3], domain: 0, _keep: std::sync::Arc::new(pd.clone()) }
}

fn main() {}
