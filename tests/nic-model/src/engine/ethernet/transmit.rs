//! Send queues of Ethernet frames: WQEs become frames (PRM, "Ethernet segment").

use ferroce_hw_regs::cqe::opcode as cqe_opcode;
use ferroce_hw_regs::wqe::opcode;

use super::packet::{Packet, set_checksums};
use crate::engine::DataPlane;
use crate::engine::completion::Completion;
use crate::engine::ports::FIRST_PORT;
use crate::engine::recv::data_segment;
use crate::engine::violation::Violation;
use crate::engine::wqe::{self, SEGMENT, Wqe};
use crate::host::HostSlices;
use crate::mkey::{KeyView, Range};
use crate::objects::mkey::Access;
use crate::objects::raw::RawState;
use crate::payload::Payload;
use crate::wire::Frame;

/// WQEs that a queue may send before the next gets its turn.
const BURST: usize = 64;
/// Bytes of control and Ethernet segment, before what is inline.
const HEADERS: usize = 2 * SEGMENT;
/// Bytes of the inline header that stand in the Ethernet segment itself.
const INLINE_START: usize = 2;
/// Shortest frame on a wire, without FCS (IEEE 802.3, 3.2.8).
pub(super) const MIN_FRAME: usize = 60;
/// Longest frame that a WQE can make before it is cut: 256 KiB, as the largest `max_lso_cap`.
const MAX_GATHER: usize = 1 << 18;
/// `cs_flags` of the Ethernet segment: checksums of the outer L3 and L4.
const L3_CSUM: u8 = 0x40;
const L4_CSUM: u8 = 0x80;
/// The inline header size field says that a tag is to be inserted.
const INSERT_VLAN: u16 = 1 << 15;
const INLINE: u32 = 1 << 31;

/// Why a WQE can't be sent: the CQE syndrome, and what is wrong.
type Refused = (u8, &'static str);
const LOCAL_LENGTH: u8 = 0x01;
const LOCAL_QP_OPERATION: u8 = 0x02;
const LOCAL_PROTECTION: u8 = 0x04;

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

impl DataPlane {
    /// Puts an SQ in the queue of those that have something to send.
    pub(in crate::engine) fn wake_sq(&mut self, sqn: u32) {
        if let Some(sq) = self.objects.sqs.get_mut(sqn)
            && !sq.queued
        {
            sq.queued = true;
            self.sq_queue.push_back(sqn);
        }
    }

    /// Gives each SQ that waits one turn; true when there was one.
    pub(in crate::engine) fn run_sqs(&mut self) -> bool {
        let waiting = self.sq_queue.len();
        for _ in 0..waiting {
            let Some(sqn) = self.sq_queue.pop_front() else {
                break;
            };
            if let Some(sq) = self.objects.sqs.get_mut(sqn) {
                sq.queued = false;
            }
            for _ in 0..BURST {
                if !self.send_one(sqn) {
                    break;
                }
            }
            if self.sq_has_work(sqn) {
                self.wake_sq(sqn);
            }
        }
        waiting != 0
    }

    fn producer_index(&mut self, sqn: u32) -> Option<u16> {
        let sq = self.objects.sqs.get(sqn)?;
        if sq.state != RawState::Ready {
            return None;
        }
        match self.host.read_be32(sq.dbr.wrapping_add(4)) {
            Ok(pi) => Some(pi as u16),
            Err(fault) => {
                let what = format_args!("record of SQ {sqn:#x}: {fault}");
                self.violations.note(Violation::HostMemory, what);
                None
            }
        }
    }

    fn sq_has_work(&mut self, sqn: u32) -> bool {
        let pi = self.producer_index(sqn);
        let sq = self.objects.sqs.get(sqn);
        pi.zip(sq).is_some_and(|(pi, sq)| pi != sq.ring.ci)
    }

    /// Sends the next WQE; false when there is none.
    fn send_one(&mut self, sqn: u32) -> bool {
        let Some(pi) = self.producer_index(sqn) else {
            return false;
        };
        let Some(sq) = self.objects.sqs.get_mut(sqn) else {
            return false;
        };
        let wqe = match wqe::take(&self.host, &sq.buffer, &mut sq.ring, pi) {
            Ok(Some(wqe)) => wqe,
            Ok(None) => return false,
            Err(what) => {
                self.violations
                    .note(Violation::BadWqe, format_args!("SQ {sqn:#x}: {what}"));
                self.fail_sq(sqn, None, (LOCAL_QP_OPERATION, what));
                return false;
            }
        };
        self.counters.send_wqes += 1;
        if let Err(refused) = self.execute(sqn, &wqe) {
            self.fail_sq(sqn, Some(&wqe), refused);
            return false;
        }
        if wqe.signaled() {
            self.complete_send(sqn, &wqe, 0);
        }
        true
    }

    fn execute(&mut self, sqn: u32, wqe: &Wqe) -> Result<(), Refused> {
        match wqe.opcode() {
            opcode::NOP => Ok(()),
            opcode::SEND => self.send_frame(sqn, wqe, 0),
            opcode::LSO => {
                let mss = usize::from(wqe.be16(SEGMENT + 6));
                if mss == 0 {
                    return Err((LOCAL_QP_OPERATION, "LSO without a segment size"));
                }
                self.send_frame(sqn, wqe, mss)
            }
            _ => Err((LOCAL_QP_OPERATION, "an opcode that an SQ does not know")),
        }
    }

    fn send_frame(&mut self, sqn: u32, wqe: &Wqe, mss: usize) -> Result<(), Refused> {
        if wqe.len < HEADERS {
            return Err((LOCAL_QP_OPERATION, "no Ethernet segment"));
        }
        let bytes = wqe.bytes();
        let cs_flags = bytes[SEGMENT + 4];
        let size = wqe.be16(SEGMENT + 12);
        let (inline, tag) = if size & INSERT_VLAN != 0 {
            (0, Some(wqe.be16(SEGMENT + 14)))
        } else {
            (usize::from(size & 0x3ff), None)
        };
        let mut at = HEADERS + inline.saturating_sub(INLINE_START).next_multiple_of(SEGMENT);
        let start = HEADERS - INLINE_START;
        if at > wqe.len {
            return Err((LOCAL_QP_OPERATION, "the inline header is longer than the WQE"));
        }
        let mut frame = bytes[start..start + inline].to_vec();
        while at + SEGMENT <= wqe.len {
            at += self.gather(sqn, &bytes[at..], &mut frame)?;
        }
        if let Some(tag) = tag
            && frame.len() > 12
        {
            let [a, b] = tag.to_be_bytes();
            frame.splice(12..12, [0x81, 0x00, a, b]);
        }
        if mss == 0 {
            set_checksums(&mut frame, cs_flags & L3_CSUM != 0, cs_flags & L4_CSUM != 0);
            self.emit_ethernet(frame);
            return Ok(());
        }
        for mut segment in segments(&frame, inline, mss)? {
            set_checksums(&mut segment, cs_flags & L3_CSUM != 0, true);
            self.emit_ethernet(segment);
        }
        Ok(())
    }

    /// Appends what one data segment names; gives the segment's length in the WQE.
    fn gather(&self, sqn: u32, rest: &[u8], frame: &mut Vec<u8>) -> Result<usize, Refused> {
        let word = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]);
        if word & INLINE != 0 {
            let len = (word & 0x3ff) as usize;
            let data = rest
                .get(4..4 + len)
                .ok_or((LOCAL_QP_OPERATION, "inline data past the WQE"))?;
            frame.extend_from_slice(data);
            return Ok((4 + len).next_multiple_of(SEGMENT));
        }
        let sge = data_segment(rest);
        let pd = self.objects.sqs.get(sqn).map_or(0, |sq| sq.pd);
        let view = KeyView {
            mkeys: &self.objects.mkeys,
            pd,
            qpn: sqn,
        };
        if frame.len() + sge.len as usize > MAX_GATHER {
            return Err((LOCAL_LENGTH, "a frame of more than 256 KiB"));
        }
        let range = Range {
            key: sge.lkey,
            va: sge.addr,
            len: u64::from(sge.len),
        };
        let mut slices = HostSlices::new();
        let found = view.slices(&self.host, range, Access::LOCAL_READ, &mut slices);
        found.map_err(|refusal| {
            log::debug!("SQ {sqn:#x}: {refusal}");
            (LOCAL_PROTECTION, "data outside of its key")
        })?;
        let bytes = Payload::from_host(slices).to_vec();
        frame.extend_from_slice(&bytes.map_err(|_| (LOCAL_PROTECTION, "data is not mapped"))?);
        Ok(SEGMENT)
    }

    /// A whole frame for the wire.
    fn emit_ethernet(&mut self, mut frame: Vec<u8>) {
        if frame.len() < 14 || frame.len() > usize::from(self.port.mtu) || !self.line(FIRST_PORT).admin_up {
            self.counters.dropped_malformed += 1;
            return;
        }
        if frame.len() < MIN_FRAME {
            frame.resize(MIN_FRAME, 0);
        }
        self.counters.frames_out += 1;
        self.counters.bytes_out += frame.len() as u64;
        let frame = Frame::from_vec(frame);
        self.count_sent(FIRST_PORT, &frame, false);
        let queue = &mut self.line_mut(FIRST_PORT).outgoing;
        if queue.len() < crate::engine::frames::MAX_QUEUED_FRAMES {
            queue.push_back(frame);
        }
    }

    fn complete_send(&mut self, sqn: u32, wqe: &Wqe, syndrome: u8) {
        let Some(sq) = self.objects.sqs.get(sqn) else {
            return;
        };
        let completion = Completion {
            opcode: if syndrome == 0 {
                cqe_opcode::REQ
            } else {
                cqe_opcode::REQ_ERR
            },
            qpn: sqn,
            send_opcode: wqe.opcode(),
            user_index: sq.user_index,
            wqe_counter: wqe.index,
            syndrome,
            ..Completion::default()
        };
        let cqn = sq.cqn;
        self.complete(cqn, &completion);
    }

    fn fail_sq(&mut self, sqn: u32, wqe: Option<&Wqe>, (syndrome, what): Refused) {
        log::warn!("SQ {sqn:#x} goes to error: {what}");
        if let Some(sq) = self.objects.sqs.get_mut(sqn) {
            sq.state = RawState::Error;
        }
        if let Some(wqe) = wqe {
            self.complete_send(sqn, wqe, syndrome);
        }
    }
}

/// Cuts a frame whose first `header` bytes are Ethernet, IP and TCP headers into frames of `mss` bytes of payload.
fn segments(frame: &[u8], header: usize, mss: usize) -> Result<Vec<Vec<u8>>, Refused> {
    let bad = (LOCAL_QP_OPERATION, "LSO of something that is not TCP over IP");
    // The IP length may be that of the whole, or 0 where it does not fit.
    let mut first = frame.to_vec();
    let ip = ip_offset(&first).ok_or(bad)?;
    set_ip_length(&mut first, ip, header).ok_or(bad)?;
    let packet = Packet::parse(&first[..header]).ok_or(bad)?;
    let (network, transport) = packet.network.zip(packet.transport).ok_or(bad)?;
    if !transport.tcp {
        return Err(bad);
    }
    let (v6, tcp) = (network.v6, transport.at);
    let head = &first[..header];
    let seq = u32::from_be_bytes([head[tcp + 4], head[tcp + 5], head[tcp + 6], head[tcp + 7]]);
    let flags = head[tcp + 13];
    let count = (frame.len() - header).div_ceil(mss).max(1);
    let mut out = Vec::with_capacity(count);
    for (i, payload) in frame[header..].chunks(mss).enumerate() {
        let mut segment = head.to_vec();
        segment.extend_from_slice(payload);
        let len = segment.len();
        set_ip_length(&mut segment, ip, len).ok_or(bad)?;
        if !v6 {
            let id = be16(head, ip + 4).wrapping_add(i as u16);
            segment[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
        }
        let at = seq.wrapping_add((i * mss) as u32);
        segment[tcp + 4..tcp + 8].copy_from_slice(&at.to_be_bytes());
        // FIN and PSH belong to the last segment, CWR to the first.
        let mut own = flags;
        if i + 1 != count {
            own &= !0x09;
        }
        if i != 0 {
            own &= !0x80;
        }
        segment[tcp + 13] = own;
        out.push(segment);
    }
    Ok(out)
}

fn ip_offset(frame: &[u8]) -> Option<usize> {
    let mut at = 12;
    while matches!(frame.get(at..at + 2)?, [0x81, 0x00] | [0x88, 0xa8]) {
        at += 4;
    }
    (frame.len() >= at + 2 + 20).then_some(at + 2)
}

/// Sets the length fields of the IP header at `ip` for a frame of `len` bytes.
fn set_ip_length(frame: &mut [u8], ip: usize, len: usize) -> Option<()> {
    let (field, value) = match frame.get(ip)? >> 4 {
        4 => (ip + 2, len.checked_sub(ip)?),
        6 => (ip + 4, len.checked_sub(ip + 40)?),
        _ => return None,
    };
    let value = u16::try_from(value).ok()?;
    frame
        .get_mut(field..field + 2)?
        .copy_from_slice(&value.to_be_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ethernet::packet::checksums_good;

    #[test]
    fn a_long_tcp_packet_is_cut_with_good_headers() {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend_from_slice(&[
            0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.extend_from_slice(&[0, 80, 0, 81, 0, 0, 0, 5, 0, 0, 0, 0, 0x50, 0x99, 0, 9, 0, 0, 0, 0]);
        let header = frame.len();
        frame.extend((0..250u8).collect::<Vec<_>>());
        let cut = segments(&frame, header, 100).unwrap();
        assert_eq!(
            cut.iter().map(|s| s.len() - header).collect::<Vec<_>>(),
            [100, 100, 50]
        );
        for (i, segment) in cut.into_iter().enumerate() {
            let mut segment = segment;
            set_checksums(&mut segment, true, true);
            let packet = Packet::parse(&segment).unwrap();
            assert_eq!(checksums_good(&packet), (Some(true), Some(true)));
            assert_eq!(segment[header - 20 + 7] as usize, 5 + i * 100);
            assert_eq!(segment[header - 20 + 13], [0x90, 0x10, 0x19][i]);
        }
        assert!(segments(&[0; 64], 54, 100).is_err());
        assert!(segments(&frame[..40], 34, 100).is_err());
    }
}
