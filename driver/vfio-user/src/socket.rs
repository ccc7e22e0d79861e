//! Bytes and file descriptors over a unix stream socket, with deadlines.
//!
//! Sending puts one whole message into one `sendmsg`, so that its descriptors arrive with its first byte.
//! Receiving is resumable: a deadline that passes in the middle of a message loses nothing. A peer decides
//! neither how much is allocated (a body grows as its bytes arrive, up to
//! [`MAX_MESSAGE`]) nor how many descriptors are kept (up to [`MAX_FDS`] a message; the rest is closed and the
//! message marked).

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::FromBytes;

use crate::protocol::{HEADER_LEN, Header, MAX_FDS, MAX_MESSAGE};

/// Room for the control message of [`MAX_FDS`] descriptors.
const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// How much is read at a time; small messages come several to a read.
const BUFFER_LEN: usize = 64 * 1024;

/// Most pieces with descriptors that one message may be sent in.
const MAX_FD_PIECES: usize = 64;

/// The longest time that anything is waited for: further than that, a deadline is not to be relied on to exist.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A message as it arrived.
#[derive(Debug)]
pub(crate) struct Message {
    pub header: Header,
    pub body: Vec<u8>,
    pub fds: Vec<OwnedFd>,
    /// Descriptors were sent that could not be taken (too many for a message or for this process).
    pub fds_lost: bool,
}

/// Why no message comes any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed the connection, or its process ended.
    #[error("the other side closed the connection")]
    PeerClosed,
    /// This side closed it.
    #[error("the connection was closed on this side")]
    Closed,
    /// The peer broke the protocol.
    #[error("the other side broke the protocol: {0}")]
    Protocol(ProtocolError),
    /// A message could not be sent in time, and a part of it may have been.
    #[error("the other side stopped reading")]
    Stalled,
    /// The socket failed.
    #[error("the socket failed: {}", std::io::Error::from(*.0))]
    Socket(Errno),
}

/// A message after which the byte stream means nothing any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The header's size is impossible.
    #[error("a message says that it is {size} bytes long; {HEADER_LEN} to {MAX_MESSAGE} are possible")]
    MessageSize {
        /// The header with the size.
        size: u32,
    },
    /// Neither a command nor a reply.
    #[error("a message has type {kind}")]
    MessageType {
        /// The type bits.
        kind: u32,
    },
    /// A reply to nothing that was asked.
    #[error("a reply came for message {message_id} ({command}), which was not asked")]
    UnexpectedReply {
        /// Its message id.
        message_id: u16,
        /// Its command.
        command: crate::protocol::Command,
    },
    /// The connection ended inside a message.
    #[error("the connection ended inside a message")]
    Truncated,
    /// File descriptors without end in one message.
    #[error("a message came with file descriptors in more than {MAX_FD_PIECES} pieces")]
    TooManyDescriptors,
}

/// What came of waiting for a message.
#[derive(Debug)]
pub(crate) enum Received {
    Message(Message),
    TimedOut,
    Stopped,
    Closed(CloseReason),
    /// The header can't be believed; the stream is lost, but the header says whom to answer.
    Bad(Header, ProtocolError),
}

/// What came of waiting on descriptors.
pub(crate) enum Waited {
    Ready,
    TimedOut,
    Stopped,
}

/// Waits until `fd` is ready for `events` (or has failed), `stop` is readable, or the deadline is there.
pub(crate) fn wait(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    stop: Option<BorrowedFd<'_>>,
    deadline: Option<Instant>,
) -> Result<Waited, Errno> {
    let second = stop.unwrap_or(fd);
    let mut fds = [
        PollFd::from_borrowed_fd(fd, events),
        PollFd::from_borrowed_fd(second, PollFlags::IN),
    ];
    let count = if stop.is_some() { 2 } else { 1 };
    loop {
        let timeout = match deadline {
            None => None,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                Some(Timespec::try_from(left).map_err(|_| Errno::INVAL)?)
            }
        };
        match poll(&mut fds[..count], timeout.as_ref()) {
            Ok(0) => return Ok(Waited::TimedOut),
            // Stop comes first, or a busy peer could keep it from being seen.
            Ok(_) if count == 2 && !fds[1].revents().is_empty() => return Ok(Waited::Stopped),
            Ok(_) => return Ok(Waited::Ready),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Sends one message: `parts` one after the other, `fds` with the first byte.
///
/// # Errors
/// [`CloseReason`]; the stream is unusable then, since a part of the message may have gone.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    parts: &[&[u8]],
    fds: &[BorrowedFd<'_>],
    stop: Option<BorrowedFd<'_>>,
    deadline: Instant,
) -> Result<(), CloseReason> {
    let mut control = [MaybeUninit::uninit(); CONTROL_LEN];
    let total: usize = parts.iter().map(|p| p.len()).sum();
    let mut sent = 0;
    while sent < total {
        let mut slices: [IoSlice<'_>; 4] = [IoSlice::new(&[]); 4];
        let used = remaining(parts, sent, &mut slices);
        let mut ancillary = SendAncillaryBuffer::new(&mut control);
        if sent == 0 && !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            // More than MAX_FDS: callers batch, so this is only a guard.
            return Err(CloseReason::Socket(Errno::INVAL));
        }
        match sendmsg(
            socket,
            &slices[..used],
            &mut ancillary,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(n) => sent += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match wait(socket, PollFlags::OUT, stop, Some(deadline)) {
                Ok(Waited::Ready) => {}
                Ok(Waited::TimedOut) => return Err(CloseReason::Stalled),
                Ok(Waited::Stopped) => return Err(CloseReason::Closed),
                Err(e) => return Err(CloseReason::Socket(e)),
            },
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(CloseReason::PeerClosed),
            Err(e) => return Err(CloseReason::Socket(e)),
        }
    }
    Ok(())
}

/// Fills `slices` with what is left of `parts` after `skip` bytes; returns how many are used.
fn remaining<'a>(parts: &[&'a [u8]], mut skip: usize, slices: &mut [IoSlice<'a>; 4]) -> usize {
    let mut used = 0;
    for part in parts {
        if skip >= part.len() {
            skip -= part.len();
        } else if let Some(slot) = slices.get_mut(used) {
            *slot = IoSlice::new(&part[skip..]);
            used += 1;
            skip = 0;
        }
    }
    used
}

/// Descriptors that arrived with a read, and the position in the stream of that read's last byte.
///
/// The kernel ends a read behind the piece that carried descriptors, and a sender puts a message's descriptors
/// on its own piece. So they belong to the message that the read ended in.
#[derive(Debug)]
struct ArrivedFds {
    last_byte: u64,
    fds: Vec<OwnedFd>,
    lost: bool,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Stream position of `buffer[start]`.
    position: u64,
    /// A message whose header was taken out of the buffer and whose body is not complete.
    partial: Option<(Header, Vec<u8>)>,
    fds: VecDeque<ArrivedFds>,
    eof: Option<CloseReason>,
}

impl Receiver {
    pub fn new() -> Receiver {
        Receiver {
            buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            position: 0,
            partial: None,
            fds: VecDeque::new(),
            eof: None,
        }
    }

    /// Waits for the next message. `stop` becoming readable ends the wait, and so does the deadline; a message
    /// that was already read is returned in any case.
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        stop: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Received {
        loop {
            match self.take_message() {
                Ok(Some(message)) => return Received::Message(message),
                Ok(None) => {}
                Err((header, e)) => return Received::Bad(header, e),
            }
            if let Some(reason) = &self.eof {
                return Received::Closed(reason.clone());
            }
            match wait(socket, PollFlags::IN, stop, deadline) {
                Ok(Waited::Ready) => self.fill(socket),
                Ok(Waited::TimedOut) => return Received::TimedOut,
                Ok(Waited::Stopped) => return Received::Stopped,
                Err(e) => return Received::Closed(CloseReason::Socket(e)),
            }
        }
    }

    /// Takes a complete message out of what was read.
    fn take_message(&mut self) -> Result<Option<Message>, (Header, ProtocolError)> {
        if self.partial.is_none() {
            let Ok((header, _)) = Header::read_from_prefix(&self.buffer[self.start..self.end]) else {
                return Ok(None);
            };
            let size = header.message_size.get();
            let plausible =
                usize::try_from(size).is_ok_and(|size| (HEADER_LEN..=MAX_MESSAGE).contains(&size));
            if !plausible {
                return Err((header, ProtocolError::MessageSize { size }));
            }
            if !header.is_command() && !header.is_reply() {
                let kind = header.flags.get() & crate::protocol::flags::TYPE_MASK;
                return Err((header, ProtocolError::MessageType { kind }));
            }
            self.consume(HEADER_LEN);
            self.partial = Some((header, Vec::new()));
        }
        let Some((header, mut body)) = self.partial.take() else {
            return Ok(None);
        };
        let wanted = header.message_size.get() as usize - HEADER_LEN;
        let here = (wanted - body.len()).min(self.end - self.start);
        body.extend_from_slice(&self.buffer[self.start..self.start + here]);
        self.consume(here);
        if body.len() < wanted {
            self.partial = Some((header, body));
            return Ok(None);
        }
        let (fds, fds_lost) = self.take_fds();
        Ok(Some(Message {
            header,
            body,
            fds,
            fds_lost,
        }))
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        self.position += len as u64;
    }

    /// The descriptors of the message that ends at the current position.
    fn take_fds(&mut self) -> (Vec<OwnedFd>, bool) {
        let mut fds = Vec::new();
        let mut lost = false;
        while let Some(mut arrived) = self.fds.pop_front_if(|a| a.last_byte < self.position) {
            fds.append(&mut arrived.fds);
            lost |= arrived.lost;
        }
        (fds, lost)
    }

    /// Reads once. End of file and errors are noted for later.
    fn fill(&mut self, socket: BorrowedFd<'_>) {
        // Whatever is left belongs to an incomplete header.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let mut control = [MaybeUninit::uninit(); CONTROL_LEN];
        let mut ancillary = RecvAncillaryBuffer::new(&mut control);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut slices = [IoSliceMut::new(&mut self.buffer[self.end..])];
        let got = match recvmsg(socket, &mut slices, &mut ancillary, flags) {
            Ok(got) if got.bytes > 0 => got,
            Ok(_) | Err(Errno::CONNRESET) => {
                let inside = self.partial.is_some() || self.end > 0;
                self.eof = Some(match inside {
                    true => CloseReason::Protocol(ProtocolError::Truncated),
                    false => CloseReason::PeerClosed,
                });
                return;
            }
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(e) => {
                self.eof = Some(CloseReason::Socket(e));
                return;
            }
        };
        self.end += got.bytes;
        let mut arrived = ArrivedFds {
            last_byte: self.position + self.end as u64 - 1,
            fds: Vec::new(),
            lost: got.flags.contains(ReturnFlags::CTRUNC),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                arrived.fds.extend(fds);
            }
        }
        self.keep_fds(arrived);
    }

    /// Notes descriptors for their message, unless that would make too many of them.
    fn keep_fds(&mut self, mut arrived: ArrivedFds) {
        let held: usize = self.fds.iter().map(|a| a.fds.len()).sum();
        if held + arrived.fds.len() > MAX_FDS {
            arrived.fds.clear();
            arrived.lost = true;
        }
        if !arrived.lost && arrived.fds.is_empty() {
            return;
        }
        if self.fds.len() >= MAX_FD_PIECES {
            self.eof = Some(CloseReason::Protocol(ProtocolError::TooManyDescriptors));
        }
        self.fds.push_back(arrived);
    }
}

/// Whether the peer has hung up, as far as the kernel knows at this moment.
pub(crate) fn hung_up(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::RDHUP)];
    let none = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut fds, Some(&none)), Ok(n) if n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::flags;
    use proptest::prelude::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use zerocopy::IntoBytes;

    fn message(id: u16, len: usize) -> Vec<u8> {
        let header = Header {
            message_id: id.into(),
            command: 9.into(),
            message_size: ((HEADER_LEN + len) as u32).into(),
            flags: flags::TYPE_COMMAND.into(),
            error: 0.into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend((0..len).map(|i| (i % 251) as u8));
        bytes
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn deadline_in_the_middle_of_a_message_loses_nothing() {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        let mut receiver = Receiver::new();
        let bytes = message(5, 100);
        for piece in bytes.chunks(7) {
            let past = Some(Instant::now());
            assert!(matches!(
                receiver.receive(ours.as_fd(), None, past),
                Received::TimedOut
            ));
            send(theirs.as_fd(), &[piece], &[], None, soon()).expect("room");
        }
        match receiver.receive(ours.as_fd(), None, None) {
            Received::Message(m) => assert_eq!(m.body, bytes[HEADER_LEN..]),
            other => panic!("{other:?}"),
        }
        drop(theirs);
        let end = receiver.receive(ours.as_fd(), None, None);
        assert!(
            matches!(end, Received::Closed(CloseReason::PeerClosed)),
            "{end:?}"
        );
    }

    #[test]
    fn stop_ends_a_wait() {
        let (ours, _theirs) = UnixStream::pair().expect("socket pair");
        let stop = eventfd(1, EventfdFlags::CLOEXEC).expect("eventfd");
        let stopped = Receiver::new().receive(ours.as_fd(), Some(stop.as_fd()), None);
        assert!(matches!(stopped, Received::Stopped));
    }

    #[test]
    fn too_many_descriptors_to_send_are_an_error() {
        let (ours, _theirs) = UnixStream::pair().expect("socket pair");
        let fds = vec![ours.as_fd(); MAX_FDS + 1];
        assert!(send(ours.as_fd(), &[b"x"], &fds, None, soon()).is_err());
    }

    proptest! {
        /// Messages arrive whole, in order and with their own descriptors, however the bytes are cut, as long
        /// as a message's descriptors go with one of its own bytes.
        #[test]
        fn messages_arrive_as_they_were_sent(
            messages in prop::collection::vec((0usize..300, 0usize..4, 1usize..400), 1..20),
            large in prop::option::of(60_000usize..200_000),
        ) {
            let (ours, theirs) = UnixStream::pair().expect("socket pair");
            let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd");
            let mut messages = messages;
            messages.extend(large.map(|len| (len, 2, 50_000)));
            let expected = messages.clone();
            let sender = std::thread::spawn(move || {
                let mut plain = Vec::new();
                for (id, (len, fds, piece)) in messages.into_iter().enumerate() {
                    let bytes = message(id as u16, len);
                    if fds == 0 {
                        // Several messages in one piece.
                        plain.extend(bytes);
                        continue;
                    }
                    if !plain.is_empty() {
                        send(theirs.as_fd(), &[&std::mem::take(&mut plain)], &[], None, soon()).expect("room");
                    }
                    let mut pieces = bytes.chunks(piece);
                    let first = pieces.next().expect("a header at least");
                    send(theirs.as_fd(), &[first], &vec![fd.as_fd(); fds], None, soon()).expect("room");
                    for piece in pieces {
                        send(theirs.as_fd(), &[piece], &[], None, soon()).expect("room");
                    }
                }
                if !plain.is_empty() {
                    send(theirs.as_fd(), &[&plain], &[], None, soon()).expect("room");
                }
            });
            let mut receiver = Receiver::new();
            for (id, (len, fds, _)) in expected.into_iter().enumerate() {
                match receiver.receive(ours.as_fd(), None, Some(soon())) {
                    Received::Message(m) => {
                        prop_assert_eq!(m.header.message_id.get(), id as u16);
                        prop_assert_eq!((m.body.len(), m.fds.len(), m.fds_lost), (len, fds, false));
                        prop_assert_eq!(&m.body[..], &message(0, len)[HEADER_LEN..]);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            sender.join().expect("sender");
        }

        /// Any bytes at all end in messages, a wait or an error.
        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let (ours, theirs) = UnixStream::pair().expect("socket pair");
            if !bytes.is_empty() {
                send(theirs.as_fd(), &[&bytes], &[], None, soon()).expect("room");
            }
            drop(theirs);
            let mut receiver = Receiver::new();
            let mut count = 0;
            while let Received::Message(m) = receiver.receive(ours.as_fd(), None, Some(soon())) {
                count += HEADER_LEN + m.body.len();
            }
            prop_assert!(count <= bytes.len());
        }
    }
}
