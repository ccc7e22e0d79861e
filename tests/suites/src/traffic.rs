//! Random operations of every kind, both ways at once, with every byte and every completion checked.
//!
//! ```text
//! region of a side:  0        256K     384K      400K      512K      768K       896K      1M
//!                    │ written │ read   │ atomics │ echoes  │ sources │ receives │ fetched │
//!                    └─────────── by the peer ────────────┘└────────── by itself ─────────┘
//! ```
//! The transport executes requests once and in order, but may execute a READ again whose answer was lost: so what is
//! READ is either never written, or written once, right before (an echo).

use std::collections::VecDeque;
use std::ops::Range;

use ferroce::verbs::{
    Payload, PostError, QpConfig, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcSuccess,
};

use crate::pair::{Side, pattern};

const WRITTEN: Range<usize> = 0..256 << 10;
const READ: Range<usize> = 256 << 10..384 << 10;
const ATOMICS: Range<usize> = 384 << 10..400 << 10;
const ECHOES: Range<usize> = 400 << 10..512 << 10;
const SOURCES: Range<usize> = 512 << 10..768 << 10;
const RECEIVES: usize = 768 << 10;
const FETCHED: usize = 896 << 10;
/// Longest message.
const LONGEST: usize = 8 << 10;
/// Requests of a side that wait at a time, and receives.
const DEPTH: u64 = 16;
const ECHO_BYTES: usize = 512;
const INLINE: usize = 64;
/// Counters that atomics work on: few, so that they meet.
const COUNTERS: usize = 8;

/// What the queue pairs have to be able to do.
pub fn config() -> QpConfig {
    QpConfig {
        max_send_wr: DEPTH as u32,
        max_recv_wr: DEPTH as u32,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: INLINE as u32,
        ..QpConfig::default()
    }
}

/// SplitMix64: small, and the same for ever, so that a printed seed keeps its meaning.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, or 0 when that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        self.any().checked_rem(limit as u64).unwrap_or(0) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.any() as u8).collect()
    }
}

/// What a completion has to bring.
#[derive(Debug)]
enum Expected {
    /// Nothing but itself.
    Done(WcOpcode),
    /// These bytes at this place of the own region.
    Fetched(usize, Vec<u8>),
    /// This old value at this place.
    Old(WcOpcode, usize, u64),
}

#[derive(Debug)]
struct Message {
    bytes: Option<Vec<u8>>,
    len: usize,
    imm: Option<u32>,
}

/// One side's requests.
#[derive(Debug)]
struct Sender {
    name: &'static str,
    left: usize,
    next: u64,
    outstanding: VecDeque<(u64, Expected)>,
    sources: Vec<u8>,
    /// The peer's memory, as it has to be at the end.
    written: Vec<u8>,
    counters: [u64; COUNTERS],
    echoes: usize,
    /// What the peer has to receive.
    messages: VecDeque<Message>,
    /// An echo that waits to be read back: where it is, what it is.
    echo: Option<(usize, Vec<u8>)>,
}

/// One side's receives.
#[derive(Debug, Default)]
struct Receiver {
    posted: u64,
    done: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Requests carried out.
    pub requests: usize,
    /// Messages received.
    pub messages: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// Posts `count` random requests at each of two connected sides and checks all that comes of them.
///
/// `turn` is called after each look at both completion queues, and is told whether anything happened: it lets time
/// pass, watches a deadline, does mischief.
///
/// # Panics
/// If anything is not as it has to be.
pub fn run(sides: [&mut Side; 2], seed: u64, count: usize, mut turn: impl FnMut(bool)) -> Done {
    let mut random = Random::new(seed);
    let mut done = Done::default();
    let mut senders = [("a", 1u8), ("b", 2)].map(|(name, fill)| Sender::new(name, count, fill));
    let mut receivers = [Receiver::default(), Receiver::default()];
    for (side, fill) in sides.iter().zip([1, 2]) {
        side.fill(fill);
    }
    let remotes = [sides[1].mr.remote(0), sides[0].mr.remote(0)];
    while senders.iter().any(Sender::is_busy) {
        let mut moved = false;
        for own in 0..2 {
            let peer = 1 - own;
            // Late receives make the peer's messages come too early now and then.
            let wanted = senders[peer].messages.len() as u64;
            moved |= receivers[own].post(sides[own], wanted, &mut random);
            moved |= senders[own].post(sides[own], remotes[own], &mut random);
            for wc in completions(sides[own]) {
                moved = true;
                if matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
                    done.messages += 1;
                    let message = senders[peer].messages.pop_front();
                    receivers[own].check(sides[own], &wc, message);
                } else {
                    done.bytes += u64::from(wc.byte_len);
                    senders[own].completed(sides[own], &wc);
                }
            }
        }
        turn(moved);
    }
    for own in 0..2 {
        let sender = &senders[own];
        let there = sides[1 - own].bytes(0, WRITTEN.end);
        assert!(
            there == sender.written,
            "seed {seed:#x}: what {} wrote differs at {:?}",
            sender.name,
            there.iter().zip(&sender.written).position(|(a, b)| a != b)
        );
        for (i, value) in sender.counters.iter().enumerate() {
            let there = sides[1 - own].mr.read_u64(ATOMICS.start + 8 * i).expect("within");
            assert_eq!(there, *value, "seed {seed:#x}: counter {i} of {}", sender.name);
        }
        done.requests += sender.next as usize;
    }
    done
}

fn completions(side: &mut Side) -> Vec<WcSuccess> {
    let mut found = Vec::new();
    side.poller
        .poll(64, |wc| found.push(wc.result().expect("success")))
        .expect("the CQ works");
    found
}

impl Sender {
    fn new(name: &'static str, count: usize, fill: u8) -> Sender {
        // The peer's region has the other side's pattern.
        let peers = pattern(ECHOES.end, 3 - fill);
        let own = pattern(SOURCES.end, fill);
        let counter = |i: usize| {
            let at = ATOMICS.start + 8 * i;
            u64::from_ne_bytes(peers[at..at + 8].try_into().expect("8 bytes"))
        };
        Sender {
            name,
            left: count,
            next: 0,
            outstanding: VecDeque::new(),
            sources: own[SOURCES].to_vec(),
            written: peers[WRITTEN].to_vec(),
            counters: std::array::from_fn(counter),
            echoes: 0,
            messages: VecDeque::new(),
            echo: None,
        }
    }

    fn is_busy(&self) -> bool {
        self.left != 0 || !self.outstanding.is_empty() || !self.messages.is_empty()
    }

    /// Posts a few requests; true if it did.
    fn post(&mut self, side: &mut Side, remote: RemoteAddr, random: &mut Random) -> bool {
        let mut posted = false;
        for _ in 0..random.below(6) {
            if self.left == 0 || self.outstanding.len() as u64 >= DEPTH {
                break;
            }
            self.post_one(side, remote, random);
            posted = true;
        }
        side.qp.ring_send();
        posted
    }

    fn post_one(&mut self, side: &mut Side, remote: RemoteAddr, random: &mut Random) {
        // The last one and the one that fills the queue are signaled, or nothing would say that they are done.
        let last = self.left == 1 || self.outstanding.len() as u64 + 1 == DEPTH;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, last || !random.one_in(4));
        flags.set(SendFlags::FENCE, random.one_in(8));
        flags.set(SendFlags::SOLICITED, random.one_in(8));
        let sink = FETCHED + (self.next % DEPTH) as usize * LONGEST;
        let at = |offset: usize| RemoteAddr {
            addr: remote.addr + offset as u64,
            ..remote
        };
        let expected = match (self.echo.take(), random.below(6)) {
            (Some((place, bytes)), _) => {
                let into = split(side, sink..sink + bytes.len(), random);
                let op = SendOp::Read {
                    into: &into,
                    remote: at(place),
                };
                self.send(side, op, flags);
                Expected::Fetched(sink, bytes)
            }
            (None, 0) => self.write(side, at, flags, random),
            (None, 1) => self.message(side, flags, random),
            (None, 2) => {
                let len = length(random);
                let place = READ.start + random.below(READ.len() - len);
                let into = split(side, sink..sink + len, random);
                let op = SendOp::Read {
                    into: &into,
                    remote: at(place),
                };
                self.send(side, op, flags);
                // The pattern depends on the peer, so it is kept where the peer's memory is known.
                let seed = if self.name == "a" { 2 } else { 1 };
                Expected::Fetched(sink, pattern(place + len, seed)[place..].to_vec())
            }
            (None, 3) => self.atomic(side, at, sink, flags, random),
            (None, _) => self.echo(side, at, flags, random),
        };
        self.outstanding.push_back((self.next, expected));
        self.next += 1;
        self.left -= 1;
    }

    fn send(&self, side: &mut Side, op: SendOp<'_>, flags: SendFlags) {
        let wr = SendWr {
            wr_id: self.next,
            op,
            flags,
        };
        let posted: Result<(), PostError> = side.qp.post_send(&wr);
        posted.unwrap_or_else(|error| panic!("{} can't post {wr:?}: {error}", self.name));
    }

    /// Some of the source bytes, gathered or inline.
    fn data(&self, side: &Side, random: &mut Random) -> (Vec<u8>, Vec<Sge>) {
        let len = length(random);
        let from = random.below(SOURCES.len() - len);
        let bytes = self.sources[from..from + len].to_vec();
        let start = SOURCES.start + from;
        (bytes, split(side, start..start + len, random))
    }

    fn write(
        &mut self,
        side: &mut Side,
        at: impl Fn(usize) -> RemoteAddr,
        flags: SendFlags,
        random: &mut Random,
    ) -> Expected {
        let (bytes, sges) = self.data(side, random);
        let place = random.below(WRITTEN.len() - bytes.len());
        let imm = random.one_in(2).then(|| random.any() as u32);
        let op = SendOp::Write {
            data: payload(&bytes, &sges),
            remote: at(place),
            imm,
        };
        self.send(side, op, flags);
        self.written[place..place + bytes.len()].copy_from_slice(&bytes);
        if imm.is_some() {
            let len = bytes.len();
            self.messages.push_back(Message {
                bytes: None,
                len,
                imm,
            });
        }
        Expected::Done(WcOpcode::RdmaWrite)
    }

    fn message(&mut self, side: &mut Side, flags: SendFlags, random: &mut Random) -> Expected {
        let (bytes, sges) = self.data(side, random);
        let imm = random.one_in(2).then(|| random.any() as u32);
        let op = SendOp::Send {
            data: payload(&bytes, &sges),
            imm,
        };
        self.send(side, op, flags);
        let len = bytes.len();
        self.messages.push_back(Message {
            bytes: Some(bytes),
            len,
            imm,
        });
        Expected::Done(WcOpcode::Send)
    }

    fn atomic(
        &mut self,
        side: &mut Side,
        at: impl Fn(usize) -> RemoteAddr,
        sink: usize,
        flags: SendFlags,
        random: &mut Random,
    ) -> Expected {
        let which = random.below(COUNTERS);
        let old = self.counters[which];
        let remote = at(ATOMICS.start + 8 * which);
        let into = side.mr.sge(sink..sink + 8).expect("within");
        let (op, opcode, new) = if random.one_in(2) {
            let add = random.any();
            let op = SendOp::FetchAdd { into, remote, add };
            (op, WcOpcode::FetchAdd, old.wrapping_add(add))
        } else {
            let (compare, swap) = (if random.one_in(3) { !old } else { old }, random.any());
            let op = SendOp::CompareSwap {
                into,
                remote,
                compare,
                swap,
            };
            (op, WcOpcode::CompareSwap, if compare == old { swap } else { old })
        };
        self.send(side, op, flags);
        self.counters[which] = new;
        Expected::Old(opcode, sink, old)
    }

    /// A WRITE to a place of its own, which the next request reads back.
    fn echo(
        &mut self,
        side: &mut Side,
        at: impl Fn(usize) -> RemoteAddr,
        flags: SendFlags,
        random: &mut Random,
    ) -> Expected {
        let place = ECHOES.start + self.echoes * ECHO_BYTES;
        if place + ECHO_BYTES > ECHOES.end || self.left == 1 {
            return self.write(side, at, flags, random);
        }
        let bytes = random.bytes(INLINE);
        let op = SendOp::Write {
            data: Payload::Inline(&bytes),
            remote: at(place),
            imm: None,
        };
        self.send(side, op, flags);
        self.echoes += 1;
        self.echo = Some((place, bytes));
        Expected::Done(WcOpcode::RdmaWrite)
    }

    /// A completion stands for the unsignaled requests before it too.
    fn completed(&mut self, side: &Side, wc: &WcSuccess) {
        loop {
            let (id, expected) = self.outstanding.pop_front().expect("a request waits");
            let own = id == wc.wr_id;
            assert!(id <= wc.wr_id, "{}: {wc:?} before request {id}", self.name);
            let opcode = match expected {
                Expected::Done(opcode) => opcode,
                Expected::Fetched(at, bytes) => {
                    assert!(side.bytes(at, bytes.len()) == bytes, "{}: READ {id}", self.name);
                    assert!(!own || wc.byte_len as usize == bytes.len());
                    WcOpcode::RdmaRead
                }
                Expected::Old(opcode, at, old) => {
                    let got = side.mr.atomic_result(at).expect("within");
                    assert_eq!(got, old, "{}: atomic {id}", self.name);
                    opcode
                }
            };
            if own {
                assert_eq!(wc.opcode, opcode, "{}: request {id}", self.name);
                return;
            }
        }
    }
}

impl Receiver {
    /// Posts receives for the messages that are under way, or not yet.
    fn post(&mut self, side: &mut Side, wanted: u64, random: &mut Random) -> bool {
        let mut posted = false;
        while self.posted - self.done < DEPTH && self.posted - self.done < wanted && !random.one_in(3) {
            let at = RECEIVES + (self.posted % DEPTH) as usize * LONGEST;
            let sges = split(side, at..at + LONGEST, random);
            let wr = RecvWr {
                wr_id: self.posted,
                sges: &sges,
            };
            side.qp.post_recv(&wr).expect("there is room");
            self.posted += 1;
            posted = true;
        }
        side.qp.ring_recv();
        posted
    }

    fn check(&mut self, side: &Side, wc: &WcSuccess, message: Option<Message>) {
        let message = message.expect("a message was sent");
        assert_eq!(wc.wr_id, self.done, "receives complete in order");
        let at = RECEIVES + (self.done % DEPTH) as usize * LONGEST;
        self.done += 1;
        assert_eq!((wc.byte_len as usize, wc.imm), (message.len, message.imm));
        if let Some(bytes) = message.bytes {
            assert_eq!(wc.opcode, WcOpcode::Recv);
            assert!(side.bytes(at, bytes.len()) == bytes, "message {}", wc.wr_id);
        } else {
            assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm);
        }
    }
}

fn payload<'a>(bytes: &'a [u8], sges: &'a [Sge]) -> Payload<'a> {
    if bytes.len() <= INLINE {
        Payload::Inline(bytes)
    } else {
        Payload::Gather(sges)
    }
}

/// Mostly short, sometimes long, sometimes nothing.
fn length(random: &mut Random) -> usize {
    match random.below(8) {
        0 => 0,
        1..4 => random.below(INLINE + 1),
        4..7 => random.below(2500),
        _ => random.below(LONGEST + 1),
    }
}

/// A range as one or two elements.
fn split(side: &Side, range: Range<usize>, random: &mut Random) -> Vec<Sge> {
    let middle = range.start + random.below(range.len() + 1);
    let parts = [range.start..middle, middle..range.end];
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .map(|part| side.mr.sge(part).expect("within"))
        .collect()
}
