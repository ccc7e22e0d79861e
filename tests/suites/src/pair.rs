//! Two NICs of the model on a cable, each brought up by the whole driver: what the verbs suites work with.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{CloseReport, Context, OpenConfig};
use ferroce::error::CloseError;
use ferroce::function::InProcess;
use ferroce::gid::{Gid, RoceVersion};
use ferroce::port::MacAddress;
use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, DestroyError, Mr, Path, Payload, Pd, Qp, QpConfig, SendFlags, SendOp,
    SendWr, ToInit, ToRtr, ToRts, Wc, WcError, WcSuccess,
};
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};

/// How long a test waits for what has to happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of each side's region.
pub const REGION: usize = 1 << 20;

/// One NIC with a queue pair, its completion queue and a region with all access.
#[derive(Debug)]
pub struct Side {
    /// The queue pair, in RTS once connected.
    pub qp: Qp,
    /// Polls `cq`.
    pub poller: CqPoller,
    /// Completions of both queues.
    pub cq: Cq,
    /// [`REGION`] bytes.
    pub mr: Mr,
    /// Of all of them.
    pub pd: Pd,
    /// The device.
    pub context: Arc<Context>,
}

/// Two sides and what joins them.
#[derive(Debug)]
pub struct Pair {
    /// NIC 0.
    pub a: Side,
    /// NIC 1.
    pub b: Side,
    /// The NICs and the cable.
    pub testbed: Testbed,
}

/// The IPv4 address of a NIC of a testbed.
pub fn address(index: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1 + index as u8))
}

/// The MAC address of a NIC of a default testbed.
pub fn mac(index: usize) -> MacAddress {
    MacAddress([0x02, 0xfe, 0x0c, 0xe0, 0x00, 1 + index as u8])
}

/// Brings a NIC of a testbed up.
pub fn open(testbed: &Testbed, index: usize) -> Arc<Context> {
    let device = testbed.device(index).expect("a NIC");
    let function = InProcess::new(&format!("nic{index}"), device).expect("an in-process function");
    Context::open(Arc::new(function), OpenConfig::new().address(address(index))).expect("the NIC comes up")
}

/// The index of the RoCE v2 GID of the NIC's IPv4 address.
pub fn gid_index(context: &Context, index: usize) -> u16 {
    let gid = Gid::from_ip(address(index));
    let found = context
        .gids()
        .find(|entry| entry.gid == gid && entry.version == RoceVersion::V2);
    found.expect("the GID is in the table")
}

impl Side {
    /// A side whose queue pair is in RESET.
    pub fn new(testbed: &Testbed, index: usize, config: &QpConfig) -> Side {
        Side::on(open(testbed, index), config)
    }

    /// A side on an open device.
    pub fn on(context: Arc<Context>, config: &QpConfig) -> Side {
        let pd = Pd::alloc(&context).expect("a PD");
        let entries = config.max_send_wr + config.max_recv_wr;
        let (cq, poller) = Cq::create(&context, CqConfig::new(entries)).expect("a CQ");
        let mr = Mr::alloc(&pd, REGION, Access::supported_by(&context)).expect("an MR");
        let qp = Qp::create(&pd, &cq, &cq, config).expect("a QP");
        Side {
            qp,
            poller,
            cq,
            mr,
            pd,
            context,
        }
    }

    /// Ends its objects in order, which would be destroyed in the background if they were only dropped, and shuts the NIC
    /// down: what the queue pair's end and the NIC's came to.
    pub fn close(self) -> (Result<(), DestroyError>, Result<CloseReport, CloseError>) {
        let Side {
            qp,
            poller,
            cq,
            mr,
            pd,
            context,
        } = self;
        let destroyed = qp.destroy().map(drop);
        drop((poller, cq, mr, pd));
        (destroyed, context.close())
    }

    /// Polls until `count` completions have come, and gives them in order.
    ///
    /// # Panics
    /// If they don't come within [`PATIENCE`].
    pub fn completions(&mut self, count: usize) -> Vec<Wc> {
        let deadline = Instant::now() + PATIENCE;
        let mut wcs = Vec::new();
        while wcs.len() < count {
            let left = count - wcs.len();
            if self.poller.poll(left, |wc| wcs.push(wc)).expect("the CQ works") == 0 {
                let waited = self.poller.wait(deadline);
                assert!(
                    waited.is_ok(),
                    "{waited:?} with {} of {count} completions: {wcs:?}",
                    wcs.len()
                );
            }
        }
        wcs
    }

    /// The next completion, which has to be a success.
    ///
    /// # Panics
    /// If it isn't, or doesn't come.
    pub fn success(&mut self) -> WcSuccess {
        self.completions(1).remove(0).result().expect("success")
    }

    /// The next completion, which has to be an error.
    ///
    /// # Panics
    /// If it isn't, or doesn't come.
    pub fn failure(&mut self) -> WcError {
        self.completions(1).remove(0).result().expect_err("an error")
    }

    /// Fills the region with bytes that depend on the offset and on `seed`.
    pub fn fill(&self, seed: u8) {
        self.mr.write(0, &pattern(REGION, seed)).expect("within");
    }

    /// A copy of a part of the region.
    ///
    /// # Panics
    /// If it is outside.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(offset, &mut bytes).expect("within");
        bytes
    }
}

/// Bytes that depend on their place and on `seed`.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed)
        .collect()
}

/// A request that completes visibly.
pub fn signaled(wr_id: u64, op: SendOp<'_>) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
    }
}

/// A SEND of nothing.
pub fn empty_send() -> SendOp<'static> {
    SendOp::Send {
        data: Payload::Gather(&[]),
        imm: None,
    }
}

/// Brings two queue pairs from RESET to RTS, with `adjust` on what each side is told.
pub fn connect(
    (a, a_context): (&mut Qp, &Context),
    (b, b_context): (&mut Qp, &Context),
    adjust: impl Fn(&mut ToRtr, &mut ToRts),
) {
    let (a_qpn, b_qpn) = (a.qpn(), b.qpn());
    let (a_psn, b_psn) = (0x00_1000, 0xff_fff0);
    let sides = [
        (a, a_context, 0, b_qpn, b_psn, a_psn),
        (b, b_context, 1, a_qpn, a_psn, b_psn),
    ];
    for (qp, context, index, remote_qpn, rq_psn, sq_psn) in sides {
        let path = Path::to_ip(gid_index(context, index), address(1 - index), mac(1 - index));
        let (mut rtr, mut rts) = (ToRtr::new(path, remote_qpn, rq_psn), ToRts::new(sq_psn));
        adjust(&mut rtr, &mut rts);
        qp.modify_to_init(&ToInit::default()).expect("INIT");
        qp.modify_to_rtr(&rtr).expect("RTR");
        qp.modify_to_rts(&rts).expect("RTS");
    }
}

impl Pair {
    /// Two connected sides.
    pub fn new(config: &QpConfig) -> Pair {
        Pair::with(TestbedConfig::default(), config, |_, _| ())
    }

    /// Two connected sides on a testbed of that kind.
    pub fn with(testbed: TestbedConfig, config: &QpConfig, adjust: impl Fn(&mut ToRtr, &mut ToRts)) -> Pair {
        let mut pair = Pair::unconnected(testbed, config);
        pair.connect(adjust);
        pair
    }

    /// Two sides whose queue pairs are in RESET.
    pub fn unconnected(testbed: TestbedConfig, config: &QpConfig) -> Pair {
        let testbed = Testbed::new(testbed).expect("a testbed");
        Pair {
            a: Side::new(&testbed, 0, config),
            b: Side::new(&testbed, 1, config),
            testbed,
        }
    }

    /// Brings both queue pairs from RESET to RTS.
    pub fn connect(&mut self, adjust: impl Fn(&mut ToRtr, &mut ToRts)) {
        let a = (&mut self.a.qp, &*self.a.context);
        connect(a, (&mut self.b.qp, &*self.b.context), adjust);
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
