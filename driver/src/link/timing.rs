//! How long things take: the values of the standards, which tests and impatient programs may change.

use std::time::Duration;

use crate::config::LONGEST_WAIT;

/// Timers and counts of neighbours and of addresses. A time above a year is taken for a year.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// Between two solicitations (RetransTimer of RFC 4861): 1 s.
    pub retransmit: Duration,
    /// How long a confirmed neighbour is taken for reachable (ReachableTime of RFC 4861): 30 s, times 0.5 to 1.5 by chance.
    pub reachable: Duration,
    /// How long a neighbour that is used again may confirm itself before it is asked (DELAY_FIRST_PROBE_TIME of RFC 4861).
    pub delay_first_probe: Duration,
    /// Solicitations to all before a neighbour is given up (MAX_MULTICAST_SOLICIT of RFC 4861): 3.
    pub max_multicast_solicit: u8,
    /// Solicitations to the MAC that a neighbour had before it is given up (MAX_UNICAST_SOLICIT of RFC 4861): 3.
    pub max_unicast_solicit: u8,
    /// How long a neighbour that nobody uses is remembered: 60 s, as in Linux.
    pub stale: Duration,
    /// How long a neighbour that did not answer is not asked again for others that look it up: 1 s. One that is watched
    /// is asked again at this distance too.
    pub failed_hold: Duration,
    /// The longest random wait before the first probe of an address (PROBE_WAIT of RFC 5227, MAX_RTR_SOLICITATION_DELAY
    /// of RFC 4861): 1 s.
    pub probe_wait: Duration,
    /// ARP probes of an IPv4 address (PROBE_NUM of RFC 5227): 3.
    pub arp_probes: u8,
    /// The least between two of them (PROBE_MIN of RFC 5227): 1 s. The most is twice that.
    pub probe_min: Duration,
    /// From the last of them to the announcement (ANNOUNCE_WAIT of RFC 5227): 2 s.
    pub announce_wait: Duration,
    /// Neighbour solicitations for an IPv6 address (DupAddrDetectTransmits of RFC 4862): 1.
    pub dad_transmits: u8,
    /// Announcements of an address (ANNOUNCE_NUM of RFC 5227): 2.
    pub announcements: u8,
    /// Between two of them (ANNOUNCE_INTERVAL of RFC 5227): 2 s.
    pub announce_interval: Duration,
    /// The least between two defences of an address (DEFEND_INTERVAL of RFC 5227): 10 s.
    pub defend_interval: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        let seconds = Duration::from_secs;
        Timing {
            retransmit: seconds(1),
            reachable: seconds(30),
            delay_first_probe: seconds(5),
            max_multicast_solicit: 3,
            max_unicast_solicit: 3,
            stale: seconds(60),
            failed_hold: seconds(1),
            probe_wait: seconds(1),
            arp_probes: 3,
            probe_min: seconds(1),
            announce_wait: seconds(2),
            dad_transmits: 1,
            announcements: 2,
            announce_interval: seconds(2),
            defend_interval: seconds(10),
        }
    }
}

impl Timing {
    /// The same with times that deadlines can be made of.
    pub(super) fn bounded(mut self) -> Timing {
        for time in [
            &mut self.retransmit,
            &mut self.reachable,
            &mut self.delay_first_probe,
            &mut self.stale,
            &mut self.failed_hold,
            &mut self.probe_wait,
            &mut self.probe_min,
            &mut self.announce_wait,
            &mut self.announce_interval,
            &mut self.defend_interval,
        ] {
            *time = (*time).min(LONGEST_WAIT);
        }
        self
    }
}

/// Random numbers for waits: good enough to keep stations from speaking all at once, and the same each time for the same
/// seed (xorshift64*, Vigna 2016).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// From `min` on, below `max`.
    pub(super) fn between(&mut self, min: Duration, max: Duration) -> Duration {
        let part = (self.next() >> 40) as f64 / (1u64 << 24) as f64;
        min + max.saturating_sub(min).mul_f64(part)
    }
}

/// Lets so many things happen in a second, and a burst of them at a time.
#[derive(Clone, Debug)]
pub(super) struct RateLimit {
    per_second: u32,
    burst: u32,
    tokens: f64,
    at: Option<std::time::Instant>,
}

impl RateLimit {
    pub(super) fn new(per_second: u32, burst: u32) -> RateLimit {
        RateLimit {
            per_second,
            burst,
            tokens: f64::from(burst),
            at: None,
        }
    }

    /// Whether one more may happen now.
    pub(super) fn admit(&mut self, now: std::time::Instant) -> bool {
        let passed = self
            .at
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = Some(now);
        self.tokens += passed.as_secs_f64() * f64::from(self.per_second);
        self.tokens = self.tokens.min(f64::from(self.burst));
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn random_waits_are_within_their_bounds_and_differ() {
        let mut random = Random::new(7);
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(2));
        let waits: Vec<_> = (0..100).map(|_| random.between(min, max)).collect();
        assert!(waits.iter().all(|wait| (min..max).contains(wait)));
        assert!(waits.windows(2).any(|two| two[0] != two[1]));
        assert_eq!(random.between(max, min), max);
    }

    #[test]
    fn a_rate_limit_allows_a_burst_and_then_the_rate() {
        let (mut limit, start) = (RateLimit::new(10, 5), Instant::now());
        assert_eq!((0..20).filter(|_| limit.admit(start)).count(), 5);
        let later = start + Duration::from_millis(200);
        assert_eq!((0..20).filter(|_| limit.admit(later)).count(), 2);
        let much_later = start + Duration::from_secs(100);
        assert_eq!((0..20).filter(|_| limit.admit(much_later)).count(), 5);
    }
}
