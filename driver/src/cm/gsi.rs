//! QP 1: the datagrams in and out.

use std::sync::Arc;
use std::time::Instant;

use super::StartError;
use super::machine::Transmit;
use super::mad::MAD_BYTES;
use crate::context::Context;
use crate::verbs::{
    Access, Ah, Cq, CqConfig, CqPoller, GRH_BYTES, GSI_QKEY, GlobalHeader, Mr, Payload, Pd, PollError, Qp,
    QpConfig, QpType, RecvWr, SendFlags, SendOp, SendWr, ToInit, WcOpcode,
};
use ferroce_hw_regs::ids::Qpn;

/// Receives that are posted: what may come in a burst.
const RECEIVES: usize = 1024;
/// Bytes of each: the global header's area and a datagram, rounded up.
const SLOT: usize = 512;
/// Sends under way.
const SENDS: u32 = 256;
/// `wr_id` of sends; receives have their slot's number.
const SEND_ID: u64 = u64::MAX;
/// QP 1, whose peer is QP 1 (IBTA vol. 1, 3.9).
const GSI: u32 = 1;

/// A datagram that came in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) header: GlobalHeader,
    pub(super) mad: [u8; MAD_BYTES],
}

/// QP 1 and what it needs.
#[derive(Debug)]
pub(super) struct Gsi {
    qp: Qp,
    poller: CqPoller,
    slots: Mr,
    pd: Pd,
    sending: u32,
    /// A send failed, and the queue needs to be brought back.
    broken: bool,
    /// Datagrams that were not sent, since there was no way or the queue failed.
    pub(super) unsent: u64,
    pub(super) restarts: u64,
}

impl Gsi {
    pub(super) fn open(context: &Arc<Context>, vector: usize) -> Result<Self, StartError> {
        let pd = Pd::alloc(context)?;
        // When the queue pair is brought back, what it left here and was not polled takes room besides.
        let mut config = CqConfig::new(2 * (RECEIVES as u32 + SENDS));
        config.vector = vector;
        let (cq, poller) = Cq::create(context, config)?;
        let config = QpConfig {
            qp_type: QpType::Gsi,
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: MAD_BYTES as u32,
            ..QpConfig::default()
        };
        let qp = Qp::create(&pd, &cq, &cq, &config)?;
        let slots = Mr::alloc(&pd, RECEIVES * SLOT, Access::LOCAL_WRITE)?;
        let mut gsi = Self {
            qp,
            poller,
            slots,
            pd,
            sending: 0,
            broken: false,
            unsent: 0,
            restarts: 0,
        };
        gsi.start()?;
        Ok(gsi)
    }

    fn start(&mut self) -> Result<(), StartError> {
        self.qp.start_datagrams(&ToInit::default())?;
        for slot in 0..RECEIVES {
            self.post(slot)?;
        }
        self.qp.ring_recv();
        Ok(())
    }

    fn post(&mut self, slot: usize) -> Result<(), StartError> {
        let sges = [self.slots.sge(slot * SLOT..(slot + 1) * SLOT)?];
        let wr_id = slot as u64;
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges })?;
        Ok(())
    }

    /// Takes in what has come, and gives each datagram to `each`.
    pub(super) fn poll(&mut self, mut each: impl FnMut(&Received)) -> Result<usize, PollError> {
        let (slots, sending, broken, unsent) =
            (&self.slots, &mut self.sending, &mut self.broken, &mut self.unsent);
        let mut free = Vec::new();
        let count = self.poller.poll(RECEIVES, |wc| match wc.result() {
            Ok(done) if done.opcode == WcOpcode::Recv => {
                if let Some(received) = read(slots, &done) {
                    each(&received);
                }
                free.push(done.wr_id as usize);
            }
            Ok(_) => *sending = sending.saturating_sub(1),
            Err(error) => {
                log::debug!("QP 1: {error}");
                *broken = true;
                if error.wr_id == SEND_ID {
                    *sending = sending.saturating_sub(1);
                    *unsent += 1;
                }
            }
        })?;
        if self.broken {
            return Ok(count);
        }
        for slot in free {
            if let Err(error) = self.post(slot) {
                log::error!("QP 1: receive {slot} is lost: {error}");
            }
        }
        self.qp.ring_recv();
        Ok(count)
    }

    /// Brings the queue pair back after a send has failed, such as one from a GID that was removed meanwhile.
    pub(super) fn mend(&mut self) -> Result<(), StartError> {
        if !self.broken {
            return Ok(());
        }
        self.qp.modify_to_reset()?;
        (self.sending, self.broken) = (0, false);
        self.restarts += 1;
        self.start()
    }

    pub(super) fn has_room(&self) -> bool {
        self.sending < SENDS && !self.broken
    }

    pub(super) fn sending(&self) -> u32 {
        self.sending
    }

    /// Posts a datagram; [`Self::ring`] sends it.
    pub(super) fn post_send(&mut self, transmit: &Transmit) {
        let to = match Ah::new(&self.pd, &transmit.path) {
            Ok(to) => to,
            Err(error) => {
                log::debug!("a datagram to {} is not sent: {error}", transmit.path.dgid);
                self.unsent += 1;
                return;
            }
        };
        let op = SendOp::SendTo {
            data: Payload::Inline(&transmit.mad[..]),
            imm: None,
            to: &to,
            qpn: Qpn::from_low_bits(GSI),
            qkey: GSI_QKEY,
        };
        let wr = SendWr {
            wr_id: SEND_ID,
            op,
            flags: SendFlags::SIGNALED,
        };
        match self.qp.post_send(&wr) {
            Ok(()) => self.sending += 1,
            Err(error) => {
                log::debug!("a datagram to {} is not sent: {error}", transmit.path.dgid);
                self.unsent += 1;
            }
        }
    }

    pub(super) fn ring(&mut self) {
        self.qp.ring_send();
    }

    /// Sleeps until there is something to poll, `stop` holds, or the deadline has come.
    pub(super) fn wait(
        &mut self,
        deadline: Instant,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<(), PollError> {
        self.poller.sleep(deadline, stop)
    }

    /// Gives QP 1 back to firmware now, so that it can be opened again.
    pub(super) fn close(self) {
        if let Err(error) = self.qp.destroy() {
            log::debug!("QP 1 was not destroyed: {error}");
        }
    }
}

/// What a receive holds, if it came from a QP 1 and has the header that its way back is found by.
fn read(slots: &Mr, done: &crate::verbs::WcSuccess) -> Option<Received> {
    let mut bytes = [0; GRH_BYTES + MAD_BYTES];
    let datagram = done.datagram?;
    if datagram.src_qp.get() != GSI || (done.byte_len as usize) < bytes.len() {
        return None;
    }
    slots.read(done.wr_id as usize * SLOT, &mut bytes).ok()?;
    let header = GlobalHeader::read(&bytes, datagram.network?).ok()?;
    let mad = *bytes.last_chunk()?;
    Some(Received { header, mad })
}
