//! What firmware says of its own health, and how a dead device is told from a slow one.
//!
//! The health buffer and the health counter are in the initialization segment, readable at any time without a
//! command. The counter moves for as long as firmware runs; the syndrome names what went wrong.
//! Source: PRM "Health buffer"; Linux mlx5 for what counts as fatal.

use std::fmt;

use ferroce_firmware_iface::status::HealthSyndrome;
use ferroce_hw_regs::init_seg::{
    self, CmdifRevFwSub, CmdifRevFwSubCopy, FwRev, FwRevCopy, Initializing, InitializingCopy,
};
use ferroce_hw_regs::{health, pci};

use crate::context::FirmwareVersion;
use crate::function::{FunctionError, LEAVE, PciFunction};
use crate::mmio::Mmio;

/// Offsets in the initialization segment. Source: PRM "Initialization segment".
mod offset {
    pub(super) const CMDQ_ADDR_L_SZ: u64 = 0x014;
    pub(super) const FW_VER: u64 = 0x230;
    pub(super) const HW_ID: u64 = 0x234;
    pub(super) const RFR_SEVERITY: u64 = 0x238;
    pub(super) const SYND: u64 = 0x23c;
    pub(super) const ASSERT_EXIT_PTR: u64 = 0x220;
    pub(super) const ASSERT_CALLRA: u64 = 0x224;
    pub(super) const HEALTH_COUNTER: u64 = 0x1010;
}

/// Polls with an unchanged health counter before firmware counts as stalled. Source: Linux mlx5.
const MISSES: u32 = 3;

/// One reading of the health buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HealthReport {
    /// All registers read as ones: the device does not answer on the bus.
    pub gone: bool,
    /// What went wrong.
    pub syndrome: u8,
    /// More about it, for the vendor's support.
    pub ext_syndrome: u16,
    /// Firmware asks to be reset.
    pub reset_requested: bool,
    /// Severity 0 (emergency) to 7 (debug), as in syslog, where firmware says that it is valid.
    pub severity: Option<u8>,
    /// `nic_interface`: 0 full driver, 1 disabled, 2 no DRAM, 7 software reset.
    pub nic_interface: u8,
    /// The health counter.
    pub counter: u32,
    /// The health counter has not moved for several polls.
    pub stalled: bool,
    /// Firmware version as the health buffer has it.
    pub fw_ver: u32,
    /// Hardware id.
    pub hw_id: u32,
    /// The low word of the command queue's address, as the device knows it.
    pub(crate) queue: u32,
    /// Where firmware asserted.
    pub assert_exit_ptr: u32,
    /// Its caller.
    pub assert_callra: u32,
}

impl HealthReport {
    /// Reads the health buffer of the function whose BAR 0 this is.
    pub(crate) fn read(bar: &Mmio) -> Self {
        let fw_ver = bar.read32(offset::FW_VER);
        let severity = bar.read32(offset::RFR_SEVERITY) >> 24;
        let synd = bar.read32(offset::SYND);
        let queue = bar.read32(offset::CMDQ_ADDR_L_SZ);
        Self {
            gone: fw_ver == u32::MAX,
            syndrome: (synd >> 16) as u8,
            ext_syndrome: synd as u16,
            reset_requested: severity & 0x80 != 0,
            severity: (severity & 0x08 != 0).then_some(severity as u8 & 0x07),
            nic_interface: (queue >> 8 & 0x7) as u8,
            queue: queue & !0xfff,
            counter: bar.read32(offset::HEALTH_COUNTER),
            stalled: false,
            fw_ver,
            hw_id: bar.read32(offset::HW_ID),
            assert_exit_ptr: bar.read32(offset::ASSERT_EXIT_PTR),
            assert_callra: bar.read32(offset::ASSERT_CALLRA),
        }
    }

    /// Whether the device needs a reset before it can be used again.
    #[must_use]
    pub fn fatal(&self) -> bool {
        self.gone || self.reset_requested && self.syndrome != 0 || matches!(self.nic_interface, 1 | 7)
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn healthy(&self) -> bool {
        !self.fatal() && !self.stalled && self.syndrome == 0
    }
}

impl fmt::Display for HealthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gone {
            return f.write_str("all registers read as ones (the device is gone)");
        }
        if self.syndrome != 0 {
            write!(
                f,
                "{}, extended syndrome {:#06x}",
                HealthSyndrome(self.syndrome),
                self.ext_syndrome
            )?;
            if self.reset_requested {
                f.write_str(", reset requested")?;
            }
        } else {
            f.write_str("no error reported")?;
        }
        match self.nic_interface {
            0 => {}
            1 => f.write_str(", interface disabled")?,
            2 => f.write_str(", no DRAM")?,
            7 => f.write_str(", in software reset")?,
            other => write!(f, ", unknown interface state {other}")?,
        }
        if self.stalled {
            f.write_str(", health counter stands still")
        } else {
            Ok(())
        }
    }
}

/// The registers that say what a function is and how it does, also while firmware takes no commands: the start of the
/// initialization segment and the health buffer. Source: PRM "Initialization segment", "Health buffer".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Registers {
    /// The dwords at 0 to 0x20 of BAR 0: firmware version, command interface revision, the command queue's registers.
    pub start: [u32; 8],
    /// The dword of `initializing`, at 0x1fc.
    pub initializing: u32,
    /// The dwords of the health buffer, at 0x200 to 0x240.
    pub health: [u32; 16],
    /// The same, understood, with the health counter.
    pub report: HealthReport,
}

impl Registers {
    /// Reads them. The function is let answer to its BARs (memory space of the PCI command register), and nothing else is
    /// changed: it need not have been brought up, and may be brought up after.
    ///
    /// # Errors
    /// [`FunctionError::Unusable`] where its configuration space reads as ones, [`FunctionError::OutOfRange`] where BAR 0 is
    /// shorter than the segment, or what the way to the function says.
    pub fn read(function: &dyn PciFunction) -> Result<Registers, FunctionError> {
        let mut command = [0; 2];
        function.config_read(pci::config::COMMAND, &mut command)?;
        let command = u16::from_le_bytes(command);
        if command == u16::MAX {
            return Err(FunctionError::Unusable {
                address: function.address().to_string(),
                what: "its configuration space reads as ones".to_owned(),
            });
        }
        let wanted = command | pci::config::COMMAND_MEMORY;
        if wanted != command {
            function.config_write(pci::config::COMMAND, &wanted.to_le_bytes(), LEAVE)?;
        }
        let bar = function.bar0()?.subregion(0, init_seg::BYTES as u64)?;
        let dword = |start: u64, place: usize| bar.read32(start + 4 * place as u64);
        Ok(Registers {
            start: std::array::from_fn(|place| dword(init_seg::offset::FW_REV, place)),
            initializing: bar.read32(init_seg::offset::INITIALIZING),
            health: std::array::from_fn(|place| dword(health::offset::ASSERT_VAR, place)),
            report: HealthReport::read(&bar),
        })
    }

    /// Firmware's version.
    pub fn firmware(&self) -> FirmwareVersion {
        let fw_rev = FwRevCopy::new(self.start[0]);
        FirmwareVersion {
            major: fw_rev.read(FwRev::MAJOR) as u16,
            minor: fw_rev.read(FwRev::MINOR) as u16,
            subminor: CmdifRevFwSubCopy::new(self.start[1]).read(CmdifRevFwSub::FW_SUBMINOR) as u16,
        }
    }

    /// The revision of the command interface; this driver speaks 5.
    pub fn cmdif_rev(&self) -> u16 {
        CmdifRevFwSubCopy::new(self.start[1]).read(CmdifRevFwSub::CMDIF_REV) as u16
    }

    /// Whether firmware is still starting, and takes no commands.
    pub fn initializing(&self) -> bool {
        InitializingCopy::new(self.initializing).is_set(Initializing::INITIALIZING)
    }
}

/// Watches the health counter over time. It has no clock: each call of [`Self::observe`] is one poll.
#[derive(Debug, Default)]
pub(crate) struct HealthMonitor {
    last: Option<u32>,
    misses: u32,
    /// What was last worth a line in the log.
    told: Option<(u8, bool, u8)>,
}

impl HealthMonitor {
    /// Whether this is news: something is wrong that was not before, or no longer is.
    pub(crate) fn changed(&mut self, report: &HealthReport) -> bool {
        let now = (!report.healthy()).then_some((report.syndrome, report.stalled, report.nic_interface));
        std::mem::replace(&mut self.told, now) != now
    }

    /// Takes one reading in and completes it with what earlier ones say.
    pub(crate) fn observe(&mut self, mut report: HealthReport) -> HealthReport {
        if self.last == Some(report.counter) {
            self.misses = self.misses.saturating_add(1);
        } else {
            self.misses = 0;
        }
        self.last = Some(report.counter);
        report.stalled = self.misses >= MISSES;
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_unchanged_polls_are_a_stall() {
        let mut monitor = HealthMonitor::default();
        let report = |counter| HealthReport {
            counter,
            ..HealthReport::default()
        };
        assert!(!monitor.observe(report(5)).stalled);
        assert!(!monitor.observe(report(5)).stalled);
        assert!(!monitor.observe(report(5)).stalled);
        assert!(monitor.observe(report(5)).stalled);
        assert!(!monitor.observe(report(6)).stalled);
    }

    #[test]
    fn only_changes_are_news() {
        let mut monitor = HealthMonitor::default();
        let healthy = HealthReport::default();
        let hot = HealthReport {
            syndrome: 0x10,
            ..healthy
        };
        assert_eq!(
            [healthy, hot, hot, healthy, healthy].map(|report| monitor.changed(&report)),
            [false, true, false, true, false]
        );
    }

    #[test]
    fn registers_are_decoded() {
        let registers = Registers {
            start: [0x0011_000c, 0x0005_07e4, 0, 0, 0, 0, 0, 0],
            initializing: 1 << 31,
            health: [0; 16],
            report: HealthReport::default(),
        };
        assert_eq!(registers.firmware().to_string(), "12.17.2020");
        assert_eq!((registers.cmdif_rev(), registers.initializing()), (5, true));
    }

    #[test]
    fn what_is_fatal() {
        let healthy = HealthReport::default();
        assert!(healthy.healthy());
        assert!(
            HealthReport {
                gone: true,
                ..healthy
            }
            .fatal()
        );
        assert!(
            !HealthReport {
                syndrome: 0x10,
                ..healthy
            }
            .fatal()
        );
        assert!(
            !HealthReport {
                syndrome: 0x10,
                ..healthy
            }
            .healthy()
        );
        assert!(
            HealthReport {
                syndrome: 1,
                reset_requested: true,
                ..healthy
            }
            .fatal()
        );
        assert!(
            HealthReport {
                nic_interface: 7,
                ..healthy
            }
            .fatal()
        );
        assert!(
            !HealthReport {
                nic_interface: 2,
                ..healthy
            }
            .fatal()
        );
    }

    #[test]
    fn a_report_says_what_is_wrong() {
        let report = HealthReport {
            syndrome: 0x10,
            ext_syndrome: 0x1234,
            nic_interface: 1,
            ..Default::default()
        };
        let text = report.to_string();
        assert!(
            text.contains("temperature") && text.contains("0x1234") && text.contains("disabled"),
            "{text}"
        );
    }
}
