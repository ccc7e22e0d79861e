//! Why an object could not be made, changed or destroyed.

use thiserror::Error;

/// An error of the object tables, which the firmware turns into a command status and a syndrome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The table is full.
    #[error("no {object} left: all {limit} are in use")]
    NoResources {
        /// Kind of object.
        object: &'static str,
        /// Size of its table.
        limit: u32,
    },
    /// The number names no object.
    #[error("no {object} {number:#x}")]
    NoSuch {
        /// Kind of object.
        object: &'static str,
        /// The number.
        number: u32,
    },
    /// Other objects still refer to it.
    #[error("{object} {number:#x} is in use by {users} others")]
    Busy {
        /// Kind of object.
        object: &'static str,
        /// Its number.
        number: u32,
        /// How many refer to it.
        users: u32,
    },
    /// A field has a value that the device can't take.
    #[error("{field} = {value:#x}: {reason}")]
    BadValue {
        /// PRM name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Why not.
        reason: &'static str,
    },
    /// Fewer page addresses than the queue or region needs.
    #[error("{have} page addresses, {need} needed")]
    FewPages {
        /// Given.
        have: u64,
        /// Needed.
        need: u64,
    },
    /// A QP transition that its state does not allow.
    #[error("QP {qpn:#x} is in {state}, which {transition} does not start from")]
    BadQpState {
        /// The QP.
        qpn: u32,
        /// Its state.
        state: &'static str,
        /// The command.
        transition: &'static str,
    },
}

impl ObjectError {
    /// The command status that says it (PRM, command interface, status codes).
    pub fn status_code(self) -> u8 {
        match self {
            ObjectError::NoResources { .. } => 0x0f,
            ObjectError::NoSuch { .. } => 0x05,
            ObjectError::Busy { .. } => 0x06,
            ObjectError::BadValue { .. } => 0x03,
            ObjectError::FewPages { .. } => 0x50,
            ObjectError::BadQpState { .. } => 0x10,
        }
    }

    /// A number that tells this cause from others with the same status. Real firmware has its own table of
    /// these, which is not published.
    pub fn syndrome(self) -> u32 {
        0x00f0_0000
            | match self {
                ObjectError::NoResources { .. } => 1,
                ObjectError::NoSuch { .. } => 2,
                ObjectError::Busy { .. } => 3,
                ObjectError::BadValue { .. } => 4,
                ObjectError::FewPages { .. } => 5,
                ObjectError::BadQpState { .. } => 6,
            }
    }
}
