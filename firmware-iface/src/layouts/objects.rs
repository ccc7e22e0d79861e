//! Commands of protection domains, UARs, keys and other small objects.

use super::ctx::*;

crate::layout! {
    /// Input of ALLOC_PD.
    struct AllocPdIn("alloc_pd_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
    }

    /// Output of ALLOC_PD.
    struct AllocPdOut("alloc_pd_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        pd: (u32) @ 0x08[23:0];
    }

    /// Input of DEALLOC_PD.
    struct DeallocPdIn("dealloc_pd_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        pd: (u32) @ 0x08[23:0];
    }

    /// Output of DEALLOC_PD.
    struct DeallocPdOut("dealloc_pd_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of ALLOC_UAR.
    struct AllocUarIn("alloc_uar_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
    }

    /// Output of ALLOC_UAR.
    struct AllocUarOut("alloc_uar_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        uar: (u32) @ 0x08[23:0];
    }

    /// Input of DEALLOC_UAR.
    struct DeallocUarIn("dealloc_uar_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        uar: (u32) @ 0x08[23:0];
    }

    /// Output of DEALLOC_UAR.
    struct DeallocUarOut("dealloc_uar_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of ALLOC_XRCD.
    struct AllocXrcdIn("alloc_xrcd_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
    }

    /// Output of ALLOC_XRCD.
    struct AllocXrcdOut("alloc_xrcd_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        xrcd: (u32) @ 0x08[23:0];
    }

    /// Input of DEALLOC_XRCD.
    struct DeallocXrcdIn("dealloc_xrcd_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        xrcd: (u32) @ 0x08[23:0];
    }

    /// Output of DEALLOC_XRCD.
    struct DeallocXrcdOut("dealloc_xrcd_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of ALLOC_TRANSPORT_DOMAIN.
    struct AllocTransportDomainIn("alloc_transport_domain_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
    }

    /// Output of ALLOC_TRANSPORT_DOMAIN.
    struct AllocTransportDomainOut("alloc_transport_domain_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        transport_domain: (u32) @ 0x08[23:0];
    }

    /// Input of DEALLOC_TRANSPORT_DOMAIN.
    struct DeallocTransportDomainIn("dealloc_transport_domain_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        transport_domain: (u32) @ 0x08[23:0];
    }

    /// Output of DEALLOC_TRANSPORT_DOMAIN.
    struct DeallocTransportDomainOut("dealloc_transport_domain_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of ALLOC_Q_COUNTER.
    struct AllocQCounterIn("alloc_q_counter_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
    }

    /// Output of ALLOC_Q_COUNTER.
    struct AllocQCounterOut("alloc_q_counter_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        counter_set_id: u8 @ 0x08[7:0];
    }

    /// Input of DEALLOC_Q_COUNTER.
    struct DeallocQCounterIn("dealloc_q_counter_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        counter_set_id: u8 @ 0x08[7:0];
    }

    /// Output of DEALLOC_Q_COUNTER.
    struct DeallocQCounterOut("dealloc_q_counter_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_Q_COUNTER.
    struct QueryQCounterIn("query_q_counter_in", 0x20) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        clear: bool @ 0x18[31];
        aggregate: bool @ 0x18[30];
        counter_set_id: u8 @ 0x1c[7:0];
    }

    /// Output of QUERY_Q_COUNTER.
    struct QueryQCounterOut("query_q_counter_out", 0x100) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        rx_write_requests: u32 @ 0x10;
        rx_read_requests: u32 @ 0x18;
        rx_atomic_requests: u32 @ 0x20;
        rx_dct_connect: u32 @ 0x28;
        out_of_buffer: u32 @ 0x30;
        out_of_sequence: u32 @ 0x38;
        duplicate_request: u32 @ 0x40;
        rnr_nak_retry_err: u32 @ 0x48;
        packet_seq_err: u32 @ 0x50;
        implied_nak_seq_err: u32 @ 0x58;
        local_ack_timeout_err: u32 @ 0x60;
        req_rnr_retries_exceeded: u32 @ 0x70;
        resp_local_length_error: u32 @ 0x78;
        req_local_length_error: u32 @ 0x7c;
        resp_local_qp_error: u32 @ 0x80;
        local_operation_error: u32 @ 0x84;
        resp_local_protection: u32 @ 0x88;
        req_local_protection: u32 @ 0x8c;
        resp_cqe_error: u32 @ 0x90;
        req_cqe_error: u32 @ 0x94;
        req_mw_binding: u32 @ 0x98;
        req_bad_response: u32 @ 0x9c;
        req_remote_invalid_request: u32 @ 0xa0;
        resp_remote_invalid_request: u32 @ 0xa4;
        req_remote_access_errors: u32 @ 0xa8;
        resp_remote_access_errors: u32 @ 0xac;
        req_remote_operation_errors: u32 @ 0xb0;
        req_transport_retries_exceeded: u32 @ 0xb4;
        cq_overflow: u32 @ 0xb8;
        resp_cqe_flush_error: u32 @ 0xbc;
        req_cqe_flush_error: u32 @ 0xc0;
        roce_adp_retrans: u32 @ 0xc8;
        roce_adp_retrans_to: u32 @ 0xcc;
        roce_slow_restart: u32 @ 0xd0;
        roce_slow_restart_cnps: u32 @ 0xd4;
        roce_slow_restart_trans: u32 @ 0xd8;
    }

    /// Input of CREATE_MKEY.
    struct CreateMkeyIn("create_mkey_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        pg_access: bool @ 0x0c[31];
        mkey_umem_valid: bool @ 0x0c[30];
        data_direct: bool @ 0x0c[29];
        memory_key_mkey_entry: {Mkc} @ 0x10;
        translations_octword_actual_size: u32 @ 0x60;
        klm_pas_mtt: tail @ 0x110;
    }

    /// Output of CREATE_MKEY.
    struct CreateMkeyOut("create_mkey_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        mkey_index: (u32) @ 0x08[23:0];
    }

    /// Input of DESTROY_MKEY.
    struct DestroyMkeyIn("destroy_mkey_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        mkey_index: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_MKEY.
    struct DestroyMkeyOut("destroy_mkey_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_MKEY.
    struct QueryMkeyIn("query_mkey_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        mkey_index: (u32) @ 0x08[23:0];
        pg_access: bool @ 0x0c[31];
    }

    /// Output of QUERY_MKEY.
    struct QueryMkeyOut("query_mkey_out", 0x130) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        memory_key_mkey_entry: {Mkc} @ 0x10;
        bsf0_klm0_pas_mtt0_1: [u8; 16] @ 0x110;
        bsf1_klm1_pas_mtt2_3: [u8; 16] @ 0x120;
    }

    /// Input of CREATE_UMEM.
    struct CreateUmemIn("create_umem_in", 0x30) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        umem: {Umem} @ 0x10;
    }

    /// Output of CREATE_UMEM.
    struct CreateUmemOut("create_umem_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        umem_id: (u32) @ 0x08[23:0];
    }

    /// Input of DESTROY_UMEM.
    struct DestroyUmemIn("destroy_umem_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        umem_id: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_UMEM.
    struct DestroyUmemOut("destroy_umem_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of CREATE_UCTX.
    struct CreateUctxIn("create_uctx_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        uctx: {Uctx} @ 0x10;
    }

    /// Output of CREATE_UCTX.
    struct CreateUctxOut("create_uctx_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        uid: u16 @ 0x08[15:0];
    }

    /// Input of DESTROY_UCTX.
    struct DestroyUctxIn("destroy_uctx_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        uid: u16 @ 0x08[15:0];
    }

    /// Output of DESTROY_UCTX.
    struct DestroyUctxOut("destroy_uctx_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of ATTACH_TO_MCG.
    struct AttachToMcgIn("attach_to_mcg_in", 0x20) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        multicast_gid: [u8; 16] @ 0x10;
    }

    /// Output of ATTACH_TO_MCG.
    struct AttachToMcgOut("attach_to_mcg_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of DETACH_FROM_MCG.
    struct DetachFromMcgIn("detach_from_mcg_in", 0x20) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        multicast_gid: [u8; 16] @ 0x10;
    }

    /// Output of DETACH_FROM_MCG.
    struct DetachFromMcgOut("detach_from_mcg_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }
}
