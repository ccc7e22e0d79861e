//! Why a connection or an address of a service was refused, as numbers on the wire.

use std::fmt;

/// Why a connection was rejected (IBTA vol. 1, 12.6.7.2, table of REJ reasons).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RejectReason {
    /// 1: no queue pair to be had.
    NoQueuePair,
    /// 3: no resources.
    NoResources,
    /// 4: the answer came too late, or the one who asked gave up.
    Timeout,
    /// 5: the request can't be carried out.
    Unsupported,
    /// 6: a communication id that the receiver doesn't know.
    InvalidCommunicationId,
    /// 7: communication id, service id or queue pair don't belong together.
    InvalidCommunicationInstance,
    /// 8: nobody listens at the service id (the port).
    InvalidServiceId,
    /// 9: the kind of queue pair is not offered.
    InvalidTransportServiceType,
    /// 10: the queue pair is one that the receiver knows as connected: an earlier life of it has ended without a word.
    StaleConnection,
    /// 12: the primary path's GID on the receiver's side is not the receiver's, or the sender's is not the sender's.
    PrimaryGid,
    /// 15: the primary path's traffic class can't be used.
    PrimaryTrafficClass,
    /// 16: the primary path's hop limit can't be used.
    PrimaryHopLimit,
    /// 26: the path MTU is larger than what the receiver's port carries.
    InvalidMtu,
    /// 27: fewer READs and atomics at a time than are needed.
    InsufficientResponderResources,
    /// 28: the program on the other side said no; its private data may tell why.
    Consumer,
    /// 29: the RNR retry count can't be used.
    InvalidRnrRetryCount,
    /// 30: the communication id is in use by another connection of the same peer.
    DuplicateCommunicationId,
    /// 31: another version of the connection manager's datagrams.
    InvalidClassVersion,
    /// 32: the primary path's flow label can't be used.
    PrimaryFlowLabel,
    /// Another number; some of them are of InfiniBand only.
    Other(u16),
}

/// Numbers and what they say.
const REASONS: &[(u16, RejectReason, &str)] = {
    use RejectReason::*;
    &[
        (1, NoQueuePair, "no queue pair available"),
        (3, NoResources, "no resources available"),
        (4, Timeout, "timed out"),
        (5, Unsupported, "unsupported request"),
        (6, InvalidCommunicationId, "invalid communication id"),
        (7, InvalidCommunicationInstance, "invalid communication instance"),
        (8, InvalidServiceId, "nobody listens there (invalid service id)"),
        (
            9,
            InvalidTransportServiceType,
            "transport service type not offered",
        ),
        (10, StaleConnection, "stale connection"),
        (12, PrimaryGid, "primary path's GID rejected"),
        (15, PrimaryTrafficClass, "primary path's traffic class rejected"),
        (16, PrimaryHopLimit, "primary path's hop limit rejected"),
        (26, InvalidMtu, "path MTU rejected"),
        (
            27,
            InsufficientResponderResources,
            "insufficient responder resources",
        ),
        (28, Consumer, "rejected by the program"),
        (29, InvalidRnrRetryCount, "RNR retry count rejected"),
        (30, DuplicateCommunicationId, "duplicate communication id"),
        (31, InvalidClassVersion, "class version not offered"),
        (32, PrimaryFlowLabel, "primary path's flow label rejected"),
    ]
};

impl RejectReason {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            RejectReason::Other(code) => code,
            known => REASONS.iter().find(|row| row.1 == known).map_or(0, |row| row.0),
        }
    }

    /// The reason with that number.
    #[must_use]
    pub fn from_code(code: u16) -> Self {
        let row = REASONS.iter().find(|row| row.0 == code);
        row.map_or(RejectReason::Other(code), |row| row.1)
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code();
        match REASONS.iter().find(|row| row.0 == code) {
            Some((_, _, text)) => write!(f, "{text} (REJ reason {code})"),
            None => write!(f, "REJ reason {code}"),
        }
    }
}

/// What an SIDR_REP says (IBTA vol. 1, 12.11.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SidrStatus {
    /// 0: here is the queue pair.
    Valid,
    /// 1: nobody offers the service.
    ServiceIdNotSupported,
    /// 2: the service's provider says no.
    Rejected,
    /// 3: no queue pair to be had.
    NoQueuePair,
    /// 4: ask elsewhere.
    Redirect,
    /// 5: another version of the datagram.
    VersionNotSupported,
    /// A number that the standard leaves open.
    Other(u8),
}

impl SidrStatus {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            SidrStatus::Valid => 0,
            SidrStatus::ServiceIdNotSupported => 1,
            SidrStatus::Rejected => 2,
            SidrStatus::NoQueuePair => 3,
            SidrStatus::Redirect => 4,
            SidrStatus::VersionNotSupported => 5,
            SidrStatus::Other(code) => code,
        }
    }

    /// The status with that number.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        match code {
            0 => SidrStatus::Valid,
            1 => SidrStatus::ServiceIdNotSupported,
            2 => SidrStatus::Rejected,
            3 => SidrStatus::NoQueuePair,
            4 => SidrStatus::Redirect,
            5 => SidrStatus::VersionNotSupported,
            code => SidrStatus::Other(code),
        }
    }
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SidrStatus::Valid => "valid",
            SidrStatus::ServiceIdNotSupported => "nobody offers the service",
            SidrStatus::Rejected => "rejected by the program",
            SidrStatus::NoQueuePair => "no queue pair available",
            SidrStatus::Redirect => "redirected, which is not followed",
            SidrStatus::VersionNotSupported => "version not offered",
            SidrStatus::Other(code) => return write!(f, "SIDR status {code}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_their_numbers_go_both_ways() {
        for code in 0..=40 {
            assert_eq!(RejectReason::from_code(code).code(), code);
        }
        for code in 0..=9 {
            assert_eq!(SidrStatus::from_code(code).code(), code);
        }
        assert_eq!(RejectReason::from_code(10), RejectReason::StaleConnection);
        assert_eq!(
            RejectReason::StaleConnection.to_string(),
            "stale connection (REJ reason 10)"
        );
        assert_eq!(RejectReason::Other(24).to_string(), "REJ reason 24");
    }
}
