//! Bring-up in reverse, from whatever step it had reached.

use ferroce_firmware_iface::cmds::{DisableHca, TeardownHca};

use super::{Progress, Stepped, at, eqs, network, registers};
use crate::error::{DeviceFailure, Step, StepError};
use crate::hca::Hca;

/// How teardown went.
#[derive(Debug)]
pub(crate) struct Teardown {
    /// The first step that failed, and why.
    pub(crate) failure: Option<(Step, StepError)>,
    /// The function was reset since a step failed.
    pub(crate) reset: bool,
}

/// Undoes what bring-up did. If a step fails, the function is reset instead; if that fails too, the memory that the
/// device may use is kept until its IOMMU mappings are gone.
pub(crate) fn tear_down(hca: &Hca, progress: &mut Progress) -> Teardown {
    let result = match hca.failure() {
        Some(failure) => Err((Step::InitHca, failure.clone().into())),
        None => orderly(hca, progress),
    };
    let failure = result.err();
    // A command that was never answered may yet be carried out, whatever was answered after it.
    let orderly = failure.is_none() && hca.cmdq().counters().leaked_slots == 0;
    let reset = !orderly && reset(hca);
    if failure.is_some() && progress.interrupts && !matches!(hca.failure(), Some(DeviceFailure::Gone(_))) {
        let _ = eqs::clear_interrupts(hca);
    }
    registers::bus_master(hca.function(), false);
    if orderly || reset {
        // Firmware knows of nothing any more.
        hca.reaper().free_kept();
    } else {
        hca.keep_memory();
    }
    Teardown { failure, reset }
}

fn reset(hca: &Hca) -> bool {
    hca.fail(DeviceFailure::Unresponsive);
    match hca.function().reset() {
        Ok(()) => true,
        Err(error) => {
            log::warn!("{} was not reset: {error}", hca.function().address());
            false
        }
    }
}

fn orderly(hca: &Hca, progress: &mut Progress) -> Stepped<()> {
    network::stop(hca, progress)?;
    at(Step::EventQueues, eqs::destroy_all(hca))?;
    if std::mem::take(&mut progress.interrupts) {
        at(Step::Interrupts, eqs::clear_interrupts(hca))?;
    }
    if let Some(uar) = progress.uar.take() {
        at(Step::Uar, uar.dealloc(hca))?;
    }
    if std::mem::take(&mut progress.initialised) {
        at(Step::InitHca, hca.exec(&TeardownHca))?;
    }
    let count = at(Step::ReclaimPages, hca.pages().take_all(hca))?;
    log::debug!("firmware gave {count} pages back");
    if std::mem::take(&mut progress.enabled) {
        at(Step::EnableHca, hca.exec(&DisableHca))?;
    }
    Ok(())
}
