//! What both sides agree on, and the queue pair's way to RTS with it.

use std::sync::Arc;

use ferroce_hw_regs::ids::Qpn;

use super::error::ConnectError;
use super::machine::{TimeCode, Transport};
use super::params::Params;
use crate::context::Context;
use crate::verbs::{Mtu, Path, Qp, QpState, QpType, ToInit, ToRtr, ToRts};

/// What a queue pair must be to be connected.
pub(super) fn check_qp(qp: &Qp, context: &Arc<Context>) -> Result<Transport, ConnectError> {
    if !Arc::ptr_eq(qp.pd().context(), context) {
        return Err(ConnectError::OtherDevice);
    }
    let transport = match qp.qp_type() {
        QpType::Rc => Transport::Rc,
        QpType::Uc => Transport::Uc,
        qp_type => return Err(ConnectError::QpType { qp_type }),
    };
    match qp.state() {
        QpState::Reset | QpState::Init => Ok(transport),
        state => Err(ConnectError::QpState { state }),
    }
}

/// Brings a queue pair to INIT, if it isn't there.
pub(super) fn to_init(qp: &mut Qp, params: &Params) -> Result<(), ConnectError> {
    if qp.state() == QpState::Reset {
        let access = params.access;
        qp.modify_to_init(&ToInit {
            access,
            ..ToInit::default()
        })?;
    }
    Ok(())
}

/// Most READs and atomics at a time, within what the device can: (answered, asked).
pub(super) fn depths(params: &Params, context: &Context) -> (u8, u8) {
    let general = context.caps().general();
    let most = |log: u8| 1u8 << log.min(7);
    (
        params.responder_resources.min(most(general.log_max_ra_res_qp())),
        params.initiator_depth.min(most(general.log_max_ra_req_qp())),
    )
}

/// What both sides have agreed on, for the queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    pub(super) path: Path,
    pub(super) mtu: Mtu,
    pub(super) remote_qpn: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) ack_timeout: TimeCode,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer: u8,
}

/// Brings a queue pair from INIT to RTS.
pub(super) fn to_rts(qp: &mut Qp, agreed: &Agreed) -> Result<(), ConnectError> {
    let remote = Qpn::from_low_bits(agreed.remote_qpn);
    let (mut rtr, mut rts) = if qp.qp_type() == QpType::Uc {
        (
            ToRtr::uc(agreed.path, remote, agreed.rq_psn),
            ToRts::uc(agreed.sq_psn),
        )
    } else {
        let rtr = ToRtr {
            max_dest_rd_atomic: agreed.responder_resources,
            min_rnr_timer: agreed.rnr_timer,
            ..ToRtr::new(agreed.path, remote, agreed.rq_psn)
        };
        (rtr, ToRts::new(agreed.sq_psn))
    };
    rtr.mtu = agreed.mtu;
    if qp.qp_type() != QpType::Uc {
        rts.timeout = agreed.ack_timeout.code();
        rts.retry_count = agreed.retry_count;
        rts.rnr_retry = agreed.rnr_retry;
        rts.max_rd_atomic = agreed.initiator_depth;
    }
    qp.modify_to_rtr(&rtr)?;
    qp.modify_to_rts(&rts)?;
    Ok(())
}

/// The path MTU that is asked for.
pub(super) fn mtu(params: &Params, context: &Context) -> Result<Mtu, ConnectError> {
    if let Some(mtu) = params.mtu {
        return Ok(mtu);
    }
    let active = context
        .active_path_mtu()
        .map_err(crate::verbs::ModifyError::from)?;
    let fitting = Mtu::ALL
        .into_iter()
        .rev()
        .find(|mtu| mtu.bytes() <= active.into());
    Ok(fitting.unwrap_or(Mtu::Mtu256))
}
