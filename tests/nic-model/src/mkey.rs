//! Memory keys at work: is the access allowed, and where are the bytes.
//!
//! The checks are made in one order: key known and its low byte right, not free, protection domain, QP, access
//! right, bounds. A refusal says which of them failed, for counters and logs; the wire and the CQE only learn
//! "protection" (IBTA vol. 1, 10.6.6.4 and 9.7.4.1.5).

use thiserror::Error;

use crate::host::{self, HostError, HostMemory, HostSlices};
use crate::objects::mkey::{ANY_QPN, Access, Translation};
use crate::objects::{Mkey, Table};

/// Why a memory key does not open an address.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The index names no key, or the low byte is another's.
    #[error("there is no memory key {key:#010x}")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// The key is in the free state.
    #[error("memory key {key:#010x} is free")]
    Free {
        /// The key.
        key: u32,
    },
    /// The key is of another protection domain.
    #[error("memory key {key:#010x} belongs to PD {pd:#x}")]
    WrongPd {
        /// The key.
        key: u32,
        /// Its PD.
        pd: u32,
    },
    /// The key is bound to another QP.
    #[error("memory key {key:#010x} belongs to QP {qpn:#x}")]
    WrongQp {
        /// The key.
        key: u32,
        /// Its QP.
        qpn: u32,
    },
    /// The key does not allow this kind of access.
    #[error("memory key {key:#010x} allows {has:?}, not {wanted:?}")]
    NotAllowed {
        /// The key.
        key: u32,
        /// What it allows.
        has: Access,
        /// What was wanted.
        wanted: Access,
    },
    /// The range is not inside the key's.
    #[error("{len} bytes at {va:#x} leave memory key {key:#010x}")]
    OutOfBounds {
        /// The key.
        key: u32,
        /// First address.
        va: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The key has no translation that the device can use.
    #[error("memory key {key:#010x} has no translation")]
    NoTranslation {
        /// The key.
        key: u32,
    },
    /// The host has not mapped what the key translates to.
    #[error("memory key {key:#010x} leads to memory that the host has not mapped")]
    Host {
        /// The key.
        key: u32,
        /// What the host's IOMMU would say.
        #[source]
        source: HostError,
    },
}

/// What a requester or a peer may use: the keys, from the place of one QP.
#[derive(Clone, Copy, Debug)]
pub struct KeyView<'a> {
    /// All keys.
    pub mkeys: &'a Table<Mkey>,
    /// Protection domain of the user.
    pub pd: u32,
    /// QP of the user.
    pub qpn: u32,
}

impl<'a> KeyView<'a> {
    /// The key, if it allows `wanted` on `len` bytes at `va`.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn check(&self, key: u32, va: u64, len: u64, wanted: Access) -> Result<&'a Mkey, Refusal> {
        let mkey = self
            .mkeys
            .get(key >> 8)
            .filter(|m| u32::from(m.variant) == key & 0xff);
        let mkey = mkey.ok_or(Refusal::UnknownKey { key })?;
        if mkey.free {
            return Err(Refusal::Free { key });
        }
        if mkey.pd != self.pd {
            return Err(Refusal::WrongPd { key, pd: mkey.pd });
        }
        if mkey.qpn != ANY_QPN && mkey.qpn != self.qpn {
            return Err(Refusal::WrongQp { key, qpn: mkey.qpn });
        }
        if !mkey.access.contains(wanted) {
            let has = mkey.access;
            return Err(Refusal::NotAllowed { key, has, wanted });
        }
        if !inside(mkey, va, len) {
            return Err(Refusal::OutOfBounds { key, va, len });
        }
        Ok(mkey)
    }

    /// Appends the host memory of a range to `out`, after [`KeyView::check`].
    ///
    /// # Errors
    /// As [`KeyView::check`], and memory that is not there; `out` may have grown then.
    pub fn slices(
        &self,
        host: &HostMemory,
        range: Range,
        wanted: Access,
        out: &mut HostSlices,
    ) -> Result<(), Refusal> {
        let Range { key, va, len } = range;
        let mkey = self.check(key, va, len, wanted)?;
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let dma = if wanted.intersects(writes) {
            host::Access::Write
        } else {
            host::Access::Read
        };
        let fault = |source| Refusal::Host { key, source };
        match &mkey.translation {
            Translation::Identity => {
                let bytes = usize::try_from(len).map_err(|_| Refusal::OutOfBounds { key, va, len })?;
                host.slices_into(va, bytes, dma, out).map_err(fault)
            }
            Translation::Pages(pages) => {
                let mut at = va - mkey.start;
                let mut left = len;
                while left > 0 {
                    let (iova, here) = pages.iova(at).ok_or(Refusal::OutOfBounds { key, va, len })?;
                    let n = left.min(here);
                    // A page is at most 2^40 bytes.
                    host.slices_into(iova, n as usize, dma, out).map_err(fault)?;
                    at += n;
                    left -= n;
                }
                Ok(())
            }
            Translation::None => Err(Refusal::NoTranslation { key }),
        }
    }
}

/// A range of addresses under a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// lkey or rkey.
    pub key: u32,
    /// First address.
    pub va: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Whether the range lies in the key's, without wrapping at 2^64 (case M04).
fn inside(mkey: &Mkey, va: u64, len: u64) -> bool {
    if len > 0 && va.checked_add(len - 1).is_none() {
        return false;
    }
    let Some(bytes) = mkey.len else {
        return true;
    };
    let Some(offset) = va.checked_sub(mkey.start) else {
        return false;
    };
    offset <= bytes && len <= bytes - offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::PageList;
    use ferroce_firmware_iface::layout::Layout;
    use ferroce_firmware_iface::layouts::Mkc;

    fn key(start: u64, len: u64, edit: impl FnOnce(&mut Mkc)) -> (Table<Mkey>, u32) {
        let mut mkc = Mkc::zeroed();
        mkc.set_access_mode_1_0(1).unwrap();
        mkc.set_log_page_size(12).unwrap();
        mkc.set_lr(true);
        mkc.set_rr(true);
        mkc.set_rw(true);
        mkc.set_pd(5).unwrap();
        mkc.set_qpn(ANY_QPN).unwrap();
        mkc.set_mkey_7_0(0x42);
        mkc.set_start_addr(start);
        mkc.set_len(len);
        edit(&mut mkc);
        let mut table = Table::new(0x100, 4);
        let pas: Vec<u8> = (1..64u64).flat_map(|p| (p << 12).to_be_bytes()).collect();
        let pages = |shift, offset, len| PageList::from_pas(&pas, shift, offset, len);
        let index = table.insert_with(|i| Mkey::new(i, &mkc, pages).unwrap()).unwrap();
        (table, index << 8 | 0x42)
    }

    fn view(mkeys: &Table<Mkey>) -> KeyView<'_> {
        KeyView {
            mkeys,
            pd: 5,
            qpn: 0x40,
        }
    }

    #[test]
    fn m04_ranges_end_where_the_region_ends() {
        let (table, key) = key(0x7000_0123, 0x2000, |_| {});
        let check = |va, len| view(&table).check(key, va, len, Access::REMOTE_WRITE);
        assert!(check(0x7000_0123, 0x2000).is_ok());
        assert!(check(0x7000_0123 + 0x1fff, 1).is_ok());
        for (va, len) in [
            (0x7000_0122, 1),
            (0x7000_2122, 2),
            (0x7000_2124, 0),
            (u64::MAX - 3, 8),
            (0, 1),
        ] {
            assert!(
                matches!(check(va, len), Err(Refusal::OutOfBounds { .. })),
                "{va:#x} {len}"
            );
        }
    }

    #[test]
    fn m04_the_last_bytes_of_the_address_space_do_not_wrap() {
        let (table, key) = key(u64::MAX - 0xfff, 0x1000, |_| {});
        let check = |va, len| view(&table).check(key, va, len, Access::REMOTE_READ);
        assert!(check(u64::MAX, 1).is_ok());
        assert!(matches!(check(u64::MAX, 2), Err(Refusal::OutOfBounds { .. })));
    }

    #[test]
    fn each_check_refuses_by_its_own_name() {
        let (table, key) = key(0, 0x1000, |_| {});
        let v = view(&table);
        let read = Access::REMOTE_READ;
        assert!(matches!(
            v.check(key ^ 1, 0, 1, read),
            Err(Refusal::UnknownKey { .. })
        ));
        assert!(matches!(
            v.check(key ^ 0x100, 0, 1, read),
            Err(Refusal::UnknownKey { .. })
        ));
        assert!(matches!(
            v.check(key, 0, 1, Access::REMOTE_ATOMIC),
            Err(Refusal::NotAllowed { .. })
        ));
        assert!(matches!(
            KeyView { pd: 6, ..v }.check(key, 0, 1, read),
            Err(Refusal::WrongPd { .. })
        ));
        let (table, key) = self::key(0, 0x1000, |mkc| mkc.set_qpn(0x41).unwrap());
        assert!(matches!(
            view(&table).check(key, 0, 1, read),
            Err(Refusal::WrongQp { qpn: 0x41, .. })
        ));
        let (table, key) = self::key(0, 0x1000, |mkc| mkc.set_free(true));
        assert!(matches!(
            view(&table).check(key, 0, 1, read),
            Err(Refusal::Free { .. })
        ));
    }

    #[test]
    fn memory_that_the_host_did_not_map_is_a_fault() {
        let (table, key) = key(0, 0x1000, |_| {});
        let range = Range { key, va: 0, len: 8 };
        let fault = view(&table).slices(
            &HostMemory::new(),
            range,
            Access::REMOTE_READ,
            &mut HostSlices::new(),
        );
        assert!(matches!(fault, Err(Refusal::Host { .. })));
    }
}
