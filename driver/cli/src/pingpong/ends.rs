//! This side's verbs objects.

use std::ops::Range;
use std::time::{Duration, Instant};

use ferroce::gid::Gid;
use ferroce::ids::Qpn;
use ferroce::verbs::{
    Access, Ah, CounterSet, Cq, CqConfig, CqPoller, GRH_BYTES, GlobalHeader, Mr, Payload, Pd, Qp, QpConfig,
    QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, Srq, SrqConfig, ToInit, ToRtr, ToRts, WaitError,
    WcSuccess,
};

use super::args::{Kind, PingpongArgs};
use super::report::Losses;
use crate::error::{CliError, failed};
use crate::exchange::Destination;
use crate::nic::{self, LocalGid, Nic};

/// `wr_id` of receives.
pub const RECV: u64 = 1;
/// `wr_id` of sends.
pub const SEND: u64 = 2;
/// Q_Key of `ibv_ud_pingpong`.
const QKEY: u32 = 0x1111_1111;
/// Bytes that are the beginning of a page for `ibv_*_pingpong -c`, which expects a 0 there.
pub const PAGE: usize = 4096;
/// What the rest is filled with.
const FILL: u8 = 0x7b;
/// Looks at the CQ before the time is asked for.
const SPINS: u32 = 4096;

/// All that a side has. Fields go in this order.
pub struct Ends {
    qps: Vec<Qp>,
    /// Where receives are posted, if not at the queue pair.
    srq: Option<Srq>,
    /// Where datagrams go.
    station: Option<Station>,
    poller: CqPoller,
    region: Mr,
    counters: Option<CounterSet>,
    size: usize,
    /// Bytes that a received message has in front of it.
    header: usize,
    /// Where in the region messages are sent from; they are received, with their header, at 0.
    send_at: usize,
    rx_depth: u32,
    posted: u32,
    _pd: Pd,
}

/// The peer of a datagram queue pair.
struct Station {
    ah: Ah,
    qpn: Qpn,
    own: Gid,
    peer: Gid,
}

impl Ends {
    /// Makes the objects, in state INIT.
    pub fn new(args: &PingpongArgs, nic: &Nic) -> Result<Ends, CliError> {
        // Bounded by its argument.
        let size = args.size() as usize;
        let header = if args.kind == Kind::Ud { GRH_BYTES } else { 0 };
        let context = nic.context();
        if args.kind == Kind::Ud {
            let port = context.port_attributes().map_err(failed("port"))?;
            let most = usize::from(port.active_path_mtu);
            if size > most {
                return Err(CliError::Other(format!(
                    "--size {size}: a datagram has at most the port's path MTU, {most} bytes"
                )));
            }
        }
        let pd = Pd::alloc(context).map_err(failed("protection domain"))?;
        let (cq, poller) =
            Cq::create(context, CqConfig::new(args.rx_depth + args.qps())).map_err(failed("CQ"))?;
        // As `ibv_*_pingpong`, this sends what it has received: from the same place, unless a client is to compare.
        let send_at = if args.check && args.is_client() {
            (header + size).next_multiple_of(PAGE)
        } else {
            header
        };
        let region =
            Mr::alloc(&pd, (send_at + size).max(1), Access::LOCAL_WRITE).map_err(failed("memory region"))?;
        region
            .fill(0, region.len(), FILL)
            .map_err(failed("memory region"))?;
        // What a server checks, and must therefore not have before it comes.
        for page in (0..size).step_by(PAGE).filter(|_| args.is_client()) {
            region
                .fill(send_at + page, 1, 0)
                .map_err(failed("memory region"))?;
        }
        let counters = CounterSet::alloc(context)
            .inspect_err(|error| log::info!("the NIC does not count: {error}"))
            .ok();
        let config = QpConfig {
            qp_type: match args.kind {
                Kind::Rc | Kind::Srq => QpType::Rc,
                Kind::Uc => QpType::Uc,
                Kind::Ud => QpType::Ud,
            },
            max_send_wr: 1,
            max_recv_wr: args.rx_depth,
            ..QpConfig::default()
        };
        let srq = SrqConfig {
            max_wr: args.rx_depth,
            max_sge: 1,
        };
        let srq = (args.kind == Kind::Srq).then(|| Srq::create(&pd, &srq));
        let srq = srq.transpose().map_err(failed("shared receive queue"))?;
        let to_init = ToInit {
            access: Access::empty(),
            qkey: (args.kind == Kind::Ud).then_some(QKEY),
            ..ToInit::default()
        };
        let mut qps = Vec::new();
        for _ in 0..args.qps() {
            let qp = match &srq {
                Some(srq) => Qp::create_on_srq(&pd, &cq, &cq, srq, &config),
                None => Qp::create(&pd, &cq, &cq, &config),
            };
            let mut qp = qp.map_err(failed("QP"))?;
            if let Some(counters) = &counters {
                qp.count_with(counters).map_err(failed("counter set"))?;
            }
            qp.modify_to_init(&to_init).map_err(failed("QP to INIT"))?;
            qps.push(qp);
        }
        Ok(Ends {
            qps,
            srq,
            station: None,
            poller,
            region,
            counters,
            size,
            header,
            send_at,
            rx_depth: args.rx_depth,
            posted: 0,
            _pd: pd,
        })
    }

    /// Numbers of the queue pairs.
    pub fn qpns(&self) -> Vec<Qpn> {
        self.qps.iter().map(Qp::qpn).collect()
    }

    /// Posts receives until there are as many as there shall be.
    pub fn post_receives(&mut self) -> Result<(), CliError> {
        let sges = [self.sge(0..self.header + self.size)?];
        let wr = RecvWr {
            wr_id: RECV,
            sges: &sges,
        };
        while self.posted < self.rx_depth {
            match (&mut self.srq, self.qps.first_mut()) {
                (Some(srq), _) => srq.post_recv(&wr).map_err(failed("receive"))?,
                (None, Some(qp)) => qp.post_recv(&wr).map_err(failed("receive"))?,
                (None, None) => return Ok(()),
            }
            self.posted += 1;
        }
        match (&mut self.srq, self.qps.first_mut()) {
            (Some(srq), _) => srq.ring(),
            (None, Some(qp)) => qp.ring_recv(),
            (None, None) => {}
        }
        Ok(())
    }

    /// A receive has completed; posts new ones when few are left.
    pub fn received(&mut self) -> Result<(), CliError> {
        self.posted = self.posted.saturating_sub(1);
        if self.posted <= self.qps.len() as u32 {
            self.post_receives()?;
        }
        Ok(())
    }

    /// Sends a message from the region.
    pub fn post_send(&mut self, index: usize) -> Result<(), CliError> {
        let sges = [self.sge(self.send_at..self.send_at + self.size)?];
        let (data, imm) = (Payload::Gather(&sges), None);
        let op = match &self.station {
            None => SendOp::Send { data, imm },
            Some(Station { ah, qpn, .. }) => SendOp::SendTo {
                data,
                imm,
                to: ah,
                qpn: *qpn,
                qkey: QKEY,
            },
        };
        let wr = SendWr {
            wr_id: SEND,
            op,
            flags: SendFlags::SIGNALED,
        };
        if let Some(qp) = self.qps.get_mut(index) {
            qp.post_send(&wr).map_err(failed("send"))?;
            qp.ring_send();
        }
        Ok(())
    }

    fn sge(&self, range: Range<usize>) -> Result<Sge, CliError> {
        self.region.sge(range).map_err(failed("memory region"))
    }

    /// Bytes that a received message has in front of it.
    pub fn header(&self) -> usize {
        self.header
    }

    /// A datagram has to be the peer's: anybody who knows the Q_Key may send one.
    pub fn check_sender(&self, wc: &WcSuccess) -> Result<(), CliError> {
        let Some(station) = &self.station else {
            return Ok(());
        };
        let strange =
            |what: String| CliError::Other(format!("a datagram came that is not the peer's: {what}"));
        let datagram = wc
            .datagram
            .ok_or_else(|| strange("its completion does not tell the sender".to_string()))?;
        if datagram.src_qp != station.qpn {
            return Err(strange(format!(
                "{} sent it, the peer is {}",
                datagram.src_qp, station.qpn
            )));
        }
        let network = datagram
            .network
            .ok_or_else(|| strange("its completion tells of no header".to_string()))?;
        let mut bytes = [0; GRH_BYTES];
        self.region.read(0, &mut bytes).map_err(failed("memory region"))?;
        let header = GlobalHeader::read(&bytes, network).map_err(failed("header of a datagram"))?;
        if (header.source, header.destination) != (station.peer.to_ip(), station.own.to_ip()) {
            return Err(strange(format!(
                "it went from {} to {}",
                header.source, header.destination
            )));
        }
        Ok(())
    }

    /// Replaces the next message.
    pub fn set_message(&self, bytes: &[u8]) -> Result<(), CliError> {
        self.region
            .write(self.send_at, bytes)
            .map_err(failed("memory region"))
    }

    /// The message received last.
    pub fn message(&self, into: &mut [u8]) -> Result<(), CliError> {
        self.region
            .read(self.header, into)
            .map_err(failed("memory region"))
    }

    /// Which queue pair has that number.
    pub fn find(&self, qpn: Qpn) -> Option<usize> {
        self.qps.iter().position(|qp| qp.qpn() == qpn)
    }

    /// The next completion; asleep in between with `events`.
    pub fn completion(&mut self, events: bool, patience: Duration) -> Result<WcSuccess, CliError> {
        let deadline = Instant::now() + patience;
        loop {
            for _ in 0..if events { 1 } else { SPINS } {
                if let Some(wc) = self.poller.poll_one().map_err(failed("completion queue"))? {
                    return wc.result().map_err(failed("a message was not carried"));
                }
                std::hint::spin_loop();
            }
            let silence = || {
                CliError::Other(format!(
                    "nothing came from the peer for {} s (--timeout); is it of the same kind (rc, uc, ud, srq), does it use the \
                     same --size, --iters and --mtu, and is its MAC address right?",
                    patience.as_secs()
                ))
            };
            if events {
                self.poller.wait(deadline).map_err(|error| match error {
                    WaitError::Deadline { .. } => silence(),
                    error => failed("waiting for completions")(error),
                })?;
            } else if Instant::now() >= deadline {
                return Err(silence());
            } else {
                // Where there are fewer cores than there are busy threads.
                std::thread::yield_now();
            }
        }
    }

    /// Connects the queue pairs with the peer's.
    pub fn connect(
        &mut self,
        args: &PingpongArgs,
        nic: &Nic,
        gid: &LocalGid,
        own: &[Destination],
        peers: &[Destination],
    ) -> Result<(), CliError> {
        for ((qp, own), peer) in self.qps.iter_mut().zip(own).zip(peers) {
            let path = nic.path(gid, peer.gid, args.patience())?;
            let mtu = nic::mtu(args.mtu())?;
            if args.kind == Kind::Ud {
                qp.modify_to_rtr_datagram().map_err(failed("QP to RTR"))?;
                qp.modify_to_rts_datagram(own.psn).map_err(failed("QP to RTS"))?;
                self.station = Some(Station {
                    ah: Ah::new(qp.pd(), &path).map_err(failed("address handle"))?,
                    qpn: peer.qpn,
                    own: own.gid,
                    peer: peer.gid,
                });
                continue;
            }
            let (to_rtr, to_rts) = match args.kind {
                Kind::Uc => (ToRtr::uc(path, peer.qpn, peer.psn), ToRts::uc(own.psn)),
                _ => (
                    ToRtr {
                        max_dest_rd_atomic: 1,
                        ..ToRtr::new(path, peer.qpn, peer.psn)
                    },
                    ToRts {
                        max_rd_atomic: 1,
                        ..ToRts::new(own.psn)
                    },
                ),
            };
            qp.modify_to_rtr(&ToRtr { mtu, ..to_rtr })
                .map_err(failed("QP to RTR"))?;
            qp.modify_to_rts(&to_rts).map_err(failed("QP to RTS"))?;
        }
        Ok(())
    }

    /// What the NIC had to put right.
    pub fn counters(&self) -> Result<Losses, CliError> {
        let counters = self.counters.as_ref().map(CounterSet::query).transpose();
        let counters = counters.map_err(failed("counter set"))?.unwrap_or_default();
        Ok(Losses::of(&counters))
    }

    /// Ends the objects, and says whether that worked.
    pub fn close(self) -> Result<(), CliError> {
        for qp in self.qps {
            qp.destroy().map_err(failed("destroying a QP"))?;
        }
        self.region.dereg().map_err(failed("ending the memory region"))
    }
}
