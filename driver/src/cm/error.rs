//! What can go wrong with connections, one enum for each kind of call.

use std::net::SocketAddr;
use std::time::Duration;

use super::machine::{Failure, MachineError, SidrFailure};
use super::mad::{RejectReason, SidrStatus};
use super::resolver::ResolveError;
use crate::error::StepError;
use crate::mem::DmaError;
use crate::verbs::{CreateError, ModifyError, PostError, QpState};

/// Why there is no connection manager.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// QP 1 or what it needs can't be made. A NIC has one QP 1: another manager may have it.
    #[error(
        "the connection manager needs QP 1 of the NIC, which has one for all (is there another manager?)"
    )]
    Create(#[from] CreateError),
    /// QP 1 can't be brought up.
    #[error("QP 1 can't be brought up")]
    Modify(#[from] ModifyError),
    /// QP 1 takes no requests.
    #[error("QP 1 takes no requests")]
    Post(#[from] PostError),
    /// Its memory can't be reached.
    #[error("QP 1 has no memory")]
    Memory(#[from] DmaError),
    /// The port says nothing of itself.
    #[error("the port can't be asked for its addresses")]
    Port(#[from] StepError),
    /// The system gives no thread.
    #[error("the connection manager's thread can't be started")]
    Thread(#[from] std::io::Error),
}

/// The connection manager has ended: it was closed, or its device has failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the connection manager has ended: {reason}")]
pub struct Stopped {
    /// Why.
    pub reason: String,
}

/// Private data that its message doesn't hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{asked} bytes of private data for {message}, which holds {max}")]
pub struct PrivateDataError {
    /// Bytes given.
    pub asked: usize,
    /// The most there may be.
    pub max: usize,
    /// The message, such as "a connection request".
    pub message: &'static str,
}

impl PrivateDataError {
    pub(super) fn check(data: &[u8], max: usize, message: &'static str) -> Result<(), Self> {
        let asked = data.len();
        if asked > max {
            return Err(Self { asked, max, message });
        }
        Ok(())
    }
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There is no way to the address.
    #[error("there is no way to the peer")]
    Resolve(#[from] ResolveError),
    /// Too much private data.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// The queue pair is not one that can be connected.
    #[error("a queue pair in state {state} can't be connected: RESET or INIT is needed")]
    QpState {
        /// Its state.
        state: QpState,
    },
    /// The queue pair's service has no connections.
    #[error("a {qp_type} queue pair can't be connected: RC or UC is needed")]
    QpType {
        /// Its service.
        qp_type: crate::verbs::QpType,
    },
    /// The queue pair belongs to another device than the manager.
    #[error("the queue pair belongs to another device than the connection manager")]
    OtherDevice,
    /// The queue pair's state can't be changed as is needed.
    #[error("the queue pair can't be brought to its next state")]
    Modify(#[from] ModifyError),
    /// The peer said no.
    #[error("rejected: {reason}")]
    Rejected {
        /// Why.
        reason: RejectReason,
        /// What the reason calls for, such as an MTU that would do. Often empty.
        info: Box<[u8]>,
        /// What the peer's program says: always all 148 bytes that there are, with zeros after what it gave; the wire does
        /// not tell how many it gave.
        private_data: Box<[u8]>,
    },
    /// The peer did not answer, as often as was tried.
    #[error("no answer to {tries} tries")]
    NoAnswer {
        /// How often it was tried.
        tries: u8,
    },
    /// The deadline came first.
    #[error("the deadline came before the connection (after {waited:.1?})")]
    Deadline {
        /// How long it was tried.
        waited: Duration,
    },
    /// The peer's queue pair has begun a new life meanwhile.
    #[error("the peer has started afresh meanwhile")]
    Stale,
    /// The peer has ended the connection before it was confirmed.
    #[error("the peer ended the connection before it was in use")]
    Ended,
    /// The machine refused.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The manager has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl ConnectError {
    pub(super) fn of(failure: Failure, waited: Duration) -> Self {
        match failure {
            Failure::Rejected {
                reason,
                info,
                private_data,
            } => ConnectError::Rejected {
                reason,
                info,
                private_data,
            },
            Failure::NoAnswer { tries } => ConnectError::NoAnswer { tries },
            Failure::Deadline => ConnectError::Deadline { waited },
            Failure::Stale => ConnectError::Stale,
        }
    }
}

/// Why nobody can be listened for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Somebody listens there already.
    #[error("port {} is listened on already", address.port())]
    InUse {
        /// The address.
        address: SocketAddr,
    },
    /// All ports that are free for the asking are taken.
    #[error("no free port")]
    NoPort,
    /// The manager has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// How waiting for a request or an event ended without one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The deadline came first.
    #[error("nothing happened before the deadline")]
    Deadline,
    /// The manager has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// How a connection's end is not as it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectError {
    /// The peer did not confirm the end; this side's is over all the same.
    #[error("the peer did not confirm the end of the connection")]
    NoAnswer,
    /// The queue pair can't be brought to ERR.
    #[error("the queue pair can't be brought to ERR")]
    Modify(#[from] ModifyError),
    /// The manager has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a datagram service's queue pair is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// There is no way to the address.
    #[error("there is no way to the peer")]
    Resolve(#[from] ResolveError),
    /// Too much private data.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// The peer said no.
    #[error("refused: {status}")]
    Refused {
        /// Why.
        status: SidrStatus,
        /// All 136 bytes of private data.
        private_data: Box<[u8]>,
    },
    /// The peer did not answer, as often as was tried.
    #[error("no answer to {tries} tries")]
    NoAnswer {
        /// How often it was tried.
        tries: u8,
    },
    /// The deadline came first.
    #[error("the deadline came before the answer")]
    Deadline,
    /// The machine refused.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The manager has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl From<SidrFailure> for LookupError {
    fn from(failure: SidrFailure) -> Self {
        match failure {
            SidrFailure::Refused { status, private_data } => LookupError::Refused { status, private_data },
            SidrFailure::NoAnswer { tries } => LookupError::NoAnswer { tries },
            SidrFailure::Deadline => LookupError::Deadline,
        }
    }
}
