//! A layout's bytes as named values. Addresses, numbers of objects, keys and the like differ from run to run: only
//! whether they are there is kept.

use std::collections::BTreeMap;

use ferroce_firmware_iface::layout::{FieldInfo, LayoutInfo, read_field};

/// Values that are not 0, by the path of their field.
pub type Fields = BTreeMap<String, String>;

/// What a field holds, and so how much of its value says anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A value of its own.
    Plain,
    /// An address in host memory.
    Address,
    /// The number of an object.
    Number,
    /// A number that the driver chooses, where 0 is one like another: only "none" is told from the rest.
    Index,
    /// A memory key.
    Key,
    /// A packet sequence number.
    Psn,
    /// How many, where that is the firmware's or the program's to say.
    Count,
    /// An address or identifier on the network.
    Network,
    /// Text.
    Text,
    /// A UDP port from the dynamic range.
    UdpPort,
}

/// Fields whose values are not their own, by name.
const KINDS: &[(&str, Kind)] = &[
    ("dbr_addr", Kind::Address),
    ("db_record_addr_h", Kind::Address),
    ("db_record_addr_l", Kind::Address),
    ("start_addr", Kind::Address),
    ("page_offset", Kind::Address),
    ("wq_umem_offset", Kind::Address),
    ("raddr", Kind::Address),
    ("addr", Kind::Address),
    ("pd", Kind::Number),
    ("uar", Kind::Number),
    ("uar_page", Kind::Number),
    ("eq_number", Kind::Number),
    ("eqn", Kind::Number),
    ("c_eqn_or_apu_element", Kind::Number),
    ("cqn", Kind::Number),
    ("cqn_snd", Kind::Number),
    ("cqn_rcv", Kind::Number),
    ("qpn", Kind::Number),
    ("input_qpn", Kind::Number),
    ("remote_qpn", Kind::Number),
    ("srqn", Kind::Number),
    ("xrc_srqn", Kind::Number),
    ("rmpn", Kind::Number),
    ("srqn_rmpn_xrqn", Kind::Number),
    ("xrcd", Kind::Number),
    ("user_index", Kind::Index),
    ("counter_set_id", Kind::Number),
    ("vport_counter_id", Kind::Number),
    ("mkey_index", Kind::Number),
    ("transport_domain", Kind::Number),
    ("umem_id", Kind::Number),
    ("wq_umem_id", Kind::Number),
    ("dbr_umem_id", Kind::Number),
    ("tisn", Kind::Number),
    ("tis_num_0", Kind::Number),
    ("tirn", Kind::Number),
    ("rqtn", Kind::Number),
    ("rqn", Kind::Number),
    ("sqn", Kind::Number),
    ("inline_rqn", Kind::Number),
    ("indirect_table", Kind::Number),
    ("table_id", Kind::Number),
    ("table_miss_id", Kind::Number),
    ("group_id", Kind::Number),
    ("destination_id", Kind::Number),
    ("flow_counter_id", Kind::Number),
    ("flow_index", Kind::Count),
    ("start_flow_index", Kind::Count),
    ("end_flow_index", Kind::Count),
    ("counter_set", Kind::Number),
    ("swap_add", Kind::Count),
    ("compare", Kind::Count),
    ("byte_count", Kind::Count),
    ("imm", Kind::Count),
    ("mkey_7_0", Kind::Key),
    ("lkey", Kind::Key),
    ("rkey", Kind::Key),
    ("next_send_psn", Kind::Psn),
    ("next_rcv_psn", Kind::Psn),
    ("num_pages", Kind::Count),
    ("input_num_entries", Kind::Count),
    ("len", Kind::Count),
    ("num_of_mtt", Kind::Count),
    ("translations_octword_size", Kind::Count),
    ("translations_octword_actual_size", Kind::Count),
    ("rgid_rip", Kind::Network),
    ("rmac_47_32", Kind::Network),
    ("rmac_31_0", Kind::Network),
    ("mac_addr_47_32", Kind::Network),
    ("mac_addr_31_0", Kind::Network),
    ("source_l3_address", Kind::Network),
    ("source_mac_47_32", Kind::Network),
    ("source_mac_31_0", Kind::Network),
    ("roce_address_index", Kind::Number),
    ("src_addr_index", Kind::Number),
    ("dmac_47_16", Kind::Network),
    ("dmac_15_0", Kind::Network),
    ("smac_47_16", Kind::Network),
    ("smac_15_0", Kind::Network),
    ("allowed_list_size", Kind::Count),
    ("driver_version", Kind::Text),
    ("rx_hash_toeplitz_key", Kind::Count),
    ("flow_label", Kind::Count),
    ("udp_sport", Kind::UdpPort),
];

/// What a field of that name holds.
pub fn kind(name: &str) -> Kind {
    KINDS
        .iter()
        .find(|(n, _)| *n == name)
        .map_or(Kind::Plain, |(_, kind)| *kind)
}

/// The value of a field that is not 0, as far as it says anything.
pub fn show(kind: Kind, value: u64, bits: u32) -> String {
    let all_ones = bits > 1 && bits < 64 && value == (1 << bits) - 1;
    match kind {
        Kind::Number | Kind::Index if all_ones => format!("{value:#x}"),
        Kind::Key if value == 0x100 => "0x100".to_string(),
        Kind::Plain => format!("{value:#x}"),
        Kind::Address => "address".to_string(),
        Kind::Index => "index".to_string(),
        Kind::Number => "number".to_string(),
        Kind::Key => "key".to_string(),
        Kind::Psn => "PSN".to_string(),
        Kind::Count => "some".to_string(),
        Kind::Network => "address".to_string(),
        Kind::Text => "text".to_string(),
        Kind::UdpPort if value >= 0xc000 => "0xc000 to 0xffff".to_string(),
        Kind::UdpPort => format!("{value:#x}"),
    }
}

/// The name of a nested layout in the path of its fields: `cqc`, and for paths which of them.
fn step(field: &FieldInfo, nested: &LayoutInfo) -> &'static str {
    if nested.name == "ads" {
        field.name
    } else {
        nested.name
    }
}

/// Adds the fields of `bytes` that are not 0, those of nested layouts too. Lists at the end are left out.
pub fn decode(info: &LayoutInfo, bytes: &[u8], prefix: &str, out: &mut Fields) {
    for field in info.fields {
        let start = field.bit_offset as usize / 8;
        if let Some(nested) = field.nested {
            for index in 0..field.count as usize {
                let from = start + index * nested.bytes;
                let Some(part) = bytes.get(from..(from + nested.bytes).min(bytes.len())) else {
                    continue;
                };
                let own = step(field, nested);
                let many = if field.count > 1 {
                    format!("[{index}]")
                } else {
                    String::new()
                };
                decode(nested, part, &format!("{prefix}{own}{many}."), out);
            }
        } else if field.bit_width != 0 && field.name != "opcode" {
            plain(field, bytes, prefix, out);
        }
    }
}

fn plain(field: &FieldInfo, bytes: &[u8], prefix: &str, out: &mut Fields) {
    let values: Vec<u64> = (0..field.count)
        .map(|i| read_field(bytes, field, i).unwrap_or(0))
        .collect();
    let kind = kind(field.name);
    if kind != Kind::Index && values.iter().all(|v| *v == 0) {
        return;
    }
    let shown = match values.as_slice() {
        [value] => show(kind, *value, field.bit_width),
        _ if kind != Kind::Plain => show(kind, 1, field.bit_width),
        many => many
            .iter()
            .map(|v| format!("{v:#x}"))
            .collect::<Vec<_>>()
            .join(" "),
    };
    out.insert(format!("{prefix}{}", field.name), shown);
}

/// Marks the bits that belong to fields, lists at the end included.
fn mark(info: &LayoutInfo, at: usize, known: &mut [u8]) {
    for field in info.fields {
        let start = at + field.bit_offset as usize;
        if field.bit_width == 0 {
            known.iter_mut().skip(start / 8).for_each(|byte| *byte = 0xff);
        } else if let Some(nested) = field.nested {
            for index in 0..field.count as usize {
                mark(nested, start + index * nested.bytes * 8, known);
            }
        } else {
            for bit in start..start + (field.bit_width * field.count) as usize {
                if let Some(byte) = known.get_mut(bit / 8) {
                    *byte |= 0x80 >> (bit % 8);
                }
            }
        }
    }
}

/// Adds the bits that are set and belong to no field, dword by dword.
pub fn reserved(info: &LayoutInfo, bytes: &[u8], out: &mut Fields) {
    let mut known = vec![0; bytes.len()];
    mark(info, 0, &mut known);
    let unknown: Vec<u8> = bytes
        .iter()
        .zip(&known)
        .map(|(byte, known)| byte & !known)
        .collect();
    dwords(&unknown, "reserved bits of ", 0, out);
}

/// Adds dwords that are not 0.
pub fn dwords(bytes: &[u8], prefix: &str, from: usize, out: &mut Fields) {
    for (index, dword) in bytes.chunks(4).enumerate() {
        let value = dword
            .iter()
            .fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        if value != 0 {
            out.insert(
                format!("{prefix}dword {:#x}", from + index * 4),
                format!("{value:#x}"),
            );
        }
    }
}

/// Adds what can be said of a list of page addresses: whether it is there, and its low bits, which are not address.
pub fn pages(name: &str, list: &[u8], out: &mut Fields) {
    let low = list.chunks_exact(8).fold(0, |low, entry| {
        low | (u16::from(entry[6]) << 8 | u16::from(entry[7])) & 0xfff
    });
    if list.iter().any(|byte| *byte != 0) {
        out.insert(name.to_string(), "addresses".to_string());
    }
    if low != 0 {
        out.insert(format!("{name}, low 12 bits"), format!("{low:#x}"));
    }
}

/// Replaces what differs from run to run in the fields of `bytes`: addresses keep their low 12 bits, sequence numbers
/// become 1.
pub fn still(info: &LayoutInfo, bytes: &mut [u8]) {
    for field in info.fields {
        let start = field.bit_offset as usize / 8;
        if let Some(nested) = field.nested {
            for index in 0..field.count as usize {
                let from = start + index * nested.bytes;
                let to = (from + nested.bytes).min(bytes.len());
                if let Some(part) = bytes.get_mut(from..to) {
                    still(nested, part);
                }
            }
            continue;
        }
        let Some(value) = read_field(bytes, field, 0).filter(|value| *value != 0 && field.count == 1) else {
            continue;
        };
        match kind(field.name) {
            Kind::Address if field.bit_width == 64 => put(field, bytes, value & 0xfff | 0x1000_0000),
            Kind::Psn => put(field, bytes, 1),
            _ => {}
        }
    }
}

fn put(field: &FieldInfo, bytes: &mut [u8], value: u64) {
    for i in 0..field.bit_width {
        let bit = (field.bit_offset + i) as usize;
        let on = value >> (field.bit_width - 1 - i) & 1 != 0;
        if let Some(byte) = bytes.get_mut(bit / 8) {
            let mask = 0x80 >> (bit % 8);
            *byte = if on { *byte | mask } else { *byte & !mask };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_firmware_iface::layout::Layout;
    use ferroce_firmware_iface::layouts::{Cqc, CreateCqIn};
    use zerocopy::IntoBytes;

    fn cq() -> CreateCqIn {
        let mut cq = CreateCqIn::zeroed();
        cq.cq_context_mut().set_oi(true);
        cq.cq_context_mut().set_dbr_addr(0x1234_5678_9ab8);
        cq.cq_context_mut().set_uar_page(7).unwrap();
        cq
    }

    #[test]
    fn values_that_differ_from_run_to_run_are_only_there() {
        let mut fields = Fields::new();
        decode(CreateCqIn::INFO, cq().as_bytes(), "", &mut fields);
        let expected = [
            ("cqc.dbr_addr", "address"),
            ("cqc.oi", "0x1"),
            ("cqc.uar_page", "number"),
        ];
        assert_eq!(
            fields,
            expected.map(|(k, v)| (k.to_string(), v.to_string())).into()
        );
    }

    #[test]
    fn bits_of_no_field_are_seen() {
        let mut bytes = Cqc::zeroed().as_bytes().to_vec();
        bytes[4] = 0x80;
        bytes[0] = 0xf0;
        let mut fields = Fields::new();
        reserved(Cqc::INFO, &bytes, &mut fields);
        assert_eq!(
            fields,
            [("reserved bits of dword 0x4".to_string(), "0x80000000".to_string())].into()
        );
    }

    #[test]
    fn addresses_are_stilled_and_keep_their_place_in_the_page() {
        let mut cq = cq();
        still(CreateCqIn::INFO, cq.as_mut_bytes());
        assert_eq!(cq.cq_context().dbr_addr(), 0x1000_0ab8);
        assert!(cq.cq_context().oi());
    }
}
