//! This side's verbs objects: one completion queue and one region for all connections.

use std::time::Instant;

use ferroce::verbs::{
    Access, Ah, Cq, CqConfig, CqPoller, Mr, Payload, Pd, Qp, QpConfig, QpType, RecvWr, SendFlags, SendOp,
    SendWr, ToInit, WaitError, WcOpcode, WcSuccess,
};

use crate::error::{CliError, failed};
use crate::nic::Nic;

/// Bytes in front of a datagram.
const GRH: usize = ferroce::verbs::GRH_BYTES;

/// Fields go in this order.
pub struct Ends {
    cq: Cq,
    poller: CqPoller,
    region: Mr,
    pd: Pd,
    messages: u32,
    size: usize,
    qp_type: QpType,
}

/// To whom a datagram goes.
pub struct To {
    pub ah: Ah,
    pub qpn: ferroce::ids::Qpn,
    pub qkey: u32,
}

impl Ends {
    /// Objects for so many queue pairs, with so many messages of that size each way.
    pub fn new(nic: &Nic, qps: usize, messages: u32, size: usize, qp_type: QpType) -> Result<Ends, CliError> {
        let context = nic.context();
        let pd = Pd::alloc(context).map_err(failed("protection domain"))?;
        let config = CqConfig::new(2 * messages.max(1) * qps as u32);
        let (cq, poller) = Cq::create(context, config).map_err(failed("CQ"))?;
        let region =
            Mr::alloc(&pd, 2 * (size + GRH), Access::LOCAL_WRITE).map_err(failed("memory region"))?;
        Ok(Ends {
            cq,
            poller,
            region,
            pd,
            messages,
            size,
            qp_type,
        })
    }

    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// A queue pair with a receive posted for each message. Like Linux's, all land at the same place.
    pub fn qp(&self, qkey: Option<u32>) -> Result<Qp, CliError> {
        let config = QpConfig {
            qp_type: self.qp_type,
            max_send_wr: self.messages.max(1),
            max_recv_wr: self.messages.max(1),
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&self.pd, &self.cq, &self.cq, &config).map_err(failed("QP"))?;
        match qkey {
            Some(qkey) => qp.start_datagrams(&ToInit::ud(qkey)),
            None => qp.modify_to_init(&ToInit::default()),
        }
        .map_err(failed("QP to INIT"))?;
        let sges = [self.region.sge(0..self.size + GRH).map_err(failed("receive"))?];
        for wr_id in 0..u64::from(self.messages) {
            qp.post_recv(&RecvWr { wr_id, sges: &sges })
                .map_err(failed("receive"))?;
        }
        qp.ring_recv();
        Ok(qp)
    }

    /// Sends all messages of a queue pair.
    pub fn send(&self, qp: &mut Qp, to: Option<&To>) -> Result<(), CliError> {
        let start = self.size + GRH;
        let sges = [self
            .region
            .sge(start..start + self.size)
            .map_err(failed("send"))?];
        let data = Payload::Gather(&sges);
        let imm = Some(qp.qpn().get());
        let op = match to {
            None => SendOp::Send { data, imm: None },
            Some(To { ah, qpn, qkey }) => SendOp::SendTo {
                data,
                // By which the server knows where the answer goes.
                imm,
                to: ah,
                qpn: *qpn,
                qkey: *qkey,
            },
        };
        let flags = SendFlags::SIGNALED;
        for wr_id in 0..u64::from(self.messages) {
            qp.post_send(&SendWr { wr_id, op, flags })
                .map_err(failed("send"))?;
        }
        qp.ring_send();
        Ok(())
    }

    /// Waits for completions: so many sends and so many receives, each received one given to `each`.
    pub fn complete(
        &mut self,
        (mut sends, mut receives): (u64, u64),
        deadline: Instant,
        mut each: impl FnMut(&WcSuccess) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        while sends > 0 || receives > 0 {
            let Some(wc) = self.poller.poll_one().map_err(failed("completion queue"))? else {
                self.poller.wait(deadline).map_err(|error| match error {
                    WaitError::Deadline { .. } => CliError::Other(format!(
                        "nothing came from the peer in time (--timeout), with {sends} messages to be sent and {receives} to be \
                         received; give both sides the same --connections, --messages and --size"
                    )),
                    error => failed("waiting for completions")(error),
                })?;
                continue;
            };
            let done = wc.result().map_err(failed("a request failed"))?;
            if done.opcode != WcOpcode::Recv {
                sends = sends.saturating_sub(1);
                continue;
            }
            let expected = if self.qp_type == QpType::Ud {
                self.size + GRH
            } else {
                self.size
            };
            if done.byte_len as usize != expected {
                return Err(CliError::Other(format!(
                    "a message of {} bytes came where {expected} were due; do both sides have the same -S?",
                    done.byte_len
                )));
            }
            receives = receives.saturating_sub(1);
            each(&done)?;
        }
        Ok(())
    }
}
