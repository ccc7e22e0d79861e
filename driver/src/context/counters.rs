//! What the port has counted.

use ferroce_firmware_iface::cmds::{
    CongStatistics, ModifyNotificationPoint, QueryCongStatistics, ReadRegister,
};
use ferroce_firmware_iface::layout::{Layout, ValueTooWide};
use ferroce_firmware_iface::layouts::{Eth8023CntrsGrpDataLayout, EthPerPrioGrpDataLayout, PpcntReg};
use ferroce_firmware_iface::opcode::Opcode;
use zerocopy::{FromBytes, IntoBytes};

use super::Context;
use crate::error::CommandError;
use crate::port::PortNumber;

/// Group of register PPCNT: IEEE 802.3.
const IEEE_802_3: u8 = 0x0;
/// Group of register PPCNT: one priority.
const PER_PRIORITY: u8 = 0x10;

/// Counters of the port since it was powered up, of all who use it (register PPCNT: IEEE 802.3, group 0, and priorities,
/// group 0x10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PortCounters {
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Octets sent.
    pub octets_sent: u64,
    /// Octets received.
    pub octets_received: u64,
    /// Frames received whose check sequence was wrong.
    pub check_sequence_errors: u64,
    /// MAC control frames received: pause frames, priority pause frames and others.
    pub mac_control_received: u64,
    /// Pause frames of the whole link received (IEEE 802.3, annex 31B).
    pub pause_received: u64,
    /// Pause frames of the whole link sent.
    pub pause_sent: u64,
    /// Priority pause frames received (IEEE 802.1Qbb), by the priorities that they stop or start; one that names several counts
    /// for each. Those of priority 0 have the pause frames of the whole link among them, as NICs count these there.
    pub priority_pause_received: [u64; 8],
    /// The same of those sent.
    pub priority_pause_sent: [u64; 8],
}

impl Context {
    /// Marked packets and congestion notifications of RoCE v2 that the port has received and sent, as firmware counts
    /// them.
    ///
    /// # Errors
    ///
    /// The command failed; a NIC without the capability `cc_query_allowed` refuses it.
    pub fn congestion_counters(&self) -> Result<CongStatistics, CommandError> {
        self.exec(&QueryCongStatistics::default())
    }

    /// Sets how the port answers packets that a switch has marked: what its CNPs look like, and how many there are at most
    /// (IBTA vol. 1, A17.9.3). It holds for all who use the port, and until the NIC's firmware is started anew.
    ///
    /// # Errors
    ///
    /// A value is out of its range, or the command failed; a NIC without the capability `cc_modify_allowed` refuses it.
    pub fn set_notification_point(&self, how: &ModifyNotificationPoint) -> Result<(), CommandError> {
        self.exec(how)
    }

    /// Frames of all kinds that the first port has received and sent; of others [`Port::counters`](super::Port::counters).
    ///
    /// # Errors
    ///
    /// The command failed.
    pub fn port_counters(&self) -> Result<PortCounters, CommandError> {
        self.counters_of(PortNumber::FIRST)
    }

    pub(super) fn counters_of(&self, port: PortNumber) -> Result<PortCounters, CommandError> {
        let mut counters = all_frames(&self.counter_group(port, IEEE_802_3, 0)?);
        let both = counters.priority_pause_received.iter_mut();
        let both = both.zip(&mut counters.priority_pause_sent);
        for (priority, (received, sent)) in (0..).zip(both) {
            let group: EthPerPrioGrpDataLayout = self.counter_group(port, PER_PRIORITY, priority)?;
            *received = join(group.rx_pause_high(), group.rx_pause_low());
            *sent = join(group.tx_pause_high(), group.tx_pause_low());
        }
        Ok(counters)
    }

    /// A group of register PPCNT, of one priority where it is by priority.
    fn counter_group<T: Layout + FromBytes>(
        &self,
        port: PortNumber,
        group: u8,
        priority: u8,
    ) -> Result<T, CommandError> {
        let encode = |source: ValueTooWide| CommandError::Encode {
            opcode: Opcode::ACCESS_REG,
            source: source.into(),
        };
        let mut request = PpcntReg::default();
        request.set_local_port(port.get());
        request.set_grp(group).map_err(encode)?;
        request.set_prio_tc(priority).map_err(encode)?;
        let register = self.exec(&ReadRegister::new(request))?;
        let bytes = &register.as_bytes()[PpcntReg::COUNTER_SET_OFFSET..];
        // The groups' layouts are as long as what the register has for them.
        Ok(T::read_from_bytes(bytes).unwrap_or_else(|_| T::zeroed()))
    }
}

fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// What group 0 tells.
fn all_frames(group: &Eth8023CntrsGrpDataLayout) -> PortCounters {
    PortCounters {
        frames_sent: join(
            group.a_frames_transmitted_ok_high(),
            group.a_frames_transmitted_ok_low(),
        ),
        frames_received: join(
            group.a_frames_received_ok_high(),
            group.a_frames_received_ok_low(),
        ),
        octets_sent: join(
            group.a_octets_transmitted_ok_high(),
            group.a_octets_transmitted_ok_low(),
        ),
        octets_received: join(
            group.a_octets_received_ok_high(),
            group.a_octets_received_ok_low(),
        ),
        check_sequence_errors: join(
            group.a_frame_check_sequence_errors_high(),
            group.a_frame_check_sequence_errors_low(),
        ),
        mac_control_received: join(
            group.a_mac_control_frames_received_high(),
            group.a_mac_control_frames_received_low(),
        ),
        pause_received: join(
            group.a_pause_mac_ctrl_frames_received_high(),
            group.a_pause_mac_ctrl_frames_received_low(),
        ),
        pause_sent: join(
            group.a_pause_mac_ctrl_frames_transmitted_high(),
            group.a_pause_mac_ctrl_frames_transmitted_low(),
        ),
        ..PortCounters::default()
    }
}
