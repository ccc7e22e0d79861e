//! From a path to a connection that has agreed on its version.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use zerocopy::IntoBytes;

use super::{ClientError, ClientOptions};
use crate::channel::{CallError, Channel};
use crate::protocol::{Command, MAX_FDS, VERSION_MAJOR, VERSION_MINOR, Version, split};
use crate::socket::CloseReason;
use crate::version::Capabilities;

/// How often a full listen queue is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// Connects to the socket at `path`.
pub(crate) fn open(path: &Path, timeout: Duration) -> Result<UnixStream, ClientError> {
    let owned = || path.to_path_buf();
    let address = SocketAddrUnix::new(path).map_err(|_| ClientError::PathTooLong { path: owned() })?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|e| ClientError::Os {
            what: "creating a socket",
            source: e.into(),
        })?;
    let deadline = Instant::now() + timeout;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            Err(Errno::INTR) => {}
            // A full listen queue; there is nothing to poll for, so it is tried again.
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Err(Errno::AGAIN) => {
                return Err(ClientError::NotAccepting {
                    path: owned(),
                    millis: timeout.as_millis() as u64,
                });
            }
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(ClientError::SocketMissing { path: owned() }),
            Err(Errno::ACCESS | Errno::PERM) => return Err(ClientError::PermissionDenied { path: owned() }),
            Err(Errno::CONNREFUSED) => {
                let is_socket = std::fs::metadata(path).map(|m| m.file_type().is_socket());
                return Err(match is_socket {
                    Ok(false) => ClientError::NotASocket { path: owned() },
                    _ => ClientError::StaleSocket { path: owned() },
                });
            }
            Err(Errno::PROTOTYPE) => {
                let reason = "it is not a stream socket".into();
                return Err(ClientError::NotVfioUser {
                    name: path.display().to_string(),
                    reason,
                });
            }
            Err(e) => {
                return Err(ClientError::Connect {
                    path: owned(),
                    source: io::Error::from(e),
                });
            }
        }
    }
}

/// Agrees on the version; gives what the server can take.
pub(crate) fn negotiate(
    channel: &Channel,
    name: &str,
    options: &ClientOptions,
) -> Result<Capabilities, ClientError> {
    let ours = Capabilities {
        max_msg_fds: MAX_FDS as u64,
        ..Capabilities::default()
    };
    let version = Version {
        major: VERSION_MAJOR.into(),
        minor: VERSION_MINOR.into(),
    };
    let deadline = Instant::now() + options.connect_timeout;
    let data = ours.to_version_data();
    let reply = channel.call(Command::VERSION, &[version.as_bytes(), &data], &[], deadline);
    let reply = reply.map_err(|e| refused(name, options.connect_timeout, e))?;
    let Some((theirs, data)) = split::<Version>(&reply.body) else {
        let reason = format!(
            "its VERSION reply is {} bytes short",
            size_of::<Version>() - reply.body.len()
        );
        return Err(ClientError::NotVfioUser {
            name: name.into(),
            reason,
        });
    };
    let (major, minor) = (theirs.major.get(), theirs.minor.get());
    if major != VERSION_MAJOR || minor > VERSION_MINOR {
        return Err(ClientError::VersionMismatch {
            name: name.into(),
            major,
            minor,
        });
    }
    Capabilities::from_version_data(data).map_err(|source| ClientError::VersionData {
        name: name.into(),
        source,
    })
}

/// What a failure of the first exchange says about the other side.
fn refused(name: &str, timeout: Duration, e: CallError) -> ClientError {
    let name = name.to_string();
    match e {
        CallError::Refused(errno) if errno == Errno::BUSY.raw_os_error() as u32 => ClientError::Busy { name },
        CallError::Refused(errno) => ClientError::Refused {
            command: Command::VERSION,
            errno,
        },
        CallError::TimedOut => ClientError::TimedOut {
            command: Command::VERSION,
            millis: timeout.as_millis() as u64,
        },
        CallError::Closed(CloseReason::PeerClosed) => {
            let reason = "it closed the connection without an answer to VERSION".into();
            ClientError::NotVfioUser { name, reason }
        }
        CallError::Closed(CloseReason::Protocol(e)) => ClientError::NotVfioUser {
            name,
            reason: format!("its answer to VERSION is not one: {e}"),
        },
        CallError::Closed(reason) => ClientError::Gone {
            command: Command::VERSION,
            reason,
        },
    }
}
