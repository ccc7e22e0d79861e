//! Groups of counters of the port (register PPCNT). Each counter has 64 bits, in two fields.

crate::layout! {
    /// Group 0: counters of IEEE 802.3.
    struct Eth8023CntrsGrpDataLayout("eth_802_3_cntrs_grp_data_layout", 0xf8) {
        a_frames_transmitted_ok_high: u32 @ 0x00;
        a_frames_transmitted_ok_low: u32 @ 0x04;
        a_frames_received_ok_high: u32 @ 0x08;
        a_frames_received_ok_low: u32 @ 0x0c;
        a_frame_check_sequence_errors_high: u32 @ 0x10;
        a_frame_check_sequence_errors_low: u32 @ 0x14;
        a_alignment_errors_high: u32 @ 0x18;
        a_alignment_errors_low: u32 @ 0x1c;
        a_octets_transmitted_ok_high: u32 @ 0x20;
        a_octets_transmitted_ok_low: u32 @ 0x24;
        a_octets_received_ok_high: u32 @ 0x28;
        a_octets_received_ok_low: u32 @ 0x2c;
        a_multicast_frames_xmitted_ok_high: u32 @ 0x30;
        a_multicast_frames_xmitted_ok_low: u32 @ 0x34;
        a_broadcast_frames_xmitted_ok_high: u32 @ 0x38;
        a_broadcast_frames_xmitted_ok_low: u32 @ 0x3c;
        a_multicast_frames_received_ok_high: u32 @ 0x40;
        a_multicast_frames_received_ok_low: u32 @ 0x44;
        a_broadcast_frames_received_ok_high: u32 @ 0x48;
        a_broadcast_frames_received_ok_low: u32 @ 0x4c;
        a_in_range_length_errors_high: u32 @ 0x50;
        a_in_range_length_errors_low: u32 @ 0x54;
        a_out_of_range_length_field_high: u32 @ 0x58;
        a_out_of_range_length_field_low: u32 @ 0x5c;
        a_frame_too_long_errors_high: u32 @ 0x60;
        a_frame_too_long_errors_low: u32 @ 0x64;
        a_symbol_error_during_carrier_high: u32 @ 0x68;
        a_symbol_error_during_carrier_low: u32 @ 0x6c;
        a_mac_control_frames_transmitted_high: u32 @ 0x70;
        a_mac_control_frames_transmitted_low: u32 @ 0x74;
        a_mac_control_frames_received_high: u32 @ 0x78;
        a_mac_control_frames_received_low: u32 @ 0x7c;
        a_unsupported_opcodes_received_high: u32 @ 0x80;
        a_unsupported_opcodes_received_low: u32 @ 0x84;
        a_pause_mac_ctrl_frames_received_high: u32 @ 0x88;
        a_pause_mac_ctrl_frames_received_low: u32 @ 0x8c;
        a_pause_mac_ctrl_frames_transmitted_high: u32 @ 0x90;
        a_pause_mac_ctrl_frames_transmitted_low: u32 @ 0x94;
    }

    /// Group 1: counters of RFC 2863 (interfaces).
    struct Eth2863CntrsGrpDataLayout("eth_2863_cntrs_grp_data_layout", 0xf8) {
        if_in_octets_high: u32 @ 0x00;
        if_in_octets_low: u32 @ 0x04;
        if_in_ucast_pkts_high: u32 @ 0x08;
        if_in_ucast_pkts_low: u32 @ 0x0c;
        if_in_discards_high: u32 @ 0x10;
        if_in_discards_low: u32 @ 0x14;
        if_in_errors_high: u32 @ 0x18;
        if_in_errors_low: u32 @ 0x1c;
        if_in_unknown_protos_high: u32 @ 0x20;
        if_in_unknown_protos_low: u32 @ 0x24;
        if_out_octets_high: u32 @ 0x28;
        if_out_octets_low: u32 @ 0x2c;
        if_out_ucast_pkts_high: u32 @ 0x30;
        if_out_ucast_pkts_low: u32 @ 0x34;
        if_out_discards_high: u32 @ 0x38;
        if_out_discards_low: u32 @ 0x3c;
        if_out_errors_high: u32 @ 0x40;
        if_out_errors_low: u32 @ 0x44;
        if_in_multicast_pkts_high: u32 @ 0x48;
        if_in_multicast_pkts_low: u32 @ 0x4c;
        if_in_broadcast_pkts_high: u32 @ 0x50;
        if_in_broadcast_pkts_low: u32 @ 0x54;
        if_out_multicast_pkts_high: u32 @ 0x58;
        if_out_multicast_pkts_low: u32 @ 0x5c;
        if_out_broadcast_pkts_high: u32 @ 0x60;
        if_out_broadcast_pkts_low: u32 @ 0x64;
    }

    /// Group 3: counters of RFC 3635 (Ethernet-like interfaces).
    struct Eth3635CntrsGrpDataLayout("eth_3635_cntrs_grp_data_layout", 0xf8) {
        dot3stats_alignment_errors_high: u32 @ 0x00;
        dot3stats_alignment_errors_low: u32 @ 0x04;
        dot3stats_fcs_errors_high: u32 @ 0x08;
        dot3stats_fcs_errors_low: u32 @ 0x0c;
        dot3stats_single_collision_frames_high: u32 @ 0x10;
        dot3stats_single_collision_frames_low: u32 @ 0x14;
        dot3stats_multiple_collision_frames_high: u32 @ 0x18;
        dot3stats_multiple_collision_frames_low: u32 @ 0x1c;
        dot3stats_sqe_test_errors_high: u32 @ 0x20;
        dot3stats_sqe_test_errors_low: u32 @ 0x24;
        dot3stats_deferred_transmissions_high: u32 @ 0x28;
        dot3stats_deferred_transmissions_low: u32 @ 0x2c;
        dot3stats_late_collisions_high: u32 @ 0x30;
        dot3stats_late_collisions_low: u32 @ 0x34;
        dot3stats_excessive_collisions_high: u32 @ 0x38;
        dot3stats_excessive_collisions_low: u32 @ 0x3c;
        dot3stats_internal_mac_transmit_errors_high: u32 @ 0x40;
        dot3stats_internal_mac_transmit_errors_low: u32 @ 0x44;
        dot3stats_carrier_sense_errors_high: u32 @ 0x48;
        dot3stats_carrier_sense_errors_low: u32 @ 0x4c;
        dot3stats_frame_too_longs_high: u32 @ 0x50;
        dot3stats_frame_too_longs_low: u32 @ 0x54;
        dot3stats_internal_mac_receive_errors_high: u32 @ 0x58;
        dot3stats_internal_mac_receive_errors_low: u32 @ 0x5c;
        dot3stats_symbol_errors_high: u32 @ 0x60;
        dot3stats_symbol_errors_low: u32 @ 0x64;
        dot3control_in_unknown_opcodes_high: u32 @ 0x68;
        dot3control_in_unknown_opcodes_low: u32 @ 0x6c;
        dot3in_pause_frames_high: u32 @ 0x70;
        dot3in_pause_frames_low: u32 @ 0x74;
        dot3out_pause_frames_high: u32 @ 0x78;
        dot3out_pause_frames_low: u32 @ 0x7c;
    }

    /// Group 0x10: counters of one priority.
    struct EthPerPrioGrpDataLayout("eth_per_prio_grp_data_layout", 0xf8) {
        rx_octets_high: u32 @ 0x00;
        rx_octets_low: u32 @ 0x04;
        rx_frames_high: u32 @ 0x20;
        rx_frames_low: u32 @ 0x24;
        tx_octets_high: u32 @ 0x28;
        tx_octets_low: u32 @ 0x2c;
        tx_frames_high: u32 @ 0x48;
        tx_frames_low: u32 @ 0x4c;
        rx_pause_high: u32 @ 0x50;
        rx_pause_low: u32 @ 0x54;
        rx_pause_duration_high: u32 @ 0x58;
        rx_pause_duration_low: u32 @ 0x5c;
        tx_pause_high: u32 @ 0x60;
        tx_pause_low: u32 @ 0x64;
        tx_pause_duration_high: u32 @ 0x68;
        tx_pause_duration_low: u32 @ 0x6c;
        rx_pause_transition_high: u32 @ 0x70;
        rx_pause_transition_low: u32 @ 0x74;
        rx_discards_high: u32 @ 0x78;
        rx_discards_low: u32 @ 0x7c;
        device_stall_minor_watermark_cnt_high: u32 @ 0x80;
        device_stall_minor_watermark_cnt_low: u32 @ 0x84;
        device_stall_critical_watermark_cnt_high: u32 @ 0x88;
        device_stall_critical_watermark_cnt_low: u32 @ 0x8c;
    }
}
