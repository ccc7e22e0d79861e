//! What the device consists of: its regions and interrupts, as the info commands describe them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use zerocopy::IntoBytes;

use super::session::Refusal;
use crate::device::{BARS, BarArea, CONFIG_SPACE_LEN, DeviceError, PciDevice};
use crate::protocol::{
    CAP_SPARSE_MMAP, CapHeader, DeviceInfo, IrqInfo, RegionInfo, SparseArea, SparseMmap, device_flags, irq,
    irq_flags, region, region_flags, split,
};

/// Payload of a reply and the descriptor that goes with it.
pub(crate) struct Reply {
    pub bytes: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Reply {
    pub fn empty() -> Reply {
        Reply {
            bytes: Vec::new(),
            fd: None,
        }
    }

    pub fn bytes(bytes: Vec<u8>) -> Reply {
        Reply { bytes, fd: None }
    }

    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fd.iter().map(|fd| fd.as_fd()).collect()
    }
}

/// Answers DEVICE_GET_INFO.
pub(crate) fn device_info(device: &dyn PciDevice, body: &[u8]) -> Result<Reply, Refusal> {
    let truncated = Refusal::Truncated { len: body.len() };
    split::<DeviceInfo>(body).ok_or(truncated)?;
    let reset = if device.resettable() {
        device_flags::RESET
    } else {
        0
    };
    let info = DeviceInfo {
        argsz: (size_of::<DeviceInfo>() as u32).into(),
        flags: (reset | device_flags::PCI).into(),
        num_regions: region::COUNT.into(),
        num_irqs: irq::COUNT.into(),
    };
    Ok(Reply::bytes(info.as_bytes().to_vec()))
}

/// Size of a region in bytes; `None` past the last region.
pub(crate) fn region_size(device: &dyn PciDevice, index: u32) -> Option<u64> {
    match index {
        bar if bar < u32::from(BARS) => Some(device.bar_size(bar as u8)),
        region::CONFIG => Some(u64::from(CONFIG_SPACE_LEN)),
        region::ROM | region::VGA => Some(0),
        _ => None,
    }
}

/// Checks that an access stays inside its region; gives its offset back.
pub(crate) fn check_access(
    device: &dyn PciDevice,
    index: u32,
    offset: u64,
    len: u64,
) -> Result<u64, DeviceError> {
    const NAMES: [&str; 9] = [
        "BAR 0",
        "BAR 1",
        "BAR 2",
        "BAR 3",
        "BAR 4",
        "BAR 5",
        "the ROM",
        "configuration space",
        "VGA",
    ];
    let no_such = DeviceError::NoSuch {
        what: "region",
        index: u64::from(index),
    };
    let limit = region_size(device, index).ok_or(no_such)?;
    match offset.checked_add(len) {
        Some(end) if end <= limit => Ok(offset),
        _ => Err(DeviceError::OutOfRange {
            what: NAMES[index as usize],
            offset,
            len,
            limit,
        }),
    }
}

/// Answers DEVICE_GET_REGION_INFO. Where the asker has no room for the capabilities, it gets the size that it
/// needs and no descriptor, and asks again.
pub(crate) fn region_info(device: &dyn PciDevice, asked: &RegionInfo) -> Result<Reply, Refusal> {
    let index = asked.index.get();
    let size = region_size(device, index).ok_or(DeviceError::NoSuch {
        what: "region",
        index: u64::from(index),
    })?;
    let fixed = size_of::<RegionInfo>();
    let memory = if index < u32::from(BARS) && size != 0 {
        device.bar_memory(index as u8)
    } else {
        None
    };
    let caps = memory
        .as_ref()
        .map(|m| sparse_mmap(&m.areas, size))
        .unwrap_or_default();
    let needed = fixed + caps.len();
    let room = asked.argsz.get() as usize >= needed;
    let mut flags = 0;
    if size != 0 {
        flags |= region_flags::READ | region_flags::WRITE;
    }
    if memory.is_some() {
        flags |= region_flags::MMAP;
    }
    if !caps.is_empty() {
        flags |= region_flags::CAPS;
    }
    let info = RegionInfo {
        argsz: (needed as u32).into(),
        flags: flags.into(),
        index: index.into(),
        // Also where they don't fit: QEMU takes the flag without an offset for an error.
        cap_offset: if caps.is_empty() { 0 } else { fixed as u32 }.into(),
        size: size.into(),
        offset: memory.as_ref().map_or(0, |m| m.offset).into(),
    };
    let mut bytes = info.as_bytes().to_vec();
    if room {
        bytes.extend_from_slice(&caps);
    }
    Ok(Reply {
        bytes,
        fd: memory.map(|m| m.fd).filter(|_| room),
    })
}

/// The sparse mmap capability; empty where one area is the whole region.
fn sparse_mmap(areas: &[BarArea], size: u64) -> Vec<u8> {
    if *areas == [(BarArea { offset: 0, len: size })] {
        return Vec::new();
    }
    let head = CapHeader {
        id: CAP_SPARSE_MMAP.into(),
        version: 1.into(),
        next: 0.into(),
    };
    let count = SparseMmap {
        nr_areas: (areas.len() as u32).into(),
        reserved: 0.into(),
    };
    let mut bytes = [head.as_bytes(), count.as_bytes()].concat();
    for area in areas {
        let area = SparseArea {
            offset: area.offset.into(),
            size: area.len.into(),
        };
        bytes.extend_from_slice(area.as_bytes());
    }
    bytes
}

/// Number of interrupts of an index; `None` past the last index.
pub(crate) fn irq_count(device: &dyn PciDevice, index: u32) -> Option<u32> {
    match index {
        irq::MSIX => Some(u32::from(device.msix_vectors())),
        irq::INTX => Some(u32::from(has_interrupt_pin(device))),
        irq::MSI => Some(0),
        irq::ERR | irq::REQ => Some(1),
        _ => None,
    }
}

/// Whether configuration space names an INTx pin. QEMU sets INTx up by that alone and fails if it can't, so it
/// is there then, though no device behind [`PciDevice`] raises it.
fn has_interrupt_pin(device: &dyn PciDevice) -> bool {
    /// Offset of the interrupt pin register in a type 0 header.
    const INTERRUPT_PIN: u16 = 0x3d;
    let mut pin = [0];
    device.config_read(INTERRUPT_PIN, &mut pin).is_ok() && pin != [0]
}

/// Answers DEVICE_GET_IRQ_INFO.
pub(crate) fn irq_info(device: &dyn PciDevice, asked: &IrqInfo) -> Result<Reply, Refusal> {
    let index = asked.index.get();
    let no_such = DeviceError::NoSuch {
        what: "interrupt index",
        index: u64::from(index),
    };
    let count = irq_count(device, index).ok_or(no_such)?;
    let flags = match index {
        // Vectors come and go one by one.
        irq::MSIX => irq_flags::EVENTFD,
        irq::ERR | irq::REQ => irq_flags::EVENTFD | irq_flags::NORESIZE,
        irq::INTX if count > 0 => irq_flags::EVENTFD | irq_flags::MASKABLE | irq_flags::AUTOMASKED,
        _ => 0,
    };
    let info = IrqInfo {
        argsz: (size_of::<IrqInfo>() as u32).into(),
        flags: flags.into(),
        index: index.into(),
        count: count.into(),
    };
    Ok(Reply::bytes(info.as_bytes().to_vec()))
}
