//! Commands of queue pairs.

use super::ctx::*;

crate::layout! {
    /// Input of CREATE_QP.
    struct CreateQpIn("create_qp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpc_ext: bool @ 0x08[31];
        input_qpn: (u32) @ 0x08[23:0];
        opt_param_mask: u32 @ 0x10;
        ece: u32 @ 0x14;
        qpc: {Qpc} @ 0x18;
        wq_umem_offset: u64 @ 0x100;
        wq_umem_id: u32 @ 0x108;
        wq_umem_valid: bool @ 0x10c[31];
        pas: tail @ 0x110;
    }

    /// Output of CREATE_QP.
    struct CreateQpOut("create_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        qpn: (u32) @ 0x08[23:0];
        ece: u32 @ 0x0c;
    }

    /// Input of DESTROY_QP.
    struct DestroyQpIn("destroy_qp_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_QP.
    struct DestroyQpOut("destroy_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_QP.
    struct QueryQpIn("query_qp_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        qpc_ext: bool @ 0x08[31];
        qpn: (u32) @ 0x08[23:0];
    }

    /// Page list of a queried QP.
    struct QpPasListIn("qp_pas_list_in", 0x0) {
        pas: tail @ 0x00;
    }

    /// The layout `cqe_error_syndrome`.
    struct CqeErrorSyndrome("cqe_error_syndrome", 0x4) {
        hw_error_syndrome: u8 @ 0x00[31:24];
        hw_syndrome_type: (u8) @ 0x00[23:20];
        vendor_error_syndrome: u8 @ 0x00[15:8];
        syndrome: u8 @ 0x00[7:0];
    }

    /// The layout `qp_context_extension`.
    struct QpContextExtension("qp_context_extension", 0xc0) {
        error_syndrome: {CqeErrorSyndrome} @ 0x0c;
    }

    /// Context extension and page list of a queried QP.
    struct QpcExtensionAndPasListIn("qpc_extension_and_pas_list_in", 0xc0) {
        qpc_data_extension: {QpContextExtension} @ 0x00;
        pas: tail @ 0xc0;
    }

    /// The layout `qp_pas_or_qpc_ext_and_pas`.
    union QpPasOrQpcExtAndPas("qp_pas_or_qpc_ext_and_pas", 0xc0) {
        qp_pas_list: {QpPasListIn} @ 0x00;
        qpc_ext_and_pas_list: {QpcExtensionAndPasListIn} @ 0x00;
    }

    /// Output of QUERY_QP.
    struct QueryQpOut("query_qp_out", 0x1d0) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        opt_param_mask: u32 @ 0x10;
        ece: u32 @ 0x14;
        qpc: {Qpc} @ 0x18;
        qp_pas_or_qpc_ext_and_pas: {QpPasOrQpcExtAndPas} @ 0x110;
    }

    /// Input of RST2INIT_QP.
    struct Rst2initQpIn("rst2init_qp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        opt_param_mask: u32 @ 0x10;
        ece: u32 @ 0x14;
        qpc: {Qpc} @ 0x18;
    }

    /// Output of RST2INIT_QP.
    struct Rst2initQpOut("rst2init_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        ece: u32 @ 0x0c;
    }

    /// Input of INIT2INIT_QP.
    struct Init2initQpIn("init2init_qp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        opt_param_mask: u32 @ 0x10;
        ece: u32 @ 0x14;
        qpc: {Qpc} @ 0x18;
    }

    /// Output of INIT2INIT_QP.
    struct Init2initQpOut("init2init_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        ece: u32 @ 0x0c;
    }

    /// Input of INIT2RTR_QP.
    struct Init2rtrQpIn("init2rtr_qp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        opt_param_mask: u32 @ 0x10;
        ece: u32 @ 0x14;
        qpc: {Qpc} @ 0x18;
    }

    /// Output of INIT2RTR_QP.
    struct Init2rtrQpOut("init2rtr_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        ece: u32 @ 0x0c;
    }

    /// Input of RTR2RTS_QP.
    struct Rtr2rtsQpIn("rtr2rts_qp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        opt_param_mask: u32 @ 0x10;
        ece: u32 @ 0x14;
        qpc: {Qpc} @ 0x18;
    }

    /// Output of RTR2RTS_QP.
    struct Rtr2rtsQpOut("rtr2rts_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        ece: u32 @ 0x0c;
    }

    /// Input of RTS2RTS_QP.
    struct Rts2rtsQpIn("rts2rts_qp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        opt_param_mask: u32 @ 0x10;
        ece: u32 @ 0x14;
        qpc: {Qpc} @ 0x18;
    }

    /// Output of RTS2RTS_QP.
    struct Rts2rtsQpOut("rts2rts_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        ece: u32 @ 0x0c;
    }

    /// Input of SQD2RTS_QP.
    struct Sqd2rtsQpIn("sqd2rts_qp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        opt_param_mask: u32 @ 0x10;
        qpc: {Qpc} @ 0x18;
    }

    /// Output of SQD2RTS_QP.
    struct Sqd2rtsQpOut("sqd2rts_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of SQERR2RTS_QP.
    struct Sqerr2rtsQpIn("sqerr2rts_qp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
        opt_param_mask: u32 @ 0x10;
        qpc: {Qpc} @ 0x18;
    }

    /// Output of SQERR2RTS_QP.
    struct Sqerr2rtsQpOut("sqerr2rts_qp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QP_2ERR.
    struct Qp2errIn("qp_2err_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
    }

    /// Output of QP_2ERR.
    struct Qp2errOut("qp_2err_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QP_2RST.
    struct Qp2rstIn("qp_2rst_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        qpn: (u32) @ 0x08[23:0];
    }

    /// Output of QP_2RST.
    struct Qp2rstOut("qp_2rst_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }
}
