//! A chunk's buffer, aligned as a disk needs it that is written past the page cache.

use crate::chunks::BLOCK;
use crate::part::NUMBER;

const ALIGNMENT: usize = BLOCK as usize;

/// Room for one chunk.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(bytes: u64) -> Self {
        let len = (bytes.next_multiple_of(BLOCK) / NUMBER) as usize;
        let memory = vec![0.0_f32; len + ALIGNMENT / NUMBER as usize];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(memory.len() - len);
        Self { memory, start, len }
    }

    pub(crate) fn holds(&self, bytes: usize) -> bool {
        bytes <= self.len * NUMBER as usize
    }

    /// The first numbers.
    pub(crate) fn numbers_mut(&mut self, count: usize) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.len][..count]
    }

    pub(crate) fn numbers(&self, count: usize) -> &[f32] {
        &self.memory[self.start..self.start + self.len][..count]
    }

    /// The first bytes, as files hold them: numbers in little-endian order.
    pub(crate) fn bytes(&self, count: usize) -> &[u8] {
        const { assert!(cfg!(target_endian = "little"), "numbers are stored as they lie in memory") };
        &bytemuck::cast_slice(&self.memory[self.start..self.start + self.len])[..count]
    }

    pub(crate) fn bytes_mut(&mut self, count: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.memory[self.start..self.start + self.len])[..count]
    }
}
