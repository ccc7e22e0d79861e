//! The demo with its two sides in two programs, on two machines: what they tell each other over TCP, and who does what.
//!
//! ```text
//! A (--connect)                                    B (--listen)
//!   hello: where it is, length of the file  --->     connects its queue pair
//!   connects its queue pair                 <---     welcome: where it is, its file and counter
//!   WRITEs with immediate                   ===>     counts them
//!   written                                 --->
//!                                           <---     received
//!   READs, atomics                          ===>
//!   counter / message / answer / finish     --->     says what it holds, what came, or sends
//! ```
//! One JSON object a line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Instant;

use ferroce::function;
use ferroce::gid::Gid;
use ferroce::ids::Qpn;
use ferroce::port::MacAddress;
use ferroce::verbs::{Access, Mr, RemoteAddr};
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::report::Report;
use super::side::{COUNTER, Chunks, Class, End, PATIENCE, Receiver, SMALL_WRITES, Side, Writer};
use super::{content, hash, open_out, progress, write};
use crate::args::{DemoArgs, MAX_BYTES};
use crate::error::{CliError, failed, first_error};
use crate::exchange;
use crate::output::say;

/// The longest that a peer may say, in bytes.
const MOST: u64 = 1 << 16;
/// 0.27 s: the other machine may be busy.
const TIMEOUT: u8 = 16;
const FROM_A: &str = "from A, by SEND";
const FROM_B: &str = "from B, by SEND";

/// What the sides say.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Hello {
        end: WireEnd,
        len: u64,
        mtu: u16,
    },
    Welcome {
        end: WireEnd,
        file: Place,
        counter: Place,
        atomics: bool,
    },
    Written,
    Received,
    Counter,
    Holds {
        value: u64,
    },
    Message,
    Ready,
    Took {
        text: String,
        imm: Option<u32>,
    },
    Answer,
    Finish,
    Finished {
        sha256: String,
        all_right: bool,
    },
}

/// An [`End`] in numbers.
#[derive(Debug, Serialize, Deserialize)]
struct WireEnd {
    mac: [u8; 6],
    gid: [u8; 16],
    qpn: u32,
    psn: u32,
}

/// A region for the peer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Place {
    addr: u64,
    rkey: u32,
}

impl From<End> for WireEnd {
    fn from(end: End) -> WireEnd {
        WireEnd {
            mac: end.mac.0,
            gid: end.gid.0,
            qpn: end.qpn.get(),
            psn: end.psn,
        }
    }
}

impl From<WireEnd> for End {
    fn from(end: WireEnd) -> End {
        End {
            mac: MacAddress(end.mac),
            gid: Gid(end.gid),
            qpn: Qpn::from_low_bits(end.qpn),
            psn: end.psn & 0xff_ffff,
        }
    }
}

impl From<RemoteAddr> for Place {
    fn from(RemoteAddr { addr, rkey }: RemoteAddr) -> Place {
        Place { addr, rkey }
    }
}

impl From<Place> for RemoteAddr {
    fn from(Place { addr, rkey }: Place) -> RemoteAddr {
        RemoteAddr { addr, rkey }
    }
}

/// The connection over which the sides talk.
struct Talk(BufReader<TcpStream>);

impl Talk {
    fn say(&mut self, word: &Word) -> Result<(), CliError> {
        let mut line = serde_json::to_string(word).map_err(failed("telling the peer"))?;
        line.push('\n');
        let sent = self.0.get_mut().write_all(line.as_bytes());
        sent.map_err(|e| CliError::System("can't tell the peer", e))
    }

    fn hear(&mut self) -> Result<Word, CliError> {
        let mut line = String::new();
        let heard = (&mut self.0).take(MOST).read_line(&mut line);
        let heard = heard.and_then(|_| match line.ends_with('\n') || line.len() as u64 == MOST {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        heard.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => CliError::Other(format!(
                "the peer said nothing for {} s; what is it at?",
                PATIENCE.as_secs()
            )),
            _ => exchange::silent("the peer said no more", error),
        })?;
        serde_json::from_str(&line).map_err(|e| {
            let text: String = line.chars().take(80).collect();
            CliError::Other(format!("the peer said {text:?}, which is not of the demo: {e}"))
        })
    }

    /// Asks, and hears.
    fn ask(&mut self, word: &Word) -> Result<Word, CliError> {
        self.say(word)?;
        self.hear()
    }
}

fn unexpected(word: &Word) -> CliError {
    CliError::Other(format!(
        "the peer said {word:?} at the wrong time; is it of the same version?"
    ))
}

/// Runs this program's side.
pub fn run(args: &DemoArgs) -> Result<ExitCode, CliError> {
    let started = Instant::now();
    let [device] = args.devices.as_slice() else {
        let what = "with --listen or --connect, --device has to be given once";
        return Err(CliError::Other(what.to_string()));
    };
    // What is wrong with the network is told before a NIC is brought up.
    let meeting = Meeting::start(args)?;
    let index = usize::from(matches!(meeting, Meeting::Listen(_)));
    let function = function::open(device).map_err(|source| CliError::Function {
        device: device.clone(),
        source: Box::new(source),
    })?;
    let nodes = [Node::open(function, index)?];
    let bring_up = started.elapsed();
    let mut report = Report::new(args, &nodes, bring_up, 0);
    let done = match meeting {
        Meeting::Connect(talk) => active(&nodes[0], args, talk, &mut report),
        Meeting::Listen(listener) => {
            let talk = exchange::accept(&listener, PATIENCE).map(|stream| Talk(BufReader::new(stream)));
            talk.and_then(|talk| passive(&nodes[0], args, talk, &mut report))
        }
    };
    let [node] = nodes;
    let ((), closed) = first_error(done, node.close())?;
    report.closed(closed);
    report.print(args.json)?;
    Ok(if report.all_right() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// How the sides meet.
enum Meeting {
    Listen(std::net::TcpListener),
    Connect(Talk),
}

impl Meeting {
    fn start(args: &DemoArgs) -> Result<Meeting, CliError> {
        match (&args.listen, &args.connect) {
            (Some(port), _) => {
                let listener = exchange::listen(*port)?;
                if !args.json
                    && let Ok(address) = listener.local_addr()
                {
                    say!("listening at TCP port {}", address.port());
                }
                Ok(Meeting::Listen(listener))
            }
            (None, Some(peer)) => {
                let split = peer.rsplit_once(':');
                let (host, port) = split
                    .and_then(|(host, port)| Some((host, port.parse().ok()?)))
                    .ok_or_else(|| CliError::Other(format!("--connect {peer}: HOST:PORT is wanted")))?;
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let stream = exchange::connect(host, port, PATIENCE)?;
                Ok(Meeting::Connect(Talk(BufReader::new(stream))))
            }
            (None, None) => Err(CliError::Other("neither --listen nor --connect".to_string())),
        }
    }
}

/// This side of a connection, and its GID's index.
fn own_end(node: &Node, args: &DemoArgs, side: &Side) -> Result<(u16, End), CliError> {
    let (index, gid) = node.gid(args.gid)?;
    let end = End {
        mac: node.mac()?,
        gid,
        qpn: side.qp.qpn(),
        psn: rand::rng().random_range(0..1 << 24),
    };
    Ok((index, end))
}

/// Side A: sends the file, and reads it back.
fn active(node: &Node, args: &DemoArgs, mut talk: Talk, report: &mut Report) -> Result<(), CliError> {
    let content = content(args)?;
    let len = content.len();
    report.bytes = len;
    let progress = progress(args, len as u64);
    let mut side = Side::new(node, len, Access::LOCAL_WRITE)?;
    side.file.write(0, &content).map_err(failed("memory region"))?;
    let read_back = Mr::alloc(&side.pd, len.max(1), Access::LOCAL_WRITE).map_err(failed("memory region"))?;
    let (index, own) = own_end(node, args, &side)?;
    let hello = Word::Hello {
        end: own.into(),
        len: len as u64,
        mtu: args.mtu,
    };
    let (peer, file, counter, atomics) = match talk.ask(&hello)? {
        Word::Welcome {
            end,
            file,
            counter,
            atomics,
        } => (End::from(end), file.into(), counter.into(), atomics),
        other => return Err(unexpected(&other)),
    };
    side.connect((index, own.psn), &peer, &Class::of(args), TIMEOUT)?;

    progress.set_message("write");
    let started = Instant::now();
    let mut writer = Writer::new(len, file);
    while !writer.ended() {
        if !writer.step(&mut side, &progress)? && !writer.ended() {
            side.sleep("WRITE with immediate")?;
        }
    }
    report.bandwidth("write", len, started.elapsed());
    report.completions += writer.done as u64;
    match talk.ask(&Word::Written)? {
        Word::Received => {}
        other => return Err(unexpected(&other)),
    }
    side.read_back(&read_back, &Chunks { len }, file, report, &progress)?;
    if atomics {
        let swapped = side.atomics(counter, report)?;
        report.check("compare-and-swap swaps", holds(&mut talk)? == swapped);
    } else {
        report.left_out("atomics");
    }
    messages(&mut side, &mut talk, report)?;
    side.latency(counter, report)?;
    let last = holds(&mut talk)?;
    report.check("last small WRITE", last == u64::from(SMALL_WRITES - 1));
    progress.finish_and_clear();

    report.sha256 = hash(&content);
    match talk.ask(&Word::Finish)? {
        Word::Finished { sha256, all_right } => {
            report.check("file at the peer", sha256 == report.sha256);
            report.check("the peer found all right", all_right);
        }
        other => return Err(unexpected(&other)),
    }
    report.check(
        "file read back",
        hash(&Side::copy(&read_back, len)?) == report.sha256,
    );
    let mut sums = std::collections::BTreeMap::new();
    side.add_counters(&mut sums)?;
    report.counters(sums);
    side.close()
}

/// What the peer's counter holds.
fn holds(talk: &mut Talk) -> Result<u64, CliError> {
    match talk.ask(&Word::Counter)? {
        Word::Holds { value } => Ok(value),
        other => Err(unexpected(&other)),
    }
}

/// A message each way.
fn messages(side: &mut Side, talk: &mut Talk, report: &mut Report) -> Result<(), CliError> {
    match talk.ask(&Word::Message)? {
        Word::Ready => side.send_message(FROM_A.as_bytes(), Some(7))?,
        other => return Err(unexpected(&other)),
    }
    match talk.hear()? {
        Word::Took { text, imm } => report.check("message from A", text == FROM_A && imm == Some(7)),
        other => return Err(unexpected(&other)),
    }
    side.expect_message()?;
    talk.say(&Word::Answer)?;
    let got = side.take_message()?;
    report.check("message from B", got == (FROM_B.as_bytes().to_vec(), None));
    report.completions += 2;
    Ok(())
}

/// Side B: has the file written into its memory, and says what it sees.
fn passive(node: &Node, args: &DemoArgs, mut talk: Talk, report: &mut Report) -> Result<(), CliError> {
    let out = args.out.as_deref().map(open_out).transpose()?;
    let (peer, len, mtu) = match talk.hear()? {
        Word::Hello { end, len, mtu } if len <= MAX_BYTES => (End::from(end), len as usize, mtu),
        Word::Hello { len, .. } => {
            let what = format!("the peer's file has {len} bytes; the demo moves at most {MAX_BYTES}");
            return Err(CliError::Other(what));
        }
        other => return Err(unexpected(&other)),
    };
    (report.bytes, report.path_mtu) = (len, mtu);
    let access = Access::supported_by(&node.context);
    let mut side = Side::new(node, len, access)?;
    let counter = Mr::alloc(&side.pd, 8, access).map_err(failed("memory region"))?;
    counter.write_u64(0, COUNTER).map_err(failed("memory region"))?;
    let (index, own) = own_end(node, args, &side)?;
    let class = Class {
        mtu,
        ..Class::of(args)
    };
    side.connect((index, own.psn), &peer, &class, TIMEOUT)?;
    talk.say(&Word::Welcome {
        end: own.into(),
        file: side.file.remote(0).into(),
        counter: counter.remote(0).into(),
        atomics: counter.access().contains(Access::REMOTE_ATOMIC),
    })?;

    let mut receiver = Receiver::new(len);
    while !receiver.ended() {
        if !receiver.step(&mut side, report)? && !receiver.ended() {
            side.sleep("WRITE with immediate")?;
        }
    }
    report.completions += receiver.received as u64;
    match talk.hear()? {
        Word::Written => talk.say(&Word::Received)?,
        other => return Err(unexpected(&other)),
    }
    loop {
        match talk.hear()? {
            Word::Counter => {
                let value = counter.read_u64(0).map_err(failed("counter"))?;
                talk.say(&Word::Holds { value })?;
            }
            Word::Message => {
                side.expect_message()?;
                talk.say(&Word::Ready)?;
                let (bytes, imm) = side.take_message()?;
                let text = String::from_utf8_lossy(&bytes).into_owned();
                talk.say(&Word::Took { text, imm })?;
                report.completions += 1;
            }
            Word::Answer => {
                side.send_message(FROM_B.as_bytes(), None)?;
                report.completions += 1;
            }
            Word::Finish => break,
            other => return Err(unexpected(&other)),
        }
    }
    let received = Side::copy(&side.file, len)?;
    report.sha256 = hash(&received);
    talk.say(&Word::Finished {
        sha256: report.sha256.clone(),
        all_right: report.all_right(),
    })?;
    let mut sums = std::collections::BTreeMap::new();
    side.add_counters(&mut sums)?;
    report.counters(sums);
    if let (Some(mut file), Some(path)) = (out, &args.out) {
        write(&mut file, &received).map_err(CliError::file("can't write", path))?;
    }
    side.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_hangs_up_is_told_from_one_that_says_something_else() {
        let hear = |said: &[u8]| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peer.write_all(said).unwrap();
            drop(peer);
            let mut talk = Talk(BufReader::new(listener.accept().unwrap().0));
            talk.hear().unwrap_err().to_string()
        };
        for ended in [&b""[..], b"{\"written\""] {
            assert!(hear(ended).contains("it has ended"), "{}", hear(ended));
        }
        assert!(hear(b"GET /\n").contains("which is not of the demo"));
        let silent = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let stream = listener.accept().unwrap().0;
            stream
                .set_read_timeout(Some(std::time::Duration::from_millis(1)))
                .unwrap();
            Talk(BufReader::new(stream)).hear().unwrap_err().to_string()
        };
        assert!(silent.contains("said nothing"), "{silent}");
    }

    #[test]
    fn words_survive_the_wire() {
        let end = End {
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            gid: Gid([7; 16]),
            qpn: Qpn::from_low_bits(0x1_0001),
            psn: 0xff_ffff,
        };
        let hello = Word::Hello {
            end: end.into(),
            len: 5,
            mtu: 4096,
        };
        let text = serde_json::to_string(&hello).unwrap();
        let Word::Hello {
            end: back,
            len: 5,
            mtu: 4096,
        } = serde_json::from_str(&text).unwrap()
        else {
            panic!("{text}");
        };
        let back = End::from(back);
        assert_eq!(
            (back.mac, back.gid, back.qpn, back.psn),
            (end.mac, end.gid, end.qpn, end.psn)
        );
        assert!(serde_json::from_str::<Word>("{\"explode\":1}").is_err());
    }
}
