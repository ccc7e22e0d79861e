//! Posting: a send by doorbell record and UAR write, a receive by doorbell record alone.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

use super::{Without, device_order};

const WQE: u32 = 0x5a;

#[derive(Default)]
struct SendQueue {
    wqe: AtomicU32,
    record: AtomicU32,
    uar: AtomicU32,
}

/// The device may start as soon as it sees either the UAR write or the record, which it reads whenever it likes.
fn send(without: Without) {
    loom::model(move || {
        let queue = Arc::new(SendQueue::default());
        let device = queue.clone();
        let device = thread::spawn(move || {
            let rung = device.uar.load(Relaxed);
            device_order();
            let record = device.record.load(Relaxed);
            assert!(record >= rung, "the doorbell is ahead of its record");
            device_order();
            if record == 1 {
                assert_eq!(
                    device.wqe.load(Relaxed),
                    WQE,
                    "the record counts a WQE that is not there"
                );
            }
        });
        queue.wqe.store(WQE, Relaxed);
        without.before_doorbell_record();
        queue.record.store(1, Relaxed);
        without.before_doorbell();
        queue.uar.store(1, Relaxed);
        device.join().unwrap();
    });
}

#[test]
fn a_doorbell_finds_its_record_and_the_record_its_wqe() {
    send(Without::Nothing);
}

#[test]
#[should_panic(expected = "the record counts a WQE that is not there")]
fn without_a_barrier_the_record_may_come_before_the_wqe() {
    send(Without::BeforeDoorbellRecord);
}

#[test]
#[should_panic(expected = "the doorbell is ahead of its record")]
fn without_a_barrier_the_doorbell_may_come_before_the_record() {
    send(Without::BeforeDoorbell);
}
