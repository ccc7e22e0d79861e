//! Which process a function belongs to.
//!
//! A child made by `fork` inherits descriptors and values. It must not speak for its parent: a dropped value would let
//! go of the parent's device, a register write would ring the parent's doorbells. (Mapped registers and DMA memory are
//! kept out of children altogether.)

use super::{FunctionAddress, FunctionError};

/// The process that opened something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pid: u32,
}

impl Owner {
    /// This process.
    pub fn here() -> Owner {
        Owner {
            pid: std::process::id(),
        }
    }

    /// Whether this still is that process, and not a child of it.
    pub fn is_here(self) -> bool {
        self == Owner::here()
    }

    /// Refuses to act in a child.
    ///
    /// # Errors
    /// [`FunctionError::Forked`].
    pub fn check(self, address: &FunctionAddress) -> Result<(), FunctionError> {
        if self.is_here() {
            return Ok(());
        }
        Err(FunctionError::Forked {
            address: address.to_string(),
            owner: self.pid,
        })
    }

    /// Some other process.
    #[cfg(test)]
    pub fn elsewhere() -> Owner {
        Owner {
            pid: std::process::id().wrapping_add(1),
        }
    }
}
