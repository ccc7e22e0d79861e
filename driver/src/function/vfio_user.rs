//! Functions that another process serves, by the vfio-user protocol.
//!
//! DMA memory is shared by descriptor: it is this process's memfd, mapped by the device process too. Memory without a
//! descriptor is refused ([`FunctionError::NeedsFd`]). There is no IOMMU: the device process can reach what it was
//! given, and its own idea of IOVA is all that keeps it there.
//!
//! A device process that does not answer a request in time counts as gone, and is asked nothing more. It may be at work
//! again later, with the memory that it has: only one that has closed the connection, as all do by ending, is known to
//! leave that alone.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferroce_vfio_user::client::{Client, ClientError, ClientOptions};
use ferroce_vfio_user::{CloseReason, ProtocolError};
use rustix::event::{EventfdFlags, epoll, eventfd};

use super::{
    CONFIG_SPACE_BYTES, Command, DmaLimits, FunctionAddress, FunctionError, GoneReason, HostPages, Leave,
    Owner, PciFunction, check_granule, check_range, check_vectors, readable, set_command, software,
};
use crate::mmio::{BarAccess, Mmio};

/// A function behind a vfio-user socket, open.
pub struct VfioUser {
    peer: Arc<Peer>,
    limits: DmaLimits,
    bar0: Mmio,
    /// Signalled when the device wants to be let go.
    request: OwnedFd,
    /// Readable when that is, or the peer has hung up, or it hangs.
    going: OwnedFd,
    has_space: AtomicBool,
}

/// The device process.
struct Peer {
    address: FunctionAddress,
    client: ManuallyDrop<Client>,
    owner: Owner,
    /// It did not answer in time.
    hangs: AtomicBool,
    /// Signalled then.
    hung: OwnedFd,
}

impl fmt::Debug for VfioUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VfioUser({})", self.peer.address)
    }
}

impl VfioUser {
    /// Connects to the device process that listens at `socket`.
    ///
    /// # Errors
    /// [`FunctionError::Connect`], which says what is wrong with the socket or with what listens there;
    /// [`FunctionError::Busy`] where the device has a user; [`FunctionError::NoBar`].
    pub fn open(socket: &Path) -> Result<VfioUser, FunctionError> {
        VfioUser::open_with(socket, ClientOptions::default())
    }

    /// As [`VfioUser::open`], with deadlines of the caller's choice.
    ///
    /// # Errors
    /// As [`VfioUser::open`].
    pub fn open_with(socket: &Path, options: ClientOptions) -> Result<VfioUser, FunctionError> {
        let address = FunctionAddress::VfioUser(socket.to_owned());
        let client = Client::connect(socket, options).map_err(|error| match error {
            ClientError::Busy { .. } => FunctionError::Busy {
                address: address.to_string(),
                path: socket.to_owned(),
            },
            error => FunctionError::Connect(error),
        })?;
        VfioUser::start(address, client)
    }

    fn start(address: FunctionAddress, client: Client) -> Result<VfioUser, FunctionError> {
        let io = |what: &'static str| move |e: rustix::io::Errno| FunctionError::io(what, e);
        let bar = client.bar(0).filter(|bar| bar.size != 0);
        let bar = bar.ok_or_else(|| FunctionError::NoBar {
            address: address.to_string(),
        })?;
        let len = bar.size;
        let areas = match &bar.memory {
            Some(memory) => software::map_areas(&memory.fd, memory.offset, &memory.areas, len)?,
            None => Vec::new(),
        };
        let server = client.server_capabilities();
        let page = (server.pgsizes & server.pgsizes.wrapping_neg()).max(4096);
        check_granule(&address, page)?;
        let max_mappings = u32::try_from(server.max_dma_maps).unwrap_or(u32::MAX);
        let limits = software::limits(max_mappings, page);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let request = eventfd(0, flags).map_err(io("making an eventfd"))?;
        let hung = eventfd(0, flags).map_err(io("making an eventfd"))?;
        let going =
            watch([request.as_fd(), hung.as_fd(), client.gone_fd()]).map_err(io("watching descriptors"))?;
        let client = ManuallyDrop::new(client);
        let peer = Arc::new(Peer {
            address,
            client,
            owner: Owner::here(),
            hangs: AtomicBool::new(false),
            hung,
        });
        let bar0 = Mmio::new(len, areas, peer.clone());
        let function = VfioUser {
            peer,
            limits,
            bar0,
            request,
            going,
            has_space: AtomicBool::new(false),
        };
        match function
            .peer
            .client
            .set_request_notifier(Some(function.request.as_fd()))
        {
            // A device that never asks is as good.
            Ok(()) | Err(ClientError::Unsupported { .. }) => {}
            Err(error) => return Err(function.peer.error("setting the request notifier", error)),
        }
        set_command(&function, Command::Own)?;
        Ok(function)
    }
}

/// An epoll instance that is readable when one of the descriptors is.
fn watch(fds: [BorrowedFd<'_>; 3]) -> rustix::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (i, fd) in (0..).zip(fds) {
        epoll::add(&epoll, fd, epoll::EventData::new_u64(i), epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Dropping the client hangs up, which a child must not do to its parent.
        if self.owner.is_here() {
            // SAFETY: not used again.
            unsafe { ManuallyDrop::drop(&mut self.client) };
        }
    }
}

impl Peer {
    /// The client, in the process that opened it. A peer that hangs is not waited for again, else each buffer that is
    /// dropped would take as long as the first request that it left without an answer.
    fn client(&self) -> Result<&Client, FunctionError> {
        self.owner.check(&self.address)?;
        if self.hangs.load(Ordering::Relaxed) {
            return Err(self.gone(GoneReason::PeerHung));
        }
        Ok(&self.client)
    }

    fn gone(&self, reason: GoneReason) -> FunctionError {
        FunctionError::Gone {
            address: self.address.to_string(),
            reason,
        }
    }

    /// The peer has closed the connection, or ended: it leaves memory alone.
    fn has_left(&self) -> bool {
        self.client.gone().is_some_and(|reason| has_left(&reason))
    }

    /// Remembers that the peer hangs, if that is what an error says.
    fn note(&self, error: &ClientError) {
        if matches!(error, ClientError::TimedOut { .. }) {
            self.hangs.store(true, Ordering::Relaxed);
            if let Err(error) = rustix::io::write(&self.hung, &1u64.to_ne_bytes()) {
                log::debug!("{}: noting that it hangs: {error}", self.address);
            }
        }
    }

    /// An error of the client in the driver's words; remembers that the peer hangs.
    fn error(&self, what: &'static str, source: ClientError) -> FunctionError {
        self.note(&source);
        match source {
            ClientError::Gone { reason, .. } => self.gone(gone_reason(&reason)),
            source => FunctionError::VfioUser {
                address: self.address.to_string(),
                what,
                source,
            },
        }
    }

    /// A map that was not answered.
    fn map_unknown(&self, len: u64, source: ClientError) -> FunctionError {
        self.note(&source);
        FunctionError::MapUnknown {
            address: self.address.to_string(),
            len,
            source,
        }
    }
}

fn gone_reason(reason: &CloseReason) -> GoneReason {
    match reason {
        CloseReason::Stalled => GoneReason::PeerHung,
        CloseReason::Protocol(_) => GoneReason::PeerConfused,
        _ => GoneReason::PeerClosed,
    }
}

/// Whether a connection ended since the peer closed its end, and not since this side had enough of it.
fn has_left(reason: &CloseReason) -> bool {
    matches!(
        reason,
        CloseReason::PeerClosed | CloseReason::Protocol(ProtocolError::Truncated)
    )
}

impl BarAccess for Peer {
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        self.client()?
            .bar_read(0, offset, data)
            .map_err(|e| self.error("read of a register", e))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        self.client()?
            .bar_write(0, offset, data)
            .map_err(|e| self.error("write of a register", e))
    }
}

impl PciFunction for VfioUser {
    fn address(&self) -> &FunctionAddress {
        &self.peer.address
    }

    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        check_range(
            "configuration space",
            offset.into(),
            data.len() as u64,
            CONFIG_SPACE_BYTES.into(),
        )?;
        self.peer
            .client()?
            .config_read(offset, data)
            .map_err(|e| self.peer.error("read of configuration space", e))
    }

    fn config_write(&self, offset: u16, data: &[u8], _leave: Leave) -> Result<(), FunctionError> {
        check_range(
            "configuration space",
            offset.into(),
            data.len() as u64,
            CONFIG_SPACE_BYTES.into(),
        )?;
        self.peer
            .client()?
            .config_write(offset, data)
            .map_err(|e| self.peer.error("write of configuration space", e))
    }

    fn bar0(&self) -> Result<Mmio, FunctionError> {
        Ok(self.bar0.clone())
    }

    fn msix_vectors(&self) -> u16 {
        self.peer.client.msix_vectors()
    }

    fn set_msix(&self, first: u16, eventfds: &[Option<BorrowedFd<'_>>]) -> Result<(), FunctionError> {
        check_vectors(&self.peer.address, first, eventfds.len(), self.msix_vectors())?;
        if eventfds.is_empty() {
            return Ok(());
        }
        self.peer
            .client()?
            .set_msix(first, eventfds)
            .map_err(|e| self.peer.error("setting of MSI-X vectors", e))
    }

    fn dma_limits(&self) -> &DmaLimits {
        &self.limits
    }

    fn dma_map(&self, iova: u64, memory: &HostPages<'_>, _leave: Leave) -> Result<(), FunctionError> {
        let Some(file) = memory.file() else {
            return Err(FunctionError::NeedsFd {
                address: self.peer.address.to_string(),
            });
        };
        let error = |error| match error {
            ClientError::Refused { errno, .. } if errno == libc::ENOSPC as u32 => {
                FunctionError::MappingLimit {
                    limit: self.limits.max_mappings.unwrap_or(u32::MAX),
                }
            }
            ClientError::Refused { errno, .. } => {
                let source = io::Error::from_raw_os_error(errno.cast_signed());
                FunctionError::Map {
                    iova,
                    len: memory.len(),
                    source,
                }
            }
            ClientError::TimedOut { .. } | ClientError::Gone { .. } if !self.peer.has_left() => {
                self.peer.map_unknown(memory.len(), error)
            }
            error => self.peer.error("mapping of memory for DMA", error),
        };
        let client = self.peer.client()?;
        if let Some(reason) = client.gone() {
            // Nothing is sent any more.
            return Err(self.peer.gone(gone_reason(&reason)));
        }
        client
            .dma_map(iova, memory.len(), true, true, Some(file))
            .map_err(error)
    }

    fn dma_unmap(&self, iova: u64, len: u64, _leave: Leave) -> Result<(), FunctionError> {
        self.peer.owner.check(&self.peer.address)?;
        if self.peer.has_left() {
            return Ok(());
        }
        match self.peer.client()?.dma_unmap(iova, len) {
            Ok(()) => Ok(()),
            Err(ClientError::Gone { .. }) if self.peer.has_left() => Ok(()),
            Err(ClientError::Refused { errno, .. }) => {
                let source = io::Error::from_raw_os_error(errno.cast_signed());
                Err(FunctionError::Unmap { iova, len, source })
            }
            Err(error @ ClientError::TimedOut { .. }) => {
                log::error!("{}: {error}", self.peer.address);
                self.peer.note(&error);
                Err(self.peer.gone(GoneReason::PeerHung))
            }
            Err(error) => Err(self.peer.error("unmapping of memory", error)),
        }
    }

    fn has_space(&self, _leave: Leave) -> &AtomicBool {
        &self.has_space
    }

    fn reset(&self) -> Result<(), FunctionError> {
        self.peer.client()?.reset().map_err(|error| match error {
            ClientError::Unsupported { .. } => {
                let address = self.peer.address.to_string();
                FunctionError::NoReset {
                    address,
                    why: "its device process does not offer that",
                }
            }
            error => self.peer.error("function reset", error),
        })?;
        set_command(self, Command::Own)
    }

    fn gone(&self) -> Option<GoneReason> {
        if let Some(reason) = self.peer.client.gone() {
            return Some(gone_reason(&reason));
        }
        if readable(self.peer.hung.as_fd()) {
            return Some(GoneReason::PeerHung);
        }
        readable(self.request.as_fd()).then_some(GoneReason::Requested)
    }

    fn gone_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.going.as_fd())
    }
}

impl Drop for VfioUser {
    fn drop(&mut self) {
        if self.peer.owner.is_here()
            && self.gone().is_none_or(|reason| reason == GoneReason::Requested)
            && let Err(error) = set_command(self, Command::LetGo)
        {
            log::debug!("{}: bus mastering stays on: {error}", self.peer.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeDevice, signal};
    use super::super::{LEAVE, open};
    use super::*;
    use crate::function::host_page_size;
    use crate::mem::{CallerMapping, CallerMemory, DmaError, DmaSpace, SharedMapping, map_fd};
    use ferroce_vfio_user::server::{Server, StopHandle, serve_stream};
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    /// A device process, as a thread.
    struct Process {
        device: Arc<FakeDevice>,
        path: std::path::PathBuf,
        stop: StopHandle,
        thread: Option<JoinHandle<()>>,
        _directory: tempfile::TempDir,
    }

    impl Process {
        fn start() -> Process {
            let directory = tempfile::tempdir().expect("directory");
            let path = directory.path().join("nic.sock");
            let (device, stop) = (FakeDevice::new(), StopHandle::new().expect("stop handle"));
            let server = Server::bind(&path).expect("binds");
            let (served, handle) = (device.clone(), stop.clone());
            let thread = std::thread::spawn(move || server.serve(served, &handle).expect("serves"));
            Process {
                device,
                path,
                stop,
                thread: Some(thread),
                _directory: directory,
            }
        }

        fn open(&self) -> Arc<dyn PciFunction> {
            open(&FunctionAddress::VfioUser(self.path.clone())).expect("opens")
        }

        fn end(&mut self) {
            self.stop.stop();
            if let Some(thread) = self.thread.take() {
                thread.join().expect("the server ends");
            }
        }
    }

    impl Drop for Process {
        fn drop(&mut self) {
            self.end();
        }
    }

    #[test]
    fn a_device_process_is_used_like_any_function() {
        let process = Process::start();
        let function = process.open();
        let mut id = [0; 4];
        function.config_read(8, &mut id).expect("inside");
        assert_eq!(id, [8, 9, 10, 11]);
        let bar = function.bar0().expect("BAR 0");
        assert_eq!(bar.len(), FakeDevice::BAR_LEN);
        bar.write32(0x40, 0x0102_0304);
        bar.doorbell(0x800).expect("inside").ring(5);
        assert_eq!(
            bar.read32(0x40),
            0x0102_0304,
            "also shows that the writes before it have arrived"
        );
        assert_eq!(
            process.device.bar_writes.lock().unwrap().last(),
            Some(&(0x800, vec![0, 0, 0, 0, 0, 0, 0, 5]))
        );
        function.reset().expect("resets");
        assert_eq!(process.device.resets.load(SeqCst), 1);
        assert!(function.config_read(4095, &mut id).is_err());
    }

    #[test]
    fn memory_is_shared_both_ways() {
        let process = Process::start();
        let space = DmaSpace::new(process.open()).expect("space");
        let buffer = space.alloc(3 << 20).expect("fits");
        buffer.write(12_345, b"to the device").expect("inside");
        assert_eq!(
            process.device.dma_read(buffer.iova() + 12_345, 13),
            b"to the device"
        );
        process
            .device
            .dma_write(buffer.iova() + (1 << 20), b"from the device");
        let mut back = [0; 15];
        buffer.read(1 << 20, &mut back).expect("inside");
        assert_eq!(&back, b"from the device");
        drop(buffer);
        assert!(process.device.maps.lock().unwrap().is_empty());
    }

    #[test]
    fn v04_the_last_of_512_vectors_arrives() {
        let process = Process::start();
        let function = process.open();
        let fds: Vec<_> = (0..512)
            .map(|_| eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd"))
            .collect();
        for count in [1, 33, 256, 512] {
            let vectors: Vec<_> = fds[..count].iter().map(|fd| Some(fd.as_fd())).collect();
            function.set_msix(0, &vectors).expect("vectors");
            process.device.interrupt(count as u16 - 1);
            assert!(readable(fds[count - 1].as_fd()));
        }
        assert!(matches!(
            function.set_msix(512, &[None]),
            Err(FunctionError::NoSuchVector { .. })
        ));
    }

    #[test]
    fn a_device_process_that_ends_is_noticed_and_frees_its_memory() {
        let mut process = Process::start();
        let function = process.open();
        let space = DmaSpace::new(function.clone()).expect("space");
        let buffer = space.alloc(2 << 20).expect("fits");
        assert_eq!(function.gone(), None);
        assert!(!readable(function.gone_fd().expect("fd")));
        process.end();
        assert_eq!(function.gone(), Some(GoneReason::PeerClosed));
        assert!(readable(function.gone_fd().expect("fd")));
        assert!(matches!(function.reset(), Err(FunctionError::Gone { .. })));
        assert_eq!(function.bar0().expect("BAR 0").read32(0), u32::MAX);
        drop(buffer);
        assert_eq!(space.leaked_bytes(), 0);
    }

    #[test]
    fn a_request_to_let_go_is_noticed() {
        let process = Process::start();
        let function = process.open();
        signal(
            process
                .device
                .request
                .lock()
                .unwrap()
                .as_ref()
                .expect("notifier")
                .as_fd(),
        );
        assert_eq!(function.gone(), Some(GoneReason::Requested));
        assert!(readable(function.gone_fd().expect("fd")));
    }

    #[test]
    fn sockets_without_a_device_are_told_apart() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("nic.sock");
        let error = |path: &Path| {
            open(&FunctionAddress::VfioUser(path.to_owned()))
                .expect_err("no device")
                .to_string()
        };
        assert!(error(&path).contains("does not exist"), "{}", error(&path));
        drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
        assert!(error(&path).contains("nobody listens"), "{}", error(&path));
        assert!(error(directory.path()).contains("not a socket"));
        let process = Process::start();
        let _first = process.open();
        assert!(
            error(&process.path).contains("in use by another process"),
            "{}",
            error(&process.path)
        );
    }

    #[test]
    fn m06_a_child_does_not_hang_up_for_its_parent() {
        let process = Process::start();
        let function = VfioUser::open(&process.path).expect("opens");
        let client = function
            .peer
            .client
            .gone_fd()
            .try_clone_to_owned()
            .expect("duplicates");
        let mut function = function;
        // As a child sees it.
        let peer = Arc::get_mut(&mut function.peer);
        assert!(peer.is_none(), "BAR 0 holds the device too");
        drop(std::mem::replace(
            &mut function.bar0,
            Mmio::trapped(0, Arc::new(Nothing)),
        ));
        Arc::get_mut(&mut function.peer).expect("nobody else").owner = Owner::elsewhere();
        let error = function
            .config_write(4, &[0, 0], LEAVE)
            .expect_err("in a child")
            .to_string();
        assert!(error.contains("fork"), "{error}");
        assert!(BarAccess::write(&*function.peer, 0x800, &[0; 8]).is_err());
        drop(function);
        assert!(!readable(client.as_fd()), "the connection stands");
        assert_ne!(
            process.device.config.lock().unwrap()[4] & 4,
            0,
            "still bus master"
        );
    }

    struct Nothing;

    impl BarAccess for Nothing {
        fn read(&self, _offset: u64, _data: &mut [u8]) -> Result<(), FunctionError> {
            Ok(())
        }

        fn write(&self, _offset: u64, _data: &[u8]) -> Result<(), FunctionError> {
            Ok(())
        }
    }

    #[test]
    fn a_device_process_that_stops_answering_counts_as_gone() {
        let process = Process::start();
        let mut options = ClientOptions::default();
        options.request_timeout = Duration::from_millis(50);
        let function = VfioUser::open_with(&process.path, options).expect("opens");
        assert_eq!(function.gone(), None);
        // The device waits for this as long as the test wants.
        let held = process.device.bar.lock().unwrap();
        assert_eq!(function.bar0().expect("BAR 0").read32(0), u32::MAX);
        assert_eq!(function.gone(), Some(GoneReason::PeerHung));
        assert!(readable(function.gone_fd().expect("fd")));
        drop(held);
    }

    /// Memory of the program in a file, and a map of it for the device.
    fn map_callers(space: &Arc<DmaSpace>) -> (SharedMapping, Result<Vec<CallerMapping>, DmaError>) {
        let len = host_page_size();
        let file = rustix::fs::memfd_create("caller", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("memfd");
        rustix::fs::ftruncate(&file, len as u64).expect("its size");
        let memory = map_fd(&file, 0, len as u64).expect("maps");
        let piece = CallerMemory {
            va: memory.as_ptr(),
            len,
            file: Some((file.as_fd(), 0)),
        };
        // SAFETY: the fake device touches it only when a test says so, and the test keeps it.
        let mapped = unsafe { space.map_caller(&[piece]) };
        (memory, mapped)
    }

    fn open_impatient(process: &Process, millis: u64) -> (Arc<VfioUser>, Arc<DmaSpace>) {
        let mut options = ClientOptions::default();
        options.request_timeout = Duration::from_millis(millis);
        let function = Arc::new(VfioUser::open_with(&process.path, options).expect("opens"));
        (function.clone(), DmaSpace::new(function).expect("space"))
    }

    #[test]
    fn memory_of_the_program_is_not_known_to_be_free_of_a_process_that_hangs() {
        let mut process = Process::start();
        let (function, space) = open_impatient(&process, 200);
        let (_memory, mapped) = map_callers(&space);
        let (_more, later) = map_callers(&space);
        let buffers: Vec<_> = (0..50).map(|_| space.alloc(1 << 20).expect("fits")).collect();
        let device = process.device.clone();
        let held = device.bar.lock().unwrap();
        let read = function.bar0().expect("BAR 0").read32(0);
        let started = Instant::now();
        drop(mapped);
        let leaked = space.leaked_bytes();
        drop(buffers);
        let (took, reset) = (started.elapsed(), function.reset());
        drop(held);
        assert_eq!((read, leaked), (u32::MAX, host_page_size() as u64));
        assert_eq!(space.leaked_bytes(), leaked, "our own memory is nobody else's");
        assert!(
            took < Duration::from_secs(5),
            "it is not waited for again: {took:?}"
        );
        assert!(matches!(reset, Err(FunctionError::Gone { .. })));
        process.end();
        drop(later);
        assert_eq!(
            space.leaked_bytes(),
            host_page_size() as u64,
            "it has ended, and touches nothing"
        );
    }

    #[test]
    fn memory_of_the_program_is_not_known_to_be_free_of_a_process_that_reads_nothing() {
        let process = Process::start();
        let (function, space) = open_impatient(&process, 50);
        let (_memory, mapped) = map_callers(&space);
        let device = process.device.clone();
        let held = device.bar.lock().unwrap();
        let bar = function.bar0().expect("BAR 0");
        while function.gone().is_none() {
            bar.write32(0, 0);
        }
        drop(mapped);
        drop(held);
        assert_eq!(function.gone(), Some(GoneReason::PeerHung));
        assert_eq!(space.leaked_bytes(), host_page_size() as u64);
    }

    #[test]
    fn a_map_that_is_not_answered_counts_as_leaked() {
        let process = Process::start();
        let (_function, space) = open_impatient(&process, 50);
        let device = process.device.clone();
        let held = device.maps.lock().unwrap();
        let (_memory, mapped) = map_callers(&space);
        let leaked = space.leaked_bytes();
        // This one is not even sent.
        let (_memory, again) = map_callers(&space);
        drop(held);
        let error = mapped.expect_err("no answer");
        assert!(
            matches!(error, DmaError::Function(FunctionError::MapUnknown { .. })),
            "{error}"
        );
        assert_eq!(leaked, host_page_size() as u64);
        assert!(again.is_err());
        assert_eq!(space.leaked_bytes(), leaked);
    }

    #[test]
    fn a_process_with_pages_too_large_is_refused() {
        use std::io::{Read, Write};
        let (ours, near) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let (mut far, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let stop = StopHandle::new().expect("stop handle");
        let handle = stop.clone();
        let server =
            std::thread::spawn(move || serve_stream(theirs, FakeDevice::new(), &handle, Default::default()));
        let (mut near_in, mut far_out) = (near.try_clone().expect("dup"), far.try_clone().expect("dup"));
        let there = std::thread::spawn(move || std::io::copy(&mut near_in, &mut far_out));
        let back = std::thread::spawn(move || {
            let (mut near, mut bytes) = (near, [0; 4096]);
            while let Ok(count @ 1..) = far.read(&mut bytes) {
                let text = bytes[..count].to_vec();
                let said = br#""max_dma_maps":65535,"pgsizes":4096"#;
                let lie = br#""max_dma_maps":65,"pgsizes":8388608"#;
                let at = text.windows(said.len()).position(|window| window == said);
                let (head, tail) = text.split_at(at.unwrap_or(0));
                let sent = near.write_all(head).and_then(|()| match at {
                    Some(_) => near.write_all(&[lie, &tail[said.len()..]].concat()),
                    None => near.write_all(tail),
                });
                if sent.is_err() {
                    break;
                }
            }
        });
        let client = Client::from_stream(ours, ClientOptions::default()).expect("connects");
        let error = VfioUser::start(FunctionAddress::VfioUser("odd".into()), client)
            .expect_err("no use")
            .to_string();
        assert!(error.contains("8388608") && error.contains("odd"), "{error}");
        stop.stop();
        server.join().expect("the server ends");
        for thread in [there.join().map(drop), back.join()] {
            thread.expect("the relay ends");
        }
    }

    #[test]
    fn a_socket_that_takes_no_connection_is_told() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("nic.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("binds");
        let mut options = ClientOptions::default();
        (options.connect_timeout, options.request_timeout) =
            (Duration::from_millis(20), options.connect_timeout);
        let error = VfioUser::open_with(&path, options)
            .expect_err("nobody answers")
            .to_string();
        assert!(error.contains("20 ms"), "{error}");
    }
}
