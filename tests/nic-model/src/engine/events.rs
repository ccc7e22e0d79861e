//! Event queue entries: written in ring order, owner byte last, one interrupt per arm (PRM, event queues).

use super::DataPlane;
use super::violation::Violation;
use crate::fw::plane::Event as FirmwareEvent;
use crate::objects::Eq;

/// Event types of the PRM that the data path raises itself.
pub mod event_type {
    /// Completion.
    pub const COMPLETION: u8 = 0x00;
    /// First packet arrived in RTR.
    pub const COMM_ESTABLISHED: u8 = 0x02;
    /// A send queue is drained.
    pub const SQ_DRAINED: u8 = 0x03;
    /// A CQ is broken.
    pub const CQ_ERROR: u8 = 0x04;
    /// A work queue can't go on.
    pub const WQ_CATASTROPHIC: u8 = 0x05;
    /// Port up or down.
    pub const PORT_CHANGE: u8 = 0x09;
    /// A command is done.
    pub const COMMAND: u8 = 0x0a;
    /// The device wants pages, or gives some back.
    pub const PAGE_REQUEST: u8 = 0x0b;
    /// A peer's request was invalid.
    pub const WQ_INVALID_REQUEST: u8 = 0x10;
    /// A peer's request broke the protection.
    pub const WQ_ACCESS_ERROR: u8 = 0x11;
    /// An SRQ is broken.
    pub const SRQ_CATASTROPHIC: u8 = 0x12;
    /// The last WQE of a QP on an SRQ is done.
    pub const SRQ_LAST_WQE: u8 = 0x13;
    /// An SRQ fell below its limit.
    pub const SRQ_LIMIT: u8 = 0x14;
}

/// Something to tell the host by an EQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// What the firmware has to tell.
    Firmware(FirmwareEvent),
    /// Something about a QP or an SRQ.
    Queue {
        /// PRM event type.
        event_type: u8,
        /// QPN or SRQN.
        number: u32,
    },
    /// A CQ is broken.
    CqError {
        /// The CQ.
        cqn: u32,
        /// 1: overrun, 2: its memory could not be written.
        syndrome: u8,
    },
}

impl Event {
    /// Type, sub-type and data of the EQE.
    fn encode(self) -> (u8, u8, [u8; 28]) {
        let mut data = [0; 28];
        let (event_type, sub_type) = match self {
            Event::Firmware(FirmwareEvent::Command { slots }) => {
                data[0..4].copy_from_slice(&slots.to_be_bytes());
                (event_type::COMMAND, 0)
            }
            Event::Firmware(FirmwareEvent::PageRequest {
                function_id,
                num_pages,
            }) => {
                data[2..4].copy_from_slice(&function_id.to_be_bytes());
                data[4..8].copy_from_slice(&num_pages.to_be_bytes());
                (event_type::PAGE_REQUEST, 0)
            }
            Event::Firmware(FirmwareEvent::PortChange { port, change }) => {
                data[8] = port << 4;
                (event_type::PORT_CHANGE, change.0)
            }
            Event::Queue { event_type, number } => {
                // data[0x14] stays 0: the number is a QP's or an SRQ's.
                data[24..28].copy_from_slice(&(number & 0xff_ffff).to_be_bytes());
                (event_type, 0)
            }
            Event::CqError { cqn, syndrome } => {
                data[0..4].copy_from_slice(&(cqn & 0xff_ffff).to_be_bytes());
                data[11] = syndrome;
                (event_type::CQ_ERROR, 0)
            }
        };
        (event_type, sub_type, data)
    }
}

impl DataPlane {
    /// Whether some EQ wants events of this type.
    pub fn subscribed(&self, event_type: u8) -> bool {
        self.subscriber(event_type).is_some()
    }

    fn subscriber(&self, event_type: u8) -> Option<u32> {
        self.objects
            .eqs
            .iter()
            .find_map(|(eqn, eq)| eq.wants(event_type).then_some(eqn))
    }

    /// Writes an event to the EQ that subscribed to its type; false when none did.
    pub fn raise(&mut self, event: Event) -> bool {
        let (event_type, sub_type, data) = event.encode();
        let Some(eqn) = self.subscriber(event_type) else {
            log::debug!("no EQ wants {event:?}");
            return false;
        };
        self.write_eqe(eqn, event_type, sub_type, &data);
        true
    }

    /// Writes a completion event for `cqn` to its EQ.
    pub(super) fn raise_completion(&mut self, eqn: u32, cqn: u32) {
        let mut data = [0; 28];
        data[24..28].copy_from_slice(&(cqn & 0xff_ffff).to_be_bytes());
        self.write_eqe(eqn, event_type::COMPLETION, 0, &data);
    }

    fn write_eqe(&mut self, eqn: u32, event_type: u8, sub_type: u8, data: &[u8; 28]) {
        let Some(eq) = self.objects.eqs.get_mut(eqn) else {
            self.violations
                .note(Violation::UnknownObject, format_args!("event for EQ {eqn:#x}"));
            return;
        };
        if eq.outstanding() >= eq.entries() && !eq.overrun_ignore {
            eq.overruns += 1;
            let what = format_args!("EQ {eqn:#x} is full, event {event_type:#x} lost");
            self.violations.note(Violation::EqOverrun, what);
            return;
        }
        let mut eqe = [0; 64];
        eqe[1] = event_type;
        eqe[3] = sub_type;
        eqe[0x20..0x3c].copy_from_slice(data);
        eqe[0x3f] = (eq.pi >> eq.log_size & 1) as u8;
        let slot = u64::from(eq.pi & (eq.entries() - 1));
        if let Err(fault) = super::publish(&self.host, &eq.ring, slot * 64, &eqe) {
            self.violations
                .note(Violation::HostMemory, format_args!("EQ {eqn:#x}: {fault}"));
            return;
        }
        eq.pi = eq.pi.wrapping_add(1);
        if let Some(recorder) = &self.recorder {
            recorder.eqe(eqn, &eqe);
        }
        self.counters.eqes += 1;
        if eq.armed {
            eq.armed = false;
            let vector = eq.vector;
            self.interrupts.raise(vector);
        }
    }

    /// An EQ doorbell: consumer index, and arm if `arm`.
    pub(super) fn eq_doorbell(&mut self, uar: u32, value: u32, arm: bool) {
        let eqn = value >> 24;
        let ci = value & 0xff_ffff;
        let Some(eq) = self.objects.eqs.get_mut(eqn) else {
            self.violations
                .note(Violation::UnknownObject, format_args!("doorbell of EQ {eqn:#x}"));
            return;
        };
        if eq.uar_page != uar {
            let what = format_args!("EQ {eqn:#x} of UAR {:#x} rung in UAR {uar:#x}", eq.uar_page);
            self.violations.note(Violation::ForeignUar, what);
            return;
        }
        if !consumed_entries_exist(eq, ci) {
            let what = format_args!("EQ {eqn:#x}: consumer index {ci:#x}, producer index {:#x}", eq.pi);
            self.violations.note(Violation::ConsumerIndex, what);
            return;
        }
        eq.ci = ci;
        if !arm {
            return;
        }
        // Entries that the host has not consumed: the interrupt that this arm asks for is due at once.
        if eq.outstanding() != 0 {
            eq.armed = false;
            let vector = eq.vector;
            self.interrupts.raise(vector);
        } else {
            eq.armed = true;
        }
    }
}

/// Whether consumer index `ci` lies between the last one and what was written.
fn consumed_entries_exist(eq: &Eq, ci: u32) -> bool {
    ci.wrapping_sub(eq.ci) & 0xff_ffff <= eq.outstanding()
}
