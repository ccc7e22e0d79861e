//! A host that writes anything anywhere: refused, counted, never a panic, never a growing memory.

use ferroce_hw_regs::wqe::opcode;
use proptest::prelude::*;

use super::*;

#[test]
fn wqes_that_break_a_rule_complete_in_error_and_the_rest_is_flushed() {
    let control = |index: u16, opcode: u32, qpn: u32, ds: u32, flags: u32| {
        let mut wqe = (u32::from(index) << 8 | opcode).to_be_bytes().to_vec();
        for word in [qpn << 8 | ds, flags, 0] {
            wqe.extend_from_slice(&word.to_be_bytes());
        }
        wqe
    };
    let nop = u32::from(opcode::NOP);
    let qpn = Side::new(1).qpn;
    let bad = [
        control(1, nop, qpn, 1, 8),
        control(0, nop, qpn + 1, 1, 8),
        control(0, 0x7f, qpn, 1, 8),
        control(0, nop | 1 << 24, qpn, 1, 8),
        control(0, nop, qpn, 1, 1 << 16 | 8),
        control(0, nop, qpn, 0x41, 8),
    ];
    for (i, wqe) in bad.iter().enumerate() {
        let mut side = Side::new(1);
        side.connect(2, 0x40);
        side.post_raw(wqe);
        side.post(opcode::NOP, CQE, 0, &[]);
        side.ring();
        while side.dp.run(Nanos(1)) {}
        let cqe = side.poll().unwrap();
        assert_eq!(
            (cqe[63] >> 4, cqe[0x37], be32(&cqe, 0x3c) >> 16),
            (0xd, 2, 0),
            "case {i}"
        );
        let cqe = side.poll().unwrap();
        assert_eq!(
            (cqe[63] >> 4, cqe[0x37], be32(&cqe, 0x3c) >> 16),
            (0xd, 5, 1),
            "case {i}"
        );
        assert_eq!(side.dp.violations.total(), 1, "case {i}");
    }
}

#[test]
fn a_producer_index_past_the_ring_is_an_error() {
    let mut side = Side::new(1);
    side.connect(2, 0x40);
    side.sq_pi = SQ as u16 + 1;
    side.ring();
    while side.dp.run(Nanos(1)) {}
    assert_eq!(side.poll().unwrap()[0x37], 2);
    assert_eq!(side.dp.violations.count(Violation::ProducerIndex), 1);
}

#[test]
fn queues_whose_memory_is_gone_fail_without_harm() {
    let mut side = Side::new(1);
    side.connect(2, 0x40);
    side.post(opcode::NOP, CQE, 0, &[]);
    side.ring();
    side.dp.host.unmap(BASE, SIZE).unwrap();
    while side.dp.run(Nanos(1)) {}
    assert!(side.dp.violations.count(Violation::HostMemory) > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_ring_contents_and_doorbells_are_survived(
        ring in proptest::collection::vec(any::<u8>(), (SQ * 64) as usize),
        receives in proptest::collection::vec(any::<u8>(), (RQ * 64) as usize),
        records in any::<[u8; 8]>(),
        bells in proptest::collection::vec((0u32..0x1000, any::<[u8; 8]>(), 1usize..9), 0..20),
        keep_control in any::<bool>(),
    ) {
        let mut pair = Pair::new();
        pair.a.fill(QP_BUFFER, &receives);
        pair.a.fill(QP_BUFFER + RQ * 64, &ring);
        if keep_control {
            // Valid control segments in front of random ones reach deeper.
            for slot in 0..SQ {
                let at = QP_BUFFER + RQ * 64 + slot * 64;
                let head = pair.a.bytes(at, 8);
                let word = (slot as u32) << 8 | u32::from(head[3] & 0x1f);
                pair.a.fill(at, &word.to_be_bytes());
                pair.a.fill(at + 4, &(pair.a.qpn << 8 | u32::from(head[7] & 0x7)).to_be_bytes());
                pair.a.fill(at + 8, &[0, 0, 0, 8]);
            }
        }
        pair.a.fill(QP_DBR, &records);
        let mut bell = [0; 8];
        bell[4..8].copy_from_slice(&(pair.a.qpn << 8).to_be_bytes());
        pair.a.dp.uar_write(pair.a.uar, 0x800, &bell);
        for (offset, value, len) in bells {
            pair.a.dp.uar_write(pair.a.uar, offset, &value[..len]);
        }
        pair.pass(std::time::Duration::from_millis(50));
    }

    #[test]
    fn any_context_makes_an_object_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0xe8),
        pas in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        use zerocopy::FromBytes;
        let mut side = Side::new(1);
        let mut qpc = Qpc::read_from_bytes(&bytes).unwrap();
        let _ = side.dp.create_qp(&qpc, Buffer::Pas(&pas));
        // With references that are right the sizes are looked at.
        qpc.set_pd(side.pd).unwrap();
        qpc.set_uar_page(side.uar).unwrap();
        qpc.set_cqn_snd(side.cqn).unwrap();
        qpc.set_cqn_rcv(side.cqn).unwrap();
        let _ = side.dp.create_qp(&qpc, Buffer::Pas(&pas));
        let mut cqc = Cqc::read_from_bytes(&bytes[..0x40]).unwrap();
        cqc.set_uar_page(side.uar).unwrap();
        cqc.set_c_eqn_or_apu_element(side.eqn);
        let _ = side.dp.create_cq(&cqc, Buffer::Pas(&pas));
        let mut eqc = Eqc::read_from_bytes(&bytes[..0x40]).unwrap();
        eqc.set_uar_page(side.uar).unwrap();
        let _ = side.dp.create_eq(&eqc, [u64::MAX; 4], Buffer::Pas(&pas));
        let mut mkc = Mkc::read_from_bytes(&bytes[..0x40]).unwrap();
        mkc.set_pd(side.pd).unwrap();
        let _ = side.dp.create_mkey(&mkc, Buffer::Pas(&pas));
    }
}
