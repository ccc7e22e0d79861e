//! A send and a receive queue of Ethernet frames with all that belongs to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use ferroce_firmware_iface::cmds::{
    AllocTransportDomain, CreateCq, CreateRq, CreateSq, CreateTir, CreateTis, DeallocTransportDomain,
    DestroyCq, DestroyRq, DestroySq, DestroyTir, DestroyTis, ModifyRq, ModifySq, QueryNicVportContext,
    TIR_DIRECT, WQ_TYPE_CYCLIC, raw_queue_state,
};
use ferroce_firmware_iface::layouts::{Cqc, Rqc, Sqc, Tirc, Tisc, Wq};
use ferroce_hw_regs::uar;
use ferroce_hw_regs::wqe::WQEBB_BYTES;

use super::firmware::Guard;
use super::send::{InlineMode, Producer};
use super::steering::Steering;
use crate::context::Context;
use crate::error::DeviceFailure;
use crate::events::{AsyncEvent, CompCounter, Object};
use crate::mem::{DmaBuffer, DmaRing};
use crate::port::MacAddress;
use crate::ring::{
    CQE_BYTES, CqRing, Entry, Filter, Kind, Next, QpState, RecvWr, RqLimits, RqProducer, RqShape, WqConsumer,
    WqShared,
};
use crate::verbs::{
    Access, CreateError, LimitError, Mr, Pd, UserIndexGuard, made, of_queue, queue_log_page_size,
};

/// Bytes that a doorbell record takes: a cache line.
const RECORD_BYTES: usize = 64;
/// Ethernet header with a tag.
const L2_BYTES: usize = 18;
/// Shortest frame on a wire, without FCS (IEEE 802.3, 3.2.8).
const MIN_FRAME: usize = 60;
/// An error CQE is never without a syndrome; this is none.
const HEALTHY: u8 = 0;

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
    completions: CompCounter,
    armed_at: Option<u64>,
    /// Syndrome of the first failure.
    failed: Arc<AtomicU8>,
    cqn: u32,
    config: EthernetConfig,
    /// Bytes of a buffer, and of the longest frame in it.
    stride: usize,
    max_frame: usize,
    scratch: Vec<u8>,
    counters: EthernetCounters,
    _index: UserIndexGuard,
    context: Arc<Context>,
}

impl EthernetQueues {
    /// Makes the queues and brings them to work.
    ///
    /// # Errors
    /// [`CreateError::Capability`] names what the device lacks (`eth_net_offloads`, `nic_flow_table`),
    /// [`CreateError::Limit`] a number that it doesn't take; or what memory or firmware say.
    pub fn open(context: &Arc<Context>, config: &EthernetConfig) -> Result<EthernetQueues, CreateError> {
        check(context, config)?;
        let port = context.port_attributes().map_err(CreateError::Port)?;
        let max_frame = usize::from(port.mtu) + L2_BYTES;
        let stride = max_frame.next_multiple_of(64);
        let pd = Pd::alloc(context)?;
        let index = UserIndexGuard::take().ok_or(CreateError::NoUserIndex)?;
        let mode = inline_mode(context)?;
        let rx = Mr::alloc(&pd, stride * config.receive_buffers as usize, Access::LOCAL_WRITE)?;
        let tx = Mr::alloc(&pd, stride * config.send_buffers as usize, Access::empty())?;

        let cq = CompletionQueue::new(context, config)?;
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
            cqn: cq.cqn,
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

        let CompletionQueue {
            guard: _cq,
            mut ring,
            completions,
            failed,
            cqn,
        } = cq;
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
            completions,
            armed_at: None,
            failed,
            cqn,
            config: *config,
            stride,
            max_frame,
            scratch: Vec::with_capacity(stride),
            counters: EthernetCounters::default(),
            _index: index,
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
        let seen = self.completions.count();
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
            completions: self.completions.clone(),
            vector: self.config.vector,
        }
    }
}

impl Drop for EthernetQueues {
    fn drop(&mut self) {
        self.context.forget_events(Object::Cq(self.cqn));
        self.context.forget_completions(self.cqn);
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

fn check(context: &Context, config: &EthernetConfig) -> Result<(), CreateError> {
    let general = context.caps().general();
    if !general.eth_net_offloads() {
        let what = "it has no raw Ethernet queues (eth_net_offloads)";
        return Err(CreateError::Capability { what });
    }
    if general.cqe_version() == 0 {
        let what = "its completions carry no user index (cqe_version 0)";
        return Err(CreateError::Capability { what });
    }
    // Indices of work queues have 16 bits, and a WQE takes up to 4 blocks.
    let max = 1u64 << general.log_max_wq_sz().min(13);
    let reason = "is what its work queues hold (log_max_wq_sz)";
    LimitError::check(
        "raw Ethernet RQ",
        "receive_buffers",
        config.receive_buffers.into(),
        1..=max,
        reason,
    )?;
    LimitError::check(
        "raw Ethernet SQ",
        "send_buffers",
        config.send_buffers.into(),
        1..=max / 4,
        reason,
    )?;
    let last = context.completion_vectors().saturating_sub(1) as u64;
    let reason = "are the completion vectors";
    Ok(LimitError::check(
        "raw Ethernet CQ",
        "vector",
        config.vector as u64,
        0..=last,
        reason,
    )?)
}

/// What the device wants inline. Source: PRM, `wqe_inline_mode` of the Ethernet offload capabilities: 0 layer 2, 1 what
/// the virtual port says, 2 nothing.
fn inline_mode(context: &Context) -> Result<InlineMode, CreateError> {
    Ok(
        match context.caps().ethernet().map_or(0, |caps| caps.wqe_inline_mode()) {
            0 => InlineMode::L2,
            1 => InlineMode::from_prm(context.exec(&QueryNicVportContext)?.min_wqe_inline_mode()),
            _ => InlineMode::None,
        },
    )
}

struct CompletionQueue {
    guard: Guard,
    ring: CqRing<()>,
    completions: CompCounter,
    failed: Arc<AtomicU8>,
    cqn: u32,
}

impl CompletionQueue {
    fn new(context: &Arc<Context>, config: &EthernetConfig) -> Result<CompletionQueue, CreateError> {
        // One entry stays free, so that a full ring and an empty one differ.
        let entries = (config.receive_buffers + config.send_buffers + 1).next_power_of_two();
        let bytes = (entries * CQE_BYTES) as usize;
        let buffer = Arc::new(context.dma().alloc(bytes + RECORD_BYTES)?);
        CqRing::<()>::prepare(&mut DmaRing::new(buffer.clone(), 0, entries)?);
        let list = of_queue(buffer.iova(), bytes as u64);
        let mut cqc = Cqc::default();
        cqc.set_log_cq_size(entries.ilog2() as u8)?;
        cqc.set_log_page_size(queue_log_page_size(&list))?;
        cqc.set_uar_page(context.uar().index())?;
        cqc.set_c_eqn_or_apu_element(
            context
                .comp_eqn(config.vector)
                .map_err(CreateError::EventQueue)?
                .get(),
        );
        cqc.set_dbr_addr(buffer.iova() + bytes as u64);
        let doorbell = context.uar().page().doorbell(uar::CQ_DOORBELL)?;
        let (mem, record) = (
            DmaRing::new(buffer.clone(), 0, entries)?,
            DmaRing::new(buffer.clone(), bytes, 1)?,
        );
        let created = context.exec(&CreateCq {
            cqc: &cqc,
            pages: &list.pages,
        });
        let cqn = made(created, || buffer.leak_on_drop())?;
        let guard = Guard::new(context, cqn.to_string(), &DestroyCq { cqn }).with_memory([buffer]);
        let cqn = cqn.get();
        let failed = Arc::new(AtomicU8::new(HEALTHY));
        let flag = failed.clone();
        let handler = move |event: &AsyncEvent| {
            if let AsyncEvent::Cq { syndrome, .. } = event {
                flag.store(syndrome.0.max(1), Ordering::Release);
            }
        };
        context.handle_events(Object::Cq(cqn), Arc::new(handler));
        Ok(CompletionQueue {
            guard,
            ring: CqRing::new(mem, record, doorbell, cqn),
            completions: context.count_completions(cqn),
            failed,
            cqn,
        })
    }
}

/// Numbers that both queues are told.
struct Numbers {
    cqn: u32,
    tisn: u32,
    index: u32,
}

/// What firmware is told of a ring.
fn describe(
    wq: &mut Wq,
    pd: &Pd,
    buffer: &DmaBuffer,
    log_stride: u32,
    entries: u32,
) -> Result<Vec<u64>, CreateError> {
    let bytes = u64::from(entries) << log_stride;
    let list = of_queue(buffer.iova(), bytes);
    wq.set_wq_type(WQ_TYPE_CYCLIC)?;
    wq.set_pd(pd.pdn().get())?;
    wq.set_dbr_addr(buffer.iova() + bytes);
    wq.set_log_wq_stride(log_stride as u8)?;
    wq.set_log_wq_pg_sz(queue_log_page_size(&list))?;
    wq.set_log_wq_sz(entries.ilog2() as u8)?;
    Ok(list.pages)
}

fn send_queue(
    pd: &Pd,
    config: &EthernetConfig,
    mode: InlineMode,
    numbers: &Numbers,
) -> Result<(Guard, Producer, WqConsumer<()>), CreateError> {
    let context = pd.context();
    let blocks = (config.send_buffers * mode.blocks()).next_power_of_two();
    let bytes = blocks as usize * WQEBB_BYTES;
    let buffer = Arc::new(context.dma().alloc(bytes + RECORD_BYTES)?);
    let mut sqc = Sqc::default();
    sqc.set_flush_in_error_en(true);
    sqc.set_min_wqe_inline_mode(mode.prm())?;
    sqc.set_user_index(numbers.index)?;
    sqc.set_cqn(numbers.cqn)?;
    sqc.set_tis_lst_sz(1);
    sqc.set_tis_num_0(numbers.tisn)?;
    sqc.wq_mut().set_uar_page(context.uar().index())?;
    let pages = describe(sqc.wq_mut(), pd, &buffer, WQEBB_BYTES.ilog2(), blocks)?;
    let doorbell = context.uar().page().doorbell(uar::BF_OFFSET)?;
    let (mem, record) = (
        DmaRing::new(buffer.clone(), 0, blocks)?,
        DmaRing::new(buffer.clone(), bytes, 1)?,
    );
    let created = context.exec(&CreateSq {
        context: &sqc,
        pages: &pages,
    });
    let sqn = made(created, || buffer.leak_on_drop())?;
    let guard = Guard::new(context, format!("SQ {sqn:#x}"), &DestroySq { sqn }).with_memory([buffer]);
    context.exec(&ModifySq {
        sqn,
        from: raw_queue_state::RESET,
        to: raw_queue_state::READY,
    })?;
    let shared = WqShared::new(blocks);
    let consumer = WqConsumer::new(shared.clone(), config.send_buffers);
    Ok((
        guard,
        Producer::new(mem, record, doorbell, shared, mode, sqn),
        consumer,
    ))
}

fn receive_queue(
    pd: &Pd,
    config: &EthernetConfig,
    stride: usize,
    numbers: &Numbers,
) -> Result<(Guard, u32, RqProducer<()>, WqConsumer<()>), CreateError> {
    let context = pd.context();
    let what = "receive_buffers of a size that overflows";
    let shape = RqShape::new(config.receive_buffers, 1).ok_or(CreateError::Capability { what })?;
    let bytes = (shape.entries * shape.stride) as usize;
    let buffer = Arc::new(context.dma().alloc(bytes + RECORD_BYTES)?);
    let mut rqc = Rqc::default();
    // VLAN tags stay in the frame.
    rqc.set_vsd(true);
    rqc.set_user_index(numbers.index)?;
    rqc.set_cqn(numbers.cqn)?;
    let pages = describe(rqc.wq_mut(), pd, &buffer, shape.stride.ilog2(), shape.entries)?;
    let (mem, record) = (
        DmaRing::new(buffer.clone(), 0, (bytes / 16) as u32)?,
        DmaRing::new(buffer.clone(), bytes, 1)?,
    );
    let created = context.exec(&CreateRq {
        context: &rqc,
        pages: &pages,
    });
    let rqn = made(created, || buffer.leak_on_drop())?;
    let guard = Guard::new(context, format!("RQ {rqn:#x}"), &DestroyRq { rqn }).with_memory([buffer]);
    context.exec(&ModifyRq {
        rqn,
        from: raw_queue_state::RESET,
        to: raw_queue_state::READY,
    })?;
    let shared = WqShared::new(shape.entries);
    let limits = RqLimits {
        max_wr: config.receive_buffers,
        max_sge: 1,
        max_msg: stride as u64,
    };
    let mut producer = RqProducer::new(mem, record, shared.clone(), limits, shape.stride);
    // To the producer a queue that works is one in RTS.
    producer.set_state(QpState::Rts);
    let consumer = WqConsumer::new(shared, config.receive_buffers);
    Ok((guard, rqn, producer, consumer))
}
