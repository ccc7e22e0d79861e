//! Shared receive queues: receives that any of several queue pairs may take.
//!
//! An SRQ has one owner, who posts: [`Srq`] is not cloned, and posting takes `&mut self`. Its receives complete in the
//! completion queues of the queue pairs on it, whichever threads poll those; they give the places back without a lock
//! (see `ring::srq`). Queue pairs hold the queue itself, so that it lives until the last of them is gone.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ferroce_firmware_iface::cmds::{ArmRmp, CreateRmp, DestroyRmp, QueryRmp};
use ferroce_firmware_iface::command::Command;
use ferroce_firmware_iface::event::EventType;
use ferroce_firmware_iface::layouts::Wq;
use ferroce_hw_regs::ids::Srqn;

use super::cq::{Cq, Promise};
use super::error::{BadWr, CreateError, DestroyError, LimitError, ModifyError, Refused, made};
use super::local::{LocalBuffer, LocalInner};
use super::pages;
use super::pd::Pd;
use crate::cmdq::lock;
use crate::events::{AsyncEvent, Object};
use crate::mem::{DmaBuffer, DmaRing};
use crate::reaper::Destroy;
use crate::ring::{PostError, RecvWr, RqLimits, SrqProducer, SrqShape, SrqShared};

/// Bytes that a doorbell record takes: a cache line.
const RECORD_BYTES: usize = 64;
/// Events of a queue that wait to be read.
const MAX_EVENTS: usize = 16;

/// What a shared receive queue shall be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqConfig {
    /// Most receive requests outstanding at a time. Granted exactly.
    pub max_wr: u32,
    /// Most scatter/gather elements of a request.
    pub max_sge: u32,
}

impl Default for SrqConfig {
    /// 512 requests of one element.
    fn default() -> SrqConfig {
        SrqConfig {
            max_wr: 512,
            max_sge: 1,
        }
    }
}

/// What the device says of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttributes {
    /// The limit that is armed; 0 if none is.
    pub limit: u32,
    /// Whether it still gives receives out; a catastrophic error has ended that otherwise.
    pub ready: bool,
}

/// A receive that was used up by a queue pair that is gone or was reset, and whose completion was not shown therefore.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "it holds the buffer that was moved into the request"]
pub struct ReturnedRecv {
    /// The caller's name for the request.
    pub wr_id: u64,
    /// The buffer that was moved into the request; what it holds means nothing.
    pub buffer: Option<LocalBuffer>,
}

/// A shared receive queue.
///
/// Receives that are posted here go to whichever queue pair on it needs one next
/// ([`Qp::create_on_srq`](super::Qp::create_on_srq)), and complete in that queue pair's receive CQ, also with the buffers that
/// were moved in.
///
/// ```text
///              .--> Qp --> Cq --> CqPoller --.
///   Srq (posts) --> Qp --> Cq --> CqPoller --+--> places are free again
///              '--> Qp --------^             |
/// ```
///
/// A queue pair on it that is to go should be brought to ERR and drained first ([`Qp::drain`](super::Qp::drain)), which waits
/// until the device has given back what it had taken for it. What completes for one that is gone is not shown; such
/// receives come out of [`Srq::take_returned`].
///
/// Dropped, it takes no more requests; the queue itself goes with the last queue pair on it.
///
/// ```compile_fail
/// # use ferroce::verbs::{RecvWr, Srq};
/// # fn two_owners(srq: &Srq) {
/// srq.post_recv(&RecvWr { wr_id: 1, sges: &[] }); // posting needs the one owner's `&mut`
/// # }
/// ```
///
/// ```compile_fail
/// # use ferroce::verbs::{LocalBuffer, Srq};
/// # fn used_after_post(srq: &mut Srq, mut buffer: LocalBuffer) {
/// srq.post_recv_buffer(1, buffer).unwrap();
/// buffer.as_mut_slice()[0] = 1; // the request owns it now
/// # }
/// ```
pub struct Srq {
    producer: SrqProducer<LocalInner>,
    config: SrqConfig,
    pub(super) core: Arc<SrqCore>,
}

/// The queue itself: what queue pairs on it hold.
pub(super) struct SrqCore {
    srqn: Srqn,
    pub(super) slots: Arc<SrqShared<LocalInner>>,
    buffer: Arc<DmaBuffer>,
    news: Arc<News>,
    /// Entries of CQs that are promised to this queue's completions.
    places: Mutex<Vec<Weak<Promise>>>,
    /// Firmware has it no more.
    gone: AtomicBool,
    pd: Pd,
}

/// What the device said of the queue by itself.
#[derive(Default)]
struct News {
    events: Mutex<VecDeque<EventType>>,
    failed: AtomicBool,
}

impl Srq {
    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// [`CreateError::Limit`] names the attribute that the device doesn't take; or what memory or firmware say. Firmware that
    /// has only ISSI 0 refuses.
    pub fn create(pd: &Pd, config: &SrqConfig) -> Result<Srq, CreateError> {
        let context = pd.context();
        let (shape, limits) = config.shape(context.caps().general())?;
        let bytes = (shape.entries * shape.stride) as usize;
        let buffer = Arc::new(context.dma().alloc(bytes + RECORD_BYTES)?);
        let list = pages::of_queue(buffer.iova(), bytes as u64);
        let mut wq = Wq::default();
        wq.set_pd(pd.pdn().get())?;
        wq.set_log_wq_sz(shape.entries.ilog2() as u8)?;
        wq.set_log_wq_stride(shape.stride.ilog2() as u8)?;
        wq.set_log_wq_pg_sz(pages::queue_log_page_size(&list))?;
        wq.set_dbr_addr(buffer.iova() + bytes as u64);
        let ring = DmaRing::new(buffer.clone(), 0, (bytes / 16) as u32)?;
        let record = DmaRing::new(buffer.clone(), bytes, 1)?;
        let srqn = context.exec(&CreateRmp {
            wq: &wq,
            pages: &list.pages,
        });
        let srqn = made(srqn, || buffer.leak_on_drop())?;
        let slots = SrqShared::new(shape.entries);
        let producer = SrqProducer::new(ring, record, slots.clone(), limits, shape.stride);
        let core = SrqCore {
            srqn,
            slots,
            buffer,
            news: Arc::default(),
            places: Mutex::default(),
            gone: AtomicBool::new(false),
            pd: pd.clone(),
        };
        core.listen();
        Ok(Srq {
            producer,
            config: *config,
            core: Arc::new(core),
        })
    }

    /// Its number.
    pub fn srqn(&self) -> Srqn {
        self.core.srqn
    }

    /// What it was made for.
    pub fn config(&self) -> &SrqConfig {
        &self.config
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.core.pd
    }

    /// Writes a receive request to the queue. The device sees it at [`Srq::ring`].
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted.
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.producer.post(wr)
    }

    /// Shows the device all receive requests that were posted since the last call.
    #[inline]
    pub fn ring(&mut self) {
        self.producer.ring();
    }

    /// Posts a chain of receive requests and rings once.
    ///
    /// # Errors
    /// [`BadWr`] names the first that can't be posted; those before it are.
    pub fn post_recv_list(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), BadWr> {
        let bad = wrs.iter().enumerate().find_map(|(index, wr)| {
            let error = self.post_recv(wr).err()?;
            Some(BadWr { index, error })
        });
        self.ring();
        bad.map_or(Ok(()), Err)
    }

    /// Posts a receive into the whole of a buffer, which comes back with the completion, out of whichever CQ that is. The
    /// device sees it at [`Srq::ring`].
    ///
    /// # Errors
    /// [`Refused`] with the buffer; nothing was posted.
    pub fn post_recv_buffer(&mut self, wr_id: u64, buffer: LocalBuffer) -> Result<(), Refused<LocalBuffer>> {
        let sge = match buffer.sge(&self.core.pd, 0..buffer.len()) {
            Ok(sge) => sge,
            Err(error) => return Err(Refused { error, buffer }),
        };
        self.producer
            .post_owned(&RecvWr { wr_id, sges: &[sge] }, buffer.lend())
            .map_err(|(error, buffer)| Refused {
                error,
                buffer: LocalBuffer::reclaim(buffer),
            })
    }

    /// Receives that are posted and whose completions have not been polled. It looks at each place, so it is for diagnosis.
    pub fn outstanding(&self) -> u32 {
        self.core.slots.outstanding()
    }

    /// The oldest receive whose completion was not shown, since its queue pair was gone or had been reset when it was polled.
    /// At most as many as the ring has entries are kept; the oldest go.
    pub fn take_returned(&mut self) -> Option<ReturnedRecv> {
        let gone = self.core.slots.take_abandoned()?;
        Some(ReturnedRecv {
            wr_id: gone.wr_id,
            buffer: gone.buffer.map(LocalBuffer::reclaim),
        })
    }

    /// Asks for one event ([`EventType::SRQ_LIMIT`]), when fewer than `limit` receives are left; 0 asks for none. The event
    /// disarms it.
    ///
    /// # Errors
    /// [`ModifyError::Limit`] above [`SrqConfig::max_wr`]; [`ModifyError::Command`].
    pub fn arm(&mut self, limit: u32) -> Result<(), ModifyError> {
        let reason = "is what it was made for (SrqConfig::max_wr)";
        LimitError::check(
            "SRQ",
            "limit",
            limit.into(),
            0..=self.config.max_wr.into(),
            reason,
        )?;
        // Below 2^15, like `max_wr`.
        let limit = limit as u16;
        let rmpn = self.core.srqn;
        Ok(self.core.pd.context().exec(&ArmRmp { rmpn, limit })?)
    }

    /// Asks the device.
    ///
    /// # Errors
    /// [`ModifyError::Command`].
    pub fn query(&self) -> Result<SrqAttributes, ModifyError> {
        let rmpn = self.core.srqn;
        let said = self.core.pd.context().exec(&QueryRmp { rmpn })?;
        Ok(SrqAttributes {
            limit: said.limit.into(),
            ready: said.ready,
        })
    }

    /// The oldest asynchronous event of this queue that was not read yet: [`EventType::SRQ_LIMIT`] or
    /// [`EventType::SRQ_CATASTROPHIC_ERROR`]. The last of more than 16 unread ones are not kept.
    pub fn next_event(&self) -> Option<EventType> {
        lock(&self.core.news.events).pop_front()
    }

    /// Whether the device has given the queue up ([`EventType::SRQ_CATASTROPHIC_ERROR`]): no receive of it is used any more, and
    /// its queue pairs have failed.
    pub fn has_failed(&self) -> bool {
        self.core.news.failed.load(Ordering::Acquire)
    }

    /// Ends the queue, and says whether that worked. The buffers of receives that nobody has used come back here.
    ///
    /// # Errors
    /// [`DestroyError::Busy`] while queue pairs are on it; it is destroyed with the last of them then.
    /// [`DestroyError::Command`]; its memory and the buffers stay allocated.
    pub fn destroy(self) -> Result<Vec<LocalBuffer>, DestroyError> {
        let Srq { core, .. } = self;
        let context = core.pd.context().clone();
        // Queue pairs that were dropped may be waiting to be destroyed.
        context.reaper().drain();
        let mut core = match Arc::try_unwrap(core) {
            Ok(core) => core,
            Err(shared) => {
                return Err(DestroyError::Busy {
                    object: "SRQ",
                    users: Arc::strong_count(&shared) - 1,
                });
            }
        };
        *core.gone.get_mut() = true;
        context.forget_events(Object::Srq(core.srqn.get()));
        if let Err(error) = context.exec(&DestroyRmp { rmpn: core.srqn }) {
            core.buffer.leak_on_drop();
            return Err(error.into());
        }
        Ok(core.slots.take_all().map(LocalBuffer::reclaim).collect())
    }

    /// The entries of `cq` that are for this queue's completions, whichever queue pairs they are of.
    pub(super) fn place_in(&self, cq: &Cq) -> Result<Arc<Promise>, CreateError> {
        let mut places = lock(&self.core.places);
        places.retain(|place| place.strong_count() != 0);
        let found = places
            .iter()
            .filter_map(Weak::upgrade)
            .find(|place| place.is_of(cq));
        if let Some(found) = found {
            return Ok(found);
        }
        let place = Arc::new(cq.promise("shared receive", self.config.max_wr)?);
        places.push(Arc::downgrade(&place));
        Ok(place)
    }
}

impl SrqConfig {
    /// Checks the config against the device's limits.
    fn shape(
        &self,
        general: &ferroce_firmware_iface::layouts::CmdHcaCap,
    ) -> Result<(SrqShape, RqLimits), LimitError> {
        let reason = "is the device's limit (log_max_srq_sz, of which one entry is the driver's)";
        // The entries' numbers have 16 bits, and the context has 4 for their log2 (Linux mlx5).
        let most = (1u64 << general.log_max_srq_sz().min(15)) - 1;
        LimitError::check("SRQ", "max_wr", self.max_wr.into(), 1..=most, reason)?;
        let reason = "is what fits the device's largest receive WQE (max_wqe_sz_rq)";
        let largest = 1u64 << u64::from(general.max_wqe_sz_rq()).clamp(32, 2048).ilog2();
        LimitError::check(
            "SRQ",
            "max_sge",
            self.max_sge.into(),
            0..=largest / 16 - 1,
            reason,
        )?;
        let shape = SrqShape::new(self.max_wr, self.max_sge).ok_or(LimitError {
            object: "SRQ",
            attribute: "max_wr",
            asked: self.max_wr.into(),
            min: 1,
            max: most,
            reason,
        })?;
        let limits = RqLimits {
            max_wr: self.max_wr,
            max_sge: self.max_sge,
            max_msg: 1u64 << general.log_max_msg().min(31),
        };
        Ok((shape, limits))
    }
}

impl SrqCore {
    /// Keeps the queue's asynchronous events.
    fn listen(&self) {
        let news = self.news.clone();
        let handler = move |event: &AsyncEvent| {
            if let AsyncEvent::Srq { event, .. } = event {
                if *event == EventType::SRQ_CATASTROPHIC_ERROR {
                    news.failed.store(true, Ordering::Release);
                }
                let mut events = lock(&news.events);
                if events.len() < MAX_EVENTS {
                    events.push_back(*event);
                }
            }
        };
        self.pd
            .context()
            .handle_events(Object::Srq(self.srqn.get()), Arc::new(handler));
    }
}

impl Drop for SrqCore {
    fn drop(&mut self) {
        if *self.gone.get_mut() {
            return;
        }
        let context = self.pd.context();
        context.forget_events(Object::Srq(self.srqn.get()));
        let commands = DestroyRmp { rmpn: self.srqn }.encode().into_iter().collect();
        let slots = self.slots.clone();
        let done = move |destroyed: bool| {
            if destroyed {
                slots.take_all().map(LocalBuffer::reclaim).for_each(drop);
            }
        };
        context.reaper().submit(Destroy {
            what: self.srqn.to_string(),
            commands,
            memory: vec![self.buffer.clone()],
            keep: None,
            done: Some(Box::new(done)),
        });
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("srqn", &self.core.srqn.get())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
