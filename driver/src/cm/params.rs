//! What a connection shall be like.

use std::time::Duration;

use super::machine::TimeCode;
use crate::verbs::{Access, Mtu};

/// What is waited for acknowledgements by default: 67 ms.
const ACK_TIMEOUT: TimeCode = TimeCode::new(14);

/// What a connection shall be like. The default suits most programs.
///
/// Each side says what it can, and gets the lesser of both where that matters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    /// What the other program is told: at most 56 bytes with a request for a connection, 196 with its acceptance. It sees
    /// zeros after it, up to that length.
    pub private_data: Vec<u8>,
    /// Path MTU; the one who asks chooses. `None` is the most that the port carries.
    pub mtu: Option<Mtu>,
    /// Most READs and atomics of the peer that this side answers at a time.
    pub responder_resources: u8,
    /// Most READs and atomics that this side has in progress at a time.
    pub initiator_depth: u8,
    /// How long acknowledgements are waited for, by both sides; the one who asks chooses. Rounded up to 4.096 µs * 2^n.
    /// `None` is 67 ms, and for the one who asks what the peer's NIC may take on top, which its acceptance says (IBTA vol. 1,
    /// 12.7, target ACK delay): with 134 ms, as ferroce and Linux say, 268 ms.
    /// A peer that has vanished is noticed after `retry_count + 1` times this, or up to four times that (IBTA vol. 1,
    /// 9.7.6.1.3).
    pub ack_timeout: Option<Duration>,
    /// How often both sides repeat what is not acknowledged (0..=7); the one who asks chooses.
    pub retry_count: u8,
    /// How often the peer repeats what finds no receive posted here (0..=6); 7 is for ever.
    pub rnr_retry: u8,
    /// How long the peer waits when it finds no receive posted here. Rounded up to one of the 32 times that there are, from
    /// 10 µs to 655 ms.
    pub rnr_timer: Duration,
    /// Traffic class: DSCP in the upper 6 bits, ECN in the lower 2. `None` is what the way to the peer has; the one who
    /// asks chooses for both.
    pub traffic_class: Option<u8>,
    /// Ethernet priority. `None` is what the way to the peer has; the one who asks chooses for both.
    pub priority: Option<u8>,
    /// What the peer's requests may do, if the queue pair is in RESET.
    pub access: Access,
    /// Port that this side tells the peer it comes from; 0 is any.
    pub source_port: u16,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            mtu: None,
            responder_resources: 16,
            initiator_depth: 16,
            ack_timeout: None,
            retry_count: 7,
            rnr_retry: 7,
            rnr_timer: Duration::from_micros(640),
            traffic_class: None,
            priority: None,
            access: Access::all(),
            source_port: 0,
        }
    }
}

impl Params {
    /// The default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With private data.
    #[must_use]
    pub fn private_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.private_data = data.into();
        self
    }

    /// What the peer is asked to wait.
    pub(super) fn ack_code(&self) -> TimeCode {
        self.ack_timeout.map_or(ACK_TIMEOUT, TimeCode::covering)
    }

    /// What this side waits, if it has asked and the peer's NIC takes up to `delay` to acknowledge. The program's own word
    /// counts more, as with Linux's `RDMA_OPTION_ID_ACK_TIMEOUT`.
    pub(super) fn ack_code_with(&self, delay: TimeCode) -> TimeCode {
        match self.ack_timeout {
            Some(timeout) => TimeCode::covering(timeout),
            None => ACK_TIMEOUT.plus(delay.min(TimeCode::MAX_ACK_TIMEOUT)),
        }
    }

    pub(super) fn rnr_code(&self) -> u8 {
        rnr_timer_code(self.rnr_timer)
    }
}

/// Times of the RNR timer's codes 1 to 31 in units of 10 µs (IBTA vol. 1, table 45); code 0 is 655.36 ms.
const RNR_TIMERS: [u16; 31] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The code of the least time that is not shorter.
pub(super) fn rnr_timer_code(time: Duration) -> u8 {
    let units = time.as_nanos().div_ceil(10_000);
    RNR_TIMERS
        .iter()
        .position(|have| u128::from(*have) >= units)
        .map_or(0, |at| at as u8 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_timers_are_rounded_up() {
        for (time, code) in [
            (Duration::ZERO, 1),
            (Duration::from_micros(10), 1),
            (Duration::from_micros(11), 2),
            (Duration::from_micros(640), 12),
            (Duration::from_micros(491_520), 31),
            (Duration::from_micros(491_521), 0),
        ] {
            assert_eq!(rnr_timer_code(time), code, "{time:?}");
        }
        assert_eq!(Params::default().rnr_code(), 12);
    }

    #[test]
    fn what_the_peers_nic_may_take_counts_unless_the_program_has_said_what_does() {
        let default = Params::default();
        assert_eq!(default.ack_code().code(), 14);
        // The greater one; twice that if the other is at least half of it. As Linux's `cm_ack_timeout` has it.
        for (delay, code) in [
            (0, 14),
            (12, 14),
            (13, 15),
            (14, 15),
            (15, 16),
            (16, 16),
            (20, 20),
            (31, 22),
        ] {
            assert_eq!(
                default.ack_code_with(TimeCode::new(delay)).code(),
                code,
                "{delay}"
            );
        }
        let own = Params {
            ack_timeout: Some(Duration::from_millis(4)),
            ..Params::default()
        };
        assert_eq!(own.ack_code().code(), 10);
        assert_eq!(own.ack_code_with(TimeCode::new(15)).code(), 10);
    }
}
