//! Case D02: a completion queue that is armed. The driver writes consumer index and arm word into the doorbell record, then the
//! arm word again into the UAR, and sleeps; the device fires at once if it has written more than the consumer index says.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

use super::{Without, device_order};

const BODY: u32 = 0xc0de;
/// The arm word: sequence number 1, "any completion", consumer index 0.
const ARM: u32 = 1 << 28;

#[derive(Default)]
struct Queues {
    record_ci: AtomicU32,
    record_arm: AtomicU32,
    uar: AtomicU32,
    cqe_body: AtomicU32,
    cqe_owner: AtomicU32,
    eqe_body: AtomicU32,
    eqe_owner: AtomicU32,
}

impl Queues {
    /// The device's event: body first, owner bit last.
    fn raise(&self, cqn: u32) {
        self.eqe_body.store(cqn, Relaxed);
        device_order();
        self.eqe_owner.store(1, Relaxed);
    }

    fn complete(&self) {
        self.cqe_body.store(BODY, Relaxed);
        device_order();
        self.cqe_owner.store(1, Relaxed);
        device_order();
    }

    /// The device has seen the UAR write: what it reads of the record must not be older.
    fn armed(&self) -> bool {
        let rung = self.uar.load(Relaxed);
        if rung == 0 {
            return false;
        }
        device_order();
        assert_eq!(
            self.record_arm.load(Relaxed),
            rung,
            "the doorbell is ahead of its record"
        );
        assert_eq!(
            self.record_ci.load(Relaxed),
            1,
            "armed for entries that were read"
        );
        true
    }

    /// The driver's poll of an entry.
    fn poll(owner: &AtomicU32, body: &AtomicU32, without: Without) -> Option<u32> {
        (owner.load(Relaxed) == 1).then(|| {
            without.after_ownership();
            body.load(Relaxed)
        })
    }
}

/// One completion, before, while or after the queue is armed. The driver must be woken, and find it.
fn arm_and_sleep(without: Without) {
    loom::model(move || {
        let queues = Arc::new(Queues::default());
        let device = queues.clone();
        let device = thread::spawn(move || {
            device.complete();
            while !device.armed() {
                thread::yield_now();
            }
            device.raise(7);
        });
        queues.record_ci.store(1, Relaxed);
        without.before_doorbell_record();
        queues.record_arm.store(ARM, Relaxed);
        without.before_doorbell();
        queues.uar.store(ARM, Relaxed);
        // Asleep until the interrupt, which follows the EQE.
        let event = loop {
            match Queues::poll(&queues.eqe_owner, &queues.eqe_body, without) {
                Some(event) => break event,
                None => thread::yield_now(),
            }
        };
        assert_eq!(event, 7, "the event's body is older than its owner bit");
        let cqe = Queues::poll(&queues.cqe_owner, &queues.cqe_body, without);
        assert_eq!(cqe, Some(BODY), "woken, and the completion is not there");
        device.join().unwrap();
    });
}

/// The driver polls while the device writes, without any event.
fn poll_while_it_is_written(without: Without) {
    loom::model(move || {
        let queues = Arc::new(Queues::default());
        let device = queues.clone();
        let device = thread::spawn(move || device.complete());
        if let Some(body) = Queues::poll(&queues.cqe_owner, &queues.cqe_body, without) {
            assert_eq!(body, BODY, "the completion's body is older than its owner bit");
        }
        device.join().unwrap();
    });
}

#[test]
fn d02_an_armed_queue_wakes_and_finds_its_record() {
    arm_and_sleep(Without::Nothing);
}

#[test]
#[should_panic(expected = "the doorbell is ahead of its record")]
fn d02_without_a_barrier_the_arm_doorbell_may_come_before_the_arm_record() {
    arm_and_sleep(Without::BeforeDoorbell);
}

#[test]
#[should_panic(expected = "the event's body is older than its owner bit")]
fn d02_without_a_barrier_the_event_may_be_an_old_one() {
    arm_and_sleep(Without::AfterOwnership);
}

#[test]
fn a_completion_is_read_behind_its_owner_bit() {
    poll_while_it_is_written(Without::Nothing);
}

#[test]
#[should_panic(expected = "the completion's body is older than its owner bit")]
fn without_a_barrier_the_completions_body_may_be_older() {
    poll_while_it_is_written(Without::AfterOwnership);
}
