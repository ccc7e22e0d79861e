//! MSI-X vectors as eventfds.

use std::os::fd::OwnedFd;

use ferroce_vfio_user::device::DeviceError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The function's MSI-X vectors.
#[derive(Debug)]
pub struct Interrupts {
    vectors: Vec<Option<OwnedFd>>,
    /// Interrupts raised on vectors that have an eventfd.
    pub raised: u64,
    /// Interrupts that had nowhere to go: no such vector, no eventfd, or a full one.
    pub lost: u64,
}

impl Interrupts {
    /// `count` vectors without eventfds.
    pub fn new(count: u16) -> Interrupts {
        let mut vectors = Vec::new();
        vectors.resize_with(usize::from(count), || None);
        Interrupts {
            vectors,
            raised: 0,
            lost: 0,
        }
    }

    /// Number of vectors.
    pub fn count(&self) -> u16 {
        self.vectors.len() as u16
    }

    /// Number of vectors that have an eventfd.
    pub fn connected(&self) -> usize {
        self.vectors.iter().flatten().count()
    }

    /// Vectors `first`, `first + 1`, … get these eventfds.
    ///
    /// # Errors
    /// [`DeviceError::NoSuchVector`]; no vector changes then.
    pub fn set(&mut self, first: u16, eventfds: Vec<Option<OwnedFd>>) -> Result<(), DeviceError> {
        let first_index = usize::from(first);
        let end = first_index + eventfds.len();
        if end > self.vectors.len() {
            return Err(DeviceError::NoSuchVector {
                first: u32::from(first),
                count: u32::try_from(eventfds.len()).unwrap_or(u32::MAX),
                vectors: self.count(),
            });
        }
        for (vector, fd) in self.vectors[first_index..end].iter_mut().zip(eventfds) {
            *vector = fd;
        }
        Ok(())
    }

    /// Takes all eventfds away.
    pub fn clear(&mut self) {
        self.vectors.iter_mut().for_each(|v| *v = None);
    }

    /// Raises one vector.
    pub fn raise(&mut self, vector: u16) {
        match self.vectors.get(usize::from(vector)) {
            Some(Some(fd)) if signal(fd) => self.raised += 1,
            _ => self.lost += 1,
        }
    }
}

/// Adds 1 to an eventfd. A full one is left alone: its reader has an event to read, and a blocking write would
/// stop the engine for as long as the reader likes.
pub(crate) fn signal(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if !matches!(poll(&mut fds, Some(&now)), Ok(1)) || !fds[0].revents().contains(PollFlags::OUT) {
        return false;
    }
    rustix::io::write(fd, &1u64.to_ne_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn raising_counts_on_the_eventfd_and_never_blocks() {
        let fd = eventfd(0, EventfdFlags::empty()).unwrap();
        let reader = fd.try_clone().unwrap();
        let mut interrupts = Interrupts::new(2);
        assert!(interrupts.set(1, vec![None, None]).is_err());
        interrupts.set(1, vec![Some(fd)]).unwrap();
        interrupts.raise(1);
        interrupts.raise(1);
        interrupts.raise(0);
        interrupts.raise(9);
        let mut count = [0; 8];
        rustix::io::read(&reader, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2);
        assert_eq!((interrupts.raised, interrupts.lost), (2, 2));
        rustix::io::write(&reader, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        interrupts.raise(1);
        assert_eq!(interrupts.lost, 3);
    }
}
