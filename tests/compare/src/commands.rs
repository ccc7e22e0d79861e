//! Firmware commands: which role each plays, and its fields.

use std::collections::BTreeMap;

use ferroce_firmware_iface::layout::{Layout, LayoutInfo, read_field};
use ferroce_firmware_iface::layouts::{
    AtomicCaps, CmdHcaCap, CmdHcaCap2, DtorReg, OdpCap, PaosReg, PerProtocolNetworkingOffloadCaps, PmtuReg,
    PpcntReg, PtysReg, RegisterHostEndianness, RoceCap, of_command,
};
use ferroce_firmware_iface::opcode::Opcode;

use crate::fields::{Fields, decode, dwords, pages, reserved};
use crate::paging::Paging;

/// Offset of a capability or register in its command.
const BODY: usize = 0x10;

/// Names of capability types (PRM, `cap_type` in the op_mod of QUERY_HCA_CAP).
const CAPS: &[(u16, &str, Option<&LayoutInfo>)] = &[
    (0x0, "GENERAL", Some(CmdHcaCap::INFO)),
    (
        0x1,
        "ETHERNET_OFFLOADS",
        Some(PerProtocolNetworkingOffloadCaps::INFO),
    ),
    (0x2, "ODP", Some(OdpCap::INFO)),
    (0x3, "ATOMIC", Some(AtomicCaps::INFO)),
    (0x4, "ROCE", Some(RoceCap::INFO)),
    (0x7, "FLOW_TABLE", None),
    (0x8, "ESWITCH_FLOW_TABLE", None),
    (0x9, "ESWITCH", None),
    (0xc, "QOS", None),
    (0xd, "DEBUG", None),
    (0x20, "GENERAL_2", Some(CmdHcaCap2::INFO)),
];

/// Names of registers (PRM, ACCESS_REG).
const REGISTERS: &[(u16, &str, Option<&LayoutInfo>)] = &[
    (0x5003, "PMTU", Some(PmtuReg::INFO)),
    (0x5004, "PTYS", Some(PtysReg::INFO)),
    (0x5006, "PAOS", Some(PaosReg::INFO)),
    (0x5007, "PFCC", None),
    (0x5008, "PPCNT", Some(PpcntReg::INFO)),
    (0x6001, "NODE_DESC", None),
    (0x7004, "HOST_ENDIANNESS", Some(RegisterHostEndianness::INFO)),
    (0xc00e, "DTOR", Some(DtorReg::INFO)),
];

/// Types of events by name (PRM, EQE event types).
const EVENTS: &[(u32, &str)] = &[(0x0a, "commands"), (0x0b, "page requests"), (0x0c, "page faults")];

/// Lists at the end of commands that are page addresses.
const PAGE_LISTS: &[&str] = &["pas", "klm_pas_mtt", "mtt"];

/// A command with its answer.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// Its opcode.
    pub opcode: Opcode,
    /// Length of the input.
    pub in_len: usize,
    /// Room for the output.
    pub out_len: usize,
    /// The input.
    pub input: &'a [u8],
    /// The answer.
    pub output: &'a [u8],
}

impl Command<'_> {
    /// The modifier of the operation.
    pub fn op_mod(&self) -> u16 {
        u16::from_be_bytes([self.byte(6), self.byte(7)])
    }

    fn byte(&self, at: usize) -> u8 {
        self.input.get(at).copied().unwrap_or(0)
    }

    /// Whether it succeeded.
    pub fn ok(&self) -> bool {
        self.output.first() == Some(&0)
    }

    /// Value of a field of the input, by its path (`cqc.log_cq_size`); 0 when there is none.
    pub fn get(&self, path: &str) -> u64 {
        of_command(self.opcode).map_or(0, |(info, _)| find(info, self.input, path))
    }

    /// The same of the output.
    pub fn answered(&self, path: &str) -> u64 {
        of_command(self.opcode).map_or(0, |(_, info)| find(info, self.output, path))
    }
}

fn find(info: &LayoutInfo, bytes: &[u8], path: &str) -> u64 {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let field = info.fields.iter().find(|f| match f.nested {
        Some(nested) => nested.name == first || f.name == first,
        None => f.name == first,
    });
    match field.map(|f| (f, f.nested)) {
        Some((field, Some(nested))) => {
            let from = (field.bit_offset as usize / 8).min(bytes.len());
            find(nested, &bytes[from..], rest)
        }
        Some((field, None)) => read_field(bytes, field, 0).unwrap_or(0),
        None => 0,
    }
}

/// What the NIC has said of its capabilities: what a driver sets is compared with that.
#[derive(Clone, Debug, Default)]
pub struct Capabilities(BTreeMap<u16, Vec<u8>>);

impl Capabilities {
    /// Remembers the answer to a query of what is in force.
    pub fn learn(&mut self, command: &Command<'_>) {
        if command.opcode == Opcode::QUERY_HCA_CAP && command.op_mod() & 1 != 0 && command.ok() {
            let body = command.output.get(BODY..).unwrap_or_default();
            self.0.insert(command.op_mod() >> 1, body.to_vec());
        }
    }
}

fn named(
    table: &[(u16, &'static str, Option<&'static LayoutInfo>)],
    number: u16,
) -> (String, Option<&'static LayoutInfo>) {
    match table.iter().find(|(n, ..)| *n == number) {
        Some((_, name, info)) => ((*name).to_string(), *info),
        None => (format!("{number:#x}"), None),
    }
}

/// What tells one use of a command from another, as far as the command itself says it.
pub fn variant(command: &Command<'_>) -> String {
    let op_mod = command.op_mod();
    match command.opcode {
        Opcode::QUERY_HCA_CAP => {
            let which = if op_mod & 1 != 0 { "current" } else { "most" };
            format!("{}, {which}", named(CAPS, op_mod >> 1).0)
        }
        Opcode::SET_HCA_CAP => named(CAPS, op_mod >> 1).0,
        Opcode::QUERY_PAGES => ["", "boot", "init", "regular"]
            .get(usize::from(op_mod))
            .map_or_else(String::new, ToString::to_string),
        Opcode::MANAGE_PAGES => ["can't give", "give", "take"]
            .get(usize::from(op_mod))
            .map_or_else(String::new, ToString::to_string),
        Opcode::ACCESS_REG => {
            let way = if op_mod == 0 { "write" } else { "read" };
            format!("{way} {}", named(REGISTERS, command.get("register_id") as u16).0)
        }
        Opcode::CREATE_EQ => events(command),
        Opcode::CREATE_MKEY => mkey(command),
        Opcode::MODIFY_NIC_VPORT_CONTEXT => selected(command),
        Opcode::QUERY_NIC_VPORT_CONTEXT => match command.get("allowed_list_type") {
            0 => String::new(),
            list => format!("list {list}"),
        },
        Opcode::SET_ROCE_ADDRESS => gid(command),
        _ => String::new(),
    }
}

fn events(command: &Command<'_>) -> String {
    let mask: Vec<u8> = command.input.get(0x58..0x78).unwrap_or_default().to_vec();
    let wants = |ty: u32| {
        let dword = 7 - ty / 8 % 8 + ty / 64 * 8;
        mask.get(dword as usize)
            .is_some_and(|byte| byte >> (ty % 8) & 1 != 0)
    };
    let own: Vec<&str> = EVENTS
        .iter()
        .filter(|(ty, _)| wants(*ty))
        .map(|(_, name)| *name)
        .collect();
    let count: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    match (count, own.len()) {
        (0, _) => "completions".to_string(),
        (count, own_count) if count as usize == own_count => own.join(" and "),
        _ => "asynchronous events".to_string(),
    }
}

fn mkey(command: &Command<'_>) -> String {
    let mode = command.get("mkc.access_mode_4_2") << 2 | command.get("mkc.access_mode_1_0");
    let mode = ["PA", "MTT", "KLM", "KSM"]
        .get(mode as usize)
        .map_or_else(|| format!("mode {mode}"), ToString::to_string);
    let free = if command.get("mkc.free") != 0 {
        ", free"
    } else {
        ""
    };
    format!("{mode}{free}")
}

fn selected(command: &Command<'_>) -> String {
    let mut fields = Fields::new();
    if let Some((info, _)) = of_command(command.opcode) {
        decode(info, command.input, "", &mut fields);
    }
    let prefix = "modify_nic_vport_field_select.";
    let mut names: Vec<&str> = fields.keys().filter_map(|k| k.strip_prefix(prefix)).collect();
    names.sort_unstable();
    let list = match command.get("nic_vport_context.allowed_list_type") {
        _ if !names.contains(&"addresses_list") => String::new(),
        list => format!(" {list}"),
    };
    let value = match names.as_slice() {
        ["roce_en"] if command.get("nic_vport_context.roce_en") == 0 => " off",
        _ => "",
    };
    names.join(" and ") + &list + value
}

fn gid(command: &Command<'_>) -> String {
    let address = command.input.get(BODY..BODY + 16).unwrap_or_default();
    if address.iter().all(|byte| *byte == 0) {
        return "clear".to_string();
    }
    let version = match command.get("roce_addr_layout.roce_version") {
        0 => "v1".to_string(),
        2 => "v2".to_string(),
        other => format!("version {other}"),
    };
    let l3 = if command.get("roce_addr_layout.roce_l3_type") == 0 {
        "IPv4"
    } else {
        "IPv6"
    };
    format!("{version} {l3}")
}

/// The fields of a command.
pub fn fields(command: &Command<'_>, caps: &Capabilities) -> Fields {
    let mut fields = Fields::new();
    let Some((info, out_info)) = of_command(command.opcode) else {
        dwords(command.input.get(8..).unwrap_or_default(), "", 8, &mut fields);
        lengths(command, None, &mut fields);
        return fields;
    };
    let head = &command.input[..command.input.len().min(info.bytes)];
    match command.opcode {
        Opcode::SET_HCA_CAP => {
            let own = &command.input[..command.input.len().min(BODY)];
            decode(info, own, "", &mut fields);
            changed(command, caps, &mut fields);
        }
        Opcode::ACCESS_REG => {
            decode(info, head, "", &mut fields);
            register(command, &mut fields);
        }
        _ => {
            decode(info, head, "", &mut fields);
            reserved(info, head, &mut fields);
            list(info, command, &mut fields);
        }
    }
    if !command.ok() {
        let status = command.output.first().copied().unwrap_or(0);
        fields.insert("answer: status".to_string(), format!("{status:#x}"));
    }
    // Which of several the op_mod asks for is in the role.
    fields.remove("op_mod");
    lengths(command, Some((info, out_info)), &mut fields);
    fields
}

/// The list at the end.
fn list(info: &LayoutInfo, command: &Command<'_>, fields: &mut Fields) {
    let input = command.input;
    for field in info.fields.iter().filter(|f| f.bit_width == 0) {
        let head = field.bit_offset as usize / 8;
        let entries = &input[head.min(input.len())..];
        if PAGE_LISTS.contains(&field.name) {
            pages(field.name, entries, fields);
        }
        if let Some(paging) = Paging::of(command) {
            paging.judge(command, head, entries, fields);
        }
    }
}

/// Lengths, where a list does not make them.
fn lengths(command: &Command<'_>, info: Option<(&LayoutInfo, &LayoutInfo)>, fields: &mut Fields) {
    fn is_list(info: &LayoutInfo) -> bool {
        let mut fields = info.fields.iter();
        fields.any(|f| f.bit_width == 0 || f.nested.is_some_and(is_list))
    }
    let length = |len: usize, info: Option<&LayoutInfo>| match info {
        Some(info) if is_list(info) && len > info.bytes => "with its list".to_string(),
        _ => format!("{len:#x}"),
    };
    fields.insert("input length".into(), length(command.in_len, info.map(|i| i.0)));
    fields.insert("output length".into(), length(command.out_len, info.map(|i| i.1)));
}

/// What a SET_HCA_CAP changes of what is in force.
fn changed(command: &Command<'_>, caps: &Capabilities, fields: &mut Fields) {
    let ty = command.op_mod() >> 1;
    let new = command.input.get(BODY..).unwrap_or_default();
    let Some(old) = caps.0.get(&ty) else {
        fields.insert("set without a query".into(), "yes".into());
        return;
    };
    let Some(info) = named(CAPS, ty).1 else {
        return;
    };
    compare_layout(info, old, new, "", fields);
    let rest = |bytes: &[u8]| bytes.iter().skip(info.bytes).any(|b| *b != 0);
    if rest(new) != rest(old) {
        fields.insert(
            "beyond the layout".into(),
            if rest(new) { "set" } else { "0" }.into(),
        );
    }
}

fn compare_layout(info: &LayoutInfo, old: &[u8], new: &[u8], prefix: &str, fields: &mut Fields) {
    for field in info.fields {
        let from = field.bit_offset as usize / 8;
        if let Some(nested) = field.nested {
            for index in 0..field.count as usize {
                let at = from + index * nested.bytes;
                let part = |bytes: &[u8]| bytes.get(at..).unwrap_or_default().to_vec();
                compare_layout(
                    nested,
                    &part(old),
                    &part(new),
                    &format!("{prefix}{}.", field.name),
                    fields,
                );
            }
            continue;
        }
        for index in 0..field.count {
            let value = |bytes| read_field(bytes, field, index).unwrap_or(0);
            if value(old) != value(new) {
                let name = format!("change of {prefix}{}", field.name);
                fields.insert(name, format!("{:#x}", value(new)));
            }
        }
    }
}

/// The register of an ACCESS_REG.
fn register(command: &Command<'_>, fields: &mut Fields) {
    let body = command.input.get(BODY..).unwrap_or_default();
    match named(REGISTERS, command.get("register_id") as u16).1 {
        Some(info) => {
            let part = &body[..body.len().min(info.bytes)];
            decode(info, part, "register.", fields);
        }
        None => dwords(body, "register ", 0, fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command<'a>(opcode: Opcode, input: &'a [u8], output: &'a [u8]) -> Command<'a> {
        Command {
            opcode,
            in_len: input.len(),
            out_len: output.len(),
            input,
            output,
        }
    }

    fn create_eq(types: &[u32]) -> String {
        let mut input = vec![0; 0x110];
        for ty in types {
            let mask: u64 = 1 << (ty % 64);
            let at = 0x58 + *ty as usize / 64 * 8;
            for (i, byte) in mask.to_be_bytes().iter().enumerate() {
                input[at + i] |= byte;
            }
        }
        variant(&command(Opcode::CREATE_EQ, &input, &[0; 16]))
    }

    #[test]
    fn event_queues_are_told_apart_by_what_they_take() {
        assert_eq!(create_eq(&[]), "completions");
        assert_eq!(create_eq(&[0x0a]), "commands");
        assert_eq!(create_eq(&[0x0a, 0x0b]), "commands and page requests");
        assert_eq!(create_eq(&[0x0b, 0x09]), "asynchronous events");
    }

    #[test]
    fn a_set_capability_shows_what_it_changes() {
        let mut caps = Capabilities::default();
        let mut query = vec![0; 16];
        query[..2].copy_from_slice(&[1, 0]);
        query[7] = 1;
        let mut answer = vec![0; BODY + 0x100];
        let mut cap = CmdHcaCap::default();
        cap.set_log_max_qp(0x17).unwrap();
        answer[BODY..].copy_from_slice(zerocopy::IntoBytes::as_bytes(&cap));
        caps.learn(&command(Opcode::QUERY_HCA_CAP, &query, &answer));
        cap.set_log_max_qp(0x12).unwrap();
        let mut set = vec![0; BODY + 0x100];
        set[BODY..].copy_from_slice(zerocopy::IntoBytes::as_bytes(&cap));
        let got = fields(&command(Opcode::SET_HCA_CAP, &set, &[0; 16]), &caps);
        assert_eq!(got["change of log_max_qp"], "0x12");
        assert_eq!(got.keys().filter(|k| k.starts_with("change")).count(), 1);
        let got = fields(
            &command(Opcode::SET_HCA_CAP, &set, &[0; 16]),
            &Capabilities::default(),
        );
        assert_eq!(got["set without a query"], "yes");
    }

    #[test]
    fn a_refusal_is_a_field() {
        let got = fields(
            &command(Opcode::CREATE_UCTX, &[0; 64], &[2; 16]),
            &Capabilities::default(),
        );
        assert_eq!(got["answer: status"], "0x2");
        assert_eq!(got["input length"], "0x40");
    }

    #[test]
    fn gids_are_told_apart_by_version_and_address() {
        let mut input = vec![0; 0x30];
        assert_eq!(
            variant(&command(Opcode::SET_ROCE_ADDRESS, &input, &[0; 16])),
            "clear"
        );
        input[BODY + 15] = 1;
        input[BODY + 0x1b] = 2;
        assert_eq!(
            variant(&command(Opcode::SET_ROCE_ADDRESS, &input, &[0; 16])),
            "v2 IPv4"
        );
    }
}
