//! Completion queue entries: written in ring order, owner byte last; arms and their events.

use ferroce_firmware_iface::cmds::ts_format;
use ferroce_hw_regs::cqe::opcode as cqe_opcode;

use super::DataPlane;
use super::events::Event;
use super::violation::Violation;
use crate::objects::Qp;
use crate::objects::cq::{Arm, CqState};

/// What a CQE says, above its encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// See [`ferroce_hw_regs::cqe::opcode`].
    pub opcode: u8,
    /// QPN, 24 bits.
    pub qpn: u32,
    /// WQE opcode, of a requester's completion.
    pub send_opcode: u8,
    /// User index of the QP (CQE version 1), 24 bits.
    pub user_index: u32,
    /// Immediate data, invalidated R_Key or P_Key.
    pub immediate: u32,
    /// Bytes moved.
    pub byte_cnt: u32,
    /// WQE index.
    pub wqe_counter: u16,
    /// Counts for arms that only wait for solicited completions.
    pub solicited: bool,
    /// Flags (GRH, RoCE L3 type) and remote QPN, dword 0x18.
    pub flags_rqpn: u32,
    /// Syndrome; not 0 for errors.
    pub syndrome: u8,
    /// Vendor syndrome of an error.
    pub vendor_syndrome: u8,
    /// Of a received Ethernet frame.
    pub ethernet: Option<EthernetInfo>,
}

/// What a CQE says of an Ethernet frame (PRM, CQE, responder fields of raw Ethernet).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EthernetInfo {
    /// Receive hash.
    pub rx_hash: u32,
    /// What it covers.
    pub rx_hash_type: u8,
    /// Ones' complement sum of the IP packet.
    pub check_sum: u16,
    /// Layers whose checks passed.
    pub hds_ip_ext: u8,
    /// Kinds of L3 and L4, and whether a VLAN tag was taken off.
    pub l4_l3_hdr_type: u8,
    /// The tag that was taken off.
    pub vlan_info: u16,
}

impl Completion {
    /// Whether it is of a receive that succeeded.
    pub(super) fn of_receive(&self) -> bool {
        matches!(
            self.opcode,
            cqe_opcode::RESP_WR_IMM
                | cqe_opcode::RESP_SEND
                | cqe_opcode::RESP_SEND_IMM
                | cqe_opcode::RESP_SEND_INV
        )
    }

    /// The 64 bytes, with this owner bit.
    pub fn encode(&self, owner: u8, timestamp: u64) -> [u8; 64] {
        let mut cqe = [0; 64];
        let error = matches!(self.opcode, cqe_opcode::REQ_ERR | cqe_opcode::RESP_ERR);
        cqe[0x20..0x24].copy_from_slice(&(self.user_index & 0xff_ffff).to_be_bytes());
        if error {
            cqe[0x36] = self.vendor_syndrome;
            cqe[0x37] = self.syndrome;
        } else {
            if let Some(frame) = &self.ethernet {
                cqe[0x0c..0x10].copy_from_slice(&frame.rx_hash.to_be_bytes());
                cqe[0x10] = frame.rx_hash_type;
                cqe[0x14..0x16].copy_from_slice(&frame.check_sum.to_be_bytes());
            }
            cqe[0x18..0x1c].copy_from_slice(&self.flags_rqpn.to_be_bytes());
            if let Some(frame) = &self.ethernet {
                cqe[0x1c] = frame.hds_ip_ext;
                cqe[0x1d] = frame.l4_l3_hdr_type;
                cqe[0x1e..0x20].copy_from_slice(&frame.vlan_info.to_be_bytes());
            }
            cqe[0x24..0x28].copy_from_slice(&self.immediate.to_be_bytes());
            cqe[0x2c..0x30].copy_from_slice(&self.byte_cnt.to_be_bytes());
            cqe[0x30..0x38].copy_from_slice(&timestamp.to_be_bytes());
        }
        let opcode_qpn = u32::from(self.send_opcode) << 24 | (self.qpn & 0xff_ffff);
        cqe[0x38..0x3c].copy_from_slice(&opcode_qpn.to_be_bytes());
        cqe[0x3c..0x3e].copy_from_slice(&self.wqe_counter.to_be_bytes());
        cqe[0x3f] = self.opcode << 4 | u8::from(self.solicited && !error) << 1 | (owner & 1);
        cqe
    }
}

impl DataPlane {
    /// Writes a completion to a CQ, and the event that the host armed it for; false when the CQ can't take it
    /// (then it is in error, and so is every QP that reports to it).
    pub(super) fn complete(&mut self, cqn: u32, completion: &Completion) -> bool {
        self.record_receive(completion);
        let timestamp = self.timestamp(completion);
        let Some(cq) = self.objects.cqs.get_mut(cqn) else {
            return false;
        };
        if cq.state != CqState::Good {
            return false;
        }
        if cq.outstanding() >= cq.entries() && !cq.overrun_ignore {
            // Only now is the host's consumer index worth a read: the ring looks full by the last one.
            match self.host.read_be32(cq.dbr) {
                Ok(ci) => cq.ci = ci & 0xff_ffff,
                Err(fault) => {
                    self.violations.note(
                        Violation::HostMemory,
                        format_args!("record of CQ {cqn:#x}: {fault}"),
                    );
                    return self.break_cq(cqn, 2);
                }
            }
            if cq.outstanding() >= cq.entries() {
                let what = format_args!("CQ {cqn:#x} of {} entries is full", cq.entries());
                self.violations.note(Violation::CqOverrun, what);
                return self.break_cq(cqn, 1);
            }
        }
        let owner = (cq.pi >> cq.log_size & 1) as u8;
        let slot = u64::from(cq.pi & (cq.entries() - 1));
        let cqe = completion.encode(owner, timestamp);
        // In an entry of 128 bytes the CQE is the second half.
        let at = ((slot + 1) << cq.log_cqe_bytes) - 64;
        if let Err(fault) = super::publish(&self.host, &cq.ring, at, &cqe) {
            self.violations
                .note(Violation::HostMemory, format_args!("CQ {cqn:#x}: {fault}"));
            return self.break_cq(cqn, 2);
        }
        cq.pi = cq.pi.wrapping_add(1);
        if let Some(recorder) = &self.recorder {
            recorder.cqe(cqn, &cqe);
        }
        self.counters.cqes += 1;
        let counts_as_solicited = completion.solicited || completion.syndrome != 0;
        if counts_as_solicited {
            cq.solicited_pi = Some(cq.pi);
        }
        if let Some(arm) = cq.arm
            && (!arm.solicited_only || counts_as_solicited)
        {
            self.fire(cqn, arm);
        }
        true
    }

    /// The time of a completion, in the format that its queue pair was created with.
    fn timestamp(&self, completion: &Completion) -> u64 {
        let of_real_time = |qp: &Qp| qp.context.ts_format() == ts_format::REAL_TIME;
        if completion.ethernet.is_none() && self.objects.qps.get(completion.qpn).is_some_and(of_real_time) {
            self.now.seconds_and_nanos()
        } else {
            self.now.ticks(self.limits.timer_khz)
        }
    }

    fn fire(&mut self, cqn: u32, arm: Arm) {
        let Some(cq) = self.objects.cqs.get_mut(cqn) else {
            return;
        };
        cq.arm = None;
        cq.answered_sn = Some(arm.sn);
        let eqn = cq.eqn;
        self.raise_completion(eqn, cqn);
    }

    /// Puts a CQ in error and tells the host; gives false, so that [`DataPlane::complete`] can end with it.
    fn break_cq(&mut self, cqn: u32, syndrome: u8) -> bool {
        if let Some(cq) = self.objects.cqs.get_mut(cqn) {
            cq.state = CqState::Error;
        }
        self.raise(Event::CqError { cqn, syndrome });
        self.broken_cqs.push(cqn);
        false
    }

    /// A CQ doorbell: asks for one event (the record's second word, and the CQ number).
    pub(super) fn cq_doorbell(&mut self, uar: u32, image: u32, cqn_word: u32) {
        let cqn = cqn_word & 0xff_ffff;
        self.record_cq(cqn);
        let Some(cq) = self.objects.cqs.get_mut(cqn) else {
            self.violations
                .note(Violation::UnknownObject, format_args!("arm of CQ {cqn:#x}"));
            return;
        };
        if cq.uar_page != uar {
            let what = format_args!("CQ {cqn:#x} of UAR {:#x} armed in UAR {uar:#x}", cq.uar_page);
            self.violations.note(Violation::ForeignUar, what);
            return;
        }
        if image & 0xce00_0000 != 0 || cqn_word >> 24 != 0 {
            let what = format_args!("CQ {cqn:#x}: arm {image:#x} {cqn_word:#x}");
            self.violations.note(Violation::ReservedBit, what);
        }
        let ci = image & 0xff_ffff;
        if cq.pi.wrapping_sub(ci) & 0xff_ffff > cq.entries() && !cq.overrun_ignore {
            let what = format_args!("CQ {cqn:#x}: armed at {ci:#x}, producer index {:#x}", cq.pi);
            self.violations.note(Violation::ConsumerIndex, what);
            return;
        }
        let arm = Arm {
            solicited_only: image >> 24 & 1 != 0,
            sn: (image >> 28 & 3) as u8,
        };
        // The host steps the number when it has seen an event. The same number again means that the event for
        // it is on its way. The first arm is never stale, whatever its number.
        if cq.answered_sn == Some(arm.sn) {
            self.counters.stale_arms += 1;
            return;
        }
        if cq.has_what_arm_waits_for(arm, ci) {
            self.fire(cqn, arm);
        } else {
            cq.arm = Some(arm);
        }
    }
}
