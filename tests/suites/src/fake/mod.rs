//! A NIC whose firmware is a script: it answers, refuses, lies, or stays silent as a test says.
//!
//! The device model plays by the rules; this one need not. It knows just enough to be brought up: the initialization
//! segment, the command queue, event queues, pages. Commands take effect inside the doorbell write.

mod device;
mod firmware;

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroce_firmware_iface::layouts::CmdHcaCap;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::CommandStatus;
use ferroce_hw_regs::init_seg::offset;
use zerocopy::FromBytes;

/// The UAR that ALLOC_UAR gives; the first on a real card.
pub const UAR: u32 = 0x10;

/// One command as firmware sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is asked.
    pub opcode: Opcode,
    /// Its variant.
    pub op_mod: u16,
    /// The whole input.
    pub input: Vec<u8>,
    /// Bytes of output that the driver has room for.
    pub output_len: usize,
    /// How often this opcode was asked before.
    pub nth: usize,
    /// The slot of the command queue.
    pub slot: u8,
}

/// What firmware does with a command.
#[derive(Clone, Debug)]
pub enum Reply {
    /// What a well-behaved firmware would do.
    Normal,
    /// The same, with this output instead.
    Output(Vec<u8>),
    /// Refuse.
    Status(CommandStatus, u32),
    /// Give the entry back undelivered.
    Delivery(u8),
    /// Answer with another token in the entry.
    EntryToken(u8),
    /// Answer with another token in the output mailboxes.
    MailboxToken(u8),
    /// Never answer (or later, with [`FakeNic::answer_late`]).
    Silent,
}

type Script = Box<dyn FnMut(&Request) -> Reply + Send>;

#[derive(Debug)]
struct Eq {
    log_size: u8,
    pages: Vec<u64>,
    vector: u16,
    mask: u64,
    produced: u32,
    consumed: u32,
    armed: bool,
}

struct State {
    config: Vec<u8>,
    registers: HashMap<u64, u32>,
    maps: Vec<(u64, u64, File, u64)>,
    eventfds: HashMap<u16, File>,
    request: Option<File>,
    eqs: HashMap<u8, Eq>,
    script: Script,
    log: Vec<Request>,
    counts: HashMap<u16, usize>,
    pages: Vec<u64>,
    boot_pages: u32,
    init_pages: u32,
    silent: Vec<u8>,
    resets: usize,
    attached: bool,
    dead: bool,
    general_cap: Vec<u8>,
}

/// The NIC.
pub struct FakeNic(Mutex<State>);

/// A register's value that says: 32 slots of 64 bytes.
const CMDQ_GEOMETRY: u32 = 5 << 4 | 6;

impl FakeNic {
    /// A NIC whose firmware follows `script`.
    pub fn new(script: impl FnMut(&Request) -> Reply + Send + 'static) -> Arc<Self> {
        let mut config = vec![0; 4096];
        config[..4].copy_from_slice(&[0xb3, 0x15, 0x13, 0x10]);
        Arc::new(Self(Mutex::new(State {
            config,
            registers: pristine(),
            maps: Vec::new(),
            eventfds: HashMap::new(),
            request: None,
            eqs: HashMap::new(),
            script: Box::new(script),
            log: Vec::new(),
            counts: HashMap::new(),
            pages: Vec::new(),
            boot_pages: 3,
            init_pages: 70,
            silent: Vec::new(),
            resets: 0,
            attached: false,
            dead: false,
            general_cap: general_cap(),
        })))
    }

    /// A NIC that does what it is told.
    pub fn obedient() -> Arc<Self> {
        Self::new(|_| Reply::Normal)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows another script from now on.
    pub fn set_script(&self, script: impl FnMut(&Request) -> Reply + Send + 'static) {
        self.state().script = Box::new(script);
    }

    /// Sets a register of the initialization segment.
    pub fn set_register(&self, offset: u64, value: u32) {
        self.state().registers.insert(offset, value);
    }

    /// Sets two bytes of configuration space.
    pub fn set_config16(&self, offset: usize, value: u16) {
        self.state().config[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Changes the general capabilities.
    pub fn change_caps(&self, change: impl FnOnce(&mut CmdHcaCap)) {
        let mut state = self.state();
        if let Ok((cap, _)) = CmdHcaCap::mut_from_prefix(&mut state.general_cap) {
            change(cap);
        }
    }

    /// Pages that firmware asks for at boot and at INIT_HCA.
    pub fn set_pages(&self, boot: u32, init: u32) {
        let mut state = self.state();
        (state.boot_pages, state.init_pages) = (boot, init);
    }

    /// Opcodes of all commands so far.
    pub fn opcodes(&self) -> Vec<Opcode> {
        self.state().log.iter().map(|r| r.opcode).collect()
    }

    /// All commands so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state().log.clone()
    }

    /// Pages that firmware has.
    pub fn pages(&self) -> Vec<u64> {
        self.state().pages.clone()
    }

    /// How often the function was reset.
    pub fn resets(&self) -> usize {
        self.state().resets
    }

    /// Whether a driver is there.
    pub fn attached(&self) -> bool {
        self.state().attached
    }

    /// Event queues that exist.
    pub fn event_queues(&self) -> usize {
        self.state().eqs.len()
    }

    /// DMA maps that exist.
    pub fn maps(&self) -> usize {
        self.state().maps.len()
    }

    /// The device goes from the bus: all reads are ones.
    pub fn unplug(&self) {
        self.state().dead = true;
    }

    /// The device asks its user to let go.
    pub fn request_release(&self) {
        if let Some(mut fd) = self.state().request.as_ref() {
            let _ = fd.write(&1u64.to_ne_bytes());
        }
    }

    /// Gives the entries of all commands that were left unanswered back, zeroed and with status OK.
    pub fn answer_late(&self) {
        let mut state = self.state();
        for slot in std::mem::take(&mut state.silent) {
            state.complete(slot, &[0; 16], 0, None);
        }
    }

    /// Writes an entry to the event queue that has `event_type` in its mask (or, for completions, the one on `vector`)
    /// and raises its interrupt. Whether there is one.
    pub fn post_event(&self, event_type: u8, sub_type: u8, data: &[u8], vector: Option<u16>) -> bool {
        self.state().post_event(event_type, sub_type, data, vector, true)
    }

    /// As [`Self::post_event`], but the interrupt is lost.
    pub fn post_event_silently(&self, event_type: u8, sub_type: u8, data: &[u8]) -> bool {
        self.state().post_event(event_type, sub_type, data, None, false)
    }
}

fn pristine() -> HashMap<u64, u32> {
    HashMap::from([
        (offset::FW_REV, 14 << 16 | 12),
        (offset::CMDIF_REV_FW_SUB, 5 << 16 | 1220),
        (offset::CMDQ_ADDR_L_SZ, CMDQ_GEOMETRY),
        (0x230, 0x0c0e_04c4),
    ])
}

fn general_cap() -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    if let Ok((cap, _)) = CmdHcaCap::mut_from_prefix(&mut bytes) {
        cap.set_num_ports(1);
        cap.set_roce(true);
        cap.set_log_max_eq_sz(22);
        let narrow = [
            cap.set_port_type(1),
            cap.set_log_bf_reg_size(9),
            cap.set_log_max_qp(20),
            cap.set_log_max_eq(7),
            cap.set_cmdif_checksum(3),
        ];
        assert!(narrow.iter().all(Result::is_ok));
        cap.set_eswitch_manager(true);
    }
    bytes
}
