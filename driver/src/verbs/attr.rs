//! What a queue pair is made for.

use super::error::{CreateError, LimitError};
use crate::caps::Caps;
use crate::clock::TimestampFormat;
use crate::ring::{QpType, RqLimits, RqShape, SqLimits, SqShape};

/// Bytes of a data segment.
const SEGMENT: u64 = 16;
/// Bytes of a management datagram (IBTA vol. 1, 13.4.2), the longest that QP 1 sends.
const MAD_BYTES: u64 = 256;

/// Longest ring: `qpc.log_sq_size` and `qpc.log_rq_size` have 4 bits. With 2^16 entries, a full ring could not be told from an
/// empty one by indices of 16 bits either.
const MAX_LOG_RING: u8 = 15;

/// What a queue pair shall be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// The transport service.
    pub qp_type: QpType,
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
    /// What its completions' time stamps are. [`TimestampFormat::RealTime`] is refused where the device doesn't have it; of a
    /// device that has nothing else, it is granted.
    pub timestamps: TimestampFormat,
    /// Whether [`Qp::ring_send_blueflame`](super::Qp::ring_send_blueflame) shall send small requests to the device within the
    /// doorbell, so that it need not fetch them. It costs a UAR page for this queue pair alone, and each call a burst of stores
    /// and two fences instead of one store; so it is off by default, since vfio-pci maps BARs uncached today and there it only
    /// costs.
    pub blueflame: bool,
}

impl Default for QpConfig {
    /// RC, 128 requests each way, one element each, 28 bytes inline.
    fn default() -> QpConfig {
        QpConfig {
            qp_type: QpType::Rc,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
            timestamps: TimestampFormat::FreeRunning,
            blueflame: false,
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
    /// Checks the config against the device's limits. A datagram is at most `path_mtu` bytes.
    pub(super) fn shapes(
        &self,
        caps: &Caps,
        atomics: bool,
        path_mtu: u64,
        srq: bool,
    ) -> Result<Shapes, CreateError> {
        let general = caps.general();
        let ring = 1u64 << general.log_max_qp_sz().min(MAX_LOG_RING);
        let max_msg = 1u64 << general.log_max_msg().min(31);
        let offered = match self.qp_type {
            QpType::Rc => Ok(()),
            QpType::Uc if !general.uc() => Err("it has no UC queue pairs (uc)"),
            QpType::Ud if !general.ud() => Err("it has no UD queue pairs (ud)"),
            QpType::Uc | QpType::Ud | QpType::Gsi => Ok(()),
        };
        offered.map_err(|what| CreateError::Capability { what })?;
        let longest_send = match self.qp_type {
            QpType::Rc | QpType::Uc => max_msg,
            QpType::Ud => path_mtu,
            QpType::Gsi => path_mtu.min(MAD_BYTES),
        };
        let sq_wqe = u64::from(general.max_wqe_sz_sq()).min(crate::ring::MAX_WQE_BYTES.into());
        let rq_wqe = u64::from(general.max_wqe_sz_rq());
        let mut granted = *self;
        granted.timestamps = self.timestamps_of(caps)?;
        if srq {
            (granted.max_recv_wr, granted.max_recv_sge) = (0, 0);
        }
        if self.max_send_wr == 0 && self.max_recv_wr == 0 && !srq {
            let reason = "is needed, or max_recv_wr";
            LimitError::check("QP", "max_send_wr", 0, 1..=ring, reason)?;
        }
        let sq = match self.max_send_wr {
            0 => None,
            _ => {
                let (shape, limits) = self.sq_shape(ring, sq_wqe, longest_send, atomics)?;
                granted.max_inline_data = limits.max_inline;
                Some((shape, limits))
            }
        };
        let rq = match granted.max_recv_wr {
            0 => None,
            _ => Some(self.rq_shape(ring, rq_wqe, max_msg)?),
        };
        Ok(Shapes { granted, sq, rq })
    }

    fn timestamps_of(&self, caps: &Caps) -> Result<TimestampFormat, CreateError> {
        match self.timestamps {
            format if format.is_offered(caps) => Ok(format),
            TimestampFormat::FreeRunning => Ok(TimestampFormat::RealTime),
            _ => Err(CreateError::Capability {
                what: "it has no real-time time stamps (roce_cap.qp_ts_format)",
            }),
        }
    }

    fn sq_shape(
        &self,
        ring: u64,
        wqe: u64,
        max_msg: u64,
        atomics: bool,
    ) -> Result<(SqShape, SqLimits), LimitError> {
        let room = wqe.saturating_sub(SqShape::head_bytes(self.qp_type).into());
        let size = "is what fits the device's largest send WQE (max_wqe_sz_sq)";
        LimitError::check(
            "QP",
            "max_send_sge",
            self.max_send_sge.into(),
            0..=room / SEGMENT,
            size,
        )?;
        let inline = room.saturating_sub(4).min(1023).min(max_msg);
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
        let shape =
            SqShape::new(self.qp_type, 1, self.max_send_sge, self.max_inline_data).ok_or(refuse(0))?;
        let max_wr = ring / u64::from(shape.wqe_bytes.div_ceil(crate::ring::WQEBB_BYTES));
        LimitError::check("QP", "max_send_wr", self.max_send_wr.into(), 0..=max_wr, blocks)?;
        let shape = SqShape::new(
            self.qp_type,
            self.max_send_wr,
            self.max_send_sge,
            self.max_inline_data,
        );
        let shape = shape.ok_or(refuse(max_wr))?;
        let max_inline = shape.max_inline.min(inline as u32);
        let (max_wr, max_sge) = (self.max_send_wr, self.max_send_sge);
        let limits = SqLimits::new(self.qp_type, max_wr, max_sge, max_inline, max_msg, atomics);
        Ok((shape, limits))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_no_longer_than_its_field_and_its_indices_whatever_the_device_says() {
        for log_max_qp_sz in [15, 16, 31, 255] {
            let mut caps = crate::caps::testing::caps();
            caps.general.set_log_max_qp_sz(log_max_qp_sz);
            let shapes = |max_send_wr, max_recv_wr| {
                let config = QpConfig {
                    max_send_wr,
                    max_recv_wr,
                    ..QpConfig::default()
                };
                config.shapes(&caps, true, 0, false)
            };
            let largest = shapes(32_768, 32_768).unwrap();
            assert_eq!(largest.sq.map(|(shape, _)| shape.blocks), Some(32_768));
            assert_eq!(largest.rq.map(|(shape, _)| shape.entries), Some(32_768));
            for (send, recv) in [(32_769, 0), (65_536, 0), (0, 32_769), (0, 65_536)] {
                match shapes(send, recv) {
                    Err(CreateError::Limit(error)) => assert_eq!(error.max, 32_768, "{error}"),
                    other => panic!("{send} and {recv} with {log_max_qp_sz}: {other:?}"),
                }
            }
        }
    }
}
