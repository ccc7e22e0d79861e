//! The consumer of a completion queue.
//!
//! A CQE is the CPU's when its ownership bit equals the lap's parity; only after a barrier is the rest of it read. What a
//! CQE says is not trusted: the user index must be one of ours, the WQE counter must name a request that is outstanding;
//! otherwise it is counted and dropped. Opcodes that the driver doesn't know are too.
//!
//! The doorbell record's word 0 tells the device how far the CPU has read, word 1 and the UAR write arm the queue.
//!
//! Source: `linux-bringup.md` of the project's PRM notes, sections 8.5 and 8.6; layouts in `ferroce_hw_regs::cqe`.

use std::mem::offset_of;

use ferroce_hw_regs::cqe::{self, Cqe64, ErrCqe, OP_OWN_INIT, OP_OWN_OFFSET, opcode};
use ferroce_hw_regs::dbr::{self, CQ_ARM, CQ_CI};
use ferroce_hw_regs::uar;

use super::slots::Lent;
use super::table::{Entry, Filter, Table};
use super::view::follow;
use crate::barrier;
use crate::mem::{DmaRing, RingEntry};
use crate::mmio::Doorbell;

/// Bytes of a CQE.
pub(crate) const CQE_BYTES: u32 = cqe::BYTES as u32;
/// User index.
const USER_INDEX: usize = offset_of!(Cqe64, srqn_uidx);
/// GRH flags and remote QPN.
const REMOTE: usize = offset_of!(Cqe64, flags_rqpn);
/// Bit of [`RawWc::remote`] that tells a datagram; the CQE has nothing there.
pub(crate) const DATAGRAM: u32 = 1 << 31;
/// Immediate data.
const IMMEDIATE: usize = USER_INDEX + 4;
/// Byte count.
const BYTE_CNT: usize = offset_of!(Cqe64, byte_cnt);
/// Time stamp.
const TIMESTAMP: usize = offset_of!(Cqe64, timestamp);
/// Send opcode and QPN, WQE counter, signature, opcode and ownership.
const LAST: usize = offset_of!(Cqe64, sop_drop_qpn);
/// WQE counter.
const WQE_COUNTER: usize = offset_of!(Cqe64, wqe_counter);
/// The word that ends with an error CQE's two syndromes.
const SYNDROMES: usize = offset_of!(ErrCqe, syndrome) - 3;
/// Consumer indices are told to the device modulo 2^24.
const INDEX_MASK: u32 = 0xff_ffff;
/// Most completions that are given before the device is told so. What is given may be posted again at once, and complete
/// before it is told.
const MOST_UNTOLD: u32 = 16;
/// Entries of a ring beyond the requests that may complete into it: those that were read and not told of yet, and the one
/// that says that the queue goes on in another ring.
pub(crate) const CQ_SPARE: u32 = MOST_UNTOLD + 1;
/// Stands for an error CQE's syndrome where the device gave none.
const UNKNOWN_SYNDROME: u8 = 0xff;

/// What a CQE says the request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A send request; the WQE's opcode.
    Send(u8),
    /// SEND into a receive request.
    Recv,
    /// The same with immediate data.
    RecvImm,
    /// The same with an invalidated key.
    RecvInv,
    /// WRITE with immediate data.
    RecvWriteImm,
    /// A receive request that failed.
    RecvFailed,
}

/// A completion as the CQE and the request's slot tell it.
#[derive(Debug)]
pub(crate) struct RawWc<T> {
    pub(crate) wr_id: u64,
    pub(crate) qpn: u32,
    pub(crate) byte_len: u32,
    /// Immediate data (or invalidated key), host order.
    pub(crate) imm: u32,
    /// Where a datagram came from, as the CQE has it, with [`DATAGRAM`]; 0 for all else.
    pub(crate) remote: u32,
    /// The device's time, in the format of the queue pair; 0 of an error CQE, which has none.
    pub(crate) timestamp: u64,
    pub(crate) wqe_index: u16,
    pub(crate) kind: Kind,
    /// 0 or the CQE's syndrome.
    pub(crate) syndrome: u8,
    pub(crate) vendor_syndrome: u8,
    pub(crate) buffer: Option<Box<T>>,
}

/// What [`CqRing::next`] found.
#[derive(Debug)]
pub(crate) enum Next<T> {
    /// A completion.
    Wc(RawWc<T>),
    /// Nothing.
    Empty,
    /// A CQE that was dropped: of a dead QP, the driver's own, or wrong.
    Dropped,
    /// The CQE after which the queue goes on in the ring that it was moved to. [`View::moved`](super::View::moved) belongs after it.
    Moved,
    /// A CQE with a user index that is not in the table; it is still there. Bring the table up to date and try again, or
    /// [`CqRing::skip`] it.
    Unknown,
}

/// The consumer of a completion queue.
#[derive(Debug)]
pub(crate) struct CqRing<T> {
    mem: DmaRing<64>,
    /// `mem.entries()`: the bit of an index that tells odd laps from even ones.
    lap_bit: u32,
    /// The ring that the device goes on in after the entry that says so.
    pub(super) moving: Option<DmaRing<64>>,
    /// Next entry to look at, modulo 2^32.
    ci: u32,
    record: DmaRing<8>,
    doorbell: Doorbell,
    cqn: u32,
    /// Completion events so far, modulo 4.
    sn: u8,
    /// The queues that complete here.
    pub(crate) queues: Table<T>,
    /// CQEs that made no sense.
    pub(crate) bad: u64,
}

impl<T: Lent> CqRing<T> {
    /// Marks all entries of `mem` as not written yet. To be called before the device knows of the memory.
    pub(crate) fn prepare(mem: &mut DmaRing<64>) {
        for entry in 0..mem.entries() {
            // Opcode "invalid", and the ownership bit that a first lap from 0 does not have.
            mem.store_u8::<OP_OWN_OFFSET>(entry, OP_OWN_INIT);
        }
    }

    /// A consumer over `mem`, all of whose entries are the device's.
    pub(crate) fn new(mem: DmaRing<64>, record: DmaRing<8>, doorbell: Doorbell, cqn: u32) -> CqRing<T> {
        CqRing {
            lap_bit: mem.entries(),
            mem,
            moving: None,
            ci: 0,
            record,
            doorbell,
            cqn,
            sn: 0,
            queues: Table::new(),
            bad: 0,
        }
    }

    /// Entries in the ring.
    pub(crate) fn entries(&self) -> u32 {
        self.mem.entries()
    }

    /// How far it has read, modulo 2^32.
    pub(crate) fn consumer_index(&self) -> u32 {
        self.ci
    }

    /// Gives up to `max` of the next CQEs to `each`, as long as they are those of usual requests that succeeded; then no
    /// buffer comes with them. How many there were, and whether another one may be there: it stays, for [`CqRing::next`].
    /// The device knows of all of them but [`MOST_UNTOLD`], also whenever `each` is called; [`CqRing::publish`] belongs after it.
    ///
    /// Sends of one queue pair mostly complete in runs, so that its queue is looked up once for each run.
    #[inline(always)]
    pub(crate) fn each_usual(&mut self, max: usize, mut each: impl FnMut(RawWc<T>)) -> (usize, bool) {
        let (entries, lap_bit) = (self.mem.entries_view(), self.lap_bit);
        let mut place = Place::new(&mut self.ci, &mut self.record);
        let mut count = 0;
        let mut stop = max.min(MOST_UNTOLD as usize);
        'polled: loop {
            if count == stop && !place.go_on(&mut stop, max) {
                break;
            }
            let mut entry = entries.entry(place.at);
            let mut op_own = entry.load_u8::<OP_OWN_OFFSET>();
            if (op_own & 1 != 0) != (place.at & lap_bit != 0) {
                place.finish();
                return (count, false);
            }
            barrier::after_ownership();
            let key = user_index(&entry);
            let Some(queues) = self.queues.get_mut(u32::from_be(key)) else {
                break;
            };
            if queues.filter != Filter::None {
                break;
            }
            let qpn = queues.qpn;
            let mut run = match Cqe64::opcode(op_own) {
                opcode::REQ => match &mut queues.sq {
                    Some(sq) => sq.run(),
                    None => break,
                },
                _ => {
                    let Some(wc) = received(queues, &entry, op_own) else {
                        break;
                    };
                    place.at = place.at.wrapping_add(1);
                    count += 1;
                    each(wc);
                    continue;
                }
            };
            // More sends of the same queue pair.
            loop {
                let wqe_index = entry.load_be16::<WQE_COUNTER>();
                let Some(wr_id) = run.release_usual_at(wqe_index.into()) else {
                    break 'polled;
                };
                place.at = place.at.wrapping_add(1);
                count += 1;
                each(RawWc {
                    wr_id,
                    qpn,
                    byte_len: entry.used_be32::<BYTE_CNT>(),
                    imm: 0,
                    remote: 0,
                    timestamp: entry.used_be64::<TIMESTAMP>(),
                    wqe_index,
                    kind: Kind::Send(entry.used_u8::<LAST>()),
                    syndrome: 0,
                    vendor_syndrome: 0,
                    buffer: None,
                });
                if count == stop && !place.go_on(&mut stop, max) {
                    break 'polled;
                }
                entry = entries.entry(place.at);
                op_own = entry.load_u8::<OP_OWN_OFFSET>();
                // Opcode 0, which is that of sends, and the owner bit of this lap.
                if op_own & 0xf1 != u8::from(place.at & lap_bit != 0) {
                    break;
                }
                barrier::after_ownership();
                if user_index(&entry) != key {
                    break;
                }
            }
        }
        place.finish();
        (count, true)
    }

    /// Looks at the next CQE. [`CqRing::publish`] belongs after it, and before the next post.
    pub(crate) fn next(&mut self) -> Next<T> {
        let at = self.ci;
        if !is_written(&self.mem, at) {
            return Next::Empty;
        }
        barrier::after_ownership();
        if self.moving.is_some() && self.mem.load_u8::<OP_OWN_OFFSET>(at) >> 4 == opcode::RESIZE_CQ {
            self.go_on_in_the_other();
            return Next::Moved;
        }
        let key = self.mem.load_be32::<USER_INDEX>(at) & INDEX_MASK;
        let Some(entry) = self.queues.get_mut(key) else {
            return Next::Unknown;
        };
        self.ci = at.wrapping_add(1);
        let cqe = Cqe {
            last: self.mem.load_be64::<LAST>(at),
        };
        if is_filtered(entry.filter, at) {
            cqe.give_up(entry);
            return Next::Dropped;
        }
        let datagram = entry.datagram;
        let next = match Cqe64::opcode(cqe.last as u8) {
            opcode::REQ => cqe.finish(entry, Kind::Send(cqe.send_opcode())),
            other => match recv_kind(other) {
                Some(kind) => cqe.finish(entry, kind),
                None => cqe.into_error(entry, other, self.mem.load_be32::<SYNDROMES>(at)),
            },
        };
        let Some(mut next) = next else {
            self.bad += 1;
            return Next::Dropped;
        };
        if let Next::Wc(wc) = &mut next
            && wc.syndrome == 0
        {
            // An error CQE has no length, immediate data and time stamp in these places.
            wc.byte_len = self.mem.load_be32::<BYTE_CNT>(at);
            wc.imm = self.mem.load_be32::<IMMEDIATE>(at);
            wc.timestamp = self.mem.load_be64::<TIMESTAMP>(at);
            if datagram && !matches!(wc.kind, Kind::Send(_)) {
                wc.remote = self.mem.load_be32::<REMOTE>(at) | DATAGRAM;
            }
        }
        next
    }

    /// Whether there is a CQE to look at.
    pub(crate) fn is_ready(&self) -> bool {
        is_written(&self.mem, self.ci)
    }

    /// Completions that wait to be looked at.
    pub(crate) fn waiting(&self) -> u32 {
        follow(&self.mem, self.moving.as_ref(), self.ci).0
    }

    /// Whether the device was told of another ring, and has not been followed there.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// The device was told to go on in `ring`.
    pub(crate) fn move_to(&mut self, ring: DmaRing<64>) {
        self.moving = Some(ring);
    }

    /// Follows the device to the other ring. Positions go on: the next one lies where its index says. The device is not told
    /// of it here, since who looks from outside is to know first.
    #[cold]
    fn go_on_in_the_other(&mut self) {
        self.ci = self.ci.wrapping_add(1);
        if let Some(ring) = self.moving.take() {
            (self.lap_bit, self.mem) = (ring.entries(), ring);
        }
    }

    /// Steps over a CQE that belongs to nobody.
    #[cold]
    pub(crate) fn skip(&mut self) {
        self.ci = self.ci.wrapping_add(1);
        self.bad += 1;
    }

    /// Tells the device how far the CPU has read, so that it may use those entries again.
    #[inline]
    pub(crate) fn publish(&mut self) {
        publish(&mut self.record, self.ci);
    }

    /// Asks for one event, at once if a CQE is there already, or (where `solicited_only`) if there is one that its sender
    /// marked so or that is an error.
    pub(crate) fn arm(&mut self, solicited_only: bool) {
        self.publish();
        let image = dbr::cq_arm(self.sn, solicited_only, self.ci);
        barrier::before_doorbell_record();
        self.record.store_be32::<CQ_ARM>(0, image);
        barrier::before_doorbell();
        self.doorbell.ring(uar::cq_doorbell(image, self.cqn));
    }

    /// An event came; the next arming is another one.
    pub(crate) fn event_seen(&mut self) {
        self.sn = (self.sn + 1) & 3;
    }
}

/// Tells the device that the CPU has read all before `ci`.
#[inline(always)]
fn publish(record: &mut DmaRing<8>, ci: u32) {
    barrier::before_doorbell_record();
    record.store_be32::<CQ_CI>(0, ci & INDEX_MASK);
}

/// How far a poll has got. Where a caller's function panics, queue and device know it all the same.
struct Place<'a> {
    at: u32,
    ci: &'a mut u32,
    record: &'a mut DmaRing<8>,
}

impl<'a> Place<'a> {
    #[inline(always)]
    fn new(ci: &'a mut u32, record: &'a mut DmaRing<8>) -> Place<'a> {
        Place { at: *ci, ci, record }
    }

    /// `stop` completions were given. If `max` were not yet, tells the device, and puts `stop` off.
    #[inline(always)]
    fn go_on(&mut self, stop: &mut usize, max: usize) -> bool {
        if *stop == max {
            return false;
        }
        publish(self.record, self.at);
        *stop = max.min(*stop + MOST_UNTOLD as usize);
        true
    }

    #[inline(always)]
    fn finish(self) {
        *self.ci = self.at;
        std::mem::forget(self);
    }
}

impl Drop for Place<'_> {
    #[cold]
    fn drop(&mut self) {
        *self.ci = self.at;
        publish(self.record, self.at);
    }
}

/// The user index as the CQE has it: big-endian, the other byte 0.
#[inline(always)]
fn user_index(entry: &RingEntry<'_, 64>) -> u32 {
    (entry.load_be32::<USER_INDEX>() & INDEX_MASK).to_be()
}

/// Ends the receive of a CQE, if it is a usual one that succeeded. Nothing has changed otherwise.
#[inline(always)]
fn received<T: Lent>(queues: &mut Entry<T>, entry: &RingEntry<'_, 64>, op_own: u8) -> Option<RawWc<T>> {
    let wqe_index = entry.load_be16::<WQE_COUNTER>();
    let kind = recv_kind(Cqe64::opcode(op_own))?;
    let wr_id = match &mut queues.rq {
        Some(rq) => rq.release_usual_next()?,
        None => queues.srq.as_ref()?.release_usual(wqe_index)?,
    };
    let remote = if queues.datagram {
        entry.used_be32::<REMOTE>() | DATAGRAM
    } else {
        0
    };
    Some(RawWc {
        wr_id,
        qpn: queues.qpn,
        byte_len: entry.used_be32::<BYTE_CNT>(),
        imm: entry.used_be32::<IMMEDIATE>(),
        remote,
        timestamp: entry.used_be64::<TIMESTAMP>(),
        wqe_index,
        kind,
        syndrome: 0,
        vendor_syndrome: 0,
        buffer: None,
    })
}

/// Whether the device has written the CQE of position `at`.
#[inline]
pub(super) fn is_written(mem: &DmaRing<64>, at: u32) -> bool {
    let op_own = mem.load_u8::<OP_OWN_OFFSET>(at);
    // The bit above the index tells odd laps from even ones. In a ring that was moved to in the middle of a lap, entries
    // that were never written may have the right one.
    (Cqe64::owner(op_own) != 0) == (at & mem.entries() != 0) && Cqe64::opcode(op_own) != opcode::INVALID
}

/// Whether position `at` is one whose completion is dropped.
fn is_filtered(filter: Filter, at: u32) -> bool {
    match filter {
        Filter::None => false,
        Filter::All => true,
        Filter::Before(end) => (at.wrapping_sub(end) as i32) < 0,
    }
}

/// What a CQE's opcode says was received; `None` if it is another's.
#[inline]
fn recv_kind(opcode: u8) -> Option<Kind> {
    match opcode {
        opcode::RESP_WR_IMM => Some(Kind::RecvWriteImm),
        opcode::RESP_SEND => Some(Kind::Recv),
        opcode::RESP_SEND_IMM => Some(Kind::RecvImm),
        opcode::RESP_SEND_INV => Some(Kind::RecvInv),
        _ => None,
    }
}

/// The end of a CQE.
#[derive(Clone, Copy)]
struct Cqe {
    /// Opcode and QPN, WQE counter, signature, opcode and ownership.
    last: u64,
}

impl Cqe {
    /// Releases the request's slot. `None` if no such request is outstanding: the CQE makes no sense.
    fn finish<T: Lent>(self, entry: &mut Entry<T>, kind: Kind) -> Option<Next<T>> {
        let released = match kind {
            Kind::Send(_) => entry.sq.as_mut()?.release_at(self.wqe_index().into())?,
            _ => match (&mut entry.rq, &entry.srq) {
                (Some(rq), _) => rq.release_next()?,
                (None, Some(srq)) => srq.release(self.wqe_index())?,
                (None, None) => return None,
            },
        };
        if released.internal {
            return Some(Next::Dropped);
        }
        Some(Next::Wc(RawWc {
            wr_id: released.wr_id,
            qpn: entry.qpn,
            byte_len: 0,
            imm: 0,
            remote: 0,
            timestamp: 0,
            wqe_index: self.wqe_index(),
            kind,
            syndrome: 0,
            vendor_syndrome: 0,
            buffer: released.buffer,
        }))
    }

    /// The CQE is not shown. What its queue pair had taken from a shared receive queue goes back there.
    #[cold]
    fn give_up<T: Lent>(self, entry: &Entry<T>) {
        let opcode = Cqe64::opcode(self.last as u8);
        if let Some(srq) = &entry.srq
            && (opcode == opcode::RESP_ERR || recv_kind(opcode).is_some())
        {
            srq.abandon(self.wqe_index());
        }
    }

    /// The same for an error CQE, whose low bytes of `syndromes` are the vendor's and the standard one; and the end of those with an opcode
    /// that we don't know.
    #[cold]
    fn into_error<T: Lent>(self, entry: &mut Entry<T>, opcode: u8, syndromes: u32) -> Option<Next<T>> {
        let kind = match opcode {
            opcode::REQ_ERR => Kind::Send(self.send_opcode()),
            opcode::RESP_ERR => Kind::RecvFailed,
            _ => return None,
        };
        let mut next = self.finish(entry, kind)?;
        if let Next::Wc(wc) = &mut next {
            // A syndrome of 0 would read as success.
            wc.syndrome = if syndromes as u8 == 0 {
                UNKNOWN_SYNDROME
            } else {
                syndromes as u8
            };
            wc.vendor_syndrome = (syndromes >> 8) as u8;
        }
        Some(next)
    }

    #[inline(always)]
    fn wqe_index(self) -> u16 {
        (self.last >> 16) as u16
    }

    #[inline(always)]
    fn send_opcode(self) -> u8 {
        (self.last >> 56) as u8
    }
}

#[cfg(test)]
#[path = "cq_tests.rs"]
mod tests;
