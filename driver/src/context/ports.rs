//! The ports of a NIC. Most have one; then it need not be named.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::{Context, PortCounters};
use crate::bringup::no_port;
use crate::error::{CommandError, DeviceFailure, StepError};
use crate::events::{AsyncEvent, PortQueue};
use crate::gid::{GidEntry, GidTable};
use crate::port::{self, PortAttributes, PortNumber};

/// A port of an open NIC. It holds the context.
///
/// Queue pairs are on the port that they were given on their way to INIT ([`ToInit::port`](crate::verbs::ToInit)). The MAC
/// address and the MTU are the virtual port's, which all ports of a function share.
#[derive(Clone, Debug)]
pub struct Port {
    context: Arc<Context>,
    number: PortNumber,
    gids: Arc<GidTable>,
}

impl Context {
    /// How many ports the NIC has, at least 1.
    #[must_use]
    pub fn port_count(&self) -> u8 {
        self.gids.len() as u8
    }

    /// The port of that number.
    ///
    /// # Errors
    ///
    /// [`StepError::Value`]: the NIC has no such port.
    pub fn port(self: &Arc<Self>, number: PortNumber) -> Result<Port, StepError> {
        let gids = self.gids_of(number).ok_or_else(|| no_port(&self.caps, number))?;
        Ok(Port {
            context: self.clone(),
            number,
            gids: gids.clone(),
        })
    }

    /// All ports, the first in front.
    pub fn ports(self: &Arc<Self>) -> impl Iterator<Item = Port> {
        self.gids.iter().map(|gids| Port {
            context: self.clone(),
            number: gids.port(),
            gids: gids.clone(),
        })
    }

    /// A port's table.
    pub(crate) fn gids_of(&self, port: PortNumber) -> Option<&Arc<GidTable>> {
        self.gids.get(usize::from(port.get() - 1))
    }

    pub(super) fn add_gid_to(&self, gids: &GidTable, entry: GidEntry) -> Result<u16, StepError> {
        let (index, new) = gids.add(&self.hca, entry)?;
        if new {
            self.tell_of_gid(gids.port(), index);
        }
        Ok(index)
    }

    pub(super) fn remove_gid_from(&self, gids: &GidTable, index: u16) -> Result<(), StepError> {
        if gids.remove(&self.hca, index)? {
            self.tell_of_gid(gids.port(), index);
        }
        Ok(())
    }

    fn tell_of_gid(&self, port: PortNumber, index: u16) {
        self.hca.events().deliver(AsyncEvent::Gid { port, index });
        // No interrupt comes of it: who waits for events sleeps on the asynchronous queues' vector.
        if let Some(vector) = self.hca.vectors().first() {
            vector.wake();
        }
    }
}

impl Port {
    /// Its number.
    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.number
    }

    /// Its addresses, state, MTU and speed, as they are now.
    ///
    /// # Errors
    ///
    /// A command failed.
    pub fn attributes(&self) -> Result<PortAttributes, StepError> {
        port::query(&self.context.hca, self.number)
    }

    /// Frames of all kinds that it has received and sent.
    ///
    /// # Errors
    ///
    /// The command failed.
    pub fn counters(&self) -> Result<PortCounters, CommandError> {
        self.context.counters_of(self.number)
    }

    /// Its GID table. A NIC that has no tables by port has an empty one for the second port and those after.
    #[must_use]
    pub fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Programs another GID; its index.
    ///
    /// # Errors
    ///
    /// The device can't have it, the table is full, or the command failed.
    pub fn add_gid(&self, entry: GidEntry) -> Result<u16, StepError> {
        self.context.add_gid_to(&self.gids, entry)
    }

    /// Clears an entry of the GID table. QPs that use it stop working.
    ///
    /// # Errors
    ///
    /// The command failed.
    pub fn remove_gid(&self, index: u16) -> Result<(), StepError> {
        self.context.remove_gid_from(&self.gids, index)
    }

    /// Asks for the port's events from now on: [`AsyncEvent::Port`] and [`AsyncEvent::Gid`] of this port and of no other.
    /// Each subscriber gets each event once; the context's own queue ([`Context::next_event`]) gets it besides.
    ///
    /// # Errors
    ///
    /// The system has no more file descriptors.
    pub fn subscribe(&self) -> std::io::Result<PortEvents> {
        Ok(PortEvents {
            queue: self.context.hca.events().subscribe(self.number)?,
            context: self.context.clone(),
        })
    }
}

/// One port's events, for one subscriber. It holds the context. Nothing more comes after it is dropped.
///
/// That the device can't be used any more is no port's event: [`PortEvents::wait`] fails then, and the context's own queue has it
/// ([`AsyncEvent::Device`]), but [`PortEvents::fd`] does not tell.
///
/// At most 1024 events wait to be read; after that the oldest are lost, and counted.
#[derive(Debug)]
pub struct PortEvents {
    context: Arc<Context>,
    queue: Arc<PortQueue>,
}

impl PortEvents {
    /// The next event, if there is one.
    #[must_use]
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.queue.next()
    }

    /// Waits for an event until the deadline.
    ///
    /// # Errors
    ///
    /// The device can't be used any more.
    pub fn wait(&self, deadline: Instant) -> Result<Option<AsyncEvent>, DeviceFailure> {
        let queue = &self.queue;
        loop {
            let ready = self.context.wait_async(deadline, &mut || !queue.is_empty())?;
            let event = queue.next();
            // Another thread may have been quicker.
            if event.is_some() || !ready {
                return Ok(event);
            }
        }
    }

    /// What is readable while events wait, for the program's own event loop. Not to be read from.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    /// Events that were not read in time and are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.queue.lost()
    }
}
