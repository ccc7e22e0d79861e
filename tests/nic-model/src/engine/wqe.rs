//! Whole WQEs out of a send ring, for queues whose WQEs are not those of a transport.

use super::read_ring;
use crate::host::HostMemory;
use crate::objects::PageList;
use crate::objects::qp::{SendRing, WQEBB_BYTES};

/// Bytes of a segment.
pub(super) const SEGMENT: usize = 16;
/// A WQE has at most 63 segments.
const MAX_WQE_BYTES: usize = 64 * SEGMENT;
/// Completion requested, in the flags of the control segment.
const COMPLETION: u8 = 0x08;

/// A WQE.
pub(super) struct Wqe {
    bytes: [u8; MAX_WQE_BYTES],
    /// Bytes of it: 16 for each segment.
    pub len: usize,
    /// Index of its first block.
    pub index: u16,
}

impl Wqe {
    /// The opcode.
    pub fn opcode(&self) -> u8 {
        self.bytes[3]
    }

    /// Whether its success is to be completed.
    pub fn signaled(&self) -> bool {
        self.bytes[11] & 0xc >= COMPLETION
    }

    /// The segments, the control segment first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The big-endian word there; 0 past the end.
    pub fn be32(&self, at: usize) -> u32 {
        let bytes = self.bytes().get(at..at + 4);
        bytes.map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// The big-endian half word there; 0 past the end.
    pub fn be16(&self, at: usize) -> u16 {
        let bytes = self.bytes().get(at..at + 2);
        bytes.map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
    }

    /// The big-endian double word there; 0 past the end.
    pub fn be64(&self, at: usize) -> u64 {
        u64::from(self.be32(at)) << 32 | u64::from(self.be32(at + 4))
    }
}

/// Takes the next WQE before block `pi`; `None` when there is none.
///
/// # Errors
/// What is wrong with it. The ring's consumer index stays then.
pub(super) fn take(
    host: &HostMemory,
    buffer: &PageList,
    ring: &mut SendRing,
    pi: u16,
) -> Result<Option<Wqe>, &'static str> {
    let pending = pi.wrapping_sub(ring.ci);
    if pending == 0 || ring.wqebbs == 0 {
        return Ok(None);
    }
    if u32::from(pending) > ring.wqebbs {
        return Err("more WQEs are posted than the ring has");
    }
    let mut wqe = Wqe {
        bytes: [0; MAX_WQE_BYTES],
        len: WQEBB_BYTES as usize,
        index: ring.ci,
    };
    let mut blocks = 1;
    let mut block = 0u16;
    while block < blocks {
        let slot = u32::from(ring.ci.wrapping_add(block)) & (ring.wqebbs - 1);
        let from = usize::from(block) * WQEBB_BYTES as usize;
        let out = &mut wqe.bytes[from..from + WQEBB_BYTES as usize];
        let at = ring.base + u64::from(slot * WQEBB_BYTES);
        read_ring(host, buffer, at, out).map_err(|_| "its ring is not mapped")?;
        if block == 0 {
            let segments = usize::from(wqe.bytes[7] & 0x3f);
            if segments == 0 {
                return Err("a WQE without segments");
            }
            wqe.len = segments * SEGMENT;
            blocks = wqe.len.div_ceil(WQEBB_BYTES as usize) as u16;
            if blocks > pending {
                return Err("a WQE is longer than what is posted");
            }
        }
        block += 1;
    }
    ring.ci = ring.ci.wrapping_add(blocks);
    Ok(Some(wqe))
}
