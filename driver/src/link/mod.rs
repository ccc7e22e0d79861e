//! The link: who answers for the NIC's addresses, and how others' are found.
//!
//! A NIC that the kernel no longer has gets no answers from the kernel: nobody tells its MAC to those who ask for its
//! addresses, and nobody asks for theirs. The [`Agent`] does, on the NIC's own raw Ethernet queues; it also keeps the GID
//! table in step with the addresses, and says which GID reaches whom.
//!
//! ```text
//!   Agent ── thread, locks ──▶ Stack ── frames in and out, events, time as an argument
//!     │                          ├─ interfaces: one untagged, one for each VLAN; their addresses: probe, use, defence
//!     │                          ├─ neighbours: INCOMPLETE, REACHABLE, STALE, DELAY, PROBE, FAILED
//!     │                          └─ ARP, neighbour discovery, MLD reports, echo replies
//!     ├─ EthernetQueues          SQ, RQ, flow rules
//!     └─ route::choose           GID table + addresses + routers ──▶ GID, next hop, VLAN, and why
//! ```
//! Left out: fragments, IP options, SLAAC and router discovery (addresses and routers are given), redirects, IGMP.
//!
//! Source: RFC 826, 5227 (ARP), 4861, 4862 (neighbour discovery), 792, 4443 (echo), 3810 (MLDv2), IEEE 802.1Q.

mod address;
mod agent;
mod error;
mod frame;
mod input;
mod interface;
mod neighbour;
mod resolver;
mod route;
mod stack;
mod timing;

pub(crate) use address::check_vlan;
pub use address::{AddressError, Gateway, InterfaceAddress, Place, Prefix, split_vlan};
pub use agent::{Agent, AgentConfig, AgentCounters, HandlerGuard, Watch};
pub use error::{LinkError, ResolveError};
pub use interface::{AddressState, DuplicateDetection};
pub use neighbour::{Lookup, Neighbour, NeighbourKey, NeighbourState};
pub use route::{
    Rank, Reason, Route, RouteError, RouteQuery, RouteTables, Unfit, Verdict, Via, Worse, choose,
};
pub use stack::{LinkCounters, LinkEvent, Stack, StackConfig};
pub use timing::Timing;
