//! What a lock is needed for: the machine, and whom its events are for.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::cell::{Cell, Wake};
use super::error::Stopped;
use super::machine::{CommId, Machine, MachineEvent, Requested, SidrRequested};
use super::mad::{IP_HEADER_BYTES, IpHeader, PortSpace, RejectReason, ServiceId, SidrStatus};
use super::shared::{Incoming, News};
use crate::verbs::{Mtu, Path, Qp};

/// Requests at a listener before it is tidied for the first time.
const TIDY_AT: usize = 256;

/// A listener's side of the table.
#[derive(Clone, Debug)]
pub(super) struct Listening {
    pub(super) address: IpAddr,
    pub(super) cell: Arc<Cell<Incoming>>,
    /// How many requests may lie in the cell before those are taken out whose senders have given up.
    tidy_at: usize,
}

impl Listening {
    pub(super) fn new(address: IpAddr, cell: Arc<Cell<Incoming>>) -> Listening {
        Listening {
            address,
            cell,
            tidy_at: TIDY_AT,
        }
    }
}

/// All that a lock is needed for.
pub(super) struct Core {
    pub(super) machine: Machine,
    pub(super) cells: HashMap<CommId, Arc<Cell<News>>>,
    pub(super) listeners: HashMap<ServiceId, Listening>,
    /// Queue pairs of connections that the program has let go of, until time-wait is over.
    pub(super) pen: HashMap<CommId, Qp>,
    /// Those that have yet to be brought to ERR.
    pub(super) to_pen: Vec<(CommId, Qp)>,
    /// Who has news.
    wakes: Vec<Wake>,
    pub(super) stopped: Option<Stopped>,
    next_port: u16,
}

impl Core {
    pub(super) fn new(machine: Machine) -> Self {
        Self {
            machine,
            cells: HashMap::new(),
            listeners: HashMap::new(),
            pen: HashMap::new(),
            to_pen: Vec::new(),
            wakes: Vec::new(),
            stopped: None,
            next_port: 0,
        }
    }

    /// Gives the machine's events to whom they are for. What is to be dropped without the lock comes back: queue pairs, and
    /// who is to be woken.
    pub(super) fn dispatch(&mut self, max_mtu: Mtu) -> (Vec<Qp>, Vec<Wake>) {
        let mut done = Vec::new();
        while let Some(event) = self.machine.poll_event() {
            match event {
                MachineEvent::Requested(id, requested) => self.requested(id, requested, max_mtu),
                MachineEvent::Accepted(id, accepted) => self.tell(id, News::Accepted(accepted)),
                MachineEvent::Established(id) => self.tell(id, News::Established),
                MachineEvent::Failed(id, failure) => self.tell(id, News::Failed(failure)),
                MachineEvent::Disconnected(id, cause) => self.tell(id, News::Disconnected(cause)),
                MachineEvent::Gone(id) => {
                    done.extend(self.pen.remove(&id));
                    if let Some(at) = self.to_pen.iter().position(|(have, _)| *have == id) {
                        done.push(self.to_pen.swap_remove(at).1);
                    }
                }
                MachineEvent::SidrRequested(id, requested) => self.sidr_requested(id, requested),
                MachineEvent::SidrAnswered(id, answer) => {
                    self.tell(id, News::Answered(answer));
                    self.cells.remove(&id);
                }
            }
        }
        (done, std::mem::take(&mut self.wakes))
    }

    fn tell(&mut self, id: CommId, news: News) {
        if let Some(cell) = self.cells.get(&id) {
            self.wakes.push(cell.push(news));
        }
    }

    /// The listener for a service, if it listens at the address that the request went to.
    fn listener_for(&self, space: PortSpace, service: ServiceId, addresses: &IpHeader) -> Option<&Listening> {
        // A datagram service takes no connections, and the other way round.
        service.port().filter(|(have, _)| *have == space)?;
        let listening = self.listeners.get(&service)?;
        let any = listening.address.is_unspecified();
        (any || listening.address == addresses.destination).then_some(listening)
    }

    /// Takes requests out of a listener's cell whose senders have given up: a peer could ask and take it back for ever, and
    /// the program may be slow to look.
    fn tidy(&mut self, service: ServiceId) {
        let Core {
            machine,
            cells,
            listeners,
            ..
        } = self;
        let Some(listening) = listeners.get_mut(&service) else {
            return;
        };
        if listening.cell.len() < listening.tidy_at {
            return;
        }
        let left = listening.cell.retain(|incoming| match incoming {
            Incoming::Connection { id, .. } if !machine.is_requested(*id) => {
                cells.remove(id);
                false
            }
            Incoming::Datagram { id, .. } => machine.is_requested(*id),
            _ => true,
        });
        // Each look at all of them is paid for by as many that came.
        listening.tidy_at = TIDY_AT.max(2 * left);
    }

    fn requested(&mut self, id: CommId, requested: Box<Requested>, max_mtu: Mtu) {
        self.tidy(requested.service_id);
        let refused = match IpHeader::parse(&requested.private_data) {
            // Linux's RDMA CM says the same to a header that it doesn't know.
            Err(error) => {
                log::debug!("a request is rejected: {error}");
                Some((RejectReason::Consumer, Vec::new()))
            }
            // The one that would do goes along (IBTA vol. 1, 12.6.7.2: 26).
            Ok(_) if requested.mtu > max_mtu => {
                let code = Mtu::ALL.iter().position(|have| *have == max_mtu).unwrap_or(0) as u8 + 1;
                Some((RejectReason::InvalidMtu, vec![code]))
            }
            Ok(addresses) => match self.listener_for(PortSpace::Tcp, requested.service_id, &addresses) {
                None => Some((RejectReason::InvalidServiceId, Vec::new())),
                Some(listening) => {
                    let cell = Arc::new(Cell::default());
                    let wake = listening.cell.push(Incoming::Connection {
                        id,
                        cell: cell.clone(),
                        requested,
                        addresses,
                    });
                    self.wakes.push(wake);
                    self.cells.insert(id, cell);
                    None
                }
            },
        };
        if let Some((reason, info)) = refused
            && let Err(error) = self.machine.reject(id, reason, &info, &[])
        {
            log::debug!("a request is not rejected: {error}");
        }
    }

    fn sidr_requested(&mut self, id: CommId, requested: Box<SidrRequested>) {
        self.tidy(requested.service_id);
        let addresses = IpHeader::parse(&requested.private_data).ok();
        let listening = addresses.and_then(|addresses| {
            let listening = self.listener_for(PortSpace::Udp, requested.service_id, &addresses)?;
            Some((listening.cell.clone(), addresses))
        });
        match listening {
            Some((cell, addresses)) => {
                let wake = cell.push(Incoming::Datagram {
                    id,
                    requested,
                    addresses,
                });
                self.wakes.push(wake);
            }
            None => {
                let status = SidrStatus::ServiceIdNotSupported;
                let answered = self.machine.sidr_reply(Instant::now(), id, Err(status));
                debug_assert!(answered.is_ok(), "{answered:?}");
            }
        }
    }

    /// A port that nobody listens on, of the dynamic ones (RFC 6335, 6).
    pub(super) fn free_port(&mut self, space: PortSpace) -> Option<u16> {
        for _ in 0..=0x3fff {
            let port = 0xc000 | self.next_port & 0x3fff;
            self.next_port = self.next_port.wrapping_add(1);
            if !self.machine.is_listening(ServiceId::of_port(space, port)) {
                return Some(port);
            }
        }
        None
    }
}

/// The part of private data that is the other program's: what follows the header.
pub(super) fn after_header(private_data: &[u8]) -> &[u8] {
    private_data.get(IP_HEADER_BYTES..).unwrap_or(&[])
}

/// Where a request comes from: the address that it was sent from, with the port that it tells.
pub(super) fn remote_address(path: &Path, addresses: &IpHeader) -> SocketAddr {
    SocketAddr::new(path.dgid.to_ip(), addresses.source.port())
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
