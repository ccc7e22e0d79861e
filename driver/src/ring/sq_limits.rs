//! What a send queue takes: operations by transport service, elements, bytes.
//!
//! One comparison of a list's length tells both whether the operation is one that the queue has and whether the list is
//! too long; which of them it was is found out afterwards.

use super::{PostError, QpType};
use crate::port::PortNumber;

/// Most of what one operation can take, each with one added; 0 where the queue doesn't have the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Ends {
    /// Of bytes, where they are in one element.
    pub(super) one_sge: u64,
    /// Scatter/gather elements.
    pub(super) sges: u32,
    /// Bytes of inline data.
    pub(super) inline: u32,
}

/// An operation, as a limit is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    SendInvalidate,
    Write,
    Read,
    Atomic,
    SendTo,
}

impl Operation {
    /// IBTA vol. 1, table 36: which services have it.
    fn is_of(self, qp_type: QpType) -> bool {
        match self {
            Operation::Send => !qp_type.is_datagram(),
            Operation::SendTo => qp_type.is_datagram(),
            Operation::Write => matches!(qp_type, QpType::Rc | QpType::Uc),
            Operation::SendInvalidate | Operation::Read | Operation::Atomic => qp_type == QpType::Rc,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Operation::Send => "SEND without an address (SendOp::Send)",
            Operation::SendInvalidate => "SEND with invalidate",
            Operation::SendTo => "SEND with an address (SendOp::SendTo)",
            Operation::Write => "RDMA WRITE",
            Operation::Read => "RDMA READ",
            Operation::Atomic => "atomic operation",
        }
    }

    fn hint(self) -> &'static str {
        match self {
            Operation::Send => "a datagram needs SendOp::SendTo",
            Operation::SendTo => "its peer is known already: SendOp::Send",
            Operation::Write => "RC and UC have it",
            Operation::SendInvalidate | Operation::Read | Operation::Atomic => "only RC has it",
        }
    }
}

/// That a request is not posted, in a form that costs those that are nothing; [`SqLimits::explain`] says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// So many elements.
    Sges(Operation, usize),
    /// So many bytes of inline data.
    Inline(Operation, usize),
    /// A message of so many bytes.
    Length(u64),
    /// An atomic.
    Atomic,
    /// An element of so many bytes for an atomic's result.
    AtomicLength(u32),
    /// An address handle of another protection domain.
    OtherPd,
    /// An address handle of another port.
    OtherPort(PortNumber),
}

/// What a send queue was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SqLimits {
    /// Most outstanding requests.
    pub(crate) max_wr: u32,
    /// Most scatter/gather elements of one.
    max_sge: u32,
    /// Most bytes of inline data.
    pub(crate) max_inline: u32,
    /// Most bytes of a message.
    pub(super) max_msg: u64,
    /// Whether there are atomics.
    pub(super) atomics: bool,
    pub(super) send: Ends,
    pub(super) send_invalidate: Ends,
    pub(super) write: Ends,
    pub(super) read: Ends,
    pub(super) send_to: Ends,
    /// The protection domain, as [`Ah`](super::Ah) tells them apart.
    pub(super) domain: usize,
    /// The queue pair's port.
    pub(super) port: PortNumber,
    qp_type: QpType,
}

impl SqLimits {
    /// The limits of a queue of that service.
    pub(crate) fn new(
        qp_type: QpType,
        max_wr: u32,
        max_sge: u32,
        max_inline: u32,
        max_msg: u64,
        atomics: bool,
    ) -> SqLimits {
        let ends = |operation: Operation| {
            if operation.is_of(qp_type) {
                Ends {
                    one_sge: if max_sge > 0 { max_msg.saturating_add(1) } else { 0 },
                    sges: max_sge.saturating_add(1),
                    inline: max_inline.saturating_add(1),
                }
            } else {
                Ends::default()
            }
        };
        SqLimits {
            max_wr,
            max_sge,
            max_inline,
            max_msg,
            atomics: atomics && Operation::Atomic.is_of(qp_type) && max_sge > 0,
            send: ends(Operation::Send),
            send_invalidate: ends(Operation::SendInvalidate),
            write: ends(Operation::Write),
            read: ends(Operation::Read),
            send_to: ends(Operation::SendTo),
            domain: 0,
            port: PortNumber::FIRST,
            qp_type,
        }
    }

    /// The same for the protection domain of that number.
    pub(crate) fn in_domain(self, domain: usize) -> SqLimits {
        SqLimits { domain, ..self }
    }

    /// Why a request was refused.
    #[cold]
    #[inline(never)]
    pub(super) fn explain(&self, refused: Refused) -> PostError {
        let operation = match refused {
            Refused::Sges(operation, _) | Refused::Inline(operation, _) => self.refuse_operation(operation),
            Refused::Atomic => self.refuse_operation(Operation::Atomic),
            _ => None,
        };
        if let Some(error) = operation {
            return error;
        }
        match refused {
            Refused::Sges(_, asked) => PostError::TooManySges {
                asked,
                max: self.max_sge,
            },
            Refused::Inline(_, asked) => PostError::InlineTooLong {
                asked,
                max: self.max_inline,
            },
            Refused::Length(asked) => PostError::MessageTooLong {
                asked,
                max: self.max_msg,
            },
            Refused::Atomic if self.max_sge == 0 => PostError::TooManySges { asked: 1, max: 0 },
            Refused::Atomic => PostError::NoAtomics,
            Refused::AtomicLength(asked) => PostError::AtomicLength { asked },
            Refused::OtherPd => PostError::OtherPd,
            Refused::OtherPort(handle) => PostError::OtherPort {
                handle,
                queue: self.port,
            },
        }
    }

    fn refuse_operation(&self, operation: Operation) -> Option<PostError> {
        (!operation.is_of(self.qp_type)).then_some(PostError::Operation {
            operation: operation.name(),
            qp_type: self.qp_type,
            hint: operation.hint(),
        })
    }
}
