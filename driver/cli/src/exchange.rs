//! What two sides of a tool tell each other over TCP before they use RDMA: the exchange of rdma-core's `ibv_*_pingpong`.
//!
//! ```text
//! client  --- address of each queue pair --->  server     which connects its queue pairs,
//!         <-- address of each queue pair ----             and says so by answering
//!         --- "done" ----------------------->
//! ```
//! An address is a text of 51 characters and a NUL: `LID:QPN:PSN:GID`, in hexadecimal digits.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use ferroce::gid::Gid;
use ferroce::ids::Qpn;

use crate::error::CliError;

/// Bytes of an address: its text and the NUL.
pub const ADDRESS_BYTES: usize = 52;
/// What the client says last.
const DONE: &[u8; 5] = b"done\0";
/// How long between two tries to reach a server that is not there yet.
const RETRY: Duration = Duration::from_millis(50);

/// How long a peer is waited for that is not done yet.
const LONGEST_PARTING: Duration = Duration::from_secs(10);

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its number.
    pub qpn: Qpn,
    /// PSN of its first packet (24 bits).
    pub psn: u32,
    /// The GID that it uses.
    pub gid: Gid,
}

impl Destination {
    /// As it goes over the wire. Ethernet has no LID, which is 0.
    pub fn encode(&self) -> [u8; ADDRESS_BYTES] {
        let gid: String = self.gid.0.iter().map(|b| format!("{b:02x}")).collect();
        let text = format!("0000:{:06x}:{:06x}:{gid}", self.qpn.get(), self.psn & 0xff_ffff);
        let mut bytes = [0; ADDRESS_BYTES];
        let len = text.len().min(ADDRESS_BYTES - 1);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        bytes
    }

    /// What the peer sent.
    ///
    /// # Errors
    /// The part that is not as it should be.
    pub fn decode(bytes: &[u8]) -> Result<Destination, String> {
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let parts: Vec<_> = text.split(':').collect();
        let &[_lid, qpn, psn, gid] = parts.as_slice() else {
            return Err(format!("{text:?} is not LID:QPN:PSN:GID"));
        };
        let number = |what: &str, digits: &str| match u32::from_str_radix(digits, 16) {
            Ok(value) if value <= 0xff_ffff && !digits.starts_with('+') => Ok(value),
            _ => Err(format!("{digits:?} is not a {what} of 24 bits")),
        };
        let qpn = number("QPN", qpn)?;
        Ok(Destination {
            qpn: Qpn::from_low_bits(qpn),
            psn: number("PSN", psn)?,
            gid: decode_gid(gid).ok_or_else(|| format!("{gid:?} is not a GID of 32 hexadecimal digits"))?,
        })
    }

    /// As `ibv_*_pingpong` print it.
    pub fn describe(&self) -> String {
        format!(
            "LID 0x0000, QPN {:#08x}, PSN {:#08x}, GID {}",
            self.qpn.get(),
            self.psn,
            self.gid
        )
    }
}

fn decode_gid(text: &str) -> Option<Gid> {
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16)
        .ok()
        .map(|value| Gid(value.to_be_bytes()))
}

/// Listens at a port, for IPv6 and IPv4 where the system does both.
///
/// # Errors
/// The port is taken, or may not be used.
pub fn listen(port: u16) -> Result<TcpListener, CliError> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|v6| {
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(|v4| not_listening(port, &v4, &v6))
    })
}

/// Why this side does not listen, for either kind of IP.
fn not_listening(port: u16, v4: &io::Error, v6: &io::Error) -> CliError {
    let why = if v4.kind() == v6.kind() {
        v4.to_string()
    } else {
        format!("{v4} (IPv6: {v6})")
    };
    let hint = match v4.kind() {
        io::ErrorKind::AddrInUse => "; another program listens there: end it, or choose another port",
        io::ErrorKind::PermissionDenied => {
            "; this port is for root (net.ipv4.ip_unprivileged_port_start): choose a higher one"
        }
        _ => "",
    };
    CliError::Other(format!("can't listen at TCP port {port}: {why}{hint}"))
}

/// The same, at one address of this machine.
///
/// # Errors
/// It is not one, or the port is taken.
pub fn listen_at(host: &str, port: u16) -> Result<TcpListener, CliError> {
    TcpListener::bind((host, port)).map_err(|error| {
        CliError::Other(format!(
            "can't listen at TCP port {port} of {host}: {error}; a server needs an address of its own, or none"
        ))
    })
}

/// Waits for a client. `patience` is for what it says from then on.
///
/// # Errors
/// What the system says.
pub fn accept(listener: &TcpListener, patience: Duration) -> Result<TcpStream, CliError> {
    let (stream, _) = listener
        .accept()
        .map_err(|e| CliError::System("can't accept a connection", e))?;
    prepare(stream, patience)
}

/// Connects to a server, which may start a little later than this.
///
/// # Errors
/// No address for the name, or nobody there before `patience` ends.
pub fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream, CliError> {
    let nobody = |error: io::Error| {
        CliError::Other(format!(
            "can't connect to {host}, TCP port {port}: {error}; is the server started?"
        ))
    };
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|error| CliError::Other(format!("no address for {host}: {error}")))?;
    let addresses: Vec<SocketAddr> = found.collect();
    let deadline = Instant::now() + patience;
    loop {
        let mut last = io::Error::other("the name has no address");
        for address in &addresses {
            match TcpStream::connect_timeout(address, patience.max(RETRY)) {
                Ok(stream) => return prepare(stream, patience),
                Err(error) => last = error,
            }
        }
        if last.kind() != io::ErrorKind::ConnectionRefused || Instant::now() >= deadline {
            return Err(nobody(last));
        }
        thread::sleep(RETRY);
    }
}

/// Reads all of `bytes`, or says that the peer was silent.
pub fn read(stream: &mut TcpStream, bytes: &mut [u8], what: &'static str) -> Result<(), CliError> {
    stream.read_exact(bytes).map_err(|error| silent(what, error))
}

/// Why nothing came from the peer.
pub fn silent(what: &'static str, error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            CliError::Other(format!("{what}: nothing came in time (--timeout)"))
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            CliError::Other(format!(
                "{what}: it has ended; what does it say, and is it the same tool?"
            ))
        }
        _ => CliError::System(what, error),
    }
}

fn prepare(stream: TcpStream, patience: Duration) -> Result<TcpStream, CliError> {
    let set = || {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))
    };
    set().map_err(|e| CliError::System("can't set a connection's timeouts", e))?;
    Ok(stream)
}

/// Tells the peer where this side's queue pairs are, in `places` addresses, those without a queue pair empty.
///
/// # Errors
/// The connection is gone.
pub fn send(stream: &mut TcpStream, own: &[Destination], places: usize) -> Result<(), CliError> {
    let empty = Destination {
        qpn: Qpn::from_low_bits(0),
        psn: 0,
        gid: Gid([0; 16]),
    };
    let padding = std::iter::repeat_n(&empty, places.saturating_sub(own.len()));
    let bytes: Vec<u8> = own.iter().chain(padding).flat_map(Destination::encode).collect();
    stream
        .write_all(&bytes)
        .map_err(|e| CliError::System("can't send this side's address to the peer", e))
}

/// Reads the peer's `places` addresses, of which `count` are of queue pairs.
///
/// # Errors
/// The peer says nothing, or no addresses.
pub fn receive(stream: &mut TcpStream, count: usize, places: usize) -> Result<Vec<Destination>, CliError> {
    let mut found = Vec::new();
    for place in 0..places {
        let mut bytes = [0; ADDRESS_BYTES];
        read(stream, &mut bytes, "the peer did not send its address")?;
        if place < count {
            let peer = Destination::decode(&bytes).map_err(|e| {
                CliError::Other(format!("the peer sent no address: {e}; is it the same tool?"))
            })?;
            found.push(peer);
        }
    }
    Ok(found)
}

/// The client's last word: it knows where the server is.
///
/// # Errors
/// The connection is gone.
pub fn send_done(stream: &mut TcpStream) -> Result<(), CliError> {
    stream
        .write_all(DONE)
        .map_err(|e| CliError::System("can't tell the peer that all is set", e))
}

/// Waits for the client's last word.
///
/// # Errors
/// It does not come, or is another.
pub fn receive_done(stream: &mut TcpStream) -> Result<(), CliError> {
    let mut bytes = [0; DONE.len()];
    read(stream, &mut bytes, "the peer did not say that it is ready")?;
    if bytes != *DONE {
        return Err(CliError::Other(format!(
            "the peer said {:?} where \"done\" was due; is it the same tool?",
            String::from_utf8_lossy(&bytes)
        )));
    }
    Ok(())
}

/// Waits until the peer is done, too: it may still need an acknowledgement that has got lost. rdma-core's tools have hung
/// up long before, so that this returns at once.
pub fn part(mut stream: TcpStream, patience: Duration) {
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.set_read_timeout(Some(patience.min(LONGEST_PARTING)));
    let _ = stream.read(&mut [0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination() -> Destination {
        Destination {
            qpn: Qpn::from_low_bits(0x11),
            psn: 0xabc123,
            gid: Gid::from_ip("10.9.0.2".parse().unwrap()),
        }
    }

    #[test]
    fn why_a_port_is_not_listened_at_is_told_with_what_to_do() {
        let told =
            |v4: io::ErrorKind, v6: io::ErrorKind| not_listening(80, &v4.into(), &v6.into()).to_string();
        let denied = told(io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported);
        for part in [
            "port 80",
            "permission denied",
            "IPv6: unsupported",
            "choose a higher one",
        ] {
            assert!(denied.contains(part), "{part:?} is not in {denied}");
        }
        let taken = told(io::ErrorKind::AddrInUse, io::ErrorKind::AddrInUse);
        assert!(
            taken.contains("choose another port") && !taken.contains("IPv6"),
            "{taken}"
        );
    }

    #[test]
    fn an_address_is_the_text_that_rdma_core_prints() {
        let bytes = destination().encode();
        assert_eq!(
            &bytes[..],
            b"0000:000011:abc123:00000000000000000000ffff0a090002\0"
        );
        assert_eq!(Destination::decode(&bytes), Ok(destination()));
        assert_eq!(
            destination().describe(),
            "LID 0x0000, QPN 0x000011, PSN 0xabc123, GID ::ffff:10.9.0.2"
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let refused = |text: &str| Destination::decode(text.as_bytes()).unwrap_err();
        assert!(refused("").contains("LID:QPN:PSN:GID"));
        assert!(refused("GET / HTTP/1.1").contains("LID:QPN:PSN:GID"));
        assert!(refused("0000:1000000:0:00000000000000000000000000000000").contains("QPN"));
        assert!(refused("0000:11:+1:00000000000000000000000000000000").contains("PSN"));
        assert!(refused("0000:11:1:+0000000000000000000000000000000").contains("GID"));
        assert!(Destination::decode(&[0xff; 52]).is_err());
    }

    #[test]
    fn two_sides_meet() {
        let listener = listen(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let patience = Duration::from_secs(20);
        let server = thread::spawn(move || {
            let mut stream = accept(&listener, patience).unwrap();
            let peers = receive(&mut stream, 1, 3).unwrap();
            send(&mut stream, &peers, 3).unwrap();
            receive_done(&mut stream).unwrap();
        });
        let mut stream = connect("localhost", port, patience).unwrap();
        send(&mut stream, &[destination()], 3).unwrap();
        assert_eq!(receive(&mut stream, 1, 3).unwrap(), [destination()]);
        send_done(&mut stream).unwrap();
        server.join().unwrap();
    }
}
