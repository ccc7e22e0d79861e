//! What the device can, and which of it the driver has turned on.

use ferroce_firmware_iface::layout::{Layout, view, view_mut};
use ferroce_firmware_iface::layouts::{
    AtomicCaps, CmdHcaCap, PerProtocolNetworkingOffloadCaps, QueryHcaCapIn, QueryHcaCapOut, RoceCap,
    SetHcaCapIn,
};
use ferroce_firmware_iface::opcode::Opcode;
use zerocopy::IntoBytes;

use crate::error::{CommandError, StepError};
use crate::hca::Hca;

/// Kinds of capabilities, as QUERY_HCA_CAP's op_mod counts them. Source: PRM "QUERY_HCA_CAP".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(crate) enum CapType {
    General = 0x0,
    EthernetOffloads = 0x1,
    Atomic = 0x3,
    Roce = 0x4,
}

/// Which values of a capability are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CapMode {
    /// The largest that may be set.
    Max = 0,
    /// Those in effect.
    Current = 1,
}

/// What the device can.
///
/// The layouts' accessors have the PRM's names and meanings.
#[derive(Clone, Debug)]
pub struct Caps {
    pub(crate) general: Box<CmdHcaCap>,
    pub(crate) general_max: Box<CmdHcaCap>,
    pub(crate) atomic: Option<Box<AtomicCaps>>,
    pub(crate) roce: Option<Box<RoceCap>>,
    pub(crate) ethernet: Option<Box<PerProtocolNetworkingOffloadCaps>>,
}

impl Caps {
    /// General capabilities in effect.
    #[must_use]
    pub fn general(&self) -> &CmdHcaCap {
        &self.general
    }

    /// General capabilities at their largest, as they could be set before INIT_HCA.
    #[must_use]
    pub fn general_max(&self) -> &CmdHcaCap {
        &self.general_max
    }

    /// Atomic operations, if the device has any.
    #[must_use]
    pub fn atomic(&self) -> Option<&AtomicCaps> {
        self.atomic.as_deref()
    }

    /// RoCE, if the device has it.
    #[must_use]
    pub fn roce(&self) -> Option<&RoceCap> {
        self.roce.as_deref()
    }

    /// Ethernet offloads, if the device has any.
    #[must_use]
    pub fn ethernet(&self) -> Option<&PerProtocolNetworkingOffloadCaps> {
        self.ethernet.as_deref()
    }

    /// Event queues that there may be. Source: Linux mlx5.
    #[must_use]
    pub fn max_eqs(&self) -> u32 {
        match self.general.max_num_eqs() {
            0 => 1 << self.general.log_max_eq(),
            max => u32::from(max),
        }
    }

    /// Bytes from one BlueFlame register (send doorbell) of a UAR page to the next.
    #[must_use]
    pub fn bf_reg_bytes(&self) -> u32 {
        1 << self.general.log_bf_reg_size().min(31)
    }
}

/// Asks for a capability.
pub(crate) fn query<T: Layout>(hca: &Hca, kind: CapType, mode: CapMode) -> Result<Box<T>, StepError> {
    let cap = query_raw(hca, kind, mode)?;
    Ok(Box::new(view::<T>(&cap).copied_or_zeroed()))
}

/// Asks for a capability; all [`CAP_BYTES`] of it, also what this driver has no names for.
pub(crate) fn query_raw(hca: &Hca, kind: CapType, mode: CapMode) -> Result<Vec<u8>, CommandError> {
    let mut input = QueryHcaCapIn::default();
    input.set_opcode(Opcode::QUERY_HCA_CAP.0);
    input.set_op_mod((kind as u16) << 1 | mode as u16);
    let mut output = vec![0; QueryHcaCapOut::BYTES];
    hca.exec_raw(input.as_bytes(), &mut output)?;
    Ok(output.split_off(QueryHcaCapOut::CAPABILITY_OFFSET))
}

/// Sets a capability, given as [`query_raw`] returned it.
pub(crate) fn set(hca: &Hca, kind: CapType, cap: &[u8]) -> Result<(), CommandError> {
    let mut input = SetHcaCapIn::default();
    input.set_opcode(Opcode::SET_HCA_CAP.0);
    // The kind stands where QUERY_HCA_CAP has it: above the bit for the mode.
    input.set_op_mod((kind as u16) << 1);
    let mut bytes = input.as_bytes().to_vec();
    bytes.truncate(SetHcaCapIn::CAPABILITY_OFFSET);
    bytes.extend_from_slice(cap);
    hca.exec_raw(&bytes, &mut [0; 16])
}

/// A copy of a layout that may be missing from too short an answer.
trait CopiedOrZeroed<T> {
    fn copied_or_zeroed(self) -> T;
}

impl<T: Layout> CopiedOrZeroed<T> for Option<&T> {
    fn copied_or_zeroed(self) -> T {
        self.cloned().unwrap_or_else(T::zeroed)
    }
}

/// What SET_HCA_CAP is to say: the capabilities in effect with the driver's changes. Source: Linux mlx5.
pub(crate) fn wanted_general(current: &[u8], max: &CmdHcaCap) -> Result<Vec<u8>, StepError> {
    let mut bytes = current.to_vec();
    let Some(cap) = view_mut::<CmdHcaCap>(&mut bytes) else {
        return Err(StepError::Value {
            what: "cmd_hca_cap length",
            value: current.len() as u64,
            limit: format!("at least {}", CmdHcaCap::BYTES),
        });
    };
    // 0 stands for 128 entries.
    cap.set_pkey_table_size(0);
    // Firmware sets memory aside for each QP that there may be.
    cap.set_log_max_qp(max.log_max_qp().min(LOG_MAX_QP))?;
    cap.set_cmdif_checksum(0)?;
    // The unit of UARs is a page of 4 KiB, whatever the host's pages are.
    cap.set_log_uar_page_sz(0);
    if max.cache_line_128byte() {
        cap.set_cache_line_128byte(cache_line_bytes() >= 128);
    }
    cap.set_dct(max.dct());
    cap.set_release_all_pages(max.release_all_pages());
    cap.set_mkey_by_name(max.mkey_by_name());
    if max.num_vhca_ports() > 0 {
        cap.set_num_vhca_ports(max.num_vhca_ports());
    }
    if current_wants_roce(max) {
        cap.set_roce(true);
    }
    Ok(bytes)
}

/// Base-2 logarithm of the number of QPs that the driver asks for. Source: Linux mlx5's default profile.
const LOG_MAX_QP: u8 = 18;

fn current_wants_roce(max: &CmdHcaCap) -> bool {
    max.roce() && max.roce_rw_supported()
}

/// Bytes of a cache line.
const fn cache_line_bytes() -> usize {
    if cfg!(any(target_arch = "powerpc64", target_arch = "s390x")) {
        128
    } else {
        64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a capability in a command. Source: PRM `hca_cap_union`.
    const CAP_BYTES: usize = QueryHcaCapOut::BYTES - QueryHcaCapOut::CAPABILITY_OFFSET;

    #[test]
    fn set_hca_cap_keeps_what_the_driver_has_no_name_for() {
        let mut current = vec![0u8; CAP_BYTES];
        current[CAP_BYTES - 1] = 0x5a;
        let cap = view_mut::<CmdHcaCap>(&mut current).unwrap();
        cap.set_pkey_table_size(5);
        cap.set_cmdif_checksum(3).unwrap();
        cap.set_log_max_qp(14).unwrap();
        let mut max = CmdHcaCap::default();
        max.set_log_max_qp(23).unwrap();
        max.set_dct(true);
        let wanted = wanted_general(&current, &max).unwrap();
        assert_eq!(wanted[CAP_BYTES - 1], 0x5a);
        let cap = view::<CmdHcaCap>(&wanted).unwrap();
        assert_eq!(
            (cap.pkey_table_size(), cap.cmdif_checksum(), cap.log_max_qp()),
            (0, 0, 18)
        );
        assert!(cap.dct() && !cap.mkey_by_name());
        max.set_log_max_qp(9).unwrap();
        let wanted = wanted_general(&current, &max).unwrap();
        assert_eq!(
            view::<CmdHcaCap>(&wanted).unwrap().log_max_qp(),
            9,
            "not more than there may be"
        );
    }

    #[test]
    fn a_short_capability_is_refused() {
        assert!(wanted_general(&[0; 16], &CmdHcaCap::default()).is_err());
    }
}
