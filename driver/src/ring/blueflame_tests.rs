use std::sync::{Arc, Mutex};

use ferroce_hw_regs::dbr::QP_SND;
use ferroce_hw_regs::uar::BF_OFFSET;

use super::super::slots::WqShared;
use super::super::sq_limits::SqLimits;
use super::super::testing;
use super::super::wr::{Lkey, Payload, RemoteAddr, SendFlags, SendOp, SendWr, Sge};
use super::super::{QpState, QpType};
use super::*;
use crate::function::FunctionError;
use crate::mem::DmaRing;
use crate::mmio::{BarAccess, Mmio};

/// What came to the register, and what the doorbell record said at that time.
struct Seen {
    record: DmaRing<8>,
    writes: Mutex<Vec<(u64, Vec<u8>, u32)>>,
}

impl BarAccess for Seen {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), FunctionError> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        let counted = self.record.load_be32::<QP_SND>(0);
        self.writes.lock().unwrap().push((offset, data.to_vec(), counted));
        Ok(())
    }
}

/// Bytes of a slot: half of a register with a log_bf_reg_size of 9.
const SLOT: u64 = 256;
const BLOCKS: u32 = 64;

struct Queue {
    sq: SqProducer<()>,
    register: BlueFlame,
    ring: DmaRing<64>,
    seen: Arc<Seen>,
}

fn queue() -> Queue {
    let dma = testing::dma();
    let buffer = Arc::new(dma.alloc((BLOCKS * 64) as usize).unwrap());
    let ring = DmaRing::new(buffer.clone(), 0, BLOCKS).unwrap();
    let record = testing::record(&dma);
    let seen = Arc::new(Seen {
        record: DmaRing::new(record.buffer().clone(), 0, 1).unwrap(),
        writes: Mutex::default(),
    });
    let page = Mmio::trapped(4096, seen.clone());
    let register = BlueFlame::new([0, SLOT].map(|at| page.burst(BF_OFFSET + at, SLOT as usize).unwrap()));
    let limits = SqLimits::new(QpType::Rc, 32, 8, 400, 1 << 30, true);
    let doorbell = page.doorbell(BF_OFFSET).unwrap();
    let mem = DmaRing::new(buffer, 0, BLOCKS).unwrap();
    let mut sq = SqProducer::new(mem, record, doorbell, WqShared::new(BLOCKS), limits, 0x49);
    sq.set_state(QpState::Rts);
    Queue {
        sq,
        register,
        ring,
        seen,
    }
}

impl Queue {
    fn write(&mut self, bytes: &[u8]) {
        let op = SendOp::Write {
            data: Payload::Inline(bytes),
            remote: RemoteAddr {
                addr: 0x1000,
                rkey: 7,
            },
            imm: None,
        };
        let flags = SendFlags::SIGNALED;
        self.sq.post(&SendWr { wr_id: 1, op, flags }).unwrap();
    }

    /// Rings; what came to the register.
    fn ring(&mut self) -> Vec<(u64, Vec<u8>, u32)> {
        self.sq.ring_blueflame(&mut self.register);
        std::mem::take(&mut self.seen.writes.lock().unwrap())
    }

    fn block(&self, index: u32) -> Vec<u8> {
        self.ring.load(index).to_vec()
    }
}

#[test]
fn d01_a_wqe_goes_to_the_slots_in_turn_in_pieces_behind_its_record() {
    let mut q = queue();
    q.write(&[7; 20]);
    assert_eq!(
        q.ring(),
        [(BF_OFFSET, q.block(0), 1)],
        "record, then the WQE as it is in the ring"
    );
    // Three blocks: pieces in order, in the other slot, all of them behind the record.
    q.write(&[8; 140]);
    let pieces = [0, 1, 2].map(|i| (BF_OFFSET + SLOT + 64 * u64::from(i), q.block(1 + i), 4));
    assert_eq!(q.ring(), pieces);
    q.write(&[9; 4]);
    assert_eq!(q.ring(), [(BF_OFFSET, q.block(4), 5)], "the first slot again");
    assert_eq!(q.ring(), [], "nothing is posted, nothing is rung");
    q.write(&[10; 4]);
    assert_eq!(
        q.ring(),
        [(BF_OFFSET + SLOT, q.block(5), 6)],
        "and that was no turn"
    );
}

#[test]
fn d01_what_is_no_single_small_wqe_is_a_doorbell_and_takes_its_turn_too() {
    let mut q = queue();
    // Two at once.
    q.write(&[1; 4]);
    q.write(&[2; 4]);
    assert_eq!(q.ring(), [(BF_OFFSET, q.block(1)[..8].to_vec(), 2)]);
    // One that is longer than a slot: 32 + 4 + 260 bytes.
    q.write(&[3; 260]);
    assert_eq!(q.ring(), [(BF_OFFSET + SLOT, q.block(2)[..8].to_vec(), 7)]);
    // One of pointers fits.
    let sge = Sge::new(0x2000, 8, Lkey::new(0x300).unwrap());
    let op = SendOp::Send {
        data: Payload::Gather(&[sge]),
        imm: None,
    };
    let flags = SendFlags::SIGNALED;
    q.sq.post(&SendWr { wr_id: 1, op, flags }).unwrap();
    assert_eq!(q.ring(), [(BF_OFFSET, q.block(7), 8)]);
}

#[test]
fn d01_a_wqe_that_wraps_at_the_ring_end_is_whole_in_its_slot() {
    let mut q = queue();
    let mut index = 0u32;
    let mut slot = 0;
    // Three blocks at a time, past the end of the ring of 64 and of the 16-bit index.
    for _ in 0..22_000 {
        q.write(&[5; 140]);
        let pieces = q.ring();
        let expected = (0..3u32).map(|i| {
            let record = (index + 3) & 0xffff;
            (BF_OFFSET + slot + 64 * u64::from(i), q.block(index + i), record)
        });
        assert_eq!(pieces, expected.collect::<Vec<_>>(), "block {index:#x}");
        index = (index + 3) & 0xffff;
        slot ^= SLOT;
        q.sq.forget_outstanding();
    }
}
