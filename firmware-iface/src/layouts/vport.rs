//! Commands of the virtual port: addresses, state, counters, RoCE.

crate::layout! {
    /// Input of QUERY_NIC_VPORT_CONTEXT.
    struct QueryNicVportContextIn("query_nic_vport_context_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        allowed_list_type: (u8) @ 0x0c[26:24];
    }

    /// A MAC address in 8 bytes.
    struct MacAddressLayout("mac_address_layout", 0x8) {
        mac_addr_47_32: u16 @ 0x00[15:0];
        mac_addr_31_0: u32 @ 0x04;
    }

    /// Context of a NIC virtual port.
    struct NicVportContext("nic_vport_context", 0x100) {
        min_wqe_inline_mode: (u8) @ 0x00[26:24];
        disable_mc_local_lb: bool @ 0x00[2];
        disable_uc_local_lb: bool @ 0x00[1];
        roce_en: bool @ 0x00[0];
        arm_change_event: bool @ 0x04[31];
        event_on_mtu: bool @ 0x04[4];
        event_on_promisc_change: bool @ 0x04[3];
        event_on_vlan_change: bool @ 0x04[2];
        event_on_mc_address_change: bool @ 0x04[1];
        event_on_uc_address_change: bool @ 0x04[0];
        vhca_id_type: bool @ 0x08[31];
        affiliation_criteria: (u8) @ 0x08[19:16];
        affiliated_vhca_id: u16 @ 0x08[15:0];
        sd_group: (u8) @ 0x20[30:28];
        mtu: u16 @ 0x24[15:0];
        system_image_guid: u64 @ 0x28;
        port_guid: u64 @ 0x30;
        node_guid: u64 @ 0x38;
        qkey_violation_counter: u16 @ 0x68[31:16];
        promisc_uc: bool @ 0xf0[31];
        promisc_mc: bool @ 0xf0[30];
        promisc_all: bool @ 0xf0[29];
        allowed_list_type: (u8) @ 0xf0[26:24];
        allowed_list_size: (u16) @ 0xf0[11:0];
        permanent_address: {MacAddressLayout} @ 0xf4;
        current_uc_mac_address: tail @ 0x100;
    }

    /// Output of QUERY_NIC_VPORT_CONTEXT.
    struct QueryNicVportContextOut("query_nic_vport_context_out", 0x110) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        nic_vport_context: {NicVportContext} @ 0x10;
    }

    /// The layout `modify_nic_vport_field_select`.
    struct ModifyNicVportFieldSelect("modify_nic_vport_field_select", 0x4) {
        affiliation: bool @ 0x00[13];
        disable_uc_local_lb: bool @ 0x00[11];
        disable_mc_local_lb: bool @ 0x00[10];
        node_guid: bool @ 0x00[9];
        port_guid: bool @ 0x00[8];
        min_inline: bool @ 0x00[7];
        mtu: bool @ 0x00[6];
        change_event: bool @ 0x00[5];
        promisc: bool @ 0x00[4];
        permanent_address: bool @ 0x00[3];
        addresses_list: bool @ 0x00[2];
        roce_en: bool @ 0x00[1];
    }

    /// Input of MODIFY_NIC_VPORT_CONTEXT.
    struct ModifyNicVportContextIn("modify_nic_vport_context_in", 0x200) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        field_select: {ModifyNicVportFieldSelect} @ 0x0c;
        nic_vport_context: {NicVportContext} @ 0x100;
    }

    /// Output of MODIFY_NIC_VPORT_CONTEXT.
    struct ModifyNicVportContextOut("modify_nic_vport_context_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_VPORT_STATE.
    struct QueryVportStateIn("query_vport_state_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
    }

    /// Output of QUERY_VPORT_STATE.
    struct QueryVportStateOut("query_vport_state_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        admin_state: (u8) @ 0x0c[7:4];
        state: (u8) @ 0x0c[3:0];
    }

    /// Input of MODIFY_VPORT_STATE.
    struct ModifyVportStateIn("modify_vport_state_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        vport_number: u16 @ 0x08[15:0];
        admin_state: (u8) @ 0x0c[7:4];
    }

    /// Output of MODIFY_VPORT_STATE.
    struct ModifyVportStateOut("modify_vport_state_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_VPORT_COUNTER.
    struct QueryVportCounterIn("query_vport_counter_in", 0x20) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        port_num: (u8) @ 0x08[19:16];
        vport_number: u16 @ 0x08[15:0];
        clear: bool @ 0x18[31];
    }

    /// The layout `traffic_counter`.
    struct TrafficCounter("traffic_counter", 0x10) {
        packets: u64 @ 0x00;
        octets: u64 @ 0x08;
    }

    /// Output of QUERY_VPORT_COUNTER.
    struct QueryVportCounterOut("query_vport_counter_out", 0x210) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        received_errors: {TrafficCounter} @ 0x10;
        transmit_errors: {TrafficCounter} @ 0x20;
        received_ib_unicast: {TrafficCounter} @ 0x30;
        transmitted_ib_unicast: {TrafficCounter} @ 0x40;
        received_ib_multicast: {TrafficCounter} @ 0x50;
        transmitted_ib_multicast: {TrafficCounter} @ 0x60;
        received_eth_broadcast: {TrafficCounter} @ 0x70;
        transmitted_eth_broadcast: {TrafficCounter} @ 0x80;
        received_eth_unicast: {TrafficCounter} @ 0x90;
        transmitted_eth_unicast: {TrafficCounter} @ 0xa0;
        received_eth_multicast: {TrafficCounter} @ 0xb0;
        transmitted_eth_multicast: {TrafficCounter} @ 0xc0;
        local_loopback: {TrafficCounter} @ 0xd0;
    }

    /// Input of QUERY_HCA_VPORT_PKEY.
    struct QueryHcaVportPkeyIn("query_hca_vport_pkey_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        other_vport: bool @ 0x08[31];
        port_num: (u8) @ 0x08[19:16];
        vport_number: u16 @ 0x08[15:0];
        pkey_index: u16 @ 0x0c[15:0];
    }

    /// Output of QUERY_HCA_VPORT_PKEY.
    struct QueryHcaVportPkeyOut("query_hca_vport_pkey_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        pkey: tail @ 0x10;
    }

    /// One entry of the RoCE address (GID) table.
    struct RoceAddrLayout("roce_addr_layout", 0x20) {
        source_l3_address: [u8; 16] @ 0x00;
        vlan_valid: bool @ 0x10[28];
        vlan_id: (u16) @ 0x10[27:16];
        source_mac_47_32: u16 @ 0x10[15:0];
        source_mac_31_0: u32 @ 0x14;
        roce_l3_type: (u8) @ 0x18[11:8];
        roce_version: u8 @ 0x18[7:0];
    }

    /// Input of SET_ROCE_ADDRESS.
    struct SetRoceAddressIn("set_roce_address_in", 0x30) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        roce_address_index: u16 @ 0x08[31:16];
        vhca_port_num: (u8) @ 0x08[3:0];
        roce_address: {RoceAddrLayout} @ 0x10;
    }

    /// Output of SET_ROCE_ADDRESS.
    struct SetRoceAddressOut("set_roce_address_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_ROCE_ADDRESS.
    struct QueryRoceAddressIn("query_roce_address_in", 0x10) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        roce_address_index: u16 @ 0x08[31:16];
        vhca_port_num: (u8) @ 0x08[3:0];
    }

    /// Output of QUERY_ROCE_ADDRESS.
    struct QueryRoceAddressOut("query_roce_address_out", 0x30) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        roce_address: {RoceAddrLayout} @ 0x10;
    }

    /// Input of SET_L2_TABLE_ENTRY.
    struct SetL2TableEntryIn("set_l2_table_entry_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        table_index: (u32) @ 0x14[23:0];
        silent_mode_valid: bool @ 0x1c[15];
        silent_mode: bool @ 0x1c[14];
        vlan_valid: bool @ 0x1c[12];
        vlan: (u16) @ 0x1c[11:0];
        mac_address: {MacAddressLayout} @ 0x20;
    }

    /// Output of SET_L2_TABLE_ENTRY.
    struct SetL2TableEntryOut("set_l2_table_entry_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }

    /// Input of QUERY_L2_TABLE_ENTRY.
    struct QueryL2TableEntryIn("query_l2_table_entry_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        table_index: (u32) @ 0x14[23:0];
    }

    /// Output of QUERY_L2_TABLE_ENTRY.
    struct QueryL2TableEntryOut("query_l2_table_entry_out", 0x40) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
        vlan_valid: bool @ 0x1c[12];
        vlan: (u16) @ 0x1c[11:0];
        mac_address: {MacAddressLayout} @ 0x20;
    }

    /// Input of DELETE_L2_TABLE_ENTRY.
    struct DeleteL2TableEntryIn("delete_l2_table_entry_in", 0x40) {
        opcode: u16 @ 0x00[31:16];
        op_mod: u16 @ 0x04[15:0];
        table_index: (u32) @ 0x14[23:0];
    }

    /// Output of DELETE_L2_TABLE_ENTRY.
    struct DeleteL2TableEntryOut("delete_l2_table_entry_out", 0x10) {
        status: u8 @ 0x00[31:24];
        syndrome: u32 @ 0x04;
    }
}
