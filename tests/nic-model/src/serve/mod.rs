//! The model as a device for other processes.

pub mod vfio_user;
