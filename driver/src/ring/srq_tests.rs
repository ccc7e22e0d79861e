use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc;

use proptest::prelude::*;

use super::super::testing;
use super::super::wr::{Lkey, Sge};
use super::*;

/// A buffer that knows whether it came back.
struct Buffer {
    back: Arc<AtomicU32>,
    dropped: Arc<AtomicU32>,
}

impl Lent for Buffer {
    fn come_back(&self) {
        self.back.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn buffers_of_requests_that_nobody_will_see_have_come_back() {
    let shared = SrqShared::<Buffer>::new(4);
    let (back, dropped) = (Arc::default(), Arc::default());
    for at in 0..10u16 {
        let buffer = Buffer {
            back: Arc::clone(&back),
            dropped: Arc::clone(&dropped),
        };
        let slot = &shared.slots[usize::from(at % 4)];
        assert!(slot.buffer.replace(Some(Box::new(buffer))).is_none());
        slot.mark.store(POSTED_BUFFER, Ordering::Release);
        assert!(shared.abandon(at % 4));
        // As many as there are slots are kept, the others are gone.
        let gone = u32::from(at + 1).saturating_sub(4);
        let counts = [&back, &dropped].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [u32::from(at + 1), gone]);
    }
}

struct Queue {
    srq: SrqProducer<String>,
    shared: Arc<SrqShared<String>>,
    /// The ring's memory, as a device sees it.
    mem: DmaRing<16>,
    record: DmaRing<8>,
    stride: u32,
    /// What the device does next.
    head: u16,
    taken: u16,
}

fn queue(max_wr: u32, max_sge: u32) -> Queue {
    let shape = SrqShape::new(max_wr, max_sge).unwrap();
    let dma = testing::dma();
    let bytes = shape.entries * shape.stride;
    let buffer = Arc::new(dma.alloc(bytes as usize).unwrap());
    let ring = || DmaRing::new(buffer.clone(), 0, bytes / 16).unwrap();
    let record = testing::record(&dma);
    let record_seen = DmaRing::new(record.buffer().clone(), 0, 1).unwrap();
    let shared = SrqShared::new(shape.entries);
    let limits = RqLimits {
        max_wr,
        max_sge,
        max_msg: 1 << 30,
    };
    Queue {
        srq: SrqProducer::new(ring(), record, shared.clone(), limits, shape.stride),
        shared,
        mem: ring(),
        record: record_seen,
        stride: shape.stride / 16,
        head: 0,
        taken: 0,
    }
}

fn sge(addr: u64, len: u32) -> Sge {
    Sge::new(addr, len, Lkey::new(0x0a0b_0c01).unwrap())
}

fn post(q: &mut Queue, wr_id: u64) -> Result<(), PostError> {
    q.srq.post(&RecvWr {
        wr_id,
        sges: &[sge(wr_id, 8)],
    })
}

impl Queue {
    /// Takes a WQE as a device does: its slot, and the address of its first element.
    fn device_takes(&mut self) -> Option<(u16, u64)> {
        let posted = self.record.load_be32::<QP_RCV>(0) as u16;
        if posted == self.taken {
            return None;
        }
        let slot = self.head;
        let at = u32::from(slot) * self.stride;
        let link = self.mem.load(at);
        self.head = u16::from_be_bytes([link[2], link[3]]);
        self.taken = self.taken.wrapping_add(1);
        let data = self.mem.load(at + 1);
        Some((slot, u64::from_be_bytes(*data.last_chunk().unwrap())))
    }
}

#[test]
fn a_wqe_names_the_next_one_and_ends_its_list() {
    let mut q = queue(3, 2);
    assert_eq!(
        (q.mem.entries(), q.stride),
        (16, 4),
        "a link and two elements take 64 bytes"
    );
    for at in 0..16 {
        q.mem.store::<0, 16>(at, &[0xa5; 16]);
    }
    q.srq
        .post(&RecvWr {
            wr_id: 1,
            sges: &[sge(0x1122_3344_5566_7788, 0x200), sge(9, 0)],
        })
        .unwrap();
    let bytes: Vec<u8> = (0..4).flat_map(|at| q.mem.load(at)).collect();
    #[rustfmt::skip]
    assert_eq!(bytes, [
        0, 0, 0, 1,  0, 0, 0, 0,  0, 0, 0, 0,  0, 0, 0, 0,
        0, 0, 2, 0,  0x0a, 0x0b, 0x0c, 0x01,  0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        0, 0, 0, 0,  0, 0, 1, 0,  0, 0, 0, 0,  0, 0, 0, 0,
        0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5,
    ]);
    assert_eq!(q.record.load_be32::<QP_RCV>(0), 0, "posting does not ring");
    q.srq.ring();
    assert_eq!(q.record.load_be32::<QP_RCV>(0), 1);
}

#[test]
fn t19_too_many_elements_are_refused_and_change_nothing() {
    let mut q = queue(4, 2);
    let sges = [sge(1, 1); 255];
    for n in [0usize, 2, 3, 255] {
        let refused = q.srq.post(&RecvWr {
            wr_id: 0,
            sges: &sges[..n],
        });
        let expected = if n > 2 {
            Err(PostError::TooManySges { asked: n, max: 2 })
        } else {
            Ok(())
        };
        assert_eq!(refused, expected);
    }
    assert_eq!(q.shared.outstanding(), 2);
    let long = [sge(1, 1 << 30), sge(1, 1)];
    assert!(matches!(
        q.srq.post(&RecvWr {
            wr_id: 0,
            sges: &long
        }),
        Err(PostError::MessageTooLong { .. })
    ));
    assert_eq!(q.shared.outstanding(), 2);
}

#[test]
fn q02_exactly_max_wr_fit_whatever_the_order_of_completions() {
    for max_wr in [1u32, 3, 4, 7] {
        let mut q = queue(max_wr, 1);
        let (mut id, mut with_device) = (0u64, VecDeque::new());
        for lap in 0..3000 {
            while post(&mut q, id).is_ok() {
                id += 1;
            }
            assert_eq!(
                post(&mut q, id),
                Err(PostError::QueueFull {
                    queue: "shared receive",
                    max_wr
                })
            );
            q.srq.ring();
            while let Some(taken) = q.device_takes() {
                with_device.push_back(taken);
            }
            assert_eq!(with_device.len() as u32, max_wr, "lap {lap}");
            // Not in the order in which they were taken.
            for n in 0..=lap % max_wr {
                let at = (lap + n) as usize % with_device.len();
                let (slot, id) = with_device.remove(at).unwrap();
                assert_eq!(q.shared.release_usual(slot), Some(id));
                assert_eq!(q.shared.release_usual(slot), None, "twice");
            }
        }
    }
}

#[test]
fn a_device_that_lies_completes_nothing_twice_and_nothing_that_is_not_there() {
    let mut q = queue(4, 1);
    for at in 0..=u16::MAX {
        assert!(q.shared.release(at).is_none() && q.shared.release_usual(at).is_none());
    }
    post(&mut q, 5).unwrap();
    assert_eq!(q.shared.release(0).unwrap().wr_id, 5);
    assert!(q.shared.release(0).is_none() && !q.shared.abandon(0));
    for id in 0..4 {
        post(&mut q, id).unwrap();
    }
    assert!(post(&mut q, 4).is_err());
}

#[test]
fn a_buffer_rests_in_its_slot_and_comes_back() {
    let mut q = queue(2, 1);
    let wr = RecvWr {
        wr_id: 7,
        sges: &[sge(1, 1)],
    };
    q.srq.post_owned(&wr, Box::new("one".into())).unwrap();
    q.srq.post_owned(&wr, Box::new("two".into())).unwrap();
    let (_, back) = q.srq.post_owned(&wr, Box::new("three".into())).unwrap_err();
    assert_eq!(*back, "three");
    assert_eq!(q.shared.release_usual(0), None, "not a usual one");
    let released = q.shared.release(0).unwrap();
    assert_eq!(
        (released.wr_id, released.buffer.as_deref()),
        (7, Some(&"one".to_owned()))
    );
    q.srq.post(&wr).unwrap();
    assert!(q.shared.abandon(1) && !q.shared.abandon(1));
    let gone = q.shared.take_abandoned().unwrap();
    assert_eq!((gone.wr_id, gone.buffer.as_deref()), (7, Some(&"two".to_owned())));
    assert!(q.shared.take_abandoned().is_none());
    q.srq.post_owned(&wr, Box::new("four".into())).unwrap();
    let left: Vec<String> = q.shared.take_all().map(|buffer| *buffer).collect();
    assert_eq!(left, ["four"]);
}

#[test]
fn what_was_abandoned_is_bounded() {
    let mut q = queue(3, 1);
    for id in 0..10 {
        q.srq
            .post_owned(&RecvWr { wr_id: id, sges: &[] }, Box::new(id.to_string()))
            .unwrap();
        q.srq.ring();
        let (slot, _) = q.device_takes().unwrap();
        assert!(q.shared.abandon(slot));
    }
    let ids: Vec<u64> = std::iter::from_fn(|| q.shared.take_abandoned())
        .map(|gone| gone.wr_id)
        .collect();
    assert_eq!(ids, [6, 7, 8, 9]);
}

/// Several pollers give slots back while the owner posts.
#[test]
fn pollers_on_several_threads_give_back_what_the_owner_posts_again() {
    const POLLERS: usize = 3;
    const REQUESTS: u64 = if cfg!(miri) { 300 } else { 60_000 };
    let mut q = queue(16, 1);
    let mut seen = BTreeSet::new();
    std::thread::scope(|scope| {
        let (done, results) = mpsc::channel();
        let pollers: Vec<_> = (0..POLLERS)
            .map(|_| {
                let (to, slots) = mpsc::channel::<u16>();
                let (shared, done) = (q.shared.clone(), done.clone());
                scope.spawn(move || {
                    for slot in slots {
                        let wr_id = shared.release_usual(slot).expect("posted");
                        done.send(wr_id).unwrap();
                    }
                });
                to
            })
            .collect();
        drop(done);
        let mut id = 0;
        while id < REQUESTS {
            match post(&mut q, id) {
                Ok(()) => id += 1,
                Err(PostError::QueueFull { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
            q.srq.ring();
            while let Some((slot, wr_id)) = q.device_takes() {
                pollers[wr_id as usize % POLLERS].send(slot).unwrap();
            }
        }
        drop(pollers);
        for wr_id in results {
            assert!(seen.insert(wr_id), "{wr_id} twice");
        }
    });
    assert_eq!(seen.len() as u64, REQUESTS);
    assert_eq!(q.shared.outstanding(), 0);
}

#[test]
fn shapes_have_room_for_the_link_and_one_more_than_is_posted() {
    let shape = |max_wr, max_sge| SrqShape::new(max_wr, max_sge).map(|s| (s.entries, s.stride));
    assert_eq!(shape(1, 0), Some((2, 32)));
    assert_eq!(shape(7, 1), Some((8, 32)));
    assert_eq!(shape(8, 3), Some((16, 64)));
    assert_eq!(shape(100, 4), Some((128, 128)));
    assert_eq!(shape(u32::MAX, 1), None);
    assert_eq!(shape(1, u32::MAX), None);
}

proptest! {
    /// A device that takes in order and completes in any order finds each request once, with its own data.
    #[test]
    fn each_request_completes_once(
        max_wr in 1u32..9,
        steps in prop::collection::vec((0u8..4, any::<u8>()), 1..400),
    ) {
        let mut q = queue(max_wr, 1);
        let (mut id, mut outstanding) = (0u64, 0u32);
        let mut with_device = BTreeMap::new();
        for (step, choice) in steps {
            match step {
                0 => {
                    let posted = post(&mut q, id);
                    prop_assert_eq!(posted.is_ok(), outstanding < max_wr);
                    if posted.is_ok() {
                        id += 1;
                        outstanding += 1;
                    }
                }
                1 => q.srq.ring(),
                2 => {
                    if let Some((slot, id)) = q.device_takes() {
                        prop_assert!(with_device.insert(slot, id).is_none(), "a slot that is taken already");
                    }
                }
                _ => {
                    let nth = usize::from(choice) % with_device.len().max(1);
                    if let Some((&slot, &id)) = with_device.iter().nth(nth) {
                        with_device.remove(&slot);
                        prop_assert_eq!(q.shared.release_usual(slot), Some(id));
                        outstanding -= 1;
                    }
                }
            }
            prop_assert_eq!(q.shared.outstanding(), outstanding);
        }
    }
}
