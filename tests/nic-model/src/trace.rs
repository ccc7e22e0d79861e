//! A trace of the firmware's commands: decoded, and as a hexdump in the shape in which Linux mlx5 prints its
//! own with debugging on, so that two drivers' commands can be compared with diff.
//!
//! ```text
//! cmd[0]: start dump
//! cmd[0]: dump command data QUERY_PAGES(0x107) INPUT
//! cmd[0]: 000: 01070000 00000001 00000000 00000000
//! cmd[0]: end dump
//! ```

use std::fmt;
use std::io::{self, Write};

use ferroce_firmware_iface::layout::{LayoutInfo, debug_fields};
use ferroce_firmware_iface::layouts::of_command;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::CommandStatus;

/// Bytes of a command that are dumped. Linux dumps all: the longest of a bring-up are the pages that a ConnectX-4 asks
/// for at once, 102,960 bytes. A key of millions of pages is cut.
const DUMP_MOST: usize = 128 << 10;

/// Writes commands to a sink.
pub struct Trace {
    sink: Box<dyn Write + Send>,
    broken: bool,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

struct Decoded<'a>(&'static LayoutInfo, &'a [u8]);

impl fmt::Debug for Decoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_fields(self.0, self.1, f)
    }
}

impl Trace {
    /// A trace into `sink`. When the sink fails, that is logged once and the trace stops.
    pub fn new(sink: Box<dyn Write + Send>) -> Trace {
        Trace { sink, broken: false }
    }

    /// A command that the host gave.
    pub fn input(&mut self, slot: u8, opcode: Opcode, bytes: &[u8]) {
        let info = of_command(opcode).map(|(input, _)| input);
        self.dump(slot, opcode, bytes, "INPUT", info);
    }

    /// Its answer.
    pub fn output(&mut self, slot: u8, opcode: Opcode, bytes: &[u8]) {
        let info = of_command(opcode).map(|(_, output)| output);
        self.dump(slot, opcode, bytes, "OUTPUT", info);
    }

    fn dump(&mut self, slot: u8, opcode: Opcode, bytes: &[u8], way: &str, info: Option<&'static LayoutInfo>) {
        if self.broken {
            return;
        }
        // Each command is there at once, for who looks at a driver that hangs.
        let written = write_dump(&mut self.sink, slot, opcode, bytes, way, info);
        if let Err(error) = written.and_then(|()| self.sink.flush()) {
            log::warn!("firmware trace: {error}; it stops here");
            self.broken = true;
        }
    }
}

fn write_dump(
    to: &mut dyn Write,
    slot: u8,
    opcode: Opcode,
    bytes: &[u8],
    way: &str,
    info: Option<&'static LayoutInfo>,
) -> io::Result<()> {
    writeln!(to, "cmd[{slot}]: start dump")?;
    writeln!(
        to,
        "cmd[{slot}]: dump command data {opcode}({:#x}) {way}",
        opcode.0
    )?;
    if way == "OUTPUT" && bytes.first().is_some_and(|s| *s != 0) {
        let status = CommandStatus(bytes[0]);
        let syndrome = bytes
            .get(4..8)
            .and_then(|b| b.first_chunk())
            .map_or(0, |b| u32::from_be_bytes(*b));
        writeln!(to, "cmd[{slot}]: status {status}, syndrome {syndrome:#x}")?;
    } else if let Some(info) = info {
        // Older drivers leave out the end of some layouts.
        let mut whole = bytes.to_vec();
        whole.resize(whole.len().max(info.bytes), 0);
        writeln!(to, "cmd[{slot}]: {:?}", Decoded(info, &whole))?;
    }
    for (i, row) in bytes[..bytes.len().min(DUMP_MOST)].chunks(16).enumerate() {
        write!(to, "cmd[{slot}]: {:03x}:", i * 16)?;
        for dword in 0..4 {
            let byte = |at: usize| row.get(dword * 4 + at).copied().unwrap_or(0);
            write!(
                to,
                " {:02x}{:02x}{:02x}{:02x}",
                byte(0),
                byte(1),
                byte(2),
                byte(3)
            )?;
        }
        writeln!(to)?;
    }
    if bytes.len() > DUMP_MOST {
        writeln!(to, "cmd[{slot}]: {} bytes more", bytes.len() - DUMP_MOST)?;
    }
    writeln!(to, "cmd[{slot}]: end dump")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_dumped_in_the_shape_of_linux() {
        let mut text = Vec::new();
        let input = [1, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let info = of_command(Opcode::QUERY_PAGES).map(|l| l.0);
        write_dump(&mut text, 3, Opcode::QUERY_PAGES, &input, "INPUT", info).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "cmd[3]: start dump");
        assert_eq!(lines[1], "cmd[3]: dump command data QUERY_PAGES(0x107) INPUT");
        assert!(lines[2].contains("op_mod: 0x1"), "{}", lines[2]);
        assert_eq!(lines[3], "cmd[3]: 000: 01070000 00000001 00000000 00000000");
        assert_eq!(lines[4], "cmd[3]: end dump");
    }

    #[test]
    fn a_refusal_shows_its_status() {
        let mut text = Vec::new();
        let output = [3, 0, 0, 0, 0, 0, 0, 9];
        write_dump(&mut text, 0, Opcode(0xfff), &output, "OUTPUT", None).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("bad parameter (0x3), syndrome 0x9"), "{text}");
    }
}
