//! Queue pairs that are kept busy until somebody ends this process: each WRITEs to itself, through the NIC's loopback.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::Context;
use ferroce::gid::RoceVersion;
use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, Mr, Path, Payload, Pd, Qp, QpConfig, SendFlags, SendOp, SendWr, ToInit,
    ToRtr, ToRts,
};

use super::failed;
use crate::error::CliError;
use crate::output::say;

/// Bytes of a WRITE.
const BYTES: usize = 64 << 10;
/// WRITEs under way on each queue pair.
const DEPTH: u32 = 16;
/// A completion that takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The way to the NIC itself.
pub struct Way(Path);

impl Way {
    pub fn to_itself(context: &Context) -> Result<Way, CliError> {
        let entries = context.gids().entries();
        let entry = entries.iter().find(|(_, entry)| entry.version == RoceVersion::V2);
        let (index, entry) =
            entry.ok_or_else(|| CliError::Other("the NIC has no RoCE v2 GID".to_string()))?;
        let mac = context.port_attributes().map_err(failed)?.mac;
        Ok(Way(Path::new(*index, entry.gid, mac)))
    }

    /// A queue pair that is connected with itself.
    pub fn connected(&self, pd: &Pd, cq: &Cq) -> Result<Qp, CliError> {
        let config = QpConfig {
            max_send_wr: DEPTH,
            max_recv_wr: 1,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(pd, cq, cq, &config).map_err(failed)?;
        qp.modify_to_init(&ToInit::default()).map_err(failed)?;
        qp.modify_to_rtr(&ToRtr::new(self.0, qp.qpn(), 0))
            .map_err(failed)?;
        qp.modify_to_rts(&ToRts::new(0)).map_err(failed)?;
        Ok(qp)
    }
}

/// Busy queue pairs.
pub struct Traffic {
    qps: Vec<Qp>,
    poller: CqPoller,
    region: Mr,
}

impl Traffic {
    /// Makes `count` queue pairs, each connected with itself.
    pub fn new(context: &Arc<Context>, pd: &Pd, count: u32) -> Result<Traffic, CliError> {
        let (cq, poller) =
            Cq::create(context, CqConfig::new(count.saturating_mul(DEPTH + 1))).map_err(failed)?;
        let region = Mr::alloc(pd, 2 * BYTES, Access::supported_by(context)).map_err(failed)?;
        let way = Way::to_itself(context)?;
        let qp = |_| way.connected(pd, &cq);
        Ok(Traffic {
            qps: (0..count).map(qp).collect::<Result<_, CliError>>()?,
            poller,
            region,
        })
    }

    /// Keeps them busy until something fails. Says so when as many WRITEs as there are queue pairs have completed.
    pub fn run(mut self) -> Result<(), CliError> {
        let mut completed = 0;
        let sges = [self.region.sge(0..BYTES).map_err(failed)?];
        let op = SendOp::Write {
            data: Payload::Gather(&sges),
            remote: self.region.remote(BYTES),
            imm: None,
        };
        let flags = SendFlags::SIGNALED;
        let mut wrong = None;
        loop {
            for qp in &mut self.qps {
                while qp.outstanding().0 < DEPTH {
                    qp.post_send(&SendWr { wr_id: 0, op, flags }).map_err(failed)?;
                }
                qp.ring_send();
            }
            self.poller.wait(Instant::now() + PATIENCE).map_err(failed)?;
            let count = self
                .poller
                .poll(1024, |wc| wrong = wc.result().err().map(failed).or(wrong.take()))
                .map_err(failed)?;
            if let Some(error) = wrong {
                return Err(error);
            }
            let before = completed;
            completed += count;
            if before < self.qps.len() && completed >= self.qps.len() {
                say!("{} queue pairs are busy", self.qps.len());
            }
        }
    }
}
