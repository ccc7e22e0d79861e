//! Protection domains, UARs, memory keys.

use alloc::vec::Vec;

use ferroce_hw_regs::ids::{MkeyIndex, Pdn, UarPage};

use super::{encode, plain_answer};
use crate::command::{Command, DecodeError, EncodeError, output};
use crate::layouts::{
    AllocPdIn, AllocPdOut, AllocUarIn, AllocUarOut, CreateMkeyIn, CreateMkeyOut, DeallocPdIn, DeallocUarIn,
    DestroyMkeyIn, Mkc,
};
use crate::opcode::Opcode;

/// Makes a protection domain.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocPd;

impl Command for AllocPd {
    type Output = Pdn;
    const OPCODE: Opcode = Opcode::ALLOC_PD;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &AllocPdIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        AllocPdOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<Pdn, DecodeError> {
        Ok(Pdn::from_low_bits(output::<AllocPdOut>(bytes)?.pd()))
    }
}

/// Ends a protection domain.
#[derive(Clone, Copy, Debug)]
pub struct DeallocPd {
    /// Which.
    pub pd: Pdn,
}

impl Command for DeallocPd {
    const OPCODE: Opcode = Opcode::DEALLOC_PD;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DeallocPdIn::default();
        input.set_pd(self.pd.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Makes a UAR page usable.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocUar;

impl Command for AllocUar {
    type Output = UarPage;
    const OPCODE: Opcode = Opcode::ALLOC_UAR;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(encode(Self::OPCODE, 0, &AllocUarIn::default(), &[]))
    }

    fn output_length(&self) -> usize {
        AllocUarOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<UarPage, DecodeError> {
        Ok(UarPage::from_low_bits(output::<AllocUarOut>(bytes)?.uar()))
    }
}

/// Gives a UAR page back.
#[derive(Clone, Copy, Debug)]
pub struct DeallocUar {
    /// Which.
    pub uar: UarPage,
}

impl Command for DeallocUar {
    const OPCODE: Opcode = Opcode::DEALLOC_UAR;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DeallocUarIn::default();
        input.set_uar(self.uar.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}

/// Bits of a translation entry (`mtt`) that allow the device to write and to read the page.
pub const MTT_PRESENT: u64 = 0x3;
/// Translation entries are counted in units of 16 bytes.
const OCTWORD_BYTES: usize = 16;

/// Makes a memory key with a list of translations.
#[derive(Clone, Copy, Debug)]
pub struct CreateMkey<'a> {
    /// Access, key byte, PD, range, page size. `translations_octword_size` is set from `translations`.
    pub mkc: &'a Mkc,
    /// IOVAs of the pages, with [`MTT_PRESENT`].
    pub translations: &'a [u64],
}

impl Command for CreateMkey<'_> {
    type Output = MkeyIndex;
    const OPCODE: Opcode = Opcode::CREATE_MKEY;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        // Two 8-byte entries an octword; the list is padded to whole ones.
        let octwords = u32::try_from(self.translations.len().div_ceil(2)).map_err(|_| {
            let count = self.translations.len();
            EncodeError::TooMany {
                what: "translations",
                count,
                max: u32::MAX as usize * 2,
            }
        })?;
        let mut input = CreateMkeyIn::default();
        *input.memory_key_mkey_entry_mut() = *self.mkc;
        input
            .memory_key_mkey_entry_mut()
            .set_translations_octword_size(octwords);
        input.set_translations_octword_actual_size(octwords);
        input.set_pg_access(octwords != 0);
        let mut bytes = encode(Self::OPCODE, 0, &input, self.translations);
        bytes.resize(CreateMkeyIn::BYTES + octwords as usize * OCTWORD_BYTES, 0);
        Ok(bytes)
    }

    fn output_length(&self) -> usize {
        CreateMkeyOut::BYTES
    }

    fn decode(&self, bytes: &[u8]) -> Result<MkeyIndex, DecodeError> {
        Ok(MkeyIndex::from_low_bits(
            output::<CreateMkeyOut>(bytes)?.mkey_index(),
        ))
    }
}

/// Ends a memory key.
#[derive(Clone, Copy, Debug)]
pub struct DestroyMkey {
    /// Which.
    pub index: MkeyIndex,
}

impl Command for DestroyMkey {
    const OPCODE: Opcode = Opcode::DESTROY_MKEY;

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let mut input = DestroyMkeyIn::default();
        input.set_mkey_index(self.index.get())?;
        Ok(encode(Self::OPCODE, 0, &input, &[]))
    }

    plain_answer!();
}
