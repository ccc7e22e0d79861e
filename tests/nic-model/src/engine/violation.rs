//! What the host did that a driver must not do: refused, counted, and logged a few times.

use std::fmt;

/// A rule that the host broke towards the data path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// A write to a UAR that was not allocated.
    UnknownUar,
    /// A write to an offset in a UAR page that is no doorbell, or of a width that it does not take.
    BadDoorbell,
    /// A doorbell for an object that is not there.
    UnknownObject,
    /// A doorbell in a UAR that the object does not name.
    ForeignUar,
    /// A producer index that passes the end of the ring.
    ProducerIndex,
    /// A consumer index that the device has not reached.
    ConsumerIndex,
    /// A WQE that makes no sense.
    BadWqe,
    /// A bit that is reserved and set.
    ReservedBit,
    /// A queue's or record's memory that is not mapped.
    HostMemory,
    /// A doorbell for a queue whose state does not take work.
    State,
    /// A completion queue that was full.
    CqOverrun,
    /// An event queue that was full.
    EqOverrun,
    /// Bus mastering is off, and yet there is work.
    BusMasterOff,
    /// A WQE that was written to a BlueFlame slot in the wrong order, to the wrong slot, or that is another than the
    /// ring's.
    BlueFlame,
}

/// Number of kinds of [`Violation`].
const KINDS: usize = Violation::BlueFlame as usize + 1;

/// How many violations of a kind are logged as warnings; the rest only counts, so that a host can't fill logs.
const LOGGED: u64 = 8;

/// Counters of all violations.
#[derive(Clone, Debug, Default)]
pub struct Violations {
    counts: [u64; KINDS],
}

impl Violations {
    /// Counts one, and logs it if it is among the first of its kind.
    pub fn note(&mut self, kind: Violation, what: fmt::Arguments<'_>) {
        let count = &mut self.counts[kind as usize];
        *count += 1;
        if *count <= LOGGED {
            log::warn!("host broke a rule ({kind:?}): {what}");
        } else {
            log::trace!("host broke a rule ({kind:?}): {what}");
        }
    }

    /// How often the rule was broken.
    pub fn count(&self, kind: Violation) -> u64 {
        self.counts[kind as usize]
    }

    /// How often any rule was broken.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}
