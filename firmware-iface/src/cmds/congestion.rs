//! Congestion control: what was marked, notified and reacted to.

use alloc::vec::Vec;

use super::encode;
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{QueryCongStatisticsIn, QueryCongStatisticsOut};
use crate::opcode::Opcode;

/// What `cong_protocol` of the congestion commands names.
pub mod cong_protocol {
    /// RoCE v2 with ECN, reaction point: who receives CNPs and slows down.
    pub const R_ROCE_ECN_RP: u8 = 1;
    /// RoCE v2 with ECN, notification point: who receives marked packets and sends CNPs.
    pub const R_ROCE_ECN_NP: u8 = 2;
}

/// Reads the port's congestion counters. Needs the capability `cc_query_allowed`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueryCongStatistics {
    /// Whether to set them back to zero.
    pub clear: bool,
}

/// Congestion counters of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CongStatistics {
    /// Packets that arrived marked "congestion experienced".
    pub np_ecn_marked_roce_packets: u64,
    /// CNPs sent for them.
    pub np_cnp_sent: u64,
    /// CNPs received and acted on.
    pub rp_cnp_handled: u64,
    /// CNPs received and not acted on.
    pub rp_cnp_ignored: u64,
}

impl Command for QueryCongStatistics {
    type Output = CongStatistics;
    const OPCODE: Opcode = Opcode::QUERY_CONG_STATISTICS;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = QueryCongStatisticsIn::default();
        input.set_clear(self.clear);
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    fn output_length(&self) -> usize {
        QueryCongStatisticsOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<CongStatistics, DecodeError> {
        let out = output::<QueryCongStatisticsOut>(bytes)?;
        let join = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        Ok(CongStatistics {
            np_ecn_marked_roce_packets: join(
                out.np_ecn_marked_roce_packets_high(),
                out.np_ecn_marked_roce_packets_low(),
            ),
            np_cnp_sent: join(out.np_cnp_sent_high(), out.np_cnp_sent_low()),
            rp_cnp_handled: join(out.rp_cnp_handled_high(), out.rp_cnp_handled_low()),
            rp_cnp_ignored: join(out.rp_cnp_ignored_high(), out.rp_cnp_ignored_low()),
        })
    }
}
