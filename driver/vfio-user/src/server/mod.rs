//! The device's end: a socket on which one client at a time uses a [`PciDevice`].
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use ferroce_vfio_user::device::PciDevice;
//! use ferroce_vfio_user::server::{Server, ServerError, StopHandle};
//!
//! /// Serves until somebody calls `stop.stop()`.
//! fn run(device: Arc<dyn PciDevice>, stop: &StopHandle) -> Result<(), ServerError> {
//!     Server::bind("/run/nic0.sock")?.serve(device, stop)
//! }
//! ```
//!
//! A client is a process that anybody may have written. It gets an error reply for what it asks wrongly, loses
//! its connection where its bytes make no sense, and can't make the server allocate or keep descriptors beyond
//! fixed limits. When it goes, in whatever way, the device is told ([`PciDevice::detached`]) and the next
//! client starts afresh. While a client is there, others are turned away with EBUSY. Whoever may connect is
//! decided by the permissions of the socket file.
//!
//! Tried with QEMU 11.1.3's `vfio-user-pci`, with and without an emulated IOMMU, with sealed, unsealed and
//! private guest memory, and with the vfio_user crate's client.

mod dma;
mod info;
mod messages;
mod session;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFlags, eventfd};

use crate::channel::Channel;
use crate::device::PciDevice;
use crate::protocol::MAX_DATA_XFER;
use crate::socket::{self, CloseReason, Waited};

/// Most DMA maps that QEMU lets a server offer, and the protocol's default.
const MAX_DMA_MAPS: u32 = 65535;

/// How a server treats its clients.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// What becomes of DMA memory that its owner can shrink.
    pub unsealed_memory: UnsealedMemory,
    /// DMA maps that a client may have at a time, at most 65535 (what QEMU accepts).
    pub max_dma_maps: u32,
    /// Data in one access in bytes, at most 1 MiB.
    pub max_data_xfer_size: u32,
    /// How long a connection may take to say its version.
    pub handshake_timeout: Duration,
    /// How long a client may leave replies unread before it is dropped.
    pub send_timeout: Duration,
    /// How long a client may take to answer a DMA message.
    pub dma_timeout: Duration,
    /// Whether serving ends when the first client has gone.
    pub single_client: bool,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            unsealed_memory: UnsealedMemory::UseMessages,
            max_dma_maps: MAX_DMA_MAPS,
            max_data_xfer_size: MAX_DATA_XFER,
            handshake_timeout: Duration::from_secs(5),
            send_timeout: Duration::from_secs(30),
            dma_timeout: Duration::from_secs(10),
            single_client: false,
        }
    }
}

impl ServerOptions {
    /// Makes the times such that deadlines can be made of them: a year at most.
    fn bound_times(&mut self) {
        for time in [
            &mut self.handshake_timeout,
            &mut self.send_timeout,
            &mut self.dma_timeout,
        ] {
            *time = (*time).min(socket::LONGEST_WAIT);
        }
    }
}

/// What becomes of DMA memory that is not sealed against shrinking.
///
/// Who maps a file and touches a page past its end gets SIGBUS, which ends the process. So a client that
/// shrinks its file could end the server, unless the file carries F_SEAL_SHRINK. The server puts that seal on
/// whatever lets it (every memfd made with MFD_ALLOW_SEALING, so also that of QEMU's `memory-backend-memfd`),
/// see [`check_dma_fd`](crate::device::check_dma_fd). This is about the rest: tmpfs and hugetlbfs files, memfds
/// without sealing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsealedMemory {
    /// The map is refused with EPERM. QEMU does not start then if any of its memory is unsealed.
    Refuse,
    /// The descriptor is dropped and the memory reached by DMA messages, as if it had come without. Safe and
    /// slow.
    UseMessages,
    /// The memory is mapped. For clients that are trusted as much as this process itself.
    Trust,
}

/// Why a server can't work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Another process listens there.
    #[error("another process serves {}; stop it or choose another path", .path.display())]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something that is not a socket is in the way.
    #[error("{} exists and is not a socket; choose another path", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The path does not fit in a socket address.
    #[error("the path {} is longer than the 107 bytes of a unix socket address", .path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("can't listen on {}", .path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The system refused something.
    #[error("{what} failed")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Bytes of a path in a socket address, without the one that ends it.
const LONGEST_PATH: usize = 107;

/// Ends a server from another thread or from a signal handler's thread. Clones stop the same servers.
#[derive(Debug, Clone)]
pub struct StopHandle {
    fd: Arc<OwnedFd>,
}

impl StopHandle {
    /// A handle that has not been used.
    ///
    /// # Errors
    /// [`ServerError::Os`] where the process has no file descriptor left.
    pub fn new() -> Result<StopHandle, ServerError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| ServerError::Os {
            what: "creating an eventfd",
            source: e.into(),
        })?;
        Ok(StopHandle { fd: Arc::new(fd) })
    }

    /// Ends [`Server::serve`] wherever this handle was given to it. Stays in effect.
    pub fn stop(&self) {
        // The counter never gets near its limit, the only thing that can fail here.
        if let Err(e) = rustix::io::write(&*self.fd, &1u64.to_ne_bytes()) {
            log::error!("stopping a vfio-user server failed: {e}");
        }
    }

    /// Whether [`StopHandle::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        let now = Some(Instant::now());
        matches!(
            socket::wait(self.fd.as_fd(), PollFlags::IN, None, now),
            Ok(Waited::Ready)
        )
    }
}

/// A listening socket. Its file is removed when this is dropped.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket file, so that nobody else's is removed.
    file: Option<(u64, u64)>,
    options: ServerOptions,
}

impl Server {
    /// Listens on `path` with the default options. A socket file that a dead server left there is replaced.
    ///
    /// # Errors
    /// [`ServerError::InUse`], [`ServerError::NotASocket`], [`ServerError::PathTooLong`], [`ServerError::Bind`].
    pub fn bind(path: impl AsRef<Path>) -> Result<Server, ServerError> {
        Server::bind_with(path, ServerOptions::default())
    }

    /// Listens on `path`. Limits above what the protocol can do are cut to that.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn bind_with(path: impl AsRef<Path>, mut options: ServerOptions) -> Result<Server, ServerError> {
        let path = path.as_ref().to_path_buf();
        options.max_dma_maps = options.max_dma_maps.clamp(1, MAX_DMA_MAPS);
        options.max_data_xfer_size = options.max_data_xfer_size.clamp(8, MAX_DATA_XFER);
        options.bound_times();
        if path.as_os_str().len() > LONGEST_PATH {
            return Err(ServerError::PathTooLong { path });
        }
        clear_stale(&path)?;
        let bind = || -> io::Result<UnixListener> {
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = bind().map_err(|source| ServerError::Bind {
            path: path.clone(),
            source,
        })?;
        let file = std::fs::symlink_metadata(&path).ok().map(|m| (m.dev(), m.ino()));
        Ok(Server {
            listener,
            path,
            file,
            options,
        })
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves clients, one after the other, until `stop` is used.
    ///
    /// # Errors
    /// [`ServerError::Os`] where the listening socket fails.
    ///
    /// # Panics
    /// Where the device panics, so does this.
    pub fn serve(&self, device: Arc<dyn PciDevice>, stop: &StopHandle) -> Result<(), ServerError> {
        let mut current: Option<Client> = None;
        let result = loop {
            match socket::wait(self.listener.as_fd(), PollFlags::IN, Some(stop.fd.as_fd()), None) {
                Ok(Waited::Ready) => {}
                Ok(_) => break Ok(()),
                Err(e) => {
                    break Err(ServerError::Os {
                        what: "waiting for clients",
                        source: e.into(),
                    });
                }
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => match accept_failed(&e, stop) {
                    true => continue,
                    false => {
                        break Err(ServerError::Os {
                            what: "accepting a client",
                            source: e,
                        });
                    }
                },
            };
            current = match current.take() {
                Some(client) if !client.is_leaving() => {
                    log::info!("turned a vfio-user client away: there is one already");
                    session::turn_away(&Channel::new(stream, None, Duration::ZERO, None));
                    Some(client)
                }
                leaving => {
                    if let Some(client) = leaving {
                        client.join();
                    }
                    Some(Client::start(stream, &device, stop, &self.options)?)
                }
            };
            if self.options.single_client {
                break Ok(());
            }
        };
        if let Some(client) = current {
            client.join();
        }
        result
    }
}

/// Serves one client on a socket that is connected already, until it leaves or `stop` is used. For socket pairs
/// and sockets that somebody else accepted.
pub fn serve_stream(
    stream: UnixStream,
    device: Arc<dyn PciDevice>,
    stop: &StopHandle,
    mut options: ServerOptions,
) -> CloseReason {
    options.bound_times();
    let channel = Arc::new(Channel::new(
        stream,
        Some(stop.fd.clone()),
        options.send_timeout,
        None,
    ));
    let reason = session::run(channel, device, options);
    if session::is_abnormal(&reason) {
        log::warn!("a vfio-user client was dropped: {reason}");
    } else {
        log::info!("a vfio-user client left: {reason}");
    }
    reason
}

/// A client that is served by a thread of its own.
struct Client {
    channel: Arc<Channel>,
    thread: JoinHandle<()>,
}

impl Client {
    fn start(
        stream: UnixStream,
        device: &Arc<dyn PciDevice>,
        stop: &StopHandle,
        options: &ServerOptions,
    ) -> Result<Client, ServerError> {
        let channel = Arc::new(Channel::new(
            stream,
            Some(stop.fd.clone()),
            options.send_timeout,
            None,
        ));
        let (theirs, device, options) = (channel.clone(), device.clone(), options.clone());
        let thread = std::thread::Builder::new()
            .name("vfio-user".into())
            .spawn(move || {
                let reason = session::run(theirs, device, options);
                if session::is_abnormal(&reason) {
                    log::warn!("a vfio-user client was dropped: {reason}");
                } else {
                    log::info!("a vfio-user client left: {reason}");
                }
            });
        let thread = thread.map_err(|source| ServerError::Os {
            what: "starting a thread for a client",
            source,
        })?;
        Ok(Client { channel, thread })
    }

    /// It has gone or is going; its thread ends by itself.
    fn is_leaving(&self) -> bool {
        self.thread.is_finished() || self.channel.closed().is_some() || socket::hung_up(self.channel.socket())
    }

    fn join(self) {
        if let Err(panic) = self.thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Removes a socket file that nobody listens on.
fn clear_stale(path: &Path) -> Result<(), ServerError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(ServerError::NotASocket {
            path: path.to_path_buf(),
        });
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| ServerError::Bind {
                path: path.to_path_buf(),
                source,
            })
        }
        Ok(_) => Err(ServerError::InUse {
            path: path.to_path_buf(),
        }),
        Err(source) => Err(ServerError::Bind {
            path: path.to_path_buf(),
            source,
        }),
    }
}

/// Whether to go on after a failed accept. Short of descriptors or memory, waits a little (or for the stop).
fn accept_failed(e: &io::Error, stop: &StopHandle) -> bool {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => true,
        _ => {
            use rustix::io::Errno;
            let errno = Errno::from_io_error(e);
            let passing = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
                .map(Some)
                .contains(&errno);
            if passing {
                log::warn!("can't accept a vfio-user client now: {e}");
                let soon = Some(Instant::now() + Duration::from_millis(100));
                let _ = socket::wait(stop.fd.as_fd(), PollFlags::IN, None, soon);
            }
            passing
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let now = std::fs::symlink_metadata(&self.path)
            .ok()
            .map(|m| (m.dev(), m.ino()));
        if now.is_some() && now == self.file {
            // Left behind it does no harm: the next server replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
