//! This side's verbs objects, and what it knows of the peer's.

use std::collections::HashMap;
use std::time::Instant;

use ferroce::gid::Gid;
use ferroce::ids::Qpn;
use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, Mr, Payload, Pd, Qp, QpConfig, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, ToInit, ToRtr, ToRts, WcOpcode,
};
use rand::Rng;
use serde_json::{Value, json};

use super::args::{PerfArgs, Test};
use crate::error::{CliError, failed};
use crate::nic::{self, LocalGid, Nic};

/// Looks at the CQ before the time is asked for.
const SPINS: u32 = 4096;

/// Fields go in this order.
pub struct Ends {
    pub qps: Vec<Qp>,
    poller: CqPoller,
    /// Messages are sent from here, and what READs and atomics give comes here.
    pub local: Mr,
    /// The peer writes here, reads from here, and sends to here.
    pub remote: Mr,
    psns: Vec<u32>,
    places: HashMap<Qpn, usize>,
    events: bool,
    _pd: Pd,
}

/// What the peer has told.
pub struct Peer {
    pub gid: Gid,
    pub memory: RemoteAddr,
    qps: Vec<(Qpn, u32)>,
}

impl Peer {
    /// Reads what the peer said, and holds it to be doing the same.
    pub fn read(said: &Value, args: &PerfArgs) -> Result<Peer, CliError> {
        for (name, own) in plan(args) {
            if said[name] != own {
                return Err(CliError::Other(format!(
                    "the peer has {name} {}, this side {own}; give both the same",
                    said[name]
                )));
            }
        }
        let bad = |what: &str| CliError::Other(format!("the peer's {what} makes no sense"));
        let number = |value: &Value, max: u64| value.as_u64().filter(|n| *n <= max);
        let gid = said["gid"].as_str().and_then(|gid| gid.parse().ok());
        let qps = said["qps"].as_array().into_iter().flatten().map(|qp| {
            let qpn = number(&qp[0], 0xff_ffff)?;
            Some((Qpn::from_low_bits(qpn as u32), number(&qp[1], 0xff_ffff)? as u32))
        });
        Ok(Peer {
            gid: Gid::from_ip(gid.ok_or_else(|| bad("GID"))?),
            memory: RemoteAddr {
                addr: number(&said["addr"], u64::MAX).ok_or_else(|| bad("address"))?,
                rkey: number(&said["rkey"], u32::MAX.into()).ok_or_else(|| bad("key"))? as u32,
            },
            qps: qps
                .collect::<Option<Vec<_>>>()
                .filter(|qps| qps.len() == args.qps() as usize)
                .ok_or_else(|| bad("list of queue pairs"))?,
        })
    }
}

/// What both sides have to have the same.
fn plan(args: &PerfArgs) -> [(&'static str, Value); 5] {
    [
        ("test", json!(args.test)),
        ("sizes", json!(args.sizes())),
        ("iters", json!(args.iters())),
        ("number of queue pairs", json!(args.qps())),
        ("mtu", json!(args.mtu)),
    ]
}

impl Ends {
    pub fn new(args: &PerfArgs, nic: &Nic) -> Result<Ends, CliError> {
        let context = nic.context();
        let pd = Pd::alloc(context).map_err(failed("protection domain"))?;
        let (send, recv) = if args.test.is_bandwidth() {
            (args.tx_depth, if args.test.is_send() { args.rx_depth } else { 1 })
        } else {
            (2, 2)
        };
        let config = QpConfig {
            max_send_wr: send,
            max_recv_wr: recv,
            max_inline_data: args.inline.max(1),
            ..QpConfig::default()
        };
        let entries = args.qps() * (send + recv);
        let (cq, poller) = Cq::create(context, CqConfig::new(entries)).map_err(failed("CQ"))?;
        let region = |access| Mr::alloc(&pd, args.largest().max(8), access).map_err(failed("memory region"));
        let mut qps = Vec::new();
        for _ in 0..args.qps() {
            let mut qp = Qp::create(&pd, &cq, &cq, &config).map_err(failed("QP"))?;
            qp.modify_to_init(&ToInit::default())
                .map_err(failed("QP to INIT"))?;
            qps.push(qp);
        }
        let access = Access::supported_by(context);
        if args.test == Test::AtomicLat && !access.contains(Access::REMOTE_ATOMIC) {
            return Err(CliError::Other("this NIC does no atomics".to_string()));
        }
        let mut random = rand::rng();
        Ok(Ends {
            places: qps.iter().enumerate().map(|(i, qp)| (qp.qpn(), i)).collect(),
            psns: qps.iter().map(|_| random.random_range(0..1 << 24)).collect(),
            qps,
            poller,
            local: region(Access::LOCAL_WRITE)?,
            remote: region(access)?,
            events: args.events,
            _pd: pd,
        })
    }

    /// What the peer has to know.
    pub fn describe(&self, args: &PerfArgs, gid: &LocalGid) -> Value {
        let memory = self.remote.remote(0);
        let qps: Vec<_> = self
            .qps
            .iter()
            .zip(&self.psns)
            .map(|(qp, psn)| json!([qp.qpn().get(), psn]))
            .collect();
        let mut said = json!({
            "gid": gid.entry.gid.to_ip().to_string(), "addr": memory.addr, "rkey": memory.rkey, "qps": qps,
        });
        for (name, value) in plan(args) {
            said[name] = value;
        }
        said
    }

    pub fn connect(
        &mut self,
        args: &PerfArgs,
        nic: &Nic,
        gid: &LocalGid,
        peer: &Peer,
    ) -> Result<(), CliError> {
        let path = nic.path(gid, peer.gid, args.patience())?;
        for ((qp, own), (qpn, psn)) in self.qps.iter_mut().zip(&self.psns).zip(&peer.qps) {
            let to_rtr = ToRtr {
                mtu: nic::mtu(args.mtu)?,
                ..ToRtr::new(path, *qpn, *psn)
            };
            qp.modify_to_rtr(&to_rtr).map_err(failed("QP to RTR"))?;
            qp.modify_to_rts(&ToRts::new(*own)).map_err(failed("QP to RTS"))?;
        }
        Ok(())
    }

    /// Posts one message, or READ, or atomic, and rings.
    pub fn post(&mut self, args: &PerfArgs, peer: &Peer, qp: usize, size: usize) -> Result<(), CliError> {
        let sges = [self.local.sge(0..size).map_err(failed("request"))?];
        let mut bytes = [0; 1024];
        let data = if size <= args.inline as usize && size <= bytes.len() {
            self.local
                .read(0, &mut bytes[..size])
                .map_err(failed("request"))?;
            Payload::Inline(&bytes[..size])
        } else {
            Payload::Gather(&sges)
        };
        let remote = peer.memory;
        let op = match args.test {
            Test::WriteBw | Test::WriteLat => SendOp::Write {
                data,
                remote,
                imm: None,
            },
            Test::SendBw | Test::SendLat => SendOp::Send { data, imm: None },
            Test::ReadBw | Test::ReadLat => SendOp::Read { into: &sges, remote },
            Test::AtomicLat => SendOp::FetchAdd {
                into: sges[0],
                remote,
                add: 1,
            },
        };
        let wr = SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED,
        };
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.post_send(&wr).map_err(failed("request"))?;
            qp.ring_send();
        }
        Ok(())
    }

    pub fn post_recv(&mut self, qp: usize, size: usize) -> Result<(), CliError> {
        let sges = [self.remote.sge(0..size).map_err(failed("receive"))?];
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.post_recv(&RecvWr {
                wr_id: 0,
                sges: &sges,
            })
            .map_err(failed("receive"))?;
            qp.ring_recv();
        }
        Ok(())
    }

    /// The next completion: of which queue pair, and whether it is a receive's.
    pub fn next(&mut self, args: &PerfArgs) -> Result<(usize, bool), CliError> {
        let deadline = Instant::now() + args.patience();
        loop {
            for _ in 0..if self.events { 1 } else { SPINS } {
                if let Some(wc) = self.poller.poll_one().map_err(failed("completion queue"))? {
                    let wc = wc.result().map_err(failed("a request was not carried out"))?;
                    let place = self.places.get(&wc.qpn).copied();
                    let place =
                        place.ok_or_else(|| CliError::Other(format!("a completion of {}", wc.qpn)))?;
                    return Ok((place, wc.opcode == WcOpcode::Recv));
                }
                std::hint::spin_loop();
            }
            if self.events {
                self.poller
                    .wait(deadline)
                    .map_err(failed("waiting for completions"))?;
            } else if Instant::now() >= deadline {
                return Err(silence(args));
            } else {
                std::thread::yield_now();
            }
        }
    }

    pub fn close(self) -> Result<(), CliError> {
        for qp in self.qps {
            qp.destroy().map_err(failed("destroying a QP"))?;
        }
        for region in [self.local, self.remote] {
            region.dereg().map_err(failed("ending a memory region"))?;
        }
        Ok(())
    }
}

/// Nothing came.
pub fn silence(args: &PerfArgs) -> CliError {
    CliError::Other(format!(
        "nothing came from the peer for {} s (--timeout); see what it says",
        args.timeout
    ))
}
