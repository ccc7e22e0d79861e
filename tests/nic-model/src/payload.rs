//! The bytes that a packet carries: segments of our own memory or of host memory, sliced without copying.

use std::ops::Range;
use std::sync::Arc;

use crc32fast::Hasher;
use smallvec::SmallVec;

use crate::host::{HostError, HostSlice};

/// Bytes that are copied and then checksummed in one go: few enough to be still in the first-level cache.
const CHUNK: usize = 4096;

/// An immutable list of byte runs.
///
/// Segments of host memory are immutable in their place only: the host may change the bytes until they have
/// been copied, and may take the memory away, so that whatever touches the bytes can fail.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    segments: SmallVec<[Segment; 2]>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Segment {
    Owned {
        bytes: Arc<Vec<u8>>,
        range: Range<usize>,
    },
    Host(HostSlice),
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Segment::Owned { range, .. } => range.len(),
            Segment::Host(slice) => slice.len(),
        }
    }

    /// The part `part` of it, which the caller has clamped to its length.
    fn slice(&self, part: Range<usize>) -> Option<Segment> {
        match self {
            Segment::Owned { bytes, range } => Some(Segment::Owned {
                bytes: Arc::clone(bytes),
                range: range.start + part.start..range.start + part.end,
            }),
            Segment::Host(slice) => slice.slice(part).map(Segment::Host),
        }
    }

    fn copy_to(&self, at: usize, out: &mut [u8]) -> Result<(), HostError> {
        match self {
            Segment::Owned { bytes, range } => {
                let from = range.start + at;
                out.copy_from_slice(&bytes[from..from + out.len()]);
                Ok(())
            }
            Segment::Host(slice) => slice.copy_to(at, out),
        }
    }

    fn append_to(&self, at: usize, len: usize, out: &mut Vec<u8>) -> Result<(), HostError> {
        match self {
            Segment::Owned { bytes, range } => {
                let from = range.start + at;
                out.extend_from_slice(&bytes[from..from + len]);
                Ok(())
            }
            Segment::Host(slice) => slice.append_to(at, len, out),
        }
    }
}

impl Payload {
    /// No bytes.
    pub fn empty() -> Payload {
        Payload::default()
    }

    /// Takes over `bytes` without copying.
    pub fn from_vec(bytes: Vec<u8>) -> Payload {
        let range = 0..bytes.len();
        let mut out = Payload::empty();
        out.push(Segment::Owned {
            bytes: Arc::new(bytes),
            range,
        });
        out
    }

    /// Refers to host memory; nothing is copied yet.
    pub fn from_host(slices: impl IntoIterator<Item = HostSlice>) -> Payload {
        let mut out = Payload::empty();
        for slice in slices {
            out.push(Segment::Host(slice));
        }
        out
    }

    fn push(&mut self, segment: Segment) {
        let len = segment.len();
        if len > 0 {
            self.len += len;
            self.segments.push(segment);
        }
    }

    /// Adds `other` behind, sharing its bytes: how a payload is gathered from several SGEs.
    pub fn append(&mut self, other: Payload) {
        self.len += other.len;
        self.segments.extend(other.segments);
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether all bytes are our own, so that nobody changes them and copying cannot fail.
    pub fn is_owned(&self) -> bool {
        self.segments.iter().all(|s| matches!(s, Segment::Owned { .. }))
    }

    /// All bytes, when they are our own and in one run.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.segments.as_slice() {
            [] => Some(&[]),
            [Segment::Owned { bytes, range }] => bytes.get(range.clone()),
            _ => None,
        }
    }

    /// The part `range` of it, sharing the bytes; `None` when `range` is not inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Payload> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        let mut out = Payload::empty();
        for (at, s) in self.from(range.start) {
            let left = range.end - range.start - out.len;
            if left == 0 {
                break;
            }
            out.push(s.slice(at..s.len().min(at + left))?);
        }
        Some(out)
    }

    /// The segments from byte `start` on, each with the offset in it where to begin.
    fn from(&self, start: usize) -> impl Iterator<Item = (usize, &Segment)> {
        let mut skip = start;
        self.segments.iter().filter_map(move |s| {
            let at = skip.min(s.len());
            skip -= at;
            (at < s.len()).then_some((at, s))
        })
    }

    /// Copies `out.len()` bytes from `at` on.
    ///
    /// # Errors
    /// [`HostError::OutOfSlice`] when they are not all inside; what host memory refuses.
    pub fn copy_to(&self, at: usize, out: &mut [u8]) -> Result<(), HostError> {
        self.inside(at, out.len())?;
        let mut done = 0;
        for (from, s) in self.from(at) {
            let n = (s.len() - from).min(out.len() - done);
            if n == 0 {
                break;
            }
            s.copy_to(from, &mut out[done..done + n])?;
            done += n;
        }
        Ok(())
    }

    /// A copy of all bytes.
    ///
    /// # Errors
    /// What host memory refuses; never when [`Payload::is_owned`].
    pub fn to_vec(&self) -> Result<Vec<u8>, HostError> {
        let mut out = Vec::with_capacity(self.len);
        for s in &self.segments {
            s.append_to(0, s.len(), &mut out)?;
        }
        Ok(out)
    }

    /// Writes all bytes to the host memory `to`, from byte `at` of it on, without a stop in between where both
    /// sides are host memory.
    ///
    /// # Errors
    /// [`HostError::OutOfSlice`] when they don't fit (nothing is written then); what host memory refuses (a
    /// part may be written then).
    pub fn copy_to_host(&self, to: &[HostSlice], at: usize) -> Result<(), HostError> {
        let room: usize = to.iter().map(HostSlice::len).sum();
        if at.checked_add(self.len).is_none_or(|end| end > room) {
            return Err(HostError::OutOfSlice {
                at,
                len: self.len,
                slice: room,
            });
        }
        let mut skip = at;
        let mut targets = to.iter();
        let mut target = None;
        for segment in &self.segments {
            let mut from = 0;
            while from < segment.len() {
                // The room was counted above, so there is a target for each byte.
                let Some(slice): Option<&HostSlice> = target.or_else(|| targets.next()) else {
                    return Ok(());
                };
                if skip >= slice.len() {
                    skip -= slice.len();
                    target = None;
                    continue;
                }
                let n = (slice.len() - skip).min(segment.len() - from);
                match segment {
                    Segment::Owned { bytes, range } => {
                        let start = range.start + from;
                        slice.copy_from(skip, &bytes[start..start + n])?;
                    }
                    Segment::Host(source) => slice.copy_from_slice(skip, source, from, n)?,
                }
                from += n;
                skip += n;
                target = Some(slice);
            }
        }
        Ok(())
    }

    /// This payload with all bytes our own, feeding them to `crc` on the way: host memory is read once, and
    /// what the checksum covers is what is kept.
    ///
    /// # Errors
    /// What host memory refuses; never when [`Payload::is_owned`].
    pub fn snapshot(&self, crc: &mut Hasher) -> Result<Payload, HostError> {
        Ok(self.snapshot_host(crc)?.unwrap_or_else(|| self.clone()))
    }

    /// As [`Payload::snapshot`], but `None` where all bytes are our own already.
    pub(crate) fn snapshot_host(&self, crc: &mut Hasher) -> Result<Option<Payload>, HostError> {
        if self.is_owned() {
            for s in &self.segments {
                if let Segment::Owned { bytes, range } = s {
                    crc.update(&bytes[range.clone()]);
                }
            }
            return Ok(None);
        }
        let mut out = Vec::with_capacity(self.len);
        for s in &self.segments {
            let mut at = 0;
            while at < s.len() {
                let n = CHUNK.min(s.len() - at);
                s.append_to(at, n, &mut out)?;
                crc.update(&out[out.len() - n..]);
                at += n;
            }
        }
        Ok(Some(Payload::from_vec(out)))
    }

    fn inside(&self, at: usize, len: usize) -> Result<(), HostError> {
        if at.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        Err(HostError::OutOfSlice {
            at,
            len,
            slice: self.len,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::{Access, HostMemory, test_support::host_memory};

    const BASE: u64 = 0x4_0000;

    /// Bytes in pieces of the given lengths, every other piece in host memory.
    fn pieces(host: &HostMemory, lens: &[usize]) -> (Payload, Vec<u8>) {
        let mut payload = Payload::empty();
        let mut bytes = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            let piece: Vec<u8> = (0..len).map(|b| (b * 3 + i * 17 + bytes.len()) as u8).collect();
            if i % 2 == 0 {
                payload.append(Payload::from_vec(piece.clone()));
            } else {
                let iova = BASE + bytes.len() as u64;
                host.write(iova, &piece).unwrap();
                payload.append(Payload::from_host(host.slices(iova, len, Access::Read).unwrap()));
            }
            bytes.extend(piece);
        }
        (payload, bytes)
    }

    proptest! {
        #[test]
        fn slices_and_copies_agree_with_a_vector(
            lens in prop::collection::vec(0usize..60, 0..6),
            a in 0usize..300,
            b in 0usize..300,
            split in 0usize..300,
            at in 0usize..40,
        ) {
            let host = host_memory(BASE, 0x4000);
            let (payload, bytes) = pieces(&host, &lens);
            prop_assert_eq!(payload.len(), bytes.len());
            prop_assert_eq!(payload.to_vec().unwrap(), bytes.clone());
            let part = payload.slice(a..b);
            prop_assert_eq!(part.is_some(), a <= b && b <= bytes.len());
            if let Some(part) = part {
                prop_assert_eq!(part.to_vec().unwrap(), &bytes[a..b]);
                let mut crc = Hasher::new();
                let own = part.snapshot(&mut crc).unwrap();
                prop_assert!(own.is_owned());
                prop_assert_eq!(own.to_vec().unwrap(), &bytes[a..b]);
                prop_assert_eq!(crc.finalize(), crc32fast::hash(&bytes[a..b]));
            }
            let mut target = host.slices(BASE + 0x2000, split, Access::Write).unwrap();
            host.slices_into(BASE + 0x3000, 400, Access::Write, &mut target).unwrap();
            payload.copy_to_host(&target, at).unwrap();
            let written = Payload::from_host(target.iter().cloned()).slice(at..at + bytes.len()).unwrap();
            prop_assert_eq!(written.to_vec().unwrap(), bytes);
        }
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let host = host_memory(BASE, 0x1000);
        let target = host.slices(BASE, 100, Access::Write).unwrap();
        let payload = Payload::from_vec(vec![1; 100]);
        assert!(matches!(
            payload.copy_to_host(&target, 1),
            Err(HostError::OutOfSlice { .. })
        ));
        assert_eq!(host.read_u8_acquire(BASE).unwrap(), 0);
        payload.copy_to_host(&target, 0).unwrap();
        assert_eq!(host.read_u8_acquire(BASE + 99).unwrap(), 1);
    }

    #[test]
    fn bytes_that_the_host_took_away_are_an_error() {
        let mut host = host_memory(BASE, 0x1000);
        let payload = Payload::from_host(host.slices(BASE, 64, Access::Read).unwrap());
        host.clear();
        assert!(matches!(payload.to_vec(), Err(HostError::Unmapped { .. })));
        assert!(payload.snapshot(&mut Hasher::new()).is_err());
    }
}
