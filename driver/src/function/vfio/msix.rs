//! MSI-X vectors and their eventfds, as the kernel wants them told.
//!
//! The first call for a device allocates as many interrupts as it names. Kernels before 6.5 can't add any later
//! (`VFIO_IRQ_INFO_NORESIZE`), so a call that goes further disables all and enables all again. There is no limit on
//! descriptors in one call, so no batches are needed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// What is set.
#[derive(Debug)]
pub struct Msix {
    eventfds: Vec<Option<OwnedFd>>,
    /// Number of interrupts that the kernel has allocated.
    enabled: usize,
    /// Whether the kernel can add interrupts one by one.
    dynamic: bool,
}

/// What to tell the kernel.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Disable all vectors.
    Disable,
    /// Set the vectors from the first number up to the second.
    Set(usize, usize),
}

impl Msix {
    pub fn new(vectors: u16, dynamic: bool) -> Msix {
        let eventfds = std::iter::repeat_with(|| None).take(vectors.into()).collect();
        Msix {
            eventfds,
            enabled: 0,
            dynamic,
        }
    }

    /// Sets eventfds from vector `first` on, which are within range, by calls of `set`: a first vector and its eventfds,
    /// -1 for none; no eventfds at all disable.
    ///
    /// # Errors
    /// What `set` says, or what duplicating a descriptor says. The old eventfds stay remembered then.
    pub fn set(
        &mut self,
        first: u16,
        eventfds: &[Option<BorrowedFd<'_>>],
        set: impl Fn(u16, &[i32]) -> io::Result<()>,
    ) -> io::Result<()> {
        let first = usize::from(first);
        let own = |fd: &Option<BorrowedFd<'_>>| fd.map(|fd| fd.try_clone_to_owned()).transpose();
        let new = eventfds.iter().map(own).collect::<io::Result<Vec<_>>>()?;
        let mut raw: Vec<i32> = self.eventfds.iter().map(raw_fd).collect();
        for (slot, fd) in raw.iter_mut().skip(first).zip(&new) {
            *slot = raw_fd(fd);
        }
        let needed = raw.iter().rposition(|fd| *fd >= 0).map_or(0, |last| last + 1);
        for step in steps(self.enabled, self.dynamic, first, new.len(), needed) {
            match step {
                Step::Disable => {
                    set(0, &[])?;
                    self.enabled = 0;
                }
                Step::Set(from, to) => {
                    set(from as u16, raw.get(from..to).unwrap_or_default())?;
                    self.enabled = self.enabled.max(to);
                }
            }
        }
        for (slot, fd) in self.eventfds.iter_mut().skip(first).zip(new) {
            *slot = fd;
        }
        Ok(())
    }
}

fn raw_fd(fd: &Option<OwnedFd>) -> i32 {
    fd.as_ref().map_or(-1, |fd| fd.as_raw_fd())
}

/// How to get from `enabled` vectors to the state in which `count` from `first` on have changed and `needed` is the
/// number of vectors up to the last that has an eventfd.
fn steps(enabled: usize, dynamic: bool, first: usize, count: usize, needed: usize) -> Vec<Step> {
    let changed = (first, first + count);
    match (enabled, needed) {
        (0, 0) => vec![],
        (_, 0) => vec![Step::Disable],
        (0, _) => vec![Step::Set(0, needed)],
        _ if needed > enabled && !dynamic => vec![Step::Disable, Step::Set(0, needed)],
        // What lies behind the last that is needed was never enabled, or has to be taken away.
        _ => {
            let end = changed.1.min(needed.max(enabled));
            if changed.0 < end {
                vec![Step::Set(changed.0, end)]
            } else {
                vec![]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::os::fd::AsFd;

    #[test]
    fn vectors_are_enabled_grown_updated_and_disabled() {
        use Step::{Disable, Set};
        assert_eq!(steps(0, true, 0, 8, 0), []);
        assert_eq!(steps(0, true, 2, 4, 6), [Set(0, 6)]);
        assert_eq!(steps(6, true, 2, 1, 6), [Set(2, 3)]);
        assert_eq!(steps(6, false, 6, 2, 8), [Disable, Set(0, 8)]);
        assert_eq!(steps(6, true, 6, 2, 8), [Set(6, 8)]);
        assert_eq!(steps(6, true, 6, 2, 6), []);
        assert_eq!(steps(6, false, 4, 8, 4), [Set(4, 6)]);
        assert_eq!(steps(6, true, 0, 6, 0), [Disable]);
    }

    /// A kernel without resizing: what it was told, and how many vectors are enabled.
    #[derive(Default)]
    struct Kernel {
        enabled: RefCell<usize>,
        fds: RefCell<Vec<i32>>,
    }

    impl Kernel {
        fn set(&self, start: u16, fds: &[i32]) -> io::Result<()> {
            let (start, mut enabled) = (usize::from(start), self.enabled.borrow_mut());
            if fds.is_empty() {
                *enabled = 0;
                self.fds.borrow_mut().clear();
                return Ok(());
            }
            if *enabled == 0 {
                *enabled = start + fds.len();
                self.fds.borrow_mut().resize(*enabled, -1);
            }
            if start + fds.len() > *enabled {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            self.fds.borrow_mut()[start..start + fds.len()].copy_from_slice(fds);
            Ok(())
        }
    }

    #[test]
    fn v04_512_vectors_are_set_in_any_order_on_a_kernel_that_can_not_resize() {
        let file = std::fs::File::open("/dev/null").expect("opens");
        let (fd, kernel) = (Some(file.as_fd()), Kernel::default());
        let mut msix = Msix::new(512, false);
        for (first, count) in [(0, 1), (1, 33), (256, 256), (0, 512)] {
            msix.set(first, &vec![fd; count], |start, fds| kernel.set(start, fds))
                .expect("set");
            let last = usize::from(first) + count - 1;
            assert!(kernel.fds.borrow()[last] >= 0);
            assert!(kernel.fds.borrow()[0] >= 0, "earlier vectors survive");
        }
        msix.set(0, &[None; 512], |start, fds| kernel.set(start, fds))
            .expect("taken away");
        assert_eq!(*kernel.enabled.borrow(), 0);
        let refuse = |_: u16, _: &[i32]| Err(io::Error::from_raw_os_error(libc::EIO));
        assert!(msix.set(3, &[fd], refuse).is_err());
        assert!(msix.eventfds.iter().all(Option::is_none));
    }
}
