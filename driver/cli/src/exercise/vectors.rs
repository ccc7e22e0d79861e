//! Completions announced by each of a NIC's interrupt vectors.

use std::sync::Arc;
use std::time::Duration;

use ferroce::context::Context;
use ferroce::verbs::{Access, Cq, CqConfig, Mr, Payload, Pd, SendFlags, SendOp, SendWr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::failed;
use super::traffic::Way;
use crate::error::CliError;

/// An interrupt that takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a WRITE.
const BYTES: usize = 64;

/// On each completion vector, one after the other: a completion queue is armed, a WRITE posted, and its event slept for.
/// How many there were.
pub fn each_announces(context: &Arc<Context>, pd: &Pd) -> Result<usize, CliError> {
    let region = Mr::alloc(pd, 2 * BYTES, Access::supported_by(context)).map_err(failed)?;
    let way = Way::to_itself(context)?;
    let count = context.completion_vectors();
    for vector in 0..count {
        let config = CqConfig {
            vector,
            ..CqConfig::new(64)
        };
        let (cq, mut poller) = Cq::create(context, config).map_err(failed)?;
        let mut qp = way.connected(pd, &cq)?;
        poller.req_notify(false);
        let sges = [region.sge(0..BYTES).map_err(failed)?];
        let op = SendOp::Write {
            data: Payload::Gather(&sges),
            remote: region.remote(BYTES),
            imm: None,
        };
        let flags = SendFlags::SIGNALED;
        qp.post_send(&SendWr { wr_id: 7, op, flags }).map_err(failed)?;
        qp.ring_send();
        sleep(context, vector)?;
        let mut found = None;
        poller.poll(1, |wc| found = Some(wc)).map_err(failed)?;
        let wc = found.ok_or_else(|| CliError::Other(format!("vector {vector} announced nothing")))?;
        let _ = wc.result().map_err(failed)?;
    }
    Ok(count)
}

/// Until the vector's interrupt has come, and its event.
fn sleep(context: &Context, vector: usize) -> Result<(), CliError> {
    let silent = || CliError::Other(format!("completion vector {vector} raised no interrupt"));
    let fd = context.completion_fd(vector).ok_or_else(silent)?;
    let patience = Timespec::try_from(PATIENCE).map_err(failed)?;
    loop {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        if poll(&mut fds, Some(&patience)).map_err(failed)? == 0 {
            return Err(silent());
        }
        if context.poll_completion_events(vector) {
            return Ok(());
        }
    }
}
