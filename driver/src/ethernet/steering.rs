//! The rules by which received frames reach the queues.
//!
//! One table, the root. What no rule names is dropped by the NIC, before it costs anybody anything; RoCE packets never
//! get here (`linux-bringup.md` of the project's PRM notes, 8.7).
//!
//! | places | what is compared | rules |
//! | --- | --- | --- |
//! | 0..8 | destination, Ethertype | ARP to all and to us; IPv6 to all nodes |
//! | 8..512 | destination, Ethertype, protocol | echo and ICMPv6 to us; ICMPv6 to the groups of our addresses |

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroce_firmware_iface::cmds::{
    CapMode, CreateFlowGroup, CreateFlowTable, DeleteFlowEntry, DestroyFlowGroup, DestroyFlowTable,
    MATCH_OUTER_HEADERS, QueryHcaCap, SetAddressList, SetFlowEntry, SetFlowTableRoot, address_list,
};
use ferroce_firmware_iface::command::Command;
use ferroce_firmware_iface::layouts::{FlowTableNicCap, FteMatchParam};

use crate::context::Context;
use crate::port::MacAddress;
use crate::reaper::Destroy;
use crate::verbs::CreateError;

/// log2 of the table's entries.
const LOG_ENTRIES: u8 = 9;
/// First place of the second group.
const SECOND: u32 = 8;
const PLACES: u32 = 1 << LOG_ENTRIES;
const BROADCAST: MacAddress = MacAddress([0xff; 6]);
const ALL_NODES: MacAddress = MacAddress([0x33, 0x33, 0, 0, 0, 1]);
const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// What a rule compares.
#[derive(Clone, Copy, Debug)]
struct Match {
    dmac: MacAddress,
    ethertype: u16,
    protocol: Option<u8>,
}

impl Match {
    fn value(&self) -> FteMatchParam {
        let [a, b, c, d, e, f] = self.dmac.0;
        let mut value = FteMatchParam::default();
        let outer = value.outer_headers_mut();
        outer.set_dmac_47_16(u32::from_be_bytes([a, b, c, d]));
        outer.set_dmac_15_0(u16::from_be_bytes([e, f]));
        outer.set_ethertype(self.ethertype);
        outer.set_ip_protocol(self.protocol.unwrap_or(0));
        value
    }

    /// The mask of rules with or without a protocol.
    fn mask(protocol: bool) -> FteMatchParam {
        Match {
            dmac: BROADCAST,
            ethertype: u16::MAX,
            protocol: protocol.then_some(u8::MAX),
        }
        .value()
    }
}

/// The table with its rules.
#[derive(Debug)]
pub(super) struct Steering {
    table: u32,
    groups: Vec<u32>,
    /// Rules by their places.
    rules: Vec<u32>,
    multicast: BTreeMap<MacAddress, u32>,
    tirn: u32,
    mac: MacAddress,
    context: Arc<Context>,
}

/// Whether the device's tables do what is needed; whether a root has to be set.
pub(super) fn check(context: &Context) -> Result<bool, CreateError> {
    let missing = |what| Err(CreateError::Capability { what });
    if !context.caps().general().nic_flow_table() {
        return missing("it has no flow tables for Ethernet frames (nic_flow_table)");
    }
    let caps = context
        .exec(&QueryHcaCap::<FlowTableNicCap>::new(CapMode::Current))?
        .layout;
    let rx = caps.flow_table_properties_nic_receive();
    if !rx.ft_support() || rx.log_max_ft_size() < LOG_ENTRIES {
        return missing("its receive flow tables are too small (ft_support, log_max_ft_size)");
    }
    // Which fields may be compared is not asked: all devices do MAC, Ethertype and protocol, and old firmware doesn't say so.
    Ok(rx.modify_root())
}

impl Steering {
    /// Makes the table: ARP, ICMP and ICMPv6 to `mac`, and ARP to all, go to the TIR.
    pub(super) fn new(context: &Arc<Context>, tirn: u32, mac: MacAddress) -> Result<Steering, CreateError> {
        let set_root = check(context)?;
        let table = context.exec(&CreateFlowTable {
            level: 0,
            log_size: LOG_ENTRIES,
        })?;
        let mut steering = Steering {
            table,
            groups: Vec::new(),
            rules: Vec::new(),
            multicast: BTreeMap::new(),
            tirn,
            mac,
            context: context.clone(),
        };
        for (protocol, first, last) in [(false, 0, SECOND - 1), (true, SECOND, PLACES - 1)] {
            let group = context.exec(&CreateFlowGroup {
                table,
                first,
                last,
                enable: MATCH_OUTER_HEADERS,
                mask: &Match::mask(protocol),
            })?;
            steering.groups.push(group);
        }
        let rule = |dmac, ethertype, protocol| Match {
            dmac,
            ethertype,
            protocol,
        };
        steering.add(&rule(BROADCAST, ARP, None))?;
        steering.add(&rule(mac, ARP, None))?;
        steering.add(&rule(mac, IPV4, Some(ICMP)))?;
        steering.add(&rule(mac, IPV6, Some(ICMPV6)))?;
        if set_root {
            context.exec(&SetFlowTableRoot { table, on: true })?;
        }
        steering.tell_switch();
        Ok(steering)
    }

    /// Adds a rule; its place.
    fn add(&mut self, rule: &Match) -> Result<u32, CreateError> {
        let places = if rule.protocol.is_some() {
            SECOND..PLACES
        } else {
            0..SECOND
        };
        let group = self
            .groups
            .get(usize::from(rule.protocol.is_some()))
            .copied()
            .unwrap_or(0);
        let free = places.into_iter().find(|place| !self.rules.contains(place));
        let Some(index) = free else {
            let what = "its table of rules is full: too many multicast groups";
            return Err(CreateError::Capability { what });
        };
        self.context.exec(&SetFlowEntry {
            table: self.table,
            group,
            index,
            value: &rule.value(),
            tirn: self.tirn,
        })?;
        self.rules.push(index);
        Ok(index)
    }

    /// Lets ICMPv6 to these groups in, and to no others.
    pub(super) fn set_multicast(&mut self, groups: &[MacAddress]) -> Result<(), CreateError> {
        let gone: Vec<(MacAddress, u32)> = self
            .multicast
            .iter()
            .filter(|(mac, _)| !groups.contains(mac))
            .map(|(mac, index)| (*mac, *index))
            .collect();
        let mut changed = !gone.is_empty();
        for (mac, index) in gone {
            self.context.exec(&DeleteFlowEntry {
                table: self.table,
                index,
            })?;
            self.rules.retain(|place| *place != index);
            self.multicast.remove(&mac);
        }
        for mac in groups {
            if self.multicast.contains_key(mac) {
                continue;
            }
            let rule = Match {
                dmac: *mac,
                ethertype: IPV6,
                // Queries of multicast listeners have another header before ICMPv6.
                protocol: (*mac != ALL_NODES).then_some(ICMPV6),
            };
            let index = self.add(&rule)?;
            self.multicast.insert(*mac, index);
            changed = true;
        }
        if changed {
            self.tell_switch();
        }
        Ok(())
    }

    /// Tells the switch in the NIC whose frames this function wants, as far as its lists go. Without such a switch, or
    /// where the lists are another's to keep, frames come all the same.
    fn tell_switch(&self) {
        let general = self.context.caps().general();
        let groups = [BROADCAST].into_iter().chain(self.multicast.keys().copied());
        let lists = [
            (
                address_list::UNICAST,
                vec![self.mac.0],
                general.log_max_current_uc_list(),
            ),
            (
                address_list::MULTICAST,
                groups.map(|mac| mac.0).collect(),
                general.log_max_current_mc_list(),
            ),
        ];
        for (kind, macs, log_max) in lists {
            let max = 1usize << log_max.min(31);
            if macs.len() > max {
                log::warn!(
                    "the virtual port's address list holds {max} of {} addresses",
                    macs.len()
                );
            }
            let macs = &macs[..macs.len().min(max)];
            if let Err(error) = self.context.exec(&SetAddressList { kind, macs }) {
                log::warn!("the virtual port's address list stays as it is: {error}");
            }
        }
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        let table = self.table;
        let mut commands: Vec<Vec<u8>> = Vec::new();
        // Numbers that the device gave fit their own layouts.
        let mut push = |input: Result<Vec<u8>, _>| commands.extend(input);
        push(
            SetAddressList {
                kind: address_list::MULTICAST,
                macs: &[],
            }
            .encode(),
        );
        for index in self.rules.iter().copied() {
            push(DeleteFlowEntry { table, index }.encode());
        }
        for group in self.groups.iter().copied() {
            push(DestroyFlowGroup { table, group }.encode());
        }
        // A root that goes leaves none, as when Linux unloads.
        push(DestroyFlowTable { table }.encode());
        self.context.reaper().submit(Destroy {
            what: format!("flow table {table:#x}"),
            commands,
            memory: Vec::new(),
            keep: None,
            done: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_what_rules_compare() {
        let mask = Match::mask(true);
        let outer = mask.outer_headers();
        assert_eq!((outer.dmac_47_16(), outer.dmac_15_0()), (u32::MAX, u16::MAX));
        assert_eq!((outer.ethertype(), outer.ip_protocol()), (u16::MAX, u8::MAX));
        assert_eq!(Match::mask(false).outer_headers().ip_protocol(), 0);
    }
}
