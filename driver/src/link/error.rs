//! What can go wrong on the link.

use std::net::IpAddr;
use std::time::Duration;

use super::address::AddressError;
use super::route::RouteError;
use crate::error::StepError;
use crate::verbs::CreateError;

/// Why the agent did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The raw Ethernet queues could not be made.
    #[error("no raw Ethernet queues to answer for the NIC's addresses with")]
    Queues(#[source] CreateError),
    /// The NIC can't be asked or told something.
    #[error("the NIC's addresses can't be set up")]
    Device(#[from] StepError),
    /// The system gives no thread.
    #[error("the link agent's thread can't be started")]
    Thread(#[source] std::io::Error),
    /// An address that can't be.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The address is another station's.
    #[error("another station on the link has {ip}; it is not used")]
    Duplicate {
        /// The address.
        ip: IpAddr,
    },
    /// The addresses were still looked for duplicates.
    #[error("the addresses were still being looked for duplicates after {waited:.1?}")]
    Deadline {
        /// How long it was waited for.
        waited: Duration,
    },
}

/// Why there is no way to an address, or no MAC for it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// No GID, no prefix, no router.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Nobody answers for it.
    #[error("{ip}{} does not answer: no station on the link has told its MAC within {waited:.1?}", of_vlan(*vlan))]
    NoAnswer {
        /// The next hop.
        ip: IpAddr,
        /// The VLAN that it was asked for in.
        vlan: Option<u16>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The deadline came before an answer.
    #[error("{ip}{} has not told its MAC within {waited:.1?}, which is all the time that there was", of_vlan(*vlan))]
    Deadline {
        /// The next hop.
        ip: IpAddr,
        /// The VLAN that it was asked for in.
        vlan: Option<u16>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The NIC has no address in that VLAN from which it could ask.
    #[error("{ip}{} can't be asked for: the NIC has no address of its family there", of_vlan(*vlan))]
    NoInterface {
        /// The next hop.
        ip: IpAddr,
        /// The VLAN.
        vlan: Option<u16>,
    },
    /// All neighbours that the cache holds are in use.
    #[error(
        "no room for the neighbour {ip}: all {max} entries of the cache are in use (AgentConfig::max_neighbours)"
    )]
    Full {
        /// The next hop.
        ip: IpAddr,
        /// Entries of the cache.
        max: usize,
    },
    /// The agent has ended.
    #[error("the link agent has ended: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
}

fn of_vlan(vlan: Option<u16>) -> String {
    vlan.map_or_else(String::new, |vlan| format!(" in VLAN {vlan}"))
}
