//! The connection manager's datagrams, 256 bytes each, as chapter 12 of the IBTA's volume 1 lays them out.
//!
//! The tables there count bytes from the end of the common header (24 bytes); here offsets are from the start of the
//! datagram, as everywhere else. Bits that no field covers are reserved: sent as 0, and not looked at.

use ferroce_firmware_iface::layout;

layout! {
    /// The header of all management datagrams (IBTA vol. 1, 13.4.2).
    struct MadHeader("mad_header", 24) {
        base_version: u8 @ 0x00[31:24];
        mgmt_class: u8 @ 0x00[23:16];
        class_version: u8 @ 0x00[15:8];
        method: u8 @ 0x00[7:0];
        status: u16 @ 0x04[31:16];
        class_specific: u16 @ 0x04[15:0];
        transaction_id: u64 @ 0x08;
        attribute_id: u16 @ 0x10[31:16];
        attribute_modifier: u32 @ 0x14;
    }

    /// REQ: asks for a connection (IBTA vol. 1, 12.6.5).
    struct ReqMsg("cm_req", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        vendor_id: (u32) @ 0x1c[23:0];
        service_id: u64 @ 0x20;
        local_ca_guid: u64 @ 0x28;
        local_q_key: u32 @ 0x34;
        local_qpn: (u32) @ 0x38[31:8];
        responder_resources: u8 @ 0x38[7:0];
        local_eecn: (u32) @ 0x3c[31:8];
        initiator_depth: u8 @ 0x3c[7:0];
        remote_eecn: (u32) @ 0x40[31:8];
        remote_cm_response_timeout: (u8) @ 0x40[7:3];
        transport_service_type: (u8) @ 0x40[2:1];
        end_to_end_flow_control: bool @ 0x40[0];
        starting_psn: (u32) @ 0x44[31:8];
        local_cm_response_timeout: (u8) @ 0x44[7:3];
        retry_count: (u8) @ 0x44[2:0];
        partition_key: u16 @ 0x48[31:16];
        path_packet_payload_mtu: (u8) @ 0x48[15:12];
        rdc_exists: bool @ 0x48[11];
        rnr_retry_count: (u8) @ 0x48[10:8];
        max_cm_retries: (u8) @ 0x48[7:4];
        srq: bool @ 0x48[3];
        extended_transport_type: (u8) @ 0x48[2:0];
        primary_local_port_lid: u16 @ 0x4c[31:16];
        primary_remote_port_lid: u16 @ 0x4c[15:0];
        primary_local_port_gid: u128 @ 0x50;
        primary_remote_port_gid: u128 @ 0x60;
        primary_flow_label: (u32) @ 0x70[31:12];
        primary_packet_rate: (u8) @ 0x70[5:0];
        primary_traffic_class: u8 @ 0x74[31:24];
        primary_hop_limit: u8 @ 0x74[23:16];
        primary_sl: (u8) @ 0x74[15:12];
        primary_subnet_local: bool @ 0x74[11];
        primary_local_ack_timeout: (u8) @ 0x74[7:3];
        alternate_local_port_lid: u16 @ 0x78[31:16];
        alternate_remote_port_lid: u16 @ 0x78[15:0];
        alternate_local_port_gid: u128 @ 0x7c;
        alternate_remote_port_gid: u128 @ 0x8c;
        alternate_flow_label: (u32) @ 0x9c[31:12];
        alternate_packet_rate: (u8) @ 0x9c[5:0];
        alternate_traffic_class: u8 @ 0xa0[31:24];
        alternate_hop_limit: u8 @ 0xa0[23:16];
        alternate_sl: (u8) @ 0xa0[15:12];
        alternate_subnet_local: bool @ 0xa0[11];
        alternate_local_ack_timeout: (u8) @ 0xa0[7:3];
        sap_supported: bool @ 0xa0[2];
        private_data: [u8; 92] @ 0xa4;
    }

    /// MRA: the answer takes longer (IBTA vol. 1, 12.6.6).
    struct MraMsg("cm_mra", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        remote_comm_id: u32 @ 0x1c;
        message_mraed: (u8) @ 0x20[31:30];
        service_timeout: (u8) @ 0x20[23:19];
        private_data: [u8; 222] @ 0x22;
    }

    /// REJ: no (IBTA vol. 1, 12.6.7).
    struct RejMsg("cm_rej", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        remote_comm_id: u32 @ 0x1c;
        message_rejected: (u8) @ 0x20[31:30];
        rejected_info_length: (u8) @ 0x20[23:17];
        reason: u16 @ 0x20[15:0];
        ari: [u8; 72] @ 0x24;
        private_data: [u8; 148] @ 0x6c;
    }

    /// REP: yes (IBTA vol. 1, 12.6.8).
    struct RepMsg("cm_rep", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        remote_comm_id: u32 @ 0x1c;
        local_q_key: u32 @ 0x20;
        local_qpn: (u32) @ 0x24[31:8];
        vendor_id_h: u8 @ 0x24[7:0];
        local_ee_context_number: (u32) @ 0x28[31:8];
        vendor_id_m: u8 @ 0x28[7:0];
        starting_psn: (u32) @ 0x2c[31:8];
        vendor_id_l: u8 @ 0x2c[7:0];
        responder_resources: u8 @ 0x30[31:24];
        initiator_depth: u8 @ 0x30[23:16];
        target_ack_delay: (u8) @ 0x30[15:11];
        failover_accepted: (u8) @ 0x30[10:9];
        end_to_end_flow_control: bool @ 0x30[8];
        rnr_retry_count: (u8) @ 0x30[7:5];
        srq: bool @ 0x30[4];
        local_ca_guid: u64 @ 0x34;
        private_data: [u8; 196] @ 0x3c;
    }

    /// RTU: the connection is in use (IBTA vol. 1, 12.6.9).
    struct RtuMsg("cm_rtu", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        remote_comm_id: u32 @ 0x1c;
        private_data: [u8; 224] @ 0x20;
    }

    /// DREQ: ends a connection (IBTA vol. 1, 12.6.10).
    struct DreqMsg("cm_dreq", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        remote_comm_id: u32 @ 0x1c;
        remote_qpn_eecn: (u32) @ 0x20[31:8];
        private_data: [u8; 220] @ 0x24;
    }

    /// DREP: the end is known (IBTA vol. 1, 12.6.11).
    struct DrepMsg("cm_drep", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        remote_comm_id: u32 @ 0x1c;
        private_data: [u8; 224] @ 0x20;
    }

    /// LAP: asks for another alternate path (IBTA vol. 1, 12.8.1).
    struct LapMsg("cm_lap", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        remote_comm_id: u32 @ 0x1c;
        remote_qpn_eecn: (u32) @ 0x24[31:8];
        remote_cm_response_timeout: (u8) @ 0x24[7:3];
        alternate_local_port_lid: u16 @ 0x2c[31:16];
        alternate_remote_port_lid: u16 @ 0x2c[15:0];
        alternate_local_port_gid: u128 @ 0x30;
        alternate_remote_port_gid: u128 @ 0x40;
        alternate_flow_label: (u32) @ 0x50[31:12];
        alternate_traffic_class: u8 @ 0x50[7:0];
        alternate_hop_limit: u8 @ 0x54[31:24];
        alternate_packet_rate: (u8) @ 0x54[21:16];
        alternate_sl: (u8) @ 0x54[15:12];
        alternate_subnet_local: bool @ 0x54[11];
        alternate_local_ack_timeout: (u8) @ 0x54[7:3];
        private_data: [u8; 168] @ 0x58;
    }

    /// APR: what became of a LAP (IBTA vol. 1, 12.8.2).
    struct AprMsg("cm_apr", 256) {
        header: {MadHeader} @ 0x00;
        local_comm_id: u32 @ 0x18;
        remote_comm_id: u32 @ 0x1c;
        additional_information_length: u8 @ 0x20[31:24];
        ar_status: u8 @ 0x20[23:16];
        additional_information: [u8; 72] @ 0x24;
        private_data: [u8; 148] @ 0x6c;
    }

    /// SIDR_REQ: asks for a service's queue pair (IBTA vol. 1, 12.11.1).
    struct SidrReqMsg("cm_sidr_req", 256) {
        header: {MadHeader} @ 0x00;
        request_id: u32 @ 0x18;
        partition_key: u16 @ 0x1c[31:16];
        service_id: u64 @ 0x20;
        private_data: [u8; 216] @ 0x28;
    }

    /// SIDR_REP: a service's queue pair (IBTA vol. 1, 12.11.2).
    struct SidrRepMsg("cm_sidr_rep", 256) {
        header: {MadHeader} @ 0x00;
        request_id: u32 @ 0x18;
        status: u8 @ 0x1c[31:24];
        additional_information_length: u8 @ 0x1c[23:16];
        vendor_id_h: u16 @ 0x1c[15:0];
        qpn: (u32) @ 0x20[31:8];
        vendor_id_l: u8 @ 0x20[7:0];
        service_id: u64 @ 0x24;
        q_key: u32 @ 0x2c;
        additional_information: [u8; 72] @ 0x30;
        private_data: [u8; 136] @ 0x78;
    }
}
