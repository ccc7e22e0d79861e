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

use ferroce_hw_regs::dbr::QP_SND;
use ferroce_hw_regs::wqe::{INLINE_LENGTH_MASK, WQEBB_BYTES as BLOCK, opcode};

use super::seg;
use super::slots::{META_BUFFER, META_INTERNAL, Slots, WqShared};
use super::sq_limits::{Ends, Operation, Refused, SqLimits};
use super::wr::{Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge, total_len};
use super::{Ah, PostError, QpState, QpType, can_post_send};
use crate::barrier;
use crate::mem::{DmaRing, RingRun};
use crate::mmio::Doorbell;
use crate::port::PortNumber;

/// Bytes of a WQE basic block.
pub(crate) const WQEBB_BYTES: u32 = BLOCK as u32;
/// Most bytes of a WQE: its size is counted in 16-byte units in 6 bits.
pub(crate) const MAX_WQE_BYTES: u32 = 63 * seg::BYTES;
/// Most bytes of inline data: its header counts them in 10 bits.
const MAX_INLINE_BYTES: u32 = INLINE_LENGTH_MASK;
/// Segments before the data at most (control, address vector).
const HEAD_SEGS: u32 = 4;
/// Segments in a block.
const WQEBB_SEGS: u32 = WQEBB_BYTES / seg::BYTES;

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
    pub(crate) fn new(qp_type: QpType, max_wr: u32, max_sge: u32, max_inline: u32) -> Option<SqShape> {
        let gather = max_sge.checked_mul(seg::BYTES)?;
        let inline = match max_inline {
            0 => 0,
            bytes => bytes.checked_add(4)?.checked_next_multiple_of(seg::BYTES)?,
        };
        // An atomic has its operands and one element.
        let least = if qp_type == QpType::Rc { 2 } else { 1 };
        let data = gather.max(inline).max(least * seg::BYTES);
        let head = SqShape::head_bytes(qp_type);
        let wqe_bytes = data.checked_add(head)?;
        let per_wr = wqe_bytes.div_ceil(WQEBB_BYTES);
        let blocks = max_wr.max(1).checked_mul(per_wr)?.checked_next_power_of_two()?;
        let room = (per_wr * WQEBB_BYTES).min(MAX_WQE_BYTES).saturating_sub(head + 4);
        Some(SqShape {
            blocks,
            wqe_bytes,
            max_inline: room.min(MAX_INLINE_BYTES),
        })
    }

    /// Bytes in front of the data: control segment, and remote address or address vector.
    pub(crate) fn head_bytes(qp_type: QpType) -> u32 {
        match qp_type {
            QpType::Rc | QpType::Uc => 2 * seg::BYTES,
            QpType::Ud | QpType::Gsi => 4 * seg::BYTES,
        }
    }
}

/// The producer half of a send queue.
#[derive(Debug)]
pub(crate) struct SqProducer<T> {
    /// The ring, in blocks.
    pub(super) mem: DmaRing<BLOCK>,
    /// The QP's doorbell record.
    pub(super) record: DmaRing<8>,
    doorbell: Doorbell,
    shared: Arc<WqShared<T>>,
    /// Those of `shared`, one for each block, without the detour.
    slots: Slots,
    limits: SqLimits,
    /// QP number, where the control segment's first 8 bytes have it.
    qpn: u64,
    /// Number of the next request, modulo 2^32.
    number: u32,
    /// Number of the request before which `shared.released()` and the state are to be looked at again.
    stop: u32,
    /// Block where the next request begins, modulo 2^16.
    pub(super) pi: u16,
    state: QpState,
    /// First 8 bytes of the last posted WQE, as they lie in memory: what the doorbell is told.
    pub(super) last_ctrl: [u8; 8],
    /// Block after the last one that the device was told of.
    pub(super) rung: u16,
}

/// A WQE that is being written: its segments come one after the other, but the control segment, which is in front, last.
struct Wqe<'a> {
    run: RingRun<'a, BLOCK>,
    /// Segments so far, the control segment among them.
    segs: u32,
    limits: &'a SqLimits,
}

/// Where the data begin in the WQE of an operation without and with a remote address.
const DATA: usize = 16;
const DATA_AFTER_RADDR: usize = 32;

impl<T> SqProducer<T> {
    /// A producer over `mem`, whose slots `shared` has one of for each block, for the QP `qpn`, in state RESET.
    ///
    /// # Panics
    /// If `shared` has another number of slots.
    pub(crate) fn new(
        mem: DmaRing<BLOCK>,
        record: DmaRing<8>,
        doorbell: Doorbell,
        shared: Arc<WqShared<T>>,
        limits: SqLimits,
        qpn: u32,
    ) -> SqProducer<T> {
        assert_eq!(shared.positions(), mem.entries(), "slots and blocks of a ring");
        SqProducer {
            mem,
            record,
            doorbell,
            slots: shared.slots().clone(),
            shared,
            limits,
            qpn: u64::from(qpn) << 8,
            number: 0,
            stop: 0,
            pi: 0,
            state: QpState::Reset,
            last_ctrl: [0; 8],
            rung: 0,
        }
    }

    /// Follows the QP's state: only RTS, SQD, SQE and ERR take send requests.
    pub(crate) fn set_state(&mut self, state: QpState) {
        self.state = state;
        // The next post asks both the state and the consumer.
        self.stop = self.number;
    }

    /// The queue pair is on that port: address handles of others are refused.
    pub(crate) fn set_port(&mut self, port: PortNumber) {
        self.limits.port = port;
    }

    /// Starts from an empty queue with new slots, as the device does on the way to RESET.
    pub(crate) fn reset(&mut self, shared: Arc<WqShared<T>>) {
        assert_eq!(
            shared.positions(),
            self.mem.entries(),
            "slots and blocks of a ring"
        );
        self.slots = shared.slots().clone();
        self.shared = shared;
        (self.number, self.pi, self.rung) = (0, 0, 0);
        self.record.store_be32::<QP_SND>(0, 0);
        self.set_state(QpState::Reset);
    }

    /// Requests that are posted and not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        self.number.wrapping_sub(self.shared.released())
    }

    /// Makes room as if all were completed.
    #[cfg(test)]
    pub(super) fn forget_outstanding(&mut self) {
        self.shared.release(self.number);
        self.stop = self.number;
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
        let position = self.pi.into();
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
        let number = self.admit()?;
        let block = u32::from(self.pi);
        let ctrl = seg::ctrl(opcode::NOP, block, self.qpn, 1, SendFlags::SIGNALED.bits(), 0);
        self.mem.store::<0, 16>(block, &ctrl);
        self.count_in(number, block, 0, &ctrl, 1, META_INTERNAL);
        Ok(())
    }

    #[inline(always)]
    fn post_with(&mut self, wr: &SendWr<'_>, meta: u32) -> Result<(), PostError> {
        let number = self.admit()?;
        let block = u32::from(self.pi);
        let mut wqe = Wqe {
            run: self.mem.run(block),
            segs: 1,
            limits: &self.limits,
        };
        let (op, imm) = match wqe.describe(&wr.op) {
            Ok(described) => described,
            Err(refused) => return Err(self.limits.explain(refused)),
        };
        let segs = wqe.segs;
        let flags = wr.flags.bits() & SendFlags::all().bits();
        let ctrl = seg::ctrl(op, block, self.qpn, segs, flags, imm);
        wqe.run.store::<0, 16>(&ctrl);
        self.count_in(number, block, wr.wr_id, &ctrl, segs, meta);
        Ok(())
    }

    /// Whether one more request may be posted; its number.
    #[inline(always)]
    fn admit(&mut self) -> Result<u32, PostError> {
        let number = self.number;
        if number == self.stop {
            self.admit_slowly()?;
        }
        Ok(number)
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
        let room = self.limits.max_wr.saturating_sub(self.outstanding());
        if room != 0 {
            self.stop = self.number.wrapping_add(room);
            return Ok(());
        }
        Err(PostError::QueueFull {
            queue: "send",
            max_wr: self.limits.max_wr,
        })
    }

    /// Counts a request in whose WQE is written, at `self.pi`, and whose number is `self.number`.
    #[inline(always)]
    fn count_in(&mut self, number: u32, block: u32, wr_id: u64, ctrl: &[u8; 16], segs: u32, meta: u32) {
        self.slots.at(block).fill(wr_id, number, meta);
        self.last_ctrl = *ctrl.first_chunk().unwrap_or(&[0; 8]);
        self.number = number.wrapping_add(1);
        self.pi = (block + segs.div_ceil(WQEBB_SEGS)) as u16;
    }

    /// Shows the device what was posted since the last call, if anything.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.rung == self.pi {
            return;
        }
        barrier::before_doorbell_record();
        self.record.store_be32::<QP_SND>(0, self.pi.into());
        barrier::before_doorbell();
        self.doorbell.ring_bytes(self.last_ctrl);
        self.rung = self.pi;
    }
}

impl Wqe<'_> {
    /// Writes the segments behind the control segment; the opcode, and immediate data or 0.
    #[inline(always)]
    fn describe(&mut self, op: &SendOp<'_>) -> Result<(u8, u32), Refused> {
        let limits = self.limits;
        Ok(match op {
            SendOp::Send { data, imm } => {
                self.payload::<DATA>(data, limits.send, Operation::Send)?;
                send_opcode(imm)
            }
            SendOp::SendInvalidate { data, rkey } => {
                self.payload::<DATA>(data, limits.send_invalidate, Operation::SendInvalidate)?;
                (opcode::SEND_INVAL, *rkey)
            }
            SendOp::SendTo {
                data,
                imm,
                to,
                qpn,
                qkey,
            } => {
                self.address(to, qpn.get(), *qkey)?;
                self.datagram(data)?;
                send_opcode(imm)
            }
            SendOp::Write { data, remote, imm } => {
                self.put::<16>(&seg::raddr(remote));
                self.payload::<DATA_AFTER_RADDR>(data, limits.write, Operation::Write)?;
                match imm {
                    Some(imm) => (opcode::RDMA_WRITE_IMM, *imm),
                    None => (opcode::RDMA_WRITE, 0),
                }
            }
            SendOp::Read { into, remote } => {
                self.put::<16>(&seg::raddr(remote));
                self.gather::<DATA_AFTER_RADDR>(into, limits.read, Operation::Read)?;
                (opcode::RDMA_READ, 0)
            }
            SendOp::CompareSwap {
                into,
                remote,
                compare,
                swap,
            } => {
                self.atomic(into, remote, *swap, *compare)?;
                (opcode::ATOMIC_CS, 0)
            }
            SendOp::FetchAdd { into, remote, add } => {
                self.atomic(into, remote, *add, 0)?;
                (opcode::ATOMIC_FA, 0)
            }
        })
    }

    /// The next segment, which is at byte `AT` of the first block.
    #[inline(always)]
    fn put<const AT: usize>(&mut self, segment: &[u8; 16]) {
        self.run.store::<AT, 16>(segment);
        self.segs += 1;
    }

    /// The next segment, wherever it is.
    #[inline(always)]
    fn put_next(&mut self, segment: &[u8; 16]) {
        self.run.store_part(self.segs, segment);
        self.segs += 1;
    }

    /// The segments of an address vector.
    #[inline(always)]
    fn address(&mut self, to: &Ah, qpn: u32, qkey: u32) -> Result<(), Refused> {
        if to.domain != self.limits.domain {
            return Err(Refused::OtherPd);
        }
        if to.port != self.limits.port {
            return Err(Refused::OtherPort(to.port));
        }
        let [first, second, third] = &to.vector;
        self.put::<16>(&seg::destination(first, qkey, qpn));
        self.put::<32>(second);
        self.put::<48>(third);
        Ok(())
    }

    /// The data behind an address vector, which fills the first block.
    #[inline(always)]
    fn datagram(&mut self, data: &Payload<'_>) -> Result<(), Refused> {
        match data {
            Payload::Gather(sges) => {
                self.check_sges(sges, self.limits.send_to, Operation::SendTo)?;
                self.put_sges(sges);
            }
            Payload::Inline(bytes) => {
                self.check_inline(bytes, self.limits.send_to, Operation::SendTo)?;
                if !bytes.is_empty() {
                    let (segment, rest) = first_inline(bytes);
                    self.put_next(&segment);
                    self.put_inline(rest);
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn payload<const AT: usize>(
        &mut self,
        data: &Payload<'_>,
        ends: Ends,
        operation: Operation,
    ) -> Result<(), Refused> {
        match data {
            Payload::Gather(sges) => self.gather::<AT>(sges, ends, operation),
            Payload::Inline(bytes) => self.inline_data::<AT>(bytes, ends, operation),
        }
    }

    #[inline(always)]
    fn check_sges(&self, sges: &[Sge], ends: Ends, operation: Operation) -> Result<(), Refused> {
        if sges.len() >= ends.sges as usize {
            return Err(Refused::Sges(operation, sges.len()));
        }
        let total = total_len(sges);
        if total > self.limits.max_msg {
            return Err(Refused::Length(total));
        }
        Ok(())
    }

    #[inline(always)]
    fn check_inline(&self, bytes: &[u8], ends: Ends, operation: Operation) -> Result<(), Refused> {
        if bytes.len() >= ends.inline as usize {
            return Err(Refused::Inline(operation, bytes.len()));
        }
        Ok(())
    }

    #[inline(always)]
    fn gather<const AT: usize>(
        &mut self,
        sges: &[Sge],
        ends: Ends,
        operation: Operation,
    ) -> Result<(), Refused> {
        if let [sge] = sges {
            if u64::from(sge.len) >= ends.one_sge {
                return Err(match ends.sges {
                    0 | 1 => Refused::Sges(operation, 1),
                    _ => Refused::Length(sge.len.into()),
                });
            }
            // A byte count of 0 would be read as 2 GiB.
            if sge.len != 0 {
                self.put::<AT>(&seg::data(sge));
            }
            return Ok(());
        }
        self.check_sges(sges, ends, operation)?;
        self.put_sges(sges);
        Ok(())
    }

    #[inline(always)]
    fn put_sges(&mut self, sges: &[Sge]) {
        for sge in sges {
            if sge.len != 0 {
                self.put_next(&seg::data(sge));
            }
        }
    }

    #[inline(always)]
    fn inline_data<const AT: usize>(
        &mut self,
        bytes: &[u8],
        ends: Ends,
        operation: Operation,
    ) -> Result<(), Refused> {
        self.check_inline(bytes, ends, operation)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let (segment, rest) = first_inline(bytes);
        self.put::<AT>(&segment);
        self.put_inline(rest);
        Ok(())
    }

    /// Inline data behind the first segment.
    #[inline(always)]
    fn put_inline(&mut self, rest: &[u8]) {
        let (whole, last) = rest.as_chunks::<16>();
        for chunk in whole {
            self.put_next(chunk);
        }
        if !last.is_empty() {
            let mut segment = [0; 16];
            segment[..last.len()].copy_from_slice(last);
            self.put_next(&segment);
        }
    }

    #[inline(always)]
    fn atomic(
        &mut self,
        into: &Sge,
        remote: &RemoteAddr,
        swap_add: u64,
        compare: u64,
    ) -> Result<(), Refused> {
        if !self.limits.atomics {
            return Err(Refused::Atomic);
        }
        if into.len != 8 {
            return Err(Refused::AtomicLength(into.len));
        }
        self.put::<16>(&seg::raddr(remote));
        self.put::<32>(&seg::atomic(swap_add, compare));
        self.put::<48>(&seg::data(into));
        Ok(())
    }
}

#[inline(always)]
fn send_opcode(imm: &Option<u32>) -> (u8, u32) {
    match imm {
        Some(imm) => (opcode::SEND_IMM, *imm),
        None => (opcode::SEND, 0),
    }
}

/// The header of inline data, which shares its segment with the first 12 bytes; and the bytes behind those.
#[inline(always)]
fn first_inline(bytes: &[u8]) -> ([u8; 16], &[u8]) {
    let (first, rest) = bytes.split_at(bytes.len().min(12));
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&seg::inline_header(bytes.len() as u32).to_be_bytes());
    segment[4..4 + first.len()].copy_from_slice(first);
    (segment, rest)
}

const _: () = assert!(HEAD_SEGS * seg::BYTES <= WQEBB_BYTES);

#[cfg(test)]
#[path = "sq_tests.rs"]
mod tests;
