//! What the device can, and which of it the driver has turned on.

use ferroce_firmware_iface::layout::ValueTooWide;
use ferroce_firmware_iface::layouts::{AtomicCaps, CmdHcaCap, PerProtocolNetworkingOffloadCaps, RoceCap};

use crate::port::PortNumber;

/// Ports beyond this one can't be told apart in events: `port_state_change_event.port_num` has 4 bits.
const MAX_PORTS: u8 = 15;

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

    /// Ports of the NIC, ascending: one at least.
    pub fn ports(&self) -> impl Iterator<Item = PortNumber> + use<> {
        let most = self.general.num_ports().clamp(1, MAX_PORTS);
        (1..=most).filter_map(PortNumber::new)
    }

    /// Whether the NIC has that port.
    #[must_use]
    pub fn has_port(&self, port: PortNumber) -> bool {
        self.ports().any(|have| have == port)
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

/// Makes of the capabilities in effect those that SET_HCA_CAP is to set. Source: Linux mlx5.
pub(crate) fn want_general(cap: &mut CmdHcaCap, max: &CmdHcaCap) -> Result<(), ValueTooWide> {
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
    Ok(())
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

/// Capabilities for tests that need no device.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A device with the limits of a ConnectX-4, as far as queue pairs are concerned.
    pub(crate) fn caps() -> Caps {
        let mut general = Box::new(CmdHcaCap::default());
        general.set_log_max_qp_sz(15);
        general.set_log_max_msg(30).unwrap();
        general.set_max_wqe_sz_sq(1008);
        general.set_max_wqe_sz_rq(512);
        general.set_log_max_ra_req_qp(4).unwrap();
        general.set_log_max_ra_res_qp(4).unwrap();
        Caps {
            general_max: general.clone(),
            general,
            atomic: None,
            roce: None,
            ethernet: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_wants_otherwise_is_changed_within_what_there_may_be() {
        let mut current = CmdHcaCap::default();
        current.set_pkey_table_size(5);
        current.set_cmdif_checksum(3).unwrap();
        current.set_log_max_qp(14).unwrap();
        let mut max = CmdHcaCap::default();
        max.set_log_max_qp(23).unwrap();
        max.set_dct(true);
        let mut cap = current;
        want_general(&mut cap, &max).unwrap();
        assert_eq!(
            (cap.pkey_table_size(), cap.cmdif_checksum(), cap.log_max_qp()),
            (0, 0, 18)
        );
        assert!(cap.dct() && !cap.mkey_by_name());
        max.set_log_max_qp(9).unwrap();
        let mut cap = current;
        want_general(&mut cap, &max).unwrap();
        assert_eq!(cap.log_max_qp(), 9, "not more than there may be");
    }
}
