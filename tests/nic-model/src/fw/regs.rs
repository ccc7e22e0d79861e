//! ACCESS_REG: the registers of the port and of the device.

use ferroce_firmware_iface::cmds::{Register, access_reg_op};
use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::{
    AccessRegisterIn, DtorReg, PaosReg, PfccReg, PmtuReg, PpcntReg, PtysReg, RegisterHostEndianness,
    SetNodeIn,
};
use ferroce_firmware_iface::status::CommandStatus;
use zerocopy::IntoBytes;

use super::command::{Call, Outcome, reserved_clear};
use super::refusal::{Refusal, syndrome};
use super::{Env, Firmware, ppcnt};
use crate::profile::Profile;

const PMTU: u16 = PmtuReg::ID;
const PTYS: u16 = PtysReg::ID;
const PAOS: u16 = PaosReg::ID;
const PFCC: u16 = PfccReg::ID;
const PPCNT: u16 = PpcntReg::ID;
const PCAM: u16 = 0x507f;
const NODE_DESC: u16 = 0x6001;
const HOST_ENDIANNESS: u16 = RegisterHostEndianness::ID;
const MCAM: u16 = 0x907f;
const QCAM: u16 = 0x4019;
const DTOR: u16 = DtorReg::ID;

/// Bytes of PCAM, MCAM and QCAM.
const CAP_MASK_BYTES: usize = 0x50;
/// PAOS and QUERY_VPORT_STATE: up and down.
const ADMIN_UP: u8 = 1;
const ADMIN_DOWN: u8 = 2;
/// PTYS proto_mask: Ethernet.
const PROTO_ETHERNET: u8 = 1 << 2;

/// What registers hold.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    host_endianness: bool,
    node_description: SetNodeIn,
    ports: Vec<PortRegisters>,
}

/// What registers hold for each port.
#[derive(Clone, Debug)]
struct PortRegisters {
    admin_mtu: u16,
    eth_proto_admin: u32,
    pfcc: PfccReg,
}

impl Registers {
    pub(super) fn new(profile: &Profile) -> Registers {
        let mut node_description = SetNodeIn::zeroed();
        for (i, byte) in b"ferroce device model".iter().enumerate() {
            node_description.set_node_description(i, *byte);
        }
        let port = PortRegisters {
            admin_mtu: 1522,
            eth_proto_admin: profile.eth_proto,
            pfcc: PfccReg::zeroed(),
        };
        Registers {
            host_endianness: false,
            node_description,
            ports: vec![port; usize::from(profile.ports())],
        }
    }

    pub(super) fn host_endianness_written(&self) -> bool {
        self.host_endianness
    }
}

/// One access, with the register's bytes as the host sent them.
struct Access<'a> {
    write: bool,
    data: &'a [u8],
}

impl Access<'_> {
    /// The register's layout; a read may leave out what it does not index with.
    fn register<T: Layout>(&self) -> Result<T, Refusal> {
        let mut register = T::zeroed();
        let n = self.data.len().min(T::INFO.bytes);
        if self.write && n < T::INFO.bytes {
            let reason = format!("{}: {n} bytes, {} needed", T::INFO.name, T::INFO.bytes);
            return Err(Refusal::new(
                CommandStatus::BAD_INP_LEN,
                syndrome::SHORT_INPUT,
                reason,
            ));
        }
        register.as_mut_bytes()[..n].copy_from_slice(&self.data[..n]);
        Ok(register)
    }
}

/// What registers hold for that port, if the function has it.
fn of_port(fw: &mut Firmware, port: u8) -> Result<&mut PortRegisters, Refusal> {
    let place = usize::from(port).wrapping_sub(1);
    let found = fw.regs.ports.get_mut(place);
    found.ok_or_else(|| {
        let ports = fw.profile.ports();
        Refusal::bad_field(format!("local_port {port}: there are ports 1 to {ports}"))
    })
}

pub(super) fn access(fw: &mut Firmware, env: &mut Env<'_>, call: &Call<'_>) -> Outcome {
    let input: AccessRegisterIn = call.input()?;
    let missing = fw.pages.missing_for_boot();
    if missing > 0 {
        let reason = format!("ACCESS_REG while {missing} boot pages have not been given");
        return Err(Refusal::new(
            CommandStatus::BAD_SYS_STATE,
            syndrome::PAGES_MISSING,
            reason,
        ));
    }
    let access = Access {
        write: call.header.op_mod == access_reg_op::WRITE,
        data: call.tail(AccessRegisterIn::REGISTER_DATA_OFFSET),
    };
    let caps = fw.general();
    let register = match input.register_id() {
        HOST_ENDIANNESS => host_endianness(fw, &access)?,
        PMTU => pmtu(fw, env, &access)?,
        PAOS => paos(fw, env, &access)?,
        PTYS => ptys(fw, env, &access)?,
        PFCC => pfcc(fw, &access)?,
        PPCNT => ppcnt(fw, env, &access)?,
        NODE_DESC => node_desc(fw, &access)?,
        DTOR if caps.dtor() => dtor(&access)?,
        PCAM if caps.pcam_reg() => port_cap_mask(&access)?,
        MCAM if caps.mcam_reg() => cap_mask(&access)?,
        QCAM if caps.qcam_reg() => cap_mask(&access)?,
        other => {
            let reason = format!("register {other:#x} is not there");
            return Err(Refusal::new(
                CommandStatus::BAD_PARAM,
                syndrome::BAD_REGISTER,
                reason,
            ));
        }
    };
    let mut out = vec![0; AccessRegisterIn::REGISTER_DATA_OFFSET];
    out.extend_from_slice(&register);
    Ok(out)
}

fn host_endianness(fw: &mut Firmware, access: &Access<'_>) -> Outcome {
    let register: RegisterHostEndianness = access.register()?;
    reserved_clear(&register)?;
    if access.write {
        if register.he() {
            return Err(Refusal::bad_field(
                "a big-endian host: this model runs beside a little-endian one",
            ));
        }
        fw.regs.host_endianness = true;
    }
    Ok(register.as_bytes().to_vec())
}

fn pmtu(fw: &mut Firmware, env: &mut Env<'_>, access: &Access<'_>) -> Outcome {
    let mut register: PmtuReg = access.register()?;
    reserved_clear(&register)?;
    let max = fw.profile.max_mtu;
    let port = of_port(fw, register.local_port())?;
    if access.write {
        let mtu = register.admin_mtu();
        if mtu == 0 || mtu > max {
            return Err(Refusal::above_limit("admin_mtu", mtu.into(), max.into()));
        }
        port.admin_mtu = mtu;
        // What the vport sends at most, whichever port it leaves by.
        env.plane.set_mtu(mtu);
    }
    register.set_max_mtu(max);
    register.set_admin_mtu(port.admin_mtu);
    register.set_oper_mtu(port.admin_mtu);
    Ok(register.as_bytes().to_vec())
}

fn paos(fw: &mut Firmware, env: &mut Env<'_>, access: &Access<'_>) -> Outcome {
    let mut register: PaosReg = access.register()?;
    reserved_clear(&register)?;
    let port = register.local_port();
    of_port(fw, port)?;
    if access.write && register.ase() {
        match register.admin_status() {
            ADMIN_UP => fw.set_admin(env, port, true),
            ADMIN_DOWN => fw.set_admin(env, port, false),
            other => return Err(Refusal::bad_field(format!("PAOS admin_status {other}"))),
        }
    }
    let up = fw.port_active(env, port);
    register.set_admin_status(if fw.vport.admin_up(port) {
        ADMIN_UP
    } else {
        ADMIN_DOWN
    })?;
    register.set_oper_status(if up { ADMIN_UP } else { ADMIN_DOWN })?;
    Ok(register.as_bytes().to_vec())
}

fn ptys(fw: &mut Firmware, env: &mut Env<'_>, access: &Access<'_>) -> Outcome {
    let mut register: PtysReg = access.register()?;
    reserved_clear(&register)?;
    let up = fw.port_active(env, register.local_port());
    let modes = fw.profile.eth_proto;
    let port = of_port(fw, register.local_port())?;
    if access.write {
        let admin = register.eth_proto_admin();
        if admin & !modes != 0 {
            return Err(Refusal::bad_field(format!("eth_proto_admin {admin:#x}")));
        }
        port.eth_proto_admin = admin;
    }
    if register.proto_mask() & PROTO_ETHERNET != 0 {
        register.set_eth_proto_capability(modes);
        register.set_eth_proto_admin(port.eth_proto_admin);
        register.set_eth_proto_oper(if up { modes } else { 0 });
    }
    Ok(register.as_bytes().to_vec())
}

fn pfcc(fw: &mut Firmware, access: &Access<'_>) -> Outcome {
    let register: PfccReg = access.register()?;
    let port = of_port(fw, register.local_port())?;
    if access.write {
        reserved_clear(&register)?;
        port.pfcc = register;
    }
    let mut out = port.pfcc;
    out.set_local_port(register.local_port());
    Ok(out.as_bytes().to_vec())
}

/// Megabits per second of the one link mode that a profile has (PTYS, Ethernet protocols).
fn speed(profile: &Profile) -> u64 {
    match profile.eth_proto.trailing_zeros() {
        6 => 40_000,
        12 => 10_000,
        27 => 25_000,
        _ => 100_000,
    }
}

fn ppcnt(fw: &mut Firmware, env: &Env<'_>, access: &Access<'_>) -> Outcome {
    let register: PpcntReg = access.register()?;
    let port = register.local_port();
    of_port(fw, port)?;
    let mut out = PpcntReg::zeroed();
    out.set_local_port(port);
    out.set_grp(register.grp())?;
    out.set_prio_tc(register.prio_tc())?;
    if register.clr() {
        return Err(Refusal::no_capability(
            "PPCNT clr: counters of a port that others read too",
        ));
    }
    let traffic = env.plane.port_traffic(port);
    let group = ppcnt::report(&traffic, register.grp(), register.prio_tc(), speed(&fw.profile));
    out.as_mut_bytes()[PpcntReg::COUNTER_SET_OFFSET..][..group.len()].copy_from_slice(&group);
    Ok(out.as_bytes().to_vec())
}

fn node_desc(fw: &mut Firmware, access: &Access<'_>) -> Outcome {
    if access.write {
        fw.regs.node_description = access.register()?;
    }
    Ok(fw.regs.node_description.as_bytes().to_vec())
}

/// All 0: the driver's defaults hold.
fn dtor(access: &Access<'_>) -> Outcome {
    if access.write {
        return Err(Refusal::bad_field("DTOR can only be read"));
    }
    Ok(DtorReg::zeroed().as_bytes().to_vec())
}

/// Registers of the port, whose numbers are in PCAM's group 0: a bit each, of 0x5000 the last one.
const PORT_REGISTERS: [u16; 5] = [PMTU, PTYS, PAOS, PFCC, PPCNT];
/// Bytes of PCAM in which those bits are.
const PORT_REGISTER_BITS: std::ops::Range<usize> = 0x8..0x18;

/// PCAM: which registers of the port there are. Linux leaves out the counters of a port that does not name PPCNT.
fn port_cap_mask(access: &Access<'_>) -> Outcome {
    let mut out = cap_mask(access)?;
    // `access_reg_group`; there are bits of group 0 only.
    if out[3] == 0 {
        let bits = &mut out[PORT_REGISTER_BITS];
        for register in PORT_REGISTERS {
            let bit = usize::from(register & 0x7f);
            bits[15 - bit / 8] |= 1 << (bit % 8);
        }
    }
    Ok(out)
}

/// MCAM, QCAM, and what PCAM has besides: the groups that were asked for, with no register or feature in them but what is always
/// there.
fn cap_mask(access: &Access<'_>) -> Outcome {
    if access.write {
        return Err(Refusal::bad_field("a capability mask register can only be read"));
    }
    let mut out = vec![0; CAP_MASK_BYTES];
    let n = access.data.len().min(4);
    out[..n].copy_from_slice(&access.data[..n]);
    Ok(out)
}
