//! A send and a receive queue of Ethernet frames with all that belongs to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use ferroce_firmware_iface::cmds::{
    AllocTransportDomain, CreateTir, CreateTis, DeallocTransportDomain, DestroyTir, DestroyTis, TIR_DIRECT,
};
use ferroce_firmware_iface::layouts::{Tirc, Tisc};

use super::firmware::Guard;
use super::make::{CompletionQueue, CqEvents, Numbers, check, inline_mode, receive_queue, send_queue};
use super::send::Producer;
use super::steering::{self, Steering};
use crate::context::Context;
use crate::error::DeviceFailure;
use crate::events::CompCounter;
use crate::port::MacAddress;
use crate::ring::{CqRing, Entry, Filter, Kind, Next, RecvWr, RqProducer};
use crate::verbs::{Access, CreateError, Mr, Pd, UserIndexGuard};

/// Ethernet header with a tag.
const L2_BYTES: usize = 18;
/// Shortest frame on a wire, without FCS (IEEE 802.3, 3.2.8).
const MIN_FRAME: usize = 60;
/// An error CQE is never without a syndrome; this is none.
pub(super) const HEALTHY: u8 = 0;

/// How large raw Ethernet queues shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetConfig {
    /// Frames that may wait to be polled; what comes beyond is dropped. 256 by default.
    pub receive_buffers: u32,
    /// Frames that may wait to be sent. 64 by default.
    pub send_buffers: u32,
    /// Completion vector whose events announce frames, below [`Context::completion_vectors`].
    pub vector: usize,
}

impl Default for EthernetConfig {
    fn default() -> EthernetConfig {
        EthernetConfig {
            receive_buffers: 256,
            send_buffers: 64,
            vector: 0,
        }
    }
}

/// What passed through the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EthernetCounters {
    /// Frames received.
    pub received: u64,
    /// Frames posted to be sent.
    pub sent: u64,
    /// Frames whose completion said that they were not sent or received, and what made no sense.
    pub errors: u64,
}

/// Why a frame was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// So many frames wait already: poll first.
    #[error("{max} Ethernet frames wait to be sent already; poll the queues")]
    Full {
        /// How many may.
        max: u32,
    },
    /// Longer than the port's MTU allows, or shorter than an Ethernet header.
    #[error("an Ethernet frame of {len} bytes; the port sends 14 to {max}")]
    Length {
        /// Its length.
        len: usize,
        /// The longest one.
        max: usize,
    },
    /// A queue has failed.
    #[error("the Ethernet queues have failed (completion syndrome {syndrome:#x}); make new ones")]
    Failed {
        /// What the device said.
        syndrome: u8,
    },
}

/// A send and a receive queue of Ethernet frames, and the rules that fill the latter: ARP to all and to the port, ICMP
/// and ICMPv6 to the port and to the groups that [`EthernetQueues::set_multicast`] names.
///
/// Not for speed. Dropping ends all of it, in firmware too, without waiting. What follows in this declaration is dropped
/// from the top.
#[derive(Debug)]
pub struct EthernetQueues {
    steering: Steering,
    _tir: Guard,
    _rq: Guard,
    _sq: Guard,
    _tis: Guard,
    _domain: Guard,
    /// After the queues that complete in it.
    _cq: Guard,
    rx: Mr,
    tx: Mr,
    receiver: RqProducer<()>,
    sender: Producer,
    ring: CqRing<()>,
    events: CqEvents,
    armed_at: Option<u64>,
    /// Syndrome of the first failure.
    failed: Arc<AtomicU8>,
    config: EthernetConfig,
    /// Bytes of a buffer, and of the longest frame in it.
    stride: usize,
    max_frame: usize,
    scratch: Vec<u8>,
    counters: EthernetCounters,
    _index: UserIndexGuard,
    _right: Right,
    context: Arc<Context>,
}

/// The right to a NIC's raw Ethernet queues.
#[derive(Debug)]
struct Right(Arc<Context>);

impl Right {
    fn take(context: &Arc<Context>) -> Result<Right, CreateError> {
        if context.take_ethernet() {
            return Ok(Right(context.clone()));
        }
        let object = "raw Ethernet queues (a link agent's, perhaps)";
        Err(CreateError::Taken { object })
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        self.0.release_ethernet();
    }
}

impl EthernetQueues {
    /// Makes the queues and brings them to work.
    ///
    /// # Errors
    /// [`CreateError::Taken`] where the NIC has some already, [`CreateError::Capability`] names what the device lacks
    /// (`eth_net_offloads`, `nic_flow_table`),
    /// [`CreateError::Limit`] a number that it doesn't take; or what memory or firmware say.
    pub fn open(context: &Arc<Context>, config: &EthernetConfig) -> Result<EthernetQueues, CreateError> {
        check(context, config)?;
        let _right = Right::take(context)?;
        steering::check(context)?;
        let port = context.port_attributes().map_err(CreateError::Port)?;
        let max_frame = usize::from(port.mtu) + L2_BYTES;
        let stride = max_frame.next_multiple_of(64);
        let pd = Pd::alloc(context)?;
        let index = UserIndexGuard::take().ok_or(CreateError::NoUserIndex)?;
        let mode = inline_mode(context)?;
        let rx = Mr::alloc(&pd, stride * config.receive_buffers as usize, Access::LOCAL_WRITE)?;
        let tx = Mr::alloc(&pd, stride * config.send_buffers as usize, Access::empty())?;

        // From here on each thing that is made is bound before what needs it, so that all go in the right order where a
        // later one fails.
        let CompletionQueue {
            guard: _cq,
            mut ring,
            events,
            failed,
        } = CompletionQueue::new(context, config)?;
        let cqn = events.cqn();
        let domain = context.exec(&AllocTransportDomain)?;
        let _domain = Guard::new(context, domain.to_string(), &DeallocTransportDomain { domain });
        let mut tisc = Tisc::default();
        tisc.set_transport_domain(domain.get())?;
        let tisn = context.exec(&CreateTis {
            context: &tisc,
            pages: &[],
        })?;
        let _tis = Guard::new(context, format!("TIS {tisn:#x}"), &DestroyTis { tisn });

        let numbers = Numbers {
            cqn,
            tisn,
            index: index.get(),
        };
        let (_sq, sender, sq_consumer) = send_queue(&pd, config, mode, &numbers)?;
        let (_rq, rqn, receiver, rq_consumer) = receive_queue(&pd, config, stride, &numbers)?;
        let mut tirc = Tirc::default();
        tirc.set_disp_type(TIR_DIRECT)?;
        tirc.set_inline_rqn(rqn)?;
        tirc.set_transport_domain(domain.get())?;
        let tirn = context.exec(&CreateTir {
            context: &tirc,
            pages: &[],
        })?;
        let _tir = Guard::new(context, format!("TIR {tirn:#x}"), &DestroyTir { tirn });

        ring.queues.insert(Entry {
            key: index.get(),
            qpn: sender.sqn(),
            datagram: false,
            filter: Filter::None,
            sq: Some(sq_consumer),
            rq: Some(rq_consumer),
            srq: None,
        });
        let steering = Steering::new(context, tirn, port.mac)?;
        let mut queues = EthernetQueues {
            steering,
            _tir,
            _rq,
            _sq,
            _tis,
            _domain,
            _cq,
            rx,
            tx,
            receiver,
            sender,
            ring,
            events,
            armed_at: None,
            failed,
            config: *config,
            stride,
            max_frame,
            scratch: Vec::with_capacity(stride),
            counters: EthernetCounters::default(),
            _index: index,
            _right,
            context: context.clone(),
        };
        for slot in 0..config.receive_buffers {
            queues.post_receive(slot);
        }
        queues.receiver.ring();
        Ok(queues)
    }

    /// The longest frame, without FCS.
    #[must_use]
    pub fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// What passed.
    #[must_use]
    pub fn counters(&self) -> EthernetCounters {
        self.counters
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether a queue has failed: nothing is sent or received any more.
    #[must_use]
    pub fn failure(&self) -> Option<SendError> {
        match self.failed.load(Ordering::Acquire) {
            HEALTHY => None,
            syndrome => Some(SendError::Failed { syndrome }),
        }
    }

    /// Lets ICMPv6 to these groups in, and to no others.
    ///
    /// # Errors
    /// [`CreateError::Command`], or [`CreateError::Capability`] for more than the rules have room for.
    pub fn set_multicast(&mut self, groups: &[MacAddress]) -> Result<(), CreateError> {
        self.steering.set_multicast(groups)
    }

    /// Sends a frame, from its destination on and without FCS; a short one is padded to 60 bytes.
    ///
    /// # Errors
    /// [`SendError`]; the frame is not sent then.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if frame.len() < 14 || frame.len() > self.max_frame {
            return Err(SendError::Length {
                len: frame.len(),
                max: self.max_frame,
            });
        }
        if self.sender.outstanding() >= self.config.send_buffers {
            let max = self.config.send_buffers;
            return Err(SendError::Full { max });
        }
        let slot = self.sender.number() % self.config.send_buffers;
        let start = slot as usize * self.stride;
        let len = frame.len().max(MIN_FRAME);
        let mut padded = [0; MIN_FRAME];
        let bytes = if frame.len() < MIN_FRAME {
            padded[..frame.len()].copy_from_slice(frame);
            &padded[..]
        } else {
            frame
        };
        let placed = self.tx.write(start, bytes).is_ok();
        let Some(place) = self.tx.sge(start..start + len).ok().filter(|_| placed) else {
            return Err(SendError::Length {
                len,
                max: self.max_frame,
            });
        };
        self.sender.post(bytes, place);
        self.counters.sent += 1;
        Ok(())
    }

    /// Takes what has completed: gives each received frame to `each`, and gives its buffer back to the device. How many
    /// frames there were, at most a ring's.
    pub fn poll(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let (mut frames, start) = (0, self.ring.consumer_index());
        while self.ring.consumer_index().wrapping_sub(start) < self.ring.entries() {
            let wc = match self.ring.next() {
                Next::Wc(wc) => wc,
                Next::Empty => break,
                Next::Dropped | Next::Moved => continue,
                Next::Unknown => {
                    self.ring.skip();
                    self.counters.errors += 1;
                    continue;
                }
            };
            if wc.syndrome != 0 {
                self.counters.errors += 1;
                self.fail(wc.syndrome);
                continue;
            }
            if wc.kind == Kind::Recv {
                let len = wc.byte_len as usize;
                let slot = wc.wr_id as u32;
                self.scratch.resize(len.min(self.stride), 0);
                let read = self.rx.read(slot as usize * self.stride, &mut self.scratch);
                if len <= self.stride && read.is_ok() {
                    self.counters.received += 1;
                    frames += 1;
                    each(&self.scratch);
                } else {
                    self.counters.errors += 1;
                }
                self.post_receive(slot);
            }
        }
        if self.ring.consumer_index() != start {
            self.ring.publish();
            self.receiver.ring();
        }
        frames
    }

    fn fail(&self, syndrome: u8) {
        log::error!(
            "an Ethernet queue of {} has failed: syndrome {syndrome:#x}",
            self.context.function().address()
        );
        let _ = self
            .failed
            .compare_exchange(HEALTHY, syndrome.max(1), Ordering::AcqRel, Ordering::Relaxed);
    }

    fn post_receive(&mut self, slot: u32) {
        let start = slot as usize * self.stride;
        let posted = self.rx.sge(start..start + self.stride).and_then(|sge| {
            self.receiver.post(&RecvWr {
                wr_id: slot.into(),
                sges: &[sge],
            })
        });
        if let Err(error) = posted {
            // A device that completes what was not posted; the buffer stays ours.
            log::debug!("no receive for buffer {slot}: {error}");
            self.counters.errors += 1;
        }
    }

    /// Asks for one event when something completes. Polling once more after this makes sure that nothing is missed.
    pub fn arm(&mut self) {
        let seen = self.events.count();
        if self.armed_at.is_some_and(|at| at != seen) {
            self.ring.event_seen();
        }
        self.armed_at = Some(seen);
        self.ring.arm(false);
    }

    /// Whether something has completed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ring.is_ready()
    }

    /// What a thread needs to wait for completions without holding the queues.
    pub(crate) fn waiter(&self) -> Waiter {
        Waiter {
            context: self.context.clone(),
            completions: self.events.counter(),
            vector: self.config.vector,
        }
    }
}

/// Waits for completions of queues that others may hold meanwhile.
#[derive(Debug)]
pub(crate) struct Waiter {
    context: Arc<Context>,
    completions: CompCounter,
    vector: usize,
}

impl Waiter {
    /// How many events there were.
    pub(crate) fn events(&self) -> u64 {
        self.completions.count()
    }

    /// Waits until there were other than `seen` events, `woken` holds, or the deadline has come.
    pub(crate) fn wait(
        &self,
        seen: u64,
        deadline: Option<Instant>,
        woken: &mut dyn FnMut() -> bool,
    ) -> Result<bool, DeviceFailure> {
        let mut ready = || self.completions.count() != seen || woken();
        self.context.wait_until(self.vector, deadline, &mut ready)
    }
}
