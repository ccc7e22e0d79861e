//! What a QP's transport reaches: local and remote memory through keys, and receives.

use std::cell::Cell;

use super::Counters;
use super::recv::RecvSource;
use super::violation::{Violation, Violations};
use crate::host::{HostMemory, HostSlices};
use crate::mkey::{KeyView, Range, Refusal};
use crate::objects::mkey::{ANY_QPN, Access};
use crate::objects::{Mkey, Table};
use crate::payload::Payload;
use crate::rc::types::{AtomicOp, MemoryFault, QpMemory, RecvWork, RemoteAccess, Sge};

/// [`QpMemory`] of one QP, put together for the length of a call.
pub(super) struct Memory<'a> {
    pub host: &'a HostMemory,
    pub mkeys: &'a mut Table<Mkey>,
    pub pd: u32,
    pub qpn: u32,
    pub recv: RecvSource<'a>,
    pub violations: &'a mut Violations,
    pub counters: &'a mut Counters,
    /// Refusals of the host's own work; a cell, since reads come through `&self`.
    pub local_refusals: Cell<u64>,
    /// Refusals of the peer.
    pub remote_refusals: Cell<u64>,
    pub atomics_in_host_order: bool,
}

impl Memory<'_> {
    fn view(&self) -> KeyView<'_> {
        KeyView {
            mkeys: self.mkeys,
            pd: self.pd,
            qpn: self.qpn,
        }
    }

    /// The host memory of `len` bytes, `offset` bytes into the list.
    fn local(&self, sges: &[Sge], offset: u64, len: u64, wanted: Access) -> Result<HostSlices, MemoryFault> {
        let mut out = HostSlices::new();
        let mut skip = offset;
        let mut left = len;
        for sge in sges {
            if left == 0 {
                break;
            }
            let bytes = u64::from(sge.len);
            if skip >= bytes {
                skip -= bytes;
                continue;
            }
            let n = left.min(bytes - skip);
            let va = sge.addr.checked_add(skip).ok_or(MemoryFault::Protection {
                key: sge.lkey,
                va: sge.addr,
                len: bytes,
            })?;
            let range = Range {
                key: sge.lkey,
                va,
                len: n,
            };
            self.view()
                .slices(self.host, range, wanted, &mut out)
                .map_err(|refusal| self.fault(&self.local_refusals, range, &refusal))?;
            skip = 0;
            left -= n;
        }
        if left != 0 {
            return Err(MemoryFault::Protection {
                key: 0,
                va: offset,
                len,
            });
        }
        Ok(out)
    }

    fn remote(&self, range: Range, wanted: Access) -> Result<HostSlices, MemoryFault> {
        let mut out = HostSlices::new();
        self.view()
            .slices(self.host, range, wanted, &mut out)
            .map_err(|refusal| self.fault(&self.remote_refusals, range, &refusal))?;
        Ok(out)
    }

    fn fault(&self, count: &Cell<u64>, range: Range, refusal: &Refusal) -> MemoryFault {
        count.set(count.get() + 1);
        log::debug!("QP {:#x}: {refusal}", self.qpn);
        let Range { key, va, len } = range;
        match refusal {
            Refusal::Host { .. } => MemoryFault::Host { va, len },
            _ => MemoryFault::Protection { key, va, len },
        }
    }
}

fn host_fault(va: u64, len: u64) -> impl FnOnce(crate::host::HostError) -> MemoryFault {
    move |error| {
        log::debug!("host memory at {va:#x}: {error}");
        MemoryFault::Host { va, len }
    }
}

impl QpMemory for Memory<'_> {
    fn gather(&self, sges: &[Sge], offset: u64, len: u32) -> Result<Payload, MemoryFault> {
        let slices = self.local(sges, offset, u64::from(len), Access::LOCAL_READ)?;
        Ok(Payload::from_host(slices))
    }

    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &Payload) -> Result<(), MemoryFault> {
        let len = data.len() as u64;
        let slices = self.local(sges, offset, len, Access::LOCAL_WRITE)?;
        data.copy_to_host(&slices, 0).map_err(host_fault(offset, len))
    }

    fn scatter_atomic(&mut self, sges: &[Sge], value: u64) -> Result<(), MemoryFault> {
        let bytes = if self.atomics_in_host_order {
            value.to_le_bytes()
        } else {
            value.to_be_bytes()
        };
        self.scatter(sges, 0, &Payload::from_vec(bytes.to_vec()))
    }

    fn check_remote(&self, rkey: u32, va: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryFault> {
        let wanted = match access {
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Write => Access::REMOTE_WRITE,
            RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        };
        let checked = self.view().check(rkey, va, len, wanted);
        checked
            .map(drop)
            .map_err(|refusal| self.fault(&self.remote_refusals, Range { key: rkey, va, len }, &refusal))
    }

    fn remote_write(&mut self, rkey: u32, va: u64, data: &Payload) -> Result<(), MemoryFault> {
        let len = data.len() as u64;
        let slices = self.remote(Range { key: rkey, va, len }, Access::REMOTE_WRITE)?;
        data.copy_to_host(&slices, 0).map_err(host_fault(va, len))
    }

    fn remote_read(&self, rkey: u32, va: u64, len: u32) -> Result<Payload, MemoryFault> {
        let range = Range {
            key: rkey,
            va,
            len: u64::from(len),
        };
        Ok(Payload::from_host(self.remote(range, Access::REMOTE_READ)?))
    }

    fn remote_atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let slices = self.remote(
            Range {
                key: rkey,
                va,
                len: 8,
            },
            Access::REMOTE_ATOMIC,
        )?;
        // Eight aligned bytes lie on one page, so in one slice.
        let iova = slices
            .first()
            .map(|s| s.iova())
            .ok_or(MemoryFault::Host { va, len: 8 })?;
        let done = match op {
            AtomicOp::CompareSwap { compare, swap } => self.host.compare_swap(iova, compare, swap),
            AtomicOp::FetchAdd { add } => self.host.fetch_add(iova, add),
        };
        done.map_err(host_fault(va, 8))
    }

    fn take_recv(&mut self) -> Result<Option<RecvWork>, MemoryFault> {
        match self.recv.take(self.host) {
            Ok(work) => {
                self.counters.recv_wqes += u64::from(work.is_some());
                Ok(work)
            }
            Err(error) => {
                let what = format_args!("receive queue of QP {:#x}: {error}", self.qpn);
                self.violations.note(Violation::HostMemory, what);
                Err(MemoryFault::Host { va: 0, len: 0 })
            }
        }
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), MemoryFault> {
        let fault = MemoryFault::Protection {
            key: rkey,
            va: 0,
            len: 0,
        };
        let (pd, qpn) = (self.pd, self.qpn);
        let mkey = self.mkeys.get_mut(rkey >> 8).ok_or(fault)?;
        let reachable = u32::from(mkey.variant) == rkey & 0xff && mkey.pd == pd;
        let bound_elsewhere = mkey.qpn != ANY_QPN && mkey.qpn != qpn;
        // Only a key made for it may be invalidated by a peer (`mkc.en_rinval`).
        if !reachable || bound_elsewhere || mkey.free || !mkey.context.en_rinval() {
            return Err(fault);
        }
        mkey.free = true;
        Ok(())
    }

    fn recv_credits(&self) -> Option<u32> {
        self.recv.credits(self.host)
    }
}
