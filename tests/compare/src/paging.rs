//! Memory that a command names by a list of pages. How large the pages are is the driver's choice, within what its memory
//! is; that the list holds what it is for, and that its addresses are those of such pages, is not.

use ferroce_firmware_iface::opcode::Opcode;

use crate::commands::Command;
use crate::fields::Fields;

/// log2 of the unit in which most contexts count page sizes.
const LOG_UNIT: u64 = 12;
/// Bytes of an entry in a list.
const ENTRY: u64 = 8;
/// Bytes of a send queue's block, and of a completion.
const BLOCK: u64 = 64;
/// `page_offset` counts so many parts of a page.
const PARTS: u64 = 64;
/// Bytes of the smallest receive.
const SEGMENT: u64 = 16;
/// `qpc.rq_type` of a queue pair with a receive queue of its own.
const OWN_RQ: u64 = 0;
/// Largest log2 of a size that makes sense.
const LOG_MOST: u64 = 40;

/// What a command says of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Paging {
    /// The field with the size of its pages.
    pub field: &'static str,
    /// log2 of that size in bytes.
    pub log_page: u64,
    /// Bytes that the list has to hold, from the first page's start on.
    bytes: u64,
}

fn shift(value: u64, by: u64) -> u64 {
    value << by.min(LOG_MOST)
}

impl Paging {
    /// That of a command which has a list of pages; `None` for others.
    pub fn of(command: &Command<'_>) -> Option<Paging> {
        let get = |path: &str| command.get(path);
        let in_units = |field: &'static str, bytes: u64, offset: u64| {
            let log_page = (get(field) + LOG_UNIT).min(LOG_MOST);
            let bytes = offset * (shift(1, log_page) / PARTS) + bytes;
            Paging {
                field,
                log_page,
                bytes,
            }
        };
        match command.opcode {
            Opcode::CREATE_CQ | Opcode::MODIFY_CQ if get("cqc.log_cq_size") != 0 => {
                let entries = shift(1, get("cqc.log_cq_size"));
                let bytes = shift(entries * BLOCK, get("cqc.cqe_sz"));
                Some(in_units("cqc.log_page_size", bytes, get("cqc.page_offset")))
            }
            Opcode::CREATE_QP => {
                let receives = if get("qpc.rq_type") == OWN_RQ {
                    shift(SEGMENT, get("qpc.log_rq_size") + get("qpc.log_rq_stride"))
                } else {
                    0
                };
                let sends = if get("qpc.no_sq") == 0 {
                    shift(BLOCK, get("qpc.log_sq_size"))
                } else {
                    0
                };
                let offset = get("qpc.page_offset");
                Some(in_units("qpc.log_page_size", receives + sends, offset))
            }
            Opcode::CREATE_MKEY if get("mkc.access_mode_1_0") == 1 && get("mkc.free") == 0 => {
                let log_page = get("mkc.log_page_size").min(LOG_MOST);
                let within = get("mkc.start_addr") & (shift(1, log_page) - 1);
                Some(Paging {
                    field: "mkc.log_page_size",
                    log_page,
                    bytes: within.saturating_add(get("mkc.len")),
                })
            }
            _ => None,
        }
    }

    /// Replaces the size of the pages by whether the list of `entries` is right for it. A command whose memory is a umem
    /// has no list.
    pub fn judge(self, command: &Command<'_>, head: usize, list: &[u8], fields: &mut Fields) {
        let needed = self.bytes.div_ceil(shift(1, self.log_page));
        let listed = command.in_len.saturating_sub(head) as u64 / ENTRY;
        if listed == 0 {
            return;
        }
        fields.remove(self.field);
        // Keys' entries come in pairs.
        let (counts, count) = if command.opcode == Opcode::CREATE_MKEY {
            let pairs = needed.div_ceil(2);
            let said = [
                "translations_octword_actual_size",
                "mkc.translations_octword_size",
            ];
            let wrong = said.iter().any(|path| ![0, pairs].contains(&command.get(path)));
            (!wrong, listed >= needed && listed <= pairs * 2)
        } else {
            (true, listed == needed)
        };
        let verdict = match (count, counts) {
            (true, true) => "hold it".to_string(),
            (true, false) => "hold it, but are counted wrong".to_string(),
            (false, _) => format!("{listed} where {needed} hold it"),
        };
        fields.insert("its pages".into(), verdict);
        let flags = shift(1, LOG_UNIT) - 1;
        let inside = (shift(1, self.log_page) - 1) & !flags;
        let off = list.chunks_exact(ENTRY as usize).any(|entry| {
            let entry = entry.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
            entry & inside != 0
        });
        if off {
            fields.insert("its pages' addresses".into(), "not of pages of that size".into());
        }
    }

    /// `address`, of a page in a list, with all taken out that differs from run to run.
    pub fn still(self, address: u64) -> u64 {
        const SOMEWHERE: u64 = 1 << 44;
        let inside = shift(1, self.log_page.max(LOG_UNIT)) - 1;
        address & inside | SOMEWHERE
    }
}

#[cfg(test)]
mod tests {
    use ferroce_firmware_iface::layout::Layout;
    use ferroce_firmware_iface::layouts::CreateCqIn;
    use zerocopy::IntoBytes;

    use super::*;

    fn verdict(log_page: u8, entries: &[u64]) -> Fields {
        let mut cq = CreateCqIn::zeroed();
        // 512 entries of 64 bytes: 32 KiB.
        cq.cq_context_mut().set_log_cq_size(9).unwrap();
        cq.cq_context_mut().set_log_page_size(log_page).unwrap();
        let mut input = cq.as_bytes().to_vec();
        input[..2].copy_from_slice(&Opcode::CREATE_CQ.0.to_be_bytes());
        let head = input.len();
        entries
            .iter()
            .for_each(|entry| input.extend_from_slice(&entry.to_be_bytes()));
        let command = Command {
            opcode: Opcode::CREATE_CQ,
            in_len: input.len(),
            out_len: 16,
            input: &input,
            output: &[0; 16],
        };
        let mut fields: Fields = [("cqc.log_page_size".to_string(), "0x1".to_string())].into();
        let paging = Paging::of(&command).expect("a list");
        paging.judge(&command, head, &input[head..], &mut fields);
        fields
    }

    #[test]
    fn lists_of_any_pages_that_hold_the_queue_are_alike() {
        let right: Fields = [("its pages".to_string(), "hold it".to_string())].into();
        let small: Vec<u64> = (1..=8).map(|page| page << 12).collect();
        assert_eq!(verdict(0, &small), right);
        assert_eq!(verdict(3, &[8 << 12]), right);
    }

    #[test]
    fn lists_that_are_not_right_are_told() {
        assert_eq!(verdict(0, &[1 << 12])["its pages"], "1 where 8 hold it");
        assert_eq!(verdict(3, &[1 << 12, 2 << 12])["its pages"], "2 where 1 hold it");
        let off = verdict(3, &[4 << 12]);
        assert_eq!(off["its pages' addresses"], "not of pages of that size");
    }

    #[test]
    fn an_address_keeps_its_place_in_the_page() {
        let paging = Paging {
            field: "cqc.log_page_size",
            log_page: 15,
            bytes: 0,
        };
        assert_eq!(paging.still(0x7f_1234_5003) & 0xffff, 0x5003);
        assert_eq!(paging.still(0x7f_1234_5003), paging.still(0x1_0000_5003));
    }
}
