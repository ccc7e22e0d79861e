//! What the fuzzers run, one function for each thing that takes bytes from somebody who is not trusted. Any input is
//! fine; a bug is a panic, a hang, or memory that grows without end.
//!
//! `tests/fuzz` gives them to libFuzzer; `tests/suites/tests/fuzz_bodies.rs` gives them random bytes in each test run.

mod cm;
mod device;
mod firmware;
mod host;
mod link;
mod vfio_user;
mod wire;

pub use cm::cm_datagrams;
pub use device::{completions, events, srq_completions};
pub use firmware::layouts;
pub use host::{commands, send_queue};
pub use link::link;
pub use vfio_user::{vfio_user_client, vfio_user_server};
pub use wire::{frames, global_header, wire_parse};

/// Takes any bytes.
pub type Body = fn(&[u8]);

/// All of them, by name.
pub const ALL: &[(&str, Body)] = &[
    ("wire_parse", wire_parse),
    ("cm_datagrams", cm_datagrams),
    ("frames", frames),
    ("layouts", layouts),
    ("commands", commands),
    ("send_queue", send_queue),
    ("vfio_user_server", vfio_user_server),
    ("vfio_user_client", vfio_user_client),
    ("completions", completions),
    ("events", events),
    ("link", link),
    ("srq_completions", srq_completions),
    ("global_header", global_header),
];

/// Takes input apart; past its end everything is 0.
#[derive(Debug)]
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.take(N);
        let mut array = [0; N];
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }
}
