//! What is asked of a way, what it is, and why another one is not.

use std::fmt;
use std::net::IpAddr;

use super::super::address::{Gateway, InterfaceAddress, Prefix};
use super::super::interface::AddressState;
use super::super::neighbour::NeighbourKey;
use crate::gid::{GidEntry, RoceVersion};
use crate::port::MacAddress;
use crate::verbs::Path;

/// Where to, and what is asked of the way there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteQuery {
    /// The peer's address.
    pub destination: IpAddr,
    /// Only through this interface: `Some(None)` is the untagged one.
    pub vlan: Option<Option<u16>>,
    /// Only with this entry of the GID table.
    pub sgid_index: Option<u16>,
    /// Only with this version of RoCE.
    pub version: Option<RoceVersion>,
}

impl RouteQuery {
    /// To an address, by whichever way is best.
    #[must_use]
    pub fn to(destination: IpAddr) -> RouteQuery {
        RouteQuery {
            destination,
            vlan: None,
            sgid_index: None,
            version: None,
        }
    }
}

impl From<IpAddr> for RouteQuery {
    fn from(destination: IpAddr) -> RouteQuery {
        RouteQuery::to(destination)
    }
}

/// What a choice is made from.
#[derive(Clone, Copy, Debug)]
pub struct RouteTables<'a> {
    /// The GID table: indices and entries.
    pub gids: &'a [(u16, GidEntry)],
    /// The NIC's addresses and what they are good for.
    pub addresses: &'a [(InterfaceAddress, AddressState)],
    /// Ways through routers.
    pub gateways: &'a [Gateway],
}

/// How packets leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Via {
    /// The destination is an address of this NIC.
    Itself,
    /// The destination is a group.
    Group,
    /// The destination is on the link.
    Link(Prefix),
    /// A router takes them on.
    Router(Gateway),
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Itself => f.write_str("an address of this NIC"),
            Self::Group => f.write_str("a group on the link"),
            Self::Link(prefix) => write!(f, "on the link ({prefix})"),
            Self::Router(gateway) => write!(f, "through the router {} ({})", gateway.via, gateway.to),
        }
    }
}

/// Why an entry of the GID table is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unfit {
    /// IPv4 and IPv6 don't meet.
    Family,
    /// It is of another VLAN than the way.
    Vlan {
        /// The entry's.
        entry: Option<u16>,
        /// The way's.
        way: Option<u16>,
    },
    /// The NIC has no such address there: nobody would answer for it.
    NoAddress,
    /// The address is still looked for; it can be used in a moment.
    Tentative,
    /// Another station has the address.
    Duplicate,
    /// Packets from a link-local address are not routed.
    LinkLocalRouted,
    /// RoCE v1 packets have no IP header and are not routed.
    V1Routed,
    /// Another version of RoCE was asked for.
    Version,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vlan = |vlan: &Option<u16>| match vlan {
            Some(vlan) => format!("VLAN {vlan}"),
            None => "untagged".to_owned(),
        };
        match self {
            Self::Family => f.write_str("other family than the destination (IPv4, IPv6)"),
            Self::Vlan { entry, way } => {
                write!(f, "{}, the destination is reached by {}", vlan(entry), vlan(way))
            }
            Self::NoAddress => f.write_str("no address of this NIC: nobody would answer for it"),
            Self::Tentative => f.write_str("still being looked for duplicates, try again in a few seconds"),
            Self::Duplicate => f.write_str("another station has this address"),
            Self::LinkLocalRouted => f.write_str("link-local, and the destination is behind a router"),
            Self::V1Routed => f.write_str("RoCE v1 is not routed, and the destination is behind a router"),
            Self::Version => f.write_str("another version of RoCE was asked for"),
        }
    }
}

/// How good an entry is. Greater is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rank {
    /// It is the destination itself (a connection of the NIC to itself).
    pub same: bool,
    /// RoCE v2.
    pub v2: bool,
    /// Bits of its prefix and one, if that covers the next hop; or else 0.
    pub covers: u8,
    /// Link-local as the destination is, or neither is.
    pub scope: bool,
    /// Bits that agree with the destination.
    pub common: u8,
}

/// Why the entry that is used is better than another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Worse {
    /// RoCE v1, where v2 would do.
    Version,
    /// Its prefix doesn't cover the next hop, or less closely.
    Prefix,
    /// Link-local to an address that is not, or the other way round.
    Scope,
    /// It agrees with the destination in fewer bits.
    CommonBits {
        /// This many.
        bits: u8,
        /// The better one in so many.
        best: u8,
    },
    /// As good, with a higher index.
    Index,
}

impl fmt::Display for Worse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version => f.write_str("would do, but RoCE v2 is preferred"),
            Self::Prefix => {
                f.write_str("would do, but its prefix doesn't cover the next hop, or less closely")
            }
            Self::Scope => {
                f.write_str("would do, but its scope (link-local or not) is not the destination's")
            }
            Self::CommonBits { bits, best } => {
                write!(
                    f,
                    "would do, but agrees with the destination in {bits} bits, the better one in {best}"
                )
            }
            Self::Index => f.write_str("as good, but of a higher index"),
        }
    }
}

/// What was made of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// It is used.
    Chosen,
    /// It would do.
    Worse(Worse),
    /// It would do, and it would be better than the one that was asked for.
    Better,
    /// It can't be used.
    Unfit(Unfit),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen => f.write_str("used"),
            Self::Worse(why) => why.fmt(f),
            Self::Better => f.write_str("better than the one that was asked for"),
            Self::Unfit(why) => why.fmt(f),
        }
    }
}

/// An entry of the GID table, and what was made of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason {
    /// Its index.
    pub index: u16,
    /// The entry.
    pub entry: GidEntry,
    /// Whether it is used, and if not, why.
    pub verdict: Verdict,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GidEntry {
            gid, version, vlan, ..
        } = self.entry;
        write!(f, "GID {}: {}, {version}", self.index, gid.to_ip())?;
        if let Some(vlan) = vlan {
            write!(f, ", VLAN {vlan}")?;
        }
        write!(f, ": {}", self.verdict)
    }
}

/// The way to an address.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Route {
    /// The address.
    pub destination: IpAddr,
    /// Index of the GID that packets come from.
    pub sgid_index: u16,
    /// That entry.
    pub source: GidEntry,
    /// Whose MAC the packets go to.
    pub next_hop: IpAddr,
    /// VLAN of the packets.
    pub vlan: Option<u16>,
    /// How they leave.
    pub via: Via,
    /// The next hop's MAC; `None` where it was not asked for.
    pub dmac: Option<MacAddress>,
    /// Every entry of the GID table and what was made of it, by index.
    pub why: Vec<Reason>,
}

impl Route {
    /// The neighbour that packets go through.
    #[must_use]
    pub fn neighbour(&self) -> NeighbourKey {
        NeighbourKey {
            vlan: self.vlan,
            ip: self.next_hop,
        }
    }

    /// The entry that would have been better than the one that was asked for by its index.
    #[must_use]
    pub fn better(&self) -> Option<&Reason> {
        self.why.iter().find(|reason| reason.verdict == Verdict::Better)
    }

    /// The path for a queue pair or an address handle; `None` where the next hop's MAC was not asked for.
    #[must_use]
    pub fn path(&self) -> Option<Path> {
        Some(Path::to_ip(self.sgid_index, self.destination, self.dmac?))
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = self.source.gid.to_ip();
        write!(
            f,
            "{} from GID {} ({source}, {})",
            self.destination, self.sgid_index, self.source.version
        )?;
        if let Some(vlan) = self.vlan {
            write!(f, " in VLAN {vlan}")?;
        }
        write!(f, ", {}", self.via)
    }
}

/// Why there is no way to an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// An address that nothing can be sent to.
    #[error(
        "{destination} can't be connected to: it is unspecified or the address of a program's own machine"
    )]
    Destination {
        /// The address.
        destination: IpAddr,
    },
    /// No prefix covers it, and no router is there.
    #[error(
        "no way to {destination}{}: no address of this NIC has a prefix that covers it ({prefixes}), and no router is \
         known; give the NIC an address with such a prefix, or a router",
        of_vlan(*vlan)
    )]
    Unreachable {
        /// The address.
        destination: IpAddr,
        /// The interface that was asked for.
        vlan: Option<Option<u16>>,
        /// The prefixes that there are.
        prefixes: String,
    },
    /// A link-local address is one in each VLAN.
    #[error(
        "{destination} is link-local, and the NIC is in several networks ({vlans}): say in which VLAN it is"
    )]
    Ambiguous {
        /// The address.
        destination: IpAddr,
        /// The interfaces.
        vlans: String,
    },
    /// No entry of the GID table will do.
    #[error("no GID of this NIC can be used to reach {destination}, {via}{}", list(why))]
    NoGid {
        /// The address.
        destination: IpAddr,
        /// How packets would leave.
        via: Via,
        /// The entries and what is wrong with each.
        why: Vec<Reason>,
    },
    /// The entry that was asked for won't do.
    #[error(
        "GID {index} ({gid}, {version}) can't be used to reach {destination}: {unfit}{}",
        instead(*better)
    )]
    WrongGid {
        /// Its index.
        index: u16,
        /// Its address.
        gid: IpAddr,
        /// Its version of RoCE.
        version: RoceVersion,
        /// The address.
        destination: IpAddr,
        /// What is wrong with it.
        unfit: Unfit,
        /// The one to use.
        better: Option<u16>,
    },
    /// The entry that was asked for is not there.
    #[error("the GID table has no entry at index {index} (it may have been removed){}", instead(*better))]
    EmptyGid {
        /// The index.
        index: u16,
        /// The one to use.
        better: Option<u16>,
    },
}

fn of_vlan(vlan: Option<Option<u16>>) -> String {
    match vlan {
        None => String::new(),
        Some(None) => " without a VLAN tag".to_owned(),
        Some(Some(vlan)) => format!(" in VLAN {vlan}"),
    }
}

fn instead(better: Option<u16>) -> String {
    better.map_or_else(String::new, |index| format!("; GID {index} would do"))
}

fn list(why: &[Reason]) -> String {
    if why.is_empty() {
        return "; the GID table is empty".to_owned();
    }
    why.iter().map(|reason| format!("; {reason}")).collect()
}
