//! User memory objects: lists of pages that queues and keys are laid on.

use ferroce_firmware_iface::layouts::Umem;

use super::buffer::{PAGE_UNIT_SHIFT, PageList};
use super::error::ObjectError;

/// A user memory object.
#[derive(Clone, Debug)]
pub struct UmemObject {
    /// Its pages.
    pub pages: PageList,
    /// Queues and keys on it.
    pub users: u32,
}

impl UmemObject {
    /// Decodes a context with its list of translations, be64 each.
    ///
    /// # Errors
    /// Fewer translations than it says, or a page size that can't be.
    pub fn new(context: &Umem, mtt: &[u8]) -> Result<UmemObject, ObjectError> {
        let page_shift = u32::from(context.log_page_size()) + PAGE_UNIT_SHIFT;
        let count = context.num_of_mtt();
        let offset = u64::from(context.page_offset());
        let have = (mtt.len() / 8) as u64;
        if count > have {
            return Err(ObjectError::FewPages { have, need: count });
        }
        let bytes = count.checked_shl(page_shift).filter(|b| b >> page_shift == count);
        let bytes = bytes.ok_or(ObjectError::BadValue {
            field: "num_of_mtt",
            value: count,
            reason: "the region passes 2^64 bytes",
        })?;
        let len = bytes.saturating_sub(offset);
        Ok(UmemObject {
            pages: PageList::from_pas(mtt, page_shift, offset, len)?,
            users: 0,
        })
    }
}
