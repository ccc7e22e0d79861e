//! Commands of event and completion queues.

use super::ctx::*;

crate::layout! {
    /// Input of CREATE_EQ.
    struct CreateEqIn("create_eq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        eq_context_entry: {Eqc} @ 0x10;
        event_bitmask: [u64; 4] @ 0x58;
        pas: tail @ 0x110;
    }

    /// Output of CREATE_EQ.
    struct CreateEqOut("create_eq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        eq_number: u8 @ 0x08[7:0];
    }

    /// Input of DESTROY_EQ.
    struct DestroyEqIn("destroy_eq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        eq_number: u8 @ 0x08[7:0];
    }

    /// Output of DESTROY_EQ.
    struct DestroyEqOut("destroy_eq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_EQ.
    struct QueryEqIn("query_eq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        eq_number: u8 @ 0x08[7:0];
    }

    /// Output of QUERY_EQ.
    struct QueryEqOut("query_eq_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        eq_context_entry: {Eqc} @ 0x10;
        event_bitmask: u64 @ 0x58;
        pas: tail @ 0x110;
    }

    /// Input of CREATE_CQ.
    struct CreateCqIn("create_cq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        cq_context: {Cqc} @ 0x10;
        cq_umem_valid: bool @ 0x5c[31];
        pas: tail @ 0x110;
    }

    /// Output of CREATE_CQ.
    struct CreateCqOut("create_cq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        cqn: (u32) @ 0x08[23:0];
    }

    /// Input of DESTROY_CQ.
    struct DestroyCqIn("destroy_cq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        cqn: (u32) @ 0x08[23:0];
    }

    /// Output of DESTROY_CQ.
    struct DestroyCqOut("destroy_cq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_CQ.
    struct QueryCqIn("query_cq_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        cqn: (u32) @ 0x08[23:0];
    }

    /// Output of QUERY_CQ.
    struct QueryCqOut("query_cq_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        cq_context: {Cqc} @ 0x10;
        pas: tail @ 0x110;
    }

    /// The layout `modify_field_select`.
    struct ModifyFieldSelect("modify_field_select", 0x4) {
        modify_field_select: u32 @ 0x00;
    }

    /// The layout `resize_field_select`.
    struct ResizeFieldSelect("resize_field_select", 0x4) {
        resize_field_select: u32 @ 0x00;
    }

    /// The layout `modify_field_select_resize_field_select_auto`.
    union ModifyFieldSelectResizeFieldSelectAuto("modify_field_select_resize_field_select_auto", 0x4) {
        modify_field_select: {ModifyFieldSelect} @ 0x00;
        resize_field_select: {ResizeFieldSelect} @ 0x00;
    }

    /// Input of MODIFY_CQ.
    struct ModifyCqIn("modify_cq_in", 0x110) {
        opcode: u16 @ 0x00[31:16];
        uid: u16 @ 0x00[15:0];
        op_mod: u16 @ 0x04[15:0];
        cqn: (u32) @ 0x08[23:0];
        modify_field_select_resize_field_select: {ModifyFieldSelectResizeFieldSelectAuto} @ 0x0c;
        cq_context: {Cqc} @ 0x10;
        cq_umem_valid: bool @ 0x5c[31];
        pas: tail @ 0x110;
    }

    /// Output of MODIFY_CQ.
    struct ModifyCqOut("modify_cq_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }
}
