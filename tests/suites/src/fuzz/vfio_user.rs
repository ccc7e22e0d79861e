//! Both ends of vfio-user.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ferroce_nic_model::clock::ManualClock;
use ferroce_nic_model::link::cable::cable;
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::runner::{Drive, Runner};
use ferroce_vfio_user::client::{Client, ClientOptions};
use ferroce_vfio_user::server::{ServerOptions, StopHandle, serve_stream};

use super::Input;

/// Bytes that a socket takes without a reader.
const MOST: usize = 32 << 10;
/// A server waits so long for a client that reads nothing.
const IMPATIENCE: Duration = Duration::from_millis(2);

/// A message of the protocol.
fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(id.to_le_bytes());
    bytes.extend(command.to_le_bytes());
    bytes.extend((16 + payload.len() as u32).to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes
}

/// What a client may send to the model: with and without framing that fits.
///
/// # Panics
/// On a bug.
pub fn vfio_user_server(data: &[u8]) {
    let (mut ours, theirs) = UnixStream::pair().expect("sockets");
    let mut input = Input(&data[..data.len().min(MOST)]);
    let mut bytes = Vec::new();
    if input.u8() & 7 != 0 {
        bytes = message(0, 1, 0, b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":8}}\0");
    }
    for id in 1.. {
        if input.is_empty() || bytes.len() > MOST {
            break;
        }
        let (kind, len) = (input.u8(), usize::from(input.u8()));
        let payload = input.take(len);
        if kind & 0xf == 0 {
            bytes.extend(payload);
        } else {
            let flags = if kind & 0x80 != 0 { 0x10 } else { 0 };
            bytes.extend(message(id, (kind & 0xf).into(), flags, payload));
        }
    }
    ours.write_all(&bytes).expect("it fits");
    ours.shutdown(Shutdown::Write).expect("a socket");
    let (port, _peer) = cable(4);
    let nic = Nic::new(Profile::minimal(), Box::new(port));
    let runner = Runner::new(vec![nic], Arc::new(ManualClock::new()), Drive::Caller).expect("a runner");
    let mut options = ServerOptions::default();
    options.max_data_xfer_size = 4096;
    options.send_timeout = IMPATIENCE;
    let stop = StopHandle::new().expect("an eventfd");
    let device = runner.device(0).expect("a NIC");
    serve_stream(theirs, device, &stop, options);
}

/// What a server may send to our client: replies that fit a request in number and command, and others.
///
/// # Panics
/// On a bug.
pub fn vfio_user_client(data: &[u8]) {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    let data = data[..data.len().min(MOST)].to_vec();
    // Answers each request with the next piece of input, then hangs up.
    let server = std::thread::spawn(move || {
        let mut input = Input(&data);
        while !input.is_empty() {
            let mut header = [0; 16];
            if theirs.read_exact(&mut header).is_err() {
                return;
            }
            let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
            let len = u32::from_le_bytes([header[4], header[5], header[6], header[7]]).saturating_sub(16);
            let mut request = vec![0; len.min(1 << 20) as usize];
            if theirs.read_exact(&mut request).is_err() {
                return;
            }
            let kind = input.u8();
            let mut payload = input.take(usize::from(kind >> 2)).to_vec();
            if kind & 2 != 0 {
                // The request's own beginning, as most honest replies have it.
                request.truncate(16);
                request.extend(payload);
                payload = request;
            }
            let bytes = match kind & 1 {
                0 if field(2) == 1 => message(field(0), 1, 1, b"\0\0\x01\0{}\0"),
                0 => message(field(0), field(2), 1, &payload),
                _ => payload,
            };
            if theirs.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    let mut options = ClientOptions::default();
    (
        options.connect_timeout,
        options.request_timeout,
        options.reset_timeout,
    ) = (IMPATIENCE, IMPATIENCE, IMPATIENCE);
    if let Ok(client) = Client::from_stream(ours, options) {
        let mut bytes = [0; 64];
        let _ = client.config_read(0, &mut bytes);
        let _ = client.bar_read(0, 0, &mut bytes[..8]);
        let _ = client.bar_write_and_wait(0, 0, &bytes[..8]);
        let _ = client.set_msix(0, &[None]);
        let _ = client.dma_map(0x1000, 0x1000, true, true, None);
        let _ = client.dma_unmap(0x1000, 0x1000);
        let _ = client.reset();
        let _ = client.gone();
    }
    server.join().expect("the server's thread");
}
