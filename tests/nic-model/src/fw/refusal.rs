//! Why the firmware refuses a command, and the list of what it refused.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;

use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::{CommandStatus, DeliveryStatus};

use crate::objects::ObjectError;

/// Syndromes that this firmware gives. The real firmware's table is not published, so these are our own: the
/// upper half says that it is ours, the lower tells causes of one status apart.
pub mod syndrome {
    /// A bit that no field covers is set.
    pub const RESERVED_SET: u32 = 0x00f1_0001;
    /// The opcode does not have this modifier.
    pub const BAD_OP_MOD: u32 = 0x00f1_0002;
    /// The device does not offer it.
    pub const NO_CAPABILITY: u32 = 0x00f1_0003;
    /// ENABLE_HCA comes first.
    pub const NOT_ENABLED: u32 = 0x00f1_0004;
    /// INIT_HCA comes first.
    pub const NOT_INITIALIZED: u32 = 0x00f1_0005;
    /// The firmware has not been given the pages that it asked for.
    pub const PAGES_MISSING: u32 = 0x00f1_0006;
    /// The step was taken before.
    pub const ALREADY: u32 = 0x00f1_0007;
    /// A page is crooked, not mapped, or was given before.
    pub const BAD_PAGE: u32 = 0x00f1_0008;
    /// More pages than were asked for, or fewer addresses than the count says.
    pub const PAGE_COUNT: u32 = 0x00f1_0009;
    /// A capability set to more than its maximum.
    pub const CAP_ABOVE_MAX: u32 = 0x00f1_000a;
    /// A capability changed that can't be set.
    pub const CAP_NOT_SETTABLE: u32 = 0x00f1_000b;
    /// The register is not there.
    pub const BAD_REGISTER: u32 = 0x00f1_000c;
    /// A field with a value that it can't have; the log names it.
    pub const BAD_FIELD: u32 = 0x00f1_000d;
    /// More than a capability allows.
    pub const ABOVE_LIMIT: u32 = 0x00f1_000e;
    /// The GID index is beyond the table, or names an empty entry.
    pub const BAD_GID_INDEX: u32 = 0x00f1_000f;
    /// The transition does not start from the QP's state.
    pub const QP_STATE: u32 = 0x00f1_0010;
    /// Another function or vport than the one that was asked.
    pub const OTHER_FUNCTION: u32 = 0x00f1_0011;
    /// The uid is no user context.
    pub const BAD_UID: u32 = 0x00f1_0012;
    /// The input ends before what it has to hold.
    pub const SHORT_INPUT: u32 = 0x00f1_0013;
    /// The host could not give pages, or can't be asked for them.
    pub const NO_PAGES_GIVEN: u32 = 0x00f1_0014;
    /// A bit of opt_param_mask that the transition does not have.
    pub const OPT_MASK: u32 = 0x00f1_0015;
    /// The event type goes to another event queue.
    pub const EVENT_TAKEN: u32 = 0x00f1_0016;
    /// The MSI-X vector is beyond the table.
    pub const BAD_VECTOR: u32 = 0x00f1_0017;
}

/// A command that is answered with a status other than OK.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status.
    pub status: CommandStatus,
    /// The syndrome, see [`syndrome`].
    pub syndrome: u32,
    /// The cause in words, for the model's log.
    pub reason: Cow<'static, str>,
}

impl Refusal {
    /// A refusal with its three parts.
    pub fn new(status: CommandStatus, syndrome: u32, reason: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal {
            status,
            syndrome,
            reason: reason.into(),
        }
    }

    /// A parameter that can't be.
    pub fn bad_field(reason: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::new(CommandStatus::BAD_PARAM, syndrome::BAD_FIELD, reason)
    }

    /// More than a capability allows.
    pub fn above_limit(what: &str, value: u64, limit: u64) -> Refusal {
        let reason = format!("{what} = {value:#x} is above the device's limit {limit:#x}");
        Refusal::new(CommandStatus::EXCEED_LIM, syndrome::ABOVE_LIMIT, reason)
    }

    /// A command or a use of it that the capabilities don't offer.
    pub fn no_capability(name: &'static str) -> Refusal {
        let reason = format!("the device does not offer it: {name}");
        Refusal::new(CommandStatus::BAD_OP, syndrome::NO_CAPABILITY, reason)
    }
}

impl From<ObjectError> for Refusal {
    fn from(error: ObjectError) -> Refusal {
        Refusal::new(
            CommandStatus(error.status_code()),
            error.syndrome(),
            error.to_string(),
        )
    }
}

/// Something the host did that the PRM does not allow, or that the device does not offer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Violation {
    /// A command answered with a status other than OK.
    Refused {
        /// What was asked.
        opcode: Opcode,
        /// How and why it was refused.
        refusal: Refusal,
    },
    /// A command that was not delivered.
    Undelivered {
        /// Slot of the command queue.
        slot: u8,
        /// The delivery status it got.
        status: DeliveryStatus,
        /// The cause in words.
        reason: Cow<'static, str>,
    },
    /// Anything that has no answer: doorbells, registers, order of steps. The device went on.
    Protocol {
        /// What was wrong.
        reason: Cow<'static, str>,
    },
}

impl Violation {
    /// Whether the host merely asked for what this device does not have (unknown opcode, register or
    /// capability), as drivers do that try.
    pub fn is_probe(&self) -> bool {
        match self {
            Violation::Refused { refusal, .. } => {
                matches!(refusal.syndrome, syndrome::BAD_REGISTER | syndrome::NO_CAPABILITY)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Refused { opcode, refusal } => write!(
                f,
                "{opcode} refused: {}: {} (syndrome {:#x})",
                refusal.reason, refusal.status, refusal.syndrome
            ),
            Violation::Undelivered { slot, status, reason } => {
                write!(f, "command in slot {slot} not delivered: {reason}: {status}")
            }
            Violation::Protocol { reason } => f.write_str(reason),
        }
    }
}

/// The last violations, and how many there were in all.
#[derive(Debug, Default)]
pub struct Violations {
    kept: VecDeque<Violation>,
    total: u64,
}

/// A hostile host makes any number of them; the list keeps the last.
const KEPT: usize = 256;

impl Violations {
    /// Logs and keeps one.
    pub fn record(&mut self, violation: Violation) {
        if violation.is_probe() {
            log::debug!("firmware model: {violation}");
        } else {
            log::warn!("firmware model: {violation}");
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(violation);
        self.total += 1;
    }

    /// Keeps one that has no answer.
    pub fn protocol(&mut self, reason: impl Into<Cow<'static, str>>) {
        self.record(Violation::Protocol {
            reason: reason.into(),
        });
    }

    /// The kept ones, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Violation> {
        self.kept.iter()
    }

    /// How many there were, the forgotten ones included.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = Violations::default();
    }
}
