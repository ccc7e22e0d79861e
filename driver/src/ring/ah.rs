//! Address handles: where a datagram goes, as its work queue entry has it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::port::PortNumber;

/// Segments of an address vector.
pub(super) const SEGMENTS: usize = 3;

/// An address handle: the way to a station or a group, checked once and made into what each datagram's work queue
/// entry holds.
///
/// It belongs to a protection domain, and holds it. The source is named by its index in the GID table: whoever
/// changes that entry changes where the datagrams come from, or ends them.
#[derive(Clone)]
pub struct Ah {
    /// Without Q_Key and QPN.
    pub(super) vector: [[u8; 16]; SEGMENTS],
    /// Tells protection domains apart, for as long as this lives.
    pub(super) domain: usize,
    /// The port whose GID table has the source.
    pub(super) port: PortNumber,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Ah {
    /// A handle with that address vector, whose protection domain has the number `domain` for as long as `keep` lives, for
    /// queue pairs on that port.
    pub(crate) fn from_parts(
        vector: [u8; 48],
        (domain, port): (usize, PortNumber),
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Ah {
        Ah {
            vector: zerocopy::transmute!(vector),
            domain,
            port,
            _keep: keep,
        }
    }
}

impl PartialEq for Ah {
    fn eq(&self, other: &Ah) -> bool {
        (self.vector, self.domain, self.port) == (other.vector, other.domain, other.port)
    }
}

impl Eq for Ah {}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ah")
            .field("vector", &self.vector)
            .finish_non_exhaustive()
    }
}
