//! Contexts: what the firmware keeps of a queue, a memory key, a path.

crate::layout! {
    /// Event queue context.
    struct Eqc("eqc", 0x40) {
        status: (u8) @ 0x00[31:28];
        ec: bool @ 0x00[18];
        oi: bool @ 0x00[17];
        st: (u8) @ 0x00[11:8];
        page_offset: (u8) @ 0x08[11:6];
        log_eq_size: (u8) @ 0x0c[28:24];
        uar_page: (u32) @ 0x0c[23:0];
        intr: (u16) @ 0x14[11:0];
        log_page_size: (u8) @ 0x18[28:24];
        consumer_counter: (u32) @ 0x28[23:0];
        producer_counter: (u32) @ 0x2c[23:0];
    }

    /// Completion queue context.
    struct Cqc("cqc", 0x40) {
        status: (u8) @ 0x00[31:28];
        dbr_umem_valid: bool @ 0x00[25];
        apu_cq: bool @ 0x00[24];
        cqe_sz: (u8) @ 0x00[23:21];
        cc: bool @ 0x00[20];
        scqe_break_moderation_en: bool @ 0x00[18];
        oi: bool @ 0x00[17];
        cq_period_mode: (u8) @ 0x00[16:15];
        cqe_comp_en: bool @ 0x00[14];
        mini_cqe_res_format: (u8) @ 0x00[13:12];
        st: (u8) @ 0x00[11:8];
        cqe_compression_layout: (u8) @ 0x00[1:0];
        page_offset: (u8) @ 0x08[11:6];
        log_cq_size: (u8) @ 0x0c[28:24];
        uar_page: (u32) @ 0x0c[23:0];
        cq_period: (u16) @ 0x10[27:16];
        cq_max_count: u16 @ 0x10[15:0];
        c_eqn_or_apu_element: u32 @ 0x14;
        log_page_size: (u8) @ 0x18[28:24];
        last_notified_index: (u32) @ 0x20[23:0];
        last_solicit_index: (u32) @ 0x24[23:0];
        consumer_counter: (u32) @ 0x28[23:0];
        producer_counter: (u32) @ 0x2c[23:0];
        dbr_addr: u64 @ 0x38;
    }

    /// Address path of a queue pair.
    struct Ads("ads", 0x2c) {
        fl: bool @ 0x00[31];
        free_ar: bool @ 0x00[30];
        pkey_index: u16 @ 0x00[15:0];
        plane_index: u8 @ 0x04[31:24];
        grh: bool @ 0x04[23];
        mlid: (u8) @ 0x04[22:16];
        rlid: u16 @ 0x04[15:0];
        ack_timeout: (u8) @ 0x08[31:27];
        src_addr_index: u8 @ 0x08[23:16];
        stat_rate: (u8) @ 0x08[11:8];
        hop_limit: u8 @ 0x08[7:0];
        tclass: u8 @ 0x0c[27:20];
        flow_label: (u32) @ 0x0c[19:0];
        rgid_rip: [u8; 16] @ 0x10;
        f_dscp: bool @ 0x20[27];
        f_ecn: bool @ 0x20[26];
        f_eth_prio: bool @ 0x20[24];
        ecn: (u8) @ 0x20[23:22];
        dscp: (u8) @ 0x20[21:16];
        udp_sport: u16 @ 0x20[15:0];
        dei_cfi: bool @ 0x24[31];
        eth_prio: (u8) @ 0x24[30:28];
        sl: (u8) @ 0x24[27:24];
        vhca_port_num: u8 @ 0x24[23:16];
        rmac_47_32: u16 @ 0x24[15:0];
        rmac_31_0: u32 @ 0x28;
    }

    /// Queue pair context.
    struct Qpc("qpc", 0xe8) {
        state: (u8) @ 0x00[31:28];
        lag_tx_port_affinity: (u8) @ 0x00[27:24];
        st: u8 @ 0x00[23:16];
        isolate_vl_tc: bool @ 0x00[13];
        pm_state: (u8) @ 0x00[12:11];
        req_e2e_credit_mode: (u8) @ 0x00[9:8];
        offload_type: (u8) @ 0x00[7:4];
        end_padding_mode: (u8) @ 0x00[3:2];
        wq_signature: bool @ 0x04[31];
        block_lb_mc: bool @ 0x04[30];
        atomic_like_write_en: bool @ 0x04[29];
        latency_sensitive: bool @ 0x04[28];
        drain_sigerr: bool @ 0x04[26];
        pd: (u32) @ 0x04[23:0];
        mtu: (u8) @ 0x08[31:29];
        log_msg_max: (u8) @ 0x08[28:24];
        log_rq_size: (u8) @ 0x08[22:19];
        log_rq_stride: (u8) @ 0x08[18:16];
        no_sq: bool @ 0x08[15];
        log_sq_size: (u8) @ 0x08[14:11];
        retry_mode: (u8) @ 0x08[9:8];
        ts_format: (u8) @ 0x08[7:6];
        rlky: bool @ 0x08[4];
        ulp_stateless_offload_mode: (u8) @ 0x08[3:0];
        counter_set_id: u8 @ 0x0c[31:24];
        uar_page: (u32) @ 0x0c[23:0];
        user_index: (u32) @ 0x10[23:0];
        log_page_size: (u8) @ 0x14[28:24];
        remote_qpn: (u32) @ 0x14[23:0];
        primary_address_path: {Ads} @ 0x18;
        secondary_address_path: {Ads} @ 0x44;
        log_ack_req_freq: (u8) @ 0x70[31:28];
        log_sra_max: (u8) @ 0x70[23:21];
        retry_count: (u8) @ 0x70[18:16];
        rnr_retry: (u8) @ 0x70[15:13];
        fre: bool @ 0x70[11];
        cur_rnr_retry: (u8) @ 0x70[10:8];
        cur_retry_count: (u8) @ 0x70[7:5];
        next_send_psn: (u32) @ 0x78[23:0];
        log_num_dci_stream_channels: (u8) @ 0x7c[28:24];
        cqn_snd: (u32) @ 0x7c[23:0];
        log_num_dci_errored_streams: (u8) @ 0x80[28:24];
        deth_sqpn: (u32) @ 0x80[23:0];
        last_acked_psn: (u32) @ 0x88[23:0];
        ssn: (u32) @ 0x8c[23:0];
        log_rra_max: (u8) @ 0x90[23:21];
        atomic_mode: (u8) @ 0x90[19:16];
        rre: bool @ 0x90[15];
        rwe: bool @ 0x90[14];
        rae: bool @ 0x90[13];
        page_offset: (u8) @ 0x90[11:6];
        cd_slave_receive: bool @ 0x90[2];
        cd_slave_send: bool @ 0x90[1];
        cd_master: bool @ 0x90[0];
        min_rnr_nak: (u8) @ 0x94[28:24];
        next_rcv_psn: (u32) @ 0x94[23:0];
        xrcd: (u32) @ 0x98[23:0];
        cqn_rcv: (u32) @ 0x9c[23:0];
        dbr_addr: u64 @ 0xa0;
        q_key: u32 @ 0xa8;
        rq_type: (u8) @ 0xac[26:24];
        srqn_rmpn_xrqn: (u32) @ 0xac[23:0];
        rmsn: (u32) @ 0xb0[23:0];
        hw_sq_wqebb_counter: u16 @ 0xb4[31:16];
        sw_sq_wqebb_counter: u16 @ 0xb4[15:0];
        hw_rq_counter: u32 @ 0xb8;
        sw_rq_counter: u32 @ 0xbc;
        cgs: bool @ 0xc4[16];
        cs_req: u8 @ 0xc4[15:8];
        cs_res: u8 @ 0xc4[7:0];
        dc_access_key: u64 @ 0xc8;
        dbr_umem_valid: bool @ 0xd0[28];
    }

    /// Shared receive queue context.
    struct Srqc("srqc", 0x40) {
        state: (u8) @ 0x00[31:28];
        log_srq_size: (u8) @ 0x00[27:24];
        wq_signature: bool @ 0x04[31];
        cont_srq: bool @ 0x04[30];
        rlky: bool @ 0x04[28];
        log_rq_stride: (u8) @ 0x04[26:24];
        xrcd: (u32) @ 0x04[23:0];
        page_offset: (u8) @ 0x08[31:26];
        cqn: (u32) @ 0x08[23:0];
        log_page_size: (u8) @ 0x10[29:24];
        pd: (u32) @ 0x18[23:0];
        lwm: u16 @ 0x1c[31:16];
        wqe_cnt: u16 @ 0x1c[15:0];
        dbr_addr: u64 @ 0x28;
    }

    /// XRC shared receive queue context.
    struct XrcSrqc("xrc_srqc", 0x40) {
        state: (u8) @ 0x00[31:28];
        log_xrc_srq_size: (u8) @ 0x00[27:24];
        wq_signature: bool @ 0x04[31];
        cont_srq: bool @ 0x04[30];
        rlky: bool @ 0x04[28];
        basic_cyclic_rcv_wqe: bool @ 0x04[27];
        log_rq_stride: (u8) @ 0x04[26:24];
        xrcd: (u32) @ 0x04[23:0];
        page_offset: (u8) @ 0x08[31:26];
        dbr_umem_valid: bool @ 0x08[24];
        cqn: (u32) @ 0x08[23:0];
        user_index_equal_xrc_srqn: bool @ 0x10[31];
        log_page_size: (u8) @ 0x10[29:24];
        user_index: (u32) @ 0x10[23:0];
        pd: (u32) @ 0x18[23:0];
        lwm: u16 @ 0x1c[31:16];
        wqe_cnt: u16 @ 0x1c[15:0];
        db_record_addr_h: u32 @ 0x28;
        db_record_addr_l: (u32) @ 0x2c[31:2];
    }

    /// Work queue: of a receive memory pool, a receive queue or a send queue.
    struct Wq("wq", 0xc0) {
        wq_type: (u8) @ 0x00[31:28];
        wq_signature: bool @ 0x00[27];
        end_padding_mode: (u8) @ 0x00[26:25];
        cd_slave: bool @ 0x00[24];
        hds_skip_first_sge: bool @ 0x04[31];
        log2_hds_buf_size: (u8) @ 0x04[30:28];
        page_offset: (u8) @ 0x04[20:16];
        lwm: u16 @ 0x04[15:0];
        pd: (u32) @ 0x08[23:0];
        uar_page: (u32) @ 0x0c[23:0];
        dbr_addr: u64 @ 0x10;
        hw_counter: u32 @ 0x18;
        sw_counter: u32 @ 0x1c;
        log_wq_stride: (u8) @ 0x20[19:16];
        log_wq_pg_sz: (u8) @ 0x20[12:8];
        log_wq_sz: (u8) @ 0x20[4:0];
        dbr_umem_valid: bool @ 0x24[31];
        wq_umem_valid: bool @ 0x24[30];
        log_hairpin_num_packets: (u8) @ 0x24[28:24];
        log_hairpin_data_sz: (u8) @ 0x24[20:16];
        log_wqe_num_of_strides: (u8) @ 0x24[11:8];
        two_byte_shift_en: bool @ 0x24[7];
        log_wqe_stride_size: (u8) @ 0x24[2:0];
        dbr_umem_id: u32 @ 0x28;
        wq_umem_id: u32 @ 0x2c;
        wq_umem_offset: u64 @ 0x30;
        headers_mkey: u32 @ 0x38;
        shampo_enable: bool @ 0x3c[31];
        log_reservation_size: (u8) @ 0x3c[26:24];
        log_max_num_of_packets_per_reservation: (u8) @ 0x3c[18:16];
        log_headers_entry_size: (u8) @ 0x3c[9:8];
        log_headers_buffer_entry_num: (u8) @ 0x3c[3:0];
        pas: tail @ 0xc0;
    }

    /// Receive memory pool context.
    struct Rmpc("rmpc", 0xf0) {
        state: (u8) @ 0x00[23:20];
        basic_cyclic_rcv_wqe: bool @ 0x04[31];
        wq: {Wq} @ 0x30;
    }

    /// Memory key context.
    struct Mkc("mkc", 0x40) {
        free: bool @ 0x00[30];
        access_mode_4_2: (u8) @ 0x00[28:26];
        relaxed_ordering_write: bool @ 0x00[18];
        small_fence_on_rdma_read_response: bool @ 0x00[16];
        umr_en: bool @ 0x00[15];
        a: bool @ 0x00[14];
        rw: bool @ 0x00[13];
        rr: bool @ 0x00[12];
        lw: bool @ 0x00[11];
        lr: bool @ 0x00[10];
        access_mode_1_0: (u8) @ 0x00[9:8];
        ma_translation_mode: (u8) @ 0x00[5:4];
        qpn: (u32) @ 0x04[31:8];
        mkey_7_0: u8 @ 0x04[7:0];
        length64: bool @ 0x0c[31];
        bsf_en: bool @ 0x0c[30];
        sync_umr: bool @ 0x0c[29];
        expected_sigerr_count: bool @ 0x0c[26];
        en_rinval: bool @ 0x0c[24];
        pd: (u32) @ 0x0c[23:0];
        start_addr: u64 @ 0x10;
        len: u64 @ 0x18;
        bsf_octword_size: u32 @ 0x20;
        crossing_target_vhca_id: u16 @ 0x30[31:16];
        translations_octword_size: u32 @ 0x34;
        relaxed_ordering_read: bool @ 0x38[6];
        log_page_size: (u8) @ 0x38[5:0];
    }

    /// User context: what a process may do with raw commands.
    struct Uctx("uctx", 0x30) {
        cap: u32 @ 0x00;
    }

    /// Memory of a process that objects name by id.
    struct Umem("umem", 0x20) {
        ats: bool @ 0x10[31];
        log_page_size: (u8) @ 0x10[4:0];
        page_offset: u32 @ 0x14;
        num_of_mtt: u64 @ 0x18;
        mtt: tail @ 0x20;
    }
}
