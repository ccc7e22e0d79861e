//! Completion queues.
//!
//! A CQ has a control half, [`Cq`], which queue pairs hold, and one [`CqPoller`], which a thread polls. Queue pairs tell
//! the poller of their coming and going through an inbox; the poller looks into it when a flag says so, before a
//! batch, or when it meets a completion of a queue pair that it doesn't know. So polling takes no lock that others hold,
//! and destroying a queue pair needs no poller.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferroce_firmware_iface::cmds::{CreateCq, DestroyCq};
use ferroce_firmware_iface::command::Command;
use ferroce_firmware_iface::event::CqErrorSyndrome;
use ferroce_firmware_iface::layouts::Cqc;
use ferroce_hw_regs::ids::Cqn;
use ferroce_hw_regs::uar;

use super::error::{CreateError, LimitError, PollError, WaitError, made};
use super::local::LocalInner;
use super::pages;
use super::user_index::UserIndexGuard;
use super::wc::Wc;
use crate::barrier;
use crate::context::Context;
use crate::events::{AsyncEvent, CompCounter, Object};
use crate::mem::{DmaBuffer, DmaRing};
use crate::reaper::Destroy;
use crate::ring::{CQE_BYTES, CqRing, Entry, Filter, Next, RawWc, WqConsumer, written_end};

/// No error so far.
const HEALTHY: u8 = 0;
/// The bit that tells an error with syndrome 0 from none.
const FAILED: u8 = 0x80;

/// What a completion queue shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqConfig {
    /// Completions that it holds at least. The ring is the next power of two above.
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
    shared: Arc<CqShared>,
}

struct CqShared {
    cqn: Cqn,
    entries: u32,
    vector: usize,
    overcommit: bool,
    inbox: Mutex<Vec<Message>>,
    /// There is something in the inbox.
    mail: AtomicBool,
    /// Entries promised to queue pairs.
    reserved: AtomicU32,
    /// `HEALTHY`, or `FAILED` and the syndrome.
    error: Arc<AtomicU8>,
    completions: CompCounter,
    /// For a look at the ring from outside the poller.
    ring: DmaRing<64>,
    record: DmaRing<8>,
    buffer: Arc<DmaBuffer>,
    context: Arc<Context>,
}

/// The consumer halves of one QP's queues that complete in one CQ.
#[derive(Debug)]
pub(super) struct Consumers {
    pub(super) sq: Option<WqConsumer<LocalInner>>,
    pub(super) rq: Option<WqConsumer<LocalInner>>,
}

/// What a queue pair tells the poller.
#[derive(Debug)]
enum Message {
    Attach {
        key: u32,
        qpn: u32,
        consumers: Consumers,
        attachment: Attachment,
    },
    Reset {
        key: u32,
        end: u32,
        consumers: Consumers,
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
struct Attachment {
    _index: Arc<UserIndexGuard>,
    reserved: u32,
    cq: std::sync::Weak<CqShared>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Some(cq) = self.cq.upgrade() {
            cq.reserved.fetch_sub(self.reserved, Ordering::Relaxed);
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
        let max = (1u64 << general.log_max_cq_sz().min(31)) - 1;
        let reason = "is the device's limit (log_max_cq_sz)";
        LimitError::check("CQ", "entries", config.entries.into(), 1..=max, reason)?;
        let last = context.completion_vectors().saturating_sub(1) as u64;
        LimitError::check(
            "CQ",
            "vector",
            config.vector as u64,
            0..=last,
            "are the completion vectors",
        )?;

        // One entry stays free, so that a full ring and an empty one differ.
        let entries = (config.entries + 1).next_power_of_two();
        let record_at = (entries * CQE_BYTES) as usize;
        let buffer = Arc::new(context.dma().alloc(record_at + 64)?);
        let ring = || DmaRing::new(buffer.clone(), 0, entries);
        let record = || DmaRing::new(buffer.clone(), record_at, 1);
        let mut poller_ring = ring()?;
        CqRing::<LocalInner>::prepare(&mut poller_ring);
        let doorbell = context.uar().page().doorbell(uar::CQ_DOORBELL)?;
        let cqc = describe(context, &config, entries, &buffer, record_at)?;
        let list = pages::of_queue(buffer.iova(), record_at as u64);
        let (look, look_record, poller_record) = (ring()?, record()?, record()?);
        let cqn = context.exec(&CreateCq {
            cqc: &cqc,
            pages: &list.pages,
        });
        let cqn = made(cqn, || buffer.leak_on_drop())?;

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
            entries: entries - 1,
            vector: config.vector,
            overcommit: config.overcommit,
            inbox: Mutex::default(),
            mail: AtomicBool::new(false),
            reserved: AtomicU32::new(0),
            error,
            completions: context.count_completions(cqn.get()),
            ring: look,
            record: look_record,
            buffer,
            context: context.clone(),
        });
        let poller = CqPoller {
            ring: CqRing::new(poller_ring, poller_record, doorbell, cqn.get()),
            attached: HashMap::new(),
            leaving: Vec::new(),
            armed_at: None,
            shared: shared.clone(),
        };
        Ok((Cq { shared }, poller))
    }

    /// Its number.
    pub fn cqn(&self) -> Cqn {
        self.shared.cqn
    }

    /// Completions that it holds.
    pub fn entries(&self) -> u32 {
        self.shared.entries
    }

    /// Entries that are promised to the outstanding requests of its queue pairs. Those of a queue pair that is gone are
    /// free again when the poller has passed its last completion.
    pub fn reserved(&self) -> u32 {
        self.shared.reserved.load(Ordering::Relaxed)
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.shared.context
    }

    pub(super) fn is_same(&self, other: &Cq) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Promises `asked` entries to a QP with that index.
    pub(super) fn reserve(
        &self,
        queue: &'static str,
        asked: u32,
        index: &Arc<UserIndexGuard>,
    ) -> Result<Reservation, CreateError> {
        let shared = &self.shared;
        let take = |reserved: u32| {
            let sum = reserved.checked_add(asked)?;
            (sum <= shared.entries || shared.overcommit).then_some(sum)
        };
        match shared
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        {
            Ok(_) => {
                let cq = Arc::downgrade(shared);
                Ok(Reservation(Attachment {
                    _index: index.clone(),
                    reserved: asked,
                    cq,
                }))
            }
            Err(reserved) => Err(CreateError::CqTooSmall {
                queue,
                capacity: shared.entries,
                reserved,
                asked,
            }),
        }
    }

    /// A QP joins, before anything of it can complete.
    pub(super) fn attach(&self, reservation: Reservation, key: u32, qpn: u32, consumers: Consumers) {
        self.send(Message::Attach {
            key,
            qpn,
            consumers,
            attachment: reservation.0,
        });
    }

    /// A QP has been reset: what is in the ring now is of the time before, and `consumers` are for what follows.
    pub(super) fn reset(&self, key: u32, consumers: Consumers) {
        let end = written_end(&self.shared.ring, &self.shared.record);
        self.send(Message::Reset { key, end, consumers });
    }

    /// A QP is going: its completions are not wanted.
    pub(super) fn mute(&self, key: u32) {
        self.send(Message::Mute { key });
    }

    /// A QP is destroyed: firmware writes no more completions of it.
    pub(super) fn detach(&self, key: u32) {
        let end = written_end(&self.shared.ring, &self.shared.record);
        self.send(Message::Detach { key, end });
    }

    fn send(&self, message: Message) {
        self.shared
            .inbox
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message);
        self.shared.mail.store(true, Ordering::Release);
    }
}

/// The context that CREATE_CQ is given.
fn describe(
    context: &Context,
    config: &CqConfig,
    entries: u32,
    buffer: &DmaBuffer,
    record_at: usize,
) -> Result<Cqc, CreateError> {
    let eqn = context.comp_eqn(config.vector).map_err(CreateError::EventQueue)?;
    let list = pages::of_queue(buffer.iova(), record_at as u64);
    let mut cqc = Cqc::default();
    cqc.set_log_cq_size(entries.ilog2() as u8)?;
    cqc.set_uar_page(context.uar().index())?;
    cqc.set_c_eqn_or_apu_element(eqn.get());
    cqc.set_log_page_size(pages::queue_log_page_size(&list))?;
    cqc.set_dbr_addr(buffer.iova() + record_at as u64);
    Ok(cqc)
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.context.forget_events(Object::Cq(self.cqn.get()));
        self.context.forget_completions(self.cqn.get());
        let commands = DestroyCq { cqn: self.cqn }.encode().into_iter().collect();
        let memory = vec![self.buffer.clone()];
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
            .field("entries", &self.shared.entries)
            .field("reserved", &self.reserved())
            .finish()
    }
}

/// Calls `each` out of line, so that the usual way to it is short.
#[cold]
#[inline(never)]
fn give(each: &mut impl FnMut(Wc), wc: Wc) {
    each(wc);
}

/// What to do when the poller reaches a position.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    key: u32,
    end: u32,
    destroyed: bool,
}

/// Polls a completion queue. There is one for each; it may move between threads.
#[derive(Debug)]
pub struct CqPoller {
    ring: CqRing<LocalInner>,
    attached: HashMap<u32, Attachment>,
    /// QPs whose old completions are not all passed yet.
    leaving: Vec<Leaving>,
    /// The event counter when the queue was armed; `None` if it isn't.
    armed_at: Option<u64>,
    shared: Arc<CqShared>,
}

impl fmt::Debug for CqShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqShared")
            .field("cqn", &self.cqn.get())
            .finish_non_exhaustive()
    }
}

impl CqPoller {
    /// The queue.
    pub fn cq(&self) -> Cq {
        Cq {
            shared: self.shared.clone(),
        }
    }

    /// Gives up to `max` completions to `each`, in the order in which they came, and says how many. 0 means that there
    /// are none now. `each` may post.
    ///
    /// # Errors
    /// [`PollError::Failed`] if the device gave the queue up, for example since it was overrun, and all that it had written
    /// has been polled.
    #[inline]
    pub fn poll(&mut self, max: usize, mut each: impl FnMut(Wc)) -> Result<usize, PollError> {
        if self.shared.mail.load(Ordering::Acquire) || !self.leaving.is_empty() {
            self.read_inbox();
        }
        let start = self.ring.consumer_index();
        let mut count = 0;
        while count < max {
            if let Some(raw) = self.ring.next_usual() {
                count += 1;
                each(Wc::new(raw));
                continue;
            }
            match self.next_unusual(start) {
                Some(Some(raw)) => {
                    count += 1;
                    give(&mut each, Wc::new(raw));
                }
                Some(None) => {}
                None => break,
            }
        }
        if self.ring.consumer_index() != start {
            self.ring.publish();
        } else if self.shared.error.load(Ordering::Relaxed) != HEALTHY {
            return Err(self.failure());
        }
        Ok(count)
    }

    /// What is next, where it is no usual completion: another completion, something to pass over, or `None` to stop.
    #[inline(never)]
    fn next_unusual(&mut self, start: u32) -> Option<Option<RawWc<LocalInner>>> {
        if self.ring.is_ready() {
            // A reset that was told of before this CQE was written, even since the poll began.
            barrier::after_ownership();
            if self.shared.mail.load(Ordering::Acquire) {
                self.read_inbox();
            }
        }
        match self.ring.next() {
            Next::Wc(raw) => return Some(Some(raw)),
            Next::Empty => return None,
            Next::Dropped => {}
            Next::Unknown => self.meet_stranger(),
        }
        (!self.is_lap(start)).then_some(None)
    }

    /// The next completion, if there is one. [`CqPoller::poll`] costs less for several.
    ///
    /// # Errors
    /// As [`CqPoller::poll`].
    pub fn poll_one(&mut self) -> Result<Option<Wc>, PollError> {
        let mut found = None;
        self.poll(1, |wc| found = Some(wc))?;
        Ok(found)
    }

    /// Waits until there is something to poll, asleep until the device announces it.
    ///
    /// # Errors
    /// [`WaitError::Deadline`], or [`WaitError::Poll`] if the queue or the device failed.
    pub fn wait(&mut self, deadline: Instant) -> Result<(), WaitError> {
        let started = Instant::now();
        loop {
            if self.ring.is_ready() {
                return Ok(());
            }
            if self.shared.error.load(Ordering::Acquire) != HEALTHY {
                return Err(self.failure().into());
            }
            // The device announces at once what it has written before it sees the arming.
            let seen = self.arm(false);
            let shared = &self.shared;
            let woken =
                shared
                    .context
                    .wait_completion(shared.vector, &shared.completions, seen, Some(deadline));
            match woken {
                Ok(true) => {}
                Ok(false) if self.ring.is_ready() => return Ok(()),
                Ok(false) => {
                    return Err(WaitError::Deadline {
                        cqn: shared.cqn.get(),
                        waited: started.elapsed(),
                    });
                }
                Err(failure) => {
                    let (cqn, reason) = (shared.cqn.get(), failure.to_string());
                    return Err(PollError::Device { cqn, reason }.into());
                }
            }
        }
    }

    /// Asks for one event on the queue's completion vector, when the next completion comes or, with `solicited_only`, the
    /// next that its sender marked so or that is an error. Polling once more after this makes sure that none is missed.
    ///
    /// For programs with an event loop of their own; [`CqPoller::events`] tells whether the event came.
    pub fn req_notify(&mut self, solicited_only: bool) {
        self.arm(solicited_only);
    }

    /// Completion events of this queue so far, as far as the vector's events have been taken in
    /// ([`Context::poll_completion_events`]).
    pub fn events(&self) -> u64 {
        self.shared.completions.count()
    }

    /// Completions that made no sense and were dropped: a fault of the device.
    pub fn bad_completions(&self) -> u64 {
        self.ring.bad
    }

    /// Arms the queue; the event counter from before.
    fn arm(&mut self, solicited_only: bool) -> u64 {
        let seen = self.shared.completions.count();
        match self.armed_at {
            // Still armed, without an event: the same arming again, with a newer index.
            Some(at) if at == seen => {}
            Some(_) => self.ring.event_seen(),
            None => {}
        }
        self.armed_at = Some(seen);
        self.ring.arm(solicited_only);
        seen
    }

    /// Whether a whole ring was gone through since `start`: a device that keeps writing nonsense does not keep the
    /// program here.
    fn is_lap(&self, start: u32) -> bool {
        self.ring.consumer_index().wrapping_sub(start) >= self.ring.entries()
    }

    /// A completion of an unknown queue pair is next: it may have come since the inbox was last read.
    #[cold]
    fn meet_stranger(&mut self) {
        if self.shared.mail.load(Ordering::Acquire) {
            self.read_inbox();
        } else {
            self.ring.skip();
        }
    }

    #[cold]
    #[inline(never)]
    fn read_inbox(&mut self) {
        self.shared.mail.store(false, Ordering::Relaxed);
        let mail = std::mem::take(&mut *self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for message in mail {
            match message {
                Message::Attach {
                    key,
                    qpn,
                    consumers: Consumers { sq, rq },
                    attachment,
                } => {
                    self.ring.queues.insert(Entry {
                        key,
                        qpn,
                        filter: Filter::None,
                        sq,
                        rq,
                    });
                    self.attached.insert(key, attachment);
                }
                Message::Reset {
                    key,
                    end,
                    consumers: Consumers { sq, rq },
                } => {
                    let end = self.position(end);
                    if let Some(entry) = self.ring.queues.get_mut(key) {
                        (entry.sq, entry.rq) = (sq, rq);
                        entry.filter = Filter::Before(end);
                        self.leaving.push(Leaving {
                            key,
                            end,
                            destroyed: false,
                        });
                    }
                }
                Message::Mute { key } => {
                    if let Some(entry) = self.ring.queues.get_mut(key) {
                        entry.filter = Filter::All;
                    }
                }
                Message::Detach { key, end } => {
                    let end = self.position(end);
                    if let Some(entry) = self.ring.queues.get_mut(key) {
                        entry.filter = Filter::All;
                        self.leaving.push(Leaving {
                            key,
                            end,
                            destroyed: true,
                        });
                    }
                }
            }
        }
        self.forget_left();
    }

    /// A position of 24 bits as one of 32. It is at most a ring away.
    fn position(&self, at: u32) -> u32 {
        let ci = self.ring.consumer_index();
        let ahead = at.wrapping_sub(ci) & 0xff_ffff;
        // More than half a turn ahead is behind.
        let signed = if ahead < 1 << 23 {
            ahead
        } else {
            ahead | 0xff00_0000
        };
        ci.wrapping_add(signed)
    }

    /// Ends the filtering of those whose old completions are passed.
    fn forget_left(&mut self) {
        let (ci, ring, attached) = (self.ring.consumer_index(), &mut self.ring, &mut self.attached);
        self.leaving.retain(|left| {
            if (ci.wrapping_sub(left.end) as i32) < 0 {
                return true;
            }
            if left.destroyed {
                ring.queues.remove(left.key);
                attached.remove(&left.key);
            } else if let Some(entry) = ring.queues.get_mut(left.key)
                && entry.filter == Filter::Before(left.end)
            {
                entry.filter = Filter::None;
            }
            false
        });
    }

    #[cold]
    fn failure(&self) -> PollError {
        let syndrome = CqErrorSyndrome(self.shared.error.load(Ordering::Acquire) & !FAILED);
        PollError::Failed {
            cqn: self.shared.cqn.get(),
            reason: syndrome.to_string(),
        }
    }
}
