//! Which GID a connection to an address would use, and why each other one would not.
//!
//! The way comes first: the interface and next hop whose prefix covers the destination, the longest one, or a
//! router's. Then each entry of the GID table is judged by it:
//!
//! | refused | ranked, in this order |
//! | --- | --- |
//! | other family, other VLAN, other scope | RoCE v2 before v1 |
//! | no address of the NIC any more, or not yet | its prefix covers the next hop, the longest first |
//! | RoCE v1 or link-local through a router | scope like the destination's |
//! | asked for another version | longer agreement with the destination, lower index |
//!
//! Source of the ranks: IBTA annexes A16 and A17 (which packets can be routed), RFC 6724, 5 (rules 1, 2 and 8).

mod types;

use std::net::IpAddr;

use super::address::{Gateway, InterfaceAddress, Prefix, common_bits, is_link_local};
use super::interface::AddressState;
use crate::gid::{GidEntry, RoceVersion};

pub use types::{Rank, Reason, Route, RouteError, RouteQuery, RouteTables, Unfit, Verdict, Via, Worse};

/// How packets to the destination leave.
struct Way {
    via: Via,
    next_hop: IpAddr,
    vlan: Option<u16>,
}

/// Chooses the way to an address and the GID for it.
///
/// # Errors
/// [`RouteError`] says why there is none.
pub fn choose(query: &RouteQuery, tables: &RouteTables<'_>) -> Result<Route, RouteError> {
    let way = find_way(query, tables)?;
    let judged: Vec<(u16, GidEntry, Result<Rank, Unfit>)> = tables
        .gids
        .iter()
        .map(|(index, entry)| (*index, *entry, judge(query, &way, entry, tables)))
        .collect();
    // Of equals the first wins, so the lowest index.
    let best = judged
        .iter()
        .filter_map(|(index, _, rank)| Some((rank.ok()?, std::cmp::Reverse(*index))))
        .max();
    let best_index = best.map(|(_, index)| index.0);
    let wanted = match query.sgid_index {
        None => best_index,
        Some(index) => match judged.iter().find(|(at, ..)| *at == index) {
            None => {
                return Err(RouteError::EmptyGid {
                    index,
                    better: best_index,
                });
            }
            Some((_, entry, Err(unfit))) => {
                return Err(RouteError::WrongGid {
                    index,
                    gid: entry.gid.to_ip(),
                    version: entry.version,
                    destination: query.destination,
                    unfit: *unfit,
                    better: best_index,
                });
            }
            Some(_) => Some(index),
        },
    };
    let why: Vec<Reason> = judged
        .iter()
        .map(|(index, entry, rank)| Reason {
            index: *index,
            entry: *entry,
            verdict: verdict(*index, *rank, wanted, best),
        })
        .collect();
    let chosen = why
        .iter()
        .find(|reason| reason.verdict == Verdict::Chosen)
        .copied();
    let Some(chosen) = chosen else {
        return Err(RouteError::NoGid {
            destination: query.destination,
            via: way.via,
            why,
        });
    };
    Ok(Route {
        destination: query.destination,
        sgid_index: chosen.index,
        source: chosen.entry,
        next_hop: way.next_hop,
        vlan: way.vlan,
        via: way.via,
        dmac: None,
        why,
    })
}

fn find_way(query: &RouteQuery, tables: &RouteTables<'_>) -> Result<Way, RouteError> {
    let ip = query.destination;
    if ip.is_unspecified() || ip.is_loopback() {
        return Err(RouteError::Destination { destination: ip });
    }
    let usable = || {
        let of_family = tables
            .addresses
            .iter()
            .filter(|(own, _)| own.ip.is_ipv4() == ip.is_ipv4());
        of_family
            .filter(|(_, state)| *state != AddressState::Duplicate)
            .map(|(own, _)| own)
            .filter(|own| query.vlan.is_none_or(|vlan| vlan == own.vlan))
    };
    if let Some(own) = usable().find(|own| own.ip == ip) {
        return Ok(Way {
            via: Via::Itself,
            next_hop: ip,
            vlan: own.vlan,
        });
    }
    let mut links: Vec<(&InterfaceAddress, Prefix)> = usable()
        .map(|own| (own, own.prefix()))
        .filter(|(_, prefix)| prefix.contains(ip))
        .collect();
    let group = ip.is_multicast();
    if group {
        links = usable().map(|own| (own, own.prefix())).collect();
    }
    if (is_link_local(ip) && ip.is_ipv6()) || group {
        let mut vlans: Vec<Option<u16>> = links.iter().map(|(own, _)| own.vlan).collect();
        vlans.sort_unstable();
        vlans.dedup();
        if vlans.len() > 1 && !group {
            let vlans = vlans
                .iter()
                .map(|vlan| vlan.map_or("untagged".to_owned(), |id| format!("VLAN {id}")));
            return Err(RouteError::Ambiguous {
                destination: ip,
                vlans: vlans.collect::<Vec<_>>().join(", "),
            });
        }
    }
    // The untagged interface before VLANs, where prefixes are as long.
    let link = links
        .into_iter()
        .max_by_key(|(own, prefix)| (prefix.bits(), std::cmp::Reverse(own.vlan)));
    let router = best_router(query, tables, ip);
    match (link, router) {
        (Some((own, prefix)), router)
            if router.is_none_or(|router| router.to.bits() <= prefix.bits()) || group =>
        {
            Ok(Way {
                via: if group { Via::Group } else { Via::Link(prefix) },
                next_hop: ip,
                vlan: own.vlan,
            })
        }
        (_, Some(router)) => Ok(Way {
            via: Via::Router(*router),
            next_hop: router.via,
            vlan: router.vlan,
        }),
        (_, None) => {
            let prefixes = usable().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            Err(RouteError::Unreachable {
                destination: ip,
                vlan: query.vlan,
                prefixes: if prefixes.is_empty() {
                    "there is none of its family".into()
                } else {
                    prefixes
                },
            })
        }
    }
}

fn best_router<'a>(query: &RouteQuery, tables: &RouteTables<'a>, ip: IpAddr) -> Option<&'a Gateway> {
    if is_link_local(ip) || ip.is_multicast() {
        return None;
    }
    let fitting = tables
        .gateways
        .iter()
        .filter(|gateway| gateway.to.contains(ip) && query.vlan.is_none_or(|vlan| vlan == gateway.vlan));
    // The first of equals.
    fitting.rev().max_by_key(|gateway| gateway.to.bits())
}

/// Whether an entry will do for that way, and how well.
fn judge(query: &RouteQuery, way: &Way, entry: &GidEntry, tables: &RouteTables<'_>) -> Result<Rank, Unfit> {
    let (own, ip) = (entry.gid.to_ip(), query.destination);
    let routed = matches!(way.via, Via::Router(_));
    // Id 0 tags without a VLAN.
    let vlan = entry.vlan.filter(|vlan| *vlan != 0);
    if own.is_ipv4() != ip.is_ipv4() {
        return Err(Unfit::Family);
    }
    if query.version.is_some_and(|version| version != entry.version) {
        return Err(Unfit::Version);
    }
    if vlan != way.vlan {
        return Err(Unfit::Vlan {
            entry: vlan,
            way: way.vlan,
        });
    }
    let address = tables
        .addresses
        .iter()
        .find(|(have, _)| have.ip == own && have.vlan == vlan);
    let Some((address, state)) = address else {
        return Err(Unfit::NoAddress);
    };
    match state {
        AddressState::Tentative => return Err(Unfit::Tentative),
        AddressState::Duplicate => return Err(Unfit::Duplicate),
        AddressState::Optimistic | AddressState::Usable => {}
    }
    if routed && is_link_local(own) {
        return Err(Unfit::LinkLocalRouted);
    }
    if routed && entry.version == RoceVersion::V1 {
        return Err(Unfit::V1Routed);
    }
    let link_local = if ip.is_multicast() {
        false
    } else {
        is_link_local(ip)
    };
    Ok(Rank {
        same: own == ip,
        v2: entry.version == RoceVersion::V2,
        covers: if address.prefix().contains(way.next_hop) {
            address.prefix().bits() + 1
        } else {
            0
        },
        scope: is_link_local(own) == link_local,
        // RFC 6724, 5, rule 8: no more than the prefix counts; IPv4 addresses of a subnet are alike.
        common: common_bits(own, ip).min(address.prefix_len),
    })
}

fn verdict(
    index: u16,
    rank: Result<Rank, Unfit>,
    wanted: Option<u16>,
    best: Option<(Rank, std::cmp::Reverse<u16>)>,
) -> Verdict {
    let rank = match rank {
        Ok(rank) => rank,
        Err(unfit) => return Verdict::Unfit(unfit),
    };
    if Some(index) == wanted {
        return Verdict::Chosen;
    }
    let Some((best, at)) = best.filter(|(_, at)| at.0 != index) else {
        return Verdict::Better;
    };
    debug_assert!(best >= rank && (best > rank || at.0 < index));
    Verdict::Worse(if best.v2 != rank.v2 {
        Worse::Version
    } else if best.covers != rank.covers {
        Worse::Prefix
    } else if best.scope != rank.scope {
        Worse::Scope
    } else if best.common != rank.common || best.same != rank.same {
        Worse::CommonBits {
            bits: rank.common,
            best: best.common,
        }
    } else {
        Worse::Index
    })
}

#[cfg(test)]
mod tests;
