//! The connection manager.
#![allow(missing_docs)]
pub mod machine;
pub mod mad;
