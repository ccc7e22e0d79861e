//! Why a command failed.

use std::io;
use std::path::{Path, PathBuf};

use ferroce::error::{CloseError, OpenError};
use ferroce::function::{FunctionAddress, FunctionError};

/// A command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// A file.
    #[error("{what} {}", path.display())]
    File {
        /// What was tried, such as `can't read`.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A NIC that can't be reached.
    #[error("can't get hold of {device}")]
    Function {
        /// Which.
        device: FunctionAddress,
        /// Why not.
        source: Box<FunctionError>,
    },
    /// A function of this machine.
    #[error(transparent)]
    Host(#[from] ferroce::host::HostError),
    /// A NIC that does not come up.
    #[error("can't bring up {device}")]
    Open {
        /// Which.
        device: FunctionAddress,
        /// Why not.
        source: Box<OpenError>,
    },
    /// A NIC that does not go down in order.
    #[error("{device} did not shut down in order")]
    Close {
        /// Which.
        device: String,
        /// Why not.
        source: Box<CloseError>,
    },
    /// Something else of the system.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
    /// Anything that a person can read.
    #[error("{0}")]
    Other(String),
}

impl CliError {
    /// A file that something could not be done with.
    pub fn file<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> CliError + 'a {
        move |source| CliError::File {
            what,
            path: path.to_path_buf(),
            source,
        }
    }
}

/// What was tried, and why it did not work.
pub fn failed<E: std::error::Error>(what: &'static str) -> impl FnOnce(E) -> CliError {
    move |error| CliError::Other(format!("{what}: {}", chain(&error)))
}

/// What was done and how it was closed. Of two errors the first is the one to tell; the other is logged.
pub fn first_error<T, U>(done: Result<T, CliError>, closed: Result<U, CliError>) -> Result<(T, U), CliError> {
    match (done, closed) {
        (Ok(done), closed) => Ok((done, closed?)),
        (Err(error), closed) => {
            if let Err(closed) = closed {
                log::warn!("{}", chain(&closed));
            }
            Err(error)
        }
    }
}

/// An error and all that it comes from, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let part = error.to_string();
        // Some errors repeat what they come from.
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = error.source();
    }
    text
}
