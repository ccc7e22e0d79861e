//! UARs: pages of BAR 0 through which doorbells are rung.

use ferroce_firmware_iface::layouts::{AllocUarIn, AllocUarOut, DeallocUarIn};
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_hw_regs::uar::{FIRST_UAR_PAGE, PAGE_BYTES};
use zerocopy::IntoBytes;

use crate::error::{CommandError, StepError};
use crate::hca::Hca;
use crate::mmio::Mmio;

/// A UAR page that firmware has given us.
#[derive(Clone, Debug)]
pub struct Uar {
    index: u32,
    page: Mmio,
}

impl Uar {
    /// Its number, for a context's `uar_page` (24 bits).
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its page of 4 KiB.
    #[must_use]
    pub fn page(&self) -> &Mmio {
        &self.page
    }

    /// ALLOC_UAR.
    pub(crate) fn alloc(hca: &Hca) -> Result<Self, StepError> {
        let mut input = AllocUarIn::default();
        input.set_opcode(Opcode::ALLOC_UAR.0);
        let output: AllocUarOut = hca.exec_layout(&input)?;
        let index = output.uar();
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
        Ok(Self { index, page })
    }

    /// DEALLOC_UAR.
    pub(crate) fn dealloc(&self, hca: &Hca) -> Result<(), CommandError> {
        let input = self.dealloc_input();
        hca.exec_raw(input.as_bytes(), &mut [0; 16])
    }

    fn dealloc_input(&self) -> DeallocUarIn {
        let mut input = DeallocUarIn::default();
        input.set_opcode(Opcode::DEALLOC_UAR.0);
        // ALLOC_UAR's answer has the same width, so that the index fits.
        let _ = input.set_uar(self.index);
        input
    }
}
