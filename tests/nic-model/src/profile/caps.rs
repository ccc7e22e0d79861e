//! Capabilities by type: what can be had (MAX) and what is on (CURRENT).

use std::collections::BTreeMap;

use ferroce_firmware_iface::cmds::{CAP_BYTES, CapType};
use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::QueryAdapterParamBlock;

use super::layout_from;

/// One capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// What can be had.
    pub max: Vec<u8>,
    /// What is on.
    pub current: Vec<u8>,
}

/// All capabilities of a NIC.
#[derive(Clone, Debug, Default)]
pub struct Capabilities {
    types: BTreeMap<CapType, Capability>,
}

impl Capabilities {
    /// The capability of that type, if the NIC has it.
    pub fn get(&self, ty: CapType) -> Option<&Capability> {
        self.types.get(&ty)
    }

    /// The capability of that type, to be changed.
    pub fn get_mut(&mut self, ty: CapType) -> Option<&mut Capability> {
        self.types.get_mut(&ty)
    }

    /// What can be had, as a layout; zeros where the NIC does not have the type.
    pub fn max<T: Layout>(&self, ty: CapType) -> T {
        layout_from(self.get(ty).map_or(&[], |c| &c.max))
    }

    /// What is on, as a layout; zeros where the NIC does not have the type.
    pub fn current<T: Layout>(&self, ty: CapType) -> T {
        layout_from(self.get(ty).map_or(&[], |c| &c.current))
    }

    /// A capability without any bit set.
    pub fn add_empty(&mut self, ty: CapType) {
        self.entry(ty);
    }

    /// Takes a capability away.
    pub fn remove(&mut self, ty: CapType) {
        self.types.remove(&ty);
    }

    /// Changes MAX and CURRENT of a type alike.
    pub fn edit<T: Layout>(&mut self, ty: CapType, edit: impl Fn(&mut T)) {
        let capability = self.entry(ty);
        for bytes in [&mut capability.max, &mut capability.current] {
            change(bytes, &edit);
        }
    }

    /// Changes MAX of a type: what the host may take into use.
    pub fn edit_max<T: Layout>(&mut self, ty: CapType, edit: impl Fn(&mut T)) {
        change(&mut self.entry(ty).max, edit);
    }

    fn entry(&mut self, ty: CapType) -> &mut Capability {
        self.types.entry(ty).or_insert_with(|| Capability {
            max: vec![0; CAP_BYTES],
            current: vec![0; CAP_BYTES],
        })
    }
}

fn change<T: Layout>(bytes: &mut [u8], edit: impl Fn(&mut T)) {
    let mut layout: T = layout_from(bytes);
    edit(&mut layout);
    bytes[..T::INFO.bytes].copy_from_slice(layout.as_bytes());
}

/// Reads a recording: see the head of `data/connectx4.txt`.
///
/// # Panics
///
/// The recordings are part of this crate; a line that is not understood is a mistake of ours.
pub(super) fn parse(text: &str) -> (Capabilities, QueryAdapterParamBlock) {
    let mut capabilities = Capabilities::default();
    let mut adapter = QueryAdapterParamBlock::zeroed();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["capability", ty, which, hex] => {
                let ty = u16::from_str_radix(ty.trim_start_matches("0x"), 16).expect("capability type");
                let capability = capabilities.entry(CapType(ty));
                let to = match which {
                    "max" => &mut capability.max,
                    _ => &mut capability.current,
                };
                let bytes = unhex(hex);
                to[..bytes.len()].copy_from_slice(&bytes);
            }
            ["adapter", hex] => adapter = layout_from(&unhex(hex)),
            _ => panic!("not a line of a recording: {line}"),
        }
    }
    (capabilities, adapter)
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
    (0..hex.len()).step_by(2).map(digits).collect()
}
