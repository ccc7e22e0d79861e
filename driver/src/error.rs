//! What can go wrong between the driver and the firmware.
//!
//! Each error names the object, the value and the limit. Anything that a device can cause is an error here, and never a
//! panic.

use std::fmt;
use std::time::Duration;

use ferroce_firmware_iface::command::{DecodeError, EncodeError};
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::{CommandStatus, DeliveryStatus};

use crate::context::CloseReport;
use crate::function::{FunctionError, PciFunction};
use crate::health::HealthReport;
use crate::link::AddressError;
use crate::mem::DmaError;

/// Why a firmware command was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The command queue itself refused the entry: it could not be delivered.
    #[error("{opcode} was not delivered: {status}")]
    Delivery {
        /// The command.
        opcode: Opcode,
        /// What the queue found wrong with it.
        status: DeliveryStatus,
    },
    /// Firmware carried the command out and refused it.
    #[error("{opcode} (op_mod {op_mod:#x}) failed: {status}, syndrome {syndrome:#010x}")]
    Status {
        /// The command.
        opcode: Opcode,
        /// Its variant.
        op_mod: u16,
        /// Why it was refused.
        status: CommandStatus,
        /// The firmware's own number for the place where it was refused; the vendor's support reads it.
        syndrome: u32,
    },
    /// Firmware did not answer in time. The slot and its memory stay out of use until it does, or until a reset.
    #[error("{opcode} in slot {slot} was not answered within {waited:?}; firmware: {health}")]
    Timeout {
        /// The command.
        opcode: Opcode,
        /// The slot of the command queue.
        slot: u8,
        /// How long we waited.
        waited: Duration,
        /// What the health buffer said then.
        health: HealthReport,
    },
    /// The answer carries another command's token, so that it may not be this command's.
    #[error(
        "{opcode} was answered with token {found:#04x} instead of {expected:#04x}; the answer was discarded"
    )]
    Token {
        /// The command.
        opcode: Opcode,
        /// The command's token.
        expected: u8,
        /// What the answer had.
        found: u8,
    },
    /// The answer does not make sense.
    #[error("{opcode} was answered with nonsense")]
    Decode {
        /// The command.
        opcode: Opcode,
        /// What is wrong with the answer.
        #[source]
        source: DecodeError,
    },
    /// A value does not fit the command.
    #[error("{opcode} can't be encoded")]
    Encode {
        /// The command.
        opcode: Opcode,
        /// The value.
        #[source]
        source: EncodeError,
    },
    /// The input or the output is shorter than a header or longer than the driver allows.
    #[error("{opcode}: {len} bytes of {what} are not within {min}..={max}")]
    Length {
        /// The command.
        opcode: Opcode,
        /// Input or output.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
    },
    /// All slots of the command queue stayed in use.
    #[error(
        "{opcode} found no free command slot within {waited:?} ({leaked} slots wait for commands that timed out)"
    )]
    NoSlot {
        /// The command.
        opcode: Opcode,
        /// How long we waited.
        waited: Duration,
        /// Slots that are lost to commands that were never answered.
        leaked: u32,
    },
    /// The device can't be used any more.
    #[error("{opcode} {}: {failure}", if *sent { "was sent and not answered" } else { "was not sent" })]
    Dead {
        /// The command.
        opcode: Opcode,
        /// Whether the device had been given it: it may carry it out.
        sent: bool,
        /// What happened to the device.
        failure: DeviceFailure,
    },
    /// No memory for the command's mailboxes.
    #[error("{opcode}: no DMA memory for its mailboxes: {reason}")]
    Memory {
        /// The command.
        opcode: Opcode,
        /// What the DMA space said.
        reason: String,
    },
}

impl CommandError {
    /// The command that failed.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        match self {
            Self::Delivery { opcode, .. }
            | Self::Status { opcode, .. }
            | Self::Timeout { opcode, .. }
            | Self::Token { opcode, .. }
            | Self::Decode { opcode, .. }
            | Self::Encode { opcode, .. }
            | Self::Length { opcode, .. }
            | Self::NoSlot { opcode, .. }
            | Self::Dead { opcode, .. }
            | Self::Memory { opcode, .. } => *opcode,
        }
    }

    /// Whether firmware said no: it knows of the command, and its answer is final.
    #[must_use]
    pub fn refused(&self) -> bool {
        matches!(self, Self::Status { .. } | Self::Delivery { .. })
    }

    /// Whether firmware may have carried the command out, or still do so: it was sent, and no answer says that it was refused.
    /// What it was told to use may be in use.
    #[must_use]
    pub fn uncertain(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. } | Self::Token { .. } | Self::Decode { .. } | Self::Dead { sent: true, .. }
        )
    }

    pub(crate) fn memory(opcode: Opcode, error: &DmaError) -> Self {
        Self::Memory {
            opcode,
            reason: error.to_string(),
        }
    }
}

/// Why a device can't be used any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceFailure {
    /// The function is not there: unplugged, reset by somebody else, or its device process has ended.
    #[error("the device is gone: {0}")]
    Gone(String),
    /// Firmware reported a fatal error in its health buffer.
    #[error("firmware reported a fatal error: {0}")]
    Fatal(HealthReport),
    /// A command was not answered during teardown, so that no further one is sent.
    #[error("firmware stopped answering commands")]
    Unresponsive,
}

/// A step of bring-up or teardown, in the order of the PRM.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Vendor and device id.
    Identify,
    /// Memory space and bus mastering in the PCI command register.
    PciCommand,
    /// Waiting for the initializing bit to clear.
    FirmwareReady,
    /// Command interface revision, geometry, and the queue's address.
    CommandQueue,
    /// ENABLE_HCA or DISABLE_HCA.
    EnableHca,
    /// QUERY_ISSI and SET_ISSI.
    Issi,
    /// The pages that firmware needs to boot.
    BootPages,
    /// The HOST_ENDIANNESS register.
    HostEndianness,
    /// QUERY_HCA_CAP before INIT_HCA, and SET_HCA_CAP.
    Capabilities,
    /// The pages that firmware needs to initialise.
    InitPages,
    /// INIT_HCA or TEARDOWN_HCA.
    InitHca,
    /// The capabilities as they hold after INIT_HCA.
    EffectiveCapabilities,
    /// QUERY_ADAPTER.
    Adapter,
    /// ALLOC_UAR or DEALLOC_UAR.
    Uar,
    /// MSI-X vectors.
    Interrupts,
    /// CREATE_EQ or DESTROY_EQ.
    EventQueues,
    /// QUERY_NIC_VPORT_CONTEXT.
    Vport,
    /// PMTU, PAOS and PTYS registers.
    Port,
    /// SET_L2_TABLE_ENTRY or DELETE_L2_TABLE_ENTRY.
    L2Table,
    /// MODIFY_NIC_VPORT_CONTEXT with roce_en.
    Roce,
    /// SET_ROCE_ADDRESS.
    Gids,
    /// The thread that answers events.
    ServiceThread,
    /// MANAGE_PAGES TAKE, until firmware holds none.
    ReclaimPages,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identify => "identify the PCI function",
            Self::PciCommand => "enable memory space and bus mastering",
            Self::FirmwareReady => "wait for firmware",
            Self::CommandQueue => "set up the command queue",
            Self::EnableHca => "enable the HCA",
            Self::Issi => "agree on the interface step sequence id",
            Self::BootPages => "give boot pages",
            Self::HostEndianness => "set the host's endianness",
            Self::Capabilities => "query and set capabilities",
            Self::InitPages => "give init pages",
            Self::InitHca => "initialise the HCA",
            Self::EffectiveCapabilities => "query capabilities in effect",
            Self::Adapter => "query the adapter",
            Self::Uar => "allocate a UAR",
            Self::Interrupts => "set up MSI-X",
            Self::EventQueues => "create event queues",
            Self::Vport => "query the virtual port",
            Self::Port => "set up the port",
            Self::L2Table => "enter the port's MAC in the L2 table",
            Self::Roce => "enable RoCE",
            Self::Gids => "program GIDs",
            Self::ServiceThread => "start the service thread",
            Self::ReclaimPages => "take back firmware's pages",
        })
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The PCI function refused an access.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// No DMA memory.
    #[error(transparent)]
    Dma(#[from] DmaError),
    /// A firmware command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// The function is another vendor's, or a model that this driver does not know.
    #[error(
        "PCI id {vendor:04x}:{device:04x} is not a NIC that this driver knows (of vendor 15b3 ConnectX-4 to ConnectX-10, \
         BlueField to BlueField-4, and their virtual functions)"
    )]
    NotOurDevice {
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id.
        device: u16,
    },
    /// Firmware did not become ready.
    #[error("firmware was still initializing after {waited:?}")]
    NotReady {
        /// How long we waited.
        waited: Duration,
    },
    /// The device can't be used any more.
    #[error(transparent)]
    Dead(#[from] DeviceFailure),
    /// An address that can't be.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A register or an answer holds what the driver can't work with.
    #[error("{what} is {value:#x}, which must be {limit}")]
    Value {
        /// PRM name of the field.
        what: &'static str,
        /// What it held.
        value: u64,
        /// What it must be.
        limit: String,
    },
    /// The device lacks something that the driver or the configuration needs.
    #[error("the device does not support {0}")]
    Unsupported(String),
    /// Firmware asked for more memory than the configuration allows.
    #[error(
        "firmware asked for {asked} pages of 4 KiB in addition to the {given} it has; the limit is {limit} \
         (OpenConfig::firmware_pages_limit)"
    )]
    TooManyPages {
        /// Pages asked for.
        asked: u32,
        /// Pages it had.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// Firmware did not give its pages back.
    #[error("firmware still holds {left} of its pages {waited:?} after the last one came back")]
    PagesKept {
        /// How many.
        left: usize,
        /// How long we waited.
        waited: Duration,
    },
    /// More addresses than the device's table holds.
    #[error("{asked} GIDs do not fit in the device's table of {size}")]
    GidTableFull {
        /// GIDs wanted.
        asked: usize,
        /// Entries of the table.
        size: usize,
    },
}

impl From<ferroce_firmware_iface::layout::ValueTooWide> for StepError {
    fn from(error: ferroce_firmware_iface::layout::ValueTooWide) -> Self {
        Self::Value {
            what: error.field,
            value: error.value,
            limit: format!("a value of {} bits ({})", error.bits, error.layout),
        }
    }
}

/// A device could not be brought up. What had been done was undone, or the function was reset.
#[derive(Debug, thiserror::Error)]
#[error("cannot bring {function} up: failed to {step}")]
pub struct OpenError {
    /// The function's address.
    pub function: String,
    /// The step that failed.
    pub step: Step,
    /// Why.
    #[source]
    pub source: Box<StepError>,
}

impl OpenError {
    pub(crate) fn new(function: &dyn PciFunction, step: Step, source: StepError) -> Self {
        Self {
            function: function.address().to_string(),
            step,
            source: Box::new(source),
        }
    }
}

/// A device could not be shut down in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Objects of the context are alive. The device is shut down when the last one is dropped.
    #[error("{holders} objects (queue pairs, regions, …) still use the device; drop them first")]
    InUse {
        /// How many hold the context.
        holders: usize,
    },
    /// A step of the teardown failed.
    #[error("failed to {step} at teardown; {}", if report.reset { "the function was reset instead" } else { "its memory is kept" })]
    Teardown {
        /// The first step that failed.
        step: Step,
        /// Why.
        #[source]
        source: Box<StepError>,
        /// What was done all the same.
        report: Box<CloseReport>,
    },
}
