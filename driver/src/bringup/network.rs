//! The steps that put the NIC on the network: virtual port, port, L2 table, RoCE, GIDs.

use std::net::IpAddr;
use std::sync::Arc;

use ferroce_firmware_iface::cmds::QueryNicVportContext;

use super::{Progress, Stepped, at};
use crate::caps::Caps;
use crate::context::OpenConfig;
use crate::error::{Step, StepError};
use crate::gid::{Gid, GidEntry, GidTable, RoceVersion};
use crate::hca::Hca;
use crate::port::{self, MacAddress, PortNumber};

pub(super) fn start(hca: &Hca, caps: &Caps, config: &OpenConfig, progress: &mut Progress) -> Stepped<()> {
    let mac = at(Step::Vport, mac(hca, config))?;
    at(Step::Port, check_ports(caps, config))?;
    for number in caps.ports() {
        at(Step::Port, port_up(hca, number, config, progress))?;
    }
    if caps.general().eswitch_manager() {
        at(Step::L2Table, port::set_l2_entry(hca, mac))?;
        progress.l2_entry = true;
    } else if let Err(error) = port::ask_for_own_frames(hca, &[mac.0]) {
        // Who manages the switch may have set it up already.
        log::warn!("the e-switch is not told of {mac}, it may bring no frames here: {error}");
    } else {
        progress.listed = true;
    }
    let Some(cap) = caps.roce.clone() else {
        return Err((
            Step::Roce,
            StepError::Unsupported("RoCE (the capability `roce` is 0)".into()),
        ));
    };
    at(Step::Roce, port::enable_roce(hca, true))?;
    progress.roce = true;
    let tables = caps.general().num_vhca_ports();
    for number in caps.ports() {
        let table = Arc::new(GidTable::new(cap.clone(), number, tables));
        progress.gids.push(table.clone());
        at(Step::Gids, add_gids(hca, &table, mac, config))?;
    }
    Ok(())
}

/// Refuses addresses of ports that the NIC does not have.
fn check_ports(caps: &Caps, config: &OpenConfig) -> Result<(), StepError> {
    let mut ports = config.addresses.iter().map(|(port, _)| *port);
    match ports.find(|port| !caps.has_port(*port)) {
        Some(port) => Err(no_port(caps, port)),
        None => Ok(()),
    }
}

/// That the NIC does not have that port.
pub(crate) fn no_port(caps: &Caps, port: PortNumber) -> StepError {
    StepError::Value {
        what: "port",
        value: port.get().into(),
        limit: format!("at most {}, as the NIC has so many", caps.ports().count()),
    }
}

/// The port's MAC: what the configuration says, or what firmware has.
fn mac(hca: &Hca, config: &OpenConfig) -> Result<MacAddress, StepError> {
    let own = port::vport_mac(&hca.exec(&QueryNicVportContext)?);
    let mac = config.mac.unwrap_or(own);
    if !mac.is_unicast() {
        let value = mac.0.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let limit = "the address of one station; give one with OpenConfig::mac".to_owned();
        return Err(StepError::Value {
            what: "MAC of the port",
            value,
            limit,
        });
    }
    if mac != own {
        port::set_vport_mac(hca, mac)?;
    }
    Ok(mac)
}

fn port_up(
    hca: &Hca,
    number: PortNumber,
    config: &OpenConfig,
    progress: &mut Progress,
) -> Result<(), StepError> {
    match port::set_mtu(hca, number, config.mtu) {
        Ok(mtu) => log::debug!("port {number}: MTU {mtu}"),
        // A virtual function may not be let; it lives with what the physical one set.
        Err(StepError::Command(error)) if error.refused() && config.mtu.is_none() => {
            log::warn!("the MTU of port {number} stays as it is: {error}");
        }
        Err(error) => return Err(error),
    }
    match port::set_admin_state(hca, number, true) {
        Ok(()) => progress.ports_up.push(number),
        Err(StepError::Command(error)) if error.refused() => {
            log::warn!("the administrative state of port {number} stays as it is: {error}");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Programs a port's table: the link-local GID of the MAC, then each address that is configured for the port, each in all versions of RoCE that the
/// device and the configuration have.
fn add_gids(hca: &Hca, table: &GidTable, mac: MacAddress, config: &OpenConfig) -> Result<(), StepError> {
    let link_local = config.link_local_gid.then(|| Gid::link_local(mac));
    let addresses = config.addresses.iter().filter(|(port, _)| *port == table.port());
    let mut addresses = addresses.map(|(_, address)| Gid::from_ip(*address));
    if table.size() == 0 && table.port() != PortNumber::FIRST {
        if let Some(gid) = addresses.next() {
            return Err(StepError::Unsupported(format!(
                "address {} on port {}: that port has no GID table of its own (the capability `num_vhca_ports` is 0)",
                gid.to_ip(),
                table.port()
            )));
        }
        if link_local.is_some() {
            log::warn!("port {} has no GID table of its own", table.port());
        }
        return Ok(());
    }
    for gid in link_local.into_iter().chain(addresses) {
        let mut added = 0;
        for version in config.roce_versions.iter().copied() {
            let entry = GidEntry {
                gid,
                version,
                mac,
                vlan: config.vlan,
            };
            if table.supports(&entry) {
                let (index, _) = table.add(hca, entry)?;
                log::debug!("port {}, GID {index}: {gid}, {version}", table.port());
                added += 1;
            }
        }
        if added == 0 {
            return Err(unsupported(gid, &config.roce_versions));
        }
    }
    Ok(())
}

fn unsupported(gid: Gid, versions: &[RoceVersion]) -> StepError {
    let kind = match gid.to_ip() {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    };
    StepError::Unsupported(format!("{kind} address {gid} with any of {versions:?}"))
}

/// Takes the NIC off the network.
pub(super) fn stop(hca: &Hca, progress: &mut Progress) -> Stepped<()> {
    for table in std::mem::take(&mut progress.gids) {
        for (index, _) in table.entries() {
            at(Step::Gids, table.remove(hca, index))?;
        }
    }
    if std::mem::take(&mut progress.roce) {
        at(Step::Roce, port::enable_roce(hca, false))?;
    }
    if std::mem::take(&mut progress.l2_entry) {
        at(Step::L2Table, port::delete_l2_entry(hca))?;
    }
    if std::mem::take(&mut progress.listed)
        && let Err(error) = port::ask_for_own_frames(hca, &[])
    {
        log::warn!("the e-switch is not told that no frames are wanted any more: {error}");
    }
    for number in std::mem::take(&mut progress.ports_up) {
        at(Step::Port, port::set_admin_state(hca, number, false))?;
    }
    Ok(())
}
