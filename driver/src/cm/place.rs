//! A listener's place in the table of services, whatever it listens for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::cell::Cell;
use super::dispatch::Listening;
use super::error::{ListenError, Stopped, WaitError};
use super::mad::{PortSpace, ServiceId};
use super::manager::Manager;
use super::shared::Incoming;

/// A place in the table of services, taken until it is dropped.
pub(super) struct Place {
    manager: Manager,
    service: ServiceId,
    address: SocketAddr,
    cell: Arc<Cell<Incoming>>,
    stopped: Option<Stopped>,
}

impl Place {
    pub(super) fn take(
        manager: &Manager,
        space: PortSpace,
        mut address: SocketAddr,
        backlog: usize,
    ) -> Result<Self, ListenError> {
        let cell = Arc::new(Cell::default());
        let mut core = manager.inner.shared.running()?;
        if address.port() == 0 {
            address.set_port(core.free_port(space).ok_or(ListenError::NoPort)?);
        }
        let service = ServiceId::of_port(space, address.port());
        core.machine
            .listen(service, backlog)
            .map_err(|_| ListenError::InUse { address })?;
        let listening = Listening::new(address.ip(), cell.clone());
        core.listeners.insert(service, listening);
        drop(core);
        Ok(Self {
            manager: manager.clone(),
            service,
            address,
            cell,
            stopped: None,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn cell(&self) -> &Cell<Incoming> {
        &self.cell
    }

    /// The next request that `of` knows as one, waiting for it.
    pub(super) fn wait_for<T>(
        &mut self,
        deadline: Instant,
        of: fn(&Manager, Incoming) -> Option<T>,
    ) -> Result<T, WaitError> {
        while let Some(incoming) = self.next(|cell| cell.wait(Some(deadline)))? {
            if let Some(request) = of(&self.manager, incoming) {
                return Ok(request);
            }
        }
        Err(WaitError::Deadline)
    }

    /// The next request that `of` knows as one, if there is one.
    pub(super) fn try_take<T>(
        &mut self,
        of: fn(&Manager, Incoming) -> Option<T>,
    ) -> Result<Option<T>, Stopped> {
        while let Some(incoming) = self.next(Cell::pop)? {
            if let Some(request) = of(&self.manager, incoming) {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    fn next(
        &mut self,
        take: impl FnOnce(&Cell<Incoming>) -> Option<Incoming>,
    ) -> Result<Option<Incoming>, Stopped> {
        if let Some(stopped) = &self.stopped {
            return Err(stopped.clone());
        }
        match take(&self.cell) {
            Some(Incoming::Stopped(stopped)) => {
                self.stopped = Some(stopped.clone());
                Err(stopped)
            }
            incoming => Ok(incoming),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let shared = &self.manager.inner.shared;
        {
            let mut core = shared.core();
            core.machine.unlisten(self.service);
            core.listeners.remove(&self.service);
        }
        // Those that nobody has taken out are rejected.
        while let Some(incoming) = self.cell.pop() {
            if let Incoming::Connection { id, .. } = incoming {
                shared.abandon(id, None);
            }
        }
        shared.wake();
    }
}
