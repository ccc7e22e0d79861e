//! The agent as the connection manager's way to find peers.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use super::agent::Agent;
use super::error::ResolveError;
use super::neighbour::NeighbourKey;
use super::route::{Route, RouteError};
use super::stack::{LinkEvent, Stack};
use crate::cm;
use crate::port::MacAddress;
use crate::verbs::Path;

/// Most peers without a connection that are followed at a time; beyond, the ones that were looked for first are not any
/// more.
const MAX_IDLE: usize = 512;

/// A peer, and what leads to it.
#[derive(Debug, Default)]
struct Peer {
    /// Watched. `None` where there was no way or no room.
    hop: Option<NeighbourKey>,
    connections: usize,
}

/// Peers that were looked for or are connected with, and the neighbours that lead to them, which are watched.
#[derive(Debug)]
pub(super) struct Followed {
    peers: HashMap<IpAddr, Peer>,
    /// Those without a connection, the one that was looked for first in front.
    idle: VecDeque<IpAddr>,
    max_idle: usize,
}

impl Followed {
    /// Follows nobody yet. Peers without a connection, of which anybody can be many, get a quarter of the cache at most.
    pub(super) fn new(max_neighbours: usize) -> Followed {
        Followed {
            peers: HashMap::new(),
            idle: VecDeque::new(),
            max_idle: MAX_IDLE.min(max_neighbours / 4).max(1),
        }
    }

    /// Whether a peer is followed by way of that neighbour.
    fn follows(&self, peer: IpAddr, hop: NeighbourKey) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.hop == Some(hop))
    }

    /// Follows a peer by way of a neighbour, and of no other any more.
    fn follow(&mut self, now: Instant, stack: &mut Stack, peer: IpAddr, hop: NeighbourKey) {
        if self.follows(peer, hop) {
            return;
        }
        let known = self.peers.get_mut(&peer);
        let (before, is_new) = (known.as_ref().and_then(|known| known.hop), known.is_none());
        let watched = stack.watch(now, hop).then_some(hop);
        if let Some(before) = before {
            stack.unwatch(before);
        }
        match known {
            Some(known) => known.hop = watched,
            None if watched.is_some() => {
                let connections = 0;
                self.peers.insert(
                    peer,
                    Peer {
                        hop: watched,
                        connections,
                    },
                );
            }
            None => {}
        }
        if watched.is_none() {
            log::warn!(
                "{peer}: {} is not watched, for the neighbour cache is full; see AgentConfig::max_neighbours",
                hop.ip
            );
        } else if is_new {
            self.rest(stack, peer);
        }
    }

    /// A peer has one more connection: it is followed until it has none.
    fn connected(&mut self, peer: IpAddr) {
        let known = self.peers.entry(peer).or_default();
        known.connections += 1;
        if known.connections == 1 {
            self.idle.retain(|idle| *idle != peer);
        }
    }

    /// A peer has one connection less.
    fn disconnected(&mut self, stack: &mut Stack, peer: IpAddr) {
        let Some(known) = self.peers.get_mut(&peer) else {
            return;
        };
        if known.connections == 0 {
            return;
        }
        known.connections -= 1;
        if known.connections == 0 {
            self.rest(stack, peer);
        }
    }

    /// A peer has no connection: it is followed as long as there are not too many such.
    fn rest(&mut self, stack: &mut Stack, peer: IpAddr) {
        self.idle.push_back(peer);
        if self.idle.len() > self.max_idle
            && let Some(oldest) = self.idle.pop_front()
            && let Some(Peer { hop: Some(hop), .. }) = self.peers.remove(&oldest)
        {
            stack.unwatch(hop);
        }
    }

    /// The peers that a neighbour leads to.
    fn behind(&self, neighbour: NeighbourKey) -> Vec<IpAddr> {
        let behind = self.peers.iter().filter(|(_, peer)| peer.hop == Some(neighbour));
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
    /// As [`Agent::route_to`]. The peer is followed from then on: handlers hear when its MAC, or its router's, changes. Peers
    /// with a connection always are; of the others, a quarter of [`AgentConfig::max_neighbours`](super::AgentConfig) (at most
    /// 512) that were looked for last.
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

    fn connected(&self, address: IpAddr) {
        // It was looked for when the connection was asked for, and may have been pushed out meanwhile.
        let route = self.route(address).ok();
        self.with_followed(|followed, stack| {
            if let Some(route) = &route {
                followed.follow(Instant::now(), stack, address, route.neighbour());
            }
            followed.connected(address);
        });
    }

    fn disconnected(&self, address: IpAddr) {
        self.with_followed(|followed, stack| followed.disconnected(stack, address));
    }
}

impl Agent {
    fn follow(&self, route: &Route) {
        let (peer, hop) = (route.destination, route.neighbour());
        // That is all there is to do for most datagrams.
        if crate::cmdq::lock(&self.followed()).follows(peer, hop) {
            return;
        }
        self.with_followed(|followed, stack| followed.follow(Instant::now(), stack, peer, hop));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::interface::DuplicateDetection;
    use super::super::stack::StackConfig;
    use super::*;

    fn at(last: u16) -> NeighbourKey {
        let [high, low] = last.to_be_bytes();
        let ip = IpAddr::from([10, 9, high, low]);
        NeighbourKey { vlan: None, ip }
    }

    /// A stack that knows `count` neighbours at the most, and a table that goes with it.
    fn tables(now: Instant, count: usize) -> (Stack, Followed) {
        let mut config = StackConfig::new(MacAddress([2, 0, 0, 0, 0, 1]));
        config.max_neighbours = count;
        let mut stack = Stack::new(&config);
        let own = "10.9.255.1/16".parse().expect("an address");
        stack
            .add_address(now, own, DuplicateDetection::Off)
            .expect("added");
        (stack, Followed::new(count))
    }

    fn watched(stack: &Stack) -> Vec<NeighbourKey> {
        let watched = stack
            .neighbours()
            .into_iter()
            .filter(|neighbour| neighbour.watched);
        watched.map(|neighbour| neighbour.key).collect()
    }

    #[test]
    fn peers_with_a_connection_are_followed_whoever_else_is_looked_for() {
        let now = Instant::now();
        let (mut stack, mut followed) = tables(now, 4096);
        let peer = at(1);
        followed.follow(now, &mut stack, peer.ip, peer);
        followed.connected(peer.ip);
        followed.connected(peer.ip);
        for last in 2..1000 {
            followed.follow(now, &mut stack, at(last).ip, at(last));
        }
        assert_eq!(followed.behind(peer), [peer.ip]);
        assert_eq!(watched(&stack).len(), 1 + MAX_IDLE, "the others are bounded");
        assert!(watched(&stack).contains(&peer) && !watched(&stack).contains(&at(2)));
        // With its last connection it becomes one of the others.
        followed.disconnected(&mut stack, peer.ip);
        for last in 1000..2000 {
            followed.follow(now, &mut stack, at(last).ip, at(last));
        }
        assert!(watched(&stack).contains(&peer));
        followed.disconnected(&mut stack, peer.ip);
        followed.disconnected(&mut stack, peer.ip);
        assert!(watched(&stack).contains(&peer), "the youngest of them");
        for last in 2000..3000 {
            followed.follow(now, &mut stack, at(last).ip, at(last));
        }
        assert!(!watched(&stack).contains(&peer));
        assert_eq!((followed.peers.len(), followed.idle.len()), (MAX_IDLE, MAX_IDLE));
    }

    #[test]
    fn strangers_take_a_quarter_of_the_cache_and_a_full_one_undoes_nobodys_watch() {
        let mut now = Instant::now();
        let (mut stack, mut followed) = tables(now, 8);
        for last in 1..50 {
            followed.follow(now, &mut stack, at(last).ip, at(last));
            // Nobody answers; those that are not watched may be forgotten.
            for _ in 0..10 {
                now += Duration::from_secs(1);
                stack.handle_timeout(now);
            }
        }
        assert_eq!(watched(&stack), [at(48), at(49)]);
        // The program's own watches leave no room for a peer.
        let (mut stack, mut followed) = tables(now, 8);
        for last in 1..=8 {
            assert!(stack.watch(now, at(last)));
        }
        followed.follow(now, &mut stack, at(9).ip, at(9));
        followed.connected(at(9).ip);
        assert!(followed.behind(at(9)).is_empty());
        // A way that leads through one that is there is followed.
        followed.follow(now, &mut stack, at(9).ip, at(1));
        assert_eq!(followed.behind(at(1)), [at(9).ip]);
        followed.disconnected(&mut stack, at(9).ip);
        for last in 20..30 {
            followed.follow(now, &mut stack, at(last).ip, at(2));
        }
        assert_eq!(watched(&stack).len(), 8, "the program's watches are all there");
    }
}
