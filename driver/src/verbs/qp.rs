//! Queue pairs: their making, their ends, and what the device says of them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ferroce_firmware_iface::cmds::{CreateQp, DestroyQp, DetachFromMcg, QpToErr, QpToReset, QueryQp};
use ferroce_firmware_iface::command::Command;
use ferroce_firmware_iface::event::EventType;
use ferroce_hw_regs::ids::Qpn;
use ferroce_hw_regs::uar;

use super::atomics;
use super::attr::{QpConfig, Shapes};
use super::blueflame::OwnUar;
use super::counters::CounterSet;
use super::cq::{Consumers, Cq, Identity};
use super::error::{CreateError, DestroyError, ModifyError, made};
use super::local::{LocalBuffer, LocalInner};
use super::mkey::Access;
use super::pages;
use super::path::{Mtu, Path};
use super::pd::Pd;
use super::qp_parts::{Ends, Layout, Places, Slots, describe};
use super::srq::{Srq, SrqCore};
use super::to_state::QpAttributes;
use super::user_index::UserIndexGuard;
use crate::cmdq::lock;
use crate::error::CommandError;
use crate::events::{AsyncEvent, Object};
use crate::gid::Gid;
use crate::mem::{DmaBuffer, DmaRing};
use crate::port::PortNumber;
use crate::reaper::Destroy;
use crate::ring::{BlueFlame, QpState, QpType, RqProducer, SqProducer, WQEBB_BYTES, WqConsumer, WqShared};

/// Bytes that a doorbell record takes: a cache line.
const RECORD_BYTES: usize = 64;
/// Events of a queue pair that wait to be read.
const MAX_EVENTS: usize = 16;
/// What peers know the port's GSI queue pair by (IBTA vol. 1, 3.9.2).
const GSI_QPN: Qpn = Qpn::from_low_bits(1);

/// A queue pair.
///
/// One thread at a time posts; it may move between threads. Its completions come out of its completion queues' pollers,
/// which may be with other threads.
///
/// ```text
/// RESET --ToInit--> INIT --ToRtr--> RTR --ToRts--> RTS
///    ^                  any of them |                | by itself, when a request fails
///    '--modify_to_reset-- ERR <-----'----------------'
/// ```
///
/// | [`QpType`] | operations | from INIT on |
/// | --- | --- | --- |
/// | `Rc` | all but `SendTo` | [`Qp::modify_to_rtr`], [`Qp::modify_to_rts`] |
/// | `Uc` | `Send`, `Write` | the same, with [`ToRtr::uc`](super::ToRtr::uc), [`ToRts::uc`](super::ToRts::uc) |
/// | `Ud`, `Gsi` | `SendTo` | [`Qp::modify_to_rtr_datagram`], [`Qp::modify_to_rts_datagram`] |
///
/// Dropping destroys it without waiting, [`Qp::destroy`] says whether that worked. Buffers that were moved into its
/// requests stay with its queues until the device is done with them.
pub struct Qp {
    /// The number that the device has for it.
    pub(super) qpn: Qpn,
    pub(super) state: QpState,
    pub(super) sq: Option<SqProducer<LocalInner>>,
    /// The send queue's BlueFlame register.
    pub(super) blueflame: Option<BlueFlame>,
    pub(super) rq: Option<RqProducer<LocalInner>>,
    pub(super) port: PortNumber,
    /// What the peer's requests may do, as it was said at INIT.
    pub(super) access: Access,
    /// Whether the peer may have READs and atomics in progress, as it was said at RTR.
    pub(super) answers: bool,
    pub(super) counters: Option<CounterSet>,
    granted: QpConfig,
    slots: Slots,
    index: Arc<UserIndexGuard>,
    news: Arc<News>,
    /// Multicast groups that it is in.
    pub(super) groups: Vec<Gid>,
    /// The shared receive queue that it takes its receives from.
    srq: Option<Arc<SrqCore>>,
    buffer: Arc<DmaBuffer>,
    /// Firmware has it no more, or never had.
    gone: bool,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Cq,
    pub(super) pd: Pd,
    /// Its own doorbell page, which goes after it.
    own_uar: Option<OwnUar>,
}

/// What the device said of the queue pair by itself.
#[derive(Default)]
struct News {
    events: Mutex<VecDeque<EventType>>,
    /// It takes no more receives from its shared receive queue.
    last_wqe: AtomicBool,
}

impl Qp {
    /// Makes a queue pair in state RESET. Its send and receive requests complete in `send_cq` and `recv_cq`, which may be
    /// the same.
    ///
    /// # Errors
    /// [`CreateError::Limit`] names the attribute that the device doesn't take, [`CreateError::OtherDevice`] if a CQ is
    /// another device's, [`CreateError::CqTooSmall`] if a CQ could be overrun; or what memory or firmware say.
    pub fn create(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, config: &QpConfig) -> Result<Qp, CreateError> {
        Qp::create_with(pd, send_cq, recv_cq, None, config)
    }

    /// Makes a queue pair in state RESET that takes its receives from a shared receive queue; `max_recv_wr` and `max_recv_sge`
    /// mean nothing. `recv_cq` has to have room for all receives of the shared queue, once for all queue pairs that have both in
    /// common.
    ///
    /// # Errors
    /// As [`Qp::create`].
    pub fn create_on_srq(
        pd: &Pd,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: &Srq,
        config: &QpConfig,
    ) -> Result<Qp, CreateError> {
        if !Arc::ptr_eq(srq.pd().context(), pd.context()) {
            return Err(CreateError::OtherDevice { object: "SRQ" });
        }
        Qp::create_with(pd, send_cq, recv_cq, Some(srq), config)
    }

    fn create_with(
        pd: &Pd,
        send_cq: &Cq,
        recv_cq: &Cq,
        srq: Option<&Srq>,
        config: &QpConfig,
    ) -> Result<Qp, CreateError> {
        let context = pd.context();
        for (cq, object) in [(send_cq, "send CQ"), (recv_cq, "receive CQ")] {
            if !Arc::ptr_eq(cq.context(), context) {
                return Err(CreateError::OtherDevice { object });
            }
        }
        let path_mtu = if config.qp_type.is_datagram() {
            context.active_path_mtu()?
        } else {
            0
        };
        let atomics = atomics::supported(context.caps());
        let shapes = config.shapes(context.caps(), atomics, path_mtu.into(), srq.is_some())?;
        let index = Arc::new(UserIndexGuard::take().ok_or(CreateError::NoUserIndex)?);
        let places = Places::reserve(&shapes.granted, send_cq, recv_cq, srq, &index)?;
        let layout = Layout::new(&shapes);
        let buffer = Arc::new(context.dma().alloc(layout.queues() + RECORD_BYTES)?);
        let mut qpc = describe(pd, (send_cq, recv_cq), srq, &shapes, &index, &buffer)?;
        let wants_own = shapes.granted.blueflame.then(|| OwnUar::alloc(context));
        let own_uar = wants_own.transpose()?;
        if let Some(own) = &own_uar {
            qpc.set_uar_page(own.uar().index())?;
        }
        let list = pages::of_queue(buffer.iova(), layout.queues() as u64);
        let qpn = context.exec(&CreateQp {
            qpc: &qpc,
            pages: &list.pages,
        });
        let qpn = made(qpn, || buffer.leak_on_drop())?;

        let mut qp = Qp {
            qpn,
            state: QpState::Reset,
            sq: None,
            blueflame: None,
            rq: None,
            port: PortNumber::FIRST,
            access: Access::empty(),
            answers: false,
            counters: None,
            granted: shapes.granted,
            slots: Slots::new(&shapes),
            index,
            news: Arc::default(),
            groups: Vec::new(),
            srq: srq.map(|srq| srq.core.clone()),
            buffer,
            gone: false,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            pd: pd.clone(),
            own_uar,
        };
        qp.open(&shapes, &layout)?;
        qp.attach(places);
        qp.listen();
        Ok(qp)
    }

    /// Makes the producers.
    fn open(&mut self, shapes: &Shapes, layout: &Layout) -> Result<(), CreateError> {
        let record = || DmaRing::new(self.buffer.clone(), layout.queues(), 1);
        if let (Some((_, limits)), Some(slots)) = (shapes.sq, &self.slots.sq) {
            let blocks = layout.sq_bytes as u32 / WQEBB_BYTES;
            let ring = DmaRing::new(self.buffer.clone(), layout.rq_bytes, blocks)?;
            let uar = self
                .own_uar
                .as_ref()
                .map_or(&**self.pd.context().uar(), OwnUar::uar);
            let doorbell = uar.page().doorbell(uar::BF_OFFSET)?;
            let qpn = self.qpn.get();
            self.sq = Some(SqProducer::new(
                ring,
                record()?,
                doorbell,
                slots.clone(),
                limits.in_domain(self.pd.domain()),
                qpn,
            ));
            self.blueflame = self.own_uar.as_ref().map(OwnUar::register).transpose()?;
        }
        if let (Some((shape, limits)), Some(slots)) = (shapes.rq, &self.slots.rq) {
            let ring = DmaRing::new(self.buffer.clone(), 0, (layout.rq_bytes / 16) as u32)?;
            self.rq = Some(RqProducer::new(
                ring,
                record()?,
                slots.clone(),
                limits,
                shape.stride,
            ));
        }
        Ok(())
    }

    fn sq_consumer(&self) -> Option<WqConsumer<LocalInner>> {
        self.slots
            .sq
            .as_ref()
            .map(|slots| WqConsumer::new(slots.clone(), self.granted.max_send_wr))
    }

    fn rq_consumer(&self) -> Option<WqConsumer<LocalInner>> {
        self.slots
            .rq
            .as_ref()
            .map(|slots| WqConsumer::new(slots.clone(), self.granted.max_recv_wr))
    }

    fn attach(&self, places: Places) {
        let identity = Identity {
            key: self.index.get(),
            qpn: self.qpn().get(),
            datagram: self.granted.qp_type.is_datagram(),
        };
        let (send, recv) = self.consumers();
        let Some(recv) = recv else {
            if let Some(place) = places.send {
                self.send_cq.attach(place, identity, send);
            }
            return;
        };
        if let Some(place) = places.send {
            self.send_cq.attach(place, identity, send);
        }
        if let Some(place) = places.recv {
            self.recv_cq.attach(place, identity, recv);
        }
    }

    /// What the send CQ consumes, and the receive CQ, if it is another.
    fn consumers(&self) -> (Consumers, Option<Consumers>) {
        let (sq, rq) = (self.sq_consumer(), self.rq_consumer());
        let srq = self.srq.as_ref().map(|srq| srq.slots.clone());
        if self.send_cq.is_same(&self.recv_cq) {
            return (Consumers { sq, rq, srq }, None);
        }
        let send = Consumers {
            sq,
            rq: None,
            srq: None,
        };
        (send, Some(Consumers { sq: None, rq, srq }))
    }

    /// Keeps the QP's asynchronous events.
    fn listen(&self) {
        let news = self.news.clone();
        let handler = move |event: &AsyncEvent| {
            if let AsyncEvent::Qp { event, .. } = event {
                if *event == EventType::SRQ_LAST_WQE {
                    news.last_wqe.store(true, Ordering::Release);
                }
                let mut events = lock(&news.events);
                if events.len() < MAX_EVENTS {
                    events.push_back(*event);
                }
            }
        };
        self.pd
            .context()
            .handle_events(Object::Qp(self.qpn.get()), Arc::new(handler));
    }

    /// Its number, which the peer has to know: 1 for GSI, whatever number the device has for it.
    pub fn qpn(&self) -> Qpn {
        match self.granted.qp_type {
            QpType::Gsi => GSI_QPN,
            _ => self.qpn,
        }
    }

    /// Its transport service.
    pub fn qp_type(&self) -> QpType {
        self.granted.qp_type
    }

    /// Its state, as far as the driver knows: a queue pair that failed goes to ERR by itself, which its completions
    /// and [`Qp::query`] tell.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// What it was made for. `max_inline_data` is what was granted, at least what was asked for.
    pub fn config(&self) -> &QpConfig {
        &self.granted
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Requests that are posted and whose completions have not been polled: sends (those without a completion until a
    /// later one's is polled) and receives.
    pub fn outstanding(&self) -> (u32, u32) {
        let sends = self.sq.as_ref().map_or(0, SqProducer::outstanding);
        (sends, self.rq.as_ref().map_or(0, RqProducer::outstanding))
    }

    /// The oldest asynchronous event of this queue pair that was not read yet, such as that communication is established
    /// or that a queue has failed. The last of more than 16 unread ones are not kept.
    pub fn next_event(&self) -> Option<EventType> {
        lock(&self.news.events).pop_front()
    }

    /// Whether it takes its receives from a shared receive queue.
    pub fn is_on_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// Whether a queue pair on a shared receive queue is in ERR and will take no more receives from there: all that it took have
    /// their completions in the receive CQ ([`EventType::SRQ_LAST_WQE`]; IBTA vol. 1, 11.6.3.2).
    pub fn last_wqe_reached(&self) -> bool {
        self.news.last_wqe.load(Ordering::Acquire)
    }

    /// Lets the queue pair add to a set of counters, from its next way from RESET to INIT on.
    ///
    /// # Errors
    /// [`CreateError::OtherDevice`] if the set is another device's.
    pub fn count_with(&mut self, counters: &CounterSet) -> Result<(), CreateError> {
        if !Arc::ptr_eq(counters.context(), self.pd.context()) {
            return Err(CreateError::OtherDevice {
                object: "counter set",
            });
        }
        self.counters = Some(counters.clone());
        Ok(())
    }

    /// Asks the device, and takes over the state that it has.
    ///
    /// # Errors
    /// [`ModifyError::Command`].
    pub fn query(&mut self) -> Result<QpAttributes, ModifyError> {
        let qpc = self.pd.context().exec(&QueryQp { qpn: self.qpn })?;
        let state = QpState::from_prm(qpc.state());
        self.set_state(state);
        let path = qpc.primary_address_path();
        let mut access = Access::empty();
        access.set(Access::REMOTE_WRITE, qpc.rwe());
        access.set(Access::REMOTE_READ, qpc.rre());
        access.set(Access::REMOTE_ATOMIC, qpc.rae());
        Ok(QpAttributes {
            state,
            path: Path::decode(path),
            mtu: Mtu::from_code(qpc.mtu()),
            remote_qpn: Qpn::from_low_bits(qpc.remote_qpn()),
            rq_psn: qpc.next_rcv_psn(),
            sq_psn: qpc.next_send_psn(),
            timeout: path.ack_timeout(),
            retry_count: qpc.retry_count(),
            rnr_retry: qpc.rnr_retry(),
            min_rnr_timer: qpc.min_rnr_nak(),
            access,
            qkey: qpc.q_key(),
        })
    }

    pub(super) fn set_state(&mut self, state: QpState) {
        self.state = state;
        if let Some(sq) = &mut self.sq {
            sq.set_state(state);
        }
        if let Some(rq) = &mut self.rq {
            rq.set_state(state);
        }
    }

    /// Starts afresh after the device has reset the QP: what was posted before will not complete. The buffers of it.
    pub(super) fn start_afresh(&mut self) -> Vec<LocalBuffer> {
        let old = std::mem::replace(&mut self.slots, Slots { sq: None, rq: None });
        old.retire();
        let before = self.outstanding();
        let fresh =
            |old: &Option<Arc<WqShared<LocalInner>>>| old.as_ref().map(|old| WqShared::new(old.positions()));
        self.slots = Slots {
            sq: fresh(&old.sq),
            rq: fresh(&old.rq),
        };
        if let (Some(sq), Some(slots)) = (&mut self.sq, &self.slots.sq) {
            sq.reset(slots.clone());
        }
        if let (Some(rq), Some(slots)) = (&mut self.rq, &self.slots.rq) {
            rq.reset(slots.clone());
        }
        let key = self.index.get();
        let (send, recv) = self.consumers();
        self.send_cq.reset(key, send, before);
        if let Some(recv) = recv {
            self.recv_cq.reset(key, recv, before);
        }
        self.news.last_wqe.store(false, Ordering::Release);
        self.state = QpState::Reset;
        old.reclaim()
    }

    /// Ends the queue pair, and says whether that worked. Its requests complete no more; the buffers that were moved into
    /// them come back here.
    ///
    /// # Errors
    /// [`DestroyError::Command`]; its memory and the buffers stay allocated then.
    pub fn destroy(mut self) -> Result<Vec<LocalBuffer>, DestroyError> {
        self.gone = true;
        let context = self.pd.context();
        context.forget_events(Object::Qp(self.qpn.get()));
        let first = |done: Result<(), CommandError>| {
            if let Err(error) = done {
                log::debug!("{}, before it is destroyed: {error}", self.qpn);
            }
        };
        let qpn = self.qpn;
        for group in &self.groups {
            first(context.exec(&DetachFromMcg { qpn, gid: group.0 }));
        }
        if self.srq.is_some() {
            // What it has taken from the shared queue completes, and is not lost to it.
            first(context.exec(&QpToErr { qpn }));
        }
        first(context.exec(&QpToReset { qpn }));
        if let Err(error) = context.exec(&DestroyQp { qpn: self.qpn }) {
            self.buffer.leak_on_drop();
            return Err(error.into());
        }
        Ends {
            key: self.index.get(),
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
        }
        .detach();
        Ok(self.slots.reclaim())
    }
}

impl Qp {
    /// The commands of [`Qp::destroy`], to be carried out later.
    fn last_commands(&self) -> Vec<Vec<u8>> {
        let qpn = self.qpn;
        let detach = |group: &Gid| DetachFromMcg { qpn, gid: group.0 }.encode();
        let error = self.srq.is_some().then(|| QpToErr { qpn }.encode());
        let end = [QpToReset { qpn }.encode(), DestroyQp { qpn }.encode()];
        let all = self.groups.iter().map(detach).chain(error).chain(end);
        all.flatten().collect()
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let context = self.pd.context();
        context.forget_events(Object::Qp(self.qpn.get()));
        let commands = self.last_commands();
        let memory = vec![self.buffer.clone()];
        // From now on its completions are dropped; once it is gone, so is its place in the CQs, and its buffers are free.
        let ends = Ends {
            key: self.index.get(),
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
        };
        ends.mute();
        let slots = std::mem::replace(&mut self.slots, Slots { sq: None, rq: None });
        // The shared receive queue goes after it.
        let srq = self.srq.take();
        // So does the doorbell page.
        let own_uar = self.own_uar.take();
        let done = move |destroyed: bool| {
            if destroyed {
                ends.detach();
                drop(slots.reclaim());
            }
            drop((srq, own_uar));
        };
        let what = self.qpn.to_string();
        context.reaper().submit(Destroy {
            what,
            commands,
            memory,
            keep: None,
            done: Some(Box::new(done)),
        });
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &self.qpn.get())
            .field("state", &self.state)
            .field("config", &self.granted)
            .finish_non_exhaustive()
    }
}
