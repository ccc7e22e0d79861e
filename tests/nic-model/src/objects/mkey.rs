//! Memory keys: what a key opens, to whom, and where the bytes are.

use bitflags::bitflags;
use ferroce_firmware_iface::layouts::Mkc;

use super::buffer::{PAGE_UNIT_SHIFT, PageList};
use super::error::ObjectError;

bitflags! {
    /// What a memory key allows.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u8 {
        /// The device reads for the host's own work requests.
        const LOCAL_READ = 1 << 0;
        /// The device writes for the host's own work requests.
        const LOCAL_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 3;
        /// Peers may do atomic operations.
        const REMOTE_ATOMIC = 1 << 4;
    }
}

/// `mkc.qpn` of a key that is not bound to one QP.
pub const ANY_QPN: u32 = 0xff_ffff;

/// How a key's addresses become IOVAs.
#[derive(Clone, Debug)]
pub enum Translation {
    /// Access mode 0: an address is an IOVA.
    Identity,
    /// Access mode 1: a list of pages.
    Pages(PageList),
    /// A kind that the model does not translate (KLM, KSM, …), or a key that waits for a UMR to fill it.
    None,
}

/// A memory key.
#[derive(Clone, Debug)]
pub struct Mkey {
    /// Its index: bits 31:8 of an lkey or rkey.
    pub index: u32,
    /// Bits 7:0 of an lkey or rkey: the host's choice.
    pub variant: u8,
    /// Protection domain.
    pub pd: u32,
    /// The QP that alone may use it, or [`ANY_QPN`].
    pub qpn: u32,
    /// What it allows.
    pub access: Access,
    /// In the free state nothing may use it.
    pub free: bool,
    /// First address.
    pub start: u64,
    /// Length in bytes; `None`: all 2^64.
    pub len: Option<u64>,
    /// Where the bytes are.
    pub translation: Translation,
    /// Page addresses that UMR gave, as they came; it may change some of them.
    pub entries: Vec<u64>,
    /// The context, for queries.
    pub context: Mkc,
}

impl Mkey {
    /// Decodes a context; `pages` gives the page list for a page shift, an offset and a length.
    ///
    /// # Errors
    /// A mode or page size that the device lacks, a range that wraps, or what `pages` says.
    pub fn new(
        index: u32,
        context: &Mkc,
        pages: impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError>,
    ) -> Result<Mkey, ObjectError> {
        let bad = |field, value, reason| ObjectError::BadValue { field, value, reason };
        let mode = context.access_mode_4_2() << 2 | context.access_mode_1_0();
        let (start, bytes) = (context.start_addr(), context.len());
        let whole = context.length64();
        if !whole && start.checked_add(bytes).is_none() && start.wrapping_add(bytes) != 0 {
            return Err(bad("len", bytes, "start_addr + len wraps at 2^64"));
        }
        let translation = match mode {
            0 => Translation::Identity,
            1 if context.free() || (context.umr_en() && bytes == 0) => Translation::None,
            1 => {
                let page_shift = u32::from(context.log_page_size());
                if !(PAGE_UNIT_SHIFT..=40).contains(&page_shift) {
                    return Err(bad(
                        "log_page_size",
                        u64::from(page_shift),
                        "pages are 4 KiB to 1 TiB",
                    ));
                }
                if whole {
                    return Err(bad("length64", 1, "a page list can't span all 2^64 addresses"));
                }
                let in_page = start & ((1 << page_shift) - 1);
                Translation::Pages(pages(page_shift, in_page, bytes)?)
            }
            2 | 3 => Translation::None,
            other => {
                return Err(bad(
                    "access_mode",
                    u64::from(other),
                    "only PA, MTT, KLM and KSM exist here",
                ));
            }
        };
        let mut access = Access::empty();
        access.set(Access::LOCAL_READ, context.lr());
        access.set(Access::LOCAL_WRITE, context.lw());
        access.set(Access::REMOTE_READ, context.rr());
        access.set(Access::REMOTE_WRITE, context.rw());
        access.set(Access::REMOTE_ATOMIC, context.a());
        Ok(Mkey {
            index,
            variant: context.mkey_7_0(),
            pd: context.pd(),
            qpn: context.qpn(),
            access,
            free: context.free(),
            start,
            len: if whole { None } else { Some(bytes) },
            translation,
            entries: Vec::new(),
            context: *context,
        })
    }
}
