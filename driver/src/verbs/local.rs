//! Buffers for local use: plain slices while the program holds them, moved into the requests that use them.

use std::fmt;
use std::ops::Range;

use ferroce_firmware_iface::command::Command;
use ferroce_hw_regs::ids::Mkey;

use super::atomics::AtomicOrder;
use super::error::{CreateError, made};
use super::mkey::{self, Access, KeyKind};
use super::pd::Pd;
use crate::mem::LocalPages;
use crate::reaper::Destroy;
use crate::ring::{Lent, PostError, Sge};

/// A buffer of whole pages for this side's data.
///
/// While the program holds it, no request uses it and its bytes are a plain slice. Posting moves it into the request
/// ([`Qp::post_send_buffer`](super::Qp::post_send_buffer) and others), and the completion gives it back. It rests with the
/// queue meanwhile, not in a guard that could be forgotten: whatever the program drops or leaks, the memory stays
/// until the device is done with it.
///
/// Peers can't reach it: its memory key allows local access only, and is never given out.
///
/// The device's honesty is relied on in one point: after it has reported a request as complete it must not write to
/// the request's memory any more.
///
/// ```compile_fail
/// # use ferroce::verbs::{LocalBuffer, Qp};
/// # fn used_after_post(qp: &mut Qp, mut buffer: LocalBuffer) {
/// qp.post_recv_buffer(1, buffer).unwrap();
/// buffer.as_mut_slice()[0] = 1; // the request owns it now
/// # }
/// ```
pub struct LocalBuffer {
    inner: Box<LocalInner>,
}

/// What moves into the request: one pointer.
pub(crate) struct LocalInner {
    key: Mkey,
    /// Taken out when dropped.
    pages: Option<LocalPages>,
    len: usize,
    iova: u64,
    pd: Pd,
}

impl LocalBuffer {
    /// Allocates `len` bytes, zeroed.
    ///
    /// # Errors
    /// As [`Mr::alloc`](super::Mr::alloc).
    pub fn alloc(pd: &Pd, len: usize) -> Result<LocalBuffer, CreateError> {
        mkey::check_len(pd, len)?;
        let pages = pd.context().dma().alloc_local(len)?;
        let (iova, len) = (pages.iova(), pages.len());
        let key = mkey::create(pd, iova, len, Access::LOCAL_WRITE, KeyKind::Owned);
        let key = made(key, || pages.leak_on_drop())?;
        let inner = LocalInner {
            key,
            pages: Some(pages),
            len,
            iova,
            pd: pd.clone(),
        };
        Ok(LocalBuffer {
            inner: Box::new(inner),
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Never true: there are no empty buffers.
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// The content.
    pub fn as_slice(&self) -> &[u8] {
        self.inner.pages.as_ref().map_or(&[], |pages| pages.as_slice())
    }

    /// The content, to change.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.inner
            .pages
            .as_mut()
            .map_or(&mut [], |pages| pages.as_mut_slice())
    }

    /// The result of an atomic that went to the 8 bytes at `offset`, in host order. `None` if they are not all within.
    pub fn atomic_result(&self, offset: usize) -> Option<u64> {
        let bytes = self.as_slice().get(offset..)?.first_chunk()?;
        Some(AtomicOrder::of(self.inner.pd.context().caps()).decode(*bytes))
    }

    /// The element for a part of the buffer, for the request that it moves into.
    ///
    /// A key means something else on another device, so that the domain has to be the queue pair's.
    pub(super) fn sge(&self, pd: &Pd, range: Range<usize>) -> Result<Sge, PostError> {
        if !self.inner.pd.is_same(pd) {
            return Err(PostError::OtherPd);
        }
        let (start, end, len) = (range.start, range.end, self.inner.len);
        if start > end || end > len {
            let outside = PostError::OutOfBuffer {
                start: start as u64,
                end: end as u64,
                len: len as u64,
            };
            return Err(outside);
        }
        let bytes = u32::try_from(end - start).map_err(|_| PostError::MessageTooLong {
            asked: (end - start) as u64,
            max: u32::MAX.into(),
        })?;
        Ok(Sge::of_owned(
            self.inner.iova + start as u64,
            bytes,
            self.inner.key.0,
        ))
    }

    /// Hands it to the device: if it is dropped now, the memory stays allocated.
    pub(super) fn lend(self) -> Box<LocalInner> {
        if let Some(pages) = &self.inner.pages {
            pages.leak_on_drop();
        }
        self.inner
    }

    /// Takes it back: the device is known to be done with it.
    pub(super) fn reclaim(inner: Box<LocalInner>) -> LocalBuffer {
        inner.come_back();
        LocalBuffer { inner }
    }
}

impl Lent for LocalInner {
    fn come_back(&self) {
        if let Some(pages) = &self.pages {
            pages.free_on_drop();
        }
    }
}

impl fmt::Debug for LocalBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBuffer")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LocalInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalInner")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for LocalInner {
    // Out of line: each completion may hold one, and few do.
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        let what = self.key.to_string();
        let commands = mkey::destroy(self.key).encode().into_iter().collect();
        let pages = self.pages.take();
        let done = move |destroyed: bool| {
            // Dropped here, after the key.
            match pages {
                Some(pages) if !destroyed => pages.leak_on_drop(),
                _ => {}
            }
        };
        let destroy = Destroy {
            what,
            commands,
            memory: Vec::new(),
            keep: None,
            done: Some(Box::new(done)),
        };
        self.pd.context().reaper().submit(destroy);
    }
}
