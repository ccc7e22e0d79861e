//! Two NICs of the model, each with a connection manager.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::cm::{
    Accepting, Connecting, Connection, Event, Listener, Manager, ManagerConfig, Params, Resolver, StaticTable,
};
use ferroce::context::Context;
use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, Mr, Payload, Pd, Qp, QpConfig, SendFlags, SendOp, SendWr,
};
use ferroce_nic_model::link::fault::Faults;
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
        Host::with_resolver(context, index, config, |neighbours| neighbours)
    }

    /// A host whose manager finds others by what `resolver` makes of the table of neighbours.
    pub fn with_resolver<R: Resolver + 'static>(
        context: Arc<Context>,
        index: usize,
        config: &ManagerConfig,
        resolver: impl FnOnce(Arc<StaticTable>) -> R,
    ) -> Host {
        let neighbours = Arc::new(StaticTable::new(&context));
        neighbours.insert(address(1 - index), mac(1 - index));
        let manager = Manager::with(&context, resolver(neighbours.clone()), config).expect("a manager");
        let pd = Pd::alloc(&context).expect("a PD");
        // Few of the many queue pairs complete anything at a time.
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

/// What a run of many connections took.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Connections.
    pub count: usize,
    /// How long they took.
    pub took: Duration,
    /// Datagrams that the managers sent, and how many of them again.
    pub datagrams: u64,
    /// Of them repeated.
    pub retries: u64,
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = self.count as f64 / self.took.as_secs_f64();
        write!(
            f,
            "{} connections in {:.2?}, {rate:.0} a second; {} datagrams, {} of them repeated",
            self.count, self.took, self.datagrams, self.retries
        )
    }
}

/// A queue pair that is as small as can be.
fn small_qp(host: &Host) -> Qp {
    let config = QpConfig {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QpConfig::default()
    };
    Qp::create(&host.pd, &host.cq, &host.cq, &config).expect("a QP")
}

/// Connects one after the other, moves 4 KiB over each and ends it. Every 100, everything has to be as at the start.
///
/// # Panics
/// If it isn't, or a connection fails.
pub fn churn(count: usize) -> Rate {
    let mut hosts = Hosts::new();
    let mut listener = hosts.listen();
    let (source, target) = (hosts.a.region(4096), hosts.b.region(4096));
    let left = |hosts: &Hosts| {
        for host in [&hosts.a, &hosts.b] {
            host.manager.wait_idle(soon()).expect("time-wait ends");
        }
        let patience = soon();
        // What was dropped is destroyed by another thread.
        loop {
            let objects = [0, 1].map(|index| hosts.testbed.stats(index).expect("a NIC").objects);
            let qps =
                |objects: &Vec<(&str, u32)>| objects.iter().find(|(kind, _)| *kind == "QP").map(|(_, n)| *n);
            if objects.iter().all(|objects| qps(objects) == Some(1)) || Instant::now() > patience {
                let fds = std::fs::read_dir("/proc/self/fd").expect("fds").count();
                let maps = [&hosts.a, &hosts.b].map(|host| host.context.dma().mappings());
                return (objects, fds, maps);
            }
            std::thread::yield_now();
        }
    };
    // Once, for what is made when it is first needed.
    drop(hosts.connect(&mut listener));
    let base = left(&hosts);
    let started = Instant::now();
    let mut paused = Duration::ZERO;
    for round in 0..count {
        let (mut active, mut passive) = hosts.connect(&mut listener);
        source.fill(0, 4096, round as u8).expect("within");
        write(&mut hosts.a, &mut active, &source, &target);
        let mut last = [0; 2];
        target.read(4094, &mut last).expect("within");
        assert_eq!(last, [round as u8; 2]);
        active.disconnect(soon()).expect("an end");
        assert!(matches!(passive.wait_event(soon()), Ok(Event::Disconnected(_))));
        drop((active, passive));
        if round % 100 == 99 {
            let pause = Instant::now();
            assert_eq!(left(&hosts), base, "after {} connections", round + 1);
            paused += pause.elapsed();
        }
    }
    let took = started.elapsed() - paused;
    hosts.assert_clean();
    hosts.rate(count, took)
}

/// Writes 4 KiB and waits for it.
fn write(host: &mut Host, connection: &mut Connection, source: &Mr, target: &Mr) {
    let sges = [source.sge(0..4096).expect("within")];
    let op = SendOp::Write {
        data: Payload::Gather(&sges),
        remote: target.remote(0),
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    connection
        .qp_mut()
        .post_send(&SendWr { wr_id: 1, op, flags })
        .expect("room");
    connection.qp_mut().ring_send();
    host.poller.wait(soon()).expect("a completion");
    let _ = host
        .poller
        .poll_one()
        .expect("the CQ works")
        .expect("a completion")
        .result()
        .expect("success");
}

/// Makes connections, `window` of them at a time, and keeps them all. With `loss`, that fraction of what is on the wire is
/// lost.
///
/// # Panics
/// If a connection fails.
pub fn storm(count: usize, window: usize, loss: f64) -> Rate {
    let faults = Faults {
        loss,
        seed: 9,
        ..Faults::default()
    };
    let testbed = TestbedConfig {
        faults,
        ..TestbedConfig::default()
    };
    let hosts = Hosts::with(testbed, &config());
    let mut listener = hosts.listen();
    let (mut asking, mut accepting): (Vec<Connecting>, Vec<Accepting>) = (Vec::new(), Vec::new());
    let (mut active, mut passive) = (Vec::new(), Vec::new());
    let (started, deadline) = (Instant::now(), Instant::now() + Duration::from_secs(600));
    let mut asked = 0;
    while active.len() < count || passive.len() < count {
        while asking.len() < window && asked < count {
            let params = Params::new();
            let qp = small_qp(&hosts.a);
            let started = hosts
                .a
                .manager
                .start_connect(qp, hosts.there(), &params, deadline);
            asking.push(started.expect("an attempt"));
            asked += 1;
        }
        let before = active.len() + passive.len();
        asking.retain_mut(|asking| match asking.try_finish() {
            Some(done) => {
                active.push(done.expect("a connection"));
                false
            }
            None => true,
        });
        while let Some(request) = listener.try_next().expect("the manager runs") {
            let accepted = request.start_accept(small_qp(&hosts.b), &Params::new(), deadline);
            accepting.push(accepted.expect("an acceptance"));
        }
        accepting.retain_mut(|accepting| match accepting.try_finish() {
            Some(done) => {
                passive.push(done.expect("a connection"));
                false
            }
            None => true,
        });
        if active.len() + passive.len() == before {
            std::thread::yield_now();
        }
    }
    let took = started.elapsed();
    let mut pairs: Vec<_> = active.iter().map(|active| active.qp().qpn()).collect();
    pairs.sort();
    pairs.dedup();
    assert_eq!(pairs.len(), count, "each has its own queue pair");
    hosts.rate(count, took)
}

impl Hosts {
    fn rate(&self, count: usize, took: Duration) -> Rate {
        let counters = [&self.a, &self.b].map(|host| host.manager.counters().machine);
        Rate {
            count,
            took,
            datagrams: counters.iter().map(|counters| counters.sent).sum(),
            retries: counters.iter().map(|counters| counters.retries).sum(),
        }
    }
}
