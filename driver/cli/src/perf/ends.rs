//! This side's verbs objects, and what it knows of the peer's.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ferroce::cm::{Connection, Event};
use ferroce::gid::Gid;
use ferroce::ids::Qpn;
use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, Mr, Mtu, Payload, Pd, Qp, QpConfig, RecvWr, RemoteAddr, SendFlags,
    SendOp, SendWr, ToInit, ToRtr, ToRts, WaitError, WcOpcode,
};
use rand::Rng;
use serde_json::{Value, json};

use super::args::{PerfArgs, Test};
use super::control::{end, gone};
use super::plan::Plan;
use crate::error::{CliError, failed};
use crate::nic::{self, LocalGid, Nic};

/// Looks at the CQ before the time is asked for.
const SPINS: u32 = 4096;
/// How long it is slept at most before the peer is asked for.
const LOOK: Duration = Duration::from_millis(100);

/// Fields go in this order.
pub struct Ends {
    pub lines: Vec<Line>,
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
    /// What both sides can.
    pub mtu: Mtu,
    /// Its queue pairs' numbers and first PSNs.
    pub qps: Vec<(Qpn, u32)>,
}

impl Peer {
    /// Reads what the peer said, and holds it to be doing the same.
    pub fn read(said: &Value, args: &PerfArgs) -> Result<Peer, CliError> {
        Plan::of(args).compare(|name| said[name].clone())?;
        let bad = |what: &str| CliError::Other(format!("the peer's {what} makes no sense"));
        let number = |value: &Value, max: u64| value.as_u64().filter(|n| *n <= max);
        let gid = said["gid"].as_str().and_then(|gid| gid.parse().ok());
        let qps = said["qps"].as_array().into_iter().flatten().map(|qp| {
            let qpn = number(&qp[0], 0xff_ffff)?;
            Some((Qpn::from_low_bits(qpn as u32), number(&qp[1], 0xff_ffff)? as u32))
        });
        Ok(Peer {
            gid: Gid::from_ip(gid.ok_or_else(|| bad("GID"))?),
            mtu: nic::mtu(args.mtu)?,
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

/// A queue pair, connected by this program or by the connection manager.
pub enum Line {
    Own(Qp),
    Managed(Connection),
}

impl Line {
    fn qp(&self) -> &Qp {
        match self {
            Line::Own(qp) => qp,
            Line::Managed(connection) => connection.qp(),
        }
    }

    fn qp_mut(&mut self) -> &mut Qp {
        match self {
            Line::Own(qp) => qp,
            Line::Managed(connection) => connection.qp_mut(),
        }
    }
}

impl Ends {
    /// Makes them, with regions of so many bytes at least.
    pub fn new(args: &PerfArgs, nic: &Nic, least: usize) -> Result<Ends, CliError> {
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
        let region =
            |access| Mr::alloc(&pd, args.largest().max(least), access).map_err(failed("memory region"));
        let mut lines = Vec::new();
        for _ in 0..args.qps() {
            let mut qp = Qp::create(&pd, &cq, &cq, &config).map_err(failed("QP"))?;
            qp.modify_to_init(&ToInit::default())
                .map_err(failed("QP to INIT"))?;
            lines.push(Line::Own(qp));
        }
        let access = Access::supported_by(context);
        if args.test == Test::AtomicLat && !access.contains(Access::REMOTE_ATOMIC) {
            return Err(CliError::Other("this NIC does no atomics".to_string()));
        }
        let mut random = rand::rng();
        Ok(Ends {
            places: lines
                .iter()
                .enumerate()
                .map(|(i, line)| (line.qp().qpn(), i))
                .collect(),
            psns: lines.iter().map(|_| random.random_range(0..1 << 24)).collect(),
            lines,
            poller,
            local: region(Access::LOCAL_WRITE)?,
            remote: region(access)?,
            events: args.events,
            _pd: pd,
        })
    }

    /// Numbers and first PSNs of its queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = (Qpn, u32)> {
        let qpns = self.lines.iter().map(|line| line.qp().qpn());
        qpns.zip(self.psns.iter().copied())
    }

    /// What the peer has to know.
    pub fn describe(&self, args: &PerfArgs, gid: &LocalGid) -> Value {
        let memory = self.remote.remote(0);
        let qps: Vec<_> = self.qps().map(|(qpn, psn)| json!([qpn.get(), psn])).collect();
        let mut said = json!({
            "gid": gid.entry.gid.to_ip().to_string(), "addr": memory.addr, "rkey": memory.rkey, "qps": qps,
        });
        for (name, value) in Plan::of(args).values() {
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
        for ((line, own), (qpn, psn)) in self.lines.iter_mut().zip(&self.psns).zip(&peer.qps) {
            let to_rtr = ToRtr {
                mtu: peer.mtu,
                ..ToRtr::new(path, *qpn, *psn)
            };
            let qp = line.qp_mut();
            qp.modify_to_rtr(&to_rtr).map_err(failed("QP to RTR"))?;
            let to_rts = ToRts {
                timeout: args.qp_timeout,
                ..ToRts::new(*own)
            };
            qp.modify_to_rts(&to_rts).map_err(failed("QP to RTS"))?;
        }
        Ok(())
    }

    /// Posts one message, or READ, or atomic, and rings.
    pub fn post(
        &mut self,
        args: &PerfArgs,
        remote: RemoteAddr,
        qp: usize,
        size: usize,
    ) -> Result<(), CliError> {
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
        if let Some(qp) = self.lines.get_mut(qp).map(Line::qp_mut) {
            qp.post_send(&wr).map_err(failed("request"))?;
            qp.ring_send();
        }
        Ok(())
    }

    pub fn post_recv(&mut self, qp: usize, size: usize) -> Result<(), CliError> {
        let sges = [self.remote.sge(0..size).map_err(failed("receive"))?];
        if let Some(qp) = self.lines.get_mut(qp).map(Line::qp_mut) {
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
            self.check()?;
            let now = Instant::now();
            if now >= deadline {
                return Err(silence(args));
            }
            if self.events {
                match self.poller.wait(deadline.min(now + LOOK)) {
                    Ok(()) | Err(WaitError::Deadline { .. }) => {}
                    Err(error) => return Err(failed("waiting for completions")(error)),
                }
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Whether the peer is still there, as far as the connection manager knows.
    pub fn check(&mut self) -> Result<(), CliError> {
        if let Some(Line::Managed(connection)) = self.lines.first_mut()
            && let Some(event) = connection.next_event()
        {
            match event {
                Event::PathLost(change) => log::warn!("the way to the peer: {change:?}"),
                _ => return Err(gone()),
            }
        }
        Ok(())
    }

    /// Ends the connection manager's connections, as [`end`] does.
    pub fn part(&mut self, is_client: bool) {
        for line in &mut self.lines {
            if let Line::Managed(connection) = line {
                end(connection, is_client);
            }
        }
    }

    pub fn close(self) -> Result<(), CliError> {
        for line in self.lines {
            if let Line::Own(qp) = line {
                qp.destroy().map_err(failed("destroying a QP"))?;
            }
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
