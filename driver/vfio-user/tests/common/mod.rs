//! A small device and what the tests do with it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferroce_vfio_user::client::{Client, ClientOptions};
use ferroce_vfio_user::device::{BarArea, BarMemory, DeviceError, DmaMap, DmaMessages, PciDevice};
use ferroce_vfio_user::server::{Server, ServerOptions, StopHandle};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

pub const BAR0_SIZE: u64 = 0x4000;
/// Writing here makes the device signal the vector that is written.
pub const BAR0_FIRE: u64 = 0x3000;
/// Writing an IOVA here makes the device read 8 bytes there by messages and write them, plus one, 8 bytes on.
pub const BAR0_DMA: u64 = 0x3008;
/// The same from another thread, while the one that serves the client waits for it.
pub const BAR0_DMA_ELSEWHERE: u64 = 0x3010;

#[derive(Default)]
pub struct State {
    pub config: Vec<u8>,
    pub bar0: Vec<u8>,
    pub msix: Vec<Option<OwnedFd>>,
    pub request: Option<OwnedFd>,
    pub maps: BTreeMap<u64, DmaMap>,
    pub host: Option<Arc<dyn DmaMessages>>,
    pub resets: u32,
    pub attached: u32,
    pub detached: u32,
    pub dma_result: Option<Result<u64, String>>,
}

/// 16 KiB of memory as BAR 0, a mappable BAR 2, MSI-X.
pub struct FakeDevice {
    pub state: Mutex<State>,
    pub changed: Condvar,
    /// Called by the next detaching.
    pub on_detach: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    vectors: u16,
    memory: OwnedFd,
}

impl FakeDevice {
    pub fn new(vectors: u16) -> Arc<FakeDevice> {
        let mut config = vec![0; 4096];
        config[..4].copy_from_slice(&[0xb3, 0x15, 0x13, 0x10]);
        let msix = (0..vectors).map(|_| None).collect();
        let state = State {
            config,
            bar0: vec![0; BAR0_SIZE as usize],
            msix,
            ..State::default()
        };
        let memory = memfd(0x4000, true);
        Arc::new(FakeDevice {
            state: Mutex::new(state),
            changed: Condvar::new(),
            on_detach: Mutex::new(None),
            vectors,
            memory,
        })
    }

    /// Waits until the state is as wanted.
    pub fn wait(&self, what: &str, mut wanted: impl FnMut(&State) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut state = self.state.lock().unwrap();
        while !wanted(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain for {what}");
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    fn range(offset: u64, len: usize, limit: usize) -> Result<std::ops::Range<usize>, DeviceError> {
        let end = offset.checked_add(len as u64).filter(|&end| end <= limit as u64);
        let error = DeviceError::OutOfRange {
            what: "BAR 0",
            offset,
            len: len as u64,
            limit: limit as u64,
        };
        Ok(offset as usize..end.ok_or(error)? as usize)
    }

    fn message_dma(host: &dyn DmaMessages, iova: u64) -> Result<u64, DeviceError> {
        let mut data = [0; 8];
        host.read(iova, &mut data)?;
        let value = u64::from_le_bytes(data);
        host.write(iova + 8, &(value + 1).to_le_bytes())?;
        Ok(value)
    }
}

impl PciDevice for FakeDevice {
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), DeviceError> {
        let range = Self::range(offset.into(), data.len(), 4096)?;
        data.copy_from_slice(&self.state.lock().unwrap().config[range]);
        Ok(())
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), DeviceError> {
        let range = Self::range(offset.into(), data.len(), 4096)?;
        self.state.lock().unwrap().config[range].copy_from_slice(data);
        Ok(())
    }

    fn bar_size(&self, bar: u8) -> u64 {
        match bar {
            0 => BAR0_SIZE,
            2 => 0x4000,
            _ => 0,
        }
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        if bar == 2 {
            rustix::io::pread(&self.memory, data, offset).map_err(|e| DeviceError::os("pread", e))?;
            return Ok(());
        }
        let range = Self::range(offset, data.len(), BAR0_SIZE as usize)?;
        data.copy_from_slice(&self.state.lock().unwrap().bar0[range]);
        Ok(())
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        if bar == 2 {
            rustix::io::pwrite(&self.memory, data, offset).map_err(|e| DeviceError::os("pwrite", e))?;
            return Ok(());
        }
        let range = Self::range(offset, data.len(), BAR0_SIZE as usize)?;
        let mut state = self.state.lock().unwrap();
        state.bar0[range].copy_from_slice(data);
        if offset == BAR0_FIRE
            && let Some(Some(fd)) = state.msix.get(usize::from(data[0]) | usize::from(data[1]) << 8)
        {
            rustix::io::write(fd, &1u64.to_ne_bytes()).map_err(|e| DeviceError::os("eventfd", e))?;
        }
        if (offset == BAR0_DMA || offset == BAR0_DMA_ELSEWHERE)
            && let Some(host) = state.host.clone()
        {
            drop(state);
            let iova = u64::from_le_bytes(data.try_into().expect("8 bytes"));
            let dma = move || Self::message_dma(&*host, iova);
            let result = if offset == BAR0_DMA {
                dma()
            } else {
                std::thread::spawn(dma).join().unwrap()
            };
            let result = result.map_err(|e| e.to_string());
            state = self.state.lock().unwrap();
            state.dma_result = Some(result);
        }
        self.changed.notify_all();
        Ok(())
    }

    fn bar_memory(&self, bar: u8) -> Option<BarMemory> {
        let fd = self.memory.try_clone().ok()?;
        let areas = vec![
            BarArea {
                offset: 0x1000,
                len: 0x1000,
            },
            BarArea {
                offset: 0x3000,
                len: 0x1000,
            },
        ];
        (bar == 2).then_some(BarMemory { fd, offset: 0, areas })
    }

    fn msix_vectors(&self) -> u16 {
        self.vectors
    }

    fn set_msix(&self, first: u16, eventfds: Vec<Option<OwnedFd>>) -> Result<(), DeviceError> {
        let mut state = self.state.lock().unwrap();
        for (slot, fd) in state.msix[usize::from(first)..].iter_mut().zip(eventfds) {
            *slot = fd;
        }
        Ok(())
    }

    fn set_request_notifier(&self, eventfd: Option<OwnedFd>) -> Result<(), DeviceError> {
        self.state.lock().unwrap().request = eventfd;
        Ok(())
    }

    fn dma_map(&self, map: DmaMap) -> Result<(), DeviceError> {
        self.state.lock().unwrap().maps.insert(map.iova, map);
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError> {
        let mut state = self.state.lock().unwrap();
        let map = state
            .maps
            .remove(&iova)
            .ok_or(DeviceError::NotMapped { iova, len })?;
        assert_eq!(map.len, len, "the server passes on only exact unmaps");
        Ok(())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock().unwrap();
        state.resets += 1;
        state.bar0.fill(0);
        Ok(())
    }

    fn attached(&self, host: Option<Arc<dyn DmaMessages>>) {
        let mut state = self.state.lock().unwrap();
        state.host = host;
        state.attached += 1;
        self.changed.notify_all();
    }

    fn detached(&self) {
        if let Some(call) = self.on_detach.lock().unwrap().take() {
            call();
        }
        let mut state = self.state.lock().unwrap();
        state.maps.clear();
        state.msix.fill_with(|| None);
        state.request = None;
        state.host = None;
        state.bar0.fill(0);
        state.detached += 1;
        self.changed.notify_all();
    }
}

/// A server in a thread, on a socket in a directory of its own.
pub struct Served {
    pub path: PathBuf,
    pub device: Arc<FakeDevice>,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Served {
    pub fn new(vectors: u16) -> Served {
        Served::with(vectors, ServerOptions::default())
    }

    pub fn with(vectors: u16, options: ServerOptions) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nic.sock");
        let device = FakeDevice::new(vectors);
        let stop = StopHandle::new().unwrap();
        let server = Server::bind_with(&path, options).unwrap();
        let (their_device, their_stop) = (device.clone(), stop.clone());
        let thread = std::thread::spawn(move || server.serve(their_device, &their_stop).unwrap());
        Served {
            path,
            device,
            stop,
            thread: Some(thread),
            _directory: directory,
        }
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.path, ClientOptions::default()).unwrap()
    }

    pub fn stop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap();
            }
        }
    }
}

pub fn memfd(len: u64, sealable: bool) -> OwnedFd {
    let flags = if sealable {
        MemfdFlags::ALLOW_SEALING
    } else {
        MemfdFlags::empty()
    };
    let fd = memfd_create("test", flags | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Whether an eventfd was signalled.
pub fn signalled(fd: &OwnedFd) -> bool {
    rustix::io::read(fd, &mut [0; 8]) == Ok(8)
}

/// Descriptors that this process has open.
pub fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A message by hand: header fields and payload.
pub fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&command.to_le_bytes());
    bytes.extend_from_slice(&(16 + payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A reply by hand: header fields and payload.
pub struct Answer {
    pub id: u16,
    pub command: u16,
    pub flags: u32,
    pub error: u32,
    pub payload: Vec<u8>,
}

/// A client that says whatever it is told.
pub struct RawClient(pub UnixStream);

impl RawClient {
    /// Connects and says nothing.
    pub fn silent(served: &Served) -> RawClient {
        let stream = UnixStream::connect(&served.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        RawClient(stream)
    }

    /// Connects and negotiates.
    pub fn new(served: &Served) -> RawClient {
        let mut client = RawClient::silent(served);
        let answer = client.ask(1, b"\0\0\x01\0").expect("an answer to VERSION");
        assert_eq!(answer.flags, 1);
        client
    }

    pub fn ask(&mut self, command: u16, payload: &[u8]) -> Option<Answer> {
        self.0.write_all(&message(77, command, 0, payload)).ok()?;
        let answer = self.read()?;
        assert_eq!((answer.id, answer.command), (77, command));
        Some(answer)
    }

    /// Sends a command with descriptors.
    pub fn ask_with_fds(&mut self, command: u16, payload: &[u8], fds: &[OwnedFd]) -> Option<Answer> {
        send_with_fds(&self.0, &message(77, command, 0, payload), fds);
        self.read()
    }

    pub fn read(&mut self) -> Option<Answer> {
        read_message(&self.0)
    }
}

/// Reads one message; `None` at the end of the stream.
pub fn read_message(mut stream: &UnixStream) -> Option<Answer> {
    use std::io::Read;
    let mut header = [0; 16];
    stream.read_exact(&mut header).ok()?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut payload = vec![0; word(4) as usize - 16];
    stream.read_exact(&mut payload).ok()?;
    Some(Answer {
        id: word(0) as u16,
        command: (word(0) >> 16) as u16,
        flags: word(8),
        error: word(12),
        payload,
    })
}

pub fn send_with_fds(stream: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd;
    let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    let sent = sendmsg(
        stream,
        &[std::io::IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
    assert_eq!(sent, bytes.len());
}
