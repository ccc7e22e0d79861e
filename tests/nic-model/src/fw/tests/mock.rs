//! A data plane that keeps contexts and counts, and moves nothing.

use ferroce_firmware_iface::layouts::*;

use super::super::{DmaFault, Event, HostDma, Plane, QpTransition};
use super::TestHost;
use crate::engine::congestion::Congestion;
use crate::engine::ports::PortNumber;
use crate::engine::traffic::Traffic;
use crate::fw::plane_ethernet::EthernetPlane;
use crate::fw::plane_port::PortPlane;
use crate::objects::{Buffer, ObjectError, Table};
use crate::profile::Profile;

pub struct MockPlane {
    pub host: TestHost,
    uars: Table<()>,
    pds: Table<u32>,
    others: [Table<()>; 3],
    umems: Table<()>,
    srqs: Table<(Srqc, u16)>,
    pub eqs: Table<(Eqc, [u64; 4])>,
    cqs: Table<(Cqc, u32)>,
    mkeys: Table<Mkc>,
    pub qps: Table<Qpc>,
    pub gids: Vec<Option<RoceAddrLayout>>,
    pub events: Vec<Event>,
    pub link: bool,
    pub congestion: Congestion,
    pub traffic: Traffic,
    pub roce: bool,
    pub mac: [u8; 6],
    pub l2: Vec<(u32, Option<[u8; 6]>)>,
}

fn full(object: &'static str) -> ObjectError {
    ObjectError::NoResources { object, limit: 0 }
}

fn none(object: &'static str, number: u32) -> ObjectError {
    ObjectError::NoSuch { object, number }
}

impl MockPlane {
    pub fn new(profile: &Profile) -> MockPlane {
        MockPlane {
            host: TestHost::new(),
            uars: Table::new(profile.first_uar, 8000),
            pds: Table::new(1, 1 << 16),
            others: [Table::new(1, 1000), Table::new(1, 1000), Table::new(1, 255)],
            umems: Table::new(1, 1000),
            srqs: Table::new(1, 1000),
            eqs: Table::new(profile.first_eqn.into(), 200),
            cqs: Table::new(0x80, 1 << 16),
            mkeys: Table::new(1, 1 << 16),
            qps: Table::new(0x40, 1 << 16),
            gids: vec![None; 256],
            events: Vec::new(),
            link: true,
            congestion: Congestion::default(),
            traffic: Traffic::default(),
            roce: false,
            mac: [0; 6],
            l2: Vec::new(),
        }
    }

    fn pd_used(&mut self, pd: u32, change: i32) -> Result<(), ObjectError> {
        let users = self.pds.get_mut(pd).ok_or(none("PD", pd))?;
        *users = users.wrapping_add_signed(change);
        Ok(())
    }
}

impl HostDma for MockPlane {
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DmaFault> {
        self.host.read(iova, data)
    }
    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.host.write(iova, data)
    }
    fn mapped(&self, iova: u64, len: u64) -> bool {
        self.host.mapped(iova, len)
    }
}

impl PortPlane for MockPlane {
    fn link_up(&self, _: PortNumber) -> bool {
        self.link
    }
    fn set_link_admin(&mut self, _: PortNumber, _: bool) {}
    fn set_roce_address(
        &mut self,
        _: PortNumber,
        index: u16,
        address: Option<&RoceAddrLayout>,
    ) -> Result<(), ObjectError> {
        self.gids[usize::from(index)] = address.copied();
        Ok(())
    }
    fn roce_address(&self, _: PortNumber, index: u16) -> Option<RoceAddrLayout> {
        self.gids.get(usize::from(index)).copied().flatten()
    }
    fn port_traffic(&self, _: PortNumber) -> Traffic {
        self.traffic
    }
    fn port_congestion(&mut self) -> &mut Congestion {
        &mut self.congestion
    }
    fn qkey_violations(&self) -> u64 {
        0
    }
    fn attach_multicast(&mut self, qpn: u32, _: [u8; 16], _: u32, _: u32) -> Result<(), ObjectError> {
        self.detach_multicast(qpn, [0; 16])
    }
    fn detach_multicast(&mut self, qpn: u32, _: [u8; 16]) -> Result<(), ObjectError> {
        self.qps.get(qpn).map(drop).ok_or(none("QP", qpn))
    }
}

impl EthernetPlane for MockPlane {}

impl Plane for MockPlane {
    fn alloc_uar(&mut self) -> Result<u32, ObjectError> {
        self.uars.insert_with(|_| ()).ok_or(full("UAR"))
    }
    fn dealloc_uar(&mut self, uar: u32) -> Result<(), ObjectError> {
        self.uars.remove(uar).ok_or(none("UAR", uar))
    }
    fn alloc_pd(&mut self) -> Result<u32, ObjectError> {
        self.pds.insert_with(|_| 0).ok_or(full("PD"))
    }
    fn dealloc_pd(&mut self, pd: u32) -> Result<(), ObjectError> {
        match self.pds.get(pd) {
            Some(0) => self.pds.remove(pd).map(|_| ()).ok_or(none("PD", pd)),
            Some(users) => Err(ObjectError::Busy {
                object: "PD",
                number: pd,
                users: *users,
            }),
            None => Err(none("PD", pd)),
        }
    }
    fn alloc_transport_domain(&mut self) -> Result<u32, ObjectError> {
        self.others[0].insert_with(|_| ()).ok_or(full("TD"))
    }
    fn dealloc_transport_domain(&mut self, td: u32) -> Result<(), ObjectError> {
        self.others[0].remove(td).ok_or(none("TD", td))
    }
    fn alloc_xrcd(&mut self) -> Result<u32, ObjectError> {
        self.others[1].insert_with(|_| ()).ok_or(full("XRCD"))
    }
    fn dealloc_xrcd(&mut self, xrcd: u32) -> Result<(), ObjectError> {
        self.others[1].remove(xrcd).ok_or(none("XRCD", xrcd))
    }
    fn alloc_q_counter(&mut self) -> Result<u8, ObjectError> {
        self.others[2]
            .insert_with(|_| ())
            .map(|n| n as u8)
            .ok_or(full("counter"))
    }
    fn dealloc_q_counter(&mut self, id: u8) -> Result<(), ObjectError> {
        self.others[2].remove(id.into()).ok_or(none("counter", id.into()))
    }
    fn query_q_counter(&mut self, id: u8, _: bool, _: &mut QueryQCounterOut) -> Result<(), ObjectError> {
        self.others[2]
            .get(id.into())
            .copied()
            .ok_or(none("counter", id.into()))
    }
    fn query_vport_counter(&mut self, _: bool, _: &mut QueryVportCounterOut) {}

    fn create_eq(&mut self, eqc: &Eqc, mask: [u64; 4], _: Buffer<'_>) -> Result<u32, ObjectError> {
        self.eqs.insert_with(|_| (*eqc, mask)).ok_or(full("EQ"))
    }
    fn destroy_eq(&mut self, eqn: u32) -> Result<(), ObjectError> {
        self.eqs.remove(eqn).map(|_| ()).ok_or(none("EQ", eqn))
    }
    fn query_eq(&self, eqn: u32, eqc: &mut Eqc) -> Result<[u64; 4], ObjectError> {
        let (context, mask) = self.eqs.get(eqn).ok_or(none("EQ", eqn))?;
        *eqc = *context;
        Ok(*mask)
    }

    fn create_cq(&mut self, cqc: &Cqc, _: Buffer<'_>) -> Result<u32, ObjectError> {
        let eqn = cqc.c_eqn_or_apu_element();
        self.eqs.get(eqn).ok_or(none("EQ", eqn))?;
        self.cqs.insert_with(|_| (*cqc, 0)).ok_or(full("CQ"))
    }
    fn modify_cq(&mut self, cqn: u32, cqc: &Cqc, _: Option<Buffer<'_>>) -> Result<(), ObjectError> {
        self.cqs.get_mut(cqn).ok_or(none("CQ", cqn))?.0 = *cqc;
        Ok(())
    }
    fn destroy_cq(&mut self, cqn: u32) -> Result<(), ObjectError> {
        self.cqs.remove(cqn).map(|_| ()).ok_or(none("CQ", cqn))
    }
    fn query_cq(&self, cqn: u32, cqc: &mut Cqc) -> Result<(), ObjectError> {
        *cqc = self.cqs.get(cqn).ok_or(none("CQ", cqn))?.0;
        Ok(())
    }

    fn create_mkey(&mut self, mkc: &Mkc, _: Buffer<'_>) -> Result<u32, ObjectError> {
        self.pd_used(mkc.pd(), 1)?;
        self.mkeys.insert_with(|_| *mkc).ok_or(full("mkey"))
    }
    fn destroy_mkey(&mut self, index: u32) -> Result<(), ObjectError> {
        let mkc = self.mkeys.remove(index).ok_or(none("mkey", index))?;
        self.pd_used(mkc.pd(), -1)
    }
    fn query_mkey(&self, index: u32, mkc: &mut Mkc) -> Result<(), ObjectError> {
        *mkc = *self.mkeys.get(index).ok_or(none("mkey", index))?;
        Ok(())
    }

    fn create_qp(&mut self, qpc: &Qpc, _: Buffer<'_>) -> Result<u32, ObjectError> {
        self.pd_used(qpc.pd(), 1)?;
        self.qps.insert_with(|_| *qpc).ok_or(full("QP"))
    }
    fn modify_qp(&mut self, _: QpTransition, qpn: u32, qpc: &Qpc) -> Result<(), ObjectError> {
        *self.qps.get_mut(qpn).ok_or(none("QP", qpn))? = *qpc;
        Ok(())
    }
    fn destroy_qp(&mut self, qpn: u32) -> Result<(), ObjectError> {
        let qpc = self.qps.remove(qpn).ok_or(none("QP", qpn))?;
        self.pd_used(qpc.pd(), -1)
    }
    fn query_qp(&self, qpn: u32, qpc: &mut Qpc) -> Result<(), ObjectError> {
        *qpc = *self.qps.get(qpn).ok_or(none("QP", qpn))?;
        Ok(())
    }

    fn create_srq(&mut self, srqc: &Srqc, _: Buffer<'_>) -> Result<u32, ObjectError> {
        self.pd_used(srqc.pd(), 1)?;
        self.srqs.insert_with(|_| (*srqc, 0)).ok_or(full("SRQ"))
    }
    fn destroy_srq(&mut self, srqn: u32) -> Result<(), ObjectError> {
        let (srqc, _) = self.srqs.remove(srqn).ok_or(none("SRQ", srqn))?;
        self.pd_used(srqc.pd(), -1)
    }
    fn query_srq(&self, srqn: u32, srqc: &mut Srqc) -> Result<(), ObjectError> {
        let limit;
        (*srqc, limit) = *self.srqs.get(srqn).ok_or(none("SRQ", srqn))?;
        srqc.set_lwm(limit);
        Ok(())
    }
    fn arm_srq(&mut self, srqn: u32, limit: u16) -> Result<(), ObjectError> {
        self.srqs.get_mut(srqn).ok_or(none("SRQ", srqn))?.1 = limit;
        Ok(())
    }

    fn create_umem(&mut self, _: &Umem, _: &[u8]) -> Result<u32, ObjectError> {
        self.umems.insert_with(|_| ()).ok_or(full("umem"))
    }
    fn umem_iova(&self, _: u32, offset: u64) -> Result<u64, ObjectError> {
        Ok(offset)
    }

    fn destroy_umem(&mut self, id: u32) -> Result<(), ObjectError> {
        self.umems.remove(id).ok_or(none("umem", id))
    }

    fn set_roce_enabled(&mut self, enabled: bool) {
        self.roce = enabled;
    }
    fn set_mac(&mut self, mac: [u8; 6]) {
        self.mac = mac;
    }
    fn set_l2_entry(&mut self, index: u32, mac: Option<[u8; 6]>) -> Result<(), ObjectError> {
        self.l2.push((index, mac));
        Ok(())
    }
    fn set_mtu(&mut self, _: u16) {}

    fn set_atomics_in_host_order(&mut self, _: bool) {}

    fn subscribed(&self, event_type: u8) -> bool {
        let (word, bit) = (usize::from(event_type / 64), event_type % 64);
        self.eqs.iter().any(|(_, (_, mask))| mask[word] >> bit & 1 != 0)
    }
    fn raise(&mut self, event: Event) -> bool {
        let event_type = match event {
            Event::Command { .. } => 0xa,
            Event::PageRequest { .. } => 0xb,
            Event::PortChange { .. } => 9,
        };
        let subscribed = self.subscribed(event_type);
        if subscribed {
            self.events.push(event);
        }
        subscribed
    }

    fn census(&self) -> Vec<(&'static str, u32)> {
        vec![
            ("UAR", self.uars.len()),
            ("EQ", self.eqs.len()),
            ("CQ", self.cqs.len()),
            ("QP", self.qps.len()),
            ("mkey", self.mkeys.len()),
            ("PD", self.pds.len()),
        ]
    }
    fn reset(&mut self) {
        self.uars.clear();
        self.pds.clear();
        self.eqs.clear();
        self.cqs.clear();
        self.mkeys.clear();
        self.qps.clear();
        self.umems.clear();
        self.gids.fill(None);
    }
}
