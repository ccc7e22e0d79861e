//! Links: what carries Ethernet frames from one port to another.
//!
//! Carriers are [`cable`] (in this process) and [`dgram`] (unix datagrams, as QEMU's `-netdev dgram` speaks).
//! Wrappers go around any of them: [`fault`] makes the wire bad, [`pcap`] records it.
//!
//! Like Ethernet itself a link loses what it can't carry, and counts it: sending never fails and never waits.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::clock::Nanos;
use crate::wire::Frame;

pub mod cable;
pub mod dgram;
pub mod fault;
pub mod pcap;

/// Longest frame that a link carries, in bytes: a jumbo frame.
pub const MAX_FRAME: usize = 9216;

/// Frames that a port takes from its link in one go before others get their turn, as a hint for its driver.
pub const RECV_BATCH: usize = 64;

/// Called when a frame arrives, from any thread. It must not call the port back.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// What a port did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Frames given to the link.
    pub sent: u64,
    /// Frames taken from it.
    pub received: u64,
    /// Frames to send that were lost, because the other side was slow, away or down.
    pub send_lost: u64,
    /// Frames that were too long, to or from the link.
    pub oversized: u64,
}

/// One end of a link.
pub trait Port: Send + fmt::Debug {
    /// Sends a frame, or loses it.
    fn send(&mut self, now: Nanos, frame: Frame);

    /// The next frame that has arrived by `now`, if there is one. Also does what is due by `now`, so it is to be
    /// called at [`Port::next_event`] even if no frame is expected.
    fn recv(&mut self, now: Nanos) -> Option<Frame>;

    /// Sends all of `frames`, in order, each as by [`Port::send`]; at less cost, where the link knows how.
    fn send_all(&mut self, now: Nanos, frames: &mut VecDeque<Frame>) {
        while let Some(frame) = frames.pop_front() {
            self.send(now, frame);
        }
    }

    /// Appends up to `max` frames to `into`, each as from [`Port::recv`]; at less cost, where the link knows how.
    fn recv_into(&mut self, now: Nanos, max: usize, into: &mut VecDeque<Frame>) {
        for _ in 0..max {
            let Some(frame) = self.recv(now) else {
                break;
            };
            into.push_back(frame);
        }
    }

    /// When something becomes due without a frame arriving: `recv` should be called then. `None` for never.
    fn next_event(&self) -> Option<Nanos> {
        None
    }

    /// A descriptor that becomes readable when a frame arrives, for carriers of the operating system.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Sets who is called when a frame arrives, for carriers that have no descriptor. Frames that arrived
    /// before are not announced.
    fn set_waker(&mut self, waker: Option<Waker>) {
        let _ = waker;
    }

    /// Whether the link is up.
    fn is_up(&self) -> bool {
        true
    }

    /// What was done so far.
    fn counters(&self) -> PortCounters;
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn send(&mut self, now: Nanos, frame: Frame) {
        (**self).send(now, frame);
    }

    fn recv(&mut self, now: Nanos) -> Option<Frame> {
        (**self).recv(now)
    }

    fn send_all(&mut self, now: Nanos, frames: &mut VecDeque<Frame>) {
        (**self).send_all(now, frames);
    }

    fn recv_into(&mut self, now: Nanos, max: usize, into: &mut VecDeque<Frame>) {
        (**self).recv_into(now, max, into);
    }

    fn next_event(&self) -> Option<Nanos> {
        (**self).next_event()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }

    fn set_waker(&mut self, waker: Option<Waker>) {
        (**self).set_waker(waker);
    }

    fn is_up(&self) -> bool {
        (**self).is_up()
    }

    fn counters(&self) -> PortCounters {
        (**self).counters()
    }
}

/// What stops a link from being set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Another process has the socket.
    #[error("{path} is in use by another process; choose another path")]
    InUse {
        /// Path of the socket.
        path: String,
    },
    /// There is a file that is not a socket.
    #[error("{path} exists and is not a socket; remove it or choose another path")]
    NotASocket {
        /// Path of the file.
        path: String,
    },
    /// A fraction outside 0 to 1.
    #[error("{what} is {value}; it is a fraction, from 0 to 1")]
    Fraction {
        /// Which one.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// The operating system refused something.
    #[error("{what} {object}")]
    Os {
        /// What was tried, such as "binding".
        what: &'static str,
        /// On what.
        object: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}
