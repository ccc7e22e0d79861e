//! Commands of shared receive queues.

use super::ctx::*;

crate::layout! {
    /// Input of CREATE_SRQ.
    struct CreateSrqIn("create_srq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        srq_context_entry: {Srqc} @ 0x10;
        pas: tail @ 0x110;
    }

    /// Output of CREATE_SRQ.
    struct CreateSrqOut("create_srq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        srqn: (u32) @ 0x08[23:0];
    }

    /// Input of DESTROY_SRQ.
    struct DestroySrqIn("destroy_srq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        srqn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_SRQ.
    struct DestroySrqOut("destroy_srq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_SRQ.
    struct QuerySrqIn("query_srq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        srqn: (u32) @ 0x08[23:0];
    }

    /// Output of QUERY_SRQ.
    struct QuerySrqOut("query_srq_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        srq_context_entry: {Srqc} @ 0x10;
        pas: tail @ 0x110;
    }

    /// Input of ARM_RQ.
    struct ArmRqIn("arm_rq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        srq_number: (u32) @ 0x08[23:0];
        lwm: u16 @ 0x0c[15:0];
    }

    /// Output of ARM_RQ.
    struct ArmRqOut("arm_rq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of CREATE_XRC_SRQ.
    struct CreateXrcSrqIn("create_xrc_srq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        xrc_srq_context_entry: {XrcSrqc} @ 0x10;
        xrc_srq_umem_valid: bool @ 0x5c[31];
        pas: tail @ 0x110;
    }

    /// Output of CREATE_XRC_SRQ.
    struct CreateXrcSrqOut("create_xrc_srq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        xrc_srqn: (u32) @ 0x08[23:0];
    }

    /// Input of DESTROY_XRC_SRQ.
    struct DestroyXrcSrqIn("destroy_xrc_srq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        xrc_srqn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_XRC_SRQ.
    struct DestroyXrcSrqOut("destroy_xrc_srq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_XRC_SRQ.
    struct QueryXrcSrqIn("query_xrc_srq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        xrc_srqn: (u32) @ 0x08[23:0];
    }

    /// Output of QUERY_XRC_SRQ.
    struct QueryXrcSrqOut("query_xrc_srq_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        xrc_srq_context_entry: {XrcSrqc} @ 0x10;
        pas: tail @ 0x110;
    }

    /// Input of ARM_XRC_SRQ.
    struct ArmXrcSrqIn("arm_xrc_srq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        xrc_srqn: (u32) @ 0x08[23:0];
        lwm: u16 @ 0x0c[15:0];
    }

    /// Output of ARM_XRC_SRQ.
    struct ArmXrcSrqOut("arm_xrc_srq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of CREATE_RMP.
    struct CreateRmpIn("create_rmp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        ctx: {Rmpc} @ 0x20;
    }

    /// Output of CREATE_RMP.
    struct CreateRmpOut("create_rmp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        rmpn: (u32) @ 0x08[23:0];
    }

    /// Input of DESTROY_RMP.
    struct DestroyRmpIn("destroy_rmp_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        rmpn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_RMP.
    struct DestroyRmpOut("destroy_rmp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// The layout `rmp_bitmask`.
    struct RmpBitmask("rmp_bitmask", 0x8) {
        lwm: bool @ 0x04[0];
    }

    /// Input of MODIFY_RMP.
    struct ModifyRmpIn("modify_rmp_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        rmp_state: (u8) @ 0x08[31:28];
        rmpn: (u32) @ 0x08[23:0];
        bitmask: {RmpBitmask} @ 0x10;
        ctx: {Rmpc} @ 0x20;
    }

    /// Output of MODIFY_RMP.
    struct ModifyRmpOut("modify_rmp_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_RMP.
    struct QueryRmpIn("query_rmp_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        rmpn: (u32) @ 0x08[23:0];
    }

    /// Output of QUERY_RMP.
    struct QueryRmpOut("query_rmp_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        rmp_context: {Rmpc} @ 0x20;
    }
}
