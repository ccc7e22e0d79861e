//! Commands that bring the HCA up and down.

use ferroce_firmware_iface::layouts::{
    AtomicCaps, DisableHcaIn, EnableHcaIn, InitHcaIn, QueryAdapterIn, QueryAdapterOut, QueryIssiIn,
    QueryIssiOut, QuerySpecialContextsIn, QuerySpecialContextsOut, SetDriverVersionIn, SetIssiIn,
    TeardownHcaIn, TeardownHcaOut,
};
use ferroce_firmware_iface::status::CommandStatus;

use super::command::{Call, Outcome, ok, output, own_function};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware, HcaState};
use crate::profile::CapType;

/// Key of memory that no work request may use without the privilege (`qpc.rlky`).
pub(super) const RESERVED_LKEY: u32 = 0x100;

fn wrong_state(reason: &'static str) -> Refusal {
    Refusal::new(CommandStatus::BAD_SYS_STATE, syndrome::ALREADY, reason)
}

pub(super) fn enable(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: EnableHcaIn = call.input()?;
    own_function(input.embedded_cpu_function(), input.function_id())?;
    if fw.state != HcaState::Disabled {
        return Err(wrong_state("ENABLE_HCA of an enabled HCA"));
    }
    fw.state = HcaState::Enabled;
    ok()
}

pub(super) fn disable(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DisableHcaIn = call.input()?;
    own_function(input.embedded_cpu_function(), input.function_id())?;
    if fw.state == HcaState::Initialized {
        fw.violations
            .protocol("DISABLE_HCA of an initialized HCA: TEARDOWN_HCA comes first");
        fw.forget_objects(env);
    }
    if fw.pages.held() != 0 {
        let held = fw.pages.held();
        fw.violations.protocol(format!(
            "DISABLE_HCA while the firmware still has {held} pages of the host"
        ));
    }
    fw.state = HcaState::Disabled;
    fw.issi = 0;
    fw.caps = fw.profile.capabilities.clone();
    ok()
}

pub(super) fn query_issi(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let _: QueryIssiIn = call.input()?;
    output(|out: &mut QueryIssiOut| {
        out.set_current_issi(fw.issi);
        out.set_supported_issi_dw0(fw.profile.supported_issi);
        Ok(())
    })
}

pub(super) fn set_issi(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: SetIssiIn = call.input()?;
    let issi = input.current_issi();
    if fw.state == HcaState::Initialized {
        return Err(wrong_state("SET_ISSI after INIT_HCA"));
    }
    if issi >= 32 || fw.profile.supported_issi >> issi & 1 == 0 {
        return Err(Refusal::bad_field(format!(
            "current_issi {issi} is not supported"
        )));
    }
    fw.issi = issi;
    ok()
}

pub(super) fn init(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    // Older drivers send 16 bytes: no sw_owner_id.
    let input: InitHcaIn = call.input_with(0x10, &[])?;
    if fw.state == HcaState::Initialized {
        return Err(wrong_state("INIT_HCA of an initialized HCA"));
    }
    let has_owner = (0..4).any(|i| input.sw_owner_id(i) != 0);
    if has_owner && !fw.general().sw_owner_id() {
        return Err(Refusal::bad_field("sw_owner_id without the capability"));
    }
    let missing = fw.pages.missing_for_init();
    if missing > 0 {
        let reason = format!("INIT_HCA while {missing} boot and init pages have not been given");
        return Err(Refusal::new(
            CommandStatus::BAD_SYS_STATE,
            syndrome::PAGES_MISSING,
            reason,
        ));
    }
    if !fw.profile.is_vf && !fw.regs.host_endianness_written() {
        fw.violations
            .protocol("INIT_HCA before HOST_ENDIANNESS was written");
    }
    fw.pages.set_initialized(true);
    fw.state = HcaState::Initialized;
    fw.apply_vport(env);
    let atomics: AtomicCaps = fw.caps.current(CapType::ATOMIC);
    env.plane
        .set_atomics_in_host_order(atomics.atomic_req_8B_endianness_mode() == 1);
    fw.link_was_up.clear();
    ok()
}

pub(super) fn teardown(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: TeardownHcaIn = call.input()?;
    let caps = fw.general();
    match input.profile() {
        0 => {}
        1 if caps.force_teardown() => {}
        2 if caps.fast_teardown() => {}
        other => {
            return Err(Refusal::bad_field(format!(
                "teardown profile {other} is not supported"
            )));
        }
    }
    if fw.state == HcaState::Initialized && input.profile() == 0 {
        let left = env.plane.census();
        let left: Vec<_> = left.iter().filter(|(_, n)| *n != 0).collect();
        if !left.is_empty() {
            fw.violations
                .protocol(format!("TEARDOWN_HCA while objects are left: {left:?}"));
        }
    }
    fw.forget_objects(env);
    output(|_: &mut TeardownHcaOut| Ok(()))
}

impl Firmware {
    /// All objects of the host are gone, and with them what uses its pages.
    pub(super) fn forget_objects(&mut self, env: &mut Env<'_>) {
        env.plane.reset();
        self.costs.clear();
        self.counts.clear();
        self.uctxs.clear();
        self.command_eqn = None;
        self.events.clear();
        self.pages.set_initialized(false);
        self.state = HcaState::Enabled;
    }
}

pub(super) fn query_adapter(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let _: QueryAdapterIn = call.input()?;
    output(|out: &mut QueryAdapterOut| {
        *out.query_adapter_struct_mut() = fw.profile.adapter;
        Ok(())
    })
}

pub(super) fn set_driver_version(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    if !fw.general().driver_version() {
        return Err(Refusal::no_capability("driver_version"));
    }
    let input: SetDriverVersionIn = call.input()?;
    let text: Vec<u8> = (0..64)
        .map(|i| input.driver_version(i))
        .take_while(|b| *b != 0)
        .collect();
    log::debug!(
        "firmware model: driver version {:?}",
        String::from_utf8_lossy(&text)
    );
    ok()
}

pub(super) fn query_special_contexts(fw: &mut Firmware, _: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let _: QuerySpecialContextsIn = call.input()?;
    let caps = fw.general();
    output(|out: &mut QuerySpecialContextsOut| {
        out.set_resd_lkey(RESERVED_LKEY);
        if caps.terminate_scatter_list_mkey() {
            out.set_terminate_scatter_list_mkey(RESERVED_LKEY);
        }
        Ok(())
    })
}
