//! A recording made small: of what was done several times in the same way, the first, with its role; what differs from
//! run to run taken out.

use std::collections::BTreeSet;
use std::ops::Range;

use ferroce_firmware_iface::layouts::of_command;
use ferroce_firmware_iface::opcode::Opcode;

use crate::commands::Command;
use crate::entries::still_wqe;
use crate::fields::still;
use crate::paging::Paging;
use crate::record::{Record, What};
use crate::roles::{Act, acts};

/// Bytes of a list of pages that are kept: two pages.
const LIST_BYTES: usize = 16;
/// Where CREATE_MKEY has the first address of the region (PRM, `mkc.start_addr`).
const KEY_START: Range<usize> = 0x20..0x28;

/// The small form. A send doorbell and the WQEs that it announces stay together, since each is held against the other.
pub fn shrink(records: &[Record]) -> Vec<Record> {
    let acts = acts(records);
    let mut seen = BTreeSet::new();
    let mut kept = Vec::new();
    let mut rest = acts.as_slice();
    while let Some(first) = rest.first() {
        let announced = if is_doorbell(first) {
            rest[1..]
                .iter()
                .take_while(|act| is_send_wqe(records, act))
                .count()
        } else {
            0
        };
        let (group, others) = rest.split_at(1 + announced);
        rest = others;
        let mut new = false;
        for act in group {
            new |= seen.insert((act.role.clone(), act.fields.clone()));
        }
        if new {
            group.iter().for_each(|act| keep(records, act, &mut kept));
        }
    }
    kept
}

fn is_doorbell(act: &Act) -> bool {
    act.role.starts_with("send doorbell") || act.role.starts_with("BlueFlame doorbell")
}

fn is_send_wqe(records: &[Record], act: &Act) -> bool {
    let what = records.get(act.records.start).map(|record| &record.what);
    matches!(what, Some(What::Wqe { kind, .. }) if kind == "send")
}

fn keep(records: &[Record], act: &Act, kept: &mut Vec<Record>) {
    let service = act.role.rsplit_once('(').map_or("", |(_, rest)| {
        rest.trim_end_matches(')').trim_end_matches(", inline")
    });
    for (number, record) in records[act.records.clone()].iter().enumerate() {
        let mut record = record.clone();
        record.role = (number == 0).then(|| act.role.clone());
        stilled(&mut record.what, service);
        kept.push(record);
    }
}

fn stilled(what: &mut What, service: &str) {
    match what {
        What::Command {
            opcode,
            in_len,
            out_len,
            input,
            output,
        } => {
            let Some((info, _)) = of_command(*opcode) else {
                return;
            };
            let paging = Paging::of(&Command {
                opcode: *opcode,
                in_len: *in_len,
                out_len: *out_len,
                input,
                output,
            });
            let still_page = |entry: &mut [u8]| {
                if let Ok(address) = <[u8; 8]>::try_from(&*entry).map(u64::from_be_bytes)
                    && address != 0
                {
                    let smallest = address & 0xfff | 0x1000_0000;
                    let address = paging.map_or(smallest, |paging| paging.still(address));
                    entry.copy_from_slice(&address.to_be_bytes());
                }
            };
            let start = (*opcode == Opcode::CREATE_MKEY)
                .then(|| input.get(KEY_START).map(<[u8]>::to_vec))
                .flatten();
            still(info, input);
            if let (Some(start), Some(place)) = (start, input.get_mut(KEY_START)) {
                // Where in its first page a region begins says how many pages it needs.
                place.copy_from_slice(&start);
                still_page(place);
            }
            // Lists are shown by their first entries; a capability stays whole.
            if !matches!(*opcode, Opcode::SET_HCA_CAP | Opcode::ACCESS_REG) {
                input.truncate(info.bytes.max(LIST_BYTES) + LIST_BYTES);
                for entry in input
                    .get_mut(info.bytes..)
                    .unwrap_or_default()
                    .chunks_exact_mut(8)
                {
                    still_page(entry);
                }
            }
            // Of answers, only what was made and what is compared with what is set later.
            if *opcode != Opcode::QUERY_HCA_CAP {
                output.truncate(16);
            }
        }
        What::Wqe { kind, bytes, .. } => still_wqe(bytes, kind, service),
        What::Register { offset: 0x10, bytes } => bytes.fill(0),
        What::Register { offset: 0x14, bytes } => {
            if let [first, second, third, _] = bytes.as_mut_slice() {
                (*first, *second, *third) = (0, 0, *third & 0xf);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{parse, write};

    #[test]
    fn what_is_done_again_is_left_out_and_the_rest_means_the_same() {
        let text = r#"{"register":"0x14","len":4,"bytes":"12345055"}
{"opcode":"0x800","in_len":16,"out_len":16,"in":"0800","out":"0000000000000000000007"}
{"opcode":"0x800","in_len":16,"out_len":16,"in":"0800","out":"0000000000000000000008"}
{"opcode":"0x801","in_len":16,"out_len":16,"in":"08010000000000000000000700","out":""}
"#;
        let records = parse(text).unwrap();
        let small = shrink(&records);
        assert_eq!(small.len(), 3, "{small:?}");
        let said = |records: &[Record]| -> BTreeSet<_> {
            acts(records)
                .into_iter()
                .map(|act| (act.role, act.fields))
                .collect()
        };
        assert_eq!(said(&small), said(&records));
        let again = parse(&write(&small)).unwrap();
        assert_eq!(shrink(&again), small, "and so small that it gets no smaller");
        assert!(!write(&small).contains("12345"));
    }

    #[test]
    fn a_doorbell_keeps_what_it_announces() {
        let round = |index: u8, opcode: u8, imm: u8| {
            format!(
                r#"{{"uar":1,"offset":"0x800","len":8,"bytes":"0000{index:02x}{opcode:02x}00000901"}}
{{"record":"qp","number":9,"bytes":"00000000000000{:02x}"}}
{{"wqe":"send","number":9,"index":{index},"len":16,"bytes":"0000{index:02x}{opcode:02x}000009010000000{imm}"}}
"#,
                index + 1
            )
        };
        // A SEND, the same again, a SEND with a completion, a NOP.
        let text = [round(0, 10, 0), round(1, 10, 0), round(2, 10, 8), round(3, 0, 8)].concat();
        let records = parse(&text).unwrap();
        let small = shrink(&records);
        assert_eq!(small.len(), 9, "{small:?}");
        for act in acts(&small).iter().filter(|act| is_doorbell(act)) {
            assert_eq!(act.fields["its first 8 bytes are those of"], "the last WQE");
            assert_eq!(act.fields["record counts all WQEs"], "yes");
        }
        assert_eq!(shrink(&small), small);
    }
}
