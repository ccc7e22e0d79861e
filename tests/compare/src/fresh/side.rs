//! The ends of ferroce's recording: queue pairs as large as those of Linux's programs, and waiting so that each run says
//! the same.

use std::sync::Arc;
use std::time::Instant;

use ferroce::context::Context;
use ferroce::verbs::{CounterSet, DrainError, QpConfig, QpType, RecvWr, SendFlags, SendOp, SendWr, Srq};
use ferroce_nic_model::testbed::Testbed;
use ferroce_suites::pair::{PATIENCE, Side};

use super::{FreshError, failed};

/// What is sent inline.
pub(super) const INLINE: [u8; 16] = [7; 16];

/// What makes queues of the sizes that Linux's programs and its kernel have: libmlx5 reckons with larger requests, so
/// that one of `ibv_rc_pingpong`'s has the room of four of ours. It has 500 receives; a few less take the same rings, and leave
/// the driver's own share of as large a completion queue free.
pub(super) fn config(qp_type: QpType) -> QpConfig {
    let (max_send_wr, max_recv_wr) = match qp_type {
        QpType::Ud => (2, 480),
        QpType::Gsi => (128, 512),
        _ => (4, 480),
    };
    QpConfig {
        qp_type,
        max_send_wr,
        max_recv_wr,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: INLINE.len() as u32,
        ..QpConfig::default()
    }
}

/// Two ends, one on each NIC, whose queue pairs are counted.
pub(super) fn sides(contexts: &[Arc<Context>; 2], config: &QpConfig) -> Result<[Side; 2], FreshError> {
    let mut sides = contexts
        .each_ref()
        .map(|context| Side::on(Arc::clone(context), config));
    for side in &mut sides {
        let counters = CounterSet::alloc(&side.context).map_err(failed)?;
        side.qp.count_with(&counters).map_err(failed)?;
        counters.query().map_err(failed)?;
    }
    Ok(sides)
}

/// Takes a side down, in the order of Linux's test programs, one thing after the other: what is dropped is destroyed by
/// the reaper, when it comes to it.
pub(super) fn end(testbed: &Testbed, nic: usize, mut side: Side, srq: Option<Srq>) -> Result<(), FreshError> {
    // Linux's kernel asks nothing of its own.
    if side.qp.qp_type() != QpType::Gsi {
        side.qp.query().map_err(failed)?;
    }
    side.qp.destroy().map_err(failed)?;
    if let Some(srq) = srq {
        srq.destroy().map_err(failed)?;
    }
    drop((side.poller, side.cq));
    no_more("CQ", testbed, nic)?;
    side.mr.dereg().map_err(failed)?;
    side.pd.dealloc().map_err(failed)
}

/// Ends what is outstanding on a side, by ERR.
pub(super) fn drain(side: &mut Side) -> Result<(), FreshError> {
    let Side { qp, poller, .. } = side;
    let mut broken = None;
    let drained = qp.drain(Instant::now() + PATIENCE, || {
        broken = poller.poll(16, |_| ()).err();
    });
    match (drained, broken) {
        (Err(error @ DrainError::Modify(_)), _) => Err(failed(error)),
        (_, Some(error)) => Err(failed(error)),
        (other, None) => other.map_err(failed),
    }
}

/// Posts a request and waits for its completion, by its event.
pub(super) fn post(testbed: &Testbed, side: &mut Side, op: SendOp<'_>) -> Result<(), FreshError> {
    post_flagged(testbed, side, op, SendFlags::empty())
}

/// The same with flags besides.
pub(super) fn post_flagged(
    testbed: &Testbed,
    side: &mut Side,
    op: SendOp<'_>,
    flags: SendFlags,
) -> Result<(), FreshError> {
    let flags = flags | SendFlags::SIGNALED;
    let wr = SendWr { wr_id: 1, op, flags };
    // Armed while the queue is empty, and waited for until the event is there: so each run says the same.
    let before = side.poller.events();
    side.poller.req_notify(false);
    side.qp.post_send(&wr).map_err(failed)?;
    if side.qp.config().blueflame {
        side.qp.ring_send_blueflame();
    } else {
        side.qp.ring_send();
    }
    until("an event of the completion queue", || {
        side.context.poll_completion_events(0);
        side.poller.events() != before
    })?;
    completion(side)?;
    settle(testbed);
    Ok(())
}

/// Posts a receive of `len` bytes; of none, one without elements.
pub(super) fn receive(side: &mut Side, len: usize) -> Result<(), FreshError> {
    let into = side.mr.sge(0..len).map_err(failed)?;
    let sges = if len == 0 {
        &[][..]
    } else {
        std::slice::from_ref(&into)
    };
    side.qp.post_recv(&RecvWr { wr_id: 2, sges }).map_err(failed)?;
    side.qp.ring_recv();
    Ok(())
}

/// The next completion, which has to be a success.
pub(super) fn completion(side: &mut Side) -> Result<(), FreshError> {
    let mut result = None;
    until("a completion", || {
        let polled = side.poller.poll(1, |wc| result = Some(wc.result().map(drop)));
        polled.is_err() || result.is_some()
    })?;
    result.unwrap_or(Ok(())).map_err(failed)
}

/// Doorbells are posted writes: all have arrived when this returns, before another queue entry is there.
pub(super) fn settle(testbed: &Testbed) {
    for nic in 0..2 {
        testbed.with_nic(nic, |_| ());
    }
}

/// Waits until a NIC has no object of a kind.
pub(super) fn no_more(kind: &str, testbed: &Testbed, nic: usize) -> Result<(), FreshError> {
    until("the end of all objects of a kind", || {
        let stats = testbed.stats(nic);
        stats.is_some_and(|stats| {
            stats
                .objects
                .iter()
                .all(|(name, count)| *name != kind || *count == 0)
        })
    })
}

/// Waits until something is so.
pub(super) fn until(what: &str, mut so: impl FnMut() -> bool) -> Result<(), FreshError> {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        if Instant::now() > deadline {
            let what = format!("{what} did not come within {PATIENCE:?}");
            return Err(FreshError::Run { what });
        }
        std::thread::yield_now();
    }
    Ok(())
}
