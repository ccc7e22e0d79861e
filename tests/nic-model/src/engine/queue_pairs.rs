//! Queue pairs: made, moved through their states, queried and destroyed.

use ferroce_firmware_iface::layouts::Qpc;

use super::DataPlane;
use super::counters::sum;
use super::refs::{QpRefs, insert, no_such, remove};
use crate::fw::qp_transition::QpTransition;
use crate::objects::qp::{Service, prm_state};
use crate::objects::{Buffer, ObjectError, Qp};
use crate::rc::RcQp;
use crate::rc::types::QpState;
use crate::transport::Transport;
use crate::uc::UcQp;

impl DataPlane {
    /// Creates a QP. There is one QP1.
    ///
    /// # Errors
    /// What it names is not there, or its context can't be.
    pub fn create_qp(&mut self, qpc: &Qpc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        // Linux gives its UMR QP a PD at RST2INIT only.
        if !(qpc.pd() == 0 && Service::of(qpc.st()) == Service::RegUmr) {
            self.need_pd(qpc.pd())?;
        }
        self.need_uar(qpc.uar_page())?;
        if !qpc.no_sq() {
            self.need_cq(qpc.cqn_snd())?;
        }
        if qpc.rq_type() != 3 {
            self.need_cq(qpc.cqn_rcv())?;
        }
        if qpc.rq_type() == 1 && self.objects.srqs.get(qpc.srqn_rmpn_xrqn()).is_none() {
            return Err(no_such("SRQ", qpc.srqn_rmpn_xrqn()));
        }
        let gsi = Service::of(qpc.st()) == Service::Gsi;
        if gsi && self.objects.gsi.is_some() {
            return Err(ObjectError::NoResources {
                object: "QP1",
                limit: 1,
            });
        }
        let pages = self.pages_for(buffer);
        let mut refs = None;
        let qpn = insert(&mut self.objects.qps, "QP", |n| {
            let qp = Qp::new(n, qpc, pages)?;
            refs = Some(QpRefs::of(&qp));
            Ok(qp)
        })?;
        if let Some(refs) = refs {
            self.use_all_of_qp(refs, 1);
        }
        if gsi {
            self.objects.gsi = Some(qpn);
        }
        Ok(qpn)
    }

    /// Moves a QP through a transition that the firmware has checked; `qpc` is its context after it.
    ///
    /// # Errors
    /// What it names now is not there.
    pub fn modify_qp(&mut self, transition: QpTransition, qpn: u32, qpc: &Qpc) -> Result<(), ObjectError> {
        let qp = self.objects.qps.get(qpn).ok_or(no_such("QP", qpn))?;
        let path = match transition {
            QpTransition::Init2Rtr | QpTransition::Rtr2Rts | QpTransition::Rts2Rts => {
                self.path_of(qp, qpc)?
            }
            _ => None,
        };
        // A PD of 0 says nothing: rdma-core's tests leave it out here.
        let moves = transition == QpTransition::Rst2Init && qpc.pd() != 0 && qp.pd != qpc.pd();
        let config = self.transport_config(qpc);
        if moves {
            self.move_qp(qpn, qpc.pd())?;
        }
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return Err(no_such("QP", qpn));
        };
        // A QP that changes its counter set takes along what it counted.
        qp.context = *qpc;
        let _ = qp.context.set_pd(qp.pd);
        if path.is_some() {
            qp.path = path;
        }
        match transition {
            QpTransition::Rst2Init | QpTransition::Init2Init => qp.state = QpState::Init,
            QpTransition::Init2Rtr => {
                qp.state = QpState::Rtr;
                qp.transport = match qp.service {
                    Service::Rc => Some(Transport::Rc(Box::new(RcQp::new(config)))),
                    Service::Uc => Some(Transport::Uc(Box::new(UcQp::new(config)))),
                    _ => None,
                };
            }
            QpTransition::Rtr2Rts => {
                qp.state = QpState::Rts;
                qp.datagram_psn = config.send_psn;
                if let Some(transport) = &mut qp.transport {
                    transport.to_rts(config);
                }
                self.wake(qpn);
            }
            QpTransition::Rts2Rts | QpTransition::Sqerr2Rts | QpTransition::Sqd2Rts => {
                qp.state = QpState::Rts;
                if let Some(transport) = &mut qp.transport {
                    transport.modify(config);
                    transport.resume();
                }
                self.wake(qpn);
            }
            QpTransition::To2Err => self.fail_qp(qpn),
            QpTransition::To2Rst => {
                qp.reset();
            }
        }
        Ok(())
    }

    /// Destroys a QP that is in no multicast group.
    ///
    /// # Errors
    /// It is not there, or in a group.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), ObjectError> {
        let groups = self.groups.count_of(qpn);
        let qp = remove(&mut self.objects.qps, "QP", qpn, |_| groups)?;
        self.objects.gsi = self.objects.gsi.filter(|gsi| *gsi != qpn);
        let counts = qp.counters_now();
        self.retired = sum(self.retired, &counts.transport);
        let set = u32::from(qp.context.counter_set_id());
        if let Some(set) = self.objects.q_counters.get_mut(set) {
            set.retired.add(&counts);
        }
        self.use_all_of_qp(QpRefs::of(&qp), -1);
        Ok(())
    }

    /// Fills in a QP's context as it is now.
    ///
    /// # Errors
    /// It is not there.
    pub fn query_qp(&self, qpn: u32, qpc: &mut Qpc) -> Result<(), ObjectError> {
        let qp = self.objects.qps.get(qpn).ok_or(no_such("QP", qpn))?;
        *qpc = qp.context;
        let _ = qpc.set_state(prm_state(qp.state()));
        qpc.set_hw_sq_wqebb_counter(qp.sq.ci);
        qpc.set_hw_rq_counter(u32::from(qp.rq.ci));
        if let Ok(posted) = self.host.read_be32(qp.dbr) {
            qpc.set_sw_rq_counter(posted & 0xffff);
        }
        if let Ok(posted) = self.host.read_be32(qp.dbr.wrapping_add(4)) {
            qpc.set_sw_sq_wqebb_counter(posted as u16);
        }
        Ok(())
    }
}
