//! Counters of what went wrong, and was put right, on the way of a queue pair's packets.

use std::fmt;
use std::sync::Arc;

use ferroce_firmware_iface::cmds::{AllocQCounter, DeallocQCounter, QueryQCounter};
use ferroce_firmware_iface::command::Command;

use super::error::CreateError;
use crate::context::Context;
use crate::error::CommandError;
use crate::reaper::Destroy;

/// A set of counters that queue pairs add to (a Q counter of the PRM). A handle; clones are the same set.
///
/// Give it to queue pairs with [`Qp::count_with`](super::Qp::count_with). It goes when the handles and those queue pairs
/// are gone.
#[derive(Clone)]
pub struct CounterSet {
    inner: Arc<Inner>,
}

struct Inner {
    id: u8,
    context: Arc<Context>,
}

/// What a set has counted since it was made. All wrap at 2^32. Source: PRM `query_q_counter_out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Requests received: WRITEs.
    pub rx_write_requests: u32,
    /// Requests received: READs.
    pub rx_read_requests: u32,
    /// Requests received: atomics.
    pub rx_atomic_requests: u32,
    /// Messages that found no receive posted.
    pub out_of_buffer: u32,
    /// Packets received that were not the next expected.
    pub out_of_sequence: u32,
    /// Requests received again.
    pub duplicate_request: u32,
    /// RNR NAKs received beyond the retries.
    pub rnr_nak_retry_err: u32,
    /// NAKs received since the peer missed a packet; each makes this side send again.
    pub packet_seq_err: u32,
    /// Answers to READs or atomics missed, as later ones told.
    pub implied_nak_seq_err: u32,
    /// Times that no answer came in time; each makes this side send again.
    pub local_ack_timeout_err: u32,
    /// Completions lost since a CQ was full.
    pub cq_overflow: u32,
}

impl CounterSet {
    /// Makes a set of counters, all 0.
    ///
    /// # Errors
    /// [`CreateError::Command`] if firmware refuses.
    pub fn alloc(context: &Arc<Context>) -> Result<CounterSet, CreateError> {
        let id = context.exec(&AllocQCounter)?;
        Ok(CounterSet {
            inner: Arc::new(Inner {
                id,
                context: context.clone(),
            }),
        })
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// The command failed.
    pub fn query(&self) -> Result<Counters, CommandError> {
        let out = self.inner.context.exec(&QueryQCounter {
            counter_set_id: self.inner.id,
            clear: false,
        })?;
        Ok(Counters {
            rx_write_requests: out.rx_write_requests(),
            rx_read_requests: out.rx_read_requests(),
            rx_atomic_requests: out.rx_atomic_requests(),
            out_of_buffer: out.out_of_buffer(),
            out_of_sequence: out.out_of_sequence(),
            duplicate_request: out.duplicate_request(),
            rnr_nak_retry_err: out.rnr_nak_retry_err(),
            packet_seq_err: out.packet_seq_err(),
            implied_nak_seq_err: out.implied_nak_seq_err(),
            local_ack_timeout_err: out.local_ack_timeout_err(),
            cq_overflow: out.cq_overflow(),
        })
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// Its number.
    pub(super) fn id(&self) -> u8 {
        self.inner.id
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let what = format!("counter set {}", self.id);
        let commands = DeallocQCounter {
            counter_set_id: self.id,
        }
        .encode()
        .into_iter()
        .collect();
        self.context.reaper().submit(Destroy {
            what,
            commands,
            memory: Vec::new(),
            keep: None,
            done: None,
        });
    }
}

impl fmt::Debug for CounterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CounterSet").field(&self.inner.id).finish()
    }
}
