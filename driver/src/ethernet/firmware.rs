//! Objects of the firmware's that are nothing but a number, and go when dropped.

use std::sync::Arc;

use ferroce_firmware_iface::command::Command;

use crate::context::Context;
use crate::mem::DmaBuffer;
use crate::reaper::Destroy;

/// Ends an object when dropped: hands the commands, in order, to the reaper, with the memory that the device may use
/// until they are answered.
#[derive(Debug)]
pub(super) struct Guard {
    what: String,
    commands: Vec<Vec<u8>>,
    memory: Vec<Arc<DmaBuffer>>,
    context: Arc<Context>,
}

impl Guard {
    pub(super) fn new(context: &Arc<Context>, what: String, destroy: &impl Command) -> Guard {
        Guard {
            what,
            // A command with an id that the device gave fits its own layout.
            commands: destroy.encode().into_iter().collect(),
            memory: Vec::new(),
            context: context.clone(),
        }
    }

    /// Memory that is to outlive the object.
    pub(super) fn with_memory(mut self, memory: impl IntoIterator<Item = Arc<DmaBuffer>>) -> Guard {
        self.memory.extend(memory);
        self
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.context.reaper().submit(Destroy {
            what: std::mem::take(&mut self.what),
            commands: std::mem::take(&mut self.commands),
            memory: std::mem::take(&mut self.memory),
            keep: None,
            done: None,
        });
    }
}
