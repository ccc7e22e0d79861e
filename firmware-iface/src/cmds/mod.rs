//! Typed commands, by what they act on. Each holds what its caller may choose; constants that the PRM asks
//! for are set where it is encoded.

use alloc::vec::Vec;

use crate::command::push_addresses;
use crate::layout::Layout;
use crate::opcode::Opcode;

mod caps;
mod congestion;
mod counters;
mod cq;
mod eq;
mod ethernet;
mod flow;
mod hca;
mod mcg;
mod objects;
mod pages;
mod qp;
mod reg;
mod rmp;
mod vport;

pub use caps::*;
pub use congestion::*;
pub use counters::*;
pub use cq::*;
pub use eq::*;
pub use ethernet::*;
pub use flow::*;
pub use hca::*;
pub use mcg::*;
pub use objects::*;
pub use pages::*;
pub use qp::*;
pub use reg::*;
pub use rmp::*;
pub use vport::*;

/// Bytes of an output that is nothing but its header.
const HEADER_OUT: usize = 16;

/// The bytes of `layout` with the header of a command, then `tail` as a page list.
fn encode<T: Layout>(opcode: Opcode, op_mod: u16, layout: &T, tail: &[u64]) -> Vec<u8> {
    let mut input = Vec::with_capacity(T::INFO.bytes + tail.len() * 8);
    input.extend_from_slice(layout.as_bytes());
    input[0..2].copy_from_slice(&opcode.0.to_be_bytes());
    input[6..8].copy_from_slice(&op_mod.to_be_bytes());
    push_addresses(&mut input, tail);
    input
}

/// A command whose answer is nothing but "done".
macro_rules! plain_answer {
    () => {
        type Output = ();

        fn output_length(&self) -> usize {
            super::HEADER_OUT
        }

        fn decode(&self, _output: &[u8]) -> Result<(), crate::command::DecodeError> {
            Ok(())
        }
    };
}
use plain_answer;
