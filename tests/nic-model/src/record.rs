//! A recording of what a driver says to the NIC and the NIC to it, one JSON object a line: commands, registers,
//! doorbells and their records, work queue entries, completions, events. For programs, such as the one that compares
//! two drivers; what people read is [`crate::trace`].
//!
//! | keys | what it is |
//! | --- | --- |
//! | `opcode`, `in_len`, `out_len`, `in`, `out` | a command and its answer (long ones cut; page lists left out, which `note` says) |
//! | `register`, `bytes` | a write to the initialization segment |
//! | `uar`, `offset`, `bytes` | a write to a UAR page |
//! | `record`, `number`, `bytes` | the 8 bytes of the doorbell record of a `qp` or `cq` when its doorbell was rung |
//! | `wqe`, `number`, `index`, `bytes` | a work queue entry: `send` when its doorbell was rung, `recv` when it was used |
//! | `cqe`, `bytes`; `eqe`, `bytes` | an entry that the NIC wrote, and the number of its queue |
//!
//! Bytes are hexadecimal, without zeros at their end.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use ferroce_firmware_iface::opcode::Opcode;

/// Bytes of a command that are written: a whole capability, and the first of a list.
const COMMAND_MOST: usize = 4112;
/// Of a command that is a list of pages, its head.
const PAGES_HEAD: usize = 16;

/// Where a recording goes. Clones write to the same place.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<Sink>>);

struct Sink {
    to: Box<dyn Write + Send>,
    broken: bool,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// Bytes as hexadecimal digits, zeros at their end left out.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        self.0[..end].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Recorder {
    /// A recording into `sink`. When the sink fails, that is logged once and the recording stops.
    pub fn new(sink: Box<dyn Write + Send>) -> Recorder {
        Recorder(Arc::new(Mutex::new(Sink {
            to: sink,
            broken: false,
        })))
    }

    fn line(&self, line: fmt::Arguments<'_>) {
        let mut sink = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sink.broken {
            return;
        }
        // Each line is there at once, for who looks at a driver that hangs.
        let written = writeln!(sink.to, "{{{line}}}").and_then(|()| sink.to.flush());
        if let Err(error) = written {
            log::warn!("recording: {error}; it stops here");
            sink.broken = true;
        }
    }

    /// A command and its answer.
    pub fn command(&self, opcode: Opcode, input: &[u8], output: &[u8]) {
        let pages = opcode == Opcode::MANAGE_PAGES;
        let most = if pages { PAGES_HEAD } else { COMMAND_MOST };
        let note = if pages {
            r#","note":"page addresses left out""#
        } else {
            ""
        };
        self.line(format_args!(
            r#""opcode":"{:#x}","in_len":{},"out_len":{},"in":"{}","out":"{}"{note}"#,
            opcode.0,
            input.len(),
            output.len(),
            Hex(&input[..input.len().min(most)]),
            Hex(&output[..output.len().min(most)]),
        ));
    }

    /// A write to the initialization segment.
    pub fn register(&self, offset: u64, bytes: &[u8]) {
        let digits = Hex(bytes);
        self.line(format_args!(
            r#""register":"{offset:#x}","len":{},"bytes":"{digits}""#,
            bytes.len()
        ));
    }

    /// A write to a UAR page.
    pub fn uar(&self, uar: u32, offset: u32, bytes: &[u8]) {
        let digits = Hex(bytes);
        self.line(format_args!(
            r#""uar":{uar},"offset":"{offset:#x}","len":{},"bytes":"{digits}""#,
            bytes.len()
        ));
    }

    /// A doorbell record.
    pub fn doorbell_record(&self, of: &str, number: u32, bytes: &[u8; 8]) {
        let digits = Hex(bytes);
        self.line(format_args!(
            r#""record":"{of}","number":{number},"bytes":"{digits}""#
        ));
    }

    /// A work queue entry.
    pub fn wqe(&self, kind: &str, number: u32, index: u16, bytes: &[u8]) {
        let digits = Hex(bytes);
        self.line(format_args!(
            r#""wqe":"{kind}","number":{number},"index":{index},"len":{},"bytes":"{digits}""#,
            bytes.len()
        ));
    }

    /// A completion.
    pub fn cqe(&self, cqn: u32, bytes: &[u8; 64]) {
        self.line(format_args!(r#""cqe":{cqn},"bytes":"{}""#, Hex(bytes)));
    }

    /// An event.
    pub fn eqe(&self, eqn: u32, bytes: &[u8; 64]) {
        self.line(format_args!(r#""eqe":{eqn},"bytes":"{}""#, Hex(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_is_an_object() {
        let kept = Kept::default();
        let recorder = Recorder::new(Box::new(kept.clone()));
        recorder.command(Opcode::MANAGE_PAGES, &[1; 64], &[0; 16]);
        recorder.clone().register(0x18, &[0, 0, 0, 1]);
        recorder.wqe("send", 5, 2, &[0x0a, 0]);
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let ones = "01".repeat(16);
        let expected = format!(
            r#"{{"opcode":"0x108","in_len":64,"out_len":16,"in":"{ones}","out":"","note":"page addresses left out"}}
{{"register":"0x18","len":4,"bytes":"00000001"}}
{{"wqe":"send","number":5,"index":2,"len":2,"bytes":"0a"}}
"#
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_sink_that_fails_is_left_alone() {
        struct Full(Arc<Mutex<u32>>);
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                *self.0.lock().unwrap() += 1;
                Err(std::io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let tried = Arc::new(Mutex::new(0));
        let recorder = Recorder::new(Box::new(Full(tried.clone())));
        recorder.register(0, &[1]);
        recorder.register(0, &[1]);
        assert_eq!(*tried.lock().unwrap(), 1);
    }
}
