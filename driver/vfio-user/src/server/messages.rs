//! DMA by messages: the server asks its client to read or write the memory.
//!
//! The specification gives both messages a 64-bit count. Early versions of QEMU's client took it for 32 bits
//! and so shift the data by four bytes; a read from those is refused as malformed, a write can't be noticed.
//! Shared memory, which QEMU's `memory-backend-memfd` is, never gets here.

use std::sync::Weak;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use crate::channel::{CallError, Channel};
use crate::device::{DeviceError, DmaMessages};
use crate::protocol::{Command, DmaAccess, split};

/// Most bytes asked for at a time. Well under a socket's buffer, so that a client that is sending itself does
/// not find both directions full.
const CHUNK: usize = 32 * 1024;

/// Linux EPROTO: an answer that makes no sense.
const EPROTO: u32 = 71;

/// The memory of one client. Holds the connection weakly: a device that keeps it keeps no socket open.
#[derive(Debug)]
pub(crate) struct HostMessages {
    channel: Weak<Channel>,
    chunk: usize,
    timeout: Duration,
}

impl HostMessages {
    pub fn new(channel: Weak<Channel>, max_data_xfer: u64, timeout: Duration) -> HostMessages {
        let chunk = usize::try_from(max_data_xfer).unwrap_or(CHUNK).clamp(1, CHUNK);
        HostMessages {
            channel,
            chunk,
            timeout,
        }
    }

    /// One access of at most a chunk; gives the reply's data.
    fn access(&self, command: Command, iova: u64, count: usize, data: &[u8]) -> Result<Vec<u8>, DeviceError> {
        let channel = self.channel.upgrade().ok_or(DeviceError::Gone {
            what: "the vfio-user client",
        })?;
        let request = DmaAccess {
            address: iova.into(),
            count: (count as u64).into(),
        };
        let deadline = Instant::now() + self.timeout;
        let what = "message-based DMA by the vfio-user client";
        match channel.call(command, &[request.as_bytes(), data], &[], deadline) {
            Ok(reply) => check_reply(command, &request, reply.body),
            Err(CallError::Refused(errno)) => Err(DeviceError::Refused { what, errno }),
            Err(CallError::TimedOut) => Err(DeviceError::TimedOut {
                what,
                millis: self.timeout.as_millis() as u64,
            }),
            Err(CallError::Closed(_)) => Err(DeviceError::Gone {
                what: "the vfio-user client",
            }),
        }
    }
}

/// A reply must repeat the request; a read's carries exactly the bytes that were asked for.
fn check_reply(command: Command, request: &DmaAccess, mut body: Vec<u8>) -> Result<Vec<u8>, DeviceError> {
    let bad = DeviceError::Refused {
        what: "message-based DMA (the answer does not fit)",
        errno: EPROTO,
    };
    if command == Command::DMA_WRITE {
        // The specification's count is 4 bytes here and 8 elsewhere; peers send either.
        let fits = body.len() >= 12 && body[..12] == request.as_bytes()[..12];
        return if fits { Ok(Vec::new()) } else { Err(bad) };
    }
    match split::<DmaAccess>(&body) {
        Some((reply, data)) if reply == request && data.len() as u64 == request.count.get() => {
            body.drain(..size_of::<DmaAccess>());
            Ok(body)
        }
        _ => Err(bad),
    }
}

impl DmaMessages for HostMessages {
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        let mut address = iova;
        for chunk in data.chunks_mut(self.chunk) {
            let got = self.access(Command::DMA_READ, address, chunk.len(), &[])?;
            chunk.copy_from_slice(&got);
            address = address.wrapping_add(chunk.len() as u64);
        }
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut address = iova;
        for chunk in data.chunks(self.chunk) {
            self.access(Command::DMA_WRITE, address, chunk.len(), chunk)?;
            address = address.wrapping_add(chunk.len() as u64);
        }
        Ok(())
    }
}
