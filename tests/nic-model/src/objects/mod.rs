//! What the host creates by commands: queues, keys, protection domains; numbered, bounded, checked.

pub mod buffer;
pub mod cq;
pub mod eq;
pub mod error;
pub mod flow;
pub mod mkey;
pub mod qp;
pub mod raw;
pub mod srq;
pub mod table;
pub mod uar;
pub mod umem;

pub use buffer::{Buffer, PageList};
pub use cq::Cq;
pub use eq::Eq;
pub use error::ObjectError;
pub use mkey::Mkey;
pub use qp::Qp;
pub use srq::Srq;
pub use table::Table;
pub use uar::Uar;
pub use umem::UmemObject;

use crate::engine::counters::QueueCounters;

/// How many objects of each kind there may be, and how large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// User access regions (doorbell pages).
    pub max_uar: u32,
    /// Number of the first UAR: below it BAR 0 holds registers.
    pub first_uar: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Event queues.
    pub max_eq: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Shared receive queues of all kinds.
    pub max_srq: u32,
    /// Memory keys.
    pub max_mkey: u32,
    /// User memory objects.
    pub max_umem: u32,
    /// Transport domains, and XRC domains.
    pub max_domain: u32,
    /// log2 of the most entries of an EQ.
    pub log_max_eq_size: u32,
    /// log2 of the most entries of a CQ; at most 23, since consumer indices have 24 bits.
    pub log_max_cq_size: u32,
    /// Entries of the GID table.
    pub gids: u16,
    /// MSI-X vectors.
    pub msix_vectors: u16,
    /// log2 of the bytes of a BlueFlame register.
    pub log_bf_reg_size: u32,
    /// Thousands of ticks that the device's clock makes in a second.
    pub timer_khz: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_uar: 4096,
            first_uar: 0x10,
            max_pd: 1 << 16,
            max_eq: 128,
            max_cq: 1 << 18,
            max_qp: 1 << 18,
            max_srq: 1 << 16,
            max_mkey: 1 << 20,
            max_umem: 1 << 16,
            max_domain: 1 << 16,
            log_max_eq_size: 22,
            log_max_cq_size: 22,
            gids: 256,
            msix_vectors: 64,
            log_bf_reg_size: 9,
            timer_khz: 156_250,
        }
    }
}

/// A protection domain: who refers to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pd {
    /// Keys, QPs and SRQs in it.
    pub users: u32,
}

/// A Q counter set: sums over the QPs that name it.
#[derive(Clone, Copy, Debug, Default)]
pub struct QCounter {
    /// Counts of QPs that name it no more.
    pub retired: QueueCounters,
    /// What the sums were when the host last cleared them.
    pub base: QueueCounters,
}

/// Number of the first SQ: above those of QPs.
const FIRST_SQN: u32 = 0xc0_0000;
/// Most Ethernet queues and flow tables of each kind.
const MAX_RAW: u32 = 1 << 16;

/// All tables.
#[derive(Debug)]
pub struct Objects {
    /// Doorbell pages.
    pub uars: Table<Uar>,
    /// Protection domains.
    pub pds: Table<Pd>,
    /// Event queues.
    pub eqs: Table<Eq>,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Queue pairs.
    pub qps: Table<Qp>,
    /// The QP that is QP1 on the wire.
    pub gsi: Option<u32>,
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// Memory keys, by index.
    pub mkeys: Table<Mkey>,
    /// User memory objects.
    pub umems: Table<UmemObject>,
    /// Transport domains.
    pub transport_domains: Table<()>,
    /// XRC domains.
    pub xrcds: Table<()>,
    /// Q counter sets.
    pub q_counters: Table<QCounter>,
    /// Ethernet send queues.
    pub sqs: Table<raw::SendQueue>,
    /// Ethernet receive queues.
    pub rqs: Table<raw::ReceiveQueue>,
    /// Transport interface send objects.
    pub tiss: Table<raw::Tis>,
    /// Transport interface receive objects.
    pub tirs: Table<raw::Tir>,
    /// Receive queue tables.
    pub rqts: Table<raw::Rqt>,
    /// Flow tables.
    pub flow_tables: Table<flow::FlowTable>,
}

impl Objects {
    /// Empty tables. First numbers are those of a real ConnectX-4 where they are known.
    pub fn new(limits: &Limits) -> Objects {
        Objects {
            uars: Table::new(limits.first_uar, limits.max_uar),
            pds: Table::new(1, limits.max_pd),
            eqs: Table::new(0x10, limits.max_eq.min(240)),
            cqs: Table::new(0x80, limits.max_cq),
            qps: Table::new(0x40, limits.max_qp),
            gsi: None,
            srqs: Table::new(1, limits.max_srq),
            mkeys: Table::new(0x100, limits.max_mkey),
            umems: Table::new(1, limits.max_umem),
            transport_domains: Table::new(1, limits.max_domain),
            xrcds: Table::new(1, limits.max_domain),
            q_counters: Table::new(1, 255),
            // Doorbells name an SQ where they would name a QP.
            sqs: Table::new(FIRST_SQN, MAX_RAW),
            rqs: Table::new(1, MAX_RAW),
            tiss: Table::new(1, MAX_RAW),
            tirs: Table::new(1, MAX_RAW),
            rqts: Table::new(1, MAX_RAW),
            flow_tables: Table::new(1, MAX_RAW),
        }
    }

    /// Forgets everything, as a reset does.
    pub fn clear(&mut self) {
        self.uars.clear();
        self.pds.clear();
        self.eqs.clear();
        self.cqs.clear();
        self.qps.clear();
        self.gsi = None;
        self.srqs.clear();
        self.mkeys.clear();
        self.umems.clear();
        self.transport_domains.clear();
        self.xrcds.clear();
        self.q_counters.clear();
        self.sqs.clear();
        self.rqs.clear();
        self.tiss.clear();
        self.tirs.clear();
        self.rqts.clear();
        self.flow_tables.clear();
    }
}
