//! What commands do: objects are made, moved through their states, queried and destroyed.
//!
//! The firmware has checked the command; here is checked what an object needs of others, and that nobody still
//! refers to what is destroyed. A failed call changes nothing.

use ferroce_firmware_iface::layouts::{
    Cqc, Eqc, Mkc, Qpc, QueryQCounterOut, QueryVportCounterOut, Srqc, Umem,
};

use super::DataPlane;
use super::completion::Completion;
use super::events::Event;
use super::refs::{insert, no_such, remove};
use super::traffic::Traffic;
use crate::fw::plane::{DmaFault, Event as FirmwareEvent, HostDma, Plane};
use crate::fw::qp_transition::QpTransition;
use crate::host;
use crate::objects::cq::CqState;
use crate::objects::{Buffer, Cq, Eq, Mkey, ObjectError, Pd, QCounter, Uar, UmemObject};

impl HostDma for DataPlane {
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DmaFault> {
        let fault = DmaFault {
            iova,
            len: data.len(),
        };
        self.dma_allowed(fault)?;
        self.host.read(iova, data).map_err(|_| fault)
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaFault> {
        let fault = DmaFault {
            iova,
            len: data.len(),
        };
        self.dma_allowed(fault)?;
        let done = match data {
            // A single byte gives an entry back: everything before it must be visible first.
            [byte] => self.host.write_u8_release(iova, *byte),
            _ => self.host.write(iova, data),
        };
        done.map_err(|_| fault)
    }

    fn mapped(&self, iova: u64, len: u64) -> bool {
        let bytes = usize::try_from(len);
        self.bus_master && bytes.is_ok_and(|n| self.host.slices(iova, n, host::Access::ReadWrite).is_ok())
    }
}

impl Plane for DataPlane {
    fn alloc_uar(&mut self) -> Result<u32, ObjectError> {
        insert(&mut self.objects.uars, "UAR", |_| Ok(Uar::default()))
    }

    fn dealloc_uar(&mut self, uar: u32) -> Result<(), ObjectError> {
        remove(&mut self.objects.uars, "UAR", uar, |u| u.users).map(drop)
    }

    fn alloc_pd(&mut self) -> Result<u32, ObjectError> {
        insert(&mut self.objects.pds, "PD", |_| Ok(Pd::default()))
    }

    fn dealloc_pd(&mut self, pd: u32) -> Result<(), ObjectError> {
        remove(&mut self.objects.pds, "PD", pd, |p| p.users).map(drop)
    }

    fn alloc_transport_domain(&mut self) -> Result<u32, ObjectError> {
        insert(
            &mut self.objects.transport_domains,
            "transport domain",
            |_| Ok(()),
        )
    }

    fn dealloc_transport_domain(&mut self, td: u32) -> Result<(), ObjectError> {
        remove(
            &mut self.objects.transport_domains,
            "transport domain",
            td,
            |()| 0,
        )
    }

    fn alloc_xrcd(&mut self) -> Result<u32, ObjectError> {
        insert(&mut self.objects.xrcds, "XRC domain", |_| Ok(()))
    }

    fn dealloc_xrcd(&mut self, xrcd: u32) -> Result<(), ObjectError> {
        remove(&mut self.objects.xrcds, "XRC domain", xrcd, |()| 0)
    }

    fn alloc_q_counter(&mut self) -> Result<u8, ObjectError> {
        let set = QCounter::default();
        insert(&mut self.objects.q_counters, "Q counter", |_| Ok(set)).map(|id| id as u8)
    }

    fn dealloc_q_counter(&mut self, id: u8) -> Result<(), ObjectError> {
        remove(&mut self.objects.q_counters, "Q counter", u32::from(id), |_| 0).map(drop)
    }

    fn query_q_counter(
        &mut self,
        id: u8,
        clear: bool,
        out: &mut QueryQCounterOut,
    ) -> Result<(), ObjectError> {
        let set = self.objects.q_counters.get_mut(u32::from(id));
        let set = set.ok_or(no_such("Q counter", u32::from(id)))?;
        let mut total = set.retired;
        let members = self
            .objects
            .qps
            .iter()
            .filter(|(_, qp)| qp.context.counter_set_id() == id);
        members.for_each(|(_, qp)| total.add(&qp.counters_now()));
        total.report(&set.base, out);
        if clear {
            set.base = total;
        }
        Ok(())
    }

    fn query_vport_counter(&mut self, clear: bool, out: &mut QueryVportCounterOut) {
        let (mut now, mut base) = (Traffic::default(), Traffic::default());
        for line in &mut self.lines {
            now.add_frames(&line.traffic);
            base.add_frames(&line.vport_base);
            if clear {
                line.vport_base = line.traffic;
            }
        }
        now.report_vport(&base, out);
    }

    fn create_eq(&mut self, eqc: &Eqc, event_bitmask: [u64; 4], pas: Buffer<'_>) -> Result<u32, ObjectError> {
        self.need_uar(eqc.uar_page())?;
        let max = self.limits.log_max_eq_size;
        let pages = self.pages_for(pas);
        let eqn = insert(&mut self.objects.eqs, "EQ", |n| {
            Eq::new(n, eqc, event_bitmask, max, pages)
        })?;
        self.use_uar(eqc.uar_page(), 1);
        Ok(eqn)
    }

    fn destroy_eq(&mut self, eqn: u32) -> Result<(), ObjectError> {
        let eq = remove(&mut self.objects.eqs, "EQ", eqn, |eq| eq.users)?;
        self.use_uar(eq.uar_page, -1);
        Ok(())
    }

    fn query_eq(&self, eqn: u32, eqc: &mut Eqc) -> Result<[u64; 4], ObjectError> {
        let eq = self.objects.eqs.get(eqn).ok_or(no_such("EQ", eqn))?;
        *eqc = eq.context;
        // 0x9: armed, 0xa: fired (PRM, EQ context, st).
        let _ = eqc.set_st(if eq.armed { 0x9 } else { 0xa });
        let _ = eqc.set_consumer_counter(eq.ci & 0xff_ffff);
        let _ = eqc.set_producer_counter(eq.pi & 0xff_ffff);
        Ok(eq.event_bitmask)
    }

    fn create_cq(&mut self, cqc: &Cqc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        self.need_uar(cqc.uar_page())?;
        let eqn = cqc.c_eqn_or_apu_element();
        if self.objects.eqs.get(eqn).is_none() {
            return Err(no_such("EQ", eqn));
        }
        let max = self.limits.log_max_cq_size.min(23);
        let pages = self.pages_for(buffer);
        let cqn = insert(&mut self.objects.cqs, "CQ", |n| Cq::new(n, cqc, max, pages))?;
        self.use_uar(cqc.uar_page(), 1);
        if let Some(eq) = self.objects.eqs.get_mut(eqn) {
            eq.users += 1;
        }
        Ok(cqn)
    }

    fn modify_cq(&mut self, cqn: u32, cqc: &Cqc, buffer: Option<Buffer<'_>>) -> Result<(), ObjectError> {
        let eqn = cqc.c_eqn_or_apu_element();
        if self.objects.eqs.get(eqn).is_none() {
            return Err(no_such("EQ", eqn));
        }
        let resized = match buffer {
            Some(buffer) => {
                let max = self.limits.log_max_cq_size.min(23);
                Some(Cq::new(cqn, cqc, max, self.pages_for(buffer))?)
            }
            None => None,
        };
        let cq = self.objects.cqs.get_mut(cqn).ok_or(no_such("CQ", cqn))?;
        let old_eqn = std::mem::replace(&mut cq.eqn, eqn);
        cq.overrun_ignore = cqc.oi();
        if let Some(new) = resized {
            self.resize_cq(cqn, new);
        }
        for (eqn, change) in [(old_eqn, -1), (eqn, 1)] {
            if let Some(eq) = self.objects.eqs.get_mut(eqn) {
                eq.users = eq.users.saturating_add_signed(change);
            }
        }
        Ok(())
    }

    fn destroy_cq(&mut self, cqn: u32) -> Result<(), ObjectError> {
        let cq = remove(&mut self.objects.cqs, "CQ", cqn, |cq| cq.users)?;
        self.use_uar(cq.uar_page, -1);
        if let Some(eq) = self.objects.eqs.get_mut(cq.eqn) {
            eq.users = eq.users.saturating_sub(1);
        }
        Ok(())
    }

    fn query_cq(&self, cqn: u32, cqc: &mut Cqc) -> Result<(), ObjectError> {
        let cq = self.objects.cqs.get(cqn).ok_or(no_such("CQ", cqn))?;
        *cqc = cq.context;
        // Status 0xa: error or overflow. State 0x6: armed, 0x9: not (PRM, CQ context).
        let _ = cqc.set_status(if cq.state == CqState::Good { 0 } else { 0xa });
        let _ = cqc.set_st(if cq.arm.is_some() { 0x6 } else { 0x9 });
        let _ = cqc.set_consumer_counter(cq.ci & 0xff_ffff);
        let _ = cqc.set_producer_counter(cq.pi & 0xff_ffff);
        Ok(())
    }

    fn create_mkey(&mut self, mkc: &Mkc, translations: Buffer<'_>) -> Result<u32, ObjectError> {
        self.need_pd(mkc.pd())?;
        let pages = self.pages_for(translations);
        let index = insert(&mut self.objects.mkeys, "memory key", |n| {
            Mkey::new(n, mkc, pages)
        })?;
        self.use_pd(mkc.pd(), 1);
        Ok(index)
    }

    fn destroy_mkey(&mut self, index: u32) -> Result<(), ObjectError> {
        let mkey = remove(&mut self.objects.mkeys, "memory key", index, |_| 0)?;
        self.use_pd(mkey.pd, -1);
        Ok(())
    }

    fn query_mkey(&self, index: u32, mkc: &mut Mkc) -> Result<(), ObjectError> {
        let mkey = self
            .objects
            .mkeys
            .get(index)
            .ok_or(no_such("memory key", index))?;
        *mkc = mkey.context;
        mkc.set_free(mkey.free);
        Ok(())
    }

    fn create_qp(&mut self, qpc: &Qpc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        DataPlane::create_qp(self, qpc, buffer)
    }

    fn modify_qp(&mut self, transition: QpTransition, qpn: u32, qpc: &Qpc) -> Result<(), ObjectError> {
        DataPlane::modify_qp(self, transition, qpn, qpc)
    }

    fn destroy_qp(&mut self, qpn: u32) -> Result<(), ObjectError> {
        DataPlane::destroy_qp(self, qpn)
    }

    fn query_qp(&self, qpn: u32, qpc: &mut Qpc) -> Result<(), ObjectError> {
        DataPlane::query_qp(self, qpn, qpc)
    }

    fn create_srq(&mut self, srqc: &Srqc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        DataPlane::create_srq(self, srqc, buffer)
    }

    fn destroy_srq(&mut self, srqn: u32) -> Result<(), ObjectError> {
        DataPlane::destroy_srq(self, srqn)
    }

    fn query_srq(&self, srqn: u32, srqc: &mut Srqc) -> Result<(), ObjectError> {
        DataPlane::query_srq(self, srqn, srqc)
    }

    fn arm_srq(&mut self, srqn: u32, limit: u16) -> Result<(), ObjectError> {
        DataPlane::arm_srq(self, srqn, limit)
    }

    fn create_umem(&mut self, umem: &Umem, mtt: &[u8]) -> Result<u32, ObjectError> {
        insert(&mut self.objects.umems, "umem", |_| UmemObject::new(umem, mtt))
    }

    fn destroy_umem(&mut self, id: u32) -> Result<(), ObjectError> {
        remove(&mut self.objects.umems, "umem", id, |umem| umem.users).map(drop)
    }

    fn umem_iova(&self, id: u32, offset: u64) -> Result<u64, ObjectError> {
        let umem = self.objects.umems.get(id).ok_or(no_such("umem", id))?;
        let found = umem.pages.iova(offset).filter(|(_, left)| *left >= 8);
        found.map(|(iova, _)| iova).ok_or(ObjectError::BadValue {
            field: "dbr_addr",
            value: offset,
            reason: "a doorbell record past the end of its umem",
        })
    }

    fn set_roce_enabled(&mut self, enabled: bool) {
        self.port.roce_enabled = enabled;
    }

    fn set_mac(&mut self, mac: [u8; 6]) {
        self.port.mac = mac;
    }

    fn set_l2_entry(&mut self, index: u32, mac: Option<[u8; 6]>) -> Result<(), ObjectError> {
        match mac {
            // The firmware has checked `index` against its capability; the map holds what the host set.
            Some(mac) => self.port.l2_table.insert(index, mac),
            None => self.port.l2_table.remove(&index),
        };
        Ok(())
    }

    fn set_mtu(&mut self, mtu: u16) {
        self.port.mtu = mtu;
    }

    fn subscribed(&self, event_type: u8) -> bool {
        DataPlane::subscribed(self, event_type)
    }

    fn raise(&mut self, event: FirmwareEvent) -> bool {
        DataPlane::raise(self, Event::Firmware(event))
    }

    fn set_atomics_in_host_order(&mut self, host_order: bool) {
        self.atomics_in_host_order = host_order;
    }

    fn census(&self) -> Vec<(&'static str, u32)> {
        let o = &self.objects;
        vec![
            ("UAR", o.uars.len()),
            ("PD", o.pds.len()),
            ("EQ", o.eqs.len()),
            ("CQ", o.cqs.len()),
            ("QP", o.qps.len()),
            ("SRQ", o.srqs.len()),
            ("memory key", o.mkeys.len()),
            ("umem", o.umems.len()),
            ("transport domain", o.transport_domains.len()),
            ("XRC domain", o.xrcds.len()),
            ("SQ", o.sqs.len()),
            ("RQ", o.rqs.len()),
            ("TIS", o.tiss.len()),
            ("TIR", o.tirs.len()),
            ("RQT", o.rqts.len()),
            ("flow table", o.flow_tables.len()),
        ]
    }

    fn reset(&mut self) {
        self.forget_objects();
    }
}

impl DataPlane {
    /// Moves a CQ to a new ring. A RESIZE CQE in the old one tells the host where to change over; indices go
    /// on, so that the entry after it lies in the new ring where its index says.
    fn resize_cq(&mut self, cqn: u32, new: Cq) {
        let Some(cq) = self.objects.cqs.get_mut(cqn) else {
            return;
        };
        let arm = cq.arm.take();
        let mark = Completion {
            opcode: ferroce_hw_regs::cqe::opcode::RESIZE_CQ,
            ..Completion::default()
        };
        if !self.complete(cqn, &mark) {
            return;
        }
        if let Some(cq) = self.objects.cqs.get_mut(cqn) {
            cq.arm = arm;
            cq.ring = new.ring;
            cq.log_size = new.log_size;
            cq.log_cqe_bytes = new.log_cqe_bytes;
            cq.context = new.context;
        }
    }
}
