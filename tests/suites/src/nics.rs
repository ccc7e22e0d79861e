//! Device models with an engine thread, for the driver in the same process.

use std::sync::Arc;

use ferroce::function::{InProcess, PciFunction};
use ferroce_nic_model::clock::RealClock;
use ferroce_nic_model::fw::Firmware;
use ferroce_nic_model::link::cable::cable;
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::runner::{Drive, Runner};

/// Frames that a cable holds in each direction.
const CABLE_DEPTH: usize = 4096;

/// Two NICs joined by a cable, and the thread that drives them.
#[derive(Debug)]
pub struct Nics {
    /// Who drives them.
    pub runner: Runner,
}

impl Nics {
    /// Two NICs of one kind, with MACs that end in 1 and 2.
    pub fn pair(profile: Profile) -> Nics {
        let [a, b, c, d, e, _] = profile.mac;
        let (first, second) = cable(CABLE_DEPTH);
        let nics = vec![
            Nic::new(profile.clone().with_mac([a, b, c, d, e, 1]), Box::new(first)),
            Nic::new(profile.with_mac([a, b, c, d, e, 2]), Box::new(second)),
        ];
        let runner = Runner::new(nics, Arc::new(RealClock::new()), Drive::default()).expect("an engine");
        Nics { runner }
    }

    /// One of them as a PCI function.
    pub fn function(&self, index: usize) -> Arc<dyn PciFunction> {
        let device = self.runner.device(index).expect("there are two");
        Arc::new(InProcess::new(&format!("nic{index}"), device).expect("a function"))
    }

    /// Calls `f` on the firmware of one of them.
    pub fn firmware<R>(&self, index: usize, f: impl FnOnce(&mut Firmware) -> R) -> R {
        self.runner
            .with_nic(index, |nic| f(nic.firmware()))
            .expect("there are two")
    }

    /// What the driver of one of them did against the rules, as text.
    pub fn violations(&self, index: usize) -> Vec<String> {
        self.firmware(index, |fw| {
            fw.violations().iter().map(ToString::to_string).collect()
        })
    }
}
