//! The producer half of a send queue.
//!
//! A WQE is a control segment, what the operation needs, and data segments, each 16 bytes; it takes whole 64-byte
//! blocks, and where the ring ends it goes on at the start. The producer index counts blocks, modulo 2^16.
//! Posting only writes to the ring; [`SqProducer::ring`] shows the device all that was posted since the last time:
//! WQEs, barrier, doorbell record (word 1), barrier, UAR.
//!
//! The ring has room for `capacity` requests of the largest size that the queue was made for, so that counting
//! requests is enough to never overwrite one that is in flight.
//!
//! Source: `linux-bringup.md` of the project's PRM notes, section 8.2; layouts in `ferroce_hw_regs::wqe`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferroce_hw_regs::dbr::QP_SND;
use ferroce_hw_regs::wqe::{INLINE_LENGTH_MASK, WQEBB_BYTES as BLOCK, opcode};

use super::seg;
use super::slots::{META_BUFFER, META_INTERNAL, WqShared};
use super::wr::{Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge, total_len};
use super::{PostError, QpState, can_post_send};
use crate::barrier;
use crate::mem::DmaRing;
use crate::mmio::Doorbell;

/// Bytes of a WQE basic block.
pub(crate) const WQEBB_BYTES: u32 = BLOCK as u32;
/// Most bytes of a WQE: its size is counted in 16-byte units in 6 bits.
pub(crate) const MAX_WQE_BYTES: u32 = 63 * seg::BYTES;
/// Most bytes of inline data: its header counts them in 10 bits.
const MAX_INLINE_BYTES: u32 = INLINE_LENGTH_MASK;
/// Segments before the data at most (control, remote address, atomic).
const HEAD_SEGS: u32 = 3;
/// Segments in a block.
const WQEBB_SEGS: u32 = WQEBB_BYTES / seg::BYTES;

/// What a send queue was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SqLimits {
    /// Most outstanding requests.
    pub(crate) max_wr: u32,
    /// Most scatter/gather elements of one.
    pub(crate) max_sge: u32,
    /// Most bytes of inline data.
    pub(crate) max_inline: u32,
    /// Most bytes of a message.
    pub(crate) max_msg: u64,
    /// Whether the device does atomics.
    pub(crate) atomics: bool,
}

/// Shape of a send ring that can hold what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SqShape {
    /// Blocks in the ring, a power of two.
    pub(crate) blocks: u32,
    /// Largest WQE in bytes, before it is rounded up to blocks.
    pub(crate) wqe_bytes: u32,
    /// Inline data that such a WQE can take in each operation.
    pub(crate) max_inline: u32,
}

impl SqShape {
    /// The shape for `max_wr` requests of up to `max_sge` elements or `max_inline` bytes. `None` only where the numbers
    /// overflow; whether the device can do it is the caller's to check.
    pub(crate) fn new(max_wr: u32, max_sge: u32, max_inline: u32) -> Option<SqShape> {
        // Control and remote address; the data; an atomic has its operands and one element besides.
        let gather = max_sge.checked_mul(seg::BYTES)?;
        let inline = match max_inline {
            0 => 0,
            bytes => bytes.checked_add(4)?.checked_next_multiple_of(seg::BYTES)?,
        };
        let data = gather.max(inline).max(2 * seg::BYTES);
        let wqe_bytes = data.checked_add(2 * seg::BYTES)?;
        let per_wr = wqe_bytes.div_ceil(WQEBB_BYTES);
        let blocks = max_wr.max(1).checked_mul(per_wr)?.checked_next_power_of_two()?;
        let room = (per_wr * WQEBB_BYTES).min(MAX_WQE_BYTES) - 2 * seg::BYTES;
        Some(SqShape {
            blocks,
            wqe_bytes,
            max_inline: (room - 4).min(MAX_INLINE_BYTES),
        })
    }
}

/// The producer half of a send queue.
#[derive(Debug)]
pub(crate) struct SqProducer<T> {
    /// The ring, in segments.
    mem: DmaRing<16>,
    /// The QP's doorbell record.
    record: DmaRing<8>,
    doorbell: Doorbell,
    shared: Arc<WqShared<T>>,
    limits: SqLimits,
    /// QP number, where the control segment has it.
    qpn_ds: u32,
    /// Number of the next request, modulo 2^32.
    number: u32,
    /// Block where it begins, modulo 2^16.
    pi: u32,
    /// `shared.released()` as it was when last looked at.
    released: u32,
    /// Requests that may be outstanding now: `limits.max_wr`, or 0 where the state forbids posting.
    open: u32,
    state: QpState,
    /// First 8 bytes of the last posted WQE, as they lie in memory: what the doorbell is told.
    last_ctrl: [u8; 8],
    /// Block after the last one that the device was told of.
    rung: u32,
}

/// Position in the WQE that is being written, in segments.
struct Cursor {
    at: u32,
    segs: u32,
}

impl<T> SqProducer<T> {
    /// A producer over `mem`, whose slots `shared` has one of for each block, for the QP `qpn`, in state RESET.
    pub(crate) fn new(
        mem: DmaRing<16>,
        record: DmaRing<8>,
        doorbell: Doorbell,
        shared: Arc<WqShared<T>>,
        limits: SqLimits,
        qpn: u32,
    ) -> SqProducer<T> {
        SqProducer {
            mem,
            record,
            doorbell,
            shared,
            limits,
            qpn_ds: qpn << 8,
            number: 0,
            pi: 0,
            released: 0,
            open: 0,
            state: QpState::Reset,
            last_ctrl: [0; 8],
            rung: 0,
        }
    }

    /// Follows the QP's state: only RTS, SQD, SQE and ERR take send requests.
    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.open = if can_post_send(state) {
            self.limits.max_wr
        } else {
            0
        };
    }

    /// Starts from an empty queue with new slots, as the device does on the way to RESET.
    pub(crate) fn reset(&mut self, shared: Arc<WqShared<T>>) {
        self.shared = shared;
        (self.number, self.pi, self.released, self.rung) = (0, 0, 0, 0);
        self.record.store_be32::<QP_SND>(0, 0);
        self.set_state(QpState::Reset);
    }

    /// Requests that are posted and not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        self.number.wrapping_sub(self.shared.released())
    }

    /// Writes a request to the ring. The device doesn't see it before [`SqProducer::ring`].
    ///
    /// # Errors
    /// [`PostError`]; nothing is posted then.
    #[inline]
    pub(crate) fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_with(wr, 0)
    }

    /// Posts a request together with the buffer that its elements name. Always signaled.
    ///
    /// # Errors
    /// [`PostError`] and the buffer.
    pub(crate) fn post_owned(&mut self, wr: &SendWr<'_>, buffer: Box<T>) -> Result<(), (PostError, Box<T>)> {
        let position = self.pi;
        let wr = SendWr {
            flags: wr.flags | SendFlags::SIGNALED,
            ..*wr
        };
        match self.post_with(&wr, META_BUFFER) {
            Ok(()) => {
                drop(self.shared.put(position, buffer));
                Ok(())
            }
            Err(error) => Err((error, buffer)),
        }
    }

    /// Posts a NOP whose completion nobody sees, to find out that all before it are done.
    ///
    /// # Errors
    /// [`PostError::QueueFull`] or [`PostError::State`].
    pub(crate) fn post_marker(&mut self) -> Result<(), PostError> {
        self.admit()?;
        self.commit(0, opcode::NOP, SendFlags::SIGNALED, 0, 1, META_INTERNAL);
        Ok(())
    }

    #[inline(always)]
    fn post_with(&mut self, wr: &SendWr<'_>, meta: u32) -> Result<(), PostError> {
        self.admit()?;
        let mut cursor = Cursor {
            at: self.pi * WQEBB_SEGS + 1,
            segs: 1,
        };
        let (op, imm) = match &wr.op {
            SendOp::Send { data, imm } => {
                self.payload(&mut cursor, data)?;
                (
                    if imm.is_some() {
                        opcode::SEND_IMM
                    } else {
                        opcode::SEND
                    },
                    *imm,
                )
            }
            SendOp::Write { data, remote, imm } => {
                self.put(&mut cursor, seg::raddr(remote));
                self.payload(&mut cursor, data)?;
                (
                    if imm.is_some() {
                        opcode::RDMA_WRITE_IMM
                    } else {
                        opcode::RDMA_WRITE
                    },
                    *imm,
                )
            }
            SendOp::Read { into, remote } => {
                self.put(&mut cursor, seg::raddr(remote));
                self.gather(&mut cursor, into)?;
                (opcode::RDMA_READ, None)
            }
            SendOp::CompareSwap {
                into,
                remote,
                compare,
                swap,
            } => {
                self.atomic(&mut cursor, into, remote, *swap, *compare)?;
                (opcode::ATOMIC_CS, None)
            }
            SendOp::FetchAdd { into, remote, add } => {
                self.atomic(&mut cursor, into, remote, *add, 0)?;
                (opcode::ATOMIC_FA, None)
            }
        };
        self.commit(wr.wr_id, op, wr.flags, imm.unwrap_or(0), cursor.segs, meta);
        Ok(())
    }

    /// Whether one more request may be posted.
    #[inline(always)]
    fn admit(&mut self) -> Result<(), PostError> {
        if self.number.wrapping_sub(self.released) < self.open {
            Ok(())
        } else {
            self.admit_slowly()
        }
    }

    #[cold]
    #[inline(never)]
    fn admit_slowly(&mut self) -> Result<(), PostError> {
        if !can_post_send(self.state) {
            return Err(PostError::State {
                queue: "send",
                state: self.state,
            });
        }
        self.released = self.shared.released();
        if self.number.wrapping_sub(self.released) < self.open {
            return Ok(());
        }
        Err(PostError::QueueFull {
            queue: "send",
            max_wr: self.limits.max_wr,
        })
    }

    #[inline(always)]
    fn put(&mut self, cursor: &mut Cursor, segment: [u8; 16]) {
        self.mem.store::<0, 16>(cursor.at, &segment);
        cursor.at = cursor.at.wrapping_add(1);
        cursor.segs += 1;
    }

    #[inline(always)]
    fn payload(&mut self, cursor: &mut Cursor, data: &Payload<'_>) -> Result<(), PostError> {
        match data {
            Payload::Gather(sges) => self.gather(cursor, sges),
            Payload::Inline(bytes) => self.inline_data(cursor, bytes),
        }
    }

    #[inline(always)]
    fn gather(&mut self, cursor: &mut Cursor, sges: &[Sge]) -> Result<(), PostError> {
        if sges.len() > self.limits.max_sge as usize {
            return Err(PostError::TooManySges {
                asked: sges.len(),
                max: self.limits.max_sge,
            });
        }
        total_len(sges, self.limits.max_msg)?;
        for sge in sges {
            // A byte count of 0 would be read as 2 GiB.
            if sge.len != 0 {
                self.put(cursor, seg::data(sge));
            }
        }
        Ok(())
    }

    fn inline_data(&mut self, cursor: &mut Cursor, bytes: &[u8]) -> Result<(), PostError> {
        if bytes.len() > self.limits.max_inline as usize {
            return Err(PostError::InlineTooLong {
                asked: bytes.len(),
                max: self.limits.max_inline,
            });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        // The header and the first 12 bytes of data share the first segment.
        let (first, rest) = bytes.split_at(bytes.len().min(12));
        let mut segment = [0; 16];
        segment[..4].copy_from_slice(&seg::inline_header(bytes.len() as u32).to_be_bytes());
        segment[4..4 + first.len()].copy_from_slice(first);
        self.put(cursor, segment);
        for chunk in rest.chunks(16) {
            let mut segment = [0; 16];
            segment[..chunk.len()].copy_from_slice(chunk);
            self.put(cursor, segment);
        }
        Ok(())
    }

    #[inline(always)]
    fn atomic(
        &mut self,
        cursor: &mut Cursor,
        into: &Sge,
        remote: &RemoteAddr,
        swap_add: u64,
        compare: u64,
    ) -> Result<(), PostError> {
        if !self.limits.atomics {
            return Err(PostError::NoAtomics);
        }
        if into.len != 8 {
            return Err(PostError::AtomicLength { asked: into.len });
        }
        if self.limits.max_sge == 0 {
            return Err(PostError::TooManySges { asked: 1, max: 0 });
        }
        self.put(cursor, seg::raddr(remote));
        self.put(cursor, seg::atomic(swap_add, compare));
        self.put(cursor, seg::data(into));
        Ok(())
    }

    /// Writes the control segment and counts the request in.
    #[inline(always)]
    fn commit(&mut self, wr_id: u64, opcode: u8, flags: SendFlags, imm: u32, segs: u32, meta: u32) {
        let ctrl = seg::ctrl(
            opcode,
            self.pi,
            self.qpn_ds | segs,
            flags.bits() & SendFlags::all().bits(),
            imm,
        );
        self.mem.store::<0, 16>(self.pi * WQEBB_SEGS, &ctrl);
        let slot = self.shared.slot(self.pi);
        slot.wr_id.store(wr_id, Ordering::Relaxed);
        slot.number.store(self.number, Ordering::Relaxed);
        slot.meta.store(meta, Ordering::Relaxed);
        self.last_ctrl = *ctrl.first_chunk().unwrap_or(&[0; 8]);
        self.number = self.number.wrapping_add(1);
        self.pi = (self.pi + segs.div_ceil(WQEBB_SEGS)) & 0xffff;
    }

    /// Shows the device what was posted since the last call, if anything.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.rung == self.pi {
            return;
        }
        barrier::before_doorbell_record();
        self.record.store_be32::<QP_SND>(0, self.pi);
        barrier::before_doorbell();
        self.doorbell.ring_bytes(self.last_ctrl);
        self.rung = self.pi;
    }
}

const _: () = assert!(HEAD_SEGS * seg::BYTES < WQEBB_BYTES);

#[cfg(test)]
#[path = "sq_tests.rs"]
mod tests;
