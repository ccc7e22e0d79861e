//! The QP that changes memory keys: User-Mode Memory Registration (PRM, "UMR WQE").
//!
//! Linux registers memory with it where the firmware lets UMR change the size of a key: keys are made in advance
//! in the free state, and a WQE gives one its pages, range and rights.

use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::Mkc;
use ferroce_hw_regs::cqe::opcode as cqe_opcode;
use ferroce_hw_regs::wqe::opcode;
use zerocopy::FromBytes;

use super::DataPlane;
use super::completion::Completion;
use super::recv::data_segment;
use super::violation::Violation;
use super::wqe::{self, SEGMENT, Wqe};
use crate::host::HostSlices;
use crate::mkey::{KeyView, Range};
use crate::objects::Mkey;
use crate::objects::mkey::Access;
use crate::payload::Payload;
use crate::rc::types::{CompletionStatus, QpState};

/// Where the UMR control segment, the key segment and the translations stand in the WQE.
const CONTROL: usize = SEGMENT;
const KEY: usize = CONTROL + 48;
const LIST: usize = KEY + 64;
/// Flags of the UMR control segment.
const INLINE: u8 = 0x80;
/// It fails if the key is free; if it is not.
const CHECK_FREE: u8 = 2 << 5;
const CHECK_NOT_FREE: u8 = 1 << 5;
const TRANSLATION_OFFSET: u8 = 0x10;
/// Bytes of an octword: two page addresses.
const OCTWORD: usize = 16;

impl DataPlane {
    /// Executes the next WQE of a UMR QP; false when there is none.
    pub(super) fn run_umr(&mut self, qpn: u32) -> bool {
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return false;
        };
        let flush = qp.state == QpState::Err;
        if qp.sq.stuck {
            return false;
        }
        let Ok(pi) = self.host.read_be32(qp.dbr.wrapping_add(4)) else {
            self.violations
                .note(Violation::HostMemory, format_args!("record of QP {qpn:#x}"));
            return false;
        };
        let (pd, buffer) = (qp.pd, qp.buffer.clone());
        let wqe = match wqe::take(&self.host, &buffer, &mut qp.sq, pi as u16) {
            Ok(Some(wqe)) => wqe,
            Ok(None) => return false,
            Err(what) => {
                qp.sq.stuck = true;
                qp.state = QpState::Err;
                self.violations
                    .note(Violation::BadWqe, format_args!("QP {qpn:#x}: {what}"));
                return false;
            }
        };
        self.counters.send_wqes += 1;
        let status = if flush {
            CompletionStatus::Flushed
        } else {
            match self.execute_umr(qpn, pd, &wqe) {
                Ok(()) => CompletionStatus::Success,
                Err(what) => {
                    self.violations
                        .note(Violation::BadWqe, format_args!("UMR of QP {qpn:#x}: {what}"));
                    if let Some(qp) = self.objects.qps.get_mut(qpn) {
                        qp.state = QpState::Err;
                    }
                    CompletionStatus::LocalQpOperation
                }
            }
        };
        if wqe.signaled() || status != CompletionStatus::Success {
            self.complete_umr(qpn, &wqe, status);
        }
        true
    }

    fn complete_umr(&mut self, qpn: u32, wqe: &Wqe, status: CompletionStatus) {
        let Some(qp) = self.objects.qps.get(qpn) else {
            return;
        };
        let good = status == CompletionStatus::Success;
        let completion = Completion {
            opcode: if good {
                cqe_opcode::REQ
            } else {
                cqe_opcode::REQ_ERR
            },
            qpn,
            send_opcode: wqe.opcode(),
            user_index: qp.user_index,
            wqe_counter: wqe.index,
            syndrome: status.syndrome(),
            ..Completion::default()
        };
        let cqn = qp.cqn_snd;
        self.complete(cqn, &completion);
    }

    fn execute_umr(&mut self, qpn: u32, pd: u32, wqe: &Wqe) -> Result<(), &'static str> {
        match wqe.opcode() {
            opcode::NOP => return Ok(()),
            opcode::UMR => {}
            _ => return Err("an opcode that a UMR QP does not know"),
        }
        let segment = wqe.bytes().get(KEY..LIST).ok_or("no key segment")?;
        let new = Mkc::ref_from_bytes(segment).map_err(|_| "no key segment")?;
        let flags = wqe.bytes()[CONTROL];
        let octwords = usize::from(wqe.be16(CONTROL + 4));
        let mask = wqe.be64(CONTROL + 8);
        let offset = if flags & TRANSLATION_OFFSET != 0 {
            usize::from(wqe.be16(CONTROL + 6)) | (wqe.be32(CONTROL + 16) as usize) << 16
        } else {
            0
        };
        let list = self.translations(qpn, pd, wqe, flags, octwords)?;
        // The key to change: its index; the variant may be about to change.
        let index = wqe.be32(12) >> 8;
        let old = self.objects.mkeys.get(index).ok_or("no such key")?;
        if !old.context.umr_en() {
            return Err("the key does not allow UMR");
        }
        if flags & CHECK_FREE != 0 && old.free || flags & CHECK_NOT_FREE != 0 && !old.free {
            return Err("the key is not in the state that the WQE expects");
        }
        let updated = old.updated(new, mask, offset * 2, &list)?;
        let (old_pd, new_pd) = (old.pd, updated.pd);
        self.need_pd(new_pd).map_err(|_| "no such PD")?;
        self.use_pd(old_pd, -1);
        self.use_pd(new_pd, 1);
        if let Some(key) = self.objects.mkeys.get_mut(index) {
            *key = updated;
        }
        Ok(())
    }

    /// The page addresses that the WQE brings.
    fn translations(
        &self,
        qpn: u32,
        pd: u32,
        wqe: &Wqe,
        flags: u8,
        octwords: usize,
    ) -> Result<Vec<u64>, &'static str> {
        let bytes = octwords * OCTWORD;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let list = wqe.bytes().get(LIST..).unwrap_or_default();
        let entries = if flags & INLINE != 0 {
            list.get(..bytes)
                .ok_or("fewer translations than it says")?
                .to_vec()
        } else {
            let sge = data_segment(list.get(..SEGMENT).ok_or("no data segment")?);
            if (sge.len as usize) < bytes {
                return Err("the data segment is shorter than the translations");
            }
            let view = KeyView {
                mkeys: &self.objects.mkeys,
                pd,
                qpn,
            };
            let range = Range {
                key: sge.lkey,
                va: sge.addr,
                len: bytes as u64,
            };
            let mut slices = HostSlices::new();
            view.slices(&self.host, range, Access::LOCAL_READ, &mut slices)
                .map_err(|_| "the translations are outside of their key")?;
            Payload::from_host(slices)
                .to_vec()
                .map_err(|_| "the translations are not mapped")?
        };
        let chunks = entries.chunks_exact(8);
        Ok(chunks
            .map(|c| c.try_into().map_or(0, u64::from_be_bytes))
            .collect())
    }
}

/// Bits of `mkey_mask`.
mod mask {
    pub const LEN: u64 = 1 << 0;
    pub const PAGE_SIZE: u64 = 1 << 1;
    pub const START_ADDR: u64 = 1 << 6;
    pub const PD: u64 = 1 << 7;
    pub const EN_RINVAL: u64 = 1 << 8;
    pub const KEY: u64 = 1 << 13;
    pub const QPN: u64 = 1 << 14;
    pub const LR: u64 = 1 << 17;
    pub const LW: u64 = 1 << 18;
    pub const RR: u64 = 1 << 19;
    pub const RW: u64 = 1 << 20;
    pub const A: u64 = 1 << 21;
    pub const FREE: u64 = 1 << 29;
}

/// Most page addresses of a key, whatever its context says: 1 TiB of 4 KiB pages.
const MAX_ENTRIES: usize = 1 << 28;

/// A UMR brings whole 64 bytes of page addresses, even for a key with room for fewer.
const ALIGNED_ENTRIES: usize = 8;

impl Mkey {
    /// The key as it is after a UMR: what `fields` names is taken over from `new`, `list` from entry `at` on.
    fn updated(&self, new: &Mkc, fields: u64, at: usize, list: &[u64]) -> Result<Mkey, &'static str> {
        let mut context = self.context;
        take_fields(&mut context, new, fields).map_err(|_| "a field does not fit")?;
        let room = (self.context.translations_octword_size() as usize)
            .saturating_mul(2)
            .min(MAX_ENTRIES)
            .next_multiple_of(ALIGNED_ENTRIES);
        if at.checked_add(list.len()).is_none_or(|end| end > room) {
            return Err("more translations than the key has room for");
        }
        let mut entries = self.entries.clone();
        if !list.is_empty() {
            if entries.len() < at + list.len() {
                entries.resize(at + list.len(), 0);
            }
            entries[at..at + list.len()].copy_from_slice(list);
        }
        let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_be_bytes()).collect();
        let mut key = Mkey::new(self.index, &context, |shift, offset, len| {
            crate::objects::PageList::from_pas(&bytes, shift, offset, len)
        })
        .map_err(|error| {
            log::debug!("memory key {:#x}: {error}", self.index);
            "the key that it makes can't be had"
        })?;
        key.entries = entries;
        Ok(key)
    }
}

fn take_fields(
    to: &mut Mkc,
    new: &Mkc,
    fields: u64,
) -> Result<(), ferroce_firmware_iface::layout::ValueTooWide> {
    let has = |bit| fields & bit != 0;
    if has(mask::LEN) {
        to.set_len(new.len());
        to.set_length64(new.length64());
    }
    if has(mask::PAGE_SIZE) {
        to.set_log_page_size(new.log_page_size())?;
    }
    if has(mask::START_ADDR) {
        to.set_start_addr(new.start_addr());
    }
    if has(mask::PD) {
        to.set_pd(new.pd())?;
    }
    if has(mask::EN_RINVAL) {
        to.set_en_rinval(new.en_rinval());
    }
    if has(mask::KEY) {
        to.set_mkey_7_0(new.mkey_7_0());
    }
    if has(mask::QPN) {
        to.set_qpn(new.qpn())?;
    }
    if has(mask::LR) {
        to.set_lr(new.lr());
    }
    if has(mask::LW) {
        to.set_lw(new.lw());
    }
    if has(mask::RR) {
        to.set_rr(new.rr());
    }
    if has(mask::RW) {
        to.set_rw(new.rw());
    }
    if has(mask::A) {
        to.set_a(new.a());
    }
    if has(mask::FREE) {
        to.set_free(new.free());
    }
    debug_assert_eq!(Mkc::INFO.bytes, LIST - KEY);
    Ok(())
}
