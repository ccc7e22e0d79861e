//! A NIC of the model behind a vfio-user socket: for QEMU, for rdma-core, for a driver in another process.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use ferroce_vfio_user::device::PciDevice;
use ferroce_vfio_user::server::{Server, ServerError, ServerOptions, StopHandle};

/// A thread that serves a device on a socket, one client after the other, until this is dropped.
#[derive(Debug)]
pub struct Served {
    stop: StopHandle,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Served {
    /// Listens on `path`, which exists when this returns, and serves `device` there.
    ///
    /// # Errors
    /// The path is taken, or the system refuses a socket.
    ///
    /// # Panics
    /// The system gives no thread.
    pub fn new(
        path: impl AsRef<Path>,
        device: Arc<dyn PciDevice>,
        options: ServerOptions,
    ) -> Result<Served, ServerError> {
        let server = Server::bind_with(path, options)?;
        let stop = StopHandle::new()?;
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || server.serve(device, &stopped));
        Ok(Served {
            stop,
            thread: Some(thread),
        })
    }

    /// Lets go of the client, if there is one, and ends the server.
    ///
    /// # Errors
    /// What ended the server before.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), ServerError> {
        self.stop.stop();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => {
                log::error!("the thread that serves a device model panicked");
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            log::warn!("serving a device model ended: {error}");
        }
    }
}
