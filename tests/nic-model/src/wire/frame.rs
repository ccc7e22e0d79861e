//! An Ethernet frame in up to three parts, so that its payload can stay where it is.

use super::encap::{
    ETH_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IPV4_BYTES, VLAN_BYTES, checksum,
};
use crate::host::HostError;
use crate::payload::Payload;

/// Up to `N` bytes in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inline<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// Room for the longest header stack: Ethernet, VLAN, IPv6, UDP, BTH and AtomicETH.
pub(super) const MAX_HEADERS: usize = 14 + 4 + 40 + 8 + 12 + 28;
pub(super) type HeaderBytes = Inline<MAX_HEADERS>;
/// Up to 3 pad bytes and the ICRC.
pub(super) type TrailerBytes = Inline<7>;

impl<const N: usize> Inline<N> {
    pub fn new() -> Inline<N> {
        Inline {
            bytes: [0; N],
            len: 0,
        }
    }

    /// Appends `bytes`. Whatever passes `N` bytes is lost: a test emits the longest headers that there are.
    #[inline]
    pub fn push<const M: usize>(&mut self, bytes: &[u8; M]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + M) {
            room.copy_from_slice(bytes);
            self.len += M;
        }
    }

    /// Appends `n` zero bytes, as far as there is room.
    pub fn push_zeros(&mut self, n: usize) {
        self.len = N.min(self.len + n);
    }
}

impl<const N: usize> Default for Inline<N> {
    fn default() -> Inline<N> {
        Inline::new()
    }
}

impl<const N: usize> std::ops::Deref for Inline<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const N: usize> std::ops::DerefMut for Inline<N> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

/// One Ethernet frame without its frame check sequence.
///
/// Frames that [`emit`](super::emit()) makes have all headers in `header`, so that a cable in the same process
/// carries them without copying the payload. Frames from elsewhere are one run of bytes.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    header: HeaderBytes,
    payload: Payload,
    trailer: TrailerBytes,
}

impl Frame {
    /// Takes over a frame's bytes without copying. Any bytes: it is parsing that judges them.
    pub fn from_vec(bytes: Vec<u8>) -> Frame {
        Frame {
            payload: Payload::from_vec(bytes),
            ..Frame::default()
        }
    }

    pub(super) fn from_parts(header: HeaderBytes, payload: Payload, trailer: TrailerBytes) -> Frame {
        Frame {
            header,
            payload,
            trailer,
        }
    }

    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    /// The part between header and trailer; of a frame from outside, all of it.
    pub(super) fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Takes that part out.
    pub(super) fn take_payload(&mut self) -> Payload {
        std::mem::take(&mut self.payload)
    }

    pub(super) fn trailer(&self) -> &[u8] {
        &self.trailer
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len() + self.trailer.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes in one run.
    ///
    /// # Errors
    /// The payload is host memory that can't be read (any more).
    pub fn to_bytes(&self) -> Result<Vec<u8>, HostError> {
        let mut out = vec![0; self.len()];
        let (header, rest) = out.split_at_mut(self.header.len());
        let (payload, trailer) = rest.split_at_mut(self.payload.len());
        header.copy_from_slice(&self.header);
        self.payload.copy_to(0, payload)?;
        trailer.copy_from_slice(&self.trailer);
        Ok(out)
    }

    /// The frame as one run of our own bytes, which nobody changes any more: for a frame that is held back.
    ///
    /// # Errors
    /// As for [`Frame::to_bytes`].
    pub fn flatten(&self) -> Result<Frame, HostError> {
        if self.header.is_empty() && self.payload.as_slice().is_some() {
            return Ok(self.clone());
        }
        Ok(Frame::from_vec(self.to_bytes()?))
    }

    /// Copies `out.len()` bytes from `at` on; `None` when they are not all in the header of an emitted frame
    /// or in a frame of one run, or can't be read.
    fn peek<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut out = [0; N];
        if self.header.is_empty() {
            self.payload.copy_to(at, &mut out).ok()?;
        } else {
            out.copy_from_slice(self.header.get(at..at + N)?);
        }
        Some(out)
    }

    /// Destination MAC address; `None` when the frame is too short for one.
    pub fn dst_mac(&self) -> Option<[u8; 6]> {
        self.peek(0)
    }

    /// Source MAC address; `None` when the frame is too short for one.
    pub fn src_mac(&self) -> Option<[u8; 6]> {
        self.peek(6)
    }

    /// Ethertype of the outermost header (0x8100 when tagged); `None` when the frame is too short for one.
    pub fn ethertype(&self) -> Option<u16> {
        self.peek(12).map(u16::from_be_bytes)
    }

    /// Priority of the VLAN tag, 0 to 7; 0 when there is none.
    pub fn priority(&self) -> u8 {
        let tci = self.peek(14).filter(|_| self.ethertype() == Some(ETHERTYPE_VLAN));
        tci.map_or(0, |tci: [u8; 2]| tci[0] >> 5)
    }

    /// Marks the frame as a congested switch does: "congestion experienced", when it is IP and its sender takes
    /// part in ECN. The ICRC does not cover the field. Gives whether the frame is marked now.
    ///
    /// # Errors
    /// The frame has to be copied for it, and its bytes can't be read.
    pub fn mark_congestion(&mut self) -> Result<bool, HostError> {
        if !self.header.is_empty() {
            return Ok(set_ce(&mut self.header));
        }
        let mut bytes = self.to_bytes()?;
        let marked = set_ce(&mut bytes);
        *self = Frame::from_vec(bytes);
        Ok(marked)
    }
}

/// Sets the ECN field of the IP header in `bytes`, a frame's start, to CE unless it is Not-ECT.
fn set_ce(bytes: &mut [u8]) -> bool {
    let ethertype = |at: usize| bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let l3 = if ethertype(12) == Some(ETHERTYPE_VLAN) {
        ETH_BYTES + VLAN_BYTES
    } else {
        ETH_BYTES
    };
    match ethertype(l3 - 2) {
        Some(ETHERTYPE_IPV4) => {
            let Some(header) = bytes.get_mut(l3..).and_then(|rest| rest.first_chunk_mut()) else {
                return false;
            };
            let header: &mut [u8; IPV4_BYTES] = header;
            if header[1] & 3 == 0 {
                return false;
            }
            header[1] |= 3;
            header[10..12].fill(0);
            let sum = checksum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        Some(ETHERTYPE_IPV6) => {
            // The traffic class lies across two bytes; its low 2 bits are the second byte's bits 5 and 4.
            let Some(byte) = bytes.get_mut(l3 + 1).filter(|b| **b & 0x30 != 0) else {
                return false;
            };
            *byte |= 0x30;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_join_and_peek_sees_both_forms() {
        let bytes: Vec<u8> = (0..40).collect();
        let (mut header, mut trailer) = (HeaderBytes::new(), TrailerBytes::new());
        header.push(bytes[..20].first_chunk::<20>().unwrap());
        trailer.push(bytes[36..].first_chunk::<4>().unwrap());
        let split = Frame::from_parts(header, Payload::from_vec(bytes[20..36].to_vec()), trailer);
        assert_eq!(split.to_bytes().unwrap(), bytes);
        for frame in [split.clone(), split.flatten().unwrap()] {
            assert_eq!(frame.len(), 40);
            assert_eq!(frame.dst_mac(), Some([0, 1, 2, 3, 4, 5]));
            assert_eq!(frame.src_mac(), Some([6, 7, 8, 9, 10, 11]));
            assert_eq!(frame.ethertype(), Some(0x0c0d));
        }
        assert_eq!(Frame::from_vec(vec![0; 13]).ethertype(), None);
        assert!(Frame::default().is_empty());
    }
}
