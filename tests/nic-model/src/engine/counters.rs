//! What is counted, for the function and for each QP, and how it becomes the firmware's counter sets.

use ferroce_firmware_iface::layouts::QueryQCounterOut;

use crate::rc::types::{CompletionStatus, QpCounters};

/// What the data plane counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Doorbells of send queues.
    pub send_doorbells: u64,
    /// WQEs that came whole to a BlueFlame slot.
    pub blueflame_wqes: u64,
    /// Those of them that were taken from there.
    pub blueflame_taken: u64,
    /// Send WQEs fetched.
    pub send_wqes: u64,
    /// Receive WQEs taken.
    pub recv_wqes: u64,
    /// CQEs written.
    pub cqes: u64,
    /// EQEs written.
    pub eqes: u64,
    /// CQ arms that came with the number of an event already raised.
    pub stale_arms: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Their bytes, without FCS.
    pub bytes_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Their bytes, without FCS.
    pub bytes_in: u64,
    /// Frames for another MAC address.
    pub dropped_mac: u64,
    /// Frames that are not RoCE, or arrived while RoCE was off.
    pub dropped_not_roce: u64,
    /// RoCE frames that are malformed.
    pub dropped_malformed: u64,
    /// RoCE frames whose ICRC is wrong.
    pub dropped_icrc: u64,
    /// RoCE frames for a GID that is not ours, or not the QP's.
    pub dropped_address: u64,
    /// RoCE frames for a QP that is not there or takes none.
    pub dropped_qp: u64,
    /// Datagrams of another partition.
    pub pkey_violations: u64,
    /// Datagrams whose Q_Key is not their QP's.
    pub qkey_violations: u64,
    /// Datagrams and unreliable messages for which no receive was posted.
    pub dropped_no_receive: u64,
    /// Memory keys that refused an access of the host's own work.
    pub local_refusals: u64,
    /// Memory keys that refused a peer.
    pub remote_refusals: u64,
}

/// One more than the highest syndrome that is counted on its own.
const SYNDROMES: usize = 0x18;

/// What a QP counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueCounters {
    /// The transport's counters, of all its lives.
    pub transport: QpCounters,
    /// RDMA WRITE requests received (messages).
    pub rx_write_requests: u32,
    /// RDMA READ requests received.
    pub rx_read_requests: u32,
    /// Atomic requests received.
    pub rx_atomic_requests: u32,
    /// Datagrams and unreliable messages dropped since no receive was posted.
    pub out_of_buffer: u32,
    /// Failed sends by syndrome.
    pub send_errors: [u32; SYNDROMES],
    /// Failed receives by syndrome.
    pub recv_errors: [u32; SYNDROMES],
}

impl QueueCounters {
    /// Counts a failed send.
    pub(super) fn send_failed(&mut self, syndrome: u8) {
        if let Some(count) = self.send_errors.get_mut(usize::from(syndrome)) {
            *count = count.wrapping_add(1);
        }
    }

    /// Counts a failed receive.
    pub(super) fn recv_failed(&mut self, syndrome: u8) {
        if let Some(count) = self.recv_errors.get_mut(usize::from(syndrome)) {
            *count = count.wrapping_add(1);
        }
    }

    /// Adds what another counted.
    pub fn add(&mut self, more: &QueueCounters) {
        self.transport = sum(self.transport, &more.transport);
        self.rx_write_requests = self.rx_write_requests.wrapping_add(more.rx_write_requests);
        self.rx_read_requests = self.rx_read_requests.wrapping_add(more.rx_read_requests);
        self.rx_atomic_requests = self.rx_atomic_requests.wrapping_add(more.rx_atomic_requests);
        self.out_of_buffer = self.out_of_buffer.wrapping_add(more.out_of_buffer);
        for (to, from) in self.send_errors.iter_mut().zip(more.send_errors) {
            *to = to.wrapping_add(from);
        }
        for (to, from) in self.recv_errors.iter_mut().zip(more.recv_errors) {
            *to = to.wrapping_add(from);
        }
    }

    /// Fills in a counter set: what was counted since `base`. Its fields have 32 bits and wrap.
    pub fn report(&self, base: &QueueCounters, out: &mut QueryQCounterOut) {
        let since = |now: u64, then: u64| now.wrapping_sub(then) as u32;
        let (now, then) = (&self.transport, &base.transport);
        out.set_rx_write_requests(self.rx_write_requests.wrapping_sub(base.rx_write_requests));
        out.set_rx_read_requests(self.rx_read_requests.wrapping_sub(base.rx_read_requests));
        out.set_rx_atomic_requests(self.rx_atomic_requests.wrapping_sub(base.rx_atomic_requests));
        let dropped = self.out_of_buffer.wrapping_sub(base.out_of_buffer);
        out.set_out_of_buffer(since(now.rnr_naks_sent, then.rnr_naks_sent).wrapping_add(dropped));
        out.set_out_of_sequence(since(now.out_of_sequence, then.out_of_sequence));
        out.set_duplicate_request(since(now.duplicates, then.duplicates));
        out.set_rnr_nak_retry_err(since(now.rnr_naks_received, then.rnr_naks_received));
        out.set_packet_seq_err(since(now.sequence_naks_received, then.sequence_naks_received));
        out.set_implied_nak_seq_err(since(now.implied_naks, then.implied_naks));
        out.set_local_ack_timeout_err(since(now.timeouts, then.timeouts));
        self.report_errors(base, out);
    }

    fn report_errors(&self, base: &QueueCounters, out: &mut QueryQCounterOut) {
        use CompletionStatus as Status;
        let send = |status: Status| {
            let at = usize::from(status.syndrome());
            self.send_errors[at].wrapping_sub(base.send_errors[at])
        };
        let recv = |status: Status| {
            let at = usize::from(status.syndrome());
            self.recv_errors[at].wrapping_sub(base.recv_errors[at])
        };
        let all = |now: &[u32], then: &[u32]| {
            let each = now.iter().zip(then).map(|(n, t)| n.wrapping_sub(*t));
            each.fold(0u32, u32::wrapping_add)
        };
        out.set_req_local_length_error(send(Status::LocalLength));
        out.set_local_operation_error(send(Status::LocalQpOperation));
        out.set_req_local_protection(send(Status::LocalProtection));
        out.set_req_bad_response(send(Status::BadResponse));
        out.set_req_remote_invalid_request(send(Status::RemoteInvalidRequest));
        out.set_req_remote_access_errors(send(Status::RemoteAccess));
        out.set_req_remote_operation_errors(send(Status::RemoteOperation));
        out.set_req_transport_retries_exceeded(send(Status::TransportRetryExceeded));
        out.set_req_rnr_retries_exceeded(send(Status::RnrRetryExceeded));
        out.set_req_cqe_flush_error(send(Status::Flushed));
        out.set_req_cqe_error(all(&self.send_errors, &base.send_errors));
        out.set_resp_local_length_error(recv(Status::LocalLength));
        out.set_resp_local_qp_error(recv(Status::LocalQpOperation));
        out.set_resp_local_protection(recv(Status::LocalProtection));
        out.set_resp_remote_access_errors(recv(Status::LocalAccess));
        out.set_resp_remote_invalid_request(recv(Status::RemoteInvalidRequest));
        out.set_resp_cqe_flush_error(recv(Status::Flushed));
        out.set_resp_cqe_error(all(&self.recv_errors, &base.recv_errors));
    }
}

/// Sums the counters of two transports.
pub fn sum(mut sum: QpCounters, more: &QpCounters) -> QpCounters {
    sum.packets_sent += more.packets_sent;
    sum.packets_received += more.packets_received;
    sum.retransmitted += more.retransmitted;
    sum.timeouts += more.timeouts;
    sum.duplicates += more.duplicates;
    sum.out_of_sequence += more.out_of_sequence;
    sum.sequence_naks_received += more.sequence_naks_received;
    sum.implied_naks += more.implied_naks;
    sum.rnr_naks_sent += more.rnr_naks_sent;
    sum.rnr_naks_received += more.rnr_naks_received;
    sum.dropped += more.dropped;
    sum
}
