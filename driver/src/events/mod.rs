//! Asynchronous events: what happens to ports, queues and the device without having been asked for.
//!
//! ```text
//!  EQE ──▶ AsyncEvent ──┬─▶ the handler registered for that QP, CQ or SRQ
//!                       ├─▶ the queue of each who subscribed to that port
//!                       └─▶ the context's queue; all queues are bounded and have an eventfd
//! ```
//! Completion events are apart: they are counted per CQ, so that waiting for one can't miss it.

mod subscription;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ferroce_firmware_iface::event::{CqErrorSyndrome, EventType, PortChange, QpEventQueue};

use crate::cmdq::lock;
use crate::error::DeviceFailure;
use crate::fd::EventFd;
use crate::port::PortNumber;
pub(crate) use subscription::PortQueue;
use subscription::Subscribers;

/// Events that wait to be read; the oldest go when nobody reads them.
const MAX_WAITING: usize = 4096;

/// Something that happened without having been asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A queue pair, or a work queue on its own.
    Qp {
        /// Its number (24 bits).
        qpn: u32,
        /// What kind of queue the number names.
        queue: QpEventQueue,
        /// What happened.
        event: EventType,
    },
    /// A completion queue is in error and delivers nothing more.
    Cq {
        /// Its number (24 bits).
        cqn: u32,
        /// Why.
        syndrome: CqErrorSyndrome,
    },
    /// A shared receive queue.
    Srq {
        /// Its number (24 bits).
        srqn: u32,
        /// What happened.
        event: EventType,
    },
    /// A port changed.
    Port {
        /// Its number.
        port: PortNumber,
        /// What changed.
        change: PortChange,
    },
    /// A port's GID table has changed, since this program has added or removed an entry.
    Gid {
        /// The port's number.
        port: PortNumber,
        /// Index of the entry.
        index: u16,
    },
    /// The device can't be used any more.
    Device(DeviceFailure),
    /// An event that this driver does not interpret.
    Other {
        /// Its type.
        event: EventType,
        /// Its subtype.
        sub_type: u8,
        /// Its data, as the device wrote it.
        data: [u8; 28],
    },
}

impl AsyncEvent {
    /// Decodes an event of the asynchronous EQ. Source: PRM "Event data structures".
    #[must_use]
    pub fn decode(event: EventType, sub_type: u8, data: &[u8; 28]) -> Self {
        let number = |at: usize| u32::from_be_bytes([0, data[at + 1], data[at + 2], data[at + 3]]);
        match event {
            EventType::PATH_MIGRATED
            | EventType::COMM_ESTABLISHED
            | EventType::SQ_DRAINED
            | EventType::WQ_CATASTROPHIC_ERROR
            | EventType::PATH_MIGRATION_FAILED
            | EventType::WQ_INVALID_REQUEST
            | EventType::WQ_ACCESS_ERROR => Self::Qp {
                qpn: number(0x18),
                queue: QpEventQueue(data[0x14]),
                event,
            },
            // Raised for the QP that ran the shared queue dry, though named after the SRQ.
            EventType::SRQ_LAST_WQE => Self::Qp {
                qpn: number(0x18),
                queue: QpEventQueue::QP,
                event,
            },
            EventType::SRQ_CATASTROPHIC_ERROR | EventType::SRQ_LIMIT => Self::Srq {
                srqn: number(0x18),
                event,
            },
            EventType::CQ_ERROR => Self::Cq {
                cqn: number(0),
                syndrome: CqErrorSyndrome(data[0xb]),
            },
            EventType::PORT_CHANGE if let Some(port) = PortNumber::new(data[8] >> 4) => Self::Port {
                port,
                change: PortChange(sub_type),
            },
            _ => Self::Other {
                event,
                sub_type,
                data: *data,
            },
        }
    }

    /// The port that it is about; `None` for what is about something else, or about the device as a whole.
    #[must_use]
    pub fn port(&self) -> Option<PortNumber> {
        match self {
            Self::Port { port, .. } | Self::Gid { port, .. } => Some(*port),
            _ => None,
        }
    }

    fn object(&self) -> Option<Object> {
        match self {
            Self::Qp { qpn, .. } => Some(Object::Qp(*qpn)),
            Self::Cq { cqn, .. } => Some(Object::Cq(*cqn)),
            Self::Srq { srqn, .. } => Some(Object::Srq(*srqn)),
            _ => None,
        }
    }
}

/// An object that events can name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Object {
    /// A queue pair by its QPN.
    Qp(u32),
    /// A completion queue by its CQN.
    Cq(u32),
    /// A shared receive queue by its SRQN.
    Srq(u32),
}

/// What is called for an object's events, in the thread that pumps: it must neither block nor execute commands.
pub(crate) type Handler = Arc<dyn Fn(&AsyncEvent) + Send + Sync>;

/// Counts a CQ's completion events. Waiting for "another one than the `seen` that I read before I armed" can't miss one.
#[derive(Clone, Debug, Default)]
pub struct CompCounter(Arc<AtomicU64>);

impl CompCounter {
    /// Completion events so far. Read it before the CQ is armed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Handlers and queues of a context's events.
#[derive(Default)]
pub(crate) struct Events {
    waiting: Mutex<VecDeque<AsyncEvent>>,
    readable: Option<EventFd>,
    handlers: Mutex<HashMap<Object, Handler>>,
    subscribers: Subscribers,
    completions: RwLock<HashMap<u32, CompCounter>>,
    overflowed: AtomicU64,
    unknown_cqns: AtomicU64,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events")
            .field("waiting", &lock(&self.waiting).len())
            .finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            readable: Some(EventFd::new()?),
            ..Self::default()
        })
    }

    /// Hands an event to its object's handler and to the queue.
    pub(crate) fn deliver(&self, event: AsyncEvent) {
        log::debug!("event: {event:?}");
        let handler = event
            .object()
            .and_then(|object| lock(&self.handlers).get(&object).cloned());
        if let Some(handler) = handler {
            handler(&event);
        }
        self.subscribers.deliver(&event);
        let mut waiting = lock(&self.waiting);
        if waiting.len() >= MAX_WAITING {
            waiting.pop_front();
            self.overflowed.fetch_add(1, Ordering::Relaxed);
        }
        waiting.push_back(event);
        if let Some(fd) = &self.readable {
            fd.signal();
        }
    }

    pub(crate) fn next(&self) -> Option<AsyncEvent> {
        let mut waiting = lock(&self.waiting);
        let event = waiting.pop_front();
        if waiting.is_empty()
            && let Some(fd) = &self.readable
        {
            fd.drain();
        }
        event
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.waiting).is_empty()
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.readable.as_ref().map(AsFd::as_fd)
    }

    /// Events lost since nobody read them, and completion events for CQs that nobody knows.
    pub(crate) fn losses(&self) -> (u64, u64) {
        (
            self.overflowed.load(Ordering::Relaxed),
            self.unknown_cqns.load(Ordering::Relaxed),
        )
    }

    /// A queue of that port's events from now on.
    pub(crate) fn subscribe(&self, port: PortNumber) -> std::io::Result<Arc<PortQueue>> {
        self.subscribers.add(port)
    }

    /// Registers a handler; the previous one of the object goes.
    pub(crate) fn handle(&self, object: Object, handler: Handler) {
        lock(&self.handlers).insert(object, handler);
    }

    pub(crate) fn forget(&self, object: Object) {
        lock(&self.handlers).remove(&object);
    }

    /// The counter of a CQ's completion events; the same for everybody who asks.
    pub(crate) fn count_completions(&self, cqn: u32) -> CompCounter {
        self.completions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(cqn)
            .or_default()
            .clone()
    }

    pub(crate) fn forget_completions(&self, cqn: u32) {
        self.completions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&cqn);
    }

    /// A completion event for `cqn` was read.
    pub(crate) fn completed(&self, cqn: u32) {
        match self
            .completions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&cqn)
        {
            Some(counter) => {
                counter.0.fetch_add(1, Ordering::Release);
            }
            // The CQ was destroyed meanwhile, or the device made it up.
            None => {
                self.unknown_cqns.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_decode_from_where_the_prm_puts_them() {
        let mut data = [0u8; 28];
        data[0x14] = 2;
        data[0x18..].copy_from_slice(&[0xff, 0x01, 0x02, 0x03]);
        assert_eq!(
            AsyncEvent::decode(EventType::WQ_ACCESS_ERROR, 0, &data),
            AsyncEvent::Qp {
                qpn: 0x01_0203,
                queue: QpEventQueue::SQ,
                event: EventType::WQ_ACCESS_ERROR
            }
        );
        assert_eq!(
            AsyncEvent::decode(EventType::SRQ_LIMIT, 0, &data),
            AsyncEvent::Srq {
                srqn: 0x01_0203,
                event: EventType::SRQ_LIMIT
            }
        );
        let mut data = [0u8; 28];
        data[..4].copy_from_slice(&[0, 0, 1, 9]);
        data[0xb] = 1;
        assert_eq!(
            AsyncEvent::decode(EventType::CQ_ERROR, 0, &data),
            AsyncEvent::Cq {
                cqn: 0x109,
                syndrome: CqErrorSyndrome::OVERRUN
            }
        );
        data[8] = 0x10;
        assert_eq!(
            AsyncEvent::decode(EventType::PORT_CHANGE, 4, &data),
            AsyncEvent::Port {
                port: PortNumber::FIRST,
                change: PortChange::ACTIVE
            }
        );
        // A port has a number.
        data[8] = 0x0f;
        assert!(matches!(
            AsyncEvent::decode(EventType::PORT_CHANGE, 4, &data),
            AsyncEvent::Other { sub_type: 4, .. }
        ));
        assert_eq!(
            AsyncEvent::decode(EventType(0xee), 7, &data),
            AsyncEvent::Other {
                event: EventType(0xee),
                sub_type: 7,
                data
            }
        );
    }

    #[test]
    fn an_event_reaches_its_object_and_the_queue() {
        let events = Events::new().unwrap();
        let seen = Arc::new(AtomicU64::new(0));
        let counter = seen.clone();
        events.handle(
            Object::Cq(5),
            Arc::new(move |_: &AsyncEvent| {
                counter.fetch_add(1, Ordering::Relaxed);
            }),
        );
        let event = |cqn| AsyncEvent::Cq {
            cqn,
            syndrome: CqErrorSyndrome::OVERRUN,
        };
        events.deliver(event(5));
        events.deliver(event(6));
        events.forget(Object::Cq(5));
        events.deliver(event(5));
        assert_eq!(seen.load(Ordering::Relaxed), 1);
        assert_eq!(
            [events.next(), events.next(), events.next()],
            [Some(event(5)), Some(event(6)), Some(event(5))]
        );
        assert!(events.next().is_none() && events.is_empty());
    }

    #[test]
    fn a_flood_of_events_costs_the_oldest() {
        let events = Events::new().unwrap();
        for cqn in 0..MAX_WAITING as u32 + 3 {
            events.deliver(AsyncEvent::Cq {
                cqn,
                syndrome: CqErrorSyndrome(0),
            });
        }
        assert_eq!(events.losses().0, 3);
        assert!(matches!(events.next(), Some(AsyncEvent::Cq { cqn: 3, .. })));
    }

    #[test]
    fn completions_of_unknown_cqs_are_counted_apart() {
        let events = Events::new().unwrap();
        let counter = events.count_completions(3);
        events.completed(3);
        events.completed(4);
        events.forget_completions(3);
        events.completed(3);
        assert_eq!((counter.count(), events.losses().1), (1, 2));
    }
}
