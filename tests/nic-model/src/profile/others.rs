//! The profiles that were not recorded.

use ferroce_firmware_iface::layout::ValueTooWide;
use ferroce_firmware_iface::layouts::{
    AtomicCaps, CmdHcaCap, CmdHcaCap2, FlowTableNicCap, PerProtocolNetworkingOffloadCaps, RoceCap,
};

use super::{CapType, Capabilities, FirmwareVersion, Profile};

/// For constants that fit their fields.
///
/// # Panics
///
/// When one does not: a mistake of ours that the tests below would find.
fn fits(result: Result<(), ValueTooWide>) {
    result.expect("the constant fits its field");
}

impl Profile {
    /// All profiles that have a name.
    pub fn all() -> Vec<Profile> {
        vec![
            Profile::connectx4(),
            Profile::minimal(),
            Profile::connectx5(),
            Profile::connectx6dx(),
            Profile::vf(),
            Profile::minimal_vf(),
        ]
    }

    /// The profile of that name.
    pub fn by_name(name: &str) -> Option<Profile> {
        Profile::all().into_iter().find(|p| p.name == name)
    }

    /// The smallest set with which Linux mlx5 and rdma-core's VFIO provider work: no pages, no e-switch, no
    /// BlueFlame, no UMR for registration.
    pub fn minimal() -> Profile {
        let mut profile = Profile::connectx4();
        profile.name = "minimal";
        profile.device_id = 0x1017;
        profile.bar_log_bytes = 23;
        profile.boot_pages = 0;
        profile.init_pages = 0;
        profile.object_pages = 0;
        profile.capabilities = Capabilities::default();
        profile.capabilities.edit(CapType::GENERAL, minimal_general);
        profile.capabilities.edit(CapType::ROCE, |c: &mut RoceCap| {
            fits(c.set_l3_type(0x6));
            c.set_roce_version(0x5);
            c.set_r_roce_dest_udp_port(4791);
            c.set_r_roce_min_src_udp_port(0xc000);
            c.set_r_roce_max_src_udp_port(0xffff);
            c.set_roce_address_table_size(16);
        });
        profile.capabilities.edit(
            CapType::ETHERNET_OFFLOADS,
            |c: &mut PerProtocolNetworkingOffloadCaps| {
                c.set_csum_cap(true);
                c.set_vlan_cap(true);
                fits(c.set_max_lso_cap(18));
                fits(c.set_rss_ind_tbl_cap(7));
                fits(c.set_wqe_inline_mode(2));
                c.set_self_lb_en_modifiable(true);
            },
        );
        profile
            .capabilities
            .edit(CapType::FLOW_TABLE, |c: &mut FlowTableNicCap| {
                let receive = c.flow_table_properties_nic_receive_mut();
                receive.set_ft_support(true);
                receive.set_flow_modify_en(true);
                receive.set_modify_root(true);
                receive.set_identified_miss_table_mode(true);
                receive.set_flow_table_modify(true);
                fits(receive.set_log_max_ft_size(16));
                // Linux 6.12 reaches 66.
                receive.set_max_ft_level(0xff);
                receive.set_log_max_ft_num(9);
                receive.set_log_max_destination(8);
                receive.set_log_max_flow(16);
            });
        profile
    }

    /// What a ConnectX-5 adds that a RoCE driver sees: 4 KiB UARs, user memory objects, fast teardown, a choice
    /// of UDP source port. After the ConnectX-4, not from silicon.
    pub fn connectx5() -> Profile {
        let mut profile = Profile::connectx4();
        profile.name = "connectx5";
        profile.device_id = 0x1017;
        profile.firmware = FirmwareVersion {
            major: 16,
            minor: 35,
            subminor: 3006,
        };
        profile.software_reset = true;
        profile.set_psid("FRC0000000005");
        profile.edit_general(later_general);
        profile.capabilities.edit(CapType::ROCE, |c: &mut RoceCap| {
            c.set_sw_r_roce_src_udp_port(true);
        });
        // What can be had and is off until the driver sets it.
        if let Some(roce) = profile.capabilities.get_mut(CapType::ROCE) {
            roce.current[0] &= !0x08;
        }
        profile.capabilities.edit(CapType::ATOMIC, |c: &mut AtomicCaps| {
            c.set_supported_atomic_req_8B_endianness_mode_1(true);
        });
        if let Some(atomic) = profile.capabilities.get_mut(CapType::ATOMIC) {
            atomic.max[8] |= 1 << 6; // atomic_req_8B_endianness_mode can be set to 1.
        }
        profile
    }

    /// What a ConnectX-6 Dx adds to that: the second page of general capabilities.
    pub fn connectx6dx() -> Profile {
        let mut profile = Profile::connectx5();
        profile.name = "connectx6dx";
        profile.device_id = 0x101d;
        profile.firmware = FirmwareVersion {
            major: 22,
            minor: 36,
            subminor: 1010,
        };
        profile.set_psid("FRC0000000006");
        profile.edit_general(|c| c.set_hca_cap_2(true));
        profile
            .capabilities
            .edit(CapType::GENERAL_2, |c: &mut CmdHcaCap2| {
                fits(c.set_max_num_eqs_24b(256));
            });
        profile
    }

    /// A virtual function of the ConnectX-4: manages nothing, needs fewer pages.
    pub fn vf() -> Profile {
        let mut profile = Profile::connectx4();
        profile.name = "vf";
        profile.device_id = 0x1014;
        profile.is_vf = true;
        profile.bar_log_bytes = 24;
        profile.msix_vectors = 12;
        profile.boot_pages = 6;
        profile.init_pages = 1_280;
        profile.object_pages = 512;
        profile.manages_nothing();
        profile
    }

    /// A virtual function with the least that drivers need.
    pub fn minimal_vf() -> Profile {
        let mut profile = Profile::minimal();
        profile.name = "minimal-vf";
        profile.device_id = 0x1018;
        profile.is_vf = true;
        profile.msix_vectors = 12;
        profile.manages_nothing();
        profile
    }

    /// Takes away what only a physical function may do to the others and to the switch between them.
    fn manages_nothing(&mut self) {
        self.edit_general(|c| {
            c.set_vport_group_manager(false);
            c.set_vhca_group_manager(false);
            c.set_eswitch_manager(false);
            c.set_nic_vport_change_event(false);
            fits(c.set_log_max_l2_table(0));
        });
        self.capabilities.remove(CapType::ESWITCH);
        self.capabilities.remove(CapType::ESWITCH_FLOW_TABLE);
    }
}

fn minimal_general(c: &mut CmdHcaCap) {
    fits(c.set_port_type(1));
    c.set_num_ports(1);
    fits(c.set_log_max_eq(7));
    c.set_log_max_eq_sz(13);
    c.set_log_max_cq_sz(22);
    fits(c.set_log_max_cq(20));
    fits(c.set_log_max_qp(18));
    c.set_log_max_qp_sz(15);
    c.set_log_max_mcg(10);
    fits(c.set_max_qp_mcg(0x30));
    fits(c.set_log_max_srq(18));
    c.set_log_max_srq_sz(15);
    fits(c.set_log_max_mkey(20));
    fits(c.set_log_max_mrw_sz(40));
    fits(c.set_log_max_msg(30));
    fits(c.set_log_max_pd(20));
    fits(c.set_log_max_xrcd(16));
    fits(c.set_log_max_transport_domain(10));
    fits(c.set_log_max_rq(16));
    fits(c.set_log_max_sq(16));
    fits(c.set_log_max_tir(16));
    fits(c.set_log_max_tis(16));
    fits(c.set_log_max_rqt(16));
    fits(c.set_log_max_rmp(16));
    fits(c.set_log_max_rqt_size(7));
    fits(c.set_log_max_wq_sz(15));
    fits(c.set_log_max_stride_sz_rq(9));
    fits(c.set_log_max_stride_sz_sq(9));
    fits(c.set_log_max_ra_req_qp(4));
    fits(c.set_log_max_ra_res_qp(4));
    fits(c.set_local_ca_ack_delay(16));
    c.set_log_pg_sz(12);
    c.set_max_wqe_sz_sq(1024);
    c.set_max_wqe_sz_rq(512);
    c.set_max_indirection(4);
    fits(c.set_log_max_klm_list_size(16));
    fits(c.set_log_max_current_uc_list(7));
    fits(c.set_log_max_current_mc_list(11));
    fits(c.set_log_max_vlan_list(12));
    c.set_eth_net_offloads(true);
    c.set_nic_flow_table(true);
    c.set_roce(true);
    c.set_xrc(true);
    c.set_rc(true);
    c.set_uc(true);
    c.set_ud(true);
    fits(c.set_cqe_version(1));
    c.set_uar_4k(true);
    c.set_num_of_uars_per_page(1);
    fits(c.set_log_bf_reg_size(9));
    c.set_umr_modify_entity_size_disabled(true);
    c.set_device_frequency_khz(156_250);
    c.set_umem_uid_0(true);
    fits(c.set_log_max_umem(16));
    c.set_cq_oi(true);
    c.set_cq_moderation(true);
    c.set_vport_counters(true);
    fits(c.set_max_qp_cnt(32));
}

fn later_general(c: &mut CmdHcaCap) {
    c.set_uar_4k(true);
    c.set_num_of_uars_per_page(1);
    c.set_driver_version(true);
    c.set_fast_teardown(true);
    c.set_force_teardown(true);
    c.set_umem_uid_0(true);
    fits(c.set_log_max_umem(16));
    c.set_roce_rw_supported(true);
    c.set_imaicl(true);
    c.set_disable_local_lb_uc(true);
    c.set_disable_local_lb_mc(true);
    c.set_pcam_reg(true);
    c.set_mcam_reg(true);
    c.set_qcam_reg(true);
    // The counters of a set by which Linux tells packets lost, repeated and refused; QUERY_Q_COUNTER has them on all profiles.
    c.set_out_of_seq_cnt(true);
    c.set_retransmission_q_counters(true);
    c.set_enhanced_error_q_counters(true);
    c.set_device_frequency_mhz(0);
    c.set_device_frequency_khz(156_250);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_find_profiles() {
        for profile in Profile::all() {
            assert_eq!(
                Profile::by_name(profile.name).map(|p| p.device_id),
                Some(profile.device_id)
            );
        }
        assert!(Profile::by_name("connectx3").is_none());
    }

    #[test]
    fn later_nics_offer_the_counters_of_losses_that_linux_asks_for() {
        for profile in [Profile::connectx5(), Profile::connectx6dx()] {
            let general: CmdHcaCap = profile.capabilities.current(CapType::GENERAL);
            let offered = [
                general.out_of_seq_cnt(),
                general.retransmission_q_counters(),
                general.enhanced_error_q_counters(),
            ];
            assert_eq!(offered, [true; 3], "{}", profile.name);
        }
    }

    #[test]
    fn a_choice_of_udp_port_is_off_until_set() {
        let caps = Profile::connectx5().capabilities;
        assert!(caps.max::<RoceCap>(CapType::ROCE).sw_r_roce_src_udp_port());
        assert!(!caps.current::<RoceCap>(CapType::ROCE).sw_r_roce_src_udp_port());
    }
}
