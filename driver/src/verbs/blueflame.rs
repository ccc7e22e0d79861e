//! A queue pair's own doorbell page, for BlueFlame.

use std::sync::Arc;

use ferroce_firmware_iface::cmds::DeallocUar;
use ferroce_firmware_iface::command::Command;
use ferroce_hw_regs::ids::UarPage;
use ferroce_hw_regs::uar::{BF_OFFSET, PAGE_BYTES, PIECE_BYTES};

use super::error::CreateError;
use crate::caps::Caps;
use crate::context::Context;
use crate::reaper::Destroy;
use crate::ring::BlueFlame;
use crate::uar::Uar;

/// A UAR page that goes back when this goes.
pub(super) struct OwnUar {
    uar: Uar,
    context: Arc<Context>,
}

impl OwnUar {
    /// Whether the device has BlueFlame, in slots that hold a piece.
    pub(super) fn check(caps: &Caps) -> Result<(), CreateError> {
        // Two slots that hold a piece, and the second register is still in the page.
        let sizes = 2 * PIECE_BYTES as u64..=(PAGE_BYTES - BF_OFFSET) / 2;
        let what = if !caps.general().bf() {
            "it has no BlueFlame (bf)"
        } else if !sizes.contains(&caps.bf_reg_bytes().into()) {
            "its BlueFlame registers are of no use (log_bf_reg_size)"
        } else {
            return Ok(());
        };
        Err(CreateError::Capability { what })
    }

    pub(super) fn alloc(context: &Arc<Context>) -> Result<OwnUar, CreateError> {
        OwnUar::check(context.caps())?;
        Ok(OwnUar {
            uar: context.alloc_uar().map_err(CreateError::Uar)?,
            context: context.clone(),
        })
    }

    pub(super) fn uar(&self) -> &Uar {
        &self.uar
    }

    /// Its second BlueFlame register. The first is for doorbells alone, whose slots need not alternate.
    pub(super) fn register(&self) -> Result<BlueFlame, CreateError> {
        let bytes = self.context.caps().bf_reg_bytes();
        let half = bytes / 2;
        let slot = |at: u32| self.uar.page().burst(BF_OFFSET + u64::from(at), half as usize);
        Ok(BlueFlame::new([slot(bytes)?, slot(bytes + half)?]))
    }
}

impl Drop for OwnUar {
    fn drop(&mut self) {
        // A number that the device gave fits its own layout.
        let uar = UarPage::from_low_bits(self.uar.index());
        let commands = DeallocUar { uar }.encode().into_iter().collect();
        // The queue pair has gone to the reaper before it.
        self.context.reaper().submit(Destroy {
            what: format!("UAR {:#x}", self.uar.index()),
            commands,
            memory: Vec::new(),
            keep: None,
            done: None,
        });
    }
}
