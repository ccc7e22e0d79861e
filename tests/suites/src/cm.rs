//! Two NICs of the model, each with a connection manager.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::cm::{Connection, Listener, Manager, ManagerConfig, Params, StaticTable};
use ferroce::context::Context;
use ferroce::verbs::{Access, Cq, CqConfig, CqPoller, Mr, Pd, Qp, QpConfig};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};

use crate::pair::{PATIENCE, address, mac, open};

/// The port that tests listen on.
pub const PORT: u16 = 7174;

/// One NIC with a manager, and what queue pairs need.
#[derive(Debug)]
pub struct Host {
    /// The manager.
    pub manager: Manager,
    /// Where the manager finds the other host.
    pub neighbours: Arc<StaticTable>,
    /// Completions of all queue pairs.
    pub cq: Cq,
    /// Polls it.
    pub poller: CqPoller,
    /// Of all queue pairs.
    pub pd: Pd,
    /// The device.
    pub context: Arc<Context>,
}

/// Two hosts and what joins them.
#[derive(Debug)]
pub struct Hosts {
    /// The one who asks, usually.
    pub a: Host,
    /// The one who listens, usually.
    pub b: Host,
    /// The NICs and the cable.
    pub testbed: Testbed,
}

/// A deadline that no test should meet.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// What the managers of tests keep to: as the default, but faster on a bad wire.
pub fn config() -> ManagerConfig {
    ManagerConfig {
        response_timeout: Duration::from_millis(60),
        ..ManagerConfig::default()
    }
}

impl Host {
    /// A host on NIC `index` of a testbed.
    pub fn new(testbed: &Testbed, index: usize, config: &ManagerConfig) -> Host {
        Host::on(open(testbed, index), index, config)
    }

    /// A host on an open device.
    pub fn on(context: Arc<Context>, index: usize, config: &ManagerConfig) -> Host {
        let neighbours = Arc::new(StaticTable::new(&context));
        neighbours.insert(address(1 - index), mac(1 - index));
        let manager = Manager::with(&context, neighbours.clone(), config).expect("a manager");
        let pd = Pd::alloc(&context).expect("a PD");
        let mut entries = CqConfig::new(1 << 12);
        entries.overcommit = true;
        let (cq, poller) = Cq::create(&context, entries).expect("a CQ");
        Host {
            manager,
            neighbours,
            cq,
            poller,
            pd,
            context,
        }
    }

    /// A queue pair in RESET.
    pub fn qp(&self) -> Qp {
        let config = QpConfig {
            max_send_wr: 8,
            max_recv_wr: 8,
            ..QpConfig::default()
        };
        Qp::create(&self.pd, &self.cq, &self.cq, &config).expect("a QP")
    }

    /// A region with all access.
    pub fn region(&self, len: usize) -> Mr {
        Mr::alloc(&self.pd, len, Access::supported_by(&self.context)).expect("an MR")
    }
}

impl Hosts {
    /// Two hosts on a good cable.
    pub fn new() -> Hosts {
        Hosts::with(TestbedConfig::default(), &config())
    }

    /// Two hosts on a testbed of that kind.
    pub fn with(testbed: TestbedConfig, config: &ManagerConfig) -> Hosts {
        let testbed = Testbed::new(testbed).expect("a testbed");
        Hosts {
            a: Host::new(&testbed, 0, config),
            b: Host::new(&testbed, 1, config),
            testbed,
        }
    }

    /// Where the second host listens.
    pub fn there(&self) -> SocketAddr {
        SocketAddr::new(address(1), PORT)
    }

    /// A listener on the second host.
    pub fn listen(&self) -> Listener {
        Listener::bind(&self.b.manager, self.there()).expect("a listener")
    }

    /// A connection, both ends of it.
    pub fn connect(&self, listener: &mut Listener) -> (Connection, Connection) {
        self.connect_with(listener, &Params::new(), &Params::new())
    }

    /// A connection that both ends have asked something of.
    pub fn connect_with(
        &self,
        listener: &mut Listener,
        asks: &Params,
        gives: &Params,
    ) -> (Connection, Connection) {
        let mut connecting = self
            .a
            .manager
            .start_connect(self.a.qp(), self.there(), asks, soon());
        let connecting = connecting.as_mut().expect("an attempt");
        let mut finished = None;
        let request = loop {
            // The request is sent when the way is known.
            finished = finished.or_else(|| connecting.try_finish());
            if let Some(request) = listener.try_next().expect("the manager runs") {
                break request;
            }
            std::thread::yield_now();
        };
        let mut accepting = request
            .start_accept(self.b.qp(), gives, soon())
            .expect("an acceptance");
        let (mut active, mut passive) = (finished, None);
        while active.is_none() || passive.is_none() {
            active = active.or_else(|| connecting.try_finish());
            passive = passive.or_else(|| accepting.try_finish());
            std::thread::yield_now();
        }
        let both = (active.expect("done"), passive.expect("done"));
        (both.0.expect("connected"), both.1.expect("accepted"))
    }

    /// Whether the driver kept to the rules of both NICs.
    ///
    /// # Panics
    /// If the model has counted a violation.
    pub fn assert_clean(&self) {
        for index in 0..2 {
            let stats = self.testbed.stats(index).expect("a NIC");
            assert_eq!(
                (stats.data_path_violations, stats.firmware_violations),
                (0, 0),
                "NIC {index}: {stats:?}"
            );
        }
    }
}

impl Default for Hosts {
    fn default() -> Hosts {
        Hosts::new()
    }
}
