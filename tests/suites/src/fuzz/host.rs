//! A hostile host for the model: commands, mailboxes, registers, doorbells, work queue entries.

use ferroce_nic_model::profile::Profile;

use super::Input;
use crate::bare_host::{BYTES, Host, MEMORY, SEND_QUEUE, templates};

/// Commands that were bent, anything in memory, any register.
///
/// # Panics
/// On a bug.
pub fn commands(data: &[u8]) {
    let templates = templates();
    let mut host = Host::new();
    let mut input = Input(data);
    if input.u8() & 1 != 0 {
        host.objects();
    }
    while !input.is_empty() {
        match input.u8() % 8 {
            0..3 => {
                let mut command = templates[usize::from(input.u8()) % templates.len()].clone();
                for _ in 0..input.u8() % 4 {
                    let at = usize::from(input.u16()) % command.len();
                    command[at] ^= input.u8();
                }
                host.command(&command, 8 + usize::from(input.u16() & 0x3ff));
            }
            3 => {
                let len = 8 + usize::from(input.u8()) * 4;
                let mut command = input.take(len).to_vec();
                command.resize(len, 0);
                host.command(&command, 8 + usize::from(input.u16() & 0x3ff));
            }
            4 => {
                let at = u64::from(input.u16() & 0x3ffc) + 0x1_0000;
                host.write(at, &input.array::<8>());
            }
            5 => {
                let at = u64::from(input.u32()) % ((8 << 20) - 8);
                host.write(at, &input.array::<8>());
            }
            6 => {
                let at = MEMORY + 0x1000 + u64::from(input.u32()) % (BYTES - 0x2000);
                let len = usize::from(input.u8());
                host.put(at, input.take(len));
            }
            _ => match input.u8() % 4 {
                0 => host.pass(input.u32().into()),
                1 => host.reset(),
                _ => host.config_write(input.u16() & 0xffc, &input.array::<4>()),
            },
        }
    }
    host.reset();
}

/// RC, UC, UD and QP1 (`qpc.st`).
const SERVICES: [u8; 4] = [0, 1, 2, 8];

/// A NIC with a queue pair of a service that the input chooses; whether it is one for datagrams.
pub(super) fn host_of_any_service(input: &mut Input<'_>) -> (Host, bool) {
    let service = SERVICES[usize::from(input.u8() & 3)];
    let mut host = Host::new();
    host.objects_of(service);
    (host, service >= 2)
}

/// Work queue entries of a send queue whose queue pair is connected to itself, or sends datagrams.
///
/// # Panics
/// On a bug.
pub fn send_queue(data: &[u8]) {
    let mut input = Input(data);
    let (mut host, datagrams) = host_of_any_service(&mut input);
    host.enable_roce();
    let own = Profile::minimal().mac;
    let mut index = 0u16;
    while !input.is_empty() {
        let blocks = 1 + u16::from(input.u8() & 3);
        let fitting = input.u8();
        for block in 0..blocks {
            let mut bytes: [u8; 64] = input.array();
            if block == 0 && fitting & 7 != 0 {
                // A control segment that the engine takes, mostly: its number, its queue pair, its size.
                bytes[1..3].copy_from_slice(&index.to_be_bytes());
                bytes[4..7].copy_from_slice(&[0, 0, 0x40]);
                bytes[7] = 1 + bytes[7] % (4 * blocks as u8);
                if datagrams {
                    // An address vector of the right form, often to ourselves.
                    bytes[0x18] |= 0x80;
                    if fitting & 8 != 0 {
                        bytes[0x24..0x2a].copy_from_slice(&own);
                    }
                }
            }
            host.put(
                SEND_QUEUE + u64::from(index.wrapping_add(block) & 31) * 64,
                &bytes,
            );
        }
        index = index.wrapping_add(blocks);
        host.ring_send(index);
        host.pass(u64::from(fitting >> 3) * 1000);
    }
}
