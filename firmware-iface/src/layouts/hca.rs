//! Commands that bring the HCA up and down, and its pages and capabilities.

crate::layout! {
    /// Input of ENABLE_HCA.
    struct EnableHcaIn("enable_hca_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        embedded_cpu_function: bool @ 0x08[31];
        function_id: u16 @ 0x08[15:0];
    }

    /// Output of ENABLE_HCA.
    struct EnableHcaOut("enable_hca_out", 0xc) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of DISABLE_HCA.
    struct DisableHcaIn("disable_hca_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        embedded_cpu_function: bool @ 0x08[31];
        function_id: u16 @ 0x08[15:0];
    }

    /// Output of DISABLE_HCA.
    struct DisableHcaOut("disable_hca_out", 0xc) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of INIT_HCA.
    struct InitHcaIn("init_hca_in", 0x20) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        sw_vhca_id: (u16) @ 0x0c[29:16];
        sw_owner_id: [u32; 4] @ 0x10;
    }

    /// Output of INIT_HCA.
    struct InitHcaOut("init_hca_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of TEARDOWN_HCA.
    struct TeardownHcaIn("teardown_hca_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        profile: u16 @ 0x08[15:0];
    }

    /// Output of TEARDOWN_HCA.
    struct TeardownHcaOut("teardown_hca_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        state: bool @ 0x0c[0];
    }

    /// Input of MANAGE_PAGES.
    struct ManagePagesIn("manage_pages_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        embedded_cpu_function: bool @ 0x08[31];
        function_id: u16 @ 0x08[15:0];
        input_num_entries: u32 @ 0x0c;
        pas: tail @ 0x10;
    }

    /// Output of MANAGE_PAGES.
    struct ManagePagesOut("manage_pages_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        output_num_entries: u32 @ 0x08;
        pas: tail @ 0x10;
    }

    /// Input of QUERY_PAGES.
    struct QueryPagesIn("query_pages_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        embedded_cpu_function: bool @ 0x08[31];
        function_id: u16 @ 0x08[15:0];
    }

    /// Output of QUERY_PAGES.
    struct QueryPagesOut("query_pages_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        embedded_cpu_function: bool @ 0x08[31];
        function_id: u16 @ 0x08[15:0];
        num_pages: u32 @ 0x0c;
    }

    /// Input of QUERY_HCA_CAP.
    struct QueryHcaCapIn("query_hca_cap_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_function: bool @ 0x08[31];
        ec_vf_function: bool @ 0x08[30];
        function_id: u16 @ 0x08[15:0];
    }

    /// Output of QUERY_HCA_CAP.
    struct QueryHcaCapOut("query_hca_cap_out", 0x1010) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        capability: tail @ 0x10;
    }

    /// Input of SET_HCA_CAP.
    struct SetHcaCapIn("set_hca_cap_in", 0x1010) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_function: bool @ 0x08[31];
        ec_vf_function: bool @ 0x08[30];
        function_id: u16 @ 0x08[15:0];
        capability: tail @ 0x10;
    }

    /// Output of SET_HCA_CAP.
    struct SetHcaCapOut("set_hca_cap_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_ADAPTER.
    struct QueryAdapterIn("query_adapter_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
    }

    /// The layout `query_adapter_param_block`.
    struct QueryAdapterParamBlock("query_adapter_param_block", 0x100) {
        ieee_vendor_id: (u32) @ 0x18[23:0];
        vsd_vendor_id: u16 @ 0x1c[15:0];
        vsd: [u8; 208] @ 0x20;
        vsd_contd_psid: [u8; 16] @ 0xf0;
    }

    /// Output of QUERY_ADAPTER.
    struct QueryAdapterOut("query_adapter_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        query_adapter_struct: {QueryAdapterParamBlock} @ 0x10;
    }

    /// Input of QUERY_ISSI.
    struct QueryIssiIn("query_issi_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
    }

    /// Output of QUERY_ISSI.
    struct QueryIssiOut("query_issi_out", 0x70) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        current_issi: u16 @ 0x08[15:0];
        supported_issi_dw0: u32 @ 0x6c;
    }

    /// Input of SET_ISSI.
    struct SetIssiIn("set_issi_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        current_issi: u16 @ 0x08[15:0];
    }

    /// Output of SET_ISSI.
    struct SetIssiOut("set_issi_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_SPECIAL_CONTEXTS.
    struct QuerySpecialContextsIn("query_special_contexts_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
    }

    /// Output of QUERY_SPECIAL_CONTEXTS.
    struct QuerySpecialContextsOut("query_special_contexts_out", 0x20) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        dump_fill_mkey: u32 @ 0x08;
        resd_lkey: u32 @ 0x0c;
        null_mkey: u32 @ 0x10;
        terminate_scatter_list_mkey: u32 @ 0x14;
        repeated_mkey: u32 @ 0x18;
    }

    /// Input of SET_DRIVER_VERSION.
    struct SetDriverVersionIn("set_driver_version_in", 0x50) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        driver_version: [u8; 64] @ 0x10;
    }

    /// Output of SET_DRIVER_VERSION.
    struct SetDriverVersionOut("set_driver_version_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of ACCESS_REGISTER.
    struct AccessRegisterIn("access_register_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        register_id: u16 @ 0x08[15:0];
        argument: u32 @ 0x0c;
        register_data: tail @ 0x10;
    }

    /// Output of ACCESS_REGISTER.
    struct AccessRegisterOut("access_register_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        register_data: tail @ 0x10;
    }
}
