//! What an event queue entry holds.

crate::layout! {
    /// The layout `eqe`.
    struct Eqe("eqe", 0x40) {
        event_type: u8 @ 0x00[23:16];
        event_sub_type: u8 @ 0x00[7:0];
        event_data: tail @ 0x20;
        signature: u8 @ 0x3c[15:8];
        owner: bool @ 0x3c[0];
    }

    /// The layout `qp_events`.
    struct QpEvents("qp_events", 0x1c) {
        type_: u8 @ 0x14[31:24];
        qpn_rqn_sqn: (u32) @ 0x18[23:0];
    }

    /// The layout `cq_error`.
    struct CqError("cq_error", 0x1c) {
        cqn: (u32) @ 0x00[23:0];
        syndrome: u8 @ 0x08[7:0];
    }

    /// The layout `pages_req_event`.
    struct PagesReqEvent("pages_req_event", 0x1c) {
        function_id: u16 @ 0x00[15:0];
        num_pages: u32 @ 0x04;
    }

    /// The layout `port_state_change_event`.
    struct PortStateChangeEvent("port_state_change_event", 0x1c) {
        port_num: (u8) @ 0x08[31:28];
    }

    /// The layout `cmd_inter_comp_event`.
    struct CmdInterCompEvent("cmd_inter_comp_event", 0x1c) {
        command_completion_vector: u32 @ 0x00;
    }

    /// The layout `comp_event`.
    struct CompEvent("comp_event", 0x1c) {
        cq_number: (u32) @ 0x18[23:0];
    }

    /// The layout `dropped_packet_logged`.
    struct DroppedPacketLogged("dropped_packet_logged", 0x1c) {

    }
}
