//! Standard output: written as a whole, so that a pipe that is closed or a disk that is full is an error and no panic.

use std::io::{self, Write};

use crate::error::CliError;

/// Writes `text` to standard output.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| CliError::System("can't write to standard output", e))
}
