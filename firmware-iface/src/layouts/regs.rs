//! Registers reached through ACCESS_REG.

crate::layout! {
    /// A time as multiplier and value.
    struct DefaultTimeout("default_timeout", 0x4) {
        to_multiplier: (u8) @ 0x00[31:29];
        to_value: (u32) @ 0x00[19:0];
    }

    /// Default timeouts register.
    struct DtorReg("dtor_reg", 0x40) {
        pcie_toggle_to: {DefaultTimeout} @ 0x04;
        health_poll_to: {DefaultTimeout} @ 0x14;
        full_crdump_to: {DefaultTimeout} @ 0x18;
        fw_reset_to: {DefaultTimeout} @ 0x1c;
        flush_on_err_to: {DefaultTimeout} @ 0x20;
        pci_sync_update_to: {DefaultTimeout} @ 0x24;
        tear_down_to: {DefaultTimeout} @ 0x28;
        fsm_reactivate_to: {DefaultTimeout} @ 0x2c;
        reclaim_pages_to: {DefaultTimeout} @ 0x30;
        reclaim_vfs_pages_to: {DefaultTimeout} @ 0x34;
        reset_unload_to: {DefaultTimeout} @ 0x38;
    }

    /// Host endianness register.
    struct RegisterHostEndianness("register_host_endianness", 0x10) {
        he: bool @ 0x00[31];
    }

    /// Port MTU register.
    struct PmtuReg("pmtu_reg", 0x10) {
        local_port: u8 @ 0x00[23:16];
        max_mtu: u16 @ 0x04[31:16];
        admin_mtu: u16 @ 0x08[31:16];
        oper_mtu: u16 @ 0x0c[31:16];
    }

    /// Port administrative and operational status register.
    struct PaosReg("paos_reg", 0x10) {
        swid: u8 @ 0x00[31:24];
        local_port: u8 @ 0x00[23:16];
        admin_status: (u8) @ 0x00[11:8];
        oper_status: (u8) @ 0x00[3:0];
        ase: bool @ 0x04[31];
        ee: bool @ 0x04[30];
        e: (u8) @ 0x04[1:0];
    }

    /// Port type and speed register.
    struct PtysReg("ptys_reg", 0x40) {
        an_disable_admin: bool @ 0x00[30];
        an_disable_cap: bool @ 0x00[29];
        local_port: u8 @ 0x00[23:16];
        plane_ind: (u8) @ 0x00[7:4];
        proto_mask: (u8) @ 0x00[2:0];
        an_status: (u8) @ 0x04[31:28];
        data_rate_oper: u16 @ 0x04[15:0];
        ext_eth_proto_capability: u32 @ 0x08;
        eth_proto_capability: u32 @ 0x0c;
        ib_link_width_capability: u16 @ 0x10[31:16];
        ib_proto_capability: u16 @ 0x10[15:0];
        ext_eth_proto_admin: u32 @ 0x14;
        eth_proto_admin: u32 @ 0x18;
        ib_link_width_admin: u16 @ 0x1c[31:16];
        ib_proto_admin: u16 @ 0x1c[15:0];
        ext_eth_proto_oper: u32 @ 0x20;
        eth_proto_oper: u32 @ 0x24;
        ib_link_width_oper: u16 @ 0x28[31:16];
        ib_proto_oper: u16 @ 0x28[15:0];
        connector_type: (u8) @ 0x2c[3:0];
        eth_proto_lp_advertise: u32 @ 0x30;
    }

    /// Port flow control configuration register.
    struct PfccReg("pfcc_reg", 0x20) {
        buf_ownership: (u8) @ 0x00[27:26];
        local_port: u8 @ 0x00[23:16];
        ppan_mask_n: bool @ 0x00[4];
        minor_stall_mask: bool @ 0x00[3];
        critical_stall_mask: bool @ 0x00[2];
        ppan: (u8) @ 0x04[31:28];
        prio_mask_tx: u8 @ 0x04[23:16];
        prio_mask_rx: u8 @ 0x04[7:0];
        pptx: bool @ 0x08[31];
        aptx: bool @ 0x08[30];
        pptx_mask_n: bool @ 0x08[29];
        pfctx: u8 @ 0x08[23:16];
        pprx: bool @ 0x0c[31];
        aprx: bool @ 0x0c[30];
        pprx_mask_n: bool @ 0x0c[29];
        pfcrx: u8 @ 0x0c[23:16];
        device_stall_minor_watermark: u16 @ 0x10[31:16];
        device_stall_critical_watermark: u16 @ 0x10[15:0];
    }

    /// Port performance counters register.
    struct PpcntReg("ppcnt_reg", 0x100) {
        swid: u8 @ 0x00[31:24];
        local_port: u8 @ 0x00[23:16];
        pnat: (u8) @ 0x00[15:14];
        grp: (u8) @ 0x00[5:0];
        clr: bool @ 0x04[31];
        plane_ind: (u8) @ 0x04[11:8];
        prio_tc: (u8) @ 0x04[4:0];
        counter_set: tail @ 0x08;
    }

    /// Input of SET_NODE.
    struct SetNodeIn("set_node_in", 0x40) {
        node_description: [u8; 64] @ 0x00;
    }
}
