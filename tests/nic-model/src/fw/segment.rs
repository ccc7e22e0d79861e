//! The initialization segment: versions, command queue address, doorbell, health, timers.
//!
//! All registers are big-endian dwords. Reads of any width are served, since drivers read single bytes of the
//! health buffer; writes must be whole dwords.

use ferroce_firmware_iface::status::HealthSyndrome;

use super::refusal::Violations;
use crate::clock::Nanos;
use crate::profile::Profile;

const FW_REV: u64 = 0x000;
const CMDIF_REV: u64 = 0x004;
const CMDQ_ADDR_H: u64 = 0x010;
const CMDQ_ADDR_L: u64 = 0x014;
const CMD_DBELL: u64 = 0x018;
const INITIALIZING: u64 = 0x1fc;
const HEALTH: u64 = 0x200;
const HEALTH_FW_VER: u64 = HEALTH + 0x30;
const HEALTH_HW_ID: u64 = HEALTH + 0x34;
const HEALTH_RFR: u64 = HEALTH + 0x38;
const HEALTH_SYND: u64 = HEALTH + 0x3c;
const CMD_EXEC_TO: u64 = 0xff8;
const CMD_Q_INIT_TO: u64 = 0xffc;
const INTERNAL_TIMER_H: u64 = 0x1000;
const INTERNAL_TIMER_L: u64 = 0x1004;
const REAL_TIME_H: u64 = 0x1040;
const REAL_TIME_L: u64 = 0x1044;
const HEALTH_COUNTER: u64 = 0x1010;
const CLR_INTX: u64 = 0x200c;

/// Revision of the command interface: drivers accept only this one.
const CMDIF: u32 = 5;
/// log2 of the entries of the command queue: rdma-core's slot 31 needs all 32.
pub(super) const LOG_SIZE: u32 = 5;
/// log2 of the bytes of an entry.
pub(super) const LOG_STRIDE: u32 = 6;
/// The health counter's step: a hundredth of a second.
const HEALTH_TICK_NS: u64 = 10_000_000;

/// `nic_interface`: who drives the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicInterface {
    /// 0: a full driver.
    Full,
    /// 1: nobody, after a fast teardown or a software reset.
    Disabled,
    /// 7: the host has asked for a software reset.
    SoftwareReset = 7,
}

/// What a write asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    None,
    /// The command queue is at this address.
    QueueAddress(u64),
    /// The doorbell was rung for these slots.
    Doorbell(u32),
    /// The firmware is to start again.
    SoftwareReset,
}

/// The registers.
#[derive(Clone, Debug)]
pub(super) struct InitSegment {
    queue_high: u32,
    queue_low: u32,
    nic_interface: NicInterface,
    reset_at_ns: u64,
    initializing_reads: u32,
    initializing_ns: u64,
    software_reset: bool,
    // What tests make go wrong.
    health: HealthSyndrome,
    fatal: bool,
    stuck_initializing: bool,
    stopped_counter: Option<u32>,
    gone: bool,
}

impl InitSegment {
    pub(super) fn new(profile: &Profile, now_ns: u64) -> InitSegment {
        InitSegment {
            queue_high: 0,
            queue_low: 0,
            nic_interface: NicInterface::Full,
            reset_at_ns: now_ns,
            initializing_reads: profile.initializing_reads,
            initializing_ns: profile.initializing_ns,
            software_reset: profile.software_reset,
            health: HealthSyndrome::OK,
            fatal: false,
            stuck_initializing: false,
            stopped_counter: None,
            gone: false,
        }
    }

    /// What tests made go wrong and a reset does not mend.
    pub(super) fn keep_faults(&mut self, old: &InitSegment) {
        self.stuck_initializing = old.stuck_initializing;
        self.gone = old.gone;
    }

    pub(super) fn set_health(&mut self, syndrome: HealthSyndrome, fatal: bool) {
        (self.health, self.fatal) = (syndrome, fatal);
    }

    pub(super) fn set_stuck_initializing(&mut self, stuck: bool) {
        self.stuck_initializing = stuck;
    }

    pub(super) fn stop_counter(&mut self, now_ns: u64, stop: bool) {
        self.stopped_counter = stop.then(|| self.health_counter(now_ns));
    }

    pub(super) fn set_gone(&mut self, gone: bool) {
        self.gone = gone;
    }

    pub(super) fn nic_interface(&self) -> NicInterface {
        self.nic_interface
    }

    /// The firmware has started again, and waits for a driver.
    pub(super) fn set_disabled(&mut self) {
        self.nic_interface = NicInterface::Disabled;
    }

    fn health_counter(&self, now_ns: u64) -> u32 {
        let counter = self.stopped_counter;
        // From 1, since 0 means that the firmware is not there; 24 bits.
        counter.unwrap_or((now_ns / HEALTH_TICK_NS) as u32 % 0xff_fffe + 1)
    }

    fn initializing(&self, now_ns: u64) -> bool {
        let elapsed = now_ns.saturating_sub(self.reset_at_ns);
        self.stuck_initializing || (self.initializing_reads > 0 && elapsed < self.initializing_ns)
    }

    fn dword(&mut self, profile: &Profile, now_ns: u64, at: u64) -> u32 {
        let fw = profile.firmware;
        match at {
            FW_REV => u32::from(fw.minor) << 16 | u32::from(fw.major),
            CMDIF_REV => CMDIF << 16 | u32::from(fw.subminor),
            CMDQ_ADDR_H => self.queue_high,
            CMDQ_ADDR_L => self.queue_low | (self.nic_interface as u32) << 8 | LOG_SIZE << 4 | LOG_STRIDE,
            INITIALIZING => {
                let initializing = self.initializing(now_ns);
                self.initializing_reads = self.initializing_reads.saturating_sub(1);
                u32::from(initializing) << 31 | u32::from(self.software_reset) << 30
            }
            HEALTH_FW_VER => {
                u32::from(fw.major) << 24 | u32::from(fw.minor & 0xff) << 16 | u32::from(fw.subminor)
            }
            HEALTH_HW_ID => u32::from(profile.device_id),
            HEALTH_RFR => u32::from(self.fatal) << 31,
            HEALTH_SYND => u32::from(self.health.0) << 16,
            CMD_EXEC_TO => profile.timeouts.0,
            CMD_Q_INIT_TO => profile.timeouts.1,
            INTERNAL_TIMER_H => (Nanos(now_ns).ticks(profile.timer_khz()) >> 32) as u32,
            INTERNAL_TIMER_L => Nanos(now_ns).ticks(profile.timer_khz()) as u32,
            REAL_TIME_H if profile.has_real_time() => (Nanos(now_ns).seconds_and_nanos() >> 32) as u32,
            REAL_TIME_L if profile.has_real_time() => Nanos(now_ns).seconds_and_nanos() as u32,
            HEALTH_COUNTER => self.health_counter(now_ns),
            _ => 0,
        }
    }

    pub(super) fn read(&mut self, profile: &Profile, now_ns: u64, offset: u64, data: &mut [u8]) {
        if self.gone {
            data.fill(0xff);
            return;
        }
        let mut held = None;
        for (i, byte) in data.iter_mut().enumerate() {
            let at = offset + i as u64;
            let dword = match held {
                Some((base, dword)) if base == at & !3 => dword,
                _ => {
                    let dword = self.dword(profile, now_ns, at & !3);
                    held = Some((at & !3, dword));
                    dword
                }
            };
            *byte = dword.to_be_bytes()[(at & 3) as usize];
        }
    }

    pub(super) fn write(
        &mut self,
        now_ns: u64,
        offset: u64,
        data: &[u8],
        violations: &mut Violations,
    ) -> Effect {
        if self.gone {
            return Effect::None;
        }
        let (dwords, rest) = data.as_chunks::<4>();
        if !offset.is_multiple_of(4) || !rest.is_empty() || dwords.len() > 2 {
            let len = data.len();
            violations.protocol(format!(
                "write of {len} bytes at {offset:#x} of the initialization segment: only dwords can be written"
            ));
            return Effect::None;
        }
        let mut effect = Effect::None;
        for (i, dword) in dwords.iter().enumerate() {
            let at = offset + 4 * i as u64;
            let one = self.write_dword(now_ns, at, u32::from_be_bytes(*dword), violations);
            if one != Effect::None {
                effect = one;
            }
        }
        effect
    }

    fn write_dword(&mut self, now_ns: u64, at: u64, value: u32, violations: &mut Violations) -> Effect {
        match at {
            CMDQ_ADDR_H => {
                self.queue_high = value;
                Effect::None
            }
            CMDQ_ADDR_L => self.write_queue_low(value, violations),
            CMD_DBELL => {
                if self.initializing(now_ns) {
                    violations.protocol("command doorbell rung while the firmware initializes");
                    return Effect::None;
                }
                if self.nic_interface != NicInterface::Full {
                    violations.protocol("command doorbell rung while nic_interface is not \"full driver\"");
                    return Effect::None;
                }
                Effect::Doorbell(value)
            }
            CLR_INTX => Effect::None,
            _ => {
                violations.protocol(format!(
                    "write of {value:#x} to the read-only offset {at:#x} of the initialization segment"
                ));
                Effect::None
            }
        }
    }

    /// The low word carries the effect, with the high word as it is then. rdma-core writes the two by plain stores,
    /// which its compiler has turned round; its addresses are below 4 GiB, so that goes well.
    fn write_queue_low(&mut self, value: u32, violations: &mut Violations) -> Effect {
        if value & 0xff != 0 {
            violations.protocol(format!(
                "cmdq_addr_l_sz written with {value:#x}: size and stride can't be set, and the address is a page's"
            ));
            return Effect::None;
        }
        match value >> 8 & 7 {
            0 => {
                let high = self.queue_high;
                if value & 0xf00 != 0 {
                    violations.protocol(format!(
                        "cmdq_addr_l_sz {value:#x}: the address is not that of a page"
                    ));
                    return Effect::None;
                }
                self.queue_low = value & 0xffff_f000;
                self.nic_interface = NicInterface::Full;
                Effect::QueueAddress(u64::from(high) << 32 | u64::from(self.queue_low))
            }
            1 => {
                self.nic_interface = NicInterface::Disabled;
                Effect::None
            }
            7 if self.software_reset => {
                self.nic_interface = NicInterface::SoftwareReset;
                Effect::SoftwareReset
            }
            other => {
                violations.protocol(format!("nic_interface {other} written: it is not offered"));
                Effect::None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(segment: &mut InitSegment, now_ns: u64, at: u64) -> u32 {
        let mut bytes = [0; 4];
        segment.read(&Profile::connectx4(), now_ns, at, &mut bytes);
        u32::from_be_bytes(bytes)
    }

    #[test]
    fn versions_and_geometry_are_the_cards() {
        let mut segment = InitSegment::new(&Profile::connectx4(), 0);
        assert_eq!(read(&mut segment, 0, 0), 12 << 16 | 14);
        assert_eq!(read(&mut segment, 0, 4), 5 << 16 | 1220);
        assert_eq!(read(&mut segment, 0, 0x14), 0x56);
        assert_eq!(read(&mut segment, 0, 0xffc), 0);
    }

    #[test]
    fn initializing_clears_by_time_or_by_reading() {
        let mut segment = InitSegment::new(&Profile::connectx4(), 5);
        assert_eq!(read(&mut segment, 5, 0x1fc), 1 << 31);
        assert_eq!(read(&mut segment, 5, 0x1fc), 1 << 31);
        assert_eq!(read(&mut segment, 5, 0x1fc), 0);
        let mut other = InitSegment::new(&Profile::connectx4(), 5);
        assert_eq!(read(&mut other, 2_000_005, 0x1fc), 0);
        other.set_stuck_initializing(true);
        assert_eq!(read(&mut other, u64::MAX, 0x1fc), 1 << 31);
    }

    #[test]
    fn a_software_reset_is_asked_for_where_it_is_offered() {
        let mut violations = Violations::default();
        let mut segment = InitSegment::new(&Profile::connectx4(), 0);
        let asked = 0x1000u32 | 7 << 8;
        let effect = segment.write(0, CMDQ_ADDR_L, &asked.to_be_bytes(), &mut violations);
        assert_eq!((effect, violations.total()), (Effect::None, 1));
        let mut segment = InitSegment::new(&Profile::connectx5(), 0);
        assert_eq!(read(&mut segment, u64::MAX, 0x1fc), 1 << 30);
        let effect = segment.write(0, CMDQ_ADDR_L, &asked.to_be_bytes(), &mut violations);
        assert_eq!((effect, violations.total()), (Effect::SoftwareReset, 1));
        assert_eq!(read(&mut segment, 0, 0x14) >> 8 & 7, 7);
        segment.set_disabled();
        assert_eq!(read(&mut segment, 0, 0x14) >> 8 & 7, 1);
    }

    #[test]
    fn the_low_address_word_takes_effect_with_the_high_one_as_it_is() {
        let mut segment = InitSegment::new(&Profile::connectx4(), 0);
        let mut violations = Violations::default();
        let mut write = |s: &mut InitSegment, at, v: u32| s.write(0, at, &v.to_be_bytes(), &mut violations);
        // As rdma-core's compiler orders the two.
        assert_eq!(write(&mut segment, 0x14, 0x1000), Effect::QueueAddress(0x1000));
        assert_eq!(write(&mut segment, 0x10, 7), Effect::None);
        assert_eq!(
            write(&mut segment, 0x14, 0x8000_1000),
            Effect::QueueAddress(0x7_8000_1000)
        );
        assert_eq!(write(&mut segment, 0x14, 0x56), Effect::None);
        assert_eq!(violations.total(), 1, "size and stride can't be set");
        assert_eq!(read(&mut segment, 0, 0x14), 0x8000_1056);
    }

    #[test]
    fn disabling_shows_and_a_new_address_enables_again() {
        let mut segment = InitSegment::new(&Profile::connectx4(), 0);
        let mut violations = Violations::default();
        segment.write(0, 0x10, &[0; 4], &mut violations);
        segment.write(0, 0x14, &0x1100u32.to_be_bytes(), &mut violations);
        assert_eq!(read(&mut segment, 0, 0x14) >> 8 & 7, 1);
        assert_eq!(
            segment.write(u64::MAX, 0x18, &[0, 0, 0, 1], &mut violations),
            Effect::None
        );
        assert_eq!(violations.total(), 1);
        segment.write(0, 0x14, &0x1000u32.to_be_bytes(), &mut violations);
        assert_eq!(read(&mut segment, 0, 0x14) >> 8 & 7, 0);
    }

    #[test]
    fn health_is_read_by_bytes_and_its_counter_moves() {
        let mut segment = InitSegment::new(&Profile::connectx4(), 0);
        segment.set_health(HealthSyndrome::HIGH_TEMP_ERR, true);
        let mut byte = [0];
        segment.read(&Profile::connectx4(), 0, 0x23d, &mut byte);
        assert_eq!(byte, [0x10]);
        segment.read(&Profile::connectx4(), 0, 0x238, &mut byte);
        assert_eq!(byte, [0x80]);
        assert_ne!(
            read(&mut segment, 0, 0x1010),
            read(&mut segment, 1_000_000_000, 0x1010)
        );
        segment.stop_counter(7, true);
        assert_eq!(
            read(&mut segment, 0, 0x1010),
            read(&mut segment, 1_000_000_000, 0x1010)
        );
        segment.set_gone(true);
        assert_eq!(read(&mut segment, 0, 0x230), u32::MAX);
    }

    #[test]
    fn odd_writes_are_violations() {
        let mut segment = InitSegment::new(&Profile::connectx4(), 0);
        let mut violations = Violations::default();
        segment.write(0, 0x15, &[0; 4], &mut violations);
        segment.write(0, 0x14, &[0; 2], &mut violations);
        segment.write(0, 0, &[0; 4], &mut violations);
        assert_eq!(violations.total(), 3);
    }
}
