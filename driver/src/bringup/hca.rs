//! The steps that make the HCA: enable, pages, capabilities, INIT_HCA.

use ferroce_firmware_iface::layout::{view, view_mut};
use ferroce_firmware_iface::layouts::{
    AtomicCaps, CmdHcaCap, EnableHcaIn, InitHcaIn, QueryAdapterIn, QueryAdapterOut, QueryIssiIn,
    QueryIssiOut, QueryPagesIn, QueryPagesOut, RegisterHostEndianness, RoceCap, SetIssiIn,
};
use ferroce_firmware_iface::opcode::Opcode;
use zerocopy::IntoBytes;

use crate::caps::{self, CapMode, CapType, Caps};
use crate::context::Adapter;
use crate::error::{CommandError, StepError};
use crate::hca::Hca;
use crate::port::{register, write_register};

/// `port_type` of an Ethernet port. Source: PRM `cmd_hca_cap`.
const PORT_TYPE_ETHERNET: u8 = 1;

pub(super) fn enable(hca: &Hca) -> Result<(), CommandError> {
    let mut input = EnableHcaIn::default();
    input.set_opcode(Opcode::ENABLE_HCA.0);
    hca.exec_raw(input.as_bytes(), &mut [0; 16])
}

/// Agrees on the newest interface step sequence id that both know: 1, or 0 where firmware has no other.
pub(super) fn issi(hca: &Hca) -> Result<(), CommandError> {
    let mut input = QueryIssiIn::default();
    input.set_opcode(Opcode::QUERY_ISSI.0);
    let supported = match hca.exec_layout::<_, QueryIssiOut>(&input) {
        Ok(output) => output.supported_issi_dw0(),
        // Old firmware has only 0 and does not know the command.
        Err(error) if error.refused() => 0,
        Err(error) => return Err(error),
    };
    if supported & 1 << 1 == 0 {
        log::debug!("firmware has only ISSI 0 (supported: {supported:#x})");
        return Ok(());
    }
    let mut input = SetIssiIn::default();
    input.set_opcode(Opcode::SET_ISSI.0);
    input.set_current_issi(1);
    hca.exec_raw(input.as_bytes(), &mut [0; 16])
}

/// What pages are for; the op_mod of QUERY_PAGES. Source: PRM "QUERY_PAGES".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageKind {
    Boot = 1,
    Init = 2,
}

/// Gives firmware the pages that it asks for.
pub(super) fn give_pages(hca: &Hca, kind: PageKind) -> Result<(), StepError> {
    let mut input = QueryPagesIn::default();
    input.set_opcode(Opcode::QUERY_PAGES.0);
    input.set_op_mod(kind as u16);
    let output: QueryPagesOut = hca.exec_layout(&input)?;
    // A signed number; a negative one would be an offer to take pages back, of which there are none.
    let count = i32::from_ne_bytes(output.num_pages().to_ne_bytes())
        .max(0)
        .unsigned_abs();
    log::debug!("firmware asks for {count} {kind:?} pages");
    if count == 0 {
        return Ok(());
    }
    hca.pages().give_now(hca, output.function_id(), count)
}

/// Tells firmware the byte order of this host.
pub(super) fn host_endianness(hca: &Hca) -> Result<(), CommandError> {
    let mut endianness = RegisterHostEndianness::default();
    endianness.set_he(cfg!(target_endian = "big"));
    write_register(hca, register::HOST_ENDIANNESS, &endianness)
}

/// Reads the capabilities and sets those that the driver wants otherwise.
pub(super) fn negotiate_capabilities(hca: &Hca) -> Result<(), StepError> {
    let current = caps::query_raw(hca, CapType::General, CapMode::Current)?;
    let max = caps::query::<CmdHcaCap>(hca, CapType::General, CapMode::Max)?;
    check_general(&max)?;
    caps::set(hca, CapType::General, &caps::wanted_general(&current, &max)?)?;
    if max.atomic() {
        negotiate_atomic(hca)?;
    }
    if max.roce() {
        negotiate_roce(hca)?;
    }
    Ok(())
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
    let mut current = caps::query_raw(hca, CapType::Atomic, CapMode::Current)?;
    let max = caps::query::<AtomicCaps>(hca, CapType::Atomic, CapMode::Max)?;
    log::debug!("atomics: {max:?}");
    let Some(cap) = view_mut::<AtomicCaps>(&mut current) else {
        return Ok(());
    };
    if !cap.supported_atomic_req_8B_endianness_mode_1() || cap.atomic_req_8B_endianness_mode() == 1 {
        return Ok(());
    }
    cap.set_atomic_req_8B_endianness_mode(1)?;
    Ok(caps::set(hca, CapType::Atomic, &current)?)
}

/// The driver chooses UDP source ports, where the device leaves that to it.
fn negotiate_roce(hca: &Hca) -> Result<(), StepError> {
    let mut current = caps::query_raw(hca, CapType::Roce, CapMode::Current)?;
    let max = caps::query::<RoceCap>(hca, CapType::Roce, CapMode::Max)?;
    let Some(cap) = view_mut::<RoceCap>(&mut current) else {
        return Ok(());
    };
    if !max.sw_r_roce_src_udp_port() || cap.sw_r_roce_src_udp_port() {
        return Ok(());
    }
    cap.set_sw_r_roce_src_udp_port(true);
    Ok(caps::set(hca, CapType::Roce, &current)?)
}

pub(super) fn init(hca: &Hca) -> Result<(), CommandError> {
    let mut input = InitHcaIn::default();
    input.set_opcode(Opcode::INIT_HCA.0);
    // sw_owner_id is for functions that share resources; without it the input is the short one.
    hca.exec_raw(&input.as_bytes()[..16], &mut [0; 16])
}

/// The capabilities as they hold from now on.
pub(super) fn effective_capabilities(hca: &Hca) -> Result<Caps, StepError> {
    let current = |kind| caps::query_raw(hca, kind, CapMode::Current);
    let general = caps::query::<CmdHcaCap>(hca, CapType::General, CapMode::Current)?;
    check_general(&general)?;
    let general_max = caps::query::<CmdHcaCap>(hca, CapType::General, CapMode::Max)?;
    let mut caps = Caps {
        general,
        general_max,
        atomic: None,
        roce: None,
        ethernet: None,
    };
    if caps.general.eth_net_offloads() {
        caps.ethernet = view(&current(CapType::EthernetOffloads)?).cloned().map(Box::new);
    }
    if caps.general.atomic() {
        caps.atomic = view(&current(CapType::Atomic)?).cloned().map(Box::new);
    }
    if caps.general.roce() {
        caps.roce = view(&current(CapType::Roce)?).cloned().map(Box::new);
    }
    Ok(caps)
}

pub(super) fn adapter(hca: &Hca) -> Result<Adapter, CommandError> {
    let mut input = QueryAdapterIn::default();
    input.set_opcode(Opcode::QUERY_ADAPTER.0);
    let output: QueryAdapterOut = hca.exec_layout(&input)?;
    let block = output.query_adapter_struct();
    let psid: Vec<u8> = (0..16)
        .map(|i| block.vsd_contd_psid(i))
        .take_while(|byte| *byte != 0)
        .collect();
    Ok(Adapter {
        ieee_vendor_id: block.ieee_vendor_id(),
        vsd_vendor_id: block.vsd_vendor_id(),
        psid: String::from_utf8_lossy(&psid).trim().to_owned(),
    })
}
