//! BlueFlame: WQEs that come with the doorbell write, and what a driver can get wrong with them.
//!
//! A write to the start of a slot is a doorbell by its first 8 bytes, at once. What follows them, in order and in whole
//! pieces of 64 bytes, makes a WQE of it. Where a whole piece comes in one write, it is known from the start that it is one, and the
//! WQE is taken from the slot; where it comes 8 bytes by 8, as through a virtual machine's traps, the WQE is fetched from
//! the ring, as devices are free to. Either way the slot has to hold what the ring holds.
//!
//! Slots of a register that takes WQEs alternate, doorbells among them. A register that takes nothing but doorbells need not.

use super::DataPlane;
use super::record::read_wqe;
use super::violation::Violation;
use crate::objects::qp::{SlotWqe, WQEBB_BYTES};
use crate::objects::uar::OpenWqe;

/// Bytes of a piece.
const PIECE: usize = 64;

impl DataPlane {
    /// A write to the start of slot `slot` of a UAR page: a doorbell, or a WQE that begins.
    pub(super) fn begin_slot(&mut self, uar: u32, slot: u32, data: &[u8]) {
        // Mostly it was a doorbell, whose memory does for the next.
        let mut bytes = self.end_slot(uar);
        bytes.clear();
        bytes.extend_from_slice(data);
        let register = (slot - super::doorbell::SEND) / (2 * self.half_register_bytes());
        let Some(page) = self.objects.uars.get_mut(uar) else {
            return;
        };
        let state = page.registers.entry(register).or_default();
        let reused = state.last == Some(slot);
        state.last = Some(slot);
        let open = OpenWqe {
            register,
            slot,
            bytes,
            reused,
            waits: data.len() >= PIECE,
        };
        let qpn = open.qpn();
        if open.waits {
            self.grow(uar, open);
        } else {
            let complain = reused && state.takes_wqes;
            // A doorbell, as long as nothing follows; one complaint is enough.
            page.open = Some(OpenWqe {
                reused: reused && !complain,
                ..open
            });
            if complain {
                self.complain(uar, slot, format_args!("a doorbell where the last write was"));
            }
            self.send_doorbell(uar, qpn);
        }
    }

    /// A write to another place of a slot: the WQE goes on.
    pub(super) fn go_on_in_slot(&mut self, uar: u32, slot: u32, at: u32, data: &[u8]) {
        let Some(page) = self.objects.uars.get_mut(uar) else {
            return;
        };
        match page
            .open
            .take_if(|open| open.slot == slot && open.bytes.len() == at as usize)
        {
            Some(mut open) => {
                open.bytes.extend_from_slice(data);
                self.grow(uar, open);
            }
            None => {
                let due = page.open.as_ref().map(|open| (open.slot, open.bytes.len()));
                let what = format_args!("a piece at {at:#x}, and not where one is due: {due:x?}");
                self.complain(uar, slot, what);
                self.end_slot(uar);
            }
        }
    }

    /// Another slot is written to: what is open stays as it is, and is complained of if it is not whole. Its bytes.
    fn end_slot(&mut self, uar: u32) -> Vec<u8> {
        let open = self.objects.uars.get_mut(uar).and_then(|page| page.open.take());
        let Some(open) = open else {
            return Vec::new();
        };
        // The first 8 bytes alone are a doorbell.
        if open.bytes.len() > 8 {
            let what = format_args!("a WQE of {} bytes ends after {}", open.padded(), open.bytes.len());
            self.complain(uar, open.slot, what);
        }
        if open.waits {
            self.send_doorbell(uar, open.qpn());
        }
        open.bytes
    }

    /// More of a WQE has come than 8 bytes.
    fn grow(&mut self, uar: u32, mut open: OpenWqe) {
        let Some(page) = self.objects.uars.get_mut(uar) else {
            return;
        };
        page.registers.entry(open.register).or_default().takes_wqes = true;
        let (slot, due, have) = (open.slot, open.padded(), open.bytes.len());
        if have < due {
            let reused = std::mem::take(&mut open.reused);
            page.open = Some(open);
            if reused {
                self.complain(uar, slot, format_args!("a WQE where the last write was"));
            }
            return;
        }
        if open.reused {
            self.complain(uar, slot, format_args!("a WQE where the last write was"));
        }
        if have > due {
            self.complain(uar, slot, format_args!("{have} bytes of a WQE of {due}"));
        }
        self.take_wqe(uar, &open);
        if open.waits {
            self.send_doorbell(uar, open.qpn());
        }
    }

    /// A WQE is whole: holds it against the ring, and gives it to its queue.
    fn take_wqe(&mut self, uar: u32, open: &OpenWqe) {
        self.counters.blueflame_wqes += 1;
        // Linux tries with NOPs in an Ethernet SQ, other ones than in the ring, whether slots are read. Doorbells of
        // others' queues are complained of as such.
        let Some(qp) = self
            .objects
            .qps
            .get_mut(open.qpn())
            .filter(|qp| qp.uar_page == uar)
        else {
            return;
        };
        let index = open.index();
        let blocks = (open.padded() / WQEBB_BYTES as usize) as u16;
        let counted = self.host.read_be32(qp.dbr.wrapping_add(4));
        let counted = counted.map_or(0, |pi| (pi as u16).wrapping_sub(index));
        let is_counted = counted >= blocks && u32::from(counted) <= qp.sq.wqebbs;
        let is_in_ring = || {
            let wqe = read_wqe(&self.host, &qp.buffer, &qp.sq, index);
            wqe.is_some_and(|wqe| open.bytes.starts_with(&wqe))
        };
        let wrong = if !is_counted {
            "the doorbell record does not count it"
        } else if !is_in_ring() {
            "it is not what the ring holds"
        } else {
            if open.waits && index == qp.sq.ci {
                self.counters.blueflame_taken += 1;
                let bytes = open.bytes.clone();
                qp.sq.slot = Some(SlotWqe { index, bytes });
            }
            return;
        };
        self.complain(uar, open.slot, format_args!("WQE {index:#x}: {wrong}"));
    }

    fn complain(&mut self, uar: u32, slot: u32, what: std::fmt::Arguments<'_>) {
        let what = format_args!("slot {slot:#x} of UAR {uar:#x}: {what}");
        self.violations.note(Violation::BlueFlame, what);
    }
}
