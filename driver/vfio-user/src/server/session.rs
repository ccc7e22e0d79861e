//! One client's commands, checked and carried to the device.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::dma::{DmaTable, PAGE_SIZE};
use super::messages::HostMessages;
use super::{ServerOptions, UnsealedMemory, info};
use crate::channel::Channel;
use crate::device::{self, DeviceError, DmaFd, PciDevice, Sealing};
use crate::protocol::{
    Command, DmaMap, DmaUnmap, Header, IrqInfo, MultiWrite, RegionAccess, RegionInfo, SetIrqs, VERSION_MAJOR,
    VERSION_MINOR, Version, dma_flags, irq, region, split,
};
use crate::socket::{CloseReason, Message, ProtocolError};
use crate::version::{Capabilities, VersionDataError};

/// Why a command is answered with an error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("its payload of {len} bytes is too short")]
    Truncated { len: usize },
    #[error("its payload is {len} bytes long, {expected} expected")]
    WrongLength { len: usize, expected: u64 },
    #[error("{len} bytes of data asked for, at most {limit} negotiated")]
    TooMuchData { len: u64, limit: u64 },
    #[error("it came with {got} file descriptors, {expected} expected")]
    WrongFds { got: usize, expected: u32 },
    #[error("some of its file descriptors could not be received")]
    LostFds,
    #[error("flags {flags:#x} make no sense")]
    Flags { flags: u32 },
    #[error("{0}")]
    VersionData(#[from] VersionDataError),
    #[error("protocol version {major} is not spoken here, {VERSION_MAJOR} is")]
    Version { major: u16 },
    #[error("a connection must begin with VERSION")]
    NotNegotiated,
    #[error("the version was negotiated already")]
    Renegotiated,
    #[error("the command is not supported")]
    Unsupported,
    #[error("{0}")]
    Device(#[from] DeviceError),
}

impl Refusal {
    /// The Linux error number of the reply.
    pub fn errno(&self) -> u32 {
        const E2BIG: u32 = 7;
        const EMFILE: u32 = 24;
        const EINVAL: u32 = 22;
        const EOPNOTSUPP: u32 = 95;
        match self {
            Refusal::TooMuchData { .. } => E2BIG,
            Refusal::LostFds => EMFILE,
            Refusal::Version { .. } | Refusal::Unsupported => EOPNOTSUPP,
            Refusal::Device(e) => e.errno(),
            _ => EINVAL,
        }
    }
}

/// What SET_IRQS can ask for.
mod irq_actions {
    use crate::protocol::set_irqs_flags::*;
    pub const NONE: u32 = DATA_NONE | ACTION_TRIGGER;
    pub const EVENTFDS: u32 = DATA_EVENTFD | ACTION_TRIGGER;
    pub const MASK: u32 = DATA_NONE | ACTION_MASK;
    pub const UNMASK: u32 = DATA_NONE | ACTION_UNMASK;
    pub const UNMASK_EVENTFD: u32 = DATA_EVENTFD | ACTION_UNMASK;
}

/// Which eventfds a SET_IRQS sets, and from which interrupt of its index on. `vectors` are there.
fn eventfds_to_set(
    set: &SetIrqs,
    fds: Vec<OwnedFd>,
    vectors: u32,
) -> Result<(u32, Vec<Option<OwnedFd>>), Refusal> {
    let (start, count) = (set.start.get(), set.count.get());
    let intx = set.index.get() == irq::INTX;
    match set.flags.get() {
        // All of the index: taken away.
        irq_actions::NONE if count == 0 && fds.is_empty() => return Ok((0, no_eventfds(vectors))),
        // INTx is never raised, so nothing is masked by it.
        irq_actions::MASK | irq_actions::UNMASK if intx => return Ok((0, Vec::new())),
        irq_actions::UNMASK_EVENTFD if intx => {}
        irq_actions::EVENTFDS => {}
        _ => {
            let what = "masking or triggering by SET_IRQS";
            return Err(DeviceError::Unsupported { what }.into());
        }
    }
    if start.checked_add(count).is_none_or(|end| end > vectors) {
        let vectors = u16::try_from(vectors).unwrap_or(u16::MAX);
        return Err(DeviceError::NoSuchVector {
            first: start,
            count,
            vectors,
        }
        .into());
    }
    match fds.len() {
        0 => Ok((start, no_eventfds(count))),
        n if n == count as usize => Ok((start, fds.into_iter().map(Some).collect())),
        got => Err(Refusal::WrongFds { got, expected: count }),
    }
}

/// What takes the eventfds of `count` interrupts away; callers have bounded it by what the device has.
fn no_eventfds(count: u32) -> Vec<Option<OwnedFd>> {
    std::iter::repeat_with(|| None).take(count as usize).collect()
}

/// What a command is answered with.
type Answer = Result<info::Reply, Refusal>;

/// A client that is connected and has negotiated its version. Dropping it detaches the device.
pub(crate) struct Session {
    channel: Arc<Channel>,
    device: Arc<dyn PciDevice>,
    options: ServerOptions,
    maps: DmaTable,
    told_of_unsealed: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.device.detached();
    }
}

/// Hangs up at last: a client takes that for word that the device touches its memory no more.
struct HangUp(Arc<Channel>);

impl Drop for HangUp {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

/// Serves a client until it leaves.
pub(crate) fn run(channel: Arc<Channel>, device: Arc<dyn PciDevice>, options: ServerOptions) -> CloseReason {
    // Dropped after the session, and so after the device was told.
    let _end = HangUp(channel.clone());
    let peer = match negotiate(&channel, &options) {
        Ok(peer) => peer,
        Err(reason) => {
            channel.close(reason.clone());
            return reason;
        }
    };
    let host = HostMessages::new(
        Arc::downgrade(&channel),
        peer.max_data_xfer_size,
        options.dma_timeout,
    );
    device.attached(Some(Arc::new(host)));
    let maps = DmaTable::new(options.max_dma_maps);
    let mut session = Session {
        channel,
        device,
        options,
        maps,
        told_of_unsealed: false,
    };
    let reason = session.serve();
    session.channel.close(reason.clone());
    reason
}

/// Answers the first message, which has to be VERSION.
fn negotiate(channel: &Channel, options: &ServerOptions) -> Result<Capabilities, CloseReason> {
    let deadline = Instant::now() + options.handshake_timeout;
    let Some(message) = channel.next_command(Some(deadline))? else {
        return Err(CloseReason::Stalled);
    };
    match agree(&message, options) {
        Ok((peer, ours, minor)) => {
            let version = Version {
                major: VERSION_MAJOR.into(),
                minor: minor.into(),
            };
            let data = ours.to_version_data();
            channel.reply(&message.header, &[version.as_bytes(), &data], &[])?;
            Ok(peer)
        }
        Err(refusal) => {
            log::warn!(
                "refused a vfio-user client at {}: {refusal}",
                message.header.command()
            );
            channel.reply_error(&message.header, refusal.errno())?;
            Err(CloseReason::Closed)
        }
    }
}

/// Reads a VERSION and decides on the answer: the peer's capabilities, ours, and the minor version.
fn agree(message: &Message, options: &ServerOptions) -> Result<(Capabilities, Capabilities, u16), Refusal> {
    if message.header.command() != Command::VERSION {
        return Err(Refusal::NotNegotiated);
    }
    let (version, data) = payload::<Version>(message)?;
    if version.major.get() != VERSION_MAJOR {
        return Err(Refusal::Version {
            major: version.major.get(),
        });
    }
    let peer = Capabilities::from_version_data(data)?;
    let ours = Capabilities {
        // QEMU refuses a server that says more than 16; whoever says more itself can be told more.
        max_msg_fds: peer.max_msg_fds.max(16),
        max_data_xfer_size: u64::from(options.max_data_xfer_size),
        max_dma_maps: u64::from(options.max_dma_maps),
        pgsizes: PAGE_SIZE,
        write_multiple: peer.write_multiple,
    };
    Ok((peer, ours, version.minor.get().min(VERSION_MINOR)))
}

/// The fixed part of a payload and what follows it.
fn payload<T: FromBytes + KnownLayout + Immutable + Unaligned>(m: &Message) -> Result<(&T, &[u8]), Refusal> {
    split(&m.body).ok_or(Refusal::Truncated { len: m.body.len() })
}

impl Session {
    fn serve(&mut self) -> CloseReason {
        loop {
            let mut message = match self.channel.next_command(None) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(reason) => return reason,
            };
            let header = message.header;
            let answer = self.handle(&mut message);
            // Descriptors that were not taken are closed before the client hears of it.
            drop(message);
            let sent = match answer {
                Ok(reply) => self.channel.reply(&header, &[&reply.bytes], &reply.fds()),
                Err(refusal) => {
                    log::debug!("refused {} of a vfio-user client: {refusal}", header.command());
                    self.channel.reply_error(&header, refusal.errno())
                }
            };
            if let Err(reason) = sent {
                return reason;
            }
        }
    }

    fn handle(&mut self, message: &mut Message) -> Answer {
        if message.fds_lost {
            return Err(Refusal::LostFds);
        }
        let command = message.header.command();
        let takes_fds = [Command::DMA_MAP, Command::DEVICE_SET_IRQS].contains(&command);
        if !message.fds.is_empty() && !takes_fds {
            return Err(Refusal::WrongFds {
                got: message.fds.len(),
                expected: 0,
            });
        }
        match command {
            Command::REGION_WRITE => self.region_write(message),
            Command::REGION_READ => self.region_read(message),
            Command::REGION_WRITE_MULTI => self.region_write_multi(message),
            Command::DMA_MAP => self.dma_map(message),
            Command::DMA_UNMAP => self.dma_unmap(message),
            Command::DEVICE_GET_INFO => info::device_info(&*self.device, &message.body),
            Command::DEVICE_GET_REGION_INFO => {
                info::region_info(&*self.device, payload::<RegionInfo>(message)?.0)
            }
            Command::DEVICE_GET_IRQ_INFO => info::irq_info(&*self.device, payload::<IrqInfo>(message)?.0),
            Command::DEVICE_SET_IRQS => self.set_irqs(message),
            Command::DEVICE_RESET => {
                self.device.reset()?;
                Ok(info::Reply::empty())
            }
            Command::VERSION => Err(Refusal::Renegotiated),
            _ => Err(Refusal::Unsupported),
        }
    }

    fn region_read(&self, message: &Message) -> Answer {
        let (access, _) = payload::<RegionAccess>(message)?;
        let count = u64::from(access.count.get());
        let limit = u64::from(self.options.max_data_xfer_size);
        if count > limit {
            return Err(Refusal::TooMuchData { len: count, limit });
        }
        let offset = info::check_access(&*self.device, access.region.get(), access.offset.get(), count)?;
        let mut bytes = access.as_bytes().to_vec();
        let fixed = bytes.len();
        bytes.resize(fixed + access.count.get() as usize, 0);
        let data = &mut bytes[fixed..];
        match access.region.get() {
            _ if data.is_empty() => {}
            region::CONFIG => self.device.config_read(offset as u16, data)?,
            bar => self.device.bar_read(bar as u8, offset, data)?,
        }
        Ok(info::Reply::bytes(bytes))
    }

    fn region_write(&self, message: &Message) -> Answer {
        let (access, data) = payload::<RegionAccess>(message)?;
        if data.len() as u64 != u64::from(access.count.get()) {
            let expected = u64::from(access.count.get()) + size_of::<RegionAccess>() as u64;
            return Err(Refusal::WrongLength {
                len: message.body.len(),
                expected,
            });
        }
        let limit = u64::from(self.options.max_data_xfer_size);
        if data.len() as u64 > limit {
            return Err(Refusal::TooMuchData {
                len: data.len() as u64,
                limit,
            });
        }
        self.write(access.region.get(), access.offset.get(), data)?;
        if message.header.no_reply() {
            return Ok(info::Reply::empty());
        }
        Ok(info::Reply::bytes(access.as_bytes().to_vec()))
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let offset = info::check_access(&*self.device, region, offset, data.len() as u64)?;
        match region {
            _ if data.is_empty() => Ok(()),
            region::CONFIG => self.device.config_write(offset as u16, data),
            bar => self.device.bar_write(bar as u8, offset, data),
        }
    }

    /// Does the writes in order and stops at the first that fails; the reply counts those that were done.
    fn region_write_multi(&self, message: &Message) -> Answer {
        let (count, rest) = payload::<U64>(message)?;
        let expected = count.get().saturating_mul(size_of::<MultiWrite>() as u64);
        if rest.len() as u64 != expected {
            let expected = expected.saturating_add(8);
            return Err(Refusal::WrongLength {
                len: message.body.len(),
                expected,
            });
        }
        let mut done: u64 = 0;
        for piece in rest.chunks_exact(size_of::<MultiWrite>()) {
            let (write, _) = split::<MultiWrite>(piece).ok_or(Refusal::Truncated { len: piece.len() })?;
            let data = write.data.get(..write.count.get() as usize);
            let result = match data {
                Some(data) => self
                    .write(write.region.get(), write.offset.get(), data)
                    .map_err(Refusal::from),
                None => Err(Refusal::TooMuchData {
                    len: u64::from(write.count.get()),
                    limit: 8,
                }),
            };
            match result {
                Ok(()) => done += 1,
                Err(refusal) if done == 0 => return Err(refusal),
                Err(refusal) => {
                    log::debug!("write {done} of a REGION_WRITE_MULTI was refused: {refusal}");
                    break;
                }
            }
        }
        Ok(info::Reply::bytes(U64::new(done).as_bytes().to_vec()))
    }

    fn dma_map(&mut self, message: &mut Message) -> Answer {
        let fds = std::mem::take(&mut message.fds);
        let (map, _) = payload::<DmaMap>(message)?;
        let flags = map.flags.get();
        if flags == 0 || flags & !(dma_flags::READ | dma_flags::WRITE) != 0 {
            return Err(Refusal::Flags { flags });
        }
        if fds.len() > 1 {
            return Err(Refusal::WrongFds {
                got: fds.len(),
                expected: 1,
            });
        }
        let (iova, len) = (map.address.get(), map.size.get());
        self.maps.insert(iova, len)?;
        let memory = fds.into_iter().next().map(|fd| DmaFd {
            fd,
            offset: map.offset.get(),
        });
        let result = self.usable(memory, len).and_then(|memory| {
            self.device.dma_map(device::DmaMap {
                iova,
                len,
                readable: flags & dma_flags::READ != 0,
                writable: flags & dma_flags::WRITE != 0,
                memory,
            })
        });
        if let Err(e) = result {
            self.maps.remove(iova);
            return Err(e.into());
        }
        Ok(info::Reply::empty())
    }

    /// Checks the memory of a map, and decides what becomes of memory that its owner can shrink.
    fn usable(&mut self, memory: Option<DmaFd>, len: u64) -> Result<Option<DmaFd>, DeviceError> {
        let Some(memory) = memory else { return Ok(None) };
        if memory.check(len)? == Sealing::Sealed {
            return Ok(Some(memory));
        }
        let (result, consequence) = match self.options.unsealed_memory {
            UnsealedMemory::Refuse => (Err(DeviceError::Shrinkable), "it is refused"),
            UnsealedMemory::UseMessages => (Ok(None), "it is reached by messages, slowly"),
            UnsealedMemory::Trust => (Ok(Some(memory)), "its owner is trusted not to shrink it"),
        };
        if !self.told_of_unsealed {
            self.told_of_unsealed = true;
            log::warn!(
                "the vfio-user client maps memory that is not sealed against shrinking: {consequence}"
            );
        }
        result
    }

    /// Where nothing is mapped there is nothing to refuse: QEMU unmaps long runs of such ranges when it starts.
    fn dma_unmap(&mut self, message: &Message) -> Answer {
        let (unmap, _) = payload::<DmaUnmap>(message)?;
        let (iova, len, flags) = (unmap.address.get(), unmap.size.get(), unmap.flags.get());
        match flags {
            0 => {
                for (iova, len) in self.maps.covered(iova, len)? {
                    self.device.dma_unmap(iova, len)?;
                    self.maps.remove(iova);
                }
            }
            dma_flags::UNMAP_ALL | dma_flags::UNMAP_ALL_OLD if iova == 0 && len == 0 => {
                while let Some((iova, len)) = self.maps.first() {
                    self.device.dma_unmap(iova, len)?;
                    self.maps.remove(iova);
                }
            }
            _ => return Err(Refusal::Flags { flags }),
        }
        Ok(info::Reply::bytes(unmap.as_bytes().to_vec()))
    }

    fn set_irqs(&self, message: &mut Message) -> Answer {
        let fds = std::mem::take(&mut message.fds);
        let (set, _) = payload::<SetIrqs>(message)?;
        let index = set.index.get();
        let vectors = info::irq_count(&*self.device, index).ok_or(DeviceError::NoSuch {
            what: "interrupt index",
            index: u64::from(index),
        })?;
        let (first, eventfds) = eventfds_to_set(set, fds, vectors)?;
        match index {
            _ if eventfds.is_empty() => {}
            irq::MSIX => self.device.set_msix(first as u16, eventfds)?,
            irq::REQ => self
                .device
                .set_request_notifier(eventfds.into_iter().next().flatten())?,
            // INTx and the error notifier are taken, since clients fail or warn where they are not, and never
            // signalled.
            _ => {}
        }
        Ok(info::Reply::empty())
    }
}

/// Tells a connection that came while another is served, and lets it go. Its VERSION is not read; every known
/// client numbers that message 0.
pub(crate) fn turn_away(channel: &Channel) {
    const EBUSY: u32 = 16;
    let header = Header {
        message_id: 0.into(),
        command: Command::VERSION.0.into(),
        message_size: 0.into(),
        flags: 0.into(),
        error: 0.into(),
    };
    // Best effort: it is closed next, which says the same with fewer words.
    let _ = channel.reply_error(&header, EBUSY);
    channel.close(CloseReason::Closed);
}

/// Whether the end of a connection is worth a warning.
pub(crate) fn is_abnormal(reason: &CloseReason) -> bool {
    !matches!(
        reason,
        CloseReason::PeerClosed | CloseReason::Closed | CloseReason::Protocol(ProtocolError::Truncated)
    )
}
