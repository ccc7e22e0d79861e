//! Whose turn it is.

use ferroce::cm::Connection;

use super::RpingArgs;
use super::ends::{Ends, Info, Next};
use crate::error::{CliError, failed};
use crate::output::say;

/// First and last of the letters that fill a ping.
const LETTERS: (u8, u8) = (b'A', b'z');

/// The text of ping `number`: its name, then letters, each ping's beginning one later, and a NUL.
fn content(number: u32, size: usize) -> Vec<u8> {
    let mut bytes = format!("rdma-ping-{number}: ").into_bytes();
    bytes.truncate(size);
    let count = u32::from(LETTERS.1 - LETTERS.0) + 1;
    let mut letter = number % count;
    while bytes.len() < size {
        bytes.push(LETTERS.0 + letter as u8);
        letter = (letter + 1) % count;
    }
    if let Some(last) = bytes.last_mut() {
        *last = 0;
    }
    bytes
}

fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

fn early() -> CliError {
    CliError::Other("the peer has ended the connection before all pings were through".to_string())
}

/// A client's pings; how many there were.
pub fn client(
    args: &RpingArgs,
    connection: &mut Connection,
    ends: &mut Ends,
    show: bool,
) -> Result<u32, CliError> {
    let mut number = 0;
    let go_ahead = |connection: &mut Connection, ends: &mut Ends| loop {
        match ends.next(connection, args.patience())? {
            Next::Message(_) => return Ok(()),
            Next::Done => {}
            Next::Disconnected => return Err(early()),
        }
    };
    while args.count == 0 || number < args.count {
        let sent = content(number, ends.size());
        ends.start.write(0, &sent).map_err(failed("memory region"))?;
        ends.send(connection.qp_mut(), &ends.info(&ends.start))?;
        go_ahead(connection, ends)?;
        ends.send(connection.qp_mut(), &ends.info(&ends.sink))?;
        go_ahead(connection, ends)?;
        let mut got = vec![0; ends.size()];
        ends.sink.read(0, &mut got).map_err(failed("memory region"))?;
        if args.validate && got != sent {
            let at = got
                .iter()
                .zip(&sent)
                .position(|(got, sent)| got != sent)
                .unwrap_or_default();
            return Err(CliError::Other(format!(
                "ping {number} came back changed: byte {at} is {:#04x}, it was {:#04x}",
                got[at], sent[at]
            )));
        }
        if show {
            say!("ping data: {}", text(&got));
        }
        number += 1;
    }
    Ok(number)
}

/// A server's part until the client ends the connection; how many pings there were.
pub fn server(
    args: &RpingArgs,
    connection: &mut Connection,
    ends: &mut Ends,
    show: bool,
) -> Result<u32, CliError> {
    let mut number = 0;
    let nothing = Info {
        at: ends.sink.remote(0),
        len: 0,
    };
    loop {
        let source = match ends.next(connection, args.patience())? {
            Next::Message(info) => info,
            Next::Done => continue,
            Next::Disconnected => return Ok(number),
        };
        let len = source.len as usize;
        if len > ends.size() {
            return Err(CliError::Other(format!(
                "the client's pings have {len} bytes, this server takes {}; start it with -S {len}",
                ends.size()
            )));
        }
        ends.read(connection.qp_mut(), source.at, len)?;
        done(args, connection, ends)?;
        let mut got = vec![0; len];
        ends.sink.read(0, &mut got).map_err(failed("memory region"))?;
        if show {
            say!("server ping data: {}", text(&got));
        }
        ends.send(connection.qp_mut(), &nothing)?;
        let sink = match ends.next(connection, args.patience())? {
            Next::Message(info) => info,
            _ => return Err(early()),
        };
        // What comes before the NUL, and that; never more than the client has room for.
        let back = got.iter().position(|byte| *byte == 0).map_or(len, |nul| nul + 1);
        ends.write(connection.qp_mut(), sink.at, back.min(sink.len as usize))?;
        done(args, connection, ends)?;
        ends.send(connection.qp_mut(), &nothing)?;
        number += 1;
    }
}

/// Waits for the READ or WRITE.
fn done(args: &RpingArgs, connection: &mut Connection, ends: &mut Ends) -> Result<(), CliError> {
    match ends.next(connection, args.patience())? {
        Next::Done => Ok(()),
        Next::Message(_) => Err(CliError::Other(
            "the client sent a message where none was due; is it an rping?".to_string(),
        )),
        Next::Disconnected => Err(early()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_those_of_rping() {
        assert_eq!(content(0, 20), b"rdma-ping-0: ABCDEF\0");
        assert_eq!(content(1, 20), b"rdma-ping-1: BCDEFG\0");
        assert_eq!(content(57, 20), b"rdma-ping-57: zABCD\0");
        assert_eq!(content(58, 20), b"rdma-ping-58: ABCDE\0");
        assert_eq!(text(&content(0, 20)), "rdma-ping-0: ABCDEF");
    }
}
