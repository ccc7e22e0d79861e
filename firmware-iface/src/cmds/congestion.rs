//! Congestion control: what was marked, notified and reacted to.

use alloc::vec::Vec;

use zerocopy::IntoBytes;

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    CongControlRRoceEcnNp, ModifyCongParamsIn, QueryCongStatisticsIn, QueryCongStatisticsOut,
};
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

/// `field_select` of the notification point's parameters: a bit each.
mod select {
    pub const MIN_TIME_BETWEEN_CNPS: u32 = 1 << 2;
    pub const CNP_DSCP: u32 = 1 << 3;
    pub const CNP_PRIORITY: u32 = 1 << 4;
}

/// Sets how a port answers packets that are marked "congestion experienced" (CNPs, IBTA vol. 1, A17.9.3); what is `None`
/// stays as it is. Needs the capability `cc_modify_allowed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ModifyNotificationPoint {
    /// Least time between two CNPs of a flow, in microseconds.
    pub min_time_between_cnps: Option<u32>,
    /// DSCP of CNPs, 0 to 63.
    pub cnp_dscp: Option<u8>,
    /// Ethernet priority of CNPs, 0 to 7.
    pub cnp_priority: Option<u8>,
}

impl Command for ModifyNotificationPoint {
    plain_answer!();
    const OPCODE: Opcode = Opcode::MODIFY_CONG_PARAMS;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut np = CongControlRRoceEcnNp::default();
        let mut fields = 0;
        if let Some(time) = self.min_time_between_cnps {
            np.set_min_time_between_cnps(time);
            fields |= select::MIN_TIME_BETWEEN_CNPS;
        }
        if let Some(dscp) = self.cnp_dscp {
            np.set_cnp_dscp(dscp)?;
            fields |= select::CNP_DSCP;
        }
        if let Some(priority) = self.cnp_priority {
            np.set_cnp_802p_prio(priority)?;
            fields |= select::CNP_PRIORITY;
        }
        let mut input = ModifyCongParamsIn::default();
        input.set_cong_protocol(cong_protocol::R_ROCE_ECN_NP)?;
        input.set_field_select(fields);
        let mut bytes = encode(Self::OPCODE, 0, &input, &[]);
        bytes.truncate(ModifyCongParamsIn::CONGESTION_PARAMETERS_OFFSET);
        bytes.extend_from_slice(np.as_bytes());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_given_is_selected() {
        let some = ModifyNotificationPoint {
            cnp_dscp: Some(46),
            cnp_priority: Some(5),
            ..ModifyNotificationPoint::default()
        };
        let bytes = some.encode().unwrap();
        assert_eq!(bytes.len(), 0x120);
        assert_eq!(bytes[..4], [0x08, 0x25, 0, 0]);
        assert_eq!(bytes[8..0x10], [0, 0, 0, 2, 0, 0, 0, 0x18]);
        // The parameters are at 0x20: DSCP at bits 13:8 of their dword 0x18, priority at 2:0.
        assert_eq!(bytes[0x38..0x3c], [0, 0, 46, 5]);
        assert!(bytes[0x10..0x38].iter().chain(&bytes[0x3c..]).all(|b| *b == 0));
        let time = ModifyNotificationPoint {
            min_time_between_cnps: Some(50),
            ..ModifyNotificationPoint::default()
        };
        assert_eq!(time.encode().unwrap()[0xc..0x10], [0, 0, 0, 4]);
        assert_eq!(time.encode().unwrap()[0x34..0x38], [0, 0, 0, 50]);
    }

    #[test]
    fn values_past_their_fields_are_refused() {
        for (cnp_dscp, cnp_priority) in [(Some(64), None), (None, Some(8))] {
            let wrong = ModifyNotificationPoint {
                cnp_dscp,
                cnp_priority,
                ..ModifyNotificationPoint::default()
            };
            assert!(wrong.encode().is_err(), "{wrong:?}");
        }
    }
}
