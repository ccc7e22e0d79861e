//! The steps that make the HCA: enable, pages, capabilities, INIT_HCA.

use ferroce_firmware_iface::cmds::{
    CapMode, CapValue, Capability, PagesFor, QueryAdapter, QueryHcaCap, QueryIssi, QueryPages, SetHcaCap,
    SetIssi, WriteRegister,
};
use ferroce_firmware_iface::layouts::{AtomicCaps, CmdHcaCap, RegisterHostEndianness, RoceCap};

use crate::caps::{self, Caps};
use crate::context::Adapter;
use crate::error::{CommandError, StepError};
use crate::hca::Hca;

/// `port_type` of an Ethernet port. Source: PRM `cmd_hca_cap`.
const PORT_TYPE_ETHERNET: u8 = 1;

/// Agrees on the newest interface step sequence id that both know: 1, or 0 where firmware has no other.
pub(super) fn issi(hca: &Hca) -> Result<(), CommandError> {
    let supported = match hca.exec(&QueryIssi) {
        Ok(issi) => issi.supported,
        // Old firmware has only 0 and does not know the command.
        Err(error) if error.refused() => 0,
        Err(error) => return Err(error),
    };
    if supported & 1 << 1 == 0 {
        log::debug!("firmware has only ISSI 0 (supported: {supported:#x})");
        return Ok(());
    }
    hca.exec(&SetIssi { issi: 1 })
}

/// Gives firmware the pages that it asks for.
pub(super) fn give_pages(hca: &Hca, pages_for: PagesFor) -> Result<(), StepError> {
    let wanted = hca.exec(&QueryPages { pages_for })?;
    // A negative number would be an offer to take pages back, of which there are none.
    let count = wanted.num_pages.max(0).unsigned_abs();
    log::debug!("firmware asks for {count} {pages_for:?} pages");
    if count == 0 {
        return Ok(());
    }
    hca.pages().give_now(hca, wanted.function_id, count)
}

/// Tells firmware the byte order of this host.
pub(super) fn host_endianness(hca: &Hca) -> Result<(), CommandError> {
    let mut register = RegisterHostEndianness::default();
    register.set_he(cfg!(target_endian = "big"));
    hca.exec(&WriteRegister { register })
}

/// Reads the capabilities and sets those that the driver wants otherwise.
pub(super) fn negotiate_capabilities(hca: &Hca) -> Result<(), StepError> {
    let mut general = query::<CmdHcaCap>(hca, CapMode::Current)?;
    let max = query::<CmdHcaCap>(hca, CapMode::Max)?.layout;
    check_general(&max)?;
    caps::want_general(&mut general.layout, &max)?;
    hca.exec(&SetHcaCap { value: &general })?;
    if max.atomic() {
        negotiate_atomic(hca)?;
    }
    if max.roce() {
        negotiate_roce(hca)?;
    }
    Ok(())
}

fn query<T: Capability>(hca: &Hca, mode: CapMode) -> Result<CapValue<T>, CommandError> {
    hca.exec(&QueryHcaCap::new(mode))
}

fn check_general(cap: &CmdHcaCap) -> Result<(), StepError> {
    if cap.port_type() != PORT_TYPE_ETHERNET {
        return Err(StepError::Unsupported(format!(
            "Ethernet on its port (port_type {}); set it with the vendor's mlxconfig (LINK_TYPE_P1=ETH)",
            cap.port_type()
        )));
    }
    if cap.num_ports() == 0 {
        return Err(StepError::Value {
            what: "num_ports",
            value: 0,
            limit: "at least 1".into(),
        });
    }
    if cap.log_bf_reg_size() < 4 || cap.log_bf_reg_size() > 11 {
        let limit = "within 4..=11, so that a UAR page holds doorbells".to_owned();
        return Err(StepError::Value {
            what: "log_bf_reg_size",
            value: cap.log_bf_reg_size().into(),
            limit,
        });
    }
    Ok(())
}

/// Atomics' results in the host's byte order, where the device can do that.
fn negotiate_atomic(hca: &Hca) -> Result<(), StepError> {
    let cap = query::<AtomicCaps>(hca, CapMode::Current)?.layout;
    let max = query::<AtomicCaps>(hca, CapMode::Max)?;
    log::debug!("atomics: {max:?}");
    if !cap.supported_atomic_req_8B_endianness_mode_1() || cap.atomic_req_8B_endianness_mode() == 1 {
        return Ok(());
    }
    // Nothing else of it can be set; Linux mlx5_core sends zeros there.
    let mut wanted = AtomicCaps::default();
    wanted.set_atomic_req_8B_endianness_mode(1)?;
    let value = &CapValue::only(wanted);
    Ok(hca.exec(&SetHcaCap { value })?)
}

/// The driver chooses UDP source ports, where the device leaves that to it.
fn negotiate_roce(hca: &Hca) -> Result<(), StepError> {
    let mut roce = query::<RoceCap>(hca, CapMode::Current)?;
    let max = query::<RoceCap>(hca, CapMode::Max)?.layout;
    if !max.sw_r_roce_src_udp_port() || roce.layout.sw_r_roce_src_udp_port() {
        return Ok(());
    }
    roce.layout.set_sw_r_roce_src_udp_port(true);
    Ok(hca.exec(&SetHcaCap { value: &roce })?)
}

/// The capabilities as they hold from now on.
pub(super) fn effective_capabilities(hca: &Hca) -> Result<Caps, StepError> {
    let general = boxed::<CmdHcaCap>(hca, CapMode::Current)?;
    check_general(&general)?;
    let general_max = boxed(hca, CapMode::Max)?;
    let ethernet = general.eth_net_offloads();
    let (atomic, roce) = (general.atomic(), general.roce());
    Ok(Caps {
        general,
        general_max,
        ethernet: ethernet.then(|| boxed(hca, CapMode::Current)).transpose()?,
        atomic: atomic.then(|| boxed(hca, CapMode::Current)).transpose()?,
        roce: roce.then(|| boxed(hca, CapMode::Current)).transpose()?,
    })
}

fn boxed<T: Capability>(hca: &Hca, mode: CapMode) -> Result<Box<T>, CommandError> {
    Ok(Box::new(query::<T>(hca, mode)?.layout))
}

pub(super) fn adapter(hca: &Hca) -> Result<Adapter, CommandError> {
    let adapter = hca.exec(&QueryAdapter)?;
    let psid = adapter.psid.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Adapter {
        ieee_vendor_id: adapter.ieee_vendor_id,
        vsd_vendor_id: adapter.vsd_vendor_id,
        psid: String::from_utf8_lossy(psid).trim().to_owned(),
    })
}
