//! A NIC whose firmware is a script: it answers, refuses, lies, or stays silent as a test says.
//!
//! The device model plays by the rules; this one need not. It knows just enough to be brought up: the initialization
//! segment, the command queue, event queues, pages. Commands take effect inside the doorbell write.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroce_firmware_iface::command::addresses;
use ferroce_firmware_iface::layout::{Layout, view};
use ferroce_firmware_iface::layouts::{
    CmdHcaCap, CreateEqIn, ManagePagesIn, ManagePagesOut, NicVportContext, PmtuReg, QueryIssiOut,
    QueryPagesOut, RoceCap,
};
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::queue::{BLOCK_DATA, Block, Entry, INLINE_BYTES};
use ferroce_firmware_iface::status::CommandStatus;
use ferroce_hw_regs::eqe::Eqe;
use ferroce_hw_regs::init_seg::offset;
use ferroce_vfio_user::device::{DeviceError, DmaMap, DmaMessages, PciDevice};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const BAR_BYTES: u64 = 0x2_0000;
const VECTORS: u16 = 4;
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

impl State {
    fn dma<T>(
        &self,
        iova: u64,
        len: usize,
        access: impl FnOnce(&File, u64) -> std::io::Result<T>,
    ) -> Option<T> {
        let (start, _, file, at) = self
            .maps
            .iter()
            .find(|(start, size, ..)| iova >= *start && iova + len as u64 <= start + size)?;
        access(file, at + (iova - start)).ok()
    }

    fn read(&self, iova: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.dma(iova, len, |file, at| file.read_exact_at(&mut data, at))
            .expect("DMA read of unmapped memory");
        data
    }

    fn write(&self, iova: u64, data: &[u8]) {
        self.dma(iova, data.len(), |file, at| file.write_all_at(data, at))
            .expect("DMA write of unmapped memory");
    }

    fn entry_at(&self, slot: u8) -> u64 {
        let high = self.registers.get(&offset::CMDQ_ADDR_H).copied().unwrap_or(0);
        let low = self.registers.get(&offset::CMDQ_ADDR_L_SZ).copied().unwrap_or(0) & !0xfff;
        (u64::from(high) << 32 | u64::from(low)) + u64::from(slot) * 64
    }

    fn entry(&self, slot: u8) -> Entry {
        Entry::read_from_bytes(&self.read(self.entry_at(slot), 64)).expect("an entry has 64 bytes")
    }

    fn doorbell(&mut self, bits: u32) {
        for slot in (0..32).filter(|slot| bits >> slot & 1 != 0) {
            self.execute(slot);
        }
    }

    fn execute(&mut self, slot: u8) {
        let entry = self.entry(slot);
        assert!(
            entry.owned_by_device() && entry.signature_ok(),
            "a bad entry was rung: {entry:?}"
        );
        assert_ne!(entry.token, 0);
        let mut input = entry.input.to_vec();
        let mut next = entry.input_mailbox.get();
        let length = entry.input_length.get() as usize;
        let mut number = 0;
        while input.len() < length {
            let block = Block::read_from_bytes(&self.read(next, size_of::<Block>())).expect("576 bytes");
            assert!(block.signatures_ok() && block.token == entry.token && block.block_num.get() == number);
            assert_eq!(next % 1024, 0, "a mailbox block is not aligned");
            let part = BLOCK_DATA.min(length - input.len());
            input.extend_from_slice(&block.data[..part]);
            next = block.next.get();
            number += 1;
        }
        let word = |at: usize| u16::from_be_bytes([input[at], input[at + 1]]);
        let nth = self.counts.entry(word(0)).or_default();
        let request = Request {
            opcode: Opcode(word(0)),
            op_mod: word(6),
            output_len: entry.output_length.get() as usize,
            nth: *nth,
            slot,
            input,
        };
        *nth += 1;
        self.log.push(request.clone());
        let reply = (self.script)(&request);
        let announce = self.eqs.values().any(|eq| eq.mask & 1 << 0x0a != 0);
        match reply {
            Reply::Silent => {
                self.silent.push(slot);
                return;
            }
            Reply::Normal => {
                let output = self.normal(&request);
                self.complete(slot, &output, 0, None);
            }
            Reply::Output(output) => self.complete(slot, &output, 0, None),
            Reply::Status(status, syndrome) => {
                let mut output = vec![status.0, 0, 0, 0];
                output.extend_from_slice(&syndrome.to_be_bytes());
                self.complete(slot, &output, 0, None);
            }
            Reply::Delivery(status) => self.complete(slot, &[], status, None),
            Reply::EntryToken(token) => {
                self.write(self.entry_at(slot) + 0x3c, &[token]);
                self.complete(slot, &[], 0, None);
            }
            Reply::MailboxToken(token) => {
                let output = self.normal(&request);
                self.complete(slot, &output, 0, Some(token));
            }
        }
        if announce {
            self.post_event(0x0a, 0, &(1u32 << slot).to_be_bytes(), None, true);
        }
    }

    fn complete(&mut self, slot: u8, output: &[u8], delivery: u8, token: Option<u8>) {
        let entry = self.entry(slot);
        let inline = output.len().min(INLINE_BYTES);
        let mut head = [0; INLINE_BYTES];
        head[..inline].copy_from_slice(&output[..inline]);
        let mut next = entry.output_mailbox.get();
        for part in output[inline..].chunks(BLOCK_DATA) {
            self.write(next, part);
            if let Some(token) = token {
                self.write(next + 0x23d, &[token]);
            }
            let link = self.read(next + 0x230, 8);
            next = u64::from_be_bytes(link.try_into().expect("8 bytes"));
        }
        self.write(self.entry_at(slot) + 0x20, &head);
        self.write(self.entry_at(slot) + 0x3f, &[delivery << 1]);
    }

    /// What a well-behaved firmware does and answers.
    fn normal(&mut self, request: &Request) -> Vec<u8> {
        let mut output = vec![0; request.output_len];
        match request.opcode {
            Opcode::QUERY_ISSI => set::<QueryIssiOut>(&mut output, |out| out.set_supported_issi_dw0(2)),
            Opcode::QUERY_PAGES => {
                let pages = if request.op_mod == 1 {
                    self.boot_pages
                } else {
                    self.init_pages
                };
                set::<QueryPagesOut>(&mut output, |out| out.set_num_pages(pages));
            }
            Opcode::MANAGE_PAGES => self.manage_pages(request, &mut output),
            Opcode::QUERY_HCA_CAP => self.capability(request.op_mod >> 1, &mut output[16..]),
            Opcode::SET_HCA_CAP if request.op_mod >> 1 == 0 => {
                self.general_cap = request.input[16..].to_vec()
            }
            Opcode::ALLOC_UAR => output[9..12].copy_from_slice(&UAR.to_be_bytes()[1..]),
            Opcode::CREATE_EQ => output[0xb] = self.create_eq(&request.input),
            Opcode::DESTROY_EQ => {
                self.eqs.remove(&request.input[0xb]);
            }
            Opcode::QUERY_NIC_VPORT_CONTEXT => set::<NicVportContext>(&mut output[16..], |vport| {
                vport.permanent_address_mut().set_mac_addr_47_32(0x0002);
                vport.permanent_address_mut().set_mac_addr_31_0(0xc900_0001);
                vport.set_node_guid(0x0002_c9ff_fe00_0001);
            }),
            Opcode::QUERY_VPORT_STATE => output[0xf] = 0x11,
            Opcode::ACCESS_REG if request.input[0xa..0xc] == [0x50, 0x03] => {
                set::<PmtuReg>(&mut output[16..], |reg| reg.set_max_mtu(9978));
            }
            _ => {}
        }
        output
    }

    fn manage_pages(&mut self, request: &Request, output: &mut [u8]) {
        let header: &ManagePagesIn = view(&request.input).expect("a header");
        match request.op_mod {
            1 => {
                let pages: Vec<u64> = addresses(&request.input, ManagePagesIn::PAS_OFFSET).collect();
                assert_eq!(pages.len(), header.input_num_entries() as usize);
                for page in &pages {
                    assert!(
                        page % 4096 == 0 && !self.pages.contains(page),
                        "page {page:#x} was given twice"
                    );
                    self.read(*page, 4096);
                }
                self.pages.extend(pages);
            }
            2 => {
                let count = (header.input_num_entries() as usize).min(self.pages.len());
                let taken: Vec<u64> = self.pages.drain(..count).collect();
                set::<ManagePagesOut>(output, |out| out.set_output_num_entries(count as u32));
                for (at, page) in output[16..].chunks_mut(8).zip(taken) {
                    at.copy_from_slice(&page.to_be_bytes());
                }
            }
            _ => {}
        }
    }

    fn capability(&self, kind: u16, output: &mut [u8]) {
        match kind {
            0 => output.copy_from_slice(&self.general_cap[..output.len()]),
            4 => set::<RoceCap>(output, |cap| {
                cap.set_roce_version(0x5);
                cap.set_l3_type(0x7).expect("4 bits");
                cap.set_roce_address_table_size(8);
            }),
            _ => {}
        }
    }

    fn create_eq(&mut self, input: &[u8]) -> u8 {
        let create: &CreateEqIn = view(input).expect("a header");
        let context = create.eq_context_entry();
        let eqn = 0x10 + self.eqs.keys().map(|eqn| eqn - 0xf).max().unwrap_or(0);
        let eq = Eq {
            log_size: context.log_eq_size(),
            pages: addresses(input, CreateEqIn::PAS_OFFSET).collect(),
            vector: context.intr(),
            mask: create.event_bitmask(0),
            produced: 0,
            consumed: 0,
            armed: false,
        };
        assert_eq!(eq.pages.len() * 4096, 64usize << eq.log_size);
        self.eqs.insert(eqn, eq);
        eqn
    }

    fn post_event(
        &mut self,
        ty: u8,
        sub_type: u8,
        data: &[u8],
        vector: Option<u16>,
        interrupt: bool,
    ) -> bool {
        let matches = |eq: &Eq| match vector {
            Some(vector) => eq.vector == vector && eq.mask == 0,
            None => eq.mask >> ty & 1 != 0,
        };
        let Some(eqn) = self.eqs.iter().find(|(_, eq)| matches(eq)).map(|(eqn, _)| *eqn) else {
            return false;
        };
        let eq = &self.eqs[&eqn];
        let index = eq.produced & ((1 << eq.log_size) - 1);
        let at = eq.pages[index as usize / 64] + u64::from(index % 64) * 64;
        let mut eqe = Eqe::new_zeroed();
        (eqe.ty, eqe.sub_type) = (ty, sub_type);
        eqe.data[..data.len()].copy_from_slice(data);
        eqe.owner = (eq.produced >> eq.log_size & 1) as u8;
        self.write(at, &eqe.as_bytes()[..63]);
        self.write(at + 63, &[eqe.owner]);
        let eq = self.eqs.get_mut(&eqn).expect("found above");
        eq.produced += 1;
        if interrupt {
            self.interrupt(eqn);
        }
        true
    }

    fn interrupt(&mut self, eqn: u8) {
        let Some(eq) = self.eqs.get_mut(&eqn) else { return };
        if eq.armed && eq.produced != eq.consumed {
            eq.armed = false;
            if let Some(mut fd) = self.eventfds.get(&eq.vector) {
                let _ = fd.write(&1u64.to_ne_bytes());
            }
        }
    }

    fn eq_doorbell(&mut self, value: u32, arm: bool) {
        let eqn = (value >> 24) as u8;
        if let Some(eq) = self.eqs.get_mut(&eqn) {
            eq.consumed = value & 0xff_ffff;
            eq.armed = arm;
        }
        self.interrupt(eqn);
    }

    fn reset(&mut self) {
        self.registers = pristine();
        self.eqs.clear();
        self.pages.clear();
        self.silent.clear();
        self.config[4..6].fill(0);
        self.general_cap = general_cap();
    }
}

fn set<T: Layout>(output: &mut [u8], change: impl FnOnce(&mut T)) {
    if let Ok((layout, _)) = T::mut_from_prefix(output) {
        change(layout);
    }
}

impl PciDevice for FakeNic {
    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), DeviceError> {
        let at = usize::from(offset);
        data.copy_from_slice(&self.state().config[at..at + data.len()]);
        Ok(())
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), DeviceError> {
        let at = usize::from(offset);
        self.state().config[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn bar_size(&self, bar: u8) -> u64 {
        if bar == 0 { BAR_BYTES } else { 0 }
    }

    fn bar_read(&self, _bar: u8, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        let state = self.state();
        let value = if state.dead {
            u32::MAX
        } else {
            state.registers.get(&offset).copied().unwrap_or(0)
        };
        data.fill(0);
        let len = data.len().min(4);
        data[..len].copy_from_slice(&value.to_be_bytes()[..len]);
        Ok(())
    }

    fn bar_write(&self, _bar: u8, at: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.state();
        let mut word = [0; 4];
        let len = data.len().min(4);
        word[..len].copy_from_slice(&data[..len]);
        let value = u32::from_be_bytes(word);
        let uar = u64::from(UAR) * 4096;
        match at {
            _ if state.dead => {}
            offset::CMD_DBELL => state.doorbell(value),
            offset::CMDQ_ADDR_L_SZ => {
                state.registers.insert(at, value | CMDQ_GEOMETRY);
            }
            _ if at == uar + 0x40 => state.eq_doorbell(value, true),
            _ if at == uar + 0x48 => state.eq_doorbell(value, false),
            _ => {
                state.registers.insert(at, value);
            }
        }
        Ok(())
    }

    fn msix_vectors(&self) -> u16 {
        VECTORS
    }

    fn set_msix(&self, first: u16, eventfds: Vec<Option<OwnedFd>>) -> Result<(), DeviceError> {
        let mut state = self.state();
        for (vector, fd) in (first..).zip(eventfds) {
            match fd {
                Some(fd) => state.eventfds.insert(vector, File::from(fd)),
                None => state.eventfds.remove(&vector),
            };
        }
        Ok(())
    }

    fn set_request_notifier(&self, eventfd: Option<OwnedFd>) -> Result<(), DeviceError> {
        self.state().request = eventfd.map(File::from);
        Ok(())
    }

    fn dma_map(&self, map: DmaMap) -> Result<(), DeviceError> {
        let memory = map.memory.expect("memory of the driver has a descriptor");
        self.state()
            .maps
            .push((map.iova, map.len, File::from(memory.fd), memory.offset));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError> {
        let mut state = self.state();
        let at = state
            .maps
            .iter()
            .position(|(start, size, ..)| (*start, *size) == (iova, len));
        at.map(|at| drop(state.maps.remove(at)))
            .ok_or(DeviceError::NotMapped { iova, len })
    }

    fn reset(&self) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.resets += 1;
        state.reset();
        Ok(())
    }

    fn attached(&self, _host: Option<Arc<dyn DmaMessages>>) {
        self.state().attached = true;
    }

    fn detached(&self) {
        let mut state = self.state();
        state.reset();
        state.attached = false;
        state.maps.clear();
        state.eventfds.clear();
        state.request = None;
    }
}
