//! Arms, events and overruns.

use ferroce_hw_regs::wqe::opcode;

use super::*;
use crate::fw::plane::Event as FirmwareEvent;

fn nops(side: &mut Side, n: usize) {
    for _ in 0..n {
        side.post(opcode::NOP, CQE, 0, &[]);
    }
    side.ring();
    while side.dp.run(Nanos(1)) {}
}

fn command_done(side: &mut Side, slots: u32) {
    side.dp.raise(Event::Firmware(FirmwareEvent::Command { slots }));
}

fn connected() -> Side {
    let mut side = Side::new(1);
    side.connect(2, 0x40);
    // The transition to RTS looks at the ring of its own accord.
    while side.dp.run(Nanos(1)) {}
    side
}

#[test]
fn one_event_per_arm_and_owner_bits_follow_the_lap() {
    let mut side = connected();
    assert_eq!(side.eqe(0)[63], 1);
    side.arm_cq(0, false, 0);
    nops(&mut side, 3);
    let eqe = side.eqe(0);
    assert_eq!((eqe[1], eqe[63], be32(&eqe, 0x38)), (0, 0, side.cqn));
    assert_eq!(side.eqe(1)[63], 1);
    // The same number again is an event that is on its way; the next one counts, and at once.
    side.arm_cq(0, false, 0);
    assert_eq!((side.eqe(1)[63], side.dp.counters.stale_arms), (1, 1));
    side.arm_cq(1, false, 1);
    assert_eq!(side.eqe(1)[63], 0);
    while side.poll().is_some() {}
    side.arm_cq(2, false, 3);
    assert_eq!(side.eqe(2)[63], 1);
    nops(&mut side, 1);
    assert_eq!(side.eqe(2)[63], 0);
}

#[test]
fn a_solicited_arm_waits_for_a_solicited_message() {
    let mut pair = Pair::new();
    pair.b.arm_cq(0, true, 0);
    let key = pair.a.key;
    for (flags, events) in [(CQE, 0), (CQE | 2, 1)] {
        pair.b.post_recv(&data(8, pair.b.key, DATA));
        pair.a.post(opcode::SEND, flags, 0, &data(8, key, DATA));
        pair.a.ring();
        pair.run();
        assert_eq!(u64::from(pair.b.eqe(0)[63] == 0), events);
    }
}

#[test]
fn eq_arms_raise_one_interrupt_each_and_at_once_when_late() {
    use rustix::event::{EventfdFlags, eventfd};
    let mut side = connected();
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    side.dp.interrupts.set(0, vec![Some(fd)]).unwrap();
    command_done(&mut side, 1);
    assert_eq!(side.dp.interrupts.raised, 0);
    side.arm_eq(0);
    assert_eq!(side.dp.interrupts.raised, 1);
    side.arm_eq(1);
    command_done(&mut side, 2);
    command_done(&mut side, 4);
    assert_eq!(side.dp.interrupts.raised, 2);
    assert_eq!(be32(&side.eqe(2), 0x20), 4);
    // An index that was not reached is refused.
    side.arm_eq(9);
    assert_eq!(side.dp.violations.count(Violation::ConsumerIndex), 1);
}

#[test]
fn a_full_eq_loses_events_and_says_so() {
    let mut side = connected();
    for _ in 0..(1 << LOG_EQ) + 3 {
        command_done(&mut side, 1);
    }
    assert_eq!(side.dp.violations.count(Violation::EqOverrun), 3);
}

#[test]
fn q14_a_full_cq_is_an_error_of_its_qps_and_never_silent() {
    let mut side = connected();
    for _ in 0..3 {
        nops(&mut side, 12);
    }
    assert_eq!(side.dp.violations.count(Violation::CqOverrun), 1);
    let types: Vec<u8> = (0..2).map(|i| side.eqe(i)[1]).collect();
    assert_eq!(types, [4, 5]);
    assert_eq!((be32(&side.eqe(0), 0x20), side.eqe(0)[0x2b]), (side.cqn, 1));
    let mut qpc = Qpc::zeroed();
    side.dp.query_qp(side.qpn, &mut qpc).unwrap();
    assert_eq!(qpc.state(), 6);
}

#[test]
fn cqes_go_round_the_ring_many_times() {
    let mut side = connected();
    for _ in 0..100 {
        nops(&mut side, 7);
        for _ in 0..7 {
            assert_eq!(side.poll().unwrap()[63] >> 4, 0);
        }
        assert!(side.poll().is_none());
    }
}

/// As if so many completions had been written and read already.
fn goes_on_at(side: &mut Side, at: u32) {
    let cq = side.dp.objects.cqs.get_mut(side.cqn).unwrap();
    (cq.pi, cq.ci) = (at, at & 0xff_ffff);
    side.cq_ci = at;
    side.dp.host.write_be32(CQ_DBR, at & 0xff_ffff).unwrap();
}

/// The host tells 24 bits of the index, and owner bits follow all 32.
#[test]
fn t05_the_cq_index_passes_2_24_and_2_32() {
    for start in [0xff_fffe, u32::MAX - 1] {
        let mut side = connected();
        goes_on_at(&mut side, start);
        // Armed before the end: the first event comes with the first completion, the second at once.
        side.arm_cq(0, false, start);
        assert_eq!(side.eqe(0)[63], 1, "nothing is there");
        nops(&mut side, 4);
        assert_eq!((side.eqe(0)[63], side.eqe(1)[63]), (0, 1));
        side.arm_cq(1, false, start.wrapping_add(1));
        assert_eq!(side.eqe(1)[63], 0);
        for _ in 0..4 {
            assert_eq!(side.poll().unwrap()[63] >> 4, 0);
        }
        assert!(side.poll().is_none());
        // All are read: behind the end, an arming waits again.
        let behind = start.wrapping_add(4);
        side.arm_cq(2, false, behind);
        assert_eq!(side.eqe(2)[63], 1);
        nops(&mut side, 1);
        assert_eq!(side.eqe(2)[63], 0);
        // One that is ahead of what was written, or older than the ring holds, is refused.
        for ci in [behind.wrapping_add(2), start.wrapping_sub(1 << LOG_CQ)] {
            let before = side.dp.violations.count(Violation::ConsumerIndex);
            side.arm_cq(3, false, ci);
            assert_eq!(side.dp.violations.count(Violation::ConsumerIndex), before + 1);
        }
        assert_eq!(side.dp.violations.total(), 2);
    }
}

#[test]
fn t05_a_ring_that_fills_over_the_end_of_its_index_is_full_and_no_sooner() {
    for end in [1 << 24, 0u32] {
        let mut side = connected();
        goes_on_at(&mut side, end.wrapping_sub(10));
        // As many as the ring has, in parts that the send queue holds.
        for count in [12, 12, 8] {
            nops(&mut side, count);
        }
        assert_eq!(side.dp.violations.total(), 0, "{end:#x}");
        nops(&mut side, 1);
        assert_eq!(side.dp.violations.count(Violation::CqOverrun), 1, "{end:#x}");
    }
}

#[test]
fn objects_in_use_stay_and_unused_ones_go() {
    let mut side = connected();
    let (uar, pd, cqn, eqn, qpn) = (side.uar, side.pd, side.cqn, side.eqn, side.qpn);
    let dp = &mut side.dp;
    assert!(dp.dealloc_uar(uar).is_err());
    assert!(dp.dealloc_pd(pd).is_err());
    assert!(dp.destroy_eq(eqn).is_err());
    assert!(dp.destroy_cq(cqn).is_err());
    dp.destroy_qp(qpn).unwrap();
    dp.destroy_cq(cqn).unwrap();
    dp.destroy_eq(eqn).unwrap();
    dp.dealloc_uar(uar).unwrap();
    assert!(dp.dealloc_pd(pd).is_err(), "the memory key is in it");
    dp.destroy_mkey(side.key >> 8).unwrap();
    dp.dealloc_pd(pd).unwrap();
    assert!(dp.census().iter().all(|(_, n)| *n == 0));
}

#[test]
fn doorbells_in_two_halves_ring_and_foreign_ones_do_not() {
    let mut side = connected();
    side.post(opcode::NOP, CQE, 0, &[]);
    side.dp.host.write_be32(QP_DBR + 4, 1).unwrap();
    let other = side.dp.alloc_uar().unwrap();
    let mut bell = [0; 8];
    bell[4..8].copy_from_slice(&(side.qpn << 8).to_be_bytes());
    side.dp.uar_write(other, 0x800, &bell);
    assert_eq!(side.dp.violations.count(Violation::ForeignUar), 1);
    side.dp.uar_write(other + 1, 0x800, &bell);
    assert_eq!(side.dp.violations.count(Violation::UnknownUar), 1);
    while side.dp.run(Nanos(1)) {}
    assert!(side.poll().is_none());
    side.dp.uar_write(side.uar, 0x900, &bell[..4]);
    side.dp.uar_write(side.uar, 0x904, &bell[4..]);
    while side.dp.run(Nanos(1)) {}
    assert!(side.poll().is_some());
}
