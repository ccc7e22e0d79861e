//! The NIC's firmware: initialization segment, command queue, commands, pages, events, health.
//!
//! ```text
//!   BAR 0 writes ──▶ segment ──▶ queue (entries, mailboxes, tokens) ──▶ table: opcode, state needed, handler
//!                                     │                                     │
//!                                host memory                     hca, caps, pages, regs, vport,
//!                                                                queues, qp, mkey, simple ──▶ Plane (objects)
//! ```
//!
//! It is strict: what the PRM does not allow is refused with the status that firmware would give, logged, and
//! kept in [`Firmware::violations`], so that a driver's mistake is seen. It is liberal where real drivers need it:
//! longer inputs, any output length, GIVE of 0 pages, tokens that nobody checks.
//!
//! Sources: PRM chapters "Initialization segment", "Command interface" and "Commands"; a recorded ConnectX-4;
//! what Linux 6.12 mlx5 and rdma-core ask of a device.

mod caps;
mod command;
mod congestion;
mod faults;
mod flow;
mod hca;
mod mkey;
mod multicast;
mod pages;
pub mod plane;
pub mod plane_ethernet;
pub mod plane_port;
mod ppcnt;
mod qp;
pub mod qp_transition;
mod queue;
mod queues;
mod raw;
mod refusal;
mod regs;
mod segment;
mod simple;
mod srq;
mod table;
mod vport;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;

pub use faults::{Fault, Faults};
use ferroce_firmware_iface::event::{EventType, PortChange};
use ferroce_firmware_iface::layouts::CmdHcaCap;
pub use plane::{DmaFault, Event, HostDma, Plane};
pub use qp_transition::{QpState, QpTransition};
pub use refusal::{Refusal, Violation, Violations, syndrome};
pub use segment::NicInterface;

use crate::profile::{CapType, Capabilities, Profile};
use crate::record::Recorder;
use crate::trace::Trace;

/// What the firmware may use while it runs.
pub struct Env<'a> {
    /// Nanoseconds of the model's clock.
    pub now_ns: u64,
    /// The data plane, through which host memory is reached too.
    pub plane: &'a mut dyn Plane,
}

/// How far the host has brought the HCA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HcaState {
    /// After a reset or DISABLE_HCA.
    Disabled,
    /// After ENABLE_HCA or TEARDOWN_HCA.
    Enabled,
    /// After INIT_HCA.
    Initialized,
}

/// What an object costs of the firmware's pages, by kind and number.
type Costs = BTreeMap<(pages::Kind, u32), u64>;

/// The firmware of one function.
#[derive(Debug)]
pub struct Firmware {
    profile: Profile,
    segment: segment::InitSegment,
    queue: queue::CommandQueue,
    state: HcaState,
    issi: u16,
    caps: Capabilities,
    pages: pages::Pages,
    costs: Costs,
    /// Objects of each kind that are there.
    counts: BTreeMap<pages::Kind, u64>,
    vport: vport::Vport,
    regs: regs::Registers,
    congestion: congestion::CongestionState,
    uctxs: BTreeMap<u16, u32>,
    vxlan_ports: Vec<u16>,
    /// The event queue that command completions go to: its number, once CREATE_EQ was answered.
    command_eqn: Option<u32>,
    events: VecDeque<Event>,
    /// Whether each port's link was up when last looked; nothing before.
    link_was_up: Vec<bool>,
    faults: Faults,
    /// The host has asked for a software reset.
    restart_due: bool,
    violations: Violations,
    trace: Option<Trace>,
    recorder: Option<Recorder>,
}

impl Firmware {
    /// The firmware of that NIC, as after a reset at time 0.
    pub fn new(profile: Profile) -> Firmware {
        Firmware {
            segment: segment::InitSegment::new(&profile, 0),
            queue: queue::CommandQueue::default(),
            state: HcaState::Disabled,
            issi: 0,
            caps: profile.capabilities.clone(),
            pages: pages::Pages::new(&profile),
            costs: Costs::new(),
            counts: BTreeMap::new(),
            vport: vport::Vport::new(&profile),
            regs: regs::Registers::new(&profile),
            congestion: congestion::CongestionState::default(),
            uctxs: BTreeMap::new(),
            vxlan_ports: vec![congestion::IANA_VXLAN_PORT],
            command_eqn: None,
            events: VecDeque::new(),
            link_was_up: Vec::new(),
            faults: Faults::default(),
            restart_due: false,
            violations: Violations::default(),
            trace: None,
            recorder: None,
            profile,
        }
    }

    /// The NIC that it is.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Function reset: everything is as after power-on, but for injected faults that are still to come, the list
    /// of violations, and the trace. The caller resets the data plane.
    pub fn reset(&mut self, now_ns: u64) {
        let fresh = Firmware::new(self.profile.clone());
        let old = std::mem::replace(self, fresh);
        self.segment = segment::InitSegment::new(&self.profile, now_ns);
        self.segment.keep_faults(&old.segment);
        self.faults = old.faults;
        self.violations = old.violations;
        self.trace = old.trace;
        self.recorder = old.recorder;
    }

    /// Whether the host has asked for a software reset: [`Firmware::restart`] is due.
    pub fn restart_due(&self) -> bool {
        self.restart_due
    }

    /// No driver has the function: after a fast teardown or a software reset.
    pub fn driverless(&self) -> bool {
        self.segment.nic_interface() != NicInterface::Full
    }

    /// Software reset: as [`Firmware::reset`], but configuration space stays and `nic_interface` is "disabled" until a
    /// driver takes the function again. The caller resets the data plane.
    pub fn restart(&mut self, now_ns: u64) {
        log::info!("{}: firmware starts again, as the host asked", self.profile.name);
        self.reset(now_ns);
        self.segment.set_disabled();
    }

    /// Reads the initialization segment: BAR 0 from `offset` on, below [`crate::bar::INIT_SEGMENT_BYTES`].
    pub fn bar_read(&mut self, now_ns: u64, offset: u64, data: &mut [u8]) {
        self.segment.read(&self.profile, now_ns, offset, data);
    }

    /// Writes the initialization segment. Only notes what was written; [`Firmware::run`] does the work.
    pub fn bar_write(&mut self, now_ns: u64, offset: u64, data: &[u8]) {
        if let Some(recorder) = &self.recorder {
            recorder.register(offset, data);
        }
        let events = self.command_eqn.is_some();
        let (segment, violations) = (&mut self.segment, &mut self.violations);
        let effect = segment.write(now_ns, offset, data, violations);
        match effect {
            segment::Effect::None => {}
            segment::Effect::QueueAddress(address) => self.queue.set_address(address),
            segment::Effect::SoftwareReset => self.restart_due = true,
            segment::Effect::Doorbell(slots) => self.queue.ring(slots, events, &mut self.violations),
        }
    }

    /// Executes the commands that were rung and raises the events that are due. True when it did something;
    /// call it after each write to the initialization segment and at [`Firmware::next_timeout_ns`].
    pub fn run(&mut self, env: &mut Env<'_>) -> bool {
        let mut worked = self.run_commands(env);
        worked |= self.watch_link(env);
        while let Some(event) = self.events.pop_front() {
            worked = true;
            if !env.plane.raise(event) {
                log::debug!("firmware model: no event queue subscribes to {event:?}");
            }
        }
        worked
    }

    /// When something is due without the host's doing.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.queue.next_late_ns()
    }

    /// A change of the link becomes an event.
    fn watch_link(&mut self, env: &mut Env<'_>) -> bool {
        let up: Vec<bool> = (1..=self.ports())
            .map(|port| self.port_active(env, port))
            .collect();
        let before = std::mem::replace(&mut self.link_was_up, up);
        if self.state != HcaState::Initialized {
            return false;
        }
        let changed = before
            .iter()
            .zip(&self.link_was_up)
            .zip(1..)
            .filter(|((b, now), _)| b != now);
        let events = changed.map(|((_, up), port)| Event::PortChange {
            port,
            change: if *up { PortChange::ACTIVE } else { PortChange::DOWN },
        });
        let waiting = self.events.len();
        self.events.extend(events);
        self.events.len() != waiting
    }

    /// Ports of the function, at least 1.
    pub fn ports(&self) -> u8 {
        self.profile.ports()
    }

    /// Whether a port carries traffic.
    fn port_active(&self, env: &Env<'_>, port: u8) -> bool {
        env.plane.link_up(port) && self.vport.admin_up(port)
    }

    /// Has the firmware tell of a change of a port that nothing else in the model brings about, such as
    /// [`PortChange::GUID`]. Before INIT_HCA nobody hears it.
    pub fn announce(&mut self, port: u8, change: PortChange) {
        if self.state == HcaState::Initialized {
            self.events.push_back(Event::PortChange { port, change });
        }
    }

    /// The general capabilities that are on.
    pub fn general(&self) -> CmdHcaCap {
        self.caps.current(CapType::GENERAL)
    }

    /// What the host did wrong.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }

    /// Records something that another part of the NIC saw the host do wrong.
    pub fn record_violation(&mut self, violation: Violation) {
        self.violations.record(violation);
    }

    /// Forgets the violations so far.
    pub fn clear_violations(&mut self) {
        self.violations.clear();
    }

    /// How far the HCA is.
    pub fn state(&self) -> HcaState {
        self.state
    }

    /// Pages that the host gave and has not got back.
    pub fn pages_held(&self) -> u32 {
        self.pages.held()
    }

    /// The host took away the device's access to this span. If the firmware still works in pages there, the next
    /// access of a real device would fail, which is a mistake of the host's to be seen.
    pub fn host_unmapped(&mut self, iova: u64, len: u64) {
        let lost = self.pages.held_in(iova, len);
        if lost != 0 {
            self.violations.protocol(format!(
                "{lost} pages that the firmware holds were unmapped at {iova:#x} + {len:#x}"
            ));
        }
    }

    /// The MAC address that the vport has now.
    pub fn mac(&self) -> [u8; 6] {
        self.vport.mac()
    }

    /// The stations whose frames the vport wants, as its driver has told.
    pub fn unicast_list(&self) -> Vec<[u8; 6]> {
        self.vport.unicast_list()
    }

    /// Writes each command, in and out, to `sink`, in the shape of Linux mlx5's dump; `None` stops it.
    pub fn set_trace(&mut self, sink: Option<Box<dyn Write + Send>>) {
        self.trace = sink.map(Trace::new);
    }

    pub(crate) fn set_recorder(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    fn subscribed(env: &Env<'_>, event: EventType) -> bool {
        env.plane.subscribed(event.0)
    }
}
