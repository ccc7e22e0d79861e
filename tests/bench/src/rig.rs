//! Two NICs of the model on a cable, each brought up by the whole driver, with a connected queue pair and a region.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::gid::{Gid, RoceVersion};
use ferroce::verbs::{Access, Cq, CqConfig, CqPoller, Mr, Mtu, Path, Pd, Qp, QpConfig, ToInit, ToRtr, ToRts};
use ferroce_nic_model::clock::{Clock, ManualClock, RealClock};
use ferroce_nic_model::runner::Drive;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_nic_model::wire::Icrc;

/// Any failure of a benchmark; none is expected.
pub type Failure = Box<dyn Error>;

/// A completion that has not come by then never will.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One NIC and its objects.
pub struct Side {
    pub qp: Qp,
    pub poller: CqPoller,
    pub mr: Mr,
    context: Arc<Context>,
}

/// Both sides, connected.
pub struct Rig {
    pub a: Side,
    pub b: Side,
    _testbed: Testbed,
}

/// What a rig is to be.
pub struct RigConfig {
    /// Bytes of each side's region.
    pub region: usize,
    /// Requests that may be outstanding.
    pub depth: u32,
    pub max_inline: u32,
    pub icrc: Icrc,
    /// Driven by the thread that rings, at a standing time, so that each run does the same.
    pub stepped: bool,
}

impl Rig {
    pub fn new(config: &RigConfig) -> Result<Rig, Failure> {
        let (drive, clock): (_, Arc<dyn Clock>) = if config.stepped {
            (Drive::Caller, Arc::new(ManualClock::new()))
        } else {
            (Drive::default(), Arc::new(RealClock::new()))
        };
        let testbed = Testbed::new(TestbedConfig {
            icrc: config.icrc,
            drive,
            clock,
            ..TestbedConfig::default()
        })?;
        let mut a = Side::new(&testbed, 0, config)?;
        let mut b = Side::new(&testbed, 1, config)?;
        let numbers = [a.qp.qpn(), b.qp.qpn()];
        let macs = [a.context.port_attributes()?.mac, b.context.port_attributes()?.mac];
        for (own, side) in [&mut a, &mut b].into_iter().enumerate() {
            let peer = 1 - own;
            let gid = Gid::from_ip(address(own));
            let index = side
                .context
                .gids()
                .find(|entry| entry.gid == gid && entry.version == RoceVersion::V2)
                .ok_or("the NIC's GID is missing")?;
            let path = Path::to_ip(index, address(peer), macs[peer]);
            side.qp.modify_to_init(&ToInit::default())?;
            side.qp.modify_to_rtr(&ToRtr {
                mtu: Mtu::Mtu4096,
                ..ToRtr::new(path, numbers[peer], 0)
            })?;
            side.qp.modify_to_rts(&ToRts::new(0))?;
        }
        Ok(Rig {
            a,
            b,
            _testbed: testbed,
        })
    }
}

fn address(index: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1 + index as u8))
}

impl Side {
    fn new(testbed: &Testbed, index: usize, config: &RigConfig) -> Result<Side, Failure> {
        let device = testbed.device(index).ok_or("no such NIC")?;
        let function = InProcess::new(["a", "b"][index], device)?;
        let context = Context::open(Arc::new(function), OpenConfig::new().address(address(index)))?;
        let pd = Pd::alloc(&context)?;
        let (cq, poller) = Cq::create(&context, CqConfig::new(2 * config.depth))?;
        let qp_config = QpConfig {
            max_send_wr: config.depth,
            max_recv_wr: config.depth,
            max_inline_data: config.max_inline,
            ..QpConfig::default()
        };
        let qp = Qp::create(&pd, &cq, &cq, &qp_config)?;
        let mr = Mr::alloc(&pd, config.region, Access::all())?;
        // All pages are there before anything is measured.
        mr.fill(0, config.region, 0x5a)?;
        Ok(Side {
            qp,
            poller,
            mr,
            context,
        })
    }

    /// Polls until `count` requests have succeeded.
    pub fn succeed(&mut self, count: usize) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        let (mut done, mut failed) = (0, None);
        while done < count {
            done += self.poller.poll(count - done, |wc| {
                if let Err(error) = wc.result() {
                    failed.get_or_insert(error);
                }
            })?;
            if let Some(error) = failed {
                return Err(Box::new(error));
            }
            if Instant::now() > deadline {
                return Err("completions are missing".into());
            }
        }
        Ok(())
    }
}
