//! WQEs in BlueFlame slots: the right order, and each wrong one.

use ferroce_hw_regs::wqe::opcode;

use super::*;

/// The two slots of the first register, and one of the second.
const SLOTS: [u32; 2] = [0x800, 0x900];
const OTHER_REGISTER: u32 = 0xa00;

fn connected() -> Side {
    let mut side = Side::new(1);
    side.connect(2, 0x40);
    side.run();
    side
}

impl Side {
    fn run(&mut self) {
        while self.dp.run(Nanos(1)) {}
    }

    /// The blocks of the WQE at `index` as the ring has them.
    fn blocks(&self, index: u16, count: u16) -> Vec<u8> {
        let block = |i: u16| QP_BUFFER + RQ * 64 + u64::from(index.wrapping_add(i)) % SQ * 64;
        (0..count).flat_map(|i| self.bytes(block(i), 64)).collect()
    }

    fn count_in(&mut self) {
        let pi = u32::from(self.sq_pi);
        self.dp.host.write_be32(QP_DBR + 4, pi).unwrap();
    }

    /// Posts a NOP and counts it in; its block.
    fn nop(&mut self) -> Vec<u8> {
        let index = self.post(opcode::NOP, CQE, 0, &[]);
        self.count_in();
        self.blocks(index, 1)
    }

    /// A NOP of which the control segment is followed by others, in that many blocks.
    fn long_nop(&mut self, blocks: u16) -> Vec<u8> {
        let segments = vec![0; usize::from(blocks) * 64 - 16];
        let index = self.post(opcode::NOP, CQE, 0, &segments);
        self.count_in();
        self.blocks(index, blocks)
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) {
        self.dp.uar_write(self.uar, offset, bytes);
    }

    /// Writes a burst as a virtual machine's traps do.
    fn write_words(&mut self, offset: u32, bytes: &[u8]) {
        for (i, word) in bytes.chunks(8).enumerate() {
            self.write(offset + 8 * i as u32, word);
        }
    }

    fn complaints(&self) -> u64 {
        assert_eq!(
            self.dp.violations.total(),
            self.dp.violations.count(Violation::BlueFlame)
        );
        self.dp.violations.total()
    }

    fn completions(&mut self) -> usize {
        self.run();
        std::iter::from_fn(|| self.poll()).count()
    }
}

#[test]
fn d01_a_whole_wqe_is_taken_from_its_slot_and_pieces_are_a_doorbell_too() {
    let mut side = connected();
    let wqe = side.nop();
    side.write(SLOTS[0], &wqe);
    // What the ring holds by now is not looked at.
    side.fill(QP_BUFFER + RQ * 64, &[0xff; 64]);
    assert_eq!(side.completions(), 1);
    assert_eq!(
        (side.dp.counters.blueflame_wqes, side.dp.counters.blueflame_taken),
        (1, 1)
    );

    // Eight bytes ring at once; the rest is held against the ring.
    let wqe = side.nop();
    side.write(SLOTS[1], &wqe[..8]);
    assert_eq!(side.completions(), 1);
    side.write_words(SLOTS[1] + 8, &wqe[8..]);
    assert_eq!(
        (side.dp.counters.blueflame_wqes, side.dp.counters.blueflame_taken),
        (2, 1)
    );

    // Two pieces: nothing happens before the second.
    let wqe = side.long_nop(2);
    side.write(SLOTS[0], &wqe[..64]);
    assert_eq!(side.completions(), 0);
    side.write(SLOTS[0] + 64, &wqe[64..]);
    assert_eq!(side.completions(), 1);
    assert_eq!(
        (side.dp.counters.blueflame_wqes, side.dp.counters.blueflame_taken),
        (3, 2)
    );

    // A doorbell takes its turn; the next register's slots are others.
    let wqe = side.nop();
    side.write(SLOTS[1], &wqe[..8]);
    let wqe = side.nop();
    side.write(SLOTS[0], &wqe);
    let wqe = side.nop();
    side.write(OTHER_REGISTER, &wqe);
    assert_eq!((side.completions(), side.complaints()), (3, 0));
}

#[test]
fn d01_a_register_that_takes_only_doorbells_needs_no_second_slot() {
    let mut side = connected();
    for _ in 0..3 {
        let wqe = side.nop();
        side.write(SLOTS[0], &wqe[..8]);
    }
    assert_eq!((side.completions(), side.complaints()), (3, 0));
}

#[test]
fn d01_a_slot_that_is_used_again_at_once_is_complained_of() {
    for words in [false, true] {
        let mut side = connected();
        for turn in 0..3 {
            let wqe = side.nop();
            if words {
                side.write_words(SLOTS[0], &wqe);
            } else {
                side.write(SLOTS[0], &wqe);
            }
            assert_eq!(
                (side.completions(), side.complaints()),
                (1, turn),
                "the work is done all the same"
            );
        }
        // A doorbell must not go there either.
        let wqe = side.nop();
        side.write(SLOTS[0], &wqe[..8]);
        assert_eq!((side.completions(), side.complaints()), (1, 3));
    }
}

#[test]
fn d01_pieces_in_a_wrong_order_are_complained_of() {
    let mut side = connected();
    // A hole, and then more.
    let wqe = side.nop();
    side.write(SLOTS[0], &wqe[..8]);
    side.write(SLOTS[0] + 16, &wqe[16..24]);
    side.write(SLOTS[0] + 24, &wqe[24..32]);
    assert_eq!((side.completions(), side.complaints()), (1, 2));
    // In the other slot.
    let wqe = side.nop();
    side.write(SLOTS[1], &wqe[..8]);
    side.write(SLOTS[0] + 8, &wqe[8..16]);
    assert_eq!((side.completions(), side.complaints()), (1, 3));
    // Backwards.
    let wqe = side.long_nop(2);
    side.write(SLOTS[0] + 64, &wqe[64..]);
    assert_eq!((side.completions(), side.complaints()), (0, 4));
    // Cut off: the work is done when the next is written.
    side.write(SLOTS[0], &wqe[..64]);
    assert_eq!((side.completions(), side.complaints()), (0, 4));
    let wqe = side.nop();
    side.write(SLOTS[1], &wqe);
    assert_eq!((side.completions(), side.complaints()), (2, 5));
    // More than the WQE has.
    let mut wqe = side.nop();
    wqe.extend_from_slice(&[0; 64]);
    side.write(SLOTS[0], &wqe);
    assert_eq!((side.completions(), side.complaints()), (1, 6));
}

#[test]
fn d01_a_wqe_before_its_record_or_unlike_the_rings_is_complained_of() {
    let mut side = connected();
    let index = side.post(opcode::NOP, CQE, 0, &[]);
    let wqe = side.blocks(index, 1);
    side.write(SLOTS[0], &wqe);
    assert_eq!(
        (side.completions(), side.complaints()),
        (0, 1),
        "the record comes first"
    );
    side.count_in();
    side.write(SLOTS[1], &wqe);
    assert_eq!((side.completions(), side.complaints()), (1, 1));
    let mut wqe = side.nop();
    wqe[12] ^= 1;
    side.write(SLOTS[0], &wqe);
    assert_eq!(
        (side.completions(), side.complaints()),
        (1, 2),
        "the ring's is done"
    );
    assert_eq!(side.dp.counters.blueflame_taken, 1);
}

proptest::proptest! {
    /// Whatever is written, memory and time are bounded, and the queue still works.
    #[test]
    fn any_writes_to_slots_are_survived(
        writes in proptest::collection::vec((0x800u32..0x1000, 0usize..300, 0u8..), 0..60)
    ) {
        let mut side = connected();
        for (offset, len, byte) in writes {
            let len = len.min((0x1000 - offset) as usize);
            side.write(offset, &vec![byte; len]);
            side.run();
        }
        let wqe = side.nop();
        side.ring();
        side.write(OTHER_REGISTER, &wqe);
        assert_eq!(side.completions(), 1);
    }
}
