//! Capabilities beside the general one.

crate::layout! {
    /// General device capabilities, second page.
    struct CmdHcaCap2("cmd_hca_cap_2", 0x100) {
        migratable: bool @ 0x10[31];
        query_vuid: bool @ 0x10[13];
        umr_log_entity_size_5: bool @ 0x10[7];
        max_reformat_insert_size: u8 @ 0x14[31:24];
        max_reformat_insert_offset: u8 @ 0x14[23:16];
        max_reformat_remove_size: u8 @ 0x14[15:8];
        max_reformat_remove_offset: u8 @ 0x14[7:0];
        migration_multi_load: bool @ 0x18[23];
        migration_tracking_state: bool @ 0x18[22];
        multiplane_qp_ud: bool @ 0x18[21];
        migration_in_chunks: bool @ 0x18[15];
        sf_eq_usage: bool @ 0x18[13];
        multiplane: bool @ 0x18[7];
        cross_vhca_object_to_object_supported: u32 @ 0x1c;
        allowed_object_for_other_vhca_access: u64 @ 0x20;
        flow_table_type_2_type: u8 @ 0x34[31:24];
        format_select_dw_8_6_ext: bool @ 0x34[21];
        log_min_mkey_entity_size: (u8) @ 0x34[20:16];
        sw_vhca_id_valid: bool @ 0x44[30];
        sw_vhca_id: (u16) @ 0x44[29:16];
        ts_cqe_metadata_size2wqe_counter: (u8) @ 0x48[20:16];
        format_select_dw_gtpu_dw_0: u8 @ 0x50[31:24];
        format_select_dw_gtpu_dw_1: u8 @ 0x50[23:16];
        format_select_dw_gtpu_dw_2: u8 @ 0x50[15:8];
        format_select_dw_gtpu_first_ext_dw_0: u8 @ 0x50[7:0];
        generate_wqe_type: u32 @ 0x54;
        min_mkey_log_entity_size_fixed_buffer: (u8) @ 0x70[20:16];
        ec_vf_vport_base: u16 @ 0x70[15:0];
        max_mkey_log_entity_size_mtt: (u8) @ 0x74[21:16];
        max_rqt_vhca_id: u16 @ 0x74[15:0];
        pcc_ifa2: bool @ 0x7c[15];
        min_mkey_log_entity_size_fixed_buffer_valid: bool @ 0x80[30];
        return_reg_id: u16 @ 0x80[15:0];
        flow_table_hash_type: (u8) @ 0x84[3:0];
        max_num_eqs_24b: (u32) @ 0x88[23:0];
    }

    /// The layout `odp_per_transport_service_cap`.
    struct OdpPerTransportServiceCap("odp_per_transport_service_cap", 0x4) {
        send: bool @ 0x00[31];
        receive: bool @ 0x00[30];
        write: bool @ 0x00[29];
        read: bool @ 0x00[28];
        atomic: bool @ 0x00[27];
        srq_receive: bool @ 0x00[26];
    }

    /// The layout `odp_scheme_cap`.
    struct OdpSchemeCap("odp_scheme_cap", 0x40) {
        sig: bool @ 0x08[31];
        page_prefetch: bool @ 0x08[26];
        rc_odp_caps: {OdpPerTransportServiceCap} @ 0x10;
        uc_odp_caps: {OdpPerTransportServiceCap} @ 0x14;
        ud_odp_caps: {OdpPerTransportServiceCap} @ 0x18;
        xrc_odp_caps: {OdpPerTransportServiceCap} @ 0x1c;
        dc_odp_caps: {OdpPerTransportServiceCap} @ 0x20;
    }

    /// On-demand paging capabilities.
    struct OdpCap("odp_cap", 0x100) {
        transport_page_fault_scheme_cap: {OdpSchemeCap} @ 0x00;
        memory_page_fault_scheme_cap: {OdpSchemeCap} @ 0x40;
        mem_page_fault: bool @ 0xc0[31];
    }

    /// Atomic operation capabilities.
    struct AtomicCaps("atomic_caps", 0x100) {
        atomic_req_8B_endianness_mode: (u8) @ 0x08[31:30];
        supported_atomic_req_8B_endianness_mode_1: bool @ 0x08[25];
        atomic_operations: u16 @ 0x10[15:0];
        atomic_size_qp: u16 @ 0x14[15:0];
        atomic_size_dc: u16 @ 0x18[15:0];
    }

    /// RoCE capabilities.
    struct RoceCap("roce_cap", 0x100) {
        roce_apm: bool @ 0x00[31];
        sw_r_roce_src_udp_port: bool @ 0x00[27];
        fl_rc_qp_when_roce_disabled: bool @ 0x00[26];
        fl_rc_qp_when_roce_enabled: bool @ 0x00[25];
        roce_cc_general: bool @ 0x00[24];
        qp_ooo_transmit_default: bool @ 0x00[23];
        qp_ts_format: (u8) @ 0x00[1:0];
        l3_type: (u8) @ 0x10[19:16];
        roce_version: u8 @ 0x10[7:0];
        r_roce_dest_udp_port: u16 @ 0x14[15:0];
        r_roce_max_src_udp_port: u16 @ 0x18[31:16];
        r_roce_min_src_udp_port: u16 @ 0x18[15:0];
        roce_address_table_size: u16 @ 0x1c[15:0];
    }

    /// Ethernet offload capabilities.
    struct PerProtocolNetworkingOffloadCaps("per_protocol_networking_offload_caps", 0x100) {
        csum_cap: bool @ 0x00[31];
        vlan_cap: bool @ 0x00[30];
        lro_cap: bool @ 0x00[29];
        lro_psh_flag: bool @ 0x00[28];
        lro_time_stamp: bool @ 0x00[27];
        wqe_vlan_insert: bool @ 0x00[24];
        self_lb_en_modifiable: bool @ 0x00[23];
        max_lso_cap: (u8) @ 0x00[20:16];
        multi_pkt_send_wqe: (u8) @ 0x00[15:14];
        wqe_inline_mode: (u8) @ 0x00[13:12];
        rss_ind_tbl_cap: (u8) @ 0x00[11:8];
        reg_umr_sq: bool @ 0x00[7];
        scatter_fcs: bool @ 0x00[6];
        enhanced_multi_pkt_send_wqe: bool @ 0x00[5];
        tunnel_lso_const_out_ip_id: bool @ 0x00[4];
        tunnel_lro_gre: bool @ 0x00[3];
        tunnel_lro_vxlan: bool @ 0x00[2];
        tunnel_stateless_gre: bool @ 0x00[1];
        tunnel_stateless_vxlan: bool @ 0x00[0];
        swp: bool @ 0x04[31];
        swp_csum: bool @ 0x04[30];
        swp_lso: bool @ 0x04[29];
        cqe_checksum_full: bool @ 0x04[28];
        tunnel_stateless_geneve_tx: bool @ 0x04[27];
        tunnel_stateless_mpls_over_udp: bool @ 0x04[26];
        tunnel_stateless_mpls_over_gre: bool @ 0x04[25];
        tunnel_stateless_vxlan_gpe: bool @ 0x04[24];
        tunnel_stateless_ipv4_over_vxlan: bool @ 0x04[23];
        tunnel_stateless_ip_over_ip: bool @ 0x04[22];
        insert_trailer: bool @ 0x04[21];
        tunnel_stateless_ip_over_ip_rx: bool @ 0x04[19];
        tunnel_stateless_ip_over_ip_tx: bool @ 0x04[18];
        max_vxlan_udp_ports: u8 @ 0x04[15:8];
        swp_csum_l4_partial: bool @ 0x04[7];
        max_geneve_opt_len: bool @ 0x04[1];
        tunnel_stateless_geneve_rx: bool @ 0x04[0];
        lro_min_mss_size: u16 @ 0x08[15:0];
        lro_timer_supported_periods: [u32; 4] @ 0x30;
    }
}
