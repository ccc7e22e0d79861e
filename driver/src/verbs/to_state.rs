//! What each change of a queue pair's state needs, and which changes there are, by transport service.

use ferroce_hw_regs::ids::Qpn;

use super::error::{LimitError, ModifyError};
use super::mkey::Access;
use super::path::{Mtu, Path};
use crate::caps::Caps;
use crate::port::PortNumber;
use crate::ring::{QpState, QpType};

/// Largest QPN or PSN.
const MAX_24: u64 = 0xff_ffff;
/// The Q_Key of QP 1 and of all that talk to it (IBTA vol. 1, 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// What the way from RESET to INIT needs, and from INIT to INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToInit {
    /// The port, which the NIC must have.
    pub port: PortNumber,
    /// Index in the table of partition keys; RoCE has only index 0.
    pub pkey_index: u16,
    /// What the peer's requests may do. `LOCAL_WRITE` has no meaning here, nor has `REMOTE_ATOMIC` where the device does no
    /// atomics: then no region allows them. UC queue pairs have only `REMOTE_WRITE`, datagrams nothing of it. READs and
    /// atomics are let in from RTR on, if [`ToRtr::max_dest_rd_atomic`] is not 0.
    pub access: Access,
    /// UD queue pairs need it: what a datagram has to bring along to be taken (IBTA vol. 1, 10.2.5), and what is sent where
    /// a request's Q_Key has the highest bit set. GSI has [`GSI_QKEY`], which need not be said; others have none.
    pub qkey: Option<u32>,
}

impl Default for ToInit {
    /// Port 1, all remote access: what is reachable is up to the memory regions.
    fn default() -> ToInit {
        ToInit {
            port: PortNumber::FIRST,
            pkey_index: 0,
            access: Access::all(),
            qkey: None,
        }
    }
}

impl ToInit {
    /// The usual values for a UD queue pair with that Q_Key.
    pub fn ud(qkey: u32) -> ToInit {
        ToInit {
            qkey: Some(qkey),
            ..ToInit::default()
        }
    }

    /// The Q_Key that the context gets, 0 where the service has none.
    pub(super) fn qkey(&self, qp_type: QpType) -> Result<u32, ModifyError> {
        let attribute = Attributes {
            qp_type,
            to: QpState::Init,
        };
        match (qp_type, self.qkey) {
            (QpType::Ud, Some(qkey)) => Ok(qkey),
            (QpType::Ud, None) => Err(attribute.needs("qkey")),
            (QpType::Gsi, None | Some(GSI_QKEY)) => Ok(GSI_QKEY),
            (QpType::Gsi, Some(_)) => Err(attribute.has_no("qkey but 0x80010000")),
            (QpType::Rc | QpType::Uc, None) => Ok(0),
            (QpType::Rc | QpType::Uc, Some(_)) => Err(attribute.has_no("qkey")),
        }
    }
}

/// Which attributes a transition of a service has (IBTA vol. 1, 11.2.5.2, tables 97 to 100).
#[derive(Clone, Copy)]
struct Attributes {
    qp_type: QpType,
    to: QpState,
}

impl Attributes {
    fn needs(self, attribute: &'static str) -> ModifyError {
        let Attributes { qp_type, to } = self;
        ModifyError::NeedsAttribute {
            qp_type,
            to,
            attribute,
        }
    }

    fn has_no(self, attribute: &'static str) -> ModifyError {
        let Attributes { qp_type, to } = self;
        ModifyError::NoAttribute {
            qp_type,
            to,
            attribute,
        }
    }

    /// Those that only RC has are 0 for another.
    fn only_rc(self, values: &[(&'static str, u8)]) -> Result<(), ModifyError> {
        if self.qp_type == QpType::Rc {
            return Ok(());
        }
        let given = values.iter().find(|(_, value)| *value != 0);
        given.map_or(Ok(()), |(attribute, _)| Err(self.has_no(attribute)))
    }
}

/// What the way from INIT to RTR needs, of RC and UC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRtr {
    /// The way to the peer.
    pub path: Path,
    /// Path MTU; both sides have the same, at most what their ports can.
    pub mtu: Mtu,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// PSN of the peer's first packet (24 bits).
    pub rq_psn: u32,
    /// Most READs and atomics of the peer in progress at a time; 0 for UC.
    pub max_dest_rd_atomic: u8,
    /// How long the peer shall wait when it finds no receive posted, as a code of 5 bits (IBTA vol. 1, table 45): 12 is
    /// 0.64 ms, 1 is 0.01 ms, 0 is 655.36 ms. 0 for UC, which has no such thing.
    pub min_rnr_timer: u8,
}

impl ToRtr {
    /// The usual values for RC: MTU 1024, 16 READs at a time, 0.64 ms.
    pub fn new(path: Path, remote_qpn: Qpn, rq_psn: u32) -> ToRtr {
        ToRtr {
            path,
            mtu: Mtu::Mtu1024,
            remote_qpn,
            rq_psn,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
        }
    }

    /// The usual values for UC: MTU 1024.
    pub fn uc(path: Path, remote_qpn: Qpn, rq_psn: u32) -> ToRtr {
        ToRtr {
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            ..ToRtr::new(path, remote_qpn, rq_psn)
        }
    }

    pub(super) fn check(&self, caps: &Caps, qp_type: QpType) -> Result<(), ModifyError> {
        let to = QpState::Rtr;
        Attributes { qp_type, to }.only_rc(&[
            ("max_dest_rd_atomic", self.max_dest_rd_atomic),
            ("min_rnr_timer", self.min_rnr_timer),
        ])?;
        let max = 1u64 << caps.general().log_max_ra_res_qp().min(7);
        let reason = "is the device's limit (log_max_ra_res_qp)";
        LimitError::check(
            "QP to RTR",
            "max_dest_rd_atomic",
            self.max_dest_rd_atomic.into(),
            0..=max,
            reason,
        )?;
        let reason = "is what its 5 bits hold";
        LimitError::check(
            "QP to RTR",
            "min_rnr_timer",
            self.min_rnr_timer.into(),
            0..=31,
            reason,
        )?;
        check_psn("QP to RTR", "rq_psn", self.rq_psn)?;
        Ok(())
    }
}

/// What the way from RTR to RTS needs, of RC and UC. All but the PSN is 0 for UC, which repeats nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRts {
    /// PSN of this side's first packet (24 bits): the peer's `rq_psn`.
    pub sq_psn: u32,
    /// How long an answer is waited for: 4.096 us * 2^timeout, 0 for ever (5 bits).
    pub timeout: u8,
    /// How often a request is repeated when no answer comes (3 bits).
    pub retry_count: u8,
    /// How often a request is repeated when the peer has no receive posted; 7 is for ever (3 bits).
    pub rnr_retry: u8,
    /// Most READs and atomics of this side in progress at a time, at most the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: u8,
}

impl ToRts {
    /// The usual values for RC: 67 ms, 7 retries, RNR retries for ever, 16 READs at a time.
    pub fn new(sq_psn: u32) -> ToRts {
        ToRts {
            sq_psn,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
        }
    }

    /// The values for UC.
    pub fn uc(sq_psn: u32) -> ToRts {
        ToRts {
            sq_psn,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
        }
    }

    pub(super) fn check(&self, caps: &Caps, qp_type: QpType) -> Result<(), ModifyError> {
        let to = QpState::Rts;
        Attributes { qp_type, to }.only_rc(&[
            ("timeout", self.timeout),
            ("retry_count", self.retry_count),
            ("rnr_retry", self.rnr_retry),
            ("max_rd_atomic", self.max_rd_atomic),
        ])?;
        let max = 1u64 << caps.general().log_max_ra_req_qp().min(7);
        let reason = "is the device's limit (log_max_ra_req_qp)";
        LimitError::check(
            "QP to RTS",
            "max_rd_atomic",
            self.max_rd_atomic.into(),
            0..=max,
            reason,
        )?;
        let reason = "is what its bits hold";
        LimitError::check("QP to RTS", "timeout", self.timeout.into(), 0..=31, reason)?;
        LimitError::check("QP to RTS", "retry_count", self.retry_count.into(), 0..=7, reason)?;
        LimitError::check("QP to RTS", "rnr_retry", self.rnr_retry.into(), 0..=7, reason)?;
        check_psn("QP to RTS", "sq_psn", self.sq_psn)?;
        Ok(())
    }
}

/// Whether a PSN has no more than its 24 bits.
pub(super) fn check_psn(object: &'static str, attribute: &'static str, psn: u32) -> Result<(), LimitError> {
    LimitError::check(
        object,
        attribute,
        psn.into(),
        0..=MAX_24,
        "is what a PSN's 24 bits hold",
    )
}

/// What can be changed while a queue pair is in RTS.
///
/// Its path is not among it, nor are its traffic class and priority: ConnectX firmware takes a primary path on the way to
/// RTR only. A datagram's are its address handle's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Update {
    /// What the peer's requests may do; of RC and UC. READs and atomics are let in only if [`ToRtr::max_dest_rd_atomic`] was
    /// not 0.
    pub access: Option<Access>,
    /// See [`ToRtr::min_rnr_timer`]; of RC.
    pub min_rnr_timer: Option<u8>,
    /// See `qkey` of [`ToInit`]; of UD.
    pub qkey: Option<u32>,
}

impl Update {
    pub(super) fn check(&self, qp_type: QpType) -> Result<(), ModifyError> {
        let attributes = Attributes {
            qp_type,
            to: QpState::Rts,
        };
        let wrong = [
            ("access", self.access.is_some() && qp_type.is_datagram()),
            (
                "min_rnr_timer",
                self.min_rnr_timer.is_some() && qp_type != QpType::Rc,
            ),
            ("qkey", self.qkey.is_some() && qp_type != QpType::Ud),
        ];
        let given = wrong.iter().find(|(_, wrong)| *wrong);
        given.map_or(Ok(()), |(attribute, _)| Err(attributes.has_no(attribute)))
    }
}

/// What the device says of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttributes {
    /// Its state now.
    pub state: QpState,
    /// The way to the peer; of RC and UC.
    pub path: Path,
    /// Path MTU, if there is one.
    pub mtu: Option<Mtu>,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// PSN of the next packet expected.
    pub rq_psn: u32,
    /// PSN of the next packet to be sent.
    pub sq_psn: u32,
    /// See [`ToRts::timeout`].
    pub timeout: u8,
    /// See [`ToRts::retry_count`].
    pub retry_count: u8,
    /// See [`ToRts::rnr_retry`].
    pub rnr_retry: u8,
    /// See [`ToRtr::min_rnr_timer`].
    pub min_rnr_timer: u8,
    /// What the peer's requests may do.
    pub access: Access,
    /// See `qkey` of [`ToInit`].
    pub qkey: u32,
}

/// log2 of a number of READs that are answered at a time, rounded up: no fewer than was promised.
pub(super) fn log_answered(count: u8) -> u8 {
    count.max(1).next_power_of_two().trailing_zeros() as u8
}

/// log2 of a number of READs that are asked at a time, rounded down: one more than the peer answers is an invalid request.
pub(super) fn log_asked(count: u8) -> u8 {
    count.max(1).ilog2() as u8
}

/// Whether the standard has that transition (IBTA vol. 1, 10.3.1, figure 124). ERR and RESET can be reached from anywhere; of
/// SQE, which RC does not have, UC and UD recover.
pub(super) fn allowed(qp_type: QpType, from: QpState, to: QpState) -> bool {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match (from, to) {
        (_, Reset | Err) | (Reset | Init, Init) | (Init, Rtr) => true,
        (Rtr | Rts | Sqd, Rts) | (Rts | Sqd, Sqd) => true,
        (Sqe, Rts) => qp_type != QpType::Rc,
        _ => false,
    }
}

#[cfg(test)]
#[path = "to_state_tests.rs"]
mod tests;
