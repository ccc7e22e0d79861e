//! What the two sides of perftest tell each other over TCP (perftest 5.70 and later, without `-R`):
//!
//! ```text
//! client --- version --->  server        16 bytes of text; each thing is answered by the same of the server
//!        --- sizes ----->                size of the cycled buffer, and of a cache line: 4 bytes each
//!        --- path MTU -->                its code, as two bytes of text
//!        --- keys ------>                108 bytes of text: where the queue pair is, and the memory
//!        --- keys ------> (twice)        once connected, and when all is set
//!        ...
//!        --- keys ------>                the work is done; reports of 5 numbers follow, but for SEND
//!        --- keys ------>                the end
//! ```

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ferroce::gid::Gid;
use ferroce::ids::Qpn;
use ferroce::verbs::{Mtu, RemoteAddr};

use crate::error::CliError;
use crate::exchange;

/// Bytes of the keys with a GID.
const KEYS_BYTES: usize = 108;
/// The first version whose exchange is this one.
const OLDEST: f32 = 5.7;
/// What we say.
const VERSION: &[u8; 16] = b"6.24\0\0\0\0\0\0\0\0\0\0\0\0";
/// Size of the part of the memory that requests walk through.
const CYCLE: u32 = 4096;
const CACHE_LINE: u32 = 64;

/// Where a side's queue pair and memory are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// PSN of its first packet.
    pub psn: u32,
    /// READs and atomics that it takes at a time.
    pub out_reads: u8,
    /// Memory that the other side may reach.
    pub memory: RemoteAddr,
    /// The GID that it uses.
    pub gid: Gid,
}

impl Keys {
    /// As they go over the wire. LID and SRQ number are 0.
    fn encode(&self) -> [u8; KEYS_BYTES] {
        let gid: Vec<String> = self.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "0000:{:04x}:{:06x}:{:06x}:{:08x}:{:016x}:{}:00000000:",
            self.out_reads,
            self.qpn.get(),
            self.psn & 0xff_ffff,
            self.memory.rkey,
            self.memory.addr,
            gid.join(":")
        );
        let mut bytes = [0; KEYS_BYTES];
        let len = text.len().min(KEYS_BYTES - 1);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        bytes
    }

    /// What the peer sent.
    fn decode(bytes: &[u8]) -> Result<Keys, CliError> {
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let wrong = || CliError::Other(format!("the peer's keys make no sense: {text:?}"));
        let numbers: Option<Vec<u64>> = text
            .trim_end_matches(':')
            .split(':')
            .map(|digits| u64::from_str_radix(digits, 16).ok())
            .collect();
        let numbers = numbers
            .filter(|numbers| numbers.len() == 6 + 16 + 1)
            .ok_or_else(wrong)?;
        let below = |value: u64, limit: u64| (value < limit).then_some(value).ok_or_else(wrong);
        let mut gid = [0; 16];
        for (byte, value) in gid.iter_mut().zip(&numbers[6..]) {
            *byte = below(*value, 1 << 8)? as u8;
        }
        Ok(Keys {
            out_reads: below(numbers[1], 1 << 8)? as u8,
            qpn: Qpn::from_low_bits(below(numbers[2], 1 << 24)? as u32),
            psn: below(numbers[3], 1 << 24)? as u32,
            memory: RemoteAddr {
                rkey: below(numbers[4], 1 << 32)? as u32,
                addr: numbers[5],
            },
            gid: Gid(gid),
        })
    }
}

/// What a side measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes of a message.
    pub size: u64,
    /// Messages.
    pub iterations: u64,
    /// MiB/s.
    pub bandwidth: f64,
    /// Millions of messages a second.
    pub rate: f64,
}

/// The code of a path MTU (IBTA vol. 1, 9.6.1): 1 is 256 bytes.
fn code(mtu: Mtu) -> u8 {
    let place = Mtu::ALL.iter().position(|known| *known == mtu);
    place.map_or(1, |place| place as u8 + 1)
}

/// The connection, seen from one side.
pub struct Talk {
    stream: TcpStream,
    is_client: bool,
}

impl Talk {
    pub fn new(stream: TcpStream, is_client: bool) -> Talk {
        Talk { stream, is_client }
    }

    /// Tells `own` and learns the peer's: the client speaks first.
    fn exchange<const N: usize>(&mut self, own: [u8; N]) -> Result<[u8; N], CliError> {
        self.exchange_with(|_| Ok(own))
    }

    /// As [`Talk::exchange`]; a server's own may depend on what the client has told.
    fn exchange_with<const N: usize>(
        &mut self,
        own: impl FnOnce(Option<&[u8; N]>) -> Result<[u8; N], CliError>,
    ) -> Result<[u8; N], CliError> {
        let lost = |e| CliError::System("the peer does not go on with perftest's exchange", e);
        let mut peer = [0; N];
        if self.is_client {
            self.stream.write_all(&own(None)?).map_err(lost)?;
            self.stream.read_exact(&mut peer).map_err(lost)?;
        } else {
            self.stream.read_exact(&mut peer).map_err(lost)?;
            self.stream.write_all(&own(Some(&peer))?).map_err(lost)?;
        }
        Ok(peer)
    }

    /// The beginning. Gives the size that the memory has to have at least, and the path MTU that both sides can.
    ///
    /// # Errors
    /// The peer is not perftest, or an old one, or makes no sense.
    pub fn hello(&mut self, mtu: Mtu) -> Result<(u32, Mtu), CliError> {
        let mtu_code = code(mtu);
        let text = |bytes: &[u8]| {
            let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        let version = text(&self.exchange(*VERSION)?);
        if !version.parse::<f32>().is_ok_and(|version| version >= OLDEST) {
            return Err(CliError::Other(format!(
                "the peer's perftest has version {version:?}; {OLDEST} is the oldest that this understands"
            )));
        }
        let cycle = u32::from_be_bytes(self.exchange(CYCLE.to_be_bytes())?);
        self.exchange(CACHE_LINE.to_be_bytes())?;
        let said = text(&self.exchange([b'0' + mtu_code, 0])?);
        let theirs = said.parse::<u8>().ok().filter(|code| (1..=5).contains(code));
        let theirs =
            theirs.ok_or_else(|| CliError::Other(format!("the peer's path MTU has the code {said:?}")))?;
        let place = usize::from(theirs.min(mtu_code)) - 1;
        Ok((cycle.max(CYCLE), Mtu::ALL.get(place).copied().unwrap_or(mtu)))
    }

    /// The first keys: a server chooses its own by the client's.
    ///
    /// # Errors
    /// The peer is gone, or has no keys, or `own` finds none that fit them.
    pub fn first_keys(
        &mut self,
        own: impl FnOnce(Option<&Keys>) -> Result<Keys, CliError>,
    ) -> Result<Keys, CliError> {
        let peer = self.exchange_with(|peer| {
            let peer = peer.map(|bytes| Keys::decode(bytes)).transpose()?;
            Ok(own(peer.as_ref())?.encode())
        })?;
        Keys::decode(&peer)
    }

    /// Tells the keys and learns the peer's; later it only keeps both sides in step.
    pub fn keys(&mut self, own: &Keys) -> Result<Keys, CliError> {
        Keys::decode(&self.exchange(own.encode())?)
    }

    /// Waits until the peer has hung up, too: it may still need an answer of this side's NIC.
    pub fn part(&self, patience: Duration) {
        if let Ok(stream) = self.stream.try_clone() {
            exchange::part(stream, patience);
        }
    }

    /// Exchanges what was measured.
    pub fn reports(&mut self, own: &Report) -> Result<Report, CliError> {
        let size = u64::from_be_bytes(self.exchange(own.size.to_be_bytes())?);
        let iterations = u64::from_be_bytes(self.exchange(own.iterations.to_be_bytes())?);
        let _peak = self.exchange(own.bandwidth.to_be_bytes())?;
        let bandwidth = f64::from_be_bytes(self.exchange(own.bandwidth.to_be_bytes())?);
        let rate = f64::from_be_bytes(self.exchange(own.rate.to_be_bytes())?);
        Ok(Report {
            size,
            iterations,
            bandwidth,
            rate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;

    fn keys() -> Keys {
        Keys {
            qpn: Qpn::from_low_bits(0x52),
            psn: 0xc7_eee8,
            out_reads: 16,
            memory: RemoteAddr {
                addr: 0x7f00_1234_5000,
                rkey: 0x1fff,
            },
            gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 9, 0, 1]),
        }
    }

    #[test]
    fn keys_have_perftests_text() {
        let bytes = keys().encode();
        let text = "0000:0010:000052:c7eee8:00001fff:00007f0012345000:\
            00:00:00:00:00:00:00:00:00:00:ff:ff:0a:09:00:01:00000000:";
        assert_eq!(text.len() + 1, KEYS_BYTES);
        assert_eq!(&bytes[..KEYS_BYTES - 1], text.as_bytes());
        assert_eq!(Keys::decode(&bytes).unwrap(), keys());
    }

    #[test]
    fn keys_that_make_no_sense_are_refused() {
        let text = String::from_utf8(keys().encode().to_vec()).unwrap();
        assert!(Keys::decode(b"").is_err());
        assert!(Keys::decode(&text.as_bytes()[..50]).is_err());
        assert!(Keys::decode(text.replace("000052", "1000052").as_bytes()).is_err());
        assert!(Keys::decode(text.replace(":ff:ff", ":100:ff").as_bytes()).is_err());
        assert!(Keys::decode(text.replace("0000:", "x000:").as_bytes()).is_err());
    }

    #[test]
    fn two_sides_understand_each_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let side = |stream, is_client, mtu: Mtu| {
            let mut talk = Talk::new(stream, is_client);
            let hello = talk.hello(mtu).unwrap();
            let peer = talk.keys(&keys()).unwrap();
            let own = Report {
                size: 4096,
                iterations: u64::from(code(mtu)),
                bandwidth: 1.5,
                rate: 0.5,
            };
            (hello, peer, talk.reports(&own).unwrap().iterations)
        };
        let server = std::thread::spawn(move || side(listener.accept().unwrap().0, false, Mtu::ALL[4]));
        let client = side(TcpStream::connect(address).unwrap(), true, Mtu::ALL[2]);
        assert_eq!(client, ((4096, Mtu::ALL[2]), keys(), 5));
        assert_eq!(server.join().unwrap(), ((4096, Mtu::ALL[2]), keys(), 3));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(parts in prop::collection::vec("[0-9a-fA-F+ ]{0,17}", 20..26), bytes in any::<[u8; KEYS_BYTES]>()) {
            for bytes in [parts.join(":").as_bytes(), &bytes] {
                if let Ok(keys) = Keys::decode(bytes) {
                    prop_assert_eq!(Keys::decode(&keys.encode()).unwrap(), keys);
                }
            }
        }
    }
}
