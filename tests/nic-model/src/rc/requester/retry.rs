//! Timers and going back.

use super::super::timer;
use super::super::types::{CompletionStatus, QpConfig};
use super::super::{Health, Shared};
use super::{Cursor, Requester};
use crate::clock::Nanos;

/// `rnr_retry` that never gives up (IBTA vol. 1, 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;

impl Requester {
    /// The earlier of the running timers.
    pub(in super::super) fn poll_timeout(&self) -> Option<Nanos> {
        match (self.ack_deadline, self.rnr_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Lets expired timers act.
    pub(in super::super) fn handle_timeout(&mut self, now: Nanos, shared: &mut Shared) -> Health {
        if self.rnr_until.is_some_and(|t| now >= t) {
            self.rnr_until = None;
        }
        if self.ack_deadline.is_none_or(|t| now < t) {
            return Health::Good;
        }
        self.ack_deadline = None;
        if self.queue.is_empty() {
            return Health::Good;
        }
        shared.counters.timeouts += 1;
        self.went_back_at = None;
        self.retry(shared)
    }

    /// `una` moved: retries start anew, and so does the timer if anything is still out.
    pub(super) fn progress(&mut self, now: Nanos, shared: &Shared) {
        self.reset_retries(&shared.config);
        // What was not ready is acknowledged: an ACK of an earlier try overtook the NAK.
        self.rnr_until = None;
        self.ack_deadline = if self.cursor.psn > self.una {
            self.timeout_from(now, &shared.config)
        } else {
            None
        };
    }

    fn timeout_from(&self, now: Nanos, config: &QpConfig) -> Option<Nanos> {
        timer::ack_timeout(config.ack_timeout).map(|t| now + t)
    }

    /// Goes back for a gap, unless it has done so for this one: each packet that the gap left behind tells of
    /// it again.
    pub(super) fn go_back_once(&mut self, shared: &mut Shared) -> Health {
        if self.went_back_at == Some(self.una) || self.rnr_until.is_some() {
            return Health::Good;
        }
        self.went_back_at = Some(self.una);
        self.retry(shared)
    }

    /// Transmits from `una` again, if a retry is left.
    fn retry(&mut self, shared: &mut Shared) -> Health {
        if self.retries_left == 0 {
            return self.fail(CompletionStatus::TransportRetryExceeded, shared);
        }
        self.retries_left -= 1;
        self.go_back();
        Health::Good
    }

    fn go_back(&mut self) {
        self.cursor = Cursor {
            number: self.base,
            psn: self.una,
        };
        self.fetches = 0;
        self.ack_deadline = None;
    }

    /// An RNR NAK for `una`: waits as long as it says and transmits again, if an RNR retry is left.
    pub(super) fn receiver_not_ready(&mut self, now: Nanos, code: u8, shared: &mut Shared) -> Health {
        shared.counters.rnr_naks_received += 1;
        if self.rnr_until.is_some() || self.cursor.psn <= self.una {
            // Told twice before it was sent again.
            return Health::Good;
        }
        if shared.config.rnr_retry != RNR_FOR_EVER {
            if self.rnr_retries_left == 0 {
                return self.fail(CompletionStatus::RnrRetryExceeded, shared);
            }
            self.rnr_retries_left -= 1;
        }
        self.go_back();
        self.rnr_until = Some(now + timer::rnr_delay(code));
        Health::Good
    }
}
