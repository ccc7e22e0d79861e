//! A01: the key of a local buffer is never given out, so that no request but its own can name it.
use ferroce::verbs::{LocalBuffer, Sge};

fn named(buffer: &LocalBuffer) -> Sge {
    Sge::new(0, 64, buffer.lkey())
}

fn main() {}
