//! The agent as the connection manager's way to find peers.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use super::agent::Agent;
use super::error::ResolveError;
use super::neighbour::NeighbourKey;
use super::route::{Route, RouteError};
use super::stack::LinkEvent;
use crate::cm;
use crate::port::MacAddress;
use crate::verbs::Path;

/// Peers that are followed at a time; beyond, the ones that were looked for first are not any more.
const MAX_FOLLOWED: usize = 512;

/// Peers that were looked for, and the neighbours that lead to them, which are watched.
#[derive(Debug, Default)]
pub(super) struct Followed {
    hops: HashMap<IpAddr, NeighbourKey>,
    order: VecDeque<IpAddr>,
}

impl Followed {
    /// Follows a peer. The neighbour to watch, and the one not to watch any more.
    fn follow(&mut self, route: &Route) -> (Option<NeighbourKey>, Option<NeighbourKey>) {
        let (peer, hop) = (route.destination, route.neighbour());
        let before = self.hops.insert(peer, hop);
        if before == Some(hop) {
            return (None, None);
        }
        if before.is_some() {
            return (Some(hop), before);
        }
        self.order.push_back(peer);
        let oldest = if self.order.len() > MAX_FOLLOWED {
            self.order.pop_front()
        } else {
            None
        };
        (Some(hop), oldest.and_then(|oldest| self.hops.remove(&oldest)))
    }

    /// The peers that a neighbour leads to.
    fn behind(&self, neighbour: NeighbourKey) -> Vec<IpAddr> {
        let behind = self.hops.iter().filter(|(_, hop)| **hop == neighbour);
        behind.map(|(peer, _)| *peer).collect()
    }
}

fn told(address: IpAddr, error: ResolveError) -> cm::ResolveError {
    match error {
        ResolveError::NoAnswer { waited, .. } | ResolveError::Deadline { waited, .. } => {
            cm::ResolveError::NoAnswer { address, waited }
        }
        ResolveError::Route(RouteError::NoGid { why, .. }) if why.is_empty() => {
            cm::ResolveError::NoSource { address }
        }
        other => cm::ResolveError::Other {
            address,
            reason: other.to_string(),
        },
    }
}

impl cm::Resolver for Agent {
    /// As [`Agent::route_to`]. The peer is followed from then on: handlers hear when its MAC, or its router's, changes.
    fn resolve(&self, address: IpAddr, deadline: Instant) -> Result<Path, cm::ResolveError> {
        let route = self
            .route_to(address, deadline)
            .map_err(|error| told(address, error))?;
        self.follow(&route);
        route.path().ok_or(cm::ResolveError::Unknown { address })
    }

    fn lookup(&self, address: IpAddr) -> Option<Path> {
        let route = self.route_now(address)?;
        // Datagrams may name any sender: addresses that nobody answers for are not followed.
        let path = route.path()?;
        self.follow(&route);
        Some(path)
    }

    fn watch(&self, handler: cm::NeighbourHandler) {
        self.on_neighbour(move |followed, event| {
            let (neighbour, mac): (NeighbourKey, Option<MacAddress>) = match event {
                LinkEvent::NeighbourChanged { neighbour, new, .. } => (*neighbour, Some(*new)),
                LinkEvent::NeighbourUnreachable { neighbour } => (*neighbour, None),
                _ => return,
            };
            for peer in followed(neighbour) {
                handler(peer, mac);
            }
        });
    }
}

impl Agent {
    fn follow(&self, route: &Route) {
        let changes = self.with_followed(|followed| followed.follow(route));
        self.rewatch(changes);
    }

    /// Handles events together with what peers a neighbour leads to, for as long as the agent lives.
    fn on_neighbour(
        &self,
        handler: impl Fn(&dyn Fn(NeighbourKey) -> Vec<IpAddr>, &LinkEvent) + Send + Sync + 'static,
    ) {
        let followed = self.followed();
        self.handle_always(move |event| {
            let behind = |neighbour| crate::cmdq::lock(&followed).behind(neighbour);
            handler(&behind, event);
        });
    }
}
