//! The firmware driven over host memory, with a data plane that only keeps books.

mod bringup;
mod congestion;
mod hostile;
mod mock;
mod objects;
mod pages;
mod queue;

use std::cell::RefCell;

use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::*;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::queue::{BLOCK_DATA, Block, Entry, INLINE_BYTES, TYPE_PCIE, blocks_for};
use ferroce_firmware_iface::status::{CommandStatus, DeliveryStatus};
use mock::MockPlane;
use zerocopy::{FromZeros, IntoBytes};

use super::*;
use crate::profile::Profile;

/// Host memory from IOVA [`TestHost::BASE`] on.
pub struct TestHost {
    bytes: RefCell<Vec<u8>>,
}

impl TestHost {
    pub const BASE: u64 = 0x10_0000;
    pub const BYTES: u64 = 2 << 20;

    fn new() -> TestHost {
        TestHost {
            bytes: RefCell::new(vec![0; Self::BYTES as usize]),
        }
    }

    fn range(iova: u64, len: usize) -> Result<std::ops::Range<usize>, DmaFault> {
        let fault = DmaFault { iova, len };
        let start = iova.checked_sub(Self::BASE).ok_or(fault)?;
        let end = start
            .checked_add(len as u64)
            .filter(|e| *e <= Self::BYTES)
            .ok_or(fault)?;
        Ok(start as usize..end as usize)
    }
}

impl HostDma for TestHost {
    fn read(&self, iova: u64, data: &mut [u8]) -> Result<(), DmaFault> {
        data.copy_from_slice(&self.bytes.borrow()[Self::range(iova, data.len())?]);
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.bytes.borrow_mut()[Self::range(iova, data.len())?].copy_from_slice(data);
        Ok(())
    }

    /// Pages may lie anywhere below 2^40: nobody reads them.
    fn mapped(&self, iova: u64, _: u64) -> bool {
        iova < 1 << 40
    }
}

/// What a command came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    /// Not answered yet.
    Pending,
    Undelivered(DeliveryStatus),
    /// Delivered; the output.
    Done(Vec<u8>),
}

impl Reply {
    /// The output of a command whose status is OK.
    #[track_caller]
    pub fn ok(self) -> Vec<u8> {
        let Reply::Done(output) = self else {
            panic!("not answered: {self:?}");
        };
        assert_eq!(
            CommandStatus(output[0]),
            CommandStatus::OK,
            "syndrome {:x?}",
            &output[4..8]
        );
        output
    }

    /// Status and syndrome.
    #[track_caller]
    pub fn refused(self) -> (CommandStatus, u32) {
        let Reply::Done(output) = self else {
            panic!("not answered: {self:?}");
        };
        let syndrome = u32::from_be_bytes(*output[4..].first_chunk().unwrap());
        (CommandStatus(output[0]), syndrome)
    }
}

/// Firmware, data plane and host memory, with a queue at the start of the memory.
pub struct Bench {
    pub fw: Firmware,
    pub plane: MockPlane,
    pub now_ns: u64,
    pub token: u8,
}

const QUEUE: u64 = TestHost::BASE;
/// Mailbox blocks: a MiB for the input, the rest for the output.
const INPUT: u64 = TestHost::BASE + 0x1000;
const OUTPUT: u64 = TestHost::BASE + (1 << 20);
const BLOCK_STEP: u64 = 1024;

impl Bench {
    pub fn new(profile: Profile) -> Bench {
        let mut bench = Bench {
            plane: MockPlane::new(&profile),
            fw: Firmware::new(profile),
            now_ns: 10_000_000,
            token: 7,
        };
        bench.write32(0x10, (QUEUE >> 32) as u32);
        bench.write32(0x14, QUEUE as u32);
        bench
    }

    pub fn write32(&mut self, at: u64, value: u32) {
        self.fw.bar_write(self.now_ns, at, &value.to_be_bytes());
    }

    pub fn run(&mut self) {
        let mut env = Env {
            now_ns: self.now_ns,
            plane: &mut self.plane,
        };
        self.fw.run(&mut env);
    }

    fn chain(&self, at: u64, data: &[u8], blocks: usize) {
        for i in 0..blocks {
            let next = if i + 1 < blocks {
                at + (i as u64 + 1) * BLOCK_STEP
            } else {
                0
            };
            let mut block = Block::new(i as u32, next, self.token);
            let part = data.get(i * BLOCK_DATA..).unwrap_or_default();
            let n = part.len().min(BLOCK_DATA);
            block.data[..n].copy_from_slice(&part[..n]);
            if n == 0 {
                block.data.fill(0xee); // Stale bytes.
            }
            self.plane
                .host
                .write(at + i as u64 * BLOCK_STEP, block.as_bytes())
                .unwrap();
        }
    }

    /// Writes an entry with its mailboxes.
    pub fn put(&mut self, slot: u8, input: &[u8], output_length: usize) {
        let mut entry = Entry::new_zeroed();
        entry.ty = TYPE_PCIE;
        entry.input_length = (input.len() as u32).into();
        entry.output_length = (output_length as u32).into();
        let inline = input.len().min(INLINE_BYTES);
        entry.input[..inline].copy_from_slice(&input[..inline]);
        entry.output.fill(0xee);
        entry.input_mailbox = INPUT.into();
        entry.output_mailbox = OUTPUT.into();
        entry.token = self.token;
        entry.status_own = Entry::OWNER_HW;
        self.chain(INPUT, &input[inline..], blocks_for(input.len()));
        self.chain(OUTPUT, &[], blocks_for(output_length));
        self.put_entry(slot, &entry);
    }

    pub fn put_entry(&self, slot: u8, entry: &Entry) {
        self.plane
            .host
            .write(QUEUE + u64::from(slot) * 64, entry.as_bytes())
            .unwrap();
    }

    pub fn reply(&self, slot: u8, output_length: usize) -> Reply {
        let mut entry = Entry::new_zeroed();
        let at = QUEUE + u64::from(slot) * 64;
        self.plane.host.read(at, entry.as_mut_bytes()).unwrap();
        if entry.owned_by_device() {
            return Reply::Pending;
        }
        if entry.delivery_status() != DeliveryStatus::OK {
            return Reply::Undelivered(entry.delivery_status());
        }
        let mut output = entry.output.to_vec();
        for i in 0..blocks_for(output_length) {
            let mut block = Block::new_zeroed();
            let at = OUTPUT + i as u64 * BLOCK_STEP;
            self.plane.host.read(at, block.as_mut_bytes()).unwrap();
            output.extend_from_slice(&block.data);
        }
        output.truncate(output_length);
        Reply::Done(output)
    }

    /// Gives a command in slot 0 and reads its answer.
    pub fn exec(&mut self, input: &[u8], output_length: usize) -> Reply {
        self.exec_in(0, input, output_length)
    }

    pub fn exec_in(&mut self, slot: u8, input: &[u8], output_length: usize) -> Reply {
        self.put(slot, input, output_length);
        self.write32(0x18, 1 << slot);
        self.run();
        self.reply(slot, output_length)
    }

    /// A command whose input is a layout, with opcode and the fields that `fill` sets.
    pub fn command<T: Layout>(&mut self, opcode: Opcode, fill: impl FnOnce(&mut T)) -> Reply {
        let input = input_of(opcode, 0, fill);
        self.exec(input.as_bytes(), 0x200)
    }

    /// A command with no more than opcode and modifier.
    pub fn plain(&mut self, opcode: Opcode, op_mod: u16) -> Reply {
        let input: QueryIssiIn = input_of(opcode, op_mod, |_| {});
        self.exec(input.as_bytes(), 0x200)
    }

    /// Brings the HCA to where objects can be created.
    pub fn initialized(profile: Profile) -> Bench {
        let mut bench = Bench::new(profile);
        bench.plain(Opcode::ENABLE_HCA, 0).ok();
        bench.give_asked(1, 0x1_0000_0000);
        bench.write_endianness();
        bench.give_asked(2, 0x2_0000_0000);
        bench.command(Opcode::INIT_HCA, |_: &mut InitHcaIn| {}).ok();
        bench
    }

    pub fn write_endianness(&mut self) {
        let mut input = input_of(Opcode::ACCESS_REG, 0, |i: &mut AccessRegisterIn| {
            i.set_register_id(0x7004)
        })
        .as_bytes()
        .to_vec();
        input.extend_from_slice(&[0; 16]);
        self.exec(&input, 32).ok();
    }

    /// Gives the pages that QUERY_PAGES asks for, from address `from` on; says how many.
    pub fn give_asked(&mut self, op_mod: u16, from: u64) -> u32 {
        let out = self.plain(Opcode::QUERY_PAGES, op_mod).ok();
        let pages = u32::from_be_bytes(*out[12..].first_chunk().unwrap());
        self.give(&(0..u64::from(pages)).map(|i| from + i * 4096).collect::<Vec<_>>())
            .ok();
        pages
    }

    pub fn give(&mut self, pages: &[u64]) -> Reply {
        let mut input = input_of(Opcode::MANAGE_PAGES, 1, |i: &mut ManagePagesIn| {
            i.set_input_num_entries(pages.len() as u32);
        })
        .as_bytes()
        .to_vec();
        for page in pages {
            input.extend_from_slice(&page.to_be_bytes());
        }
        self.exec_in(31, &input, 16)
    }

    pub fn take(&mut self, count: u32) -> Vec<u64> {
        let input = input_of(Opcode::MANAGE_PAGES, 2, |i: &mut ManagePagesIn| {
            i.set_input_num_entries(count);
        });
        let out = self.exec_in(31, input.as_bytes(), 16 + 8 * count as usize).ok();
        let taken = u32::from_be_bytes(*out[8..].first_chunk().unwrap()) as usize;
        out[16..].as_chunks::<8>().0[..taken]
            .iter()
            .map(|a| u64::from_be_bytes(*a))
            .collect()
    }

    /// Every violation so far, as text.
    pub fn complaints(&self) -> Vec<String> {
        self.fw.violations().iter().map(ToString::to_string).collect()
    }

    /// An event queue for these types; its number.
    pub fn create_eq(&mut self, types: &[u8]) -> u8 {
        let mut input = input_of(Opcode::CREATE_EQ, 0, |i: &mut CreateEqIn| {
            i.eq_context_entry_mut().set_log_eq_size(5).unwrap();
            i.eq_context_entry_mut().set_uar_page(0x10).unwrap();
            for t in types {
                let word = usize::from(t / 64);
                i.set_event_bitmask(word, i.event_bitmask(word) | 1 << (t % 64));
            }
        })
        .as_bytes()
        .to_vec();
        input.extend_from_slice(&(TestHost::BASE + 0x8000).to_be_bytes());
        self.exec(&input, 16).ok()[11]
    }
}

/// An input with opcode and modifier set.
pub fn input_of<T: Layout>(opcode: Opcode, op_mod: u16, fill: impl FnOnce(&mut T)) -> T {
    let mut input = T::zeroed();
    input.as_mut_bytes()[..2].copy_from_slice(&opcode.0.to_be_bytes());
    input.as_mut_bytes()[6..8].copy_from_slice(&op_mod.to_be_bytes());
    fill(&mut input);
    input
}
