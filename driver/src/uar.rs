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
        Self::of_bar(hca.bar(), hca.exec(&AllocUar)?)
    }

    /// That page of BAR 0, of 4 KiB however large the host's pages are.
    fn of_bar(bar: &Mmio, uar: UarPage) -> Result<Self, StepError> {
        let index = uar.get();
        // The first pages are the initialization segment, and a page past the end of the BAR is nobody's.
        let pages = bar.len() / PAGE_BYTES;
        if index < FIRST_UAR_PAGE || u64::from(index) >= pages {
            return Err(StepError::Value {
                what: "alloc_uar_out.uar",
                value: u64::from(index),
                limit: format!("within {FIRST_UAR_PAGE}..{pages}, the pages of BAR 0"),
            });
        }
        let page = bar.subregion(u64::from(index) * PAGE_BYTES, PAGE_BYTES)?;
        Ok(Self { uar, page })
    }

    /// DEALLOC_UAR.
    pub(crate) fn dealloc(&self, hca: &Hca) -> Result<(), CommandError> {
        hca.exec(&DeallocUar { uar: self.uar })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use ferroce_hw_regs::uar::BF_OFFSET;

    use super::*;
    use crate::function::FunctionError;
    use crate::mem::map_fd;
    use crate::mmio::{BarAccess, MappedArea};

    /// Offsets of the writes that were trapped.
    #[derive(Default)]
    struct Trapped(Mutex<Vec<u64>>);

    impl BarAccess for Trapped {
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), FunctionError> {
            Ok(())
        }

        fn write(&self, offset: u64, _: &[u8]) -> Result<(), FunctionError> {
            self.0.lock().unwrap().push(offset);
            Ok(())
        }
    }

    /// A BAR of 100 KiB on a host with pages of 64 KiB: one of them is mapped, and has 16 UAR pages; what is left is less than a
    /// page and is trapped.
    #[test]
    fn v14_uar_pages_share_a_host_page() {
        let host_page = 0x1_0000u64;
        let fd = rustix::fs::memfd_create("bar", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, host_page).unwrap();
        let memory = map_fd(&fd, 0, host_page).unwrap();
        let trapped = Arc::new(Trapped::default());
        let areas = vec![MappedArea { offset: 0, memory }];
        let bar = Mmio::new(0x1_9000, areas, trapped.clone());
        let uar = |index| Uar::of_bar(&bar, UarPage::new(index).unwrap());
        for index in 3..25u64 {
            let uar = uar(index as u32).unwrap();
            let page = uar.page();
            assert_eq!(
                (page.len(), page.is_mapped()),
                (PAGE_BYTES, index < 16),
                "{index}"
            );
            page.doorbell(BF_OFFSET).unwrap().ring(index);
        }
        // Each has rung at its own place, and nowhere else.
        let mut bytes = vec![0; host_page as usize];
        rustix::io::pread(&fd, &mut bytes, 0).unwrap();
        let words = bytes.chunks_exact(8).zip((0..).step_by(8));
        let rung: Vec<(u64, u64)> = words
            .map(|(word, at)| (at, u64::from_be_bytes(*word.first_chunk().unwrap())))
            .filter(|(_, value)| *value != 0)
            .collect();
        let place = |index: u64| index * PAGE_BYTES + BF_OFFSET;
        let expected: Vec<_> = (3..16).map(|index| (place(index), index)).collect();
        assert_eq!(rung, expected);
        let expected: Vec<_> = (16..25).map(place).collect();
        assert_eq!(*trapped.0.lock().unwrap(), expected);
        for outside in [0, 2, 25, 0xff_ffff] {
            let error = uar(outside).unwrap_err();
            assert!(matches!(error, StepError::Value { .. }), "{outside}: {error}");
        }
    }
}
