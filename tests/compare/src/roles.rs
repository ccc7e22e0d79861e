//! What each part of a recording is for: its role. Two drivers' records of the same role are compared.
//!
//! Objects get their role from who uses them, so a recording is read twice: once to see which completion queue serves
//! which kind of queue pair, once to name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ferroce_firmware_iface::opcode::Opcode;

use crate::commands::{self, Capabilities, Command};
use crate::entries::{recv_wqe, send_wqe, yes};
use crate::fields::Fields;
use crate::record::{Record, What};

/// Something that a driver did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// The role it plays.
    pub role: String,
    /// Its values.
    pub fields: Fields,
    /// The records that it is made of.
    pub records: Range<usize>,
}

/// Who uses completion queues: the first in this list that does gives a queue its name.
const USERS: &[&str] = &[
    "RC",
    "UC",
    "UD",
    "GSI",
    "UMR",
    "Ethernet SQ",
    "Ethernet RQ",
    "SRQ",
];

/// The field of a CQ arm that says something for the first only, and the end of that one's role.
const SEQUENCE_NUMBER: &str = "sequence number";
const FIRST: &str = "first";

/// Offsets of doorbells in a UAR page (PRM).
const CQ_ARM: u32 = 0x20;
const EQ_ARM: u32 = 0x40;
const EQ_UPDATE: u32 = 0x48;
const SEND: u32 = 0x800;
/// Half a doorbell register, with the log_bf_reg_size of 9 that all profiles have.
const HALF_REGISTER: u32 = 0x100;

/// Names of the registers in the initialization segment that drivers write (PRM).
const REGISTERS: &[(u32, &str)] = &[
    (0x10, "cmdq_phy_addr_63_32"),
    (0x14, "cmdq_phy_addr_31_12, nic_interface, sizes"),
    (0x18, "command_doorbell_vector"),
];

/// Kind of a queue pair by its service type (PRM, qpc.st).
fn service(st: u64) -> String {
    match st {
        0 => "RC".into(),
        1 => "UC".into(),
        2 => "UD".into(),
        8 => "GSI".into(),
        0xc => "UMR".into(),
        other => format!("service {other:#x}"),
    }
}

/// Which objects are there, and what they are for.
#[derive(Debug, Default)]
struct Objects {
    caps: Capabilities,
    /// Queue pairs and send queues, by number.
    queues: BTreeMap<u32, String>,
    eqs: BTreeMap<u32, String>,
    /// How often a CQ was created, and for each number its last creation.
    created: usize,
    cqs: BTreeMap<u32, usize>,
    /// Users of each CQ that was created.
    users: Vec<BTreeSet<&'static str>>,
    /// Sequence number of the last arm of each CQ.
    armed: BTreeMap<usize, u32>,
}

impl Objects {
    fn cq_name(&self, cqn: u32) -> String {
        let users = self.cqs.get(&cqn).and_then(|cq| self.users.get(*cq));
        let first = users.and_then(|users| USERS.iter().find(|user| users.contains(*user)));
        first.map_or_else(|| "unused".to_string(), ToString::to_string)
    }

    fn queue_name(&self, number: u32) -> String {
        self.queues
            .get(&number)
            .cloned()
            .unwrap_or_else(|| "unknown".into())
    }

    /// Notes that a kind of queue uses a CQ.
    fn uses(&mut self, user: &str, cqn: u64) {
        let user = USERS.iter().copied().find(|known| *known == user);
        let cq = self.cqs.get(&(cqn as u32)).and_then(|cq| self.users.get_mut(*cq));
        if let (Some(user), Some(users)) = (user, cq) {
            users.insert(user);
        }
    }

    /// Takes in what a command that succeeded made.
    fn learn(&mut self, command: &Command<'_>) {
        self.caps.learn(command);
        if !command.ok() {
            return;
        }
        match command.opcode {
            Opcode::CREATE_CQ => {
                self.cqs.insert(command.answered("cqn") as u32, self.created);
                self.created += 1;
                self.users
                    .resize_with(self.created.max(self.users.len()), BTreeSet::new);
            }
            Opcode::CREATE_QP => {
                let kind = service(command.get("qpc.st"));
                self.uses(&kind, command.get("qpc.cqn_snd"));
                self.uses(&kind, command.get("qpc.cqn_rcv"));
                self.queues.insert(command.answered("qpn") as u32, kind);
            }
            Opcode::CREATE_SQ => {
                self.uses("Ethernet SQ", command.get("sqc.cqn"));
                self.queues
                    .insert(command.answered("sqn") as u32, "Ethernet SQ".into());
            }
            Opcode::CREATE_RQ => self.uses("Ethernet RQ", command.get("rqc.cqn")),
            Opcode::CREATE_XRC_SRQ => self.uses("SRQ", command.get("xrc_srqc.cqn")),
            Opcode::CREATE_EQ => {
                let name = commands::variant(command);
                self.eqs.insert(command.answered("eq_number") as u32, name);
            }
            _ => {}
        }
    }

    /// What tells one use of a command from another.
    fn variant(&self, command: &Command<'_>) -> String {
        match command.opcode {
            Opcode::DESTROY_EQ => self
                .eqs
                .get(&(command.get("eq_number") as u32))
                .cloned()
                .unwrap_or_default(),
            Opcode::CREATE_CQ => self.cq_name(command.answered("cqn") as u32),
            Opcode::DESTROY_CQ | Opcode::MODIFY_CQ | Opcode::QUERY_CQ => {
                self.cq_name(command.get("cqn") as u32)
            }
            Opcode::CREATE_QP => service(command.get("qpc.st")),
            Opcode::DESTROY_QP
            | Opcode::QUERY_QP
            | Opcode::RST2INIT_QP
            | Opcode::INIT2INIT_QP
            | Opcode::INIT2RTR_QP
            | Opcode::RTR2RTS_QP
            | Opcode::RTS2RTS_QP
            | Opcode::SQD2RTS_QP
            | Opcode::SQERR2RTS_QP
            | Opcode::QP_2ERR
            | Opcode::QP_2RST => self.queue_name(command.get("qpn") as u32),
            _ => commands::variant(command),
        }
    }
}

fn command_of(record: &Record) -> Option<Command<'_>> {
    match &record.what {
        What::Command {
            opcode,
            in_len,
            out_len,
            input,
            output,
        } => Some(Command {
            opcode: *opcode,
            in_len: *in_len,
            out_len: *out_len,
            input,
            output,
        }),
        _ => None,
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..at + 4).unwrap_or_default();
    part.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// Names all parts of a recording, in its order.
pub fn acts(records: &[Record]) -> Vec<Act> {
    let mut users = Objects::default();
    records
        .iter()
        .filter_map(command_of)
        .for_each(|command| users.learn(&command));
    let mut objects = Objects {
        users: users.users,
        ..Objects::default()
    };
    let mut acts = Vec::new();
    let mut at = 0;
    while at < records.len() {
        let (act, used) = objects.act(records, at);
        if let Some((role, mut fields)) = act {
            let role = records[at].role.clone().unwrap_or(role);
            // Of later arms only how it goes on, which the role says.
            if !role.ends_with(FIRST) {
                fields.remove(SEQUENCE_NUMBER);
            }
            acts.push(Act {
                role,
                fields,
                records: at..at + used,
            });
        }
        at += used;
    }
    acts
}

type Named = Option<(String, Fields)>;

impl Objects {
    /// The act that starts at `records[at]`, and of how many records it is.
    fn act(&mut self, records: &[Record], at: usize) -> (Named, usize) {
        match &records[at].what {
            What::Command { .. } => (command_of(&records[at]).map(|command| self.command(&command)), 1),
            What::Register { offset, bytes } => (Some(register(*offset, bytes)), 1),
            What::Uar { offset, bytes, .. } => self.doorbell(records, at, *offset, bytes),
            What::Wqe {
                kind,
                number,
                index,
                bytes,
            } => {
                let name = self.queue_name(*number);
                let named = match kind.as_str() {
                    "send" => send_wqe(bytes, *index, &name),
                    _ => recv_wqe(bytes, kind, &name),
                };
                (Some(named), 1)
            }
            // Of a doorbell that is not there.
            What::DoorbellRecord { .. } | What::Written => (None, 1),
        }
    }

    fn command(&mut self, command: &Command<'_>) -> (String, Fields) {
        self.learn(command);
        let variant = self.variant(command);
        let fields = commands::fields(command, &self.caps);
        let name = command.opcode.to_string();
        let role = if variant.is_empty() {
            name
        } else {
            format!("{name} ({variant})")
        };
        (role, fields)
    }

    fn doorbell(&mut self, records: &[Record], at: usize, offset: u32, bytes: &[u8]) -> (Named, usize) {
        let mut fields = Fields::new();
        fields.insert("offset".into(), format!("{offset:#x}"));
        fields.insert("bytes".into(), bytes.len().to_string());
        match offset {
            CQ_ARM => self.cq_arm(records, at, bytes, fields),
            EQ_ARM | EQ_UPDATE => {
                let eq = self.eqs.get(&(be32(bytes, 0) >> 24)).cloned().unwrap_or_default();
                let what = if offset == EQ_ARM { "arm" } else { "update" };
                (Some((format!("EQ {what} ({eq})"), fields)), 1)
            }
            SEND.. if (offset - SEND).is_multiple_of(HALF_REGISTER) => self.send(records, at, bytes, fields),
            SEND.. => {
                fields.remove("offset");
                (Some(("rest of a BlueFlame burst".into(), fields)), 1)
            }
            _ => (Some((format!("UAR {offset:#x}"), fields)), 1),
        }
    }

    fn cq_arm(&mut self, records: &[Record], at: usize, bytes: &[u8], mut fields: Fields) -> (Named, usize) {
        let (image, cqn) = (be32(bytes, 0), be32(bytes, 4) & 0xff_ffff);
        let sn = image >> 28 & 3;
        let cq = self.cqs.get(&cqn).copied().unwrap_or(usize::MAX);
        fields.insert(SEQUENCE_NUMBER.into(), sn.to_string());
        let which = match self.armed.insert(cq, sn) {
            None => FIRST,
            Some(before) if before == sn => "same number again",
            Some(before) if (before + 1) & 3 == sn => "next number",
            Some(_) => "another number",
        };
        let solicited = image >> 24 & 1 != 0;
        fields.insert(
            "waits for".into(),
            if solicited { "solicited" } else { "any" }.into(),
        );
        fields.insert("reserved bits".into(), format!("{:#x}", image & 0xce00_0000));
        let used = match records.get(at + 1).map(|r| &r.what) {
            Some(What::DoorbellRecord {
                of, bytes: record, ..
            }) if of == "cq" => {
                fields.insert(
                    "repeats the record's second word".into(),
                    yes(be32(record, 4) == image),
                );
                let ci = be32(record, 0) & 0xff_ffff == image & 0xff_ffff;
                fields.insert("consumer index is the record's".into(), yes(ci));
                2
            }
            _ => 1,
        };
        (
            Some((format!("CQ arm ({}), {which}", self.cq_name(cqn)), fields)),
            used,
        )
    }

    /// A send doorbell, its record and the WQEs that it announces; the WQEs are acts of their own.
    fn send(&mut self, records: &[Record], at: usize, bytes: &[u8], mut fields: Fields) -> (Named, usize) {
        let name = self.queue_name(be32(bytes, 4) >> 8);
        let kind = match bytes.len() {
            ..=8 => "send doorbell",
            _ => "BlueFlame doorbell",
        };
        let role = format!("{kind} ({name})");
        let Some(What::DoorbellRecord {
            of, bytes: record, ..
        }) = records.get(at + 1).map(|r| &r.what)
        else {
            return (Some((role, fields)), 1);
        };
        if of != "qp" {
            return (Some((role, fields)), 1);
        }
        let wqes: Vec<(u16, &[u8])> = records[at + 2..]
            .iter()
            .map_while(|r| match &r.what {
                What::Wqe {
                    kind, index, bytes, ..
                } if kind == "send" => Some((*index, bytes.as_slice())),
                _ => None,
            })
            .collect();
        if let (Some((_, first)), Some((index, last))) = (wqes.first(), wqes.last()) {
            let repeats = match bytes.get(..8) {
                head if head == last.get(..8) => "the last WQE",
                head if head == first.get(..8) => "the first WQE",
                _ => "none",
            };
            fields.insert("its first 8 bytes are those of".into(), repeats.into());
            let end = index.wrapping_add(last.len().div_ceil(64) as u16);
            fields.insert(
                "record counts all WQEs".into(),
                yes(be32(record, 4) == u32::from(end)),
            );
        }
        (Some((role, fields)), 2)
    }
}

fn register(offset: u32, bytes: &[u8]) -> (String, Fields) {
    let mut fields = Fields::new();
    fields.insert("bytes".into(), bytes.len().to_string());
    let value = be32(bytes, 0);
    let name = REGISTERS
        .iter()
        .find(|(at, _)| *at == offset)
        .map(|(_, name)| *name);
    match offset {
        0x10 => {}
        0x14 => {
            fields.insert("low 12 bits".into(), format!("{:#x}", value & 0xfff));
        }
        0x18 => {
            let slot = if value == 1 << 31 {
                "the last slot"
            } else {
                "a slot"
            };
            let what = if value.count_ones() == 1 {
                slot
            } else {
                "several slots"
            };
            let role = format!("register {offset:#x} command_doorbell_vector ({what})");
            return (role, fields);
        }
        _ => {
            fields.insert("value".into(), format!("{value:#x}"));
        }
    }
    (
        format!("register {offset:#x} {}", name.unwrap_or_default())
            .trim_end()
            .to_string(),
        fields,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::parse;

    fn command(opcode: u16, input: &[(usize, &[u8])], output: &[(usize, &[u8])], len: usize) -> String {
        let fill = |parts: &[(usize, &[u8])], len: usize| {
            let mut bytes = vec![0u8; len];
            for (at, part) in parts {
                bytes[*at..at + part.len()].copy_from_slice(part);
            }
            bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()
        };
        let head = opcode.to_be_bytes();
        let mut parts = vec![(0, &head[..])];
        parts.extend_from_slice(input);
        format!(
            r#"{{"opcode":"{opcode:#x}","in_len":{len},"out_len":16,"in":"{}","out":"{}"}}"#,
            fill(&parts, len),
            fill(output, 16)
        ) + "\n"
    }

    fn names(text: &str) -> Vec<String> {
        acts(&parse(text).unwrap())
            .into_iter()
            .map(|act| act.role)
            .collect()
    }

    #[test]
    fn a_cq_is_named_after_its_later_user() {
        let create_cq = command(0x400, &[], &[(8, &[0, 0, 0, 5])], 0x110);
        // st RC, cqn_snd and cqn_rcv 5.
        let create_qp = command(
            0x500,
            &[(0x18 + 0x7c, &[0, 0, 0, 5]), (0x18 + 0x9c, &[0, 0, 0, 5])],
            &[(8, &[0, 0, 0, 9])],
            0x110,
        );
        let arm = r#"{"uar":1,"offset":"0x20","len":8,"bytes":"0000000000000005"}
{"record":"cq","number":5,"bytes":"00"}
{"uar":1,"offset":"0x20","len":8,"bytes":"1000000000000005"}
{"record":"cq","number":5,"bytes":"0000000010000000"}
"#;
        let text = format!("{create_cq}{create_qp}{arm}");
        let expected = [
            "CREATE_CQ (RC)",
            "CREATE_QP (RC)",
            "CQ arm (RC), first",
            "CQ arm (RC), next number",
        ];
        assert_eq!(names(&text), expected);
        let acts = acts(&parse(&text).unwrap());
        assert_eq!(acts[2].fields["repeats the record's second word"], "yes");
        assert_eq!(acts[3].records, 4..6);
    }

    #[test]
    fn a_send_doorbell_is_held_against_its_wqes() {
        let text = r#"{"uar":1,"offset":"0x800","len":8,"bytes":"0000010a00000902"}
{"record":"qp","number":9,"bytes":"0000000000000002"}
{"wqe":"send","number":9,"index":0,"len":32,"bytes":"0000000a00000902"}
{"wqe":"send","number":9,"index":1,"len":32,"bytes":"0000010a00000902"}
"#;
        let acts = acts(&parse(text).unwrap());
        assert_eq!(acts[0].role, "send doorbell (unknown)");
        assert_eq!(acts[0].fields["its first 8 bytes are those of"], "the last WQE");
        assert_eq!(acts[0].fields["record counts all WQEs"], "yes");
        assert_eq!(acts.len(), 3);
    }

    #[test]
    fn a_role_that_the_recording_gives_is_kept() {
        let text = r#"{"role":"register X","register":"0x18","len":4,"bytes":"00000001"}"#;
        assert_eq!(names(text), ["register X"]);
    }
}
