//! Where in host memory a queue or a region lies: a list of pages, or a part of a umem.

use std::sync::Arc;

use super::error::ObjectError;

/// The buffer of an object as a command names it.
#[derive(Clone, Copy, Debug)]
pub enum Buffer<'a> {
    /// Page addresses, be64 each, as they stand at the end of the command.
    Pas(&'a [u8]),
    /// A part of a user memory object.
    Umem {
        /// Its number.
        id: u32,
        /// Offset of the first byte in it.
        offset: u64,
    },
}

/// A run of bytes that lies on pages of one size, page `i` at `pages[i]`.
#[derive(Clone, Debug)]
pub struct PageList {
    pages: Arc<[u64]>,
    page_shift: u32,
    /// Offset of byte 0 from the start of the first page.
    offset: u64,
}

/// log2 of the unit of `log_page_size` in queue contexts (PRM: 4 KiB).
pub const PAGE_UNIT_SHIFT: u32 = 12;

impl PageList {
    /// Decodes `pas` for `len` bytes that start `offset` bytes into the first page of `1 << page_shift` bytes.
    /// Addresses beyond the needed ones are ignored; the low 12 bits are flags and are dropped.
    ///
    /// # Errors
    /// Too few addresses, or an address that is not aligned to the page size.
    pub fn from_pas(pas: &[u8], page_shift: u32, offset: u64, len: u64) -> Result<PageList, ObjectError> {
        let need = pages_needed(page_shift, offset, len)?;
        let have = (pas.len() / 8) as u64;
        if need > have {
            return Err(ObjectError::FewPages { have, need });
        }
        let mut pages = Vec::with_capacity(need as usize);
        for entry in pas.chunks_exact(8).take(need as usize) {
            let mut be = [0; 8];
            be.copy_from_slice(entry);
            let address = u64::from_be_bytes(be) & !0xfff;
            pages.push(check_aligned(address, page_shift)?);
        }
        Ok(PageList {
            pages: pages.into(),
            page_shift,
            offset,
        })
    }

    /// The part of this list that starts at `offset` and is `len` bytes long.
    ///
    /// # Errors
    /// The list is shorter than that.
    pub fn part(&self, offset: u64, len: u64) -> Result<PageList, ObjectError> {
        let start = self.offset.checked_add(offset);
        let start = start.ok_or(ObjectError::FewPages {
            have: self.pages.len() as u64,
            need: u64::MAX,
        })?;
        let need = pages_needed(self.page_shift, start, len)?;
        if need > self.pages.len() as u64 {
            return Err(ObjectError::FewPages {
                have: self.pages.len() as u64,
                need,
            });
        }
        Ok(PageList {
            pages: Arc::clone(&self.pages),
            page_shift: self.page_shift,
            offset: start,
        })
    }

    /// IOVA of byte `at`, and how many bytes from there lie on the same page; `None` past the last page.
    #[inline]
    pub fn iova(&self, at: u64) -> Option<(u64, u64)> {
        let at = self.offset.checked_add(at)?;
        let page = *self.pages.get(usize::try_from(at >> self.page_shift).ok()?)?;
        let in_page = at & ((1 << self.page_shift) - 1);
        Some((page.checked_add(in_page)?, (1 << self.page_shift) - in_page))
    }

    /// Number of pages held.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }
}

/// Bytes that a context's `page_offset` stands for: it counts 64ths of a page.
pub fn offset_in_page(page_offset: u8, page_shift: u32) -> u64 {
    u64::from(page_offset) << page_shift.saturating_sub(6).min(57)
}

fn pages_needed(page_shift: u32, offset: u64, len: u64) -> Result<u64, ObjectError> {
    let bad = |reason| ObjectError::BadValue {
        field: "log_page_size",
        value: u64::from(page_shift),
        reason,
    };
    if !(PAGE_UNIT_SHIFT..=62).contains(&page_shift) {
        return Err(bad("pages are 4 KiB to 4 EiB"));
    }
    let end = offset.checked_add(len).ok_or(bad("the buffer wraps at 2^64"))?;
    Ok(end.div_ceil(1 << page_shift))
}

fn check_aligned(address: u64, page_shift: u32) -> Result<u64, ObjectError> {
    if address & ((1 << page_shift) - 1) != 0 {
        return Err(ObjectError::BadValue {
            field: "pas",
            value: address,
            reason: "not aligned to the page size",
        });
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pas(list: &[u64]) -> Vec<u8> {
        list.iter().flat_map(|a| a.to_be_bytes()).collect()
    }

    #[test]
    fn bytes_are_found_across_pages() {
        let list = PageList::from_pas(&pas(&[0x10_003, 0x5000]), 12, 64, 8000).unwrap();
        assert_eq!(list.iova(0), Some((0x10_040, 4032)));
        assert_eq!(list.iova(4032), Some((0x5000, 4096)));
        assert_eq!(list.iova(8127), Some((0x5fff, 1)));
        assert_eq!(list.iova(8128), None);
        assert_eq!(list.iova(u64::MAX), None);
        let part = list.part(4096, 4032).unwrap();
        assert_eq!(part.iova(0), Some((0x5040, 4032)));
        assert!(list.part(4096, 4033).is_err());
        assert!(list.part(u64::MAX, 1).is_err());
    }

    #[test]
    fn too_few_or_crooked_pages_are_refused() {
        assert!(matches!(
            PageList::from_pas(&pas(&[0x1000]), 12, 0, 4097),
            Err(ObjectError::FewPages { have: 1, need: 2 })
        ));
        assert!(PageList::from_pas(&pas(&[0x1000]), 13, 0, 1).is_err());
        assert!(PageList::from_pas(&pas(&[0]), 11, 0, 1).is_err());
        assert!(PageList::from_pas(&pas(&[0]), 63, 0, 1).is_err());
        assert!(PageList::from_pas(&pas(&[0]), 12, u64::MAX, 2).is_err());
    }
}
