//! The demo with both sides in this program: the file by WRITE with immediate and back by READ, atomics, messages, small
//! WRITEs.

use std::collections::BTreeMap;
use std::time::Instant;

use ferroce::verbs::{Access, Mr};
use indicatif::ProgressBar;

use super::node::Node;
use super::report::Report;
use super::side::{COUNTER, Chunks, Class, End, Receiver, SMALL_WRITES, Side, Writer};
use crate::args::DemoArgs;
use crate::error::{CliError, failed};

/// PSNs of the first packets.
const PSNS: [u32; 2] = [0xff_ff00, 0x1234];

/// 8 ms: loss of a last packet shall not stall a demo.
const TIMEOUT: u8 = 11;

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

    /// The file to B by WRITE with immediate, which counts the chunks.
    pub fn write_with_immediate(&mut self, report: &mut Report) -> Result<(), CliError> {
        const WHAT: &str = "WRITE with immediate";
        self.progress.set_message("write");
        let mut writer = Writer::new(self.len, self.b.file.remote(0));
        let mut receiver = Receiver::new(self.len);
        let started = Instant::now();
        loop {
            let mut moved = receiver.step(&mut self.b, report)?;
            moved |= writer.step(&mut self.a, self.progress)?;
            match (writer.ended(), receiver.ended()) {
                (true, true) => break,
                _ if moved => {}
                (false, _) => self.a.sleep(WHAT)?,
                (true, false) => self.b.sleep(WHAT)?,
            }
        }
        report.bandwidth("write", self.len, started.elapsed());
        report.completions += (writer.done + receiver.received) as u64;
        Ok(())
    }

    /// The file back from B by READ.
    pub fn read_back(&mut self, report: &mut Report) -> Result<(), CliError> {
        let chunks = Chunks { len: self.len };
        let remote = self.b.file.remote(0);
        self.a
            .read_back(&self.read_back, &chunks, remote, report, self.progress)
    }

    /// Fetch-and-add, then compare-and-swap, on B's counter; nothing between NICs that have none.
    pub fn atomics(&mut self, report: &mut Report) -> Result<(), CliError> {
        if !self.counter.access().contains(Access::REMOTE_ATOMIC) {
            report.left_out("atomics");
            return Ok(());
        }
        let swapped = self.a.atomics(self.counter.remote(0), report)?;
        let now = self.counter.read_u64(0).map_err(failed("counter"))?;
        report.check("compare-and-swap swaps", now == swapped);
        Ok(())
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
        self.a.latency(self.counter.remote(0), report)?;
        let last = self.counter.read_u64(0).map_err(failed("small WRITE"))?;
        report.check("last small WRITE", last == u64::from(SMALL_WRITES - 1));
        Ok(())
    }

    /// The file as B has it, and as A has read it back.
    pub fn contents(&self) -> Result<(Vec<u8>, Vec<u8>), CliError> {
        Ok((
            Side::copy(&self.b.file, self.len)?,
            Side::copy(&self.read_back, self.len)?,
        ))
    }

    /// What both NICs counted of the connection.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, CliError> {
        let mut sums = BTreeMap::new();
        self.a.add_counters(&mut sums)?;
        self.b.add_counters(&mut sums)?;
        Ok(sums)
    }

    /// Ends all objects.
    pub fn close(self) -> Result<(), CliError> {
        self.a.close()?;
        self.b.close()
    }
}

/// One SEND of `text`; what arrived.
fn message(
    from: &mut Side,
    to: &mut Side,
    text: &[u8],
    imm: Option<u32>,
) -> Result<(Vec<u8>, Option<u32>), CliError> {
    to.expect_message()?;
    from.send_message(text, imm)?;
    to.take_message()
}

/// Brings both QPs to RTS.
fn connect(nodes: &[Node; 2], a: &mut Side, b: &mut Side, args: &DemoArgs) -> Result<(), CliError> {
    let mut ends = Vec::new();
    for (node, (side, psn)) in nodes.iter().zip([&*a, &*b].into_iter().zip(PSNS)) {
        let (index, gid) = node.gid(args.gid)?;
        let (mac, qpn) = (node.mac()?, side.qp.qpn());
        ends.push((index, End { mac, gid, qpn, psn }));
    }
    let [(index_a, end_a), (index_b, end_b)] = [ends[0], ends[1]];
    let class = Class::of(args);
    a.connect((index_a, end_a.psn), &end_b, &class, TIMEOUT)?;
    b.connect((index_b, end_b.psn), &end_a, &class, TIMEOUT)
}
