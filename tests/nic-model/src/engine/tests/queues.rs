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
