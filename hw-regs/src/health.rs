//! The health buffer at 0x200 of the initialization segment (`health_buffer`).

use volatile_register::RO;

/// The buffer as a block of volatile cells; each cell holds a big-endian number.
#[repr(C)]
pub struct HealthBuffer {
    /// What an assert of the firmware left.
    pub assert_var: [RO<u32>; 6],
    rsvd0: [u32; 2],
    /// Where it ended.
    pub assert_exit_ptr: RO<u32>,
    /// Who called it.
    pub assert_callra: RO<u32>,
    rsvd1: u32,
    /// When, in seconds since the firmware started.
    pub time: RO<u32>,
    /// Firmware version; all ones when the device is gone from the bus.
    pub fw_ver: RO<u32>,
    /// Hardware id.
    pub hw_id: RO<u32>,
    /// See [`RfrSeverity`].
    pub rfr_severity: RO<u32>,
    /// See [`IriscSynd`].
    pub irisc_synd: RO<u32>,
}

const _: () = assert!(size_of::<HealthBuffer>() == 64);

/// Byte offsets from the start of BAR 0.
pub mod offset {
    /// `assert_var`, six dwords.
    pub const ASSERT_VAR: u64 = 0x200;
    /// `assert_exit_ptr`.
    pub const ASSERT_EXIT_PTR: u64 = 0x220;
    /// `assert_callra`.
    pub const ASSERT_CALLRA: u64 = 0x224;
    /// `time`.
    pub const TIME: u64 = 0x22c;
    /// `fw_ver`.
    pub const FW_VER: u64 = 0x230;
    /// `hw_id`.
    pub const HW_ID: u64 = 0x234;
    /// Dword of `rfr_severity`.
    pub const RFR_SEVERITY: u64 = 0x238;
    /// Dword of `irisc_index`, `synd` and `ext_synd`.
    pub const IRISC_SYND: u64 = 0x23c;
}

// The macro makes items that it gives no documentation to.
#[allow(missing_docs)]
mod fields {
    use tock_registers::register_bitfields;

    register_bitfields! [u32,
        /// The dword at 0x238.
        pub RfrSeverity [
            /// A reset of the function is required.
            RFR OFFSET(31) NUMBITS(1) [],
            /// The severity is valid.
            VALID OFFSET(27) NUMBITS(1) [],
            /// Severity.
            SEVERITY OFFSET(24) NUMBITS(3) []
        ],
        /// The dword at 0x23c.
        pub IriscSynd [
            /// The internal processor that reports.
            IRISC_INDEX OFFSET(24) NUMBITS(8) [],
            /// Health syndrome: 0 is healthy.
            SYND OFFSET(16) NUMBITS(8) [],
            /// More of the syndrome.
            EXT_SYND OFFSET(0) NUMBITS(16) []
        ]
    ];
}

pub use fields::*;
