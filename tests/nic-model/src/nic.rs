//! One NIC: firmware, data plane, configuration space and port, as a state machine without a thread.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_firmware_iface::layouts::CmdHcaCap;
use ferroce_vfio_user::device::{DeviceError, DmaMap, DmaMessages};

use crate::bar::{self, BarTarget};
use crate::clock::Nanos;
use crate::engine::DataPlane;
use crate::engine::interrupts::signal;
use crate::engine::ports::PortNumber;
use crate::fw::{Env, Firmware};
use crate::link::Port;
use crate::link::cable::cable;
use crate::objects::Limits;
use crate::pci::{ConfigAction, ConfigSpace};
use crate::profile::{CapType, Profile};
use crate::record::Recorder;
use crate::wire::Frame;

/// Frames taken from the port in one turn: more than a peer of the same kind sends in one.
const RECEIVE_BURST: usize = 1024;

/// A NIC.
///
/// Its owner calls [`Nic::poll`] after each access and at [`Nic::next_timeout`], with times that never go back.
pub struct Nic {
    firmware: Firmware,
    config: ConfigSpace,
    /// The data plane, for counters and for tests.
    pub data_plane: DataPlane,
    /// One for each port of the function.
    ports: Vec<Box<dyn Port>>,
    /// For each port, whether its wire is plugged in.
    plugged: Vec<bool>,
    /// Frames of this turn; empty between turns.
    incoming: VecDeque<Frame>,
    bar_bytes: u64,
    /// The firmware has something to look at.
    firmware_due: bool,
    /// Writes and reads of the host that met nothing.
    pub stray_accesses: u64,
    /// Signalled when the NIC wants its user to let go.
    request_notifier: Option<OwnedFd>,
}

impl Nic {
    /// A NIC of that kind, with its (first) port on a wire.
    pub fn new(profile: Profile, port: Box<dyn Port>) -> Nic {
        Nic::with_wires(profile, vec![port])
    }

    /// A NIC of that kind with a wire for each port. Ports beyond the wires have none that leads anywhere; wires beyond the
    /// ports are not used.
    pub fn with_wires(profile: Profile, mut wires: Vec<Box<dyn Port>>) -> Nic {
        wires.resize_with(usize::from(profile.ports()), || Box::new(cable(1).0));
        let limits = limits_of(&profile);
        Nic {
            config: ConfigSpace::new(&profile),
            data_plane: DataPlane::with_ports(limits, profile.mac, profile.ports()),
            bar_bytes: profile.bar_bytes(),
            firmware: Firmware::new(profile),
            plugged: vec![true; wires.len()],
            ports: wires,
            incoming: VecDeque::new(),
            firmware_due: true,
            stray_accesses: 0,
            request_notifier: None,
        }
    }

    /// The firmware, for traces, injected faults and its list of violations.
    pub fn firmware(&mut self) -> &mut Firmware {
        // Whatever the caller changes may be due at once.
        self.firmware_due = true;
        &mut self.firmware
    }

    /// Records what driver and NIC say to each other from now on; `None` stops it.
    pub fn set_recorder(&mut self, recorder: Option<Recorder>) {
        self.firmware.set_recorder(recorder.clone());
        self.data_plane.set_recorder(recorder);
    }

    /// The first port's wire.
    pub fn port(&mut self) -> &mut dyn Port {
        // PANIC: none; a function has one port at least, and each has a wire.
        self.ports[0].as_mut()
    }

    /// Each port's wire, from port 1 on.
    pub fn ports(&mut self) -> impl Iterator<Item = &mut Box<dyn Port>> {
        self.ports.iter_mut()
    }

    /// Pulls the wire of a port (from 1) out of this NIC, or puts it back in. While it is out the link is down and frames are
    /// lost, in both directions; what is at the wire's other end notices nothing else. False if there is no such port.
    pub fn plug(&mut self, port: PortNumber, plugged: bool) -> bool {
        let index = usize::from(port).wrapping_sub(1);
        let found = self.plugged.get_mut(index);
        found.map(|state| *state = plugged).is_some()
    }

    /// Bytes of BAR 0.
    pub fn bar_bytes(&self) -> u64 {
        self.bar_bytes
    }

    /// Reads BAR 0.
    ///
    /// # Errors
    /// The access leaves the BAR.
    pub fn bar_read(&mut self, now: Nanos, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        let target = self.target(offset, data.len())?;
        if !self.config.memory_enabled() {
            // A read that nobody answers: the root complex gives all ones (PCI Express Base 2.3.2).
            data.fill(0xff);
            return Ok(());
        }
        match target {
            BarTarget::InitSegment(offset) => {
                self.firmware.bar_read(now.get(), offset, data);
                self.firmware_due = true;
            }
            // Doorbells can't be read.
            BarTarget::Msix | BarTarget::Uar { .. } | BarTarget::Outside => data.fill(0),
        }
        Ok(())
    }

    /// Writes BAR 0. What follows from it is done by [`Nic::poll`].
    ///
    /// # Errors
    /// The access leaves the BAR.
    pub fn bar_write(&mut self, now: Nanos, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let target = self.target(offset, data.len())?;
        if !self.config.memory_enabled() {
            self.stray_accesses += 1;
            return Ok(());
        }
        match target {
            BarTarget::InitSegment(offset) => {
                self.firmware.bar_write(now.get(), offset, data);
                self.firmware_due = true;
            }
            // A driver that stops after it has had firmware started again still rings.
            BarTarget::Uar { .. } if self.firmware.driverless() => self.stray_accesses += 1,
            BarTarget::Uar { index, offset } => self.data_plane.uar_write(index, u32::from(offset), data),
            BarTarget::Msix => {}
            BarTarget::Outside => self.stray_accesses += 1,
        }
        Ok(())
    }

    fn target(&self, offset: u64, len: usize) -> Result<BarTarget, DeviceError> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.bar_bytes) {
            return Err(DeviceError::OutOfRange {
                what: "BAR 0",
                offset,
                len: len as u64,
                limit: self.bar_bytes,
            });
        }
        Ok(bar::decode(self.bar_bytes, offset, len))
    }

    /// Reads configuration space.
    ///
    /// # Errors
    /// The access leaves the space.
    pub fn config_read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), DeviceError> {
        let len = data.len();
        self.config
            .read(offset, data)
            .map_err(|_| config_out_of_range(offset, len))
    }

    /// Writes configuration space.
    ///
    /// # Errors
    /// The access leaves the space.
    pub fn config_write(&mut self, now: Nanos, offset: u16, data: &[u8]) -> Result<(), DeviceError> {
        let action = self.config.write(offset, data);
        match action.map_err(|_| config_out_of_range(offset, data.len()))? {
            ConfigAction::FunctionReset => self.reset(now),
            ConfigAction::None => {
                self.data_plane.set_bus_master(self.config.bus_master());
                self.firmware_due = true;
            }
        }
        Ok(())
    }

    /// Whether the function may access host memory and interrupt.
    pub fn bus_master(&self) -> bool {
        self.config.bus_master()
    }

    /// Whether the function can be reset.
    pub fn resets(&self) -> bool {
        self.config.resets()
    }

    /// Function level reset: DMA maps and eventfds stay, all else is as at power-on.
    pub fn reset(&mut self, now: Nanos) {
        self.data_plane.reset();
        self.firmware.reset(now.get());
        self.config.reset();
        self.data_plane.set_bus_master(self.config.bus_master());
        self.firmware_due = true;
    }

    /// The host is gone: no DMA, no interrupts, and a reset. Where the function has none, firmware and objects stay as
    /// they are, without bus mastering.
    pub fn detach(&mut self, now: Nanos) {
        self.data_plane.host.clear();
        self.data_plane.host.set_messages(None);
        self.data_plane.interrupts.clear();
        self.request_notifier = None;
        if self.resets() {
            self.reset(now);
        } else {
            self.config.disown();
            self.data_plane.set_bus_master(false);
        }
    }

    /// Who serves DMA to memory without a file descriptor.
    pub fn set_messages(&mut self, messages: Option<Arc<dyn DmaMessages>>) {
        self.data_plane.host.set_messages(messages);
    }

    /// Gives the NIC access to host memory.
    ///
    /// # Errors
    /// As [`crate::host::HostMemory::map`].
    pub fn dma_map(&mut self, map: DmaMap) -> Result<(), DeviceError> {
        self.data_plane.host.map(map)
    }

    /// Takes it away; the NIC does not touch it any more when this returns.
    ///
    /// # Errors
    /// As [`crate::host::HostMemory::unmap`].
    pub fn dma_unmap(&mut self, iova: u64, len: u64) -> Result<(), DeviceError> {
        self.data_plane.host.unmap(iova, len)?;
        self.firmware.host_unmapped(iova, len);
        Ok(())
    }

    /// Sets eventfds of MSI-X vectors.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchVector`].
    pub fn set_msix(&mut self, first: u16, eventfds: Vec<Option<OwnedFd>>) -> Result<(), DeviceError> {
        self.data_plane.interrupts.set(first, eventfds)
    }

    /// Sets or takes away the eventfd by which the NIC asks its user to let go.
    pub fn set_request_notifier(&mut self, eventfd: Option<OwnedFd>) {
        self.request_notifier = eventfd;
    }

    /// Asks the user to let go; false when nobody listens.
    pub fn request_release(&self) -> bool {
        self.request_notifier.as_ref().is_some_and(signal)
    }

    /// Descriptors that become readable when a frame is there.
    pub(crate) fn port_fds(&self) -> impl Iterator<Item = OwnedFd> {
        let fds = self.ports.iter().filter_map(|port| port.fd());
        fds.filter_map(|fd| {
            fd.try_clone_to_owned()
                .inspect_err(|error| log::warn!("a port's descriptor can't be watched: {error}"))
                .ok()
        })
    }

    /// Does what is due: commands, frames from the wire, work of queue pairs, frames to the wire. True when
    /// there was something; call it again then.
    pub fn poll(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        for ((port, plugged), number) in self.ports.iter_mut().zip(&self.plugged).zip(1..) {
            port.recv_into(now, RECEIVE_BURST, &mut self.incoming);
            if !plugged {
                self.incoming.clear();
            }
            for frame in self.incoming.drain(..) {
                self.data_plane.receive_at(now, number, frame);
                worked = true;
            }
        }
        worked |= self.run_firmware(now);
        worked |= self.data_plane.run(now);
        for ((port, plugged), number) in self.ports.iter_mut().zip(&self.plugged).zip(1..) {
            let frames = self.data_plane.frames_to_send(number);
            if !plugged {
                frames.clear();
            }
            if !frames.is_empty() {
                port.send_all(now, frames);
                worked = true;
            }
        }
        worked
    }

    fn run_firmware(&mut self, now: Nanos) -> bool {
        let timed = self.firmware.next_timeout_ns().is_some_and(|at| at <= now.get());
        let mut link_changed = false;
        for ((port, plugged), number) in self.ports.iter().zip(&self.plugged).zip(1..) {
            let line = self.data_plane.line_mut(number);
            let link_up = *plugged && port.is_up();
            link_changed |= std::mem::replace(&mut line.link_up, link_up) != link_up;
        }
        if !(self.firmware_due || timed || link_changed) {
            return false;
        }
        self.firmware_due = false;
        if self.firmware.restart_due() {
            self.data_plane.reset();
            self.data_plane.set_bus_master(self.config.bus_master());
            self.firmware.restart(now.get());
        }
        let mut env = Env {
            now_ns: now.get(),
            plane: &mut self.data_plane,
        };
        let worked = self.firmware.run(&mut env);
        self.firmware_due = worked;
        worked
    }

    /// When [`Nic::poll`] is to be called again even if nothing is accessed and no frame arrives.
    pub fn next_timeout(&mut self) -> Option<Nanos> {
        if self.firmware_due {
            return Some(Nanos::ZERO);
        }
        let firmware = self.firmware.next_timeout_ns().map(Nanos);
        let wires = self.ports.iter().map(|port| port.next_event());
        let times = [firmware, self.data_plane.next_timeout()];
        times.into_iter().chain(wires).flatten().min()
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("profile", &self.firmware.profile().name)
            .field("counters", &self.data_plane.counters)
            .finish_non_exhaustive()
    }
}

fn config_out_of_range(offset: u16, len: usize) -> DeviceError {
    DeviceError::OutOfRange {
        what: "configuration space",
        offset: u64::from(offset),
        len: len as u64,
        limit: 4096,
    }
}

/// Limits of the object tables, from what the profile's capabilities promise.
fn limits_of(profile: &Profile) -> Limits {
    // The tables hold what can be had; the firmware holds the host to what it has set.
    let caps: CmdHcaCap = profile.capabilities.max(CapType::GENERAL);
    let most = |log: u8, at_most: u32| (1u32 << log.min(31)).min(at_most);
    let default = Limits::default();
    let uar_pages = profile.bar_bytes() / bar::UAR_BYTES;
    let first_uar = profile.first_uar;
    Limits {
        max_uar: u32::try_from(uar_pages)
            .unwrap_or(u32::MAX)
            .saturating_sub(first_uar),
        first_uar,
        max_pd: most(caps.log_max_pd(), default.max_pd),
        max_eq: most(caps.log_max_eq(), default.max_eq),
        max_cq: most(caps.log_max_cq(), 1 << 24),
        max_qp: most(caps.log_max_qp(), 1 << 24),
        max_srq: most(caps.log_max_srq(), 1 << 24),
        max_mkey: most(caps.log_max_mkey(), 1 << 24),
        log_max_eq_size: u32::from(caps.log_max_eq_sz()),
        log_max_cq_size: u32::from(caps.log_max_cq_sz()),
        gids: default.gids,
        msix_vectors: profile.msix_vectors,
        log_bf_reg_size: u32::from(caps.log_bf_reg_size()),
        timer_khz: profile.timer_khz(),
        ..default
    }
}
