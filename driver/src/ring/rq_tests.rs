use super::super::slots::WqConsumer;
use super::super::testing;
use super::super::wr::{Lkey, Sge};
use super::*;

fn queue(max_wr: u32, max_sge: u32) -> (RqProducer<String>, WqConsumer<String>, DmaRing<8>, DmaRing<8>) {
    let shape = RqShape::new(max_wr, max_sge).unwrap();
    let dma = testing::dma();
    let bytes = shape.entries * shape.stride;
    let buffer = Arc::new(dma.alloc(bytes as usize).unwrap());
    let mem = DmaRing::new(buffer.clone(), 0, bytes / 16).unwrap();
    let seen = DmaRing::new(buffer, 0, bytes / 8).unwrap();
    let record = testing::record(&dma);
    let record_seen = DmaRing::new(record.buffer().clone(), 0, 1).unwrap();
    let shared = WqShared::new(shape.entries);
    let consumer = WqConsumer::new(shared.clone(), max_wr);
    let limits = RqLimits {
        max_wr,
        max_sge,
        max_msg: 1 << 30,
    };
    let mut rq = RqProducer::new(mem, record, shared, limits, shape.stride);
    rq.set_state(QpState::Init);
    (rq, consumer, seen, record_seen)
}

fn sge(addr: u64, len: u32) -> Sge {
    Sge::new(addr, len, Lkey::new(0x0a0b_0c01).unwrap())
}

fn entry(mem: &DmaRing<8>, at: u32, len: u32) -> Vec<u8> {
    (0..len / 8).flat_map(|i| mem.load(at / 8 + i)).collect()
}

#[test]
fn a_short_list_ends_with_the_key_that_ends_lists() {
    let (mut rq, _, mem, record) = queue(4, 3);
    rq.post(&RecvWr {
        wr_id: 1,
        sges: &[sge(0x1122_3344_5566_7788, 0x200), sge(1, 0)],
    })
    .unwrap();
    #[rustfmt::skip]
    assert_eq!(entry(&mem, 0, 32), [
        0, 0, 2, 0,  0x0a, 0x0b, 0x0c, 0x01,  0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        0, 0, 0, 0,  0, 0, 1, 0,  0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    rq.post(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
    assert_eq!(entry(&mem, 64, 8), [0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(record.load_be32::<QP_RCV>(0), 0);
    rq.ring();
    assert_eq!(record.load_be32::<QP_RCV>(0), 2);
    let four = [sge(1, 1); 4];
    assert_eq!(
        rq.post(&RecvWr {
            wr_id: 3,
            sges: &four
        }),
        Err(PostError::TooManySges { asked: 4, max: 3 })
    );
}

#[test]
fn a_list_that_fills_its_stride_has_no_end_mark() {
    let (mut rq, _, mem, _) = queue(4, 1);
    rq.post(&RecvWr {
        wr_id: 1,
        sges: &[sge(5, 6)],
    })
    .unwrap();
    assert_eq!(entry(&mem, 16, 16), [0; 16], "the next entry is untouched");
}

#[test]
fn q02_exactly_max_recv_wr_fit_and_complete_in_order() {
    let (mut rq, mut consumer, _, record) = queue(5, 1);
    let mut next = 0;
    for lap in 0..40_000u64 {
        let free = 5 - rq.outstanding();
        for i in 0..free {
            rq.post(&RecvWr {
                wr_id: lap * 10 + u64::from(i),
                sges: &[],
            })
            .unwrap();
        }
        let full = rq.post(&RecvWr { wr_id: 0, sges: &[] });
        assert_eq!(
            full,
            Err(PostError::QueueFull {
                queue: "receive",
                max_wr: 5
            })
        );
        rq.ring();
        for _ in 0..5 {
            let released = consumer.release_next().unwrap();
            assert!(released.wr_id >= next);
            next = released.wr_id + 1;
        }
        assert!(consumer.release_next().is_none());
    }
    assert_eq!(record.load_be32::<QP_RCV>(0), 200_000 & 0xffff);
}

#[test]
fn q03_all_states_but_reset_take_receives() {
    let (mut rq, ..) = queue(8, 1);
    use QpState::*;
    for state in [Init, Rtr, Rts, Sqd, Sqe, Err] {
        rq.set_state(state);
        rq.post(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    }
    rq.set_state(Reset);
    let refused = rq.post(&RecvWr { wr_id: 1, sges: &[] });
    assert_eq!(
        refused,
        Result::Err(PostError::State {
            queue: "receive",
            state: Reset
        })
    );
}

#[test]
fn shapes_are_powers_of_two_and_fill_a_block() {
    assert_eq!(
        RqShape::new(1, 1),
        Some(RqShape {
            entries: 4,
            stride: 16
        })
    );
    assert_eq!(
        RqShape::new(100, 3),
        Some(RqShape {
            entries: 128,
            stride: 64
        })
    );
    assert_eq!(RqShape::new(u32::MAX, 1), None);
    assert_eq!(RqShape::new(1 << 30, 32), None);
}
