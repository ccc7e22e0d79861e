//! What the two sides tell each other in the private data of the connection manager's messages.
//!
//! ```text
//!  0  "fprf"   4  version (1)   5  test        6  number of the connection, 0 is that for talk
//!  8  path MTU in bytes        10  queue pairs
//! 12  bytes of a message, 0 with -a            16  messages of each size and queue pair
//! 20  session                                  28  address and 36 R_Key of the memory
//! ```
//! 40 bytes, numbers with the most significant byte first. A rejection has "fprf", then its reason as text.

use clap::ValueEnum;
use ferroce::verbs::RemoteAddr;

use super::args::{PerfArgs, Test};
use super::plan::Plan;
use crate::error::CliError;

const MAGIC: &[u8; 4] = b"fprf";
const VERSION: u8 = 1;
/// Bytes of it.
pub const HELLO: usize = 40;
/// Bytes of private data of a rejection (IBTA vol. 1, 12.6.7).
const REJECTION: usize = 148;

/// What a side says of itself and of one of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub plan: Plan,
    /// Which of the connections.
    pub number: u16,
    /// The client's choice: tells its connections from another client's.
    pub session: u64,
    /// Where it is written to and read from.
    pub memory: RemoteAddr,
}

impl Hello {
    /// The private data. All fits by what `PerfArgs::check` lets through.
    pub fn encode(&self) -> [u8; HELLO] {
        let test = Test::value_variants()
            .iter()
            .position(|test| *test == self.plan.test)
            .unwrap_or_default() as u8;
        let size = match self.plan.sizes.as_slice() {
            [size] => *size as u32,
            _ => 0,
        };
        let mut bytes = [0; HELLO];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = VERSION;
        bytes[5] = test;
        bytes[6..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.plan.mtu.to_be_bytes());
        bytes[10..12].copy_from_slice(&(self.plan.qps as u16).to_be_bytes());
        bytes[12..16].copy_from_slice(&size.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.plan.iters.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.session.to_be_bytes());
        bytes[28..36].copy_from_slice(&self.memory.addr.to_be_bytes());
        bytes[36..40].copy_from_slice(&self.memory.rkey.to_be_bytes());
        bytes
    }

    /// Reads private data.
    ///
    /// # Errors
    /// They are of another program, or of another version of this one.
    pub fn decode(bytes: &[u8]) -> Result<Hello, CliError> {
        let refuse = |text: String| Err(CliError::Other(text));
        if bytes.len() < HELLO || !bytes.starts_with(MAGIC) {
            return refuse("the peer is not `ferroce perf -R`".to_string());
        }
        if bytes[4] != VERSION {
            return refuse(format!(
                "the peer speaks version {} of the set-up, this side {VERSION}; use the same ferroce on both",
                bytes[4]
            ));
        }
        let Some(test) = Test::value_variants().get(usize::from(bytes[5])) else {
            return refuse(format!("the peer's test, {}, is not known here", bytes[5]));
        };
        let number = |at: usize, len: usize| {
            bytes[at..at + len]
                .iter()
                .fold(0, |value: u64, byte| value << 8 | u64::from(*byte))
        };
        Ok(Hello {
            plan: Plan {
                test: *test,
                sizes: match number(12, 4) {
                    0 => PerfArgs::all_sizes(),
                    size => vec![size as usize],
                },
                iters: number(16, 4) as u32,
                qps: number(10, 2) as u32,
                mtu: number(8, 2) as u16,
            },
            number: number(6, 2) as u16,
            session: number(20, 8),
            memory: RemoteAddr {
                addr: number(28, 8),
                rkey: number(36, 4) as u32,
            },
        })
    }
}

/// The private data of a rejection for that reason, of which it holds the beginning.
pub fn refusal(reason: &str) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for c in reason.chars() {
        let mut room = [0; 4];
        let encoded = c.encode_utf8(&mut room).as_bytes();
        if bytes.len() + encoded.len() > REJECTION {
            break;
        }
        bytes.extend_from_slice(encoded);
    }
    bytes
}

/// The reason that a rejection's private data give.
pub fn refused(bytes: &[u8]) -> Option<String> {
    let text = bytes.strip_prefix(MAGIC)?;
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello(test: Test, sizes: Vec<usize>) -> Hello {
        Hello {
            plan: Plan {
                test,
                sizes,
                iters: u32::MAX,
                qps: 256,
                mtu: 4096,
            },
            number: 256,
            session: 0x0102_0304_0506_0708,
            memory: RemoteAddr {
                addr: 0x1112_1314_1516_1718,
                rkey: 0x2122_2324,
            },
        }
    }

    #[test]
    fn both_sides_read_the_same() {
        for test in Test::value_variants() {
            for sizes in [vec![1 << 30], vec![1], PerfArgs::all_sizes()] {
                let said = hello(*test, sizes);
                let mut area = said.encode().to_vec();
                // As the connection manager gives it.
                area.resize(56, 0);
                assert_eq!(Hello::decode(&area).unwrap(), said);
            }
        }
    }

    #[test]
    fn others_are_told_apart() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = hello(Test::ReadBw, vec![2]).encode().to_vec();
            change(&mut bytes);
            Hello::decode(&bytes).unwrap_err().to_string()
        };
        assert!(refused(&|bytes| bytes[0] = 0).contains("not `ferroce perf -R`"));
        assert!(refused(&|bytes| bytes.truncate(HELLO - 1)).contains("not `ferroce perf -R`"));
        assert!(refused(&|bytes| bytes[4] = 9).contains("version 9"));
        assert!(refused(&|bytes| bytes[5] = 7).contains("test, 7,"));
    }

    #[test]
    fn reasons_are_cut_at_what_a_rejection_holds() {
        assert_eq!(refused(&refusal("why")).unwrap(), "why");
        let mut area = refusal("why");
        area.resize(REJECTION, 0);
        assert_eq!(refused(&area).unwrap(), "why");
        let long = "ä".repeat(100);
        assert_eq!(refusal(&long).len(), REJECTION);
        assert_eq!(
            refused(&refusal(&format!("x{long}"))).unwrap().chars().count(),
            72
        );
        assert_eq!(refused(b"other"), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..160), ours in any::<bool>()) {
            let mut bytes = bytes;
            if ours && bytes.len() > 5 {
                bytes[..4].copy_from_slice(MAGIC);
                bytes[4] = VERSION;
            }
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
            }
            let _ = refused(&bytes);
        }
    }
}
