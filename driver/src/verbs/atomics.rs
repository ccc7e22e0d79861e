//! The byte order of an atomic's result.

use ferroce_firmware_iface::layouts::AtomicCaps;

use crate::caps::Caps;

/// `atomic_caps.atomic_req_8B_endianness_mode`: results are in the host's order.
const MODE_HOST: u8 = 1;
/// `atomic_caps.atomic_operations`: compare and swap, fetch and add.
const BASIC_OPERATIONS: u16 = 0x3;
/// `atomic_caps.atomic_size_qp`: 8 bytes.
const SIZE_8: u16 = 1 << 3;

/// The order in which the NIC writes an atomic's result to this side's memory. The target is in host order in any case.
///
/// A ConnectX-4 answers big-endian (`atomic_req_8B_endianness_mode` 0); later ones may be set to the host's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOrder {
    Host,
    BigEndian,
}

impl AtomicOrder {
    pub(crate) fn of(caps: &Caps) -> AtomicOrder {
        match caps.atomic().map(AtomicCaps::atomic_req_8B_endianness_mode) {
            Some(MODE_HOST) => AtomicOrder::Host,
            _ => AtomicOrder::BigEndian,
        }
    }

    /// The value of the bytes as they lie in memory.
    pub(crate) fn decode(self, bytes: [u8; 8]) -> u64 {
        match self {
            AtomicOrder::Host => u64::from_ne_bytes(bytes),
            AtomicOrder::BigEndian => u64::from_be_bytes(bytes),
        }
    }
}

/// Whether the device does both atomics on 8 bytes.
pub(crate) fn supported(caps: &Caps) -> bool {
    caps.general().atomic()
        && caps.atomic().is_some_and(|atomic| {
            atomic.atomic_operations() & BASIC_OPERATIONS == BASIC_OPERATIONS
                && atomic.atomic_size_qp() & SIZE_8 != 0
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t12_results_are_decoded_to_host_order() {
        let value = 0x0102_0304_0506_0708u64;
        assert_eq!(AtomicOrder::BigEndian.decode(value.to_be_bytes()), value);
        assert_eq!(AtomicOrder::Host.decode(value.to_ne_bytes()), value);
    }
}
