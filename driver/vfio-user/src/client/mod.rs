//! The driver's end: a PCI device in another process.
//!
//! Every request has a deadline and an error that names it. A server that dies is noticed at once by whoever
//! waits for it, and by [`Client::gone_fd`] where nobody does. All methods can be used from many threads.
//!
//! Memory is shared with the device by mapping a file descriptor for it, usually a memfd; see
//! [`Client::dma_map`]. Memory without one can be served by messages, if [`ClientOptions::dma`] says how.

mod access;
mod connect;
mod describe;
mod dma;
mod error;
mod region;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use zerocopy::IntoBytes;

use self::access::access;

pub use error::ClientError;
pub use region::{Region, RegionMemory};

use crate::channel::{CallError, Channel};
use crate::device::{BARS, DmaMessages};
use crate::protocol::{
    Command, DmaMap, DmaUnmap, SetIrqs, dma_flags, irq, region as region_index, set_irqs_flags,
};
use crate::socket::{self, CloseReason, Message};
use crate::version::Capabilities;

/// How a client treats its server. A time above a year is taken for a year.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// How long connecting and agreeing on the version may take, each.
    pub connect_timeout: Duration,
    /// How long a request may take, except for a reset.
    pub request_timeout: Duration,
    /// How long a reset may take.
    pub reset_timeout: Duration,
    /// Serves the device's accesses to memory that was mapped without a file descriptor. A thread is started
    /// for it, though any thread that waits for the device may be the one that calls this: it must not use the
    /// client, nor take a lock that is held while the client is used. Without this the device gets an error.
    pub dma: Option<Arc<dyn DmaMessages>>,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            reset_timeout: Duration::from_secs(60),
            dma: None,
        }
    }
}

impl ClientOptions {
    /// The same with times that deadlines can be made of.
    fn bounded(mut self) -> ClientOptions {
        for time in [
            &mut self.connect_timeout,
            &mut self.request_timeout,
            &mut self.reset_timeout,
        ] {
            *time = (*time).min(socket::LONGEST_WAIT);
        }
        self
    }
}

impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientOptions")
            .field("connect_timeout", &self.connect_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("reset_timeout", &self.reset_timeout)
            .field("dma", &self.dma.is_some())
            .finish()
    }
}

/// A connection to a device process. Dropping it closes the connection, which makes the device forget all that
/// this client mapped and set.
#[derive(Debug)]
pub struct Client {
    channel: Arc<Channel>,
    /// An epoll instance that watches for the hang-up alone, since the socket is also readable for replies.
    gone: OwnedFd,
    name: String,
    options: ClientOptions,
    server: Capabilities,
    resettable: bool,
    regions: Vec<Region>,
    msix_vectors: u16,
    has_request_notifier: bool,
}

impl Client {
    /// Connects to the device process that listens on `path` and learns what the device consists of.
    ///
    /// # Errors
    /// Each way in which this can go wrong has its variant in [`ClientError`]; nothing waits longer than the
    /// deadlines in `options`.
    pub fn connect(path: impl AsRef<Path>, options: ClientOptions) -> Result<Client, ClientError> {
        let (path, options) = (path.as_ref(), options.bounded());
        let stream = connect::open(path, options.connect_timeout)?;
        Client::start(stream, path.display().to_string(), options)
    }

    /// Uses a stream that is connected already, such as one of a socket pair.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn from_stream(stream: UnixStream, options: ClientOptions) -> Result<Client, ClientError> {
        Client::start(stream, "a connected socket".into(), options.bounded())
    }

    fn start(stream: UnixStream, name: String, options: ClientOptions) -> Result<Client, ClientError> {
        let gone = watch_for_hangup(&stream).map_err(|e| ClientError::Os {
            what: "watching the socket with epoll",
            source: e.into(),
        })?;
        let handler = dma::handler(options.dma.clone());
        let channel = Arc::new(Channel::new(stream, None, options.request_timeout, Some(handler)));
        // From here on dropping the client closes the channel, also where an error ends this.
        let mut client = Client {
            channel,
            gone,
            name,
            options,
            server: Capabilities::default(),
            resettable: false,
            regions: Vec::new(),
            msix_vectors: 0,
            has_request_notifier: false,
        };
        client.server = connect::negotiate(&client.channel, &client.name, &client.options)?;
        client.learn_device()?;
        if client.options.dma.is_some() {
            let channel = client.channel.clone();
            std::thread::Builder::new()
                .name("vfio-user-dma".into())
                .spawn(move || channel.pump())
                .map_err(|source| ClientError::Os {
                    what: "starting a thread",
                    source,
                })?;
        }
        Ok(client)
    }

    /// What the device is called in messages: its socket's path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the server said it can take. [`Capabilities::max_dma_maps`] and [`Capabilities::pgsizes`] bind
    /// the user of [`Client::dma_map`].
    pub fn server_capabilities(&self) -> &Capabilities {
        &self.server
    }

    /// Whether [`Client::reset`] can work.
    pub fn is_resettable(&self) -> bool {
        self.resettable
    }

    /// Size of a BAR in bytes; 0 where the device has none, and past BAR 5.
    pub fn bar_size(&self, bar: u8) -> u64 {
        self.bar(bar).map_or(0, |region| region.size)
    }

    /// A BAR's description; `None` past BAR 5. Its memory, if any, may be mapped by the caller.
    pub fn bar(&self, bar: u8) -> Option<&Region> {
        if bar < BARS {
            self.regions.get(usize::from(bar))
        } else {
            None
        }
    }

    /// Number of MSI-X vectors, at most 2048.
    pub fn msix_vectors(&self) -> u16 {
        self.msix_vectors
    }

    /// Reads configuration space.
    ///
    /// # Errors
    /// [`ClientError::OutOfRange`], or what [`Client::bar_read`] may say.
    pub fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), ClientError> {
        self.region_read(region_index::CONFIG, u64::from(offset), data)
    }

    /// Writes configuration space and waits until it is done.
    ///
    /// # Errors
    /// As [`Client::config_read`].
    pub fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), ClientError> {
        self.region_write(region_index::CONFIG, u64::from(offset), data)
    }

    /// Reads from a BAR: one message for each [`Capabilities::max_data_xfer_size`] bytes.
    ///
    /// # Errors
    /// [`ClientError::OutOfRange`], [`ClientError::TimedOut`], [`ClientError::Refused`],
    /// [`ClientError::Gone`], [`ClientError::BadReply`].
    pub fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        self.region_read(u32::from(bar), offset, data)
    }

    /// Writes to a BAR without waiting for the device: it sees the write before everything that is asked of it
    /// later, and a refusal is not reported. Blocks only while the socket is full.
    ///
    /// # Errors
    /// [`ClientError::OutOfRange`] or [`ClientError::Gone`].
    pub fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        const COMMAND: Command = Command::REGION_WRITE;
        let index = u32::from(bar);
        self.check_range(index, offset, data.len())?;
        for (offset, data) in self.pieces(offset, data) {
            let access = access(index, offset, data.len());
            self.channel
                .post(COMMAND, &[access.as_bytes(), data])
                .map_err(|reason| ClientError::Gone {
                    command: COMMAND,
                    reason,
                })?;
        }
        Ok(())
    }

    /// Writes to a BAR and waits until the device has done it.
    ///
    /// # Errors
    /// As [`Client::bar_read`].
    pub fn bar_write_and_wait(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.region_write(u32::from(bar), offset, data)
    }

    /// Gives eventfds to the vectors from `first` on; `None` takes a vector's away. Goes out in as many
    /// messages as the server's [`Capabilities::max_msg_fds`] asks for.
    ///
    /// # Errors
    /// [`ClientError::NoSuchVector`] before anything is sent; otherwise as [`Client::bar_read`], and a part of
    /// the vectors may be set then.
    pub fn set_msix(&self, first: u16, eventfds: &[Option<BorrowedFd<'_>>]) -> Result<(), ClientError> {
        let vectors = self.msix_vectors;
        if usize::from(first) + eventfds.len() > usize::from(vectors) {
            return Err(ClientError::NoSuchVector {
                first,
                count: eventfds.len(),
                vectors,
            });
        }
        self.set_eventfds(irq::MSIX, u32::from(first), eventfds)
    }

    /// Sets or takes away the eventfd by which the device asks its user to let go of it.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] where the server has no such notifier; otherwise as [`Client::bar_read`].
    pub fn set_request_notifier(&self, eventfd: Option<BorrowedFd<'_>>) -> Result<(), ClientError> {
        if !self.has_request_notifier {
            return Err(ClientError::Unsupported {
                what: "a device-request notifier",
            });
        }
        self.set_eventfds(irq::REQ, 0, &[eventfd])
    }

    /// Gives the device access to `len` bytes at `iova`. `memory` is the file they are in and the offset of the
    /// first; without it, [`ClientOptions::dma`] serves the range.
    ///
    /// The file should be a memfd with MFD_ALLOW_SEALING: a server that cares for its life puts F_SEAL_SHRINK
    /// on it, and may refuse memory that can't be sealed, or reach it by messages. Private memory can't be
    /// shared this way at all.
    ///
    /// # Errors
    /// As [`Client::bar_read`]. After [`ClientError::TimedOut`] and [`ClientError::Gone`] the device may or may not have the
    /// map.
    pub fn dma_map(
        &self,
        iova: u64,
        len: u64,
        readable: bool,
        writable: bool,
        memory: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<(), ClientError> {
        let mut flags = 0;
        if readable {
            flags |= dma_flags::READ;
        }
        if writable {
            flags |= dma_flags::WRITE;
        }
        let map = DmaMap {
            argsz: (size_of::<DmaMap>() as u32).into(),
            flags: flags.into(),
            offset: memory.map_or(0, |(_, offset)| offset).into(),
            address: iova.into(),
            size: len.into(),
        };
        let fds: Vec<_> = memory.iter().map(|(fd, _)| *fd).collect();
        self.call(Command::DMA_MAP, &[map.as_bytes()], &fds)?;
        Ok(())
    }

    /// Takes the access to a whole map away again. When this returns the device no longer touches the memory.
    ///
    /// # Errors
    /// As [`Client::bar_read`]. After any of them but [`ClientError::Refused`], the device may still have the map; unless
    /// [`Client::gone`] says [`CloseReason::PeerClosed`], for then it has let go of all.
    pub fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), ClientError> {
        let unmap = DmaUnmap {
            argsz: (size_of::<DmaUnmap>() as u32).into(),
            flags: 0.into(),
            address: iova.into(),
            size: len.into(),
        };
        self.call(Command::DMA_UNMAP, &[unmap.as_bytes()], &[])?;
        Ok(())
    }

    /// Function level reset.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] where the server offers none; otherwise as [`Client::bar_read`].
    pub fn reset(&self) -> Result<(), ClientError> {
        if !self.resettable {
            return Err(ClientError::Unsupported { what: "reset" });
        }
        self.call_within(Command::DEVICE_RESET, &[], &[], self.options.reset_timeout)?;
        Ok(())
    }

    /// Why the device is gone; `None` while it is there. One system call at most.
    pub fn gone(&self) -> Option<CloseReason> {
        match self.channel.closed() {
            Some(reason) => Some(reason),
            None if socket::hung_up(self.channel.socket()) => Some(CloseReason::PeerClosed),
            None => None,
        }
    }

    /// Becomes readable (and stays so) when the device is gone. For poll or epoll; not to be read from.
    pub fn gone_fd(&self) -> BorrowedFd<'_> {
        self.gone.as_fd()
    }

    /// Sends runs of eventfds, and runs without, in batches.
    fn set_eventfds(
        &self,
        index: u32,
        first: u32,
        eventfds: &[Option<BorrowedFd<'_>>],
    ) -> Result<(), ClientError> {
        let most = self.server.max_msg_fds as usize;
        if most == 0 && eventfds.iter().any(Option::is_some) {
            return Err(ClientError::Unsupported {
                what: "receiving eventfds",
            });
        }
        let mut start = first;
        // A message either sets all its vectors or, without descriptors, takes all away.
        for run in eventfds.chunk_by(|a, b| a.is_some() == b.is_some()) {
            let step = if run[0].is_some() { most } else { run.len() };
            for batch in run.chunks(step) {
                let set = SetIrqs {
                    argsz: (size_of::<SetIrqs>() as u32).into(),
                    flags: (set_irqs_flags::DATA_EVENTFD | set_irqs_flags::ACTION_TRIGGER).into(),
                    index: index.into(),
                    start: start.into(),
                    count: (batch.len() as u32).into(),
                };
                let fds: Vec<_> = batch.iter().flatten().copied().collect();
                self.call(Command::DEVICE_SET_IRQS, &[set.as_bytes()], &fds)?;
                start += batch.len() as u32;
            }
        }
        Ok(())
    }

    fn call(
        &self,
        command: Command,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, ClientError> {
        self.call_within(command, payload, fds, self.options.request_timeout)
    }

    fn call_within(
        &self,
        command: Command,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Message, ClientError> {
        self.channel
            .call(command, payload, fds, Instant::now() + timeout)
            .map_err(|e| match e {
                CallError::TimedOut => ClientError::TimedOut {
                    command,
                    millis: timeout.as_millis() as u64,
                },
                CallError::Refused(errno) => ClientError::Refused { command, errno },
                CallError::Closed(reason) => ClientError::Gone { command, reason },
            })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Also ends the DMA thread, which holds the channel.
        self.channel.close(CloseReason::Closed);
    }
}

/// An epoll instance that becomes readable when the peer of `stream` hangs up, or this side does.
fn watch_for_hangup(stream: &UnixStream) -> rustix::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        stream,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::RDHUP,
    )?;
    Ok(epoll)
}
