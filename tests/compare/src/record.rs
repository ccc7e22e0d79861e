//! A recording (`ferroce_nic_model::record`), read and written.

use ferroce_firmware_iface::opcode::Opcode;
use serde::{Deserialize, Serialize};

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub what: What,
    /// The role that was found for it in the recording that it was taken from.
    pub role: Option<String>,
}

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A command and its answer.
    Command {
        /// Its opcode.
        opcode: Opcode,
        /// Length of the input as the driver gave it; `input` may be cut.
        in_len: usize,
        /// Length of the output that the driver has room for.
        out_len: usize,
        /// The input, as far as it was recorded.
        input: Vec<u8>,
        /// The answer, as far as it was recorded.
        output: Vec<u8>,
    },
    /// A write to the initialization segment.
    Register {
        /// Byte offset.
        offset: u32,
        /// What was written.
        bytes: Vec<u8>,
    },
    /// A write to a UAR page.
    Uar {
        /// The page.
        uar: u32,
        /// Byte offset in it.
        offset: u32,
        /// What was written.
        bytes: Vec<u8>,
    },
    /// A doorbell record when its doorbell was rung.
    DoorbellRecord {
        /// `qp` or `cq`.
        of: String,
        /// Number of the QP, SQ or CQ.
        number: u32,
        /// Its 8 bytes.
        bytes: Vec<u8>,
    },
    /// A work queue entry.
    Wqe {
        /// `send`, `recv` or `srq`.
        kind: String,
        /// Number of the QP or SQ.
        number: u32,
        /// Its index in the ring.
        index: u16,
        /// The entry.
        bytes: Vec<u8>,
    },
    /// A completion or an event that the NIC wrote.
    Written,
}

/// The line as it stands in the file. Bytes are hexadecimal, without zeros at their end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opcode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_len: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    out_len: Option<usize>,
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    input: Option<String>,
    #[serde(rename = "out", skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    register: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uar: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wqe: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    len: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<String>,
}

/// Why a recording can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A line is no JSON object of the kind.
    #[error("line {line} is not a record: {source}")]
    Json {
        /// The line, from 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// A value in it can't be.
    #[error("line {line}: {what}")]
    Value {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// Most bytes of a command or entry that are taken; the recorder cuts at this too.
const MOST_BYTES: usize = 4112;

fn bytes(text: &str, len: usize) -> Result<Vec<u8>, &'static str> {
    let digit = |c: u8| (c as char).to_digit(16).ok_or("a digit that is none");
    if !text.len().is_multiple_of(2) {
        return Err("half a byte");
    }
    let mut out = Vec::with_capacity(len.min(MOST_BYTES));
    for pair in text.as_bytes().chunks(2) {
        out.push((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
    }
    out.resize(out.len().max(len.min(MOST_BYTES)), 0);
    Ok(out)
}

fn number(text: &str) -> Result<u32, &'static str> {
    let digits = text.strip_prefix("0x").ok_or("a number without 0x")?;
    u32::from_str_radix(digits, 16).map_err(|_| "not a number")
}

fn hex(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    bytes[..end].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Line {
    fn what(&self) -> Result<What, &'static str> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let data = |len: usize| bytes(&text(&self.bytes), self.len.unwrap_or(len));
        let own_number = self.number.ok_or("no number");
        if let Some(opcode) = &self.opcode {
            let (in_len, out_len) = (self.in_len.ok_or("no in_len")?, self.out_len.ok_or("no out_len")?);
            let opcode = u16::try_from(number(opcode)?).map_err(|_| "an opcode has 16 bits")?;
            return Ok(What::Command {
                opcode: Opcode(opcode),
                in_len,
                out_len,
                input: bytes(&text(&self.input), in_len.max(16))?,
                output: bytes(&text(&self.output), out_len.max(16))?,
            });
        }
        if let Some(register) = &self.register {
            let offset = number(register)?;
            return Ok(What::Register {
                offset,
                bytes: data(4)?,
            });
        }
        if let Some(uar) = self.uar {
            let offset = number(&text(&self.offset))?;
            return Ok(What::Uar {
                uar,
                offset,
                bytes: data(8)?,
            });
        }
        if let Some(of) = &self.record {
            return Ok(What::DoorbellRecord {
                of: of.clone(),
                number: own_number?,
                bytes: data(8)?,
            });
        }
        if let Some(kind) = &self.wqe {
            return Ok(What::Wqe {
                kind: kind.clone(),
                number: own_number?,
                index: self.index.ok_or("no index")?,
                bytes: data(16)?,
            });
        }
        Ok(What::Written)
    }

    fn of(record: &Record) -> Line {
        let mut line = Line {
            role: record.role.clone(),
            ..Line::default()
        };
        let mut data = |bytes: &[u8]| {
            line.len = Some(bytes.len());
            line.bytes = Some(hex(bytes));
        };
        match &record.what {
            What::Command {
                opcode,
                in_len,
                out_len,
                input,
                output,
            } => {
                line.opcode = Some(format!("{:#x}", opcode.0));
                (line.in_len, line.out_len) = (Some(*in_len), Some(*out_len));
                (line.input, line.output) = (Some(hex(input)), Some(hex(output)));
            }
            What::Register { offset, bytes } => {
                data(bytes);
                line.register = Some(format!("{offset:#x}"));
            }
            What::Uar { uar, offset, bytes } => {
                data(bytes);
                line.uar = Some(*uar);
                line.offset = Some(format!("{offset:#x}"));
            }
            What::DoorbellRecord { of, number, bytes } => {
                data(bytes);
                line.record = Some(of.clone());
                line.number = Some(*number);
            }
            What::Wqe {
                kind,
                number,
                index,
                bytes,
            } => {
                data(bytes);
                line.wqe = Some(kind.clone());
                (line.number, line.index) = (Some(*number), Some(*index));
            }
            What::Written => {}
        }
        line
    }
}

/// Reads a recording; completions and events that the NIC wrote are left out.
///
/// # Errors
/// The first line that is no record.
pub fn parse(text: &str) -> Result<Vec<Record>, RecordError> {
    let mut records = Vec::new();
    for (at, text) in text.lines().enumerate() {
        let number = at + 1;
        let line: Line =
            serde_json::from_str(text).map_err(|source| RecordError::Json { line: number, source })?;
        let what = line
            .what()
            .map_err(|what| RecordError::Value { line: number, what })?;
        if what != What::Written {
            records.push(Record {
                what,
                role: line.role,
            });
        }
    }
    Ok(records)
}

/// The file of a recording.
pub fn write(records: &[Record]) -> String {
    let mut text = String::new();
    for record in records {
        if let Ok(line) = serde_json::to_string(&Line::of(record)) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_read_and_written() {
        let text = concat!(
            r#"{"role":"X","opcode":"0x104","in_len":16,"out_len":16,"in":"0104","out":""}"#,
            "\n",
            r#"{"uar":5,"offset":"0x800","len":8,"bytes":"0001"}"#,
            "\n",
            r#"{"wqe":"send","number":7,"index":3,"len":16,"bytes":"0a"}"#,
            "\n",
        );
        let records = parse(text).unwrap();
        assert_eq!(write(&records), text);
        let with_event = format!("{}{}\n", text, r#"{"eqe":1,"bytes":"00"}"#);
        assert_eq!(parse(&with_event).unwrap(), records);
        let What::Command { opcode, input, .. } = &records[0].what else {
            panic!("{records:?}")
        };
        assert_eq!((*opcode, input.len(), input[1]), (Opcode::ENABLE_HCA, 16, 4));
    }

    #[test]
    fn what_is_no_record_is_named() {
        assert!(parse("{").unwrap_err().to_string().starts_with("line 1 "));
        let error = parse("{\"register\":\"18\"}").unwrap_err();
        assert_eq!(error.to_string(), "line 1: a number without 0x");
    }
}
