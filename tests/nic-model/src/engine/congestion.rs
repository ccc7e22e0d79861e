//! Congestion notification of RoCE v2 (IBTA vol. 1, annex A17.9.3): who gets a packet that a switch has marked
//! tells its sender by a CNP, not more often than the host allows, and both count.
//!
//! The sender's rate is not changed by CNPs: there is no rate limit in this model. Its frames are marked as taking
//! part in ECN when the traffic class that the host gave says so.

use std::time::Duration;

use super::DataPlane;
use crate::payload::Payload;
use crate::wire::packet::{Bth, Packet};
use crate::wire::{self, CNP_RESERVED_BYTES, Ecn, Encap, RoceFrame, opcode};

/// The partition of all ports.
const PKEY: u16 = 0xffff;

/// How the port takes part, and what it counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Congestion {
    /// Priorities (a bit each) on which marked packets are answered with CNPs.
    pub notify: u8,
    /// Priorities on which CNPs are acted on.
    pub react: u8,
    /// DSCP of CNPs, 6 bits.
    pub cnp_dscp: u8,
    /// Priority of CNPs in a VLAN tag; `None`: that of the marked packet.
    pub cnp_priority: Option<u8>,
    /// Least time between two CNPs of a QP.
    pub cnp_interval: Duration,
    /// What was counted.
    pub counters: CongestionCounters,
}

/// Counters of congestion notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CongestionCounters {
    /// Packets for QPs that arrived marked.
    pub marked: u64,
    /// CNPs sent.
    pub cnps_sent: u64,
    /// CNPs received on priorities on which they are acted on.
    pub cnps_handled: u64,
    /// Other CNPs received.
    pub cnps_ignored: u64,
}

impl Default for Congestion {
    /// What NVIDIA documents as the default: on for all priorities, CNPs with DSCP 48 and priority 6, 4 µs between
    /// two of them.
    fn default() -> Congestion {
        Congestion {
            notify: 0xff,
            react: 0xff,
            cnp_dscp: 48,
            cnp_priority: Some(6),
            cnp_interval: Duration::from_micros(4),
            counters: CongestionCounters::default(),
        }
    }
}

fn is_on(priorities: u8, frame: &Encap) -> bool {
    priorities >> frame.vlan.map_or(0, |tag| tag.pcp & 7) & 1 != 0
}

impl DataPlane {
    /// Looks whether a packet that QP `qpn` takes was marked, and tells its sender, the QP `to` there.
    pub(super) fn notice_congestion(&mut self, qpn: u32, roce: &RoceFrame, to: u32) {
        // The ECN field of a GRH means nothing.
        if roce.encap.ecn() != Ecn::Ce || !roce.encap.is_routable() {
            return;
        }
        self.congestion.counters.marked += 1;
        if !is_on(self.congestion.notify, &roce.encap) {
            return;
        }
        let (now, interval) = (self.now, self.congestion.cnp_interval);
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return;
        };
        if qp.last_cnp.is_some_and(|at| now < at + interval) {
            return;
        }
        qp.last_cnp = Some(now);
        self.send_cnp(&roce.encap, to);
    }

    fn send_cnp(&mut self, marked: &Encap, to: u32) {
        let mut encap = marked.reply();
        encap.set_traffic_class(self.congestion.cnp_dscp << 2);
        if let (Some(tag), Some(priority)) = (&mut encap.vlan, self.congestion.cnp_priority) {
            tag.pcp = priority;
        }
        let packet = Packet {
            bth: Bth {
                opcode: opcode::CNP,
                becn: true,
                pkey: PKEY,
                dest_qp: to,
                ..Bth::default()
            },
            payload: Payload::from_vec(vec![0; CNP_RESERVED_BYTES]),
            ..Packet::default()
        };
        match wire::emit_owned(&encap, packet, self.icrc) {
            Ok(frame) => {
                self.congestion.counters.cnps_sent += 1;
                self.queue_frame(self.arrived_at, self.is_own_mac(encap.dst), frame);
            }
            Err(error) => log::debug!("no CNP: {error}"),
        }
    }

    /// A CNP for a QP that is there.
    pub(super) fn receive_cnp(&mut self, roce: &RoceFrame) {
        let on = is_on(self.congestion.react, &roce.encap);
        let counters = &mut self.congestion.counters;
        let count = if on {
            &mut counters.cnps_handled
        } else {
            &mut counters.cnps_ignored
        };
        *count += 1;
    }

    /// How the port takes part in congestion notification.
    pub fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// The same, to be changed.
    pub fn congestion_mut(&mut self) -> &mut Congestion {
        &mut self.congestion
    }
}
