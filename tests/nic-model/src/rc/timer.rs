//! The transport's timers: codes of the ACK timeout and of the RNR NAK timer, and what is running.

use std::time::Duration;

/// Units of 10 µs for each 5-bit RNR NAK timer code (IBTA vol. 1, table 45).
const RNR_TENS_OF_MICROS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How long a requester waits after an RNR NAK with this timer code; of `code` the low 5 bits count.
pub fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_TENS_OF_MICROS[usize::from(code & 0x1f)]) * 10)
}

/// How long a requester waits for an ACK: 4.096 µs * 2^code; `None` for code 0, which never times out
/// (IBTA vol. 1, 9.7.6.1.3). Of `code` the low 5 bits count.
pub fn ack_timeout(code: u8) -> Option<Duration> {
    match code & 0x1f {
        0 => None,
        code => Some(Duration::from_nanos(4096 << code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t01_rnr_timer_codes_have_the_durations_of_the_table() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        for code in 2..32 {
            assert!(rnr_delay(code) > rnr_delay(code - 1));
            assert!(rnr_delay(code) <= rnr_delay(code - 1) * 2);
        }
    }

    #[test]
    fn ack_timeout_doubles_with_each_code_and_zero_is_never() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Duration::from_nanos(8192)));
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Duration::from_nanos(4096 << 31)));
    }
}
