//! What Linux's mlx5 drivers, rdma-core's VFIO provider, ferroce and a driver of a real card say to a NIC, for the same
//! work, side by side.
//!
//! The NIC model records what is said to it ([`record`]). Each part of a recording gets a role ([`roles`]), such as
//! "CREATE_CQ for an RC queue pair" or "the first arm of a completion queue", and its values by name ([`fields`],
//! [`commands`], [`entries`], [`paging`]). What two programs do differently in the same role is a difference ([`compare`]), and has
//! to have a reason ([`reasons`]). [`report`] writes all of it down.

pub mod commands;
pub mod compare;
pub mod entries;
pub mod fields;
pub mod fresh;
pub mod paging;
pub mod programs;
pub mod reasons;
pub mod record;
pub mod report;
pub mod roles;
pub mod shrink;
