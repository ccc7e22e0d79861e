//! ATTACH_TO_MCG and DETACH_FROM_MCG: which queue pairs are in a multicast group.

use ferroce_firmware_iface::layouts::{AttachToMcgIn, DetachFromMcgIn};

use super::command::{Call, Outcome, ok};
use super::refusal::Refusal;
use super::{Env, Firmware};

/// How many groups there may be, and how many queue pairs in each.
fn limits(fw: &Firmware) -> Result<(u32, u32), Refusal> {
    let caps = fw.general();
    match (caps.log_max_mcg(), caps.max_qp_mcg()) {
        (0, _) | (_, 0) => Err(Refusal::no_capability(
            "log_max_mcg, max_qp_mcg: multicast groups",
        )),
        (log_groups, members) => Ok((1 << log_groups.min(31), members)),
    }
}

pub(super) fn attach(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: AttachToMcgIn = call.input()?;
    let (groups, members) = limits(fw)?;
    let gid = std::array::from_fn(|i| input.multicast_gid(i));
    env.plane.attach_multicast(input.qpn(), gid, groups, members)?;
    ok()
}

pub(super) fn detach(_: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: DetachFromMcgIn = call.input()?;
    let gid = std::array::from_fn(|i| input.multicast_gid(i));
    env.plane.detach_multicast(input.qpn(), gid)?;
    ok()
}
