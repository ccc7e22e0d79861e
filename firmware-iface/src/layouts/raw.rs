//! Commands of raw Ethernet queues: SQ, RQ, TIS, TIR and RQT.

use super::ctx::*;

crate::layout! {
    /// Send queue context.
    struct Sqc("sqc", 0xf0) {
        rlky: bool @ 0x00[31];
        cd_master: bool @ 0x00[30];
        fre: bool @ 0x00[29];
        flush_in_error_en: bool @ 0x00[28];
        allow_multi_pkt_send_wqe: bool @ 0x00[27];
        min_wqe_inline_mode: (u8) @ 0x00[26:24];
        state: (u8) @ 0x00[23:20];
        reg_umr: bool @ 0x00[19];
        allow_swp: bool @ 0x00[18];
        hairpin: bool @ 0x00[17];
        non_wire: bool @ 0x00[16];
        ts_format: (u8) @ 0x00[5:4];
        user_index: (u32) @ 0x04[23:0];
        cqn: (u32) @ 0x08[23:0];
        hairpin_peer_rq: (u32) @ 0x0c[23:0];
        hairpin_peer_vhca: u16 @ 0x10[15:0];
        ts_cqe_to_dest_cqn: (u32) @ 0x18[23:0];
        packet_pacing_rate_limit_index: u16 @ 0x1c[15:0];
        tis_lst_sz: u16 @ 0x20[31:16];
        qos_queue_group_id: u16 @ 0x20[15:0];
        tis_num_0: (u32) @ 0x2c[23:0];
        wq: {Wq} @ 0x30;
    }

    /// Input of CREATE_SQ.
    struct CreateSqIn("create_sq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        ctx: {Sqc} @ 0x20;
    }

    /// Output of CREATE_SQ.
    struct CreateSqOut("create_sq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        sqn: (u32) @ 0x08[23:0];
    }

    /// Input of MODIFY_SQ.
    struct ModifySqIn("modify_sq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        sq_state: (u8) @ 0x08[31:28];
        sqn: (u32) @ 0x08[23:0];
        modify_bitmask: u64 @ 0x10;
        ctx: {Sqc} @ 0x20;
    }

    /// Output of MODIFY_SQ.
    struct ModifySqOut("modify_sq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of DESTROY_SQ.
    struct DestroySqIn("destroy_sq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        sqn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_SQ.
    struct DestroySqOut("destroy_sq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_SQ.
    struct QuerySqIn("query_sq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        sqn: (u32) @ 0x08[23:0];
    }

    /// Output of QUERY_SQ.
    struct QuerySqOut("query_sq_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        sq_context: {Sqc} @ 0x20;
    }

    /// Receive queue context.
    struct Rqc("rqc", 0xf0) {
        rlky: bool @ 0x00[31];
        delay_drop_en: bool @ 0x00[30];
        scatter_fcs: bool @ 0x00[29];
        vsd: bool @ 0x00[28];
        mem_rq_type: (u8) @ 0x00[27:24];
        state: (u8) @ 0x00[23:20];
        flush_in_error_en: bool @ 0x00[18];
        hairpin: bool @ 0x00[17];
        ts_format: (u8) @ 0x00[5:4];
        user_index: (u32) @ 0x04[23:0];
        cqn: (u32) @ 0x08[23:0];
        counter_set_id: u8 @ 0x0c[31:24];
        rmpn: (u32) @ 0x10[23:0];
        hairpin_peer_sq: (u32) @ 0x14[23:0];
        hairpin_peer_vhca: u16 @ 0x18[15:0];
        shampo_no_match_alignment_granularity: (u8) @ 0x24[25:24];
        shampo_match_criteria_type: (u8) @ 0x24[17:16];
        reservation_timeout: u16 @ 0x24[15:0];
        wq: {Wq} @ 0x30;
    }

    /// Input of CREATE_RQ.
    struct CreateRqIn("create_rq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        ctx: {Rqc} @ 0x20;
    }

    /// Output of CREATE_RQ.
    struct CreateRqOut("create_rq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        rqn: (u32) @ 0x08[23:0];
    }

    /// Input of MODIFY_RQ.
    struct ModifyRqIn("modify_rq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        rq_state: (u8) @ 0x08[31:28];
        rqn: (u32) @ 0x08[23:0];
        modify_bitmask: u64 @ 0x10;
        ctx: {Rqc} @ 0x20;
    }

    /// Output of MODIFY_RQ.
    struct ModifyRqOut("modify_rq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of DESTROY_RQ.
    struct DestroyRqIn("destroy_rq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        rqn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_RQ.
    struct DestroyRqOut("destroy_rq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_RQ.
    struct QueryRqIn("query_rq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        rqn: (u32) @ 0x08[23:0];
    }

    /// Output of QUERY_RQ.
    struct QueryRqOut("query_rq_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        rq_context: {Rqc} @ 0x20;
    }

    /// Transport interface send context.
    struct Tisc("tisc", 0xa0) {
        strict_lag_tx_port_affinity: bool @ 0x00[31];
        tls_en: bool @ 0x00[30];
        lag_tx_port_affinity: (u8) @ 0x00[27:24];
        prio: (u8) @ 0x00[19:16];
        transport_domain: (u32) @ 0x24[23:0];
        underlay_qpn: (u32) @ 0x28[23:0];
        pd: (u32) @ 0x2c[23:0];
    }

    /// Input of CREATE_TIS.
    struct CreateTisIn("create_tis_in", 0xc0) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        ctx: {Tisc} @ 0x20;
    }

    /// Output of CREATE_TIS.
    struct CreateTisOut("create_tis_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        tisn: (u32) @ 0x08[23:0];
    }

    /// The layout `modify_tis_bitmask`.
    struct ModifyTisBitmask("modify_tis_bitmask", 0x8) {
        lag_tx_port_affinity: bool @ 0x04[2];
        strict_lag_tx_port_affinity: bool @ 0x04[1];
        prio: bool @ 0x04[0];
    }

    /// Input of MODIFY_TIS.
    struct ModifyTisIn("modify_tis_in", 0xc0) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        tisn: (u32) @ 0x08[23:0];
        bitmask: {ModifyTisBitmask} @ 0x10;
        ctx: {Tisc} @ 0x20;
    }

    /// Output of MODIFY_TIS.
    struct ModifyTisOut("modify_tis_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of DESTROY_TIS.
    struct DestroyTisIn("destroy_tis_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        tisn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_TIS.
    struct DestroyTisOut("destroy_tis_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Fields that a receive hash covers.
    struct RxHashFieldSelect("rx_hash_field_select", 0x4) {
        l3_prot_type: bool @ 0x00[31];
        l4_prot_type: bool @ 0x00[30];
        selected_fields: (u32) @ 0x00[29:0];
    }

    /// Transport interface receive context.
    struct Tirc("tirc", 0xf0) {
        disp_type: (u8) @ 0x04[31:28];
        tls_en: bool @ 0x04[27];
        lro_timeout_period_usecs: u16 @ 0x10[27:12];
        packet_merge_mask: (u8) @ 0x10[11:8];
        lro_max_ip_payload_size: u8 @ 0x10[7:0];
        inline_rqn: (u32) @ 0x1c[23:0];
        rx_hash_symmetric: bool @ 0x20[31];
        tunneled_offload_en: bool @ 0x20[29];
        indirect_table: (u32) @ 0x20[23:0];
        rx_hash_fn: (u8) @ 0x24[31:28];
        self_lb_block: (u8) @ 0x24[25:24];
        transport_domain: (u32) @ 0x24[23:0];
        rx_hash_toeplitz_key: [u32; 10] @ 0x28;
        rx_hash_field_selector_outer: {RxHashFieldSelect} @ 0x50;
        rx_hash_field_selector_inner: {RxHashFieldSelect} @ 0x54;
    }

    /// Input of CREATE_TIR.
    struct CreateTirIn("create_tir_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        ctx: {Tirc} @ 0x20;
    }

    /// Output of CREATE_TIR.
    struct CreateTirOut("create_tir_out", 0x10) {
        status: u8 @ 0x00[31:24];
        icm_address_63_40: (u32) @ 0x00[23:0];
        syndrome: u32 @ 0x04;
        icm_address_39_32: u8 @ 0x08[31:24];
        tirn: (u32) @ 0x08[23:0];
        icm_address_31_0: u32 @ 0x0c;
    }

    /// The layout `modify_tir_bitmask`.
    struct ModifyTirBitmask("modify_tir_bitmask", 0x8) {
        self_lb_en: bool @ 0x04[4];
        hash: bool @ 0x04[2];
        packet_merge: bool @ 0x04[0];
    }

    /// Input of MODIFY_TIR.
    struct ModifyTirIn("modify_tir_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        tirn: (u32) @ 0x08[23:0];
        bitmask: {ModifyTirBitmask} @ 0x10;
        ctx: {Tirc} @ 0x20;
    }

    /// Output of MODIFY_TIR.
    struct ModifyTirOut("modify_tir_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of DESTROY_TIR.
    struct DestroyTirIn("destroy_tir_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        tirn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_TIR.
    struct DestroyTirOut("destroy_tir_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Receive queue table context.
    struct Rqtc("rqtc", 0xf0) {
        list_q_type: (u8) @ 0x14[26:24];
        rqt_max_size: u16 @ 0x14[15:0];
        rq_vhca_id_format: bool @ 0x18[31];
        rqt_actual_size: u16 @ 0x18[15:0];
        rq_num: tail @ 0xf0;
        rq_vhca: tail @ 0xf0;
    }

    /// Input of CREATE_RQT.
    struct CreateRqtIn("create_rqt_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        rqt_context: {Rqtc} @ 0x20;
    }

    /// Output of CREATE_RQT.
    struct CreateRqtOut("create_rqt_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        rqtn: (u32) @ 0x08[23:0];
    }

    /// The layout `rqt_bitmask`.
    struct RqtBitmask("rqt_bitmask", 0x8) {
        rqn_list: bool @ 0x04[0];
    }

    /// Input of MODIFY_RQT.
    struct ModifyRqtIn("modify_rqt_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        rqtn: (u32) @ 0x08[23:0];
        bitmask: {RqtBitmask} @ 0x10;
        ctx: {Rqtc} @ 0x20;
    }

    /// Output of MODIFY_RQT.
    struct ModifyRqtOut("modify_rqt_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of DESTROY_RQT.
    struct DestroyRqtIn("destroy_rqt_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        rqtn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_RQT.
    struct DestroyRqtOut("destroy_rqt_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// The layout `rq_num`.
    struct RqNum("rq_num", 0x4) {
        rq_num: (u32) @ 0x00[23:0];
    }
}
