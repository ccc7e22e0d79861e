//! Congestion control: whether it is on, its parameters, what it counted.

crate::layout! {
    /// Input of QUERY_CONG_STATUS.
    struct QueryCongStatusIn("query_cong_status_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        priority: (u8) @ 0x08[7:4];
        cong_protocol: (u8) @ 0x08[3:0];
    }

    /// Output of QUERY_CONG_STATUS.
    struct QueryCongStatusOut("query_cong_status_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        enable: bool @ 0x0c[31];
        tag_enable: bool @ 0x0c[30];
    }

    /// Input of MODIFY_CONG_STATUS.
    struct ModifyCongStatusIn("modify_cong_status_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        priority: (u8) @ 0x08[7:4];
        cong_protocol: (u8) @ 0x08[3:0];
        enable: bool @ 0x0c[31];
        tag_enable: bool @ 0x0c[30];
    }

    /// Output of MODIFY_CONG_STATUS.
    struct ModifyCongStatusOut("modify_cong_status_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_CONG_PARAMS.
    struct QueryCongParamsIn("query_cong_params_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        cong_protocol: (u8) @ 0x08[3:0];
    }

    /// Output of QUERY_CONG_PARAMS.
    struct QueryCongParamsOut("query_cong_params_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        congestion_parameters: tail @ 0x10;
    }

    /// Input of MODIFY_CONG_PARAMS.
    struct ModifyCongParamsIn("modify_cong_params_in", 0x120) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        cong_protocol: (u8) @ 0x08[3:0];
        field_select: u32 @ 0x0c;
        congestion_parameters: tail @ 0x20;
    }

    /// Output of MODIFY_CONG_PARAMS.
    struct ModifyCongParamsOut("modify_cong_params_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Parameters of the notification point: who receives marked packets and sends CNPs.
    struct CongControlRRoceEcnNp("cong_control_r_roce_ecn_np", 0x100) {
        min_time_between_cnps: u32 @ 0x14;
        cnp_dscp: (u8) @ 0x18[13:8];
        cnp_prio_mode: bool @ 0x18[3];
        cnp_802p_prio: (u8) @ 0x18[2:0];
    }

    /// Parameters of the reaction point: who receives CNPs and slows down.
    struct CongControlRRoceEcnRp("cong_control_r_roce_ecn_rp", 0x100) {
        clamp_tgt_rate: bool @ 0x0c[27];
        clamp_tgt_rate_after_time_inc: bool @ 0x0c[23];
        rpg_time_reset: u32 @ 0x14;
        rpg_byte_reset: u32 @ 0x18;
        rpg_threshold: u32 @ 0x1c;
        rpg_max_rate: u32 @ 0x20;
        rpg_ai_rate: u32 @ 0x24;
        rpg_hai_rate: u32 @ 0x28;
        rpg_gd: u32 @ 0x2c;
        rpg_min_dec_fac: u32 @ 0x30;
        rpg_min_rate: u32 @ 0x34;
        rate_to_set_on_first_cnp: u32 @ 0x54;
        dce_tcp_g: u32 @ 0x58;
        dce_tcp_rtt: u32 @ 0x5c;
        rate_reduce_monitor_period: u32 @ 0x60;
        initial_alpha_value: u32 @ 0x68;
    }

    /// Input of QUERY_CONG_STATISTICS.
    struct QueryCongStatisticsIn("query_cong_statistics_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        clear: bool @ 0x08[31];
    }

    /// Output of QUERY_CONG_STATISTICS.
    struct QueryCongStatisticsOut("query_cong_statistics_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        rp_cur_flows: u32 @ 0x10;
        sum_flows: u32 @ 0x14;
        rp_cnp_ignored_high: u32 @ 0x18;
        rp_cnp_ignored_low: u32 @ 0x1c;
        rp_cnp_handled_high: u32 @ 0x20;
        rp_cnp_handled_low: u32 @ 0x24;
        time_stamp_high: u32 @ 0x48;
        time_stamp_low: u32 @ 0x4c;
        accumulators_period: u32 @ 0x50;
        np_ecn_marked_roce_packets_high: u32 @ 0x54;
        np_ecn_marked_roce_packets_low: u32 @ 0x58;
        np_cnp_sent_high: u32 @ 0x5c;
        np_cnp_sent_low: u32 @ 0x60;
    }
}
