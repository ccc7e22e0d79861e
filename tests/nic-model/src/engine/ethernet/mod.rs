//! Ethernet frames: raw send and receive queues, and the flow tables between the wire and the latter.
//!
//! ```text
//!   SQ doorbell ─▶ transmit (headers, LSO, checksums) ─▶ wire
//!   wire ─▶ not RoCE, or not ours ─▶ flow tables ─▶ TIR ─▶ hash, RQT ─▶ RQ, CQE
//! ```

pub mod hash;
pub mod packet;
mod receive;
mod transmit;

use ferroce_firmware_iface::layouts::{Rqc, Sqc, Tirc, Tisc};

use super::DataPlane;
use super::refs::{insert, no_such, remove};
use crate::fw::plane_ethernet::{EthernetPlane, Filter};
use crate::objects::flow::{Destination, FlowEntry, FlowGroup, FlowTable, Miss};
use crate::objects::raw::{RawState, ReceiveQueue, Rqt, SendQueue, Tir, Tis};
use crate::objects::{Buffer, ObjectError};

/// `disp_type` of a TIR: one RQ, or a table of them.
const DIRECT: u8 = 0;
const INDIRECT: u8 = 1;

fn wrong_state(object: u32, state: RawState, from: RawState) -> ObjectError {
    let name = |state| match state {
        RawState::Reset => "RST",
        RawState::Ready => "RDY",
        RawState::Error => "ERR",
    };
    ObjectError::BadQpState {
        qpn: object,
        state: name(state),
        transition: name(from),
    }
}

impl DataPlane {
    /// A TIR's destination has to be there.
    fn check_tir(&self, tirc: &Tirc) -> Result<(), ObjectError> {
        let (rqn, rqtn) = (tirc.inline_rqn(), tirc.indirect_table());
        match tirc.disp_type() {
            DIRECT if self.objects.rqs.get(rqn).is_none() => Err(no_such("RQ", rqn)),
            INDIRECT if self.objects.rqts.get(rqtn).is_none() => Err(no_such("RQT", rqtn)),
            DIRECT | INDIRECT => Ok(()),
            other => Err(ObjectError::BadValue {
                field: "disp_type",
                value: u64::from(other),
                reason: "0 and 1 are there",
            }),
        }
    }

    fn check_rqs(&self, rqs: &[u32]) -> Result<(), ObjectError> {
        let missing = rqs.iter().find(|rqn| self.objects.rqs.get(**rqn).is_none());
        missing.map_or(Ok(()), |rqn| Err(no_such("RQ", *rqn)))
    }

    /// Who still names the RQ.
    fn users_of_rq(&self, rqn: u32) -> u32 {
        let tirs = self.objects.tirs.iter();
        let direct = tirs.filter(|(_, t)| t.context.disp_type() == DIRECT && t.context.inline_rqn() == rqn);
        let tables = self.objects.rqts.iter().filter(|(_, t)| t.rqs.contains(&rqn));
        (direct.count() + tables.count()) as u32
    }

    fn users_of_rqt(&self, rqtn: u32) -> u32 {
        let tirs = self.objects.tirs.iter();
        let users =
            tirs.filter(|(_, t)| t.context.disp_type() == INDIRECT && t.context.indirect_table() == rqtn);
        users.count() as u32
    }

    fn uses_by_tables(&self, destination: Destination) -> u32 {
        self.objects
            .flow_tables
            .iter()
            .map(|(_, t)| t.uses(destination))
            .sum()
    }

    /// A table may forward to higher levels only, so that no frame goes round.
    fn check_destination(&self, level: u8, destination: Destination) -> Result<(), ObjectError> {
        match destination {
            Destination::Tir(tirn) if self.objects.tirs.get(tirn).is_none() => Err(no_such("TIR", tirn)),
            Destination::Tir(_) => Ok(()),
            Destination::Table(id) => match self.objects.flow_tables.get(id) {
                None => Err(no_such("flow table", id)),
                Some(table) if table.level <= level => Err(ObjectError::BadValue {
                    field: "destination_id",
                    value: u64::from(id),
                    reason: "a table forwards to higher levels only",
                }),
                Some(_) => Ok(()),
            },
        }
    }

    fn check_miss(&self, level: u8, miss: Miss) -> Result<(), ObjectError> {
        match miss {
            Miss::Default => Ok(()),
            Miss::Table(id) => self.check_destination(level, Destination::Table(id)),
        }
    }

    fn table_mut(&mut self, id: u32) -> Result<&mut FlowTable, ObjectError> {
        self.objects
            .flow_tables
            .get_mut(id)
            .ok_or(no_such("flow table", id))
    }
}

impl EthernetPlane for DataPlane {
    fn create_sq(&mut self, sqc: &Sqc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        let wq = sqc.wq();
        self.need_pd(wq.pd())?;
        self.need_uar(wq.uar_page())?;
        self.need_cq(sqc.cqn())?;
        let tisn = sqc.tis_num_0();
        if sqc.tis_lst_sz() != 0 && self.objects.tiss.get(tisn).is_none() {
            return Err(no_such("TIS", tisn));
        }
        let pages = self.pages_for(buffer);
        let sqn = insert(&mut self.objects.sqs, "SQ", |n| SendQueue::new(n, sqc, pages))?;
        self.use_pd(wq.pd(), 1);
        self.use_uar(wq.uar_page(), 1);
        self.use_cq(sqc.cqn(), 1);
        if let Some(tis) = self.objects.tiss.get_mut(tisn) {
            tis.users += 1;
        }
        Ok(sqn)
    }

    fn modify_sq(&mut self, sqn: u32, from: RawState, to: RawState) -> Result<(), ObjectError> {
        let sq = self.objects.sqs.get_mut(sqn).ok_or(no_such("SQ", sqn))?;
        if sq.state != from {
            return Err(wrong_state(sqn, sq.state, from));
        }
        sq.state = to;
        if to == RawState::Reset {
            sq.ring.ci = 0;
            sq.ring.recorded = 0;
        }
        Ok(())
    }

    fn destroy_sq(&mut self, sqn: u32) -> Result<(), ObjectError> {
        let sq = remove(&mut self.objects.sqs, "SQ", sqn, |_| 0)?;
        self.use_pd(sq.pd, -1);
        self.use_uar(sq.uar_page, -1);
        self.use_cq(sq.cqn, -1);
        if let Some(tis) = self.objects.tiss.get_mut(sq.tisn) {
            tis.users = tis.users.saturating_sub(1);
        }
        Ok(())
    }

    fn query_sq(&self, sqn: u32) -> Result<Sqc, ObjectError> {
        let sq = self.objects.sqs.get(sqn).ok_or(no_such("SQ", sqn))?;
        let mut context = sq.context;
        let _ = context.set_state(sq.state.prm());
        Ok(context)
    }

    fn create_rq(&mut self, rqc: &Rqc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        // PD 0 is none: no key is in it, so such an RQ can only drop. Linux has one.
        if rqc.wq().pd() != 0 {
            self.need_pd(rqc.wq().pd())?;
        }
        self.need_cq(rqc.cqn())?;
        let pages = self.pages_for(buffer);
        let rqn = insert(&mut self.objects.rqs, "RQ", |n| ReceiveQueue::new(n, rqc, pages))?;
        self.use_pd(rqc.wq().pd(), 1);
        self.use_cq(rqc.cqn(), 1);
        Ok(rqn)
    }

    fn modify_rq(
        &mut self,
        rqn: u32,
        from: RawState,
        to: RawState,
        keep_vlan: Option<bool>,
        counter_set: Option<u8>,
    ) -> Result<(), ObjectError> {
        let rq = self.objects.rqs.get_mut(rqn).ok_or(no_such("RQ", rqn))?;
        if rq.state != from {
            return Err(wrong_state(rqn, rq.state, from));
        }
        rq.state = to;
        if to == RawState::Reset {
            rq.ring.ci = 0;
            rq.ring.pi = 0;
        }
        if let Some(keep) = keep_vlan {
            rq.keep_vlan = keep;
            rq.context.set_vsd(keep);
        }
        if let Some(set) = counter_set {
            rq.context.set_counter_set_id(set);
        }
        Ok(())
    }

    fn destroy_rq(&mut self, rqn: u32) -> Result<(), ObjectError> {
        let users = self.users_of_rq(rqn);
        let rq = remove(&mut self.objects.rqs, "RQ", rqn, |_| users)?;
        self.use_pd(rq.pd, -1);
        self.use_cq(rq.cqn, -1);
        Ok(())
    }

    fn query_rq(&self, rqn: u32) -> Result<Rqc, ObjectError> {
        let rq = self.objects.rqs.get(rqn).ok_or(no_such("RQ", rqn))?;
        let mut context = rq.context;
        let _ = context.set_state(rq.state.prm());
        Ok(context)
    }

    fn create_tis(&mut self, tisc: &Tisc) -> Result<u32, ObjectError> {
        let td = tisc.transport_domain();
        if self.objects.transport_domains.get(td).is_none() {
            return Err(no_such("transport domain", td));
        }
        let tis = Tis {
            context: *tisc,
            users: 0,
        };
        insert(&mut self.objects.tiss, "TIS", |_| Ok(tis))
    }

    fn modify_tis(&mut self, tisn: u32, prio: u8) -> Result<(), ObjectError> {
        let tis = self.objects.tiss.get_mut(tisn).ok_or(no_such("TIS", tisn))?;
        let _ = tis.context.set_prio(prio & 0xf);
        Ok(())
    }

    fn destroy_tis(&mut self, tisn: u32) -> Result<(), ObjectError> {
        remove(&mut self.objects.tiss, "TIS", tisn, |tis| tis.users).map(drop)
    }

    fn create_tir(&mut self, tirc: &Tirc) -> Result<u32, ObjectError> {
        self.check_tir(tirc)?;
        let tir = Tir { context: *tirc };
        insert(&mut self.objects.tirs, "TIR", |_| Ok(tir))
    }

    fn modify_tir(&mut self, tirn: u32, tirc: &Tirc) -> Result<(), ObjectError> {
        self.check_tir(tirc)?;
        self.objects
            .tirs
            .get_mut(tirn)
            .ok_or(no_such("TIR", tirn))?
            .context = *tirc;
        Ok(())
    }

    fn destroy_tir(&mut self, tirn: u32) -> Result<(), ObjectError> {
        let users = self.uses_by_tables(Destination::Tir(tirn));
        remove(&mut self.objects.tirs, "TIR", tirn, |_| users).map(drop)
    }

    fn query_tir(&self, tirn: u32) -> Result<Tirc, ObjectError> {
        self.objects
            .tirs
            .get(tirn)
            .map(|t| t.context)
            .ok_or(no_such("TIR", tirn))
    }

    fn create_rqt(&mut self, rqs: Vec<u32>) -> Result<u32, ObjectError> {
        self.check_rqs(&rqs)?;
        insert(&mut self.objects.rqts, "RQT", |_| Ok(Rqt { rqs }))
    }

    fn modify_rqt(&mut self, rqtn: u32, rqs: Vec<u32>) -> Result<(), ObjectError> {
        self.check_rqs(&rqs)?;
        self.objects.rqts.get_mut(rqtn).ok_or(no_such("RQT", rqtn))?.rqs = rqs;
        Ok(())
    }

    fn destroy_rqt(&mut self, rqtn: u32) -> Result<(), ObjectError> {
        let users = self.users_of_rqt(rqtn);
        remove(&mut self.objects.rqts, "RQT", rqtn, |_| users).map(drop)
    }

    fn create_flow_table(&mut self, table: FlowTable) -> Result<u32, ObjectError> {
        self.check_miss(table.level, table.miss)?;
        insert(&mut self.objects.flow_tables, "flow table", |_| Ok(table))
    }

    fn modify_flow_table(&mut self, id: u32, miss: Miss) -> Result<(), ObjectError> {
        let level = self.table_mut(id)?.level;
        self.check_miss(level, miss)?;
        self.table_mut(id)?.miss = miss;
        Ok(())
    }

    fn destroy_flow_table(&mut self, id: u32) -> Result<(), ObjectError> {
        let users = self.uses_by_tables(Destination::Table(id));
        remove(&mut self.objects.flow_tables, "flow table", id, |_| users)?;
        if self.flow_root == Some(id) {
            self.flow_root = None;
        }
        Ok(())
    }

    fn set_flow_root(&mut self, id: Option<u32>) -> Result<(), ObjectError> {
        if let Some(id) = id {
            self.table_mut(id)?;
        }
        self.flow_root = id;
        Ok(())
    }

    fn create_flow_group(&mut self, table: u32, group: FlowGroup) -> Result<u32, ObjectError> {
        self.table_mut(table)?.add_group(group)
    }

    fn destroy_flow_group(&mut self, table: u32, group: u32) -> Result<(), ObjectError> {
        self.table_mut(table)?.remove_group(group)
    }

    fn set_flow_entry(&mut self, table: u32, index: u32, entry: FlowEntry) -> Result<(), ObjectError> {
        let level = self.table_mut(table)?.level;
        for destination in &entry.destinations {
            self.check_destination(level, *destination)?;
        }
        self.table_mut(table)?.set_entry(index, entry)
    }

    fn delete_flow_entry(&mut self, table: u32, index: u32) -> Result<(), ObjectError> {
        self.table_mut(table)?.remove_entry(index)
    }

    fn flow_entry(&self, table: u32, index: u32) -> Option<FlowEntry> {
        self.objects.flow_tables.get(table)?.entry(index).cloned()
    }

    fn set_filter(&mut self, filter: Filter) {
        self.port.filter = filter;
    }
}
