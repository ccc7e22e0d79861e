//! The steps before firmware takes commands: configuration space and the initialization segment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_hw_regs::init_seg::{
    self, CMDIF_REV, CmdifRevFwSub, CmdifRevFwSubCopy, CmdqAddrLSz, CmdqAddrLSzCopy, FwRev, FwRevCopy,
    Initializing, InitializingCopy, offset, timeout_ms,
};
use ferroce_hw_regs::pci;

use super::{Stepped, at};
use crate::cmdq::{CommandQueue, Geometry};
use crate::context::{FirmwareVersion, OpenConfig};
use crate::eq::EventVector;
use crate::error::{DeviceFailure, Step, StepError};
use crate::events::Events;
use crate::function::{FunctionError, LEAVE, PciFunction};
use crate::hca::{Hca, HcaParts};
use crate::mem::DmaSpace;
use crate::mmio::Mmio;
use crate::pages::Pages;

/// How often the initializing bit is looked at.
const READY_POLL: Duration = Duration::from_millis(2);
/// How long firmware may be initializing again after it was given the command queue's address. Source: Linux mlx5.
const QUEUE_READY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long firmware may take for a command, where it does not say. Source: Linux mlx5.
const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// `nic_interface`: disabled, and in software reset. Source: PRM "Initialization segment".
const NIC_DISABLED: u32 = 1;
const NIC_SW_RESET: u32 = 7;

/// What the registers said.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) virtual_function: bool,
    pub(super) product: &'static str,
    pub(super) firmware: FirmwareVersion,
}

/// All steps before the first command.
pub(super) fn start(function: &Arc<dyn PciFunction>, config: &OpenConfig) -> Stepped<(Hca, Facts)> {
    let device = at(Step::Identify, identify(function))?;
    at(Step::PciCommand, pci_command(function))?;
    let bar = at(Step::FirmwareReady, function.bar0())?;
    at(Step::FirmwareReady, check_bar(&bar))?;
    let ready = at(
        Step::FirmwareReady,
        firmware_ready(function, &bar, config.firmware_ready_timeout),
    )?;
    log::debug!("firmware was ready after {ready:?}");
    at(Step::CommandQueue, recover_interface(function, &bar, config))?;
    let firmware = at(Step::CommandQueue, interface_revision(&bar))?;
    let hca = at(Step::CommandQueue, program_queue(function, bar, config))?;
    if let Err(error) = at(
        Step::CommandQueue,
        firmware_ready(function, hca.bar(), QUEUE_READY_TIMEOUT),
    ) {
        // It knows the queue's address already.
        let _ = function.reset();
        return Err(error);
    }
    let facts = Facts {
        virtual_function: device.virtual_function,
        product: device.product,
        firmware,
    };
    Ok((hca, facts))
}

fn config_read16(function: &Arc<dyn PciFunction>, offset: u16) -> Result<u16, StepError> {
    let mut bytes = [0; 2];
    function.config_read(offset, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

fn identify(function: &Arc<dyn PciFunction>) -> Result<&'static pci::DeviceId, StepError> {
    let vendor = config_read16(function, pci::config::VENDOR_ID)?;
    let device = config_read16(function, pci::config::DEVICE_ID)?;
    if vendor == u16::MAX {
        return Err(DeviceFailure::Gone("its configuration space reads as ones".into()).into());
    }
    pci::device(vendor, device).ok_or(StepError::NotOurDevice { vendor, device })
}

/// Lets the function answer to its BARs and reach memory.
fn pci_command(function: &Arc<dyn PciFunction>) -> Result<(), StepError> {
    let command = config_read16(function, pci::config::COMMAND)?;
    let wanted = command | pci::config::COMMAND_MEMORY | pci::config::COMMAND_BUS_MASTER;
    function.config_write(pci::config::COMMAND, &wanted.to_le_bytes(), LEAVE)?;
    let got = config_read16(function, pci::config::COMMAND)?;
    let both = pci::config::COMMAND_MEMORY | pci::config::COMMAND_BUS_MASTER;
    if got & both != both {
        let limit = "with memory space and bus mastering on after they were set".to_owned();
        return Err(StepError::Value {
            what: "PCI command register",
            value: u64::from(got),
            limit,
        });
    }
    Ok(())
}

/// Turns bus mastering on or off, best effort.
pub(super) fn bus_master(function: &Arc<dyn PciFunction>, on: bool) {
    let Ok(command) = config_read16(function, pci::config::COMMAND) else {
        return;
    };
    if command == u16::MAX {
        return;
    }
    let master = pci::config::COMMAND_BUS_MASTER;
    let wanted = if on { command | master } else { command & !master };
    if let Err(error) = function.config_write(pci::config::COMMAND, &wanted.to_le_bytes(), LEAVE) {
        log::debug!(
            "bus mastering was not turned {}: {error}",
            if on { "on" } else { "off" }
        );
    }
}

fn check_bar(bar: &Mmio) -> Result<(), StepError> {
    let least = init_seg::BYTES as u64;
    if bar.len() < least {
        let limit = format!("at least {least:#x} (the initialization segment)");
        return Err(StepError::Value {
            what: "BAR 0 length",
            value: bar.len(),
            limit,
        });
    }
    Ok(())
}

/// Waits until the initializing bit is clear; how long that took.
fn firmware_ready(
    function: &Arc<dyn PciFunction>,
    bar: &Mmio,
    timeout: Duration,
) -> Result<Duration, StepError> {
    let started = Instant::now();
    loop {
        let register = bar.read32(offset::INITIALIZING);
        if register == u32::MAX {
            // All ones is what a dead bus reads as; a device that is there never has all bits set.
            let reason = function
                .gone()
                .map_or("its registers read as ones".into(), |reason| reason.to_string());
            return Err(DeviceFailure::Gone(reason).into());
        }
        if !InitializingCopy::new(register).is_set(Initializing::INITIALIZING) {
            return Ok(started.elapsed());
        }
        if let Some(reason) = function.gone() {
            return Err(DeviceFailure::Gone(reason.to_string()).into());
        }
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(StepError::NotReady {
                waited: started.elapsed(),
            });
        }
        std::thread::sleep(READY_POLL.min(left));
    }
}

/// A function whose interface its last user left disabled or in reset is reset once.
fn recover_interface(
    function: &Arc<dyn PciFunction>,
    bar: &Mmio,
    config: &OpenConfig,
) -> Result<(), StepError> {
    let interface =
        || CmdqAddrLSzCopy::new(bar.read32(offset::CMDQ_ADDR_L_SZ)).read(CmdqAddrLSz::NIC_INTERFACE);
    if !matches!(interface(), NIC_DISABLED | NIC_SW_RESET) {
        return Ok(());
    }
    log::warn!(
        "{}: nic_interface is {}; resetting the function",
        function.address(),
        interface()
    );
    match function.reset() {
        // Writing the queue's address takes the interface back too, once firmware is through with its own reset.
        Err(FunctionError::NoReset { .. }) => {
            log::warn!("{}: it has no reset; taking it as it is", function.address())
        }
        other => other?,
    }
    pci_command(function)?;
    firmware_ready(function, bar, config.firmware_ready_timeout)?;
    Ok(())
}

fn interface_revision(bar: &Mmio) -> Result<FirmwareVersion, StepError> {
    let register = CmdifRevFwSubCopy::new(bar.read32(offset::CMDIF_REV_FW_SUB));
    let revision = register.read(CmdifRevFwSub::CMDIF_REV);
    if revision != u32::from(CMDIF_REV) {
        let limit = format!("{CMDIF_REV} (the revision that this driver speaks)");
        return Err(StepError::Value {
            what: "cmdif_rev",
            value: u64::from(revision),
            limit,
        });
    }
    let fw_rev = FwRevCopy::new(bar.read32(offset::FW_REV));
    Ok(FirmwareVersion {
        major: fw_rev.read(FwRev::MAJOR) as u16,
        minor: fw_rev.read(FwRev::MINOR) as u16,
        subminor: register.read(CmdifRevFwSub::FW_SUBMINOR) as u16,
    })
}

/// Makes the command queue and tells firmware where it is.
fn program_queue(function: &Arc<dyn PciFunction>, bar: Mmio, config: &OpenConfig) -> Result<Hca, StepError> {
    let register = CmdqAddrLSzCopy::new(bar.read32(offset::CMDQ_ADDR_L_SZ));
    let geometry = Geometry {
        log_size: register.read(CmdqAddrLSz::LOG_SZ) as u8,
        log_stride: register.read(CmdqAddrLSz::LOG_STRIDE) as u8,
    };
    if !geometry.usable() {
        return Err(StepError::Value {
            what: "cmdq_addr_l_sz",
            value: u64::from(register.get()),
            limit: "2 to 32 entries of at least 64 bytes within 4 KiB (log_sz 1..=5, log_stride 6 or more, sum at \
                    most 12)"
                .into(),
        });
    }
    let dma = DmaSpace::new(function.clone())?;
    let doorbell = bar.subregion(offset::CMD_DBELL, 4)?;
    let cmdq = CommandQueue::new(&dma, geometry, doorbell, config.tracer.clone())?;
    let os = |what| move |source| StepError::Os { what, source };
    let vectors = (0..vector_count(&**function, config)?)
        .map(|_| EventVector::new(config.interrupts))
        .collect::<Result<Vec<_>, _>>()
        .map_err(os("create an eventfd"))?;
    let hca = Hca::new(HcaParts {
        function: function.clone(),
        pages: Pages::new(dma.clone(), config.firmware_pages_limit, config.huge_pages),
        events: Events::new().map_err(os("create an eventfd"))?,
        command_timeout: command_timeout(&bar, config),
        dma,
        bar,
        cmdq,
        vectors,
    });
    hca.program_queue();
    Ok(hca)
}

/// MSI-X vectors to use: one for the asynchronous queues, the others for completions.
fn vector_count(function: &dyn PciFunction, config: &OpenConfig) -> Result<usize, StepError> {
    let wanted = config.vectors();
    if !config.interrupts {
        return Ok(1 + wanted);
    }
    match usize::from(function.msix_vectors()) {
        0 => Err(StepError::Unsupported(
            "MSI-X (OpenConfig::interrupts(false) polls instead)".into(),
        )),
        // A single vector is shared.
        1 => Ok(1),
        have => Ok(have.min(1 + wanted)),
    }
}

fn command_timeout(bar: &Mmio, config: &OpenConfig) -> Duration {
    let said = || {
        let timeouts_valid = bar.read32(offset::CMD_Q_INIT_TO) != 0;
        let ms = timeouts_valid
            .then(|| timeout_ms(bar.read32(offset::CMD_EXEC_TO)))
            .flatten()?;
        // A device must not make us wait for ever.
        Some(Duration::from_millis(ms).clamp(Duration::from_secs(1), 10 * DEFAULT_COMMAND_TIMEOUT))
    };
    config
        .command_timeout
        .or_else(said)
        .unwrap_or(DEFAULT_COMMAND_TIMEOUT)
}
