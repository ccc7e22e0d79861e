//! The initialization segment: the registers at the start of BAR 0 (`initial_seg`).
//!
//! All are big-endian dwords. What a driver does with them, in order: wait until `initializing` is clear, check
//! the command interface's revision, read the command queue's size from `cmdq_addr_l_sz`, write the queue's
//! address (high word first: the low word carries the effect), then ring `cmd_dbell`.

use core::mem::offset_of;

use tock_registers::LocalRegisterCopy;
use volatile_register::{RO, RW};

use crate::health::HealthBuffer;

/// The command interface revision that this interface has (`cmdif_rev`).
pub const CMDIF_REV: u16 = 5;
/// Bytes of BAR 0 that the segment covers.
pub const BYTES: usize = 0x2010;
/// Bytes of a page of host memory in the device's terms: of the command queue, of firmware pages.
pub const ADAPTER_PAGE_BYTES: usize = 4096;

/// The segment as a block of volatile cells; each cell holds a big-endian number.
#[repr(C)]
pub struct InitSegment {
    /// Firmware revision: see [`FwRev`].
    pub fw_rev: RO<u32>,
    /// See [`CmdifRevFwSub`].
    pub cmdif_rev_fw_sub: RO<u32>,
    rsvd0: [u32; 2],
    /// Bits 63:32 of the command queue's address. Written before `cmdq_addr_l_sz`.
    pub cmdq_addr_h: RW<u32>,
    /// See [`CmdqAddrLSz`]. Its write takes effect with the high word written before.
    pub cmdq_addr_l_sz: RW<u32>,
    /// A bit for each slot of the command queue.
    pub cmd_dbell: RW<u32>,
    rsvd1: [u32; 120],
    /// See [`Initializing`].
    pub initializing: RO<u32>,
    /// What the firmware says of its own health.
    pub health: HealthBuffer,
    rsvd2: [u32; 878],
    /// Longest time that a command may take: see [`Timeout`]; 0: not said.
    pub cmd_exec_to: RO<u32>,
    /// Longest time for the command interface to come up: see [`Timeout`]; 0: no timeout registers.
    pub cmd_q_init_to: RO<u32>,
    /// Bits 63:32 of the free-running timer. Read high, low, high.
    pub internal_timer_h: RO<u32>,
    /// Bits 31:0 of the free-running timer.
    pub internal_timer_l: RO<u32>,
    rsvd3: [u32; 2],
    /// Changes at least once a second while the firmware lives.
    pub health_counter: RO<u32>,
}

const _: () = {
    assert!(offset_of!(InitSegment, cmdq_addr_h) == offset::CMDQ_ADDR_H as usize);
    assert!(offset_of!(InitSegment, cmdq_addr_l_sz) == offset::CMDQ_ADDR_L_SZ as usize);
    assert!(offset_of!(InitSegment, cmd_dbell) == offset::CMD_DBELL as usize);
    assert!(offset_of!(InitSegment, initializing) == offset::INITIALIZING as usize);
    assert!(offset_of!(InitSegment, health) == offset::HEALTH as usize);
    assert!(offset_of!(InitSegment, cmd_exec_to) == offset::CMD_EXEC_TO as usize);
    assert!(offset_of!(InitSegment, cmd_q_init_to) == offset::CMD_Q_INIT_TO as usize);
    assert!(offset_of!(InitSegment, internal_timer_h) == offset::INTERNAL_TIMER_H as usize);
    assert!(offset_of!(InitSegment, internal_timer_l) == offset::INTERNAL_TIMER_L as usize);
    assert!(offset_of!(InitSegment, health_counter) == offset::HEALTH_COUNTER as usize);
};

/// Byte offsets from the start of BAR 0.
pub mod offset {
    /// `fw_rev`.
    pub const FW_REV: u64 = 0x000;
    /// `cmdif_rev_fw_sub`.
    pub const CMDIF_REV_FW_SUB: u64 = 0x004;
    /// `cmdq_addr_h`.
    pub const CMDQ_ADDR_H: u64 = 0x010;
    /// `cmdq_addr_l_sz`.
    pub const CMDQ_ADDR_L_SZ: u64 = 0x014;
    /// `cmd_dbell`.
    pub const CMD_DBELL: u64 = 0x018;
    /// `initializing`.
    pub const INITIALIZING: u64 = 0x1fc;
    /// `health`.
    pub const HEALTH: u64 = 0x200;
    /// `cmd_exec_to`.
    pub const CMD_EXEC_TO: u64 = 0xff8;
    /// `cmd_q_init_to`.
    pub const CMD_Q_INIT_TO: u64 = 0xffc;
    /// `internal_timer_h`.
    pub const INTERNAL_TIMER_H: u64 = 0x1000;
    /// `internal_timer_l`.
    pub const INTERNAL_TIMER_L: u64 = 0x1004;
    /// `health_counter`.
    pub const HEALTH_COUNTER: u64 = 0x1010;
    /// `real_time_h`.
    pub const REAL_TIME_H: u64 = 0x1040;
    /// `real_time_l`.
    pub const REAL_TIME_L: u64 = 0x1044;
    /// `ieee1588_clk`.
    pub const IEEE1588_CLK: u64 = 0x2000;
    /// `ieee1588_clk_type`.
    pub const IEEE1588_CLK_TYPE: u64 = 0x2008;
    /// `clr_intx`.
    pub const CLR_INTX: u64 = 0x200c;
}

// The macro makes items that it gives no documentation to.
#[allow(missing_docs)]
mod fields {
    use tock_registers::register_bitfields;

    register_bitfields! [u32,
        /// Firmware revision.
        pub FwRev [
            /// Minor revision.
            MINOR OFFSET(16) NUMBITS(16) [],
            /// Major revision.
            MAJOR OFFSET(0) NUMBITS(16) []
        ],
        /// Command interface revision and firmware subminor revision.
        pub CmdifRevFwSub [
            /// Must be [`CMDIF_REV`].
            CMDIF_REV OFFSET(16) NUMBITS(16) [],
            /// Firmware subminor revision.
            FW_SUBMINOR OFFSET(0) NUMBITS(16) []
        ],
        /// Low word of the command queue's address, and what the device says of the queue.
        pub CmdqAddrLSz [
            /// Bits 31:12 of the address.
            ADDR_L OFFSET(12) NUMBITS(20) [],
            /// State of the interface.
            NIC_INTERFACE OFFSET(8) NUMBITS(3) [
                /// A driver may use everything.
                FullDriver = 0,
                /// After a fast teardown.
                Disabled = 1,
                /// A NIC without memory of its own.
                NoDram = 2,
                /// A software reset is asked for.
                SwReset = 7
            ],
            /// log2 of the number of entries.
            LOG_SZ OFFSET(4) NUMBITS(4) [],
            /// log2 of the bytes from one entry to the next.
            LOG_STRIDE OFFSET(0) NUMBITS(4) []
        ],
        /// Whether the device is still starting.
        pub Initializing [
            /// 1 until the command interface can be used.
            INITIALIZING OFFSET(31) NUMBITS(1) [],
            /// The driver may ask for a software reset through `nic_interface`.
            SW_RESET_SUPPORTED OFFSET(30) NUMBITS(1) []
        ],
        /// A time (`default_timeout`).
        pub Timeout [
            /// Unit: 0 ms, 1 s, 2 min, 3 h.
            MULTIPLIER OFFSET(29) NUMBITS(3) [],
            /// Count of the unit.
            VALUE OFFSET(0) NUMBITS(20) []
        ]
    ];
}

pub use fields::*;

/// A read of `fw_rev`.
pub type FwRevCopy = LocalRegisterCopy<u32, FwRev::Register>;
/// A read of `cmdif_rev_fw_sub`.
pub type CmdifRevFwSubCopy = LocalRegisterCopy<u32, CmdifRevFwSub::Register>;
/// A read of `cmdq_addr_l_sz`.
pub type CmdqAddrLSzCopy = LocalRegisterCopy<u32, CmdqAddrLSz::Register>;
/// A read of `initializing`.
pub type InitializingCopy = LocalRegisterCopy<u32, Initializing::Register>;

/// Milliseconds that a timeout register stands for; `None` for 0 (not said) and for units that the PRM does not
/// have.
pub fn timeout_ms(register: u32) -> Option<u64> {
    let copy = LocalRegisterCopy::<u32, Timeout::Register>::new(register);
    let unit = match copy.read(Timeout::MULTIPLIER) {
        0 => 1,
        1 => 1_000,
        2 => 60_000,
        3 => 3_600_000,
        _ => return None,
    };
    match u64::from(copy.read(Timeout::VALUE)) {
        0 => None,
        value => Some(value * unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_queues_register_decodes() {
        let copy = CmdqAddrLSzCopy::new(0xabcd_e056);
        assert_eq!(copy.read(CmdqAddrLSz::LOG_SZ), 5);
        assert_eq!(copy.read(CmdqAddrLSz::LOG_STRIDE), 6);
        assert_eq!(copy.read(CmdqAddrLSz::ADDR_L), 0xabcde);
        assert!(copy.matches_all(CmdqAddrLSz::NIC_INTERFACE::FullDriver));
    }

    #[test]
    fn timeouts_have_units() {
        assert_eq!(timeout_ms(0), None);
        assert_eq!(timeout_ms(1 << 29 | 60), Some(60_000));
        assert_eq!(timeout_ms(2_000), Some(2_000));
        assert_eq!(timeout_ms(7 << 29 | 1), None);
    }
}
