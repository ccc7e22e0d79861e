//! What objects refer to: who uses what, SRQs, where buffers lie, and what contexts mean to the transport.

use ferroce_firmware_iface::layouts::{Qpc, Srqc};

use super::DataPlane;
use super::address::Path;
use super::ports;
use crate::fw::plane::DmaFault;
use crate::objects::qp::{ReceiveFrom, Service};
use crate::objects::{Buffer, ObjectError, PageList, Qp, Srq, Table};
use crate::psn::Psn;
use crate::rc::types::{AtomicMode, QpConfig};

/// Payload that an RC QP may have unacknowledged: enough for a cable, little enough that a loss is cheap.
const WINDOW_BYTES: u32 = 256 * 1024;

/// `srqc.state` of an SRQ that is broken.
const SRQ_ERROR: u8 = 1;

/// Puts a fallibly built object in a table.
pub(super) fn insert<T>(
    table: &mut Table<T>,
    object: &'static str,
    make: impl FnOnce(u32) -> Result<T, ObjectError>,
) -> Result<u32, ObjectError> {
    let limit = table.limit();
    table
        .try_insert_with(make)?
        .ok_or(ObjectError::NoResources { object, limit })
}

pub(super) fn no_such(object: &'static str, number: u32) -> ObjectError {
    ObjectError::NoSuch { object, number }
}

/// Takes an object out unless others refer to it.
pub(super) fn remove<T>(
    table: &mut Table<T>,
    object: &'static str,
    number: u32,
    users: impl FnOnce(&T) -> u32,
) -> Result<T, ObjectError> {
    let users = users(table.get(number).ok_or(no_such(object, number))?);
    if users != 0 {
        return Err(ObjectError::Busy {
            object,
            number,
            users,
        });
    }
    table.remove(number).ok_or(no_such(object, number))
}

impl DataPlane {
    pub(super) fn dma_allowed(&self, fault: DmaFault) -> Result<(), DmaFault> {
        if self.bus_master {
            return Ok(());
        }
        log::warn!("DMA to {:#x} while bus mastering is off", fault.iova);
        Err(fault)
    }

    pub(super) fn need_uar(&self, uar: u32) -> Result<(), ObjectError> {
        self.objects.uars.get(uar).map(drop).ok_or(no_such("UAR", uar))
    }

    pub(super) fn need_pd(&self, pd: u32) -> Result<(), ObjectError> {
        self.objects.pds.get(pd).map(drop).ok_or(no_such("PD", pd))
    }

    pub(super) fn need_cq(&self, cqn: u32) -> Result<(), ObjectError> {
        self.objects.cqs.get(cqn).map(drop).ok_or(no_such("CQ", cqn))
    }

    /// Counts a user more (or less) of a UAR, a PD, a CQ, a umem.
    pub(super) fn use_uar(&mut self, uar: u32, change: i32) {
        if let Some(page) = self.objects.uars.get_mut(uar) {
            page.users = page.users.saturating_add_signed(change);
        }
    }

    pub(super) fn use_pd(&mut self, pd: u32, change: i32) {
        if let Some(pd) = self.objects.pds.get_mut(pd) {
            pd.users = pd.users.saturating_add_signed(change);
        }
    }

    pub(super) fn use_cq(&mut self, cqn: u32, change: i32) {
        if let Some(cq) = self.objects.cqs.get_mut(cqn) {
            cq.users = cq.users.saturating_add_signed(change);
        }
    }

    pub(super) fn use_srq(&mut self, srqn: u32, change: i32) {
        if let Some(srq) = self.objects.srqs.get_mut(srqn) {
            srq.users = srq.users.saturating_add_signed(change);
        }
    }

    /// What a QP refers to.
    pub(super) fn use_all_of_qp(&mut self, qp: QpRefs, change: i32) {
        self.use_uar(qp.uar, change);
        self.use_pd(qp.pd, change);
        for cqn in qp.cqns.into_iter().flatten() {
            self.use_cq(cqn, change);
        }
        if let Some(srqn) = qp.srqn {
            self.use_srq(srqn, change);
        }
    }

    /// Creates an SRQ.
    ///
    /// # Errors
    /// As the other create functions.
    pub fn create_srq(&mut self, srqc: &Srqc, buffer: Buffer<'_>) -> Result<u32, ObjectError> {
        self.need_pd(srqc.pd())?;
        let pages = self.pages_for(buffer);
        let srqn = insert(&mut self.objects.srqs, "SRQ", |n| Srq::new(n, srqc, pages))?;
        self.use_pd(srqc.pd(), 1);
        Ok(srqn)
    }

    /// Destroys an SRQ that no QP refers to.
    ///
    /// # Errors
    /// It is not there, or in use.
    pub fn destroy_srq(&mut self, srqn: u32) -> Result<(), ObjectError> {
        let srq = remove(&mut self.objects.srqs, "SRQ", srqn, |srq| srq.users)?;
        self.use_pd(srq.pd, -1);
        Ok(())
    }

    /// Sets the limit below which an SRQ raises an event, once.
    ///
    /// # Errors
    /// It is not there.
    pub fn arm_srq(&mut self, srqn: u32, limit: u16) -> Result<(), ObjectError> {
        self.objects.srqs.get_mut(srqn).ok_or(no_such("SRQ", srqn))?.limit = limit;
        Ok(())
    }

    /// Fills in an SRQ's context.
    ///
    /// # Errors
    /// It is not there.
    pub fn query_srq(&self, srqn: u32, srqc: &mut Srqc) -> Result<(), ObjectError> {
        let srq = self.objects.srqs.get(srqn).ok_or(no_such("SRQ", srqn))?;
        *srqc = srq.context;
        srqc.set_lwm(srq.limit);
        let _ = srqc.set_state(if srq.error { SRQ_ERROR } else { 0 });
        Ok(())
    }

    /// Where the pages of a buffer come from, for the `new` functions of objects. The umem is looked up now,
    /// so that the table of the new object can be borrowed.
    pub(super) fn pages_for<'a>(
        &self,
        buffer: Buffer<'a>,
    ) -> impl FnOnce(u32, u64, u64) -> Result<PageList, ObjectError> + use<'a> {
        let umem = match buffer {
            Buffer::Umem { id, .. } => self.objects.umems.get(id).map(|umem| umem.pages.clone()),
            Buffer::Pas(_) => None,
        };
        move |page_shift, offset, len| match buffer {
            Buffer::Pas(pas) => PageList::from_pas(pas, page_shift, offset, len),
            Buffer::Umem { id, offset: at } => umem.ok_or(no_such("umem", id))?.part(at, len),
        }
    }

    pub(super) fn transport_config(&self, qpc: &Qpc) -> QpConfig {
        let path = qpc.primary_address_path();
        QpConfig {
            path_mtu: 128 << qpc.mtu().clamp(1, 5),
            dest_qpn: qpc.remote_qpn(),
            pkey: 0xffff,
            send_psn: Psn::from_low_bits(qpc.next_send_psn()),
            recv_psn: Psn::from_low_bits(qpc.next_rcv_psn()),
            retry_count: qpc.retry_count(),
            rnr_retry: qpc.rnr_retry(),
            ack_timeout: path.ack_timeout(),
            min_rnr_nak: qpc.min_rnr_nak(),
            max_rd_atomic: 1 << qpc.log_sra_max(),
            max_dest_rd_atomic: 1 << qpc.log_rra_max(),
            remote_read: qpc.rre(),
            remote_write: qpc.rwe(),
            remote_atomic: qpc.rae(),
            atomic_mode: if qpc.atomic_mode() == 0 {
                AtomicMode::None
            } else {
                AtomicMode::Ib
            },
            window_bytes: WINDOW_BYTES,
        }
    }

    /// The addresses of the QP's packets; for a kind that has none, nothing.
    pub(super) fn path_of(&self, qp: &Qp, qpc: &Qpc) -> Result<Option<Path>, ObjectError> {
        if !matches!(qp.service, Service::Rc | Service::Uc) {
            return Ok(None);
        }
        let ads = qpc.primary_address_path();
        let gid = self
            .line(ports::path_port(ads))
            .gid(u16::from(ads.src_addr_index()))
            .ok_or(ObjectError::BadValue {
                field: "src_addr_index",
                value: u64::from(ads.src_addr_index()),
                reason: "the GID table has nothing there",
            })?;
        Ok(Some(Path::new(ads, gid)))
    }
}

/// What a QP refers to.
#[derive(Clone, Copy)]
pub(super) struct QpRefs {
    uar: u32,
    pd: u32,
    cqns: [Option<u32>; 2],
    srqn: Option<u32>,
}

impl QpRefs {
    pub(super) fn of(qp: &Qp) -> QpRefs {
        QpRefs {
            uar: qp.uar_page,
            pd: qp.pd,
            cqns: [
                (qp.sq.wqebbs != 0).then_some(qp.cqn_snd),
                (qp.receive_from != ReceiveFrom::Nowhere).then_some(qp.cqn_rcv),
            ],
            srqn: match qp.receive_from {
                ReceiveFrom::Srq(srqn) => Some(srqn),
                _ => None,
            },
        }
    }
}

impl DataPlane {
    /// Puts a QP in another PD.
    ///
    /// # Errors
    /// The PD is not there.
    pub(super) fn move_qp(&mut self, qpn: u32, pd: u32) -> Result<(), ObjectError> {
        self.need_pd(pd)?;
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            return Err(no_such("QP", qpn));
        };
        let old = std::mem::replace(&mut qp.pd, pd);
        self.use_pd(old, -1);
        self.use_pd(pd, 1);
        Ok(())
    }
}
