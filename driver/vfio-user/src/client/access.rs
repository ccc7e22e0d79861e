//! Reads and writes of regions, in pieces that the server can take.

use zerocopy::IntoBytes;

use super::{Client, ClientError};
use crate::protocol::{Command, RegionAccess, split};
use crate::socket::Message;

impl Client {
    pub(super) fn check_range(&self, index: u32, offset: u64, len: usize) -> Result<(), ClientError> {
        let size = self.regions.get(index as usize).map_or(0, |r| r.size);
        let len = len as u64;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(ClientError::OutOfRange {
                region: index,
                offset,
                len,
                size,
            }),
        }
    }

    /// The most data for one access.
    fn max_data(&self) -> usize {
        // Capabilities cut it to MAX_DATA_XFER.
        self.server.max_data_xfer_size as usize
    }

    pub(super) fn pieces<'a>(&self, offset: u64, data: &'a [u8]) -> impl Iterator<Item = (u64, &'a [u8])> {
        let step = self.max_data();
        data.chunks(step)
            .enumerate()
            .map(move |(i, piece)| (offset + (i * step) as u64, piece))
    }

    pub(super) fn region_read(&self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        const COMMAND: Command = Command::REGION_READ;
        self.check_range(index, offset, data.len())?;
        let mut at = offset;
        for piece in data.chunks_mut(self.max_data()) {
            let access = access(index, at, piece.len());
            let reply = self.call(COMMAND, &[access.as_bytes()], &[])?;
            let got = match split::<RegionAccess>(&reply.body) {
                Some((echo, got)) if echo.count == access.count && got.len() == piece.len() => got,
                _ => {
                    return Err(short_reply(
                        COMMAND,
                        &reply,
                        size_of::<RegionAccess>() + piece.len(),
                    ));
                }
            };
            piece.copy_from_slice(got);
            at += piece.len() as u64;
        }
        Ok(())
    }

    pub(super) fn region_write(&self, index: u32, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        const COMMAND: Command = Command::REGION_WRITE;
        self.check_range(index, offset, data.len())?;
        for (offset, data) in self.pieces(offset, data) {
            let access = access(index, offset, data.len());
            let reply = self.call(COMMAND, &[access.as_bytes(), data], &[])?;
            match split::<RegionAccess>(&reply.body) {
                Some((echo, _)) if echo.count == access.count => {}
                _ => return Err(short_reply(COMMAND, &reply, size_of::<RegionAccess>())),
            }
        }
        Ok(())
    }
}

/// The fixed part of an access.
pub(super) fn access(region: u32, offset: u64, len: usize) -> RegionAccess {
    // Callers pass at most MAX_DATA_XFER bytes.
    RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: (len as u32).into(),
    }
}

/// A reply whose length is not what the request calls for.
pub(super) fn short_reply(command: Command, reply: &Message, expected: usize) -> ClientError {
    let reason = format!(
        "its payload of {} bytes is not the {expected} bytes expected",
        reply.body.len()
    );
    ClientError::BadReply { command, reason }
}
