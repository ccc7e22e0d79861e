//! Layouts of the firmware interface and of the hardware.

use std::fmt::Debug;
use std::hint::black_box;

use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::*;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::queue::{Block, Entry};
use ferroce_nic_model::trace::Trace;
use zerocopy::FromBytes;

fn layout<L: Layout + Debug>(data: &[u8]) {
    let Ok((layout, _)) = L::ref_from_prefix(data) else {
        return;
    };
    black_box(format!("{layout:?}"));
    black_box(layout.reserved_bit_set());
}

/// Any bytes as each layout, and as a command in a trace.
///
/// # Panics
/// On a bug.
pub fn layouts(data: &[u8]) {
    layout::<Cqc>(data);
    layout::<Qpc>(data);
    layout::<Mkc>(data);
    layout::<Eqc>(data);
    layout::<CmdHcaCap>(data);
    layout::<RoceAddrLayout>(data);
    layout::<NicVportContext>(data);
    layout::<QueryPagesOut>(data);
    layout::<QueryAdapterOut>(data);
    layout::<CreateQpIn>(data);
    layout::<QueryQpOut>(data);
    layout::<QueryQCounterOut>(data);
    if let Ok((entry, _)) = Entry::ref_from_prefix(data) {
        black_box((
            entry.owned_by_device(),
            entry.delivery_status(),
            entry.signature_ok(),
        ));
    }
    if let Ok((block, _)) = Block::ref_from_prefix(data) {
        black_box(block.signatures_ok());
    }
    let opcode = data.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
    let mut trace = Trace::new(Box::new(std::io::sink()));
    trace.input(0, Opcode(opcode), data);
    trace.output(0, Opcode(opcode), data);
}
