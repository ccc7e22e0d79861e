//! The PRM layouts that driver and device model use, under the PRM's names.
//!
//! `tests/layout_tables.rs` holds every offset, width and size against the PRM's tables.

mod caps;
mod caps_more;
mod commands;
mod congestion;
mod ctx;
mod events;
mod flow;
mod flow_match;
mod hca;
mod objects;
mod port_counters;
mod qp;
mod queues;
mod raw;
mod regs;
mod srq;
mod vport;

pub use caps::*;
pub use caps_more::*;
pub use commands::of_command;
pub use congestion::*;
pub use ctx::*;
pub use events::*;
pub use flow::*;
pub use flow_match::*;
pub use hca::*;
pub use objects::*;
pub use port_counters::*;
pub use qp::*;
pub use queues::*;
pub use raw::*;
pub use regs::*;
pub use srq::*;
pub use vport::*;

/// Every layout, file by file.
pub const ALL: &[&[&crate::layout::LayoutInfo]] = &[
    caps::LAYOUTS,
    caps_more::LAYOUTS,
    congestion::LAYOUTS,
    ctx::LAYOUTS,
    events::LAYOUTS,
    flow::LAYOUTS,
    flow_match::LAYOUTS,
    hca::LAYOUTS,
    objects::LAYOUTS,
    port_counters::LAYOUTS,
    qp::LAYOUTS,
    queues::LAYOUTS,
    raw::LAYOUTS,
    regs::LAYOUTS,
    srq::LAYOUTS,
    vport::LAYOUTS,
];
