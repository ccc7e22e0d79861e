//! Which opcodes the firmware knows, when each may be given, and who executes it.

use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::CommandStatus;

use super::command::{Answer, Call, Outcome, at_most};
use super::pages::{self, Kind};
use super::refusal::{Refusal, syndrome};
use super::{
    Env, Firmware, HcaState, caps, congestion, flow, hca, mkey, multicast, qp, queues, raw, regs, simple,
    srq, vport,
};

type Handler = fn(&mut Firmware, &mut Env<'_>, &Call<'_>) -> Outcome;

/// Modifiers that an opcode may have.
enum Mods {
    /// Only 0.
    Zero,
    /// Up to this.
    UpTo(u16),
    /// The handler looks.
    Any,
}

struct Entry {
    opcode: Opcode,
    /// The state that it needs, at least.
    needs: HcaState,
    mods: Mods,
    run: Handler,
}

const fn entry(opcode: Opcode, needs: HcaState, mods: Mods, run: Handler) -> Entry {
    Entry {
        opcode,
        needs,
        mods,
        run,
    }
}

use HcaState::{Disabled, Enabled, Initialized};
use Mods::{Any, UpTo, Zero};

const TABLE: &[Entry] = &[
    entry(Opcode::ENABLE_HCA, Disabled, Zero, hca::enable),
    entry(Opcode::DISABLE_HCA, Enabled, Zero, hca::disable),
    entry(Opcode::QUERY_ISSI, Enabled, Zero, hca::query_issi),
    entry(Opcode::SET_ISSI, Enabled, Zero, hca::set_issi),
    entry(Opcode::INIT_HCA, Enabled, Zero, hca::init),
    entry(Opcode::TEARDOWN_HCA, Enabled, Zero, hca::teardown),
    entry(Opcode::QUERY_ADAPTER, Enabled, Zero, hca::query_adapter),
    entry(Opcode::SET_DRIVER_VERSION, Enabled, Zero, hca::set_driver_version),
    entry(Opcode::QUERY_PAGES, Enabled, UpTo(3), pages::query),
    entry(Opcode::MANAGE_PAGES, Enabled, UpTo(2), pages::manage),
    entry(Opcode::QUERY_HCA_CAP, Enabled, Any, caps::query),
    entry(Opcode::SET_HCA_CAP, Enabled, Any, caps::set),
    entry(Opcode::ACCESS_REG, Enabled, UpTo(1), regs::access),
    entry(Opcode::NOP, Enabled, Zero, simple::nop),
    entry(
        Opcode::QUERY_SPECIAL_CONTEXTS,
        Initialized,
        Zero,
        hca::query_special_contexts,
    ),
    entry(Opcode::CREATE_MKEY, Initialized, Zero, mkey::create),
    entry(Opcode::QUERY_MKEY, Initialized, Zero, mkey::query),
    entry(Opcode::DESTROY_MKEY, Initialized, Zero, mkey::destroy),
    entry(Opcode::CREATE_EQ, Initialized, Zero, queues::create_eq),
    entry(Opcode::DESTROY_EQ, Initialized, Zero, queues::destroy_eq),
    entry(Opcode::QUERY_EQ, Initialized, Zero, queues::query_eq),
    entry(Opcode::CREATE_CQ, Initialized, Zero, queues::create_cq),
    entry(Opcode::DESTROY_CQ, Initialized, Zero, queues::destroy_cq),
    entry(Opcode::QUERY_CQ, Initialized, Zero, queues::query_cq),
    entry(Opcode::MODIFY_CQ, Initialized, UpTo(1), queues::modify_cq),
    entry(Opcode::CREATE_QP, Initialized, Zero, qp::create),
    entry(Opcode::DESTROY_QP, Initialized, Zero, qp::destroy),
    entry(Opcode::QUERY_QP, Initialized, Zero, qp::query),
    entry(Opcode::RST2INIT_QP, Initialized, Zero, qp::modify),
    entry(Opcode::INIT2INIT_QP, Initialized, Zero, qp::modify),
    entry(Opcode::INIT2RTR_QP, Initialized, Zero, qp::modify),
    entry(Opcode::RTR2RTS_QP, Initialized, Zero, qp::modify),
    entry(Opcode::RTS2RTS_QP, Initialized, Zero, qp::modify),
    entry(Opcode::SQERR2RTS_QP, Initialized, Zero, qp::modify),
    entry(Opcode::SQD2RTS_QP, Initialized, Zero, qp::modify),
    entry(Opcode::QP_2ERR, Initialized, Zero, qp::modify),
    entry(Opcode::QP_2RST, Initialized, Zero, qp::modify),
    entry(Opcode::CREATE_SRQ, Initialized, Zero, srq::create_srq),
    entry(Opcode::DESTROY_SRQ, Initialized, Zero, srq::destroy),
    entry(Opcode::QUERY_SRQ, Initialized, Zero, srq::query_srq),
    entry(Opcode::ARM_RQ, Initialized, UpTo(1), srq::arm_rq),
    entry(Opcode::CREATE_XRC_SRQ, Initialized, Zero, srq::create_xrc_srq),
    entry(Opcode::DESTROY_XRC_SRQ, Initialized, Zero, srq::destroy),
    entry(Opcode::QUERY_XRC_SRQ, Initialized, Zero, srq::query_xrc_srq),
    entry(Opcode::ARM_XRC_SRQ, Initialized, UpTo(1), srq::arm_xrc_srq),
    entry(Opcode::CREATE_RMP, Initialized, Zero, srq::create_rmp),
    entry(Opcode::MODIFY_RMP, Initialized, Zero, srq::modify_rmp),
    entry(Opcode::DESTROY_RMP, Initialized, Zero, srq::destroy),
    entry(Opcode::QUERY_RMP, Initialized, Zero, srq::query_rmp),
    entry(
        Opcode::QUERY_VPORT_STATE,
        Initialized,
        UpTo(2),
        vport::query_state,
    ),
    entry(
        Opcode::MODIFY_VPORT_STATE,
        Initialized,
        UpTo(2),
        vport::modify_state,
    ),
    entry(
        Opcode::QUERY_NIC_VPORT_CONTEXT,
        Initialized,
        Zero,
        vport::query_context,
    ),
    entry(
        Opcode::MODIFY_NIC_VPORT_CONTEXT,
        Initialized,
        Zero,
        vport::modify_context,
    ),
    entry(
        Opcode::QUERY_ROCE_ADDRESS,
        Initialized,
        Zero,
        vport::query_roce_address,
    ),
    entry(
        Opcode::SET_ROCE_ADDRESS,
        Initialized,
        Zero,
        vport::set_roce_address,
    ),
    entry(Opcode::QUERY_HCA_VPORT_PKEY, Initialized, Zero, vport::query_pkey),
    entry(Opcode::SET_L2_TABLE_ENTRY, Initialized, Zero, vport::set_l2_entry),
    entry(
        Opcode::DELETE_L2_TABLE_ENTRY,
        Initialized,
        Zero,
        vport::delete_l2_entry,
    ),
    entry(
        Opcode::QUERY_VPORT_COUNTER,
        Initialized,
        Zero,
        simple::query_vport_counter,
    ),
    entry(
        Opcode::ALLOC_Q_COUNTER,
        Initialized,
        Zero,
        simple::alloc_q_counter,
    ),
    entry(
        Opcode::DEALLOC_Q_COUNTER,
        Initialized,
        Zero,
        simple::dealloc_q_counter,
    ),
    entry(
        Opcode::QUERY_Q_COUNTER,
        Initialized,
        Zero,
        simple::query_q_counter,
    ),
    entry(Opcode::ALLOC_PD, Initialized, Zero, simple::alloc_pd),
    entry(Opcode::DEALLOC_PD, Initialized, Zero, simple::dealloc_pd),
    entry(Opcode::ALLOC_UAR, Initialized, Zero, simple::alloc_uar),
    entry(Opcode::DEALLOC_UAR, Initialized, Zero, simple::dealloc_uar),
    entry(Opcode::ALLOC_XRCD, Initialized, Zero, simple::alloc_xrcd),
    entry(Opcode::DEALLOC_XRCD, Initialized, Zero, simple::dealloc_xrcd),
    entry(
        Opcode::ALLOC_TRANSPORT_DOMAIN,
        Initialized,
        Zero,
        simple::alloc_transport_domain,
    ),
    entry(
        Opcode::DEALLOC_TRANSPORT_DOMAIN,
        Initialized,
        Zero,
        simple::dealloc_transport_domain,
    ),
    entry(Opcode::CREATE_UCTX, Initialized, Zero, simple::create_uctx),
    entry(Opcode::DESTROY_UCTX, Initialized, Zero, simple::destroy_uctx),
    entry(Opcode::CREATE_UMEM, Initialized, Zero, simple::create_umem),
    entry(Opcode::DESTROY_UMEM, Initialized, Zero, simple::destroy_umem),
    entry(Opcode::CREATE_SQ, Initialized, Zero, raw::create_sq),
    entry(Opcode::MODIFY_SQ, Initialized, Zero, raw::modify_sq),
    entry(Opcode::DESTROY_SQ, Initialized, Zero, raw::destroy_sq),
    entry(Opcode::QUERY_SQ, Initialized, Zero, raw::query_sq),
    entry(Opcode::CREATE_RQ, Initialized, Zero, raw::create_rq),
    entry(Opcode::MODIFY_RQ, Initialized, Zero, raw::modify_rq),
    entry(Opcode::DESTROY_RQ, Initialized, Zero, raw::destroy_rq),
    entry(Opcode::QUERY_RQ, Initialized, Zero, raw::query_rq),
    entry(Opcode::CREATE_TIS, Initialized, Zero, raw::create_tis),
    entry(Opcode::MODIFY_TIS, Initialized, Zero, raw::modify_tis),
    entry(Opcode::DESTROY_TIS, Initialized, Zero, raw::destroy_tis),
    entry(Opcode::CREATE_TIR, Initialized, Zero, raw::create_tir),
    entry(Opcode::MODIFY_TIR, Initialized, Zero, raw::modify_tir),
    entry(Opcode::DESTROY_TIR, Initialized, Zero, raw::destroy_tir),
    entry(Opcode::CREATE_RQT, Initialized, Zero, raw::create_rqt),
    entry(Opcode::MODIFY_RQT, Initialized, Zero, raw::modify_rqt),
    entry(Opcode::DESTROY_RQT, Initialized, Zero, raw::destroy_rqt),
    entry(Opcode::SET_FLOW_TABLE_ROOT, Initialized, UpTo(1), flow::set_root),
    entry(Opcode::CREATE_FLOW_TABLE, Initialized, Zero, flow::create_table),
    entry(Opcode::DESTROY_FLOW_TABLE, Initialized, Zero, flow::destroy_table),
    entry(Opcode::MODIFY_FLOW_TABLE, Initialized, Zero, flow::modify_table),
    entry(Opcode::CREATE_FLOW_GROUP, Initialized, Zero, flow::create_group),
    entry(Opcode::DESTROY_FLOW_GROUP, Initialized, Zero, flow::destroy_group),
    entry(
        Opcode::SET_FLOW_TABLE_ENTRY,
        Initialized,
        UpTo(1),
        flow::set_entry,
    ),
    entry(
        Opcode::DELETE_FLOW_TABLE_ENTRY,
        Initialized,
        Zero,
        flow::delete_entry,
    ),
    entry(Opcode::ATTACH_TO_MCG, Initialized, Zero, multicast::attach),
    entry(Opcode::DETACH_FROM_MCG, Initialized, Zero, multicast::detach),
    entry(
        Opcode::QUERY_CONG_STATUS,
        Initialized,
        Zero,
        congestion::query_status,
    ),
    entry(
        Opcode::MODIFY_CONG_STATUS,
        Initialized,
        Zero,
        congestion::modify_status,
    ),
    entry(
        Opcode::QUERY_CONG_PARAMS,
        Initialized,
        Zero,
        congestion::query_params,
    ),
    entry(
        Opcode::MODIFY_CONG_PARAMS,
        Initialized,
        Zero,
        congestion::modify_params,
    ),
    entry(
        Opcode::QUERY_CONG_STATISTICS,
        Initialized,
        Zero,
        congestion::query_statistics,
    ),
    entry(
        Opcode::ADD_VXLAN_UDP_DPORT,
        Initialized,
        Zero,
        congestion::add_vxlan_port,
    ),
    entry(
        Opcode::DELETE_VXLAN_UDP_DPORT,
        Initialized,
        Zero,
        congestion::delete_vxlan_port,
    ),
];

impl Firmware {
    /// Executes a command.
    pub(super) fn dispatch(&mut self, env: &mut Env<'_>, call: &Call<'_>) -> Result<Answer, Refusal> {
        let opcode = call.header.opcode;
        let Some(entry) = TABLE.iter().find(|e| e.opcode == opcode) else {
            return Err(Refusal::new(
                CommandStatus::BAD_OP,
                syndrome::NO_CAPABILITY,
                "this firmware does not know the command",
            ));
        };
        let op_mod = call.header.op_mod;
        let known = match entry.mods {
            Zero => op_mod == 0,
            UpTo(most) => op_mod <= most,
            Any => true,
        };
        if !known {
            let reason = format!("op_mod {op_mod:#x}");
            return Err(Refusal::new(CommandStatus::BAD_OP, syndrome::BAD_OP_MOD, reason));
        }
        self.check_state(entry.needs)?;
        self.check_uid(call.header.uid)?;
        let cost = pages::cost_of(call);
        if let Some((kind, bytes)) = cost {
            self.check_count(kind)?;
            if !self.has_room(env, bytes)? {
                return Ok(Answer::NeedsPages);
            }
        }
        let output = (entry.run)(self, env, call)?;
        self.settle_cost(call, cost, &output);
        Ok(Answer::Done(output))
    }

    fn check_state(&self, needs: HcaState) -> Result<(), Refusal> {
        if self.state >= needs {
            return Ok(());
        }
        let (syndrome, reason) = match needs {
            Initialized => (syndrome::NOT_INITIALIZED, "before INIT_HCA"),
            _ => (syndrome::NOT_ENABLED, "before ENABLE_HCA"),
        };
        Err(Refusal::new(CommandStatus::BAD_SYS_STATE, syndrome, reason))
    }

    fn check_uid(&self, uid: u16) -> Result<(), Refusal> {
        if uid == 0 || self.uctxs.contains_key(&uid) {
            return Ok(());
        }
        let reason = format!("uid {uid:#x} is no user context");
        Err(Refusal::new(
            CommandStatus::BAD_RESOURCE,
            syndrome::BAD_UID,
            reason,
        ))
    }

    /// Refuses one object more than the capabilities that are on allow.
    fn check_count(&self, kind: Kind) -> Result<(), Refusal> {
        let caps = self.general();
        let log_most = match kind {
            Kind::Eq => caps.log_max_eq(),
            Kind::Cq => caps.log_max_cq(),
            Kind::Qp => caps.log_max_qp(),
            Kind::Srq => caps.log_max_srq(),
            Kind::Mkey => caps.log_max_mkey(),
            Kind::Pd => caps.log_max_pd(),
            Kind::Xrcd => caps.log_max_xrcd(),
            Kind::TransportDomain => caps.log_max_transport_domain(),
            // The BAR and the table of the data plane limit these.
            Kind::Uar | Kind::Umem => return Ok(()),
        };
        let there = self.counts.get(&kind).copied().unwrap_or(0);
        at_most("number of objects", there + 1, 1 << log_most)
    }

    /// Notes what a created object takes of the firmware's pages, or gives back what a destroyed one took.
    fn settle_cost(&mut self, call: &Call<'_>, cost: Option<(Kind, u64)>, output: &[u8]) {
        if let Some((kind, bytes)) = cost {
            let number = pages::created_number(kind, output);
            self.costs.insert((kind, number), bytes);
            *self.counts.entry(kind).or_default() += 1;
            self.pages.use_bytes(bytes);
        } else if let Some(key) = pages::destroyed(call)
            && let Some(bytes) = self.costs.remove(&key)
        {
            self.pages.free_bytes(bytes);
            if let Some(count) = self.counts.get_mut(&key.0) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_opcode_is_listed_twice() {
        for (i, entry) in TABLE.iter().enumerate() {
            assert!(
                TABLE[..i].iter().all(|e| e.opcode != entry.opcode),
                "{}",
                entry.opcode
            );
        }
    }
}
