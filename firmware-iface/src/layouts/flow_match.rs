//! What a flow table entry matches.

crate::layout! {
    /// The layout `ipv6_simple_layout`.
    struct Ipv6SimpleLayout("ipv6_simple_layout", 0x10) {
        ipv6_127_96: u32 @ 0x00;
        ipv6_95_64: u32 @ 0x04;
        ipv6_63_32: u32 @ 0x08;
        ipv6_31_0: u32 @ 0x0c;
    }

    /// The layout `ipv6_layout`.
    struct Ipv6Layout("ipv6_layout", 0x10) {
        ipv6: [u8; 16] @ 0x00;
    }

    /// The layout `ipv4_layout`.
    struct Ipv4Layout("ipv4_layout", 0x10) {
        ipv4: u32 @ 0x0c;
    }

    /// The layout `ipv6_layout_ipv4_layout_auto`.
    union Ipv6LayoutIpv4LayoutAuto("ipv6_layout_ipv4_layout_auto", 0x10) {
        ipv6_simple_layout: {Ipv6SimpleLayout} @ 0x00;
        ipv6_layout: {Ipv6Layout} @ 0x00;
        ipv4_layout: {Ipv4Layout} @ 0x00;
    }

    /// Layers 2 to 4 of a frame.
    struct FteMatchSetLyr24("fte_match_set_lyr_2_4", 0x40) {
        smac_47_16: u32 @ 0x00;
        smac_15_0: u16 @ 0x04[31:16];
        ethertype: u16 @ 0x04[15:0];
        dmac_47_16: u32 @ 0x08;
        dmac_15_0: u16 @ 0x0c[31:16];
        first_prio: (u8) @ 0x0c[15:13];
        first_cfi: bool @ 0x0c[12];
        first_vid: (u16) @ 0x0c[11:0];
        ip_protocol: u8 @ 0x10[31:24];
        ip_dscp: (u8) @ 0x10[23:18];
        ip_ecn: (u8) @ 0x10[17:16];
        cvlan_tag: bool @ 0x10[15];
        svlan_tag: bool @ 0x10[14];
        frag: bool @ 0x10[13];
        ip_version: (u8) @ 0x10[12:9];
        tcp_flags: (u16) @ 0x10[8:0];
        tcp_sport: u16 @ 0x14[31:16];
        tcp_dport: u16 @ 0x14[15:0];
        l4_type: (u8) @ 0x18[31:30];
        ipv4_ihl: (u8) @ 0x18[15:12];
        ttl_hoplimit: u8 @ 0x18[7:0];
        udp_sport: u16 @ 0x1c[31:16];
        udp_dport: u16 @ 0x1c[15:0];
        src_ipv4_src_ipv6: {Ipv6LayoutIpv4LayoutAuto} @ 0x20;
        dst_ipv4_dst_ipv6: {Ipv6LayoutIpv4LayoutAuto} @ 0x30;
    }

    /// The layout `nvgre_key`.
    struct NvgreKey("nvgre_key", 0x4) {
        hi: (u32) @ 0x00[31:8];
        lo: u8 @ 0x00[7:0];
    }

    /// The layout `gre_key`.
    union GreKey("gre_key", 0x4) {
        nvgre: {NvgreKey} @ 0x00;
        key: u32 @ 0x00;
    }

    /// The layout `fte_match_set_misc`.
    struct FteMatchSetMisc("fte_match_set_misc", 0x40) {
        gre_c_present: bool @ 0x00[31];
        gre_k_present: bool @ 0x00[29];
        gre_s_present: bool @ 0x00[28];
        source_vhca_port: (u8) @ 0x00[27:24];
        source_sqn: (u32) @ 0x00[23:0];
        source_eswitch_owner_vhca_id: u16 @ 0x04[31:16];
        source_port: u16 @ 0x04[15:0];
        outer_second_prio: (u8) @ 0x08[31:29];
        outer_second_cfi: bool @ 0x08[28];
        outer_second_vid: (u16) @ 0x08[27:16];
        inner_second_prio: (u8) @ 0x08[15:13];
        inner_second_cfi: bool @ 0x08[12];
        inner_second_vid: (u16) @ 0x08[11:0];
        outer_second_cvlan_tag: bool @ 0x0c[31];
        inner_second_cvlan_tag: bool @ 0x0c[30];
        outer_second_svlan_tag: bool @ 0x0c[29];
        inner_second_svlan_tag: bool @ 0x0c[28];
        gre_protocol: u16 @ 0x0c[15:0];
        gre_key: {GreKey} @ 0x10;
        vxlan_vni: (u32) @ 0x14[31:8];
        bth_opcode: u8 @ 0x14[7:0];
        geneve_vni: (u32) @ 0x18[31:8];
        geneve_tlv_option_0_exist: bool @ 0x18[1];
        geneve_oam: bool @ 0x18[0];
        outer_ipv6_flow_label: (u32) @ 0x1c[19:0];
        inner_ipv6_flow_label: (u32) @ 0x20[19:0];
        geneve_opt_len: (u8) @ 0x24[21:16];
        geneve_protocol_type: u16 @ 0x24[15:0];
        bth_dst_qp: (u32) @ 0x28[23:0];
        inner_esp_spi: u32 @ 0x2c;
        outer_esp_spi: u32 @ 0x30;
    }

    /// The layout `fte_match_mpls`.
    struct FteMatchMpls("fte_match_mpls", 0x4) {
        mpls_label: (u32) @ 0x00[31:12];
        mpls_exp: (u8) @ 0x00[11:9];
        mpls_s_bos: bool @ 0x00[8];
        mpls_ttl: u8 @ 0x00[7:0];
    }

    /// The layout `fte_match_set_misc2`.
    struct FteMatchSetMisc2("fte_match_set_misc2", 0x40) {
        outer_first_mpls: {FteMatchMpls} @ 0x00;
        inner_first_mpls: {FteMatchMpls} @ 0x04;
        outer_first_mpls_over_gre: {FteMatchMpls} @ 0x08;
        outer_first_mpls_over_udp: {FteMatchMpls} @ 0x0c;
        metadata_reg_c_7: u32 @ 0x10;
        metadata_reg_c_6: u32 @ 0x14;
        metadata_reg_c_5: u32 @ 0x18;
        metadata_reg_c_4: u32 @ 0x1c;
        metadata_reg_c_3: u32 @ 0x20;
        metadata_reg_c_2: u32 @ 0x24;
        metadata_reg_c_1: u32 @ 0x28;
        metadata_reg_c_0: u32 @ 0x2c;
        metadata_reg_a: u32 @ 0x30;
        macsec_syndrome: u8 @ 0x34[23:16];
        ipsec_syndrome: u8 @ 0x34[15:8];
    }

    /// The layout `fte_match_set_misc3`.
    struct FteMatchSetMisc3("fte_match_set_misc3", 0x40) {
        inner_tcp_seq_num: u32 @ 0x00;
        outer_tcp_seq_num: u32 @ 0x04;
        inner_tcp_ack_num: u32 @ 0x08;
        outer_tcp_ack_num: u32 @ 0x0c;
        outer_vxlan_gpe_vni: (u32) @ 0x10[23:0];
        outer_vxlan_gpe_next_protocol: u8 @ 0x14[31:24];
        outer_vxlan_gpe_flags: u8 @ 0x14[23:16];
        icmp_header_data: u32 @ 0x18;
        icmpv6_header_data: u32 @ 0x1c;
        icmp_type: u8 @ 0x20[31:24];
        icmp_code: u8 @ 0x20[23:16];
        icmpv6_type: u8 @ 0x20[15:8];
        icmpv6_code: u8 @ 0x20[7:0];
        geneve_tlv_option_0_data: u32 @ 0x24;
        gtpu_teid: u32 @ 0x28;
        gtpu_msg_type: u8 @ 0x2c[31:24];
        gtpu_msg_flags: u8 @ 0x2c[23:16];
        gtpu_dw_2: u32 @ 0x30;
        gtpu_first_ext_dw_0: u32 @ 0x34;
        gtpu_dw_0: u32 @ 0x38;
    }

    /// The layout `fte_match_set_misc4`.
    struct FteMatchSetMisc4("fte_match_set_misc4", 0x40) {
        prog_sample_field_value_0: u32 @ 0x00;
        prog_sample_field_id_0: u32 @ 0x04;
        prog_sample_field_value_1: u32 @ 0x08;
        prog_sample_field_id_1: u32 @ 0x0c;
        prog_sample_field_value_2: u32 @ 0x10;
        prog_sample_field_id_2: u32 @ 0x14;
        prog_sample_field_value_3: u32 @ 0x18;
        prog_sample_field_id_3: u32 @ 0x1c;
    }

    /// The layout `fte_match_set_misc5`.
    struct FteMatchSetMisc5("fte_match_set_misc5", 0x40) {
        macsec_tag_0: u32 @ 0x00;
        macsec_tag_1: u32 @ 0x04;
        macsec_tag_2: u32 @ 0x08;
        macsec_tag_3: u32 @ 0x0c;
        tunnel_header_0: u32 @ 0x10;
        tunnel_header_1: u32 @ 0x14;
        tunnel_header_2: u32 @ 0x18;
        tunnel_header_3: u32 @ 0x1c;
    }

    /// All that an entry may match, or the mask of it.
    struct FteMatchParam("fte_match_param", 0x200) {
        outer_headers: {FteMatchSetLyr24} @ 0x00;
        misc_parameters: {FteMatchSetMisc} @ 0x40;
        inner_headers: {FteMatchSetLyr24} @ 0x80;
        misc_parameters_2: {FteMatchSetMisc2} @ 0xc0;
        misc_parameters_3: {FteMatchSetMisc3} @ 0x100;
        misc_parameters_4: {FteMatchSetMisc4} @ 0x140;
        misc_parameters_5: {FteMatchSetMisc5} @ 0x180;
    }
}
