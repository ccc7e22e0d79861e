//! A hook that sees every firmware command.

use std::time::Duration;

use ferroce_firmware_iface::opcode::Opcode;

use crate::error::CommandError;

/// One command, after it was answered or given up.
#[derive(Debug)]
pub struct CommandTrace<'a> {
    /// What was asked.
    pub opcode: Opcode,
    /// The slot of the command queue that it used.
    pub slot: u8,
    /// Its token.
    pub token: u8,
    /// The whole input, header included.
    pub input: &'a [u8],
    /// The whole output, header included; what the device did not write is 0.
    pub output: &'a [u8],
    /// From the doorbell to the answer.
    pub took: Duration,
    /// How it ended.
    pub result: Result<(), &'a CommandError>,
}

/// Sees every command of a context, in the thread that executed it. For trace files and for comparing what two drivers
/// say to a device.
///
/// An implementation must not execute commands itself, and holds the command up for as long as it takes.
pub trait CommandTracer: Send + Sync {
    /// A command was answered or given up.
    fn command(&self, trace: &CommandTrace<'_>);
}

impl<F: Fn(&CommandTrace<'_>) + Send + Sync> CommandTracer for F {
    fn command(&self, trace: &CommandTrace<'_>) {
        self(trace);
    }
}
