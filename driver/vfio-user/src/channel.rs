//! One connection, used by many threads: commands out with their replies back, commands in.
//!
//! There is no reader thread. Whoever waits for something takes the receiving half, receives one message for
//! everybody (a reply goes to its asker, a command to the queue or the handler), and hands the half back; the
//! others sleep. So a reply costs no hand-over between threads in the usual case, and a thread that waits for
//! a reply keeps commands flowing, which is what saves the two ends from waiting for each other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use crate::protocol::{Command, HEADER_LEN, Header, flags};
use crate::socket::{CloseReason, Message, ProtocolError, Received, Receiver, send};

/// Commands that may wait in the queue while a reply is waited for: number and bytes.
const QUEUE_MESSAGES: usize = 4096;
const QUEUE_BYTES: usize = 8 << 20;

/// What is done with a command as soon as it arrives, instead of queueing it.
pub(crate) type Handler = Box<dyn Fn(&Channel, Message) + Send + Sync>;

/// Why a call has no good reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallError {
    TimedOut,
    Closed(CloseReason),
    /// The error number of an error reply.
    Refused(u32),
}

pub(crate) struct Channel {
    socket: UnixStream,
    /// Readable once this end is to stop.
    stop: Option<Arc<OwnedFd>>,
    send_timeout: Duration,
    sending: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
    handler: Option<Handler>,
}

struct State {
    /// Taken by the thread that receives.
    receiver: Option<Receiver>,
    commands: VecDeque<Message>,
    queued_bytes: usize,
    /// Message ids that are out, with the reply once it is there.
    waiting: HashMap<u16, Waiting>,
    /// Message ids whose asker gave up; their replies are dropped.
    abandoned: HashSet<u16>,
    next_id: u16,
    /// Threads that sleep on `changed`. Waking nobody would still be a system call for each message.
    sleepers: u32,
    closed: Option<CloseReason>,
}

struct Waiting {
    command: Command,
    reply: Option<Message>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

impl Channel {
    /// `stop`: a descriptor whose readability ends all waits and closes the connection. `send_timeout`: how
    /// long a peer may leave its side of the socket unread.
    pub fn new(
        socket: UnixStream,
        stop: Option<Arc<OwnedFd>>,
        send_timeout: Duration,
        handler: Option<Handler>,
    ) -> Channel {
        let state = State {
            receiver: Some(Receiver::new()),
            commands: VecDeque::new(),
            queued_bytes: 0,
            waiting: HashMap::new(),
            abandoned: HashSet::new(),
            next_id: 0,
            sleepers: 0,
            closed: None,
        };
        Channel {
            socket,
            stop,
            send_timeout,
            sending: Mutex::new(()),
            state: Mutex::new(state),
            changed: Condvar::new(),
            handler,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Why the connection is closed; `None` while it is open, as far as this end has noticed.
    pub fn closed(&self) -> Option<CloseReason> {
        self.state().closed.clone()
    }

    /// Closes the connection; all waits end. The first reason stays. Where `stop` is what ended it, the peer hears of it by
    /// [`Channel::hang_up`].
    pub fn close(&self, reason: CloseReason) {
        let mut state = self.state();
        self.close_locked(&mut state, reason);
    }

    /// Tells the peer that the connection is closed.
    pub fn hang_up(&self) {
        // Fails only where it is closed already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Sends a command and waits for its reply, which is returned if it is not an error reply.
    pub fn call(
        &self,
        command: Command,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Message, CallError> {
        let id = self.register(command)?;
        let sent = self.send_message(id, command, flags::TYPE_COMMAND, 0, payload, fds, deadline);
        // A peer that refuses a connection may have sent its reason before it closed: look for that first.
        if let Err(reason) = sent
            && reason != CloseReason::PeerClosed
        {
            self.close(reason.clone());
            self.state().waiting.remove(&id);
            return Err(match reason {
                CloseReason::Stalled => CallError::TimedOut,
                other => CallError::Closed(other),
            });
        }
        let reply = self.wait_reply(id, deadline)?;
        match reply.header.error() {
            Some(errno) => Err(CallError::Refused(errno)),
            None => Ok(reply),
        }
    }

    /// Sends a command that is not answered.
    pub fn post(&self, command: Command, payload: &[&[u8]]) -> Result<(), CloseReason> {
        let id = {
            let mut state = self.state();
            if let Some(reason) = &state.closed {
                return Err(reason.clone());
            }
            state.next_id = state.next_id.wrapping_add(1);
            state.next_id
        };
        let deadline = Instant::now() + self.send_timeout;
        let flags = flags::TYPE_COMMAND | flags::NO_REPLY;
        self.send_message(id, command, flags, 0, payload, &[], deadline)
            .inspect_err(|e| self.close(e.clone()))
    }

    /// Answers a command, unless its sender wants no answer.
    pub fn reply(&self, to: &Header, payload: &[&[u8]], fds: &[BorrowedFd<'_>]) -> Result<(), CloseReason> {
        self.answer(to, flags::TYPE_REPLY, 0, payload, fds)
    }

    /// Answers a command with an error number, unless its sender wants no answer.
    pub fn reply_error(&self, to: &Header, errno: u32) -> Result<(), CloseReason> {
        self.answer(to, flags::TYPE_REPLY | flags::ERROR, errno, &[], &[])
    }

    fn answer(
        &self,
        to: &Header,
        flags: u32,
        error: u32,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), CloseReason> {
        if to.no_reply() {
            return Ok(());
        }
        let deadline = Instant::now() + self.send_timeout;
        self.send_message(
            to.message_id.get(),
            to.command(),
            flags,
            error,
            payload,
            fds,
            deadline,
        )
        .inspect_err(|e| self.close(e.clone()))
    }

    /// The next command from the peer, in the order of their arrival; `None` at the deadline.
    pub fn next_command(&self, deadline: Option<Instant>) -> Result<Option<Message>, CloseReason> {
        let mut state = self.state();
        loop {
            if let Some(message) = state.commands.pop_front() {
                state.queued_bytes -= message.body.len();
                self.wake(&state);
                return Ok(Some(message));
            }
            if let Some(reason) = &state.closed {
                return Err(reason.clone());
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
            // Where another thread receives, its own deadline bounds this wait.
            state = match state.receiver.take() {
                Some(receiver) => self.lead(state, receiver, deadline),
                None => self.sleep(state, None),
            };
        }
    }

    /// Receives for everybody until the connection closes. For a thread that does nothing else.
    pub fn pump(&self) {
        let mut state = self.state();
        while state.closed.is_none() {
            state = match state.receiver.take() {
                Some(receiver) => self.lead(state, receiver, None),
                None => self.sleep(state, None),
            };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements, so a panic elsewhere changes nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until another thread has changed something, or for `limit`.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>, limit: Option<Duration>) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = match limit {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                self.changed
                    .wait_timeout(state, limit)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        state.sleepers -= 1;
        state
    }

    fn wake(&self, state: &State) {
        if state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Takes a message id that nobody else uses.
    fn register(&self, command: Command) -> Result<u16, CallError> {
        let mut state = self.state();
        if let Some(reason) = &state.closed {
            return Err(CallError::Closed(reason.clone()));
        }
        for _ in 0..=u16::MAX {
            let id = state.next_id;
            state.next_id = id.wrapping_add(1);
            if !state.waiting.contains_key(&id) && !state.abandoned.contains(&id) {
                state.waiting.insert(id, Waiting { command, reply: None });
                return Ok(id);
            }
        }
        // 65536 commands without an answer.
        Err(CallError::TimedOut)
    }

    fn wait_reply(&self, id: u16, deadline: Instant) -> Result<Message, CallError> {
        let mut state = self.state();
        loop {
            if state.waiting.get(&id).is_some_and(|w| w.reply.is_some()) {
                let reply = state.waiting.remove(&id).and_then(|w| w.reply);
                return reply.ok_or(CallError::TimedOut);
            }
            if let Some(reason) = state.closed.clone() {
                state.waiting.remove(&id);
                return Err(CallError::Closed(reason));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.waiting.remove(&id);
                state.abandoned.insert(id);
                return Err(CallError::TimedOut);
            }
            let full = state.commands.len() >= QUEUE_MESSAGES || state.queued_bytes >= QUEUE_BYTES;
            state = match state.receiver.take_if(|_| !full) {
                Some(receiver) => self.lead(state, receiver, Some(deadline)),
                None => self.sleep(state, Some(left)),
            };
        }
    }

    /// Receives one message with the receiving half that was taken from the state, and hands it on.
    fn lead<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut receiver: Receiver,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        drop(state);
        let stop = self.stop.as_ref().map(|s| s.as_fd());
        let received = receiver.receive(self.socket.as_fd(), stop, deadline);
        if let Received::Bad(header, error) = &received {
            log::debug!("closing a vfio-user connection: {error}");
            if header.is_command() {
                // Best effort; the connection is lost either way.
                let _ = self.reply_error(header, EMSGSIZE);
            }
        }
        let mut state = self.state();
        state.receiver = Some(receiver);
        let mut command = None;
        match received {
            Received::Message(message) if message.header.is_reply() => self.take_reply(&mut state, message),
            Received::Message(message) => command = Some(message),
            Received::TimedOut => {}
            Received::Stopped => self.close_locked(&mut state, CloseReason::Closed),
            Received::Closed(reason) => self.close_locked(&mut state, reason),
            Received::Bad(_, e) => self.close_locked(&mut state, CloseReason::Protocol(e)),
        }
        if let Some(message) = command {
            match &self.handler {
                Some(handler) => {
                    self.wake(&state);
                    drop(state);
                    handler(self, message);
                    state = self.state();
                }
                None => {
                    state.queued_bytes += message.body.len();
                    state.commands.push_back(message);
                }
            }
        }
        self.wake(&state);
        state
    }

    fn take_reply(&self, state: &mut State, message: Message) {
        let id = message.header.message_id.get();
        let command = message.header.command();
        match state.waiting.get_mut(&id) {
            Some(waiting) if waiting.command == command && waiting.reply.is_none() => {
                waiting.reply = Some(message);
            }
            None if state.abandoned.remove(&id) => {
                log::debug!("a reply to {command} came after its deadline");
            }
            _ => {
                let error = ProtocolError::UnexpectedReply {
                    message_id: id,
                    command,
                };
                self.close_locked(state, CloseReason::Protocol(error));
            }
        }
    }

    fn close_locked(&self, state: &mut State, reason: CloseReason) {
        if state.closed.is_none() {
            // Whoever waits on the socket is woken: by the end of it, or by `stop` too.
            if self.stop.is_none() || reason != CloseReason::Closed {
                self.hang_up();
            }
            state.closed = Some(reason);
        }
        self.wake(state);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a message")]
    fn send_message(
        &self,
        id: u16,
        command: Command,
        flags: u32,
        error: u32,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), CloseReason> {
        let len = HEADER_LEN + payload.iter().map(|p| p.len()).sum::<usize>();
        let size = u32::try_from(len).map_err(|_| CloseReason::Socket(rustix::io::Errno::MSGSIZE))?;
        let header = Header {
            message_id: id.into(),
            command: command.0.into(),
            message_size: size.into(),
            flags: flags.into(),
            error: error.into(),
        };
        let mut parts: [&[u8]; 4] = [header.as_bytes(), &[], &[], &[]];
        for (slot, part) in parts[1..].iter_mut().zip(payload) {
            *slot = part;
        }
        let _turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let stop = self.stop.as_ref().map(|s| s.as_fd());
        send(self.socket.as_fd(), &parts, fds, stop, deadline)
    }
}

/// Linux EMSGSIZE.
const EMSGSIZE: u32 = 90;
