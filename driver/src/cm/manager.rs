//! The manager: the part of a program that makes connections.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connecting::Connecting;
use super::connection::Connection;
use super::error::{ConnectError, StartError, WaitError};
use super::gsi::Gsi;
use super::machine::{Machine, MachineConfig, MachineCounters, TimeCode};
use super::params::Params;
use super::resolver::Resolver;
use super::service;
use super::shared::Shared;
use crate::context::Context;
use crate::port::MacAddress;
use crate::verbs::{Mtu, Qp};

/// How long dropping the last handle waits for the thread's last datagrams.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

/// What a manager keeps to. The default suits most programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagerConfig {
    /// How long an answer is waited for before a message is repeated, and how long peers are told to wait; rounded up to
    /// 4.096 µs * 2^n. Linux uses 4.3 s, so that each lost message costs it as much.
    pub response_timeout: Duration,
    /// How often a message is repeated (0..=15).
    pub max_retries: u8,
    /// How long the program may take to answer a request. Peers are told when they keep asking.
    pub service_timeout: Duration,
    /// The longest that a peer can put this side off at a time, by MRA or by the response timeout of its REQ.
    pub patience: Duration,
    /// Most connections at a time, those in time-wait included.
    pub max_connections: usize,
    /// GUID of this NIC, by which peers know its connections; `None` is the one that firmware has, or one that is made
    /// from the MAC address.
    pub ca_guid: Option<u64>,
    /// Completion vector that the manager's thread sleeps on; `None` is the last one.
    pub vector: Option<usize>,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_micros(268_000),
            max_retries: 15,
            service_timeout: Duration::from_secs(60),
            patience: Duration::from_secs(300),
            max_connections: 1 << 17,
            ca_guid: None,
            vector: None,
        }
    }
}

/// Makes and takes connections on a NIC: RDMA CM over QP 1, as Linux speaks it.
///
/// A handle; clones are the same manager. It owns the NIC's QP 1 and a thread that sleeps until something comes. Listeners
/// and connections hold it, so that any order of drops is right. When the last of them is gone the thread ends, after it
/// has told the peers; [`Manager::close`] waits for that.
///
/// ```no_run
/// # use std::{sync::Arc, time::{Duration, Instant}};
/// # use ferroce::{cm::{Manager, Params, StaticTable}, context::Context, verbs::Qp};
/// # fn example(context: &Arc<Context>, qp: Qp, mac: ferroce::port::MacAddress) -> Result<(), Box<dyn std::error::Error>> {
/// let neighbours = StaticTable::new(context).with("192.0.2.2".parse()?, mac);
/// let manager = Manager::start(context, neighbours)?;
/// let deadline = Instant::now() + Duration::from_secs(5);
/// let mut connection = manager.connect(qp, "192.0.2.2:7174".parse()?, &Params::new(), deadline)?;
/// connection.qp_mut().ring_send();
/// connection.disconnect(deadline)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Manager {
    pub(super) inner: Arc<Handle>,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Manager").field(&self.inner.shared).finish()
    }
}

/// What the last holder of ends the thread.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        // A waker that the manager's thread calls may drop the last holder there: it can't wait for itself.
        if !self.shared.in_thread() && !self.shared.ended().wait(Instant::now() + DROP_PATIENCE) {
            log::warn!("the connection manager's thread is still busy; it ends by itself");
        }
    }
}

/// What a manager has seen and has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ManagerCounters {
    /// Datagrams and what became of them.
    pub machine: MachineCounters,
    /// Connections that there are, those in time-wait included.
    pub connections: usize,
    /// Queue pairs that wait for the end of time-wait.
    pub resting_qps: usize,
}

impl Manager {
    /// Starts a manager.
    ///
    /// # Errors
    /// [`StartError`]; a NIC can have one manager only.
    pub fn start(context: &Arc<Context>, resolver: impl Resolver + 'static) -> Result<Self, StartError> {
        Self::with(context, resolver, &ManagerConfig::default())
    }

    /// Starts a manager that keeps to something else than the default.
    ///
    /// # Errors
    /// [`StartError`]; a NIC can have one manager only.
    pub fn with(
        context: &Arc<Context>,
        resolver: impl Resolver + 'static,
        config: &ManagerConfig,
    ) -> Result<Self, StartError> {
        let port = context.port_attributes()?;
        let guid = match (config.ca_guid, port.node_guid) {
            (Some(guid), _) => guid,
            (None, 0) => eui64(port.mac),
            (None, guid) => guid,
        };
        let max_mtu = Mtu::ALL
            .into_iter()
            .rev()
            .find(|mtu| mtu.bytes() <= port.active_path_mtu.into());
        let last = context.completion_vectors().saturating_sub(1);
        let vector = config.vector.unwrap_or(last);
        let machine_config = MachineConfig {
            ca_guid: guid,
            response_timeout: TimeCode::covering(config.response_timeout),
            max_retries: config.max_retries.min(15),
            service_timeout: TimeCode::covering(config.service_timeout),
            patience: config.patience,
            max_connections: config.max_connections,
            ..MachineConfig::default()
        };
        // Keyed by the system's randomness: what comes of a counter can't be guessed.
        let (random, mut drawn) = (RandomState::new(), 0u64);
        let machine = Machine::new(machine_config, move || {
            drawn += 1;
            random.hash_one(drawn) as u32
        });
        let gsi = Gsi::open(context, vector)?;
        let shared = Arc::new(Shared::new(
            context,
            Arc::new(resolver),
            config.clone(),
            vector,
            machine,
        ));
        shared.watch_neighbours();
        let thread = shared.clone();
        std::thread::Builder::new()
            .name("ferroce-cm".into())
            .spawn(move || service::serve(thread, gsi, max_mtu.unwrap_or(Mtu::Mtu256)))?;
        Ok(Self {
            inner: Arc::new(Handle { shared }),
        })
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.inner.shared.context
    }

    /// What it keeps to.
    #[must_use]
    pub fn config(&self) -> &ManagerConfig {
        &self.inner.shared.config
    }

    /// Connects a queue pair to the service at an address, and waits for it. The queue pair is in RESET, or in INIT with
    /// receives posted; it is in RTS afterwards, and part of the connection. Where there is none, the queue pair is dropped.
    ///
    /// # Errors
    /// [`ConnectError`] says why there is no connection.
    pub fn connect(
        &self,
        qp: Qp,
        address: SocketAddr,
        params: &Params,
        deadline: Instant,
    ) -> Result<Connection, ConnectError> {
        self.start_connect(qp, address, params, deadline)?.wait()
    }

    /// As [`Self::connect`], without waiting.
    ///
    /// # Errors
    /// [`ConnectError`] if the queue pair or the parameters will not do.
    pub fn start_connect(
        &self,
        qp: Qp,
        address: SocketAddr,
        params: &Params,
        deadline: Instant,
    ) -> Result<Connecting, ConnectError> {
        Connecting::start(self, qp, address, params, deadline)
    }

    /// Tells the connections to an address that its station's MAC address is another now, or that nobody answers for it
    /// (`None`): they get [`Event::PathLost`](super::Event::PathLost). Resolvers that watch neighbours do this themselves.
    pub fn neighbour_changed(&self, address: IpAddr, mac: Option<MacAddress>) {
        self.inner.shared.neighbour_changed(address, mac);
    }

    /// What it has seen and has.
    #[must_use]
    pub fn counters(&self) -> ManagerCounters {
        let core = self.inner.shared.core();
        ManagerCounters {
            machine: core.machine.counters(),
            connections: core.machine.connections(),
            resting_qps: core.pen.len() + core.to_pen.len(),
        }
    }

    /// Waits until there are no connections any more, those in time-wait included: all queue pairs have been given back.
    ///
    /// # Errors
    /// [`WaitError::Deadline`], or the manager has ended.
    pub fn wait_idle(&self, deadline: Instant) -> Result<(), WaitError> {
        let shared = &self.inner.shared;
        loop {
            let next = {
                let core = shared.running()?;
                if core.machine.connections() == 0 && core.pen.is_empty() && core.to_pen.is_empty() {
                    return Ok(());
                }
                core.machine.poll_timeout()
            };
            let now = Instant::now();
            if now >= deadline {
                return Err(WaitError::Deadline);
            }
            // What is waited for is the end of times.
            let soon = now + Duration::from_millis(2);
            let until = next
                .map_or(soon, |at| at.max(soon))
                .min(now + Duration::from_millis(50));
            std::thread::sleep(until.min(deadline) - now);
        }
    }

    /// Ends the manager and waits for its thread: peers of connections that are still there are not waited for.
    ///
    /// # Errors
    /// [`WaitError::Deadline`] if the thread is still busy; it ends by itself.
    pub fn close(self, deadline: Instant) -> Result<(), WaitError> {
        let ended = self.inner.shared.ended().clone();
        self.inner.shared.stop.store(true, Ordering::Release);
        self.inner.shared.wake();
        drop(self);
        if ended.wait(deadline) {
            Ok(())
        } else {
            Err(WaitError::Deadline)
        }
    }
}

/// A GUID made of a MAC address (modified EUI-64; RFC 4291, appendix A), as Linux's Soft-RoCE has it.
fn eui64(mac: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
