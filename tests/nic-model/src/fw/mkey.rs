//! Memory keys.

use ferroce_firmware_iface::layouts::{
    CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, Mkc, QueryMkeyIn, QueryMkeyOut,
};
use ferroce_firmware_iface::status::CommandStatus;

use super::command::{Call, Exempt, Outcome, at_most, buffer, ok, output};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware};

/// Bytes of an entry of the translation list's unit.
const OCTWORD: usize = 16;
/// CREATE_MKEY: umem id and offset as rdma-core's PRM has them.
const MKEY_UMEM: Exempt = &[(0x64, 0x70)];

pub(super) fn create(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: CreateMkeyIn = call.input_with(CreateMkeyIn::BYTES, MKEY_UMEM)?;
    let mkc = input.memory_key_mkey_entry();
    check(fw, mkc)?;
    if input.data_direct() {
        return Err(Refusal::no_capability("data_direct"));
    }
    let given = input.translations_octword_actual_size() as usize;
    let list = call.tail(0x110);
    let bytes = given.checked_mul(OCTWORD).filter(|bytes| *bytes <= list.len());
    let Some(bytes) = bytes else {
        let reason = format!("{given} translation octwords in {} bytes", list.len());
        return Err(Refusal::new(
            CommandStatus::BAD_INP_LEN,
            syndrome::SHORT_INPUT,
            reason,
        ));
    };
    if given as u64 > u64::from(mkc.translations_octword_size()) && !input.mkey_umem_valid() {
        return Err(Refusal::bad_field(format!(
            "{given} translation octwords given, translations_octword_size is {}",
            mkc.translations_octword_size()
        )));
    }
    let at = |from: usize| call.input.get(from..).unwrap_or_default();
    let id = at(0x64).first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
    let offset = at(0x68).first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
    let buffer = buffer(input.mkey_umem_valid(), id, offset, &list[..bytes]);
    let index = env.plane.create_mkey(mkc, buffer)?;
    output(|out: &mut CreateMkeyOut| out.set_mkey_index(index))
}

fn check(fw: &Firmware, mkc: &Mkc) -> Result<(), Refusal> {
    let caps = fw.general();
    let log_most = u32::from(caps.log_max_mrw_sz());
    if log_most < 64 {
        at_most("len", mkc.len(), 1 << log_most)?;
    }
    if mkc.bsf_en() && mkc.bsf_octword_size() == 0 {
        return Err(Refusal::bad_field("bsf_en without bsf_octword_size"));
    }
    if mkc.relaxed_ordering_write() && !caps.relaxed_ordering_write() {
        return Err(Refusal::no_capability("relaxed_ordering_write"));
    }
    if mkc.relaxed_ordering_read()
        && !(caps.relaxed_ordering_read() || caps.relaxed_ordering_read_pci_enabled())
    {
        return Err(Refusal::no_capability("relaxed_ordering_read"));
    }
    if mkc.a() && !caps.atomic() {
        return Err(Refusal::no_capability("atomic"));
    }
    if (mkc.rw() || mkc.a()) && !mkc.lw() && !mkc.umr_en() {
        // IBTA 10.6.3.1: remote write and atomic need local write.
        return Err(Refusal::bad_field(
            "remote write or atomic access without local write",
        ));
    }
    Ok(())
}

pub(super) fn query(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: QueryMkeyIn = call.input()?;
    let mut mkc = Mkc::default();
    env.plane.query_mkey(input.mkey_index(), &mut mkc)?;
    output(|out: &mut QueryMkeyOut| {
        *out.memory_key_mkey_entry_mut() = mkc;
        Ok(())
    })
}

pub(super) fn destroy(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DestroyMkeyIn = call.input()?;
    env.plane.destroy_mkey(input.mkey_index())?;
    ok()
}
