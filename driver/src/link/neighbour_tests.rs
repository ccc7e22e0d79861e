use super::*;

const A: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xa]);
const B: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xb]);
const SECOND: Duration = Duration::from_secs(1);
const ANSWER: Heard = Heard::Answered { overrides: true };
const ANNOUNCEMENT: Heard = Heard::Announced { overrides: true };

fn key(last: u8) -> NeighbourKey {
    NeighbourKey {
        vlan: None,
        ip: IpAddr::from([10, 9, 0, last]),
    }
}

/// A cache, its time, and what it wanted sent when.
struct Rig {
    cache: Cache,
    start: Instant,
    now: Instant,
    sent: Vec<(Duration, Solicit)>,
}

impl Rig {
    fn new(limit: usize) -> Rig {
        let start = Instant::now();
        Rig {
            cache: Cache::new(limit, Timing::default(), Random::new(3)),
            start,
            now: start,
            sent: Vec::new(),
        }
    }

    fn collect(&mut self) {
        let at = self.now - self.start;
        self.sent.extend(
            std::mem::take(&mut self.cache.solicits)
                .into_iter()
                .map(|solicit| (at, solicit)),
        );
    }

    /// Lets time pass, deadline by deadline.
    fn pass(&mut self, time: Duration) {
        self.collect();
        let end = self.now + time;
        while let Some(at) = self.cache.next_deadline().filter(|at| *at <= end) {
            assert!(at >= self.now, "no deadline stays in the past");
            self.now = at;
            self.cache.expire(at);
            self.collect();
        }
        self.now = end;
    }

    fn heard(&mut self, last: u8, mac: MacAddress, how: Heard) {
        self.cache.heard(self.now, key(last), mac, how);
        self.collect();
    }

    fn look_up(&mut self, last: u8) -> Lookup {
        let found = self.cache.look_up(self.now, key(last));
        self.collect();
        found
    }

    fn state(&self, last: u8) -> Option<NeighbourState> {
        self.cache.entries.get(&key(last)).map(|entry| entry.state)
    }

    fn changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.cache.changes)
            .into_iter()
            .map(|(_, change)| change)
            .collect()
    }

    fn sent_at(&self) -> Vec<u64> {
        self.sent.iter().map(|(at, _)| at.as_secs()).collect()
    }
}

#[test]
fn who_does_not_answer_is_asked_three_times_and_given_up() {
    let mut rig = Rig::new(8);
    assert_eq!(rig.look_up(1), Lookup::Pending);
    rig.pass(3 * SECOND - Duration::from_millis(1));
    assert_eq!((rig.look_up(1), rig.sent_at()), (Lookup::Pending, vec![0, 1, 2]));
    assert!(rig.sent.iter().all(|(_, solicit)| solicit.to.is_none()));
    rig.pass(Duration::from_millis(1));
    assert_eq!(
        (rig.look_up(1), rig.changes()),
        (Lookup::Failed, vec![Change::Unreachable])
    );
    // Not asked again at once, but then.
    rig.pass(SECOND);
    assert_eq!(rig.state(1), None, "forgotten");
    assert_eq!(rig.look_up(1), Lookup::Pending);
    assert_eq!(rig.sent.len(), 4);
    rig.heard(1, A, ANSWER);
    assert_eq!(
        (rig.look_up(1), rig.changes()),
        (Lookup::Found(A), vec![Change::Reachable(A)])
    );
}

#[test]
fn a_neighbour_grows_old_and_is_asked_when_it_is_used_again() {
    let mut rig = Rig::new(8);
    rig.look_up(1);
    rig.heard(1, A, ANSWER);
    rig.pass(15 * SECOND);
    assert_eq!(
        rig.state(1),
        Some(NeighbourState::Reachable),
        "at least half of 30 s"
    );
    rig.pass(30 * SECOND);
    assert_eq!(
        rig.state(1),
        Some(NeighbourState::Stale),
        "at most one and a half"
    );
    assert_eq!(
        (rig.look_up(1), rig.state(1)),
        (Lookup::Found(A), Some(NeighbourState::Delay))
    );
    assert_eq!(rig.sent.len(), 1, "time to confirm itself by other means");
    rig.pass(5 * SECOND);
    assert_eq!(rig.state(1), Some(NeighbourState::Probe));
    assert_eq!(
        rig.sent.last().map(|(_, solicit)| solicit.to),
        Some(Some(A)),
        "asked where it was"
    );
    assert_eq!(rig.look_up(1), Lookup::Found(A));
    rig.heard(1, A, ANSWER);
    assert_eq!(rig.state(1), Some(NeighbourState::Reachable));
    rig.pass(45 * SECOND);
    rig.look_up(1);
    rig.changes();
    rig.pass(8 * SECOND);
    assert_eq!(rig.state(1), Some(NeighbourState::Failed));
    assert_eq!(rig.changes(), [Change::Unreachable]);
    let to: Vec<_> = rig.sent[rig.sent.len() - 3..]
        .iter()
        .map(|(_, solicit)| solicit.to)
        .collect();
    assert_eq!(to, [Some(A); 3]);
}

#[test]
fn a_neighbour_that_nobody_uses_is_forgotten() {
    let mut rig = Rig::new(8);
    rig.heard(1, A, Heard::Asked);
    assert_eq!(rig.state(1), Some(NeighbourState::Stale));
    rig.pass(59 * SECOND);
    assert_eq!(rig.state(1), Some(NeighbourState::Stale));
    rig.pass(SECOND);
    assert_eq!((rig.state(1), rig.cache.next_deadline()), (None, None));
    assert!(rig.sent.is_empty());
}

#[test]
fn c07_a_watched_neighbour_whose_mac_changes_is_told_of_and_asked_to_prove_it() {
    let mut rig = Rig::new(8);
    assert!(rig.cache.watch(rig.now, key(1)));
    rig.heard(1, A, ANSWER);
    assert_eq!(rig.changes(), [Change::Reachable(A)]);
    rig.heard(1, B, ANNOUNCEMENT);
    assert_eq!(rig.changes(), [Change::Mac { old: A, new: B }]);
    assert_eq!(rig.state(1), Some(NeighbourState::Probe));
    assert_eq!(rig.sent.last().map(|(_, solicit)| solicit.to), Some(Some(B)));
    rig.heard(1, B, ANSWER);
    assert_eq!(
        (rig.state(1), rig.changes()),
        (Some(NeighbourState::Reachable), vec![])
    );
    // The same again says nothing.
    rig.heard(1, B, ANNOUNCEMENT);
    assert_eq!(
        (rig.state(1), rig.changes()),
        (Some(NeighbourState::Reachable), vec![])
    );
}

#[test]
fn a_watched_neighbour_is_asked_by_itself_and_found_again_after_it_was_lost() {
    let mut rig = Rig::new(8);
    assert!(rig.cache.watch(rig.now, key(1)));
    rig.heard(1, A, ANSWER);
    rig.changes();
    rig.pass(49 * SECOND);
    assert_eq!(
        rig.changes(),
        [Change::Unreachable],
        "within 45 s and three probes"
    );
    // It is asked for again and again, and told of once.
    let before = rig.sent.len();
    rig.pass(60 * SECOND);
    assert!(rig.sent.len() > before + 30 && rig.changes().is_empty());
    assert!(rig.look_up(1) != Lookup::Full);
    rig.heard(1, B, ANSWER);
    assert_eq!(rig.changes(), [Change::Reachable(B)]);
    rig.cache.unwatch(key(1));
    rig.pass(200 * SECOND);
    assert_eq!(rig.state(1), None, "nobody watches it any more");
}

#[test]
fn announcements_change_what_there_is_and_make_nothing() {
    let mut rig = Rig::new(8);
    rig.heard(1, A, ANNOUNCEMENT);
    rig.heard(2, A, ANSWER);
    assert_eq!((rig.state(1), rig.state(2)), (None, None));
    rig.look_up(1);
    rig.heard(1, A, ANNOUNCEMENT);
    assert_eq!(
        rig.state(1),
        Some(NeighbourState::Stale),
        "good enough to send to, not proved"
    );
    rig.heard(1, B, ANNOUNCEMENT);
    assert_eq!(rig.look_up(1), Lookup::Found(B));
}

#[test]
fn an_advertisement_without_the_override_flag_only_raises_doubt() {
    let mut rig = Rig::new(8);
    rig.look_up(1);
    rig.heard(1, A, Heard::Answered { overrides: false });
    assert_eq!(
        rig.state(1),
        Some(NeighbourState::Reachable),
        "the first answer counts"
    );
    rig.heard(1, B, Heard::Announced { overrides: false });
    assert_eq!(rig.state(1), Some(NeighbourState::Stale));
    assert_eq!(rig.look_up(1), Lookup::Found(A));
    rig.heard(1, A, Heard::Answered { overrides: false });
    assert_eq!(rig.state(1), Some(NeighbourState::Reachable));
}

#[test]
fn confirmation_by_a_connection_spares_the_question() {
    let mut rig = Rig::new(8);
    rig.cache.confirm(rig.now, key(1));
    assert_eq!(rig.state(1), None);
    rig.heard(1, A, Heard::Asked);
    rig.look_up(1);
    rig.cache.confirm(rig.now, key(1));
    rig.pass(10 * SECOND);
    assert_eq!(
        (rig.state(1), rig.sent.len()),
        (Some(NeighbourState::Reachable), 0)
    );
}

#[test]
fn the_wire_fills_the_cache_to_its_limit_and_pushes_out_nobody_in_use() {
    let mut rig = Rig::new(4);
    assert!(rig.cache.watch(rig.now, key(1)));
    rig.heard(1, A, ANSWER);
    rig.look_up(2);
    for round in 0..3 {
        for last in 10..250 {
            rig.now += Duration::from_millis(1);
            rig.heard(last, B, Heard::Asked);
        }
        assert_eq!(rig.cache.entries.len(), 4, "round {round}");
    }
    assert!(rig.state(1).is_some() && rig.state(2).is_some());
    assert_eq!(rig.look_up(249), Lookup::Found(B), "the last ones stay");
    // With all in use there is no room, and it is said.
    for last in [3, 4] {
        assert!(rig.cache.watch(rig.now, key(last)));
    }
    assert_eq!(rig.look_up(5), Lookup::Full);
    assert!(!rig.cache.watch(rig.now, key(5)));
}
