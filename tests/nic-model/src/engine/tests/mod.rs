//! The data plane with hand-made objects: WQEs and doorbells as bytes, frames passed by hand, time by hand.

mod blueflame;
mod congestion;
mod datagram;
mod flush;
mod hostile;
mod operations;
mod queues;
mod shared;
mod unreliable;

use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::{Cqc, Eqc, Mkc, Qpc, RoceAddrLayout};

use super::events::Event;
use super::ports::FIRST_PORT;
use super::violation::Violation;
use super::*;
use crate::fw::plane::Plane;
use crate::fw::plane_port::PortPlane;
use crate::fw::qp_transition::QpTransition;
use crate::host::test_support::host_memory;
use crate::objects::Buffer;

/// Where the host's memory is mapped.
const BASE: u64 = 0x1000_0000;
const SIZE: u64 = 8 << 20;
const EQ_RING: u64 = BASE;
const CQ_RING: u64 = BASE + 0x1_0000;
const CQ_DBR: u64 = BASE + 0x2_0000;
const QP_DBR: u64 = BASE + 0x2_1000;
const QP_BUFFER: u64 = BASE + 0x3_0000;
const DATA: u64 = BASE + 0x10_0000;
const DATA_BYTES: u64 = 4 << 20;
/// Receive WQEs (of 64 bytes), send WQEBBs, CQEs and EQEs of the queues below.
const RQ: u64 = 16;
const SQ: u64 = 16;
const LOG_CQ: u32 = 5;
const LOG_EQ: u32 = 5;

/// One NIC with one of each object.
struct Side {
    dp: DataPlane,
    uar: u32,
    eqn: u32,
    cqn: u32,
    qpn: u32,
    pd: u32,
    /// lkey and rkey of `DATA`.
    key: u32,
    /// WQEBBs posted.
    sq_pi: u16,
    rq_pi: u16,
    cq_ci: u32,
}

fn pages(start: u64, bytes: u64) -> Vec<u8> {
    (0..bytes.div_ceil(4096))
        .flat_map(|p| (start + p * 4096).to_be_bytes())
        .collect()
}

fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

fn ip(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

impl Side {
    fn new(last: u8) -> Side {
        let mut dp = DataPlane::new(Limits::default(), mac(last));
        dp.host = host_memory(BASE, SIZE);
        dp.set_bus_master(true);
        dp.set_roce_enabled(true);
        let uar = dp.alloc_uar().unwrap();
        let pd = dp.alloc_pd().unwrap();
        let mut gid = RoceAddrLayout::zeroed();
        ip(last)
            .iter()
            .enumerate()
            .for_each(|(i, b)| gid.set_source_l3_address(i, *b));
        gid.set_source_mac_47_32(0x0200);
        gid.set_source_mac_31_0(u32::from(last));
        gid.set_roce_version(2);
        dp.set_roce_address(FIRST_PORT, 3, Some(&gid)).unwrap();
        let mut side = Side {
            dp,
            uar,
            eqn: 0,
            cqn: 0,
            qpn: 0,
            pd,
            key: 0,
            sq_pi: 0,
            rq_pi: 0,
            cq_ci: 0,
        };
        side.create_eq();
        side.cqn = side.create_cq(LOG_CQ);
        side.qpn = side.create_qp();
        side.key = side.create_key();
        side
    }

    fn create_eq(&mut self) {
        let mut eqc = Eqc::zeroed();
        eqc.set_log_eq_size(LOG_EQ as u8).unwrap();
        eqc.set_uar_page(self.uar).unwrap();
        let all = [u64::MAX, 0, 0, 0];
        self.eqn = self
            .dp
            .create_eq(&eqc, all, Buffer::Pas(&pages(EQ_RING, 4096)))
            .unwrap();
        for entry in 0..1u64 << LOG_EQ {
            self.dp.host.write(EQ_RING + entry * 64 + 63, &[1]).unwrap();
        }
    }

    fn create_cq(&mut self, log_size: u32) -> u32 {
        let mut cqc = Cqc::zeroed();
        cqc.set_log_cq_size(log_size as u8).unwrap();
        cqc.set_uar_page(self.uar).unwrap();
        cqc.set_c_eqn_or_apu_element(self.eqn);
        cqc.set_dbr_addr(CQ_DBR);
        for entry in 0..1u64 << log_size {
            self.dp.host.write(CQ_RING + entry * 64 + 63, &[0xf1]).unwrap();
        }
        self.dp
            .create_cq(&cqc, Buffer::Pas(&pages(CQ_RING, 64 << log_size)))
            .unwrap()
    }

    fn qpc(&self) -> Qpc {
        let mut qpc = Qpc::zeroed();
        qpc.set_pd(self.pd).unwrap();
        qpc.set_log_rq_size(RQ.ilog2() as u8).unwrap();
        qpc.set_log_rq_stride(2).unwrap();
        qpc.set_log_sq_size(SQ.ilog2() as u8).unwrap();
        qpc.set_uar_page(self.uar).unwrap();
        qpc.set_cqn_snd(self.cqn).unwrap();
        qpc.set_cqn_rcv(self.cqn).unwrap();
        qpc.set_dbr_addr(QP_DBR);
        qpc.set_user_index(0x77).unwrap();
        qpc
    }

    fn create_qp(&mut self) -> u32 {
        let qpc = self.qpc();
        self.dp
            .create_qp(&qpc, Buffer::Pas(&pages(QP_BUFFER, (RQ + SQ) * 64)))
            .unwrap()
    }

    fn create_key(&mut self) -> u32 {
        let mut mkc = Mkc::zeroed();
        mkc.set_access_mode_1_0(1).unwrap();
        mkc.set_log_page_size(12).unwrap();
        for set in [Mkc::set_lr, Mkc::set_lw, Mkc::set_rr, Mkc::set_rw, Mkc::set_a] {
            set(&mut mkc, true);
        }
        mkc.set_pd(self.pd).unwrap();
        mkc.set_qpn(0xff_ffff).unwrap();
        mkc.set_mkey_7_0(0x5a);
        mkc.set_start_addr(DATA);
        mkc.set_len(DATA_BYTES);
        let index = self
            .dp
            .create_mkey(&mkc, Buffer::Pas(&pages(DATA, DATA_BYTES)))
            .unwrap();
        index << 8 | 0x5a
    }

    /// To RTS, with the peer `last` and its QP.
    fn connect(&mut self, last: u8, peer_qpn: u32) {
        let mut qpc = self.qpc();
        let qpn = self.qpn;
        self.dp.modify_qp(QpTransition::Rst2Init, qpn, &qpc).unwrap();
        qpc.set_mtu(5).unwrap();
        qpc.set_remote_qpn(peer_qpn).unwrap();
        qpc.set_log_rra_max(2).unwrap();
        qpc.set_log_sra_max(2).unwrap();
        qpc.set_atomic_mode(1).unwrap();
        qpc.set_retry_count(7).unwrap();
        qpc.set_rnr_retry(7).unwrap();
        qpc.set_min_rnr_nak(1).unwrap();
        qpc.set_rre(true);
        qpc.set_rwe(true);
        qpc.set_rae(true);
        qpc.set_next_rcv_psn(0xff_fffa).unwrap();
        qpc.set_next_send_psn(0xff_fffa).unwrap();
        let path = qpc.primary_address_path_mut();
        path.set_ack_timeout(14).unwrap();
        path.set_src_addr_index(3);
        path.set_hop_limit(64);
        path.set_rmac_47_32(0x0200);
        path.set_rmac_31_0(u32::from(last));
        ip(last)
            .iter()
            .enumerate()
            .for_each(|(i, b)| path.set_rgid_rip(i, *b));
        self.dp.modify_qp(QpTransition::Init2Rtr, qpn, &qpc).unwrap();
        self.dp.modify_qp(QpTransition::Rtr2Rts, qpn, &qpc).unwrap();
    }

    /// Writes a WQE of whole segments at the producer index; its index, QPN and DS are filled in.
    fn post(&mut self, opcode: u8, flags: u8, imm: u32, segments: &[u8]) -> u16 {
        let mut wqe = vec![0; 16];
        wqe.extend_from_slice(segments);
        let ds = (wqe.len() / 16) as u32;
        wqe[0..4].copy_from_slice(&(u32::from(self.sq_pi) << 8 | u32::from(opcode)).to_be_bytes());
        wqe[4..8].copy_from_slice(&(self.qpn << 8 | ds).to_be_bytes());
        wqe[11] = flags;
        wqe[12..16].copy_from_slice(&imm.to_be_bytes());
        self.post_raw(&wqe)
    }

    fn post_raw(&mut self, wqe: &[u8]) -> u16 {
        let index = self.sq_pi;
        for part in wqe.chunks(64) {
            let slot = u64::from(self.sq_pi) % SQ;
            self.dp.host.write(QP_BUFFER + RQ * 64 + slot * 64, part).unwrap();
            self.sq_pi = self.sq_pi.wrapping_add(1);
        }
        index
    }

    fn ring(&mut self) {
        self.dp
            .host
            .write_be32(QP_DBR + 4, u32::from(self.sq_pi))
            .unwrap();
        let mut bell = [0; 8];
        bell[4..8].copy_from_slice(&(self.qpn << 8).to_be_bytes());
        self.dp.uar_write(self.uar, 0x800, &bell);
    }

    fn post_recv(&mut self, segments: &[u8]) {
        let slot = u64::from(self.rq_pi) % RQ;
        let mut wqe = segments.to_vec();
        if wqe.len() < 64 {
            wqe.extend_from_slice(&data(0, 0x100, 0));
        }
        self.dp.host.write(QP_BUFFER + slot * 64, &wqe).unwrap();
        self.rq_pi = self.rq_pi.wrapping_add(1);
        self.dp.host.write_be32(QP_DBR, u32::from(self.rq_pi)).unwrap();
    }

    /// The next CQE, if it is there.
    fn poll(&mut self) -> Option<[u8; 64]> {
        let entries = 1 << LOG_CQ;
        let mut cqe = [0; 64];
        self.dp
            .host
            .read(CQ_RING + u64::from(self.cq_ci % entries) * 64, &mut cqe)
            .unwrap();
        let phase = (self.cq_ci / entries) as u8 & 1;
        if cqe[63] & 1 != phase || cqe[63] >> 4 == 0xf {
            return None;
        }
        self.cq_ci = self.cq_ci.wrapping_add(1);
        self.dp.host.write_be32(CQ_DBR, self.cq_ci & 0xff_ffff).unwrap();
        Some(cqe)
    }

    fn eqe(&self, index: u64) -> [u8; 64] {
        let mut eqe = [0; 64];
        self.dp.host.read(EQ_RING + index * 64, &mut eqe).unwrap();
        eqe
    }

    fn arm_cq(&mut self, sn: u32, solicited: bool, ci: u32) {
        let mut bell = [0; 8];
        let image = sn << 28 | u32::from(solicited) << 24 | (ci & 0xff_ffff);
        bell[0..4].copy_from_slice(&image.to_be_bytes());
        bell[4..8].copy_from_slice(&self.cqn.to_be_bytes());
        self.dp.uar_write(self.uar, 0x20, &bell);
    }

    fn arm_eq(&mut self, ci: u32) {
        self.dp
            .uar_write(self.uar, 0x40, &(self.eqn << 24 | ci).to_be_bytes());
    }

    fn fill(&mut self, at: u64, bytes: &[u8]) {
        self.dp.host.write(at, bytes).unwrap();
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.dp.host.read(at, &mut out).unwrap();
        out
    }
}

/// A data segment.
fn data(len: u32, key: u32, addr: u64) -> Vec<u8> {
    let mut out = len.to_be_bytes().to_vec();
    out.extend_from_slice(&key.to_be_bytes());
    out.extend_from_slice(&addr.to_be_bytes());
    out
}

/// A remote address segment.
fn remote(addr: u64, key: u32) -> Vec<u8> {
    let mut out = addr.to_be_bytes().to_vec();
    out.extend_from_slice(&key.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out
}

/// Two connected NICs; `pair.run()` passes frames until nothing moves.
struct Pair {
    a: Side,
    b: Side,
    now: Nanos,
}

impl Pair {
    fn new() -> Pair {
        let (mut a, mut b) = (Side::new(1), Side::new(2));
        a.connect(2, b.qpn);
        b.connect(1, a.qpn);
        Pair { a, b, now: Nanos(1) }
    }

    fn run(&mut self) {
        loop {
            let mut moved = self.a.dp.run(self.now) | self.b.dp.run(self.now);
            while let Some(frame) = self.a.dp.take_frame() {
                self.b.dp.receive(self.now, frame);
                moved = true;
            }
            while let Some(frame) = self.b.dp.take_frame() {
                self.a.dp.receive(self.now, frame);
                moved = true;
            }
            if !moved {
                break;
            }
        }
    }

    /// Lets time pass from timer to timer for `how_long`.
    fn pass(&mut self, how_long: std::time::Duration) {
        let end = self.now + how_long;
        loop {
            self.run();
            let next = [self.a.dp.next_timeout(), self.b.dp.next_timeout()];
            match next.into_iter().flatten().min() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
        }
        self.now = end;
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Signaled.
const CQE: u8 = 8;
