//! The changes of a queue pair's state: one call for each, checked against the standard's table before firmware is asked.

use std::time::Instant;

use ferroce_firmware_iface::cmds::{
    Init2Init, Init2Rtr, OptParamMask, PM_STATE_MIGRATED, QpToErr, QpToReset, Rst2Init, Rtr2Rts, Rts2Rts,
    Sqd2Rts,
};
use ferroce_firmware_iface::layouts::Qpc;

use super::attr::{ToInit, ToRtr, ToRts, Update, allowed, log_depth};
use super::error::{DrainError, LimitError, ModifyError};
use super::local::LocalBuffer;
use super::mkey::Access;
use super::qp::Qp;
use crate::ring::{PostError, QpState};

/// `qpc.atomic_mode`: as the IBTA has it.
const ATOMIC_MODE_IB_SPEC: u8 = 1;
/// `qpc.log_ack_req_freq`: an acknowledgement is asked for each 256 packets at least. Source: Linux mlx5.
const LOG_ACK_REQ_FREQ: u8 = 8;

impl Qp {
    /// RESET to INIT, or INIT to INIT: receives may be posted from now on.
    ///
    /// # Errors
    /// [`ModifyError`]; the state is as before.
    pub fn modify_to_init(&mut self, to: &ToInit) -> Result<(), ModifyError> {
        self.check(QpState::Init)?;
        let ports = self.pd.context().caps().general().num_ports().max(1);
        LimitError::check(
            "QP to INIT",
            "port",
            to.port.into(),
            1..=ports.into(),
            "are the device's ports",
        )?;
        let reason = "is RoCE's only partition key";
        LimitError::check("QP to INIT", "pkey_index", to.pkey_index.into(), 0..=0, reason)?;
        let mut qpc = self.context()?;
        qpc.set_pd(self.pd.pdn().get())?;
        qpc.set_cqn_snd(self.send_cq.cqn().get())?;
        qpc.set_cqn_rcv(self.recv_cq.cqn().get())?;
        set_access(&mut qpc, to.access & Access::supported_by(self.pd.context()))?;
        if let Some(counters) = &self.counters {
            qpc.set_counter_set_id(counters.id());
        }
        let path = qpc.primary_address_path_mut();
        path.set_pkey_index(to.pkey_index);
        path.set_vhca_port_num(to.port);
        let (qpn, qpc) = (self.qpn, &qpc);
        if self.state == QpState::Init {
            let optional = OptParamMask::RRE
                | OptParamMask::RAE
                | OptParamMask::RWE
                | OptParamMask::PKEY_INDEX
                | OptParamMask::PRI_PORT;
            self.pd.context().exec(&Init2Init { qpn, qpc, optional })?;
        } else {
            self.pd.context().exec(&Rst2Init {
                qpn,
                qpc,
                optional: OptParamMask::empty(),
            })?;
        }
        self.port = to.port;
        self.set_state(QpState::Init);
        Ok(())
    }

    /// INIT to RTR: messages of the peer are taken from now on.
    ///
    /// # Errors
    /// [`ModifyError`], with [`ModifyError::Path`] for what is wrong with the path; the state is as before.
    pub fn modify_to_rtr(&mut self, to: &ToRtr) -> Result<(), ModifyError> {
        self.check(QpState::Rtr)?;
        let caps = self.pd.context().caps();
        to.check(caps)?;
        let source = to.path.check(self.pd.context())?;
        let mut qpc = self.context()?;
        qpc.set_mtu(to.mtu.code())?;
        qpc.set_log_msg_max(caps.general().log_max_msg())?;
        qpc.set_remote_qpn(to.remote_qpn.get())?;
        qpc.set_next_rcv_psn(to.rq_psn)?;
        qpc.set_log_rra_max(log_depth(to.max_dest_rd_atomic))?;
        qpc.set_min_rnr_nak(to.min_rnr_timer)?;
        let path = qpc.primary_address_path_mut();
        to.path
            .encode(path, &source, caps.roce(), (self.qpn.get(), to.remote_qpn.get()))?;
        path.set_vhca_port_num(self.port);
        let optional = OptParamMask::empty();
        self.pd.context().exec(&Init2Rtr {
            qpn: self.qpn,
            qpc: &qpc,
            optional,
        })?;
        self.set_state(QpState::Rtr);
        Ok(())
    }

    /// RTR to RTS: sends may be posted from now on.
    ///
    /// # Errors
    /// [`ModifyError`]; the state is as before.
    pub fn modify_to_rts(&mut self, to: &ToRts) -> Result<(), ModifyError> {
        self.check_from(&[QpState::Rtr], QpState::Rts)?;
        to.check(self.pd.context().caps())?;
        let mut qpc = self.context()?;
        qpc.set_next_send_psn(to.sq_psn)?;
        qpc.set_log_sra_max(log_depth(to.max_rd_atomic))?;
        qpc.set_retry_count(to.retry_count)?;
        qpc.set_rnr_retry(to.rnr_retry)?;
        qpc.primary_address_path_mut().set_ack_timeout(to.timeout)?;
        let optional = OptParamMask::empty();
        self.pd.context().exec(&Rtr2Rts {
            qpn: self.qpn,
            qpc: &qpc,
            optional,
        })?;
        self.set_state(QpState::Rts);
        Ok(())
    }

    /// RTS to RTS: changes what can be changed while the connection is up.
    ///
    /// # Errors
    /// [`ModifyError`]; nothing has changed.
    pub fn modify_in_rts(&mut self, update: &Update) -> Result<(), ModifyError> {
        self.check_from(&[QpState::Rts], QpState::Rts)?;
        let (qpc, optional) = self.update(update)?;
        self.pd.context().exec(&Rts2Rts {
            qpn: self.qpn,
            qpc: &qpc,
            optional,
        })?;
        Ok(())
    }

    /// SQD to RTS: the send queue goes on.
    ///
    /// # Errors
    /// [`ModifyError`]; the state is as before.
    pub fn resume(&mut self, update: &Update) -> Result<(), ModifyError> {
        self.check_from(&[QpState::Sqd], QpState::Rts)?;
        let (qpc, optional) = self.update(update)?;
        self.pd.context().exec(&Sqd2Rts {
            qpn: self.qpn,
            qpc: &qpc,
            optional,
        })?;
        self.set_state(QpState::Rts);
        Ok(())
    }

    /// RTS to SQD, which the standard has.
    ///
    /// # Errors
    /// Always: [`ModifyError::NotOffered`] from RTS, as ConnectX firmware has no command that drains a send queue, and
    /// [`ModifyError::Transition`] from other states. To wait until all sends are done, poll for a signaled one.
    pub fn modify_to_sqd(&mut self) -> Result<(), ModifyError> {
        self.check(QpState::Sqd)?;
        Err(ModifyError::NotOffered {
            qpn: self.qpn.get(),
            from: self.state,
            to: QpState::Sqd,
        })
    }

    /// To ERR, from any state: all outstanding requests are flushed, and those that are posted from now on.
    ///
    /// # Errors
    /// [`ModifyError::Command`]; the state is as before.
    pub fn modify_to_err(&mut self) -> Result<(), ModifyError> {
        self.pd.context().exec(&QpToErr { qpn: self.qpn })?;
        self.set_state(QpState::Err);
        Ok(())
    }

    /// To RESET, from any state: outstanding requests are forgotten, and completions of them that were not polled yet
    /// will not be shown. The buffers that were moved into them come back here.
    ///
    /// # Errors
    /// [`ModifyError::Command`]; the state is as before.
    pub fn modify_to_reset(&mut self) -> Result<Vec<LocalBuffer>, ModifyError> {
        self.pd.context().exec(&QpToReset { qpn: self.qpn })?;
        Ok(self.start_afresh())
    }

    /// Brings the queue pair to ERR and waits until all its requests have completed. `poll` is called again and again; if
    /// this thread polls the completion queues, it is where that belongs.
    ///
    /// # Errors
    /// [`DrainError::Modify`] if ERR can't be reached, [`DrainError::Deadline`] if something is still outstanding then.
    pub fn drain(&mut self, deadline: Instant, mut poll: impl FnMut()) -> Result<(), DrainError> {
        if self.state == QpState::Reset {
            return Ok(());
        }
        if self.state != QpState::Err {
            self.modify_to_err()?;
        }
        let started = Instant::now();
        // Sends without a completion are known to be done when a later one's comes; so there has to be a later one.
        let mut marked = false;
        loop {
            if !marked && let Some(sq) = &mut self.sq {
                match sq.post_marker() {
                    Ok(()) => {
                        sq.ring();
                        marked = true;
                    }
                    // Flushed requests will make room.
                    Err(PostError::QueueFull { .. }) => {}
                    Err(_) => marked = true,
                }
            }
            poll();
            let (sends, receives) = self.outstanding();
            if sends == 0 && receives == 0 {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let waited = started.elapsed();
                return Err(DrainError::Deadline {
                    qpn: self.qpn.get(),
                    sends,
                    receives,
                    waited,
                });
            }
            std::thread::yield_now();
        }
    }

    /// Whether the table has the transition.
    fn check(&self, to: QpState) -> Result<(), ModifyError> {
        if allowed(self.state, to) {
            return Ok(());
        }
        Err(ModifyError::Transition {
            qpn: self.qpn.get(),
            from: self.state,
            to,
        })
    }

    /// Whether the state is one that this call is for.
    fn check_from(&self, from: &[QpState], to: QpState) -> Result<(), ModifyError> {
        if from.contains(&self.state) {
            return self.check(to);
        }
        Err(ModifyError::Transition {
            qpn: self.qpn.get(),
            from: self.state,
            to,
        })
    }

    /// What each transition's context has.
    fn context(&self) -> Result<Qpc, ModifyError> {
        let mut qpc = Qpc::default();
        qpc.set_pm_state(PM_STATE_MIGRATED)?;
        qpc.set_log_ack_req_freq(LOG_ACK_REQ_FREQ)?;
        Ok(qpc)
    }

    fn update(&self, update: &Update) -> Result<(Qpc, OptParamMask), ModifyError> {
        let mut qpc = self.context()?;
        let mut optional = OptParamMask::empty();
        if let Some(access) = update.access {
            set_access(&mut qpc, access & Access::supported_by(self.pd.context()))?;
            optional |= OptParamMask::RRE | OptParamMask::RAE | OptParamMask::RWE;
        }
        if let Some(timer) = update.min_rnr_timer {
            let reason = "is what its 5 bits hold";
            LimitError::check("QP in RTS", "min_rnr_timer", timer.into(), 0..=31, reason)?;
            qpc.set_min_rnr_nak(timer)?;
            optional |= OptParamMask::RNR_TIMEOUT;
        }
        Ok((qpc, optional))
    }
}

fn set_access(qpc: &mut Qpc, access: Access) -> Result<(), ModifyError> {
    qpc.set_rre(access.contains(Access::REMOTE_READ));
    qpc.set_rwe(access.contains(Access::REMOTE_WRITE));
    if access.contains(Access::REMOTE_ATOMIC) {
        qpc.set_rae(true);
        qpc.set_atomic_mode(ATOMIC_MODE_IB_SPEC)?;
    }
    Ok(())
}
