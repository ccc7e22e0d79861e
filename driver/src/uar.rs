//! UARs: pages of BAR 0 through which doorbells are rung.

use ferroce_firmware_iface::cmds::{AllocUar, DeallocUar};
use ferroce_hw_regs::ids::UarPage;
use ferroce_hw_regs::uar::{FIRST_UAR_PAGE, PAGE_BYTES};

use crate::error::{CommandError, StepError};
use crate::hca::Hca;
use crate::mmio::Mmio;

/// A UAR page that firmware has given us.
#[derive(Clone, Debug)]
pub struct Uar {
    uar: UarPage,
    page: Mmio,
}

impl Uar {
    /// Its number, for a context's `uar_page` (24 bits).
    #[must_use]
    pub fn index(&self) -> u32 {
        self.uar.get()
    }

    /// Its page of 4 KiB.
    #[must_use]
    pub fn page(&self) -> &Mmio {
        &self.page
    }

    /// ALLOC_UAR.
    pub(crate) fn alloc(hca: &Hca) -> Result<Self, StepError> {
        let uar = hca.exec(&AllocUar)?;
        let index = uar.get();
        // The first pages are the initialization segment, and a page past the end of the BAR is nobody's.
        let pages = hca.bar().len() / PAGE_BYTES;
        if index < FIRST_UAR_PAGE || u64::from(index) >= pages {
            return Err(StepError::Value {
                what: "alloc_uar_out.uar",
                value: u64::from(index),
                limit: format!("within {FIRST_UAR_PAGE}..{pages}, the pages of BAR 0"),
            });
        }
        let page = hca.bar().subregion(u64::from(index) * PAGE_BYTES, PAGE_BYTES)?;
        Ok(Self { uar, page })
    }

    /// DEALLOC_UAR.
    pub(crate) fn dealloc(&self, hca: &Hca) -> Result<(), CommandError> {
        hca.exec(&DeallocUar { uar: self.uar })
    }
}
