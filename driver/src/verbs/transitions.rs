//! The changes of a queue pair's state: one call for each, checked against the standard's table before firmware is asked.

use std::time::Instant;

use ferroce_firmware_iface::cmds::{
    Init2Init, Init2Rtr, OptParamMask, PM_STATE_MIGRATED, QpToErr, QpToReset, Rst2Init, Rtr2Rts, Rts2Rts,
    Sqd2Rts, Sqerr2Rts,
};
use ferroce_firmware_iface::layouts::Qpc;

use super::error::{DrainError, LimitError, ModifyError};
use super::local::LocalBuffer;
use super::mkey::Access;
use super::qp::Qp;
use super::qp_parts::datagram_limits;
use super::to_state::{ToInit, ToRtr, ToRts, Update, allowed, check_psn, log_answered, log_asked};
use crate::ring::{PostError, QpState, QpType};

/// `qpc.atomic_mode`: as the IBTA has it.
const ATOMIC_MODE_IB_SPEC: u8 = 1;
/// `qpc.log_ack_req_freq`: an acknowledgement is asked for each 256 packets at least. Source: Linux mlx5.
const LOG_ACK_REQ_FREQ: u8 = 8;

/// What the peer's requests may do. As Linux mlx5_ib: where none may be in progress, it has no right to READs and atomics.
fn answered(access: Access, any_in_progress: bool) -> Access {
    if any_in_progress {
        access
    } else {
        access & Access::REMOTE_WRITE
    }
}

impl Qp {
    /// RESET to INIT, or INIT to INIT: receives may be posted from now on.
    ///
    /// # Errors
    /// [`ModifyError`]; the state is as before.
    pub fn modify_to_init(&mut self, to: &ToInit) -> Result<(), ModifyError> {
        self.check(QpState::Init)?;
        let ports = self.pd.context().port_count();
        LimitError::check(
            "QP to INIT",
            "port",
            to.port.get().into(),
            1..=ports.into(),
            "are the device's ports",
        )?;
        let reason = "is RoCE's only partition key";
        LimitError::check("QP to INIT", "pkey_index", to.pkey_index.into(), 0..=0, reason)?;
        let mut qpc = self.context()?;
        qpc.set_pd(self.pd.pdn().get())?;
        qpc.set_cqn_snd(self.send_cq.cqn().get())?;
        qpc.set_cqn_rcv(self.recv_cq.cqn().get())?;
        let qkey = to.qkey(self.qp_type())?;
        qpc.set_q_key(qkey);
        // READs and atomics are let in at RTR, where it is said how many there may be.
        self.set_access(&mut qpc, to.access & Access::REMOTE_WRITE)?;
        // The set of counters stays the one that it was.
        if let Some(counters) = self.counters.as_ref().filter(|_| self.state != QpState::Init) {
            qpc.set_counter_set_id(counters.id());
        }
        let path = qpc.primary_address_path_mut();
        path.set_pkey_index(to.pkey_index);
        path.set_vhca_port_num(to.port.get());
        let (qpn, qpc) = (self.qpn, &qpc);
        if self.state == QpState::Init {
            let optional = self.optional_in_init();
            self.pd.context().exec(&Init2Init { qpn, qpc, optional })?;
        } else {
            self.pd.context().exec(&Rst2Init {
                qpn,
                qpc,
                optional: OptParamMask::empty(),
            })?;
        }
        self.port = to.port;
        if let Some(sq) = &mut self.sq {
            sq.set_port(to.port);
        }
        self.access = to.access;
        self.set_state(QpState::Init);
        Ok(())
    }

    /// What INIT to INIT takes besides (Linux mlx5_ib).
    fn optional_in_init(&self) -> OptParamMask {
        let all = OptParamMask::PKEY_INDEX | OptParamMask::PRI_PORT;
        match self.qp_type() {
            QpType::Rc => all | OptParamMask::RRE | OptParamMask::RAE | OptParamMask::RWE,
            QpType::Uc => all | OptParamMask::RWE,
            QpType::Ud => all | OptParamMask::Q_KEY,
            // Firmware takes no mask for QP 1.
            QpType::Gsi => OptParamMask::empty(),
        }
    }

    /// INIT to RTR, of RC and UC: messages of the peer are taken from now on.
    ///
    /// # Errors
    /// [`ModifyError`], with [`ModifyError::Path`] for what is wrong with the path; the state is as before.
    pub fn modify_to_rtr(&mut self, to: &ToRtr) -> Result<(), ModifyError> {
        self.connected("modify_to_rtr", "modify_to_rtr_datagram")?;
        self.check(QpState::Rtr)?;
        let caps = self.pd.context().caps();
        to.check(caps, self.qp_type())?;
        let source = to.path.check(self.pd.context(), self.port)?;
        let port = self.pd.context().active_path_mtu()?;
        let reason = "is what the port's MTU lets through (OpenConfig::mtu)";
        LimitError::check(
            "QP to RTR",
            "mtu",
            to.mtu.bytes().into(),
            256..=port.into(),
            reason,
        )?;
        let mut qpc = self.context()?;
        qpc.set_mtu(to.mtu.code())?;
        qpc.set_log_msg_max(caps.general().log_max_msg())?;
        qpc.set_remote_qpn(to.remote_qpn.get())?;
        qpc.set_next_rcv_psn(to.rq_psn)?;
        qpc.set_log_rra_max(log_answered(to.max_dest_rd_atomic))?;
        qpc.set_min_rnr_nak(to.min_rnr_timer)?;
        let path = qpc.primary_address_path_mut();
        to.path
            .encode(path, &source, caps.roce(), (self.qpn.get(), to.remote_qpn.get()))?;
        path.set_vhca_port_num(self.port.get());
        let mut optional = OptParamMask::empty();
        if self.qp_type() == QpType::Rc {
            self.set_access(&mut qpc, answered(self.access, to.max_dest_rd_atomic > 0))?;
            optional = OptParamMask::RRE | OptParamMask::RAE | OptParamMask::RWE;
        }
        self.pd.context().exec(&Init2Rtr {
            qpn: self.qpn,
            qpc: &qpc,
            optional,
        })?;
        self.answers = to.max_dest_rd_atomic > 0;
        self.set_state(QpState::Rtr);
        Ok(())
    }

    /// INIT to RTR, of UD and GSI: datagrams are taken from now on.
    ///
    /// # Errors
    /// [`ModifyError`]; the state is as before.
    pub fn modify_to_rtr_datagram(&mut self) -> Result<(), ModifyError> {
        let Some((mtu, log_msg_max)) = datagram_limits(self.qp_type()) else {
            return self.other_service("modify_to_rtr_datagram", "modify_to_rtr");
        };
        self.check(QpState::Rtr)?;
        let mut qpc = self.context()?;
        qpc.set_mtu(mtu)?;
        qpc.set_log_msg_max(log_msg_max)?;
        let optional = OptParamMask::empty();
        self.pd.context().exec(&Init2Rtr {
            qpn: self.qpn,
            qpc: &qpc,
            optional,
        })?;
        self.set_state(QpState::Rtr);
        Ok(())
    }

    /// RTR to RTS, of UD and GSI: datagrams may be sent from now on, the first with that PSN (24 bits).
    ///
    /// # Errors
    /// [`ModifyError`]; the state is as before.
    pub fn modify_to_rts_datagram(&mut self, sq_psn: u32) -> Result<(), ModifyError> {
        if !self.qp_type().is_datagram() {
            return self.other_service("modify_to_rts_datagram", "modify_to_rts");
        }
        self.check_from(&[QpState::Rtr], QpState::Rts)?;
        check_psn("QP to RTS", "sq_psn", sq_psn)?;
        let mut qpc = self.context()?;
        qpc.set_next_send_psn(sq_psn)?;
        let optional = OptParamMask::empty();
        self.pd.context().exec(&Rtr2Rts {
            qpn: self.qpn,
            qpc: &qpc,
            optional,
        })?;
        self.set_state(QpState::Rts);
        Ok(())
    }

    /// RESET to RTS, of UD and GSI, in one go; PSNs start at 0.
    ///
    /// # Errors
    /// [`ModifyError`]; the state is the one that was reached.
    pub fn start_datagrams(&mut self, to: &ToInit) -> Result<(), ModifyError> {
        if !self.qp_type().is_datagram() {
            return self.other_service("start_datagrams", "modify_to_init and so on");
        }
        self.modify_to_init(to)?;
        self.modify_to_rtr_datagram()?;
        self.modify_to_rts_datagram(0)
    }

    /// RTR to RTS, of RC and UC: sends may be posted from now on.
    ///
    /// # Errors
    /// [`ModifyError`]; the state is as before.
    pub fn modify_to_rts(&mut self, to: &ToRts) -> Result<(), ModifyError> {
        self.connected("modify_to_rts", "modify_to_rts_datagram")?;
        self.check_from(&[QpState::Rtr], QpState::Rts)?;
        to.check(self.pd.context().caps(), self.qp_type())?;
        let mut qpc = self.context()?;
        qpc.set_next_send_psn(to.sq_psn)?;
        qpc.set_log_sra_max(log_asked(to.max_rd_atomic))?;
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

    /// SQD to RTS, or of UC and UD SQE to RTS: the send queue goes on. A queue pair goes to SQE by itself when a send
    /// request of it fails; [`Qp::query`] says so.
    ///
    /// # Errors
    /// [`ModifyError`]; the state is as before.
    pub fn resume(&mut self, update: &Update) -> Result<(), ModifyError> {
        self.check_from(&[QpState::Sqd, QpState::Sqe], QpState::Rts)?;
        let (qpc, optional) = self.update(update)?;
        let (qpn, qpc) = (self.qpn, &qpc);
        if self.state == QpState::Sqe {
            self.pd.context().exec(&Sqerr2Rts { qpn, qpc, optional })?;
        } else {
            self.pd.context().exec(&Sqd2Rts { qpn, qpc, optional })?;
        }
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
    /// Completions that were not polled yet take room until the poller has passed them: where a completion queue has none to
    /// spare, so many fewer requests can be posted until then.
    ///
    /// # Errors
    /// [`ModifyError::Command`]; the state is as before.
    pub fn modify_to_reset(&mut self) -> Result<Vec<LocalBuffer>, ModifyError> {
        if self.is_on_srq() && self.state != QpState::Reset {
            // What it has taken from the shared queue completes, and is not lost to it.
            self.modify_to_err()?;
        }
        self.pd.context().exec(&QpToReset { qpn: self.qpn })?;
        Ok(self.start_afresh())
    }

    /// Brings the queue pair to ERR and waits until all its requests have completed. `poll` is called again and again; if
    /// this thread polls the completion queues, it is where that belongs.
    ///
    /// On a shared receive queue, it waits until the device has written the completions of all receives that the queue
    /// pair took from there ([`Qp::last_wqe_reached`]), and calls `poll` once more.
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
            // Looked at before the poll, which then finds what came before the event.
            let mut taking = false;
            if self.is_on_srq() {
                self.pd.context().process_events();
                taking = !self.last_wqe_reached();
            }
            poll();
            let (sends, receives) = self.outstanding();
            if sends == 0 && receives == 0 && !taking {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let waited = started.elapsed();
                let (qpn, receives) = (self.qpn.get(), receives.max(taking.into()));
                return Err(DrainError::Deadline {
                    qpn,
                    sends,
                    receives,
                    waited,
                });
            }
            std::thread::yield_now();
        }
    }

    /// Whether the queue pair has one peer.
    fn connected(&self, call: &'static str, instead: &'static str) -> Result<(), ModifyError> {
        if self.qp_type().is_datagram() {
            return self.other_service(call, instead);
        }
        Ok(())
    }

    fn other_service(&self, call: &'static str, instead: &'static str) -> Result<(), ModifyError> {
        let qp_type = self.qp_type();
        Err(ModifyError::OtherService {
            call,
            qp_type,
            instead,
        })
    }

    /// Whether the table has the transition.
    fn check(&self, to: QpState) -> Result<(), ModifyError> {
        if allowed(self.qp_type(), self.state, to) {
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
        update.check(self.qp_type())?;
        if let Some(access) = update.access {
            self.set_access(&mut qpc, answered(access, self.answers))?;
            optional |= match self.qp_type() {
                QpType::Rc => OptParamMask::RRE | OptParamMask::RAE | OptParamMask::RWE,
                _ => OptParamMask::RWE,
            };
        }
        if let Some(qkey) = update.qkey {
            qpc.set_q_key(qkey);
            optional |= OptParamMask::Q_KEY;
        }
        if let Some(timer) = update.min_rnr_timer {
            let reason = "is what its 5 bits hold";
            LimitError::check("QP in RTS", "min_rnr_timer", timer.into(), 0..=31, reason)?;
            qpc.set_min_rnr_nak(timer)?;
            optional |= OptParamMask::RNR_TIMEOUT;
        }
        Ok((qpc, optional))
    }

    /// Lets the peer do what both it was given and the service and the device have.
    fn set_access(&self, qpc: &mut Qpc, access: Access) -> Result<(), ModifyError> {
        let of_service = match self.qp_type() {
            QpType::Rc => Access::all(),
            QpType::Uc => Access::REMOTE_WRITE,
            QpType::Ud | QpType::Gsi => Access::empty(),
        };
        let access = access & of_service & Access::supported_by(self.pd.context());
        qpc.set_rre(access.contains(Access::REMOTE_READ));
        qpc.set_rwe(access.contains(Access::REMOTE_WRITE));
        if access.contains(Access::REMOTE_ATOMIC) {
            qpc.set_rae(true);
            qpc.set_atomic_mode(ATOMIC_MODE_IB_SPEC)?;
        }
        Ok(())
    }
}
