//! A connection on which the two sides keep step, beside those that are measured: each says "here" by SEND.

use std::time::{Duration, Instant};

use ferroce::cm::{Connection, Event};
use ferroce::verbs::{
    Access, Cq, CqConfig, CqPoller, Mr, Payload, Pd, Qp, QpConfig, RecvWr, SendFlags, SendOp, SendWr, ToInit,
    WaitError, WcOpcode,
};

use crate::error::{CliError, failed};
use crate::nic::Nic;

/// What a side says.
const HERE: &[u8; 4] = b"here";
/// A peer can be one step ahead.
const RECEIVES: u32 = 2;
/// How often the connection is asked whether it has ended, while nothing comes.
const LOOK: Duration = Duration::from_millis(20);
/// How long the peer's end is waited for.
const LONGEST_PARTING: Duration = Duration::from_secs(10);

/// What the connection is made with.
pub struct ControlEnds {
    poller: CqPoller,
    region: Mr,
    _pd: Pd,
}

impl ControlEnds {
    /// Makes them, and a queue pair in INIT with receives posted.
    pub fn new(nic: &Nic) -> Result<(Qp, ControlEnds), CliError> {
        let context = nic.context();
        let pd = Pd::alloc(context).map_err(failed("protection domain"))?;
        let (cq, poller) = Cq::create(context, CqConfig::new(16)).map_err(failed("CQ"))?;
        let config = QpConfig {
            max_send_wr: 4,
            max_recv_wr: RECEIVES,
            max_inline_data: HERE.len() as u32,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&pd, &cq, &cq, &config).map_err(failed("QP"))?;
        qp.modify_to_init(&ToInit::default())
            .map_err(failed("QP to INIT"))?;
        let region = Mr::alloc(&pd, HERE.len(), Access::LOCAL_WRITE).map_err(failed("memory region"))?;
        let ends = ControlEnds {
            poller,
            region,
            _pd: pd,
        };
        for _ in 0..RECEIVES {
            ends.post_recv(&mut qp)?;
        }
        Ok((qp, ends))
    }

    fn post_recv(&self, qp: &mut Qp) -> Result<(), CliError> {
        let sges = [self.region.sge(0..HERE.len()).map_err(failed("receive"))?];
        let wr = RecvWr {
            wr_id: 0,
            sges: &sges,
        };
        qp.post_recv(&wr).map_err(failed("receive"))?;
        qp.ring_recv();
        Ok(())
    }
}

/// The connection. Fields go in this order.
pub struct Control {
    pub connection: Connection,
    ends: ControlEnds,
    patience: Duration,
    /// Steps, and what of them this side has got through to the peer and heard from it.
    steps: u64,
    sent: u64,
    heard: u64,
    ended: bool,
}

impl Control {
    pub fn new(connection: Connection, ends: ControlEnds, patience: Duration) -> Control {
        Control {
            connection,
            ends,
            patience,
            steps: 0,
            sent: 0,
            heard: 0,
            ended: false,
        }
    }

    /// Returns when both sides are here.
    ///
    /// # Errors
    /// The peer has ended, or does not come in time.
    pub fn meet(&mut self) -> Result<(), CliError> {
        self.step()?;
        // The peer must know, too, before its queue pairs are ended or measured with.
        if self.sent < self.steps {
            return Err(gone());
        }
        Ok(())
    }

    /// As [`Control::meet`], but a peer that has been here may have ended the connection since.
    fn step(&mut self) -> Result<(), CliError> {
        self.steps += 1;
        let wr = SendWr {
            wr_id: 0,
            op: SendOp::Send {
                data: Payload::Inline(HERE),
                imm: None,
            },
            flags: SendFlags::SIGNALED,
        };
        let qp = self.connection.qp_mut();
        qp.post_send(&wr).map_err(failed("talking to the peer"))?;
        qp.ring_send();
        let deadline = Instant::now() + self.patience;
        while self.sent < self.steps || self.heard < self.steps {
            if self.poll()? {
                continue;
            }
            // After all completions: what the peer said last has come before its end.
            if self.ended && self.heard < self.steps {
                return Err(gone());
            }
            if self.ended {
                return Ok(());
            }
            self.wait(deadline)?;
        }
        Ok(())
    }

    /// Takes a completion, if there is one.
    fn poll(&mut self) -> Result<bool, CliError> {
        let Some(wc) = self.ends.poller.poll_one().map_err(failed("completion queue"))? else {
            return Ok(false);
        };
        let wc = match wc.result() {
            Ok(wc) => wc,
            // As the connection has ended.
            Err(error) if error.is_flush() => return Ok(true),
            Err(error) => return Err(failed("talking to the peer")(error)),
        };
        if wc.opcode != WcOpcode::Recv {
            self.sent += 1;
            return Ok(true);
        }
        if wc.byte_len as usize != HERE.len() {
            return Err(CliError::Other(format!(
                "the peer said {} bytes where {} were due; is it the same tool?",
                wc.byte_len,
                HERE.len()
            )));
        }
        self.heard += 1;
        if !self.ended {
            self.ends.post_recv(self.connection.qp_mut())?;
        }
        Ok(true)
    }

    /// Waits for something for a short while.
    fn wait(&mut self, deadline: Instant) -> Result<(), CliError> {
        if let Some(Event::Disconnected(_) | Event::Stopped(_)) = self.connection.next_event() {
            self.ended = true;
            return Ok(());
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(CliError::Other(format!(
                "nothing came from the peer for {} s (--timeout); see what it says",
                self.patience.as_secs()
            )));
        }
        match self.ends.poller.wait(deadline.min(now + LOOK)) {
            Ok(()) | Err(WaitError::Deadline { .. }) => Ok(()),
            Err(error) => Err(failed("waiting for completions")(error)),
        }
    }

    /// Meets for the last time, and ends the connection, which the client does first: a server's queue pairs stay until
    /// then, for the last answers.
    ///
    /// # Errors
    /// As [`Control::meet`].
    pub fn part(&mut self, is_client: bool) -> Result<(), CliError> {
        self.step()?;
        end(&mut self.connection, is_client);
        Ok(())
    }
}

/// Ends a connection, or waits until the peer has.
pub fn end(connection: &mut Connection, is_client: bool) {
    let deadline = || Instant::now() + LONGEST_PARTING;
    if !is_client {
        let deadline = deadline();
        while connection.ended().is_none() {
            if matches!(connection.wait_event(deadline), Err(_) | Ok(Event::Stopped(_))) {
                break;
            }
        }
    }
    if let Err(error) = connection.disconnect(deadline()) {
        log::info!("{error}");
    }
}

/// The peer has ended the connection.
pub fn gone() -> CliError {
    CliError::Other("the peer has ended the connection before all was measured; see what it says".to_string())
}
