//! Send WQEs: fetched across the ring's end, checked, and turned into work for the transport (PRM, send WQE).

use ferroce_hw_regs::wqe::opcode;

use super::read_ring;
use super::recv::data_segment;
use super::violation::{Violation, Violations};
use crate::host::HostMemory;
use crate::objects::PageList;
use crate::objects::qp::{SendRing, WQEBB_BYTES};
use crate::payload::Payload;
use crate::rc::types::{CompletionStatus, Remote, SendData, SendOp, SendWork, Sge};

/// Bytes of a segment, the unit of DS.
const SEGMENT: usize = 16;
/// Largest WQE: DS has 6 bits.
const MAX_WQE_BYTES: usize = 64 * SEGMENT;
/// Most bytes of inline data in a WQE that the length field of an inline segment can say (10 bits).
const INLINE_LENGTH: u32 = 0x3ff;
/// Marks a segment of inline data.
const INLINE: u32 = 1 << 31;

/// What the engine must know of a send when it completes, packed into [`SendWork::id`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SendId {
    /// Index of its first WQEBB.
    pub wqe_index: u16,
    /// WQE opcode.
    pub opcode: u8,
    /// When not 0: it could not be understood, and completes with this syndrome.
    pub bad: u8,
}

impl SendId {
    pub fn pack(self) -> u64 {
        u64::from(self.wqe_index) | u64::from(self.opcode) << 16 | u64::from(self.bad) << 24
    }

    pub fn unpack(id: u64) -> SendId {
        SendId {
            wqe_index: id as u16,
            opcode: (id >> 16) as u8,
            bad: (id >> 24) as u8,
        }
    }
}

/// Where a QP's sends come from, for the length of a call.
pub(super) struct SendSource<'a> {
    pub qpn: u32,
    pub ring: &'a mut SendRing,
    pub buffer: &'a PageList,
    pub host: &'a HostMemory,
    pub violations: &'a mut Violations,
}

impl SendSource<'_> {
    /// Fetches the next send before WQEBB `pi`; `None` when there is none, or none that can be understood.
    ///
    /// A WQE that breaks a rule gives work that does nothing and completes in its turn with the error; what
    /// follows it is not fetched. With `flush`, segments are not looked at: the work will not be done.
    pub fn next(&mut self, pi: u16, flush: bool) -> Option<SendWork> {
        let pending = pi.wrapping_sub(self.ring.ci);
        if self.ring.stuck || self.ring.lost || pending == 0 || self.ring.wqebbs == 0 {
            return None;
        }
        let mut first = [0; WQEBB_BYTES as usize];
        let Fetched { id, bytes, wqebbs } = match self.fetch(pending, &mut first) {
            Ok(fetched) => fetched,
            Err((violation, rule)) => {
                let work = self.refuse(first[3], violation, rule, None);
                return (!flush).then_some(work);
            }
        };
        let parsed = if flush {
            Ok(nothing(id))
        } else {
            self.check_and_parse(id, &first, bytes)
        };
        self.ring.slot = None;
        match parsed {
            Ok(work) => {
                self.ring.ci = self.ring.ci.wrapping_add(wqebbs);
                Some(work)
            }
            Err((violation, rule)) => Some(self.refuse(id.opcode, violation, rule, Some(wqebbs))),
        }
    }

    /// Work that stands for a WQE that broke `rule`, and ends the queue.
    ///
    /// With `step`, the number of its WQEBBs, the ones behind it can be flushed later; without it nothing is
    /// known of them.
    fn refuse(
        &mut self,
        opcode: u8,
        violation: Violation,
        rule: &'static str,
        step: Option<u16>,
    ) -> SendWork {
        let wqe_index = self.ring.ci;
        let what = format_args!(
            "send WQE {wqe_index:#x} of QP {:#x}, opcode {opcode:#x}: {rule}",
            self.qpn
        );
        self.violations.note(violation, what);
        let id = SendId {
            wqe_index,
            opcode,
            bad: CompletionStatus::LocalQpOperation.syndrome(),
        };
        match step {
            Some(wqebbs) => self.ring.ci = wqe_index.wrapping_add(wqebbs),
            None => self.ring.lost = true,
        }
        self.ring.stuck = true;
        nothing(id)
    }

    fn fetch(
        &mut self,
        pending: u16,
        wqe: &mut [u8; WQEBB_BYTES as usize],
    ) -> Result<Fetched, (Violation, &'static str)> {
        if u32::from(pending) > self.ring.wqebbs {
            return Err((
                Violation::ProducerIndex,
                "the producer index is more than a ring ahead",
            ));
        }
        self.read_wqebbs(0, wqe)?;
        let word = |at: usize| u32::from_be_bytes([wqe[at], wqe[at + 1], wqe[at + 2], wqe[at + 3]]);
        let (opmod_idx_opcode, qpn_ds) = (word(0), word(4));
        let ds = qpn_ds & 0x3f;
        let wqebbs = (ds * SEGMENT as u32).div_ceil(WQEBB_BYTES) as u16;
        if ds == 0 {
            return Err((Violation::BadWqe, "DS is 0"));
        }
        if wqebbs > pending {
            return Err((Violation::ProducerIndex, "the WQE passes the producer index"));
        }
        let bytes = ds as usize * SEGMENT;
        let id = SendId {
            wqe_index: self.ring.ci,
            opcode: opmod_idx_opcode as u8,
            bad: 0,
        };
        Ok(Fetched { id, bytes, wqebbs })
    }

    /// Decodes a WQE of `bytes` bytes, of which the first WQEBB was read.
    fn check_and_parse(
        &self,
        id: SendId,
        first: &[u8; WQEBB_BYTES as usize],
        bytes: usize,
    ) -> Result<SendWork, (Violation, &'static str)> {
        check_control(self.qpn, id.wqe_index, first)?;
        let bad = |rule| (Violation::BadWqe, rule);
        if let Some(wqe) = first.get(..bytes) {
            return parse(id, wqe).map_err(bad);
        }
        let mut long = [0; MAX_WQE_BYTES];
        let wqe = long
            .get_mut(..bytes)
            .ok_or(bad("it is longer than a WQE can be"))?;
        wqe[..first.len()].copy_from_slice(first);
        self.read_wqebbs(1, &mut wqe[first.len()..])?;
        parse(id, wqe).map_err(bad)
    }

    /// Reads `out.len()` bytes from WQEBB `skip` after the next one on, from the ring's start where it ends; or from the
    /// BlueFlame slot that the WQE came in.
    fn read_wqebbs(&self, skip: u16, out: &mut [u8]) -> Result<(), (Violation, &'static str)> {
        let from = usize::from(skip) * WQEBB_BYTES as usize;
        if let Some(slot) = self.ring.slot.as_ref().filter(|slot| slot.index == self.ring.ci)
            && let Some(bytes) = slot.bytes.get(from..from + out.len())
        {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        let mut slot = u32::from(self.ring.ci.wrapping_add(skip)) & (self.ring.wqebbs - 1);
        for part in out.chunks_mut(WQEBB_BYTES as usize) {
            let at = self.ring.base + u64::from(slot * WQEBB_BYTES);
            read_ring(self.host, self.buffer, at, part)
                .map_err(|_| (Violation::HostMemory, "the send queue's memory is not mapped"))?;
            slot = (slot + 1) & (self.ring.wqebbs - 1);
        }
        Ok(())
    }
}

struct Fetched {
    id: SendId,
    bytes: usize,
    wqebbs: u16,
}

/// Work that does nothing: it only completes.
fn nothing(id: SendId) -> SendWork {
    SendWork {
        id: id.pack(),
        op: SendOp::Nop,
        data: SendData::Inline(Payload::empty()),
        fence: false,
        signaled: true,
        solicited: false,
    }
}

pub(super) fn check_control(
    qpn: u32,
    expected_index: u16,
    wqe: &[u8],
) -> Result<(), (Violation, &'static str)> {
    let word = |at| be32(wqe, at).map_err(|rule| (Violation::BadWqe, rule));
    let (opmod_idx_opcode, qpn_ds, flags) = (word(0)?, word(4)?, word(8)?);
    if (opmod_idx_opcode >> 8) as u16 != expected_index {
        return Err((Violation::BadWqe, "its index is not the one that is due"));
    }
    if qpn_ds >> 8 != qpn {
        return Err((Violation::BadWqe, "it names another QP"));
    }
    if qpn_ds & 0xc0 != 0 {
        return Err((Violation::ReservedBit, "reserved bits beside DS are set"));
    }
    if opmod_idx_opcode >> 24 != 0 {
        return Err((Violation::BadWqe, "its opcode modifier is not 0"));
    }
    // Byte 0 is a signature, which is not in use; bits 4 and 0 of the flags are reserved.
    if flags & 0x00ff_ff11 != 0 {
        return Err((Violation::ReservedBit, "reserved bits of its flags are set"));
    }
    Ok(())
}

/// Decodes a WQE whose control segment was checked.
fn parse(id: SendId, wqe: &[u8]) -> Result<SendWork, &'static str> {
    let flags = wqe[11];
    let imm = be32(wqe, 12)?;
    let (op, rest) = operation(id.opcode, imm, wqe)?;
    let data = data(rest)?;
    check_data(&op, &data)?;
    Ok(SendWork {
        id: id.pack(),
        op,
        data,
        // 1 is the small fence, which only orders behind local work.
        fence: flags >> 5 > 1,
        // 1: a CQE only for an error.
        signaled: flags >> 2 & 3 > 1,
        solicited: flags & 2 != 0,
    })
}

/// The operation, and what follows its segments.
fn operation(opcode: u8, imm: u32, wqe: &[u8]) -> Result<(SendOp, &[u8]), &'static str> {
    let after = |segments: usize| {
        wqe.get(segments * SEGMENT..)
            .ok_or("it is too short for its opcode")
    };
    let remote = || -> Result<Remote, &'static str> {
        if be32(wqe, 28)? != 0 {
            return Err("reserved bytes of its remote address segment are set");
        }
        Ok(Remote {
            va: be64(wqe, 16)?,
            rkey: be32(wqe, 24)?,
        })
    };
    Ok(match opcode {
        opcode::NOP => (SendOp::Nop, &[]),
        opcode::SEND => (SendOp::Send, after(1)?),
        opcode::SEND_IMM => (SendOp::SendImm { imm }, after(1)?),
        opcode::SEND_INVAL => (SendOp::SendInvalidate { rkey: imm }, after(1)?),
        opcode::RDMA_WRITE => (SendOp::Write { remote: remote()? }, after(2)?),
        opcode::RDMA_WRITE_IMM => (
            SendOp::WriteImm {
                remote: remote()?,
                imm,
            },
            after(2)?,
        ),
        opcode::RDMA_READ => (SendOp::Read { remote: remote()? }, after(2)?),
        opcode::ATOMIC_CS => {
            let (swap, compare) = (be64(wqe, 32)?, be64(wqe, 40)?);
            (
                SendOp::CompareSwap {
                    remote: remote()?,
                    compare,
                    swap,
                },
                after(3)?,
            )
        }
        opcode::ATOMIC_FA => (
            SendOp::FetchAdd {
                remote: remote()?,
                add: be64(wqe, 32)?,
            },
            after(3)?,
        ),
        _ => return Err("its opcode is unknown, or of a kind that this QP does not do"),
    })
}

/// The data segments: pointers, or inline data.
pub(super) fn data(mut rest: &[u8]) -> Result<SendData, &'static str> {
    let mut sges: Vec<Sge> = Vec::new();
    let mut inline = Vec::new();
    while !rest.is_empty() {
        let first = be32(rest, 0)?;
        if first & INLINE == 0 {
            let segment = rest.get(..SEGMENT).ok_or("a data segment is cut off")?;
            sges.push(data_segment(segment));
            rest = &rest[SEGMENT..];
            continue;
        }
        if first & !(INLINE | INLINE_LENGTH) != 0 {
            return Err("an inline segment is longer than 1023 bytes");
        }
        let len = (first & INLINE_LENGTH) as usize;
        inline.extend_from_slice(
            rest.get(4..4 + len)
                .ok_or("inline data passes the end of the WQE")?,
        );
        rest = rest
            .get((4 + len).next_multiple_of(SEGMENT)..)
            .unwrap_or_default();
        if rest.is_empty() && sges.is_empty() {
            return Ok(SendData::Inline(Payload::from_vec(inline)));
        }
    }
    if inline.is_empty() {
        Ok(SendData::Sges(sges))
    } else {
        Err("inline data and pointers are mixed")
    }
}

/// What an operation can't do with its data.
fn check_data(op: &SendOp, data: &SendData) -> Result<(), &'static str> {
    let inline = matches!(data, SendData::Inline(_));
    match op {
        SendOp::Read { .. } if inline => Err("a READ has no place for its data"),
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } if inline || data.len_bytes() != 8 => {
            Err("an atomic's result needs 8 bytes")
        }
        _ => Ok(()),
    }
}

fn be32(bytes: &[u8], at: usize) -> Result<u32, &'static str> {
    let b = bytes.get(at..at + 4).ok_or("it is too short for its opcode")?;
    Ok(u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

fn be64(bytes: &[u8], at: usize) -> Result<u64, &'static str> {
    Ok(u64::from(be32(bytes, at)?) << 32 | u64::from(be32(bytes, at + 4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wqe(opcode: u8, segments: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 16];
        out[3] = opcode;
        out[11] = 8;
        out.extend_from_slice(segments);
        out
    }

    fn id(opcode: u8) -> SendId {
        SendId {
            wqe_index: 7,
            opcode,
            bad: 0,
        }
    }

    #[test]
    fn inline_data_is_joined_and_bounded() {
        let mut inline = 0x8000_0005u32.to_be_bytes().to_vec();
        inline.extend_from_slice(b"hello");
        inline.resize(16, 0xee);
        let work = parse(id(opcode::SEND), &wqe(opcode::SEND, &inline)).unwrap();
        assert!(work.signaled && !work.fence);
        let SendData::Inline(data) = work.data else {
            panic!("not inline")
        };
        assert_eq!(data.to_vec().unwrap(), b"hello");
        inline[3] = 13;
        assert!(parse(id(opcode::SEND), &wqe(opcode::SEND, &inline)).is_err());
        inline[2] = 0x10;
        assert!(parse(id(opcode::SEND), &wqe(opcode::SEND, &inline)).is_err());
    }

    #[test]
    fn a_write_names_its_target_and_its_pieces() {
        let mut segments = vec![0; 32];
        segments[7] = 0x10;
        segments[11] = 0x22;
        segments[19] = 0x40;
        segments[23] = 0x33;
        segments[31] = 0x50;
        let work = parse(id(opcode::RDMA_WRITE), &wqe(opcode::RDMA_WRITE, &segments)).unwrap();
        assert_eq!(
            work.op,
            SendOp::Write {
                remote: Remote { va: 0x10, rkey: 0x22 }
            }
        );
        let SendData::Sges(sges) = work.data else {
            panic!("inline")
        };
        assert_eq!(
            sges,
            [Sge {
                addr: 0x50,
                len: 0x40,
                lkey: 0x33
            }]
        );
        assert_eq!(SendId::unpack(work.id), id(opcode::RDMA_WRITE));
        assert!(parse(id(opcode::RDMA_WRITE), &wqe(opcode::RDMA_WRITE, &segments[..8])).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_wqe_is_parsed_or_refused(mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 16..1024)) {
            let len = bytes.len() / 16 * 16;
            bytes.truncate(len);
            let _ = parse(id(bytes[3] & 0x1f), &bytes);
        }
    }
}
