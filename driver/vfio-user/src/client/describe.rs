//! Learns from the server what the device consists of.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::access::short_reply;
use super::{Client, ClientError, Region, region};
use crate::protocol::{
    Command, DeviceInfo, IrqInfo, MAX_DATA_XFER, RegionInfo, device_flags, irq, irq_flags,
    region as region_index, split,
};

/// Most vectors of a function (the table size field of PCI's MSI-X capability has 11 bits).
const MAX_MSIX_VECTORS: u32 = 2048;

impl Client {
    /// Asks for the device's regions and interrupts.
    pub(super) fn learn_device(&mut self) -> Result<(), ClientError> {
        let request = DeviceInfo {
            argsz: (size_of::<DeviceInfo>() as u32).into(),
            flags: 0.into(),
            num_regions: 0.into(),
            num_irqs: 0.into(),
        };
        let info: DeviceInfo = self.ask(Command::DEVICE_GET_INFO, &request)?;
        let not_usable = |reason: String| ClientError::NotUsable {
            name: self.name.clone(),
            reason,
        };
        if info.flags.get() & device_flags::PCI == 0 {
            return Err(not_usable("it is not a PCI device".into()));
        }
        let (regions, irqs) = (info.num_regions.get(), info.num_irqs.get());
        if regions <= region_index::CONFIG {
            return Err(not_usable(format!(
                "it has {regions} regions, configuration space is region 7"
            )));
        }
        self.resettable = info.flags.get() & device_flags::RESET != 0;
        // Regions past configuration space are of no use here, however many there are.
        for index in 0..=region_index::CONFIG {
            let region = self.region_info(index)?;
            self.regions.push(region);
        }
        if irqs > irq::MSIX {
            let info = self.irq_info(irq::MSIX)?;
            let count = info.count.get();
            if count > MAX_MSIX_VECTORS {
                let reason =
                    format!("it says that it has {count} MSI-X vectors, PCI allows {MAX_MSIX_VECTORS}");
                return Err(ClientError::NotUsable {
                    name: self.name.clone(),
                    reason,
                });
            }
            self.msix_vectors = count as u16;
        }
        if irqs > irq::REQ {
            let info = self.irq_info(irq::REQ)?;
            self.has_request_notifier = info.count.get() > 0 && info.flags.get() & irq_flags::EVENTFD != 0;
        }
        Ok(())
    }

    fn region_info(&self, index: u32) -> Result<Region, ClientError> {
        const COMMAND: Command = Command::DEVICE_GET_REGION_INFO;
        /// Longest reply payload that is asked for, in bytes.
        const MOST: u32 = MAX_DATA_XFER;
        let mut argsz = size_of::<RegionInfo>() as u32;
        loop {
            let mut request = RegionInfo::new_zeroed();
            request.argsz = argsz.into();
            request.index = index.into();
            let reply = self.call(COMMAND, &[request.as_bytes()], &[])?;
            let needed = split::<RegionInfo>(&reply.body).map_or(0, |(info, _)| info.argsz.get());
            // The first answer says how much room its capabilities need.
            if needed > argsz && argsz == size_of::<RegionInfo>() as u32 && needed <= MOST {
                argsz = needed;
                continue;
            }
            return region::parse(&reply.body, index, reply.fds).map_err(|reason| ClientError::BadReply {
                command: COMMAND,
                reason,
            });
        }
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, ClientError> {
        let argsz = (size_of::<IrqInfo>() as u32).into();
        let request = IrqInfo {
            argsz,
            flags: 0.into(),
            index: index.into(),
            count: 0.into(),
        };
        self.ask(Command::DEVICE_GET_IRQ_INFO, &request)
    }

    /// A request whose payload and reply have the same shape.
    fn ask<T>(&self, command: Command, request: &T) -> Result<T, ClientError>
    where
        T: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy,
    {
        let reply = self.call(command, &[request.as_bytes()], &[])?;
        match split::<T>(&reply.body) {
            Some((answer, _)) => Ok(*answer),
            None => Err(short_reply(command, &reply, size_of::<T>())),
        }
    }
}
