//! What connected queue pairs do: SEND, WRITE, READ and atomics, on RC and UC, and with a shared receive queue.

use std::sync::Arc;

use ferroce::context::Context;
use ferroce::verbs::{
    Access, Mr, Payload, Qp, QpConfig, QpType, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, Srq,
    SrqConfig, ToInit, ToRtr, ToRts, Update,
};
use ferroce_nic_model::testbed::Testbed;
use ferroce_suites::pair::{self, Side};

use super::side::{INLINE, completion, config, drain, end, post, post_flagged, receive, sides};
use super::{FreshError, failed};

/// Each kind of request on RC and UC queue pairs.
pub(super) fn connected(testbed: &Testbed, contexts: &[Arc<Context>; 2]) -> Result<(), FreshError> {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let [mut a, mut b] = sides(contexts, &config(qp_type))?;
        if qp_type == QpType::Rc {
            // Once before the peer is known, and again after, as connection managers do.
            a.qp.modify_to_init(&ToInit::default()).map_err(failed)?;
        }
        pair::connect((&mut a.qp, &a.context), (&mut b.qp, &b.context), |rtr, rts| {
            if qp_type == QpType::Uc {
                *rtr = ToRtr::uc(rtr.path, rtr.remote_qpn, rtr.rq_psn);
                *rts = ToRts::uc(rts.sq_psn);
            }
        });
        messages(testbed, &mut a, &mut b)?;
        messages(testbed, &mut b, &mut a)?;
        flags(testbed, &mut a, &mut b)?;
        writes(testbed, &mut a, &b)?;
        if qp_type == QpType::Rc {
            invalidations(testbed, &mut a, &mut b)?;
            invalidations(testbed, &mut b, &mut a)?;
            reads(testbed, &mut a, &b)?;
        }
        changes(&mut a)?;
        if qp_type == QpType::Rc {
            drain(&mut a)?;
        }
        end(testbed, 0, a, None)?;
        end(testbed, 1, b, None)?;
    }
    Ok(())
}

/// Small requests within the doorbell, twice: the register has two slots.
pub(super) fn blueflame(testbed: &Testbed, contexts: &[Arc<Context>; 2]) -> Result<(), FreshError> {
    let config = QpConfig {
        blueflame: true,
        ..config(QpType::Rc)
    };
    let [mut a, mut b] = sides(contexts, &config)?;
    pair::connect((&mut a.qp, &a.context), (&mut b.qp, &b.context), |_, _| ());
    for imm in [None, Some(7)] {
        receive(&mut b, 8192)?;
        let data = Payload::Inline(&INLINE);
        post(testbed, &mut a, SendOp::Send { data, imm })?;
        completion(&mut b)?;
    }
    end(testbed, 0, a, None)?;
    end(testbed, 1, b, None)
}

/// Messages into a shared receive queue with a limit, each way.
pub(super) fn shared_receives(testbed: &Testbed, contexts: &[Arc<Context>; 2]) -> Result<(), FreshError> {
    let mut both = sides(contexts, &config(QpType::Rc))?;
    let mut srqs = Vec::new();
    for side in &mut both {
        // As large as that of Linux's kernel.
        let size = SrqConfig {
            max_wr: 1,
            max_sge: 1,
        };
        let srq = Srq::create(&side.pd, &size).map_err(failed)?;
        // This one is not counted.
        let qp =
            Qp::create_on_srq(&side.pd, &side.cq, &side.cq, &srq, &config(QpType::Rc)).map_err(failed)?;
        std::mem::replace(&mut side.qp, qp).destroy().map_err(failed)?;
        srqs.push(srq);
    }
    let [a, b] = &mut both;
    pair::connect((&mut a.qp, &a.context), (&mut b.qp, &b.context), |_, _| ());
    for (from, to) in [(0, 1), (1, 0)] {
        let into = both[to].mr.sge(0..64).map_err(failed)?;
        let sges = std::slice::from_ref(&into);
        srqs[to].post_recv(&RecvWr { wr_id: 2, sges }).map_err(failed)?;
        srqs[to].ring();
        srqs[to].arm(1).map_err(failed)?;
        srqs[to].query().map_err(failed)?;
        let out = both[from].mr.sge(0..64).map_err(failed)?;
        let data = Payload::Gather(std::slice::from_ref(&out));
        post(testbed, &mut both[from], SendOp::Send { data, imm: None })?;
        completion(&mut both[to])?;
    }
    for ((nic, side), srq) in both.into_iter().enumerate().zip(srqs) {
        end(testbed, nic, side, Some(srq))?;
    }
    Ok(())
}

/// The data of a request, in each form that there is.
fn forms(out: &Sge) -> [Payload<'_>; 2] {
    [
        Payload::Gather(std::slice::from_ref(out)),
        Payload::Inline(&INLINE),
    ]
}

/// SENDs and WRITEs with immediate data, of each form.
fn messages(testbed: &Testbed, from: &mut Side, to: &mut Side) -> Result<(), FreshError> {
    let out = from.mr.sge(0..4096).map_err(failed)?;
    let remote = to.mr.remote(0);
    for data in forms(&out) {
        for imm in [None, Some(7)] {
            receive(to, 8192)?;
            post(testbed, from, SendOp::Send { data, imm })?;
            completion(to)?;
        }
        receive(to, 0)?;
        let imm = Some(7);
        post(testbed, from, SendOp::Write { data, remote, imm })?;
        completion(to)?;
    }
    Ok(())
}

/// Each flag of a request, on SENDs.
fn flags(testbed: &Testbed, from: &mut Side, to: &mut Side) -> Result<(), FreshError> {
    let out = from.mr.sge(0..4096).map_err(failed)?;
    let data = Payload::Gather(std::slice::from_ref(&out));
    let op = SendOp::Send { data, imm: None };
    for flags in [SendFlags::FENCE, SendFlags::SOLICITED] {
        receive(to, 8192)?;
        post_flagged(testbed, from, op, flags)?;
        completion(to)?;
    }
    if from.qp.qp_type() != QpType::Rc {
        return Ok(());
    }
    // One without a completion, and with the next one's doorbell.
    receive(to, 8192)?;
    receive(to, 8192)?;
    let flags = SendFlags::empty();
    from.qp
        .post_send(&SendWr { wr_id: 3, op, flags })
        .map_err(failed)?;
    post(testbed, from, op)?;
    completion(to)?;
    completion(to)
}

fn writes(testbed: &Testbed, from: &mut Side, to: &Side) -> Result<(), FreshError> {
    let out = from.mr.sge(0..4096).map_err(failed)?;
    let (remote, imm) = (to.mr.remote(0), None);
    forms(&out)
        .into_iter()
        .try_for_each(|data| post(testbed, from, SendOp::Write { data, remote, imm }))
}

/// SENDs that end a key of the peer's, of each form.
fn invalidations(testbed: &Testbed, from: &mut Side, to: &mut Side) -> Result<(), FreshError> {
    let out = from.mr.sge(0..4096).map_err(failed)?;
    for data in forms(&out) {
        let access = Access::supported_by(&to.context);
        let region = Mr::alloc_invalidatable(&to.pd, 4096, access).map_err(failed)?;
        receive(to, 8192)?;
        let rkey = region.rkey();
        post(testbed, from, SendOp::SendInvalidate { data, rkey })?;
        completion(to)?;
        region.dereg().map_err(failed)?;
    }
    Ok(())
}

/// READ, and atomics where there are any.
fn reads(testbed: &Testbed, from: &mut Side, to: &Side) -> Result<(), FreshError> {
    let own = from.mr.sge(0..4096).map_err(failed)?;
    let remote = to.mr.remote(0);
    post(testbed, from, SendOp::Read { into: &[own], remote })?;
    if Access::supported_by(&from.context).contains(Access::REMOTE_ATOMIC) {
        let into = from.mr.sge(0..8).map_err(failed)?;
        for op in atomics(into, remote) {
            post(testbed, from, op)?;
        }
    }
    Ok(())
}

fn atomics<'a>(into: Sge, remote: RemoteAddr) -> [SendOp<'a>; 2] {
    [
        SendOp::FetchAdd { into, remote, add: 1 },
        SendOp::CompareSwap {
            into,
            remote,
            compare: 1,
            swap: 2,
        },
    ]
}

/// What can be changed while a connection is up.
fn changes(side: &mut Side) -> Result<(), FreshError> {
    let access = match side.qp.qp_type() {
        QpType::Uc => Some(Access::REMOTE_WRITE),
        _ => Some(Access::all()),
    };
    let update = Update {
        access,
        ..Update::default()
    };
    side.qp.modify_in_rts(&update).map_err(failed)?;
    side.poller.resize(600).map_err(failed)
}
