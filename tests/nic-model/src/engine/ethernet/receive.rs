//! Received Ethernet frames: flow tables, hash, RQ, completion.

use ferroce_hw_regs::cqe::opcode as cqe_opcode;

use super::packet::{Packet, checksums_good, ones_sum};
use super::transmit::MIN_FRAME;
use super::{INDIRECT, hash};
use crate::engine::DataPlane;
use crate::engine::completion::{Completion, EthernetInfo};
use crate::engine::recv::take_own;
use crate::engine::violation::Violation;
use crate::host::HostSlices;
use crate::mkey::{KeyView, Range};
use crate::objects::flow::{Destination, Miss};
use crate::objects::mkey::Access;
use crate::objects::raw::RawState;
use crate::payload::Payload;
use crate::rc::types::RecvWork;
use crate::wire::Frame;

/// Tables that a frame may pass: levels only rise, so this is never reached by a legal set.
const MAX_TABLES: usize = 256;
/// TIRs that one frame may go to.
const MAX_TIRS: usize = 64;
/// `hds_ip_ext` of a completion.
const L2_OK: u8 = 1;
const L3_OK: u8 = 2;
const L4_OK: u8 = 4;
/// `l4_l3_hdr_type` of a completion.
const VLAN_STRIPPED: u8 = 1;
const L3_IPV6: u8 = 1 << 2;
const L3_IPV4: u8 = 2 << 2;
const L4_TCP: u8 = 1 << 4;
const L4_UDP: u8 = 2 << 4;
/// `rx_hash_type`: source and destination address, and ports.
const HASHED_IP: u8 = 0x3;
const HASHED_L4: u8 = 0xc;
/// Syndrome: the frame is longer than the receive.
const LOCAL_LENGTH: u8 = 0x01;
const LOCAL_PROTECTION: u8 = 0x04;

impl DataPlane {
    /// Whether flow tables look at frames to this address.
    pub(in crate::engine) fn ethernet_takes(&self, dst: [u8; 6]) -> bool {
        if self.flow_root.is_none() {
            return false;
        }
        let filter = &self.port.filter;
        dst[0] & 1 != 0 || self.is_own_mac(dst) || filter.promiscuous || filter.unicast.contains(&dst)
    }

    /// A frame that is not for a queue pair.
    pub(in crate::engine) fn receive_ethernet(&mut self, frame: &Frame) {
        let Ok(mut bytes) = frame.to_bytes() else {
            self.counters.dropped_malformed += 1;
            return;
        };
        if bytes.len() < MIN_FRAME {
            bytes.resize(MIN_FRAME, 0);
        }
        let Some(packet) = Packet::parse(&bytes) else {
            return;
        };
        for (tirn, flow_tag) in self.classify(&packet) {
            self.deliver(tirn, flow_tag, &packet);
        }
    }

    /// The TIRs that the frame goes to, each with the flow tag of its entry.
    fn classify(&self, packet: &Packet<'_>) -> Vec<(u32, u32)> {
        let values = packet.match_bytes();
        let mut tirs = Vec::new();
        let mut tables: Vec<u32> = self.flow_root.into_iter().collect();
        for _ in 0..MAX_TABLES {
            let Some(table) = tables.pop().and_then(|id| self.objects.flow_tables.get(id)) else {
                break;
            };
            match table.find(&values) {
                Some(entry) if entry.drop => {}
                Some(entry) => {
                    for destination in &entry.destinations {
                        match destination {
                            Destination::Table(id) => tables.push(*id),
                            Destination::Tir(tirn) if tirs.len() < MAX_TIRS => {
                                tirs.push((*tirn, entry.flow_tag))
                            }
                            Destination::Tir(_) => {}
                        }
                    }
                }
                None => {
                    if let Miss::Table(id) = table.miss {
                        tables.push(id);
                    }
                }
            }
        }
        tirs
    }

    fn deliver(&mut self, tirn: u32, flow_tag: u32, packet: &Packet<'_>) {
        let Some(tir) = self.objects.tirs.get(tirn) else {
            return;
        };
        let rx_hash = hash::of(&tir.context, packet);
        let rqn = if tir.context.disp_type() == INDIRECT {
            let table = self.objects.rqts.get(tir.context.indirect_table());
            let Some(rqs) = table.map(|t| &t.rqs).filter(|rqs| !rqs.is_empty()) else {
                return;
            };
            rqs[rx_hash as usize % rqs.len()]
        } else {
            tir.context.inline_rqn()
        };
        self.put(rqn, flow_tag, rx_hash, packet);
    }

    /// Writes the frame where the RQ's next receive says, and completes it.
    fn put(&mut self, rqn: u32, flow_tag: u32, rx_hash: u32, packet: &Packet<'_>) {
        let DataPlane {
            objects,
            host,
            violations,
            counters,
            ..
        } = self;
        let Some(rq) = objects.rqs.get_mut(rqn).filter(|rq| rq.state == RawState::Ready) else {
            return;
        };
        let work = match take_own(&mut rq.ring, &rq.buffer, rq.dbr, host) {
            Ok(Some(work)) => work,
            Ok(None) => {
                rq.out_of_buffer = rq.out_of_buffer.wrapping_add(1);
                return;
            }
            Err(error) => {
                violations.note(Violation::HostMemory, format_args!("RQ {rqn:#x}: {error}"));
                rq.state = RawState::Error;
                return;
            }
        };
        counters.recv_wqes += 1;
        let strip = !rq.keep_vlan && matches!(packet.vlan, Some((false, _)));
        let (cqn, user_index, pd) = (rq.cqn, rq.user_index, rq.pd);
        let bytes = if strip {
            [&packet.bytes[..12], &packet.bytes[16..]].concat()
        } else {
            packet.bytes.to_vec()
        };
        let syndrome = self.scatter_frame(rqn, pd, &work, &bytes).err().unwrap_or(0);
        let completion = Completion {
            opcode: if syndrome == 0 {
                cqe_opcode::RESP_SEND
            } else {
                cqe_opcode::RESP_ERR
            },
            qpn: if syndrome == 0 { flow_tag } else { rqn },
            user_index,
            byte_cnt: bytes.len() as u32,
            wqe_counter: work.id as u16,
            syndrome,
            ethernet: Some(info(packet, strip, rx_hash)),
            ..Completion::default()
        };
        if syndrome != 0
            && let Some(rq) = self.objects.rqs.get_mut(rqn)
        {
            rq.state = RawState::Error;
        }
        self.complete(cqn, &completion);
    }

    fn scatter_frame(&self, rqn: u32, pd: u32, work: &RecvWork, bytes: &[u8]) -> Result<(), u8> {
        let view = KeyView {
            mkeys: &self.objects.mkeys,
            pd,
            qpn: rqn,
        };
        let mut slices = HostSlices::new();
        let mut left = bytes.len() as u64;
        for sge in &work.sges {
            let len = left.min(u64::from(sge.len));
            if len == 0 {
                break;
            }
            let range = Range {
                key: sge.lkey,
                va: sge.addr,
                len,
            };
            let found = view.slices(&self.host, range, Access::LOCAL_WRITE, &mut slices);
            found.map_err(|refusal| {
                log::debug!("RQ {rqn:#x}: {refusal}");
                LOCAL_PROTECTION
            })?;
            left -= len;
        }
        if left != 0 {
            return Err(LOCAL_LENGTH);
        }
        let written = Payload::from_vec(bytes.to_vec()).copy_to_host(&slices, 0);
        written.map_err(|_| LOCAL_PROTECTION)
    }
}

/// What the completion tells of the frame.
fn info(packet: &Packet<'_>, stripped: bool, rx_hash: u32) -> EthernetInfo {
    let (l3, l4) = checksums_good(packet);
    let mut out = EthernetInfo {
        rx_hash,
        hds_ip_ext: L2_OK,
        ..EthernetInfo::default()
    };
    if l3 == Some(true) {
        out.hds_ip_ext |= L3_OK;
    }
    if l4 == Some(true) {
        out.hds_ip_ext |= L4_OK;
    }
    if let Some(network) = packet.network {
        out.l4_l3_hdr_type |= if network.v6 { L3_IPV6 } else { L3_IPV4 };
        // Not inverted, from the IP header to the end of the packet: what Linux calls CHECKSUM_COMPLETE.
        out.check_sum = ones_sum(0, &packet.bytes[network.at..network.end]);
        if rx_hash != 0 {
            out.rx_hash_type |= HASHED_IP;
        }
    }
    if let Some(transport) = packet.transport {
        out.l4_l3_hdr_type |= if transport.tcp { L4_TCP } else { L4_UDP };
        if rx_hash != 0 {
            out.rx_hash_type |= HASHED_L4;
        }
    }
    if let (true, Some((_, tag))) = (stripped, packet.vlan) {
        out.l4_l3_hdr_type |= VLAN_STRIPPED;
        out.vlan_info = tag;
    }
    out
}
