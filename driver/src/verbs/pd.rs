//! Protection domains.

use std::fmt;
use std::sync::Arc;

use ferroce_firmware_iface::cmds::{AllocPd, DeallocPd};
use ferroce_firmware_iface::command::Command;
use ferroce_hw_regs::ids::Pdn;

use super::error::{CreateError, DestroyError};
use crate::context::Context;
use crate::reaper::Destroy;

/// A protection domain: its memory regions and its queue pairs may use each other, and none else.
///
/// A handle; clones are the same domain. It goes, in firmware too, when the last handle and all objects made in it are
/// gone.
///
/// ```text
/// Context <-- Pd <-- Mr, LocalBuffer
///                <-- Qp --> Cq (send), Cq (receive)
/// ```
#[derive(Clone)]
pub struct Pd {
    inner: Arc<PdInner>,
}

struct PdInner {
    pdn: Pdn,
    /// Firmware has it no more.
    gone: bool,
    context: Arc<Context>,
}

impl Pd {
    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`CreateError::Command`] if firmware refuses.
    pub fn alloc(context: &Arc<Context>) -> Result<Pd, CreateError> {
        let pdn = context.exec(&AllocPd)?;
        Ok(Pd {
            inner: Arc::new(PdInner {
                pdn,
                gone: false,
                context: context.clone(),
            }),
        })
    }

    /// Its number.
    pub fn pdn(&self) -> Pdn {
        self.inner.pdn
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    pub(super) fn is_same(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// A number that tells it from all other domains for as long as it lives.
    pub(super) fn domain(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    /// What it lives for as long as.
    pub(super) fn keep(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        self.inner.clone()
    }

    /// Ends the domain, and says whether that worked.
    ///
    /// # Errors
    /// [`DestroyError::Busy`] while other handles or objects made in it are there; [`DestroyError::Command`] if firmware
    /// refuses.
    pub fn dealloc(self) -> Result<(), DestroyError> {
        match Arc::try_unwrap(self.inner) {
            Ok(mut inner) => {
                inner.gone = true;
                // What was made in the domain may be waiting to be destroyed.
                inner.context.process_events();
                Ok(inner.context.exec(&DeallocPd { pd: inner.pdn })?)
            }
            Err(shared) => Err(DestroyError::Busy {
                object: "PD",
                users: Arc::strong_count(&shared) - 1,
            }),
        }
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        // A command with an id that the device gave fits its own layout.
        let commands = DeallocPd { pd: self.pdn }.encode().into_iter().collect();
        // What was made in the domain has gone to the reaper before it.
        self.context.reaper().submit(Destroy {
            what: self.pdn.to_string(),
            commands,
            memory: Vec::new(),
            keep: None,
            done: None,
        });
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pd").field(&self.inner.pdn.get()).finish()
    }
}
