//! RDMA verbs: protection domains, memory, completion queues, queue pairs.
//!
//! ```text
//! Context <-- Pd <-- Mr, CallerMr, LocalBuffer        memory
//!         <-- Cq, CqPoller                            completions
//!             Pd, Cq <-- Qp                           requests
//!             Pd <-- Srq <-- Qp                       receives that several queue pairs share
//!             Pd <-- Ah                               ways of datagrams
//! ```
//!
//! An object holds what it needs, so that any order of drops is right; dropping destroys in firmware too, and
//! `destroy`, `dealloc` and `dereg` do so and say whether it worked. Names and meanings are those of ibverbs and the IBTA
//! specification.
//!
//! # Memory
//!
//! | kind | who reaches it | how the program accesses it |
//! | --- | --- | --- |
//! | [`LocalBuffer`] | this side's requests, into which it is moved | plain slices, while it is not in a request |
//! | [`Mr`] | requests of this side and of peers | copies in and out |
//! | [`CallerMr`] | the same | the program's own; `unsafe` to register |
//!
//! A request names regions by key and address, and holds none of them: a region that is dropped is ended in firmware
//! before its memory goes, and what is still in flight then fails with a protection error.

mod ah;
mod atomics;
mod attr;
mod blueflame;
mod counters;
mod cq;
mod cq_memory;
mod error;
mod grh;
mod local;
mod mkey;
mod mr;
mod multicast;
mod pages;
mod path;
mod pd;
mod poller;
mod post;
mod qp;
mod qp_parts;
mod srq;
mod to_state;
mod transitions;
mod user_index;
mod wc;

pub use attr::QpConfig;
pub use counters::{CounterSet, Counters};
pub use cq::{Cq, CqConfig};
pub use error::{
    AttachError, BadWr, CreateError, DestroyError, DrainError, LimitError, ModifyError, PathError, PollError,
    Refused, WaitError,
};
pub use grh::{GRH_BYTES, GlobalHeader, GrhError, NetworkType};
pub use local::LocalBuffer;
pub use mkey::Access;
pub use mr::{CallerMr, Mr};
pub use path::{Mtu, Path};
pub use pd::Pd;
pub use poller::CqPoller;
pub use post::BufferOp;
pub use qp::Qp;
pub use srq::{ReturnedRecv, Srq, SrqAttributes, SrqConfig};
pub use to_state::{GSI_QKEY, QpAttributes, ToInit, ToRtr, ToRts, Update};
pub use wc::{Datagram, Wc, WcError, WcOpcode, WcStatus, WcSuccess};

// What queues that are no queue pair's need too.
pub(crate) use error::made;
pub(crate) use pages::{of_queue, queue_log_page_size};
pub(crate) use user_index::UserIndexGuard;

/// What moves between threads, and what is shared between them.
const _: () = {
    const fn sent<T: Send>() {}
    const fn shared<T: Send + Sync>() {}
    sent::<Qp>();
    sent::<Srq>();
    sent::<CqPoller>();
    sent::<Wc>();
    shared::<Cq>();
    shared::<Pd>();
    shared::<Mr>();
    shared::<CallerMr>();
    shared::<LocalBuffer>();
    shared::<CounterSet>();
    shared::<Ah>();
};

pub use crate::ring::{
    Ah, Lkey, Payload, PostError, QpState, QpType, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge,
};
