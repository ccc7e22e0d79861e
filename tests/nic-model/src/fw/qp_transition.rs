//! The queue pair transitions: from which states, to which, and which fields of the context they take.
//!
//! A transition takes some fields always and some only when their bit of `opt_param_mask` is set; what it does
//! not take stays as it was. Source: PRM "Modify QP" and, where it is silent, what the Linux driver relies on
//! (permissions set by RST2INIT with a mask of 0 must stick).

use ferroce_firmware_iface::layout::{FieldInfo, Layout, LayoutInfo};
use ferroce_firmware_iface::layouts::Qpc;
use ferroce_firmware_iface::opcode::Opcode;
use zerocopy::IntoBytes;

/// State of a queue pair; the number is the PRM's (`qpc.state`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpState {
    /// Reset.
    Reset = 0,
    /// Initialized: receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue in error.
    Sqe = 4,
    /// Send queue drained.
    Sqd = 5,
    /// Error.
    Err = 6,
}

impl QpState {
    /// The state with the PRM's number.
    pub fn from_prm(number: u8) -> Option<QpState> {
        Some(match number {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqe,
            5 => QpState::Sqd,
            6 => QpState::Err,
            _ => return None,
        })
    }

    /// The name that IBTA prints.
    pub fn name(self) -> &'static str {
        match self {
            QpState::Reset => "Reset",
            QpState::Init => "Init",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqe => "SQE",
            QpState::Sqd => "SQD",
            QpState::Err => "Error",
        }
    }
}

/// A command that moves a queue pair from state to state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The PRM's names.
pub enum QpTransition {
    Rst2Init,
    Init2Init,
    Init2Rtr,
    Rtr2Rts,
    Rts2Rts,
    Sqerr2Rts,
    Sqd2Rts,
    To2Err,
    To2Rst,
}

/// `opt_param_mask` bits (PRM).
#[allow(missing_docs)]
pub mod opt {
    pub const ALT_ADDR_PATH: u32 = 1 << 0;
    pub const RRE: u32 = 1 << 1;
    pub const RAE: u32 = 1 << 2;
    pub const RWE: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const Q_KEY: u32 = 1 << 5;
    pub const RNR_TIMEOUT: u32 = 1 << 6;
    pub const PRIMARY_ADDR_PATH: u32 = 1 << 7;
    pub const SRA_MAX: u32 = 1 << 8;
    pub const RRA_MAX: u32 = 1 << 9;
    pub const PM_STATE: u32 = 1 << 10;
    pub const RETRY_COUNT: u32 = 1 << 12;
    pub const RNR_RETRY: u32 = 1 << 13;
    pub const ACK_TIMEOUT: u32 = 1 << 14;
    pub const LAG_TX_AFF: u32 = 1 << 15;
    pub const PRI_PORT: u32 = 1 << 16;
    pub const SRQN: u32 = 1 << 18;
    pub const CQN_RCV: u32 = 1 << 19;
    pub const DC_HS: u32 = 1 << 20;
    pub const DC_KEY: u32 = 1 << 21;
    pub const COUNTER_SET_ID: u32 = 1 << 25;
}

use opt::*;

/// Which field each bit of the mask stands for.
const MASKED: &[(u32, &[&str])] = &[
    (ALT_ADDR_PATH, &["secondary_address_path"]),
    (RRE, &["rre"]),
    (RAE, &["rae", "atomic_mode"]),
    (RWE, &["rwe"]),
    (PKEY_INDEX, &["primary_address_path.pkey_index"]),
    (Q_KEY, &["q_key"]),
    (RNR_TIMEOUT, &["min_rnr_nak"]),
    (PRIMARY_ADDR_PATH, &["primary_address_path"]),
    (SRA_MAX, &["log_sra_max"]),
    (RRA_MAX, &["log_rra_max"]),
    (PM_STATE, &["pm_state"]),
    (RETRY_COUNT, &["retry_count"]),
    (RNR_RETRY, &["rnr_retry"]),
    (ACK_TIMEOUT, &["primary_address_path.ack_timeout"]),
    (LAG_TX_AFF, &["lag_tx_port_affinity"]),
    (PRI_PORT, &["primary_address_path.vhca_port_num"]),
    (SRQN, &["srqn_rmpn_xrqn"]),
    (CQN_RCV, &["cqn_rcv"]),
    (DC_KEY, &["dc_access_key"]),
    (COUNTER_SET_ID, &["counter_set_id"]),
];

/// What RST2INIT takes: with a mask of 0, the permissions too.
const RST2INIT: &[&str] = &[
    "pd",
    "cqn_snd",
    "cqn_rcv",
    "pm_state",
    "rre",
    "rwe",
    "rae",
    "atomic_mode",
    "q_key",
    "srqn_rmpn_xrqn",
    "xrcd",
    "counter_set_id",
    "lag_tx_port_affinity",
    "primary_address_path.pkey_index",
    "primary_address_path.vhca_port_num",
];
const INIT2RTR: &[&str] = &[
    "mtu",
    "log_msg_max",
    "remote_qpn",
    "next_rcv_psn",
    "log_rra_max",
    "min_rnr_nak",
    "log_ack_req_freq",
    "primary_address_path.rgid_rip",
    "primary_address_path.src_addr_index",
    "primary_address_path.rmac_47_32",
    "primary_address_path.rmac_31_0",
    "primary_address_path.udp_sport",
    "primary_address_path.hop_limit",
    "primary_address_path.tclass",
    "primary_address_path.flow_label",
    "primary_address_path.dscp",
    "primary_address_path.ecn",
    "primary_address_path.eth_prio",
    "primary_address_path.dei_cfi",
    "primary_address_path.sl",
    "primary_address_path.grh",
    "primary_address_path.mlid",
    "primary_address_path.rlid",
    "primary_address_path.fl",
    "primary_address_path.stat_rate",
    "primary_address_path.f_dscp",
    "primary_address_path.f_ecn",
    "primary_address_path.f_eth_prio",
];
const RTR2RTS: &[&str] = &[
    "next_send_psn",
    "log_sra_max",
    "retry_count",
    "rnr_retry",
    "primary_address_path.ack_timeout",
];

impl QpTransition {
    /// The transition that a command asks for.
    pub fn from_opcode(opcode: Opcode) -> Option<QpTransition> {
        Some(match opcode {
            Opcode::RST2INIT_QP => QpTransition::Rst2Init,
            Opcode::INIT2INIT_QP => QpTransition::Init2Init,
            Opcode::INIT2RTR_QP => QpTransition::Init2Rtr,
            Opcode::RTR2RTS_QP => QpTransition::Rtr2Rts,
            Opcode::RTS2RTS_QP => QpTransition::Rts2Rts,
            Opcode::SQERR2RTS_QP => QpTransition::Sqerr2Rts,
            Opcode::SQD2RTS_QP => QpTransition::Sqd2Rts,
            Opcode::QP_2ERR => QpTransition::To2Err,
            Opcode::QP_2RST => QpTransition::To2Rst,
            _ => return None,
        })
    }

    /// Whether it may start from `state`.
    pub fn starts_from(self, state: QpState) -> bool {
        match self {
            QpTransition::Rst2Init => state == QpState::Reset,
            QpTransition::Init2Init | QpTransition::Init2Rtr => state == QpState::Init,
            QpTransition::Rtr2Rts => state == QpState::Rtr,
            QpTransition::Rts2Rts => state == QpState::Rts,
            QpTransition::Sqerr2Rts => state == QpState::Sqe,
            QpTransition::Sqd2Rts => state == QpState::Sqd,
            QpTransition::To2Err | QpTransition::To2Rst => true,
        }
    }

    /// The state it ends in.
    pub fn ends_in(self) -> QpState {
        match self {
            QpTransition::Rst2Init | QpTransition::Init2Init => QpState::Init,
            QpTransition::Init2Rtr => QpState::Rtr,
            QpTransition::Rtr2Rts
            | QpTransition::Rts2Rts
            | QpTransition::Sqerr2Rts
            | QpTransition::Sqd2Rts => QpState::Rts,
            QpTransition::To2Err => QpState::Err,
            QpTransition::To2Rst => QpState::Reset,
        }
    }

    /// Fields that are taken whatever the mask says.
    fn mandatory(self) -> &'static [&'static str] {
        match self {
            QpTransition::Rst2Init => RST2INIT,
            QpTransition::Init2Rtr => INIT2RTR,
            QpTransition::Rtr2Rts => RTR2RTS,
            _ => &[],
        }
    }

    /// Mask bits that mean something for it, of all transport services.
    pub fn allowed_mask(self) -> u32 {
        match self {
            QpTransition::Rst2Init => {
                RRE | RAE | RWE | PKEY_INDEX | Q_KEY | PRI_PORT | COUNTER_SET_ID | LAG_TX_AFF
            }
            QpTransition::Init2Init => {
                RRE | RAE | RWE | PKEY_INDEX | Q_KEY | PRI_PORT | LAG_TX_AFF | COUNTER_SET_ID
            }
            QpTransition::Init2Rtr => {
                ALT_ADDR_PATH | RRE | RAE | RWE | PKEY_INDEX | Q_KEY | LAG_TX_AFF | DC_KEY | PRI_PORT
            }
            QpTransition::Rtr2Rts => ALT_ADDR_PATH | RRE | RAE | RWE | PM_STATE | RNR_TIMEOUT | Q_KEY,
            QpTransition::Rts2Rts => {
                RRE | RAE
                    | RWE
                    | RNR_TIMEOUT
                    | PM_STATE
                    | ALT_ADDR_PATH
                    | COUNTER_SET_ID
                    | Q_KEY
                    | SRQN
                    | CQN_RCV
                    | LAG_TX_AFF
            }
            QpTransition::Sqerr2Rts | QpTransition::Sqd2Rts => RNR_TIMEOUT | RWE | RAE | RRE | Q_KEY,
            QpTransition::To2Err | QpTransition::To2Rst => 0,
        }
    }

    /// Takes over from `new` what the transition takes under `mask`, and sets the state.
    pub fn merge(self, current: &mut Qpc, new: &Qpc, mask: u32) {
        let masked = MASKED.iter().filter(|(bit, _)| mask & bit != 0);
        let names = masked.flat_map(|(_, names)| names.iter());
        for name in self.mandatory().iter().chain(names) {
            copy_field(current.as_mut_bytes(), new.as_bytes(), Qpc::INFO, name);
        }
        // PANIC: never: states are below 16.
        let _ = current.set_state(self.ends_in() as u8);
    }
}

/// Copies the field `path` (parts joined by dots) of a layout from one instance to another.
pub(super) fn copy_field(to: &mut [u8], from: &[u8], info: &LayoutInfo, path: &str) {
    let (base, field) = locate(info, path);
    let start = base + field.bit_offset;
    for bit in start..start + field.bit_width * field.count {
        let (byte, one) = ((bit / 8) as usize, 0x80 >> (bit % 8));
        to[byte] = (to[byte] & !one) | (from[byte] & one);
    }
}

/// The field at `path` and the bit offset of the layout that it is in.
fn locate(info: &LayoutInfo, path: &str) -> (u32, FieldInfo) {
    let mut base = 0;
    let mut info = info;
    let mut parts = path.split('.').peekable();
    loop {
        // PANIC: the paths are the constants above; a test walks all of them.
        let name = parts.next().unwrap_or_default();
        let field = info.fields.iter().find(|f| f.name == name);
        let field = field.unwrap_or_else(|| panic!("{} has no field {name}", info.name));
        if parts.peek().is_none() {
            return (base, *field);
        }
        base += field.bit_offset;
        info = field.nested.unwrap_or_else(|| panic!("{name} has no fields"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [QpTransition; 9] = [
        QpTransition::Rst2Init,
        QpTransition::Init2Init,
        QpTransition::Init2Rtr,
        QpTransition::Rtr2Rts,
        QpTransition::Rts2Rts,
        QpTransition::Sqerr2Rts,
        QpTransition::Sqd2Rts,
        QpTransition::To2Err,
        QpTransition::To2Rst,
    ];

    fn ones() -> Qpc {
        let mut all = Qpc::zeroed();
        all.as_mut_bytes().fill(0xff);
        all
    }

    #[test]
    fn every_named_field_exists() {
        for transition in ALL {
            transition.merge(&mut Qpc::zeroed(), &ones(), u32::MAX);
        }
    }

    #[test]
    fn rst2init_takes_permissions_without_a_mask() {
        let mut qpc = Qpc::zeroed();
        QpTransition::Rst2Init.merge(&mut qpc, &ones(), 0);
        assert!(qpc.rre() && qpc.rwe() && qpc.rae());
        assert_eq!(qpc.state(), 1);
        assert_eq!(qpc.remote_qpn(), 0);
        assert_eq!(qpc.primary_address_path().pkey_index(), 0xffff);
        assert_eq!(qpc.primary_address_path().rmac_31_0(), 0);
    }

    #[test]
    fn init2rtr_takes_permissions_only_under_their_mask_bits() {
        let mut qpc = Qpc::zeroed();
        QpTransition::Init2Rtr.merge(&mut qpc, &ones(), RWE);
        assert!(qpc.rwe() && !qpc.rre() && !qpc.rae());
        assert_eq!(qpc.remote_qpn(), 0xff_ffff);
        assert_eq!(qpc.primary_address_path().rmac_31_0(), u32::MAX);
        assert_eq!(qpc.primary_address_path().ack_timeout(), 0);
        assert_eq!(qpc.next_send_psn(), 0);

        let mut other = ones();
        QpTransition::Init2Rtr.merge(&mut other, &Qpc::zeroed(), 0);
        assert!(other.rwe(), "an unmasked permission stays");
    }

    #[test]
    fn states_follow_the_table() {
        use QpState::*;
        let states = [Reset, Init, Rtr, Rts, Sqe, Sqd, Err];
        for transition in ALL {
            let from: Vec<_> = states
                .into_iter()
                .filter(|s| transition.starts_from(*s))
                .collect();
            let want: &[QpState] = match transition {
                QpTransition::Rst2Init => &[Reset],
                QpTransition::Init2Init | QpTransition::Init2Rtr => &[Init],
                QpTransition::Rtr2Rts => &[Rtr],
                QpTransition::Rts2Rts => &[Rts],
                QpTransition::Sqerr2Rts => &[Sqe],
                QpTransition::Sqd2Rts => &[Sqd],
                QpTransition::To2Err | QpTransition::To2Rst => &states,
            };
            assert_eq!(from, want, "{transition:?}");
        }
        for state in states {
            assert_eq!(QpState::from_prm(state as u8), Some(state));
        }
        assert_eq!(QpState::from_prm(7), None);
    }
}
