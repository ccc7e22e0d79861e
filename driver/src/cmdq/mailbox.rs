//! Mailbox blocks: what of a command's input and output does not fit in its queue entry.
//!
//! ```text
//!  entry: 16 bytes inline ─▶ block 0: 512 bytes │ next ─▶ block 1: 512 bytes │ next = 0
//! ```
//! Blocks live in chunks that stay mapped, in a stride of 1 KiB since their addresses must be aligned to that. A block
//! belongs to one chain at a time; what a device may still write to never goes back to the pool.

use std::mem::offset_of;
use std::sync::Arc;

use ferroce_firmware_iface::queue::{BLOCK_ALIGN, BLOCK_DATA, Block as BlockImage};
use zerocopy::IntoBytes;

use crate::mem::{DmaBuffer, DmaError, DmaSpace};

/// Distance between blocks: as near as their alignment allows.
const STRIDE: usize = BLOCK_ALIGN;
/// Where a block's token is, in the dword that also holds its signatures.
const TOKEN_DWORD: usize = offset_of!(BlockImage, rsvd1);
/// Blocks of a chunk: enough for several capability queries at once.
const CHUNK_BLOCKS: usize = 64;

/// One block of a chunk.
#[derive(Clone, Debug)]
struct Block {
    chunk: Arc<DmaBuffer>,
    offset: usize,
}

impl Block {
    fn iova(&self) -> u64 {
        self.chunk.iova() + self.offset as u64
    }
}

/// A chain of blocks, owned by one command.
#[derive(Debug, Default)]
pub(crate) struct Chain(Vec<Block>);

impl Chain {
    /// Where the first block is; 0 for an empty chain.
    pub(crate) fn iova(&self) -> u64 {
        self.0.first().map_or(0, Block::iova)
    }

    /// Writes `data` into the chain's blocks, links and signs them. Blocks past the end of `data` are zeroed.
    pub(crate) fn write(&self, data: &[u8], token: u8) -> Result<(), DmaError> {
        for (number, block) in self.0.iter().enumerate() {
            let start = (number * BLOCK_DATA).min(data.len());
            let part = &data[start..(start + BLOCK_DATA).min(data.len())];
            let next = self.0.get(number + 1).map_or(0, Block::iova);
            let mut image = BlockImage::new(number as u32, next, token);
            image.data[..part.len()].copy_from_slice(part);
            image.sign();
            block.chunk.write(block.offset, image.as_bytes())?;
        }
        Ok(())
    }

    /// Reads `data.len()` bytes from the chain. `Err(token)` if a block carries another command's token.
    pub(crate) fn read(&self, data: &mut [u8], token: u8) -> Result<Result<(), u8>, DmaError> {
        for (block, part) in self.0.iter().zip(data.chunks_mut(BLOCK_DATA)) {
            let found = (block.chunk.read_be32(block.offset + TOKEN_DWORD)? >> 16) as u8;
            if found != token {
                return Ok(Err(found));
            }
            block.chunk.read(block.offset, part)?;
        }
        Ok(Ok(()))
    }
}

/// The free blocks.
#[derive(Debug)]
pub(crate) struct BlockPool {
    dma: Arc<DmaSpace>,
    free: Vec<Block>,
    chunks: Vec<Arc<DmaBuffer>>,
}

impl BlockPool {
    /// An empty pool; it grows as commands need it.
    pub(crate) fn new(dma: Arc<DmaSpace>) -> Self {
        Self {
            dma,
            free: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// A chain that holds `len` bytes. The caller has bounded `len`.
    pub(crate) fn chain(&mut self, len: usize) -> Result<Chain, DmaError> {
        let wanted = len.div_ceil(BLOCK_DATA);
        if self.free.len() < wanted {
            self.grow(wanted - self.free.len())?;
        }
        Ok(Chain(self.free.split_off(self.free.len() - wanted)))
    }

    /// Takes back the blocks of a command that was answered.
    pub(crate) fn give_back(&mut self, chain: Chain) {
        self.free.extend(chain.0);
    }

    fn grow(&mut self, missing: usize) -> Result<(), DmaError> {
        let count = missing.max(CHUNK_BLOCKS);
        let chunk = Arc::new(self.dma.alloc(count * STRIDE)?);
        // In reverse, so that chains run upwards in memory.
        let blocks = (0..count).rev().map(|i| Block {
            chunk: chunk.clone(),
            offset: i * STRIDE,
        });
        self.free.extend(blocks);
        self.chunks.push(chunk);
        Ok(())
    }

    /// Keeps the memory of all blocks after the pool is dropped: the device may still use it.
    pub(super) fn keep_memory(&self) {
        self.chunks.iter().for_each(|chunk| chunk.leak_on_drop());
    }
}
