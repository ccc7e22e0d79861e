//! What the host creates by commands: queues, keys, protection domains; numbered, bounded, checked.

pub mod buffer;
pub mod cq;
pub mod eq;
pub mod error;
pub mod mkey;
pub mod table;

pub use buffer::{Buffer, PageList};
pub use cq::Cq;
pub use eq::Eq;
pub use error::ObjectError;
pub use mkey::Mkey;
pub use table::Table;
