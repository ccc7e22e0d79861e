//! From a PCI function to a NIC that moves data, and back: one function a step, in the order of the PRM.
//!
//! ```text
//!  Identify ▸ PciCommand ▸ FirmwareReady ▸ CommandQueue                         registers
//!  EnableHca ▸ Issi ▸ BootPages ▸ HostEndianness ▸ Capabilities ▸ InitPages ▸ InitHca   commands, polled
//!  EffectiveCapabilities ▸ Adapter ▸ Uar ▸ Interrupts ▸ EventQueues             from here on with events
//!  Vport ▸ Port ▸ L2Table ▸ Roce ▸ Gids                                         the network
//! ```
//! Teardown goes the same way back from whatever step was reached. If it can't, the function is reset.
//!
//! Source: PRM "Driver start-up"; Linux mlx5 for the order and for what may fail.

mod eqs;
mod hca;
mod network;
mod registers;
mod teardown;

use std::sync::Arc;

use ferroce_firmware_iface::cmds::{EnableHca, InitHca, PagesFor};

use crate::caps::Caps;
use crate::context::{Adapter, FirmwareVersion, OpenConfig};
use crate::error::{OpenError, Step, StepError};
use crate::function::{FunctionError, PciFunction};
use crate::gid::GidTable;
use crate::hca::Hca;
use crate::port::PortNumber;
use crate::uar::Uar;

pub(crate) use eqs::create_completion_eq;
pub(crate) use network::no_port;
pub(crate) use teardown::tear_down;

/// A step's outcome, or the step that failed and why.
type Stepped<T> = Result<T, (Step, StepError)>;

/// Names the step that a result is of.
fn at<T, E: Into<StepError>>(step: Step, result: Result<T, E>) -> Stepped<T> {
    log::debug!("{step}: {}", if result.is_ok() { "done" } else { "failed" });
    result.map_err(|error| (step, error.into()))
}

/// How far bring-up has come: what teardown has to undo.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) enabled: bool,
    pub(crate) initialised: bool,
    pub(crate) uar: Option<Arc<Uar>>,
    pub(crate) interrupts: bool,
    /// Ports that were turned on.
    pub(crate) ports_up: Vec<PortNumber>,
    pub(crate) l2_entry: bool,
    pub(crate) listed: bool,
    pub(crate) roce: bool,
    /// The table of each port, once RoCE is on.
    pub(crate) gids: Vec<Arc<GidTable>>,
}

/// A NIC that was brought up.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) hca: Arc<Hca>,
    pub(crate) progress: Progress,
    pub(crate) caps: Caps,
    pub(crate) firmware: FirmwareVersion,
    pub(crate) adapter: Adapter,
    pub(crate) product: &'static str,
}

/// Brings a NIC up. If that fails, what was done is undone.
pub(crate) fn bring_up(function: &Arc<dyn PciFunction>, config: &OpenConfig) -> Result<Device, OpenError> {
    let named = |(step, source)| OpenError::new(&**function, step, source);
    // Before anything is done to it: somebody is at work with it.
    at(Step::Identify, crate::mem::check_unused(&**function)).map_err(named)?;
    match attempt(function, config) {
        // Somebody before us left it running (a crash, a kill). A reset is what brings it back, or else commands.
        Err((Step::EnableHca, StepError::Command(error))) if error.refused() => {
            log::warn!(
                "{}: {error}; resetting the function and trying again",
                function.address()
            );
            match function.reset() {
                Err(FunctionError::NoReset { .. }) => {
                    log::warn!(
                        "{}: it has no reset; ending what was left by commands",
                        function.address()
                    );
                    teardown::tear_down_leftovers(function, config).map_err(named)?;
                }
                other => at(Step::EnableHca, other).map_err(named)?,
            }
            attempt(function, config).map_err(named)
        }
        other => other.map_err(named),
    }
}

fn attempt(function: &Arc<dyn PciFunction>, config: &OpenConfig) -> Stepped<Device> {
    let (hca, facts) = match registers::start(function, config) {
        Ok(started) => started,
        Err(error) => {
            registers::bus_master(function, false);
            return Err(error);
        }
    };
    let mut progress = Progress::default();
    match commands(&hca, &facts, config, &mut progress) {
        Ok((caps, adapter)) => {
            let registers::Facts {
                firmware, product, ..
            } = facts;
            Ok(Device {
                hca: Arc::new(hca),
                progress,
                caps,
                firmware,
                adapter,
                product,
            })
        }
        Err(error) => {
            let undone = tear_down(&hca, &mut progress);
            if let Some((step, error)) = undone.failure {
                log::warn!(
                    "{}: failed to {step} while undoing bring-up: {error}",
                    function.address()
                );
            }
            Err(error)
        }
    }
}

/// The steps that firmware carries out.
fn commands(
    hca: &Hca,
    facts: &registers::Facts,
    config: &OpenConfig,
    progress: &mut Progress,
) -> Stepped<(Caps, Adapter)> {
    at(Step::EnableHca, hca.exec(&EnableHca))?;
    progress.enabled = true;
    at(Step::Issi, hca::issi(hca))?;
    at(Step::BootPages, hca::give_pages(hca, PagesFor::Boot))?;
    if !facts.virtual_function {
        at(Step::HostEndianness, hca::host_endianness(hca))?;
    }
    at(Step::Capabilities, hca::negotiate_capabilities(hca))?;
    at(Step::InitPages, hca::give_pages(hca, PagesFor::Init))?;
    at(Step::InitHca, hca.exec(&InitHca))?;
    progress.initialised = true;
    let caps = at(Step::EffectiveCapabilities, hca::effective_capabilities(hca))?;
    let adapter = at(Step::Adapter, hca::adapter(hca))?;
    let uar = Arc::new(at(Step::Uar, Uar::alloc(hca))?);
    progress.uar = Some(uar.clone());
    at(Step::Interrupts, eqs::set_interrupts(hca, config))?;
    progress.interrupts = true;
    at(Step::EventQueues, eqs::create_async(hca, &uar, &caps))?;
    network::start(hca, &caps, config, progress)?;
    Ok((caps, adapter))
}
