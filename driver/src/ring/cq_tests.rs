use std::sync::Arc;

use proptest::prelude::*;

use super::super::slots::{META_INTERNAL, WqConsumer, WqShared};
use super::super::testing::{self, Rings};
use super::super::view::{Unread, View};
use super::*;

struct Queue {
    cq: CqRing<String>,
    /// The ring's memory, as the device sees it.
    mem: DmaRing<64>,
    rings: Arc<Rings>,
    /// Entries that the device has written.
    written: u32,
}

fn queue(entries: u32) -> Queue {
    let dma = testing::dma();
    let buffer = Arc::new(dma.alloc((entries * CQE_BYTES) as usize).unwrap());
    let mut mem = DmaRing::new(buffer.clone(), 0, entries).unwrap();
    CqRing::<String>::prepare(&mut mem);
    let seen = DmaRing::new(buffer, 0, entries).unwrap();
    let rings = Arc::new(Rings::default());
    let cq = CqRing::new(
        mem,
        testing::record(&dma),
        rings.doorbell(uar::CQ_DOORBELL),
        0x65_4321,
    );
    Queue {
        cq,
        mem: seen,
        rings,
        written: 0,
    }
}

/// What a device writes.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    opcode: u8,
    user_index: u32,
    imm: u32,
    byte_len: u32,
    send_opcode: u8,
    wqe_counter: u16,
    syndrome: u8,
    vendor: u8,
}

impl Queue {
    fn write(&mut self, cqe: Written) {
        let at = self.written;
        let lap = u8::from(self.written & self.mem.entries() != 0);
        self.mem
            .store_be64::<0x20>(at, u64::from(cqe.user_index) << 32 | u64::from(cqe.imm));
        self.mem.store_be32::<0x2c>(at, cqe.byte_len);
        self.mem
            .store_be64::<0x30>(at, u64::from(cqe.vendor) << 8 | u64::from(cqe.syndrome));
        let last = u64::from(cqe.send_opcode) << 56
            | u64::from(cqe.wqe_counter) << 16
            | u64::from(cqe.opcode << 4 | lap);
        self.mem.store_be64::<0x38>(at, last);
        self.written = self.written.wrapping_add(1);
    }

    fn attach(&mut self, key: u32) -> (Arc<WqShared<String>>, Arc<WqShared<String>>) {
        let (sq, rq) = (WqShared::new(16), WqShared::new(16));
        self.cq.queues.insert(Entry {
            key,
            qpn: key + 1000,
            datagram: false,
            filter: Filter::None,
            sq: Some(WqConsumer::new(sq.clone(), 16)),
            rq: Some(WqConsumer::new(rq.clone(), 16)),
            srq: None,
        });
        (sq, rq)
    }

    /// As if so many entries had been written and read already.
    fn goes_on_at(&mut self, at: u32) {
        self.written = at;
        self.cq.ci = at;
        self.cq.publish();
    }

    fn wc(&mut self) -> RawWc<String> {
        match self.cq.next() {
            Next::Wc(wc) => wc,
            other => panic!("{other:?}"),
        }
    }
}

fn post(shared: &WqShared<String>, position: u32, number: u32, wr_id: u64) {
    shared.slots().at(position).fill(wr_id, number, 0);
}

#[test]
fn a_fresh_ring_is_empty_and_laps_change_the_owner() {
    let mut q = queue(4);
    let (sq, _) = q.attach(5);
    assert!(matches!(q.cq.next(), Next::Empty));
    for i in 0..50u32 {
        post(&sq, i, i, u64::from(i));
        q.write(Written {
            user_index: 5,
            wqe_counter: i as u16,
            send_opcode: 0x0a,
            ..Default::default()
        });
        let wc = q.wc();
        assert_eq!(
            (wc.wr_id, wc.qpn, wc.kind),
            (u64::from(i), 1005, Kind::Send(0x0a))
        );
        assert!(matches!(q.cq.next(), Next::Empty));
    }
    q.cq.publish();
    assert_eq!(q.cq.record.load_be32::<CQ_CI>(0), 50);
}

#[test]
fn t15_immediate_and_length_are_in_host_order() {
    let mut q = queue(4);
    let (_, rq) = q.attach(0xff_fffe);
    post(&rq, 0, 0, 11);
    q.write(Written {
        opcode: opcode::RESP_SEND_IMM,
        user_index: 0xff_fffe,
        imm: 0x0102_0304,
        byte_len: 77,
        ..Default::default()
    });
    // On the wire and in the CQE the most significant byte comes first.
    assert_eq!(q.mem.load(0)[0x24..0x28], [1, 2, 3, 4]);
    let wc = q.wc();
    assert_eq!(
        (wc.wr_id, wc.kind, wc.imm, wc.byte_len),
        (11, Kind::RecvImm, 0x0102_0304, 77)
    );
}

#[test]
fn errors_carry_both_syndromes_and_no_length() {
    let mut q = queue(4);
    let (sq, rq) = q.attach(1);
    post(&sq, 3, 0, 8);
    post(&rq, 0, 0, 9);
    let error = Written {
        user_index: 1,
        imm: 1,
        byte_len: 2,
        syndrome: 0x13,
        vendor: 0x88,
        ..Default::default()
    };
    q.write(Written {
        opcode: opcode::REQ_ERR,
        send_opcode: 0x10,
        wqe_counter: 3,
        ..error
    });
    q.write(Written {
        opcode: opcode::RESP_ERR,
        syndrome: 0,
        ..error
    });
    let wc = q.wc();
    assert_eq!(
        (wc.wr_id, wc.kind, wc.syndrome, wc.vendor_syndrome),
        (8, Kind::Send(0x10), 0x13, 0x88)
    );
    assert_eq!((wc.byte_len, wc.imm, wc.wqe_index), (0, 0, 3));
    let wc = q.wc();
    assert_eq!((wc.wr_id, wc.kind), (9, Kind::RecvFailed));
    assert_ne!(wc.syndrome, 0, "an error never reads as success");
}

#[test]
fn nonsense_is_counted_and_dropped() {
    let mut q = queue(8);
    let (sq, _) = q.attach(1);
    post(&sq, 0, 0, 8);
    q.write(Written {
        user_index: 1,
        opcode: 0x7,
        ..Default::default()
    });
    q.write(Written {
        user_index: 1,
        opcode: 0xc,
        ..Default::default()
    });
    q.write(Written {
        user_index: 1,
        wqe_counter: 9,
        ..Default::default()
    });
    q.write(Written {
        user_index: 1,
        opcode: opcode::RESP_SEND,
        ..Default::default()
    });
    for _ in 0..4 {
        assert!(matches!(q.cq.next(), Next::Dropped));
    }
    assert_eq!(q.cq.bad, 4);
    q.write(Written {
        user_index: 2,
        ..Default::default()
    });
    assert!(matches!(q.cq.next(), Next::Unknown));
    assert!(matches!(q.cq.next(), Next::Unknown), "still there");
    q.cq.skip();
    q.write(Written {
        user_index: 1,
        ..Default::default()
    });
    assert_eq!(q.wc().wr_id, 8);
}

#[test]
fn q18_completions_of_the_dead_are_not_shown() {
    let mut q = queue(8);
    let (sq, _) = q.attach(1);
    for i in 0..4 {
        post(&sq, i, i, i.into());
        q.write(Written {
            user_index: 1,
            wqe_counter: i as u16,
            ..Default::default()
        });
    }
    assert_eq!(q.wc().wr_id, 0);
    // Reset: what was written before position 3 is of the time before.
    q.cq.queues.get_mut(1).unwrap().filter = Filter::Before(3);
    assert!(matches!(q.cq.next(), Next::Dropped));
    assert!(matches!(q.cq.next(), Next::Dropped));
    assert_eq!(q.wc().wr_id, 3);
    q.cq.queues.get_mut(1).unwrap().filter = Filter::All;
    q.write(Written {
        user_index: 1,
        wqe_counter: 4,
        ..Default::default()
    });
    assert!(matches!(q.cq.next(), Next::Dropped));
    assert_eq!(q.cq.bad, 0);
}

#[test]
fn the_boundary_of_a_reset_survives_the_wrap_of_the_index() {
    for (end, at, dropped) in [
        (5, 4, true),
        (5, 5, false),
        (2, u32::MAX, true),
        (2, 2, false),
        (u32::MAX, 0, false),
    ] {
        assert_eq!(
            is_filtered(Filter::Before(end), at),
            dropped,
            "{at:#x} before {end:#x}"
        );
    }
}

#[test]
fn the_end_of_what_is_written_is_found_from_outside() {
    let mut q = queue(4);
    let (sq, _) = q.attach(1);
    let mem = DmaRing::new(q.mem.buffer().clone(), 0, 4).unwrap();
    let view = View::new(mem, DmaRing::new(q.cq.record.buffer().clone(), 0, 1).unwrap());
    for i in 0..23u32 {
        assert_eq!(view.written().end, i);
        post(&sq, i, i, 0);
        q.write(Written {
            user_index: 1,
            wqe_counter: i as u16,
            ..Default::default()
        });
        assert_eq!(view.written().end, i + 1);
        q.wc();
        q.cq.publish();
    }
    // Full, with nothing read.
    for _ in 0..4 {
        q.write(Written {
            user_index: 1,
            ..Default::default()
        });
    }
    assert_eq!(view.written(), Unread { end: 27, most: 4 });
}

#[test]
fn internal_requests_are_not_shown() {
    let mut q = queue(8);
    let (sq, _) = q.attach(1);
    sq.slots().at(0).fill(0, 0, META_INTERNAL);
    q.write(Written {
        user_index: 1,
        ..Default::default()
    });
    assert!(matches!(q.cq.next(), Next::Dropped));
    assert_eq!((sq.released(), q.cq.bad), (1, 0));
}

#[test]
fn q10_arming_uses_the_poll_index_and_steps_the_sequence_per_event() {
    let mut q = queue(4);
    let (sq, _) = q.attach(1);
    q.cq.arm(false);
    assert_eq!(q.cq.record.load_be32::<CQ_ARM>(0), 0);
    assert_eq!(q.rings.take(), [(0x20, vec![0, 0, 0, 0, 0, 0x65, 0x43, 0x21])]);
    post(&sq, 0, 0, 0);
    q.write(Written {
        user_index: 1,
        ..Default::default()
    });
    q.wc();
    q.cq.event_seen();
    q.cq.arm(true);
    assert_eq!(
        (
            q.cq.record.load_be32::<CQ_ARM>(0),
            q.cq.record.load_be32::<CQ_CI>(0)
        ),
        (0x1100_0001, 1)
    );
    assert_eq!(q.rings.take(), [(0x20, vec![0x11, 0, 0, 1, 0, 0x65, 0x43, 0x21])]);
}

/// Device and driver go on from just before the end of what an index holds: 24 bits in the record and in doorbells, 32 here.
#[test]
fn t05_the_cq_index_passes_2_24_and_2_32() {
    for start in [0xff_fffe, u32::MAX - 1] {
        for batched in [false, true] {
            let mut q = queue(4);
            let (sq, _) = q.attach(1);
            let view = View::new(
                DmaRing::new(q.mem.buffer().clone(), 0, 4).unwrap(),
                DmaRing::new(q.cq.record.buffer().clone(), 0, 1).unwrap(),
            );
            q.goes_on_at(start);
            assert!(!q.cq.is_ready());
            // Twos, so that the end is passed within a batch and between an arming and what it waits for.
            for i in (0..12u32).step_by(2) {
                let at = start.wrapping_add(i);
                q.cq.arm(false);
                let image = [&[0][..], &at.to_be_bytes()[1..], &[0, 0x65, 0x43, 0x21]].concat();
                assert_eq!(q.rings.take(), [(uar::CQ_DOORBELL, image)], "{at:#x}");
                assert_eq!(q.cq.record.load_be32::<CQ_ARM>(0), at & INDEX_MASK);
                for number in [i, i + 1] {
                    post(&sq, number, number, number.into());
                    q.write(Written {
                        user_index: 1,
                        wqe_counter: number as u16,
                        ..Default::default()
                    });
                }
                assert_eq!((q.cq.waiting(), q.cq.is_ready()), (2, true), "{at:#x}");
                assert_eq!(view.written().end, at.wrapping_add(2) & INDEX_MASK, "{at:#x}");
                let mut ids = Vec::new();
                if batched {
                    assert_eq!(q.cq.each_usual(4, |wc| ids.push(wc.wr_id)), (2, false));
                } else {
                    ids.extend([q.wc().wr_id, q.wc().wr_id]);
                }
                assert_eq!(ids, [i.into(), u64::from(i) + 1], "{at:#x}");
                assert!(matches!(q.cq.next(), Next::Empty));
                q.cq.publish();
                let next = at.wrapping_add(2);
                assert_eq!(q.cq.consumer_index(), next);
                assert_eq!(q.cq.record.load_be32::<CQ_CI>(0), next & INDEX_MASK);
            }
            assert_eq!(q.cq.bad, 0);
        }
    }
}

/// What was written before a reset is dropped, on both sides of the end of 32 bits, and what comes after it is not.
#[test]
fn t05_q18_a_reset_s_boundary_is_passed_with_the_index_at_2_32() {
    let mut q = queue(8);
    let (sq, _) = q.attach(1);
    q.goes_on_at(u32::MAX - 1);
    for i in 0..4u32 {
        post(&sq, i, i, i.into());
        q.write(Written {
            user_index: 1,
            wqe_counter: i as u16,
            ..Default::default()
        });
    }
    q.cq.queues.get_mut(1).unwrap().filter = Filter::Before((u32::MAX - 1).wrapping_add(3));
    for _ in 0..3 {
        assert!(matches!(q.cq.next(), Next::Dropped));
    }
    assert_eq!(q.wc().wr_id, 3);
}

proptest! {
    /// Whatever bytes a device writes, nothing panics, no slot is released twice, and each CQE is consumed once.
    #[test]
    fn any_cqe_bytes_are_survived(words in prop::collection::vec(any::<[u64; 8]>(), 1..64), posted in 0u32..16) {
        let mut q = queue(8);
        let (sq, rq) = q.attach(1);
        for i in 0..posted {
            post(&sq, i, i, i.into());
            post(&rq, i, i, i.into());
        }
        let mut shown = 0;
        for mut cqe in words {
            // Make them ours, and mostly of our QP.
            let lap = u64::from(q.written >> 3 & 1);
            if cqe[0] & 3 != 0 {
                cqe[4] = (1u64 << 32 | cqe[4] & 0xffff_ffff).to_be();
            }
            // Opcode "invalid" is that of an entry that was not written.
            let mut last = u64::from_be(cqe[7]) & !1 | lap;
            if last >> 4 & 0xf == 0xf {
                last ^= 0x80;
            }
            cqe[7] = last.to_be();
            q.mem.store::<0, 64>(q.written, &zerocopy::transmute!(cqe));
            q.written += 1;
            match q.cq.next() {
                Next::Wc(_) => shown += 1,
                Next::Dropped => {}
                Next::Moved => prop_assert!(false, "nobody moved it"),
                Next::Unknown => q.cq.skip(),
                Next::Empty => prop_assert!(false, "it was ours"),
            }
            prop_assert_eq!(q.cq.consumer_index(), q.written);
        }
        prop_assert!(shown <= 2 * posted);
        prop_assert!(sq.released() <= posted && rq.released() <= posted);
    }
}

#[test]
fn q08_the_queue_goes_on_in_the_ring_that_it_is_moved_to() {
    // From any position, also in laps whose parity unwritten entries seem to have.
    for start in 0..40u32 {
        for (old, new) in [(4u32, 16u32), (16, 4), (8, 8)] {
            let mut q = queue(old);
            let (sq, _) = q.attach(1);
            let done = |i: u32| Written {
                user_index: 1,
                wqe_counter: i as u16,
                ..Default::default()
            };
            for i in 0..start {
                post(&sq, i, i, i.into());
                q.write(done(i));
                assert_eq!(q.wc().wr_id, u64::from(i));
            }
            q.cq.publish();
            let record = DmaRing::new(q.cq.record.buffer().clone(), 0, 1).unwrap();
            let mut view = View::new(DmaRing::new(q.mem.buffer().clone(), 0, old).unwrap(), record);
            // Two unread, then the move, then two in the new ring.
            for i in start..start + 2 {
                post(&sq, i, i, i.into());
                q.write(done(i));
            }
            assert_eq!(q.cq.waiting(), 2);
            let buffer = Arc::new(testing::dma().alloc((new * CQE_BYTES) as usize).unwrap());
            let ring = || DmaRing::new(buffer.clone(), 0, new).unwrap();
            CqRing::<String>::prepare(&mut ring());
            view.move_to(ring());
            q.cq.move_to(ring());
            assert_eq!(view.written().end, start + 2);
            q.write(Written {
                opcode: opcode::RESIZE_CQ,
                ..Default::default()
            });
            q.mem = ring();
            assert_eq!(view.written().end, start + 3);
            for i in start + 2..start + 4 {
                post(&sq, i, i, i.into());
                q.write(done(i));
            }
            assert_eq!(view.written().end, start + 5);
            assert_eq!([q.wc().wr_id, q.wc().wr_id], [start, start + 1].map(u64::from));
            assert!(q.cq.is_moving() && matches!(q.cq.next(), Next::Moved));
            // A queue pair that is reset now still finds what lies in the other ring.
            assert_eq!(view.written().end, start + 5, "{old} to {new} at {start}");
            view.moved(&mut q.cq);
            assert_eq!(q.cq.record.load_be32::<CQ_CI>(0), start + 3);
            assert_eq!(view.written().end, start + 5);
            assert_eq!(
                [q.wc().wr_id, q.wc().wr_id],
                [start + 2, start + 3].map(u64::from)
            );
            assert!(matches!(q.cq.next(), Next::Empty), "{old} to {new} at {start}");
            assert_eq!((q.cq.entries(), q.cq.bad), (new, 0));
        }
    }
}

/// Requests of two queue pairs, in runs of several lengths over many laps: all are given once, in order.
#[test]
fn runs_of_sends_and_receives_are_given_in_the_order_in_which_they_came() {
    let mut q = queue(16);
    let pairs = [q.attach(5), q.attach(6)];
    let (mut sends, mut receives) = ([0u32; 2], [0u32; 2]);
    let mut expected = std::collections::VecDeque::new();
    for step in 0..3000u32 {
        // Runs of 1 to 5 of one kind.
        let (pair, is_send) = ((step / 3 % 2) as usize, step / 5 % 3 != 0);
        let (sq, rq) = &pairs[pair];
        let user_index = 5 + pair as u32;
        let wr_id = u64::from(step);
        let written = if is_send {
            let at = sends[pair];
            post(sq, at, at, wr_id);
            sends[pair] += 1;
            Written {
                user_index,
                wqe_counter: at as u16,
                send_opcode: 0x08,
                ..Default::default()
            }
        } else {
            let at = receives[pair];
            post(rq, at, at, wr_id);
            receives[pair] += 1;
            Written {
                opcode: opcode::RESP_SEND_IMM,
                user_index,
                imm: step,
                byte_len: step + 1,
                ..Default::default()
            }
        };
        q.write(written);
        expected.push_back((wr_id, user_index + 1000, is_send));
        if expected.len() == 12 || step == 2999 {
            let mut given = Vec::new();
            while q.cq.is_ready() {
                let most = 1 + step as usize % 7;
                let (count, _) = q.cq.each_usual(most, |wc| given.push(wc));
                assert!((1..=most).contains(&count));
            }
            for wc in given {
                let is_send = matches!(wc.kind, Kind::Send(0x08));
                assert_eq!(expected.pop_front(), Some((wc.wr_id, wc.qpn, is_send)));
                if !is_send {
                    assert_eq!(
                        (u64::from(wc.imm), u64::from(wc.byte_len)),
                        (wc.wr_id, wc.wr_id + 1)
                    );
                }
            }
            assert!(expected.is_empty());
            q.cq.publish();
        }
    }
    assert_eq!(q.cq.bad, 0);
}

#[test]
fn a_panic_in_the_callers_function_loses_nothing_and_repeats_nothing() {
    let mut q = queue(8);
    let (sq, rq) = q.attach(1);
    for i in 0..3 {
        post(&sq, i, i, u64::from(i));
        q.write(Written {
            user_index: 1,
            wqe_counter: i as u16,
            ..Default::default()
        });
    }
    post(&rq, 0, 0, 9);
    q.write(Written {
        opcode: opcode::RESP_SEND,
        user_index: 1,
        ..Default::default()
    });
    let mut given = Vec::new();
    for _ in 0..4 {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            q.cq.each_usual(8, |wc| {
                given.push(wc.wr_id);
                panic!("the caller's");
            })
        }));
        assert!(polled.is_err());
    }
    assert_eq!(given, [0, 1, 2, 9]);
    assert_eq!(q.cq.record.load_be32::<CQ_CI>(0), 4, "the device was told");
    assert_eq!(sq.released(), 3);
    assert_eq!(q.cq.each_usual(8, |_| ()).0, 0);
    assert!(!q.cq.is_ready());
}

#[test]
fn each_usual_stops_at_what_is_none() {
    let mut q = queue(8);
    let (sq, _) = q.attach(1);
    for i in 0..3 {
        post(&sq, i, i, u64::from(i));
    }
    for (opcode, counter) in [(opcode::REQ, 0), (opcode::REQ_ERR, 1), (opcode::REQ, 2)] {
        q.write(Written {
            opcode,
            user_index: 1,
            wqe_counter: counter,
            syndrome: if opcode == opcode::REQ { 0 } else { 5 },
            ..Default::default()
        });
    }
    let mut given = Vec::new();
    assert_eq!(q.cq.each_usual(8, |wc| given.push(wc.wr_id)), (1, true));
    assert_eq!(q.wc().syndrome, 5);
    assert_eq!(q.cq.each_usual(8, |wc| given.push(wc.wr_id)), (1, false));
    assert_eq!(given, [0, 2]);
    // A send that was never posted, and one of a queue pair that nobody knows.
    for user_index in [1, 2] {
        q.write(Written {
            user_index,
            wqe_counter: 7,
            ..Default::default()
        });
        assert_eq!(q.cq.each_usual(8, |_| ()).0, 0);
        q.cq.skip();
    }
}
