//! Work queue entries and doorbells as named values (PRM, WQE segments and UAR page; `tests/data/prm/dataplane.tsv`).

use std::ops::Range;

use ferroce_firmware_iface::layout::{FieldInfo, Layout, LayoutInfo};
use ferroce_firmware_iface::layouts::Mkc;

use crate::fields::{Fields, decode, dwords, reserved, still};

const fn field(name: &'static str, bit_offset: u32, bit_width: u32) -> FieldInfo {
    FieldInfo {
        name,
        bit_offset,
        bit_width,
        count: 1,
        nested: None,
    }
}

/// The control segment. `opcode` is in the role.
const CONTROL: LayoutInfo = LayoutInfo {
    name: "ctrl",
    bytes: 16,
    fields: &[
        field("opmod", 0, 8),
        field("wqe_index", 8, 16),
        field("opcode", 24, 8),
        field("qpn", 32, 24),
        field("ds", 58, 6),
        field("signature", 64, 8),
        field("fence", 88, 3),
        field("ce", 92, 2),
        field("se", 94, 1),
        field("imm", 96, 32),
    ],
};

const REMOTE: LayoutInfo = LayoutInfo {
    name: "raddr",
    bytes: 16,
    fields: &[field("raddr", 0, 64), field("rkey", 64, 32)],
};

const ATOMIC: LayoutInfo = LayoutInfo {
    name: "atomic",
    bytes: 16,
    fields: &[field("swap_add", 0, 64), field("compare", 64, 64)],
};

const DATA: LayoutInfo = LayoutInfo {
    name: "data",
    bytes: 16,
    fields: &[
        field("byte_count", 1, 31),
        field("lkey", 32, 32),
        field("addr", 64, 64),
    ],
};

/// The address vector of a datagram.
const DATAGRAM: LayoutInfo = LayoutInfo {
    name: "av",
    bytes: 48,
    fields: &[
        field("qkey", 0, 32),
        field("extended", 64, 1),
        field("qpn", 72, 24),
        field("stat_rate", 96, 4),
        field("sl", 100, 4),
        field("fl_mlid", 104, 8),
        field("udp_sport", 112, 16),
        field("rmac_47_32", 160, 16),
        field("rmac_31_0", 176, 32),
        field("tclass", 208, 8),
        field("hop_limit", 216, 8),
        field("grh", 225, 1),
        field("src_addr_index", 226, 10),
        field("flow_label", 236, 20),
        FieldInfo {
            name: "rgid_rip",
            bit_offset: 256,
            bit_width: 8,
            count: 16,
            nested: None,
        },
    ],
};

const UMR: LayoutInfo = LayoutInfo {
    name: "umr",
    bytes: 48,
    fields: &[
        field("flags", 0, 8),
        field("xlt_octowords", 32, 16),
        field("xlt_offset", 48, 16),
        field("mkey_mask", 64, 64),
    ],
};

/// Opcodes of send WQEs by name (PRM).
const OPCODES: &[(u8, &str)] = &[
    (0x00, "NOP"),
    (0x01, "SEND_INVAL"),
    (0x08, "RDMA_WRITE"),
    (0x09, "RDMA_WRITE_IMM"),
    (0x0a, "SEND"),
    (0x0b, "SEND_IMM"),
    (0x0e, "LSO"),
    (0x10, "RDMA_READ"),
    (0x11, "ATOMIC_CS"),
    (0x12, "ATOMIC_FA"),
    (0x25, "UMR"),
];

/// Opcodes whose control segment ends with immediate data or a key.
const HAS_IMMEDIATE: &[u8] = &[0x01, 0x09, 0x0b, 0x25];

/// The high bit of a data segment's first byte: inline data.
const INLINE_MARK: u8 = 0x80;
const SEGMENT: usize = 16;
/// Where a datagram's WQE has the MAC address and the GID (PRM, behind the control segment).
const MAC: Range<usize> = 0x24..0x2a;
const GID: Range<usize> = 0x30..0x40;

/// Name of a send WQE's opcode.
fn opcode_name(opcode: u8) -> String {
    OPCODES
        .iter()
        .find(|(number, _)| *number == opcode)
        .map_or_else(|| format!("opcode {opcode:#x}"), |(_, name)| (*name).to_string())
}

/// The segments before the data, of a WQE of that opcode on a QP of that service.
fn segments(opcode: u8, service: &str) -> Vec<&'static LayoutInfo> {
    let mut segments: Vec<&'static LayoutInfo> = vec![&CONTROL];
    if matches!(service, "UD" | "GSI") {
        segments.push(&DATAGRAM);
    }
    match opcode {
        0x08 | 0x09 | 0x10 => segments.push(&REMOTE),
        0x11 | 0x12 => segments.extend([&REMOTE, &ATOMIC]),
        0x25 => segments.extend([&UMR, Mkc::INFO]),
        _ => {}
    }
    segments
}

/// Role and fields of a send WQE.
pub fn send_wqe(wqe: &[u8], index: u16, service: &str) -> (String, Fields) {
    let mut fields = Fields::new();
    let opcode = wqe.get(3).copied().unwrap_or(0);
    let mut at = 0;
    for info in segments(opcode, service) {
        let part = wqe.get(at..(at + info.bytes).min(wqe.len())).unwrap_or_default();
        decode(info, part, &format!("{}.", info.name), &mut fields);
        let mut unknown = Fields::new();
        reserved(info, part, &mut unknown);
        fields.extend(
            unknown
                .into_iter()
                .map(|(k, v)| (format!("{} {k}", info.name), v)),
        );
        at += info.bytes;
    }
    if matches!(service, "UD" | "GSI")
        && let Some(right) = is_group_mac(wqe)
    {
        fields.insert("its MAC address is the group's".into(), yes(right));
    }
    let rest = wqe.get(at..).unwrap_or_default();
    let inline = rest.first().is_some_and(|byte| byte & INLINE_MARK != 0);
    if service == "Ethernet SQ" || opcode == 0x25 {
        // Their lists are other than those of verbs: the first dword of each is enough to see a change.
        dwords(&rest[..rest.len().min(4)], "after the segments, ", 0, &mut fields);
    } else if !inline {
        data_segments(rest, &mut fields);
    }
    // What the program sends.
    fields.remove("atomic.swap_add");
    fields.remove("atomic.compare");
    if HAS_IMMEDIATE.contains(&opcode) {
        fields.remove("ctrl.imm");
    }
    fields.remove("ctrl.wqe_index");
    let own_index = wqe.get(1..3).map(|b| u16::from_be_bytes([b[0], b[1]]));
    fields.insert("index is the ring's".into(), yes(own_index == Some(index)));
    let inline = if inline { ", inline" } else { "" };
    (format!("WQE {} ({service}{inline})", opcode_name(opcode)), fields)
}

/// Whether a datagram to a multicast group goes to the group's MAC address (RFC 1112, RFC 2464); `None` for others.
fn is_group_mac(wqe: &[u8]) -> Option<bool> {
    let mac = wqe.get(MAC)?;
    let gid = wqe.get(GID)?;
    let expected = match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, b, c, d] if first & 0xf0 == 0xe0 => {
            [0x01, 0x00, 0x5e, b & 0x7f, *c, *d]
        }
        [0xff, .., a, b, c, d] => [0x33, 0x33, *a, *b, *c, *d],
        _ => return None,
    };
    Some(mac == expected)
}

fn data_segments(rest: &[u8], fields: &mut Fields) {
    for (number, segment) in rest.chunks(SEGMENT).enumerate() {
        if number == 0 {
            decode(&DATA, segment, "data.", fields);
        }
        reserved_inline(segment, fields);
    }
    let count = rest.len().div_ceil(SEGMENT);
    fields.insert("data segments".into(), count.to_string());
}

fn reserved_inline(segment: &[u8], fields: &mut Fields) {
    if segment.first().is_some_and(|byte| byte & INLINE_MARK != 0) {
        fields.insert("data: inline mark in a list".into(), yes(true));
    }
}

/// Role and fields of a receive WQE, `srq` for one of an SRQ.
pub fn recv_wqe(wqe: &[u8], kind: &str, service: &str) -> (String, Fields) {
    let mut fields = Fields::new();
    let shared = kind == "srq";
    let list = wqe.get(if shared { SEGMENT } else { 0 }..).unwrap_or_default();
    let is_end = |segment: &[u8]| segment.get(..4) == Some(&[0; 4]);
    let used = list.chunks(SEGMENT).take_while(|s| !is_end(s)).count();
    if let Some(first) = list.get(..SEGMENT).filter(|s| !is_end(s)) {
        decode(&DATA, first, "data.", &mut fields);
    }
    let end = match list.get(used * SEGMENT..(used + 1) * SEGMENT) {
        None => "the end of the WQE".to_string(),
        Some(segment) => {
            let mut end = Fields::new();
            decode(&DATA, segment, "", &mut end);
            format!(
                "byte_count 0, lkey {}",
                end.get("lkey").map_or("0", String::as_str)
            )
        }
    };
    fields.insert("the list ends by".into(), end);
    fields.insert("bytes".into(), wqe.len().to_string());
    let name = if shared { "SRQ" } else { service };
    (format!("receive WQE ({name})"), fields)
}

/// Replaces what differs from run to run in a WQE.
pub fn still_wqe(wqe: &mut [u8], kind: &str, service: &str) {
    let opcode = wqe.get(3).copied().unwrap_or(0);
    let mut at = 0;
    if kind == "send" {
        for info in segments(opcode, service) {
            let to = (at + info.bytes).min(wqe.len());
            if let Some(part) = wqe.get_mut(at..to) {
                still(info, part);
            }
            at += info.bytes;
        }
    }
    let rest = wqe.get_mut(at..).unwrap_or_default();
    if rest.first().is_some_and(|byte| byte & INLINE_MARK != 0) {
        // What the program sent.
        rest.iter_mut().skip(4).for_each(|byte| *byte = 0);
        return;
    }
    for segment in rest.chunks_mut(SEGMENT) {
        still(&DATA, segment);
    }
}

/// `yes` or `no`.
pub fn yes(so: bool) -> String {
    if so { "yes" } else { "no" }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write() -> Vec<u8> {
        let mut wqe = vec![0; 48];
        wqe[..12].copy_from_slice(&[0, 0, 7, 8, 0, 0, 5, 3, 0, 0, 0, 8]);
        wqe[16..28].copy_from_slice(&[0, 0, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0, 0, 1, 0xef]);
        wqe[32..48].copy_from_slice(&[
            0, 0, 0x10, 0, 0, 0, 2, 0xef, 0, 0, 0, 0x12, 0x34, 0x56, 0x78, 0x9a,
        ]);
        wqe
    }

    #[test]
    fn a_write_is_taken_apart() {
        let (role, fields) = send_wqe(&write(), 7, "RC");
        assert_eq!(role, "WQE RDMA_WRITE (RC)");
        let expected = [
            ("ctrl.ce", "0x2"),
            ("ctrl.ds", "0x3"),
            ("ctrl.qpn", "number"),
            ("data segments", "1"),
            ("data.addr", "address"),
            ("data.byte_count", "some"),
            ("data.lkey", "key"),
            ("index is the ring's", "yes"),
            ("raddr.raddr", "address"),
            ("raddr.rkey", "key"),
        ];
        assert_eq!(
            fields,
            expected.map(|(k, v)| (k.to_string(), v.to_string())).into()
        );
    }

    #[test]
    fn reserved_bits_and_a_wrong_index_are_seen() {
        let mut wqe = write();
        wqe[9] = 1;
        wqe[31] = 2;
        let (_, fields) = send_wqe(&wqe, 8, "RC");
        assert_eq!(fields["ctrl reserved bits of dword 0x8"], "0x10000");
        assert_eq!(fields["raddr reserved bits of dword 0xc"], "0x2");
        assert_eq!(fields["index is the ring's"], "no");
    }

    #[test]
    fn a_group_has_its_mac_address() {
        let mut wqe = vec![0; 80];
        wqe[3] = 0x0b;
        wqe[0x24..0x2a].copy_from_slice(&[1, 0, 0x5e, 1, 2, 3]);
        wqe[0x3a..0x40].copy_from_slice(&[0xff, 0xff, 239, 129, 2, 3]);
        let right = |wqe: &[u8]| {
            send_wqe(wqe, 0, "UD")
                .1
                .get("its MAC address is the group's")
                .cloned()
        };
        assert_eq!(right(&wqe).as_deref(), Some("yes"));
        wqe[0x29] = 4;
        assert_eq!(right(&wqe).as_deref(), Some("no"));
        wqe[0x3c] = 10;
        assert_eq!(right(&wqe), None);
    }

    #[test]
    fn a_short_receive_list_ends_by_its_terminator() {
        let mut wqe = vec![0; 32];
        wqe[..16].copy_from_slice(&[0, 0, 0x10, 0, 0, 0, 2, 0xef, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        wqe[22] = 1;
        let (role, fields) = recv_wqe(&wqe, "recv", "RC");
        assert_eq!(role, "receive WQE (RC)");
        assert_eq!(fields["the list ends by"], "byte_count 0, lkey 0x100");
        let mut srq = vec![0; 16];
        srq.extend_from_slice(&wqe[..16]);
        assert_eq!(
            recv_wqe(&srq, "srq", "RC").1["the list ends by"],
            "the end of the WQE"
        );
    }

    #[test]
    fn what_was_sent_inline_is_not_kept() {
        let mut wqe = write()[..32].to_vec();
        wqe.extend_from_slice(&[0x80, 0, 0, 5]);
        wqe.extend_from_slice(b"hello");
        wqe.resize(48, 0);
        still_wqe(&mut wqe, "send", "RC");
        assert_eq!(&wqe[32..36], &[0x80, 0, 0, 5]);
        assert_eq!(&wqe[36..], &[0; 12]);
        assert_eq!(send_wqe(&wqe, 7, "RC").0, "WQE RDMA_WRITE (RC, inline)");
    }
}
