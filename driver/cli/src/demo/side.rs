//! One side of the demo's connection: its objects, and what it does with them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferroce::gid::Gid;
use ferroce::ids::Qpn;
use ferroce::port::MacAddress;
use ferroce::verbs::{
    Access, BufferOp, CounterSet, Counters, Cq, CqConfig, CqPoller, LocalBuffer, Mr, Path, Payload, Pd, Qp,
    QpConfig, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, ToInit, ToRtr, ToRts, Wc, WcSuccess,
};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;

use super::node::Node;
use super::report::Report;
use crate::args::DemoArgs;
use crate::error::{CliError, failed};
use crate::nic;

/// Bytes of one WRITE or READ.
const CHUNK: usize = 1 << 20;
/// WRITEs and READs under way at a time.
const DEPTH: usize = 16;
/// Small WRITEs whose latency is measured.
pub const SMALL_WRITES: u32 = 2000;
/// A request that has not completed by then never will: longer than all retries of a connection together.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What the peer's counter holds at first.
pub const COUNTER: u64 = 0x0102_0304_0506_0708;
/// Looks at a CQ before its reader goes to sleep: some 20 us.
const SPINS: u32 = 2000;

/// One side: its objects.
pub struct Side {
    pub qp: Qp,
    pub poller: CqPoller,
    /// The file: to be sent, or received.
    pub file: Mr,
    /// None where the device doesn't count.
    counters: Option<CounterSet>,
    pub pd: Pd,
}

/// What one side has to know of the other, or of itself, to connect.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub mac: MacAddress,
    pub gid: Gid,
    pub qpn: Qpn,
    /// PSN of its first packet.
    pub psn: u32,
}

/// What packets are like.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Path MTU in bytes.
    pub mtu: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

impl Class {
    /// As the options say.
    pub fn of(args: &DemoArgs) -> Class {
        Class {
            mtu: args.mtu,
            traffic_class: args.traffic_class,
        }
    }
}

impl Side {
    /// Makes the objects for a file of `len` bytes, to which the peer has that access.
    pub fn new(node: &Node, len: usize, access: Access) -> Result<Side, CliError> {
        let pd = Pd::alloc(&node.context).map_err(failed("protection domain"))?;
        let depth = DEPTH as u32;
        let (cq, poller) = Cq::create(&node.context, CqConfig::new(4 * depth)).map_err(failed("CQ"))?;
        let config = QpConfig {
            max_send_wr: 2 * depth,
            max_recv_wr: 2 * depth,
            max_inline_data: 64,
            ..QpConfig::default()
        };
        let mut qp = Qp::create(&pd, &cq, &cq, &config).map_err(failed("QP"))?;
        // A region has at least one byte.
        let file = Mr::alloc(&pd, len.max(1), access).map_err(failed("memory region"))?;
        let counters = CounterSet::alloc(&node.context)
            .inspect_err(|error| log::info!("{} does not count: {error}", node.name))
            .ok();
        if let Some(counters) = &counters {
            qp.count_with(counters).map_err(failed("counter set"))?;
        }
        Ok(Side {
            qp,
            poller,
            file,
            counters,
            pd,
        })
    }

    /// Brings the QP to RTS. An answer that takes longer than 4.096 µs times 2 to the power `timeout` counts as lost.
    pub fn connect(
        &mut self,
        (sgid_index, psn): (u16, u32),
        peer: &End,
        class: &Class,
        timeout: u8,
    ) -> Result<(), CliError> {
        const WHAT: &str = "connecting";
        let mtu = nic::mtu(class.mtu)?;
        let mut path = Path::new(sgid_index, peer.gid, peer.mac);
        path.traffic_class = class.traffic_class;
        self.qp.modify_to_init(&ToInit::default()).map_err(failed(WHAT))?;
        let to_rtr = ToRtr {
            mtu,
            ..ToRtr::new(path, peer.qpn, peer.psn)
        };
        self.qp.modify_to_rtr(&to_rtr).map_err(failed(WHAT))?;
        let to_rts = ToRts {
            timeout,
            ..ToRts::new(psn)
        };
        self.qp.modify_to_rts(&to_rts).map_err(failed(WHAT))?;
        Ok(())
    }

    /// The next completion that succeeded; asleep, if it takes longer than a moment.
    pub fn completion(&mut self, what: &'static str) -> Result<WcSuccess, CliError> {
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..SPINS {
            if let Some(wc) = self.poller.poll_one().map_err(failed(what))? {
                return wc.result().map_err(failed(what));
            }
            std::hint::spin_loop();
        }
        loop {
            self.poller.wait(deadline).map_err(failed(what))?;
            if let Some(wc) = self.poller.poll_one().map_err(failed(what))? {
                return wc.result().map_err(failed(what));
            }
        }
    }

    /// All completions that are there.
    fn completions(&mut self, what: &'static str) -> Result<Vec<WcSuccess>, CliError> {
        let mut found: Vec<Wc> = Vec::new();
        self.poller
            .poll(2 * DEPTH, |wc| found.push(wc))
            .map_err(failed(what))?;
        found
            .into_iter()
            .map(|wc| wc.result().map_err(failed(what)))
            .collect()
    }

    /// Sleeps until there is a completion.
    pub fn sleep(&mut self, what: &'static str) -> Result<(), CliError> {
        let deadline = Instant::now() + PATIENCE;
        self.poller.wait(deadline).map(|_| ()).map_err(failed(what))
    }

    /// The file back from the peer into `into`, by READ.
    pub fn read_back(
        &mut self,
        into: &Mr,
        chunks: &Chunks,
        remote: RemoteAddr,
        report: &mut Report,
        progress: &ProgressBar,
    ) -> Result<(), CliError> {
        const WHAT: &str = "READ";
        progress.set_message("read");
        let (mut posted, mut done) = (0, 0);
        let started = Instant::now();
        while done < chunks.count() {
            while posted < chunks.count() && posted - done < DEPTH {
                let (at, len) = chunks.get(posted);
                let sges = [into.sge(at..at + len).map_err(failed(WHAT))?];
                let op = SendOp::Read {
                    into: &sges,
                    remote: at_offset(remote, at),
                };
                let wr = SendWr {
                    wr_id: posted as u64,
                    op,
                    flags: SendFlags::SIGNALED,
                };
                self.qp.post_send(&wr).map_err(failed(WHAT))?;
                posted += 1;
            }
            self.qp.ring_send();
            let wc = self.completion(WHAT)?;
            let right = wc.byte_len as usize == chunks.get(wc.wr_id as usize).1;
            report.check("length of each READ", right);
            progress.inc(u64::from(wc.byte_len));
            done += 1;
        }
        report.bandwidth("read", chunks.len, started.elapsed());
        report.completions += done as u64;
        Ok(())
    }

    /// Fetch-and-add, then compare-and-swap, on the peer's counter. What it holds then.
    pub fn atomics(&mut self, remote: RemoteAddr, report: &mut Report) -> Result<u64, CliError> {
        let old = self.atomic("fetch-and-add", BufferOp::FetchAdd { remote, add: 42 })?;
        report.check("fetch-and-add gives the old value", old == COUNTER);
        let swap = !COUNTER;
        let compare = COUNTER + 42;
        let op = BufferOp::CompareSwap {
            remote,
            compare,
            swap,
        };
        let old = self.atomic("compare-and-swap", op)?;
        report.check("compare-and-swap gives the old value", old == compare);
        report.completions += 2;
        Ok(swap)
    }

    fn atomic(&mut self, what: &'static str, op: BufferOp) -> Result<u64, CliError> {
        let buffer = LocalBuffer::alloc(&self.pd, 8).map_err(failed(what))?;
        self.qp
            .post_send_buffer(0, op, SendFlags::empty(), buffer, 0..8)
            .map_err(failed(what))?;
        self.qp.ring_send();
        let buffer = self.completion(what)?.buffer;
        buffer
            .and_then(|b| b.atomic_result(0))
            .ok_or_else(|| CliError::Other(format!("{what}: the buffer did not come back")))
    }

    /// Inline WRITEs of 8 bytes, one at a time: from the post to the polled completion. The peer has the number of the
    /// last one then.
    pub fn latency(&mut self, remote: RemoteAddr, report: &mut Report) -> Result<(), CliError> {
        const WHAT: &str = "small WRITE";
        let mut histogram = Histogram::<u64>::new(3).map_err(failed(WHAT))?;
        for i in 0..SMALL_WRITES {
            let bytes = u64::from(i).to_ne_bytes();
            let started = Instant::now();
            let op = SendOp::Write {
                data: Payload::Inline(&bytes),
                remote,
                imm: None,
            };
            let wr = SendWr {
                wr_id: u64::from(i),
                op,
                flags: SendFlags::SIGNALED,
            };
            self.qp.post_send(&wr).map_err(failed(WHAT))?;
            self.qp.ring_send();
            let wc = self.completion(WHAT)?;
            histogram
                .record(started.elapsed().as_nanos() as u64)
                .map_err(failed(WHAT))?;
            report.check("small WRITEs in order", wc.wr_id == u64::from(i));
        }
        report.completions += u64::from(SMALL_WRITES);
        report.latency(&histogram);
        Ok(())
    }

    /// Gets ready for a message.
    pub fn expect_message(&mut self) -> Result<(), CliError> {
        let buffer = LocalBuffer::alloc(&self.pd, 4096).map_err(failed("receive"))?;
        self.qp.post_recv_buffer(1, buffer).map_err(failed("receive"))?;
        self.qp.ring_recv();
        Ok(())
    }

    /// A message from a buffer that is moved into the request and comes back.
    pub fn send_message(&mut self, text: &[u8], imm: Option<u32>) -> Result<(), CliError> {
        let mut buffer = LocalBuffer::alloc(&self.pd, 4096).map_err(failed("SEND"))?;
        buffer.as_mut_slice()[..text.len()].copy_from_slice(text);
        let op = BufferOp::Send { imm };
        self.qp
            .post_send_buffer(2, op, SendFlags::SOLICITED, buffer, 0..text.len())
            .map_err(failed("SEND"))?;
        self.qp.ring_send();
        match self.completion("SEND")?.buffer {
            Some(_) => Ok(()),
            None => Err(CliError::Other("SEND: the buffer did not come back".to_string())),
        }
    }

    /// The message that came.
    pub fn take_message(&mut self) -> Result<(Vec<u8>, Option<u32>), CliError> {
        let wc = self.completion("receive")?;
        let (len, imm) = (wc.byte_len as usize, wc.imm);
        let bytes = wc
            .buffer
            .and_then(|b| b.as_slice().get(..len).map(<[u8]>::to_vec));
        bytes
            .map(|b| (b, imm))
            .ok_or_else(|| CliError::Other("receive: no buffer came back".to_string()))
    }

    /// What is in a region.
    pub fn copy(region: &Mr, len: usize) -> Result<Vec<u8>, CliError> {
        let mut bytes = vec![0; len];
        region.read(0, &mut bytes).map_err(failed("memory region"))?;
        Ok(bytes)
    }

    /// Adds what the NIC counted of the connection.
    pub fn add_counters(&self, sums: &mut BTreeMap<&'static str, u64>) -> Result<(), CliError> {
        let Some(counters) = &self.counters else {
            return Ok(());
        };
        let c: Counters = counters.query().map_err(failed("counter set"))?;
        let again = c.packet_seq_err + c.implied_nak_seq_err + c.local_ack_timeout_err;
        for (what, count) in [
            ("retransmissions", again),
            (
                "retransmissions, since the peer missed a packet",
                c.packet_seq_err,
            ),
            (
                "retransmissions, since an answer was missed",
                c.implied_nak_seq_err,
            ),
            (
                "retransmissions, since no answer came in time",
                c.local_ack_timeout_err,
            ),
            ("packets out of sequence", c.out_of_sequence),
            ("duplicate requests", c.duplicate_request),
            ("messages without a receive", c.out_of_buffer),
        ] {
            *sums.entry(what).or_default() += u64::from(count);
        }
        Ok(())
    }

    /// Ends the objects.
    pub fn close(self) -> Result<(), CliError> {
        self.qp.destroy().map_err(failed("destroying the QP"))?;
        self.file.dereg().map_err(failed("ending the memory region"))?;
        Ok(())
    }
}

/// The same region, so many bytes on.
fn at_offset(remote: RemoteAddr, offset: usize) -> RemoteAddr {
    RemoteAddr {
        addr: remote.addr.wrapping_add(offset as u64),
        ..remote
    }
}

/// The WRITEs and READs of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Bytes of the file.
    pub len: usize,
}

impl Chunks {
    /// How many; an empty file takes one of no bytes.
    pub fn count(&self) -> usize {
        self.len.div_ceil(CHUNK).max(1)
    }

    /// Offset and length of one.
    fn get(&self, index: usize) -> (usize, usize) {
        let at = index.saturating_mul(CHUNK).min(self.len);
        (at, CHUNK.min(self.len - at))
    }
}

/// The file to the peer by WRITE with immediate, which counts the chunks: the sending side.
pub struct Writer {
    chunks: Chunks,
    remote: RemoteAddr,
    posted: usize,
    pub done: usize,
}

impl Writer {
    const WHAT: &str = "WRITE with immediate";

    pub fn new(len: usize, remote: RemoteAddr) -> Writer {
        Writer {
            chunks: Chunks { len },
            remote,
            posted: 0,
            done: 0,
        }
    }

    /// All is written.
    pub fn ended(&self) -> bool {
        self.done == self.chunks.count()
    }

    /// Posts what there is room for, and takes what has completed; whether anything has.
    pub fn step(&mut self, side: &mut Side, progress: &ProgressBar) -> Result<bool, CliError> {
        while self.posted < self.chunks.count() && self.posted - self.done < DEPTH {
            let (at, len) = self.chunks.get(self.posted);
            let sges = [side.file.sge(at..at + len).map_err(failed(Self::WHAT))?];
            let op = SendOp::Write {
                data: Payload::Gather(&sges),
                remote: at_offset(self.remote, at),
                imm: Some(self.posted as u32),
            };
            let wr = SendWr {
                wr_id: self.posted as u64,
                op,
                flags: SendFlags::SIGNALED,
            };
            side.qp.post_send(&wr).map_err(failed(Self::WHAT))?;
            self.posted += 1;
        }
        side.qp.ring_send();
        let completions = side.completions(Self::WHAT)?;
        for wc in &completions {
            progress.inc(self.chunks.get(wc.wr_id as usize).1 as u64);
            self.done += 1;
        }
        Ok(!completions.is_empty())
    }
}

/// The same: the receiving side.
pub struct Receiver {
    chunks: Chunks,
    ready: usize,
    pub received: usize,
}

impl Receiver {
    pub fn new(len: usize) -> Receiver {
        Receiver {
            chunks: Chunks { len },
            ready: 0,
            received: 0,
        }
    }

    /// All has come.
    pub fn ended(&self) -> bool {
        self.received == self.chunks.count()
    }

    /// Posts receives, and takes what has come; whether anything has.
    pub fn step(&mut self, side: &mut Side, report: &mut Report) -> Result<bool, CliError> {
        // One receive for each WRITE, and none left over for the messages that follow.
        while self.ready < self.chunks.count() && self.ready - self.received < 2 * DEPTH {
            side.qp
                .post_recv(&RecvWr { wr_id: 0, sges: &[] })
                .map_err(failed(Writer::WHAT))?;
            self.ready += 1;
        }
        side.qp.ring_recv();
        let completions = side.completions(Writer::WHAT)?;
        for wc in &completions {
            let (imm, bytes) = (wc.imm, wc.byte_len as usize);
            report.check("immediate data in order", imm == Some(self.received as u32));
            let right = bytes == self.chunks.get(self.received).1;
            report.check("length of each WRITE", right);
            self.received += 1;
        }
        Ok(!completions.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_file() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK] {
            let chunks = Chunks { len };
            let mut end = 0;
            for i in 0..chunks.count() {
                let (at, bytes) = chunks.get(i);
                assert_eq!(at, end);
                end += bytes;
            }
            assert_eq!(end, len);
            assert_eq!(chunks.get(chunks.count() + 3).1, 0, "nothing past the end");
        }
    }
}
