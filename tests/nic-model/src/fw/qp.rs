//! Queue pairs: creation, transitions, queries.

use ferroce_firmware_iface::cmds::{service as st, ts_format};
use ferroce_firmware_iface::layouts::{
    Ads, CreateQpIn, CreateQpOut, DestroyQpIn, Init2rtrQpIn, Qp2errIn, Qpc, QueryQpIn, QueryQpOut, RoceCap,
};
use ferroce_firmware_iface::status::CommandStatus;

use super::command::{Call, Exempt, Outcome, at_most, buffer, ok, output};
use super::qp_transition::{QpState, QpTransition};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware, vport};
use crate::profile::CapType;

/// CREATE_QP: the id of the doorbell record's umem, which rdma-core's PRM has behind dbr_umem_valid.
const QP_UMEM: Exempt = &[(DBR_UMEM_ID, DBR_UMEM_ID + 4)];
const DBR_UMEM_ID: usize = 0x18 + 0xe4;

/// A connected service, which has a peer.
fn connected(service: u8) -> bool {
    matches!(service, st::RC | st::UC | st::XRC)
}

pub(super) fn create(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateQpIn = call.input_with(CreateQpIn::BYTES, QP_UMEM)?;
    if input.qpc_ext() {
        return Err(Refusal::no_capability("qpc_extension"));
    }
    if input.input_qpn() != 0 {
        return Err(Refusal::no_capability("mkey_by_name"));
    }
    if input.ece() != 0 && !fw.general().ece_support() {
        return Err(Refusal::no_capability("ece_support"));
    }
    let mut qpc = *input.qpc();
    if qpc.dbr_umem_valid() {
        let iova = env.plane.umem_iova(call.be32(DBR_UMEM_ID), qpc.dbr_addr())?;
        qpc.set_dbr_addr(iova);
    }
    check_new(fw, &qpc)?;
    qpc.set_ts_format(time_stamps(fw, qpc.ts_format())?)?;
    let pas = call.tail(CreateQpIn::PAS_OFFSET);
    let buffer = buffer(
        input.wq_umem_valid(),
        input.wq_umem_id(),
        input.wq_umem_offset(),
        pas,
    );
    let qpn = env.plane.create_qp(&qpc, buffer)?;
    output(|out: &mut CreateQpOut| out.set_qpn(qpn))
}

/// The format of a queue pair's time stamps: what "default" stands for, and whether it is to be had.
fn time_stamps(fw: &Firmware, asked: u8) -> Result<u8, Refusal> {
    let roce: RoceCap = fw.caps.current(CapType::ROCE);
    let offered = roce.qp_ts_format();
    match (asked, offered) {
        (ts_format::FREE_RUNNING, 0 | 2) | (ts_format::REAL_TIME, 1 | 2) => Ok(asked),
        (ts_format::DEFAULT, 1) => Ok(ts_format::REAL_TIME),
        (ts_format::DEFAULT, _) => Ok(ts_format::FREE_RUNNING),
        _ => Err(Refusal::no_capability("qp_ts_format")),
    }
}

fn check_new(fw: &Firmware, qpc: &Qpc) -> Result<(), Refusal> {
    let caps = fw.general();
    let offered = match qpc.st() {
        st::RC => caps.rc(),
        st::UC => caps.uc(),
        st::UD => caps.ud(),
        st::XRC => caps.xrc(),
        st::GSI | st::REG_UMR => true,
        other => return Err(Refusal::bad_field(format!("transport service {other:#x}"))),
    };
    if !offered {
        return Err(Refusal::no_capability("rc, uc, ud, xrc: the transport service"));
    }
    if qpc.state() != 0 {
        return Err(Refusal::bad_field("a queue pair is created in state RST"));
    }
    let log_most = u64::from(caps.log_max_qp_sz());
    if !qpc.no_sq() {
        at_most("log_sq_size", qpc.log_sq_size().into(), log_most)?;
    }
    match qpc.rq_type() {
        0 => {
            at_most("log_rq_size", qpc.log_rq_size().into(), log_most)?;
            let stride = 16u64 << qpc.log_rq_stride();
            at_most("RQ stride", stride, caps.max_wqe_sz_rq().into())?;
        }
        // An SRQ, or no receive queue; 2 is a cyclic queue that no driver asks for.
        1 | 3 => {}
        other => return Err(Refusal::bad_field(format!("rq_type {other}"))),
    }
    if !qpc.dbr_addr().is_multiple_of(8) {
        return Err(Refusal::bad_field("dbr_addr is not aligned to 8"));
    }
    if qpc.deth_sqpn() != 0 && !caps.set_deth_sqpn() {
        return Err(Refusal::no_capability("set_deth_sqpn"));
    }
    if qpc.wq_signature() && !caps.wq_signature() {
        return Err(Refusal::no_capability("wq_signature"));
    }
    if (qpc.cs_req() | qpc.cs_res()) != 0 && !caps.sctr_data_cqe() {
        return Err(Refusal::no_capability("sctr_data_cqe"));
    }
    Ok(())
}

pub(super) fn destroy(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyQpIn = call.input()?;
    env.plane.destroy_qp(input.qpn())?;
    ok()
}

pub(super) fn query(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryQpIn = call.input()?;
    if input.qpc_ext() && !fw.general().qpc_extension() {
        return Err(Refusal::no_capability("qpc_extension"));
    }
    let mut qpc = Qpc::default();
    env.plane.query_qp(input.qpn(), &mut qpc)?;
    output(|out: &mut QueryQpOut| {
        *out.qpc_mut() = qpc;
        Ok(())
    })
}

/// All transitions.
pub(super) fn modify(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let transition = QpTransition::from_opcode(call.header.opcode);
    let transition = transition.ok_or_else(|| Refusal::bad_field("no transition"))?;
    let (qpn, mask, new) = match transition {
        QpTransition::To2Err | QpTransition::To2Rst => (call.input::<Qp2errIn>()?.qpn(), 0, Qpc::default()),
        _ => {
            // The inputs of the other transitions are alike.
            let input: Init2rtrQpIn = call.input()?;
            if input.ece() != 0 && !fw.general().ece_support() {
                return Err(Refusal::no_capability("ece_support"));
            }
            (input.qpn(), input.opt_param_mask(), *input.qpc())
        }
    };
    let mut qpc = Qpc::default();
    env.plane.query_qp(qpn, &mut qpc)?;
    let state = QpState::from_prm(qpc.state()).unwrap_or(QpState::Err);
    if !transition.starts_from(state) {
        let reason = format!(
            "QP {qpn:#x} is in {}, {} does not start there",
            state.name(),
            call.header.opcode
        );
        return Err(Refusal::new(
            CommandStatus::BAD_QP_STATE,
            syndrome::QP_STATE,
            reason,
        ));
    }
    let unknown = mask & !transition.allowed_mask();
    if unknown != 0 {
        let reason = format!(
            "opt_param_mask bits {unknown:#x} mean nothing to {}",
            call.header.opcode
        );
        return Err(Refusal::new(CommandStatus::BAD_PARAM, syndrome::OPT_MASK, reason));
    }
    let service = qpc.st();
    transition.merge(&mut qpc, &new, mask);
    check_transition(fw, env, transition, service, &qpc)?;
    env.plane.modify_qp(transition, qpn, &qpc)?;
    ok()
}

fn check_transition(
    fw: &Firmware,
    env: &Env<'_>,
    transition: QpTransition,
    service: u8,
    qpc: &Qpc,
) -> Result<(), Refusal> {
    let caps = fw.general();
    let path = qpc.primary_address_path();
    match transition {
        QpTransition::Rst2Init => {
            if path.pkey_index() != 0 {
                return Err(Refusal::bad_field(format!(
                    "pkey_index {}: there is one P_Key",
                    path.pkey_index()
                )));
            }
            if path.vhca_port_num() > caps.num_ports().max(1) {
                return Err(Refusal::bad_field(format!(
                    "vhca_port_num {}",
                    path.vhca_port_num()
                )));
            }
            Ok(())
        }
        QpTransition::Init2Rtr if service == st::REG_UMR => Ok(()),
        QpTransition::Init2Rtr => {
            if !(1..=5).contains(&qpc.mtu()) {
                return Err(Refusal::bad_field(format!(
                    "mtu {}: 1 (256 bytes) to 5 (4096)",
                    qpc.mtu()
                )));
            }
            at_most("log_msg_max", qpc.log_msg_max().into(), caps.log_max_msg().into())?;
            if !connected(service) {
                return Ok(());
            }
            let most = u64::from(caps.log_max_ra_res_qp());
            at_most("log_rra_max", qpc.log_rra_max().into(), most)?;
            check_path(fw, env, path)
        }
        QpTransition::Rtr2Rts if connected(service) => {
            let most = u64::from(caps.log_max_ra_req_qp());
            at_most("log_sra_max", qpc.log_sra_max().into(), most)
        }
        _ => Ok(()),
    }
}

/// The path to the peer of a connected queue pair on Ethernet. The `grh` bit is not needed: all RoCE packets
/// have one.
fn check_path(fw: &Firmware, env: &Env<'_>, path: &Ads) -> Result<(), Refusal> {
    let index = u16::from(path.src_addr_index());
    vport::check_gid_index(fw, index)?;
    let Some(source) = env.plane.roce_address(path.vhca_port_num().max(1), index) else {
        let reason = format!("GID index {index} holds no address");
        return Err(Refusal::new(
            CommandStatus::BAD_PARAM,
            syndrome::BAD_GID_INDEX,
            reason,
        ));
    };
    let [a, b] = path.rmac_47_32().to_be_bytes();
    if a & 1 != 0 || (a, b, path.rmac_31_0()) == (0, 0, 0) {
        return Err(Refusal::bad_field("rmac is no unicast address"));
    }
    if path.rlid() != 0 {
        return Err(Refusal::bad_field("rlid on an Ethernet port"));
    }
    let roce: RoceCap = fw.caps.current(CapType::ROCE);
    let sport = path.udp_sport();
    let low = roce.r_roce_min_src_udp_port();
    if source.roce_version() == 2 && sport != 0 && !(low..=roce.r_roce_max_src_udp_port()).contains(&sport) {
        return Err(Refusal::bad_field(format!(
            "udp_sport {sport:#x} is below {low:#x}"
        )));
    }
    if (0..16).all(|i| path.rgid_rip(i) == 0) {
        return Err(Refusal::bad_field("rgid_rip is 0"));
    }
    Ok(())
}
