//! The producer of a send queue of Ethernet frames.
//!
//! A WQE is a control segment, an Ethernet segment whose end holds the first two bytes of the inline header, the rest of
//! that header, and a data segment for what is not inline. The device may ask for headers inline, to choose a way
//! before it has fetched the data (`wqe_inline_mode`).
//!
//! Source: `linux-bringup.md` of the project's PRM notes, 8.2 and 8.3.

use std::sync::Arc;

use ferroce_hw_regs::dbr::QP_SND;
use ferroce_hw_regs::wqe::{CtrlSeg, DS_BYTES, DataSeg, WQEBB_BYTES, ctrl_flags, opcode};
use zerocopy::IntoBytes;

use crate::barrier;
use crate::mem::DmaRing;
use crate::mmio::Doorbell;
use crate::ring::{Sge, WqShared};

/// Bytes of the inline header that stand in the Ethernet segment.
const INLINE_START: usize = 2;
/// Offset of the inline header's size in the Ethernet segment.
const INLINE_SIZE_AT: usize = 12;
/// Longest inline header of any mode.
const MAX_INLINE: usize = 118;
/// Segments of the largest WQE: control, Ethernet, the inline header's rest, data.
const MAX_SEGS: usize = 3 + (MAX_INLINE - INLINE_START).div_ceil(DS_BYTES);

/// How many bytes of a frame the device wants in the WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InlineMode {
    None,
    L2,
    Ip,
    TcpUdp,
}

impl InlineMode {
    /// From `min_wqe_inline_mode` of the virtual port.
    pub(super) fn from_prm(value: u8) -> InlineMode {
        match value {
            0 => InlineMode::None,
            1 => InlineMode::L2,
            2 => InlineMode::Ip,
            // What is not known gets the most.
            _ => InlineMode::TcpUdp,
        }
    }

    pub(super) fn prm(self) -> u8 {
        self as u8
    }

    /// Bytes: Ethernet with a tag 18, IPv6 40, TCP with options 60.
    fn bytes(self) -> usize {
        match self {
            InlineMode::None => 0,
            InlineMode::L2 => 18,
            InlineMode::Ip => 18 + 40,
            InlineMode::TcpUdp => MAX_INLINE,
        }
    }

    /// Blocks of a WQE.
    pub(super) fn blocks(self) -> u32 {
        let segs = 3 + self.bytes().saturating_sub(INLINE_START).div_ceil(DS_BYTES);
        (segs * DS_BYTES).div_ceil(WQEBB_BYTES) as u32
    }
}

/// The producer half.
#[derive(Debug)]
pub(super) struct Producer {
    mem: DmaRing<WQEBB_BYTES>,
    record: DmaRing<8>,
    doorbell: Doorbell,
    shared: Arc<WqShared<()>>,
    mode: InlineMode,
    sqn: u32,
    /// Number of the next request, modulo 2^32.
    number: u32,
    /// Block where it begins, modulo 2^16.
    pi: u32,
}

impl Producer {
    pub(super) fn new(
        mem: DmaRing<WQEBB_BYTES>,
        record: DmaRing<8>,
        doorbell: Doorbell,
        shared: Arc<WqShared<()>>,
        mode: InlineMode,
        sqn: u32,
    ) -> Producer {
        Producer {
            mem,
            record,
            doorbell,
            shared,
            mode,
            sqn,
            number: 0,
            pi: 0,
        }
    }

    /// The queue's number.
    pub(super) fn sqn(&self) -> u32 {
        self.sqn
    }

    /// Frames that are posted and not sent.
    pub(super) fn outstanding(&self) -> u32 {
        self.number.wrapping_sub(self.shared.released())
    }

    /// Number of the next frame, modulo 2^32.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Posts a frame that lies at `place` too, and rings. The caller keeps [`Producer::outstanding`] below what the queue
    /// was made for.
    pub(super) fn post(&mut self, frame: &[u8], place: Sge) {
        let (segs, count) = wqe(self.mode, self.pi, self.sqn, frame, place);
        let mut run = self.mem.run(self.pi);
        for (part, seg) in segs.iter().take(count).enumerate().rev() {
            run.store_part::<DS_BYTES>(part as u32, seg);
        }
        self.shared
            .slots()
            .at(self.pi)
            .fill(self.number.into(), self.number, 0);
        self.number = self.number.wrapping_add(1);
        let blocks = (count * DS_BYTES).div_ceil(WQEBB_BYTES) as u32;
        self.pi = (self.pi + blocks) & 0xffff;
        barrier::before_doorbell_record();
        self.record.store_be32::<QP_SND>(0, self.pi);
        barrier::before_doorbell();
        self.doorbell
            .ring_bytes(*segs[0].first_chunk().unwrap_or(&[0; 8]));
    }
}

/// The segments of a WQE, and how many there are.
fn wqe(mode: InlineMode, pi: u32, sqn: u32, frame: &[u8], place: Sge) -> ([[u8; DS_BYTES]; MAX_SEGS], usize) {
    let inline = mode.bytes().min(frame.len());
    let mut segs = [[0; DS_BYTES]; MAX_SEGS];
    let header = segs.as_flattened_mut();
    let eth = DS_BYTES;
    header[eth + INLINE_SIZE_AT..][..2].copy_from_slice(&(inline as u16).to_be_bytes());
    header[eth + INLINE_SIZE_AT + 2..][..inline].copy_from_slice(&frame[..inline]);
    let mut count = 2 + inline.saturating_sub(INLINE_START).div_ceil(DS_BYTES);
    if inline < frame.len() {
        let data = DataSeg {
            byte_count: (place.len() - inline as u32).into(),
            lkey: place.key().into(),
            addr: (place.addr() + inline as u64).into(),
        };
        segs[count].copy_from_slice(data.as_bytes());
        count += 1;
    }
    let ctrl = CtrlSeg {
        opmod_idx_opcode: (pi << 8 | u32::from(opcode::SEND)).into(),
        qpn_ds: (sqn << 8 | count as u32).into(),
        signature: 0,
        rsvd: [0; 2],
        fm_ce_se: ctrl_flags::CQ_UPDATE,
        imm: 0.into(),
    };
    segs[0].copy_from_slice(ctrl.as_bytes());
    (segs, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Lkey;

    fn made(mode: InlineMode, len: u32) -> (Vec<u8>, usize) {
        let frame: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let place = Sge::new(0x1_0000, len, Lkey::new(0x1234_0001).unwrap());
        let (segs, count) = wqe(mode, 0x1_0003 & 0xffff, 0x77, &frame, place);
        (segs.as_flattened()[..count * 16].to_vec(), count)
    }

    #[test]
    fn layer_2_headers_stand_in_the_ethernet_segment_and_behind_it() {
        let (bytes, count) = made(InlineMode::L2, 100);
        assert_eq!((count, InlineMode::L2.blocks()), (4, 1));
        assert_eq!(
            bytes[..16],
            [0, 0, 3, 0x0a, 0, 0, 0x77, 4, 0, 0, 0, 8, 0, 0, 0, 0]
        );
        assert_eq!(bytes[16..32], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 18, 0, 1]);
        assert_eq!(
            bytes[32..48],
            [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]
        );
        assert_eq!(
            bytes[48..64],
            [0, 0, 0, 82, 0x12, 0x34, 0, 1, 0, 0, 0, 0, 0, 1, 0, 18]
        );
    }

    #[test]
    fn nothing_or_all_may_be_inline() {
        let (bytes, count) = made(InlineMode::None, 60);
        assert_eq!((count, bytes[29], bytes[35]), (3, 0, 60));
        let (bytes, count) = made(InlineMode::TcpUdp, 60);
        // 58 bytes behind the first two, and no data segment.
        assert_eq!((count, bytes[29], bytes[32 + 57]), (2 + 4, 60, 59));
        assert_eq!(InlineMode::TcpUdp.blocks(), 3);
        assert_eq!(
            [0, 1, 2, 3, 7].map(|mode| InlineMode::from_prm(mode).prm()),
            [0, 1, 2, 3, 3]
        );
    }
}
