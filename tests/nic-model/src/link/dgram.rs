//! Unix datagrams, one Ethernet frame each: what QEMU's `-netdev dgram` with `local.type=unix` speaks.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{LinkError, MAX_FRAME, Port, PortCounters};
use crate::clock::Nanos;
use crate::wire::Frame;

/// A port on a unix datagram socket.
///
/// The other side may come, go and come again: frames sent while nobody is there are lost. Linux lets few datagrams
/// wait in a socket (`net.unix.max_dgram_qlen`, often 10), so a burst waits here for room.
#[derive(Debug)]
pub struct DgramPort {
    socket: UnixDatagram,
    /// Where frames go; `None` when the socket is connected.
    remote: Option<PathBuf>,
    /// Our own socket file, removed on drop.
    local: Option<PathBuf>,
    /// One byte more than the longest frame, so that a longer one shows.
    buffer: Box<[u8]>,
    counters: PortCounters,
    /// Frames that the other side had no room for yet.
    backlog: VecDeque<Vec<u8>>,
    /// When to try them again.
    retry_at: Option<Nanos>,
}

/// Most frames that wait for room; what exceeds them is lost.
const MAX_BACKLOG: usize = 4096;
/// How long the other side has to make room.
const RETRY: Duration = Duration::from_micros(100);

fn os(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> LinkError {
    let object = path.display().to_string();
    move |source| LinkError::Os { what, object, source }
}

impl DgramPort {
    /// Receives at the path `local` and sends to the path `remote`, which need not be there yet. A socket file
    /// that a dead process has left at `local` is replaced.
    ///
    /// # Errors
    /// [`LinkError::InUse`], [`LinkError::NotASocket`], [`LinkError::Os`].
    pub fn bind(local: &Path, remote: &Path) -> Result<DgramPort, LinkError> {
        remove_stale(local)?;
        let socket = UnixDatagram::bind(local).map_err(os("binding", local))?;
        let mut port = DgramPort::from_socket(socket).map_err(os("setting up", local))?;
        port.remote = Some(remote.to_owned());
        port.local = Some(local.to_owned());
        Ok(port)
    }

    /// Two ports that are connected to each other, for processes that share a descriptor.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn pair() -> std::io::Result<(DgramPort, DgramPort)> {
        let (a, b) = UnixDatagram::pair()?;
        Ok((DgramPort::from_socket(a)?, DgramPort::from_socket(b)?))
    }

    /// A port on a socket that is connected already.
    ///
    /// # Errors
    /// The socket can't be made non-blocking.
    pub fn from_socket(socket: UnixDatagram) -> std::io::Result<DgramPort> {
        socket.set_nonblocking(true)?;
        Ok(DgramPort {
            socket,
            remote: None,
            local: None,
            buffer: vec![0; MAX_FRAME + 1].into_boxed_slice(),
            counters: PortCounters::default(),
            backlog: VecDeque::new(),
            retry_at: None,
        })
    }

    /// Sends one frame; false when there is no room for it now.
    fn try_send(&mut self, bytes: &[u8]) -> bool {
        let sent = match &self.remote {
            Some(remote) => self.socket.send_to(bytes, remote),
            None => self.socket.send(bytes),
        };
        match sent {
            Ok(_) => self.counters.sent += 1,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => self.counters.send_lost += 1,
        }
        true
    }

    /// Sends what waits, as far as there is room.
    fn flush(&mut self, now: Nanos) {
        while let Some(bytes) = self.backlog.pop_front() {
            if !self.try_send(&bytes) {
                self.backlog.push_front(bytes);
                break;
            }
        }
        self.retry_at = (!self.backlog.is_empty()).then(|| now + RETRY);
    }
}

/// Removes the socket file of a dead process.
fn remove_stale(path: &Path) -> Result<(), LinkError> {
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(os("looking at", path)(e)),
        Ok(meta) => meta,
    };
    let shown = || path.display().to_string();
    if !meta.file_type().is_socket() {
        return Err(LinkError::NotASocket { path: shown() });
    }
    let probe = UnixDatagram::unbound().map_err(os("probing", path))?;
    match probe.connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(os("removing", path))
        }
        // EPROTOTYPE: a stream socket is bound there.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(os("probing", path)(e)),
        _ => Err(LinkError::InUse { path: shown() }),
    }
}

impl Port for DgramPort {
    fn send(&mut self, now: Nanos, frame: Frame) {
        if frame.len() > MAX_FRAME {
            self.counters.oversized += 1;
            return;
        }
        // A payload that the host has taken away can't be sent: the frame is lost.
        let Ok(bytes) = frame.to_bytes() else {
            self.counters.send_lost += 1;
            return;
        };
        if self.backlog.len() >= MAX_BACKLOG {
            self.counters.send_lost += 1;
        } else {
            self.backlog.push_back(bytes);
        }
        self.flush(now);
    }

    fn recv(&mut self, now: Nanos) -> Option<Frame> {
        self.flush(now);
        loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(len) if len <= MAX_FRAME => {
                    self.counters.received += 1;
                    return Some(Frame::from_vec(self.buffer[..len].to_vec()));
                }
                Ok(_) => self.counters.oversized += 1,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // ECONNRESET tells of the other side's end, once; it may come back.
                Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
                Err(_) => return None,
            }
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.retry_at
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Drop for DgramPort {
    fn drop(&mut self) {
        if let Some(path) = &self.local {
            // It may be gone already; nothing depends on it.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_cross_and_the_other_side_may_come_late_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let (pa, pb) = (dir.path().join("a"), dir.path().join("b"));
        let mut a = DgramPort::bind(&pa, &pb).unwrap();
        a.send(Nanos::ZERO, Frame::from_vec(vec![1; 60]));
        assert_eq!(a.counters().send_lost, 1);
        for round in 0..2u8 {
            let mut b = DgramPort::bind(&pb, &pa).unwrap();
            a.send(Nanos::ZERO, Frame::from_vec(vec![round; 60]));
            b.send(Nanos::ZERO, Frame::from_vec(vec![round; 1500]));
            assert_eq!(b.recv(Nanos::ZERO).unwrap().to_bytes().unwrap(), vec![round; 60]);
            assert_eq!(a.recv(Nanos::ZERO).unwrap().len(), 1500);
            assert!(a.recv(Nanos::ZERO).is_none());
            assert!(a.fd().is_some());
        }
        drop(a);
        assert!(!pa.exists() && !pb.exists());
    }

    #[test]
    fn sockets_of_the_dead_are_replaced_and_those_of_the_living_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        let alive = DgramPort::bind(&path, &other).unwrap();
        let e = DgramPort::bind(&path, &other).unwrap_err();
        assert!(matches!(e, LinkError::InUse { .. }), "{e}");
        drop(alive);
        drop(UnixDatagram::bind(&path).unwrap());
        assert!(path.exists());
        drop(DgramPort::bind(&path, &other).unwrap());
        fs::write(&path, "text").unwrap();
        let e = DgramPort::bind(&path, &other).unwrap_err();
        assert!(matches!(e, LinkError::NotASocket { .. }), "{e}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn oversized_datagrams_are_dropped_and_a_slow_reader_loses_frames() {
        let (raw, socket) = UnixDatagram::pair().unwrap();
        let mut port = DgramPort::from_socket(socket).unwrap();
        raw.send(&vec![0; MAX_FRAME + 100]).unwrap();
        raw.send(&[5; 14]).unwrap();
        assert_eq!(port.recv(Nanos::ZERO).unwrap().len(), 14);
        assert_eq!(port.counters().oversized, 1);
        let (mut a, _b) = DgramPort::pair().unwrap();
        while a.counters().send_lost == 0 && a.counters().sent < 1_000_000 {
            a.send(Nanos::ZERO, Frame::from_vec(vec![0; 4000]));
        }
        assert_eq!(a.counters().send_lost, 1);
    }
}
