//! Commands of flow tables: steering of received Ethernet frames.

use super::flow_match::*;

crate::layout! {
    /// Flow table context.
    union FlowTableContext("flow_table_context", 0x28) {
        reformat_en: bool @ 0x00[31];
        decap_en: bool @ 0x00[30];
        sw_owner: bool @ 0x00[29];
        termination_table: bool @ 0x00[28];
        table_miss_action: (u8) @ 0x00[27:24];
        level: u8 @ 0x00[23:16];
        rtc_valid: bool @ 0x00[15];
        log_size: u8 @ 0x00[7:0];
        table_miss_id: (u32) @ 0x04[23:0];
        lag_master_next_table_id: (u32) @ 0x08[23:0];
        sws__sw_owner_icm_root_1: u64 @ 0x18;
        sws__sw_owner_icm_root_0: u64 @ 0x20;
        hws__rtc_id_0: u32 @ 0x18;
        hws__rtc_id_1: u32 @ 0x1c;
        hws__reserved_at_100: u64 @ 0x20;
    }

    /// Input of CREATE_FLOW_TABLE.
    struct CreateFlowTableIn("create_flow_table_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        table_type: u8 @ 0x10[31:24];
        flow_table_context: {FlowTableContext} @ 0x18;
    }

    /// Output of CREATE_FLOW_TABLE.
    struct CreateFlowTableOut("create_flow_table_out", 0x10) {
        status: u8 @ 0x00[31:24];
        icm_address_63_40: (u32) @ 0x00[23:0];
        syndrome: u32 @ 0x04;
        icm_address_39_32: u8 @ 0x08[31:24];
        table_id: (u32) @ 0x08[23:0];
        icm_address_31_0: u32 @ 0x0c;
    }

    /// Input of DESTROY_FLOW_TABLE.
    struct DestroyFlowTableIn("destroy_flow_table_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        table_type: u8 @ 0x10[31:24];
        table_id: (u32) @ 0x14[23:0];
    }

    /// Output of DESTROY_FLOW_TABLE.
    struct DestroyFlowTableOut("destroy_flow_table_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of MODIFY_FLOW_TABLE.
    struct ModifyFlowTableIn("modify_flow_table_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        modify_field_select: u16 @ 0x0c[15:0];
        table_type: u8 @ 0x10[31:24];
        table_id: (u32) @ 0x14[23:0];
        flow_table_context: {FlowTableContext} @ 0x18;
    }

    /// Output of MODIFY_FLOW_TABLE.
    struct ModifyFlowTableOut("modify_flow_table_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of SET_FLOW_TABLE_ROOT.
    struct SetFlowTableRootIn("set_flow_table_root_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        table_type: u8 @ 0x10[31:24];
        table_of_other_vport: bool @ 0x10[16];
        table_vport_number: u16 @ 0x10[15:0];
        table_id: (u32) @ 0x14[23:0];
        underlay_qpn: (u32) @ 0x18[23:0];
        table_eswitch_owner_vhca_id_valid: bool @ 0x1c[31];
        table_eswitch_owner_vhca_id: u16 @ 0x1c[15:0];
    }

    /// Output of SET_FLOW_TABLE_ROOT.
    struct SetFlowTableRootOut("set_flow_table_root_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of CREATE_FLOW_GROUP.
    struct CreateFlowGroupIn("create_flow_group_in", 0x400) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        table_type: u8 @ 0x10[31:24];
        group_type: (u8) @ 0x10[19:16];
        table_id: (u32) @ 0x14[23:0];
        source_eswitch_owner_vhca_id_valid: bool @ 0x18[31];
        start_flow_index: u32 @ 0x1c;
        end_flow_index: u32 @ 0x24;
        match_definer_id: u16 @ 0x28[15:0];
        match_criteria_enable: u8 @ 0x3c[7:0];
        match_criteria: {FteMatchParam} @ 0x40;
    }

    /// Output of CREATE_FLOW_GROUP.
    struct CreateFlowGroupOut("create_flow_group_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        group_id: (u32) @ 0x08[23:0];
    }

    /// Input of DESTROY_FLOW_GROUP.
    struct DestroyFlowGroupIn("destroy_flow_group_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        table_type: u8 @ 0x10[31:24];
        table_id: (u32) @ 0x14[23:0];
        group_id: u32 @ 0x18;
    }

    /// Output of DESTROY_FLOW_GROUP.
    struct DestroyFlowGroupOut("destroy_flow_group_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// The layout `vlan`.
    struct Vlan("vlan", 0x4) {
        ethtype: u16 @ 0x00[31:16];
        prio: (u8) @ 0x00[15:13];
        cfi: bool @ 0x00[12];
        vid: (u16) @ 0x00[11:0];
    }

    /// The layout `exe_aso_ctrl_flow_meter`.
    struct ExeAsoCtrlFlowMeter("exe_aso_ctrl_flow_meter", 0x4) {
        return_reg_id: (u8) @ 0x00[31:28];
        aso_type: (u8) @ 0x00[27:24];
        action: bool @ 0x00[3];
        init_color: (u8) @ 0x00[2:1];
        meter_id: bool @ 0x00[0];
    }

    /// The layout `exe_aso_ctrl`.
    union ExeAsoCtrl("exe_aso_ctrl", 0x4) {
        exe_aso_ctrl_flow_meter: {ExeAsoCtrlFlowMeter} @ 0x00;
    }

    /// The layout `execute_aso`.
    struct ExecuteAso("execute_aso", 0x8) {
        valid: bool @ 0x00[31];
        aso_object_id: (u32) @ 0x00[23:0];
        exe_aso_ctrl: {ExeAsoCtrl} @ 0x04;
    }

    /// Flow table entry.
    struct FlowContext("flow_context", 0x300) {
        push_vlan: {Vlan} @ 0x00;
        group_id: u32 @ 0x04;
        flow_tag: (u32) @ 0x08[23:0];
        action: u16 @ 0x0c[15:0];
        extended_destination: bool @ 0x10[31];
        uplink_hairpin_en: bool @ 0x10[30];
        flow_source: (u8) @ 0x10[29:28];
        encrypt_decrypt_type: (u8) @ 0x10[27:24];
        destination_list_size: (u32) @ 0x10[23:0];
        flow_counter_list_size: (u32) @ 0x14[23:0];
        packet_reformat_id: u32 @ 0x18;
        modify_header_id: u32 @ 0x1c;
        push_vlan_2: {Vlan} @ 0x20;
        encrypt_decrypt_obj_id: u32 @ 0x24;
        match_value: {FteMatchParam} @ 0x40;
        execute_aso: [{ExecuteAso}; 4] @ 0x240;
        destination: tail @ 0x300;
    }

    /// Input of SET_FTE.
    struct SetFteIn("set_fte_in", 0x340) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        table_type: u8 @ 0x10[31:24];
        table_id: (u32) @ 0x14[23:0];
        ignore_flow_level: bool @ 0x18[31];
        modify_enable_mask: u8 @ 0x18[7:0];
        flow_index: u32 @ 0x20;
        flow_context: {FlowContext} @ 0x40;
    }

    /// Output of SET_FTE.
    struct SetFteOut("set_fte_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of DELETE_FTE.
    struct DeleteFteIn("delete_fte_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        table_type: u8 @ 0x10[31:24];
        table_id: (u32) @ 0x14[23:0];
        flow_index: u32 @ 0x20;
    }

    /// Output of DELETE_FTE.
    struct DeleteFteOut("delete_fte_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of ALLOC_FLOW_COUNTER.
    struct AllocFlowCounterIn("alloc_flow_counter_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        flow_counter_bulk_log_size: (u8) @ 0x0c[12:8];
        flow_counter_bulk: u8 @ 0x0c[7:0];
    }

    /// Output of ALLOC_FLOW_COUNTER.
    struct AllocFlowCounterOut("alloc_flow_counter_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        flow_counter_id: u32 @ 0x08;
    }

    /// Input of DEALLOC_FLOW_COUNTER.
    struct DeallocFlowCounterIn("dealloc_flow_counter_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        flow_counter_id: u32 @ 0x08;
    }

    /// Output of DEALLOC_FLOW_COUNTER.
    struct DeallocFlowCounterOut("dealloc_flow_counter_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Where an entry sends frames to.
    struct DestFormatStruct("dest_format_struct", 0x8) {
        destination_type: u8 @ 0x00[31:24];
        destination_id: (u32) @ 0x00[23:0];
        destination_eswitch_owner_vhca_id_valid: bool @ 0x04[31];
        packet_reformat: bool @ 0x04[30];
        destination_table_type: u8 @ 0x04[23:16];
        destination_eswitch_owner_vhca_id: u16 @ 0x04[15:0];
    }

    /// The layout `flow_table_fields_supported`.
    struct FlowTableFieldsSupported("flow_table_fields_supported", 0x10) {
        outer_dmac: bool @ 0x00[31];
        outer_smac: bool @ 0x00[30];
        outer_ether_type: bool @ 0x00[29];
        outer_ip_version: bool @ 0x00[28];
        outer_first_prio: bool @ 0x00[27];
        outer_first_cfi: bool @ 0x00[26];
        outer_first_vid: bool @ 0x00[25];
        outer_ipv4_ttl: bool @ 0x00[24];
        outer_second_prio: bool @ 0x00[23];
        outer_second_cfi: bool @ 0x00[22];
        outer_second_vid: bool @ 0x00[21];
        outer_sip: bool @ 0x00[19];
        outer_dip: bool @ 0x00[18];
        outer_frag: bool @ 0x00[17];
        outer_ip_protocol: bool @ 0x00[16];
        outer_ip_ecn: bool @ 0x00[15];
        outer_ip_dscp: bool @ 0x00[14];
        outer_udp_sport: bool @ 0x00[13];
        outer_udp_dport: bool @ 0x00[12];
        outer_tcp_sport: bool @ 0x00[11];
        outer_tcp_dport: bool @ 0x00[10];
        outer_tcp_flags: bool @ 0x00[9];
        outer_gre_protocol: bool @ 0x00[8];
        outer_gre_key: bool @ 0x00[7];
        outer_vxlan_vni: bool @ 0x00[6];
        outer_geneve_vni: bool @ 0x00[5];
        outer_geneve_oam: bool @ 0x00[4];
        outer_geneve_protocol_type: bool @ 0x00[3];
        outer_geneve_opt_len: bool @ 0x00[2];
        source_vhca_port: bool @ 0x00[1];
        source_eswitch_port: bool @ 0x00[0];
        inner_dmac: bool @ 0x04[31];
        inner_smac: bool @ 0x04[30];
        inner_ether_type: bool @ 0x04[29];
        inner_ip_version: bool @ 0x04[28];
        inner_first_prio: bool @ 0x04[27];
        inner_first_cfi: bool @ 0x04[26];
        inner_first_vid: bool @ 0x04[25];
        inner_second_prio: bool @ 0x04[23];
        inner_second_cfi: bool @ 0x04[22];
        inner_second_vid: bool @ 0x04[21];
        inner_sip: bool @ 0x04[19];
        inner_dip: bool @ 0x04[18];
        inner_frag: bool @ 0x04[17];
        inner_ip_protocol: bool @ 0x04[16];
        inner_ip_ecn: bool @ 0x04[15];
        inner_ip_dscp: bool @ 0x04[14];
        inner_udp_sport: bool @ 0x04[13];
        inner_udp_dport: bool @ 0x04[12];
        inner_tcp_sport: bool @ 0x04[11];
        inner_tcp_dport: bool @ 0x04[10];
        inner_tcp_flags: bool @ 0x04[9];
        geneve_tlv_option_0_data: bool @ 0x08[31];
        geneve_tlv_option_0_exist: bool @ 0x08[30];
        outer_first_mpls_over_udp: (u8) @ 0x08[26:23];
        outer_first_mpls_over_gre: (u8) @ 0x08[22:19];
        inner_first_mpls: (u8) @ 0x08[18:15];
        outer_first_mpls: (u8) @ 0x08[14:11];
        outer_esp_spi: bool @ 0x08[8];
        bth_dst_qp: bool @ 0x08[5];
        metadata_reg_c_7: bool @ 0x0c[7];
        metadata_reg_c_6: bool @ 0x0c[6];
        metadata_reg_c_5: bool @ 0x0c[5];
        metadata_reg_c_4: bool @ 0x0c[4];
        metadata_reg_c_3: bool @ 0x0c[3];
        metadata_reg_c_2: bool @ 0x0c[2];
        metadata_reg_c_1: bool @ 0x0c[1];
        metadata_reg_c_0: bool @ 0x0c[0];
    }

    /// What flow tables of one kind can do.
    struct FlowTablePropLayout("flow_table_prop_layout", 0x40) {
        ft_support: bool @ 0x00[31];
        flow_counter: bool @ 0x00[29];
        flow_modify_en: bool @ 0x00[28];
        modify_root: bool @ 0x00[27];
        identified_miss_table_mode: bool @ 0x00[26];
        flow_table_modify: bool @ 0x00[25];
        reformat: bool @ 0x00[24];
        decap: bool @ 0x00[23];
        reset_root_to_default: bool @ 0x00[22];
        pop_vlan: bool @ 0x00[21];
        push_vlan: bool @ 0x00[20];
        pop_vlan_2: bool @ 0x00[18];
        push_vlan_2: bool @ 0x00[17];
        reformat_and_vlan_action: bool @ 0x00[16];
        sw_owner: bool @ 0x00[14];
        reformat_l3_tunnel_to_l2: bool @ 0x00[13];
        reformat_l2_to_l3_tunnel: bool @ 0x00[12];
        reformat_and_modify_action: bool @ 0x00[11];
        ignore_flow_level: bool @ 0x00[10];
        table_miss_action_domain: bool @ 0x00[8];
        termination_table: bool @ 0x00[7];
        reformat_and_fwd_to_table: bool @ 0x00[6];
        ipsec_encrypt: bool @ 0x00[3];
        ipsec_decrypt: bool @ 0x00[2];
        sw_owner_v2: bool @ 0x00[1];
        termination_table_raw_traffic: bool @ 0x04[31];
        log_max_ft_size: (u8) @ 0x04[29:24];
        log_max_modify_header_context: u8 @ 0x04[23:16];
        max_modify_header_actions: u8 @ 0x04[15:8];
        max_ft_level: u8 @ 0x04[7:0];
        reformat_add_esp_trasport: bool @ 0x08[31];
        reformat_l2_to_l3_esp_tunnel: bool @ 0x08[30];
        reformat_add_esp_transport_over_udp: bool @ 0x08[29];
        reformat_del_esp_trasport: bool @ 0x08[28];
        reformat_l3_esp_tunnel_to_l2: bool @ 0x08[27];
        reformat_del_esp_transport_over_udp: bool @ 0x08[26];
        execute_aso: bool @ 0x08[25];
        reformat_insert: bool @ 0x0c[29];
        reformat_remove: bool @ 0x0c[28];
        macsec_encrypt: bool @ 0x0c[27];
        macsec_decrypt: bool @ 0x0c[26];
        reformat_add_macsec: bool @ 0x0c[23];
        reformat_remove_macsec: bool @ 0x0c[22];
        reparse: bool @ 0x0c[21];
        cross_vhca_object: bool @ 0x0c[19];
        reformat_l2_to_l3_audp_tunnel: bool @ 0x0c[18];
        reformat_l3_audp_tunnel_to_l2: bool @ 0x0c[17];
        ignore_flow_level_rtc_valid: bool @ 0x0c[16];
        log_max_ft_num: u8 @ 0x0c[7:0];
        log_max_flow_counter: u8 @ 0x10[15:8];
        log_max_destination: u8 @ 0x10[7:0];
        log_max_flow: u8 @ 0x14[7:0];
        ft_field_support: {FlowTableFieldsSupported} @ 0x20;
        ft_field_bitmask_support: {FlowTableFieldsSupported} @ 0x30;
    }

    /// The layout `flow_table_fields_supported_2`.
    struct FlowTableFieldsSupported2("flow_table_fields_supported_2", 0x10) {
        inner_l4_type: bool @ 0x00[29];
        outer_l4_type: bool @ 0x00[28];
        bth_opcode: bool @ 0x00[17];
        tunnel_header_0_1: bool @ 0x00[15];
    }

    /// Flow table capabilities of a NIC port.
    struct FlowTableNicCap("flow_table_nic_cap", 0x1000) {
        nic_rx_multi_path_tirs: bool @ 0x00[31];
        nic_rx_multi_path_tirs_fts: bool @ 0x00[30];
        allow_sniffer_and_nic_rx_shared_tir: bool @ 0x00[29];
        sw_owner_reformat_supported: bool @ 0x00[24];
        encap_general_header: bool @ 0x04[31];
        log_max_packet_reformat_context: (u8) @ 0x04[20:16];
        max_encap_header_size: (u16) @ 0x04[9:0];
        flow_table_properties_nic_receive: {FlowTablePropLayout} @ 0x40;
        flow_table_properties_nic_receive_rdma: {FlowTablePropLayout} @ 0x80;
        flow_table_properties_nic_receive_sniffer: {FlowTablePropLayout} @ 0xc0;
        flow_table_properties_nic_transmit: {FlowTablePropLayout} @ 0x100;
        flow_table_properties_nic_transmit_rdma: {FlowTablePropLayout} @ 0x140;
        flow_table_properties_nic_transmit_sniffer: {FlowTablePropLayout} @ 0x180;
        ft_field_support_2_nic_receive: {FlowTableFieldsSupported2} @ 0x280;
        ft_field_support_2_nic_receive_rdma: {FlowTableFieldsSupported2} @ 0x2a0;
        ft_field_support_2_nic_transmit_rdma: {FlowTableFieldsSupported2} @ 0x300;
        sw_steering_nic_rx_action_drop_icm_address: u64 @ 0x400;
        sw_steering_nic_tx_action_drop_icm_address: u64 @ 0x408;
        sw_steering_nic_tx_action_allow_icm_address: u64 @ 0x410;
    }
}
