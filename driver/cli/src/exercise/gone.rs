//! What the verbs say once the device is gone.

use std::error::Error;
use std::time::Instant;

use ferroce::verbs::{Access, Mr, Payload, Qp, QpConfig, SendFlags, SendOp, SendWr};

use super::{Held, LOOK, PATIENCE};
use crate::error::{CliError, chain};

/// Bytes of a WRITE.
const BYTES: usize = 64;
/// What each verb that needs the device must say.
const GONE: &str = "device is gone";

/// Waits until the device is gone, and tries the verbs then. What the first says.
pub fn wait(held: &mut Held) -> Result<String, CliError> {
    let deadline = Instant::now() + PATIENCE;
    let region = held.regions.pop();
    let region = region.ok_or_else(|| CliError::Other("gone needs a region".to_string()))?;
    while held.context.failure().is_none() {
        if Instant::now() > deadline {
            return Err(CliError::Other("the device did not go away".to_string()));
        }
        // By an event: nobody has to ask.
        let _ = held.context.wait_event(Instant::now() + LOOK);
    }
    let said = refused(
        "a region's registration",
        Mr::alloc(&held.pd, 4096, Access::all()),
    )?;
    let small = QpConfig {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QpConfig::default()
    };
    let created = Qp::create(&held.pd, &held.cq, &held.cq, &small);
    refused("a queue pair's creation", created)?;
    let posted = post(held, &region)?;
    refused("the end of a region", region.dereg())?;
    Ok(format!("{said}; {posted}"))
}

/// A WRITE may be posted, as that is but a write to memory; who waits for its completion is told. A NIC that the host asks for
/// still works, and may carry the WRITE out.
fn post(held: &mut Held, region: &Mr) -> Result<String, CliError> {
    let mut qp = held
        .qp
        .take()
        .ok_or_else(|| CliError::Other("no queue pair is left to try".to_string()))?;
    let sges = [region.sge(0..BYTES).map_err(super::failed)?];
    let op = SendOp::Write {
        data: Payload::Gather(&sges),
        remote: region.remote(BYTES),
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    let posted = qp.post_send(&SendWr { wr_id: 1, op, flags });
    qp.ring_send();
    let posted = posted.map_or_else(
        |error| format!("posting: {error}"),
        |()| "a WRITE was posted".to_string(),
    );
    let mut completed = 0;
    let told = loop {
        match held.poller.wait(Instant::now() + PATIENCE) {
            Ok(()) if completed == 0 => completed += held.poller.poll(2, |_| ()).map_err(super::failed)?,
            waited => break waited,
        }
    };
    refused("the wait for a completion", told)?;
    refused("a queue pair's end", qp.destroy())?;
    Ok(format!("{posted}, completions: {completed}"))
}

/// What it said; an error unless it is that the device is gone.
fn refused<T, E: Error>(what: &str, result: Result<T, E>) -> Result<String, CliError> {
    let said = match result {
        Ok(_) => "nothing".to_string(),
        Err(error) => chain(&error),
    };
    if said.contains(GONE) {
        return Ok(said);
    }
    Err(CliError::Other(format!(
        "{what} on a device that is gone: {said}"
    )))
}
