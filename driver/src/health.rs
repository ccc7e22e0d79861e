//! What firmware says of its own health, and how a dead device is told from a slow one.
//!
//! The health buffer and the health counter are in the initialization segment, readable at any time without a
//! command. The counter moves for as long as firmware runs; the syndrome names what went wrong.
//! Source: PRM "Health buffer"; Linux mlx5 for what counts as fatal.

use std::fmt;

use ferroce_firmware_iface::status::HealthSyndrome;

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
