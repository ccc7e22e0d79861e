//! Two NICs on a cable in this process: for tests, for the demo, for examples.
//!
//! ```text
//!   driver A ─ device 0 ─ NIC ─ faults ═ pcap ═ cable ═══ faults ─ NIC ─ device 1 ─ driver B
//! ```
//! NICs of several ports have a cable for each, between ports of the same number.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroce_vfio_user::device::PciDevice;

use crate::clock::{Clock, Nanos, RealClock};
use crate::engine::Counters;
use crate::engine::ports::{FIRST_PORT, PortNumber};
use crate::fw;
use crate::link::cable::{CableControl, DEFAULT_DEPTH, cable};
use crate::link::fault::{FaultCounters, FaultPort, Faults};
use crate::link::pcap::{PcapFile, PcapPort};
use crate::link::{LinkError, Port, PortCounters, Waker};
use crate::nic::Nic;
use crate::profile::Profile;
use crate::rc::types::QpCounters;
use crate::runner::{Drive, Runner};
use crate::wire::{Frame, Icrc};

/// What a testbed is made of.
#[derive(Debug)]
pub struct TestbedConfig {
    /// Kinds and MAC addresses of the two NICs.
    pub profiles: [Profile; 2],
    /// Faults on what either NIC sends; the second NIC's seed is one higher.
    pub faults: Faults,
    /// Records what is on the cable, after the faults.
    pub pcap: Option<PcapFile>,
    /// Whether ICRCs are made and checked.
    pub icrc: Icrc,
    /// Who drives the NICs.
    pub drive: Drive,
    /// Their time.
    pub clock: Arc<dyn Clock>,
}

impl Default for TestbedConfig {
    /// Two ConnectX-4 on a good cable, driven by a thread in real time.
    fn default() -> TestbedConfig {
        let profile = |last| Profile::connectx4().with_mac([0x02, 0xfe, 0x0c, 0xe0, 0x00, last]);
        TestbedConfig {
            profiles: [profile(1), profile(2)],
            faults: Faults::default(),
            pcap: None,
            icrc: Icrc::On,
            drive: Drive::default(),
            clock: Arc::new(RealClock::new()),
        }
    }
}

/// Why there is no testbed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestbedError {
    /// The faults are not to be had.
    #[error("the cable can't be made that bad")]
    Link(#[from] LinkError),
    /// The system gives no thread or no eventfd.
    #[error("the engine thread can't be started")]
    Engine(#[from] std::io::Error),
}

/// What a NIC counted.
#[derive(Clone, Debug)]
pub struct NicStats {
    /// The data plane's counters.
    pub engine: Counters,
    /// Sums over all queue pairs, those that are gone included.
    pub transport: QpCounters,
    /// Rules of the data path that the host broke.
    pub data_path_violations: u64,
    /// Rules of the command interface that the host broke.
    pub firmware_violations: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Frames that the (first) port sent and received.
    pub port: PortCounters,
    /// What the (first) port's wire did to the frames that it sent.
    pub faults: FaultCounters,
    /// Objects that are there, by kind.
    pub objects: Vec<(&'static str, u32)>,
}

/// Two NICs on a cable.
#[derive(Debug)]
pub struct Testbed {
    runner: Runner,
    /// One for each port, from port 1 on.
    wires: Vec<Wire>,
}

/// What joins a port of either NIC.
#[derive(Debug)]
struct Wire {
    faults: [SharedFaults; 2],
    cable: CableControl,
}

impl Wire {
    fn new(pcap: Option<PcapFile>, faults: Faults) -> Result<Wire, TestbedError> {
        let (a, b) = cable(DEFAULT_DEPTH);
        let control = a.control();
        let a: Box<dyn Port> = match pcap {
            Some(file) => Box::new(PcapPort::new(a, file)),
            None => Box::new(a),
        };
        let other = Faults {
            seed: faults.seed.wrapping_add(1),
            ..faults
        };
        Ok(Wire {
            faults: [
                SharedFaults::new(a, faults)?,
                SharedFaults::new(Box::new(b), other)?,
            ],
            cable: control,
        })
    }
}

impl Testbed {
    /// Makes and starts it.
    ///
    /// # Errors
    /// Fractions of the faults that are none; the system gives no thread.
    pub fn new(config: TestbedConfig) -> Result<Testbed, TestbedError> {
        // Where one NIC has fewer ports, the others of its peer have a cable that leads to nobody.
        let ports = config.profiles.iter().map(Profile::ports).max().unwrap_or(1);
        let wires = (0..ports).map(|_| Wire::new(config.pcap.clone(), config.faults));
        let wires = wires.collect::<Result<Vec<Wire>, TestbedError>>()?;
        let mut nics = Vec::new();
        for (index, profile) in config.profiles.into_iter().enumerate() {
            let ends = wires
                .iter()
                .map(|wire| -> Box<dyn Port> { Box::new(wire.faults[index].clone()) });
            let mut nic = Nic::with_wires(profile, ends.collect());
            nic.data_plane.set_icrc(config.icrc);
            nics.push(nic);
        }
        Ok(Testbed {
            runner: Runner::new(nics, config.clock, config.drive)?,
            wires,
        })
    }

    /// NIC `index` (0 or 1) as a PCI device; `None` past 1.
    pub fn device(&self, index: usize) -> Option<Arc<dyn PciDevice>> {
        let device: Arc<dyn PciDevice> = self.runner.device(index)?;
        Some(device)
    }

    /// Who drives the NICs.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Calls `f` on NIC `index` between two turns; `None` past 1.
    pub fn with_nic<R>(&self, index: usize, f: impl FnOnce(&mut Nic) -> R) -> Option<R> {
        self.runner.with_nic(index, f)
    }

    /// What NIC `index` counted; `None` past 1.
    pub fn stats(&self, index: usize) -> Option<NicStats> {
        let faults = self.wires.first()?.faults.get(index)?.lock().fault_counters();
        self.with_nic(index, |nic| NicStats {
            engine: nic.data_plane.counters,
            transport: nic.data_plane.transport_counters(),
            data_path_violations: nic.data_plane.violations.total(),
            interrupts: nic.data_plane.interrupts.raised,
            port: nic.port().counters(),
            faults,
            objects: fw::Plane::census(&nic.data_plane),
            firmware_violations: nic.firmware().violations().total(),
        })
    }

    /// Makes the wire worse or better, both ways, from the next frame on.
    ///
    /// # Errors
    /// A fraction that is none; nothing changes then.
    pub fn set_faults(&self, faults: Faults) -> Result<(), LinkError> {
        faults.validate()?;
        for wire in &self.wires {
            for (port, seed) in wire.faults.iter().zip([0, 1]) {
                let seed = faults.seed.wrapping_add(seed);
                port.lock().set_faults(Faults { seed, ..faults })?;
            }
        }
        Ok(())
    }

    /// Pulls the (first ports') cable out, or puts it back in.
    pub fn set_cable(&self, up: bool) {
        self.set_cable_of(FIRST_PORT, up);
    }

    /// Pulls the cable of the ports of that number out, or puts it back in.
    pub fn set_cable_of(&self, port: PortNumber, up: bool) {
        if let Some(wire) = self.wires.get(usize::from(port).wrapping_sub(1)) {
            wire.cable.set_up(up);
        }
        // The NICs look at their ports when something calls them.
        self.with_nic(0, |_| ());
    }

    /// Ends the engine.
    pub fn stop(&mut self) {
        self.runner.stop();
    }
}

/// A port with faults that can be changed while a NIC has it.
#[derive(Clone, Debug)]
struct SharedFaults(Arc<Mutex<FaultPort<Box<dyn Port>>>>);

impl SharedFaults {
    fn new(port: Box<dyn Port>, faults: Faults) -> Result<SharedFaults, LinkError> {
        Ok(SharedFaults(Arc::new(Mutex::new(FaultPort::new(port, faults)?))))
    }

    fn lock(&self) -> MutexGuard<'_, FaultPort<Box<dyn Port>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for SharedFaults {
    fn send(&mut self, now: Nanos, frame: Frame) {
        self.lock().send(now, frame);
    }

    fn recv(&mut self, now: Nanos) -> Option<Frame> {
        self.lock().recv(now)
    }

    fn send_all(&mut self, now: Nanos, frames: &mut VecDeque<Frame>) {
        self.lock().send_all(now, frames);
    }

    fn recv_into(&mut self, now: Nanos, max: usize, into: &mut VecDeque<Frame>) {
        self.lock().recv_into(now, max, into);
    }

    fn next_event(&self) -> Option<Nanos> {
        self.lock().next_event()
    }

    // A cable has none.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn set_waker(&mut self, waker: Option<Waker>) {
        self.lock().set_waker(waker);
    }

    fn is_up(&self) -> bool {
        self.lock().is_up()
    }

    fn counters(&self) -> PortCounters {
        self.lock().counters()
    }
}
