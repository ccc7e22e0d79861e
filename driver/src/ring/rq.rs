//! The producer half of a receive queue.
//!
//! Each WQE is a list of 16-byte data segments in a stride of fixed size; a shorter list ends with a segment of length
//! 0 and the key 0x100. The device is told of new ones by word 0 of the doorbell record alone, a count modulo 2^16;
//! there is no UAR write.
//!
//! Source: `linux-bringup.md` of the project's PRM notes, section 8.4.

use std::sync::Arc;

use ferroce_hw_regs::dbr::QP_RCV;

use super::seg;
use super::slots::{META_BUFFER, WqShared};
use super::wr::{RecvWr, check_len};
use super::{PostError, QpState, can_post_recv};
use crate::barrier;
use crate::mem::DmaRing;

/// What a receive queue was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RqLimits {
    /// Most outstanding requests.
    pub(crate) max_wr: u32,
    /// Most scatter/gather elements of one.
    pub(crate) max_sge: u32,
    /// Most bytes of a message.
    pub(crate) max_msg: u64,
}

/// Shape of a receive ring that can hold what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RqShape {
    /// Entries in the ring, a power of two.
    pub(crate) entries: u32,
    /// Bytes of an entry, a power of two.
    pub(crate) stride: u32,
}

impl RqShape {
    /// The shape for `max_wr` requests of up to `max_sge` elements, at least 64 bytes in all. `None` where it overflows.
    pub(crate) fn new(max_wr: u32, max_sge: u32) -> Option<RqShape> {
        let stride = max_sge
            .max(1)
            .checked_mul(seg::BYTES)?
            .checked_next_power_of_two()?;
        let entries = max_wr.max(1).checked_next_power_of_two()?;
        let least = 64u32.div_ceil(stride);
        let shape = RqShape {
            entries: entries.max(least),
            stride,
        };
        shape.entries.checked_mul(stride)?;
        Some(shape)
    }
}

/// The producer half of a receive queue.
#[derive(Debug)]
pub(crate) struct RqProducer<T> {
    /// The ring, in segments.
    mem: DmaRing<16>,
    /// The QP's doorbell record.
    record: DmaRing<8>,
    shared: Arc<WqShared<T>>,
    limits: RqLimits,
    /// Segments of an entry.
    stride: u32,
    /// Number of the next request, modulo 2^32.
    number: u32,
    released: u32,
    /// Requests that may be outstanding now; 0 where the state forbids posting.
    open: u32,
    state: QpState,
}

impl<T> RqProducer<T> {
    /// A producer over `mem` with entries of `stride` bytes (a power of two), in state RESET.
    pub(crate) fn new(
        mem: DmaRing<16>,
        record: DmaRing<8>,
        shared: Arc<WqShared<T>>,
        limits: RqLimits,
        stride: u32,
    ) -> RqProducer<T> {
        RqProducer {
            mem,
            record,
            shared,
            limits,
            stride: stride / seg::BYTES,
            number: 0,
            released: 0,
            open: 0,
            state: QpState::Reset,
        }
    }

    /// Follows the QP's state: all but RESET take receive requests.
    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.open = if can_post_recv(state) {
            self.limits.max_wr
        } else {
            0
        };
    }

    /// Starts from an empty queue with new slots, as the device does on the way to RESET.
    pub(crate) fn reset(&mut self, shared: Arc<WqShared<T>>) {
        self.shared = shared;
        // The first post asks the consumer.
        (self.number, self.released) = (0, 0u32.wrapping_sub(self.limits.max_wr));
        self.record.store_be32::<QP_RCV>(0, 0);
        self.set_state(QpState::Reset);
    }

    /// Requests that are posted and not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        self.number.wrapping_sub(self.shared.released())
    }

    /// Writes a request to the ring. The device doesn't see it before [`RqProducer::ring`].
    ///
    /// # Errors
    /// [`PostError`]; nothing is posted then.
    #[inline]
    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_with(wr, 0)
    }

    /// Posts a request together with the buffer that its elements name.
    ///
    /// # Errors
    /// [`PostError`] and the buffer.
    pub(crate) fn post_owned(&mut self, wr: &RecvWr<'_>, buffer: Box<T>) -> Result<(), (PostError, Box<T>)> {
        let position = self.number;
        match self.post_with(wr, META_BUFFER) {
            Ok(()) => {
                drop(self.shared.put(position, buffer));
                Ok(())
            }
            Err(error) => Err((error, buffer)),
        }
    }

    #[inline(always)]
    fn post_with(&mut self, wr: &RecvWr<'_>, meta: u32) -> Result<(), PostError> {
        if self.number.wrapping_sub(self.released) >= self.open {
            self.admit_slowly()?;
        }
        if wr.sges.len() > self.limits.max_sge as usize {
            return Err(PostError::TooManySges {
                asked: wr.sges.len(),
                max: self.limits.max_sge,
            });
        }
        check_len(wr.sges, self.limits.max_msg)?;
        let start = self.number.wrapping_mul(self.stride);
        let mut segs = 0;
        for sge in wr.sges {
            if sge.len != 0 {
                self.mem.store::<0, 16>(start.wrapping_add(segs), &seg::data(sge));
                segs += 1;
            }
        }
        if segs < self.stride {
            self.mem
                .store::<0, 16>(start.wrapping_add(segs), &seg::list_end());
        }
        let slot = self.shared.slots().at(self.number);
        slot.fill(wr.wr_id, self.number, meta);
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn admit_slowly(&mut self) -> Result<(), PostError> {
        if !can_post_recv(self.state) {
            return Err(PostError::State {
                queue: "receive",
                state: self.state,
            });
        }
        self.released = self.shared.released();
        if self.number.wrapping_sub(self.released) < self.open {
            return Ok(());
        }
        Err(PostError::QueueFull {
            queue: "receive",
            max_wr: self.limits.max_wr,
        })
    }

    /// Shows the device what was posted since the last call.
    #[inline]
    pub(crate) fn ring(&mut self) {
        barrier::before_doorbell_record();
        self.record.store_be32::<QP_RCV>(0, self.number & 0xffff);
    }
}

#[cfg(test)]
#[path = "rq_tests.rs"]
mod tests;
