//! A hostile peer on the wire: random, malformed, truncated, oversized, replayed and forged frames, into NICs that two
//! drivers have traffic on. Only an attacker who hits address, queue pair and packet number at once can harm a
//! connection, and never more than that.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::function::InProcess;
use ferroce::verbs::{Payload, RecvWr, SendFlags, SendOp, SendWr};
use ferroce_nic_model::clock::{ManualClock, Nanos};
use ferroce_nic_model::link::cable::{CablePort, cable};
use ferroce_nic_model::link::{Port, PortCounters, Waker};
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::runner::{Drive, Runner};
use ferroce_nic_model::wire::{self, Frame, Icrc, L3, RoceFrame, Vlan};
use ferroce_suites::pair::{Side, address, connect};
use ferroce_suites::traffic::{self, Random};

const HANG: Duration = Duration::from_secs(120);
/// Genuine frames that are remembered.
const REMEMBERED: usize = 64;

/// What the attacker has seen on the wire, and what it sends.
#[derive(Default)]
struct Tap {
    seen: VecDeque<Vec<u8>>,
    injected: VecDeque<Frame>,
}

/// A port at a cable that an attacker has tapped.
struct TappedPort {
    inner: CablePort,
    tap: Arc<Mutex<Tap>>,
}

impl fmt::Debug for TappedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TappedPort")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl Port for TappedPort {
    fn send(&mut self, now: Nanos, frame: Frame) {
        self.inner.send(now, frame);
    }

    fn recv(&mut self, now: Nanos) -> Option<Frame> {
        let mut tap = lock(&self.tap);
        if let Some(frame) = tap.injected.pop_front() {
            return Some(frame);
        }
        let frame = self.inner.recv(now)?;
        if let Ok(bytes) = frame.to_bytes() {
            tap.seen.push_back(bytes);
            if tap.seen.len() > REMEMBERED {
                tap.seen.pop_front();
            }
        }
        Some(frame)
    }

    fn set_waker(&mut self, waker: Option<Waker>) {
        self.inner.set_waker(waker);
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

fn lock(tap: &Mutex<Tap>) -> MutexGuard<'_, Tap> {
    tap.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two NICs, an attacker at either.
struct Rig {
    runner: Runner,
    clock: ManualClock,
    taps: [Arc<Mutex<Tap>>; 2],
    contexts: [Arc<Context>; 2],
}

impl Rig {
    fn new(icrc: Icrc) -> Rig {
        Rig::with(icrc, |config| config)
    }

    fn with(icrc: Icrc, config: impl Fn(OpenConfig) -> OpenConfig) -> Rig {
        let clock = ManualClock::new();
        clock.advance(Duration::from_secs(1));
        let taps: [Arc<Mutex<Tap>>; 2] = Default::default();
        let (a, b) = cable(4096);
        let nics = [a, b]
            .into_iter()
            .zip(&taps)
            .zip(1..)
            .map(|((inner, tap), last)| {
                let profile = Profile::connectx4().with_mac([0x02, 0xfe, 0x0c, 0xe0, 0x00, last]);
                let tap = tap.clone();
                let mut nic = Nic::new(profile, Box::new(TappedPort { inner, tap }));
                nic.data_plane.set_icrc(icrc);
                nic
            });
        let runner = Runner::new(nics.collect(), Arc::new(clock.clone()), Drive::Caller).expect("a runner");
        let contexts = [0, 1].map(|index| {
            let function = InProcess::new(&format!("nic{index}"), runner.device(index).expect("a NIC"));
            let config = config(OpenConfig::new().address(address(index)).interrupts(false));
            Context::open(Arc::new(function.expect("a function")), config).expect("the NIC comes up")
        });
        Rig {
            runner,
            clock,
            taps,
            contexts,
        }
    }

    fn sides(&self) -> [Side; 2] {
        let [mut a, mut b] = self
            .contexts
            .clone()
            .map(|context| Side::on(context, &traffic::config()));
        connect((&mut a.qp, &a.context), (&mut b.qp, &b.context), |_, rts| {
            rts.timeout = 8
        });
        [a, b]
    }

    fn inject(&self, to: usize, frame: Vec<u8>) {
        lock(&self.taps[to]).injected.push_back(Frame::from_vec(frame));
    }

    /// A frame that went to that side lately.
    fn genuine(&self, to: usize, random: &mut Random) -> Option<Vec<u8>> {
        let tap = lock(&self.taps[to]);
        tap.seen.get(random.below(tap.seen.len())).cloned()
    }

    fn step(&self) {
        assert!(self.runner.step(), "the NICs never come to rest");
        self.contexts.iter().for_each(|context| context.process_events());
    }

    fn pass(&self) {
        if let Some(at) = self.runner.next_timeout() {
            self.clock.advance_to(at);
        }
        self.step();
    }

    fn assert_no_violation(&self) {
        for index in 0..2 {
            let counted = self.runner.with_nic(index, |nic| {
                (
                    nic.data_plane.violations.total(),
                    nic.firmware().violations().total(),
                )
            });
            assert_eq!(
                counted,
                Some((0, 0)),
                "NIC {index}: a peer's frames are not its host's fault"
            );
        }
    }
}

/// Frames that no honest peer sends, and that can't belong to the connection.
fn attack(rig: &Rig, to: usize, random: &mut Random) {
    let Some(mut frame) = rig.genuine(to, random) else {
        return;
    };
    let len = frame.len();
    match random.below(7) {
        0 => {
            let len = random.below(20_000);
            frame = random.bytes(len);
        }
        // Genuine as far as some header, then anything.
        1 => {
            let keep = random.below(len.min(80));
            let rest = random.below(2000);
            frame.truncate(keep);
            frame.extend(random.bytes(rest));
        }
        2 => (0..1 + random.below(8)).for_each(|_| frame[random.below(len)] ^= 1 << random.below(8)),
        3 => frame.truncate(random.below(len)),
        4 => {
            let more = 1 + random.below(9000);
            frame.extend(random.bytes(more));
        }
        // A replay.
        5 => (),
        _ => match forged(&frame, random) {
            Some(forged) => frame = forged,
            None => return,
        },
    }
    rig.inject(to, frame);
}

/// A frame with a right ICRC in which one thing is wrong that has to be noticed.
fn forged(frame: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let RoceFrame {
        mut encap,
        mut packet,
        ..
    } = wire::parse(&Frame::from_vec(frame.to_vec()), Icrc::On).ok()?;
    match random.below(6) {
        0 => packet.bth.dest_qp = random.any() as u32 & 0xff_ffff,
        1 => match &mut encap.l3 {
            L3::V2Ipv4(ip, _) => ip.src[3] ^= 0x80,
            L3::V1(ip) | L3::V2Ipv6(ip, _) => ip.src[15] ^= 0x80,
        },
        2 => {
            encap.vlan = Some(Vlan {
                vid: 1 + random.below(4094) as u16,
                pcp: 0,
                dei: false,
            })
        }
        3 => packet.bth.pkey = 0x8001,
        4 => packet.bth.tver = 1 + random.below(15) as u8,
        _ => {
            // Far from where the connection is, either way; then anything may be in it.
            let far = (1 << 20) + random.below(1 << 21) as u32;
            let psn = packet.bth.psn.get();
            let psn = if random.one_in(2) {
                psn.wrapping_add(far)
            } else {
                psn.wrapping_sub(far)
            };
            packet.bth.psn = ferroce_nic_model::psn::Psn::from_low_bits(psn);
            if let Some(reth) = &mut packet.reth {
                (reth.va, reth.dma_len) = (random.any(), random.any() as u32);
            }
            if let Some(aeth) = &mut packet.aeth {
                (aeth.syndrome, aeth.msn) = (random.any() as u8, random.any() as u32 & 0xff_ffff);
            }
        }
    }
    wire::emit(&encap, &packet, Icrc::On).ok()?.to_bytes().ok()
}

#[test]
fn traffic_survives_what_can_not_belong_to_it() {
    for seed in 1..=12 {
        println!("seed {seed}");
        let rig = Rig::new(Icrc::On);
        let [mut a, mut b] = rig.sides();
        let mut random = Random::new(!seed);
        let hang = Instant::now() + HANG;
        let done = traffic::run([&mut a, &mut b], seed, 120, |moved| {
            assert!(Instant::now() < hang, "seed {seed} hangs");
            for to in 0..2 {
                (0..random.below(12)).for_each(|_| attack(&rig, to, &mut random));
            }
            if moved { rig.step() } else { rig.pass() }
        });
        assert_eq!(done.requests, 240);
        for index in 0..2 {
            let counters = rig
                .runner
                .with_nic(index, |nic| nic.data_plane.counters)
                .expect("a NIC");
            let dropped = [
                counters.dropped_mac,
                counters.dropped_not_roce,
                counters.dropped_malformed,
                counters.dropped_icrc,
                counters.dropped_address,
                counters.dropped_qp,
            ];
            assert!(
                dropped.iter().all(|&n| n > 0),
                "seed {seed}: every check was needed: {counters:?}"
            );
        }
        rig.assert_no_violation();
    }
}

/// Requests of any kind, whatever becomes of them.
fn careless(side: &mut Side, peer: &Side, random: &mut Random) {
    let sge = [side.mr.sge(0..random.below(9000)).expect("within")];
    let remote = peer.mr.remote(random.below(1000) * 8);
    let op = match random.below(4) {
        0 => SendOp::Send {
            data: Payload::Gather(&sge),
            imm: Some(1),
        },
        1 => SendOp::Write {
            data: Payload::Gather(&sge),
            remote,
            imm: Some(2),
        },
        2 => SendOp::Read { into: &sge, remote },
        _ => SendOp::FetchAdd {
            into: side.mr.sge(0..8).expect("within"),
            remote,
            add: 1,
        },
    };
    // Refused where the queue is full or the connection has failed: which is what is wanted.
    let _ = side.qp.post_send(&SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::SIGNALED,
    });
    let _ = side.qp.post_recv(&RecvWr { wr_id: 2, sges: &sge });
    side.qp.ring_send();
    side.qp.ring_recv();
    side.poller
        .poll(64, |wc| drop(wc.result()))
        .expect("the CQ works");
}

#[test]
fn what_hits_a_connection_harms_that_connection_alone() {
    // Without ICRCs every flipped bit gets through to the transport, at the right packet number too.
    let rig = Rig::new(Icrc::Off);
    for seed in 1..=40 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let [mut c, mut d] = rig.sides();
        for _ in 0..60 {
            careless(&mut c, &d, &mut random);
            careless(&mut d, &c, &mut random);
            for to in 0..2 {
                let Some(mut frame) = rig.genuine(to, &mut random) else {
                    continue;
                };
                let len = frame.len();
                // Headers, mostly.
                for _ in 0..1 + random.below(4) {
                    let at = if random.one_in(4) {
                        random.below(len)
                    } else {
                        14 + random.below(60.min(len - 14))
                    };
                    frame[at] = random.any() as u8;
                }
                if random.one_in(4) {
                    frame.truncate(random.below(len));
                }
                rig.inject(to, frame);
            }
            rig.pass();
        }
        rig.assert_no_violation();
        drop((c, d));
        rig.step();
    }
    // The NICs have kept all that a new connection needs.
    for tap in &rig.taps {
        lock(tap).injected.clear();
    }
    let [mut a, mut b] = rig.sides();
    let hang = Instant::now() + HANG;
    traffic::run([&mut a, &mut b], 99, 100, |moved| {
        assert!(Instant::now() < hang);
        if moved { rig.step() } else { rig.pass() }
    });
    rig.assert_no_violation();
}

#[test]
fn g08_a_connection_on_a_vlan_takes_only_its_own_frames() {
    let tag = |frame: &[u8]| (frame[12..14] == [0x81, 0]).then(|| u16::from_be_bytes([frame[14], frame[15]]));
    let rig = Rig::with(Icrc::On, |config| config.vlan(100));
    let [mut a, mut b] = rig
        .contexts
        .clone()
        .map(|context| Side::on(context, &traffic::config()));
    connect((&mut a.qp, &a.context), (&mut b.qp, &b.context), |rtr, _| {
        rtr.path.priority = 3
    });
    let hang = Instant::now() + HANG;
    let mut random = Random::new(8);
    let mut injected = [0; 2];
    traffic::run([&mut a, &mut b], 8, 150, |moved| {
        assert!(Instant::now() < hang);
        for (to, injected) in injected.iter_mut().enumerate() {
            let Some(frame) = rig.genuine(to, &mut random) else {
                continue;
            };
            let RoceFrame {
                mut encap, packet, ..
            } = wire::parse(&Frame::from_vec(frame.clone()), Icrc::On).expect("a genuine frame");
            // VID 100 and priority 3 are on the wire.
            assert_eq!(tag(&frame), Some(3 << 13 | 100));
            assert_eq!(
                encap.vlan,
                Some(Vlan {
                    vid: 100,
                    pcp: 3,
                    dei: false
                })
            );
            // The same without a tag, with another VID, with the one that only carries a priority, with the last.
            let vids = [None, Some(200), Some(0), Some(4095)];
            encap.vlan = vids[random.below(4)].map(|vid| Vlan {
                vid,
                pcp: 3,
                dei: false,
            });
            let forged = wire::emit(&encap, &packet, Icrc::On).and_then(|f| Ok(f.to_bytes()?));
            rig.inject(to, forged.expect("a frame"));
            *injected += 1;
        }
        if moved { rig.step() } else { rig.pass() }
    });
    for (index, injected) in injected.into_iter().enumerate() {
        let dropped = rig
            .runner
            .with_nic(index, |nic| nic.data_plane.counters.dropped_address);
        // The last ones may still wait.
        assert!(
            dropped.is_some_and(|n| n + 2 >= injected && injected > 10),
            "{dropped:?} of {injected}"
        );
    }
    rig.assert_no_violation();
}
