//! Groups of port counters (register PPCNT), from what the data plane counted.

use ferroce_firmware_iface::layout::{Layout, LayoutInfo};
use ferroce_firmware_iface::layouts::{
    Eth2863CntrsGrpDataLayout, Eth3635CntrsGrpDataLayout, Eth8023CntrsGrpDataLayout, EthPerPrioGrpDataLayout,
};

use crate::engine::traffic::{Count, Traffic};

/// Groups (PRM, PPCNT, `grp`).
const IEEE_802_3: u8 = 0x0;
const RFC_2863: u8 = 0x1;
const RFC_3635: u8 = 0x3;
const PER_PRIORITY: u8 = 0x10;
/// Bits in a quantum of a pause frame.
const QUANTUM_BITS: u64 = 512;

/// A group's bytes.
struct Group {
    info: &'static LayoutInfo,
    bytes: Vec<u8>,
}

impl Group {
    fn of<T: Layout>() -> Group {
        Group {
            info: T::INFO,
            bytes: vec![0; T::INFO.bytes],
        }
    }

    /// Sets the counter whose fields are `name`_high and `name`_low.
    fn set(&mut self, name: &str, value: u64) {
        for (suffix, half) in [("_high", (value >> 32) as u32), ("_low", value as u32)] {
            let field = self
                .info
                .fields
                .iter()
                .find(|f| f.name.strip_suffix(suffix).is_some_and(|stem| stem == name));
            // PANIC: the names are the constants below; a test walks all groups.
            let field = field.unwrap_or_else(|| panic!("{} has no {name}{suffix}", self.info.name));
            let at = (field.bit_offset / 8) as usize;
            self.bytes[at..at + 4].copy_from_slice(&half.to_be_bytes());
        }
    }
}

/// The counters of group `group`, of priority `priority` where it is by priority; nothing for groups in which
/// nothing is counted. `speed` is in Mb/s.
pub(super) fn report(traffic: &Traffic, group: u8, priority: u8, speed: u64) -> Vec<u8> {
    match group {
        IEEE_802_3 => ieee(traffic).bytes,
        RFC_2863 => interface(traffic).bytes,
        RFC_3635 => {
            let mut out = Group::of::<Eth3635CntrsGrpDataLayout>();
            out.set("dot3in_pause_frames", traffic.control.pause);
            out.set("dot3control_in_unknown_opcodes", traffic.control.unsupported);
            out.bytes
        }
        PER_PRIORITY => by_priority(traffic, usize::from(priority & 7), speed).bytes,
        _ => Vec::new(),
    }
}

fn ieee(traffic: &Traffic) -> Group {
    let mut out = Group::of::<Eth8023CntrsGrpDataLayout>();
    let (received, sent) = (&traffic.received.all, &traffic.sent.all);
    out.set("a_frames_transmitted_ok", sent.total().frames);
    out.set("a_octets_transmitted_ok", sent.total().octets);
    out.set("a_multicast_frames_xmitted_ok", sent.multicast.frames);
    out.set("a_broadcast_frames_xmitted_ok", sent.broadcast.frames);
    out.set("a_frames_received_ok", received.total().frames);
    out.set("a_octets_received_ok", received.total().octets);
    out.set("a_multicast_frames_received_ok", received.multicast.frames);
    out.set("a_broadcast_frames_received_ok", received.broadcast.frames);
    out.set("a_mac_control_frames_received", traffic.control.received);
    out.set("a_unsupported_opcodes_received", traffic.control.unsupported);
    out.set("a_pause_mac_ctrl_frames_received", traffic.control.pause);
    out
}

fn interface(traffic: &Traffic) -> Group {
    let mut out = Group::of::<Eth2863CntrsGrpDataLayout>();
    let (received, sent) = (&traffic.received.all, &traffic.sent.all);
    out.set("if_in_octets", received.total().octets);
    out.set("if_in_ucast_pkts", received.unicast.frames);
    out.set("if_in_multicast_pkts", received.multicast.frames);
    out.set("if_in_broadcast_pkts", received.broadcast.frames);
    out.set("if_out_octets", sent.total().octets);
    out.set("if_out_ucast_pkts", sent.unicast.frames);
    out.set("if_out_multicast_pkts", sent.multicast.frames);
    out.set("if_out_broadcast_pkts", sent.broadcast.frames);
    out
}

fn by_priority(traffic: &Traffic, priority: usize, speed: u64) -> Group {
    let mut out = Group::of::<EthPerPrioGrpDataLayout>();
    let Count { frames, octets } = traffic.received.priority[priority];
    out.set("rx_octets", octets);
    out.set("rx_frames", frames);
    let Count { frames, octets } = traffic.sent.priority[priority];
    out.set("tx_octets", octets);
    out.set("tx_frames", frames);
    let control = &traffic.control;
    // Pause frames of the whole link are told with priority 0.
    let (whole, whole_quanta) = if priority == 0 {
        (control.pause, control.pause_quanta)
    } else {
        (0, 0)
    };
    out.set("rx_pause", control.priority_pause[priority] + whole);
    let quanta = control.priority_quanta[priority] + whole_quanta;
    // In microseconds.
    out.set("rx_pause_duration", quanta * QUANTUM_BITS / speed.max(1));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::traffic::MacControl;

    #[test]
    fn every_group_has_its_counters_where_the_prm_has_them() {
        let mut traffic = Traffic::default();
        traffic.received.all.unicast = Count {
            frames: 5,
            octets: 1 << 33 | 7,
        };
        traffic.received.all.broadcast.frames = 2;
        traffic.received.priority[3].frames = 4;
        traffic.control = MacControl {
            pause: 1,
            pause_quanta: 1000,
            priority_pause: [0, 0, 0, 6, 0, 0, 0, 0],
            priority_quanta: [0, 0, 0, 2_000_000, 0, 0, 0, 0],
            ..MacControl::default()
        };
        let at = |bytes: &[u8], at: usize| u64::from_be_bytes(*bytes[at..].first_chunk().unwrap());
        let ieee = report(&traffic, 0, 0, 100_000);
        assert_eq!((at(&ieee, 0x8), at(&ieee, 0x28)), (7, 1 << 33 | 7));
        assert_eq!((at(&ieee, 0x48), at(&ieee, 0x88)), (2, 1));
        let interface = report(&traffic, 1, 0, 100_000);
        assert_eq!((at(&interface, 0), at(&interface, 8)), (1 << 33 | 7, 5));
        assert_eq!(at(&report(&traffic, 3, 0, 100_000), 0x70), 1);
        let third = report(&traffic, 0x10, 3, 100_000);
        assert_eq!((at(&third, 0x20), at(&third, 0x50)), (4, 6));
        assert_eq!(at(&third, 0x58), 2_000_000 * 512 / 100_000);
        assert_eq!(at(&report(&traffic, 0x10, 0, 100_000), 0x50), 1);
        assert!(report(&traffic, 0x12, 0, 100_000).is_empty());
    }
}
