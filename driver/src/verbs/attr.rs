//! What a queue pair is made for, and what each change of its state needs.

use ferroce_hw_regs::ids::Qpn;

use super::error::{CreateError, LimitError, ModifyError};
use super::mkey::Access;
use super::path::{Mtu, Path};
use crate::caps::Caps;
use crate::ring::{QpState, RqLimits, RqShape, SqLimits, SqShape};

/// Largest QPN or PSN.
const MAX_24: u64 = 0xff_ffff;
/// Bytes of a WQE in front of its data: control and remote address segments.
const WQE_HEAD: u64 = 32;
/// Bytes of a data segment.
const SEGMENT: u64 = 16;

/// What a queue pair shall be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Most send requests outstanding at a time; 0 for a queue pair that only receives. Granted exactly.
    pub max_send_wr: u32,
    /// Most receive requests outstanding at a time; 0 for a queue pair that only sends. Granted exactly.
    pub max_recv_wr: u32,
    /// Most scatter/gather elements of a send request.
    pub max_send_sge: u32,
    /// Most scatter/gather elements of a receive request.
    pub max_recv_sge: u32,
    /// Most bytes of inline data. What is granted ([`Qp::config`](super::Qp::config)) may be more.
    pub max_inline_data: u32,
}

impl Default for QpConfig {
    /// 128 requests each way, one element each, 28 bytes inline.
    fn default() -> QpConfig {
        QpConfig {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        }
    }
}

/// A config that the device takes, and what it leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shapes {
    pub(super) granted: QpConfig,
    pub(super) sq: Option<(SqShape, SqLimits)>,
    pub(super) rq: Option<(RqShape, RqLimits)>,
}

impl QpConfig {
    /// Checks the config against the device's limits.
    pub(super) fn shapes(&self, caps: &Caps, atomics: bool) -> Result<Shapes, CreateError> {
        let general = caps.general();
        let ring = 1u64 << general.log_max_qp_sz().min(16);
        let max_msg = 1u64 << general.log_max_msg().min(31);
        let sq_wqe = u64::from(general.max_wqe_sz_sq()).min(crate::ring::MAX_WQE_BYTES.into());
        let rq_wqe = u64::from(general.max_wqe_sz_rq());
        if self.max_send_wr == 0 && self.max_recv_wr == 0 {
            let reason = "is needed, or max_recv_wr";
            LimitError::check("QP", "max_send_wr", 0, 1..=ring, reason)?;
        }
        let mut granted = *self;
        let sq = match self.max_send_wr {
            0 => None,
            _ => {
                let (shape, limits) = self.sq_shape(ring, sq_wqe, max_msg, atomics)?;
                granted.max_inline_data = limits.max_inline;
                Some((shape, limits))
            }
        };
        let rq = match self.max_recv_wr {
            0 => None,
            _ => Some(self.rq_shape(ring, rq_wqe, max_msg)?),
        };
        Ok(Shapes { granted, sq, rq })
    }

    fn sq_shape(
        &self,
        ring: u64,
        wqe: u64,
        max_msg: u64,
        atomics: bool,
    ) -> Result<(SqShape, SqLimits), LimitError> {
        let room = wqe.saturating_sub(WQE_HEAD);
        let size = "is what fits the device's largest send WQE (max_wqe_sz_sq)";
        LimitError::check(
            "QP",
            "max_send_sge",
            self.max_send_sge.into(),
            0..=room / SEGMENT,
            size,
        )?;
        let inline = room.saturating_sub(4).min(1023);
        LimitError::check(
            "QP",
            "max_inline_data",
            self.max_inline_data.into(),
            0..=inline,
            size,
        )?;
        let blocks = "is the device's limit (log_max_qp_sz, in 64-byte blocks) for requests of that size";
        let refuse = |max: u64| LimitError {
            object: "QP",
            attribute: "max_send_wr",
            asked: self.max_send_wr.into(),
            min: 0,
            max,
            reason: blocks,
        };
        let shape = SqShape::new(1, self.max_send_sge, self.max_inline_data).ok_or(refuse(0))?;
        let max_wr = ring / u64::from(shape.wqe_bytes.div_ceil(crate::ring::WQEBB_BYTES));
        LimitError::check("QP", "max_send_wr", self.max_send_wr.into(), 0..=max_wr, blocks)?;
        let shape = SqShape::new(self.max_send_wr, self.max_send_sge, self.max_inline_data);
        let shape = shape.ok_or(refuse(max_wr))?;
        let max_inline = shape.max_inline.min(inline as u32);
        let (max_wr, max_sge) = (self.max_send_wr, self.max_send_sge);
        Ok((
            shape,
            SqLimits {
                max_wr,
                max_sge,
                max_inline,
                max_msg,
                atomics,
            },
        ))
    }

    fn rq_shape(&self, ring: u64, wqe: u64, max_msg: u64) -> Result<(RqShape, RqLimits), LimitError> {
        let blocks = "is the device's limit (log_max_qp_sz)";
        LimitError::check("QP", "max_recv_wr", self.max_recv_wr.into(), 0..=ring, blocks)?;
        let size = "is what fits the device's largest receive WQE (max_wqe_sz_rq)";
        // The stride is a power of two of at most 2 KiB (`qpc.log_rq_stride` has 3 bits).
        let max_sge = (wqe.min(2048) / SEGMENT)
            .checked_ilog2()
            .map_or(0, |log| 1 << log);
        LimitError::check("QP", "max_recv_sge", self.max_recv_sge.into(), 0..=max_sge, size)?;
        let (max_wr, max_sge) = (self.max_recv_wr, self.max_recv_sge);
        let shape = RqShape::new(max_wr, max_sge).ok_or(LimitError {
            object: "QP",
            attribute: "max_recv_wr",
            asked: max_wr.into(),
            min: 0,
            max: ring,
            reason: blocks,
        })?;
        Ok((
            shape,
            RqLimits {
                max_wr,
                max_sge,
                max_msg,
            },
        ))
    }
}

/// What the way from RESET to INIT needs, and from INIT to INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToInit {
    /// The port, from 1.
    pub port: u8,
    /// Index in the table of partition keys; RoCE has only index 0.
    pub pkey_index: u16,
    /// What the peer's requests may do. `LOCAL_WRITE` has no meaning here, nor has `REMOTE_ATOMIC` where the device does no
    /// atomics: then no region allows them.
    pub access: Access,
}

impl Default for ToInit {
    /// Port 1, all remote access: what is reachable is up to the memory regions.
    fn default() -> ToInit {
        ToInit {
            port: 1,
            pkey_index: 0,
            access: Access::all(),
        }
    }
}

/// What the way from INIT to RTR needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToRtr {
    /// The way to the peer.
    pub path: Path,
    /// Path MTU; both sides have the same.
    pub mtu: Mtu,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// PSN of the peer's first packet (24 bits).
    pub rq_psn: u32,
    /// Most READs and atomics of the peer in progress at a time.
    pub max_dest_rd_atomic: u8,
    /// How long the peer shall wait when it finds no receive posted, as a code of 5 bits (IBTA vol. 1, table 45): 12 is
    /// 0.64 ms, 1 is 0.01 ms, 0 is 655.36 ms.
    pub min_rnr_timer: u8,
}

impl ToRtr {
    /// The usual values: MTU 1024, 16 READs at a time, 0.64 ms.
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

    pub(super) fn check(&self, caps: &Caps) -> Result<(), ModifyError> {
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
        let reason = "is what a PSN's 24 bits hold";
        LimitError::check("QP to RTR", "rq_psn", self.rq_psn.into(), 0..=MAX_24, reason)?;
        Ok(())
    }
}

/// What the way from RTR to RTS needs.
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
    /// The usual values: 67 ms, 7 retries, RNR retries for ever, 16 READs at a time.
    pub fn new(sq_psn: u32) -> ToRts {
        ToRts {
            sq_psn,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
        }
    }

    pub(super) fn check(&self, caps: &Caps) -> Result<(), ModifyError> {
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
        LimitError::check("QP to RTS", "sq_psn", self.sq_psn.into(), 0..=MAX_24, reason)?;
        Ok(())
    }
}

/// What can be changed while a queue pair is in RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Update {
    /// What the peer's requests may do.
    pub access: Option<Access>,
    /// See [`ToRtr::min_rnr_timer`].
    pub min_rnr_timer: Option<u8>,
}

/// What the device says of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttributes {
    /// Its state now.
    pub state: QpState,
    /// The way to the peer.
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
}

/// log2 of a number of READs, rounded up.
pub(super) fn log_depth(count: u8) -> u8 {
    count.max(1).next_power_of_two().trailing_zeros() as u8
}

/// Whether the standard has that transition for RC queue pairs (IBTA vol. 1, 10.3.1, figure 124). ERR and RESET can be
/// reached from anywhere.
pub(super) fn allowed(from: QpState, to: QpState) -> bool {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};
    matches!(
        (from, to),
        (_, Reset | Err) | (Reset | Init, Init) | (Init, Rtr) | (Rtr | Rts | Sqd, Rts) | (Rts | Sqd, Sqd)
    )
}

#[cfg(test)]
#[path = "attr_tests.rs"]
mod tests;
