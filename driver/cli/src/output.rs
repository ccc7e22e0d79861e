//! Standard output: written as a whole, so that a pipe that is closed or a disk that is full is an error and no panic.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::CliError;

/// Writes `text` to standard output.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| CliError::System("can't write to standard output", e))
}

/// Whether a line could not be written.
static LOST: AtomicBool = AtomicBool::new(false);

/// Writes a line to standard output. That it could not be written is told at the end: [`lost`].
pub fn line(text: fmt::Arguments<'_>) {
    if writeln!(io::stdout(), "{text}").is_err() {
        LOST.store(true, Ordering::Relaxed);
    }
}

/// Whether anything that was to be said got lost.
pub fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// `println!` that does not panic where nobody reads.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::output::line(format_args!($($text)*))
    };
}
pub(crate) use say;
