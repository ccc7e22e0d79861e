//! UAR pages: which write is which doorbell (PRM, UAR page).

use super::DataPlane;
use super::violation::Violation;

/// CQ arm: two dwords.
const CQ_ARM: u32 = 0x20;
/// EQ consumer index, and arm.
const EQ_ARM: u32 = 0x40;
/// EQ consumer index alone.
const EQ_UPDATE: u32 = 0x48;
/// The first send doorbell register.
pub(super) const SEND: u32 = 0x800;
/// Bytes of a UAR page.
pub(super) const UAR_BYTES: u32 = 0x1000;

impl DataPlane {
    /// A write of the host to UAR page `uar`, at `offset` in it: 4 bytes, 8 bytes, or a longer burst.
    pub fn uar_write(&mut self, uar: u32, offset: u32, data: &[u8]) {
        let Some(page) = self.objects.uars.get_mut(uar) else {
            self.violations.note(
                Violation::UnknownUar,
                format_args!("write to UAR {uar:#x} + {offset:#x}"),
            );
            return;
        };
        let half = page.half.take();
        if let Some(recorder) = &self.recorder {
            recorder.uar(uar, offset, data);
        }
        if !self.bus_master {
            self.violations
                .note(Violation::BusMasterOff, format_args!("doorbell in UAR {uar:#x}"));
            return;
        }
        let words = words(data);
        match (offset, words) {
            (EQ_ARM | EQ_UPDATE, Some((value, None))) => self.eq_doorbell(uar, value, offset == EQ_ARM),
            (CQ_ARM, Some((image, Some(cqn)))) => self.cq_doorbell(uar, image, cqn),
            (SEND..UAR_BYTES, Some((_, Some(_)))) if self.starts_register(offset) => {
                self.begin_slot(uar, offset, data);
            }
            // The rest of a WQE that comes in pieces.
            (SEND..UAR_BYTES, Some(_)) if !self.in_first_8_bytes(offset) => {
                let at = (offset - SEND) % self.half_register_bytes();
                self.go_on_in_slot(uar, offset - at, at, data);
            }
            // A 32-bit host writes the two dwords of a doorbell one by one.
            (CQ_ARM, Some((first, None))) => self.remember_half(uar, offset, first),
            (SEND..UAR_BYTES, Some((first, None))) if self.starts_register(offset) => {
                self.remember_half(uar, offset, first);
            }
            (_, Some((second, None))) if half.is_some_and(|(at, _)| at + 4 == offset) => {
                let (at, first) = half.unwrap_or_default();
                let mut both = [0; 8];
                both[..4].copy_from_slice(&first.to_be_bytes());
                both[4..].copy_from_slice(&second.to_be_bytes());
                self.uar_write(uar, at, &both);
            }
            _ => {
                let what = format_args!("{} bytes at {offset:#x} in UAR {uar:#x}", data.len());
                self.violations.note(Violation::BadDoorbell, what);
            }
        }
    }

    /// Doorbell registers alternate between two halves.
    pub(super) fn half_register_bytes(&self) -> u32 {
        1 << self.limits.log_bf_reg_size.clamp(5, 10) >> 1
    }

    fn starts_register(&self, offset: u32) -> bool {
        (offset - SEND).is_multiple_of(self.half_register_bytes())
    }

    fn in_first_8_bytes(&self, offset: u32) -> bool {
        (offset - SEND) % self.half_register_bytes() < 8
    }

    fn remember_half(&mut self, uar: u32, offset: u32, first: u32) {
        if let Some(page) = self.objects.uars.get_mut(uar) {
            page.half = Some((offset, first));
        }
    }

    /// A send doorbell: only the QPN counts, the producer index is read from the record.
    pub(super) fn send_doorbell(&mut self, uar: u32, qpn: u32) {
        self.counters.send_doorbells += 1;
        self.record_sends(qpn);
        if let Some(sq) = self.objects.sqs.get(qpn) {
            if sq.uar_page == uar {
                self.wake_sq(qpn);
            } else {
                let what = format_args!("SQ {qpn:#x} of UAR {:#x} rung in UAR {uar:#x}", sq.uar_page);
                self.violations.note(Violation::ForeignUar, what);
            }
            return;
        }
        let Some(qp) = self.objects.qps.get(qpn) else {
            self.violations
                .note(Violation::UnknownObject, format_args!("doorbell of QP {qpn:#x}"));
            return;
        };
        if qp.uar_page != uar {
            let what = format_args!("QP {qpn:#x} of UAR {:#x} rung in UAR {uar:#x}", qp.uar_page);
            self.violations.note(Violation::ForeignUar, what);
            return;
        }
        self.wake(qpn);
    }
}

/// The first two big-endian dwords of a write; `None` when it has less than one or is not whole dwords.
fn words(data: &[u8]) -> Option<(u32, Option<u32>)> {
    if !data.len().is_multiple_of(4) {
        return None;
    }
    let word = |at: usize| {
        data.get(at..at + 4)
            .map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    };
    Some((word(0)?, word(4)))
}
