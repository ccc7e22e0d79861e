//! What can go wrong between a driver and a device process.

use std::io;
use std::path::PathBuf;

use crate::device::ErrnoText;
use crate::protocol::{Command, VERSION_MAJOR, VERSION_MINOR};
use crate::socket::CloseReason;
use crate::version::VersionDataError;

/// Why a vfio-user client could not connect, or a request of it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No such file.
    #[error("{} does not exist; start the device process, or correct the path", .path.display())]
    SocketMissing {
        /// The socket's path.
        path: PathBuf,
    },
    /// A file that is not a socket.
    #[error("{} is not a socket; give the path of the device process's vfio-user socket", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A socket file that nobody listens on.
    #[error("nobody listens on {}; its device process has ended, start it again", .path.display())]
    StaleSocket {
        /// The socket's path.
        path: PathBuf,
    },
    /// Not allowed to connect.
    #[error("no permission to connect to {}; it needs write permission on the socket file", .path.display())]
    PermissionDenied {
        /// The socket's path.
        path: PathBuf,
    },
    /// The path does not fit a socket address.
    #[error("the path {} is longer than the 107 bytes of a unix socket address", .path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// Connecting failed otherwise.
    #[error("can't connect to {}", .path.display())]
    Connect {
        /// The socket's path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The listening process takes no connections.
    #[error("{} took no connection within {millis} ms; its device process hangs", .path.display())]
    NotAccepting {
        /// The socket's path.
        path: PathBuf,
        /// The deadline in milliseconds.
        millis: u64,
    },
    /// The device has a user already.
    #[error("the device at {name} is in use by another client")]
    Busy {
        /// The device.
        name: String,
    },
    /// What listens there does not speak vfio-user.
    #[error("what listens at {name} is not a vfio-user server: {reason}")]
    NotVfioUser {
        /// The device.
        name: String,
        /// What gave it away.
        reason: String,
    },
    /// The server speaks another version.
    #[error(
        "the server at {name} speaks vfio-user {major}.{minor}; {VERSION_MAJOR}.0 to {VERSION_MAJOR}.{VERSION_MINOR} are spoken here"
    )]
    VersionMismatch {
        /// The device.
        name: String,
        /// Its major version.
        major: u16,
        /// Its minor version.
        minor: u16,
    },
    /// The server's version data makes no sense.
    #[error("the server at {name} sent bad capabilities")]
    VersionData {
        /// The device.
        name: String,
        /// What is wrong with them.
        #[source]
        source: VersionDataError,
    },
    /// The device is not one that this client can use.
    #[error("the device at {name} can't be used: {reason}")]
    NotUsable {
        /// The device.
        name: String,
        /// Why not.
        reason: String,
    },
    /// No answer in time.
    #[error("no answer to {command} within {millis} ms; the device process hangs")]
    TimedOut {
        /// The command.
        command: Command,
        /// The deadline in milliseconds.
        millis: u64,
    },
    /// The server answered with an error.
    #[error("the device refused {command}: {}", ErrnoText(*.errno))]
    Refused {
        /// The command.
        command: Command,
        /// The reply's error number (Linux numbering); some servers always send 0.
        errno: u32,
    },
    /// The connection is gone.
    #[error("the device is gone ({command}): {reason}")]
    Gone {
        /// The command that found out, or could not be sent any more.
        command: Command,
        /// How it went.
        reason: CloseReason,
    },
    /// A reply that does not fit its request.
    #[error("the reply to {command} makes no sense: {reason}")]
    BadReply {
        /// The command.
        command: Command,
        /// What is wrong with it.
        reason: String,
    },
    /// An access that leaves its region; it was not sent.
    #[error("access of {len} bytes at {offset:#x} leaves region {region}, which is {size:#x} bytes long")]
    OutOfRange {
        /// Region index, a BAR's number or 7 for configuration space.
        region: u32,
        /// Offset of the access.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The region's size in bytes.
        size: u64,
    },
    /// Interrupt vectors past the last; nothing was sent.
    #[error("MSI-X vectors {first} to {first} + {count} asked for, the device has {vectors}")]
    NoSuchVector {
        /// First vector.
        first: u16,
        /// How many.
        count: usize,
        /// Vectors of the device.
        vectors: u16,
    },
    /// Something that this server does not offer.
    #[error("the device's server does not support {what}")]
    Unsupported {
        /// What.
        what: &'static str,
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

impl ClientError {
    /// The connection can't be used any more after this error.
    pub fn is_gone(&self) -> bool {
        matches!(self, ClientError::Gone { .. })
    }
}
