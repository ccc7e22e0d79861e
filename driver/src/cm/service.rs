//! The manager's thread: datagrams from QP 1 to the machine and back, and its time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::gsi::Gsi;
use super::shared::Shared;
use crate::verbs::{Mtu, PollError};

/// How often it looks at all without having been woken.
const IDLE: Duration = Duration::from_secs(1);
/// How long the last datagrams get to leave.
const LINGER: Duration = Duration::from_millis(200);

pub(super) fn serve(shared: Arc<Shared>, gsi: Gsi, max_mtu: Mtu) {
    let ended = shared.ended().clone();
    // Not set before.
    let _ = shared.thread.set(std::thread::current().id());
    run(&shared, gsi, max_mtu);
    drop(shared);
    ended.set();
}

fn run(shared: &Arc<Shared>, mut gsi: Gsi, max_mtu: Mtu) {
    let reason = loop {
        if let Err(error) = turn(shared, &mut gsi, max_mtu) {
            break error.to_string();
        }
        if shared.stop.load(Ordering::Acquire) {
            break "it was closed".to_owned();
        }
        let next = shared.core().machine.poll_timeout();
        let deadline = next.map_or_else(|| Instant::now() + IDLE, |at| at.min(Instant::now() + IDLE));
        let (wake, stop) = (&shared.wake, &shared.stop);
        let mut woken = || wake.load(Ordering::Acquire) || stop.load(Ordering::Acquire);
        if let Err(error) = gsi.wait(deadline, &mut woken) {
            break error.to_string();
        }
    };
    log::debug!(
        "{}: the connection manager ends: {reason}",
        shared.context.function().address()
    );
    flush(shared, &mut gsi, max_mtu);
    shared.end(reason);
    gsi.close();
}

/// One look at everything.
fn turn(shared: &Arc<Shared>, gsi: &mut Gsi, max_mtu: Mtu) -> Result<(), PollError> {
    shared.wake.store(false, Ordering::Release);
    let now = Instant::now();
    gsi.poll(|received| shared.take_in(now, received))?;
    if let Err(error) = gsi.mend() {
        log::error!("QP 1 failed and can't be brought back: {error}");
    }
    let (done, retired);
    {
        let mut core = shared.core();
        core.machine.handle_timeout(now);
        done = core.dispatch(max_mtu);
        retired = std::mem::take(&mut core.to_pen);
        while gsi.has_room()
            && let Some(transmit) = core.machine.poll_transmit()
        {
            gsi.post_send(&transmit);
        }
    }
    gsi.ring();
    drop(done);
    retire(shared, retired);
    Ok(())
}

/// Queue pairs that the program has let go of take nothing more, and rest until time-wait is over.
fn retire(shared: &Shared, retired: Vec<(super::machine::CommId, crate::verbs::Qp)>) {
    for (id, mut qp) in retired {
        if let Err(error) = qp.modify_to_err() {
            log::debug!("{}: {error}", qp.qpn());
        }
        let mut core = shared.core();
        if core.machine.knows(id) {
            core.pen.insert(id, qp);
        }
    }
}

/// Sends what there is to send, such as the last connections' ends.
fn flush(shared: &Arc<Shared>, gsi: &mut Gsi, max_mtu: Mtu) {
    let deadline = Instant::now() + LINGER;
    while Instant::now() < deadline {
        if turn(shared, gsi, max_mtu).is_err() || gsi.sending() == 0 {
            return;
        }
        if gsi.wait(deadline, &mut || false).is_err() {
            return;
        }
    }
}
