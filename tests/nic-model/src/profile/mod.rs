//! Which NIC the model is: ids, capabilities, sizes. A profile is data; nothing else asks for its name.
//!
//! | profile | what it is |
//! | --- | --- |
//! | [`Profile::connectx4`] | the real ConnectX-4 that was recorded; the default |
//! | [`Profile::minimal`] | the smallest set of capabilities with which Linux and rdma-core still work |
//! | [`Profile::connectx5`], [`Profile::connectx6dx`] | the ConnectX-4's, with what the later chips add that a RoCE driver sees; not recorded from silicon |
//! | [`Profile::vf`] | a virtual function of the ConnectX-4 |
//! | [`Profile::minimal_vf`] | a virtual function with what `minimal` has |

mod caps;
mod others;

pub use caps::{Capabilities, Capability};
pub use ferroce_firmware_iface::cmds::{CAP_BYTES, CapType};
use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::{CmdHcaCap, QueryAdapterParamBlock, RoceCap};

/// The recorded answers of the real card.
const CONNECTX4: &str = include_str!("../../data/connectx4.txt");

/// Firmware version as the initialization segment shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirmwareVersion {
    /// Major: 14 for the ConnectX-4.
    pub major: u16,
    /// Minor.
    pub minor: u16,
    /// Sub-minor.
    pub subminor: u16,
}

/// Everything that makes one NIC differ from another.
#[derive(Clone, Debug)]
pub struct Profile {
    /// A short name for logs: `connectx4`.
    pub name: &'static str,
    /// PCI device id; the vendor is 15b3.
    pub device_id: u16,
    /// PCI subsystem id.
    pub subsystem_id: u16,
    /// Whether it is a virtual function: no HOST_ENDIANNESS needed, no L2 table.
    pub is_vf: bool,
    /// Firmware version.
    pub firmware: FirmwareVersion,
    /// log2 of the bytes of BAR 0: 4 KiB for each UAR.
    pub bar_log_bytes: u8,
    /// MSI-X vectors, 1 to 2048.
    pub msix_vectors: u16,
    /// Bit mask of the interface step sequence ids that are offered.
    pub supported_issi: u32,
    /// Pages of 4 KiB that the firmware needs to boot.
    pub boot_pages: u32,
    /// Pages that it needs to initialize the HCA.
    pub init_pages: u32,
    /// How many of the init pages hold objects that the host creates. When they are full, the firmware asks for
    /// more.
    pub object_pages: u32,
    /// First UAR index that ALLOC_UAR gives; those below overlay the initialization segment and MSI-X.
    pub first_uar: u32,
    /// First number that CREATE_EQ gives.
    pub first_eqn: u8,
    /// Capabilities by type.
    pub capabilities: Capabilities,
    /// What QUERY_ADAPTER says.
    pub adapter: QueryAdapterParamBlock,
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest MTU of the port in bytes, Ethernet header and VLAN tag included (PMTU max_mtu).
    pub max_mtu: u16,
    /// Speed: one bit of PTYS eth_proto_*.
    pub eth_proto: u32,
    /// `cmd_exec_to` and `cmd_q_init_to` of the initialization segment; 0 says that DTOR is not there.
    pub timeouts: (u32, u32),
    /// How many reads of the initialization segment see the initializing bit after a reset, at most: time clears
    /// it too.
    pub initializing_reads: u32,
    /// After how many nanoseconds from a reset the initializing bit clears.
    pub initializing_ns: u64,
    /// Whether the function can be reset (function level reset).
    pub function_reset: bool,
    /// Whether firmware that has failed can be started again by writing nic_interface: bit 30 of `initializing`.
    pub software_reset: bool,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile::connectx4()
    }
}

impl Profile {
    /// The recorded ConnectX-4: firmware 14.12.1220, 6 boot pages, 12,868 init pages, e-switch manager.
    pub fn connectx4() -> Profile {
        let (capabilities, adapter) = caps::parse(CONNECTX4);
        let mut profile = Profile {
            name: "connectx4",
            device_id: 0x1013,
            subsystem_id: 0x0008,
            is_vf: false,
            firmware: FirmwareVersion {
                major: 14,
                minor: 12,
                subminor: 1220,
            },
            bar_log_bytes: 25,
            msix_vectors: 64,
            supported_issi: 1 << 1,
            boot_pages: 6,
            init_pages: 12_868,
            object_pages: 2_048,
            first_uar: 0x10,
            first_eqn: 0x10,
            capabilities,
            adapter,
            mac: [0x02, 0x15, 0xb3, 0x00, 0x00, 0x01],
            max_mtu: 10_240,
            eth_proto: 1 << 20, // 100GBASE-CR4
            timeouts: (0, 0),
            initializing_reads: 2,
            initializing_ns: 2_000_000,
            function_reset: true,
            // Firmware of 2016 was before that time.
            software_reset: false,
        };
        // An e-switch manager is asked for these; the recording ends before, so they offer nothing.
        profile.capabilities.add_empty(CapType::ESWITCH_FLOW_TABLE);
        profile.capabilities.add_empty(CapType::ESWITCH);
        profile
    }

    /// The same NIC with another MAC address, from which the GUIDs follow.
    #[must_use]
    pub fn with_mac(mut self, mac: [u8; 6]) -> Profile {
        self.mac = mac;
        self
    }

    /// The same NIC as a function with that many ports, 1 to [`Profile::MAX_PORTS`]: each has a wire, a GID table and
    /// counters. The vport, and so the MAC address, is one. No product has Ethernet like that (each port of a card is a function
    /// of its own there); capabilities, registers, events and address paths count ports all the same.
    #[must_use]
    pub fn with_ports(mut self, ports: u8) -> Profile {
        let ports = ports.clamp(1, Profile::MAX_PORTS);
        self.edit_general(|caps| caps.set_num_ports(ports));
        if ports > 1 {
            // Offered, and off until SET_HCA_CAP takes it into use.
            self.capabilities
                .edit_max(CapType::GENERAL, |caps: &mut CmdHcaCap| {
                    caps.set_num_vhca_ports(ports)
                });
        }
        self
    }

    /// Most ports of a function.
    pub const MAX_PORTS: u8 = 2;

    /// Ports of the function, at least 1.
    pub fn ports(&self) -> u8 {
        self.general().num_ports().max(1)
    }

    /// The same NIC without a function reset.
    #[must_use]
    pub fn without_reset(mut self) -> Profile {
        self.function_reset = false;
        self
    }

    /// Node and port GUID: the MAC as EUI-64.
    pub fn guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac;
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The general capabilities that hold right after a reset.
    pub fn general(&self) -> CmdHcaCap {
        self.capabilities.current(CapType::GENERAL)
    }

    /// Bytes of BAR 0.
    pub fn bar_bytes(&self) -> u64 {
        1 << self.bar_log_bytes
    }

    /// Thousands of ticks that the internal timer makes in a second: a capability. Firmware that says it in MHz alone has a
    /// clock too.
    pub fn timer_khz(&self) -> u32 {
        let caps = self.general();
        match (caps.device_frequency_khz(), caps.device_frequency_mhz()) {
            (0, 0) => 156_250,
            (0, mhz) => mhz.saturating_mul(1000),
            (khz, _) => khz,
        }
    }

    /// Whether there is a real-time clock: queue pairs can have time stamps of it.
    pub fn has_real_time(&self) -> bool {
        let roce: RoceCap = self.capabilities.current(CapType::ROCE);
        matches!(roce.qp_ts_format(), 1 | 2)
    }

    /// Changes the general capabilities, both what can be had and what is on.
    fn edit_general(&mut self, edit: impl Fn(&mut CmdHcaCap)) {
        self.capabilities.edit(CapType::GENERAL, edit);
    }

    fn set_psid(&mut self, psid: &str) {
        for i in 0..16 {
            let byte = psid.as_bytes().get(i).copied().unwrap_or(0);
            self.adapter.set_vsd_contd_psid(i, byte);
        }
    }
}

/// A layout read from the start of a capability's bytes.
fn layout_from<T: Layout>(bytes: &[u8]) -> T {
    let mut layout = T::zeroed();
    let n = bytes.len().min(T::INFO.bytes);
    layout.as_mut_bytes()[..n].copy_from_slice(&bytes[..n]);
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_is_the_recorded_card() {
        let profile = Profile::default();
        let max: CmdHcaCap = profile.capabilities.max(CapType::GENERAL);
        assert_eq!(max.log_max_qp(), 23);
        assert_eq!(profile.general().log_max_qp(), 14);
        assert!(max.eswitch_manager() && max.vport_group_manager() && max.bf() && !max.uar_4k());
        let roce: RoceCap = profile.capabilities.current(CapType::ROCE);
        assert_eq!(roce.roce_address_table_size(), 256);
        assert_eq!(roce.r_roce_dest_udp_port(), 4791);
        assert_eq!(profile.adapter.ieee_vendor_id(), 0x2c9);
        assert_eq!(profile.timer_khz(), 275_000);
    }

    #[test]
    fn guids_are_the_macs() {
        let profile = Profile::minimal().with_mac([0x52, 0x54, 0, 9, 0, 1]);
        assert_eq!(profile.guid(), 0x5054_00ff_fe09_0001);
    }

    #[test]
    fn every_profile_lets_linux_in() {
        for profile in Profile::all() {
            let caps = profile.general();
            assert_eq!(caps.port_type(), 1, "{}", profile.name);
            assert!(caps.num_ports() >= 1 && caps.xrc() && caps.rc() && caps.roce());
            assert!(caps.log_max_eq_sz() >= 13 && caps.log_bf_reg_size() == 9);
            assert!(caps.max_wqe_sz_sq() >= 1024);
            assert!(profile.msix_vectors >= 2);
            let roce: RoceCap = profile.capabilities.current(CapType::ROCE);
            assert_eq!(roce.l3_type() & 6, 6, "{}: IPv4 and IPv6", profile.name);
            assert!(roce.roce_version() & 4 != 0 && roce.roce_address_table_size() > 0);
        }
    }
}
