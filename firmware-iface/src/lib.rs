//! What the firmware of a ConnectX-class NIC says: the command interface of the PRM, as pure encode and
//! decode.
//!
//! There is no I/O here and no policy, and nothing knows which side it is used from: the driver encodes
//! commands and decodes answers with the same layouts that the device model decodes and encodes with.
//!
//! * [`mod@layout`]: how a layout is declared; [`layouts`]: all of them, under the PRM's names.
//! * [`opcode`], [`status`], [`event`]: the numbers.
//! * [`queue`]: the 64-byte command queue entry, mailbox blocks, tokens and signatures.
//! * [`command`] and [`cmds`]: typed commands.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cmds;
pub mod command;
pub mod event;
pub mod layout;
pub mod layouts;
pub mod opcode;
pub mod queue;
pub mod status;
