//! What the device sees of the driver's stores, and the driver of the device's, in every order that a weakly ordered CPU may
//! choose.
//!
//! [loom](https://docs.rs/loom) runs each model through all interleavings, and all values that a load may give under the C11
//! memory model. The barriers are the driver's own file, compiled with loom's fence in place of the CPU's; the stores and loads
//! around them are those of `driver/src/ring` and `driver/src/eq.rs`, one atomic for each word:
//!
//! ```text
//!   CPU     WQE │ doorbell record │ UAR write          CQE: owner bit │ body          EQE: owner bit │ body
//!   device        UAR write │ doorbell record │ WQE         body │ owner bit               body │ owner bit
//! ```
//! Every model is also run with one of the barriers left out, and must then be seen to fail: a model that can't tell would
//! prove nothing.
//!
//! What this does not show is that a barrier's instruction reaches as far as the device. On aarch64 that is the domain in which the
//! instruction orders (outer shareable); `driver/src/barrier.rs` says why each is what it is.

/// What `driver/src/barrier.rs` takes its fence from.
pub(crate) mod sync {
    pub(crate) use loom::sync::atomic;
}

#[path = "../../../driver/src/barrier.rs"]
#[allow(dead_code)] // Not all of the driver's barriers are in the models.
mod barrier;

#[cfg(test)]
mod arming;
#[cfg(test)]
mod posting;

/// A barrier that a model does without, to see that it is missed.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Without {
    Nothing,
    BeforeDoorbellRecord,
    BeforeDoorbell,
    AfterOwnership,
}

#[cfg(test)]
impl Without {
    fn before_doorbell_record(self) {
        if self != Without::BeforeDoorbellRecord {
            barrier::before_doorbell_record();
        }
    }

    fn before_doorbell(self) {
        if self != Without::BeforeDoorbell {
            barrier::before_doorbell();
        }
    }

    fn after_ownership(self) {
        if self != Without::AfterOwnership {
            barrier::after_ownership();
        }
    }
}

/// What the device does between two of its accesses: its reads and writes go out in order (PCI Express Base 2.4.1; a read
/// is answered before the next is asked for where the PRM says that it depends on it).
#[cfg(test)]
fn device_order() {
    sync::atomic::fence(sync::atomic::Ordering::AcqRel);
}
