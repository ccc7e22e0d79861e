//! What tests make go wrong in the firmware.

use std::collections::VecDeque;

use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::{CommandStatus, DeliveryStatus, HealthSyndrome};

use super::{Event, Firmware};

/// What becomes of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// It is answered with this and not executed.
    Status(CommandStatus, u32),
    /// It is not delivered.
    Delivery(DeliveryStatus),
    /// It is executed and never answered.
    NoAnswer,
    /// It is executed, and answered so many nanoseconds later.
    LateAnswer(u64),
}

/// Faults that wait for their command.
#[derive(Debug, Default)]
pub struct Faults {
    waiting: VecDeque<(Option<Opcode>, u32, Fault)>,
}

impl Faults {
    /// Lets `skip` commands with that opcode (any, for `None`) pass and meets the next with the fault.
    pub fn inject(&mut self, opcode: Option<Opcode>, skip: u32, fault: Fault) {
        self.waiting.push_back((opcode, skip, fault));
    }

    /// Forgets the faults that have not met their command.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Faults that have not met their command.
    pub fn pending(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn take(&mut self, opcode: Opcode) -> Option<Fault> {
        let mut hit = None;
        for (i, (wanted, skip, _)) in self.waiting.iter_mut().enumerate() {
            if wanted.is_some_and(|w| w != opcode) {
                continue;
            }
            if *skip > 0 {
                *skip -= 1;
            } else if hit.is_none() {
                hit = Some(i);
            }
        }
        self.waiting.remove(hit?).map(|(_, _, fault)| fault)
    }
}

/// Fault injection.
impl Firmware {
    /// Faults of commands.
    pub fn faults_mut(&mut self) -> &mut Faults {
        &mut self.faults
    }

    /// The health buffer shows this syndrome, with `rfr` (reset needed) when `fatal`.
    pub fn set_health(&mut self, syndrome: HealthSyndrome, fatal: bool) {
        self.segment.set_health(syndrome, fatal);
    }

    /// The initializing bit never clears, also after a reset.
    pub fn set_stuck_initializing(&mut self, stuck: bool) {
        self.segment.set_stuck_initializing(stuck);
    }

    /// The health counter stops or goes on.
    pub fn stop_health_counter(&mut self, now_ns: u64, stop: bool) {
        self.segment.stop_counter(now_ns, stop);
    }

    /// The device does not answer at its BAR any more: all ones.
    pub fn set_gone(&mut self, gone: bool) {
        self.segment.set_gone(gone);
    }

    /// The firmware asks for `num_pages` more (positive) or gives some up (negative), at the next
    /// [`Firmware::run`].
    pub fn request_pages(&mut self, num_pages: i32) {
        self.pages.ask(num_pages);
        self.events.push_back(Event::PageRequest {
            function_id: 0,
            num_pages,
        });
    }

    /// The objects of the host fill all the pages that are there: what is created next needs more.
    pub fn exhaust_pages(&mut self) {
        self.pages.exhaust();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_waits_for_its_command_and_is_used_once() {
        let mut faults = Faults::default();
        faults.inject(Some(Opcode::CREATE_CQ), 1, Fault::NoAnswer);
        faults.inject(None, 3, Fault::LateAnswer(5));
        assert_eq!(faults.take(Opcode::CREATE_QP), None);
        assert_eq!(faults.take(Opcode::CREATE_CQ), None);
        assert_eq!(faults.take(Opcode::CREATE_CQ), Some(Fault::NoAnswer));
        assert_eq!(faults.take(Opcode::CREATE_CQ), Some(Fault::LateAnswer(5)));
        assert_eq!(faults.pending(), 0);
    }
}
