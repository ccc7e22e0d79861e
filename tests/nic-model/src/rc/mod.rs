//! The reliable connection transport as a sans-IO state machine (IBTA vol. 1, chapter 9).

pub mod timer;
pub mod types;
