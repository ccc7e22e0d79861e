//! Serves the device's accesses to memory that it can't map.

use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::channel::Handler;
use crate::device::DmaMessages;
use crate::protocol::{Command, DmaAccess, MAX_DATA_XFER, split};
use crate::socket::Message;

/// Answers the server's DMA messages; without `dma`, with an error.
pub(crate) fn handler(dma: Option<Arc<dyn DmaMessages>>) -> Handler {
    Box::new(move |channel, message| {
        let answer = match &dma {
            Some(dma) => serve(&**dma, &message),
            None => Err(number(Errno::OPNOTSUPP)),
        };
        // A failure closes the channel, which is told to whoever uses it next.
        let _ = match answer {
            Ok((access, data)) => channel.reply(&message.header, &[access.as_bytes(), &data], &[]),
            Err(errno) => channel.reply_error(&message.header, errno),
        };
    })
}

/// One message: the reply's fixed part and data, or an error number.
fn serve(dma: &dyn DmaMessages, message: &Message) -> Result<(DmaAccess, Vec<u8>), u32> {
    let command = message.header.command();
    if ![Command::DMA_READ, Command::DMA_WRITE].contains(&command) {
        return Err(number(Errno::OPNOTSUPP));
    }
    let (access, data) = split::<DmaAccess>(&message.body).ok_or(number(Errno::INVAL))?;
    let count = access.count.get();
    if count > u64::from(MAX_DATA_XFER) {
        return Err(number(Errno::TOOBIG));
    }
    if command == Command::DMA_READ {
        let mut read = vec![0; count as usize];
        dma.read(access.address.get(), &mut read).map_err(|e| e.errno())?;
        return Ok((*access, read));
    }
    if data.len() as u64 != count {
        return Err(number(Errno::INVAL));
    }
    dma.write(access.address.get(), data).map_err(|e| e.errno())?;
    Ok((*access, Vec::new()))
}

fn number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}
