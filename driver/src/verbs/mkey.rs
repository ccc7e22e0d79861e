//! Memory keys: how firmware is told of a region.

use std::sync::atomic::{AtomicU8, Ordering};

use bitflags::bitflags;
use ferroce_firmware_iface::cmds::{CreateMkey, DestroyMkey};
use ferroce_firmware_iface::layouts::Mkc;
use ferroce_hw_regs::ids::Mkey;

use super::atomics;
use super::error::{CreateError, LimitError};
use super::pages;
use super::pd::Pd;
use crate::context::Context;
use crate::ring::OWNED_KEY_BIT;

bitflags! {
    /// What a memory region may be used for. The device can always read it for this side's own requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u8 {
        /// This side's receives, READs and atomics may write to it.
        const LOCAL_WRITE = 1 << 0;
        /// The peer's WRITEs may write to it. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// The peer's READs may read it.
        const REMOTE_READ = 1 << 2;
        /// The peer's atomics may change it. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

impl Access {
    /// All that the device does: without `REMOTE_ATOMIC` where it does no atomics.
    pub fn supported_by(context: &Context) -> Access {
        if atomics::supported(context.caps()) {
            Access::all()
        } else {
            Access::all() - Access::REMOTE_ATOMIC
        }
    }
}

/// `mkc.access_mode_1_0`: pages in a translation table.
const ACCESS_MODE_MTT: u8 = 1;
/// `mkc.qpn` of a key that is not bound to one queue pair.
const ANY_QPN: u32 = 0xff_ffff;

/// Who may name a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// Callers and peers.
    Region,
    /// Callers and peers, and a peer may end it by SEND with invalidate.
    Invalidatable,
    /// Only the request that owns the buffer, see [`Lkey`](crate::ring::Lkey).
    Owned,
}

/// Checks a length against the device's limit.
pub(crate) fn check_len(pd: &Pd, len: usize) -> Result<(), CreateError> {
    if len == 0 {
        return Err(CreateError::ZeroLength);
    }
    let log_max = pd.context().caps().general().log_max_mrw_sz();
    // 64 and more is no limit, and so is 0: a device that has not been told of one.
    if let Some(max) = 1u64.checked_shl(log_max.into()).filter(|_| log_max != 0) {
        let reason = "is the device's limit (log_max_mrw_sz)";
        LimitError::check("memory region", "length", len as u64, 1..=max, reason)?;
    }
    Ok(())
}

/// Makes a key over `len` bytes at `iova`, whose addresses are the IOVAs.
pub(crate) fn create(
    pd: &Pd,
    iova: u64,
    len: usize,
    access: Access,
    kind: KeyKind,
) -> Result<Mkey, CreateError> {
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
        && !access.contains(Access::LOCAL_WRITE)
    {
        return Err(CreateError::NeedsLocalWrite);
    }
    if !Access::supported_by(pd.context()).contains(access) {
        let what = "it does no atomics, so that no region can allow them (Access::supported_by)";
        return Err(CreateError::Capability { what });
    }
    let list = pages::of_region(iova, len as u64);
    let variant = next_variant(kind);
    let mut mkc = Mkc::default();
    mkc.set_access_mode_1_0(ACCESS_MODE_MTT)?;
    mkc.set_lr(true);
    mkc.set_lw(access.contains(Access::LOCAL_WRITE));
    mkc.set_rr(access.contains(Access::REMOTE_READ));
    mkc.set_rw(access.contains(Access::REMOTE_WRITE));
    mkc.set_a(access.contains(Access::REMOTE_ATOMIC));
    mkc.set_en_rinval(kind == KeyKind::Invalidatable);
    mkc.set_qpn(ANY_QPN)?;
    mkc.set_mkey_7_0(variant);
    mkc.set_pd(pd.pdn().get())?;
    mkc.set_start_addr(iova);
    mkc.set_len(len as u64);
    mkc.set_log_page_size(list.log_page_bytes as u8)?;
    let index = pd.context().exec(&CreateMkey {
        mkc: &mkc,
        translations: &list.pages,
    })?;
    Ok(Mkey::new(index, variant))
}

/// The command that ends a key.
pub(crate) fn destroy(key: Mkey) -> DestroyMkey {
    DestroyMkey { index: key.index() }
}

/// The part of a key that the driver chooses: another one each time, so that a stale key seldom means something.
fn next_variant(kind: KeyKind) -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let owned = OWNED_KEY_BIT as u8;
    let variant = NEXT.fetch_add(1, Ordering::Relaxed) & !owned;
    match kind {
        KeyKind::Region | KeyKind::Invalidatable => variant,
        KeyKind::Owned => variant | owned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Lkey;

    #[test]
    fn keys_of_owned_buffers_can_not_be_named_by_callers() {
        for _ in 0..300 {
            assert!(Lkey::new(next_variant(KeyKind::Owned).into()).is_none());
            assert!(Lkey::new(next_variant(KeyKind::Region).into()).is_some());
        }
    }
}
