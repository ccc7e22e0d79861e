//! Bring-up in reverse, from whatever step it had reached.

use std::sync::Arc;

use ferroce_firmware_iface::cmds::{DisableHca, ForceTeardownHca, TeardownHca};

use super::{Progress, Stepped, at, eqs, network, registers};
use crate::context::OpenConfig;
use crate::error::{CommandError, DeviceFailure, Step, StepError};
use crate::function::PciFunction;
use crate::hca::Hca;
use crate::pages::Pages;

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

/// Ends what a user left in firmware who went without a word (a crash, a kill), on a function that has no reset.
///
/// Until that is done, his objects may reach whatever memory has their addresses now: nothing is mapped meanwhile but
/// the command queue, and bus mastering is off again at the end.
pub(crate) fn tear_down_leftovers(function: &Arc<dyn PciFunction>, config: &OpenConfig) -> Stepped<()> {
    let (hca, _) = registers::start(function, config)?;
    let done = leftovers(&hca);
    registers::bus_master(function, false);
    if done.is_err() {
        hca.keep_memory();
    }
    done
}

fn leftovers(hca: &Hca) -> Stepped<()> {
    // He may not have come as far as INIT_HCA, and not all firmware knows the forced way.
    let refused = |error: &CommandError| error.refused();
    match hca.exec(&ForceTeardownHca) {
        Err(error) if refused(&error) => match hca.exec(&TeardownHca) {
            Err(error) if refused(&error) => log::debug!("{error}: there was nothing to stop"),
            other => at(Step::InitHca, other)?,
        },
        other => at(Step::InitHca, other)?,
    }
    let count = at(Step::ReclaimPages, Pages::take_foreign(hca))?;
    log::debug!("firmware let go of {count} pages of its last user");
    at(Step::EnableHca, hca.exec(&DisableHca))
}
