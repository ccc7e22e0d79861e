use ferroce_hw_regs::ids::Qpn;
use ferroce_hw_regs::uar;
use proptest::prelude::*;

use super::super::slots::WqConsumer;
use super::super::testing::{self, Rings};
use super::super::wr::Lkey;
use super::*;

/// RC, 16 requests, 4 elements, 220 bytes inline.
fn limits() -> SqLimits {
    SqLimits::new(QpType::Rc, 16, 4, 220, 1 << 30, true)
}

struct Queue {
    sq: SqProducer<String>,
    consumer: WqConsumer<String>,
    /// The ring's memory, as a device sees it.
    mem: DmaRing<64>,
    record: DmaRing<8>,
    rings: Arc<Rings>,
}

fn queue(blocks: u32, limits: SqLimits) -> Queue {
    let dma = testing::dma();
    let buffer = Arc::new(dma.alloc((blocks * WQEBB_BYTES) as usize).unwrap());
    let mem = DmaRing::new(buffer.clone(), 0, blocks).unwrap();
    let seen = DmaRing::new(buffer, 0, blocks).unwrap();
    let record = testing::record(&dma);
    let record_seen = DmaRing::new(record.buffer().clone(), 0, 1).unwrap();
    let rings = Arc::new(Rings::default());
    let shared = WqShared::new(blocks);
    let consumer = WqConsumer::new(shared.clone(), limits.max_wr);
    let mut sq = SqProducer::new(
        mem,
        record,
        rings.doorbell(uar::BF_OFFSET),
        shared,
        limits,
        0xab_cdef,
    );
    sq.set_state(QpState::Rts);
    Queue {
        sq,
        consumer,
        mem: seen,
        record: record_seen,
        rings,
    }
}

impl Queue {
    fn bytes(&self, offset: u32, len: u32) -> Vec<u8> {
        (offset..offset + len)
            .map(|at| self.mem.load(at / 64)[at as usize % 64])
            .collect()
    }

    fn poison(&mut self) {
        for i in 0..self.mem.entries() {
            self.mem.store::<0, 64>(i, &[0xa5; 64]);
        }
    }
}

fn lkey() -> Lkey {
    Lkey::new(0x1234_5601).unwrap()
}

fn sge(addr: u64, len: u32) -> Sge {
    Sge::new(addr, len, lkey())
}

const REMOTE: RemoteAddr = RemoteAddr {
    addr: 0x1111_2222_3333_4444,
    rkey: 0x5555_6666,
};

fn wr(op: SendOp<'_>) -> SendWr<'_> {
    SendWr {
        wr_id: 7,
        op,
        flags: SendFlags::SIGNALED,
    }
}

#[test]
fn write_with_immediate_has_the_bytes_that_the_prm_shows() {
    let mut q = queue(16, limits());
    q.poison();
    let op = SendOp::Write {
        data: Payload::Gather(&[sge(0xaabb_ccdd_0011_2233, 0x1000)]),
        remote: REMOTE,
        imm: Some(0x0102_0304),
    };
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED | SendFlags::FENCE;
    q.sq.post(&SendWr { wr_id: 1, op, flags }).unwrap();
    #[rustfmt::skip]
    assert_eq!(q.bytes(0, 64), [
        0, 0, 0, 0x09,  0xab, 0xcd, 0xef, 3,  0, 0, 0, 0x4a,  1, 2, 3, 4,
        0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44,  0x55, 0x55, 0x66, 0x66,  0, 0, 0, 0,
        0, 0, 0x10, 0,  0x12, 0x34, 0x56, 0x01,  0xaa, 0xbb, 0xcc, 0xdd, 0x00, 0x11, 0x22, 0x33,
        0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5,
    ]);
    assert!(q.rings.take().is_empty(), "posting does not ring");
    assert_eq!(q.record.load_be32::<QP_SND>(0), 0);
    q.sq.ring();
    assert_eq!(q.record.load_be32::<QP_SND>(0), 1);
    assert_eq!(
        q.rings.take(),
        [(0x800, vec![0, 0, 0, 0x09, 0xab, 0xcd, 0xef, 3])]
    );
    q.sq.ring();
    assert!(q.rings.take().is_empty(), "nothing new, nothing rung");
}

#[test]
fn t12_atomics_have_their_operands_big_endian_and_in_order() {
    let mut q = queue(16, limits());
    let op = SendOp::CompareSwap {
        into: sge(0x10, 8),
        remote: REMOTE,
        compare: 0x0102_0304_0506_0708,
        swap: 0x1112_1314_1516_1718,
    };
    q.sq.post(&wr(op)).unwrap();
    let wqe = q.bytes(0, 64);
    assert_eq!(wqe[..8], [0, 0, 0, 0x11, 0xab, 0xcd, 0xef, 4]);
    #[rustfmt::skip]
    assert_eq!(wqe[32..48], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(wqe[48..52], [0, 0, 0, 8]);
    q.sq.post(&wr(SendOp::FetchAdd {
        into: sge(0x10, 8),
        remote: REMOTE,
        add: 5,
    }))
    .unwrap();
    let wqe = q.bytes(64, 64);
    assert_eq!(wqe[..8], [0, 0, 1, 0x12, 0xab, 0xcd, 0xef, 4]);
    assert_eq!(wqe[32..48], [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0]);
    let short = SendOp::FetchAdd {
        into: sge(0x10, 4),
        remote: REMOTE,
        add: 5,
    };
    assert_eq!(q.sq.post(&wr(short)), Err(PostError::AtomicLength { asked: 4 }));
}

#[test]
fn a_device_without_atomics_is_not_asked_for_them() {
    let mut q = queue(16, SqLimits::new(QpType::Rc, 16, 4, 220, 1 << 30, false));
    let op = SendOp::FetchAdd {
        into: sge(0x10, 8),
        remote: REMOTE,
        add: 5,
    };
    assert_eq!(q.sq.post(&wr(op)), Err(PostError::NoAtomics));
}

#[test]
fn inline_data_and_zero_lengths() {
    let mut q = queue(16, limits());
    for len in [0usize, 1, 3, 4, 5, 11, 12, 13, 44, 45, 200, 220] {
        q.poison();
        let data: Vec<u8> = (0..len as u8).collect();
        let at = u32::from(q.sq.pi) * 64;
        q.sq.post(&wr(SendOp::Send {
            data: Payload::Inline(&data),
            imm: None,
        }))
        .unwrap();
        let wqe = q.bytes(at, 256);
        let segs = if len == 0 { 1 } else { 1 + (len + 4).div_ceil(16) };
        assert_eq!(usize::from(wqe[7]), segs, "{len} bytes");
        if len > 0 {
            assert_eq!(wqe[16..20], (0x8000_0000 | len as u32).to_be_bytes());
            assert_eq!(&wqe[20..20 + len], data);
        }
        assert_eq!(
            wqe[segs * 16..].iter().find(|&&b| b != 0xa5),
            None,
            "{len} bytes: nothing past the WQE"
        );
    }
    let long = [0; 221];
    let refused = q.sq.post(&wr(SendOp::Send {
        data: Payload::Inline(&long),
        imm: None,
    }));
    assert_eq!(refused, Err(PostError::InlineTooLong { asked: 221, max: 220 }));

    let mut q = queue(16, limits());
    let sges = [sge(1, 0), sge(2, 5), sge(3, 0)];
    q.sq.post(&wr(SendOp::Send {
        data: Payload::Gather(&sges),
        imm: None,
    }))
    .unwrap();
    assert_eq!(q.bytes(0, 32)[7], 2, "elements of length 0 are left out");
    assert_eq!(q.bytes(0, 32)[16..20], [0, 0, 0, 5]);
}

#[test]
fn q01_a_wqe_of_four_blocks_wraps_at_the_ring_end() {
    for start in [61u32, 62, 63] {
        let mut q = queue(64, SqLimits::new(QpType::Rc, 16, 14, 220, 1 << 30, true));
        // One-block requests up to the start, completed as they go.
        for i in 0..start {
            q.sq.post(&wr(SendOp::Send {
                data: Payload::Gather(&[]),
                imm: None,
            }))
            .unwrap();
            assert!(q.consumer.release_at(i).is_some());
        }
        q.sq.ring();
        q.rings.take();
        let sges: Vec<Sge> = (0..14).map(|i| sge(0x1000 + i, 100 + i as u32)).collect();
        q.sq.post(&wr(SendOp::Send {
            data: Payload::Gather(&sges),
            imm: None,
        }))
        .unwrap();
        q.sq.ring();
        assert_eq!(q.record.load_be32::<QP_SND>(0), start + 4);
        let head = q.bytes(start * 64, 16);
        assert_eq!(head[..8], [0, 0, start as u8, 0x0a, 0xab, 0xcd, 0xef, 15]);
        for (i, sge) in sges.iter().enumerate() {
            let at = (start * 64 + 16 + i as u32 * 16) % 4096;
            let seg = q.bytes(at, 16);
            assert_eq!(seg[..4], sge.len().to_be_bytes(), "element {i} at {at}");
            assert_eq!(seg[8..], sge.addr().to_be_bytes());
        }
        assert_eq!(q.consumer.release_at(start).unwrap().wr_id, 7);
        assert_eq!(q.sq.outstanding(), 0);
    }
}

#[test]
fn q02_q04_exactly_max_send_wr_fit_and_a_refused_one_changes_nothing() {
    let mut q = queue(16, limits());
    for lap in 0..50u32 {
        for _ in 0..15 {
            q.sq.post(&wr(SendOp::Send {
                data: Payload::Gather(&[sge(1, 1)]),
                imm: None,
            }))
            .unwrap();
        }
        q.sq.post(&wr(SendOp::Send {
            data: Payload::Gather(&[sge(2, 2)]),
            imm: None,
        }))
        .unwrap();
        let (pi, ring) = (q.sq.pi, q.bytes(0, 1024));
        for op in [
            SendOp::Send {
                data: Payload::Gather(&[sge(3, 3)]),
                imm: None,
            },
            SendOp::Write {
                data: Payload::Inline(&[1]),
                remote: REMOTE,
                imm: None,
            },
            SendOp::Read {
                into: &[],
                remote: REMOTE,
            },
            SendOp::FetchAdd {
                into: sge(1, 8),
                remote: REMOTE,
                add: 1,
            },
        ] {
            assert_eq!(
                q.sq.post(&wr(op)),
                Err(PostError::QueueFull {
                    queue: "send",
                    max_wr: 16
                })
            );
        }
        assert_eq!((q.sq.pi, q.bytes(0, 1024)), (pi, ring), "lap {lap}");
        assert_eq!(q.sq.outstanding(), 16);
        q.consumer.release_at(pi.wrapping_sub(1).into()).unwrap();
        assert_eq!(q.sq.outstanding(), 0);
    }
}

#[test]
fn q03_only_rts_and_the_states_after_it_take_sends() {
    let mut q = queue(16, limits());
    let op = SendOp::Send {
        data: Payload::Gather(&[]),
        imm: None,
    };
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        q.sq.set_state(state);
        assert_eq!(q.sq.post(&wr(op)), Err(PostError::State { queue: "send", state }));
    }
    for state in [QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err] {
        q.sq.set_state(state);
        assert_eq!(q.sq.post(&wr(op)), Ok(()));
    }
}

#[test]
fn t19_too_many_elements_and_too_long_messages_are_refused() {
    let mut q = queue(16, limits());
    let sges = [sge(1, 1); 255];
    let remote = REMOTE;
    for n in [0usize, 1, 4, 5, 255] {
        let ops = [
            SendOp::Send {
                data: Payload::Gather(&sges[..n]),
                imm: None,
            },
            SendOp::Write {
                data: Payload::Gather(&sges[..n]),
                remote,
                imm: None,
            },
            SendOp::Read {
                into: &sges[..n],
                remote,
            },
        ];
        for op in ops {
            let expected = if n > 4 {
                Err(PostError::TooManySges { asked: n, max: 4 })
            } else {
                Ok(())
            };
            assert_eq!(q.sq.post(&wr(op)), expected);
        }
    }
    let max = 1u64 << 30;
    let most = [sge(1, 1 << 29), sge(1, 1 << 29)];
    q.sq.post(&wr(SendOp::Send {
        data: Payload::Gather(&most),
        imm: None,
    }))
    .unwrap();
    let more = [sge(1, 1 << 29), sge(1, 1 << 29), sge(1, 1)];
    let refused = q.sq.post(&wr(SendOp::Send {
        data: Payload::Gather(&more),
        imm: None,
    }));
    assert_eq!(refused, Err(PostError::MessageTooLong { asked: max + 1, max }));
    let inline_marker = [sge(1, 0x8000_0000)];
    assert!(
        q.sq.post(&wr(SendOp::Read {
            into: &inline_marker,
            remote
        }))
        .is_err()
    );
}

/// The number of the protection domain of `address`.
const DOMAIN: usize = 77;

fn address(domain: usize) -> Ah {
    let vector = std::array::from_fn(|i| i as u8 | 0x40);
    Ah::from_parts(vector, (domain, PortNumber::FIRST), Arc::new(()))
}

fn send_to<'a>(data: Payload<'a>, to: &'a Ah, imm: Option<u32>) -> SendOp<'a> {
    SendOp::SendTo {
        data,
        imm,
        to,
        qpn: Qpn::from_low_bits(0xab_cdef),
        qkey: 0x1122_3344,
    }
}

#[test]
fn a_datagram_has_its_address_in_front_of_its_data() {
    let limits = SqLimits::new(QpType::Ud, 16, 2, 60, 1024, false).in_domain(DOMAIN);
    let mut q = queue(32, limits);
    let to = address(DOMAIN);
    q.poison();
    let sges = [sge(0x10, 5), sge(0x20, 6)];
    q.sq.post(&wr(send_to(Payload::Gather(&sges), &to, Some(0x0102_0304))))
        .unwrap();
    let wqe = q.bytes(0, 128);
    #[rustfmt::skip]
    assert_eq!(wqe[..64], [
        0, 0, 0, 0x0b,  0xab, 0xcd, 0xef, 6,  0, 0, 0, 0x08,  1, 2, 3, 4,
        0x11, 0x22, 0x33, 0x44,  0x44, 0x45, 0x46, 0x47,  0x80, 0xab, 0xcd, 0xef,  0x4c, 0x4d, 0x4e, 0x4f,
        0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x5b, 0x5c, 0x5d, 0x5e, 0x5f,
        0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x6f,
    ]);
    assert_eq!(wqe[64..68], 5u32.to_be_bytes());
    assert_eq!(wqe[80..84], 6u32.to_be_bytes());
    assert_eq!(wqe[96..], [0xa5; 32]);

    // The data of the next one goes on at the start of the ring.
    for _ in 0..14 {
        q.sq.post(&wr(send_to(Payload::Inline(&[1; 60]), &to, None)))
            .unwrap();
    }
    q.sq.post(&wr(send_to(Payload::Inline(&[7; 13]), &to, None)))
        .unwrap();
    let wqe = q.bytes(30 * 64, 128);
    assert_eq!(wqe[..8], [0, 0, 30, 0x0a, 0xab, 0xcd, 0xef, 6]);
    assert_eq!(
        wqe[64..84],
        [&0x8000_000du32.to_be_bytes()[..], &[7; 13], &[0; 3]].concat()
    );
    assert_eq!(q.consumer.release_at(30).unwrap().wr_id, 7);

    let long = [sge(1, 1000), sge(2, 25)];
    assert_eq!(
        q.sq.post(&wr(send_to(Payload::Gather(&long), &to, None))),
        Err(PostError::MessageTooLong {
            asked: 1025,
            max: 1024
        })
    );
    assert_eq!(
        q.sq.post(&wr(send_to(Payload::Gather(&[sge(1, 1); 3]), &to, None))),
        Err(PostError::TooManySges { asked: 3, max: 2 })
    );
    let other = address(DOMAIN + 1);
    assert_eq!(
        q.sq.post(&wr(send_to(Payload::Gather(&[]), &other, None))),
        Err(PostError::OtherPd)
    );
    q.sq.post(&wr(send_to(Payload::Inline(&[]), &to, None))).unwrap();
    assert_eq!(q.bytes(7, 1), [4], "nothing behind the address");
}

#[test]
fn each_service_posts_its_operations_and_no_others() {
    let to = address(DOMAIN);
    let (sges, none) = ([sge(1, 8)], [0u8; 0]);
    let ops = [
        (
            "send",
            SendOp::Send {
                data: Payload::Gather(&sges),
                imm: None,
            },
        ),
        (
            "send inline",
            SendOp::Send {
                data: Payload::Inline(&none),
                imm: Some(1),
            },
        ),
        (
            "write",
            SendOp::Write {
                data: Payload::Gather(&[]),
                remote: REMOTE,
                imm: None,
            },
        ),
        (
            "write inline",
            SendOp::Write {
                data: Payload::Inline(&[1]),
                remote: REMOTE,
                imm: Some(1),
            },
        ),
        (
            "read",
            SendOp::Read {
                into: &[],
                remote: REMOTE,
            },
        ),
        (
            "swap",
            SendOp::CompareSwap {
                into: sges[0],
                remote: REMOTE,
                compare: 1,
                swap: 2,
            },
        ),
        (
            "add",
            SendOp::FetchAdd {
                into: sges[0],
                remote: REMOTE,
                add: 1,
            },
        ),
        ("to", send_to(Payload::Gather(&[]), &to, None)),
        ("to inline", send_to(Payload::Inline(&[1]), &to, None)),
    ];
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi] {
        let limits = SqLimits::new(qp_type, 16, 1, 28, 256, true).in_domain(DOMAIN);
        let mut q = queue(32, limits);
        q.poison();
        for (name, op) in ops {
            let allowed = match qp_type {
                QpType::Rc => !name.starts_with("to"),
                QpType::Uc => name.starts_with("send") || name.starts_with("write"),
                QpType::Ud | QpType::Gsi => name.starts_with("to"),
            };
            let before = q.sq.outstanding();
            match q.sq.post(&wr(op)) {
                Ok(()) => assert!(allowed, "{qp_type} posts {name}"),
                Err(error @ PostError::Operation { .. }) => {
                    assert!(!allowed, "{qp_type}, {name}: {error}");
                    assert!(
                        error
                            .to_string()
                            .starts_with(&format!("a {qp_type} queue pair has no "))
                    );
                    assert_eq!(q.sq.outstanding(), before);
                }
                Err(error) => panic!("{qp_type}, {name}: {error}"),
            }
        }
    }
}

#[test]
fn a_buffer_rests_in_its_slot_and_comes_back() {
    let mut q = queue(16, limits());
    let unsignaled = SendWr {
        flags: SendFlags::empty(),
        ..wr(SendOp::Send {
            data: Payload::Gather(&[]),
            imm: None,
        })
    };
    q.sq.post_owned(&unsignaled, Box::new("mine".to_owned())).unwrap();
    assert_eq!(q.bytes(0, 16)[11], 0x08, "signaled, or it would never come back");
    let back = q.consumer.release_at(0).unwrap();
    assert_eq!(back.buffer.as_deref().map(String::as_str), Some("mine"));
    q.sq.set_state(QpState::Reset);
    let (_, buffer) =
        q.sq.post_owned(&unsignaled, Box::new("refused".to_owned()))
            .unwrap_err();
    assert_eq!(*buffer, "refused");
}

#[test]
fn shapes_hold_what_was_asked_for() {
    let of = |max_wr, max_sge, max_inline| SqShape::new(QpType::Rc, max_wr, max_sge, max_inline);
    let one = of(16, 1, 0).unwrap();
    assert_eq!((one.blocks, one.wqe_bytes, one.max_inline), (16, 64, 28));
    let two = of(17, 2, 29).unwrap();
    assert_eq!((two.blocks, two.wqe_bytes), (64, 80));
    assert_eq!(two.max_inline, 128 - 32 - 4);
    assert_eq!(of(1, 61, 0).unwrap().wqe_bytes, MAX_WQE_BYTES);
    assert!(of(u32::MAX, 1, 0).is_none());
    assert!(of(1, u32::MAX, 0).is_none());
    assert!(of(1, 1, u32::MAX).is_none());
    let ud = SqShape::new(QpType::Ud, 16, 1, 0).unwrap();
    assert_eq!((ud.blocks, ud.wqe_bytes, ud.max_inline), (32, 80, 60));
    let ud = SqShape::new(QpType::Ud, 1, 0, 61).unwrap();
    assert_eq!((ud.blocks, ud.wqe_bytes), (4, 144));
    let uc = SqShape::new(QpType::Uc, 16, 1, 0).unwrap();
    assert_eq!((uc.blocks, uc.wqe_bytes), (16, 48), "no atomics");
}

/// What a device would find at `pi`: the number of blocks of the WQE, which begins with its own index.
fn blocks_at(q: &Queue, pi: u32) -> u32 {
    let ctrl = q.bytes(pi * 64, 16);
    assert_eq!(u32::from(u16::from_be_bytes([ctrl[1], ctrl[2]])), pi & 0xffff);
    u32::from(ctrl[7]).div_ceil(4)
}

proptest! {
    /// Random requests and completions over several turns of the 16-bit block counter's neighbourhood.
    #[test]
    fn device_always_finds_whole_wqes(
        steps in prop::collection::vec((0usize..6, 0usize..45, 0u32..4), 1..300),
        start in prop_oneof![Just(0u32), Just(0xfff0u32)],
    ) {
        let mut q = queue(16, SqLimits::new(QpType::Rc, 8, 5, 44, 1 << 30, true));
        q.sq.pi = start as u16;
        q.sq.rung = start as u16;
        let mut device = start; // next block that the device fetches
        let mut in_flight = std::collections::VecDeque::new();
        let sges = [sge(9, 9); 6];
        let data = [0x5a; 45];
        for (id, (n, len, complete)) in steps.into_iter().enumerate() {
            let op = match n % 3 {
                0 => SendOp::Send { data: Payload::Gather(&sges[..n]), imm: None },
                1 => SendOp::Write { data: Payload::Inline(&data[..len]), remote: REMOTE, imm: Some(1) },
                _ => SendOp::Read { into: &sges[..n], remote: REMOTE },
            };
            let posted = q.sq.post(&SendWr { wr_id: id as u64, op, flags: SendFlags::SIGNALED });
            if in_flight.len() == 8 {
                prop_assert_eq!(posted, Err(PostError::QueueFull { queue: "send", max_wr: 8 }));
            } else {
                let fits = matches!(op, SendOp::Write { .. }) && len <= 44
                    || !matches!(op, SendOp::Write { .. }) && n <= 5;
                prop_assert_eq!(posted.is_ok(), fits);
            }
            q.sq.ring();
            while device != q.record.load_be32::<QP_SND>(0) && posted.is_ok() {
                let blocks = blocks_at(&q, device);
                prop_assert!((1..=2).contains(&blocks));
                in_flight.push_back((device, id as u64));
                device = (device + blocks) & 0xffff;
            }
            for _ in 0..complete {
                if let Some((at, id)) = in_flight.pop_front() {
                    prop_assert_eq!(q.consumer.release_at(at).map(|r| r.wr_id), Some(id));
                }
            }
            prop_assert_eq!(q.sq.outstanding() as usize, in_flight.len());
        }
    }
}
