//! What the demo sends: the file by WRITE with immediate and back by READ, atomics, messages, small WRITEs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ferroce::verbs::{
    Access, BufferOp, CounterSet, Counters, Cq, CqConfig, CqPoller, LocalBuffer, Mr, Mtu, Path, Payload, Pd,
    Qp, QpConfig, RecvWr, SendFlags, SendOp, SendWr, ToInit, ToRtr, ToRts, Wc, WcSuccess,
};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;

use super::node::Node;
use super::report::Report;
use crate::args::DemoArgs;
use crate::error::{CliError, failed};

/// Bytes of one WRITE or READ.
const CHUNK: usize = 1 << 20;
/// WRITEs and READs under way at a time.
const DEPTH: u32 = 16;
/// Small WRITEs whose latency is measured.
const SMALL_WRITES: u32 = 2000;
/// A request that has not completed by then never will: longer than all retries of a connection together.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the peer's counter holds at first.
const COUNTER: u64 = 0x0102_0304_0506_0708;

/// One side: its objects.
struct Side {
    qp: Qp,
    poller: CqPoller,
    /// The file: to be sent, or received.
    file: Mr,
    /// None where the device doesn't count.
    counters: Option<CounterSet>,
    pd: Pd,
}

/// Both sides and what they have agreed on.
pub struct Traffic<'a> {
    a: Side,
    b: Side,
    /// Where the file is read back to, at A.
    read_back: Mr,
    /// An atomic counter of B's.
    counter: Mr,
    len: usize,
    progress: &'a ProgressBar,
}

impl Side {
    fn new(node: &Node, len: usize, access: Access) -> Result<Side, CliError> {
        let pd = Pd::alloc(&node.context).map_err(failed("protection domain"))?;
        let (cq, poller) = Cq::create(&node.context, CqConfig::new(4 * DEPTH)).map_err(failed("CQ"))?;
        let config = QpConfig {
            max_send_wr: 2 * DEPTH,
            max_recv_wr: 2 * DEPTH,
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

    /// The next completion that succeeded; asleep, if it takes longer than a moment.
    fn completion(&mut self, what: &'static str) -> Result<WcSuccess, CliError> {
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
            .poll(2 * DEPTH as usize, |wc| found.push(wc))
            .map_err(failed(what))?;
        found
            .into_iter()
            .map(|wc| wc.result().map_err(failed(what)))
            .collect()
    }
}

/// Looks at a CQ before its reader goes to sleep: some 20 us.
const SPINS: u32 = 2000;

impl<'a> Traffic<'a> {
    /// Makes both sides' objects and connects them.
    pub fn new(
        nodes: &[Node; 2],
        args: &DemoArgs,
        content: &[u8],
        progress: &'a ProgressBar,
    ) -> Result<Traffic<'a>, CliError> {
        let [node_a, node_b] = nodes;
        let mut a = Side::new(node_a, content.len(), Access::LOCAL_WRITE)?;
        let access = Access::supported_by(&node_b.context);
        let mut b = Side::new(node_b, content.len(), access)?;
        let read_back =
            Mr::alloc(&a.pd, content.len().max(1), Access::LOCAL_WRITE).map_err(failed("memory region"))?;
        let counter = Mr::alloc(&b.pd, 8, access).map_err(failed("memory region"))?;
        a.file.write(0, content).map_err(failed("memory region"))?;
        counter.write_u64(0, COUNTER).map_err(failed("memory region"))?;
        connect(nodes, &mut a, &mut b, args)?;
        Ok(Traffic {
            a,
            b,
            read_back,
            counter,
            len: content.len(),
            progress,
        })
    }

    /// Offset and length of each WRITE and READ; an empty file takes one of no bytes.
    fn chunks(&self) -> Vec<(usize, usize)> {
        let count = self.len.div_ceil(CHUNK).max(1);
        (0..count)
            .map(|i| (i * CHUNK, CHUNK.min(self.len - i * CHUNK)))
            .collect()
    }

    /// The file to B by WRITE with immediate, which counts the chunks.
    pub fn write_with_immediate(&mut self, report: &mut Report) -> Result<(), CliError> {
        const WHAT: &str = "WRITE with immediate";
        self.progress.set_message("write");
        let chunks = self.chunks();
        let (mut posted, mut done, mut ready, mut received) = (0, 0, 0, 0);
        let started = Instant::now();
        while done < chunks.len() || received < chunks.len() {
            // One receive for each WRITE, and none left over for the messages that follow.
            while ready < chunks.len() && ready - received < 2 * DEPTH as usize {
                self.b
                    .qp
                    .post_recv(&RecvWr { wr_id: 0, sges: &[] })
                    .map_err(failed(WHAT))?;
                ready += 1;
            }
            self.b.qp.ring_recv();
            while posted < chunks.len() && posted - done < DEPTH as usize {
                let (at, len) = chunks[posted];
                let sges = [self.a.file.sge(at..at + len).map_err(failed(WHAT))?];
                let op = SendOp::Write {
                    data: Payload::Gather(&sges),
                    remote: self.b.file.remote(at),
                    imm: Some(posted as u32),
                };
                let wr = SendWr {
                    wr_id: posted as u64,
                    op,
                    flags: SendFlags::SIGNALED,
                };
                self.a.qp.post_send(&wr).map_err(failed(WHAT))?;
                posted += 1;
            }
            self.a.qp.ring_send();
            let mut moved = false;
            for wc in self.b.completions(WHAT)? {
                let (imm, bytes) = (wc.imm, wc.byte_len as usize);
                report.check("immediate data in order", imm == Some(received as u32));
                report.check("length of each WRITE", bytes == chunks[received].1);
                received += 1;
                moved = true;
            }
            for wc in self.a.completions(WHAT)? {
                self.progress.inc(chunks[wc.wr_id as usize].1 as u64);
                done += 1;
                moved = true;
            }
            if !moved && done < chunks.len() {
                self.a
                    .poller
                    .wait(Instant::now() + PATIENCE)
                    .map_err(failed(WHAT))?;
            } else if !moved {
                self.b
                    .poller
                    .wait(Instant::now() + PATIENCE)
                    .map_err(failed(WHAT))?;
            }
        }
        report.bandwidth("write", self.len, started.elapsed());
        report.completions += (done + received) as u64;
        Ok(())
    }

    /// The file back from B by READ.
    pub fn read_back(&mut self, report: &mut Report) -> Result<(), CliError> {
        const WHAT: &str = "READ";
        self.progress.set_message("read");
        let chunks = self.chunks();
        let (mut posted, mut done) = (0, 0);
        let started = Instant::now();
        while done < chunks.len() {
            while posted < chunks.len() && posted - done < DEPTH as usize {
                let (at, len) = chunks[posted];
                let into = [self.read_back.sge(at..at + len).map_err(failed(WHAT))?];
                let op = SendOp::Read {
                    into: &into,
                    remote: self.b.file.remote(at),
                };
                let wr = SendWr {
                    wr_id: posted as u64,
                    op,
                    flags: SendFlags::SIGNALED,
                };
                self.a.qp.post_send(&wr).map_err(failed(WHAT))?;
                posted += 1;
            }
            self.a.qp.ring_send();
            let wc = self.a.completion(WHAT)?;
            report.check(
                "length of each READ",
                wc.byte_len as usize == chunks[wc.wr_id as usize].1,
            );
            self.progress.inc(u64::from(wc.byte_len));
            done += 1;
        }
        report.bandwidth("read", self.len, started.elapsed());
        report.completions += done as u64;
        Ok(())
    }

    /// Fetch-and-add, then compare-and-swap, on B's counter; nothing between NICs that have none.
    pub fn atomics(&mut self, report: &mut Report) -> Result<(), CliError> {
        if !self.counter.access().contains(Access::REMOTE_ATOMIC) {
            report.left_out("atomics");
            return Ok(());
        }
        let remote = self.counter.remote(0);
        let old = self.atomic("fetch-and-add", BufferOp::FetchAdd { remote, add: 42 })?;
        report.check("fetch-and-add gives the old value", old == COUNTER);
        let swap = !COUNTER;
        let compare = COUNTER + 42;
        let old = self.atomic(
            "compare-and-swap",
            BufferOp::CompareSwap {
                remote,
                compare,
                swap,
            },
        )?;
        report.check("compare-and-swap gives the old value", old == compare);
        let now = self.counter.read_u64(0).map_err(failed("counter"))?;
        report.check("compare-and-swap swaps", now == swap);
        report.completions += 2;
        Ok(())
    }

    fn atomic(&mut self, what: &'static str, op: BufferOp<'_>) -> Result<u64, CliError> {
        let buffer = LocalBuffer::alloc(&self.a.pd, 8).map_err(failed(what))?;
        self.a
            .qp
            .post_send_buffer(0, op, SendFlags::empty(), buffer, 0..8)
            .map_err(failed(what))?;
        self.a.qp.ring_send();
        let buffer = self.a.completion(what)?.buffer;
        buffer
            .and_then(|b| b.atomic_result(0))
            .ok_or_else(|| CliError::Other(format!("{what}: the buffer did not come back")))
    }

    /// A message each way: buffers that are moved into the requests and come back with the completions.
    pub fn messages(&mut self, report: &mut Report) -> Result<(), CliError> {
        let text = b"from A, by SEND";
        let got = message(&mut self.a, &mut self.b, text, Some(7))?;
        report.check("message from A", got == (text.to_vec(), Some(7)));
        let text = b"from B, by SEND";
        let got = message(&mut self.b, &mut self.a, text, None)?;
        report.check("message from B", got == (text.to_vec(), None));
        report.completions += 4;
        Ok(())
    }

    /// Inline WRITEs of 8 bytes, one at a time: from the post to the polled completion.
    pub fn latency(&mut self, report: &mut Report) -> Result<(), CliError> {
        const WHAT: &str = "small WRITE";
        let mut histogram = Histogram::<u64>::new(3).map_err(failed(WHAT))?;
        let remote = self.counter.remote(0);
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
            self.a.qp.post_send(&wr).map_err(failed(WHAT))?;
            self.a.qp.ring_send();
            let wc = self.a.completion(WHAT)?;
            histogram
                .record(started.elapsed().as_nanos() as u64)
                .map_err(failed(WHAT))?;
            report.check("small WRITEs in order", wc.wr_id == u64::from(i));
        }
        let last = self.counter.read_u64(0).map_err(failed(WHAT))?;
        report.check("last small WRITE", last == u64::from(SMALL_WRITES - 1));
        report.completions += u64::from(SMALL_WRITES);
        report.latency(&histogram);
        Ok(())
    }

    /// The file as B has it, and as A has read it back.
    pub fn contents(&self) -> Result<(Vec<u8>, Vec<u8>), CliError> {
        let copy = |region: &Mr| {
            let mut bytes = vec![0; self.len];
            region.read(0, &mut bytes).map_err(failed("memory region"))?;
            Ok::<_, CliError>(bytes)
        };
        Ok((copy(&self.b.file)?, copy(&self.read_back)?))
    }

    /// What both NICs counted of the connection.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, CliError> {
        let mut sums = BTreeMap::new();
        for counters in [&self.a, &self.b]
            .iter()
            .filter_map(|side| side.counters.as_ref())
        {
            let c: Counters = counters.query().map_err(failed("counter set"))?;
            for (what, count) in [
                (
                    "retransmissions",
                    c.packet_seq_err + c.implied_nak_seq_err + c.local_ack_timeout_err,
                ),
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
        }
        Ok(sums)
    }

    /// Ends all objects.
    pub fn close(self) -> Result<(), CliError> {
        for side in [self.a, self.b] {
            side.qp.destroy().map_err(failed("destroying the QP"))?;
            side.file.dereg().map_err(failed("ending the memory region"))?;
        }
        Ok(())
    }
}

/// One SEND of `text`; what arrived.
fn message(
    from: &mut Side,
    to: &mut Side,
    text: &[u8],
    imm: Option<u32>,
) -> Result<(Vec<u8>, Option<u32>), CliError> {
    let buffer = LocalBuffer::alloc(&to.pd, 4096).map_err(failed("receive"))?;
    to.qp.post_recv_buffer(1, buffer).map_err(failed("receive"))?;
    to.qp.ring_recv();
    let mut buffer = LocalBuffer::alloc(&from.pd, 4096).map_err(failed("SEND"))?;
    buffer.as_mut_slice()[..text.len()].copy_from_slice(text);
    let op = BufferOp::Send { imm };
    from.qp
        .post_send_buffer(2, op, SendFlags::SOLICITED, buffer, 0..text.len())
        .map_err(failed("SEND"))?;
    from.qp.ring_send();
    let sent = from.completion("SEND")?;
    let wc = to.completion("receive")?;
    let (len, imm) = (wc.byte_len as usize, wc.imm);
    let bytes = wc
        .buffer
        .and_then(|b| b.as_slice().get(..len).map(<[u8]>::to_vec));
    if sent.buffer.is_none() {
        return Err(CliError::Other("SEND: the buffer did not come back".to_string()));
    }
    bytes
        .map(|b| (b, imm))
        .ok_or_else(|| CliError::Other("receive: no buffer came back".to_string()))
}

/// Brings both QPs to RTS.
fn connect(nodes: &[Node; 2], a: &mut Side, b: &mut Side, args: &DemoArgs) -> Result<(), CliError> {
    const WHAT: &str = "connecting";
    let mtu = Mtu::ALL
        .into_iter()
        .find(|m| m.bytes() == u32::from(args.mtu))
        .unwrap_or(Mtu::Mtu1024);
    let psns = [0xff_ff00, 0x1234];
    let numbers = [a.qp.qpn(), b.qp.qpn()];
    for (own, side) in [a, b].into_iter().enumerate() {
        let peer = 1 - own;
        let (sgid_index, _) = nodes[own].gid(args.gid)?;
        let (_, dgid) = nodes[peer].gid(args.gid)?;
        let path = Path::new(sgid_index, dgid, nodes[peer].mac()?);
        side.qp.modify_to_init(&ToInit::default()).map_err(failed(WHAT))?;
        let to_rtr = ToRtr {
            mtu,
            ..ToRtr::new(path, numbers[peer], psns[peer])
        };
        side.qp.modify_to_rtr(&to_rtr).map_err(failed(WHAT))?;
        // 8 ms: loss of a last packet shall not stall a demo.
        let to_rts = ToRts {
            timeout: 11,
            ..ToRts::new(psns[own])
        };
        side.qp.modify_to_rts(&to_rts).map_err(failed(WHAT))?;
    }
    Ok(())
}
