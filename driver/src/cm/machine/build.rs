//! The messages that the machine sends.

use super::super::mad::{
    AprMsg, CmMessage, DrepMsg, DreqMsg, MAD_BYTES, MraMsg, RejMsg, RejectReason, RepMsg, ReqMsg, RtuMsg,
    SidrRepMsg, SidrReqMsg, SidrStatus,
};
use super::conn::Conn;
use super::types::{AcceptReply, CommId, ConnectRequest, MachineConfig, MachineError, SidrAnswer, TimeCode};
use crate::verbs::{Mtu, Path};

/// A datagram's bytes.
pub(super) type Mad = Box<[u8; MAD_BYTES]>;

/// RoCE has no local ids (IBTA annex A16): a request has the permissive one.
const PERMISSIVE_LID: u16 = 0xffff;
/// The default partition, RoCE's only one.
pub(super) const PKEY: u16 = 0xffff;
/// `message_rejected` and `message_mraed` (IBTA vol. 1, 12.6.6): REQ.
pub(super) const OF_REQ: u8 = 0;
/// REP.
pub(super) const OF_REP: u8 = 1;
/// Another message.
pub(super) const OF_OTHER: u8 = 2;
/// What the NIC may take for an acknowledgement: 134 ms, as Linux says for NICs that don't tell.
const ACK_DELAY: u8 = 15;
/// `ar_status` of an APR (IBTA vol. 1, 12.8.2): communication id not known.
pub(super) const APR_INVALID_COMM_ID: u8 = 1;
/// Alternate paths are not offered.
pub(super) const APR_UNSUPPORTED: u8 = 2;

/// Puts private data in, if it fits.
fn private<M: CmMessage>(message: &mut M, data: &[u8]) -> Result<(), MachineError> {
    if message.set_private(data) {
        return Ok(());
    }
    Err(MachineError::PrivateData {
        message: M::INFO.name,
        asked: data.len(),
        max: M::PRIVATE_DATA,
    })
}

/// The code of an MTU, which path records have too.
pub(super) fn mtu_code(mtu: Mtu) -> u8 {
    Mtu::ALL
        .iter()
        .position(|have| *have == mtu)
        .map_or(1, |at| at as u8 + 1)
}

/// The MTU with that code.
pub(super) fn mtu_from(code: u8) -> Option<Mtu> {
    Mtu::ALL.get(usize::from(code).checked_sub(1)?).copied()
}

fn path_of(message: &mut ReqMsg, path: &Path, ask: &ConnectRequest) -> Result<(), MachineError> {
    message.set_primary_local_port_lid(PERMISSIVE_LID);
    message.set_primary_remote_port_lid(PERMISSIVE_LID);
    message.set_primary_local_port_gid(u128::from_be_bytes(ask.local_gid.0));
    message.set_primary_remote_port_gid(u128::from_be_bytes(path.dgid.0));
    message.set_primary_flow_label(path.flow_label)?;
    message.set_primary_traffic_class(path.traffic_class);
    message.set_primary_hop_limit(path.hop_limit);
    message.set_primary_sl(path.priority)?;
    message.set_primary_subnet_local(path.hop_limit <= 1);
    message.set_primary_local_ack_timeout(ask.ack_timeout.code())?;
    Ok(())
}

pub(super) fn req(
    config: &MachineConfig,
    id: CommId,
    transaction_id: u64,
    ask: &ConnectRequest,
) -> Result<Mad, MachineError> {
    let mut message = ReqMsg::new(transaction_id);
    message.set_local_comm_id(id.0);
    message.set_service_id(ask.service_id.0);
    message.set_local_ca_guid(config.ca_guid);
    message.set_local_qpn(ask.qpn)?;
    message.set_responder_resources(ask.responder_resources);
    message.set_initiator_depth(ask.initiator_depth);
    message.set_remote_cm_response_timeout(config.response_timeout.code())?;
    message.set_transport_service_type(ask.transport.code())?;
    message.set_starting_psn(ask.psn)?;
    message.set_local_cm_response_timeout(config.response_timeout.code())?;
    message.set_retry_count(ask.retry_count)?;
    message.set_partition_key(PKEY);
    message.set_path_packet_payload_mtu(mtu_code(ask.mtu))?;
    message.set_rnr_retry_count(ask.rnr_retry)?;
    message.set_max_cm_retries(config.max_retries)?;
    message.set_srq(ask.srq);
    path_of(&mut message, &ask.path, ask)?;
    private(&mut message, &ask.private_data)?;
    Ok(message.emit())
}

pub(super) fn rep(
    config: &MachineConfig,
    id: CommId,
    conn: &Conn,
    with: &AcceptReply,
) -> Result<Mad, MachineError> {
    let mut message = RepMsg::new(conn.transaction_id);
    message.set_local_comm_id(id.0);
    message.set_remote_comm_id(conn.remote.map_or(0, |id| id.0));
    message.set_local_qpn(with.qpn)?;
    message.set_starting_psn(with.psn)?;
    message.set_responder_resources(with.responder_resources);
    message.set_initiator_depth(with.initiator_depth);
    message.set_target_ack_delay(ACK_DELAY)?;
    // Where the peer named an alternate path: failover is not offered (IBTA vol. 1, 12.7).
    message.set_failover_accepted(u8::from(conn.alternate))?;
    message.set_rnr_retry_count(with.rnr_retry)?;
    message.set_srq(with.srq);
    message.set_local_ca_guid(config.ca_guid);
    private(&mut message, &with.private_data)?;
    Ok(message.emit())
}

pub(super) fn rtu(id: CommId, conn: &Conn) -> Mad {
    let mut message = RtuMsg::new(conn.transaction_id);
    message.set_local_comm_id(id.0);
    message.set_remote_comm_id(conn.remote.map_or(0, |id| id.0));
    message.emit()
}

pub(super) fn mra(id: CommId, conn: &Conn, of: u8, service_timeout: TimeCode) -> Result<Mad, MachineError> {
    let mut message = MraMsg::new(conn.transaction_id);
    message.set_local_comm_id(id.0);
    message.set_remote_comm_id(conn.remote.map_or(0, |id| id.0));
    message.set_message_mraed(of)?;
    message.set_service_timeout(service_timeout.code())?;
    Ok(message.emit())
}

/// What a REJ is about and says.
pub(super) struct Rejection<'a> {
    pub(super) transaction_id: u64,
    /// Ours, or 0 if the message that is rejected had none of ours.
    pub(super) local: u32,
    /// The peer's.
    pub(super) remote: u32,
    /// REQ, REP or another.
    pub(super) of: u8,
    pub(super) reason: RejectReason,
    /// At most 72 bytes.
    pub(super) info: &'a [u8],
    pub(super) private_data: &'a [u8],
}

pub(super) fn rej(rejection: &Rejection<'_>) -> Result<Mad, MachineError> {
    let mut message = RejMsg::new(rejection.transaction_id);
    message.set_local_comm_id(rejection.local);
    message.set_remote_comm_id(rejection.remote);
    message.set_message_rejected(rejection.of)?;
    message.set_reason(rejection.reason.code());
    message.set_rejected_info_length(rejection.info.len() as u8)?;
    for (i, byte) in rejection.info.iter().enumerate() {
        message.set_ari(i, *byte);
    }
    private(&mut message, rejection.private_data)?;
    Ok(message.emit())
}

pub(super) fn dreq(
    id: CommId,
    conn: &Conn,
    transaction_id: u64,
    private_data: &[u8],
) -> Result<Mad, MachineError> {
    let mut message = DreqMsg::new(transaction_id);
    message.set_local_comm_id(id.0);
    message.set_remote_comm_id(conn.remote.map_or(0, |id| id.0));
    message.set_remote_qpn_eecn(conn.remote_qpn)?;
    private(&mut message, private_data)?;
    Ok(message.emit())
}

pub(super) fn drep(local: u32, remote: u32, transaction_id: u64) -> Mad {
    let mut message = DrepMsg::new(transaction_id);
    message.set_local_comm_id(local);
    message.set_remote_comm_id(remote);
    message.emit()
}

pub(super) fn apr(local: u32, remote: u32, transaction_id: u64, status: u8) -> Mad {
    let mut message = AprMsg::new(transaction_id);
    message.set_local_comm_id(local);
    message.set_remote_comm_id(remote);
    message.set_ar_status(status);
    message.emit()
}

pub(super) fn sidr_req(
    id: CommId,
    transaction_id: u64,
    service_id: u64,
    private_data: &[u8],
) -> Result<Mad, MachineError> {
    let mut message = SidrReqMsg::new(transaction_id);
    message.set_request_id(id.0);
    message.set_partition_key(PKEY);
    message.set_service_id(service_id);
    private(&mut message, private_data)?;
    Ok(message.emit())
}

pub(super) fn sidr_rep(
    remote: u32,
    transaction_id: u64,
    service_id: u64,
    answer: Result<&SidrAnswer, SidrStatus>,
) -> Result<Mad, MachineError> {
    let mut message = SidrRepMsg::new(transaction_id);
    message.set_request_id(remote);
    message.set_service_id(service_id);
    match answer {
        Ok(answer) => {
            message.set_qpn(answer.qpn)?;
            message.set_q_key(answer.qkey);
            private(&mut message, &answer.private_data)?;
        }
        Err(status) => message.set_status(status.code()),
    }
    Ok(message.emit())
}
