//! Completion queues.
//!
//! A CQ has a control half, [`Cq`], which queue pairs hold, and one [`CqPoller`], which a thread polls. Queue pairs tell
//! the poller of their coming and going through an inbox; the poller looks into it when a flag says so, before a
//! batch, or when it meets a completion of a queue pair that it doesn't know. So polling takes no lock that others hold,
//! and destroying a queue pair needs no poller.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use ferroce_firmware_iface::cmds::{CreateCq, DestroyCq};
use ferroce_firmware_iface::command::Command;
use ferroce_hw_regs::ids::Cqn;
use ferroce_hw_regs::uar;

use super::cq_memory::RingMemory;
use super::error::{CreateError, LimitError, made};
use super::local::LocalInner;
use super::poller::CqPoller;
use super::user_index::UserIndexGuard;
use crate::cmdq::lock;
use crate::context::Context;
use crate::events::{AsyncEvent, CompCounter, Object};
use crate::mem::{DmaBuffer, DmaRing};
use crate::reaper::Destroy;
use crate::ring::{CqRing, SrqShared, Unread, View, WqConsumer};

/// No error so far.
pub(super) const HEALTHY: u8 = 0;
/// The bit that tells an error with syndrome 0 from none.
pub(super) const FAILED: u8 = 0x80;
/// Bytes that a doorbell record takes: a cache line.
const RECORD_BYTES: usize = 64;

/// What a completion queue shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqConfig {
    /// Completions that it holds at least. The ring is a power of two; 17 of its entries are for what was polled and the device
    /// was not told of yet.
    pub entries: u32,
    /// Completion vector whose events announce completions, below [`Context::completion_vectors`].
    pub vector: usize,
    /// Lets queue pairs join whose outstanding requests together exceed the entries. For programs that know that not all
    /// of them complete at a time; if they do, the device overruns the queue and its queue pairs fail.
    pub overcommit: bool,
}

impl CqConfig {
    /// A queue of so many entries, on vector 0, not overcommitted.
    pub fn new(entries: u32) -> CqConfig {
        CqConfig {
            entries,
            vector: 0,
            overcommit: false,
        }
    }
}

/// A completion queue, as queue pairs hold it. A handle; clones are the same queue.
///
/// The queue goes, in firmware too, when its handles, its poller and its queue pairs are gone.
#[derive(Clone)]
pub struct Cq {
    pub(super) shared: Arc<CqShared>,
}

pub(super) struct CqShared {
    pub(super) cqn: Cqn,
    pub(super) capacity: Mutex<Capacity>,
    pub(super) vector: usize,
    pub(super) inbox: Mutex<Vec<Message>>,
    /// There is something in the inbox.
    pub(super) mail: AtomicBool,
    /// `HEALTHY`, or `FAILED` and the syndrome.
    pub(super) error: Arc<AtomicU8>,
    pub(super) completions: CompCounter,
    /// For a look at the ring from outside the poller.
    pub(super) view: Mutex<View>,
    /// Holds the doorbell record.
    record: Arc<DmaBuffer>,
    pub(super) context: Arc<Context>,
}

/// How many completions a CQ holds, and for how many queue pairs count on it.
#[derive(Debug)]
pub(super) struct Capacity {
    /// Completions that it holds.
    pub(super) entries: u32,
    /// Of them promised to queue pairs.
    pub(super) reserved: u32,
    /// More may be promised than there are.
    pub(super) overcommit: bool,
}

/// The consumer halves of one QP's queues that complete in one CQ.
#[derive(Debug)]
pub(super) struct Consumers {
    pub(super) sq: Option<WqConsumer<LocalInner>>,
    pub(super) rq: Option<WqConsumer<LocalInner>>,
    pub(super) srq: Option<Arc<SrqShared<LocalInner>>>,
}

/// How completions name a queue pair, and how they are shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    /// Its user index.
    pub(super) key: u32,
    /// The number that its peers know.
    pub(super) qpn: u32,
    /// Its receives say where the message came from.
    pub(super) datagram: bool,
}

/// What a queue pair tells the poller.
#[derive(Debug)]
pub(super) enum Message {
    Attach {
        identity: Identity,
        consumers: Consumers,
        attachment: Attachment,
    },
    Reset {
        key: u32,
        end: u32,
        consumers: Consumers,
        /// Room for the completions before `end`, where there was some.
        room: Option<Promise>,
    },
    Mute {
        key: u32,
    },
    Detach {
        key: u32,
        end: u32,
    },
}

/// A QP's place in a CQ. Given back when no completion of the QP can be left in it.
#[derive(Debug)]
pub(super) struct Attachment {
    _index: Arc<UserIndexGuard>,
    _own: Promise,
    /// For what its SRQ may complete here, together with other QPs on that SRQ.
    _shared: Option<Arc<Promise>>,
}

/// Entries of a CQ that are promised to somebody, given back when dropped.
#[derive(Debug)]
pub(super) struct Promise {
    entries: u32,
    cq: std::sync::Weak<CqShared>,
}

impl Promise {
    /// Whether it is that CQ's.
    pub(super) fn is_of(&self, cq: &Cq) -> bool {
        std::ptr::eq(self.cq.as_ptr(), Arc::as_ptr(&cq.shared))
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(cq) = self.cq.upgrade() {
            let mut capacity = lock(&cq.capacity);
            capacity.reserved = capacity.reserved.saturating_sub(self.entries);
        }
    }
}

/// Entries promised to a QP that is being made.
#[derive(Debug)]
pub(super) struct Reservation(Attachment);

impl Cq {
    /// Makes a completion queue, and its poller.
    ///
    /// # Errors
    /// [`CreateError::Limit`] for 0 entries, more than the device's `log_max_cq_sz` allows, or a vector that isn't there;
    /// [`CreateError::Capability`] if completions can't tell the driver their queue pair; or what memory or firmware
    /// say.
    pub fn create(context: &Arc<Context>, config: CqConfig) -> Result<(Cq, CqPoller), CreateError> {
        let general = context.caps().general();
        if general.cqe_version() == 0 {
            let what = "its completions carry no user index (cqe_version 0)";
            return Err(CreateError::Capability { what });
        }
        let last = context.completion_vectors().saturating_sub(1) as u64;
        LimitError::check(
            "CQ",
            "vector",
            config.vector as u64,
            0..=last,
            "are the completion vectors",
        )?;

        let memory = RingMemory::new(context, config.entries)?;
        let record = Arc::new(context.dma().alloc(RECORD_BYTES)?);
        let doorbell = context.uar().page().doorbell(uar::CQ_DOORBELL)?;
        let mut cqc = memory.describe()?;
        let eqn = context.comp_eqn(config.vector).map_err(CreateError::EventQueue)?;
        cqc.set_uar_page(context.uar().index())?;
        cqc.set_c_eqn_or_apu_element(eqn.get());
        cqc.set_dbr_addr(record.iova());
        let pages = memory.pages();
        let (look, look_record) = (memory.ring()?, DmaRing::new(record.clone(), 0, 1)?);
        let (poller_ring, poller_record) = (memory.ring()?, DmaRing::new(record.clone(), 0, 1)?);
        let cqn = context.exec(&CreateCq { cqc: &cqc, pages });
        let cqn = made(cqn, || {
            memory.buffer.leak_on_drop();
            record.leak_on_drop();
        })?;

        let error = Arc::new(AtomicU8::new(HEALTHY));
        let flag = error.clone();
        let handler = move |event: &AsyncEvent| {
            if let AsyncEvent::Cq { syndrome, .. } = event {
                flag.store(FAILED | syndrome.0, Ordering::Release);
            }
        };
        context.handle_events(Object::Cq(cqn.get()), Arc::new(handler));
        let shared = Arc::new(CqShared {
            cqn,
            capacity: Mutex::new(Capacity {
                entries: memory.capacity(),
                reserved: 0,
                overcommit: config.overcommit,
            }),
            vector: config.vector,
            inbox: Mutex::default(),
            mail: AtomicBool::new(false),
            error,
            completions: context.count_completions(cqn.get()),
            view: Mutex::new(View::new(look, look_record)),
            record,
            context: context.clone(),
        });
        let ring = CqRing::new(poller_ring, poller_record, doorbell, cqn.get());
        let poller = CqPoller::new(ring, shared.clone());
        Ok((Cq { shared }, poller))
    }

    /// Its number.
    pub fn cqn(&self) -> Cqn {
        self.shared.cqn
    }

    /// Completions that it holds.
    pub fn entries(&self) -> u32 {
        lock(&self.shared.capacity).entries
    }

    /// Entries that are promised to the outstanding requests of its queue pairs. Those of a queue pair that is gone are
    /// free again when the poller has passed its last completion.
    pub fn reserved(&self) -> u32 {
        lock(&self.shared.capacity).reserved
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    pub(super) fn is_same(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Promises `asked` entries.
    pub(super) fn promise(&self, queue: &'static str, asked: u32) -> Result<Promise, CreateError> {
        let mut capacity = lock(&self.shared.capacity);
        let sum = capacity.reserved.checked_add(asked);
        match sum.filter(|sum| *sum <= capacity.entries || capacity.overcommit) {
            Some(sum) => {
                capacity.reserved = sum;
                Ok(Promise {
                    entries: asked,
                    cq: Arc::downgrade(&self.shared),
                })
            }
            None => Err(CreateError::CqTooSmall {
                queue,
                capacity: capacity.entries,
                reserved: capacity.reserved,
                asked,
            }),
        }
    }

    /// Promises `asked` entries to a QP with that index, besides those that its SRQ has.
    pub(super) fn reserve(
        &self,
        queue: &'static str,
        asked: u32,
        index: &Arc<UserIndexGuard>,
        shared: Option<Arc<Promise>>,
    ) -> Result<Reservation, CreateError> {
        Ok(Reservation(Attachment {
            _own: self.promise(queue, asked)?,
            _index: index.clone(),
            _shared: shared,
        }))
    }

    /// A QP joins, before anything of it can complete.
    pub(super) fn attach(&self, reservation: Reservation, identity: Identity, consumers: Consumers) {
        self.send(Message::Attach {
            identity,
            consumers,
            attachment: reservation.0,
        });
    }

    /// A QP has been reset: what is in the ring now is of the time before, when so many sends and receives were outstanding,
    /// and `consumers` are for what follows.
    ///
    /// The old completions take room until they are passed. Where the queue has none besides what is promised, so many fewer
    /// requests can be posted until then.
    pub(super) fn reset(&self, key: u32, consumers: Consumers, (sends, recvs): (u32, u32)) {
        let Unread { end, most } = lock(&self.shared.view).written();
        let of = |queue: &Option<WqConsumer<LocalInner>>, before: u32| {
            queue.as_ref().map_or(0, |_| before.min(most))
        };
        let (sends, recvs) = (of(&consumers.sq, sends), of(&consumers.rq, recvs));
        let room = self.promise("reset", most.min(sends + recvs)).ok();
        if room.is_none() {
            consumers.sq.iter().for_each(|queue| queue.hold(sends));
            consumers.rq.iter().for_each(|queue| queue.hold(recvs));
        }
        self.send(Message::Reset {
            key,
            end,
            consumers,
            room,
        });
    }

    /// A QP is going: its completions are not wanted.
    pub(super) fn mute(&self, key: u32) {
        self.send(Message::Mute { key });
    }

    /// A QP is destroyed: firmware writes no more completions of it.
    pub(super) fn detach(&self, key: u32) {
        let end = lock(&self.shared.view).written().end;
        self.send(Message::Detach { key, end });
    }

    fn send(&self, message: Message) {
        lock(&self.shared.inbox).push(message);
        self.shared.mail.store(true, Ordering::Release);
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.context.forget_events(Object::Cq(self.cqn.get()));
        self.context.forget_completions(self.cqn.get());
        let commands = DestroyCq { cqn: self.cqn }.encode().into_iter().collect();
        let mut memory = lock(&self.view).buffers();
        memory.push(self.record.clone());
        self.context.reaper().submit(Destroy {
            what: self.cqn.to_string(),
            commands,
            memory,
            keep: None,
            done: None,
        });
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("cqn", &self.shared.cqn.get())
            .field("entries", &self.entries())
            .field("reserved", &self.reserved())
            .finish()
    }
}

impl fmt::Debug for CqShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqShared")
            .field("cqn", &self.cqn.get())
            .finish_non_exhaustive()
    }
}
