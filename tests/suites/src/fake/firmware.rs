//! The scripted firmware: executes commands, writes event queues.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use ferroce_firmware_iface::command::addresses;
use ferroce_firmware_iface::layout::{Layout, view};
use ferroce_firmware_iface::layouts::{
    CreateEqIn, ManagePagesIn, ManagePagesOut, NicVportContext, PmtuReg, QueryIssiOut, QueryPagesOut, RoceCap,
};
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::queue::{BLOCK_DATA, Block, Entry, INLINE_BYTES};
use ferroce_hw_regs::eqe::Eqe;
use ferroce_hw_regs::init_seg::offset;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{Eq, Reply, Request, State, UAR, general_cap, pristine};

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

    pub(super) fn doorbell(&mut self, bits: u32) {
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

    pub(super) fn complete(&mut self, slot: u8, output: &[u8], delivery: u8, token: Option<u8>) {
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

    pub(super) fn post_event(
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

    pub(super) fn eq_doorbell(&mut self, value: u32, arm: bool) {
        let eqn = (value >> 24) as u8;
        if let Some(eq) = self.eqs.get_mut(&eqn) {
            eq.consumed = value & 0xff_ffff;
            eq.armed = arm;
        }
        self.interrupt(eqn);
    }

    pub(super) fn reset(&mut self) {
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
