//! The bytes that a packet carries: gathered from host memory once, sliced without copying.

use std::ops::Range;
use std::sync::Arc;

/// An immutable run of bytes, made of one or more segments.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    segments: Vec<Segment>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Segment {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Payload {
    /// No bytes.
    pub fn empty() -> Payload {
        Payload::default()
    }

    /// Takes over `bytes` without copying.
    pub fn from_vec(bytes: Vec<u8>) -> Payload {
        let len = bytes.len();
        if len == 0 {
            return Payload::empty();
        }
        Payload {
            segments: vec![Segment {
                bytes: Arc::new(bytes),
                range: 0..len,
            }],
            len,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part `range` of it, sharing the bytes; `None` when `range` is not inside.
    pub fn slice(&self, range: Range<usize>) -> Option<Payload> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        let mut out = Payload {
            segments: Vec::new(),
            len: range.end - range.start,
        };
        let mut at = 0;
        for s in &self.segments {
            let end = at + s.range.len();
            let from = range.start.max(at);
            let to = range.end.min(end);
            if from < to {
                out.segments.push(Segment {
                    bytes: Arc::clone(&s.bytes),
                    range: s.range.start + (from - at)..s.range.start + (to - at),
                });
            }
            at = end;
        }
        Some(out)
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len);
        for s in &self.segments {
            out.extend_from_slice(&s.bytes[s.range.clone()]);
        }
        out
    }
}
