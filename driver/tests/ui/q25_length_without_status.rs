//! Q25: what was received can't be reached without having looked at the status.
use ferroce::verbs::Wc;

fn unchecked(wc: Wc) -> u32 {
    wc.byte_len
}

fn main() {}
