//! Host pages that the firmware works in: how many it needs, which it has, what uses them.
//!
//! The host owns the memory and lends it. Boot and init pages are needed as long as the HCA is up; a part of the
//! init pages holds the contexts of objects, and when that is full the firmware asks for more, and the command
//! waits. After TEARDOWN_HCA all pages can be had back.

use std::collections::{BTreeSet, HashSet};

use ferroce_firmware_iface::cmds::manage_pages_op;
use ferroce_firmware_iface::command::addresses;
use ferroce_firmware_iface::event::EventType;
use ferroce_firmware_iface::layouts::{
    CreateMkeyIn, ManagePagesIn, ManagePagesOut, QueryPagesIn, QueryPagesOut,
};
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::CommandStatus;
use zerocopy::IntoBytes;

use super::command::{Call, Outcome, ok, output, own_function};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};
use crate::profile::Profile;

const PAGE: u64 = 4096;
/// The firmware asks for this many at a time, so that a burst of objects does not cost an event each.
const REQUEST_BATCH: u64 = 256;

/// What an object is, as far as its cost goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Eq,
    Cq,
    Qp,
    Srq,
    Mkey,
    Pd,
    Uar,
    Xrcd,
    TransportDomain,
    Umem,
}

/// What an object that the command creates costs in the firmware's pages, in bytes; `None` for other commands.
pub(super) fn cost_of(call: &Call<'_>) -> Option<(Kind, u64)> {
    Some(match call.header.opcode {
        Opcode::CREATE_EQ => (Kind::Eq, 512),
        Opcode::CREATE_CQ => (Kind::Cq, 256),
        Opcode::CREATE_QP => (Kind::Qp, 1024),
        Opcode::CREATE_SRQ | Opcode::CREATE_XRC_SRQ | Opcode::CREATE_RMP => (Kind::Srq, 256),
        Opcode::CREATE_MKEY => {
            let octwords = ferroce_firmware_iface::layout::view::<CreateMkeyIn>(call.input)
                .map_or(0, |i| i.memory_key_mkey_entry().translations_octword_size());
            (Kind::Mkey, 64 + 16 * u64::from(octwords))
        }
        Opcode::ALLOC_PD => (Kind::Pd, 16),
        Opcode::ALLOC_UAR => (Kind::Uar, 16),
        Opcode::ALLOC_XRCD => (Kind::Xrcd, 16),
        Opcode::ALLOC_TRANSPORT_DOMAIN => (Kind::TransportDomain, 16),
        Opcode::CREATE_UMEM => (Kind::Umem, 64 + call.input.len() as u64),
        _ => return None,
    })
}

/// The number of the object that a command with this output created: 24 bits of the third dword.
pub(super) fn created_number(kind: Kind, output: &[u8]) -> u32 {
    let dword = output
        .get(8..12)
        .and_then(|b| b.first_chunk())
        .map_or(0, |b| u32::from_be_bytes(*b));
    match kind {
        Kind::Eq => dword & 0xff,
        _ => dword & 0xff_ffff,
    }
}

/// The object that a command destroys.
pub(super) fn destroyed(call: &Call<'_>) -> Option<(Kind, u32)> {
    let kind = match call.header.opcode {
        Opcode::DESTROY_EQ => Kind::Eq,
        Opcode::DESTROY_CQ => Kind::Cq,
        Opcode::DESTROY_QP => Kind::Qp,
        Opcode::DESTROY_SRQ | Opcode::DESTROY_XRC_SRQ | Opcode::DESTROY_RMP => Kind::Srq,
        Opcode::DESTROY_MKEY => Kind::Mkey,
        Opcode::DEALLOC_PD => Kind::Pd,
        Opcode::DEALLOC_UAR => Kind::Uar,
        Opcode::DEALLOC_XRCD => Kind::Xrcd,
        Opcode::DEALLOC_TRANSPORT_DOMAIN => Kind::TransportDomain,
        Opcode::DESTROY_UMEM => Kind::Umem,
        _ => return None,
    };
    Some((kind, created_number(kind, call.input)))
}

/// The firmware's pages.
#[derive(Debug)]
pub(super) struct Pages {
    boot: u64,
    init: u64,
    /// Room for objects in the init pages, in bytes.
    room: u64,
    held: BTreeSet<u64>,
    /// In the order in which they came, so that the newest go back first.
    order: Vec<u64>,
    initialized: bool,
    used_bytes: u64,
    /// Pages asked for by an event and not yet given; negative: offered and not yet taken.
    asked: i64,
    changed: bool,
}

impl Pages {
    pub(super) fn new(profile: &Profile) -> Pages {
        // A profile without pages keeps its contexts in its own memory, as much as it takes.
        let own_memory = profile.init_pages == 0;
        Pages {
            boot: u64::from(profile.boot_pages),
            init: u64::from(profile.init_pages),
            room: if own_memory {
                u64::MAX / 2
            } else {
                u64::from(profile.object_pages) * PAGE
            },
            held: BTreeSet::new(),
            order: Vec::new(),
            initialized: false,
            used_bytes: 0,
            asked: 0,
            changed: false,
        }
    }

    pub(super) fn held(&self) -> u32 {
        self.held.len() as u32
    }

    pub(super) fn missing_for_boot(&self) -> u64 {
        self.boot.saturating_sub(self.held.len() as u64)
    }

    pub(super) fn missing_for_init(&self) -> u64 {
        (self.boot + self.init).saturating_sub(self.held.len() as u64)
    }

    pub(super) fn set_initialized(&mut self, initialized: bool) {
        self.initialized = initialized;
        if !initialized {
            self.used_bytes = 0;
            self.asked = 0;
        }
    }

    /// Bytes of objects that fit.
    fn capacity(&self) -> u64 {
        let beyond = (self.held.len() as u64).saturating_sub(self.boot + self.init);
        self.room.saturating_add(beyond * PAGE)
    }

    /// Pages that can't be given back now.
    fn needed(&self) -> u64 {
        if !self.initialized {
            return 0;
        }
        let beyond = self.used_bytes.saturating_sub(self.room).div_ceil(PAGE);
        self.boot + self.init + beyond
    }

    pub(super) fn use_bytes(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
    }

    pub(super) fn free_bytes(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        self.changed = true;
    }

    pub(super) fn exhaust(&mut self) {
        self.room = self.used_bytes;
    }

    pub(super) fn ask(&mut self, pages: i32) {
        self.asked += i64::from(pages);
    }

    /// Whether pages or room were gained since the last call.
    pub(super) fn changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Pages that the host may still give: what was asked for at boot, at init and by events.
    fn may_give(&self) -> u64 {
        self.missing_for_init() + self.asked.max(0) as u64
    }

    /// How many of the host's pages lie in this span.
    pub(super) fn held_in(&self, iova: u64, len: u64) -> usize {
        let last = iova.saturating_add(len.saturating_sub(1));
        self.held.range(iova & !(PAGE - 1)..=last).count()
    }

    fn give(&mut self, address: u64) {
        if self.held.insert(address) {
            self.order.push(address);
        }
    }

    fn take(&mut self, count: u64) -> Vec<u64> {
        let spare = (self.held.len() as u64).saturating_sub(self.needed());
        let keep = self.order.len() - count.min(spare) as usize;
        let taken = self.order.split_off(keep);
        for address in &taken {
            self.held.remove(address);
        }
        taken
    }
}

impl Firmware {
    /// Whether an object of so many bytes fits. If not, asks the host for pages.
    pub(super) fn has_room(&mut self, env: &mut Env<'_>, bytes: u64) -> Result<bool, Refusal> {
        let short = (self.pages.used_bytes.saturating_add(bytes)).saturating_sub(self.pages.capacity());
        if short == 0 {
            return Ok(true);
        }
        if !Self::subscribed(env, EventType::PAGE_REQUEST) {
            let reason = "the firmware's pages are full and no event queue takes page requests";
            return Err(Refusal::new(
                CommandStatus::NO_RESOURCES,
                syndrome::NO_PAGES_GIVEN,
                reason,
            ));
        }
        let wanted = short.div_ceil(PAGE) as i64;
        if self.pages.asked < wanted {
            let batch = (wanted - self.pages.asked.max(0)).max(REQUEST_BATCH as i64);
            self.request_pages(i32::try_from(batch).unwrap_or(i32::MAX));
        }
        Ok(false)
    }
}

pub(super) fn query(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryPagesIn = call.input()?;
    own_function(input.embedded_cpu_function(), input.function_id())?;
    let num_pages = match call.header.op_mod {
        1 => fw.pages.missing_for_boot() as i64,
        2 => (fw.pages.missing_for_init() - fw.pages.missing_for_boot()) as i64,
        3 => fw.pages.asked,
        other => {
            let reason = format!("QUERY_PAGES op_mod {other}");
            return Err(Refusal::new(CommandStatus::BAD_OP, syndrome::BAD_OP_MOD, reason));
        }
    };
    output(|out: &mut QueryPagesOut| {
        out.set_num_pages(num_pages as i32 as u32);
        Ok(())
    })
}

pub(super) fn manage(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: ManagePagesIn = call.input()?;
    own_function(input.embedded_cpu_function(), input.function_id())?;
    let count = u64::from(input.input_num_entries());
    match call.header.op_mod {
        manage_pages_op::ALLOCATION_FAIL => {
            fw.pages.asked = 0;
            fw.fail_parked(env);
            ok()
        }
        manage_pages_op::GIVE => give(fw, env, call, count),
        _ => take(fw, call, count),
    }
}

fn give(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>, count: u64) -> Outcome {
    let given = addresses(call.input, ManagePagesIn::PAS_OFFSET);
    let have = (call.input.len() - ManagePagesIn::PAS_OFFSET) as u64 / 8;
    if have < count {
        let reason = format!("GIVE of {count} pages with {have} addresses");
        return Err(Refusal::new(
            CommandStatus::BAD_INP_LEN,
            syndrome::PAGE_COUNT,
            reason,
        ));
    }
    if count > fw.pages.may_give() {
        let reason = format!("GIVE of {count} pages, {} were asked for", fw.pages.may_give());
        return Err(Refusal::new(
            CommandStatus::EXCEED_LIM,
            syndrome::PAGE_COUNT,
            reason,
        ));
    }
    let list: Vec<u64> = given.take(count as usize).collect();
    let mut fresh = HashSet::with_capacity(list.len());
    for address in &list {
        let wrong = if !address.is_multiple_of(PAGE) {
            "is not aligned to 4 KiB"
        } else if fw.pages.held.contains(address) || !fresh.insert(*address) {
            "was given before and not taken back"
        } else if !env.plane.mapped(*address, PAGE) {
            "is not mapped for the device to read and write"
        } else {
            continue;
        };
        let reason = format!("page {address:#x} {wrong}");
        return Err(Refusal::new(CommandStatus::BAD_PARAM, syndrome::BAD_PAGE, reason));
    }
    let first = fw.pages.missing_for_init().min(count);
    fw.pages.asked -= (count - first) as i64;
    for address in list {
        fw.pages.give(address);
    }
    fw.pages.changed = true;
    output(|_: &mut ManagePagesOut| Ok(()))
}

fn take(fw: &mut Firmware, call: &Call<'_>, count: u64) -> Outcome {
    let room = call.output_length.saturating_sub(ManagePagesOut::PAS_OFFSET) as u64 / 8;
    if room < count {
        let reason = format!("TAKE of {count} pages with room for {room} addresses");
        return Err(Refusal::new(
            CommandStatus::BAD_OUTP_LEN,
            syndrome::PAGE_COUNT,
            reason,
        ));
    }
    let taken = fw.pages.take(count);
    fw.pages.asked = (fw.pages.asked + taken.len() as i64).min(fw.pages.asked.max(0));
    let mut out = output(|out: &mut ManagePagesOut| {
        out.set_output_num_entries(taken.len() as u32);
        Ok(())
    })?;
    out.extend_from_slice(
        taken
            .iter()
            .map(|a| zerocopy::byteorder::big_endian::U64::new(*a))
            .collect::<Vec<_>>()
            .as_bytes(),
    );
    Ok(out)
}
