//! Whose recordings are compared, and where they come from.

use std::path::{Path, PathBuf};

use crate::fresh::{self, FreshError};
use crate::record::{RecordError, parse};
use crate::roles::{Act, acts};

/// A program that has talked to a NIC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Program {
    /// Linux's mlx5_core and mlx5_ib with libmlx5, on the model.
    Linux,
    /// rdma-core's mlx5 VFIO provider, on the model.
    RdmaCore,
    /// ferroce, on the model.
    Ferroce,
    /// Linux's mlx5_core of 2016, on a real ConnectX-4.
    Card,
}

impl Program {
    /// All of them, in the order of the tables' columns.
    pub const ALL: [Program; 4] = [Program::Linux, Program::RdmaCore, Program::Ferroce, Program::Card];

    /// Its name in tables and in the file of reasons.
    pub fn name(self) -> &'static str {
        match self {
            Program::Linux => "Linux",
            Program::RdmaCore => "rdma-core",
            Program::Ferroce => "ferroce",
            Program::Card => "card",
        }
    }

    /// The program of that name.
    pub fn by_name(name: &str) -> Option<Program> {
        Program::ALL.into_iter().find(|program| program.name() == name)
    }

    /// The recording in the repository; ferroce's is made when it is needed.
    pub fn file(self) -> Option<&'static str> {
        match self {
            Program::Linux => Some("tests/data/traces/linux.jsonl"),
            Program::RdmaCore => Some("tests/data/traces/rdma-core.jsonl"),
            Program::Card => Some("tests/data/connectx4-commands.jsonl"),
            Program::Ferroce => None,
        }
    }
}

/// Why there is no recording of a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file can't be read.
    #[error("can't read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no recording.
    #[error("{path} is no recording")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RecordError,
    },
    /// ferroce could not be recorded.
    #[error("ferroce's own recording was not made")]
    Fresh(#[from] FreshError),
}

/// The top of the repository that this program was built from.
pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a program did.
///
/// # Errors
/// Its recording can't be read or made.
pub fn load(program: Program) -> Result<Vec<Act>, LoadError> {
    match program.file() {
        Some(file) => load_file(&top().join(file)),
        None => Ok(acts(&fresh::record()?)),
    }
}

/// What the program of a recording did.
///
/// # Errors
/// The file can't be read, or is no recording.
pub fn load_file(path: &Path) -> Result<Vec<Act>, LoadError> {
    let own = || path.to_path_buf();
    let text = std::fs::read_to_string(path).map_err(|source| LoadError::Read { path: own(), source })?;
    let records = parse(&text).map_err(|source| LoadError::Parse { path: own(), source })?;
    Ok(acts(&records))
}
