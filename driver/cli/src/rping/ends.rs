//! This side's verbs objects.

use std::time::{Duration, Instant};

use ferroce::cm::{Connection, Event};
use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, Mr, Payload, Pd, Qp, QpConfig, RecvWr, RemoteAddr, SendFlags, SendOp,
    SendWr, ToInit, WaitError, WcOpcode,
};

use crate::error::{CliError, failed};
use crate::nic::Nic;

/// Bytes that tell a place.
pub const INFO: usize = 16;

/// How often the connection is asked whether it has ended, while nothing completes.
const LOOK: Duration = Duration::from_millis(20);

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    pub at: RemoteAddr,
    pub len: u32,
}

impl Info {
    pub fn encode(&self) -> [u8; INFO] {
        let mut bytes = [0; INFO];
        bytes[..8].copy_from_slice(&self.at.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.at.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; INFO]) -> Info {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Info {
            at: RemoteAddr {
                addr: u64::from(word(0)) << 32 | u64::from(word(4)),
                rkey: word(8),
            },
            len: word(12),
        }
    }
}

/// What came next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A place, or a go-ahead, whose bytes mean nothing.
    Message(Info),
    /// A READ or WRITE is done.
    Done,
    /// The peer has ended the connection.
    Disconnected,
}

/// Fields go in this order.
pub struct Ends {
    poller: CqPoller,
    /// What is read from, at the client.
    pub start: Mr,
    /// What is written to, at the client; the server's only buffer.
    pub sink: Mr,
    infos: Mr,
    size: usize,
    _pd: Pd,
}

impl Ends {
    /// Makes the objects. The queue pair is in INIT, with a receive posted, and goes to the connection.
    pub fn new(nic: &Nic, size: usize) -> Result<(Qp, Ends), CliError> {
        let context = nic.context();
        let pd = Pd::alloc(context).map_err(failed("protection domain"))?;
        let (cq, poller) = Cq::create(context, CqConfig::new(32)).map_err(failed("CQ"))?;
        let config = QpConfig {
            max_send_wr: 16,
            max_recv_wr: 2,
            max_inline_data: INFO as u32,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&pd, &cq, &cq, &config).map_err(failed("QP"))?;
        qp.modify_to_init(&ToInit::default())
            .map_err(failed("QP to INIT"))?;
        let region = |len, access| Mr::alloc(&pd, len, access).map_err(failed("memory region"));
        let ends = Ends {
            poller,
            start: region(size, Access::REMOTE_READ)?,
            sink: region(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            infos: region(INFO, Access::LOCAL_WRITE)?,
            size,
            _pd: pd,
        };
        ends.post_recv(&mut qp)?;
        Ok((qp, ends))
    }

    /// Where one of the regions is.
    pub fn info(&self, region: &Mr) -> Info {
        Info {
            at: region.remote(0),
            len: self.size as u32,
        }
    }

    /// Bytes of a ping.
    pub fn size(&self) -> usize {
        self.size
    }

    fn post_recv(&self, qp: &mut Qp) -> Result<(), CliError> {
        let sges = [self.infos.sge(0..INFO).map_err(failed("receive"))?];
        qp.post_recv(&RecvWr {
            wr_id: 0,
            sges: &sges,
        })
        .map_err(failed("receive"))?;
        qp.ring_recv();
        Ok(())
    }

    /// Sends a place, or a go-ahead.
    pub fn send(&self, qp: &mut Qp, info: &Info) -> Result<(), CliError> {
        let bytes = info.encode();
        Ends::post(
            qp,
            SendOp::Send {
                data: Payload::Inline(&bytes),
                imm: None,
            },
        )
    }

    /// READs from the peer into the sink.
    pub fn read(&self, qp: &mut Qp, from: RemoteAddr, len: usize) -> Result<(), CliError> {
        let sges = [self.sink.sge(0..len).map_err(failed("READ"))?];
        Ends::post(
            qp,
            SendOp::Read {
                into: &sges,
                remote: from,
            },
        )
    }

    /// WRITEs to the peer from the sink.
    pub fn write(&self, qp: &mut Qp, to: RemoteAddr, len: usize) -> Result<(), CliError> {
        let sges = [self.sink.sge(0..len).map_err(failed("WRITE"))?];
        let data = Payload::Gather(&sges);
        Ends::post(
            qp,
            SendOp::Write {
                data,
                remote: to,
                imm: None,
            },
        )
    }

    fn post(qp: &mut Qp, op: SendOp<'_>) -> Result<(), CliError> {
        let flags = SendFlags::SIGNALED;
        qp.post_send(&SendWr { wr_id: 0, op, flags })
            .map_err(failed("request"))?;
        qp.ring_send();
        Ok(())
    }

    /// Waits for what comes next.
    pub fn next(&mut self, connection: &mut Connection, patience: Duration) -> Result<Next, CliError> {
        let deadline = Instant::now() + patience;
        loop {
            let Some(wc) = self.poller.poll_one().map_err(failed("completion queue"))? else {
                if let Some(Event::Disconnected(_)) = connection.next_event() {
                    return Ok(Next::Disconnected);
                }
                let now = Instant::now();
                if now >= deadline {
                    let text = format!("the peer did nothing for {} s (--timeout)", patience.as_secs());
                    return Err(CliError::Other(text));
                }
                match self.poller.wait(deadline.min(now + LOOK)) {
                    Ok(()) | Err(WaitError::Deadline { .. }) => continue,
                    Err(error) => return Err(failed("waiting for completions")(error)),
                }
            };
            let wc = match wc.result() {
                Ok(wc) => wc,
                // As the peer has ended the connection: what it says is there, or comes.
                Err(error) if error.is_flush() => continue,
                Err(error) => return Err(failed("a request failed")(error)),
            };
            match wc.opcode {
                WcOpcode::Send => {}
                WcOpcode::Recv => {
                    if wc.byte_len as usize != INFO {
                        return Err(CliError::Other(format!(
                            "the peer sent {} bytes where {INFO} were due; is it an rping?",
                            wc.byte_len
                        )));
                    }
                    let mut bytes = [0; INFO];
                    self.infos.read(0, &mut bytes).map_err(failed("memory region"))?;
                    self.post_recv(connection.qp_mut())?;
                    return Ok(Next::Message(Info::decode(&bytes)));
                }
                _ => return Ok(Next::Done),
            }
        }
    }

    /// Ends the objects.
    pub fn close(self) -> Result<(), CliError> {
        for region in [self.start, self.sink, self.infos] {
            region.dereg().map_err(failed("ending a memory region"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_sixteen_bytes_most_significant_first() {
        let info = Info {
            at: RemoteAddr {
                addr: 0x0102_0304_0506_0708,
                rkey: 0x090a_0b0c,
            },
            len: 0x0d0e_0f10,
        };
        let bytes = info.encode();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(Info::decode(&bytes), info);
    }
}
