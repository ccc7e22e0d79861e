//! Test suites of ferroce: the driver on the device model, models on a bad wire, captures of real machines.
//!
//! The tests themselves are in `tests/`; here is what several of them use.

pub mod bare_host;
pub mod cm;
pub mod fake;
pub mod fuzz;
pub mod nics;
pub mod pair;
pub mod traffic;
pub mod two_ports;

/// The code in the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The code in docs/lossless.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/lossless.md")]
mod lossless {}

/// The code in docs/connections.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/connections.md")]
pub struct Connections;
