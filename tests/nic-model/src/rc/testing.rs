//! What tests of the transport share: memory made of byte arrays, and two QPs joined by a bad link under
//! virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::RcQp;
use super::types::{
    AtomicOp, Event, MemoryFault, QpConfig, QpMemory, QpState, RecvWork, RemoteAccess, SendWork, Sge,
};
use crate::clock::Nanos;
use crate::payload::Payload;
use crate::psn::Psn;
use crate::wire::packet::Packet;

/// A piece of memory under one key, which serves as lkey and rkey.
#[derive(Clone, Debug)]
pub struct Region {
    /// Address of the first byte.
    pub va: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Local writes are permitted.
    pub local_write: bool,
    /// The peer may read.
    pub remote_read: bool,
    /// The peer may write.
    pub remote_write: bool,
    /// The peer may use atomics.
    pub remote_atomic: bool,
    /// The host's memory behind it is gone.
    pub unplugged: bool,
}

impl Region {
    /// `len` zeros at `va`, everything permitted.
    pub fn new(va: u64, len: usize) -> Region {
        Region {
            va,
            bytes: vec![0; len],
            local_write: true,
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            unplugged: false,
        }
    }
}

/// Memory of a test's QP, with a receive queue.
#[derive(Clone, Debug, Default)]
pub struct FakeMemory {
    /// Regions by key.
    pub regions: HashMap<u32, Region>,
    /// Receives posted and not taken.
    pub receives: VecDeque<RecvWork>,
    /// Receives can't be read.
    pub receive_fault: bool,
    /// Credits are given.
    pub give_credits: bool,
    /// Atomics carried out.
    pub atomics_done: u64,
    /// Keys that were invalidated.
    pub invalidated: Vec<u32>,
}

impl FakeMemory {
    fn range(&self, key: u32, va: u64, len: u64) -> Result<std::ops::Range<usize>, MemoryFault> {
        let protection = MemoryFault::Protection { key, va, len };
        let region = self.regions.get(&key).ok_or(protection)?;
        let start = va.checked_sub(region.va).ok_or(protection)?;
        let end = start.checked_add(len).ok_or(protection)?;
        if end > region.bytes.len() as u64 {
            return Err(protection);
        }
        if region.unplugged {
            return Err(MemoryFault::Host { va, len });
        }
        Ok(start as usize..end as usize)
    }

    /// The bytes at `va`.
    ///
    /// # Panics
    /// When they are not there: this is for tests.
    pub fn bytes(&self, key: u32, va: u64, len: u64) -> &[u8] {
        let range = self.range(key, va, len).expect("memory that the test made");
        &self.regions[&key].bytes[range]
    }

    /// Copies `bytes` to `va`.
    ///
    /// # Panics
    /// When the memory is not there: this is for tests.
    pub fn fill(&mut self, key: u32, va: u64, bytes: &[u8]) {
        let range = self
            .range(key, va, bytes.len() as u64)
            .expect("memory that the test made");
        if let Some(region) = self.regions.get_mut(&key) {
            region.bytes[range].copy_from_slice(bytes);
        }
    }

    /// Posts a receive of one element.
    pub fn post_recv(&mut self, id: u64, sge: Sge) {
        self.receives.push_back(RecvWork { id, sges: vec![sge] });
    }

    fn permitted(&self, rkey: u32, va: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryFault> {
        let protection = MemoryFault::Protection { key: rkey, va, len };
        let region = self.regions.get(&rkey).ok_or(protection)?;
        let permitted = match access {
            RemoteAccess::Read => region.remote_read,
            RemoteAccess::Write => region.remote_write,
            RemoteAccess::Atomic => region.remote_atomic,
        };
        if permitted { Ok(()) } else { Err(protection) }
    }

    /// The pieces of `sges` that `len` bytes from `offset` on fall into.
    fn pieces(sges: &[Sge], offset: u64, len: u64) -> Result<Vec<Sge>, MemoryFault> {
        let (mut skip, mut left) = (offset, len);
        let mut out = Vec::new();
        for sge in sges {
            let size = u64::from(sge.len);
            let from = skip.min(size);
            let take = (size - from).min(left);
            skip -= from;
            left -= take;
            if take > 0 {
                out.push(Sge {
                    addr: sge.addr.wrapping_add(from),
                    len: take as u32,
                    lkey: sge.lkey,
                });
            }
        }
        let key = sges.first().map_or(0, |s| s.lkey);
        if left > 0 {
            return Err(MemoryFault::Protection { key, va: offset, len });
        }
        Ok(out)
    }
}

impl QpMemory for FakeMemory {
    fn gather(&self, sges: &[Sge], offset: u64, len: u32) -> Result<Payload, MemoryFault> {
        let mut out = Vec::with_capacity(len as usize);
        for piece in FakeMemory::pieces(sges, offset, u64::from(len))? {
            let range = self.range(piece.lkey, piece.addr, u64::from(piece.len))?;
            out.extend_from_slice(&self.regions[&piece.lkey].bytes[range]);
        }
        Ok(Payload::from_vec(out))
    }

    fn scatter(&mut self, sges: &[Sge], offset: u64, data: &Payload) -> Result<(), MemoryFault> {
        let bytes = copy_of(data)?;
        let mut rest = bytes.as_slice();
        for piece in FakeMemory::pieces(sges, offset, bytes.len() as u64)? {
            let len = u64::from(piece.len);
            let range = self.range(piece.lkey, piece.addr, len)?;
            let (now, later) = rest.split_at(piece.len as usize);
            rest = later;
            match self.regions.get_mut(&piece.lkey) {
                Some(region) if region.local_write => region.bytes[range].copy_from_slice(now),
                _ => {
                    return Err(MemoryFault::Protection {
                        key: piece.lkey,
                        va: piece.addr,
                        len,
                    });
                }
            }
        }
        Ok(())
    }

    fn check_remote(&self, rkey: u32, va: u64, len: u64, access: RemoteAccess) -> Result<(), MemoryFault> {
        self.permitted(rkey, va, len, access)?;
        match self.range(rkey, va, len) {
            // A check sees keys only.
            Err(MemoryFault::Host { .. }) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    fn remote_write(&mut self, rkey: u32, va: u64, data: &Payload) -> Result<(), MemoryFault> {
        self.permitted(rkey, va, data.len() as u64, RemoteAccess::Write)?;
        let range = self.range(rkey, va, data.len() as u64)?;
        let bytes = copy_of(data)?;
        if let Some(region) = self.regions.get_mut(&rkey) {
            region.bytes[range].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn remote_read(&self, rkey: u32, va: u64, len: u32) -> Result<Payload, MemoryFault> {
        self.permitted(rkey, va, u64::from(len), RemoteAccess::Read)?;
        let range = self.range(rkey, va, u64::from(len))?;
        Ok(Payload::from_vec(self.regions[&rkey].bytes[range].to_vec()))
    }

    fn remote_atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        self.permitted(rkey, va, 8, RemoteAccess::Atomic)?;
        let range = self.range(rkey, va, 8)?;
        self.atomics_done += 1;
        let mut number = [0; 8];
        number.copy_from_slice(&self.regions[&rkey].bytes[range]);
        let old = u64::from_le_bytes(number);
        let new = match op {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        };
        self.fill(rkey, va, &new.to_le_bytes());
        Ok(old)
    }

    fn take_recv(&mut self) -> Result<Option<RecvWork>, MemoryFault> {
        if self.receive_fault {
            return Err(MemoryFault::Host { va: 0, len: 64 });
        }
        Ok(self.receives.pop_front())
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), MemoryFault> {
        let fault = MemoryFault::Protection {
            key: rkey,
            va: 0,
            len: 0,
        };
        self.regions.remove(&rkey).ok_or(fault)?;
        self.invalidated.push(rkey);
        Ok(())
    }

    fn recv_credits(&self) -> Option<u32> {
        self.give_credits.then_some(self.receives.len() as u32)
    }
}

fn copy_of(data: &Payload) -> Result<Vec<u8>, MemoryFault> {
    let len = data.len() as u64;
    data.to_vec().map_err(|_| MemoryFault::Host { va: 0, len })
}

/// What the link does to packets, in 1/10000.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Seed of the dice.
    pub seed: u64,
    /// Packets lost.
    pub loss: u32,
    /// Packets that arrive twice.
    pub duplicate: u32,
    /// Packets that are delayed by up to `max_delay`, so that others overtake them.
    pub reorder: u32,
    /// See `reorder`.
    pub max_delay: Duration,
}

/// Dice (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall the same way for the same seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n` (0 when `n` is 0).
    pub fn below(&mut self, n: u64) -> u64 {
        self.roll().checked_rem(n).unwrap_or(0)
    }

    fn happens(&mut self, per_10000: u32) -> bool {
        self.below(10_000) < u64::from(per_10000)
    }
}

/// One end: a QP, its memory, and what it reported.
#[derive(Debug)]
pub struct End {
    /// The transport.
    pub qp: RcQp,
    /// Its memory.
    pub mem: FakeMemory,
    /// Events with their time.
    pub events: Vec<(Nanos, Event)>,
    /// Sends that the QP had no room for yet.
    pub backlog: VecDeque<SendWork>,
    link_free_at: Nanos,
}

/// A packet and when it arrives where.
struct InFlight {
    at: Nanos,
    order: u64,
    to: usize,
    packet: Packet,
}

impl PartialEq for InFlight {
    fn eq(&self, other: &InFlight) -> bool {
        self.order == other.order
    }
}

impl Eq for InFlight {}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &InFlight) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InFlight {
    fn cmp(&self, other: &InFlight) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Decides over a packet that end `.1` sends at `.0`: `true` loses it.
pub type Filter = Box<dyn FnMut(Nanos, usize, &Packet) -> bool>;

/// Time that a packet takes to leave, and to arrive.
const SERIALIZATION: Duration = Duration::from_nanos(100);
const LATENCY: Duration = Duration::from_micros(1);

/// Two QPs and a link between them.
pub struct Pair {
    /// Both ends.
    pub ends: [End; 2],
    /// Virtual time.
    pub now: Nanos,
    /// Loses chosen packets.
    pub filter: Option<Filter>,
    /// Packets that were offered to the link.
    pub offered: u64,
    faults: Faults,
    dice: Dice,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    order: u64,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("ends", &self.ends)
            .field("now", &self.now)
            .field("faults", &self.faults)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}

impl Pair {
    /// Two QPs in RTS with these attributes each; PSNs and QPNs are made to meet.
    pub fn new(configs: [QpConfig; 2], faults: Faults) -> Pair {
        let [mut a, mut b] = configs;
        (a.dest_qpn, b.dest_qpn) = (0x22, 0x11);
        (a.recv_psn, b.recv_psn) = (b.send_psn, a.send_psn);
        let end = |config: QpConfig| {
            let mut qp = RcQp::new(config.clone());
            qp.to_rts(config);
            End {
                qp,
                mem: FakeMemory::default(),
                events: Vec::new(),
                backlog: VecDeque::new(),
                link_free_at: Nanos::ZERO,
            }
        };
        Pair {
            ends: [end(a), end(b)],
            now: Nanos::ZERO,
            filter: None,
            offered: 0,
            faults,
            dice: Dice::new(faults.seed),
            in_flight: BinaryHeap::new(),
            order: 0,
        }
    }

    /// Hands a send to end `end`, which posts it when there is room.
    pub fn post(&mut self, end: usize, work: SendWork) {
        self.ends[end].backlog.push_back(work);
    }

    /// Runs until `done`, nothing is left to happen, or the time is `until`.
    pub fn run(&mut self, until: Nanos, mut done: impl FnMut(&Pair) -> bool) {
        while !done(self) && self.step(until) {}
    }

    /// Runs for `d`; the time is that much later afterwards.
    pub fn run_for(&mut self, d: Duration) {
        let until = self.now + d;
        while self.step(until) {}
        self.now = until;
    }

    /// Runs until nothing is left to happen, for at most a virtual hour from now.
    pub fn run_until_quiet(&mut self) {
        let until = self.now + Duration::from_secs(3600);
        while self.step(until) {}
    }

    fn step(&mut self, until: Nanos) -> bool {
        self.pump();
        match self.next_time() {
            Some(at) if at <= until => {
                self.advance(at);
                true
            }
            _ => false,
        }
    }

    /// Lets both ends post, send what the link takes, and report.
    fn pump(&mut self) {
        for i in 0..2 {
            let end = &mut self.ends[i];
            while end.qp.send_room() > 0
                && let Some(work) = end.backlog.pop_front()
            {
                end.qp.post_send(work);
            }
            let packet = if end.link_free_at <= self.now {
                end.qp.poll_transmit(self.now, &mut end.mem)
            } else {
                None
            };
            while let Some(event) = end.qp.poll_event() {
                end.events.push((self.now, event));
            }
            if let Some(packet) = packet {
                end.link_free_at = self.now + SERIALIZATION;
                self.carry(i, packet);
            }
        }
    }

    fn carry(&mut self, from: usize, packet: Packet) {
        self.offered += 1;
        let lost = self
            .filter
            .as_mut()
            .is_some_and(|filter| filter(self.now, from, &packet));
        if lost || self.dice.happens(self.faults.loss) {
            return;
        }
        let copies = 1 + u64::from(self.dice.happens(self.faults.duplicate));
        for _ in 0..copies {
            let mut at = self.now + LATENCY;
            if self.dice.happens(self.faults.reorder) {
                let max = u64::try_from(self.faults.max_delay.as_nanos()).unwrap_or(u64::MAX);
                at = at + Duration::from_nanos(self.dice.below(max));
            }
            self.order += 1;
            self.in_flight.push(Reverse(InFlight {
                at,
                order: self.order,
                to: 1 - from,
                packet: packet.clone(),
            }));
        }
    }

    fn next_time(&self) -> Option<Nanos> {
        let arrival = self.in_flight.peek().map(|Reverse(p)| p.at);
        let ends = self.ends.iter().flat_map(|end| {
            let link = (end.link_free_at > self.now).then_some(end.link_free_at);
            [link, end.qp.poll_timeout()]
        });
        ends.chain([arrival]).flatten().min()
    }

    fn advance(&mut self, at: Nanos) {
        self.now = self.now.max(at);
        while let Some(Reverse(first)) = self.in_flight.peek()
            && first.at <= self.now
        {
            let Some(Reverse(InFlight { to, packet, .. })) = self.in_flight.pop() else {
                break;
            };
            let end = &mut self.ends[to];
            end.qp.handle_packet(self.now, &packet, &mut end.mem);
        }
        for end in &mut self.ends {
            if end.qp.poll_timeout().is_some_and(|t| t <= self.now) {
                end.qp.handle_timeout(self.now);
            }
        }
    }

    /// Whether both QPs are still in RTS.
    pub fn healthy(&self) -> bool {
        self.ends.iter().all(|e| e.qp.state() == QpState::Rts)
    }
}

/// Attributes under which everything is permitted, at `mtu`, from `psn` on.
pub fn open_config(mtu: u32, psn: u32) -> QpConfig {
    QpConfig {
        path_mtu: mtu,
        send_psn: Psn::from_low_bits(psn),
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
        ..QpConfig::default()
    }
}
